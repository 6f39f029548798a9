//! Kernels: how each parameter gets its argument, and which names the host can ask for.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::constants::Bound;
use super::scan::attributes;
use super::*;
use crate::diag::Rule;

/// A value the GPU gives every thread. Spellings are those of the attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Builtin {
    ThreadPositionInGrid,
    ThreadPositionInThreadgroup,
    ThreadgroupPositionInGrid,
    ThreadsPerThreadgroup,
    ThreadgroupsPerGrid,
    ThreadsPerGrid,
    SimdgroupIndexInThreadgroup,
    ThreadIndexInSimdgroup,
    ThreadIndexInThreadgroup,
    SimdgroupsPerThreadgroup,
    ThreadsPerSimdgroup,
}

impl Builtin {
    fn from_attribute(name: &str) -> Option<Self> {
        use Builtin::*;
        Some(match name {
            "thread_position_in_grid" => ThreadPositionInGrid,
            "thread_position_in_threadgroup" => ThreadPositionInThreadgroup,
            "threadgroup_position_in_grid" => ThreadgroupPositionInGrid,
            "threads_per_threadgroup" | "dispatch_threads_per_threadgroup" => ThreadsPerThreadgroup,
            "threadgroups_per_grid" => ThreadgroupsPerGrid,
            "threads_per_grid" => ThreadsPerGrid,
            "simdgroup_index_in_threadgroup" => SimdgroupIndexInThreadgroup,
            "thread_index_in_simdgroup" => ThreadIndexInSimdgroup,
            "thread_index_in_threadgroup" => ThreadIndexInThreadgroup,
            "simdgroups_per_threadgroup" | "dispatch_simdgroups_per_threadgroup" => SimdgroupsPerThreadgroup,
            "threads_per_simdgroup" | "thread_execution_width" => ThreadsPerSimdgroup,
            _ => return None,
        })
    }

    /// Whether it has up to three components.
    pub(crate) fn is_vector(self) -> bool {
        use Builtin::*;
        matches!(
            self,
            ThreadPositionInGrid
                | ThreadPositionInThreadgroup
                | ThreadgroupPositionInGrid
                | ThreadsPerThreadgroup
                | ThreadgroupsPerGrid
                | ThreadsPerGrid
        )
    }
}

/// How a kernel's parameter gets its argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgKind {
    /// `[[buffer(n)]]`.
    Buffer(u32),
    /// `[[threadgroup(n)]]`: memory whose size the host sets.
    Threadgroup(u32),
    /// A position or size.
    Builtin(Builtin),
}

/// The highest buffer index Metal has.
const MAX_BUFFER: u32 = 30;

pub(super) fn resolve(unit: &mut Unit, findings: &mut Vec<Finding>) {
    for f in 0..unit.functions.len() {
        if unit.functions[f].is_kernel {
            signature(unit, f, findings);
        }
    }
    kernels(unit, findings);
}

fn signature(unit: &mut Unit, f: usize, findings: &mut Vec<Finding>) {
    let name = unit.functions[f].name.clone();
    if unit.functions[f].body.is_none() {
        return; // a declaration in a header
    }
    let params = unit.functions[f].params.clone();
    let mut used: Vec<ArgKind> = Vec::new();
    for (i, p) in params.iter().enumerate() {
        let mut fail = |rule, m: String| findings.push(Finding::new(p.loc, rule, m));
        let what = format!("parameter `{}` of kernel {name}", p.name);
        let mut kind = None;
        for a in attributes(&unit.tokens, &unit.brackets, p.range.clone()) {
            let number = |env: &ConstEnv<'_>| a.args.clone().and_then(|r| env.eval(r).ok());
            let index = || number(&ConstEnv::new(unit)).and_then(|v| u32::try_from(v).ok());
            let k = match (a.name.as_str(), Builtin::from_attribute(&a.name)) {
                ("buffer", _) => index().map(ArgKind::Buffer),
                ("threadgroup", _) => index().map(ArgKind::Threadgroup),
                (_, Some(b)) => Some(ArgKind::Builtin(b)),
                ("function_constant", _) => {
                    fail(
                        Rule::Signature,
                        format!("{what}: optional arguments are not supported; always bind it"),
                    );
                    continue;
                }
                _ => {
                    fail(
                        Rule::Signature,
                        format!("{what} has the attribute [[{}]], which is not known", a.name),
                    );
                    continue;
                }
            };
            match (k, kind) {
                (None, _) => fail(Rule::Signature, format!("{what}: [[{}]] needs a number", a.name)),
                (Some(_), Some(_)) => fail(Rule::Signature, format!("{what} has two binding attributes")),
                (k, None) => kind = k,
            }
        }
        let indirect = p.ty.pointer || p.ty.reference;
        let space = p.ty.space.as_deref();
        match kind {
            None => fail(
                Rule::Signature,
                format!("{what} has no binding attribute; write [[buffer(n)]] or the like behind its name"),
            ),
            Some(ArgKind::Buffer(n)) => {
                if n > MAX_BUFFER {
                    fail(Rule::Buffers, format!("{what} is buffer {n}; Metal has 0 to {MAX_BUFFER}"));
                }
                if !indirect || !matches!(space, Some("device" | "constant")) {
                    fail(
                        Rule::Signature,
                        format!("{what} is a buffer and must be a device or constant pointer or reference"),
                    );
                }
            }
            Some(ArgKind::Threadgroup(n)) => {
                if !p.ty.pointer || space != Some("threadgroup") {
                    fail(Rule::Signature, format!("{what} must be a threadgroup pointer"));
                }
                if n > MAX_BUFFER {
                    fail(Rule::Signature, format!("{what}: threadgroup index {n} is over {MAX_BUFFER}"));
                }
            }
            Some(ArgKind::Builtin(b)) => {
                let scalar = matches!(p.ty.base.as_str(), "uint" | "ushort");
                let vector = matches!(p.ty.base.as_str(), "uint2" | "uint3" | "ushort2" | "ushort3");
                if indirect || !(scalar || vector && b.is_vector()) {
                    fail(
                        Rule::Signature,
                        format!("{what} has type {}, which this attribute does not give", p.ty.base),
                    );
                }
            }
        }
        if let Some(k) = kind {
            let repeated = !matches!(k, ArgKind::Builtin(_)) && used.contains(&k);
            if repeated {
                fail(Rule::Signature, format!("{what} has the index of an earlier parameter"));
            }
            used.push(k);
        }
        unit.functions[f].params[i].kind = kind;
    }
    let buffers = used.iter().filter(|k| matches!(k, ArgKind::Buffer(_))).count();
    if buffers > MAX_BUFFER as usize + 1 {
        findings.push(Finding::new(
            unit.functions[f].loc,
            Rule::Buffers,
            format!("kernel {name} has {buffers} buffers; Metal allows {}", MAX_BUFFER + 1),
        ));
    }
}

fn kernels(unit: &mut Unit, findings: &mut Vec<Finding>) {
    let mut out: Vec<Kernel> = Vec::new();
    for (i, f) in unit.functions.iter().enumerate() {
        if f.is_kernel && f.body.is_some() && f.template.is_empty() {
            let name = f.host_name.clone().unwrap_or_else(|| f.name.clone());
            out.push(Kernel {
                name,
                function: i,
                template_args: Vec::new(),
                arg_ranges: Vec::new(),
                loc: f.loc,
            });
        }
    }
    for inst in &unit.instantiations {
        let mut fail = |m: String| findings.push(Finding::new(inst.loc, Rule::Instantiation, m));
        let found =
            unit.functions.iter().position(|f| f.is_kernel && f.body.is_some() && f.name == inst.kernel);
        let Some(function) = found else {
            fail(format!("{:?} instantiates {}, which is not a kernel here", inst.host_name, inst.kernel));
            continue;
        };
        let template = &unit.functions[function].template;
        let mut args = inst.args.clone();
        for p in template.iter().skip(args.len()) {
            args.extend(p.default.clone());
        }
        if template.is_empty() || args.len() != template.len() {
            fail(format!(
                "{:?} gives {} template arguments; {} has {} parameters",
                inst.host_name,
                inst.args.len(),
                inst.kernel,
                template.len()
            ));
            continue;
        }
        out.push(Kernel {
            name: inst.host_name.clone(),
            function,
            template_args: args.iter().map(|r| unit.text(r.clone())).collect(),
            arg_ranges: args,
            loc: inst.loc,
        });
    }
    out.sort_by_key(|k| k.loc);
    let mut names = HashSet::new();
    for k in &out {
        if !names.insert(k.name.as_str()) {
            findings.push(Finding::new(
                k.loc,
                Rule::Instantiation,
                format!("two kernels have the host name {:?}", k.name),
            ));
        }
    }
    unit.kernels = out;
}

impl Unit {
    /// The environment in which a kernel's constant expressions are evaluated.
    pub(crate) fn kernel_env(&self, kernel: &Kernel) -> ConstEnv<'_> {
        let f = &self.functions[kernel.function];
        let bound = f.template.iter().zip(&kernel.arg_ranges).map(|(p, r)| Bound {
            name: p.name.clone(),
            is_type: p.is_type,
            value: r.clone(),
        });
        ConstEnv::with(self, bound.collect())
    }
}
