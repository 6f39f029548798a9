//! The table of kernel sources: file name to text. Kernels are embedded in the binary, so `#include "x.h"` is
//! resolved here and never reaches a disk; `#include <metal_stdlib>` and its kin stand for the prelude.

use std::collections::{BTreeMap, BTreeSet};

use crate::diag::{Diagnostic, Diagnostics, Rule};

/// Named texts that can include each other.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    files: BTreeMap<String, String>,
}

impl Sources {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file, or replaces it. Names are compared as written in `#include "..."`.
    pub fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> &mut Self {
        self.files.insert(name.into(), text.into());
        self
    }

    /// A table of one file.
    pub fn single(name: impl Into<String>, text: impl Into<String>) -> Self {
        let mut s = Self::new();
        s.add(name, text);
        s
    }

    /// A file's text.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.files.get(name).map(String::as_str)
    }

    /// The names of all files, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// The text of `root` with every quoted include replaced by that file's text, once each; macros and
    /// conditions stay, so this is what Metal's own compiler gets. `#line` keeps its messages right.
    pub fn flatten(&self, root: &str) -> Result<String, Diagnostics> {
        let mut out = String::new();
        self.flatten_into(root, &mut BTreeSet::new(), &mut out)?;
        Ok(out)
    }

    fn flatten_into(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        out: &mut String,
    ) -> Result<(), Diagnostics> {
        let fail = |line: usize, message: String| {
            Diagnostics(vec![Diagnostic {
                file: name.to_string(),
                line: line as u32,
                rule: Rule::Syntax,
                message,
            }])
        };
        let text = self.get(name).ok_or_else(|| fail(1, self.missing(name)))?;
        seen.insert(name.to_string());
        out.push_str(&format!("#line 1 \"{name}\"\n"));
        for (i, line) in text.lines().enumerate() {
            match quoted_include(line) {
                Some(target) if seen.contains(target) => out.push('\n'),
                Some(target) => {
                    if self.get(target).is_none() {
                        return Err(fail(i + 1, self.missing(target)));
                    }
                    self.flatten_into(target, seen, out)?;
                    out.push_str(&format!("#line {} \"{name}\"\n", i + 2));
                }
                None if line.trim_start().starts_with('#')
                    && line.split_whitespace().eq(["#pragma", "once"]) =>
                {
                    out.push('\n');
                }
                None => {
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
        Ok(())
    }

    pub(crate) fn missing(&self, name: &str) -> String {
        let known: Vec<&str> = self.names().collect();
        format!("\"{name}\" is not among the kernel sources; the table holds {}", known.join(", "))
    }
}

/// The file named by a line `#include "file"`.
fn quoted_include(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?.trim_start();
    rest.strip_prefix('"')?.split_once('"').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_are_inlined_once_with_line_marks() {
        let mut s = Sources::new();
        s.add("a.metal", "#include <metal_stdlib>\n#include \"h.h\"\n#include \"h.h\"\nint a;\n");
        s.add("h.h", "#pragma once\nint h;\n");
        assert_eq!(
            s.flatten("a.metal").unwrap(),
            "#line 1 \"a.metal\"\n#include <metal_stdlib>\n#line 1 \"h.h\"\n\nint h;\n#line 3 \"a.metal\"\n\nint a;\n"
        );
    }

    #[test]
    fn a_missing_include_names_the_line() {
        let s = Sources::single("a.metal", "\n#include \"no.h\"\n");
        let e = s.flatten("a.metal").unwrap_err();
        assert!(e.has(Rule::Syntax, 2), "{e}");
        assert!(e.to_string().contains("no.h"));
    }
}
