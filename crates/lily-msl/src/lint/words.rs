//! Words that Metal does not have.

use crate::diag::{Finding, Rule};
use crate::parse::Unit;

pub(super) fn check(unit: &Unit, findings: &mut Vec<Finding>) {
    let toks = &unit.tokens;
    for (i, t) in toks.iter().enumerate() {
        if !t.is_ident() {
            continue;
        }
        let next = |text: &str| toks.get(i + 1).is_some_and(|n| n.is(text));
        let (rule, message) = match &*t.text {
            "goto" => (Rule::Goto, "Metal has no goto; use a loop or a flag".to_string()),
            "double" => (Rule::Double, "Metal has no double; use float".to_string()),
            "atomic_ulong" | "atomic_long" => (
                Rule::Atomic64,
                format!("`{}`: 64-bit atomics exist on few Apple GPUs; use two 32-bit ones", t.text),
            ),
            "atomic"
                if next("<")
                    && toks.get(i + 2).is_some_and(|n| {
                        ["ulong", "long", "uint64_t", "int64_t", "size_t"].iter().any(|w| n.is(w))
                    }) =>
            {
                (
                    Rule::Atomic64,
                    format!(
                        "`atomic<{}>`: 64-bit atomics exist on few Apple GPUs; use two 32-bit ones",
                        toks[i + 2].text
                    ),
                )
            }
            "try" | "throw" | "catch" | "new" | "delete" | "virtual" | "dynamic_cast" | "typeid" | "asm"
            | "__asm__" | "thread_local" | "co_await" | "co_yield" | "co_return" => {
                (Rule::NotMetal, format!("`{}` is not Metal", t.text))
            }
            "std" if next("::") => (Rule::NotMetal, "`std::` is not Metal; use metal::".to_string()),
            _ => continue,
        };
        findings.push(Finding::new(t.loc, rule, message));
    }
}
