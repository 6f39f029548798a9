//! Logit bias and the penalties on tokens seen before.

use std::collections::HashMap;

use crate::request::SamplingParams;

/// What is known of a token that occurred.
#[derive(Debug, Clone, Copy)]
struct Seen {
    id: u32,
    /// Times it was generated; 0 for a token of the prompt alone.
    generated: u32,
}

/// The tokens of prompt and output that penalties look at.
#[derive(Debug, Default)]
pub struct History {
    seen: Vec<Seen>,
    index: HashMap<u32, usize>,
}

impl History {
    fn entry(&mut self, id: u32) -> &mut Seen {
        let at = *self.index.entry(id).or_insert_with(|| {
            self.seen.push(Seen { id, generated: 0 });
            self.seen.len() - 1
        });
        &mut self.seen[at]
    }

    /// Notes a token of the prompt.
    pub fn add_prompt(&mut self, id: u32) {
        self.entry(id);
    }

    /// Notes a generated token.
    pub fn add_generated(&mut self, id: u32) {
        self.entry(id).generated += 1;
    }
}

/// Whether `params` change logits before the temperature.
pub fn any(params: &SamplingParams) -> bool {
    !params.logit_bias.is_empty() || looks_at_history(params)
}

/// Whether `params` need the [`History`].
pub fn looks_at_history(params: &SamplingParams) -> bool {
    params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0
}

/// Applies, in this order: logit bias; repetition penalty (Keskar et al. 2019, CTRL, §4.1, in the sign-aware form
/// that is in general use); presence and frequency penalties (as defined by the OpenAI API).
///
/// `logits`: `[vocab]`; ids outside it are passed over.
pub fn apply(params: &SamplingParams, history: &History, logits: &mut [f32]) {
    for &(id, bias) in &params.logit_bias {
        if let Some(l) = logits.get_mut(id as usize) {
            *l = finite(*l + bias);
        }
    }
    if !looks_at_history(params) {
        return;
    }
    for seen in &history.seen {
        let Some(l) = logits.get_mut(seen.id as usize) else { continue };
        let mut x = *l;
        x = if x > 0.0 { x / params.repetition_penalty } else { x * params.repetition_penalty };
        if seen.generated > 0 {
            x -= params.presence_penalty + params.frequency_penalty * seen.generated as f32;
        }
        *l = finite(x);
    }
}

/// Keeps an overflow from becoming an infinity, which would turn the softmax into NaN.
fn finite(x: f32) -> f32 {
    x.clamp(f32::MIN, f32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_and_order() {
        let mut history = History::default();
        for id in [0, 1, 9_999] {
            history.add_prompt(id);
        }
        for id in [1, 2, 2, 2] {
            history.add_generated(id);
        }
        let params = SamplingParams {
            logit_bias: vec![(0, 1.0), (1, -3.0), (0, 0.5), (70, 5.0)],
            repetition_penalty: 2.0,
            presence_penalty: 0.25,
            frequency_penalty: 0.5,
            ..Default::default()
        };
        let mut logits = [2.5, 1.0, 4.0, 7.0];
        apply(&params, &history, &mut logits);
        // 0: prompt only, (2.5 + 1.5) / 2; 1: (1 - 3) * 2 - 0.25 - 0.5; 2: 4 / 2 - 0.25 - 3 * 0.5; 3: untouched.
        assert_eq!(logits, [2.0, -4.75, 0.25, 7.0]);
    }

    #[test]
    fn overflow_stays_finite() {
        let mut history = History::default();
        history.add_generated(0);
        let params = SamplingParams {
            logit_bias: vec![(0, 1000.0)],
            repetition_penalty: 0.01,
            presence_penalty: 2.0,
            ..Default::default()
        };
        let mut logits = [f32::MAX, 1.0];
        apply(&params, &history, &mut logits);
        assert!(logits[0].is_finite() && logits[0] > 1e38);
    }

    #[test]
    fn neutral_parameters_change_nothing() {
        let mut history = History::default();
        history.add_generated(1);
        let params = SamplingParams::default();
        assert!(!any(&params));
        let mut logits = [0.5, -0.25];
        apply(&params, &history, &mut logits);
        assert_eq!(logits, [0.5, -0.25]);
    }
}
