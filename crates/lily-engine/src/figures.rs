//! What an engine did since it started.

use serde::Serialize;

use crate::cache::CacheFigures;

/// Counts since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EngineFigures {
    /// Requests that began to run.
    pub requests: u64,
    /// Requests refused since the queue was full.
    pub refused: u64,
    /// Requests that ended by a stop token, by length, cancelled, by their deadline, by an error.
    pub ended: EndedFigures,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Seconds it took.
    pub prefill_seconds: f64,
    /// Prefill calls.
    pub prefill_chunks: u64,
    /// Tokens generated.
    pub decode_tokens: u64,
    /// Seconds the decode calls took.
    pub decode_seconds: f64,
    /// Decode calls by the number of sequences in them: `[i]` had `i + 1`.
    pub decode_batches: Vec<u64>,
    /// The prefix cache.
    pub cache: CacheFigures,
}

/// How requests ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct EndedFigures {
    /// A stop token.
    pub stop: u64,
    /// `max_tokens` or the context limit.
    pub length: u64,
    /// The caller cancelled.
    pub cancelled: u64,
    /// The deadline passed.
    pub deadline: u64,
    /// An error.
    pub failed: u64,
}

impl EngineFigures {
    pub(crate) fn decoded(&mut self, batch: usize, seconds: f64) {
        if self.decode_batches.len() < batch {
            self.decode_batches.resize(batch, 0);
        }
        self.decode_batches[batch - 1] += 1;
        self.decode_tokens += batch as u64;
        self.decode_seconds += seconds;
    }
}
