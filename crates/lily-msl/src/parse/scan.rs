//! Walking over tokens: matching brackets, template argument lists, top-level commas.

use std::ops::Range;

use crate::diag::Finding;
use crate::lexer::{Token, TokenKind};

/// The address-space keywords.
pub(crate) const ADDRESS_SPACES: [&str; 4] = ["device", "constant", "threadgroup", "thread"];

/// For every bracket token, the index of its partner.
#[derive(Debug, Clone, Default)]
pub(crate) struct Brackets(Vec<u32>);

impl Brackets {
    pub fn new(tokens: &[Token]) -> Result<Self, Finding> {
        let mut partner = vec![u32::MAX; tokens.len()];
        let mut open: Vec<usize> = Vec::new();
        for (i, t) in tokens.iter().enumerate() {
            if t.kind != TokenKind::Punct {
                continue;
            }
            match &*t.text {
                "(" | "[" | "{" => open.push(i),
                ")" | "]" | "}" => {
                    let Some(o) = open.pop() else {
                        return Err(Finding::syntax(t.loc, format!("`{}` closes nothing", t.text)));
                    };
                    if closing(&tokens[o].text) != &*t.text {
                        return Err(Finding::syntax(
                            t.loc,
                            format!(
                                "`{}` closes `{}` of line {}",
                                t.text, tokens[o].text, tokens[o].loc.line
                            ),
                        ));
                    }
                    partner[o] = i as u32;
                    partner[i] = o as u32;
                }
                _ => {}
            }
        }
        match open.last() {
            Some(&o) => Err(Finding::syntax(tokens[o].loc, format!("`{}` is never closed", tokens[o].text))),
            None => Ok(Brackets(partner)),
        }
    }

    /// The partner of the bracket at `i`.
    pub fn of(&self, i: usize) -> usize {
        self.0[i] as usize
    }
}

fn closing(open: &str) -> &'static str {
    match open {
        "(" => ")",
        "[" => "]",
        _ => "}",
    }
}

/// The index of the `>` that closes the template argument list opened at `open`, or `None` when `<` is a
/// comparison.
pub(crate) fn close_angle(toks: &[Token], brackets: &Brackets, open: usize, end: usize) -> Option<usize> {
    let mut depth = 0usize;
    let mut i = open;
    while i < end {
        let t = &toks[i];
        if t.kind == TokenKind::Punct {
            match &*t.text {
                "<" => depth += 1,
                ">" => {
                    depth -= 1;
                    if depth == 0 {
                        return Some(i);
                    }
                }
                "(" | "[" => i = brackets.of(i),
                ";" | "{" | "}" | ")" | "]" | "&&" | "||" | "=" => return None,
                _ => {}
            }
        }
        i += 1;
    }
    None
}

/// Splits a range at its top-level commas. Brackets always nest; angle brackets do where they close.
pub(crate) fn split_commas(toks: &[Token], brackets: &Brackets, range: Range<usize>) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut start = range.start;
    let mut i = range.start;
    while i < range.end {
        let t = &toks[i];
        if t.kind == TokenKind::Punct {
            match &*t.text {
                "(" | "[" | "{" => i = brackets.of(i),
                "<" if i > range.start && toks[i - 1].is_ident() => {
                    if let Some(c) = close_angle(toks, brackets, i, range.end) {
                        i = c;
                    }
                }
                "," => {
                    parts.push(start..i);
                    start = i + 1;
                }
                _ => {}
            }
        }
        i += 1;
    }
    if start < range.end || !parts.is_empty() {
        parts.push(start..range.end);
    }
    parts
}

/// Whether an attribute `[[` starts at `i`.
pub(crate) fn attribute_at(toks: &[Token], i: usize) -> bool {
    toks[i].is("[") && toks.get(i + 1).is_some_and(|t| t.is("[") && !t.space)
}

/// One attribute: its name (without namespace) and the tokens between its parentheses.
#[derive(Debug, Clone)]
pub(crate) struct Attribute {
    pub name: String,
    pub args: Option<Range<usize>>,
}

/// The attributes inside a range, at any depth 0 position.
pub(crate) fn attributes(toks: &[Token], brackets: &Brackets, range: Range<usize>) -> Vec<Attribute> {
    let mut out = Vec::new();
    let mut i = range.start;
    while i < range.end {
        if attribute_at(toks, i) {
            let close = brackets.of(i);
            let mut j = i + 2;
            while j + 1 < close {
                if toks[j].is_ident() {
                    let args = toks[j + 1].is("(").then(|| j + 2..brackets.of(j + 1));
                    let next = args.as_ref().map_or(j + 1, |a| a.end + 1);
                    if !toks[next].is("::") {
                        out.push(Attribute { name: toks[j].text.to_string(), args });
                    }
                    j = next;
                } else {
                    j += 1;
                }
            }
            i = close + 1;
        } else if toks[i].is("(") || toks[i].is("{") {
            i = brackets.of(i) + 1;
        } else {
            i += 1;
        }
    }
    out
}

/// Tokens as text, spaced as in the source.
pub(crate) fn text(toks: &[Token]) -> String {
    let mut s = String::new();
    for (i, t) in toks.iter().enumerate() {
        let glue = i > 0 && (t.space || (is_word(&toks[i - 1]) && is_word(t)));
        if glue {
            s.push(' ');
        }
        s.push_str(&t.text);
    }
    s
}

pub(crate) fn is_word(t: &Token) -> bool {
    matches!(t.kind, TokenKind::Ident | TokenKind::Number)
}
