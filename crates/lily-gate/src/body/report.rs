//! What was found in a request and what was done, without the values.

use serde::Serialize;

use super::{mask::Marked, request::Prepared};
use crate::{
    Category, Evidence, FieldPart, hash,
    policy::{Action, Policy, Verdict},
};

/// What becomes of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanVerdict {
    /// Leaves as it is.
    Allow,
    /// A stand-in leaves, and the answer gets the original back.
    Mask,
    /// A stand-in leaves for good.
    Strip,
    /// It holds up the whole request.
    Block,
}

impl From<Action> for SpanVerdict {
    fn from(action: Action) -> Self {
        match action {
            Action::Allow => Self::Allow,
            Action::Mask | Action::Ask => Self::Mask,
            Action::Strip => Self::Strip,
            Action::Local | Action::Refuse => Self::Block,
        }
    }
}

/// One span.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpanReport {
    /// JSON pointer of the field.
    pub path: String,
    /// Value, key or number.
    pub part: FieldPart,
    /// First byte in the field's text.
    pub start: usize,
    /// Byte after the last.
    pub end: usize,
    /// What it is.
    pub category: Category,
    /// Its kind within the category.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subtype: Option<String>,
    /// On which evidence.
    pub evidence: Evidence,
    /// Who found it.
    pub recognizer: String,
    /// In which version.
    pub version: u16,
    /// What the policy says.
    pub action: Action,
    /// What became of it.
    pub verdict: SpanVerdict,
    /// Its length in characters.
    pub length: usize,
    /// The stand-in that left for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The value's HMAC under this installation's key: equal values can be told, values cannot be guessed.
    pub hmac: String,
}

/// What was found in a request and what was done.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// In one word.
    pub verdict: Verdict,
    /// Why, beyond the spans.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Whether layer 2 `looked`, is `off`, `failed`, or was not `needed`.
    pub layer2: &'static str,
    /// All spans, in the order of the request.
    pub spans: Vec<SpanReport>,
    /// Further mentions of values that the sweep found.
    pub swept: usize,
    /// Unknown fields that did not leave.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped_fields: Vec<String>,
    /// The policy's digest.
    pub policy: String,
}

impl Report {
    pub(super) fn new(policy: &Policy) -> Self {
        Self {
            verdict: Verdict::Allow,
            reasons: Vec::new(),
            layer2: "not needed",
            spans: Vec::new(),
            swept: 0,
            dropped_fields: Vec::new(),
            policy: policy.digest().to_owned(),
        }
    }

    pub(super) fn add_spans(&mut self, prepared: &Prepared, marked: &[Vec<Marked>], key: &[u8; 32]) {
        for (field, marked) in prepared.fields.iter().zip(marked) {
            for Marked { span, action, .. } in marked {
                let value = field.text.get(span.range.clone()).unwrap_or_default();
                self.spans.push(SpanReport {
                    path: prepared.shown_path(&field.path),
                    part: field.part,
                    start: span.range.start,
                    end: span.range.end,
                    category: span.category,
                    subtype: span.subtype.as_ref().map(ToString::to_string),
                    evidence: span.evidence,
                    recognizer: span.recognizer.to_string(),
                    version: span.version,
                    action: *action,
                    verdict: (*action).into(),
                    length: value.chars().count(),
                    token: None,
                    hmac: hash::hex(&hash::hmac(key, &[value.as_bytes()])),
                });
            }
        }
    }

    /// The stand-ins, once they are known; `marked` as in [`Report::add_spans`].
    pub(super) fn set_tokens(&mut self, prepared: &Prepared, marked: &[Vec<Marked>]) {
        let marked = prepared.fields.iter().zip(marked).flat_map(|(f, all)| all.iter().map(move |m| (f, m)));
        for (span, (field, marked)) in self.spans.iter_mut().zip(marked) {
            span.token.clone_from(&marked.token);
            // The sweep may have shown that a key above is a private value.
            span.path = prepared.shown_path(&field.path);
        }
    }

    /// The span that decided, in words.
    pub(super) fn strictest_span(&self) -> String {
        match self.spans.iter().max_by_key(|s| s.action) {
            Some(span) => format!("{}: holds {} ({:?} evidence)", span.path, span.category, span.evidence)
                .to_lowercase(),
            None => "the policy keeps it".into(),
        }
    }
}
