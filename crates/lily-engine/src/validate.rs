//! What a request must satisfy before it is queued.

use crate::{
    backend::BackendError,
    request::{EngineError, GenerateRequest, SamplingParams},
};

/// Sizes a request is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens of prompt and answer together.
    pub context: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Ids that may be sampled: `0..valid_vocab`.
    pub valid_vocab: usize,
}

/// Refuses a request that cannot run.
pub fn request(request: &GenerateRequest, limits: &Limits) -> Result<(), EngineError> {
    let prompt = request.prompt.len();
    if prompt == 0 {
        return Err(EngineError::EmptyPrompt);
    }
    // The answer needs room for one token at least, unless none is wanted.
    let asked = request.max_tokens.unwrap_or(1);
    if prompt.saturating_add(asked) > limits.context || prompt >= limits.context {
        return Err(EngineError::ContextLength {
            prompt,
            max_tokens: request.max_tokens,
            limit: limits.context,
        });
    }
    if let Some(&id) = request.prompt.iter().find(|&&id| id as usize >= limits.vocab) {
        return Err(BackendError::BadToken { id, vocab: limits.vocab }.into());
    }
    if let Some(n) = request.logprobs.filter(|&n| n > limits.valid_vocab) {
        return Err(bad("logprobs", n, "at most the vocabulary"));
    }
    sampling(&request.sampling, limits)
}

/// Refuses sampling parameters out of range.
pub fn sampling(p: &SamplingParams, limits: &Limits) -> Result<(), EngineError> {
    // Written so that NaN fails every range.
    let ranges = [
        ("temperature", p.temperature, (0.0..=100.0).contains(&p.temperature), "0 (greedy) to 100"),
        ("top_p", p.top_p, p.top_p > 0.0 && p.top_p <= 1.0, "above 0, at most 1 (1 = off)"),
        ("min_p", p.min_p, (0.0..=1.0).contains(&p.min_p), "0 (off) to 1"),
        ("presence_penalty", p.presence_penalty, in_hundred(p.presence_penalty), "-100 to 100 (0 = off)"),
        ("frequency_penalty", p.frequency_penalty, in_hundred(p.frequency_penalty), "-100 to 100 (0 = off)"),
        (
            "repetition_penalty",
            p.repetition_penalty,
            (0.01..=100.0).contains(&p.repetition_penalty),
            "0.01 to 100 (1 = off)",
        ),
    ];
    for (name, value, ok, expected) in ranges {
        if !ok {
            return Err(bad(name, value, expected));
        }
    }
    for &(id, bias) in &p.logit_bias {
        if id as usize >= limits.valid_vocab {
            return Err(bad("logit_bias", format!("of token id {id}"), "ids of tokens in the vocabulary"));
        }
        if !(-1000.0..=1000.0).contains(&bias) {
            return Err(bad("logit_bias", format!("{bias} for token id {id}"), "biases of -1000 to 1000"));
        }
    }
    Ok(())
}

fn in_hundred(x: f32) -> bool {
    (-100.0..=100.0).contains(&x)
}

fn bad(name: &'static str, found: impl ToString, expected: &'static str) -> EngineError {
    EngineError::BadParameter { name, found: found.to_string(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { context: 16, vocab: 12, valid_vocab: 10 };

    fn ask(prompt: usize, max_tokens: Option<usize>) -> GenerateRequest {
        GenerateRequest {
            prompt: vec![1; prompt],
            sampling: SamplingParams::default(),
            max_tokens,
            stop_tokens: vec![4_000_000_000],
            logprobs: None,
            deadline: None,
            marks: Vec::new(),
            constraint: None,
        }
    }

    #[test]
    fn context_limit_at_its_edges() {
        for (prompt, max_tokens) in [(1, None), (15, None), (15, Some(1)), (1, Some(15)), (15, Some(0))] {
            request(&ask(prompt, max_tokens), &LIMITS).unwrap();
        }
        for (prompt, max_tokens) in
            [(16, None), (17, None), (15, Some(2)), (1, Some(16)), (16, Some(0)), (1, Some(usize::MAX))]
        {
            let error = request(&ask(prompt, max_tokens), &LIMITS).unwrap_err();
            let want = (prompt, max_tokens, 16);
            assert!(
                matches!(error, EngineError::ContextLength { prompt, max_tokens, limit }
                    if (prompt, max_tokens, limit) == want),
                "{prompt} + {max_tokens:?}: {error}"
            );
        }
        assert!(matches!(request(&ask(0, None), &LIMITS), Err(EngineError::EmptyPrompt)));
    }

    #[test]
    fn prompt_ids_and_logprobs() {
        let mut r = ask(3, None);
        r.prompt[1] = 11;
        request(&r, &LIMITS).unwrap();
        r.prompt[1] = 12;
        let error = request(&r, &LIMITS).unwrap_err();
        assert!(matches!(error, EngineError::Backend(BackendError::BadToken { id: 12, vocab: 12 })));
        let r = GenerateRequest { logprobs: Some(11), ..ask(3, None) };
        assert!(matches!(request(&r, &LIMITS), Err(EngineError::BadParameter { name: "logprobs", .. })));
    }

    #[test]
    fn sampling_ranges() {
        let d = SamplingParams::default;
        let bad = [
            ("temperature", SamplingParams { temperature: -0.1, ..d() }),
            ("temperature", SamplingParams { temperature: f32::NAN, ..d() }),
            ("temperature", SamplingParams { temperature: f32::INFINITY, ..d() }),
            ("temperature", SamplingParams { temperature: 100.1, ..d() }),
            ("top_p", SamplingParams { top_p: 0.0, ..d() }),
            ("top_p", SamplingParams { top_p: 1.01, ..d() }),
            ("top_p", SamplingParams { top_p: f32::NAN, ..d() }),
            ("min_p", SamplingParams { min_p: -0.01, ..d() }),
            ("min_p", SamplingParams { min_p: 1.5, ..d() }),
            ("presence_penalty", SamplingParams { presence_penalty: f32::NAN, ..d() }),
            ("frequency_penalty", SamplingParams { frequency_penalty: -101.0, ..d() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..d() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: f32::INFINITY, ..d() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(10, 1.0)], ..d() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(1, f32::NAN)], ..d() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(1, 1e9)], ..d() }),
        ];
        for (want, params) in bad {
            match sampling(&params, &LIMITS) {
                Err(EngineError::BadParameter { name, .. }) => assert_eq!(name, want),
                other => panic!("{want}: {other:?}"),
            }
        }
        for good in [
            d(),
            SamplingParams { temperature: 100.0, top_p: 1e-6, min_p: 1.0, top_k: usize::MAX, ..d() },
            SamplingParams { logit_bias: vec![(0, -100.0), (9, 100.0)], repetition_penalty: 1.3, ..d() },
        ] {
            sampling(&good, &LIMITS).unwrap();
        }
    }
}
