//! Errors of the CPU backend.

/// Why the CPU backend could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// The model has a shape or a quantisation the kernels do not implement.
    #[error("the CPU backend cannot run this model: {what} is {found}; expected {expected}")]
    Unsupported {
        /// Field or tensor.
        what: String,
        /// Value found.
        found: String,
        /// What is implemented.
        expected: &'static str,
    },
    /// The instruction set asked for does not exist on this machine, or its name is unknown.
    #[error("instruction set {found:?} cannot be used here; available: {available}")]
    BadIsa {
        /// As asked.
        found: String,
        /// Names that would work.
        available: String,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    BadToken {
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// The chunk or batch is empty or longer than allowed.
    #[error("a call has {found} tokens; 1 to {most} are allowed")]
    BadChunk {
        /// Tokens given.
        found: usize,
        /// Most allowed.
        most: usize,
    },
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
    /// The sequence was made by a model with other weights.
    #[error(
        "the sequence belongs to another model (fingerprint {found:016x}; this model is {expected:016x})"
    )]
    OtherModel {
        /// Of the sequence.
        found: u64,
        /// Of the model.
        expected: u64,
    },
    /// An earlier call on the sequence failed half-way, so its state is unknown.
    #[error("an earlier call on this sequence failed; restore a snapshot into it or make a new one")]
    Poisoned,
    /// The model computed a value that is not finite.
    #[error("the model produced a non-finite value at position {position}")]
    NonFinite {
        /// Position of the token whose activations or logits are not finite.
        position: usize,
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
    /// Memory could not be had.
    #[error("{asked} bytes for {what} could not be allocated; use a shorter context or fewer sequences")]
    OutOfMemory {
        /// Bytes.
        asked: usize,
        /// What they were for.
        what: &'static str,
    },
    /// The caller's interrupt asked to stop (see [`crate::CpuModel::set_interrupt`]).
    #[error("the call was interrupted; the sequence is as it was before")]
    Interrupted,
    /// A worker thread panicked inside a kernel. The pool goes on working.
    #[error("a compute thread panicked; see the log. The sequences of this call are lost")]
    WorkerPanicked,
    /// A worker thread could not be started.
    #[error("compute thread {index} could not be started: {source}; ask for fewer threads")]
    Spawn {
        /// Which thread.
        index: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, CpuError>;
