//! C++17 for the soft device.

use std::fmt::Write;

use super::rewrite::Rewriter;
use crate::diag::Loc;
use crate::parse::{ArgKind, Builtin, Param, Unit};

/// C++ of a unit for the soft device, and what its numbers mean.
#[derive(Debug, Clone)]
pub struct SoftSource {
    /// The translation unit; it needs `soft_rt.cpp` beside it.
    pub cpp: String,
    /// Host names, by the number the runtime knows a kernel by.
    pub kernels: Vec<String>,
    /// Collectives, by the number the runtime reports; number 0 is no place.
    pub sites: Vec<Site>,
}

/// A collective operation in the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The operation.
    pub name: String,
    /// File of the source.
    pub file: String,
    /// 1-based line.
    pub line: u32,
}

impl Unit {
    /// Translates the unit for the soft device.
    pub fn soft_source(&self) -> SoftSource {
        let mut r = Rewriter::new(self);
        r.drop_attributes();
        r.drop_instantiations();
        r.literals();
        threadgroup_variables(&mut r);
        function_constants(&mut r);
        let sites = collectives(&mut r);
        r.drop_address_spaces();
        inline_everything(&mut r);
        r.drop_duplicate_overloads();

        let mut cpp = super::prelude("soft.hpp");
        if self.has_tensors() {
            cpp.push_str(&super::prelude("tensor.hpp"));
        }
        cpp.push_str("namespace metal {\n");
        cpp.push_str(&r.print(false));
        cpp.push_str("\n#line 1 \"<kernel table>\"\n");
        for (n, k) in self.kernels.iter().enumerate() {
            let f = &self.functions[k.function];
            let args: Vec<String> = f.params.iter().map(argument).collect();
            let _ = writeln!(
                cpp,
                "static void lily_thunk_{n}(const LilyArgs* a) {{ const LilyThread* t = lily_thread(); (void)a; (void)t; {}({}); }}",
                r.callable(k),
                args.join(", ")
            );
        }
        cpp.push_str("static const LilyKernel lily_kernels[] = {\n");
        for (n, k) in self.kernels.iter().enumerate() {
            let _ = writeln!(cpp, "  {{{:?}, lily_thunk_{n}}},", k.name);
        }
        cpp.push_str("  {0, 0}};\nstatic const LilyConstant lily_constants[] = {\n");
        for c in &self.function_constants {
            let name = qualified(&c.scope, &c.name);
            let _ = writeln!(cpp, "  {{{}, (void*)&{name}, sizeof({name}), &{name}_defined}},", c.index);
        }
        let _ = writeln!(
            cpp,
            "  {{0, 0, 0, 0}}}};\n}}\nextern \"C\" const LilyTable lily_table = {{metal::lily_kernels, {}, metal::lily_constants, {}}};",
            self.kernels.len(),
            self.function_constants.len()
        );
        SoftSource { cpp, kernels: self.kernels.iter().map(|k| k.name.clone()).collect(), sites }
    }

    fn site(&self, name: &str, loc: Loc) -> Site {
        Site { name: name.to_string(), file: self.files[loc.file as usize].clone(), line: loc.line }
    }
}

fn qualified(scope: &[String], name: &str) -> String {
    scope.iter().map(|s| format!("{s}::")).collect::<String>() + name
}

/// The argument a thunk passes for a parameter.
fn argument(p: &Param) -> String {
    let three = |field: &str| format!("position<{}>(t->{field}[0], t->{field}[1], t->{field}[2])", p.ty.base);
    let product = |a: &str, b: &str, c: Option<&str>| {
        let parts: Vec<String> = (0..3)
            .map(|i| match c {
                Some(c) => format!("t->{a}[{i}] * t->{b}[{i}] + t->{c}[{i}]"),
                None => format!("t->{a}[{i}] * t->{b}[{i}]"),
            })
            .collect();
        format!("position<{}>({})", p.ty.base, parts.join(", "))
    };
    let wrap = if p.ty.reference { "Reference" } else { "Pointer" };
    match p.kind {
        Some(ArgKind::Buffer(n)) => format!("{wrap}{{a->buffer[{n}]}}"),
        Some(ArgKind::Threadgroup(n)) => format!("{wrap}{{a->threadgroup[{n}]}}"),
        Some(ArgKind::Builtin(b)) => match b {
            Builtin::ThreadPositionInGrid => {
                product("group_position", "group_size", Some("position_in_group"))
            }
            Builtin::ThreadPositionInThreadgroup => three("position_in_group"),
            Builtin::ThreadgroupPositionInGrid => three("group_position"),
            Builtin::ThreadsPerThreadgroup => three("group_size"),
            Builtin::ThreadgroupsPerGrid => three("grid_groups"),
            Builtin::ThreadsPerGrid => product("grid_groups", "group_size", None),
            Builtin::SimdgroupIndexInThreadgroup => "t->simdgroup".into(),
            Builtin::ThreadIndexInSimdgroup => "t->lane".into(),
            Builtin::ThreadIndexInThreadgroup => "t->index".into(),
            Builtin::SimdgroupsPerThreadgroup => "t->simdgroups".into(),
            Builtin::ThreadsPerSimdgroup => "32".into(),
        },
        None => "{}".into(),
    }
}

/// `threadgroup T a[N], b;` asks the runtime for memory; the key tells variables and instantiations apart.
fn threadgroup_variables(r: &mut Rewriter<'_>) {
    let unit = r.unit;
    for f in &unit.functions {
        for (n, v) in f.tg_vars.iter().enumerate() {
            let ty = r.fragment(v.ty.range.clone());
            let dims: String = v.dims.iter().map(|d| format!("[{}]", r.fragment(d.clone()))).collect();
            let name = &v.name;
            let text = format!(
                "static char {name}_key; typedef {ty} {name}_type{dims}; {name}_type& {name} = *({name}_type*)lily_threadgroup_variable(&{name}_key, sizeof({name}_type), {name:?});"
            );
            // The variables of one declaration share its tokens; the `;` that follows ends the last of them.
            if n > 0 && f.tg_vars[n - 1].decl == v.decl {
                let mut both = r.fragment(v.decl.start..v.decl.start + 1);
                both.push(' ');
                both.push_str(&text);
                r.set(v.decl.start, both);
            } else {
                r.set_range(v.decl.clone(), text);
            }
        }
    }
}

/// Helpers are always inlined, as on a GPU. This also keeps the checks complete: GCC's instrumentation does not see
/// a structure that a call reads from memory as its argument, but does see the copy that inlining makes of it.
fn inline_everything(r: &mut Rewriter<'_>) {
    for f in &r.unit.functions {
        if f.is_kernel || f.body.is_none() {
            continue;
        }
        let start = f.signature.start;
        let words = &r.unit.tokens[f.signature.clone()];
        let inline = if words.iter().any(|t| t.is("inline")) { "" } else { "inline " };
        let first = r.fragment(start..start + 1);
        r.set(start, format!("__attribute__((always_inline)) {inline}{first}"));
    }
}

/// A function constant becomes a variable that is set before each dispatch.
fn function_constants(r: &mut Rewriter<'_>) {
    for c in &r.unit.function_constants {
        r.set_range(
            c.item.clone(),
            format!("static {ty} {n}; static bool {n}_defined;", ty = c.ty, n = c.name),
        );
    }
    defined_queries(r, |name| format!("{name}_defined"));
}

/// Replaces `is_function_constant_defined(NAME)`.
pub(super) fn defined_queries(r: &mut Rewriter<'_>, value: impl Fn(&str) -> String) {
    let toks = &r.unit.tokens;
    for i in 0..toks.len() {
        if toks[i].is("is_function_constant_defined") && toks.get(i + 1).is_some_and(|t| t.is("(")) {
            let close = r.unit.brackets.of(i + 1);
            let text = value(&r.unit.text(i + 2..close));
            r.set_range(i..close + 1, text);
        }
    }
}

/// Gives every collective call its number.
fn collectives(r: &mut Rewriter<'_>) -> Vec<Site> {
    let mut sites = vec![Site { name: String::new(), file: String::new(), line: 0 }];
    for (at, open) in r.collective_calls() {
        let t = &r.unit.tokens[at];
        r.set(at, format!("{}_at", t.text));
        let empty = r.unit.brackets.of(open) == open + 1;
        r.add_after(open, format!("Site{{{}}}{}", sites.len(), if empty { "" } else { ", " }));
        sites.push(r.unit.site(&t.text, t.loc));
    }
    sites
}
