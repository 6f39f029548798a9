//! One op by itself, or some that belong together.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use crate::{
    device::{Device, Precision, Region},
    error::Result,
    kernels,
    plan::{Access, Arg, ArgValue, BufferId, BufferKind, Op, Plan, Scalar},
};

/// What ops left behind.
pub(super) struct Results {
    /// Op by op, for every argument that is written: the bytes of its view.
    pub outputs: Vec<Vec<Option<Vec<u8>>>>,
    /// Seconds from submission to the end.
    pub seconds: f64,
    /// What the device's kernels computed with.
    pub precision: Precision,
}

/// A plan of these ops. Its buffers hold what `contents` says; which of the old ones they are is returned with it.
pub(super) fn plan_of(plan: &Plan, ops: &[Op]) -> (Plan, Vec<BufferId>) {
    let mut numbers: BTreeMap<BufferId, usize> = BTreeMap::new();
    let mut old = Vec::new();
    let name = ops.iter().map(|op| op.label.as_str()).collect::<Vec<_>>().join(", ");
    let mut alone = Plan { name, buffers: Vec::new(), ops: Vec::new(), levels: Vec::new() };
    let mut renamed = |id: BufferId| {
        BufferId(*numbers.entry(id).or_insert_with(|| {
            let mut spec = plan.spec(id).clone();
            // Whatever it was in the whole plan: here the host fills it.
            spec.kind = BufferKind::State;
            alone.buffers.push(spec);
            old.push(id);
            old.len() - 1
        }))
    };
    let mut ops = ops.to_vec();
    for op in &mut ops {
        for arg in &mut op.args {
            if let ArgValue::Buffer { view, .. } = &mut arg.value {
                view.buffer = renamed(view.buffer);
            }
        }
        let accesses = |list: &mut Vec<Access>, renamed: &mut dyn FnMut(BufferId) -> BufferId| {
            list.iter_mut().for_each(|a| a.buffer = renamed(a.buffer));
        };
        accesses(&mut op.reads, &mut renamed);
        accesses(&mut op.writes, &mut renamed);
    }
    alone.ops = ops;
    alone.derive_levels();
    (alone, old)
}

/// Runs ops of a plan on `contents`, the bytes of each of the plan's buffers.
pub(super) fn run(device: &mut dyn Device, plan: &Plan, ops: &[Op], contents: &[Vec<u8>]) -> Result<Results> {
    let (alone, old) = plan_of(plan, ops);
    let workspace = device.workspace(&alone);
    let alone = alone.with_workspace(workspace);
    let mut regions = Vec::with_capacity(alone.buffers.len());
    let result = (|| {
        for id in &old {
            let bytes = &contents[id.0];
            let buffer = device.allocate("selftest", bytes.len() as u64)?;
            regions.push(Some(Region { buffer, offset: 0, len: bytes.len() as u64 }));
            device.write(buffer, 0, bytes)?;
        }
        if workspace > 0 {
            let buffer = device.allocate("selftest", workspace)?;
            regions.push(Some(Region { buffer, offset: 0, len: workspace }));
        }
        let ops = alone.ops.clone();
        let handle = device.prepare(Arc::new(alone), &regions)?;
        let precision = device.precision(handle);
        let started = Instant::now();
        let done = device.submit(handle, &[]).and_then(|ticket| device.wait(ticket));
        let seconds = started.elapsed().as_secs_f64();
        device.discard(handle);
        done?;
        let mut outputs = Vec::with_capacity(ops.len());
        for op in &ops {
            let mut of_op = Vec::with_capacity(op.args.len());
            for arg in &op.args {
                of_op.push(match arg.value {
                    ArgValue::Buffer { view, writes: true } => {
                        let mut bytes = vec![0; view.len as usize];
                        if let Some(region) = regions[view.buffer.0] {
                            device.read(region.buffer, view.offset, &mut bytes)?;
                        }
                        Some(bytes)
                    }
                    _ => None,
                });
            }
            outputs.push(of_op);
        }
        Ok(Results { outputs, seconds, precision })
    })();
    regions.into_iter().flatten().for_each(|r| device.release(r.buffer));
    result
}

/// Kernels of a chunk's GDN: what passes between them has a layout that is the device's own business, so that they only
/// mean something together.
const TOGETHER: [&str; 3] = ["gdn_convolve", "gdn_factors", "gdn_scan"];

/// Ops from `index` on that belong together, if these are such.
pub(super) fn together(plan: &Plan, index: usize) -> Option<&[Op]> {
    let ops = plan.ops.get(index..index + TOGETHER.len())?;
    ops.iter().map(|op| op.kernel.as_str()).eq(TOGETHER).then_some(ops)
}

/// Whether an output of op `at` of these passes to a later one.
pub(super) fn passes_on(ops: &[Op], at: usize, arg: &Arg) -> bool {
    let ArgValue::Buffer { view, .. } = arg.value else { return false };
    ops[at + 1..].iter().flat_map(|op| &op.reads).any(|read| read.buffer == view.buffer)
}

/// Simdgroups of a threadgroup in the kernels that share rows.
const SIMDGROUPS: usize = 4;

/// Kernels that differ only in how many rows a simdgroup computes, and the field of their structure with the rows.
const FAMILIES: [(&str, &str); 4] =
    [("project_norm_", "rows"), ("project_add_", "rows"), ("moe_gate_up_", "width"), ("moe_down_", "hidden")];

/// Kernels that differ only in how many tokens a tile has.
const TILES: [&str; 4] = ["gemm_", "gemm_add_", "gemm_float_", "gemm_float_add_"];

/// The same on tensor operations.
const TENSOR_TILES: [&str; 2] = ["gemm_tensor_", "gemm_tensor_add_"];

/// The op, and the same with the other kernels of its family: routes choose them for other sizes, but they must give the
/// same result for these.
pub(super) fn variants(op: &Op) -> Vec<Op> {
    let mut out = vec![op.clone()];
    for family in TILES.into_iter().chain(TENSOR_TILES) {
        let number = |kernel: &str| kernel.strip_prefix(family)?.parse::<u32>().ok().filter(|&n| n > 0);
        let (Some(tile), Ok(manifest)) = (number(&op.kernel), kernels::manifest_with(true)) else { continue };
        for kernel in manifest.kernels.iter().filter(|k| k.name != op.kernel) {
            let Some(other_tile) = number(&kernel.name) else { continue };
            let mut other = op.clone();
            other.kernel.clone_from(&kernel.name);
            other.label = format!("{}, as {}", op.label, kernel.name);
            other.grid[1] = (op.grid[1] * tile).div_ceil(other_tile);
            out.push(other);
        }
        return out;
    }
    let Some((family, field)) = FAMILIES.iter().find(|f| op.kernel.starts_with(f.0)) else { return out };
    let Ok(manifest) = kernels::manifest_with(true) else { return out };
    for kernel in &manifest.kernels {
        let suffix = kernel.name.strip_prefix(family).and_then(|s| s.parse::<usize>().ok());
        let (Some(rows), true) = (suffix.filter(|&r| r > 0), kernel.name != op.kernel) else { continue };
        let mut other = op.clone();
        other.kernel.clone_from(&kernel.name);
        other.label = format!("{}, as {}", op.label, kernel.name);
        other.grid[0] = matrices(op, field).iter().map(|n| n.div_ceil(rows * SIMDGROUPS) as u32).sum();
        if other.grid[0] > 0 {
            out.push(other);
        }
    }
    out
}

/// Rows of each matrix of an op.
fn matrices(op: &Op, field: &str) -> Vec<usize> {
    let fields = op.args.iter().find_map(|a| match &a.value {
        ArgValue::Inline(fields) => Some(fields),
        ArgValue::Buffer { .. } => None,
    });
    let value = fields.and_then(|f| f.iter().find(|(name, _)| *name == field));
    match value.map(|v| v.1) {
        Some(Scalar::U32(n)) => vec![n as usize],
        Some(Scalar::U32x4(n)) => n.iter().map(|&n| n as usize).filter(|&n| n > 0).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::cases;

    /// With the rows its own kernel has, the grid computed here is the plan's.
    #[test]
    fn grids_are_the_plans() {
        let mut seen = 0;
        for case in cases().unwrap() {
            for op in &case.plan.ops {
                let Some((family, field)) = FAMILIES.iter().find(|f| op.kernel.starts_with(f.0)) else {
                    continue;
                };
                let rows: usize = op.kernel[family.len()..].parse().unwrap();
                let blocks: u32 =
                    matrices(op, field).iter().map(|n| n.div_ceil(rows * SIMDGROUPS) as u32).sum();
                assert_eq!(blocks, op.grid[0], "{} {}", case.name, op.label);
                assert!(variants(op).len() >= 3, "{}", op.kernel);
                seen += 1;
            }
        }
        assert!(seen >= 10);
    }

    #[test]
    fn an_op_alone_has_its_own_buffers_only() {
        let case = &cases().unwrap()[0];
        for op in &case.plan.ops {
            let (alone, old) = plan_of(&case.plan, std::slice::from_ref(op));
            assert_eq!(alone.buffers.len(), old.len());
            for (arg, before) in alone.ops[0].args.iter().zip(&op.args) {
                let (ArgValue::Buffer { view, .. }, ArgValue::Buffer { view: was, .. }) =
                    (&arg.value, &before.value)
                else {
                    continue;
                };
                assert_eq!(old[view.buffer.0], was.buffer);
                assert_eq!((view.offset, view.len), (was.offset, was.len));
                assert_eq!(alone.buffers[view.buffer.0].bytes, case.plan.spec(was.buffer).bytes);
            }
        }
    }
}
