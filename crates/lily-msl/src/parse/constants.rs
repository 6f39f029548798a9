//! The values of names in constant expressions: template arguments, `constexpr` constants, enumerators.

use std::cell::Cell;
use std::ops::Range;

use super::Unit;
use super::scan::close_angle;
use crate::expr;
use crate::lexer::Token;

/// Names more than this many definitions away are a cycle.
const MAX_DEPTH: u32 = 40;

/// A template parameter bound to an argument.
#[derive(Debug, Clone)]
pub(crate) struct Bound {
    pub name: String,
    pub is_type: bool,
    pub value: Range<usize>,
}

/// Where constant expressions are evaluated: a unit, with the template arguments of one instantiation.
pub(crate) struct ConstEnv<'u> {
    unit: &'u Unit,
    bound: Vec<Bound>,
    depth: Cell<u32>,
}

impl<'u> ConstEnv<'u> {
    /// No template arguments.
    pub fn new(unit: &'u Unit) -> Self {
        ConstEnv { unit, bound: Vec::new(), depth: Cell::new(0) }
    }

    /// With the template arguments of a kernel.
    pub fn with(unit: &'u Unit, bound: Vec<Bound>) -> Self {
        ConstEnv { unit, bound, depth: Cell::new(0) }
    }

    /// The tokens of a type parameter's argument.
    pub fn type_argument(&self, name: &str) -> Option<Range<usize>> {
        self.bound.iter().find(|b| b.is_type && b.name == name).map(|b| b.value.clone())
    }

    /// The value of a template parameter.
    #[cfg(test)]
    pub fn bound_value(&self, name: &str) -> Option<i64> {
        let b = self.bound.iter().find(|b| !b.is_type && b.name == name)?;
        ConstEnv::new(self.unit).eval(b.value.clone()).ok()
    }

    /// The value of the expression `range`, or why there is none.
    pub fn eval(&self, range: Range<usize>) -> Result<i64, String> {
        if self.depth.get() > MAX_DEPTH {
            return Err("constant refers to itself".into());
        }
        self.depth.set(self.depth.get() + 1);
        let base = range.start;
        let r = expr::eval(&self.unit.tokens[range], &mut |toks, i| self.name(toks, i, base));
        self.depth.set(self.depth.get() - 1);
        r
    }

    fn name(&self, toks: &[Token], i: usize, base: usize) -> Result<(i64, usize), String> {
        let u = self.unit;
        let name = &*toks[i].text;
        let paren = |at: usize| {
            toks.get(at)
                .filter(|t| t.is("("))
                .map(|_| (base + at + 1..u.brackets.of(base + at), u.brackets.of(base + at) + 1 - base))
        };
        match name {
            "true" => return Ok((1, i + 1)),
            "false" => return Ok((0, i + 1)),
            "sizeof" | "alignof" => {
                let (inner, next) =
                    paren(i + 1).ok_or_else(|| format!("{name} needs a type in parentheses"))?;
                let text = u.text(inner.clone());
                let l = u.layout(inner, self).ok_or_else(|| format!("the size of {text} is not known"))?;
                return Ok((if name == "sizeof" { l.size } else { l.align } as i64, next));
            }
            "static_cast" => {
                if let Some(close) = close_angle(&u.tokens, &u.brackets, base + i + 1, base + toks.len())
                    && let Some((inner, next)) = paren(close + 1 - base)
                {
                    return Ok((self.eval(inner)?, next));
                }
            }
            "int" | "uint" | "short" | "ushort" | "char" | "uchar" | "long" | "ulong" | "size_t"
            | "uint32_t" | "int32_t" | "bool" => {
                if let Some((inner, next)) = paren(i + 1) {
                    return Ok((self.eval(inner)?, next));
                }
            }
            _ => {}
        }
        // `Scope::name` is looked up by its last part: enumerators and constants have unique names here.
        if toks.get(i + 1).is_some_and(|t| t.is("::")) && toks.get(i + 2).is_some_and(|t| t.is_ident()) {
            return self.name(toks, i + 2, base);
        }
        if let Some(b) = self.bound.iter().find(|b| !b.is_type && b.name == name) {
            // Arguments are written outside the template, where its parameters do not exist.
            return Ok((ConstEnv::new(u).eval(b.value.clone())?, i + 1));
        }
        let found = u.constants.iter().position(|c| c.name == name);
        let c = found.ok_or_else(|| format!("`{name}` is not a constant known here"))?;
        Ok((self.constant(c)?, i + 1))
    }

    fn constant(&self, index: usize) -> Result<i64, String> {
        let c = &self.unit.constants[index];
        if let Some((from, add)) = c.enum_offset {
            return match from {
                None => Ok(add),
                Some(f) if self.depth.get() < MAX_DEPTH => {
                    self.depth.set(self.depth.get() + 1);
                    let v = self.constant(f);
                    self.depth.set(self.depth.get() - 1);
                    Ok(v?.wrapping_add(add))
                }
                Some(_) => Err(format!("enumerator {} refers to itself", c.name)),
            };
        }
        let init = c.init.clone().ok_or_else(|| format!("`{}` has no constant value", c.name))?;
        self.eval(init)
    }
}
