//! Errors of the GPU backend.

use lily_msl::{Diagnostics, manifest::BindError};

/// Why the GPU backend could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The model has a shape or a quantisation the kernels do not implement.
    #[error("the GPU backend cannot run this model: {what} is {found}; expected {expected}")]
    Unsupported {
        /// Field or tensor.
        what: String,
        /// Value found.
        found: String,
        /// What is implemented.
        expected: &'static str,
    },
    /// The device cannot be used on this machine.
    #[error("device {device}: {reason}")]
    NoDevice {
        /// Its name.
        device: &'static str,
        /// Why, and what to do.
        reason: String,
    },
    /// The kernel sources are not accepted by the front end or by the device's compiler.
    #[error("the kernels do not compile: {0}")]
    Kernels(String),
    /// An op does not fit its kernel.
    #[error("op {op}: {source}")]
    Bind {
        /// Label of the op.
        op: String,
        /// What does not fit.
        source: Box<BindError>,
    },
    /// A plan that cannot be right.
    #[error("op {op} ({kernel}): {problem}")]
    Plan {
        /// Label of the op.
        op: String,
        /// Its kernel.
        kernel: String,
        /// What was found and expected.
        problem: String,
    },
    /// An op touched what it did not declare, or what another op of its level touches.
    #[error("hazard: op {op} ({kernel}), argument {argument}: {problem}")]
    Hazard {
        /// Label of the op.
        op: String,
        /// Its kernel.
        kernel: String,
        /// The argument.
        argument: String,
        /// Which bytes, and what about them.
        problem: String,
    },
    /// A kernel was stopped while it ran.
    #[error("op {op}: {source}")]
    Fault {
        /// Label of the op.
        op: String,
        /// What the soft device found.
        source: Box<lily_msl::soft::SoftError>,
    },
    /// The device failed.
    #[error("{device}: {problem}")]
    Device {
        /// Its name.
        device: &'static str,
        /// What happened.
        problem: String,
    },
    /// Memory could not be had.
    #[error("{asked} bytes for {what} do not fit: {available}; use a shorter context or fewer sequences")]
    OutOfMemory {
        /// Bytes.
        asked: u64,
        /// What they were for.
        what: String,
        /// What there is.
        available: String,
    },
    /// The sequence does not exist (any more).
    #[error("sequence {0} does not exist")]
    UnknownSequence(u64),
    /// An earlier call on the sequence failed half-way, so its state is unknown.
    #[error("an earlier call on this sequence failed; restore a snapshot into it or make a new one")]
    Poisoned,
    /// The sequence has no room for the tokens.
    #[error("sequence holds {position} of {capacity} tokens; {asked} more do not fit")]
    Full {
        /// Tokens in the sequence.
        position: usize,
        /// Most it can hold.
        capacity: usize,
        /// Tokens asked to be appended.
        asked: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    BadToken {
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// The chunk or batch is empty, longer than allowed, or names a sequence twice.
    #[error("a call has {found} tokens; 1 to {most} are allowed, each sequence once")]
    BadChunk {
        /// Tokens given.
        found: usize,
        /// Most allowed.
        most: usize,
    },
    /// The snapshot is damaged, or of another model or version.
    #[error("snapshot cannot be restored: {what} is {found}; expected {expected}")]
    BadSnapshot {
        /// Field.
        what: &'static str,
        /// Value found.
        found: String,
        /// Value expected.
        expected: String,
    },
    /// The model computed a value that is not finite.
    #[error("the model produced a non-finite value at position {position}")]
    NonFinite {
        /// Position of the token whose logits are not finite.
        position: usize,
    },
}

impl From<Diagnostics> for GpuError {
    fn from(d: Diagnostics) -> Self {
        GpuError::Kernels(d.to_string())
    }
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, GpuError>;
