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
        ArgValue, BufferId, BufferKind, DecodeShape, ModelShape, Op, Plan, PrefillHead, PrefillShape,
        Products, Scalar,
        decode::{InputLayout, decode_plan},
        prefill::{PrefillInputs, prefill_plan},
        routes,
    },
};

/// Context of the decode step measured, and of the prefill chunk at its end.
const CONTEXT: usize = 4096;
/// Tokens of the chunk.
const CHUNK: usize = 512;
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
    /// Multiplications and additions of a product in prefill, which arithmetic limits and not bytes.
    pub flops: Option<u64>,
}

impl Speed {
    /// Billions of operations a second, of a product in prefill.
    pub fn gflop_per_s(&self) -> Option<f64> {
        self.flops.map(|n| n as f64 / self.seconds / 1e9)
    }

    /// Gigabytes a second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }
}

fn bytes(op: &Op) -> u64 {
    op.reads.iter().chain(&op.writes).map(|a| a.bytes).sum()
}

/// A decode step and a prefill chunk of the 35B model, and their inputs.
fn plans_for(products: Products, tensor_ops: bool) -> Vec<(Plan, Vec<u8>)> {
    let config = ModelConfig::qwen3_6_35b_a3b(4);
    let model = ModelShape::from_quantization(&config, &Quantization::mlx_4bit(4))
        .with_products(products)
        .with_tensor_ops(tensor_ops);
    let step = DecodeShape::single(CONTEXT, config.vocab_size);
    let chunk = PrefillShape {
        tokens: CHUNK,
        slots: 1,
        capacity: CONTEXT,
        context: CONTEXT,
        head: PrefillHead::None,
    };
    let ids: Vec<u32> = (0..CHUNK as u32).collect();
    vec![
        (decode_plan(&model, &step), InputLayout::new(1).encode(&[1], &[CONTEXT as u32 - 1], &[0])),
        (prefill_plan(&model, &chunk), PrefillInputs::new(CHUNK).encode(&ids, (CONTEXT - CHUNK) as u32, 0)),
    ]
}

/// Whether an op can run on made-up numbers: where it finds integers that another op computed (which expert has which
/// rows), it cannot.
fn runs_alone(plan: &Plan, op: &Op) -> bool {
    !op.args.iter().any(|a| match a.value {
        ArgValue::Buffer { view, writes: false } => {
            a.element.starts_with("uint") && plan.spec(view.buffer).kind == BufferKind::Scratch
        }
        _ => false,
    })
}

/// The largest op of every kernel of a plan.
fn largest(plan: &Plan) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::new();
    for (i, op) in plan.ops.iter().enumerate().filter(|(_, op)| runs_alone(plan, op)) {
        match chosen.iter_mut().find(|c| plan.ops[**c].kernel == op.kernel) {
            Some(c) if bytes(op) > bytes(&plan.ops[*c]) => *c = i,
            Some(_) => {}
            None => chosen.push(i),
        }
    }
    chosen
}

/// Operations of a product: two for each weight and token.
fn flops(op: &Op) -> Option<u64> {
    op.kernel.strip_prefix("gemm_")?;
    let fields = op.args.iter().find_map(|a| match &a.value {
        ArgValue::Inline(fields) if a.name == "shape" => Some(fields),
        _ => None,
    })?;
    let cols = fields.iter().find_map(|(name, v)| match v {
        Scalar::U32(n) if *name == "cols" => Some(u64::from(*n)),
        _ => None,
    })?;
    let rows: u64 = fields.iter().find_map(|(name, v)| match v {
        Scalar::U32x4(n) if *name == "rows" => Some(n.iter().map(|&n| u64::from(n)).sum()),
        _ => None,
    })?;
    Some(2 * rows * cols * CHUNK as u64)
}

/// Times every kernel of a decode step and of a prefill chunk that can run alone; `done` hears of each. Takes up to 1 GB
/// of the device's memory at a time.
pub fn speeds(device: &mut dyn Device, mut done: impl FnMut(&Speed)) -> Result<Vec<Speed>> {
    let mut out: Vec<Speed> = Vec::new();
    let facts = device.facts();
    for (plan, inputs) in plans_for(routes::products(facts), facts.tensor_ops) {
        for i in largest(&plan) {
            let op = &plan.ops[i];
            if out.iter().any(|s| s.kernel == op.kernel) {
                continue;
            }
            let mut memory: Vec<DeviceBuffer> = Vec::new();
            let prepared = prepare(device, &plan, op, &inputs, &mut memory);
            let timed = prepared.and_then(|(handle, dispatches)| {
                let seconds = time(device, handle, dispatches);
                device.discard(handle);
                seconds
            });
            memory.into_iter().for_each(|b| device.release(b));
            let speed = Speed {
                kernel: op.kernel.clone(),
                label: op.label.clone(),
                seconds: timed?,
                bytes: bytes(op),
                flops: flops(op),
            };
            done(&speed);
            out.push(speed);
        }
    }
    Ok(out)
}

/// A plan of the op many times over, each with the next copy of its weights; and how many.
fn repeated(plan: &Plan, op: &Op) -> (Plan, usize) {
    let (mut alone, old) = plan_of(plan, std::slice::from_ref(op));
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
            if let ArgValue::Buffer { view, .. } = &mut arg.value {
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
    inputs: &[u8],
    memory: &mut Vec<DeviceBuffer>,
) -> Result<(PlanHandle, usize)> {
    let (repeated, dispatches) = repeated(plan, op);
    let workspace = device.workspace(&repeated);
    let repeated = repeated.with_workspace(workspace);
    // One megabyte over and over: what the numbers are matters little here, that no two rows are alike does not.
    let random = fill(Format::Bf16, 1 << 20, 77);
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

    fn plans(products: Products) -> Vec<(Plan, Vec<u8>)> {
        plans_for(products, false)
    }

    #[test]
    fn tensor_operations_are_timed_where_a_device_has_them() {
        let prefill = &plans_for(Products::F32, true)[1].0;
        let mut timed = largest(prefill).into_iter().map(|i| &prefill.ops[i]);
        let product = timed.find(|op| op.kernel == "gemm_tensor_64").unwrap();
        assert_eq!(flops(product), Some(2 * 12_352 * 2_048 * 512));
        assert!(timed.any(|op| op.kernel == "shared_gate_up_tensor"));
    }

    #[test]
    fn the_largest_op_of_each_kernel_is_timed() {
        let all = plans(Products::F32);
        let (decode, prefill) = (&all[0].0, &all[1].0);
        let op = |plan: &Plan, kernel: &str| -> Op {
            let found: Vec<usize> =
                largest(plan).into_iter().filter(|&i| plan.ops[i].kernel == kernel).collect();
            assert_eq!(found.len(), 1, "{kernel}");
            plan.ops[found[0]].clone()
        };
        for kernel in ["embed", "gdn_step", "attention_combine", "argmax_blocks"] {
            op(decode, kernel);
        }
        // The output projection: 248,320 rows of 2,048 in 4 bits and their scales.
        let head = op(decode, "project_norm_8");
        assert!((286_000_000..290_000_000).contains(&bytes(&head)), "{}", bytes(&head));
        assert_eq!(flops(&head), None);
        // q, k and v: 9,216 rows; gdn.in has 12,352.
        assert_eq!(flops(&op(prefill, "gemm_float_64")), Some(2 * 12_352 * 2_048 * 512));
        // What needs the routing of an earlier op does not run alone.
        assert!(!largest(prefill).iter().any(|&i| prefill.ops[i].kernel.starts_with("experts_gate")));
        assert!(largest(prefill).iter().any(|&i| prefill.ops[i].kernel == "gdn_scan"));
    }

    #[test]
    fn copies_of_weights_are_used_in_turn_and_run_one_after_the_other() {
        for (plan, _) in [Products::F32, Products::F16].into_iter().flat_map(plans) {
            for i in largest(&plan) {
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
                if weight(op).is_some() {
                    let mut seen: Vec<BufferId> = many.ops.iter().filter_map(weight).collect();
                    seen.sort_unstable();
                    seen.dedup();
                    assert_eq!(seen.len(), n, "{}", op.kernel);
                }
                let bytes: u64 = many.buffers.iter().map(|b| b.bytes).sum();
                assert!(bytes < 1 << 30, "{}: {bytes}", op.kernel);
            }
        }
    }
}
