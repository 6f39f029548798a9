//! Logits of the cuda device against the CPU backend and the f32 reference: the same random weights of the real shapes, the
//! same tokens.
//!
//! Random weights make the choice of experts fragile: of 256 router logits without structure the 8th and the 9th largest
//! lie within rounding of each other every so often, and then the two sides go on with another expert, which no precision
//! of the rest can mend. So a second model of the same shapes has 8 experts, all of which every token takes: there is no
//! choice, and what differs is arithmetic alone. Trained weights are compared by `lily eval`.

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

use lily_cpu::{CpuModel, CpuOptions, LogitsWanted as CpuLogits};
use lily_gpu::{
    GpuModel, GpuOptions, LogitsWanted,
    device::cuda::{CudaDevice, CudaOptions},
};
use lily_model::{
    ModelConfig,
    reference::{ReferenceModel, ReferenceState},
    synthetic::synthetic_weights,
};

/// Positions compared after each context.
const STEPS: usize = 128;
/// Longest context that also goes through the GPU token by token, and longest for the reference.
const BY_STEPS: usize = 5_000;
const REFERENCE: usize = 1;
/// Time for the reference at one context.
const REFERENCE_TIME: Duration = Duration::from_secs(12);
/// Bars for a backend whose matrix inputs have 16 bits.
const KL_BAR: f64 = 5e-4;
const SAME_BAR: f64 = 0.99;

fn token(i: usize, vocab: usize) -> u32 {
    ((i as u64 * 2_654_435_761) % (1 << 32) % vocab as u64) as u32
}

/// KL of the distribution with logits `b` to that with `a`, in nats.
pub fn divergence(a: &[f32], b: &[f32]) -> f64 {
    let log_sum = |x: &[f32]| {
        let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        top + x.iter().map(|&v| (v as f64 - top).exp()).sum::<f64>().ln()
    };
    let (za, zb) = (log_sum(a), log_sum(b));
    a.iter().zip(b).map(|(&x, &y)| (x as f64 - za).exp() * ((x as f64 - za) - (y as f64 - zb))).sum()
}

/// The place of the largest.
pub fn first_choice(x: &[f32]) -> usize {
    (0..x.len()).max_by(|&i, &j| x[i].total_cmp(&x[j])).unwrap_or(0)
}

/// Differences of two backends over some positions.
#[derive(Default)]
struct Differences {
    kl: Vec<f64>,
    same: usize,
    largest: f32,
    /// Largest distance, in the first one's logits, between its choice and the other's where they differ.
    margin: f32,
}

impl Differences {
    /// Adds a position: KL of the second to the first in nats.
    fn add(&mut self, a: &[f32], b: &[f32]) {
        let (i, j) = (first_choice(a), first_choice(b));
        self.same += usize::from(i == j);
        self.margin = self.margin.max(a[i] - a[j]);
        self.largest = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(self.largest, f32::max);
        self.kl.push(divergence(a, b));
    }

    /// Prints a line; returns the mean KL.
    fn report(&mut self, what: &str) -> f64 {
        let n = self.kl.len();
        if n == 0 {
            return 0.0;
        }
        self.kl.sort_unstable_by(f64::total_cmp);
        let mean = self.kl.iter().sum::<f64>() / n as f64;
        // NaN must fail.
        let good = mean <= KL_BAR && self.same as f64 >= SAME_BAR * n as f64;
        println!(
            "   {:<4} {what:<44} KL mean {mean:.2e}, median {:.2e}, 90 % {:.2e}, largest {:.2e}; largest the same at {} of {n} (else within {:.1e}); logits differ by up to {:.2e}",
            if good { "ok" } else { "over" },
            self.kl[n / 2],
            self.kl[n * 9 / 10],
            self.kl[n - 1],
            self.same,
            self.margin,
            self.largest
        );
        mean
    }
}

/// The two models side by side; ends with an error if the one without a choice misses the bars.
pub fn run(contexts: &[usize]) -> Result<(), Box<dyn Error>> {
    let real = ModelConfig::qwen3_6_35b_a3b(4);
    let all = ModelConfig { num_experts: real.num_experts_per_tok, ..real.clone() };
    compare(&real, contexts, "256 experts, 8 chosen")?;
    if compare(&all, contexts, "8 experts, all taken")? {
        Ok(())
    } else {
        Err("the cuda device differs from the CPU backend".into())
    }
}

fn compare(config: &ModelConfig, contexts: &[usize], name: &str) -> Result<bool, Box<dyn Error>> {
    let vocab = config.vocab_size;
    let weights = Arc::new(synthetic_weights(config, 1));
    let mut cpu = CpuModel::new(weights.clone(), CpuOptions { threads: 0, isa: None })?;
    let reference = ReferenceModel::new(weights.clone());
    let device = CudaDevice::new(CudaOptions::default())?;
    let mut gpu = GpuModel::new(weights, Box::new(device), GpuOptions::default())?;
    println!(
        "4 layers of the real shapes, {name}: {} against the CPU backend ({}); {} vectors rounded",
        gpu.device().facts().name,
        cpu.isa().name(),
        gpu.load_report().rounded_vectors
    );
    let mut good = true;
    for &context in contexts {
        let started = Instant::now();
        let mut a = cpu.new_sequence(context + STEPS)?;
        let prompt: Vec<u32> = (0..context).map(|i| token(i, vocab)).collect();
        let (mut cpu_logits, mut chunk_logits, mut step_logits) = (Vec::new(), Vec::new(), Vec::new());
        let size = cpu.max_chunk();
        for (i, chunk) in prompt.chunks(size).enumerate() {
            let wanted = if (i + 1) * size >= context { CpuLogits::Last } else { CpuLogits::None };
            cpu.prefill(&mut a, chunk, wanted, &mut cpu_logits)?;
        }
        let on_cpu = started.elapsed().as_secs_f64();
        let by_chunks = gpu.new_sequence(context + STEPS)?;
        let size = gpu.max_chunk();
        for (i, chunk) in prompt.chunks(size).enumerate() {
            let wanted = if (i + 1) * size >= context { LogitsWanted::Last } else { LogitsWanted::None };
            gpu.prefill(by_chunks, chunk, wanted, &mut chunk_logits)?;
        }
        let on_gpu = started.elapsed().as_secs_f64() - on_cpu;
        // Two tokens at a time are decode steps: nothing is rounded to 16 bits but the cache.
        let by_steps = (context <= BY_STEPS).then(|| gpu.new_sequence(context + STEPS)).transpose()?;
        if let Some(s) = by_steps {
            for chunk in prompt.chunks(2) {
                gpu.prefill(s, chunk, LogitsWanted::Last, &mut step_logits)?;
            }
        }
        let mut exact: Option<(ReferenceState, Vec<f32>, Instant)> = (context <= REFERENCE).then(|| {
            let (mut state, started) = (reference.new_state(), Instant::now());
            let logits = reference.forward_last(&mut state, &prompt);
            (state, logits, started)
        });
        let mut all: [Differences; 5] = Default::default();
        for step in 0..=STEPS {
            all[0].add(&cpu_logits, &chunk_logits);
            if by_steps.is_some() {
                all[1].add(&cpu_logits, &step_logits);
            }
            if let Some((_, logits, _)) = &exact {
                all[2].add(logits, &cpu_logits);
                all[3].add(logits, &chunk_logits);
                all[4].add(logits, &step_logits);
            }
            if step == STEPS {
                break;
            }
            let id = token(context + step, vocab);
            cpu.decode(&mut [(&mut a, id)], &mut cpu_logits)?;
            gpu.decode(&[(by_chunks, id)], &mut chunk_logits)?;
            if let Some(s) = by_steps {
                gpu.decode(&[(s, id)], &mut step_logits)?;
            }
            exact = exact.filter(|e| e.2.elapsed() < REFERENCE_TIME);
            if let Some((state, logits, _)) = &mut exact {
                *logits = reference.forward_last(state, &[id]);
            }
        }
        gpu.free_sequence(by_chunks);
        by_steps.into_iter().for_each(|s| gpu.free_sequence(s));
        println!("context {context}: prefill {on_cpu:.1} s on the CPU, {on_gpu:.1} s on the GPU");
        let names = [
            "cuda to the CPU backend",
            "cuda, prompt as decode steps, to the CPU",
            "the CPU backend to the f32 reference",
            "cuda to the f32 reference",
            "cuda, prompt as decode steps, to the f32",
        ];
        for (i, (d, what)) in all.iter_mut().zip(names).enumerate() {
            // Nearly flat logits: which of two almost equal ones is larger says little, so the KL decides.
            good &= d.report(what) <= KL_BAR || i == 2;
        }
    }
    Ok(good)
}
