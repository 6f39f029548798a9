//! Cancellation, deadlines, limits and the engine's end, on a scripted backend with known step times.

mod common;

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{Scripted, ask, expected, generate, submit};
use lily_engine::{CancelFlag, Engine, EngineError, EngineOptions, Event, FinishReason, GenerateRequest};

const VOCAB: usize = 64;
/// One chunk or token of the slow backend.
const STEP: Duration = Duration::from_millis(20);
/// What a loaded test machine may add to a step.
const SLACK: Duration = Duration::from_millis(200);

fn options() -> EngineOptions {
    EngineOptions {
        context_limit: 4096,
        queue_limit: 8,
        max_running: 1,
        prefill_chunk: Some(10),
        ..EngineOptions::default()
    }
}

fn slow() -> (Engine, Arc<std::sync::Mutex<common::Log>>) {
    let backend = Scripted::slow(VOCAB, STEP.as_millis() as u64);
    let log = backend.log.clone();
    (Engine::start(Box::new(backend), options()), log)
}

/// Cancelling before the deadline is checked by the time it took and by the steps that the backend still made.
#[test]
fn cancelled_while_queued() {
    let (engine, log) = slow();
    let first = submit(&engine, ask(&[1], 100)).unwrap();
    first.wait_token(1);
    let second = submit(&engine, ask(&[2], 5)).unwrap();
    let third = submit(&engine, ask(&[3], 5)).unwrap();
    assert_eq!(engine.load(), (2, 1));
    let steps = log.lock().unwrap().decodes;
    let at = Instant::now();
    second.cancel.cancel();
    assert_eq!(engine.load(), (1, 1), "the count falls at once");
    let done = second.finish();
    let (took, steps) = (at.elapsed(), log.lock().unwrap().decodes - steps);
    println!("cancelled while queued: ended after {took:?}, {steps} step(s) of the running one");
    assert!(steps <= 2 && took < 2 * STEP + SLACK, "{took:?}, {steps} steps");
    let (reason, stats) = done.end.unwrap();
    assert_eq!(reason, FinishReason::Cancelled);
    assert_eq!((stats.prompt_tokens, stats.completion_tokens), (1, 0));
    assert!(done.tokens.is_empty() && done.prefills.is_empty());
    assert_eq!(engine.load(), (1, 1), "the first still runs");
    first.cancel.cancel();
    assert_eq!(third.finish().tokens, expected(&[3], 5, VOCAB));
}

#[test]
fn cancelled_while_prefilling() {
    let (engine, log) = slow();
    let running = submit(&engine, ask(&[1; 1000], 5)).unwrap();
    running.wait_prefill(30);
    let chunks = log.lock().unwrap().prefills.len();
    let at = Instant::now();
    running.cancel.cancel();
    let done = running.finish();
    let (took, more) = (at.elapsed(), log.lock().unwrap().prefills.len() - chunks);
    println!("cancelled while prefilling: ended after {took:?}, {more} more chunk(s)");
    assert!(more <= 1 && took < STEP + SLACK, "{took:?}, {more} chunks");
    let (reason, stats) = done.end.unwrap();
    assert_eq!(reason, FinishReason::Cancelled);
    assert!(stats.prefill >= 3 * STEP && stats.decode == Duration::ZERO);
    assert!(done.tokens.is_empty());
    assert_eq!(engine.load(), (0, 0));
}

/// A chunk of a big model takes seconds: cancelling and deadlines must not wait for its end.
#[test]
fn a_long_chunk_is_interrupted() {
    let backend = Scripted::slow(VOCAB, 4000);
    let log = backend.log.clone();
    let engine = Engine::start(Box::new(backend), EngineOptions::default());
    let running = submit(&engine, ask(&[1; 30], 5)).unwrap();
    while log.lock().unwrap().prefills.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let at = Instant::now();
    running.cancel.cancel();
    let done = running.finish();
    println!("cancelled inside a chunk of 4 s: ended after {:?}", at.elapsed());
    assert!(at.elapsed() < Duration::from_millis(400) + SLACK, "{:?}", at.elapsed());
    assert_eq!(done.end.unwrap().0, FinishReason::Cancelled);

    let late =
        GenerateRequest { deadline: Some(Instant::now() + Duration::from_millis(100)), ..ask(&[2; 30], 5) };
    let at = Instant::now();
    assert_eq!(generate(&engine, late).end.unwrap().0, FinishReason::Deadline);
    assert!(at.elapsed() < Duration::from_millis(900) + SLACK, "{:?}", at.elapsed());
}

#[test]
fn cancelled_while_decoding() {
    let (engine, log) = slow();
    let running = submit(&engine, ask(&[1, 2, 3], 500)).unwrap();
    running.wait_token(3);
    let steps = log.lock().unwrap().decodes;
    let at = Instant::now();
    running.cancel.cancel();
    let done = running.finish();
    let (took, more) = (at.elapsed(), log.lock().unwrap().decodes - steps);
    println!("cancelled while decoding: ended after {took:?}, {more} more token(s)");
    assert!(more <= 1 && took < STEP + SLACK, "{took:?}, {more} tokens");
    assert_eq!(done.end.unwrap().0, FinishReason::Cancelled);
}

#[test]
fn a_sink_that_refuses_cancels() {
    let (engine, log) = slow();
    // While prefilling.
    let running = submit(&engine, ask(&[1; 1000], 5)).unwrap();
    running.wait_prefill(20);
    running.refuse.store(true, Ordering::Release);
    assert_eq!(running.finish().end.unwrap().0, FinishReason::Cancelled);
    assert!(log.lock().unwrap().prefills.len() <= 4);
    // While decoding.
    let running = submit(&engine, ask(&[2], 500)).unwrap();
    running.wait_token(2);
    running.refuse.store(true, Ordering::Release);
    let done = running.finish();
    assert_eq!(done.end.unwrap().0, FinishReason::Cancelled);
    assert!(done.tokens.len() <= 2);
    // A sink that panics cancels too, and the engine goes on.
    engine
        .submit(ask(&[3], 500), CancelFlag::new(), Box::new(|_| panic!("scripted panic in a sink")))
        .unwrap();
    assert_eq!(generate(&engine, ask(&[4], 3)).tokens, expected(&[4], 3, VOCAB));
}

#[test]
fn deadlines() {
    let (engine, _) = slow();
    let within = |ms: u64, request: GenerateRequest| GenerateRequest {
        deadline: Some(Instant::now() + Duration::from_millis(ms)),
        ..request
    };
    // Decoding, with another one in the queue whose deadline passes there.
    let running = submit(&engine, within(300, ask(&[1], 500))).unwrap();
    let queued = submit(&engine, within(100, ask(&[2], 5))).unwrap();
    let at = Instant::now();
    let done = queued.finish();
    let (reason, stats) = done.end.unwrap();
    assert_eq!(reason, FinishReason::Deadline);
    assert!(at.elapsed() < Duration::from_millis(100) + 2 * STEP + SLACK, "{:?}", at.elapsed());
    assert!(stats.queued >= Duration::from_millis(100));
    let done = running.finish();
    assert_eq!(done.end.unwrap().0, FinishReason::Deadline);
    let n = done.tokens.len();
    assert!((1..=15).contains(&n), "{n} tokens in 300 ms of 20 ms steps");
    assert_eq!(done.tokens, expected(&[1], n, VOCAB));
    // Prefilling.
    let done = generate(&engine, within(100, ask(&[3; 1000], 5)));
    assert_eq!(done.end.unwrap().0, FinishReason::Deadline);
    assert!(done.tokens.is_empty() && !done.prefills.is_empty());
    // Passed before it was submitted.
    let done = generate(&engine, GenerateRequest { deadline: Some(at), ..ask(&[4], 5) });
    assert_eq!(done.end.unwrap().0, FinishReason::Deadline);
}

#[test]
fn the_queue_is_bounded_and_fifo() {
    let backend = Scripted::slow(VOCAB, 20);
    let engine = Engine::start(Box::new(backend), EngineOptions { queue_limit: 2, ..options() });
    let first = submit(&engine, ask(&[1], 500)).unwrap();
    let second = submit(&engine, ask(&[2], 2)).unwrap();
    let third = submit(&engine, ask(&[3], 2)).unwrap();
    let refused = submit(&engine, ask(&[4], 2)).err().unwrap();
    assert!(matches!(refused, EngineError::QueueFull { waiting: 2, limit: 2 }), "{refused}");
    assert_eq!(refused.to_string(), "2 requests are waiting; the queue holds 2");
    // A cancelled one makes room at once.
    second.cancel.cancel();
    let fourth = submit(&engine, ask(&[4], 2)).unwrap();
    assert_eq!(second.finish().end.unwrap().0, FinishReason::Cancelled);
    first.cancel.cancel();
    first.finish();
    assert_eq!(third.finish().tokens, expected(&[3], 2, VOCAB));
    assert!(matches!(fourth.next(), Event::Prefill { done: 0, total: 1 }));
    assert_eq!(fourth.finish().tokens, expected(&[4], 2, VOCAB));
    // With no queue at all, one request runs and another is refused; the next is taken once the first has ended.
    let engine =
        Engine::start(Box::new(Scripted::slow(VOCAB, 20)), EngineOptions { queue_limit: 0, ..options() });
    for _ in 0..3 {
        let running = submit(&engine, ask(&[1], 3)).unwrap();
        assert!(matches!(
            submit(&engine, ask(&[2], 3)),
            Err(EngineError::QueueFull { waiting: 0, limit: 0 })
        ));
        running.finish();
    }
}

#[test]
fn limits_of_context_and_tokens() {
    let mut backend = Scripted::new(VOCAB);
    backend.config.max_position_embeddings = 40;
    backend.max_chunk = 7;
    let log = backend.log.clone();
    let engine =
        Engine::start(Box::new(backend), EngineOptions { valid_vocab: Some(1_000_000), ..options() });
    assert_eq!(
        *engine.options(),
        EngineOptions { context_limit: 40, prefill_chunk: Some(7), valid_vocab: Some(VOCAB), ..options() }
    );
    let refused = submit(&engine, ask(&[1; 30], 11)).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "the prompt has 30 tokens and 11 were asked for; the context limit is 40: shorten the prompt or ask for \
         fewer tokens"
    );
    let refused = submit(&engine, GenerateRequest { max_tokens: None, ..ask(&[1; 40], 0) }).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "the prompt has 40 tokens and leaves no room for an answer; the context limit is 40: shorten the prompt"
    );
    assert!(matches!(submit(&engine, ask(&[], 1)), Err(EngineError::EmptyPrompt)));
    // Exactly full, by count and by default.
    let prompt = [5; 30];
    for max_tokens in [Some(10), None] {
        let done = generate(&engine, GenerateRequest { max_tokens, ..ask(&prompt, 0) });
        let (reason, stats) = done.end.unwrap();
        assert_eq!(done.tokens, expected(&prompt, 10, VOCAB));
        assert_eq!((reason, stats.completion_tokens), (FinishReason::Length, 10));
    }
    assert_eq!(log.lock().unwrap().prefills[..5], [7, 7, 7, 7, 2]);
    // No tokens asked for: the prompt is computed, nothing else.
    let done = generate(&engine, ask(&[6; 15], 0));
    assert_eq!(done.prefills, [(0, 15), (7, 15), (14, 15), (15, 15)]);
    assert_eq!(done.end.unwrap().0, FinishReason::Length);
    // A stop token ends it, is counted and not delivered.
    let stop = expected(&[7], 4, VOCAB);
    let first = stop.iter().position(|t| *t == stop[3]).unwrap();
    let done = generate(&engine, GenerateRequest { stop_tokens: vec![9_999_999, stop[3]], ..ask(&[7], 20) });
    let (reason, stats) = done.end.unwrap();
    assert_eq!(done.tokens, stop[..first]);
    assert_eq!((reason, stats.completion_tokens), (FinishReason::Stop, first + 1));
}

#[test]
fn parallel_submitters_get_their_own_answers() {
    let engine =
        Engine::start(Box::new(Scripted::new(VOCAB)), EngineOptions { queue_limit: 64, ..options() });
    thread::scope(|scope| {
        for t in 0..8u32 {
            let engine = engine.clone();
            scope.spawn(move || {
                for i in 0..50u32 {
                    let prompt: Vec<u32> =
                        (0..1 + (i * 7 + t) % 40).map(|j| (i + j * t) % VOCAB as u32).collect();
                    let done = generate(&engine, ask(&prompt, 12));
                    assert_eq!(done.tokens, expected(&prompt, 12, VOCAB), "submitter {t}, request {i}");
                }
            });
        }
    });
    assert_eq!(engine.load(), (0, 0));
}

#[test]
fn the_last_handle_stops_the_engine() {
    let (engine, log) = slow();
    let running = submit(&engine, ask(&[1], 1000)).unwrap();
    let waiting = submit(&engine, ask(&[2], 5)).unwrap();
    running.wait_token(2);
    let other = engine.clone();
    drop(engine);
    running.wait_token(2);
    assert!(other.is_running());
    let at = Instant::now();
    drop(other);
    assert!(at.elapsed() < STEP + SLACK, "{:?}", at.elapsed());
    assert!(log.lock().unwrap().dropped, "the drop returns when the thread and its backend are gone");
    for request in [running, waiting] {
        assert!(matches!(request.finish().end, Err(EngineError::Stopped)));
    }
}

#[test]
fn the_last_handle_may_be_dropped_on_the_engine_thread() {
    let (engine, log) = slow();
    let (sender, ended) = std::sync::mpsc::channel();
    let mut own = Some(engine.clone());
    let sink = Box::new(move |event| {
        if matches!(event, Event::Token { .. }) {
            drop(own.take());
        }
        if let Event::Failed(error) = event {
            sender.send(error.to_string()).unwrap();
        }
        true
    });
    engine.submit(ask(&[1], 100), CancelFlag::new(), sink).unwrap();
    drop(engine);
    assert_eq!(ended.recv_timeout(Duration::from_secs(60)).unwrap(), "the engine is not running");
    let until = Instant::now() + Duration::from_secs(60);
    while !log.lock().unwrap().dropped {
        assert!(Instant::now() < until, "the thread did not end");
        thread::sleep(Duration::from_millis(5));
    }
}
