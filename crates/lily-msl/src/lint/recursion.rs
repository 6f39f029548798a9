//! Metal has no recursion. Functions are told apart by name and number of parameters, so an overload that calls
//! another overload of the same arity counts as recursion too; give one of them another name. A template that
//! calls itself with other template arguments ends at compile time and is allowed.

use std::collections::BTreeSet;

use crate::diag::{Finding, Rule};
use crate::parse::Unit;

pub(super) fn check(unit: &Unit, findings: &mut Vec<Finding>) {
    let n = unit.functions.len();
    // Edges with the calling token, for the message.
    let mut edges: Vec<Vec<(usize, usize)>> = vec![Vec::new(); n];
    for (f, function) in unit.functions.iter().enumerate() {
        let Some(body) = function.body.clone() else { continue };
        for call in unit.calls(body) {
            for g in unit.callees(&call) {
                let own_args: Vec<&str> = function.template.iter().map(|p| p.name.as_str()).collect();
                let written = call.template_args.clone().map(|r| unit.text(r).replace(' ', ""));
                let other_instance =
                    f == g && !own_args.is_empty() && written.is_some_and(|w| w != own_args.join(","));
                let method_of_other = unit.functions[g].is_member
                    && call.at > 0
                    && !(unit.tokens[call.at - 1].is(".") || unit.tokens[call.at - 1].is("->"))
                    && function.scope != unit.functions[g].scope;
                if !other_instance && !method_of_other {
                    edges[f].push((g, call.at));
                }
            }
        }
    }
    for f in 0..n {
        if let Some(path) = path_back(&edges, f) {
            let names: Vec<&str> = path.iter().map(|&g| unit.functions[g].name.as_str()).collect();
            // Each cycle is reported once, at its first function.
            if path.iter().min() == Some(&f) {
                let at = edges[f].iter().find(|(g, _)| path.get(1).is_none_or(|p| p == g)).map(|e| e.1);
                let loc = at.map_or(unit.functions[f].loc, |a| unit.tokens[a].loc);
                findings.push(Finding::new(
                    loc,
                    Rule::Recursion,
                    format!("recursion: {} -> {}; Metal has none", names.join(" -> "), names[0]),
                ));
            }
        }
    }
}

/// A shortest path from `f` back to itself, without the repeated end.
fn path_back(edges: &[Vec<(usize, usize)>], f: usize) -> Option<Vec<usize>> {
    let mut paths = vec![vec![f]];
    let mut seen = BTreeSet::new();
    while let Some(path) = (!paths.is_empty()).then(|| paths.remove(0)) {
        for &(g, _) in &edges[*path.last()?] {
            if g == f {
                return Some(path);
            }
            if seen.insert(g) {
                let mut longer = path.clone();
                longer.push(g);
                paths.push(longer);
            }
        }
    }
    None
}
