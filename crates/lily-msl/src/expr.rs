//! Integer constant expressions: `#if` conditions, array sizes, template arguments, attribute values.

use crate::lexer::{Token, TokenKind};

/// Parentheses and unary operators deeper than this are refused, so that hostile text cannot end the stack.
const MAX_DEPTH: u32 = 100;

/// Gives the value of the primary expression that starts with the identifier `tokens[pos]`, and the position
/// behind it.
pub(crate) type NameValue<'a> = &'a mut dyn FnMut(&[Token], usize) -> Result<(i64, usize), String>;

/// Evaluates `tokens` as one integer constant expression.
pub(crate) fn eval(tokens: &[Token], names: NameValue<'_>) -> Result<i64, String> {
    let mut p = Eval { tokens, pos: 0, depth: 0, names };
    let v = p.ternary()?;
    match tokens.get(p.pos) {
        None => Ok(v),
        Some(t) => Err(format!("unexpected `{}` in a constant expression", t.text)),
    }
}

/// The value of an integer literal, suffixes allowed.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let t: String = text.chars().filter(|&c| c != '\'').collect();
    let t = t.trim_end_matches(['u', 'U', 'l', 'L']);
    let parsed = if let Some(h) = t.strip_prefix("0x").or_else(|| t.strip_prefix("0X")) {
        u64::from_str_radix(h, 16)
    } else if let Some(b) = t.strip_prefix("0b").or_else(|| t.strip_prefix("0B")) {
        u64::from_str_radix(b, 2)
    } else if t.len() > 1 && t.starts_with('0') {
        u64::from_str_radix(&t[1..], 8)
    } else {
        t.parse()
    };
    parsed.ok().map(|v| v as i64)
}

struct Eval<'t, 'n> {
    tokens: &'t [Token],
    pos: usize,
    depth: u32,
    names: NameValue<'n>,
}

impl Eval<'_, '_> {
    fn text(&self, ahead: usize) -> &str {
        self.tokens.get(self.pos + ahead).map_or("", |t| &t.text)
    }

    fn ternary(&mut self) -> Result<i64, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("constant expression is nested too deeply".into());
        }
        let cond = self.binary(0)?;
        let v = if self.text(0) == "?" {
            self.pos += 1;
            let a = self.ternary()?;
            if self.text(0) != ":" {
                return Err("`?` without `:` in a constant expression".into());
            }
            self.pos += 1;
            let b = self.ternary()?;
            if cond != 0 { a } else { b }
        } else {
            cond
        };
        self.depth -= 1;
        Ok(v)
    }

    /// The binary operator here: (spelling, precedence, tokens). `>` `>` without a space between is a shift.
    fn operator(&self) -> Option<(&'static str, u32, usize)> {
        const TABLE: [(&str, u32); 17] = [
            ("||", 1),
            ("&&", 2),
            ("|", 3),
            ("^", 4),
            ("&", 5),
            ("==", 6),
            ("!=", 6),
            ("<", 7),
            (">", 7),
            ("<=", 7),
            (">=", 7),
            ("<<", 8),
            ("+", 9),
            ("-", 9),
            ("*", 10),
            ("/", 10),
            ("%", 10),
        ];
        let t = self.tokens.get(self.pos)?;
        if t.is(">") && self.tokens.get(self.pos + 1).is_some_and(|n| n.is(">") && !n.space) {
            return Some((">>", 8, 2));
        }
        TABLE.iter().find(|(op, _)| t.is(op)).map(|&(op, prec)| (op, prec, 1))
    }

    fn binary(&mut self, min: u32) -> Result<i64, String> {
        let mut a = self.unary()?;
        while let Some((op, prec, len)) = self.operator() {
            if prec < min.max(1) {
                break;
            }
            self.pos += len;
            let b = self.binary(prec + 1)?;
            a = match op {
                "||" => (a != 0 || b != 0) as i64,
                "&&" => (a != 0 && b != 0) as i64,
                "|" => a | b,
                "^" => a ^ b,
                "&" => a & b,
                "==" => (a == b) as i64,
                "!=" => (a != b) as i64,
                "<" => (a < b) as i64,
                ">" => (a > b) as i64,
                "<=" => (a <= b) as i64,
                ">=" => (a >= b) as i64,
                "<<" => a.wrapping_shl(b as u32),
                ">>" => a.wrapping_shr(b as u32),
                "+" => a.wrapping_add(b),
                "-" => a.wrapping_sub(b),
                "*" => a.wrapping_mul(b),
                _ if b == 0 => return Err("division by zero in a constant expression".into()),
                "/" => a.wrapping_div(b),
                _ => a.wrapping_rem(b),
            };
        }
        Ok(a)
    }

    fn unary(&mut self) -> Result<i64, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("constant expression is nested too deeply".into());
        }
        let v = self.unary_inner();
        self.depth -= 1;
        v
    }

    fn unary_inner(&mut self) -> Result<i64, String> {
        let Some(t) = self.tokens.get(self.pos) else {
            return Err("constant expression ends too early".into());
        };
        match (t.kind, &*t.text) {
            (TokenKind::Punct, "-") => {
                self.pos += 1;
                Ok(self.unary()?.wrapping_neg())
            }
            (TokenKind::Punct, "+") => {
                self.pos += 1;
                self.unary()
            }
            (TokenKind::Punct, "~") => {
                self.pos += 1;
                Ok(!self.unary()?)
            }
            (TokenKind::Punct, "!") => {
                self.pos += 1;
                Ok((self.unary()? == 0) as i64)
            }
            (TokenKind::Punct, "(") => {
                self.pos += 1;
                let v = self.ternary()?;
                if self.text(0) != ")" {
                    return Err("`(` without `)` in a constant expression".into());
                }
                self.pos += 1;
                Ok(v)
            }
            (TokenKind::Number, text) => {
                let v = integer(text).ok_or_else(|| format!("`{text}` is not an integer constant"))?;
                self.pos += 1;
                Ok(v)
            }
            (TokenKind::Char, text) if text.len() == 3 => {
                self.pos += 1;
                Ok(text.as_bytes()[1] as i64)
            }
            (TokenKind::Ident, _) => {
                let (v, next) = (self.names)(self.tokens, self.pos)?;
                self.pos = next.max(self.pos + 1);
                Ok(v)
            }
            (_, text) => Err(format!("unexpected `{text}` in a constant expression")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer::lex;

    fn value(src: &str) -> Result<i64, String> {
        let toks = lex(0, src).unwrap();
        eval(&toks, &mut |t, i| match &*t[i].text {
            "N" => Ok((7, i + 1)),
            other => Err(format!("{other} unknown")),
        })
    }

    #[test]
    fn precedence_shifts_and_ternaries() {
        assert_eq!(value("1 + 2 * N << 1"), Ok(30));
        assert_eq!(value("256 >> 2 > 63 && !0 ? 0x10 | 1 : 9"), Ok(17));
        assert_eq!(value("(N - 10) / 2 - -3"), Ok(2));
        assert_eq!(value("32u * 4ul"), Ok(128));
        assert_eq!(value("1 ? 2 : 3 ? 4 : 5"), Ok(2));
    }

    #[test]
    fn errors_not_panics() {
        assert!(value("1 / 0").unwrap_err().contains("zero"));
        assert!(value("1 +").is_err());
        assert!(value("1 2").is_err());
        assert!(value("1.5").is_err());
        assert!(value(&"(".repeat(5000)).unwrap_err().contains("deeply"));
        assert!(value(&"- ".repeat(5000)).unwrap_err().contains("deeply"));
        assert_eq!(value("(0-9223372036854775807-1) / -1"), Ok(i64::MIN));
        assert!(value("M").unwrap_err().contains("M unknown"));
    }
}
