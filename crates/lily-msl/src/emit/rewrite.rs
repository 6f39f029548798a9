//! The token stream with words replaced, printed with line marks.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::ops::Range;

use crate::lexer::TokenKind;
use crate::parse::scan::{ADDRESS_SPACES, attribute_at, is_word};
use crate::parse::{Function, Kernel, Unit};

/// Names of Metal's collective operations.
pub(super) const COLLECTIVES: [&str; 36] = [
    "threadgroup_barrier",
    "simdgroup_barrier",
    "simd_sum",
    "simd_product",
    "simd_max",
    "simd_min",
    "simd_and",
    "simd_or",
    "simd_xor",
    "simd_prefix_inclusive_sum",
    "simd_prefix_exclusive_sum",
    "simd_prefix_inclusive_product",
    "simd_prefix_exclusive_product",
    "simd_shuffle",
    "simd_broadcast",
    "simd_broadcast_first",
    "simd_shuffle_xor",
    "simd_shuffle_up",
    "simd_shuffle_down",
    "simd_shuffle_rotate_up",
    "simd_shuffle_rotate_down",
    "simd_shuffle_and_fill_up",
    "simd_shuffle_and_fill_down",
    "simd_ballot",
    "simd_any",
    "simd_all",
    "simd_is_first",
    "quad_sum",
    "quad_max",
    "quad_min",
    "quad_shuffle_xor",
    "quad_broadcast",
    "simdgroup_load",
    "simdgroup_store",
    "simdgroup_multiply",
    "simdgroup_multiply_accumulate",
];

pub(super) struct Rewriter<'u> {
    pub unit: &'u Unit,
    replace: HashMap<usize, String>,
    /// Text printed behind a token.
    after: HashMap<usize, String>,
}

impl<'u> Rewriter<'u> {
    pub fn new(unit: &'u Unit) -> Self {
        Rewriter { unit, replace: HashMap::new(), after: HashMap::new() }
    }

    pub fn set(&mut self, i: usize, text: impl Into<String>) {
        self.replace.insert(i, text.into());
    }

    pub fn is_replaced(&self, i: usize) -> bool {
        self.replace.contains_key(&i)
    }

    pub fn drop(&mut self, range: Range<usize>) {
        for i in range {
            self.set(i, "");
        }
    }

    /// Replaces a whole range by one text.
    pub fn set_range(&mut self, range: Range<usize>, text: impl Into<String>) {
        let first = range.start;
        self.drop(range);
        self.set(first, text);
    }

    pub fn add_after(&mut self, i: usize, text: impl Into<String>) {
        self.after.insert(i, text.into());
    }

    /// Attributes go: `[[...]]`.
    pub fn drop_attributes(&mut self) {
        let toks = &self.unit.tokens;
        let mut i = 0;
        while i < toks.len() {
            if attribute_at(toks, i) {
                let close = self.unit.brackets.of(i);
                self.drop(i..close + 1);
                i = close;
            }
            i += 1;
        }
    }

    /// Instantiations go: kernels are instantiated by the thunks that call them.
    pub fn drop_instantiations(&mut self) {
        for inst in &self.unit.instantiations {
            self.drop(inst.item.clone());
        }
    }

    /// Address spaces go; `constant` becomes const.
    pub fn drop_address_spaces(&mut self) {
        let toks = &self.unit.tokens;
        for (i, t) in toks.iter().enumerate() {
            if !t.is_ident() || self.replace.contains_key(&i) {
                continue;
            }
            let near = |k: Option<usize>, text: &str| k.and_then(|k| toks.get(k)).is_some_and(|t| t.is(text));
            let (prev, next) = (i.checked_sub(1), Some(i + 1));
            match &*t.text {
                "device" | "threadgroup" | "thread" | "kernel" => self.set(i, ""),
                "constant" => {
                    let trailing =
                        (near(prev, ")") || near(prev, "const")) && (near(next, "{") || near(next, ";"));
                    let doubled = near(prev, "const") || near(next, "const");
                    self.set(i, if trailing || doubled { "" } else { "const" });
                }
                _ => {}
            }
        }
    }

    /// Floating literals get the type they have in Metal: float, half (`h`) or bfloat (`bf`).
    pub fn literals(&mut self) {
        for (i, t) in self.unit.tokens.iter().enumerate() {
            if t.kind != TokenKind::Number || self.replace.contains_key(&i) {
                continue;
            }
            let lower = t.text.to_ascii_lowercase();
            if lower.starts_with("0x") || lower.starts_with("0b") {
                continue;
            }
            if let Some(digits) = lower.strip_suffix("bf") {
                self.set(i, format!("bfloat({}f)", with_point(digits)));
            } else if let Some(digits) = lower.strip_suffix('h') {
                self.set(i, format!("half({}f)", with_point(digits)));
            } else if (lower.contains('.') || lower.contains('e')) && !lower.ends_with(['f', 'l']) {
                self.set(i, format!("{}f", t.text));
            }
        }
    }

    /// Functions that differ from an earlier one in address spaces only are one function without them.
    pub fn drop_duplicate_overloads(&mut self) {
        let mut seen = HashSet::new();
        for f in &self.unit.functions {
            let mut key = f.scope.join("::");
            key.push(if f.body.is_some() { '{' } else { ';' });
            let mut i = f.item.start;
            while i < f.signature.end {
                let t = &self.unit.tokens[i];
                if attribute_at(&self.unit.tokens, i) {
                    i = self.unit.brackets.of(i);
                } else if t.is("constant") {
                    key.push_str("const ");
                } else if !(ADDRESS_SPACES.iter().any(|s| t.is(s)) || self.is_param_name(f, i)) {
                    key.push_str(&t.text);
                    key.push(' ');
                }
                i += 1;
            }
            if !seen.insert(key) {
                self.drop(f.item.clone());
            }
        }
    }

    fn is_param_name(&self, f: &Function, i: usize) -> bool {
        let t = &self.unit.tokens[i];
        f.params.iter().any(|p| p.range.contains(&i) && *p.name == *t.text && p.ty.base != p.name)
    }

    /// Where calls of collectives stand: (name token, the `(`).
    pub fn collective_calls(&self) -> Vec<(usize, usize)> {
        let toks = &self.unit.tokens;
        let own: HashSet<&str> = self.unit.functions.iter().map(|f| f.name.as_str()).collect();
        let calls = self.unit.calls(0..toks.len());
        calls
            .iter()
            .filter(|c| {
                let free = COLLECTIVES.contains(&c.name.as_str()) && !own.contains(c.name.as_str());
                free || self.unit.is_tensor_operation(c)
            })
            .filter_map(|c| {
                let from = c.template_args.as_ref().map_or(c.at + 1, |r| r.end + 1);
                toks[from].is("(").then_some((c.at, from))
            })
            .collect()
    }

    /// The name by which a kernel is called from the unit's outermost scope, template arguments included.
    pub fn callable(&self, k: &Kernel) -> String {
        let f = &self.unit.functions[k.function];
        let mut name = f.scope.iter().map(|s| format!("{s}::")).collect::<String>();
        name.push_str(&f.name);
        if !f.template.is_empty() {
            let _ = write!(name, "<{}>", k.template_args.join(", "));
        }
        name
    }

    /// A range as printed, without line marks.
    pub fn fragment(&self, range: Range<usize>) -> String {
        let mut out = String::new();
        for i in range {
            self.token(i, &mut out);
        }
        out.trim().to_string()
    }

    fn token(&self, i: usize, out: &mut String) {
        let t = &self.unit.tokens[i];
        let text = self.replace.get(&i).map_or(&*t.text, String::as_str);
        if !text.is_empty() {
            let word = |c: char| c.is_alphanumeric() || c == '_';
            let spaced = t.space || (i > 0 && is_word(&self.unit.tokens[i - 1]) && is_word(t));
            // A replaced word may have become one that would run into its neighbour.
            let collides = out.ends_with(word) && text.starts_with(word);
            if collides || spaced && !out.is_empty() && !out.ends_with(['\n', ' ']) {
                out.push(' ');
            }
            out.push_str(text);
        }
        if let Some(a) = self.after.get(&i) {
            out.push_str(a);
        }
    }

    /// The whole unit, with `#line` wherever the line is not the one expected.
    pub fn print(&self, keep_pragmas: bool) -> String {
        let mut out = String::new();
        let mut at = (u32::MAX, 0);
        for (i, t) in self.unit.tokens.iter().enumerate() {
            let gone = self.replace.get(&i).is_some_and(|r| r.is_empty()) && !self.after.contains_key(&i);
            if gone || (t.kind == TokenKind::Pragma && !keep_pragmas) {
                continue;
            }
            if at != (t.loc.file, t.loc.line) {
                let near = at.0 == t.loc.file && t.loc.line > at.1 && t.loc.line - at.1 < 4;
                if near {
                    out.push_str(&"\n".repeat((t.loc.line - at.1) as usize));
                } else {
                    let file = &self.unit.files[t.loc.file as usize];
                    let _ = write!(out, "\n#line {} \"{file}\"\n", t.loc.line);
                }
                at = (t.loc.file, t.loc.line);
            }
            self.token(i, &mut out);
            if t.kind == TokenKind::Pragma {
                out.push('\n');
                at.1 += 1;
            }
        }
        out.push('\n');
        out
    }
}

/// `2` as `2.0`, so that `f` may follow.
fn with_point(digits: &str) -> String {
    if digits.contains('.') || digits.contains('e') { digits.to_string() } else { format!("{digits}.0") }
}
