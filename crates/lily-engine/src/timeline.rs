//! A sequence with the tokens it has seen, and making it equal a prompt.
//!
//! [`Timelines::sync`] is the one place that decides how a prompt's state is had: by reusing the sequence of the last
//! generation when the prompt extends exactly what that sequence has seen, else from the start. A sequence only
//! grows (GDN state cannot be cut back), so anything but an extension is a miss, and every miss has a reason.

use crate::backend::{Backend, BackendError, Logits, SequenceId};

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

/// How a prompt's state was had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// The kept timeline is a prefix of the prompt.
    Reused,
    /// No timeline is kept.
    Empty,
    /// The prompt differs from the kept timeline after `common` tokens.
    Diverges {
        /// Tokens in common.
        common: usize,
    },
    /// The prompt is a prefix of the kept timeline (or equal to it, with the logits of its end unknown).
    Shorter,
    /// The backend no longer has the kept sequence at its position.
    Lost,
}

/// The timelines that outlive their generation: for now the last one.
#[derive(Debug)]
pub struct Timelines {
    capacity: usize,
    kept: Option<Timeline>,
}

impl Timelines {
    /// Keeps timelines of up to `capacity` tokens.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, kept: None }
    }

    /// A timeline whose tokens are a prefix of `prompt`; append the others to it. When it has them all, its logits
    /// are known. A kept timeline that is no use here is freed first, so that two never take memory at once.
    pub fn sync(
        &mut self,
        backend: &mut dyn Backend,
        prompt: &[u32],
    ) -> Result<(Timeline, Sync), BackendError> {
        let why = match &self.kept {
            None => Sync::Empty,
            Some(t) => match_prefix(backend, t, prompt),
        };
        match (why, self.kept.take()) {
            (Sync::Reused, Some(timeline)) => Ok((timeline, why)),
            (_, kept) => {
                if let Some(useless) = kept {
                    useless.free(backend);
                }
                Ok((Timeline::new(backend, self.capacity)?, why))
            }
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
