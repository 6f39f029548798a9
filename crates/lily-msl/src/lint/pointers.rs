//! Every pointer and reference says where it points: `device`, `constant`, `threadgroup` or `thread`.
//!
//! A `*` or `&` belongs to a declarator, not to an expression, when a type stands before it: a type of Metal, of
//! this source, or a template's type parameter.

use std::collections::HashSet;

use crate::diag::{Finding, Rule};
use crate::parse::Unit;
use crate::parse::scan::ADDRESS_SPACES;

pub(super) fn check(unit: &Unit, findings: &mut Vec<Finding>) {
    let types = type_names(unit);
    let toks = &unit.tokens;
    for i in 1..toks.len() {
        if !(toks[i].is("*") || toks[i].is("&") || toks[i].is("&&")) {
            continue;
        }
        if !(ends_type(unit, &types, i - 1)
            || toks[i].is("*") && toks[i - 1].is("*") && declarator_star(unit, &types, i - 1))
        {
            continue;
        }
        let (start, has_space) = specifiers(unit, i);
        if !has_space {
            let mut text = unit.text(start..i + 1);
            if start == i {
                text = format!("{}{}", toks[i - 1].text, toks[i].text);
            }
            findings.push(Finding::new(
                toks[i].loc,
                Rule::AddressSpace,
                format!("`{text}` has no address space; write device, constant, threadgroup or thread"),
            ));
        }
    }
}

fn type_names(unit: &Unit) -> HashSet<String> {
    let mut names: HashSet<String> = [
        "void",
        "auto",
        "bool",
        "char",
        "uchar",
        "short",
        "ushort",
        "int",
        "uint",
        "long",
        "ulong",
        "half",
        "bfloat",
        "float",
        "size_t",
        "ptrdiff_t",
        "int8_t",
        "uint8_t",
        "int16_t",
        "uint16_t",
        "int32_t",
        "uint32_t",
        "int64_t",
        "uint64_t",
        "unsigned",
        "signed",
        "atomic_int",
        "atomic_uint",
        "atomic_float",
        "atomic_bool",
        "vec",
        "atomic",
        "array",
        "matrix",
        "simdgroup_matrix",
        "packed_vec",
        "simdgroup_float8x8",
        "simdgroup_half8x8",
        "simdgroup_bfloat8x8",
    ]
    .iter()
    .map(|s| s.to_string())
    .collect();
    for e in [
        "bool", "char", "uchar", "short", "ushort", "half", "bfloat", "int", "uint", "float", "long", "ulong",
    ] {
        for n in 2..=4 {
            names.insert(format!("{e}{n}"));
            names.insert(format!("packed_{e}{n}"));
        }
    }
    names.extend(unit.structs.iter().map(|s| s.name.clone()));
    names.extend(unit.aliases.iter().map(|a| a.name.clone()));
    for f in &unit.functions {
        names.extend(f.template.iter().filter(|p| p.is_type).map(|p| p.name.clone()));
    }
    // Type parameters of structure templates: `typename T` and `class T`, wherever they stand.
    for w in unit.tokens.windows(2) {
        if (w[0].is("typename") || w[0].is("class")) && w[1].is_ident() {
            names.insert(w[1].text.to_string());
        }
    }
    names.remove("");
    names
}

/// Whether a type ends at token `i`.
fn ends_type(unit: &Unit, types: &HashSet<String>, i: usize) -> bool {
    let toks = &unit.tokens;
    let t = &toks[i];
    if t.is("const") || t.is("volatile") {
        return true;
    }
    let head = if t.is(">") {
        let Some(open) = open_angle(unit, i) else { return false };
        match open.checked_sub(1) {
            Some(h) => h,
            None => return false,
        }
    } else {
        i
    };
    let member = head > 0 && (toks[head - 1].is(".") || toks[head - 1].is("->"));
    toks[head].is_ident() && types.contains(&*toks[head].text) && !member
}

/// Whether the `*` at `i` belongs to a declarator.
fn declarator_star(unit: &Unit, types: &HashSet<String>, i: usize) -> bool {
    i > 0
        && (ends_type(unit, types, i - 1)
            || ADDRESS_SPACES.iter().any(|s| unit.tokens[i - 1].is(s))
            || unit.tokens[i - 1].is("*") && declarator_star(unit, types, i - 1))
}

/// The `<` that the `>` at `close` closes.
fn open_angle(unit: &Unit, close: usize) -> Option<usize> {
    let (mut depth, mut j) = (0usize, close);
    loop {
        let t = &unit.tokens[j];
        if t.is(">") {
            depth += 1;
        } else if t.is("<") {
            depth -= 1;
            if depth == 0 {
                return Some(j);
            }
        } else if t.is(")") || t.is("]") {
            j = unit.brackets.of(j);
        } else if t.is(";") || t.is("{") || t.is("}") || t.is("(") || t.is("=") {
            return None;
        }
        j = j.checked_sub(1)?;
    }
}

/// Walks back from the `*` at `i` over the specifiers before it: where they start, and whether one is an
/// address space.
fn specifiers(unit: &Unit, i: usize) -> (usize, bool) {
    let toks = &unit.tokens;
    let (mut start, mut found) = (i, false);
    while start > 0 {
        let t = &toks[start - 1];
        if t.is_ident() {
            if matches!(&*t.text, "return" | "case" | "else" | "sizeof" | "operator") {
                break;
            }
            found |= ADDRESS_SPACES.iter().any(|s| t.is(s));
            start -= 1;
        } else if t.is("::") {
            start -= 1;
        } else if t.is(">") {
            match open_angle(unit, start - 1) {
                // `template <...> T* f()`: the parameter list is no part of the type.
                Some(o) if o > 0 && toks[o - 1].is_ident() && !toks[o - 1].is("template") => start = o,
                _ => break,
            }
        } else {
            break;
        }
    }
    (start, found)
}
