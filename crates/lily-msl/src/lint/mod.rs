//! Checks that need no type system, each with file and line. Types are the business of the strict form
//! ([`crate::emit`]) and of Metal's own compiler.

mod pointers;
mod recursion;
mod uniformity;
mod words;

use std::collections::HashSet;

use crate::diag::{Diagnostics, Finding, Rule};
use crate::parse::Unit;

/// Threadgroup memory of every Apple GPU, in bytes.
pub const MAX_THREADGROUP_BYTES: u32 = 32 * 1024;

impl Unit {
    /// Runs every check; `Err` holds all findings, sorted by place.
    pub fn lint(&self) -> Result<(), Diagnostics> {
        let mut findings = Vec::new();
        words::check(self, &mut findings);
        pointers::check(self, &mut findings);
        recursion::check(self, &mut findings);
        threadgroup_memory(self, &mut findings);
        uniformity::check(self, &mut findings);
        if findings.is_empty() { Ok(()) } else { Err(self.diagnostics(findings)) }
    }
}

/// Threadgroup variables stand at the outermost level of a kernel and fit, for every instantiation.
fn threadgroup_memory(unit: &Unit, findings: &mut Vec<Finding>) {
    for f in &unit.functions {
        let Some(body) = &f.body else { continue };
        for v in &f.tg_vars {
            if !f.is_kernel {
                findings.push(Finding::new(
                    v.loc,
                    Rule::ThreadgroupMemory,
                    format!(
                        "threadgroup variable `{}` in function {}, which is no kernel; declare it in the kernel and pass a pointer",
                        v.name, f.name
                    ),
                ));
            }
            let nested = (body.start..v.decl.start)
                .any(|i| unit.tokens[i].is("{") && unit.brackets.of(i) > v.decl.start);
            if nested {
                findings.push(Finding::new(
                    v.loc,
                    Rule::ThreadgroupMemory,
                    format!("threadgroup variable `{}` in an inner block; declare it at the kernel's outermost level", v.name),
                ));
            }
        }
    }
    let mut seen = HashSet::new();
    for k in &unit.kernels {
        match unit.tg_size(&unit.functions[k.function], &unit.kernel_env(k)) {
            Ok(n) if n > MAX_THREADGROUP_BYTES => findings.push(Finding::new(
                k.loc,
                Rule::ThreadgroupMemory,
                format!(
                    "kernel {} has {n} bytes of threadgroup memory; the limit is {MAX_THREADGROUP_BYTES}",
                    k.name
                ),
            )),
            Ok(_) => {}
            Err(e) if seen.insert(e.message.clone()) => findings.push(e),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
