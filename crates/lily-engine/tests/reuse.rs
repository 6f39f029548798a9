//! The last timeline is reused exactly when the new prompt extends it.

mod common;

use common::{Scripted, ask, expected, generate, submit};
use lily_engine::{Engine, EngineOptions, FinishReason};

const VOCAB: usize = 64;

#[test]
fn a_conversation_computes_only_its_new_tokens() {
    let backend = Scripted::new(VOCAB);
    let log = backend.log.clone();
    let engine = Engine::start(Box::new(backend), EngineOptions { prefill_chunk: 16, ..Default::default() });
    let mut history: Vec<u32> = (0..40).collect();
    let mut seen = 0;
    for turn in 0..10 {
        log.lock().unwrap().prefills.clear();
        let done = generate(&engine, ask(&history, 12));
        assert_eq!(done.tokens, expected(&history, 12, VOCAB), "turn {turn}");
        let (_, stats) = done.end.unwrap();
        let computed: usize = log.lock().unwrap().prefills.iter().sum();
        println!("turn {turn}: {} cached, {computed} computed", stats.cached_tokens);
        assert_eq!(stats.cached_tokens, seen);
        assert_eq!(computed, history.len() - seen);
        assert_eq!(done.prefills[0], (seen, history.len()));
        assert_eq!(log.lock().unwrap().live, 1);
        // The last token was delivered but not appended.
        seen = history.len() + 11;
        history.extend(done.tokens);
        history.extend([1, 2, 3 + turn]);
    }
}

#[test]
fn anything_but_an_extension_starts_over() {
    let backend = Scripted::new(VOCAB);
    let log = backend.log.clone();
    let engine = Engine::start(Box::new(backend), EngineOptions::default());
    let base = [1, 2, 3, 4];
    let long = [&base[..], &expected(&base, 5, VOCAB)].concat();
    let cached = |prompt: &[u32]| {
        generate(&engine, ask(&base, 5));
        let done = generate(&engine, ask(prompt, 5));
        assert_eq!(done.tokens, expected(prompt, 5, VOCAB));
        assert_eq!(log.lock().unwrap().live, 1);
        let (_, stats) = done.end.unwrap();
        stats.cached_tokens
    };
    assert_eq!(cached(&long), 8);
    assert_eq!(cached(&[&long[..], &[9]].concat()), 8);
    // Exactly what the timeline has seen: its last logits are still known, nothing is computed.
    assert_eq!(cached(&long[..8]), 8);
    assert_eq!(cached(&base), 0);
    assert_eq!(cached(&long[..7]), 0);
    assert_eq!(cached(&[2, 2, 3, 4]), 0);
    let mut other = long.clone();
    other[6] = (other[6] + 1) % VOCAB as u32;
    assert_eq!(cached(&other), 0);
}

#[test]
fn a_cancelled_prompt_is_not_lost() {
    let engine = Engine::start(
        Box::new(Scripted::slow(VOCAB, 10)),
        EngineOptions { prefill_chunk: 10, ..Default::default() },
    );
    let prompt: Vec<u32> = (0..100).map(|i| i % 50).collect();
    let running = submit(&engine, ask(&prompt, 5)).unwrap();
    running.wait_prefill(40);
    running.cancel.cancel();
    assert_eq!(running.finish().end.unwrap().0, FinishReason::Cancelled);
    let done = generate(&engine, ask(&prompt, 5));
    assert_eq!(done.tokens, expected(&prompt, 5, VOCAB));
    let cached = done.end.unwrap().1.cached_tokens;
    assert!((40..100).contains(&cached) && cached.is_multiple_of(10), "{cached}");
}

/// A chat as Qwen's template renders it: the opener of the last turn has an empty think block that is gone once the
/// turn is history, so that no prompt extends what was generated.
#[test]
fn a_chat_whose_history_drops_think_blocks() {
    const OPENER: [u32; 7] = [60, 61, 10, 62, 11, 63, 11];
    for forget in [false, true] {
        let mut backend = Scripted::new(VOCAB);
        backend.forget_snapshots = forget;
        let log = backend.log.clone();
        let engine =
            Engine::start(Box::new(backend), EngineOptions { prefill_chunk: 16, ..Default::default() });
        let mut history: Vec<u32> = (0..50).map(|i| i * 3 % 59).collect();
        let mut mark = 0;
        for turn in 0..6 {
            let prompt = [&history[..], &OPENER].concat();
            log.lock().unwrap().prefills.clear();
            let done = generate(&engine, ask(&prompt, 9));
            assert_eq!(done.tokens, expected(&prompt, 9, VOCAB), "turn {turn}");
            let cached = done.end.unwrap().1.cached_tokens;
            let computed: usize = log.lock().unwrap().prefills.iter().sum();
            println!("turn {turn}: {cached} cached, {computed} computed");
            assert_eq!(cached, if forget { 0 } else { mark });
            assert_eq!(computed + cached, prompt.len());
            assert_eq!(log.lock().unwrap().live, 1);
            mark = prompt.len() - 8;
            history.extend(&OPENER[..3]);
            history.extend(done.tokens);
            history.extend([20, 21, 22 + turn]);
        }
        // Another request in between, too short for a checkpoint, does not cost the conversation's.
        generate(&engine, ask(&[1, 2, 3], 4));
        let prompt = [&history[..], &OPENER].concat();
        let done = generate(&engine, ask(&prompt, 9));
        assert_eq!(done.tokens, expected(&prompt, 9, VOCAB));
        assert_eq!(done.end.unwrap().1.cached_tokens, if forget { 0 } else { mark });
    }
}
