//! A sequence with the tokens it has seen, and making it equal a prompt.
//!
//! [`Timelines::sync`] is the one place that decides how a prompt's state is had. A sequence only grows (GDN state
//! cannot be cut back), so there are three ways, tried in this order:
//!
//! 1. reuse the last generation's sequence, when the prompt extends exactly what it has seen;
//! 2. restore the checkpoint of the last long prompt, when the prompt extends that. It was taken a few tokens before
//!    the prompt's end, since chat templates render the last assistant turn differently once it is history (Qwen's
//!    drop its `<think>` block): what was generated is then of no use, but the conversation before it is;
//! 3. start from nothing. The reason is told.
//!
//! Both kept things belong to the last requests only; a real prefix cache can replace [`Timelines`] without a change
//! for its callers.

use crate::backend::{Backend, BackendError, Logits, SequenceId, Snapshot};

/// A sequence, the tokens it has seen, and the logits of the last one.
#[derive(Debug)]
pub struct Timeline {
    sequence: SequenceId,
    tokens: Vec<u32>,
    /// `[vocab]`, or empty when the logits of the last position were not asked for.
    logits: Vec<f32>,
}

impl Timeline {
    /// An empty timeline with room for `capacity` tokens.
    pub fn new(backend: &mut dyn Backend, capacity: usize) -> Result<Self, BackendError> {
        Ok(Self { sequence: backend.new_sequence(capacity)?, tokens: Vec::new(), logits: Vec::new() })
    }

    /// The backend's sequence.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Tokens seen, oldest first.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Logits of the last token, `[vocab]`; `None` after an inner chunk.
    pub fn logits(&self) -> Option<&[f32]> {
        (!self.logits.is_empty()).then_some(&self.logits)
    }

    /// Appends a chunk (1 to `max_chunk` tokens); `last` asks for the logits of its last token. After an error the
    /// timeline must be [freed](Timeline::free).
    pub fn prefill(
        &mut self,
        backend: &mut dyn Backend,
        chunk: &[u32],
        last: bool,
    ) -> Result<(), BackendError> {
        let logits = if last { Logits::Last } else { Logits::None };
        self.logits.clear();
        backend.prefill(self.sequence, chunk, logits, &mut self.logits)?;
        self.tokens.extend_from_slice(chunk);
        if last { self.check_row(backend) } else { Ok(()) }
    }

    /// Appends one token and computes its logits. After an error the timeline must be [freed](Timeline::free).
    pub fn decode(&mut self, backend: &mut dyn Backend, token: u32) -> Result<(), BackendError> {
        self.logits.clear();
        backend.decode(&[(self.sequence, token)], &mut self.logits)?;
        self.tokens.push(token);
        self.check_row(backend)
    }

    /// Replaces the state by a checkpoint's. After an error the timeline must be [freed](Timeline::free).
    fn restore(&mut self, backend: &mut dyn Backend, checkpoint: &Checkpoint) -> Result<(), BackendError> {
        backend.restore(self.sequence, &checkpoint.snapshot)?;
        self.logits.clear();
        self.tokens.clone_from(&checkpoint.tokens);
        Ok(())
    }

    /// Frees the sequence.
    pub fn free(self, backend: &mut dyn Backend) {
        backend.free_sequence(self.sequence);
    }

    fn check_row(&self, backend: &dyn Backend) -> Result<(), BackendError> {
        let (found, expected) = (self.logits.len(), backend.config().vocab_size);
        if found == expected {
            return Ok(());
        }
        Err(BackendError::Device(format!(
            "backend {} gave {found} logits; expected {expected}",
            backend.name()
        )))
    }
}

/// A sequence's state at a position, with the tokens that led there.
#[derive(Debug)]
struct Checkpoint {
    tokens: Vec<u32>,
    snapshot: Snapshot,
}

/// How a prompt's state was had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// The kept timeline is a prefix of the prompt.
    Reused,
    /// The checkpoint is a prefix of the prompt.
    Restored,
    /// From nothing: no timeline is kept.
    Empty,
    /// From nothing: the prompt differs from the kept timeline after `common` tokens.
    Diverges {
        /// Tokens in common.
        common: usize,
    },
    /// From nothing: the prompt is a prefix of the kept timeline (or equal to it, with the logits of its end unknown).
    Shorter,
    /// From nothing: the backend no longer has the kept sequence at its position.
    Lost,
}

/// Tokens before a prompt's end where its checkpoint is taken: more than the opener of an assistant turn has (7 in
/// Qwen's template with thinking off, `<|im_start|> assistant \n <think> \n\n </think> \n\n`).
const HELD_BACK: usize = 8;

/// Shortest checkpoint: recomputing fewer tokens costs less than keeping them.
const SHORTEST: usize = 32;

/// Largest state that is copied for a checkpoint, in bytes. A sequence of Qwen3.6-35B-A3B takes 63 MiB and 20 KiB a
/// token, so 1 GiB is 49,000 tokens: copied in some 0.2 s, against minutes of computing.
const LARGEST: usize = 1 << 30;

/// What outlives its generation: the last timeline and the last checkpoint.
#[derive(Debug)]
pub struct Timelines {
    capacity: usize,
    kept: Option<Timeline>,
    checkpoint: Option<Checkpoint>,
}

impl Timelines {
    /// Makes timelines of up to `capacity` tokens.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, kept: None, checkpoint: None }
    }

    /// A timeline whose tokens are a prefix of `prompt`; append the others to it. When it has them all, its logits
    /// are known. A kept timeline that is no use here is freed first, so that two never take memory at once.
    pub fn sync(
        &mut self,
        backend: &mut dyn Backend,
        prompt: &[u32],
    ) -> Result<(Timeline, Sync), BackendError> {
        let kept = self.kept.take();
        let why = kept.as_ref().map_or(Sync::Empty, |t| match_prefix(backend, t, prompt));
        let reusable = if why == Sync::Reused { kept.as_ref().map_or(0, |t| t.tokens.len()) } else { 0 };
        let checkpoint = self.checkpoint.take_if(|c| {
            c.tokens.len() > reusable && c.tokens.len() < prompt.len() && prompt.starts_with(&c.tokens)
        });
        if let Some(checkpoint) = checkpoint {
            let mut timeline = match kept {
                Some(timeline) => timeline,
                None => Timeline::new(backend, self.capacity)?,
            };
            match timeline.restore(backend, &checkpoint) {
                Ok(()) => {
                    self.checkpoint = Some(checkpoint);
                    return Ok((timeline, Sync::Restored));
                }
                Err(error) => {
                    tracing::warn!(%error, "a checkpoint could not be restored; the prompt is computed");
                    timeline.free(backend);
                    return Ok((Timeline::new(backend, self.capacity)?, Sync::Lost));
                }
            }
        }
        match (why, kept) {
            (Sync::Reused, Some(timeline)) => Ok((timeline, why)),
            (_, kept) => {
                if let Some(useless) = kept {
                    useless.free(backend);
                }
                Ok((Timeline::new(backend, self.capacity)?, why))
            }
        }
    }

    /// Where in a prompt of `len` tokens to call [`checkpoint`](Timelines::checkpoint), if at all.
    pub fn checkpoint_position(len: usize) -> Option<usize> {
        len.checked_sub(HELD_BACK).filter(|&at| at >= SHORTEST)
    }

    /// Replaces the checkpoint by the state of `timeline`. Where that cannot be had there is none, and prompts to
    /// come are computed.
    pub fn checkpoint(&mut self, backend: &mut dyn Backend, timeline: &Timeline) {
        // The old one goes first: two would take twice the memory.
        self.checkpoint = None;
        let memory = backend.memory();
        if memory.kv.saturating_add(memory.state) > LARGEST {
            tracing::debug!(?memory, "the state is too large for a checkpoint");
            return;
        }
        match backend.snapshot(timeline.sequence) {
            Ok(snapshot) => {
                self.checkpoint = Some(Checkpoint { tokens: timeline.tokens.clone(), snapshot });
            }
            Err(error) => tracing::warn!(%error, "no checkpoint could be taken"),
        }
    }

    /// Keeps a timeline for prompts to come. It must not have seen an error.
    pub fn keep(&mut self, backend: &mut dyn Backend, timeline: Timeline) {
        if let Some(old) = self.kept.replace(timeline) {
            old.free(backend);
        }
    }

    /// Frees what is kept.
    pub fn clear(&mut self, backend: &mut dyn Backend) {
        self.checkpoint = None;
        if let Some(old) = self.kept.take() {
            old.free(backend);
        }
    }
}

fn match_prefix(backend: &dyn Backend, kept: &Timeline, prompt: &[u32]) -> Sync {
    let seen = kept.tokens();
    let common = seen.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    if common < seen.len().min(prompt.len()) {
        Sync::Diverges { common }
    } else if seen.len() > prompt.len() || (seen.len() == prompt.len() && kept.logits().is_none()) {
        Sync::Shorter
    } else if backend.position(kept.sequence()).ok() != Some(seen.len()) {
        Sync::Lost
    } else {
        Sync::Reused
    }
}
