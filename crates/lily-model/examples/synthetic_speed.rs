//! Prints how long synthetic weights take: `cargo run --release -p lily-model --example synthetic_speed -- LAYERS`.

use std::time::Instant;

use lily_model::{ModelConfig, synthetic::synthetic_weights};

fn main() {
    let layers = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(4);
    let start = Instant::now();
    let weights = synthetic_weights(&ModelConfig::qwen3_6_35b_a3b(layers), 1);
    let (bytes, seconds) = (weights.byte_len() as f64, start.elapsed().as_secs_f64());
    println!("{layers} layers: {:.2} GB in {seconds:.2} s, {:.2} GB/s", bytes / 1e9, bytes / 1e9 / seconds);
    // Resident and huge pages, where the system tells.
    if let Ok(status) = std::fs::read_to_string("/proc/self/smaps_rollup") {
        for line in status.lines().filter(|l| l.starts_with("Rss") || l.starts_with("AnonHuge")) {
            println!("{line}");
        }
    }
}
