//! C++ for OpenCL, for type checking only.

use super::rewrite::Rewriter;
use super::soft::defined_queries;
use crate::parse::Unit;
use crate::parse::scan::close_angle;
use crate::parse::types::builtin_layout;

/// Options for clang-19, besides `-x clcpp -fsyntax-only`. Implicit conversions that lose precision are errors: Metal
/// refuses float to bfloat, and what it allows is better written out.
pub const STRICT_FLAGS: [&str; 9] = [
    "-cl-std=clc++2021",
    "-target",
    "x86_64-linux-gnu",
    "-cl-no-stdinc",
    "-Xclang",
    "-cl-single-precision-constant",
    "-Werror=implicit-float-conversion",
    "-Wno-null-dereference",
    "-Wno-unknown-attributes",
];

impl Unit {
    /// Translates the unit for `clang-19 -x clcpp -fsyntax-only` with [`STRICT_FLAGS`].
    ///
    /// Every instantiation is checked. Threadgroup variables become references to `__local` memory, since templates
    /// cannot be OpenCL kernels.
    pub fn strict_source(&self) -> String {
        let mut r = Rewriter::new(self);
        r.drop_attributes();
        address_spaces(&mut r);
        vector_constructors(&mut r);
        r.literals();
        for f in &self.functions {
            for (n, v) in f.tg_vars.iter().enumerate() {
                let first = n == 0 || f.tg_vars[n - 1].decl != v.decl;
                let ty = r.fragment(v.ty.range.clone());
                let dims: String = v.dims.iter().map(|d| format!("[{}]", r.fragment(d.clone()))).collect();
                let name = &v.name;
                let text = format!(
                    "typedef {ty} {name}_type{dims}; __local {name}_type& {name} = *(__local {name}_type*)0;"
                );
                let before = if first { String::new() } else { r.fragment(v.decl.start..v.decl.start + 1) };
                r.set_range(v.decl.clone(), format!("{before} {text}"));
            }
        }
        for c in &self.function_constants {
            r.set_range(c.item.clone(), format!("__constant const {} {} = 0;", c.ty, c.name));
        }
        defined_queries(&mut r, |_| "true".to_string());

        let mut out = super::prelude("strict.hpp");
        if self.has_tensors() {
            out.push_str(&super::prelude("strict_tensor.hpp"));
        }
        out.push_str("namespace metal {\n");
        out.push_str(&r.print(true));
        out.push_str("}\n");
        out
    }
}

fn address_spaces(r: &mut Rewriter<'_>) {
    let toks = &r.unit.tokens;
    for (i, t) in toks.iter().enumerate() {
        let near = |k: Option<usize>, text: &str| k.and_then(|k| toks.get(k)).is_some_and(|t| t.is(text));
        let has_const = near(i.checked_sub(1), "const") || near(Some(i + 1), "const");
        match &*t.text {
            _ if !t.is_ident() || r.is_replaced(i) => {}
            "device" => r.set(i, "__global"),
            "threadgroup" => r.set(i, "__local"),
            "thread" => r.set(i, "__private"),
            "constant" => r.set(i, if has_const { "__constant" } else { "__constant const" }),
            "kernel" => r.set(i, ""),
            _ => {}
        }
    }
}

/// `float4(...)` is a cast in OpenCL; a function template counts the parts instead.
fn vector_constructors(r: &mut Rewriter<'_>) {
    let toks = &r.unit.tokens;
    for i in 0..toks.len() {
        let t = &toks[i];
        let named = t.is_ident()
            && !t.text.starts_with("packed_")
            && t.text.ends_with(['2', '3', '4'])
            && (builtin_layout(&t.text).is_some());
        if named && toks.get(i + 1).is_some_and(|n| n.is("(")) && !toks.get(i + 2).is_some_and(|n| n.is("*"))
        {
            r.set(i, format!("lily_vector<{}>", t.text));
        } else if t.is("vec")
            && toks.get(i + 1).is_some_and(|n| n.is("<"))
            && let Some(close) = close_angle(toks, &r.unit.brackets, i + 1, toks.len())
            && toks.get(close + 1).is_some_and(|n| n.is("("))
        {
            r.set(i, "lily_vector<vec");
            r.add_after(close, ">");
        }
    }
}
