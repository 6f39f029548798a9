//! Path rules: any mention of a path that a glob names, in any text of a request.

use std::sync::LazyLock;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use regex::Regex;
use serde::{Deserialize, Serialize};

use super::{Action, PolicyError};

/// One rule: what a mention of such a path means for the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathRule {
    /// `*` within a directory, `**` across them, `~` for the home directory.
    pub glob: String,
    /// Least action for a request that mentions one.
    pub action: Action,
}

/// The compiled rules.
#[derive(Debug, Clone, Default)]
pub(super) struct PathSet {
    globs: GlobSet,
    /// The rule behind each glob.
    rules: Vec<PathRule>,
    home: Option<String>,
}

/// Whatever begins like a path and goes on without a blank or a quote. A text that is a path as a whole (an argument)
/// is tried as such as well, so that blanks in file names do no harm there.
static MENTION: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"(?:file://|~|\b[A-Za-z]:)?[/\\][^\s"'`<>|*?,;()\[\]{}]+"#).ok());

impl PathSet {
    pub(super) fn new(rules: &[PathRule], home: Option<&str>) -> Result<Self, PolicyError> {
        let mut set = GlobSetBuilder::new();
        let mut owners = Vec::new();
        let home = home.map(|h| normalise(h, None)).filter(|h| !h.is_empty());
        for rule in rules {
            let error = |reason: String| PolicyError::Glob { glob: rule.glob.clone(), reason };
            if rule.glob.trim().is_empty() {
                return Err(error("it is empty".into()));
            }
            let mut pattern = rule.glob.replace('\\', "/");
            if let (Some(rest), Some(home)) = (pattern.strip_prefix("~/"), &home) {
                pattern = format!("{}/{rest}", globset::escape(home));
            }
            // File systems that fold case would otherwise give a way around the rule.
            let build = |p: &str| GlobBuilder::new(p).case_insensitive(true).literal_separator(true).build();
            let glob = build(&pattern).map_err(|e| error(e.kind().to_string()))?;
            set.add(glob);
            owners.push(rule.clone());
            // `dir/**` means what is below; the directory itself is named too when it is listed or archived.
            if let Some(directory) = pattern.strip_suffix("/**") {
                set.add(build(directory).map_err(|e| error(e.kind().to_string()))?);
                owners.push(rule.clone());
            }
        }
        let globs = set.build().map_err(|e| PolicyError::Glob {
            glob: e.glob().unwrap_or_default().into(),
            reason: e.to_string(),
        })?;
        Ok(Self { globs, rules: owners, home })
    }

    /// The strictest rule that a path in `text` falls under.
    pub(super) fn strictest(&self, text: &str) -> Option<(Action, String)> {
        if self.rules.is_empty() {
            return None;
        }
        const LONGEST_PATH: usize = 4096;
        let whole = Some(text.trim()).filter(|t| t.len() <= LONGEST_PATH && t.contains(['/', '\\']));
        let mentions = MENTION.iter().flat_map(|r| r.find_iter(text)).map(|m| m.as_str());
        whole
            .into_iter()
            .chain(mentions)
            .flat_map(|mention| {
                let path = normalise(mention, self.home.as_deref());
                // A sentence ends with a dot, a path does not.
                let bare = path.trim_end_matches(['.', ':', '!', '/']).to_owned();
                let mut hits = self.globs.matches(&path);
                hits.extend(self.globs.matches(&bare));
                hits
            })
            .filter_map(|i| self.rules.get(i))
            .max_by_key(|rule| rule.action)
            .map(|rule| (rule.action, format!("it mentions a path of the rule {:?}", rule.glob)))
    }
}

/// Forward slashes, no `.` and `..`, no `file://`, `~` replaced.
fn normalise(path: &str, home: Option<&str>) -> String {
    let path = path.replace('\\', "/");
    let path = path.strip_prefix("file://").unwrap_or(&path);
    let path = match (path.strip_prefix('~'), home) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => format!("{home}{rest}"),
        _ => path.to_owned(),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let root = if path.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}
