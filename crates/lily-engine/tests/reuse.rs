//! What is sent again is not computed again: conversations, forks, retries, and why something was not found.

mod common;

use common::{Scripted, ask, expected, generate, submit};
use lily_engine::{
    CacheOptions, CacheOutcome, CheckpointKind, Engine, EngineOptions, FinishReason, GenerateRequest, Mark,
};

const VOCAB: usize = 64;

fn engine(options: EngineOptions) -> (Engine, std::sync::Arc<std::sync::Mutex<common::Log>>) {
    let backend = Scripted::new(VOCAB);
    let log = backend.log.clone();
    (Engine::start(Box::new(backend), options), log)
}

#[test]
fn a_conversation_computes_only_its_new_tokens() {
    let (engine, log) = engine(EngineOptions { prefill_chunk: Some(16), ..Default::default() });
    let mut history: Vec<u32> = (0..40).collect();
    let mut seen = 0;
    for turn in 0..10 {
        log.lock().unwrap().prefills.clear();
        let done = generate(&engine, ask(&history, 12));
        assert_eq!(done.tokens, expected(&history, 12, VOCAB), "turn {turn}");
        let (_, stats) = done.end.unwrap();
        let computed: usize = log.lock().unwrap().prefills.iter().sum();
        println!("turn {turn}: {} cached, {computed} computed, {:?}", stats.cached_tokens, stats.cache);
        assert_eq!(stats.cached_tokens, seen);
        assert_eq!(computed, history.len() - seen);
        assert_eq!(done.prefills[0], (seen, history.len()));
        let want = match turn {
            0 => CacheOutcome::Empty,
            _ => CacheOutcome::HitRam(CheckpointKind::EndOfResponse),
        };
        assert_eq!(stats.cache, want);
        assert_eq!(log.lock().unwrap().live, 0, "sequences do not outlive their requests");
        // The last token was delivered but not appended.
        seen = history.len() + 11;
        history.extend(done.tokens);
        history.extend([1, 2, 3 + turn]);
    }
    let figures = engine.figures();
    assert_eq!(figures.cache.of("hit_ram"), 9);
    assert_eq!((figures.requests, figures.ended.length), (10, 10));
    assert_eq!(
        figures.cache.cached_tokens + figures.prefill_tokens,
        figures.cache.cached_tokens + figures.cache.new_tokens
    );
}

/// Every kind of checkpoint is found again by a prompt that parts from the first one right after it.
#[test]
fn forks_go_on_from_the_last_mark_before_them() {
    let prompt: Vec<u32> = (0..2000).map(|i| i * 7 % 61).collect();
    let marks = [
        Mark { position: 100, kind: CheckpointKind::SystemEnd },
        Mark { position: 900, kind: CheckpointKind::TurnClosure },
        Mark { position: 1900, kind: CheckpointKind::BeforeOpener },
    ];
    let (engine, _) = engine(EngineOptions::default());
    let cached = |prompt: &[u32], marks: &[Mark]| {
        let request = GenerateRequest { marks: marks.to_vec(), ..ask(prompt, 20) };
        let done = generate(&engine, request);
        assert_eq!(done.tokens, expected(prompt, 20, VOCAB));
        let stats = done.end.unwrap().1;
        (stats.cached_tokens, stats.cache)
    };
    assert_eq!(cached(&prompt, &marks), (0, CacheOutcome::Empty));
    for (parts_at, kind, position) in [
        (150, CheckpointKind::SystemEnd, 100),
        (100, CheckpointKind::SystemEnd, 100),
        (899, CheckpointKind::SystemEnd, 100),
        (1000, CheckpointKind::TurnClosure, 900),
        (1990, CheckpointKind::BeforeOpener, 1900),
        (2000, CheckpointKind::BeforeOpener, 1900),
    ] {
        let mut other = prompt[..parts_at].to_vec();
        if parts_at < 2000 {
            other.extend([62, 62, 62]);
        }
        // Too short a distance for checkpoints of its own.
        assert_eq!(
            cached(&other, &[Mark { position: 1, kind: CheckpointKind::BeforeOpener }]),
            (position, CacheOutcome::HitRam(kind))
        );
    }
    let long = [&prompt[..], &expected(&prompt, 19, VOCAB), &[5]].concat();
    assert_eq!(cached(&long, &[]), (2019, CacheOutcome::HitRam(CheckpointKind::EndOfResponse)));
}

#[test]
fn reasons_for_misses() {
    let one = |prompt: &[u32], engine: &Engine| {
        let done = generate(engine, ask(prompt, 3));
        assert_eq!(done.tokens, expected(prompt, 3, VOCAB));
        done.end.unwrap().1.cache
    };
    let (engine, _) = engine(EngineOptions::default());
    let prompt: Vec<u32> = (0..400).map(|i| i * 7 % 61).collect();
    assert_eq!(one(&prompt, &engine), CacheOutcome::Empty);
    assert_eq!(one(&[9; 300], &engine), CacheOutcome::New);
    let mut parted = prompt.clone();
    parted[380] = 62;
    assert_eq!(one(&parted, &engine), CacheOutcome::Diverged);
    assert_eq!(one(&prompt, &engine), CacheOutcome::HitRam(CheckpointKind::BeforeOpener));

    let off = CacheOptions { ram: 0, ..Default::default() };
    let without =
        Engine::start_with_cache(Box::new(Scripted::new(VOCAB)), EngineOptions::default(), &off).unwrap();
    for _ in 0..2 {
        assert_eq!(one(&prompt, &without), CacheOutcome::Disabled);
    }
    assert_eq!(without.figures().cache.ram_bytes, 0);

    let mut backend = Scripted::new(VOCAB);
    backend.forget_snapshots = true;
    let forgetful = Engine::start(Box::new(backend), EngineOptions::default());
    assert_eq!(one(&prompt, &forgetful), CacheOutcome::Empty);
    assert_eq!(one(&prompt, &forgetful), CacheOutcome::RestoreFailed);

    // Room for a few states only.
    let small = CacheOptions { ram: 200_000, ..Default::default() };
    let little =
        Engine::start_with_cache(Box::new(Scripted::new(VOCAB)), EngineOptions::default(), &small).unwrap();
    let prompts: Vec<Vec<u32>> = (0..40).map(|i| (0..400).map(|j| (j * 7 + i) % 61).collect()).collect();
    for p in &prompts {
        one(p, &little);
    }
    let figures = little.figures().cache;
    assert!(figures.ram_bytes <= 200_000 && figures.ram_evictions > 0, "{figures:?}");
    assert!(prompts.iter().any(|p| one(p, &little) == CacheOutcome::Evicted));
}

#[test]
fn a_cancelled_prompt_is_not_lost() {
    let engine = Engine::start(
        Box::new(Scripted::slow(VOCAB, 10)),
        EngineOptions { prefill_chunk: Some(10), ..Default::default() },
    );
    let prompt: Vec<u32> = (0..100).map(|i| i % 50).collect();
    let running = submit(&engine, ask(&prompt, 5)).unwrap();
    running.wait_prefill(40);
    running.cancel.cancel();
    assert_eq!(running.finish().end.unwrap().0, FinishReason::Cancelled);
    let done = generate(&engine, ask(&prompt, 5));
    assert_eq!(done.tokens, expected(&prompt, 5, VOCAB));
    let stats = done.end.unwrap().1;
    assert!((40..100).contains(&stats.cached_tokens), "{}", stats.cached_tokens);
}

/// A chat as Qwen's template renders it: the opener of the last turn has an empty think block that is gone once the
/// turn is history, so that no prompt extends what was generated.
#[test]
fn a_chat_whose_history_drops_think_blocks() {
    const OPENER: [u32; 7] = [60, 61, 10, 62, 11, 63, 11];
    let (engine, log) = engine(EngineOptions { prefill_chunk: Some(16), ..Default::default() });
    let mut history: Vec<u32> = (0..50).map(|i| i * 3 % 59).collect();
    let mut mark = 0;
    for turn in 0..6 {
        let prompt = [&history[..], &OPENER].concat();
        log.lock().unwrap().prefills.clear();
        let marks = vec![Mark { position: history.len(), kind: CheckpointKind::BeforeOpener }];
        let done = generate(&engine, GenerateRequest { marks, ..ask(&prompt, 9) });
        assert_eq!(done.tokens, expected(&prompt, 9, VOCAB), "turn {turn}");
        let cached = done.end.unwrap().1.cached_tokens;
        let computed: usize = log.lock().unwrap().prefills.iter().sum();
        println!("turn {turn}: {cached} cached, {computed} computed");
        assert_eq!(cached, mark);
        assert_eq!(computed + cached, prompt.len());
        mark = history.len();
        history.extend(&OPENER[..3]);
        history.extend(done.tokens);
        history.extend([20, 21, 22 + turn]);
    }
}

/// Several requests with the same beginning at once: it is computed once.
#[test]
fn a_beginning_in_common_is_computed_once() {
    let backend = Scripted::slow(VOCAB, 1);
    let log = backend.log.clone();
    let engine =
        Engine::start(Box::new(backend), EngineOptions { prefill_chunk: Some(64), ..Default::default() });
    let system: Vec<u32> = (0..1000).map(|i| i * 11 % 61).collect();
    let prompts: Vec<Vec<u32>> = (0..6).map(|i| [&system[..], &[i; 40]].concat()).collect();
    let running: Vec<_> = prompts
        .iter()
        .map(|p| {
            let marks = vec![Mark { position: 1000, kind: CheckpointKind::SystemEnd }];
            submit(&engine, GenerateRequest { marks, ..ask(p, 10) }).unwrap()
        })
        .collect();
    for (prompt, running) in prompts.iter().zip(running) {
        assert_eq!(running.finish().tokens, expected(prompt, 10, VOCAB));
    }
    let computed: usize = log.lock().unwrap().prefills.iter().sum();
    assert_eq!(computed, 1000 + 6 * 40);
    let together = log.lock().unwrap().batches.iter().copied().max();
    assert!(together > Some(1), "{together:?}");
}
