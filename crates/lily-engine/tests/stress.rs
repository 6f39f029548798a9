//! Many callers that cancel, refuse, set deadlines and make trouble at random moments: every request ends exactly
//! once, what it got is right, and nothing is left behind.

mod common;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{Scripted, Trouble, ask, expected, submit};
use lily_engine::{Engine, EngineError, EngineOptions, Event, FinishReason, GenerateRequest};

const VOCAB: usize = 64;
const CALLERS: u64 = 8;
const REQUESTS: u64 = 150;

/// A small random number, a function of its arguments.
fn random(caller: u64, request: u64, salt: u64, below: u64) -> u64 {
    let x = (caller << 40 | request << 20 | salt).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 33) % below
}

#[derive(Default)]
struct Counts {
    whole: AtomicUsize,
    cancelled: AtomicUsize,
    deadline: AtomicUsize,
    failed: AtomicUsize,
    refused: AtomicUsize,
}

fn one(engine: &Engine, caller: u64, request: u64, counts: &Counts) {
    let r = |salt, below| random(caller, request, salt, below);
    let n = 1 + r(0, 60);
    let prompt: Vec<u32> = (0..n).map(|i| r(100 + i, 62) as u32).collect();
    // One in sixteen meets the token at which the backend panics.
    let bad = r(1, 16) == 0;
    let prompt = if bad { [&prompt[..], &[63]].concat() } else { prompt };
    let want = expected(&prompt, 20, VOCAB);
    let deadline = (r(2, 6) == 0).then(|| Instant::now() + Duration::from_micros(r(3, 2) * r(6, 3000)));
    let running = match submit(engine, GenerateRequest { deadline, ..ask(&prompt, 20) }) {
        Ok(running) => running,
        Err(EngineError::QueueFull { .. }) => {
            counts.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        Err(other) => panic!("{other}"),
    };
    let mut tokens = Vec::new();
    let leave_after = r(4, 40) as usize;
    let mut left = false;
    let end = loop {
        if tokens.len() >= leave_after && !left {
            left = true;
            match r(5, 2) {
                0 => running.cancel.cancel(),
                _ => running.refuse.store(true, Ordering::Release),
            }
        }
        match running.next() {
            Event::Prefill { .. } => assert!(tokens.is_empty()),
            Event::Token { id, .. } => tokens.push(id),
            Event::Finished { reason, stats } => break Ok((reason, stats)),
            Event::Failed(error) => break Err(error),
        }
    };
    assert!(running.events.recv_timeout(Duration::from_secs(60)).is_err(), "one end, and it is the last");
    assert_eq!(tokens, want[..tokens.len()], "caller {caller}, request {request}");
    let count = match end {
        Ok((FinishReason::Length, stats)) => {
            assert_eq!((tokens.len(), stats.completion_tokens), (20, 20));
            &counts.whole
        }
        Ok((FinishReason::Cancelled, _)) => {
            assert!(left);
            &counts.cancelled
        }
        Ok((FinishReason::Deadline, _)) => {
            assert!(deadline.is_some());
            &counts.deadline
        }
        Ok((FinishReason::Stop, _)) => panic!("no stop token was given"),
        Err(EngineError::Backend(_)) => {
            assert!(bad || want.contains(&63));
            &counts.failed
        }
        Err(other) => panic!("{other}"),
    };
    count.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn random_callers() {
    // The scripted panics would fill the output.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if thread::current().name() != Some("lily-engine") {
            hook(info);
        }
    }));
    let mut backend = Scripted::new(VOCAB);
    backend.trouble = Some((63, Trouble::Panic));
    let log = backend.log.clone();
    let options =
        EngineOptions { queue_limit: 3, max_running: 3, prefill_chunk: Some(8), ..Default::default() };
    let engine = Engine::start(Box::new(backend), options);
    let counts = Counts::default();
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (engine, counts) = (&engine, &counts);
            scope.spawn(move || (0..REQUESTS).for_each(|request| one(engine, caller, request, counts)));
        }
    });
    let get = |c: &AtomicUsize| c.load(Ordering::Relaxed);
    let all = [&counts.whole, &counts.cancelled, &counts.deadline, &counts.failed, &counts.refused].map(get);
    println!("whole, cancelled, deadline, failed, refused: {all:?}");
    assert_eq!(all.iter().sum::<usize>() as u64, CALLERS * REQUESTS);
    assert!(all[..4].iter().all(|&n| n > 0), "each kind of end occurs: {all:?}");
    assert_eq!(engine.load(), (0, 0));
    assert!(engine.is_running());
    assert_eq!(log.lock().unwrap().live, 0, "no sequence is left");
    let figures = engine.figures();
    assert!(
        figures.decode_batches.iter().skip(1).sum::<u64>() > 0,
        "some were decoded together: {figures:?}"
    );
    drop(engine);
    assert!(log.lock().unwrap().dropped);
}
