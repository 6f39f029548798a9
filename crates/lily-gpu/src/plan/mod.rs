//! A forward pass as data: which kernels run on which bytes, in an order that gives the right result when followed one
//! by one, and, derived from the bytes, which of them may run together.

pub mod ablation;
pub mod bind;
mod build;
pub mod counters;
pub mod decode;
mod levels;
pub mod prefill;
pub mod ranges;
mod report;
pub mod routes;
mod shape;

pub use ablation::{Ablation, decode_ablations, prefill_ablations};
pub use bind::{BoundArg, BoundOp, bind};
pub use build::{OpBuilder, PlanBuilder};
pub use counters::{Counters, Floor};
pub use decode::{DecodeShape, Draw, Head, Ids, decode_plan};
pub use prefill::{PrefillHead, PrefillShape, prefill_plan};
pub use ranges::RangeSet;
pub use report::report;
pub use shape::{MatrixInfo, ModelShape, Products};

/// Names a buffer inside its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub usize);

/// What a buffer is for: decides who fills it, how long it lives, and where its traffic is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BufferKind {
    /// Weights: never written.
    Weight,
    /// Constants that are computed at start, such as the rotations' rates.
    Constant,
    /// Keys and values of sequences.
    Kv,
    /// GDN state and convolution inputs of sequences.
    State,
    /// What the host gives with every submission.
    Input,
    /// Token ids that stay on the device from step to step.
    TokenSlots,
    /// Lives within one submission: nothing may be read that was not written before in the same submission.
    Scratch,
}

/// A buffer of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferSpec {
    /// Name by which the host finds the memory; plans of one model share buffers of one name.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// What it is for.
    pub kind: BufferKind,
}

/// Name of a device's own scratch memory, which no op of a plan names.
pub const WORKSPACE: &str = "workspace";

/// Part of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Bytes of a buffer that an op may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// Distinct bytes it moves: less than the range where an op picks rows (experts, a sequence's slot, positions).
    pub bytes: u64,
}

impl Access {
    /// Whether two accesses share a byte.
    pub fn overlaps(&self, other: &Access) -> bool {
        self.buffer == other.buffer && self.start < other.end && other.start < self.end
    }

    /// Whether it shares a byte with part of a buffer.
    pub fn touches(&self, view: &View) -> bool {
        self.buffer == view.buffer && self.start < view.offset + view.len && view.offset < self.end
    }
}

/// A value of a kernel's inline structure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// `uint`.
    U32(u32),
    /// `float`.
    F32(f32),
    /// `uint4`.
    U32x4([u32; 4]),
}

/// What is passed as one argument.
#[derive(Debug, Clone, PartialEq)]
pub enum ArgValue {
    /// A buffer. `writes` must say what the kernel's signature says.
    Buffer {
        /// Where.
        view: View,
        /// Whether the kernel may write it.
        writes: bool,
    },
    /// A structure by its fields; where each lies is the kernel's business and looked up in the manifest. A plain value
    /// has one field without a name.
    Inline(Vec<(&'static str, Scalar)>),
}

/// An argument, with the host's view of it: compared with the kernel's at start.
#[derive(Debug, Clone, PartialEq)]
pub struct Arg {
    /// The parameter it is meant for.
    pub name: &'static str,
    /// Element type, or the type of the structure.
    pub element: &'static str,
    /// What is passed.
    pub value: ArgValue,
}

/// One dispatch.
#[derive(Debug, Clone, PartialEq)]
pub struct Op {
    /// Host name of the kernel.
    pub kernel: String,
    /// What it computes, for messages: `layers.3.router`.
    pub label: String,
    /// Arguments in order of index.
    pub args: Vec<Arg>,
    /// Bytes of threadgroup memory, in order of index.
    pub threadgroup: Vec<u32>,
    /// Threadgroups.
    pub grid: [u32; 3],
    /// Threads of a threadgroup.
    pub group: [u32; 3],
    /// What it may read.
    pub reads: Vec<Access>,
    /// What it may write.
    pub writes: Vec<Access>,
}

/// A forward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// For messages: `decode, 1 token, logits`.
    pub name: String,
    /// Buffers; an op names them by index.
    pub buffers: Vec<BufferSpec>,
    /// Ops in an order that is right when followed one by one.
    pub ops: Vec<Op>,
    /// Indices of ops that may run together, level by level.
    pub levels: Vec<Vec<usize>>,
}

impl Plan {
    /// A buffer by name.
    pub fn buffer(&self, name: &str) -> Option<BufferId> {
        self.buffers.iter().position(|b| b.name == name).map(BufferId)
    }

    /// The same with scratch memory of the device's own, of so many bytes ([`Device::workspace`]); nothing where it is 0.
    ///
    /// [`Device::workspace`]: crate::Device::workspace
    pub fn with_workspace(mut self, bytes: u64) -> Self {
        if bytes > 0 {
            self.buffers.push(BufferSpec { name: WORKSPACE.into(), bytes, kind: BufferKind::Scratch });
        }
        self
    }

    /// What a buffer is.
    pub fn spec(&self, id: BufferId) -> &BufferSpec {
        &self.buffers[id.0]
    }

    /// Derives the levels anew, after ops were changed.
    pub fn derive_levels(&mut self) {
        self.levels = levels::levels(&self.ops);
    }
}
