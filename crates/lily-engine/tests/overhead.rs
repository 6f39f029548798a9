//! What the engine adds to a backend's own time.

mod common;

use std::time::{Duration, Instant};

use common::{Scripted, ask, generate};
use lily_engine::{Engine, EngineOptions, GenerateRequest, Sampler, SamplingParams};

/// A row like a language model's: bell-shaped with standard deviation 2.4, and a few tokens far above.
fn row(vocab: usize) -> Vec<f32> {
    let hash = |i: u64| {
        let x = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1u64 << 24) as f32
    };
    let bell = |i: u64| (0..12).map(|k| hash(12 * i + k)).sum::<f32>() * 2.4;
    (0..vocab as u64).map(|i| bell(i) + if i % 4096 == 7 { 16.0 + hash(i) } else { 0.0 }).collect()
}

/// Median microseconds a call.
fn time(mut f: impl FnMut()) -> f64 {
    let mut times: Vec<Duration> = (0..41)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[20].as_secs_f64() * 1e6
}

#[test]
fn engine_overhead_per_token() {
    // Least of several runs: the machine may be busy with other tests.
    for (vocab, most) in [(8_192, 20.0), (248_320, f64::INFINITY)] {
        let best = (0..5)
            .map(|_| {
                let mut backend = Scripted::new(vocab);
                backend.constant = Some(row(vocab));
                let log = backend.log.clone();
                let engine = Engine::start(Box::new(backend), EngineOptions::default());
                let n = 1000;
                let done = generate(&engine, ask(&[1], n));
                assert_eq!(done.tokens.len(), n);
                let stats = done.end.unwrap().1;
                let busy = log.lock().unwrap().busy;
                (stats.prefill + stats.decode).saturating_sub(busy).as_secs_f64() * 1e6 / n as f64
            })
            .fold(f64::INFINITY, f64::min);
        println!("engine overhead, greedy, vocabulary {vocab}: {best:.2} us a token over the backend's time");
        assert!(best < most, "{best} us");
    }
}

#[test]
fn sampler_times_on_the_real_vocabulary() {
    let vocab = 248_320;
    let row = row(vocab);
    let d = || SamplingParams { temperature: 1.0, ..Default::default() };
    let cases = [
        ("greedy", SamplingParams::default(), None),
        ("greedy, penalties", SamplingParams { repetition_penalty: 1.1, ..Default::default() }, None),
        ("top-k 20, top-p 0.95 (the checkpoint's)", SamplingParams { top_k: 20, top_p: 0.95, ..d() }, None),
        ("top-k 20, 20 logprobs", SamplingParams { top_k: 20, ..d() }, Some(20)),
        ("top-p 0.95", SamplingParams { top_p: 0.95, ..d() }, None),
        (
            "top-p 0.999999 at temperature 2",
            SamplingParams { top_p: 0.999_999, temperature: 2.0, ..d() },
            None,
        ),
        ("min-p 0.05", SamplingParams { min_p: 0.05, ..d() }, None),
        ("temperature alone", d(), None),
    ];
    for (name, params, logprobs) in cases {
        let request = GenerateRequest { logprobs, ..ask(&[1, 2, 3], 1) };
        let mut s = Sampler::new(params, &request.prompt, vocab, request.logprobs);
        let us = time(|| {
            s.sample(&row).unwrap();
        });
        println!("sampler, {name}: {us:.0} us");
        // A full sort of the vocabulary takes some 15 ms; a busy machine may double the times printed.
        assert!(us < 100_000.0, "{name}: {us} us");
    }
}
