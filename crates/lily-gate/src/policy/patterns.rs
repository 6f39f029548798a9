//! The owner's own patterns: employee numbers, case numbers, and whatever else no recogniser can know.

use std::sync::Arc;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use super::PolicyError;
use crate::{Category, Evidence, Field, Span, propose::Recognise};

/// Largest compiled pattern in bytes; `regex` runs in linear time whatever the pattern is.
const MOST_BYTES: usize = 1 << 20;

/// One pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatternRule {
    /// Its name, for reports.
    pub name: String,
    /// A regular expression (the `regex` crate's syntax); every match is a span.
    pub regex: String,
    /// What a match is.
    pub category: Category,
}

/// The compiled patterns.
#[derive(Debug, Clone, Default)]
pub(crate) struct PatternSet(Vec<(Regex, PatternRule)>);

impl PatternSet {
    pub(super) fn new(rules: &[PatternRule]) -> Result<Self, PolicyError> {
        let compiled = rules.iter().map(|rule| {
            let error = |reason: String| PolicyError::Pattern { name: rule.name.clone(), reason };
            let regex = RegexBuilder::new(&rule.regex)
                .size_limit(MOST_BYTES)
                .build()
                .map_err(|e| error(e.to_string()))?;
            if regex.is_match("") {
                return Err(error("it matches the empty text, and so everywhere".into()));
            }
            Ok((regex, rule.clone()))
        });
        compiled.collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&self, text: &str, spans: &mut Vec<Span>) {
        for (regex, rule) in &self.0 {
            for found in regex.find_iter(text) {
                let range = found.range();
                // What a recogniser knows better stays as it is; overlaps are masked whole later.
                if !spans.iter().any(|s| s.range.start <= range.start && range.end <= s.range.end) {
                    spans.push(Span {
                        range,
                        category: rule.category,
                        evidence: Evidence::Cue,
                        recognizer: "policy_pattern".into(),
                        version: 1,
                        subtype: Some(rule.name.clone().into()),
                    });
                }
            }
        }
        spans.sort_by_key(|s| s.range.start);
    }
}

/// Layer 1 with the owner's patterns.
pub(crate) struct Patterned {
    pub inner: Arc<dyn Recognise>,
    pub patterns: PatternSet,
}

impl Recognise for Patterned {
    fn spans(&self, field: &Field) -> Vec<Span> {
        let mut spans = self.inner.spans(field);
        self.patterns.add(&field.text, &mut spans);
        spans
    }

    fn spans_in(&self, text: &str) -> Vec<Span> {
        let mut spans = self.inner.spans_in(text);
        self.patterns.add(text, &mut spans);
        spans
    }
}
