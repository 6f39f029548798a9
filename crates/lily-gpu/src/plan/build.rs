//! Writing a plan down.

use std::collections::HashMap;

use super::{
    Access, Arg, ArgValue, BufferId, BufferKind, BufferSpec, MatrixInfo, Op, Plan, Scalar, View, levels,
};

/// Collects buffers and ops.
#[derive(Debug, Default)]
pub struct PlanBuilder {
    buffers: Vec<BufferSpec>,
    index: HashMap<String, BufferId>,
    ops: Vec<Op>,
}

impl PlanBuilder {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The buffer of this name; made when it is asked for first. A plan gives a name one size.
    pub fn buffer(&mut self, name: impl Into<String>, bytes: usize, kind: BufferKind) -> View {
        let name = name.into();
        let bytes = bytes as u64;
        let id = *self.index.entry(name.clone()).or_insert_with(|| {
            self.buffers.push(BufferSpec { name, bytes, kind });
            BufferId(self.buffers.len() - 1)
        });
        debug_assert_eq!(self.buffers[id.0].bytes, bytes, "{}", self.buffers[id.0].name);
        View { buffer: id, offset: 0, len: self.buffers[id.0].bytes }
    }

    /// Packed weights, scales and biases of a matrix.
    pub fn matrix(&mut self, m: &MatrixInfo) -> [View; 3] {
        let part = |name: &str| format!("{}.{name}", m.module);
        [
            self.buffer(part("weight"), m.weight_bytes(), BufferKind::Weight),
            self.buffer(part("scales"), m.group_bytes(), BufferKind::Weight),
            self.buffer(part("biases"), m.group_bytes(), BufferKind::Weight),
        ]
    }

    /// An op, to be filled in.
    pub fn op(&mut self, label: impl Into<String>, kernel: impl Into<String>) -> OpBuilder<'_> {
        OpBuilder {
            op: Op {
                kernel: kernel.into(),
                label: label.into(),
                args: Vec::new(),
                threadgroup: Vec::new(),
                grid: [1, 1, 1],
                group: [1, 1, 1],
                reads: Vec::new(),
                writes: Vec::new(),
            },
            plan: self,
        }
    }

    /// The plan, with its levels.
    pub fn finish(self, name: impl Into<String>) -> Plan {
        let levels = levels::levels(&self.ops);
        Plan { name: name.into(), buffers: self.buffers, ops: self.ops, levels }
    }
}

/// One op in the making. Arguments are added in order of index.
#[must_use = "an op is part of the plan only after `run`"]
#[derive(Debug)]
pub struct OpBuilder<'a> {
    plan: &'a mut PlanBuilder,
    op: Op,
}

impl OpBuilder<'_> {
    fn buffer(&mut self, name: &'static str, element: &'static str, view: View, writes: bool) {
        self.op.args.push(Arg { name, element, value: ArgValue::Buffer { view, writes } });
    }

    fn access(view: View, bytes: usize) -> Access {
        let end = view.offset + view.len;
        Access { buffer: view.buffer, start: view.offset, end, bytes: (bytes as u64).min(view.len) }
    }

    /// A buffer that is only read; `bytes` distinct ones of it are.
    pub fn read(mut self, name: &'static str, element: &'static str, view: View, bytes: usize) -> Self {
        self.buffer(name, element, view, false);
        if bytes > 0 {
            self.op.reads.push(Self::access(view, bytes));
        }
        self
    }

    /// A buffer that is only read, all of it.
    pub fn read_all(self, name: &'static str, element: &'static str, view: View) -> Self {
        self.read(name, element, view, view.len as usize)
    }

    /// A buffer the kernel writes, and does not read.
    pub fn write(mut self, name: &'static str, element: &'static str, view: View, bytes: usize) -> Self {
        self.buffer(name, element, view, true);
        self.op.writes.push(Self::access(view, bytes));
        self
    }

    /// A buffer that is read and written.
    pub fn update(
        mut self,
        name: &'static str,
        element: &'static str,
        view: View,
        read: usize,
        written: usize,
    ) -> Self {
        self.buffer(name, element, view, true);
        self.op.reads.push(Self::access(view, read));
        self.op.writes.push(Self::access(view, written));
        self
    }

    /// A matrix's three buffers; `share` of their bytes are read.
    pub fn matrix(mut self, names: [&'static str; 3], views: [View; 3], share: Share) -> Self {
        for ((name, view), element) in names.into_iter().zip(views).zip(["uint4", "bfloat", "bfloat"]) {
            let bytes = match share {
                Share::None => 0,
                Share::All => view.len as usize,
                Share::Of(n, of) => view.len as usize / of * n.min(of),
            };
            self = self.read(name, element, view, bytes);
        }
        self
    }

    /// An inline structure.
    pub fn inline(
        mut self,
        name: &'static str,
        element: &'static str,
        fields: Vec<(&'static str, Scalar)>,
    ) -> Self {
        self.op.args.push(Arg { name, element, value: ArgValue::Inline(fields) });
        self
    }

    /// Bytes of the next threadgroup argument.
    pub fn threadgroup(mut self, bytes: usize) -> Self {
        self.op.threadgroup.push(bytes as u32);
        self
    }

    /// Adds the op to the plan: `grid` threadgroups of `threads` threads.
    pub fn run(mut self, grid: [usize; 3], threads: u32) {
        self.op.grid = grid.map(|n| n as u32);
        self.op.group = [threads, 1, 1];
        self.plan.ops.push(self.op);
    }
}

/// How much of a matrix an op reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Nothing: an argument that is not used.
    None,
    /// Everything.
    All,
    /// `n` of so many equal parts: experts of a stack, rows of a table.
    Of(usize, usize),
}
