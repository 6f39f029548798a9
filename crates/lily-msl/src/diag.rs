//! Positions in kernel sources and what is reported at them.

use std::fmt;

/// A line of a source file. `file` indexes [`crate::Unit::files`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Loc {
    /// Index into the unit's file table.
    pub file: u32,
    /// 1-based line.
    pub line: u32,
}

/// Which check a diagnostic comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The text cannot be read: lexing, preprocessing or structure.
    Syntax,
    /// A kernel's signature or attributes are incomplete or contradict each other.
    Signature,
    /// A `host_name` instantiation that does not fit its kernel.
    Instantiation,
    /// A pointer or reference without an address space.
    AddressSpace,
    /// A function that can reach itself.
    Recursion,
    /// `goto`.
    Goto,
    /// `double`, or a literal of that type.
    Double,
    /// A 64-bit atomic.
    Atomic64,
    /// C++ that Metal does not have: exceptions, `new`, virtual functions, `std::`.
    NotMetal,
    /// Some lanes return before an operation that needs all of them.
    LaneReturn,
    /// A collective operation where some lanes may be missing.
    Divergence,
    /// Threadgroup memory over the limit, or declared where it cannot be.
    ThreadgroupMemory,
    /// More than 31 buffers, or a buffer index over 30.
    Buffers,
}

impl Rule {
    /// The short name printed in brackets.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Syntax => "syntax",
            Rule::Signature => "signature",
            Rule::Instantiation => "instantiation",
            Rule::AddressSpace => "address-space",
            Rule::Recursion => "recursion",
            Rule::Goto => "goto",
            Rule::Double => "double",
            Rule::Atomic64 => "atomic64",
            Rule::NotMetal => "not-metal",
            Rule::LaneReturn => "lane-return",
            Rule::Divergence => "divergence",
            Rule::ThreadgroupMemory => "threadgroup-memory",
            Rule::Buffers => "buffers",
        }
    }
}

/// One finding, with the place it is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Diagnostic {
    /// File name as given to [`crate::Sources`].
    pub file: String,
    /// 1-based line.
    pub line: u32,
    /// The check.
    pub rule: Rule,
    /// What was found, and what to do.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.file, self.line, self.rule.name(), self.message)
    }
}

/// A kernel source that cannot be used, with every finding.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(|d| d.to_string()).collect::<Vec<_>>().join("\n"))]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    /// Whether one of the findings is of this rule on this line.
    pub fn has(&self, rule: Rule, line: u32) -> bool {
        self.0.iter().any(|d| d.rule == rule && d.line == line)
    }
}

/// A finding before its file's name is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub loc: Loc,
    pub rule: Rule,
    pub message: String,
}

impl Finding {
    pub fn new(loc: Loc, rule: Rule, message: impl Into<String>) -> Self {
        Finding { loc, rule, message: message.into() }
    }

    pub fn syntax(loc: Loc, message: impl Into<String>) -> Self {
        Finding::new(loc, Rule::Syntax, message)
    }

    pub fn named(self, files: &[String]) -> Diagnostic {
        let file = files.get(self.loc.file as usize).cloned().unwrap_or_else(|| "<unknown>".into());
        Diagnostic { file, line: self.loc.line, rule: self.rule, message: self.message }
    }
}
