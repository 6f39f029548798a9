//! A sequence with the tokens it has seen.
//!
//! A timeline only grows, because GDN state cannot be cut back: it is made equal to a prompt by restoring the deepest
//! checkpoint that is a prefix of it ([`crate::cache`]) and computing the rest.

use crate::{
    backend::{Backend, BackendError, Logits, SequenceId},
    cache::{CheckpointKind, Mark, SHORTEST},
};

/// A backend's sequence and its tokens.
#[derive(Debug)]
pub struct Timeline {
    /// The backend's sequence.
    pub sequence: SequenceId,
    /// Tokens seen, oldest first.
    pub tokens: Vec<u32>,
}

impl Timeline {
    /// Appends a chunk (1 to `max_chunk` tokens); `last` asks for the logits of its last token, which replace `out`.
    /// After an error other than [`BackendError::Interrupted`] the sequence must be freed.
    pub fn prefill(
        &mut self,
        backend: &mut dyn Backend,
        chunk: &[u32],
        last: bool,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let logits = if last { Logits::Last } else { Logits::None };
        out.clear();
        backend.prefill(self.sequence, chunk, logits, out)?;
        self.tokens.extend_from_slice(chunk);
        if last { check_rows(backend, out, 1) } else { Ok(()) }
    }
}

/// That `out` has the logits of `rows` tokens.
pub fn check_rows(backend: &dyn Backend, out: &[f32], rows: usize) -> Result<(), BackendError> {
    let (found, expected) = (out.len(), rows * backend.config().vocab_size);
    if found == expected {
        return Ok(());
    }
    let name = backend.name();
    Err(BackendError::Device(format!("backend {name} gave {found} logits; expected {expected}")))
}

/// Tokens before a prompt's end where a checkpoint is taken when the request names no place: more than the opener of
/// an assistant turn has (7 in Qwen's template with thinking off, `<|im_start|> assistant \n <think> \n\n </think> \n\n`).
pub const HELD_BACK: usize = 8;

/// Least distance of checkpoints at turn closures: a state of Qwen3.6-35B-A3B takes as much memory as the KV of 3,000
/// tokens.
const CLOSURE_GAP: usize = 512;

/// Least stride. Strides are powers of two, so that what a longer prompt keeps is a part of what a shorter one kept.
const LEAST_STRIDE: usize = 2048;

/// Most checkpoints at strides in a prompt.
const STRIDES: usize = 8;

/// The stride of a prompt of `len` tokens.
pub fn stride(len: usize) -> usize {
    len.div_ceil(STRIDES).next_power_of_two().max(LEAST_STRIDE)
}

/// Where checkpoints are taken in a prompt of `len` tokens, of which the first `from` are there already: in order, all
/// after `from` and before the end.
pub fn places(marks: &[Mark], from: usize, len: usize) -> Vec<Mark> {
    let first_of_use = from.max(SHORTEST - 1);
    let mut wanted: Vec<Mark> =
        marks.iter().copied().filter(|m| m.position > first_of_use && m.position < len).collect();
    if !marks.iter().any(|m| m.kind == CheckpointKind::BeforeOpener) && len > first_of_use + HELD_BACK {
        wanted.push(Mark { position: len - HELD_BACK, kind: CheckpointKind::BeforeOpener });
    }
    let stride = stride(len);
    let first = (from / stride + 1) * stride;
    wanted
        .extend((first..len).step_by(stride).map(|position| Mark { position, kind: CheckpointKind::Stride }));
    wanted.sort_unstable();
    wanted.dedup_by_key(|m| m.position);
    // Turn closures and strides give way to what is taken anyway, and to each other.
    let fixed = |m: &Mark| matches!(m.kind, CheckpointKind::SystemEnd | CheckpointKind::BeforeOpener);
    let always: Vec<usize> = wanted.iter().filter(|m| fixed(m)).map(|m| m.position).collect();
    let mut last = from;
    wanted.retain(|m| {
        let near = always.iter().any(|p| p.abs_diff(m.position) < CLOSURE_GAP);
        let keep = fixed(m) || (!near && m.position - last >= CLOSURE_GAP);
        if keep {
            last = m.position;
        }
        keep
    });
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(position: usize, kind: CheckpointKind) -> Mark {
        Mark { position, kind }
    }

    #[test]
    fn places_of_prompts() {
        use CheckpointKind::{BeforeOpener, Stride, SystemEnd, TurnClosure};
        assert_eq!(places(&[], 0, 100), [mark(92, BeforeOpener)]);
        assert_eq!(places(&[], 95, 100), []);
        assert_eq!(places(&[], 0, 39), []);
        assert_eq!(places(&[], 0, 40), [mark(32, BeforeOpener)]);
        let marks = [mark(40, SystemEnd), mark(70, TurnClosure), mark(95, BeforeOpener)];
        assert_eq!(places(&marks, 0, 100), [marks[0], marks[2]]);
        assert_eq!(places(&marks, 40, 100), [marks[2]]);
        // The mark of another text, at or after the end.
        assert_eq!(places(&[mark(100, BeforeOpener), mark(7000, SystemEnd)], 0, 100), []);
        let long =
            places(&[mark(50, SystemEnd), mark(3000, TurnClosure), mark(9_990, BeforeOpener)], 0, 10_000);
        assert_eq!(
            long,
            [
                mark(50, SystemEnd),
                mark(2048, Stride),
                mark(3000, TurnClosure),
                mark(4096, Stride),
                mark(6144, Stride),
                mark(8192, Stride),
                mark(9_990, BeforeOpener)
            ]
        );
    }

    #[test]
    fn strides_nest_and_are_few() {
        for len in [1, 2048, 16_384, 16_385, 100_000, 262_144] {
            assert!(stride(len).is_power_of_two() && len / stride(len) <= STRIDES, "{len}");
        }
        assert_eq!(stride(262_144), 32_768);
    }
}
