//! What is done with what was found: one TOML file, with the safe choice as every default.
//!
//! ```toml
//! layer2 = "required"            # "model": the loaded model looks; "off": send with layer 1 alone
//! layer2_failure = "local"       # or "refuse"
//! unknown_fields = "refuse"      # or "drop", "mask"
//! response_redact = "secrets"    # or "off", "all"
//! style = "unicode"              # or "ascii", "surrogate"
//! on_local = "answer"            # or "error": what a `local` verdict of a cloud request does
//! on_unreachable = "error"       # or "answer": what a provider that fails leads to
//! owner = ["Project Kingfisher"]  # masked wherever it stands
//! allow = ["Acme"]                # no secret
//!
//! [categories]                   # allow | mask | strip | ask | local | refuse
//! card = "strip"
//! email = "mask"
//!
//! [topics]                       # what layer 2 may say a message is about
//! health = "local"
//!
//! [tools.read_file]
//! sink = "local"                 # its arguments get the originals back
//! result = "local"               # whatever it returned keeps the request here
//! [tools.send_mail]
//! sink = "network"
//! restore = ["to"]               # of a network tool's arguments only these get the originals back
//! [tools.read_file.categories]
//! phone = "allow"
//!
//! [budget]                       # of one session, all its requests together
//! values = 500                   # distinct values masked
//! clear = 200                    # distinct values that `allow` let leave as they are
//! kib = 32768                    # sent
//! action = "ask"                 # or "local", "refuse": what is done with a request beyond it
//!
//! [[paths]]                      # a mention of such a path anywhere in the request
//! glob = "~/Documents/tax/**"
//! action = "local"
//!
//! [[patterns]]                   # what no recogniser can know
//! name = "employee"
//! regex = '\bE-\d{6}\b'
//! category = "other"
//! ```

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Category, Field, FieldRole, hash};

mod budget;
mod paths;
mod patterns;
#[cfg(test)]
mod tests;

pub use budget::Budget;
pub use paths::PathRule;
use paths::PathSet;
pub use patterns::PatternRule;
pub(crate) use patterns::{PatternSet, Patterned};

/// What is done with a span, mildest first, so that the strictest of several is the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It leaves as it is.
    Allow,
    /// A stand-in leaves; the answer gets the original back.
    Mask,
    /// A stand-in leaves; the original is kept nowhere, so the answer keeps the stand-in.
    Strip,
    /// The request waits for consent; with it, the span is masked.
    Ask,
    /// The whole request stays on this machine.
    Local,
    /// The whole request is refused.
    Refuse,
}

/// What is done with a message: the strictest of its spans' actions, with `strip` as `mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Leaves as it is.
    Allow,
    /// Leaves with stand-ins.
    Mask,
    /// Waits for consent.
    Ask,
    /// Stays on this machine.
    Local,
    /// Goes nowhere.
    Refuse,
}

impl Verdict {
    /// The name in reports and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Mask => "mask",
            Self::Ask => "ask",
            Self::Local => "local",
            Self::Refuse => "refuse",
        }
    }
}

impl From<Action> for Verdict {
    fn from(action: Action) -> Self {
        match action {
            Action::Allow => Self::Allow,
            Action::Mask | Action::Strip => Self::Mask,
            Action::Ask => Self::Ask,
            Action::Local => Self::Local,
            Action::Refuse => Self::Refuse,
        }
    }
}

/// Whether a request may leave without a model having looked at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer2 {
    /// Nothing leaves unless layer 2 is there and looked.
    Required,
    /// As `Required`, and layer 2 is the model that is loaded: it reads every request before it leaves. A model that
    /// is too small for it misses the values planted to test it, and nothing leaves.
    Model,
    /// Layer 1 alone decides. Names and addresses that no pattern finds will leave.
    Off,
}

/// What follows when layer 2 is there but fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The request stays on this machine.
    Local,
    /// The request is refused.
    Refuse,
}

/// What is done with a top-level field that the gate does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownFields {
    /// The request is refused, with the field's name.
    Refuse,
    /// The field does not leave; the report says so.
    Drop,
    /// Every string in it is treated as any other text, and it leaves masked.
    Mask,
}

/// What is hidden in answers: values that the request did not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseRedact {
    /// Nothing.
    Off,
    /// Secrets.
    Secrets,
    /// Everything that layer 1 finds.
    All,
}

/// The form of stand-ins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// `⟦PERSON_3·k7qp⟧`
    Unicode,
    /// `[[PERSON_3_k7qp]]`
    Ascii,
    /// People get invented names ("Velmar Tosquin"), so that an answer reads like prose; everything else as with
    /// `unicode`. A model may bend an invented name so that it is not recognised any more, and what it says about a name as
    /// such is wrong. Not together with `response_redact = "all"`, which would hide the names: `unicode` then.
    Surrogate,
}

/// What a cloud request with the verdict `local` gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLocal {
    /// An answer of the model on this machine.
    Answer,
    /// An error that says why.
    Error,
}

/// What a cloud request gets when the provider cannot be reached or fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnreachable {
    /// An error: who asked for one model gets no other.
    Error,
    /// An answer of the model on this machine.
    Answer,
}

/// Where a tool's arguments go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sink {
    /// They stay on this machine (file, calendar, local shell): originals are restored.
    Local,
    /// They leave it (web, search, mail): stand-ins stay unless the argument is named in `restore`.
    Network,
}

/// What holds for one tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolRule {
    /// Where its arguments go; not given: `default_sink`.
    pub sink: Option<Sink>,
    /// Arguments of a network tool (their top-level names) that get originals back.
    pub restore: Vec<String>,
    /// Least action for anything that this tool returned.
    pub result: Option<Action>,
    /// Actions that replace `[categories]` for its arguments and results.
    pub categories: BTreeMap<Category, Action>,
}

/// The policy. [`Policy::default`] is the safe one; [`Policy::parse`] reads one.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Whether a model must have looked.
    pub layer2: Layer2,
    /// What follows when it failed.
    pub layer2_failure: OnFailure,
    /// Milliseconds that layer 2 may take for one request.
    pub layer2_timeout_ms: u64,
    /// Most values that layer 2 may name in one window; more is taken for a model that lost its way.
    pub layer2_max_items: usize,
    /// Fields the gate does not know.
    pub unknown_fields: UnknownFields,
    /// What is hidden in answers.
    pub response_redact: ResponseRedact,
    /// The form of stand-ins.
    pub style: Style,
    /// What the verdict `local` leads to.
    pub on_local: OnLocal,
    /// What a provider that fails leads to, once all tries are used up.
    pub on_unreachable: OnUnreachable,
    /// Minutes that a session's stand-ins are kept after its last request.
    pub session_minutes: u64,
    /// Where the arguments of tools go that `[tools]` does not list.
    pub default_sink: Sink,
    /// Action by category; those not listed keep their default.
    pub categories: BTreeMap<Category, Action>,
    /// Action by topic of layer 2 (`health`, `legal`, `finance`, `belief`, `other`).
    pub topics: BTreeMap<Topic, Action>,
    /// How much one session may give away.
    pub budget: Budget,
    /// Rules by tool name.
    pub tools: BTreeMap<String, ToolRule>,
    /// Rules by path.
    pub paths: Vec<PathRule>,
    /// The owner's own patterns.
    pub patterns: Vec<PatternRule>,
    /// Further terms of the owner's own: each is masked wherever it stands.
    pub owner: Vec<String>,
    /// Terms that are no secret, whatever layer 2 or a pattern without proof says.
    pub allow: Vec<String>,
    #[serde(skip)]
    path_set: PathSet,
    #[serde(skip)]
    pattern_set: PatternSet,
    #[serde(skip)]
    digest: String,
}

/// What layer 2 may say a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// Illness, treatment, a body.
    Health,
    /// Between a client and a lawyer.
    Legal,
    /// Income, debts, contracts.
    Finance,
    /// Religion, politics, union membership.
    Belief,
    /// Anything else of which a model says that it should stay.
    Other,
}

impl Default for Policy {
    fn default() -> Self {
        let mut policy = Self {
            layer2: Layer2::Required,
            layer2_failure: OnFailure::Local,
            layer2_timeout_ms: 20_000,
            layer2_max_items: 64,
            unknown_fields: UnknownFields::Refuse,
            response_redact: ResponseRedact::Secrets,
            style: Style::Unicode,
            on_local: OnLocal::Answer,
            on_unreachable: OnUnreachable::Error,
            session_minutes: 60,
            default_sink: Sink::Network,
            categories: BTreeMap::new(),
            topics: BTreeMap::new(),
            budget: Budget::default(),
            tools: BTreeMap::new(),
            paths: Vec::new(),
            patterns: Vec::new(),
            owner: Vec::new(),
            allow: Vec::new(),
            path_set: PathSet::default(),
            pattern_set: PatternSet::default(),
            digest: String::new(),
        };
        policy.digest = policy.compute_digest();
        policy
    }
}

/// Why a policy cannot be used. Nothing leaves then.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Not TOML, or a field or value that does not exist.
    #[error("policy: {0}")]
    Syntax(String),
    /// A glob that is none.
    #[error("policy: paths: glob {glob:?}: {reason}")]
    Glob {
        /// The pattern.
        glob: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A pattern that is none.
    #[error("policy: patterns: {name:?}: {reason}")]
    Pattern {
        /// The pattern's name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An action that makes no sense where it stands.
    #[error("policy: {field} is {found:?}; expected {expected}")]
    Action {
        /// Which.
        field: &'static str,
        /// Its value.
        found: Action,
        /// What it may be.
        expected: &'static str,
    },
    /// A number outside its range.
    #[error("policy: {field} is {found}; expected {expected}")]
    Range {
        /// Which.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it may be.
        expected: &'static str,
    },
}

impl Policy {
    /// Reads a policy. `home` is what `~` in globs stands for.
    ///
    /// # Errors
    /// Anything in it that is not understood: a policy is never used in part.
    pub fn parse(text: &str, home: Option<&str>) -> Result<Self, PolicyError> {
        let mut policy: Self =
            toml::from_str(text).map_err(|e| PolicyError::Syntax(e.to_string().trim_end().to_owned()))?;
        let ranges = [
            ("layer2_timeout_ms", policy.layer2_timeout_ms, 1..=600_000, "1 to 600000"),
            ("layer2_max_items", policy.layer2_max_items as u64, 1..=1024, "1 to 1024"),
            ("session_minutes", policy.session_minutes, 0..=10_080, "0 to 10080 (a week)"),
        ];
        for (field, found, range, expected) in ranges {
            if !range.contains(&found) {
                return Err(PolicyError::Range { field, found, expected });
            }
        }
        policy.budget.check()?;
        policy.path_set = PathSet::new(&policy.paths, home)?;
        policy.pattern_set = PatternSet::new(&policy.patterns)?;
        policy.digest = policy.compute_digest();
        Ok(policy)
    }

    /// SHA-256 of the policy's meaning, in hex: two files that mean the same share it.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    fn compute_digest(&self) -> String {
        let mut full = self.clone();
        for category in Category::ALL {
            full.categories.insert(category, self.category(category));
        }
        for topic in [Topic::Health, Topic::Legal, Topic::Finance, Topic::Belief, Topic::Other] {
            full.topics.insert(topic, self.topic(topic));
        }
        // Maps are sorted and every field is a plain value: this cannot fail.
        hash::hex(&hash::sha256(serde_json::to_string(&full).unwrap_or_default().as_bytes()))
    }

    /// The action for a category, whatever the tool.
    pub fn category(&self, category: Category) -> Action {
        self.categories.get(&category).copied().unwrap_or(match category {
            // What must never leave also never comes back by itself.
            Category::Card | Category::NationalId | Category::Secret => Action::Strip,
            _ => Action::Mask,
        })
    }

    /// The action for a topic that layer 2 named.
    pub fn topic(&self, topic: Topic) -> Action {
        self.topics.get(&topic).copied().unwrap_or(match topic {
            Topic::Health | Topic::Legal | Topic::Belief => Action::Local,
            Topic::Finance | Topic::Other => Action::Mask,
        })
    }

    /// The action for a span of `category` in `field`.
    pub fn span(&self, category: Category, field: &Field) -> Action {
        let rule = field.tool.as_deref().and_then(|tool| self.tools.get(tool));
        rule.and_then(|r| r.categories.get(&category).copied()).unwrap_or_else(|| self.category(category))
    }

    /// The least action for a field whatever is in it: a listed tool's result, or a path that a rule names; with
    /// the reason.
    pub fn field(&self, field: &Field) -> Option<(Action, String)> {
        let of_tool = (field.role == FieldRole::ToolResult)
            .then(|| {
                let tool = field.tool.as_deref()?;
                let action = self.tools.get(tool)?.result?;
                Some((action, format!("the policy keeps results of the tool {tool:?}")))
            })
            .flatten();
        let of_path = self.path_set.strictest(&field.text);
        [of_tool, of_path].into_iter().flatten().max_by_key(|(action, _)| *action)
    }

    /// The owner's patterns, compiled.
    pub(crate) fn pattern_set(&self) -> &PatternSet {
        &self.pattern_set
    }

    /// Where a tool's arguments go.
    pub fn sink(&self, tool: &str) -> Sink {
        self.tools.get(tool).and_then(|rule| rule.sink).unwrap_or(self.default_sink)
    }

    /// Whether the argument `name` (top-level) of `tool` gets originals back.
    pub fn restores(&self, tool: &str, name: &str) -> bool {
        match self.sink(tool) {
            Sink::Local => true,
            Sink::Network => self.tools.get(tool).is_some_and(|rule| rule.restore.iter().any(|r| r == name)),
        }
    }

    /// How long a session is kept after its last request.
    pub fn session_ttl(&self) -> Duration {
        Duration::from_secs(self.session_minutes * 60)
    }
}
