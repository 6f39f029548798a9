//! Layer 2's part in a request: it may add, and nothing else.

use zeroize::Zeroizing;

use super::{Cause, Gate, Report, Stop};
use crate::{
    Evidence, Field, FieldRole, Span,
    policy::{Action, Layer2, OnFailure, Verdict},
};

impl Gate {
    /// Layer 2 over all texts. Adds spans and topics.
    pub(super) fn layer2(
        &self,
        fields: &[Field],
        spans: &mut [Vec<Span>],
        least: &mut Verdict,
        report: &mut Report,
    ) -> Result<(), Stop> {
        let Some(looker) = &self.looker else {
            report.layer2 = "off";
            return Ok(());
        };
        if self.policy.layer2 == Layer2::Off {
            report.layer2 = "off";
            return Ok(());
        }
        // Stop strings and predictions are text too; only names and ids are not.
        let readable = |f: &&Field| f.role != FieldRole::Identifier;
        let text: Vec<&str> = fields.iter().filter(readable).map(|f| f.text.as_str()).collect();
        let text = Zeroizing::new(text.join("\n"));
        let limit = std::time::Duration::from_millis(self.policy.layer2_timeout_ms);
        let found = looker.look(&text, self.policy.digest(), self.policy.layer2_max_items, limit).map_err(
            |failure| {
                let verdict = match self.policy.layer2_failure {
                    OnFailure::Local => Verdict::Local,
                    OnFailure::Refuse => Verdict::Refuse,
                };
                report.layer2 = "failed";
                Stop::new(verdict, Cause::Layer2, failure.to_string())
            },
        )?;
        report.layer2 = "looked";
        for topic in found.topics {
            let action = self.policy.topic(topic);
            if action > Action::Strip {
                report
                    .reasons
                    .push(format!("layer 2 says that the message is about {topic:?}").to_lowercase());
                *least = (*least).max(action.into());
            }
        }
        for item in &found.items {
            if self.allow.contains(&item.v.trim().to_lowercase()) {
                continue;
            }
            for (field, spans) in fields.iter().zip(spans.iter_mut()).filter(|(f, _)| readable(f)) {
                for (at, value) in field.text.match_indices(item.v.as_str()) {
                    let range = at..at + value.len();
                    // Layer 1 knows better what it is; the overlap of two is masked whole later.
                    let known =
                        spans.iter().any(|s| s.range.start <= range.start && range.end <= s.range.end);
                    if !known {
                        spans.push(Span {
                            range,
                            category: item.t.category(),
                            evidence: Evidence::Proposed,
                            recognizer: "layer2".into(),
                            version: 1,
                            subtype: Some(item.t.name().into()),
                        });
                    }
                }
            }
        }
        Ok(())
    }
}
