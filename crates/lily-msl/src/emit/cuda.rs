//! CUDA C++ for NVRTC.

use std::fmt::Write;

use super::rewrite::Rewriter;
use super::soft::defined_queries;
use crate::diag::{Diagnostics, Finding, Rule};
use crate::parse::{ArgKind, Builtin, Param, Unit};

/// What a CUDA translation is made for.
#[derive(Debug, Clone, Default)]
pub struct CudaOptions {
    /// Host names of the kernels wanted; empty for all.
    pub kernels: Vec<String>,
    /// Function constants: index and value as written in C++ (`4`, `0.5f`, `true`). Those not given are undefined.
    pub constants: Vec<(u32, String)>,
}

impl Unit {
    /// Translates the unit for NVRTC (options `-std=c++17 -default-device -fmad=false`).
    ///
    /// Every kernel `k` becomes `extern "C" __global__ void lily_k(const __grid_constant__ lily_k_args a)`. The
    /// argument structure holds, in order of index, a device pointer for every buffer, the bytes themselves for
    /// every `constant T&`, then for every threadgroup argument its offset (u32) in the dynamic shared memory; the
    /// manifest gives the offsets.
    pub fn cuda_source(&self, options: &CudaOptions) -> Result<String, Diagnostics> {
        let mut r = Rewriter::new(self);
        r.drop_attributes();
        r.drop_instantiations();
        r.literals();
        for f in &self.functions {
            for v in &f.tg_vars {
                r.set(v.decl.start, "__shared__ alignas(16)");
            }
        }
        let value = |index: u32| options.constants.iter().find(|c| c.0 == index).map(|c| c.1.as_str());
        for c in &self.function_constants {
            let text = match value(c.index) {
                Some(v) => format!("constexpr {ty} {n} = {ty}({v});", ty = c.ty, n = c.name),
                None => format!("constexpr {ty} {n} = {ty}(0);", ty = c.ty, n = c.name),
            };
            r.set_range(c.item.clone(), text);
        }
        defined_queries(&mut r, |name| {
            let c = self.function_constants.iter().find(|c| c.name == name.trim());
            c.is_some_and(|c| value(c.index).is_some()).to_string()
        });
        r.drop_address_spaces();
        r.drop_duplicate_overloads();

        let mut out = super::prelude("cuda.cuh");
        out.push_str("namespace metal {\n");
        out.push_str(&r.print(true));
        out.push_str("\n#line 1 \"<kernel table>\"\n");
        let mut findings = Vec::new();
        for k in &self.kernels {
            if !options.kernels.is_empty() && !options.kernels.contains(&k.name) {
                continue;
            }
            let f = &self.functions[k.function];
            let m = match self.kernel_manifest(k) {
                Ok(m) => m,
                Err(e) => {
                    findings.extend(e);
                    continue;
                }
            };
            let s = &m.symbol;
            let _ = writeln!(out, "struct {s}_args {{");
            for a in &m.args {
                let _ = match a.inline_bytes() {
                    Some(l) => {
                        writeln!(out, "  alignas({}) unsigned char b{}[{}];", l.align, a.index, l.size)
                    }
                    None => writeln!(out, "  void* b{};", a.index),
                };
            }
            for t in &m.threadgroup_args {
                let _ = writeln!(out, "  unsigned t{};", t.index);
            }
            let bounds =
                m.threads_per_threadgroup.map(|n| format!("__launch_bounds__({n}) ")).unwrap_or_default();
            let args: Vec<String> = f.params.iter().map(argument).collect();
            let _ = writeln!(
                out,
                "  unsigned lily_end;\n}};\nextern \"C\" __global__ {bounds}void {s}(const __grid_constant__ {s}_args a) {{ (void)a; LILY_ENTER {}({}); }}",
                r.callable(k),
                args.join(", ")
            );
        }
        for name in &options.kernels {
            if self.kernel(name).is_none() {
                let loc = crate::diag::Loc::default();
                findings.push(Finding::new(loc, Rule::Instantiation, format!("no kernel {name:?}")));
            }
        }
        out.push_str("}\n");
        if findings.is_empty() { Ok(out) } else { Err(self.diagnostics(findings)) }
    }
}

fn argument(p: &Param) -> String {
    let three = |v: &str| format!("position<{}>({v}.x, {v}.y, {v}.z)", p.ty.base);
    match p.kind {
        Some(ArgKind::Buffer(n)) if p.ty.reference && p.ty.space.as_deref() == Some("constant") => {
            format!("Reference{{(void*)&a.b{n}}}")
        }
        Some(ArgKind::Buffer(n)) if p.ty.reference => format!("Reference{{a.b{n}}}"),
        Some(ArgKind::Buffer(n)) => format!("Pointer{{a.b{n}}}"),
        Some(ArgKind::Threadgroup(n)) => format!("Pointer{{lily_shared + a.t{n}}}"),
        Some(ArgKind::Builtin(b)) => match b {
            Builtin::ThreadPositionInGrid => {
                let parts: Vec<String> = ["x", "y", "z"]
                    .iter()
                    .map(|c| format!("blockIdx.{c} * blockDim.{c} + threadIdx.{c}"))
                    .collect();
                format!("position<{}>({})", p.ty.base, parts.join(", "))
            }
            Builtin::ThreadPositionInThreadgroup => three("threadIdx"),
            Builtin::ThreadgroupPositionInGrid => three("blockIdx"),
            Builtin::ThreadsPerThreadgroup => three("blockDim"),
            Builtin::ThreadgroupsPerGrid => three("gridDim"),
            Builtin::ThreadsPerGrid => {
                let parts: Vec<String> =
                    ["x", "y", "z"].iter().map(|c| format!("gridDim.{c} * blockDim.{c}")).collect();
                format!("position<{}>({})", p.ty.base, parts.join(", "))
            }
            Builtin::SimdgroupIndexInThreadgroup => "thread_index() / 32".into(),
            Builtin::ThreadIndexInSimdgroup => "lane_index()".into(),
            Builtin::ThreadIndexInThreadgroup => "thread_index()".into(),
            Builtin::SimdgroupsPerThreadgroup => "(blockDim.x * blockDim.y * blockDim.z + 31) / 32".into(),
            Builtin::ThreadsPerSimdgroup => "32".into(),
        },
        None => "{}".into(),
    }
}
