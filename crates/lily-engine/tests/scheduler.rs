//! Many requests at once: the answers are those of one at a time, and nobody waits for long.

mod common;

use std::{
    thread,
    time::{Duration, Instant},
};

use common::{Scripted, ask, expected, generate, submit};
use lily_engine::{Engine, EngineOptions, Event, SamplingParams};

const VOCAB: usize = 64;

/// A small random number, a function of its arguments.
fn random(request: u64, salt: u64, below: u64) -> u64 {
    let x = (request << 20 | salt).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 33) % below
}

#[test]
fn two_hundred_mixed_requests() {
    let backend = Scripted::new(VOCAB);
    let log = backend.log.clone();
    let options = EngineOptions { queue_limit: 200, prefill_chunk: Some(32), ..Default::default() };
    let engine = Engine::start(Box::new(backend), options);
    let requests: Vec<_> = (0..200)
        .map(|i| {
            // Some begin alike.
            let common = random(i / 4, 1, 300);
            let prompt: Vec<u32> = (0..common)
                .map(|j| random(i / 4, 100 + j, 64) as u32)
                .chain((0..1 + random(i, 2, 80)).map(|j| random(i, 500 + j, 64) as u32))
                .collect();
            (prompt, 1 + random(i, 3, 60) as usize)
        })
        .collect();
    let running: Vec<_> = requests.iter().map(|(p, n)| submit(&engine, ask(p, *n)).unwrap()).collect();
    for ((prompt, n), running) in requests.iter().zip(running) {
        let done = running.finish();
        assert_eq!(done.tokens, expected(prompt, *n, VOCAB));
        assert!(done.end.is_ok());
    }
    let figures = engine.figures();
    println!("{}", serde_json::to_string(&figures).unwrap());
    assert!(figures.decode_batches.len() <= 8 && figures.decode_batches[7] > 0, "{figures:?}");
    assert!(figures.cache.of("hit_ram") > 0);
    assert_eq!(log.lock().unwrap().live, 0);
    assert_eq!(engine.load(), (0, 0));
}

/// Sampled answers depend on their seed only, not on who runs beside them.
#[test]
fn seeds_do_not_depend_on_neighbours() {
    let engine = Engine::start(Box::new(Scripted::new(VOCAB)), EngineOptions::default());
    let sampled = |seed| {
        let mut request = ask(&[1, 2, 3], 40);
        request.sampling = SamplingParams { temperature: 1.0, seed, ..Default::default() };
        request
    };
    let alone: Vec<_> = (0..8).map(|seed| generate(&engine, sampled(seed)).tokens).collect();
    let running: Vec<_> = (0..8).map(|seed| submit(&engine, sampled(seed)).unwrap()).collect();
    for (alone, running) in alone.iter().zip(running) {
        assert_eq!(running.finish().tokens, *alone);
    }
}

/// A prompt of 4,000 tokens that takes four seconds comes while an answer runs.
#[test]
fn a_long_prompt_does_not_hold_an_answer_up() {
    let mut backend = Scripted::slow(VOCAB, 2);
    backend.token_delay = Duration::from_millis(1);
    let log = backend.log.clone();
    let engine = Engine::start(Box::new(backend), EngineOptions::default());
    let answer = submit(&engine, ask(&[1], 1_000_000 / 64)).unwrap();
    answer.wait_token(5);
    let long: Vec<u32> = (0..4000).map(|i| i * 7 % 64).collect();
    let prompt = submit(&engine, ask(&long, 3)).unwrap();
    let (mut worst, mut last, mut tokens) = (Duration::ZERO, Instant::now(), 0);
    let started = Instant::now();
    let first = loop {
        if let Event::Token { .. } = answer.next() {
            worst = worst.max(last.elapsed());
            last = Instant::now();
            tokens += 1;
        }
        if let Ok(Event::Token { .. }) = prompt.events.try_recv() {
            break started.elapsed();
        }
    };
    println!("longest pause {worst:?}; {tokens} tokens in the {first:?} of the prompt");
    assert!(worst < Duration::from_millis(250), "{worst:?}");
    assert!(tokens > 20 && first < Duration::from_secs(8), "{tokens} tokens, {first:?}");
    answer.cancel.cancel();
    assert_eq!(prompt.finish().tokens, expected(&long, 3, VOCAB)[1..]);
    assert!(log.lock().unwrap().prefills.iter().all(|&n| n <= 512));
}

/// A short prompt that comes after a long one is answered first; the long one goes on meanwhile.
#[test]
fn short_prompts_go_first_and_long_ones_go_on() {
    let mut backend = Scripted::new(VOCAB);
    backend.token_delay = Duration::from_micros(500);
    let engine =
        Engine::start(Box::new(backend), EngineOptions { prefill_chunk: Some(100), ..Default::default() });
    let long: Vec<u32> = (0..4000).map(|i| i * 7 % 64).collect();
    let slow = submit(&engine, ask(&long, 1)).unwrap();
    slow.wait_prefill(100);
    let started = Instant::now();
    let quick = generate(&engine, ask(&[5; 60], 1));
    let took = started.elapsed();
    assert_eq!(quick.tokens, expected(&[5; 60], 1, VOCAB));
    assert!(took < Duration::from_millis(400), "a prompt of 30 ms took {took:?} beside one of 2 s");
    // Short prompts all the time: every fourth chunk is still the long one's.
    let started = Instant::now();
    let slow = thread::scope(|scope| {
        let slow = scope.spawn(|| slow.finish());
        let mut i = 0;
        while !slow.is_finished() {
            i += 1;
            generate(&engine, ask(&[i % 60; 90], 1));
        }
        slow.join().unwrap()
    });
    println!("a prompt of 2 s among short ones: {:?}", started.elapsed());
    assert_eq!(slow.tokens, expected(&long, 1, VOCAB));
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn no_more_run_than_may() {
    for slots in [1, 3] {
        let backend = Scripted::slow(VOCAB, 1);
        let log = backend.log.clone();
        let options = EngineOptions { max_running: slots, queue_limit: 40, ..Default::default() };
        let engine = Engine::start(Box::new(backend), options);
        let running: Vec<_> = (0..20).map(|i| submit(&engine, ask(&[i], 10)).unwrap()).collect();
        assert!(engine.load().1 <= slots);
        for (i, running) in running.into_iter().enumerate() {
            assert_eq!(running.finish().tokens, expected(&[i as u32], 10, VOCAB));
        }
        assert_eq!(log.lock().unwrap().batches.iter().copied().max(), Some(slots));
    }
}
