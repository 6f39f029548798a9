//! What a device must be able to do with the model.
//!
//! A backend owns the weights and every sequence's state (KV cache, GDN state, convolution tail). A sequence
//! only grows by [`Backend::prefill`] and [`Backend::decode`], or is replaced whole by [`Backend::restore`]:
//! GDN state cannot be cut back.

pub mod cpu;
pub mod gpu;
pub mod reference;

pub use lily_gpu::{Chosen, Draw};
use lily_model::ModelConfig;

/// Names a sequence inside its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// Which logits a prefill returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logits {
    /// None: an inner chunk of a longer prompt.
    None,
    /// Of the last position, `[vocab]`.
    Last,
    /// Of every position of the chunk, `[tokens, vocab]`.
    All,
}

/// A sequence's whole state at a position; restoring it needs no recomputation.
///
/// The layout is the backend's own; `format` says which backend and version wrote it.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Tokens the state has seen.
    pub position: usize,
    /// Backend name and layout version, for example `cpu/1`.
    pub format: String,
    /// KV, GDN state and convolution tails.
    pub data: Vec<u8>,
}

/// Positions of a KV page, see [`Backend::read_page`].
pub const PAGE: usize = lily_cpu::PAGE;

/// Bytes in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryFigures {
    /// Weights (mapped weights count: they are resident once used).
    pub weights: usize,
    /// KV caches of live sequences.
    pub kv: usize,
    /// GDN and convolution state of live sequences.
    pub state: usize,
    /// Activations and other scratch.
    pub scratch: usize,
}

/// Why a backend could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The sequence does not exist (any more).
    #[error("sequence {0:?} does not exist on this backend")]
    UnknownSequence(SequenceId),
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
    /// The chunk is empty or longer than [`Backend::max_chunk`].
    #[error("a prefill chunk has {found} tokens; 1 to {most} are allowed")]
    BadChunk {
        /// Tokens given.
        found: usize,
        /// Most allowed.
        most: usize,
    },
    /// The snapshot was written by another backend or for another model.
    #[error("snapshot of format {found:?} cannot be restored here; expected {expected:?}")]
    BadSnapshot {
        /// Its format.
        found: String,
        /// Ours.
        expected: String,
    },
    /// Not the device's doing: the request's constraint (a grammar) cannot go on.
    #[error("the constraint on the output cannot be followed: {0}")]
    Constraint(crate::constraint::ConstraintError),
    /// The model computed a value that is not finite.
    #[error("the model produced a non-finite value at position {position}; the request was stopped")]
    NonFinite {
        /// Position of the token whose logits are not finite.
        position: usize,
    },
    /// Memory for the sequence could not be had.
    #[error("{asked} bytes for a sequence of {capacity} tokens could not be allocated")]
    OutOfMemory {
        /// Bytes.
        asked: usize,
        /// Tokens.
        capacity: usize,
    },
    /// The caller's interrupt asked to stop (see [`Backend::set_interrupt`]).
    #[error("the call was interrupted")]
    Interrupted,
    /// The device failed.
    #[error("device failure: {0}")]
    Device(String),
}

/// Says whether the call in progress should be given up.
pub type Interrupt = lily_cpu::Interrupt;

/// A model loaded on a device.
pub trait Backend: Send {
    /// Device name: `cpu`, `reference`, `metal`, `cuda`, `soft`.
    fn name(&self) -> &'static str;

    /// The model's sizes.
    fn config(&self) -> &ModelConfig;

    /// Most tokens one [`prefill`](Backend::prefill) call takes.
    fn max_chunk(&self) -> usize;

    /// Tokens of a prompt to compute at a time while nobody waits: so few that a request can be given up soon, at most
    /// [`max_chunk`](Backend::max_chunk).
    fn usual_chunk(&self) -> usize {
        self.max_chunk().min(512)
    }

    /// An empty sequence that can grow to `capacity` tokens.
    fn new_sequence(&mut self, capacity: usize) -> Result<SequenceId, BackendError>;

    /// Frees a sequence. Unknown ids are ignored.
    fn free_sequence(&mut self, sequence: SequenceId);

    /// Tokens the sequence has seen.
    fn position(&self, sequence: SequenceId) -> Result<usize, BackendError>;

    /// Appends `tokens` (1 to `max_chunk`) and replaces `out` by the logits asked for.
    /// On an error the sequence must be freed or restored before it is used again.
    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        logits: Logits,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError>;

    /// From now on, long calls ask `interrupt` while they compute and end with [`BackendError::Interrupted`] when it says
    /// so, the sequence as it was before the call. `None`: nothing is asked. Backends whose chunks take milliseconds need not
    /// implement it.
    fn set_interrupt(&mut self, _interrupt: Option<Interrupt>) {}

    /// Appends one token to each of several different sequences and replaces `out` by their logits,
    /// `[batch.len(), vocab]`.
    fn decode(&mut self, batch: &[(SequenceId, u32)], out: &mut Vec<f32>) -> Result<(), BackendError>;

    /// Most sequences of a [`decode_run`](Backend::decode_run); 0: this backend leaves the choice to the host.
    fn most_drawn(&self) -> usize {
        0
    }

    /// Appends one token to each of several different sequences and then what the device chooses, for up to `steps` steps.
    ///
    /// `each` gets what a step has chosen and says whether another one is wanted. The next step may be under way by then:
    /// it is finished after `false`, and `each` called for it too. So every sequence grows by a token for each call of
    /// `each`, and what the last call brings is not appended. Ids from `valid` on are never chosen. A sequence without
    /// a draw gives its logits instead; then `steps` is 1.
    fn decode_run(
        &mut self,
        _batch: &[(SequenceId, u32)],
        _draws: &[Option<Draw>],
        _steps: usize,
        _valid: usize,
        _each: &mut dyn FnMut(Chosen<'_>) -> bool,
    ) -> Result<(), BackendError> {
        Err(BackendError::Device(format!("backend {} does not choose tokens", self.name())))
    }

    /// A copy of the sequence's state.
    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot, BackendError>;

    /// Replaces the sequence's state by the snapshot's.
    fn restore(&mut self, sequence: SequenceId, snapshot: &Snapshot) -> Result<(), BackendError>;

    /// Names the weights and the layout of snapshots: what one backend wrote can be restored by any other of the same
    /// identity, also in a later process. `None`: snapshots are of no use beyond this process.
    fn identity(&self) -> Option<String> {
        None
    }

    /// The sequence's state without what [`read_page`](Backend::read_page) gives. A backend whose KV cannot be had in
    /// pages gives its whole [`snapshot`](Backend::snapshot).
    fn snapshot_state(&mut self, sequence: SequenceId) -> Result<Snapshot, BackendError> {
        self.snapshot(sequence)
    }

    /// KV of the positions `page * PAGE` up to `(page + 1) * PAGE` or the sequence's position. The whole pages of two
    /// sequences that began with the same tokens are interchangeable. Empty where snapshots are whole.
    fn read_page(&mut self, _sequence: SequenceId, _page: usize) -> Result<Vec<u8>, BackendError> {
        Ok(Vec::new())
    }

    /// Replaces the sequence's state by what [`snapshot_state`](Backend::snapshot_state) gave, with all
    /// `position.div_ceil(PAGE)` pages.
    fn restore_pages(
        &mut self,
        sequence: SequenceId,
        state: &Snapshot,
        _pages: &[&[u8]],
    ) -> Result<(), BackendError> {
        self.restore(sequence, state)
    }

    /// Bytes in use.
    fn memory(&self) -> MemoryFigures;
}
