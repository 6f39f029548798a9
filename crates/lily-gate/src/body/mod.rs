//! The gate: a request in, and either a [`GatedBody`] that may leave, or the reason why nothing does.
//!
//! ```text
//! fields -> layer 1 -> layer 2 (adds) -> policy -> stand-ins -> sweep -> undo check -> GatedBody
//! ```
//!
//! [`GatedBody`] cannot be made anywhere else, and nothing but a [`GatedBody`] can be sent: that no byte leaves ungated is a
//! matter of types.

mod approve;
mod budget;
mod layer2;
mod mask;
mod report;
mod request;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::Value;
use zeroize::Zeroizing;

use crate::{
    Evidence, Field, FieldRole, RefusalKind, Span, hash,
    policy::{Action, Layer2, Patterned, Policy, ResponseRedact, Style, Verdict},
    propose::{Looker, Proposer, Recognise},
    restore::RestoreMap,
    vault::VaultStore,
};

pub use approve::ApprovalError;
use approve::Approvals;
use mask::{Marked, Masked};
pub use report::{Report, SpanReport, SpanVerdict};
use request::Prepared;

/// What a [`Gate`] is built from.
pub struct GateConfig {
    /// Layer 1.
    pub recogniser: Arc<dyn Recognise>,
    /// Layer 2, if there is one.
    pub proposer: Option<Arc<dyn Proposer>>,
    /// What is done with what is found.
    pub policy: Policy,
    /// This installation's key: reports carry values only as hashes under it.
    pub install_key: [u8; 32],
}

/// A request that asks to leave.
#[derive(Debug, Clone, Copy)]
pub struct Inbound<'a> {
    /// OpenAI's chat completion body, as the client sent it.
    pub request: &'a Value,
    /// The model's name at the provider; it replaces the request's.
    pub model: &'a str,
    /// Who asks, so that sessions of two clients never meet.
    pub client: &'a str,
    /// The session, where the client names one; otherwise the conversation's beginning tells it.
    pub session: Option<&'a str>,
    /// A consent given for this very request.
    pub approval: Option<&'a str>,
    /// The form of its stand-ins, where the client wishes another than the policy's.
    pub style: Option<Style>,
    /// Only look: no session is kept and no consent is asked for or used up.
    pub dry_run: bool,
}

/// Bytes that may leave, with everything needed to restore their answer. Made by [`Gate::check`] alone.
#[derive(Debug)]
pub struct GatedBody {
    bytes: Vec<u8>,
    sha256: [u8; 32],
    restore: Arc<RestoreMap>,
    report: Report,
    stream: bool,
    approval: Option<String>,
}

impl GatedBody {
    /// What leaves, to the byte.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// SHA-256 of the bytes.
    pub fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }

    /// How to restore the answer.
    pub fn restore(&self) -> &Arc<RestoreMap> {
        &self.restore
    }

    /// What was found and done.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether the answer is asked for in pieces.
    pub fn stream(&self) -> bool {
        self.stream
    }

    /// The consent under which it leaves.
    pub fn approval(&self) -> Option<&str> {
        self.approval.as_deref()
    }
}

/// Why a request does not leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The request is not one that the gate knows: the client's to mend.
    Request,
    /// The policy says so.
    Policy,
    /// Layer 2 is needed and not there.
    NoLayer2,
    /// Layer 2 failed.
    Layer2,
    /// It holds what cannot be read.
    Unreadable,
    /// A consent that is not (any more) for this request.
    Approval,
    /// The gate itself failed, now or before: nothing leaves until it is started anew.
    Broken,
    /// Stand-ins could not be made so that they can be undone; the request is given up.
    Aborted,
}

/// A request that does not leave.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Why, as a kind.
    pub cause: Cause,
    /// Why, in words, with the place; never a private value.
    pub reason: String,
    /// The field to blame, as a JSON pointer.
    pub path: Option<String>,
    /// What was found until then.
    pub report: Report,
}

/// A request that waits for consent.
#[derive(Debug, Clone)]
pub struct Consent {
    /// Sent with the very same request, once, it lets it leave masked. Empty in dry runs.
    pub approval: String,
    /// What was found.
    pub report: Report,
}

/// What the gate says.
#[derive(Debug)]
pub enum Decision {
    /// It may leave, in this form.
    Send(Box<GatedBody>),
    /// It waits for consent.
    Ask(Box<Consent>),
    /// It stays, and may be answered on this machine.
    Local(Box<Kept>),
    /// It is refused.
    Refuse(Box<Kept>),
}

impl Decision {
    /// What was found, whatever was decided.
    pub fn report(&self) -> &Report {
        match self {
            Self::Send(body) => &body.report,
            Self::Ask(consent) => &consent.report,
            Self::Local(kept) | Self::Refuse(kept) => &kept.report,
        }
    }

    /// In one word.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Send(body) => body.report.verdict,
            Self::Ask(_) => Verdict::Ask,
            Self::Local(_) => Verdict::Local,
            Self::Refuse(_) => Verdict::Refuse,
        }
    }
}

/// The gate of one policy. Shared between threads.
pub struct Gate {
    recogniser: Arc<dyn Recognise>,
    looker: Option<Looker>,
    allow: HashSet<String>,
    policy: Policy,
    vaults: VaultStore,
    approvals: Approvals,
    install_key: Zeroizing<[u8; 32]>,
    /// For sessions and approvals, which do not outlive the process.
    process_key: Zeroizing<[u8; 32]>,
    broken: AtomicBool,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("policy", &self.policy.digest())
            .field("layer2", &self.looker.is_some())
            .finish_non_exhaustive()
    }
}

/// A request that stops here, before there is a body.
struct Stop {
    verdict: Verdict,
    cause: Cause,
    reason: String,
    path: Option<String>,
}

impl Stop {
    fn new(verdict: Verdict, cause: Cause, reason: impl Into<String>) -> Self {
        Self { verdict, cause, reason: reason.into(), path: None }
    }
}

impl Gate {
    /// A gate.
    pub fn new(config: GateConfig) -> Self {
        let patterns = config.policy.pattern_set().clone();
        let recogniser: Arc<dyn Recognise> = if patterns.is_empty() {
            config.recogniser
        } else {
            Arc::new(Patterned { inner: config.recogniser, patterns })
        };
        Self {
            recogniser,
            looker: config.proposer.map(Looker::new),
            allow: config.policy.allow.iter().map(|term| term.trim().to_lowercase()).collect(),
            policy: config.policy,
            vaults: VaultStore::default(),
            approvals: Approvals::default(),
            install_key: Zeroizing::new(config.install_key),
            process_key: Zeroizing::new(rand::random()),
            broken: AtomicBool::new(false),
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The sessions' vaults.
    pub fn vaults(&self) -> &VaultStore {
        &self.vaults
    }

    /// Whether anything can leave at all, and if not, why.
    pub fn ready(&self) -> Result<(), (Cause, &'static str)> {
        if self.broken.load(Ordering::Acquire) {
            return Err((
                Cause::Broken,
                "a recogniser failed earlier; nothing leaves until the server is started anew",
            ));
        }
        if self.looker.is_none() && self.policy.layer2 != Layer2::Off {
            return Err((
                Cause::NoLayer2,
                "no model of layer 2 is there, and the policy needs one; `layer2 = \"model\"` in the policy lets the loaded \
                 model look, `layer2 = \"off\"` sends with layer 1 alone",
            ));
        }
        Ok(())
    }

    /// Looks at a request and decides. Takes as long as layer 2 takes: call it where blocking is allowed.
    pub fn check(&self, inbound: Inbound) -> Decision {
        let mut report = Report::new(&self.policy);
        let outcome = match self.ready() {
            Err((cause, reason)) => Err(Stop::new(Verdict::Refuse, cause, reason)),
            // After a panic nothing of ours is used again: the vault's lock is poisoned and the gate stays shut.
            Ok(()) => catch_unwind(AssertUnwindSafe(|| self.check_inner(inbound, &mut report)))
                .unwrap_or_else(|_| {
                    self.broken.store(true, Ordering::Release);
                    Err(Stop::new(
                        Verdict::Refuse,
                        Cause::Broken,
                        "the gate failed while it looked at this request",
                    ))
                }),
        };
        match outcome {
            Ok(decision) => decision,
            Err(stop) => {
                report.verdict = stop.verdict;
                let kept = Kept { cause: stop.cause, reason: stop.reason, path: stop.path, report };
                match stop.verdict {
                    Verdict::Local => Decision::Local(Box::new(kept)),
                    _ => Decision::Refuse(Box::new(kept)),
                }
            }
        }
    }

    fn check_inner(&self, inbound: Inbound, report: &mut Report) -> Result<Decision, Stop> {
        let mut prepared = Prepared::new(inbound.request, inbound.model, self.policy.unknown_fields)
            .map_err(|r| Stop {
                verdict: if r.kind == RefusalKind::KeepLocal { Verdict::Local } else { Verdict::Refuse },
                cause: if r.kind == RefusalKind::KeepLocal { Cause::Unreadable } else { Cause::Request },
                reason: r.to_string(),
                path: Some(r.path),
            })?;
        report.dropped_fields.clone_from(&prepared.dropped);
        let mut spans = self.layer1(&prepared.fields)?;
        prepared.hide_keys(|i| !spans[i].is_empty());
        let mut least = self.rules(&prepared, &spans, report);
        // A request that stays anyway need not be read by a model.
        if least < Verdict::Local {
            self.layer2(&prepared.fields, &mut spans, &mut least, report)?;
        }
        prepared.hide_keys(|i| !spans[i].is_empty());
        let marked = self.mark(&prepared, &spans);
        report.add_spans(&prepared, &marked, &self.install_key);
        let over = self.over_budget(inbound, &prepared.fields, &marked);
        if let Some(reason) = &over {
            report.reasons.push(reason.clone());
            least = least.max(self.policy.budget.action.into());
        }
        let worst = marked.iter().flatten().map(|m| Verdict::from(m.action)).max().unwrap_or(Verdict::Allow);
        report.verdict = worst.max(least);
        match report.verdict {
            verdict @ (Verdict::Local | Verdict::Refuse) => {
                let reason = report.reasons.first().cloned().unwrap_or_else(|| report.strictest_span());
                return Err(Stop::new(verdict, Cause::Policy, reason));
            }
            Verdict::Ask => {
                let bound = self.bound_hash(inbound);
                match inbound.approval {
                    _ if inbound.dry_run => {
                        return Ok(Decision::Ask(Box::new(Consent {
                            approval: String::new(),
                            report: report.clone(),
                        })));
                    }
                    None => {
                        let approval = self.approvals.issue(bound);
                        return Ok(Decision::Ask(Box::new(Consent { approval, report: report.clone() })));
                    }
                    Some(approval) => self
                        .approvals
                        .redeem(approval, bound)
                        .map_err(|e| Stop::new(Verdict::Refuse, Cause::Approval, e.to_string()))?,
                }
            }
            Verdict::Allow | Verdict::Mask => {
                if let Some(approval) = inbound.approval.filter(|_| !inbound.dry_run) {
                    // A consent for something else is a sign that somebody is confused: say so.
                    self.approvals
                        .redeem(approval, self.bound_hash(inbound))
                        .map_err(|e| Stop::new(Verdict::Refuse, Cause::Approval, e.to_string()))?;
                }
            }
        }
        let body = self.body(inbound, &mut prepared, marked, over.is_some(), report)?;
        Ok(Decision::Send(Box::new(body)))
    }

    /// Layer 1 over every field.
    fn layer1(&self, fields: &[Field]) -> Result<Vec<Vec<Span>>, Stop> {
        let spans: Vec<Vec<Span>> = fields.iter().map(|field| self.recogniser.spans(field)).collect();
        for (field, spans) in fields.iter().zip(&spans) {
            if let Some(bad) =
                spans.iter().find(|s| field.text.get(s.range.clone()).is_none_or(str::is_empty))
            {
                let reason =
                    format!("{}: the recogniser {} gave a range that is none", field.path, bad.recognizer);
                self.broken.store(true, Ordering::Release);
                return Err(Stop::new(Verdict::Refuse, Cause::Broken, reason));
            }
        }
        Ok(spans)
    }

    /// Rules that are not about spans: paths, tools, names that cannot be masked.
    fn rules(&self, prepared: &Prepared, spans: &[Vec<Span>], report: &mut Report) -> Verdict {
        let mut least = Verdict::Allow;
        for (field, spans) in prepared.fields.iter().zip(spans) {
            if let Some((action, reason)) = self.policy.field(field) {
                // Masking a whole tool result or path mention makes no sense: the spans in it are masked anyway.
                if action > Action::Strip {
                    report.reasons.push(format!("{}: {reason}", prepared.shown_path(&field.path)));
                    least = least.max(action.into());
                }
            }
            for span in spans {
                let action = self.policy.span(span.category, field);
                let verdict = Verdict::from(action);
                if verdict >= Verdict::Local {
                    least = least.max(verdict);
                }
                if field.role == FieldRole::Identifier
                    && span.evidence == Evidence::Validated
                    && action != Action::Allow
                {
                    report.reasons.push(format!(
                        "{}: a name or id that holds a private value ({}) cannot be masked; rename it",
                        prepared.shown_path(&field.path),
                        span.category
                    ));
                    least = Verdict::Refuse;
                }
            }
        }
        least
    }

    /// The action for every span.
    fn mark(&self, prepared: &Prepared, spans: &[Vec<Span>]) -> Vec<Vec<Marked>> {
        let marked = prepared.fields.iter().zip(spans).map(|(field, spans)| {
            spans
                .iter()
                .filter(|_| field.role != FieldRole::Identifier)
                .map(|span| Marked {
                    span: span.clone(),
                    action: self.policy.span(span.category, field),
                    token: None,
                })
                .collect()
        });
        marked.collect()
    }

    /// Stand-ins, the undo check, and the bytes.
    fn body(
        &self,
        inbound: Inbound,
        prepared: &mut Prepared,
        mut marked: Vec<Vec<Marked>>,
        beyond_budget: bool,
        report: &mut Report,
    ) -> Result<GatedBody, Stop> {
        let aborted = |reason: String| Stop::new(Verdict::Refuse, Cause::Aborted, reason);
        let session = if inbound.dry_run { rand::random() } else { self.session(inbound) };
        let style = match inbound.style.unwrap_or(self.policy.style) {
            Style::Surrogate if self.policy.response_redact == ResponseRedact::All => Style::Unicode,
            style => style,
        };
        let lower: Vec<String> = prepared.fields.iter().map(|f| f.text.to_lowercase()).collect();
        let vault = self
            .vaults
            .session(session, style, self.policy.session_ttl(), |tag| lower.iter().any(|t| t.contains(tag)))
            .map_err(|e| aborted(e.to_string()))?;
        let masked = {
            let mut vault = vault.lock().map_err(|_| aborted("the session's vault broke earlier".into()))?;
            vault.set_style(style);
            vault.avoid(lower);
            let masked = mask::mask(&mut vault, &prepared.fields, &mut marked).map_err(aborted);
            vault.avoid(Vec::new());
            let masked = masked?;
            if !inbound.dry_run {
                budget::spend(&mut vault, inbound, &prepared.fields, &marked, beyond_budget);
            }
            masked
        };
        if inbound.dry_run {
            self.vaults.forget(&session);
        }
        let Masked { fields, restore, swept, seen } = masked;
        let before: Vec<String> = prepared.fields.iter().map(|f| f.text.clone()).collect();
        report.swept = swept;
        prepared.hide_keys(|i| fields[i].text != before[i]);
        report.set_tokens(prepared, &marked);
        if swept > 0 {
            report.verdict = report.verdict.max(Verdict::Mask);
        }
        let out = prepared.finish(&fields).map_err(|r| Stop {
            path: Some(r.path.clone()),
            ..Stop::new(Verdict::Refuse, Cause::Request, r.to_string())
        })?;
        let bytes =
            serde_json::to_vec(&out).map_err(|e| aborted(format!("the body could not be written: {e}")))?;
        let restore = if self.policy.response_redact == ResponseRedact::Off {
            restore
        } else {
            restore.with_scan(self.policy.response_redact, Arc::clone(&self.recogniser), seen)
        };
        Ok(GatedBody {
            sha256: hash::sha256(&bytes),
            stream: out.get("stream").and_then(Value::as_bool).unwrap_or(false),
            bytes,
            restore: Arc::new(restore),
            report: report.clone(),
            approval: inbound.approval.filter(|_| !inbound.dry_run).map(str::to_owned),
        })
    }

    /// The session a request belongs to. Without a name, it is the client's conversation that begins so.
    fn session(&self, inbound: Inbound) -> [u8; 32] {
        let named = inbound.session.map(str::to_owned);
        let begin = named.unwrap_or_else(|| {
            let messages = inbound.request.get("messages").and_then(Value::as_array);
            let mut begin = String::from("\n");
            for message in messages.into_iter().flatten() {
                begin += &message.to_string();
                if message.get("role").is_some_and(|r| r == "user") {
                    break;
                }
            }
            begin
        });
        hash::hmac(&self.process_key, &[b"session", inbound.client.as_bytes(), begin.as_bytes()])
    }

    /// What a consent is bound to: this client, this model, this body to the byte, this policy. Its own field is left
    /// out, since it comes with the consent.
    fn bound_hash(&self, inbound: Inbound) -> [u8; 32] {
        let mut request = inbound.request.clone();
        if let Some(fields) = request.as_object_mut() {
            fields.shift_remove("privacy");
        }
        let request = request.to_string();
        let parts: [&[u8]; 5] = [
            b"approval",
            inbound.client.as_bytes(),
            inbound.model.as_bytes(),
            request.as_bytes(),
            self.policy.digest().as_bytes(),
        ];
        hash::hmac(&self.process_key, &parts)
    }
}
