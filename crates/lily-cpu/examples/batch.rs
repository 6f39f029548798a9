//! Decode of several sequences together against one: tokens a second by batch size, in turn.
//!
//! `cargo run --release -p lily-cpu --example batch -- DIR [CONTEXT [SIZE...]]`
//!
//! The environment variable THREADS sets the number of threads. Sequences begin with different pseudo-random ids and go on
//! greedily. With one thread the rates are of the thread's own time, without what other programs take; else of the fastest
//! tenth.

use std::{sync::Arc, time::Instant};

use lily_cpu::{CpuModel, CpuOptions, LogitsWanted, Sequence};
use lily_model::{Checkpoint, ModelConfig, synthetic::synthetic_weights};

/// Nanoseconds this thread has run; `None` where the system does not tell.
fn thread_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok()
}

fn arg_max(row: &[f32]) -> u32 {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32
}

fn main() {
    let mut args = std::env::args().skip(1);
    let source =
        args.next().expect("a checkpoint directory, or a number of layers of Qwen3.6-35B-A3B's shape");
    let context: usize = args.next().map_or(256, |a| a.parse().expect("a context length"));
    let sizes: Vec<usize> = args.map(|a| a.parse().expect("a batch size")).collect();
    let sizes = if sizes.is_empty() { vec![1, 2, 4, 8, 16] } else { sizes };
    let weights = Arc::new(match source.parse() {
        Ok(layers) => synthetic_weights(&ModelConfig::qwen3_6_35b_a3b(layers), 1),
        Err(_) => Checkpoint::open(source.as_ref()).expect("a checkpoint").weights().expect("weights"),
    });
    let threads = std::env::var("THREADS").map_or(0, |t| t.parse().expect("a number of threads"));
    let mut model = CpuModel::new(weights, CpuOptions { threads, isa: None }).expect("a model");
    let vocab = model.config().vocab_size;
    let most = sizes.iter().copied().max().unwrap_or(1);
    let mut out = Vec::new();
    let mut sequences: Vec<(Sequence, u32)> = (0..most)
        .map(|s| {
            let mut sequence = model.new_sequence(context + 100_000).expect("a sequence");
            let ids: Vec<u32> = (0..context)
                .map(|i| (((s * context + i) as u64 * 2_654_435_761) % (1 << 32) % vocab as u64) as u32)
                .collect();
            for chunk in ids.chunks(model.max_chunk()) {
                model.prefill(&mut sequence, chunk, LogitsWanted::Last, &mut out).expect("prefill");
            }
            (sequence, arg_max(&out))
        })
        .collect();
    // Seconds of single steps, and the thread's own nanoseconds of all steps together (the system counts them in ticks of
    // some milliseconds).
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); sizes.len()];
    let mut own: Vec<f64> = vec![0.0; sizes.len()];
    let rounds = 60;
    let steps = 9;
    for _ in 0..rounds {
        for ((times, own), &n) in times.iter_mut().zip(&mut own).zip(&sizes) {
            let before = thread_time();
            for step in 0..steps {
                let mut batch: Vec<(&mut Sequence, u32)> =
                    sequences[..n].iter_mut().map(|(s, t)| (s, *t)).collect();
                let start = Instant::now();
                model.decode(&mut batch, &mut out).expect("decode");
                // The first of each size pays for what the others left in the caches.
                if step > 0 {
                    times.push(start.elapsed().as_secs_f64());
                }
                for ((_, token), row) in sequences.iter_mut().zip(out.chunks(vocab)) {
                    *token = arg_max(row);
                }
            }
            *own += before.zip(thread_time()).map_or(f64::NAN, |(a, b)| b - a);
        }
    }
    let mut first = None;
    for ((times, own), n) in times.iter_mut().zip(own).zip(sizes) {
        times.sort_by(f64::total_cmp);
        let own = own / 1e9 / f64::from(rounds * steps);
        let time = if model.threads() == 1 { own } else { times[times.len() / 10] };
        let rate = n as f64 / time;
        let one = *first.get_or_insert(rate / n as f64);
        println!(
            "{n:3} sequences: {rate:8.1} tok/s, {:.2} x the first; a step: fastest tenth {:8.1} us, median {:8.1} us, of \
             this thread {:8.1} us",
            rate / one,
            times[times.len() / 10] * 1e6,
            times[times.len() / 2] * 1e6,
            own * 1e6
        );
    }
}
