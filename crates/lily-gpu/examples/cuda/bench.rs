//! Decode steps of the real shapes: tokens a second, milliseconds by kernel, and what each way of running costs.

use std::{collections::HashMap, error::Error, fs, path::Path, sync::Arc, time::Instant};

use lily_gpu::{
    Device,
    device::{
        PlanHandle, Region,
        cuda::{CudaDevice, CudaOptions, OpTime, Together},
    },
    plan::{
        BufferKind, Counters, DecodeShape, Floor, Head, Ids, ModelShape, Plan, PrefillHead, PrefillShape,
        decode::{InputLayout, token_slot_offset},
        decode_plan,
        prefill::PrefillInputs,
        prefill_plan,
        routes::{Splits, products},
    },
    synthetic::{Content, SyntheticModel},
};
use lily_model::{ModelConfig, config::Quantization};
use serde_json::{Value, json};

use crate::ablation;

const STEPS: usize = 64;
const REPEATS: usize = 5;

pub struct Bench {
    pub device: CudaDevice,
    pub model: ModelShape,
    quantization: Quantization,
    /// Memory of the plans' buffers, by name.
    pub memory: HashMap<String, Region>,
    /// How decode attention is split.
    pub splits: fn(&CudaDevice, usize) -> Splits,
}

impl Bench {
    pub fn new(layers: usize, options: CudaOptions) -> Result<Self, Box<dyn Error>> {
        Self::of(ModelConfig::qwen3_6_35b_a3b(layers), options)
    }

    fn of(config: ModelConfig, options: CudaOptions) -> Result<Self, Box<dyn Error>> {
        let quantization = Quantization::mlx_4bit(config.num_hidden_layers);
        let device = CudaDevice::new(options)?;
        let model =
            ModelShape::from_quantization(&config, &quantization).with_products(products(device.facts()));
        Ok(Self {
            device,
            model,
            quantization,
            memory: HashMap::new(),
            splits: |device, context| device.attention_splits(context),
        })
    }

    fn plan(&self, tokens: usize, context: usize, from: usize) -> Plan {
        let vocab = self.model.config.vocab_size;
        let shape = DecodeShape {
            tokens,
            slots: tokens,
            // Room for all steps.
            capacity: context + STEPS,
            splits: (self.splits)(&self.device, context + STEPS),
            context: context + STEPS / 2,
            ids: Ids::Slot(from),
            head: Head::Greedy { slot: 1 - from, valid: vocab },
        };
        decode_plan(&self.model, &shape)
    }

    /// Memory for a plan. Weights are filled once; caches and state each time.
    pub fn prepare(&mut self, plan: Plan) -> Result<(PlanHandle, Arc<Plan>), Box<dyn Error>> {
        let workspace = self.device.workspace(&plan);
        let plan = Arc::new(plan.with_workspace(workspace));
        let mut regions = Vec::new();
        for spec in &plan.buffers {
            if spec.kind == BufferKind::Input {
                regions.push(None);
                continue;
            }
            let have = self.memory.get(&spec.name).copied().filter(|r| r.len >= spec.bytes);
            let region = match have {
                Some(r) => r,
                None => {
                    if let Some(old) = self.memory.remove(&spec.name) {
                        self.device.release(old.buffer);
                    }
                    let buffer = self.device.allocate(&spec.name, spec.bytes)?;
                    let region = Region { buffer, offset: 0, len: spec.bytes };
                    let content = SyntheticModel::new(&self.model, &plan, 1).content(spec);
                    self.device.fill(region, &content)?;
                    self.memory.insert(spec.name.clone(), region);
                    region
                }
            };
            regions.push(Some(region));
        }
        Ok((self.device.prepare(plan.clone(), &regions)?, plan))
    }

    /// State and token slots as at the start.
    fn reset(&mut self, plan: &Plan) -> Result<(), Box<dyn Error>> {
        let synthetic = SyntheticModel::new(&self.model, plan, 1);
        for spec in
            plan.buffers.iter().filter(|b| matches!(b.kind, BufferKind::State | BufferKind::TokenSlots))
        {
            let region = self.memory[&spec.name];
            let content = match spec.kind {
                // Every sequence starts with another token: the same ones would choose the same experts.
                BufferKind::TokenSlots => Content::Bytes(
                    (0..spec.bytes as u32 / 4)
                        .flat_map(|i| {
                            (i.wrapping_mul(2_654_435_761) % self.model.config.vocab_size as u32)
                                .to_le_bytes()
                        })
                        .collect(),
                ),
                _ => synthetic.content(spec),
            };
            self.device.fill(region, &content)?;
        }
        Ok(())
    }

    /// Greedy steps, the next one submitted before the current one's ids are read: seconds a step and the ids.
    fn decode(
        &mut self,
        plans: [PlanHandle; 2],
        plan: &Plan,
        tokens: usize,
        context: usize,
    ) -> Result<(f64, Vec<u32>), Box<dyn Error>> {
        self.reset(plan)?;
        let layout = InputLayout::new(tokens);
        let slots: Vec<u32> = (0..tokens as u32).collect();
        let id_slots = self.memory["token_slots"];
        let mut ids = Vec::new();
        let mut last = None;
        let started = Instant::now();
        for step in 0..STEPS {
            let positions = vec![(context - 1 + step) as u32; tokens];
            let ticket =
                self.device.submit(plans[step % 2], &layout.encode(&vec![0; tokens], &positions, &slots))?;
            if let Some((before, slot)) = last.replace((ticket, 1 - step % 2)) {
                self.device.wait(before)?;
                let mut id = [0u8; 4];
                self.device.read(id_slots.buffer, token_slot_offset(tokens, slot) as u64, &mut id)?;
                ids.push(u32::from_le_bytes(id));
            }
        }
        if let Some((ticket, _)) = last {
            self.device.wait(ticket)?;
        }
        Ok((started.elapsed().as_secs_f64() / STEPS as f64, ids))
    }

    /// Median seconds of a step as the host sees it and of its graph alone, with the plans.
    #[allow(clippy::type_complexity)]
    pub fn measure(
        &mut self,
        tokens: usize,
        context: usize,
    ) -> Result<(f64, f64, [PlanHandle; 2], Arc<Plan>), Box<dyn Error>> {
        let (a, plan) = self.prepare(self.plan(tokens, context, 0))?;
        let (b, _) = self.prepare(self.plan(tokens, context, 1))?;
        let (_, first) = self.decode([a, b], &plan, tokens, context)?;
        let mut times = Vec::new();
        for _ in 0..REPEATS {
            let (seconds, ids) = self.decode([a, b], &plan, tokens, context)?;
            if ids != first {
                let at = ids.iter().zip(&first).position(|(a, b)| a != b);
                return Err(
                    format!("context {context}: the ids of two runs differ from step {at:?} on").into()
                );
            }
            times.push(seconds);
        }
        times.sort_unstable_by(f64::total_cmp);
        let mut graph = self.device.time_plan(a, 20)?;
        graph.sort_unstable_by(f64::total_cmp);
        println!("   ids {:?}...", &first[..6.min(first.len())]);
        Ok((times[REPEATS / 2], graph[10], [a, b], plan))
    }

    /// A prefill chunk of `tokens` behind `position` others: milliseconds, and the prepared plan.
    pub fn prefill(
        &mut self,
        tokens: usize,
        position: usize,
    ) -> Result<(f64, PlanHandle, Arc<Plan>), Box<dyn Error>> {
        let shape = PrefillShape {
            tokens,
            slots: 1,
            capacity: (position + tokens).next_multiple_of(64),
            context: position + tokens,
            head: PrefillHead::Last,
        };
        let (handle, plan) = self.prepare(prefill_plan(&self.model, &shape))?;
        self.reset(&plan)?;
        let vocab = self.model.config.vocab_size as u64;
        let ids: Vec<u32> =
            (0..tokens as u64).map(|i| ((i * 2_654_435_761) % (1 << 32) % vocab) as u32).collect();
        let ticket =
            self.device.submit(handle, &PrefillInputs::new(tokens).encode(&ids, position as u32, 0))?;
        self.device.wait(ticket)?;
        let mut times = self.device.time_plan(handle, REPEATS)?;
        times.sort_unstable_by(f64::total_cmp);
        Ok((times[REPEATS / 2], handle, plan))
    }

    pub fn forget(&mut self, plans: [PlanHandle; 2]) {
        plans.into_iter().for_each(|p| self.device.discard(p));
    }
}

/// A few steps and a chunk through four layers with few experts and a small vocabulary: every native kernel at its real
/// width, with little enough work for a memory checker.
pub fn steps() -> Result<(), Box<dyn Error>> {
    // Large enough that the head's rows do not all fit a block's ring, and that several sequences have kernels for so many.
    let config = ModelConfig { vocab_size: 140_000, num_experts: 32, ..ModelConfig::qwen3_6_35b_a3b(4) };
    let mut b = Bench::of(config, CudaOptions { together: Together::Always, ..CudaOptions::default() })?;
    let mut kernels = std::collections::BTreeSet::new();
    for (tokens, context) in [(1, 300), (1, 5_000), (3, 300), (16, 40)] {
        let (handle, plan) = b.prepare(b.plan(tokens, context, 0))?;
        b.reset(&plan)?;
        let (positions, slots) = (vec![context as u32 - 1; tokens], (0..tokens as u32).collect::<Vec<_>>());
        let ticket = b
            .device
            .submit(handle, &InputLayout::new(tokens).encode(&vec![0; tokens], &positions, &slots))?;
        b.device.wait(ticket)?;
        kernels.extend(b.device.kernels_of(handle));
        b.device.discard(handle);
    }
    // Enough steps of 64 tokens that the GDN's scan fills its two stages again.
    const CHUNK: usize = 256;
    let shape =
        PrefillShape { tokens: CHUNK, slots: 1, capacity: CHUNK, context: CHUNK, head: PrefillHead::Last };
    let (handle, plan) = b.prepare(prefill_plan(&b.model, &shape))?;
    b.reset(&plan)?;
    let ids: Vec<u32> = (0..200).map(|i| i * 397).collect();
    let ticket = b.device.submit(handle, &PrefillInputs::new(CHUNK).encode(&ids, 0, 0))?;
    b.device.wait(ticket)?;
    kernels.extend(b.device.kernels_of(handle));
    println!("ran {}", kernels.into_iter().collect::<Vec<_>>().join(", "));
    Ok(())
}

/// What [`run`] measures.
pub const PARTS: [&str; 5] = ["decode", "batch", "prefill", "options", "ablation"];

pub fn run(
    layers: usize,
    contexts: &[usize],
    out: Option<&Path>,
    parts: &[&str],
) -> Result<(), Box<dyn Error>> {
    if let Some(part) = parts.iter().find(|p| !PARTS.contains(p)) {
        return Err(format!("{part}: no such part; there are {}", PARTS.join(", ")).into());
    }
    let mut results: Vec<Value> = Vec::new();
    let started = Instant::now();
    let mut b = Bench::new(layers, CudaOptions::default())?;
    let name = b.device.facts().name.clone();
    println!("{name} ready after {:.2} s", started.elapsed().as_secs_f64());
    if parts.contains(&"decode") {
        decode(&mut b, layers, contexts, &mut results)?;
    }
    if parts.contains(&"prefill") {
        prefill(&mut b, layers, &mut results)?;
    }
    drop(b);
    if parts.contains(&"batch") {
        batch(layers, &mut results)?;
    }
    if parts.contains(&"options") {
        options(layers, &mut results)?;
    }
    if parts.contains(&"ablation") {
        results.extend(ablation::run(layers)?);
    }
    if let Some(out) = out {
        fs::write(out, serde_json::to_vec_pretty(&json!({"device": name, "results": results}))?)?;
    }
    Ok(())
}

fn decode(
    b: &mut Bench,
    layers: usize,
    contexts: &[usize],
    results: &mut Vec<Value>,
) -> Result<(), Box<dyn Error>> {
    for &context in contexts {
        let (step, graph, plans, plan) = b.measure(1, context)?;
        let counters = Counters::of(&plan);
        let floor = Floor::decode(&b.model.config, &b.quantization, context);
        println!(
            "{layers} layers, context {context}: {:.1} tok/s ({:.3} ms a step, {:.3} ms on the GPU), {:.0} GB/s, {} dispatches; floor {:.0} MB",
            1.0 / step,
            step * 1e3,
            graph,
            counters.bytes() as f64 / step / 1e9,
            counters.dispatches,
            floor.bytes() as f64 / 1e6
        );
        let times = b.device.time_ops(plans[0], 20)?;
        let kernels = show_ops(&times);
        println!("   sum of kernels alone {:.4} ms", times.iter().map(|t| t.ms).sum::<f64>());
        results.push(json!({
            "case": "decode", "layers": layers, "tokens": 1, "context": context, "tok_s": 1.0 / step, "ms": step * 1e3,
            "gpu_ms": graph, "bytes": counters.bytes(), "floor_bytes": floor.bytes(), "kernels": kernels,
        }));
        b.forget(plans);
    }
    Ok(())
}

/// Steps of several sequences, with weights read once for all of them, and with the kernels of one sequence.
fn batch(layers: usize, results: &mut Vec<Value>) -> Result<(), Box<dyn Error>> {
    for (how, together) in
        [("as measured", Together::Measured), ("together", Together::Always), ("one by one", Together::Never)]
    {
        let mut b = Bench::new(layers, CudaOptions { together, ..CudaOptions::default() })?;
        for tokens in [2, 4, 8, 16] {
            let (step, graph, plans, _) = b.measure(tokens, 256)?;
            println!(
                "{layers} layers, {tokens} sequences at 256, products {how}: {:.1} tok/s ({:.3} ms a step, {:.3} on the GPU)",
                tokens as f64 / step,
                step * 1e3,
                graph
            );
            let mut kernels = Vec::new();
            if tokens % 8 == 0 {
                kernels = show_ops(&b.device.time_ops(plans[0], 10)?);
            }
            results.push(
                json!({"case": "batch", "products": how, "layers": layers, "tokens": tokens, "context": 256,
                "tok_s": tokens as f64 / step, "ms": step * 1e3, "gpu_ms": graph, "kernels": kernels}),
            );
            b.forget(plans);
        }
    }
    Ok(())
}

fn prefill(b: &mut Bench, layers: usize, results: &mut Vec<Value>) -> Result<(), Box<dyn Error>> {
    for (tokens, position) in [(512, 0), (2048, 0), (2048, 6144), (2048, 30_720)] {
        let (ms, handle, plan) = b.prefill(tokens, position)?;
        // Two operations for each weight that a token uses, and for each value it attends to.
        let rate = tokens as f64 / ms * 1e3;
        println!(
            "{layers} layers, prefill of {tokens} tokens behind {position}: {ms:.2} ms, {rate:.0} tok/s, {} dispatches",
            plan.ops.len()
        );
        let mut kernels = Vec::new();
        if tokens == 2048 && position != 30_720 {
            kernels = show_ops(&b.device.time_ops(handle, 3)?);
        }
        results.push(json!({"case": "prefill", "layers": layers, "tokens": tokens, "position": position, "ms": ms, "tok_s": rate, "kernels": kernels}));
        b.device.discard(handle);
    }
    Ok(())
}

/// Prints a line for each kind of op; the same for a file.
pub fn show_ops(times: &[OpTime]) -> Vec<Value> {
    let show = |t: &OpTime| {
        let [registers, local, shared] = t.resources;
        println!(
            "   {:<22} {:<26} {:>3} x {:>9.2} us = {:>8.4} ms  {:>6.0} GB/s  {registers} registers, {local} local, {shared} shared",
            t.what,
            t.kernel,
            t.launches,
            t.ms * 1e3 / t.launches as f64,
            t.ms,
            t.bytes as f64 / t.ms / 1e6,
        );
        json!({"what": t.what, "kernel": t.kernel, "launches": t.launches, "ms": t.ms, "bytes": t.bytes})
    };
    times.iter().map(show).collect()
}

/// Native and translated kernels, early and late.
fn options(layers: usize, results: &mut Vec<Value>) -> Result<(), Box<dyn Error>> {
    let usual = CudaOptions::default();
    for (name, options) in [
        ("native, kernels do not start early", CudaOptions { early: false, ..usual }),
        ("translated, kernels start early", CudaOptions { native: false, ..usual }),
        ("translated, kernels do not start early", CudaOptions { native: false, early: false, ..usual }),
    ] {
        let mut b = Bench::new(layers, options)?;
        let (step, graph, plans, _) = b.measure(1, 256)?;
        println!("{name}: {:.1} tok/s ({:.3} ms a step, {:.3} on the GPU)", 1.0 / step, step * 1e3, graph);
        if !options.native && options.early {
            show_ops(&b.device.time_ops(plans[0], 10)?);
        }
        results.push(json!({"case": name, "layers": layers, "tokens": 1, "context": 256, "tok_s": 1.0 / step, "ms": step * 1e3, "gpu_ms": graph}));
    }
    Ok(())
}
