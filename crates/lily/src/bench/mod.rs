//! `lily bench`: how fast this machine runs the model, beside what it could do at most.
//!
//! The contract: prompt ids are `((i * 2654435761) mod 2^32) mod vocab`; a warm-up of the exact shape runs before
//! anything is timed; prefill is prompt tokens over the time until the first token is known and the next step has been
//! submitted; decode is the rate of the steps after that; nothing is cached between measurements; figures are medians
//! of the repeats.

mod cost;
mod measure;
mod plan;
mod report;
mod saved;

use std::{path::PathBuf, sync::Arc, time::Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use lily_cpu::floor;
use lily_model::{Checkpoint, ModelConfig, ModelWeights, config::Quantization, synthetic::synthetic_weights};

use crate::device::{self, Device};

use measure::Measured;
use report::{Floor, Report};
use saved::Saved;

/// Most sequences decoded together: each has its own state and KV cache.
const MOST_BATCH: usize = 256;

/// Measure speed, beside the machine's limits.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Checkpoint directory; the embedded lily-mini when left out.
    #[arg(value_name = "MODEL", env = "LILY_MODEL", conflicts_with = "synthetic")]
    model: Option<PathBuf>,

    /// Random weights of the real shapes, made in memory: `qwen3.6-35b-a3b` or `qwen3.6-35b-a3b:LAYERS`, with LAYERS a
    /// multiple of 4 that cuts the depth, so that a small machine can measure.
    #[arg(long, value_name = "NAME[:LAYERS]", env = "LILY_BENCH_SYNTHETIC")]
    synthetic: Option<String>,

    /// Only measure the machine: read bandwidth and multiply-add peaks.
    #[arg(long)]
    floor: bool,

    /// Only print what a forward pass on a GPU costs, at every one of the contexts: dispatches, levels, bytes. Runs
    /// nothing and needs no GPU.
    #[arg(long)]
    plan: bool,

    /// Use a GPU even where weights and caches seem not to fit its memory.
    #[arg(long, env = "LILY_IGNORE_MEMORY_CHECK")]
    ignore_memory_check: bool,

    /// Where to run the model.
    #[arg(long, value_enum, default_value_t = Device::Auto, env = "LILY_DEVICE")]
    device: Device,

    /// Compute threads; 0 = one a core.
    #[arg(long, default_value_t = 0, env = "LILY_THREADS")]
    threads: usize,

    /// Contexts at which decode is measured, in tokens, comma-separated. Each is prefilled first, and that is reported too.
    #[arg(long, value_delimiter = ',', default_values_t = [128, 512, 2048], env = "LILY_BENCH_CONTEXTS")]
    contexts: Vec<usize>,

    /// Further prompt lengths at which only prefill is measured, comma-separated.
    #[arg(long, value_delimiter = ',', env = "LILY_BENCH_PREFILL")]
    prefill: Vec<usize>,

    /// Decode steps timed at each context.
    #[arg(long, default_value_t = 64, env = "LILY_BENCH_DECODE_TOKENS")]
    decode_tokens: usize,

    /// Sequences decoded together.
    #[arg(long, default_value_t = 1, env = "LILY_BENCH_BATCH")]
    batch: usize,

    /// Times everything is measured; the median is reported.
    #[arg(long, default_value_t = 3, env = "LILY_BENCH_REPEATS")]
    repeats: usize,

    /// Keep filled contexts in DIR, and read those that are there: decode is then measured without the prefill.
    ///
    /// For one sequence (--batch 1). The files are as large as the contexts' state (2 MB per 1,024 tokens and attention layer, and the GDN state).
    #[arg(long, value_name = "DIR", env = "LILY_BENCH_SAVED")]
    saved: Option<PathBuf>,

    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write the results as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Draw the results as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// What is measured: weights and how they are quantised.
struct Subject {
    name: String,
    weights: Arc<ModelWeights>,
    quantization: Quantization,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<()> {
    check(args)?;
    let threads = device::threads(args.threads)?;
    if args.floor {
        println!("{}", measure_floor(threads));
        return Ok(());
    }
    if args.plan {
        return plan::print(args);
    }
    let started = Instant::now();
    let subject = subject(args)?;
    let config = subject.weights.config.clone();
    check_contexts(args, config.max_position_embeddings)?;
    let mut backend =
        device::backend(args.device, subject.weights.clone(), args.threads, args.ignore_memory_check)?;
    eprintln!("{}: ready on {} after {:.1} s", subject.name, backend.name(), started.elapsed().as_secs_f64());

    let saved = args.saved.as_deref().map(|dir| Saved::new(dir, &subject.name)).transpose()?;
    let floor = (backend.name() == "cpu").then(|| measure_floor(threads));
    let mut report = Report::new(&subject.name, backend.name(), threads, args.batch, floor);
    if let Some(floor) = &report.floor {
        println!("{floor}");
    }
    for (tokens, decode) in schedule(args) {
        let runs: Vec<Measured> = (0..args.repeats)
            .map(|_| {
                measure::run(
                    backend.as_mut(),
                    tokens,
                    if decode { args.decode_tokens } else { 0 },
                    args.batch,
                    saved.as_ref().filter(|_| decode),
                )
            })
            .collect::<Result<_>>()?;
        let computed: Vec<_> = runs.iter().filter_map(|r| r.prefill).collect();
        report.add_prefill(
            tokens,
            &computed,
            cost::prefill_operations(&config, &subject.quantization, tokens),
        );
        if decode {
            let middle = tokens + args.decode_tokens / 2;
            report.add_decode(tokens, &runs, &cost::decode_bytes(&config, &subject.quantization, middle));
        }
    }
    report.memory = backend.memory().into();
    println!("{}", report.memory_line());
    report.write(args.json.as_deref(), args.csv.as_deref(), args.svg.as_deref())
}

/// Prompt lengths in ascending order, and whether decode is measured there.
fn schedule(args: &BenchArgs) -> Vec<(usize, bool)> {
    let mut all: Vec<(usize, bool)> = args.contexts.iter().map(|&c| (c, true)).collect();
    all.extend(args.prefill.iter().filter(|p| !args.contexts.contains(p)).map(|&p| (p, false)));
    all.sort_unstable();
    all.dedup();
    all
}

fn check(args: &BenchArgs) -> Result<()> {
    if args.contexts.iter().chain(&args.prefill).any(|&c| c == 0) {
        bail!("--contexts and --prefill: found 0; give prompt lengths of at least 1 token");
    }
    for (flag, value) in
        [("--decode-tokens", args.decode_tokens), ("--repeats", args.repeats), ("--batch", args.batch)]
    {
        if value == 0 {
            bail!("{flag}: found 0; give at least 1");
        }
    }
    if args.saved.is_some() && args.batch > 1 {
        bail!("--saved keeps the context of one sequence; leave --batch {} out", args.batch);
    }
    if args.batch > MOST_BATCH {
        bail!("--batch: found {}; give at most {MOST_BATCH}", args.batch);
    }
    Ok(())
}

/// Nothing longer than what the model was made for.
fn check_contexts(args: &BenchArgs, most: usize) -> Result<()> {
    for (tokens, decode) in schedule(args) {
        let decoded = if decode { measure::WARM + args.decode_tokens } else { 0 };
        if tokens.saturating_add(decoded) > most {
            bail!("{tokens} prompt tokens and {decoded} to decode; the model was made for at most {most}");
        }
    }
    Ok(())
}

fn subject(args: &BenchArgs) -> Result<Subject> {
    if let Some(spec) = &args.synthetic {
        let layers = synthetic_layers(spec)?;
        let config = ModelConfig::qwen3_6_35b_a3b(layers);
        let weights = Arc::new(synthetic_weights(&config, 1));
        return Ok(Subject {
            name: format!("synthetic qwen3.6-35b-a3b, {layers} of 40 layers"),
            weights,
            quantization: Quantization::mlx_4bit(layers),
        });
    }
    let checkpoint: Checkpoint = device::open_checkpoint(args.model.as_deref())?;
    let weights = Arc::new(checkpoint.weights()?);
    Ok(Subject {
        name: checkpoint.name().to_string(),
        weights,
        quantization: checkpoint.quantization().clone(),
    })
}

/// `qwen3.6-35b-a3b[:LAYERS]` to a number of layers.
fn synthetic_layers(spec: &str) -> Result<usize> {
    let (name, layers) = spec.split_once(':').unwrap_or((spec, "40"));
    if !name.eq_ignore_ascii_case("qwen3.6-35b-a3b") {
        bail!("--synthetic: found {name:?}; the only synthetic model is qwen3.6-35b-a3b");
    }
    let layers: usize = layers.parse().with_context(|| format!("--synthetic: found {layers:?} layers"))?;
    if layers == 0 || !layers.is_multiple_of(4) || layers > 40 {
        bail!(
            "--synthetic: found {layers} layers; give a multiple of 4 (three GDN and one attention layer) up to 40"
        );
    }
    Ok(layers)
}

/// Bandwidth over 1 GiB and arithmetic peaks, on `threads` threads.
fn measure_floor(threads: usize) -> Floor {
    Floor {
        threads,
        read_gbps: floor::read_bandwidth(threads, 1 << 30, 4) / 1e9,
        int8_gops: floor::int8_peak(threads).map(|p| p / 1e9),
        bf16_gflops: floor::bf16_peak(threads).map(|p| p / 1e9),
        f32_gflops: floor::f32_peak(threads).map(|p| p / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synthetic_names() {
        assert_eq!(synthetic_layers("qwen3.6-35b-a3b").unwrap(), 40);
        assert_eq!(synthetic_layers("Qwen3.6-35B-A3B:4").unwrap(), 4);
        for bad in
            ["llama:4", "qwen3.6-35b-a3b:", "qwen3.6-35b-a3b:3", "qwen3.6-35b-a3b:44", "qwen3.6-35b-a3b:0"]
        {
            assert!(synthetic_layers(bad).is_err(), "{bad}");
        }
    }
}
