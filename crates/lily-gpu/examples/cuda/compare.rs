//! Logits of the cuda device against the CPU backend: the same random weights of the real shapes, the same tokens.

use std::{error::Error, sync::Arc, time::Instant};

use lily_cpu::{CpuModel, CpuOptions, LogitsWanted as CpuLogits};
use lily_gpu::{
    GpuModel, GpuOptions, LogitsWanted,
    device::cuda::{CudaDevice, CudaOptions},
};
use lily_model::{ModelConfig, synthetic::synthetic_weights};

/// Positions compared after each context.
const STEPS: usize = 16;

fn token(i: usize, vocab: usize) -> u32 {
    ((i as u64 * 2_654_435_761) % (1 << 32) % vocab as u64) as u32
}

/// (KL of the second to the first in nats, whether the largest is the same, largest difference).
fn difference(a: &[f32], b: &[f32]) -> (f64, bool, f32) {
    let log_sum = |x: &[f32]| {
        let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        top + x.iter().map(|&v| (v as f64 - top).exp()).sum::<f64>().ln()
    };
    let (za, zb) = (log_sum(a), log_sum(b));
    let kl =
        a.iter().zip(b).map(|(&x, &y)| (x as f64 - za).exp() * ((x as f64 - za) - (y as f64 - zb))).sum();
    let best = |x: &[f32]| (0..x.len()).max_by(|&i, &j| x[i].total_cmp(&x[j]));
    let largest = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0f32, f32::max);
    (kl, best(a) == best(b), largest)
}

pub fn run(contexts: &[usize]) -> Result<(), Box<dyn Error>> {
    let config = ModelConfig::qwen3_6_35b_a3b(4);
    let vocab = config.vocab_size;
    let weights = Arc::new(synthetic_weights(&config, 1));
    let mut cpu = CpuModel::new(weights.clone(), CpuOptions { threads: 0, isa: None })?;
    let device = CudaDevice::new(CudaOptions::default())?;
    let mut gpu = GpuModel::new(weights, Box::new(device), GpuOptions::default())?;
    println!(
        "4 layers of the real shapes, {} against the CPU backend ({})",
        gpu.device().facts().name,
        cpu.isa().name()
    );
    let mut failed = false;
    for &context in contexts {
        let started = Instant::now();
        let mut a = cpu.new_sequence(context + STEPS)?;
        let b = gpu.new_sequence(context + STEPS)?;
        let prompt: Vec<u32> = (0..context).map(|i| token(i, vocab)).collect();
        let (mut cpu_logits, mut gpu_logits) = (Vec::new(), Vec::new());
        for (i, chunk) in prompt.chunks(cpu.max_chunk()).enumerate() {
            let last = (i + 1) * cpu.max_chunk() >= context;
            cpu.prefill(
                &mut a,
                chunk,
                if last { CpuLogits::Last } else { CpuLogits::None },
                &mut cpu_logits,
            )?;
        }
        let on_cpu = started.elapsed().as_secs_f64();
        for (i, chunk) in prompt.chunks(gpu.max_chunk()).enumerate() {
            let last = (i + 1) * gpu.max_chunk() >= context;
            gpu.prefill(
                b,
                chunk,
                if last { LogitsWanted::Last } else { LogitsWanted::None },
                &mut gpu_logits,
            )?;
        }
        let on_gpu = started.elapsed().as_secs_f64() - on_cpu;
        let (mut kl, mut same, mut largest) = (0.0, 0, 0f32);
        for step in 0..=STEPS {
            let (k, s, l) = difference(&cpu_logits, &gpu_logits);
            kl += k / (STEPS + 1) as f64;
            same += usize::from(s);
            largest = largest.max(l);
            if step < STEPS {
                let id = token(context + step, vocab);
                cpu.decode(&mut [(&mut a, id)], &mut cpu_logits)?;
                gpu.decode(&[(b, id)], &mut gpu_logits)?;
            }
        }
        gpu.free_sequence(b);
        // NaN must fail.
        let good = kl <= 5e-4 && same == STEPS + 1;
        failed |= !good;
        println!(
            "{} context {context}: mean KL {kl:.2e}, {same} of {} largest the same, largest difference {largest:.2e}; prefill {on_cpu:.1} s on the CPU, {on_gpu:.1} s on the GPU",
            if good { "ok " } else { "BAD" },
            STEPS + 1
        );
    }
    if failed { Err("the cuda device differs from the CPU backend".into()) } else { Ok(()) }
}
