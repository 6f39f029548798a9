//! Speed of the whole model with random weights of the real shapes, against this machine's read bandwidth, which is
//! measured before and after each figure.
//!
//! `cargo run --release -p lily-cpu --example model -- LAYERS|DIR [decode|prefill|all] [CONTEXT...]`
//!
//! The environment variable THREADS sets the number of threads. LAYERS: that many layers of Qwen3.6-35B-A3B's shape; DIR: a checkpoint.

use std::{sync::Arc, time::Instant};

use lily_cpu::{CpuModel, CpuOptions, LogitsWanted, floor::read_bandwidth_of};
use lily_model::{Checkpoint, LayerType, ModelConfig, synthetic::synthetic_weights};

/// CPU seconds of this process so far; on a machine with other work a steadier measure than time. `None` where the
/// system has no /proc.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / 100.0)
}

fn token(i: usize, vocab: usize) -> u32 {
    ((i as u64 * 2_654_435_761) % (1 << 32) % vocab as u64) as u32
}

fn main() {
    let mut args = std::env::args().skip(1);
    let source = args.next().unwrap_or("4".into());
    let what = args.next().unwrap_or("all".into());
    let contexts: Vec<usize> = args.map(|a| a.parse().expect("a context length")).collect();
    let contexts = if contexts.is_empty() { vec![256] } else { contexts };
    let start = Instant::now();
    let weights = Arc::new(match source.parse() {
        Ok(layers) => synthetic_weights(&ModelConfig::qwen3_6_35b_a3b(layers), 1),
        Err(_) => Checkpoint::open(source.as_ref()).expect("a checkpoint").weights().expect("weights"),
    });
    let config = weights.config.clone();
    let layers = config.num_hidden_layers;
    let threads = std::env::var("THREADS").map_or(0, |t| t.parse().expect("a number of threads"));
    let mut model = CpuModel::new(weights, CpuOptions { threads, isa: None }).unwrap();
    println!(
        "{layers} layers, {} threads, {}, made in {:.1} s, scratch {:.0} MB",
        model.threads(),
        model.isa().name(),
        start.elapsed().as_secs_f64(),
        model.scratch_bytes() as f64 / 1e6
    );
    // Weights that one token reads, GDN state read and written.
    let attention = config.count(LayerType::FullAttention) as f64;
    let gdn = config.count(LayerType::LinearAttention) as f64;
    let (h, w) = (config.hidden_size as f64, 0.5625);
    let q = (config.num_attention_heads * config.head_dim) as f64;
    let kv = (config.num_key_value_heads * config.head_dim) as f64;
    let moe = 3.0
        * h
        * w
        * (config.num_experts_per_tok * config.moe_intermediate_size + config.shared_expert_intermediate_size)
            as f64
        + (config.num_experts + 1) as f64 * h * 1.0625;
    let attention_bytes = (3.0 * q + 2.0 * kv) * h * w;
    let channels = config.conv_channels() as f64;
    let vw = config.gdn_value_width() as f64;
    let gdn_bytes = (channels + 2.0 * vw + 2.0 * config.linear_num_value_heads as f64) * h * w
        + 2.0 * vw * config.linear_key_head_dim as f64 * 4.0;
    let head = config.vocab_size as f64 * h * w;
    let bytes = head + attention * attention_bytes + gdn * gdn_bytes + layers as f64 * moe;
    println!("a token reads {:.3} GB without KV", bytes / 1e9);
    let data: Vec<u64> = (0..1u64 << 25).collect();
    let model_threads = model.threads();
    let floor = || read_bandwidth_of(model_threads, &data, 3);

    if what != "decode" {
        for n in [512usize, 4096] {
            let tokens: Vec<u32> = (0..n).map(|i| token(i, config.vocab_size)).collect();
            for _ in 0..if n == 512 { 3 } else { 1 } {
                let mut seq = model.new_sequence(n).unwrap();
                let mut out = Vec::new();
                let cpu = cpu_seconds();
                let start = Instant::now();
                for (i, chunk) in tokens.chunks(model.max_chunk()).enumerate() {
                    let last = (i + 1) * model.max_chunk() >= n;
                    let wanted = if last { LogitsWanted::Last } else { LogitsWanted::None };
                    model.prefill(&mut seq, chunk, wanted, &mut out).unwrap();
                }
                let time = start.elapsed().as_secs_f64();
                // Multiply-adds of the weights a token meets, without the head.
                let macs =
                    (bytes - head - gdn * 2.0 * vw * 128.0 * 4.0 - 257.0 * h * 1.0625 * layers as f64) / w;
                println!(
                    "prefill {n}: {:.1} tok/s, {:.0} GFLOP/s in projections; {:.1} tokens a CPU second",
                    n as f64 / time,
                    2.0 * macs * n as f64 / time / 1e9,
                    cpu.zip(cpu_seconds()).map_or(f64::NAN, |(a, b)| n as f64 / (b - a))
                );
            }
        }
    }
    if what != "prefill" {
        for &n in &contexts {
            let mut seq = model.new_sequence(n + 4096).unwrap();
            let mut out = Vec::new();
            let tokens: Vec<u32> = (0..n).map(|i| token(i, config.vocab_size)).collect();
            for chunk in tokens.chunks(model.max_chunk()) {
                model.prefill(&mut seq, chunk, LogitsWanted::None, &mut out).unwrap();
            }
            // The machine may do other work: the floor is measured in turn with every step, and quantiles are
            // compared.
            let (mut times, mut floors) = (Vec::new(), Vec::new());
            for i in 0..120 {
                // A small model lives in the caches, and measuring the floor would empty them.
                if bytes > 1e8 || i % 40 == 0 {
                    floors.push(floor());
                }
                let start = Instant::now();
                model.decode(&mut [(&mut seq, token(n + i, config.vocab_size))], &mut out).unwrap();
                times.push(start.elapsed().as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            floors.sort_by(|a, b| b.total_cmp(a));
            let all = bytes + (n * config.kv_bytes_per_token(2)) as f64;
            for (name, q) in [("fastest tenth", 12), ("fastest quarter", 30), ("median", 60)] {
                println!(
                    "decode at {n}, {name}: {:.2} tok/s, {:.1} GB/s; floor {:.1} GB/s; share {:.0} %",
                    1.0 / times[q],
                    all / times[q] / 1e9,
                    floors[q.min(floors.len() - 1)] / 1e9,
                    100.0 * all / times[q] / floors[q.min(floors.len() - 1)]
                );
            }
        }
    }
}
