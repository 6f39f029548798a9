//! A backend that fails, panics or computes NaN: the request fails loudly, the engine goes on.

mod common;

use common::{Scripted, Trouble, ask, expected, generate, submit};
use lily_engine::{BackendError, Engine, EngineError, EngineOptions};

const VOCAB: usize = 64;
/// The token that makes trouble; out of the way of the answers checked here.
const BAD: u32 = 63;

fn engine(trouble: Trouble) -> (Engine, std::sync::Arc<std::sync::Mutex<common::Log>>) {
    let mut backend = Scripted::new(VOCAB);
    backend.trouble = Some((BAD, trouble));
    let log = backend.log.clone();
    let options =
        EngineOptions { prefill_chunk: Some(4), valid_vocab: Some(BAD as usize), ..Default::default() };
    (Engine::start(Box::new(backend), options), log)
}

/// The scripted greedy answer with the last id unused.
fn answer(prompt: &[u32]) -> Vec<u32> {
    let ids = expected(prompt, 6, VOCAB);
    assert!(!ids.contains(&BAD), "choose another prompt");
    ids
}

#[test]
fn an_error_fails_one_request() {
    let (engine, log) = engine(Trouble::Error);
    for prompt in [vec![BAD], vec![1, 2, 3, 4, 5, BAD, 7]] {
        let done = generate(&engine, ask(&prompt, 6));
        let error = done.end.unwrap_err();
        assert!(matches!(&error, EngineError::Backend(BackendError::Device(_))), "{error}");
        assert_eq!(error.to_string(), "device failure: scripted error");
        assert_eq!(log.lock().unwrap().live, 0, "its sequence is freed, not kept");
        assert_eq!(generate(&engine, ask(&[1, 2, 3], 6)).tokens, answer(&[1, 2, 3]));
    }
}

#[test]
fn nan_fails_one_request_and_names_the_position() {
    let (engine, _) = engine(Trouble::NaN);
    let done = generate(&engine, ask(&[1, 2, 3, 4, 5, 6, BAD], 6));
    assert!(done.tokens.is_empty());
    let error = done.end.unwrap_err();
    assert!(matches!(error, EngineError::Backend(BackendError::NonFinite { position: 6 })), "{error}");
    assert_eq!(generate(&engine, ask(&[1, 2, 3], 6)).tokens, answer(&[1, 2, 3]));
}

#[test]
fn a_panic_fails_one_request() {
    let (engine, log) = engine(Trouble::Panic);
    generate(&engine, ask(&[9, 9], 2));
    assert_eq!(log.lock().unwrap().live, 0);
    for prompt in [vec![BAD], vec![1, 2, 3, 4, 5, BAD, 7]] {
        let waiting = submit(&engine, ask(&prompt, 6)).unwrap();
        let after = submit(&engine, ask(&[1, 2, 3], 6)).unwrap();
        let error = waiting.finish().end.unwrap_err();
        assert_eq!(
            error.to_string(),
            "device failure: backend scripted panicked: scripted panic at token 63"
        );
        assert_eq!(after.finish().tokens, answer(&[1, 2, 3]));
        assert_eq!(log.lock().unwrap().live, 0, "no sequence leaks");
    }
    assert!(engine.is_running());
}

/// One of several that are decoded together makes the call fail: the others go on as if nothing had been.
#[test]
fn a_failure_in_a_batch_fails_one_request() {
    for trouble in [Trouble::Error, Trouble::Panic, Trouble::NaN] {
        let mut backend = Scripted::slow(VOCAB, 2);
        backend.trouble = Some((BAD, trouble));
        let log = backend.log.clone();
        let options = EngineOptions { prefill_chunk: Some(4), ..Default::default() };
        let engine = Engine::start(Box::new(backend), options);
        // Sixteen answers; some meet the token on their way and some do not.
        let prompts: Vec<Vec<u32>> = (0..16).map(|i| vec![i, 7, i * 3 % 50]).collect();
        let running: Vec<_> = prompts.iter().map(|p| submit(&engine, ask(p, 24)).unwrap()).collect();
        let (mut failed, mut whole) = (0, 0);
        for (prompt, running) in prompts.iter().zip(running) {
            let want = expected(prompt, 24, VOCAB);
            let done = running.finish();
            // The last token is never appended.
            match want[..23].iter().position(|t| *t == BAD) {
                Some(at) => {
                    assert_eq!(done.tokens, want[..=at], "{trouble:?}");
                    assert!(matches!(done.end, Err(EngineError::Backend(_))), "{trouble:?}: {:?}", done.end);
                    failed += 1;
                }
                None => {
                    assert_eq!(done.tokens, want, "{trouble:?}");
                    whole += 1;
                }
            }
        }
        println!("{trouble:?}: {failed} failed, {whole} whole");
        assert!(failed > 1 && whole > 1);
        assert!(log.lock().unwrap().batches.iter().any(|&n| n > 1));
        assert_eq!(log.lock().unwrap().live, 0);
    }
}

#[test]
fn a_backend_past_use_stops_the_engine() {
    let mut backend = Scripted::slow(VOCAB, 10);
    backend.trouble = Some((BAD, Trouble::Panic));
    backend.panic_in_free = true;
    let log = backend.log.clone();
    let engine = Engine::start(Box::new(backend), EngineOptions::default());
    let failing = submit(&engine, ask(&[BAD], 6)).unwrap();
    let waiting = submit(&engine, ask(&[1], 6)).unwrap();
    assert!(matches!(failing.finish().end, Err(EngineError::Backend(BackendError::Device(_)))));
    assert!(matches!(waiting.finish().end, Err(EngineError::Stopped)));
    assert!(matches!(submit(&engine, ask(&[1], 6)), Err(EngineError::Stopped)));
    assert!(!engine.is_running());
    assert_eq!(engine.load(), (0, 0));
    drop(engine);
    assert!(log.lock().unwrap().dropped);
}
