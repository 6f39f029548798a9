//! Types as far as binding needs them: address space, constness, indirection, and the layout of scalars,
//! vectors and plain structures (Metal Shading Language specification, sections 2.1, 2.2 and 2.14).

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::constants::ConstEnv;
use super::scan::{ADDRESS_SPACES, attribute_at, close_angle};
use super::{Brackets, Unit};
use crate::lexer::{Token, TokenKind};

/// A type as written: what is pointed to, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TypeRef {
    /// The type without address space, constness and `*` or `&`; `uint4`, `vec<T, 4>`, `Params`.
    pub base: String,
    /// `device`, `constant`, `threadgroup` or `thread`, where written.
    pub space: Option<String>,
    /// Whether what is pointed or referred to is const (`constant` is).
    pub is_const: bool,
    /// Whether it is a pointer.
    pub pointer: bool,
    /// Whether it is a reference.
    pub reference: bool,
    /// Tokens of the base type.
    pub(crate) range: Range<usize>,
}

/// Size and alignment of a type, in bytes, and the members of a structure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes, padding included.
    pub size: u32,
    /// Bytes.
    pub align: u32,
    /// Members of a structure, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Field>,
}

/// A member of a structure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its element type.
    #[serde(rename = "type")]
    pub ty: String,
    /// Bytes from the structure's start.
    pub offset: u32,
    /// Bytes, the whole array where it is one.
    pub size: u32,
}

/// Reads a declarator's type from its tokens `range` (no attributes, no name behind it).
pub(super) fn type_ref(toks: &[Token], brackets: &Brackets, range: Range<usize>) -> TypeRef {
    let mut t = TypeRef { range: range.start..range.start, ..TypeRef::default() };
    let mut i = range.start;
    let mut base: Vec<Range<usize>> = Vec::new();
    while i < range.end {
        let tok = &toks[i];
        let text = &*tok.text;
        if attribute_at(toks, i) || tok.is("(") {
            i = brackets.of(i);
        } else if tok.is("*") {
            t.pointer = true;
        } else if tok.is("&") || tok.is("&&") {
            t.reference = true;
        } else if text == "const" {
            // `T* const` makes the pointer const, not what it points to.
            t.is_const |= !t.pointer;
        } else if ADDRESS_SPACES.contains(&text) {
            t.space = Some(text.to_string());
            t.is_const |= text == "constant";
        } else if matches!(
            text,
            "volatile" | "static" | "inline" | "constexpr" | "struct" | "typename" | "restrict"
        ) {
            t.is_const |= text == "constexpr";
        } else if tok.is_ident() || tok.is("::") {
            base.push(i..i + 1);
            if toks.get(i + 1).is_some_and(|n| n.is("<"))
                && let Some(c) = close_angle(toks, brackets, i + 1, range.end)
            {
                base.push(i + 1..c + 1);
                i = c;
            }
        }
        i += 1;
    }
    if let (Some(a), Some(b)) = (base.first(), base.last()) {
        t.range = a.start..b.end;
        t.base = base.iter().map(|r| super::scan::text(&toks[r.clone()])).collect::<Vec<_>>().join(" ");
        t.base = t.base.replace(" ::", "::").replace(":: ", "::").replace(" <", "<");
        if let Some(short) = t.base.strip_prefix("metal::") {
            t.base = short.to_string();
        }
    }
    t
}

/// Size and alignment of a scalar or vector type of Metal, by name.
pub(crate) fn builtin_layout(name: &str) -> Option<(u32, u32)> {
    let scalar = |n: &str| -> Option<u32> {
        Some(match n {
            "bool" | "char" | "uchar" | "int8_t" | "uint8_t" => 1,
            "short" | "ushort" | "half" | "bfloat" | "int16_t" | "uint16_t" => 2,
            "int" | "uint" | "float" | "int32_t" | "uint32_t" | "atomic_int" | "atomic_uint"
            | "atomic_bool" | "atomic_float" => 4,
            "long" | "ulong" | "int64_t" | "uint64_t" | "size_t" | "ptrdiff_t" => 8,
            _ => return None,
        })
    };
    if let Some(s) = scalar(name) {
        return Some((s, s));
    }
    let (packed, vector) = match name.strip_prefix("packed_") {
        Some(v) => (true, v),
        None => (false, name),
    };
    let n = vector.chars().last()?.to_digit(10).filter(|n| (2..=4).contains(n))?;
    let element = &vector[..vector.len() - 1];
    if !matches!(
        element,
        "bool"
            | "char"
            | "uchar"
            | "short"
            | "ushort"
            | "half"
            | "bfloat"
            | "int"
            | "uint"
            | "float"
            | "long"
            | "ulong"
    ) {
        return None;
    }
    let s = scalar(element)?;
    if packed {
        Some((s * n, s))
    } else {
        let size = s * if n == 3 { 4 } else { n };
        Some((size, size))
    }
}

impl Unit {
    /// The layout of a type named by tokens, with template arguments from `env`. `None` where it is not known.
    pub(crate) fn layout(&self, range: Range<usize>, env: &ConstEnv<'_>) -> Option<Layout> {
        self.layout_deep(range, env, 0)
    }

    fn layout_deep(&self, range: Range<usize>, env: &ConstEnv<'_>, depth: u32) -> Option<Layout> {
        if depth > 16 || range.is_empty() {
            return None;
        }
        let skip = |t: &Token| {
            matches!(&*t.text, "const" | "volatile" | "metal" | "::" | "typename" | "unsigned" | "signed")
                && t.kind != TokenKind::Str
        };
        let unsigned = self.tokens[range.clone()].iter().any(|t| t.is("unsigned"));
        let toks: Vec<usize> = range.clone().filter(|&i| !skip(&self.tokens[i])).collect();
        let Some(&first) = toks.first() else {
            return unsigned.then_some(Layout { size: 4, align: 4, fields: Vec::new() });
        };
        let name = &*self.tokens[first].text;
        if toks.len() > 1 && self.tokens[toks[1]].is("<") {
            return self.template_layout(name, toks[1], env, depth);
        }
        if toks.len() != 1 {
            return None;
        }
        if let Some((size, align)) = builtin_layout(name) {
            return Some(Layout { size, align, fields: Vec::new() });
        }
        if let Some(arg) = env.type_argument(name) {
            return self.layout_deep(arg, &ConstEnv::new(self), depth + 1);
        }
        if let Some(alias) = self.aliases.iter().find(|a| a.name == name) {
            return self.layout_deep(alias.target.clone()?, env, depth + 1);
        }
        let s = self.structs.iter().find(|s| s.name == name && !s.is_template)?;
        let (mut offset, mut align) = (0u32, 1u32);
        let mut fields = Vec::new();
        for m in &s.members {
            let l = if m.ty.pointer || m.ty.reference {
                Layout { size: 8, align: 8, fields: Vec::new() }
            } else {
                self.layout_deep(m.ty.range.clone(), env, depth + 1)?
            };
            let mut count = 1u32;
            for d in &m.dims {
                count = count.checked_mul(u32::try_from(env.eval(d.clone()).ok()?).ok()?)?;
            }
            offset = offset.checked_next_multiple_of(l.align)?;
            let size = l.size.checked_mul(count)?;
            fields.push(Field { name: m.name.clone(), ty: m.ty.base.clone(), offset, size });
            offset = offset.checked_add(size)?;
            align = align.max(l.align);
        }
        Some(Layout { size: offset.checked_next_multiple_of(align)?.max(1), align, fields })
    }

    /// `vec<T, N>`, `atomic<T>` and `array<T, N>`.
    fn template_layout(&self, name: &str, open: usize, env: &ConstEnv<'_>, depth: u32) -> Option<Layout> {
        let close = close_angle(&self.tokens, &self.brackets, open, self.tokens.len())?;
        let args = super::scan::split_commas(&self.tokens, &self.brackets, open + 1..close);
        let element = self.layout_deep(args.first()?.clone(), env, depth + 1)?;
        let count = |i: usize| u32::try_from(env.eval(args.get(i)?.clone()).ok()?).ok();
        let (size, align) = match name {
            "vec" => match count(1)? {
                n @ (2 | 4) => (element.size * n, element.size * n),
                3 => (element.size * 4, element.size * 4),
                _ => return None,
            },
            "packed_vec" => (element.size.checked_mul(count(1)?)?, element.align),
            "atomic" => (element.size, element.align),
            "array" => (element.size.checked_mul(count(1)?)?, element.align),
            _ => return None,
        };
        Some(Layout { size, align, fields: Vec::new() })
    }

    /// Bytes of threadgroup memory that a function's own variables take, each aligned to 16 bytes.
    pub(crate) fn tg_size(
        &self,
        f: &super::Function,
        env: &ConstEnv<'_>,
    ) -> Result<u32, crate::diag::Finding> {
        let mut total = 0u32;
        for v in &f.tg_vars {
            let fail = |m: String| {
                let text = format!("size of threadgroup variable `{}`: {m}", v.name);
                crate::diag::Finding::new(v.loc, crate::diag::Rule::ThreadgroupMemory, text)
            };
            let l = self
                .layout(v.ty.range.clone(), env)
                .ok_or_else(|| fail(format!("the size of {} is not known", v.ty.base)))?;
            let mut size = l.size;
            for d in &v.dims {
                let n = env.eval(d.clone()).map_err(&fail)?;
                size = u32::try_from(n)
                    .ok()
                    .and_then(|n| size.checked_mul(n))
                    .ok_or_else(|| fail(format!("{n} elements are not possible")))?;
            }
            total = size
                .checked_next_multiple_of(16)
                .and_then(|s| total.checked_add(s))
                .ok_or_else(|| fail("too large".into()))?;
        }
        Ok(total)
    }
}
