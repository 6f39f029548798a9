//! Which function calls which, by name and number of arguments.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use crate::parse::scan::{close_angle, split_commas};
use crate::parse::{Function, Unit};

/// A call in a body.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub name: String,
    /// The name's token.
    pub at: usize,
    /// Tokens of each argument.
    pub args: Vec<Range<usize>>,
    /// Tokens between `<` and `>`, where template arguments are written.
    pub template_args: Option<Range<usize>>,
}

impl Unit {
    /// Every call in a range, inner ones too.
    pub(crate) fn calls(&self, range: Range<usize>) -> Vec<Call> {
        let (toks, brackets) = (&self.tokens, &self.brackets);
        let mut out = Vec::new();
        for i in range.clone() {
            if !toks[i].is_ident() || i + 1 >= range.end {
                continue;
            }
            let (open, template_args) = if toks[i + 1].is("<") {
                match close_angle(toks, brackets, i + 1, range.end) {
                    Some(c) => (c + 1, Some(i + 2..c)),
                    None => continue,
                }
            } else {
                (i + 1, None)
            };
            if open >= range.end || !toks[open].is("(") {
                continue;
            }
            if matches!(&*toks[i].text, "if" | "for" | "while" | "switch" | "return" | "sizeof" | "decltype")
            {
                continue;
            }
            let args = split_commas(toks, brackets, open + 1..brackets.of(open));
            out.push(Call { name: toks[i].text.to_string(), at: i, args, template_args });
        }
        out
    }

    /// Whether a call is one that all threads of a tensor operation's scope make together: `op.run(a, b, c)`,
    /// `sums.store(t)`, `sums.load(t)`.
    pub(crate) fn is_tensor_operation(&self, call: &Call) -> bool {
        self.has_tensors()
            && matches!(call.name.as_str(), "run" | "store" | "load")
            && call.at.checked_sub(1).is_some_and(|i| self.tokens[i].is("."))
    }

    /// The functions a call may reach: same name, and a number of parameters that fits.
    pub(crate) fn callees<'a>(&'a self, call: &'a Call) -> impl Iterator<Item = usize> + 'a {
        self.functions.iter().enumerate().filter(|(_, f)| fits(f, call)).map(|(i, _)| i)
    }

    /// `function` and all it reaches.
    pub(crate) fn reachable(&self, function: usize) -> BTreeSet<usize> {
        let mut seen = BTreeSet::from([function]);
        let mut todo = vec![function];
        while let Some(f) = todo.pop() {
            let Some(body) = self.functions[f].body.clone() else { continue };
            for c in self.calls(body) {
                for g in self.callees(&c) {
                    if seen.insert(g) {
                        todo.push(g);
                    }
                }
            }
        }
        seen
    }

    /// The identifiers used by `function` and all it reaches.
    pub(crate) fn used_names(&self, function: usize) -> HashSet<&str> {
        let mut names = HashSet::new();
        for f in self.reachable(function) {
            let range = self.functions[f].item.clone();
            names.extend(self.tokens[range].iter().filter(|t| t.is_ident()).map(|t| &*t.text));
        }
        names
    }
}

fn fits(f: &Function, call: &Call) -> bool {
    let required = f.params.iter().filter(|p| !p.has_default).count();
    f.body.is_some() && f.name == call.name && (required..=f.params.len()).contains(&call.args.len())
}
