//! One op by itself.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use crate::{
    device::{Device, Region},
    error::Result,
    kernels,
    plan::{Access, ArgValue, BufferId, BufferKind, Op, Plan, Scalar},
};

/// What an op left behind.
pub(super) struct Results {
    /// For every argument that is written: the bytes of its view.
    pub outputs: Vec<Option<Vec<u8>>>,
    /// Seconds from submission to the end.
    pub seconds: f64,
}

/// A plan of one op. Its buffers hold what `contents` says; which of the old ones they are is returned with it.
pub(super) fn plan_of(plan: &Plan, op: &Op) -> (Plan, Vec<BufferId>) {
    let mut numbers: BTreeMap<BufferId, usize> = BTreeMap::new();
    let mut old = Vec::new();
    let mut alone =
        Plan { name: op.label.clone(), buffers: Vec::new(), ops: Vec::new(), levels: vec![vec![0]] };
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
    let mut op = op.clone();
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
    alone.ops.push(op);
    (alone, old)
}

/// Runs an op of a plan on `contents`, the bytes of each of the plan's buffers.
pub(super) fn run(device: &mut dyn Device, plan: &Plan, op: &Op, contents: &[Vec<u8>]) -> Result<Results> {
    let (alone, old) = plan_of(plan, op);
    let mut regions = Vec::with_capacity(old.len());
    let result = (|| {
        for id in &old {
            let bytes = &contents[id.0];
            let buffer = device.allocate("selftest", bytes.len() as u64)?;
            regions.push(Some(Region { buffer, offset: 0, len: bytes.len() as u64 }));
            device.write(buffer, 0, bytes)?;
        }
        let op = alone.ops[0].clone();
        let handle = device.prepare(Arc::new(alone), &regions)?;
        let started = Instant::now();
        let done = device.submit(handle, &[]).and_then(|ticket| device.wait(ticket));
        let seconds = started.elapsed().as_secs_f64();
        device.discard(handle);
        done?;
        let mut outputs = Vec::with_capacity(op.args.len());
        for arg in &op.args {
            outputs.push(match (&arg.value, regions.len()) {
                (ArgValue::Buffer { view, writes: true }, _) => {
                    let mut bytes = vec![0; view.len as usize];
                    if let Some(region) = regions[view.buffer.0] {
                        device.read(region.buffer, view.offset, &mut bytes)?;
                    }
                    Some(bytes)
                }
                _ => None,
            });
        }
        Ok(Results { outputs, seconds })
    })();
    regions.into_iter().flatten().for_each(|r| device.release(r.buffer));
    result
}

/// Simdgroups of a threadgroup in the kernels that share rows.
const SIMDGROUPS: usize = 4;

/// Kernels that differ only in how many rows a simdgroup computes, and the field of their structure with the rows.
const FAMILIES: [(&str, &str); 4] =
    [("project_norm_", "rows"), ("project_add_", "rows"), ("moe_gate_up_", "width"), ("moe_down_", "hidden")];

/// Kernels that differ only in how many tokens a tile has.
const TILES: [&str; 5] = ["gemm_", "gemm_add_", "gemm_bfloat_", "gemm_float_", "gemm_float_add_"];

/// The op, and the same with the other kernels of its family: routes choose them for other sizes, but they must give the
/// same result for these.
pub(super) fn variants(op: &Op) -> Vec<Op> {
    let mut out = vec![op.clone()];
    for family in TILES {
        let number = |kernel: &str| kernel.strip_prefix(family)?.parse::<u32>().ok().filter(|&n| n > 0);
        let (Some(tile), Ok(manifest)) = (number(&op.kernel), kernels::manifest()) else { continue };
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
    let Ok(manifest) = kernels::manifest() else { return out };
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
            let (alone, old) = plan_of(&case.plan, op);
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
