//! Characters to tokens. Comments and line continuations end here; every token keeps its line.

use std::sync::Arc;

use crate::diag::{Finding, Loc};

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Identifier or keyword.
    Ident,
    /// A preprocessing number: integer or floating, with its suffix.
    Number,
    /// `"..."`, quotes included.
    Str,
    /// `'...'`, quotes included.
    Char,
    /// Operator or bracket. `>` is never joined with a following `>`, so that template argument lists close.
    Punct,
    /// A `#pragma` line kept for the compiler behind us.
    Pragma,
}

/// One token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// Its spelling.
    pub text: Arc<str>,
    /// Where it stands; for a macro's result, where the macro is used.
    pub loc: Loc,
    /// Whether white space stood before it.
    pub space: bool,
    /// Whether it is the first token of a line.
    pub first: bool,
}

impl Token {
    /// Whether it is this identifier, keyword or operator.
    pub fn is(&self, text: &str) -> bool {
        &*self.text == text && !matches!(self.kind, TokenKind::Str | TokenKind::Char | TokenKind::Pragma)
    }

    /// Whether it is an identifier or keyword.
    pub fn is_ident(&self) -> bool {
        self.kind == TokenKind::Ident
    }
}

/// Operators of more than one character, longest first.
const OPERATORS: [&str; 21] = [
    "<<=", "...", "->", "::", "++", "--", "<<", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=",
    "%=", "&=", "|=", "^=",
];

/// Splits a file's text into tokens.
pub(crate) fn lex(file: u32, text: &str) -> Result<Vec<Token>, Finding> {
    Lexer { file, src: text.as_bytes(), text, pos: 0, line: 1, space: false, first: true, out: Vec::new() }
        .run()
}

struct Lexer<'a> {
    file: u32,
    src: &'a [u8],
    text: &'a str,
    pos: usize,
    line: u32,
    space: bool,
    first: bool,
    out: Vec<Token>,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.src.get(self.pos + ahead).copied().unwrap_or(0)
    }

    fn loc(&self) -> Loc {
        Loc { file: self.file, line: self.line }
    }

    fn push(&mut self, kind: TokenKind, start: usize, line: u32) {
        self.out.push(Token {
            kind,
            text: Arc::from(&self.text[start..self.pos]),
            loc: Loc { file: self.file, line },
            space: self.space,
            first: self.first,
        });
        self.space = false;
        self.first = false;
    }

    fn run(mut self) -> Result<Vec<Token>, Finding> {
        while self.pos < self.src.len() {
            let (c, start, line) = (self.peek(0), self.pos, self.line);
            match c {
                b'\n' => {
                    self.pos += 1;
                    self.line += 1;
                    self.space = true;
                    self.first = true;
                }
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => {
                    self.pos += 1;
                    self.space = true;
                }
                b'\\' if self.peek(1) == b'\n' || (self.peek(1) == b'\r' && self.peek(2) == b'\n') => {
                    self.pos += if self.peek(1) == b'\n' { 2 } else { 3 };
                    self.line += 1;
                    self.space = true;
                }
                b'/' if self.peek(1) == b'/' => self.line_comment(),
                b'/' if self.peek(1) == b'*' => self.block_comment()?,
                b'"' | b'\'' => self.quoted(c)?,
                b'0'..=b'9' => self.number(start, line),
                b'.' if self.peek(1).is_ascii_digit() => self.number(start, line),
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                    while self.peek(0).is_ascii_alphanumeric() || self.peek(0) == b'_' {
                        self.pos += 1;
                    }
                    self.push(TokenKind::Ident, start, line);
                }
                c if c.is_ascii_graphic() => {
                    let rest = &self.src[self.pos..];
                    let len =
                        OPERATORS.iter().find(|op| rest.starts_with(op.as_bytes())).map_or(1, |op| op.len());
                    self.pos += len;
                    self.push(TokenKind::Punct, start, line);
                }
                _ => {
                    let ch = self.text[self.pos..].chars().next().unwrap_or('\u{fffd}');
                    return Err(Finding::syntax(
                        self.loc(),
                        format!("character {ch:?} outside a comment or string; kernel sources are ASCII"),
                    ));
                }
            }
        }
        Ok(self.out)
    }

    fn line_comment(&mut self) {
        while self.pos < self.src.len() && self.peek(0) != b'\n' {
            if self.peek(0) == b'\\' && self.peek(1) == b'\n' {
                self.line += 1;
                self.pos += 1;
            }
            self.pos += 1;
        }
        self.space = true;
    }

    fn block_comment(&mut self) -> Result<(), Finding> {
        let at = self.loc();
        self.pos += 2;
        loop {
            if self.pos >= self.src.len() {
                return Err(Finding::syntax(at, "comment is not closed; write the missing */"));
            }
            if self.peek(0) == b'*' && self.peek(1) == b'/' {
                self.pos += 2;
                self.space = true;
                return Ok(());
            }
            if self.peek(0) == b'\n' {
                self.line += 1;
                self.first = true;
            }
            self.pos += 1;
        }
    }

    fn quoted(&mut self, quote: u8) -> Result<(), Finding> {
        let (start, line) = (self.pos, self.line);
        self.pos += 1;
        loop {
            match self.peek(0) {
                b'\n' | 0 => {
                    // An apostrophe in the text of an #error or a skipped branch is not a literal.
                    if quote == b'\'' {
                        self.pos = start + 1;
                        self.push(TokenKind::Punct, start, line);
                        return Ok(());
                    }
                    return Err(Finding::syntax(self.loc(), "string is not closed on its line"));
                }
                b'\\' if self.pos + 1 < self.src.len() && self.peek(1) != b'\n' => self.pos += 2,
                c => {
                    self.pos += 1;
                    if c == quote {
                        break;
                    }
                }
            }
            // Step over the rest of a multi-byte character, so that slices stay on boundaries.
            while self.pos < self.src.len() && !self.text.is_char_boundary(self.pos) {
                self.pos += 1;
            }
        }
        self.push(if quote == b'"' { TokenKind::Str } else { TokenKind::Char }, start, line);
        Ok(())
    }

    fn number(&mut self, start: usize, line: u32) {
        self.pos += 1;
        loop {
            let c = self.peek(0);
            let sign = (c == b'+' || c == b'-')
                && matches!(self.src[self.pos - 1], b'e' | b'E' | b'p' | b'P')
                && !self.text[start..self.pos].starts_with("0x")
                && !self.text[start..self.pos].starts_with("0X");
            if c.is_ascii_alphanumeric() || c == b'.' || c == b'_' || sign {
                self.pos += 1;
            } else {
                break;
            }
        }
        self.push(TokenKind::Number, start, line);
    }
}

/// The text between a string literal's quotes, escapes resolved (`\n`, `\t`, `\\`, `\"`, others kept).
pub(crate) fn unquote(literal: &str) -> String {
    let inner = literal.strip_prefix('"').and_then(|s| s.strip_suffix('"')).unwrap_or(literal);
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(src: &str) -> Vec<String> {
        lex(0, src).unwrap().iter().map(|t| t.text.to_string()).collect()
    }

    #[test]
    fn tokens_and_lines() {
        let toks = lex(0, "a /* x\n */ b // c\n\"s\\\"t\" 1.5e-3f 0x1Fu \\\n >>= x.y").unwrap();
        let got: Vec<(&str, u32, bool)> = toks.iter().map(|t| (&*t.text, t.loc.line, t.first)).collect();
        assert_eq!(
            got,
            [
                ("a", 1, true),
                ("b", 2, true),
                ("\"s\\\"t\"", 3, true),
                ("1.5e-3f", 3, false),
                ("0x1Fu", 3, false),
                (">", 4, false),
                (">=", 4, false),
                ("x", 4, false),
                (".", 4, false),
                ("y", 4, false)
            ]
        );
    }

    #[test]
    fn closing_angles_stay_apart_and_hex_is_not_an_exponent() {
        assert_eq!(texts("vec<vec<T>>x"), ["vec", "<", "vec", "<", "T", ">", ">", "x"]);
        assert_eq!(texts("0xE+1"), ["0xE", "+", "1"]);
        assert_eq!(texts("a<<=b->c::d"), ["a", "<<=", "b", "->", "c", "::", "d"]);
    }

    #[test]
    fn bad_text_is_reported_with_its_line() {
        assert_eq!(lex(0, "a\nb \u{e9}").unwrap_err().loc.line, 2);
        assert_eq!(lex(0, "a\n\"open").unwrap_err().loc.line, 2);
        assert_eq!(lex(0, "\n\n/* open").unwrap_err().loc.line, 3);
    }

    #[test]
    fn strings_are_unquoted() {
        assert_eq!(unquote("\"a\\\"b\\\\\""), "a\"b\\");
    }
}
