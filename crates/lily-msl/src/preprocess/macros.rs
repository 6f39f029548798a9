//! Macro expansion: the algorithm of the C standard, with hide sets (a macro's name is not expanded again
//! inside its own result).

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use crate::diag::Finding;
use crate::lexer::{Token, TokenKind, lex};

/// Tokens one expansion may produce; a macro that doubles itself 40 times stops here.
const MAX_TOKENS: usize = 2_000_000;

/// A `#define`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Macro {
    /// Parameter names of a function-like macro.
    pub params: Option<Vec<Arc<str>>>,
    /// Whether the last parameter is `...`.
    pub variadic: bool,
    pub body: Vec<Token>,
}

pub(crate) type Macros = HashMap<Arc<str>, Macro>;

/// The macro names a token must not be expanded by.
type Hide = Option<Rc<HideNode>>;

#[derive(Debug)]
struct HideNode {
    name: Arc<str>,
    next: Hide,
}

fn hidden(hide: &Hide, name: &str) -> bool {
    let mut h = hide;
    while let Some(n) = h {
        if &*n.name == name {
            return true;
        }
        h = &n.next;
    }
    false
}

#[derive(Clone)]
struct Hidden {
    tok: Token,
    hide: Hide,
}

/// Expands every macro in `input`.
pub(crate) fn expand(macros: &Macros, input: Vec<Token>) -> Result<Vec<Token>, Finding> {
    let mut budget = MAX_TOKENS;
    let input = input.into_iter().map(|tok| Hidden { tok, hide: None }).collect();
    Ok(expand_hidden(macros, input, &mut budget, 0)?.into_iter().map(|h| h.tok).collect())
}

fn expand_hidden(
    macros: &Macros,
    input: Vec<Hidden>,
    budget: &mut usize,
    depth: u32,
) -> Result<Vec<Hidden>, Finding> {
    let mut queue: VecDeque<Hidden> = input.into();
    let mut out = Vec::with_capacity(queue.len());
    while let Some(t) = queue.pop_front() {
        let found = if t.tok.is_ident() && !hidden(&t.hide, &t.tok.text) {
            macros.get_key_value(&t.tok.text)
        } else {
            None
        };
        let Some((name, mac)) = found else {
            out.push(t);
            continue;
        };
        if depth > 100 {
            return Err(Finding::syntax(t.tok.loc, format!("macro {name} is nested too deeply")));
        }
        let mut result = match &mac.params {
            None => substitute(macros, mac, &[], &t, budget, depth)?,
            Some(params) => {
                if !queue.front().is_some_and(|n| n.tok.is("(")) {
                    out.push(t);
                    continue;
                }
                let args = arguments(&mut queue, &t, params, mac.variadic)?;
                substitute(macros, mac, &args, &t, budget, depth)?
            }
        };
        *budget = budget.checked_sub(result.len() + 1).ok_or_else(|| {
            Finding::syntax(t.tok.loc, format!("macro {name} expands to over {MAX_TOKENS} tokens"))
        })?;
        let hide = Some(Rc::new(HideNode { name: name.clone(), next: t.hide.clone() }));
        for (i, r) in result.iter_mut().enumerate() {
            // What came from the body is hidden from this macro; arguments carry their own sets besides.
            r.hide = join(&r.hide, &hide);
            r.tok.loc = t.tok.loc;
            r.tok.first = false;
            if i == 0 {
                r.tok.space = t.tok.space;
                r.tok.first = t.tok.first;
            }
        }
        for r in result.into_iter().rev() {
            queue.push_front(r);
        }
    }
    Ok(out)
}

fn join(a: &Hide, b: &Hide) -> Hide {
    let mut out = b.clone();
    let mut h = a;
    while let Some(n) = h {
        if !hidden(&out, &n.name) {
            out = Some(Rc::new(HideNode { name: n.name.clone(), next: out }));
        }
        h = &n.next;
    }
    out
}

/// Takes `( ... )` off the queue and splits it at top-level commas.
fn arguments(
    queue: &mut VecDeque<Hidden>,
    name: &Hidden,
    params: &[Arc<str>],
    variadic: bool,
) -> Result<Vec<Vec<Hidden>>, Finding> {
    queue.pop_front();
    let mut args = vec![Vec::new()];
    let mut depth = 0;
    loop {
        let Some(t) = queue.pop_front() else {
            return Err(Finding::syntax(
                name.tok.loc,
                format!("arguments of macro {} are not closed with `)`", name.tok.text),
            ));
        };
        if t.tok.is(")") && depth == 0 {
            break;
        }
        if t.tok.is("(") {
            depth += 1;
        } else if t.tok.is(")") {
            depth -= 1;
        } else if t.tok.is(",") && depth == 0 && !(variadic && args.len() == params.len()) {
            args.push(Vec::new());
            continue;
        }
        args.last_mut().expect("never empty").push(t);
    }
    if params.is_empty() && args.len() == 1 && args[0].is_empty() {
        args.clear();
    }
    if variadic && args.len() + 1 == params.len() {
        args.push(Vec::new());
    }
    if args.len() != params.len() {
        return Err(Finding::syntax(
            name.tok.loc,
            format!("macro {} takes {} arguments, {} given", name.tok.text, params.len(), args.len()),
        ));
    }
    Ok(args)
}

fn substitute(
    macros: &Macros,
    mac: &Macro,
    args: &[Vec<Hidden>],
    at: &Hidden,
    budget: &mut usize,
    depth: u32,
) -> Result<Vec<Hidden>, Finding> {
    let param = |t: &Token| {
        if !t.is_ident() {
            return None;
        }
        mac.params.as_ref().and_then(|ps| ps.iter().position(|p| *p == t.text))
    };
    let mut out: Vec<Hidden> = Vec::new();
    let body = &mac.body;
    let mut i = 0;
    while i < body.len() {
        let t = &body[i];
        let next_pastes = body.get(i + 1).is_some_and(|n| is_paste(body, i + 1) && n.is("#"));
        if is_paste(body, i) {
            // lhs ## rhs: paste the last token so far with the first of what follows.
            let Some(rhs) = body.get(i + 2) else {
                return Err(Finding::syntax(at.tok.loc, "`##` at the end of a macro"));
            };
            let rhs: Vec<Hidden> = match param(rhs) {
                Some(p) => args[p].clone(),
                None => vec![Hidden { tok: rhs.clone(), hide: None }],
            };
            let mut rhs = rhs.into_iter();
            match (out.pop(), rhs.next()) {
                (Some(l), Some(r)) => out.push(paste(&l, &r, at)?),
                (Some(l), None) => out.push(l),
                (None, Some(r)) => out.push(r),
                (None, None) => {}
            }
            out.extend(rhs);
            i += 3;
            continue;
        }
        if t.is("#")
            && let Some(p) = body.get(i + 1).and_then(param)
        {
            out.push(Hidden { tok: stringify(&args[p], t), hide: None });
            i += 2;
            continue;
        }
        match param(t) {
            Some(p) => {
                let mut arg = if next_pastes {
                    args[p].clone()
                } else {
                    expand_hidden(macros, args[p].clone(), budget, depth + 1)?
                };
                if let Some(first) = arg.first_mut() {
                    first.tok.space = t.space;
                }
                *budget = budget
                    .checked_sub(arg.len())
                    .ok_or_else(|| Finding::syntax(at.tok.loc, "macro expansion is too large"))?;
                out.extend(arg);
            }
            None => out.push(Hidden { tok: t.clone(), hide: None }),
        }
        i += 1;
    }
    Ok(out)
}

/// Whether `body[i]` and `body[i + 1]` are the two halves of `##`.
fn is_paste(body: &[Token], i: usize) -> bool {
    body[i].is("#") && body.get(i + 1).is_some_and(|n| n.is("#") && !n.space)
}

fn paste(l: &Hidden, r: &Hidden, at: &Hidden) -> Result<Hidden, Finding> {
    let text = format!("{}{}", l.tok.text, r.tok.text);
    let mut toks = lex(at.tok.loc.file, &text).unwrap_or_default();
    if toks.len() != 1 {
        return Err(Finding::syntax(at.tok.loc, format!("`##` makes `{text}`, which is not one token")));
    }
    let mut tok = toks.remove(0);
    tok.space = l.tok.space;
    Ok(Hidden { tok, hide: None })
}

fn stringify(arg: &[Hidden], at: &Token) -> Token {
    let mut s = String::from("\"");
    for (i, h) in arg.iter().enumerate() {
        if i > 0 && h.tok.space {
            s.push(' ');
        }
        for c in h.tok.text.chars() {
            if matches!(h.tok.kind, TokenKind::Str | TokenKind::Char) && (c == '"' || c == '\\') {
                s.push('\\');
            }
            s.push(c);
        }
    }
    s.push('"');
    Token { kind: TokenKind::Str, text: s.into(), loc: at.loc, space: at.space, first: false }
}
