//! Declarations at namespace and structure scope.

use std::ops::Range;

use super::scan::{self, attribute_at, attributes, close_angle, split_commas};
use super::types::type_ref;
use super::*;
use crate::diag::Rule;
use crate::lexer::{TokenKind, unquote};

/// Scopes nested deeper than this are refused.
const MAX_DEPTH: usize = 32;

pub(super) fn parse_items(unit: &mut Unit, findings: &mut Vec<Finding>) {
    let end = unit.tokens.len();
    let mut p = Parser { unit, findings, scope: Vec::new(), header: None };
    p.items(0..end);
}

/// An enclosing namespace or structure.
#[derive(Clone)]
struct Scope {
    name: String,
    /// Index of the structure whose members are read.
    structure: Option<usize>,
}

struct Parser<'a> {
    unit: &'a mut Unit,
    findings: &'a mut Vec<Finding>,
    scope: Vec<Scope>,
    /// The `template` keyword of the declaration being read.
    header: Option<usize>,
}

impl Parser<'_> {
    fn is(&self, i: usize, text: &str) -> bool {
        self.unit.tokens.get(i).is_some_and(|t| t.is(text))
    }

    fn fail(&mut self, at: usize, rule: Rule, message: impl Into<String>) {
        let loc = self.unit.tokens.get(at).or(self.unit.tokens.last()).map(|t| t.loc).unwrap_or_default();
        self.findings.push(Finding::new(loc, rule, message));
    }

    fn split(&self, range: Range<usize>) -> Vec<Range<usize>> {
        split_commas(&self.unit.tokens, &self.unit.brackets, range)
    }

    /// The first top-level `;` from `i`, or `end`.
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

    fn items(&mut self, range: Range<usize>) {
        if self.scope.len() > MAX_DEPTH {
            self.fail(range.start, Rule::Syntax, "scopes are nested too deeply");
            return;
        }
        let mut i = range.start;
        while i < range.end {
            self.header = None;
            i = self.item(i, range.end, Vec::new()).max(i + 1);
        }
    }

    /// Reads one declaration starting at `i`; gives the position behind it.
    fn item(&mut self, i: usize, end: usize, template: Vec<TemplateParam>) -> usize {
        let t = self.unit.tokens[i].clone();
        if t.kind == TokenKind::Pragma || t.is(";") {
            return i + 1;
        }
        if !t.is_ident() {
            return self.declaration(i, end, template);
        }
        match &*t.text {
            "public" | "private" | "protected" if self.is(i + 1, ":") => i + 2,
            "namespace" => self.namespace(i, end),
            "using" => self.using(i, end, !template.is_empty()),
            "typedef" => self.typedef(i, end),
            "static_assert" | "friend" => self.semicolon(i, end) + 1,
            "template" if self.is(i + 1, "<") => self.template(i, end),
            "template" => self.instantiation(i, end),
            "enum" => self.enumeration(i, end),
            "struct" | "class" | "union" => match self.structure(i, end, &template) {
                Some(next) => next,
                None => self.declaration(i, end, template),
            },
            _ => self.declaration(i, end, template),
        }
    }

    fn namespace(&mut self, i: usize, end: usize) -> usize {
        let Some(open) = (i + 1..end).find(|&j| self.is(j, "{") || self.is(j, ";")) else {
            return end;
        };
        if self.is(open, ";") {
            return open + 1;
        }
        let close = self.unit.brackets.of(open);
        let name = self.unit.text(i + 1..open);
        self.scope.push(Scope { name, structure: None });
        self.items(open + 1..close);
        self.scope.pop();
        close + 1
    }

    fn using(&mut self, i: usize, end: usize, is_template: bool) -> usize {
        let semi = self.semicolon(i, end);
        if self.is(i + 2, "=") {
            let name = self.unit.tokens[i + 1].text.to_string();
            let target = (!is_template).then_some(i + 3..semi);
            self.unit.aliases.push(Alias { name, target });
        }
        semi + 1
    }

    fn typedef(&mut self, i: usize, end: usize) -> usize {
        let semi = self.semicolon(i, end);
        if semi > i + 2 && self.unit.tokens[semi - 1].is_ident() {
            let name = self.unit.tokens[semi - 1].text.to_string();
            self.unit.aliases.push(Alias { name, target: Some(i + 1..semi - 1) });
        }
        semi + 1
    }

    fn template(&mut self, i: usize, end: usize) -> usize {
        let Some(close) = close_angle(&self.unit.tokens, &self.unit.brackets, i + 1, end)
            .or_else(|| self.close_template_params(i + 1, end))
        else {
            self.fail(i, Rule::Syntax, "template parameters are not closed with `>`");
            return self.semicolon(i, end) + 1;
        };
        let mut params = Vec::new();
        for r in self.split(i + 2..close) {
            let toks = &self.unit.tokens[r.clone()];
            let eq = toks.iter().position(|t| t.is("=")).map(|p| r.start + p);
            let head = r.start..eq.unwrap_or(r.end);
            let toks = &self.unit.tokens[head.clone()];
            let is_type = toks.first().is_some_and(|t| t.is("typename") || t.is("class"));
            let name = toks.last().filter(|t| t.is_ident() && toks.len() > 1).map(|t| t.text.to_string());
            params.push(TemplateParam {
                name: name.unwrap_or_default(),
                is_type,
                default: eq.map(|e| e + 1..r.end),
            });
        }
        if close + 1 >= end {
            return end;
        }
        // A member template of a template has two headers; a few more are a mistake.
        if i > self.header.unwrap_or(i) + 400 {
            self.fail(i, Rule::Syntax, "too many template headers in a row");
            return end;
        }
        self.header.get_or_insert(i);
        self.item(close + 1, end, params)
    }

    /// Like `close_angle`, but `=` may stand inside (default arguments).
    fn close_template_params(&self, open: usize, end: usize) -> Option<usize> {
        let (mut depth, mut i) = (0usize, open);
        while i < end {
            let t = &self.unit.tokens[i];
            match &*t.text {
                "<" => depth += 1,
                ">" => {
                    depth -= 1;
                    if depth == 0 {
                        return Some(i);
                    }
                }
                "(" | "[" if t.kind == TokenKind::Punct => i = self.unit.brackets.of(i),
                ";" | "{" | "}" => return None,
                _ => {}
            }
            i += 1;
        }
        None
    }

    /// `template [[host_name("a" "b")]] [[kernel]] void f<args>(...);`
    fn instantiation(&mut self, i: usize, end: usize) -> usize {
        let semi = self.semicolon(i, end);
        let (toks, brackets) = (&self.unit.tokens, &self.unit.brackets);
        let attrs = attributes(toks, brackets, i..semi);
        let host = attrs.iter().find(|a| a.name == "host_name").and_then(|a| a.args.clone());
        let Some(host) = host else {
            // An explicit instantiation of a helper; nothing the host sees.
            return semi + 1;
        };
        let loc = toks[i].loc;
        let host_name = match string_value(toks, host) {
            Some(s) if !s.is_empty() => s,
            _ => {
                self.fail(
                    i,
                    Rule::Instantiation,
                    "host_name needs string literals, as in host_name(\"a\" \"b\")",
                );
                return semi + 1;
            }
        };
        // The last `name < ... >` before the parameter list.
        let mut last = semi.saturating_sub(1);
        if toks[last].is(")") {
            last = brackets.of(last).saturating_sub(1);
        }
        let open = toks[last].is(">").then(|| {
            let mut depth = 0usize;
            let mut j = last;
            loop {
                let t = &toks[j];
                if t.is(">") {
                    depth += 1;
                } else if t.is("<") {
                    depth -= 1;
                    if depth == 0 {
                        return Some(j);
                    }
                } else if t.is(")") || t.is("]") {
                    j = brackets.of(j);
                }
                if j <= i {
                    return None;
                }
                j -= 1;
            }
        });
        match open.flatten() {
            Some(open) if open > i && toks[open - 1].is_ident() => {
                let kernel = toks[open - 1].text.to_string();
                let args = self.split(open + 1..last);
                self.unit.instantiations.push(Instantiation {
                    host_name,
                    kernel,
                    loc,
                    args,
                    item: i..(semi + 1).min(end),
                });
            }
            _ => self.fail(
                i,
                Rule::Instantiation,
                format!("instantiation {host_name:?} must write its template arguments: name<...>"),
            ),
        }
        semi + 1
    }

    fn enumeration(&mut self, i: usize, end: usize) -> usize {
        let semi = self.semicolon(i, end);
        let Some(open) = (i..semi).find(|&j| self.is(j, "{")) else { return semi + 1 };
        let named = (i + 1..open)
            .find(|&j| self.unit.tokens[j].is_ident() && !self.is(j, "class") && !self.is(j, "struct"));
        if let Some(n) = named {
            let name = self.unit.tokens[n].text.to_string();
            // An enumeration is stored as its underlying type, int where none is written.
            let colon = (n..open).find(|&j| self.is(j, ":"));
            self.unit.aliases.push(Alias { name, target: colon.map(|c| c + 1..open) });
        }
        let mut previous: Option<(usize, i64)> = None;
        for r in self.split(open + 1..self.unit.brackets.of(open)) {
            if r.is_empty() || !self.unit.tokens[r.start].is_ident() {
                continue;
            }
            let eq = r.clone().find(|&j| self.is(j, "="));
            let enum_offset = match (eq, previous) {
                (Some(_), _) => None,
                (None, None) => Some((None, 0)),
                (None, Some((p, n))) => Some((Some(p), n + 1)),
            };
            let index = self.unit.constants.len();
            let t = &self.unit.tokens[r.start];
            self.unit.constants.push(Constant {
                name: t.text.to_string(),
                loc: t.loc,
                init: eq.map(|e| e + 1..r.end),
                enum_offset,
            });
            previous = match (eq, previous) {
                (None, Some((p, n))) => Some((p, n + 1)),
                _ => Some((index, 0)),
            };
        }
        semi + 1
    }

    /// A structure's definition; `None` when this is a declaration that only uses one.
    fn structure(&mut self, i: usize, end: usize, template: &[TemplateParam]) -> Option<usize> {
        let stop = (i + 1..end).find(|&j| {
            let t = &self.unit.tokens[j];
            t.is("{") || t.is(";") || t.is("(") || t.is("=")
        })?;
        if self.is(stop, ";") && stop == i + 2 {
            return Some(stop + 1); // forward declaration
        }
        if !self.is(stop, "{") {
            return None;
        }
        let name = (i + 1..stop)
            .find(|&j| self.unit.tokens[j].is_ident() && !self.is(j, "alignas"))
            .map(|j| self.unit.tokens[j].text.to_string())
            .unwrap_or_default();
        let close = self.unit.brackets.of(stop);
        let index = self.unit.structs.len();
        self.unit.structs.push(Struct {
            name: name.clone(),
            loc: self.unit.tokens[i].loc,
            is_template: !template.is_empty(),
            members: Vec::new(),
        });
        self.scope.push(Scope { name, structure: Some(index) });
        self.items(stop + 1..close);
        self.scope.pop();
        Some(self.semicolon(close, end) + 1)
    }

    /// A function or a variable.
    fn declaration(&mut self, i: usize, end: usize, template: Vec<TemplateParam>) -> usize {
        let mut j = i;
        let mut params: Option<usize> = None; // the `(` of a parameter list
        let mut equals: Option<usize> = None;
        while j < end {
            let t = &self.unit.tokens[j];
            if attribute_at(&self.unit.tokens, j) {
                j = self.unit.brackets.of(j);
            } else if t.is("(") {
                let name = j.checked_sub(1).filter(|&n| n >= i).map(|n| &self.unit.tokens[n]);
                let callable = name.is_some_and(|n| {
                    (n.is_ident()
                        && !["decltype", "alignas", "__attribute__", "operator"].iter().any(|k| n.is(k)))
                        || n.kind == TokenKind::Punct && self.operator_name(i, j).is_some()
                });
                if callable && params.is_none() && equals.is_none() {
                    params = Some(j);
                }
                j = self.unit.brackets.of(j);
            } else if t.is("[") {
                j = self.unit.brackets.of(j);
            } else if t.is("<") && j > i && self.unit.tokens[j - 1].is_ident() && equals.is_none() {
                if let Some(c) = close_angle(&self.unit.tokens, &self.unit.brackets, j, end) {
                    j = c;
                }
            } else if t.is("=") && self.operator_name(i, j + 1).is_none() {
                equals.get_or_insert(j);
            } else if t.is("{") {
                if let (Some(p), None) = (params, equals) {
                    let close = self.unit.brackets.of(j);
                    self.function(i, p, j, Some(j + 1..close), template);
                    return close + 1;
                }
                j = self.unit.brackets.of(j);
            } else if t.is(";") {
                match (params, equals) {
                    (Some(p), None) => self.function(i, p, j, None, template),
                    _ => self.variable(i..j),
                }
                return j + 1;
            }
            j += 1;
        }
        if i < end {
            let text = &self.unit.tokens[i].text;
            let m = format!("declaration starting with `{text}` has no `;` or body");
            self.fail(i, Rule::Syntax, m);
        }
        end
    }

    /// `operator+` and the like, when the tokens before the `(` at `paren` name one.
    fn operator_name(&self, start: usize, paren: usize) -> Option<(usize, String)> {
        let from = paren.saturating_sub(3).max(start);
        let at = (from..paren).rev().find(|&j| self.is(j, "operator"))?;
        Some((at, self.unit.text(at..paren).replace(' ', "")))
    }

    fn function(
        &mut self,
        start: usize,
        open: usize,
        signature_end: usize,
        body: Option<Range<usize>>,
        template: Vec<TemplateParam>,
    ) {
        let (name_at, name) = match self.operator_name(start, open) {
            Some(n) => n,
            None => (open - 1, self.unit.tokens[open - 1].text.to_string()),
        };
        let close = self.unit.brackets.of(open);
        let toks = &self.unit.tokens;
        let attrs: Vec<_> = attributes(toks, &self.unit.brackets, start..open);
        let find = |n: &str| attrs.iter().find(|a| a.name == n);
        let is_kernel = (start..name_at).any(|j| toks[j].is("kernel")) || find("kernel").is_some();
        let host_name = find("host_name").and_then(|a| a.args.clone()).and_then(|r| string_value(toks, r));
        let max_threads = find("max_total_threads_per_threadgroup").and_then(|a| a.args.clone());
        let loc = toks[name_at].loc;
        let params = self.params(open + 1..close);
        let tg_vars = body.clone().map(|b| self.tg_vars(b)).unwrap_or_default();
        let end = body.as_ref().map_or(signature_end + 1, |b| b.end + 1);
        self.unit.functions.push(Function {
            name,
            loc,
            scope: self.scope.iter().map(|s| s.name.clone()).collect(),
            is_member: self.scope.last().is_some_and(|s| s.structure.is_some()),
            template,
            is_kernel,
            params,
            max_threads,
            host_name,
            item: self.header.unwrap_or(start)..end,
            signature: start..signature_end,
            body,
            tg_vars,
        });
    }

    fn params(&self, range: Range<usize>) -> Vec<Param> {
        let (toks, brackets) = (&self.unit.tokens, &self.unit.brackets);
        let mut out = Vec::new();
        for r in self.split(range) {
            if r.is_empty() || (r.len() == 1 && toks[r.start].is("void")) {
                continue;
            }
            let default = r.clone().find(|&j| toks[j].is("="));
            let head = r.start..default.unwrap_or(r.end);
            // The name is the last identifier outside brackets, where a type stands before it.
            let mut idents = Vec::new();
            let mut j = head.start;
            while j < head.end {
                if toks[j].is("(") || toks[j].is("[") {
                    j = brackets.of(j);
                } else if toks[j].is("<") {
                    j = close_angle(toks, brackets, j, head.end).unwrap_or(j);
                } else if toks[j].is_ident() || toks[j].is("*") || toks[j].is("&") || toks[j].is(">") {
                    idents.push(j);
                }
                j += 1;
            }
            let is_type_word =
                |t: &Token| t.is("const") || t.is("volatile") || scan::ADDRESS_SPACES.iter().any(|s| t.is(s));
            let name_at = idents.last().copied().filter(|&n| {
                let has_type = (head.start..n).any(|k| toks[k].is_ident() && !is_type_word(&toks[k]));
                toks[n].is_ident() && !is_type_word(&toks[n]) && has_type && !toks[n - 1].is("::")
            });
            let type_end = name_at.unwrap_or(head.end);
            let mut ty = type_ref(toks, brackets, head.start..type_end);
            // `T name[N]` as a parameter is a pointer.
            ty.pointer |= name_at
                .is_some_and(|n| (n + 1 < head.end) && toks[n + 1].is("[") && !attribute_at(toks, n + 1));
            let at = name_at.unwrap_or(r.start);
            out.push(Param {
                name: name_at.map(|n| toks[n].text.to_string()).unwrap_or_default(),
                loc: toks[at].loc,
                ty,
                kind: None,
                range: r.clone(),
                has_default: default.is_some(),
            });
        }
        out
    }

    /// `threadgroup T a[N], b;` statements inside a body.
    fn tg_vars(&self, body: Range<usize>) -> Vec<TgVar> {
        let (toks, brackets) = (&self.unit.tokens, &self.unit.brackets);
        let mut out = Vec::new();
        let mut i = body.start;
        while i < body.end {
            let starts = i == body.start
                || toks[i - 1].is("{")
                || toks[i - 1].is("}")
                || toks[i - 1].is(";")
                || toks[i - 1].is(")")
                || toks[i - 1].kind == TokenKind::Pragma;
            if !(toks[i].is("threadgroup") && starts) {
                i += 1;
                continue;
            }
            let semi = self.semicolon(i, body.end);
            let parts = self.split(i..semi);
            // A pointer or an initialised reference lives in registers and is no threadgroup variable.
            let first = parts.first().cloned().unwrap_or(i..semi);
            let mut indirect = false;
            let mut j = first.start;
            while j < first.end {
                if toks[j].is("[") || toks[j].is("(") {
                    j = brackets.of(j);
                }
                indirect |= toks[j].is("*") || toks[j].is("&") || toks[j].is("=");
                j += 1;
            }
            if indirect {
                i = semi;
                continue;
            }
            let mut base: Option<TypeRef> = None;
            for p in parts {
                let name_at = {
                    let mut j = p.start;
                    let mut last = None;
                    while j < p.end && !toks[j].is("[") && !toks[j].is("=") {
                        if toks[j].is("<") {
                            j = close_angle(toks, brackets, j, p.end).unwrap_or(j);
                        } else if toks[j].is_ident() {
                            last = Some(j);
                        }
                        j += 1;
                    }
                    last
                };
                let Some(n) = name_at else { continue };
                let ty = base.get_or_insert_with(|| type_ref(toks, brackets, p.start..n)).clone();
                out.push(TgVar {
                    name: toks[n].text.to_string(),
                    loc: toks[n].loc,
                    ty,
                    dims: self.dims(n + 1..p.end),
                    decl: i..semi,
                });
            }
            i = semi;
        }
        out
    }

    fn dims(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut out = Vec::new();
        let mut i = range.start;
        while i < range.end && self.is(i, "[") && !attribute_at(&self.unit.tokens, i) {
            let c = self.unit.brackets.of(i);
            out.push(i + 1..c);
            i = c + 1;
        }
        out
    }

    fn variable(&mut self, range: Range<usize>) {
        let structure = self.scope.last().and_then(|s| s.structure);
        let (toks, brackets) = (&self.unit.tokens, &self.unit.brackets);
        let attrs = attributes(toks, brackets, range.clone());
        let fc = attrs.iter().find(|a| a.name == "function_constant").cloned();
        let is_static = range.clone().any(|j| toks[j].is("static") || toks[j].is("constexpr"));
        let mut base: Option<TypeRef> = None;
        for p in self.split(range.clone()) {
            let toks = &self.unit.tokens;
            let mut j = p.start;
            let mut name = None;
            while j < p.end && !toks[j].is("[") && !toks[j].is("=") && !toks[j].is("{") {
                if toks[j].is("<") {
                    j = close_angle(toks, &self.unit.brackets, j, p.end).unwrap_or(j);
                } else if toks[j].is_ident() {
                    name = Some(j);
                }
                j += 1;
            }
            let Some(n) = name else { continue };
            let ty = base.get_or_insert_with(|| type_ref(toks, &self.unit.brackets, p.start..n)).clone();
            if ty.base.is_empty() {
                continue; // not a declaration; the compilers behind us will say so
            }
            let (text, loc) = (toks[n].text.to_string(), toks[n].loc);
            let dims = self.dims(n + 1..p.end);
            let init = (n + 1..p.end).find(|&k| toks[k].is("=")).map(|e| e + 1..p.end);
            if let Some(a) = &fc {
                let index = a.args.clone().and_then(|r| ConstEnv::new(self.unit).eval(r).ok());
                match index.and_then(|v| u32::try_from(v).ok()) {
                    Some(index) => self.unit.function_constants.push(FunctionConstant {
                        name: text,
                        ty: ty.base,
                        index,
                        loc,
                        scope: self.scope.iter().map(|s| s.name.clone()).collect(),
                        item: range.start..range.end + 1,
                    }),
                    None => self.fail(n, Rule::Signature, "function_constant needs a number"),
                }
            } else if let (Some(s), false) = (structure, is_static) {
                self.unit.structs[s].members.push(Member { name: text, ty, dims });
            } else {
                self.unit.constants.push(Constant { name: text, loc, init, enum_offset: None });
            }
        }
    }
}

/// Adjacent string literals, joined.
fn string_value(toks: &[Token], range: Range<usize>) -> Option<String> {
    let toks = &toks[range];
    let all = !toks.is_empty() && toks.iter().all(|t| t.kind == TokenKind::Str);
    all.then(|| toks.iter().map(|t| unquote(&t.text)).collect())
}
