//! A device that chooses tokens itself, step after step: the answers are those of a host that chooses, and what a
//! sequence has seen is known at every end.

mod common;

use std::sync::{Arc, Mutex};

use common::{Log, Scripted, Trouble, ask, expected, generate, submit};
use lily_engine::{
    BackendError, CacheOutcome, CheckpointKind, Engine, EngineError, EngineOptions, FinishReason,
    GenerateRequest, SamplingParams,
};

const VOCAB: usize = 64;

fn engine(change: impl FnOnce(&mut Scripted)) -> (Engine, Arc<Mutex<Log>>) {
    let mut backend = Scripted::new(VOCAB);
    backend.most_drawn = 32;
    change(&mut backend);
    let log = backend.log.clone();
    let options = EngineOptions { queue_limit: 200, ..Default::default() };
    (Engine::start(Box::new(backend), options), log)
}

fn sampled(prompt: &[u32], n: usize, seed: u64) -> GenerateRequest {
    let sampling = SamplingParams { temperature: 1.0, seed, ..Default::default() };
    GenerateRequest { sampling, ..ask(prompt, n) }
}

#[test]
fn one_run_is_one_answer() {
    let (engine, log) = engine(|_| {});
    let done = generate(&engine, ask(&[1, 2, 3], 30));
    assert_eq!(done.tokens, expected(&[1, 2, 3], 30, VOCAB));
    assert_eq!(done.end.unwrap().0, FinishReason::Length);
    let figures = engine.figures();
    // The first token is the prompt's; no step is taken beyond the last one wanted.
    assert_eq!(log.lock().unwrap().runs, [29]);
    assert_eq!(figures.decode_batches[0], 29);
    assert_eq!(generate(&engine, ask(&[1, 2], 1)).tokens, expected(&[1, 2], 1, VOCAB));
    assert_eq!(generate(&engine, ask(&[1, 2], 2)).tokens, expected(&[1, 2], 2, VOCAB));
    assert_eq!(log.lock().unwrap().runs, [29, 1]);
    assert_eq!(log.lock().unwrap().live, 0);
}

/// A step was under way when the stop token came, so the sequence has seen it; the next turn begins behind it.
#[test]
fn a_conversation_goes_on_behind_the_stop_token() {
    let (engine, log) = engine(|_| {});
    let mut history: Vec<u32> = (0..40).collect();
    let mut seen = 0;
    for turn in 0..10 {
        let want = expected(&history, 40, VOCAB);
        let stop = want[12];
        let length = want.iter().position(|t| *t == stop).unwrap();
        log.lock().unwrap().prefills.clear();
        let request = GenerateRequest { stop_tokens: vec![stop], ..ask(&history, 40) };
        let done = generate(&engine, request);
        assert_eq!(done.tokens, want[..length], "turn {turn}");
        let (reason, stats) = done.end.unwrap();
        assert_eq!((reason, stats.cached_tokens), (FinishReason::Stop, seen));
        assert_eq!(log.lock().unwrap().prefills.iter().sum::<usize>(), history.len() - seen);
        if turn > 0 {
            assert_eq!(stats.cache, CacheOutcome::HitRam(CheckpointKind::EndOfResponse));
        }
        // A stop token that the prompt's logits bring already was never appended.
        assert!(length > 0, "choose another prompt");
        seen = history.len() + length + 1;
        history.extend(&want[..=length]);
        history.extend([1, 2, 3 + turn]);
        assert_eq!(log.lock().unwrap().live, 0);
    }
}

/// Draws depend on the request alone: not on neighbours, not on neighbours whose tokens the host chooses, not on how many
/// the device takes at once.
#[test]
fn answers_do_not_depend_on_neighbours() {
    let all = |most_drawn: usize, together: bool| -> Vec<Vec<u32>> {
        let (engine, log) = engine(|b| {
            b.most_drawn = most_drawn;
            b.delay = std::time::Duration::from_millis(u64::from(together));
        });
        let requests: Vec<GenerateRequest> = (0..24)
            .map(|i| match i % 4 {
                0 => ask(&[i, 2], 10 + i as usize),
                1 => sampled(&[i, 3], 30, i as u64),
                // The host's: history, and log-probabilities.
                2 => {
                    let mut request = sampled(&[i, 4], 20, i as u64);
                    request.sampling.presence_penalty = 0.5;
                    request
                }
                _ => GenerateRequest { logprobs: Some(2), ..ask(&[i, 5], 25) },
            })
            .collect();
        let tokens = if together {
            let running: Vec<_> = requests.into_iter().map(|r| submit(&engine, r).unwrap()).collect();
            running.into_iter().map(|r| r.finish().tokens).collect()
        } else {
            requests.into_iter().map(|r| generate(&engine, r).tokens).collect()
        };
        let log = log.lock().unwrap();
        assert_eq!(log.live, 0);
        if together {
            assert!(log.batches.iter().any(|&n| n == most_drawn.min(8)), "{:?}", log.batches);
        }
        tokens
    };
    let alone = all(32, false);
    assert_eq!(alone[0], expected(&[0, 2], 10, VOCAB));
    assert_eq!(alone[3], expected(&[3, 5], 25, VOCAB));
    for most_drawn in [1, 3, 32] {
        assert_eq!(all(most_drawn, true), alone, "at most {most_drawn} at once");
    }
}

#[test]
fn a_run_ends_for_those_who_come_and_those_who_leave() {
    let (engine, log) = engine(|b| b.delay = std::time::Duration::from_millis(2));
    let long = submit(&engine, ask(&[7], 30_000)).unwrap();
    long.wait_token(10);
    let short = generate(&engine, ask(&[1, 2, 3], 5));
    assert_eq!(short.tokens, expected(&[1, 2, 3], 5, VOCAB));
    long.wait_token(5);
    long.cancel.cancel();
    let done = long.finish();
    assert_eq!(done.end.unwrap().0, FinishReason::Cancelled);
    assert_eq!(log.lock().unwrap().live, 0);
    // What the cancelled one had computed is there: its own tokens, no others.
    let again = generate(&engine, ask(&[7], 15 + done.tokens.len() + 5));
    assert_eq!(again.tokens, expected(&[7], 15 + done.tokens.len() + 5, VOCAB));
    let steps = log.lock().unwrap().runs.clone();
    assert!(steps.len() >= 3 && steps[0] < 60, "{steps:?}");
}

#[test]
fn a_failure_in_a_run_fails_one_request() {
    const BAD: u32 = 63;
    for trouble in [Trouble::Error, Trouble::Panic, Trouble::NaN] {
        let (engine, log) = engine(|b| {
            b.trouble = Some((BAD, trouble));
            b.delay = std::time::Duration::from_millis(1);
        });
        let prompts: Vec<Vec<u32>> = (0..16).map(|i| vec![i, 7, i * 3 % 50]).collect();
        let running: Vec<_> = prompts.iter().map(|p| submit(&engine, ask(p, 24)).unwrap()).collect();
        let (mut failed, mut whole) = (0, 0);
        for (prompt, running) in prompts.iter().zip(running) {
            let want = expected(prompt, 24, VOCAB);
            let done = running.finish();
            match want[..23].iter().position(|t| *t == BAD) {
                Some(at) => {
                    // The token before the trouble may not have been looked at yet: a step was ahead.
                    assert!(done.tokens == want[..=at] || done.tokens == want[..at], "{trouble:?}");
                    let error = done.end.unwrap_err();
                    assert!(matches!(error, EngineError::Backend(_)), "{trouble:?}: {error}");
                    if trouble == Trouble::NaN {
                        let position = prompt.len() + at;
                        let found = matches!(error, EngineError::Backend(BackendError::NonFinite { position: p }) if p == position);
                        assert!(found, "{error}, expected position {position}");
                    }
                    failed += 1;
                }
                None => {
                    assert_eq!(done.tokens, want, "{trouble:?}");
                    whole += 1;
                }
            }
        }
        assert!(failed > 1 && whole > 1, "{trouble:?}: {failed} failed, {whole} whole");
        assert_eq!(log.lock().unwrap().live, 0);
    }
}
