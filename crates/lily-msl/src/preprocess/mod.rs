//! A small C preprocessor, so that the same front end runs on a user's machine with no compiler installed:
//! `#include`, `#define` (object- and function-like, `#`, `##`, `__VA_ARGS__`), `#undef`, conditions, `#error`,
//! `#pragma`. Not supported, and refused with a message: `#line`, `__has_include`, `__VA_OPT__`.

mod macros;

use std::collections::HashSet;
use std::sync::Arc;

use crate::diag::{Diagnostics, Finding, Loc};
use crate::expr;
use crate::lexer::{Token, TokenKind, lex};
use crate::source::Sources;
use macros::{Macro, Macros, expand};

/// Files deeper than this in each other are a cycle.
const MAX_INCLUDE_DEPTH: usize = 32;

/// What the preprocessor leaves behind.
#[derive(Debug, Clone)]
pub(crate) struct Preprocessed {
    pub tokens: Vec<Token>,
    /// File names; `Loc::file` indexes them.
    pub files: Vec<String>,
}

/// Preprocesses `root` with the given `NAME=VALUE` definitions.
pub(crate) fn preprocess(
    sources: &Sources,
    root: &str,
    defines: &[(String, String)],
) -> Result<Preprocessed, Diagnostics> {
    let mut p = Preprocessor {
        sources,
        macros: Macros::new(),
        files: Vec::new(),
        once: HashSet::new(),
        stack: Vec::new(),
        out: Vec::new(),
    };
    let run = p.predefine(defines).and_then(|()| {
        let at = Loc { file: p.file_id(root), line: 1 };
        p.file(root, at)
    });
    match run {
        Ok(()) => Ok(Preprocessed { tokens: p.out, files: p.files }),
        Err(f) => {
            let f = f.named(&p.files);
            Err(Diagnostics(vec![f]))
        }
    }
}

/// One `#if` in progress.
struct Cond {
    loc: Loc,
    /// The tokens here are used.
    active: bool,
    /// Some branch was, or the whole `#if` stands in unused text.
    taken: bool,
    seen_else: bool,
}

struct Preprocessor<'a> {
    sources: &'a Sources,
    macros: Macros,
    files: Vec<String>,
    once: HashSet<String>,
    stack: Vec<String>,
    out: Vec<Token>,
}

impl Preprocessor<'_> {
    fn file_id(&mut self, name: &str) -> u32 {
        let known = self.files.iter().position(|f| f == name);
        known.unwrap_or_else(|| {
            self.files.push(name.to_string());
            self.files.len() - 1
        }) as u32
    }

    fn predefine(&mut self, defines: &[(String, String)]) -> Result<(), Finding> {
        let id = self.file_id("<predefined>");
        for (name, value) in defines {
            let body = lex(id, value)?;
            self.macros.insert(name.as_str().into(), Macro { params: None, variadic: false, body });
        }
        Ok(())
    }

    fn file(&mut self, name: &str, at: Loc) -> Result<(), Finding> {
        if self.once.contains(name) {
            return Ok(());
        }
        if self.stack.len() >= MAX_INCLUDE_DEPTH {
            return Err(Finding::syntax(
                at,
                format!("\"{name}\" is included {MAX_INCLUDE_DEPTH} files deep"),
            ));
        }
        let text = self.sources.get(name).ok_or_else(|| Finding::syntax(at, self.sources.missing(name)))?;
        let id = self.file_id(name);
        self.stack.push(name.to_string());
        let tokens = lex(id, text)?;
        let mut conds: Vec<Cond> = Vec::new();
        let mut run: Vec<Token> = Vec::new();
        let mut i = 0;
        while i < tokens.len() {
            let t = &tokens[i];
            if t.is("#") && t.first {
                let end = (i + 1..tokens.len()).find(|&j| tokens[j].first).unwrap_or(tokens.len());
                // A macro's arguments do not reach over a directive, so the text before it is complete.
                let text = std::mem::take(&mut run);
                self.out.extend(expand(&self.macros, text)?);
                self.directive(name, &tokens[i..end], &mut conds)?;
                i = end;
            } else {
                if conds.iter().all(|c| c.active) {
                    run.push(t.clone());
                }
                i += 1;
            }
        }
        self.out.extend(expand(&self.macros, run)?);
        if let Some(c) = conds.last() {
            return Err(Finding::syntax(c.loc, "#if without #endif"));
        }
        self.stack.pop();
        Ok(())
    }

    fn directive(&mut self, file: &str, line: &[Token], conds: &mut Vec<Cond>) -> Result<(), Finding> {
        let loc = line[0].loc;
        let Some(name) = line.get(1) else { return Ok(()) };
        let rest = &line[2..];
        let active = conds.iter().all(|c| c.active);
        match &*name.text {
            "if" | "ifdef" | "ifndef" => {
                let value = active
                    && match &*name.text {
                        "if" => self.condition(rest, loc)?,
                        kind => {
                            let n = rest.first().filter(|t| t.is_ident()).ok_or_else(|| {
                                Finding::syntax(loc, format!("#{kind} needs a macro's name"))
                            })?;
                            self.macros.contains_key(&n.text) == (kind == "ifdef")
                        }
                    };
                conds.push(Cond { loc, active: value, taken: value || !active, seen_else: false });
            }
            "elif" | "else" => {
                let Some(mut c) = conds.pop() else {
                    return Err(Finding::syntax(loc, format!("#{} without #if", name.text)));
                };
                if c.seen_else {
                    return Err(Finding::syntax(loc, format!("#{} after #else", name.text)));
                }
                let value = !c.taken && (name.is("else") || self.condition(rest, loc)?);
                c.active = value;
                c.taken |= value;
                c.seen_else = name.is("else");
                conds.push(c);
            }
            "endif" => {
                conds.pop().ok_or_else(|| Finding::syntax(loc, "#endif without #if"))?;
            }
            _ if !active => {}
            "define" => self.define(rest, loc)?,
            "undef" => {
                let n = rest.first().ok_or_else(|| Finding::syntax(loc, "#undef needs a macro's name"))?;
                self.macros.remove(&n.text);
            }
            "include" => self.include(rest, loc)?,
            "error" => return Err(Finding::syntax(loc, format!("#error {}", spell(rest)))),
            "warning" => {}
            "pragma" => {
                if rest.first().is_some_and(|t| t.is("once")) {
                    self.once.insert(file.to_string());
                } else if rest.first().is_some_and(|t| t.is("unroll")) {
                    self.out.push(Token {
                        kind: TokenKind::Pragma,
                        text: format!("#pragma {}", spell(rest)).into(),
                        loc,
                        space: true,
                        first: true,
                    });
                }
            }
            other => {
                return Err(Finding::syntax(loc, format!("#{other} is not supported in kernel sources")));
            }
        }
        Ok(())
    }

    fn include(&mut self, rest: &[Token], loc: Loc) -> Result<(), Finding> {
        match rest.first() {
            Some(t) if t.kind == TokenKind::Str => {
                let name = t.text.trim_matches('"').to_string();
                self.file(&name, loc)
            }
            Some(t) if t.is("<") => {
                let name: String = rest[1..].iter().take_while(|t| !t.is(">")).map(|t| &*t.text).collect();
                if name.starts_with("metal_") || name.starts_with("MetalPerformancePrimitives/") {
                    Ok(()) // the prelude stands for Metal's own headers
                } else {
                    Err(Finding::syntax(
                        loc,
                        format!("<{name}> is not a Metal header; write #include \"{name}\" for one of ours"),
                    ))
                }
            }
            _ => Err(Finding::syntax(loc, "#include needs \"file\" or <metal_header>")),
        }
    }

    fn define(&mut self, rest: &[Token], loc: Loc) -> Result<(), Finding> {
        let Some(name) = rest.first().filter(|t| t.is_ident()) else {
            return Err(Finding::syntax(loc, "#define needs a name"));
        };
        if name.is("defined") || name.is("__VA_OPT__") {
            return Err(Finding::syntax(loc, format!("{} cannot be defined", name.text)));
        }
        let mut i = 1;
        let (mut params, mut variadic) = (None, false);
        if rest.get(1).is_some_and(|t| t.is("(") && !t.space) {
            let mut names: Vec<Arc<str>> = Vec::new();
            i = 2;
            loop {
                match rest.get(i) {
                    Some(t) if t.is(")") => break,
                    Some(t) if t.is(",") && !variadic => {}
                    Some(t) if t.is("...") => {
                        variadic = true;
                        names.push("__VA_ARGS__".into());
                    }
                    Some(t) if t.is_ident() && !variadic => names.push(t.text.clone()),
                    _ => {
                        return Err(Finding::syntax(
                            loc,
                            format!("parameters of macro {} are malformed", name.text),
                        ));
                    }
                }
                i += 1;
            }
            i += 1;
            params = Some(names);
        }
        let body = rest[i.min(rest.len())..].to_vec();
        if body.iter().any(|t| t.is("__VA_OPT__")) {
            return Err(Finding::syntax(loc, "__VA_OPT__ is not supported in kernel sources"));
        }
        let mac = Macro { params, variadic, body };
        if let Some(old) = self.macros.get(&name.text)
            && (old.params != mac.params || spell(&old.body) != spell(&mac.body))
        {
            return Err(Finding::syntax(
                loc,
                format!("macro {} is defined twice with different texts; #undef it first", name.text),
            ));
        }
        self.macros.insert(name.text.clone(), mac);
        Ok(())
    }

    fn condition(&self, rest: &[Token], loc: Loc) -> Result<bool, Finding> {
        let mut toks = Vec::new();
        let mut i = 0;
        while i < rest.len() {
            if rest[i].is("defined") {
                let paren = rest.get(i + 1).is_some_and(|t| t.is("("));
                let at = i + 1 + paren as usize;
                let n = rest.get(at).filter(|t| t.is_ident());
                let n = n.ok_or_else(|| Finding::syntax(loc, "`defined` needs a macro's name"))?;
                let mut t = n.clone();
                t.kind = TokenKind::Number;
                t.text = if self.macros.contains_key(&n.text) { "1" } else { "0" }.into();
                toks.push(t);
                i = at + 1 + paren as usize;
            } else {
                toks.push(rest[i].clone());
                i += 1;
            }
        }
        let toks = expand(&self.macros, toks)?;
        let mut names = |t: &[Token], i: usize| match &*t[i].text {
            "__has_include" | "__has_builtin" | "__has_feature" => {
                Err(format!("{} is not supported in kernel sources", t[i].text))
            }
            "true" => Ok((1, i + 1)),
            _ => Ok((0, i + 1)),
        };
        expr::eval(&toks, &mut names).map(|v| v != 0).map_err(|e| Finding::syntax(loc, format!("#if: {e}")))
    }
}

/// Tokens as text, single spaces between.
fn spell(tokens: &[Token]) -> String {
    tokens.iter().map(|t| &*t.text).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
