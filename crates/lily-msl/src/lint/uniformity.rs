//! Do all lanes reach every collective operation?
//!
//! Metal lets inactive lanes be absent from `simd_sum` and hangs at a barrier that some threads miss; CUDA needs
//! all 32 lanes everywhere. The rule here is the stricter one. Every value has a class: the same in the whole
//! threadgroup, the same in a simdgroup, or different from lane to lane. A condition of a class governs what
//! stands under it; `simd_*` needs conditions that are at most per simdgroup, `threadgroup_barrier` needs
//! threadgroup-wide ones. The same holds for every `return`, `break` and `continue` before it.
//!
//! Values flow through assignments, calls and returned values, to a fixpoint. Memory reads have the class of
//! their address: what other threads wrote there is assumed to be the same for all who read it, so this is a
//! lint; the soft device's strict mode is the proof.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::diag::{Finding, Rule};
use crate::parse::scan::{ADDRESS_SPACES, split_commas};
use crate::parse::stmt::{Stmt, statements};
use crate::parse::{ArgKind, Builtin, Unit};

/// How far a value is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Class {
    /// In the whole threadgroup.
    #[default]
    Group,
    /// In each simdgroup.
    Simd,
    /// Nowhere.
    Lane,
}

/// The class that a collective needs of what governs it, or `None` for other names.
fn collective(name: &str) -> Option<Class> {
    match name {
        "threadgroup_barrier" => Some(Class::Group),
        "simdgroup_barrier"
        | "simdgroup_load"
        | "simdgroup_store"
        | "simdgroup_multiply"
        | "simdgroup_multiply_accumulate" => Some(Class::Simd),
        n if n.starts_with("simd_") || n.starts_with("quad_") => Some(Class::Simd),
        _ => None,
    }
}

/// Collectives whose result is the same in every lane.
fn reduces(name: &str) -> bool {
    matches!(
        name,
        "simd_sum"
            | "simd_max"
            | "simd_min"
            | "simd_product"
            | "simd_and"
            | "simd_or"
            | "simd_xor"
            | "simd_any"
            | "simd_all"
            | "simd_ballot"
            | "simd_broadcast"
            | "simd_broadcast_first"
            | "simd_active_threads_mask"
    )
}

/// What is known of a function so far.
#[derive(Debug, Clone, Default, PartialEq)]
struct Facts {
    params: Vec<Class>,
    returns: Class,
    /// The strictest collective inside, and its name: what a call of this function needs.
    needs: Option<(Class, String)>,
}

pub(super) fn check(unit: &Unit, findings: &mut Vec<Finding>) {
    let mut bodies: Vec<Option<Vec<Stmt>>> = Vec::new();
    for f in &unit.functions {
        bodies.push(match f.body.clone().map(|b| statements(unit, b)) {
            Some(Ok(s)) => Some(s),
            Some(Err(e)) => {
                findings.push(e);
                None
            }
            None => None,
        });
    }
    let mut facts: Vec<Facts> = unit
        .functions
        .iter()
        .map(|f| Facts {
            params: f
                .params
                .iter()
                .map(|p| match p.kind {
                    Some(ArgKind::Builtin(b)) => builtin_class(b),
                    _ => Class::Group,
                })
                .collect(),
            ..Facts::default()
        })
        .collect();
    // Classes only rise, so this ends; the bound guards against a mistake.
    for _ in 0..32 {
        let before = facts.clone();
        for (f, body) in bodies.iter().enumerate() {
            if let Some(body) = body {
                Walk::run(unit, f, body, &mut facts, None);
            }
        }
        if facts == before {
            break;
        }
    }
    for (f, body) in bodies.iter().enumerate() {
        if let Some(body) = body {
            Walk::run(unit, f, body, &mut facts, Some(findings));
        }
    }
}

fn builtin_class(b: Builtin) -> Class {
    match b {
        Builtin::ThreadPositionInGrid
        | Builtin::ThreadPositionInThreadgroup
        | Builtin::ThreadIndexInSimdgroup
        | Builtin::ThreadIndexInThreadgroup => Class::Lane,
        Builtin::SimdgroupIndexInThreadgroup => Class::Simd,
        _ => Class::Group,
    }
}

/// What governs a statement.
#[derive(Debug, Clone, Copy, Default)]
struct Control {
    class: Class,
    /// Line of the condition.
    line: u32,
}

/// An early exit: its class and token.
type Exit = Option<(Class, usize)>;

struct Walk<'a> {
    unit: &'a Unit,
    function: usize,
    facts: &'a mut Vec<Facts>,
    /// Declarations in sight, innermost scope last: a name's declaring token.
    scopes: Vec<HashMap<String, usize>>,
    /// The class of what each token declares.
    vars: HashMap<usize, Class>,
    /// Declarations of pointers to memory, whose own class writing through them does not change.
    memory: HashSet<usize>,
    returned: Exit,
    /// The class at which lanes have left the innermost loop.
    left: Class,
    findings: Option<&'a mut Vec<Finding>>,
}

impl<'a> Walk<'a> {
    fn run(
        unit: &'a Unit,
        function: usize,
        body: &[Stmt],
        facts: &'a mut Vec<Facts>,
        findings: Option<&'a mut Vec<Finding>>,
    ) {
        let f = &unit.functions[function];
        let mut w = Walk {
            unit,
            function,
            scopes: vec![HashMap::new()],
            vars: HashMap::new(),
            memory: HashSet::new(),
            returned: None,
            left: Class::Group,
            findings: None,
            facts,
        };
        for (p, class) in f.params.iter().zip(w.facts[function].params.clone()) {
            w.declare(&p.name, p.range.start, class, p.ty.pointer && p.ty.space.as_deref() != Some("thread"));
        }
        // Assignments further down reach back through loops, so the walk repeats until nothing changes.
        loop {
            let before = w.vars.clone();
            w.returned = None;
            w.block(body, Control::default());
            if w.vars == before {
                break;
            }
        }
        if findings.is_some() {
            w.findings = findings;
            w.returned = None;
            w.block(body, Control::default());
        }
    }

    fn declare(&mut self, name: &str, at: usize, class: Class, memory: bool) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_string(), at);
        }
        if memory {
            self.memory.insert(at);
        }
        self.raise(at, class);
    }

    fn raise(&mut self, at: usize, class: Class) {
        let v = self.vars.entry(at).or_default();
        *v = (*v).max(class);
    }

    /// The declaration a name means here.
    fn lookup(&self, name: &str) -> Option<usize> {
        self.scopes.iter().rev().find_map(|s| s.get(name).copied())
    }

    fn block(&mut self, list: &[Stmt], ctl: Control) {
        self.scopes.push(HashMap::new());
        for s in list {
            self.stmt(s, ctl);
        }
        self.scopes.pop();
    }

    fn line(&self, i: usize) -> u32 {
        self.unit.tokens.get(i).map_or(0, |t| t.loc.line)
    }

    fn under(&self, ctl: Control, class: Class, at: usize) -> Control {
        if class > ctl.class { Control { class, line: self.line(at) } } else { ctl }
    }

    fn stmt(&mut self, s: &Stmt, ctl: Control) {
        // Lanes that left the loop early are missing from here on.
        let ctl = if self.left > ctl.class { Control { class: self.left, line: ctl.line } } else { ctl };
        match s {
            Stmt::Block(list) => self.block(list, ctl),
            Stmt::Simple(r) => self.simple(r.clone(), ctl),
            Stmt::If { cond, then, other } => {
                self.expression(cond.clone(), ctl);
                let class = self.class(cond.clone());
                let inner = self.under(ctl, class, cond.start);
                self.stmt(then, inner);
                if let Some(o) = other {
                    self.stmt(o, inner);
                }
            }
            Stmt::Switch { cond, body } => {
                self.expression(cond.clone(), ctl);
                let class = self.class(cond.clone());
                let inner = self.under(ctl, class, cond.start);
                let outer = std::mem::replace(&mut self.left, Class::Group);
                self.stmt(body, inner);
                self.left = outer;
            }
            Stmt::Loop { init, cond, step, body } => {
                self.scopes.push(HashMap::new());
                self.simple(init.clone(), ctl);
                let outer = std::mem::replace(&mut self.left, Class::Group);
                for _ in 0..2 {
                    let class = self.class(cond.clone());
                    let inner = self.under(ctl, class, cond.start);
                    self.expression(cond.clone(), inner);
                    self.stmt(body, inner);
                    self.simple(step.clone(), inner);
                }
                self.left = outer;
                self.scopes.pop();
            }
            Stmt::Leave => self.left = self.left.max(ctl.class),
            Stmt::Return { at, value } => {
                self.expression(value.clone(), ctl);
                let class = self.class(value.clone()).max(ctl.class);
                let facts = &mut self.facts[self.function];
                if !value.is_empty() {
                    facts.returns = facts.returns.max(class);
                }
                if ctl.class > Class::Group && self.returned.is_none_or(|(c, _)| c < ctl.class) {
                    self.returned = Some((ctl.class, *at));
                }
            }
        }
    }

    /// A declaration or expression statement: its collectives, then its assignments.
    fn simple(&mut self, r: Range<usize>, ctl: Control) {
        if r.is_empty() {
            return;
        }
        self.expression(r.clone(), ctl);
        let toks = &self.unit.tokens;
        let is_memory = r.clone().any(|i| ADDRESS_SPACES[..3].iter().any(|s| toks[i].is(s)));
        let parts = split_commas(toks, &self.unit.brackets, r);
        // `T a = x, b = y;`: the first part tells that all declare.
        let declares = parts.first().is_some_and(|p| self.declared(self.assignment(p.clone()).0).is_some());
        for p in parts {
            let (lhs, rhs) = self.assignment(p);
            let class = rhs.clone().map_or(Class::Group, |r| self.class(r)).max(ctl.class);
            if declares {
                if let Some(n) = self.declarator(lhs) {
                    let class = if rhs.is_some() { class } else { Class::Group };
                    let (name, at) = (toks[n].text.to_string(), n);
                    self.declare(&name, at, class, is_memory);
                }
                continue;
            }
            if rhs.is_none() {
                continue;
            }
            let Some(at) = self.target(lhs.clone()) else { continue };
            let through = lhs.clone().any(|i| toks[i].is("[") || toks[i].is("->"))
                || lhs.clone().next().is_some_and(|i| toks[i].is("*"));
            if through && self.memory.contains(&at) {
                continue; // a write to memory
            }
            let class = class.max(self.class(lhs));
            self.raise(at, class);
        }
    }

    /// Splits `lhs = rhs` (or `lhs op= rhs`, `++lhs`, `T lhs(rhs)`); no right side where nothing is assigned.
    fn assignment(&self, p: Range<usize>) -> (Range<usize>, Option<Range<usize>>) {
        let toks = &self.unit.tokens;
        let mut i = p.start;
        while i < p.end {
            let t = &toks[i];
            if t.is("(") || t.is("[") || t.is("{") {
                i = self.unit.brackets.of(i);
            } else if matches!(&*t.text, "=" | "+=" | "-=" | "*=" | "/=" | "%=" | "&=" | "|=" | "^=" | "<<=")
                || t.is(">=") && i > p.start && toks[i - 1].is(">")
            {
                return (p.start..i, Some(i + 1..p.end));
            } else if t.is("++") || t.is("--") {
                return if i == p.start {
                    (i + 1..p.end, Some(i + 1..p.end))
                } else {
                    (p.start..i, Some(p.start..i))
                };
            }
            i += 1;
        }
        let open = p.clone().find(|&i| toks[i].is("(") || toks[i].is("{"));
        match open {
            Some(o)
                if o >= p.start + 2
                    && toks[o - 1].is_ident()
                    && (toks[o - 2].is_ident() || toks[o - 2].is(">")) =>
            {
                (p.start..o, Some(o + 1..self.unit.brackets.of(o)))
            }
            _ => (p, None),
        }
    }

    /// The last identifier before `[`: the name in a declarator.
    fn declarator(&self, r: Range<usize>) -> Option<usize> {
        let toks = &self.unit.tokens;
        let end = r.clone().find(|&i| toks[i].is("[")).unwrap_or(r.end);
        (r.start..end).rev().find(|&i| toks[i].is_ident())
    }

    /// The name in a declaration with its type, `None` for anything else.
    fn declared(&self, r: Range<usize>) -> Option<usize> {
        let toks = &self.unit.tokens;
        let n = self.declarator(r.clone())?;
        let prev = n.checked_sub(1).filter(|&p| p >= r.start)?;
        let type_before =
            toks[prev].is_ident() || toks[prev].is("*") || toks[prev].is("&") || toks[prev].is(">");
        let plain = (r.start..n).all(|i| !toks[i].is(".") && !toks[i].is("->"));
        (type_before && plain && toks[r.start].is_ident()).then_some(n)
    }

    /// The declaration of the variable an assignment changes: the first name of the left side.
    fn target(&self, lhs: Range<usize>) -> Option<usize> {
        let toks = &self.unit.tokens;
        let first = lhs.into_iter().find(|&i| toks[i].is_ident())?;
        self.lookup(&toks[first].text)
    }

    /// The class of an expression.
    fn class(&self, r: Range<usize>) -> Class {
        let toks = &self.unit.tokens;
        let mut class = Class::Group;
        let mut i = r.start;
        while i < r.end {
            let t = &toks[i];
            let member = i > r.start && (toks[i - 1].is(".") || toks[i - 1].is("->") || toks[i - 1].is("::"));
            let called = toks.get(i + 1).is_some_and(|n| n.is("("));
            if t.is_ident() && (called || !member) {
                let call = self.unit.calls(i..r.end.min(i + 200)).into_iter().next().filter(|c| c.at == i);
                if let Some(call) = call {
                    let end = call.args.last().map_or(i + 1, |a| a.end);
                    let mut c = call.args.iter().map(|a| self.class(a.clone())).max().unwrap_or_default();
                    if reduces(&call.name) {
                        c = c.min(Class::Simd);
                    } else if collective(&call.name).is_some() || call.name.starts_with("atomic_fetch") {
                        c = Class::Lane;
                    } else {
                        let callees: Vec<usize> = self.unit.callees(&call).collect();
                        if !callees.is_empty() {
                            let known = callees.iter().map(|&g| self.facts[g].returns).max();
                            c = c.min(known.unwrap_or_default());
                        }
                    }
                    class = class.max(c);
                    i = end.max(i + 1);
                    continue;
                }
                if !member {
                    let known = self.lookup(&t.text).and_then(|at| self.vars.get(&at));
                    class = class.max(known.copied().unwrap_or_default());
                }
            }
            i += 1;
        }
        class
    }

    /// Looks at the calls of an expression: collectives are checked, arguments flow into functions.
    fn expression(&mut self, r: Range<usize>, ctl: Control) {
        let unit = self.unit;
        for call in unit.calls(r) {
            // The scope of a tensor operation is all simdgroups of the threadgroup.
            let tensors = unit.is_tensor_operation(&call).then_some(Class::Group);
            if let Some(need) = tensors.or_else(|| collective(&call.name)) {
                self.need(need, &call.name, call.at, ctl);
                continue;
            }
            let args: Vec<Class> = call.args.iter().map(|a| self.class(a.clone())).collect();
            let callees: Vec<usize> = unit.callees(&call).collect();
            for g in callees {
                for (i, &class) in args.iter().enumerate() {
                    let p = &mut self.facts[g].params[i];
                    *p = (*p).max(class);
                }
                if let Some((need, name)) = self.facts[g].needs.clone() {
                    let what = format!("{name} (in {})", call.name);
                    self.need(need, &what, call.at, ctl);
                }
                // What the function may write through a thread reference.
                let all = args.iter().copied().max().unwrap_or_default().max(ctl.class);
                for (p, a) in unit.functions[g].params.iter().zip(&call.args) {
                    let writes = (p.ty.pointer || p.ty.reference)
                        && !p.ty.is_const
                        && p.ty.space.as_deref().is_none_or(|s| s == "thread");
                    if writes && let Some(at) = self.target(a.clone()) {
                        self.raise(at, all);
                    }
                }
            }
        }
    }

    fn need(&mut self, need: Class, name: &str, at: usize, ctl: Control) {
        let facts = &mut self.facts[self.function];
        if facts.needs.as_ref().is_none_or(|(c, _)| need < *c) {
            let plain = name.split(' ').next().unwrap_or(name).to_string();
            facts.needs = Some((need, plain));
        }
        let whole = if need == Class::Group { "the whole threadgroup" } else { "all 32 lanes" };
        let line = self.line(at);
        let Some(findings) = &mut self.findings else { return };
        if let Some((class, ret)) = self.returned
            && class > need
        {
            findings.push(Finding::new(
                self.unit.tokens[ret].loc,
                Rule::LaneReturn,
                format!(
                    "this `return` is not taken by {whole} alike, but {name} on line {line} needs {whole}; skip the work instead, or make the condition the same for all"
                ),
            ));
        }
        if ctl.class > need {
            findings.push(Finding::new(
                self.unit.tokens[at].loc,
                Rule::Divergence,
                format!(
                    "{name} needs {whole}, but the condition on line {} is not the same for all of them; move it out of the branch or loop",
                    ctl.line
                ),
            ));
        }
    }
}
