//! How fast each kernel moves its bytes at the sizes of the 35B model.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lily_model::{ModelConfig, Quantization};

use super::{cases::fill, compare::Format, isolate::plan_of};
use crate::{
    device::{Device, DeviceBuffer, PlanHandle, Region},
    error::Result,
    plan::{
        BufferId, BufferKind, DecodeShape, ModelShape, Op, Plan,
        decode::{InputLayout, decode_plan},
    },
};

/// Context of the decode step measured.
const CONTEXT: usize = 4096;
/// Copies of the weights together, so that they do not come from a cache: the largest of a Mac are below 100 MB.
const UNCACHED: u64 = 256 << 20;
/// Most copies of small weights.
const MOST_COPIES: u64 = 32;
/// Shortest time measured.
const SHORTEST: Duration = Duration::from_millis(40);

/// Speed of one kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Speed {
    /// Host name.
    pub kernel: String,
    /// The op that was timed: the kernel's largest.
    pub label: String,
    /// Seconds a dispatch.
    pub seconds: f64,
    /// Bytes it reads and writes.
    pub bytes: u64,
}

impl Speed {
    /// Gigabytes a second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }
}

fn bytes(op: &Op) -> u64 {
    op.reads.iter().chain(&op.writes).map(|a| a.bytes).sum()
}

/// The largest op of every kernel in a decode step of the 35B model.
fn largest() -> (Plan, Vec<usize>) {
    let config = ModelConfig::qwen3_6_35b_a3b(4);
    let shape = ModelShape::from_quantization(&config, &Quantization::mlx_4bit(4));
    let plan = decode_plan(&shape, &DecodeShape::single(CONTEXT, config.vocab_size));
    let mut chosen: Vec<usize> = Vec::new();
    for (i, op) in plan.ops.iter().enumerate() {
        match chosen.iter_mut().find(|c| plan.ops[**c].kernel == op.kernel) {
            Some(c) if bytes(op) > bytes(&plan.ops[*c]) => *c = i,
            Some(_) => {}
            None => chosen.push(i),
        }
    }
    (plan, chosen)
}

/// Times every kernel of a decode step; `done` hears of each. Takes up to 1 GB of the device's memory at a time.
pub fn speeds(device: &mut dyn Device, mut done: impl FnMut(&Speed)) -> Result<Vec<Speed>> {
    let (plan, chosen) = largest();
    let mut out = Vec::new();
    for i in chosen {
        let op = &plan.ops[i];
        let mut memory: Vec<DeviceBuffer> = Vec::new();
        let prepared = prepare(device, &plan, op, &mut memory);
        let timed = prepared.and_then(|(handle, dispatches)| {
            let seconds = time(device, handle, dispatches);
            device.discard(handle);
            seconds
        });
        memory.into_iter().for_each(|b| device.release(b));
        let speed =
            Speed { kernel: op.kernel.clone(), label: op.label.clone(), seconds: timed?, bytes: bytes(op) };
        done(&speed);
        out.push(speed);
    }
    Ok(out)
}

/// A plan of the op many times over, each with the next copy of its weights; and how many.
fn repeated(plan: &Plan, op: &Op) -> (Plan, usize) {
    let (mut alone, old) = plan_of(plan, op);
    let is_weight = |id: &BufferId| plan.spec(*id).kind == BufferKind::Weight;
    let weights: u64 = old.iter().filter(|id| is_weight(id)).map(|id| plan.spec(*id).bytes).sum();
    let copies = if weights == 0 { 1 } else { UNCACHED.div_ceil(weights).clamp(1, MOST_COPIES) as usize };
    let first = alone.ops[0].clone();
    for copy in 1..copies {
        let mut op = first.clone();
        let mut moved = vec![None; old.len()];
        for (i, id) in old.iter().enumerate().filter(|(_, id)| is_weight(id)) {
            let mut spec = plan.spec(*id).clone();
            spec.name = format!("{} {copy}", spec.name);
            spec.kind = BufferKind::State;
            alone.buffers.push(spec);
            moved[i] = Some(BufferId(alone.buffers.len() - 1));
        }
        let to = |b: &mut BufferId| *b = moved[b.0].unwrap_or(*b);
        for arg in &mut op.args {
            if let crate::plan::ArgValue::Buffer { view, .. } = &mut arg.value {
                to(&mut view.buffer);
            }
        }
        op.reads.iter_mut().chain(&mut op.writes).for_each(|a| to(&mut a.buffer));
        alone.ops.push(op);
    }
    alone.derive_levels();
    let dispatches = alone.ops.len();
    (alone, dispatches)
}

fn prepare(
    device: &mut dyn Device,
    plan: &Plan,
    op: &Op,
    memory: &mut Vec<DeviceBuffer>,
) -> Result<(PlanHandle, usize)> {
    let (repeated, dispatches) = repeated(plan, op);
    // One megabyte over and over: what the numbers are matters little here, that no two rows are alike does not.
    let random = fill(Format::Bf16, 1 << 20, 77);
    let inputs = InputLayout::new(1).encode(&[1], &[CONTEXT as u32 - 1], &[0]);
    let mut regions = Vec::with_capacity(repeated.buffers.len());
    for spec in &repeated.buffers {
        let buffer = device.allocate("selftest", spec.bytes)?;
        memory.push(buffer);
        regions.push(Some(Region { buffer, offset: 0, len: spec.bytes }));
        let integers = plan
            .buffers
            .iter()
            .any(|b| b.name == spec.name && matches!(b.kind, BufferKind::Input | BufferKind::TokenSlots));
        if integers {
            let n = inputs.len().min(spec.bytes as usize);
            device.write(buffer, 0, &inputs[..n])?;
            continue;
        }
        let mut at = 0;
        while at < spec.bytes {
            let n = (spec.bytes - at).min(random.len() as u64);
            device.write(buffer, at, &random[..n as usize])?;
            at += n;
        }
    }
    Ok((device.prepare(Arc::new(repeated), &regions)?, dispatches))
}

/// Seconds a dispatch, after a run to warm up.
fn time(device: &mut dyn Device, handle: PlanHandle, dispatches: usize) -> Result<f64> {
    let ticket = device.submit(handle, &[])?;
    device.wait(ticket)?;
    let (started, mut runs) = (Instant::now(), 0usize);
    let mut last = ticket;
    while started.elapsed() < SHORTEST || runs == 0 {
        last = device.submit(handle, &[])?;
        runs += 1;
    }
    device.wait(last)?;
    Ok(started.elapsed().as_secs_f64() / (runs * dispatches) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ArgValue;

    #[test]
    fn the_largest_op_of_each_kernel_is_timed() {
        let (plan, chosen) = largest();
        let named = |k: &str| chosen.iter().filter(|&&i| plan.ops[i].kernel.starts_with(k)).count();
        for kernel in
            ["embed", "project_norm_8", "gdn_step", "attention_split_8", "attention_combine", "argmax_blocks"]
        {
            assert_eq!(named(kernel), 1, "{kernel}");
        }
        let head = chosen.iter().map(|&i| &plan.ops[i]).find(|op| op.kernel == "project_norm_8").unwrap();
        assert!(bytes(head) > 280_000_000, "{}", bytes(head));
    }

    #[test]
    fn copies_of_weights_are_used_in_turn_and_run_one_after_the_other() {
        let (plan, chosen) = largest();
        for &i in &chosen {
            let op = &plan.ops[i];
            let (many, n) = repeated(&plan, op);
            assert_eq!(many.ops.len(), n);
            // Each writes what the one before wrote.
            assert_eq!(many.levels.len(), n, "{}", op.kernel);
            let weight = |op: &Op| {
                op.args.iter().find_map(|a| match &a.value {
                    ArgValue::Buffer { view, .. } if a.element == "uint4" => Some(view.buffer),
                    _ => None,
                })
            };
            if let Some(first) = weight(&many.ops[0]) {
                let mut seen: Vec<BufferId> = many.ops.iter().filter_map(weight).collect();
                assert_eq!(seen[0], first);
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), n, "{}", op.kernel);
            }
            let bytes: u64 = many.buffers.iter().map(|b| b.bytes).sum();
            assert!(bytes < 1 << 30, "{}: {bytes}", op.kernel);
        }
    }
}
