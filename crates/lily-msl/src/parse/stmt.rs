//! Function bodies as statements, for the analyses that follow control flow.

use std::ops::Range;

use super::Unit;
use crate::diag::Finding;
use crate::lexer::TokenKind;

/// Blocks nested deeper than this are refused.
const MAX_DEPTH: u32 = 120;

/// A statement; expressions and declarations stay token ranges.
#[derive(Debug, Clone)]
pub(crate) enum Stmt {
    Block(Vec<Stmt>),
    If {
        cond: Range<usize>,
        then: Box<Stmt>,
        other: Option<Box<Stmt>>,
    },
    /// `for`, `while` and `do`; absent parts are empty ranges.
    Loop {
        init: Range<usize>,
        cond: Range<usize>,
        step: Range<usize>,
        body: Box<Stmt>,
    },
    Switch {
        cond: Range<usize>,
        body: Box<Stmt>,
    },
    Return {
        at: usize,
        value: Range<usize>,
    },
    /// `break` or `continue`.
    Leave,
    Simple(Range<usize>),
}

/// Splits a body (the tokens inside its braces) into statements.
pub(crate) fn statements(unit: &Unit, body: Range<usize>) -> Result<Vec<Stmt>, Finding> {
    let mut p = Parser { unit, depth: 0 };
    p.list(body)
}

struct Parser<'u> {
    unit: &'u Unit,
    depth: u32,
}

impl Parser<'_> {
    fn is(&self, i: usize, text: &str) -> bool {
        self.unit.tokens.get(i).is_some_and(|t| t.is(text))
    }

    fn list(&mut self, range: Range<usize>) -> Result<Vec<Stmt>, Finding> {
        let mut out = Vec::new();
        let mut i = range.start;
        while i < range.end {
            let (s, next) = self.one(i, range.end)?;
            out.extend(s);
            i = next.max(i + 1);
        }
        Ok(out)
    }

    /// The parenthesised group at `i`: its inside, and the position behind it.
    fn group(&self, i: usize, end: usize) -> Result<(Range<usize>, usize), Finding> {
        if i < end && self.is(i, "(") {
            let c = self.unit.brackets.of(i);
            return Ok((i + 1..c, c + 1));
        }
        let at = i.min(self.unit.tokens.len().saturating_sub(1));
        Err(Finding::syntax(self.unit.tokens[at].loc, "`(` expected after a control keyword"))
    }

    /// The first top-level `;` at or after `i`.
    fn semicolon(&self, mut i: usize, end: usize) -> usize {
        while i < end {
            let t = &self.unit.tokens[i];
            if t.is(";") {
                return i;
            }
            if t.is("(") || t.is("[") || t.is("{") {
                i = self.unit.brackets.of(i);
            }
            i += 1;
        }
        end
    }

    fn body(&mut self, i: usize, end: usize) -> Result<(Box<Stmt>, usize), Finding> {
        let mut i = i;
        while i < end && self.unit.tokens[i].kind == TokenKind::Pragma {
            i += 1;
        }
        if i >= end {
            return Ok((Box::new(Stmt::Block(Vec::new())), end));
        }
        let (s, next) = self.one(i, end)?;
        Ok((Box::new(s.unwrap_or(Stmt::Block(Vec::new()))), next.max(i + 1)))
    }

    fn one(&mut self, i: usize, end: usize) -> Result<(Option<Stmt>, usize), Finding> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Finding::syntax(self.unit.tokens[i].loc, "statements are nested too deeply"));
        }
        let r = self.one_inner(i, end);
        self.depth -= 1;
        r
    }

    fn one_inner(&mut self, i: usize, end: usize) -> Result<(Option<Stmt>, usize), Finding> {
        let t = &self.unit.tokens[i];
        if t.kind == TokenKind::Pragma || t.is(";") {
            return Ok((None, i + 1));
        }
        if t.is("{") {
            let c = self.unit.brackets.of(i);
            return Ok((Some(Stmt::Block(self.list(i + 1..c)?)), c + 1));
        }
        match &*t.text {
            "if" => {
                let open = if self.is(i + 1, "constexpr") { i + 2 } else { i + 1 };
                let (cond, next) = self.group(open, end)?;
                let (then, next) = self.body(next, end)?;
                if next < end && self.is(next, "else") {
                    let (other, next) = self.body(next + 1, end)?;
                    return Ok((Some(Stmt::If { cond, then, other: Some(other) }), next));
                }
                Ok((Some(Stmt::If { cond, then, other: None }), next))
            }
            "for" => {
                let (head, next) = self.group(i + 1, end)?;
                let a = self.semicolon(head.start, head.end);
                let b = self.semicolon((a + 1).min(head.end), head.end);
                let (body, next) = self.body(next, end)?;
                let init = head.start..a;
                let cond = (a + 1).min(head.end)..b;
                let step = (b + 1).min(head.end)..head.end;
                Ok((Some(Stmt::Loop { init, cond, step, body }), next))
            }
            "while" => {
                let (cond, next) = self.group(i + 1, end)?;
                let (body, next) = self.body(next, end)?;
                Ok((Some(Stmt::Loop { init: i..i, cond, step: i..i, body }), next))
            }
            "do" => {
                let (body, next) = self.body(i + 1, end)?;
                if next < end && self.is(next, "while") {
                    let (cond, next) = self.group(next + 1, end)?;
                    return Ok((Some(Stmt::Loop { init: i..i, cond, step: i..i, body }), next + 1));
                }
                Err(Finding::syntax(t.loc, "`do` without `while`"))
            }
            "switch" => {
                let (cond, next) = self.group(i + 1, end)?;
                let (body, next) = self.body(next, end)?;
                Ok((Some(Stmt::Switch { cond, body }), next))
            }
            "case" | "default" => {
                let mut j = i + 1;
                while j < end && !self.is(j, ":") {
                    j += 1;
                }
                Ok((None, j + 1))
            }
            "return" => {
                let semi = self.semicolon(i, end);
                Ok((Some(Stmt::Return { at: i, value: i + 1..semi.max(i + 1) }), semi + 1))
            }
            "break" | "continue" => Ok((Some(Stmt::Leave), self.semicolon(i, end) + 1)),
            _ => {
                let semi = self.semicolon(i, end);
                Ok((Some(Stmt::Simple(i..semi)), semi + 1))
            }
        }
    }
}
