//! A plan against the kernels' manifest: what does not fit is an error before anything runs.

use lily_msl::manifest::{Access as KernelAccess, ArgManifest, Binding, KernelManifest, Manifest};

use super::{Access, Arg, ArgValue, Op, Plan, Scalar, View};
use crate::error::{GpuError, Result};

/// An op as a device needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundOp {
    /// Which op of the plan.
    pub op: usize,
    /// Host name of the kernel.
    pub kernel: String,
    /// Arguments in order of index.
    pub args: Vec<BoundArg>,
    /// (index, bytes) of threadgroup memory.
    pub threadgroup: Vec<(u32, u32)>,
}

/// An argument as a device needs it.
#[derive(Debug, Clone, PartialEq)]
pub enum BoundArg {
    /// A buffer.
    Buffer {
        /// `[[buffer(index)]]`.
        index: u32,
        /// Where.
        view: View,
        /// Whether the kernel may write it.
        writes: bool,
        /// The element's alignment, bytes.
        align: u32,
    },
    /// Inline bytes, laid out as the kernel's structure.
    Bytes {
        /// `[[buffer(index)]]`.
        index: u32,
        /// Content.
        bytes: Vec<u8>,
    },
}

/// Checks every op against its kernel (number, order, names, constness and element types of the arguments, fields of
/// structures, group size, threadgroup memory, alignment) and its declared ranges against its arguments.
pub fn bind(plan: &Plan, manifest: &Manifest) -> Result<Vec<BoundOp>> {
    plan.ops.iter().enumerate().map(|(i, op)| bind_op(plan, i, op, manifest)).collect()
}

fn bind_op(plan: &Plan, index: usize, op: &Op, manifest: &Manifest) -> Result<BoundOp> {
    let bad = |e| GpuError::Bind { op: op.label.clone(), source: Box::new(e) };
    let kernel = manifest.kernel(&op.kernel).map_err(bad)?;
    let bindings: Vec<Binding<'_>> = op
        .args
        .iter()
        .map(|a| Binding {
            name: a.name,
            access: match a.value {
                ArgValue::Buffer { writes: true, .. } => KernelAccess::ReadWrite,
                ArgValue::Buffer { writes: false, .. } => KernelAccess::Read,
                ArgValue::Inline(_) => KernelAccess::Bytes,
            },
            element: a.element,
            bytes: None,
        })
        .collect();
    kernel.check(&bindings).map_err(bad)?;
    kernel.check_dispatch(op.group, &op.threadgroup, &[]).map_err(bad)?;
    if let Some(axis) = op.grid.iter().position(|&n| n == 0) {
        return Err(problem(op, format!("the grid {:?} is empty along axis {axis}", op.grid)));
    }
    let mut args = Vec::with_capacity(op.args.len());
    for (arg, m) in op.args.iter().zip(&kernel.args) {
        args.push(match &arg.value {
            ArgValue::Buffer { view, writes } => {
                check_view(plan, op, m, *view)?;
                BoundArg::Buffer { index: m.index, view: *view, writes: *writes, align: alignment(m) }
            }
            ArgValue::Inline(fields) => {
                BoundArg::Bytes { index: m.index, bytes: encode(op, arg, m, fields)? }
            }
        });
    }
    check_ranges(plan, op, kernel)?;
    let threadgroup =
        kernel.threadgroup_args.iter().zip(&op.threadgroup).map(|(t, &b)| (t.index, b)).collect();
    Ok(BoundOp { op: index, kernel: op.kernel.clone(), args, threadgroup })
}

fn problem(op: &Op, problem: String) -> GpuError {
    GpuError::Plan { op: op.label.clone(), kernel: op.kernel.clone(), problem }
}

fn check_view(plan: &Plan, op: &Op, m: &ArgManifest, view: View) -> Result<()> {
    let Some(spec) = plan.buffers.get(view.buffer.0) else {
        return Err(problem(op, format!("argument {}: the plan has no buffer {}", m.name, view.buffer.0)));
    };
    if view.len == 0 || view.offset.checked_add(view.len).is_none_or(|end| end > spec.bytes) {
        return Err(problem(
            op,
            format!(
                "argument {}: bytes {} to {} of {}, which has {}",
                m.name,
                view.offset,
                view.offset.saturating_add(view.len),
                spec.name,
                spec.bytes
            ),
        ));
    }
    let align = alignment(m) as u64;
    if !view.offset.is_multiple_of(align) {
        return Err(problem(
            op,
            format!(
                "argument {}: offset {} of {}; {} needs a multiple of {align}",
                m.name, view.offset, spec.name, m.element
            ),
        ));
    }
    Ok(())
}

fn alignment(m: &ArgManifest) -> u32 {
    m.layout.as_ref().map_or(1, |l| l.align)
}

/// Every declared range lies inside an argument that allows it.
fn check_ranges(plan: &Plan, op: &Op, kernel: &KernelManifest) -> Result<()> {
    let allowed = |a: &Access, write: bool| {
        op.args.iter().any(|arg| match &arg.value {
            ArgValue::Buffer { view, writes } => {
                view.buffer == a.buffer
                    && view.offset <= a.start
                    && a.end <= view.offset + view.len
                    && (*writes || !write)
            }
            ArgValue::Inline(_) => false,
        })
    };
    for (list, write) in [(&op.reads, false), (&op.writes, true)] {
        if let Some(a) = list.iter().find(|a| !allowed(a, write)) {
            let what = if write { "written" } else { "read" };
            let name = plan.buffers.get(a.buffer.0).map_or("an unknown buffer", |b| b.name.as_str());
            return Err(problem(
                op,
                format!(
                    "bytes {} to {} of {name} are declared as {what}, but no argument of {} covers them",
                    a.start, a.end, kernel.name
                ),
            ));
        }
    }
    Ok(())
}

/// The bytes of a structure: every field once, where the kernel has it.
fn encode(op: &Op, arg: &Arg, m: &ArgManifest, fields: &[(&'static str, Scalar)]) -> Result<Vec<u8>> {
    let layout =
        m.inline_bytes().ok_or_else(|| problem(op, format!("argument {}: unknown layout", m.name)))?;
    let mut bytes = vec![0u8; layout.size as usize];
    let mut set = vec![false; layout.fields.len()];
    for (name, value) in fields {
        let (ty, content): (&str, Vec<u8>) = match value {
            Scalar::U32(v) => ("uint", v.to_le_bytes().to_vec()),
            Scalar::F32(v) => ("float", v.to_le_bytes().to_vec()),
            Scalar::U32x4(v) => ("uint4", v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        };
        if layout.fields.is_empty() && name.is_empty() && fields.len() == 1 {
            if m.element != ty || bytes.len() != content.len() {
                return Err(problem(op, format!("argument {} is {}, not {ty}", m.name, m.element)));
            }
            return Ok(content);
        }
        let Some(i) = layout.fields.iter().position(|f| f.name == *name) else {
            return Err(problem(op, format!("{} has no field {name}", arg.element)));
        };
        let f = &layout.fields[i];
        if f.ty != ty || f.size as usize != content.len() {
            return Err(problem(op, format!("{}.{name} is {}, not {ty}", arg.element, f.ty)));
        }
        if set[i] {
            return Err(problem(op, format!("{}.{name} is set twice", arg.element)));
        }
        set[i] = true;
        bytes[f.offset as usize..][..content.len()].copy_from_slice(&content);
    }
    match set.iter().position(|s| !s) {
        Some(i) => Err(problem(op, format!("{}.{} is not set", arg.element, layout.fields[i].name))),
        None => Ok(bytes),
    }
}
