//! One timed run: prefill, then decode.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lily_engine::{Backend, Draw, Logits, SequenceId, argmax};

use super::saved::Saved;

/// Times of one run.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// From the first prompt token to the first generated token known; `None` when the context was saved before.
    pub prefill: Option<Duration>,
    /// All decode steps.
    pub decode: Duration,
    /// Decode steps timed.
    pub steps: usize,
}

/// Decode steps before the clock starts: a device that chooses tokens itself prepares three kinds of steps (ids from the
/// host, and from either of its two slots).
pub const WARM: usize = 3;

/// The contract's prompt: `((i * 2654435761) mod 2^32) mod vocab`, for `tokens` values of i from `first`.
pub fn prompt(first: usize, tokens: usize, vocab: usize) -> Vec<u32> {
    (first..first + tokens).map(|i| (i as u32).wrapping_mul(2_654_435_761) % vocab as u32).collect()
}

/// Warms up with the exact shapes, then prefills `tokens` tokens and decodes `steps` greedy tokens of `batch` sequences.
///
/// The prefill of the first sequence is timed; the others of a batch are filled, each with its own continuation of the
/// contract's ids, before the clock starts for decode. With `saved`, one sequence's context is read from there, or kept
/// there for the next time.
pub fn run(
    backend: &mut dyn Backend,
    tokens: usize,
    steps: usize,
    batch: usize,
    saved: Option<&Saved>,
) -> Result<Measured> {
    // Touches the weights and grows every buffer: one chunk (or the whole prompt when shorter) and a few steps.
    let chunk = tokens.min(backend.max_chunk());
    timed(backend, chunk, 2, batch, None)?;
    timed(backend, tokens, steps, batch, saved)
}

fn timed(
    backend: &mut dyn Backend,
    tokens: usize,
    steps: usize,
    batch: usize,
    saved: Option<&Saved>,
) -> Result<Measured> {
    let mut sequences = Vec::with_capacity(batch);
    let measured = prefill_and_decode(backend, tokens, steps, batch, saved, &mut sequences);
    for s in sequences {
        backend.free_sequence(s);
    }
    measured
}

fn prefill_and_decode(
    backend: &mut dyn Backend,
    tokens: usize,
    steps: usize,
    batch: usize,
    saved: Option<&Saved>,
    sequences: &mut Vec<SequenceId>,
) -> Result<Measured> {
    let vocab = backend.config().vocab_size;
    let mut logits = Vec::new();
    let mut step: Vec<(SequenceId, u32)> = Vec::with_capacity(batch);
    let mut prefill_time = None;
    for b in 0..batch {
        let s = backend.new_sequence(tokens + WARM + steps)?;
        sequences.push(s);
        if b == 0
            && let Some(saved) = saved
            && let Some((snapshot, next)) = saved.read(backend, tokens)?
        {
            backend.restore(s, &snapshot)?;
            step.push((s, next));
            continue;
        }
        let ids = prompt(b * tokens, tokens, vocab);
        let start = Instant::now();
        prefill(backend, s, &ids, &mut logits)?;
        step.push((s, choose(&logits)?));
        if b == 0 {
            prefill_time = Some(start.elapsed());
            if let Some(saved) = saved {
                let snapshot = backend.snapshot(s)?;
                saved.write(backend, &snapshot, step[0].1)?;
            }
        }
    }
    // Grows what decode at this context needs, and touches what was restored.
    if steps > 0 {
        decode(backend, &mut step, WARM, &mut logits)?;
    }
    let start = Instant::now();
    decode(backend, &mut step, steps, &mut logits)?;
    Ok(Measured { prefill: prefill_time, decode: start.elapsed(), steps })
}

/// Greedy steps as the engine takes them: chosen by the device where it does that, else by the host.
fn decode(
    backend: &mut dyn Backend,
    step: &mut [(SequenceId, u32)],
    steps: usize,
    logits: &mut Vec<f32>,
) -> Result<()> {
    let vocab = backend.config().vocab_size;
    if step.len() <= backend.most_drawn() {
        let draws = vec![Some(Draw::GREEDY); step.len()];
        let mut last = Vec::new();
        backend.decode_run(step, &draws, steps, vocab, &mut |chosen| {
            last.clear();
            last.extend_from_slice(chosen.ids);
            true
        })?;
        step.iter_mut().zip(last).for_each(|(slot, id)| slot.1 = id);
        return Ok(());
    }
    for _ in 0..steps {
        backend.decode(step, logits)?;
        for (slot, row) in step.iter_mut().zip(logits.chunks_exact(vocab)) {
            slot.1 = choose(row)?;
        }
    }
    Ok(())
}

fn prefill(
    backend: &mut dyn Backend,
    sequence: SequenceId,
    ids: &[u32],
    logits: &mut Vec<f32>,
) -> Result<()> {
    let chunks = ids.chunks(backend.max_chunk());
    let last = chunks.len() - 1;
    for (i, chunk) in chunks.enumerate() {
        let wanted = if i == last { Logits::Last } else { Logits::None };
        backend.prefill(sequence, chunk, wanted, logits)?;
    }
    Ok(())
}

/// The greedy choice; weights of a damaged checkpoint may give no finite logits.
fn choose(logits: &[f32]) -> Result<u32> {
    Ok(argmax(logits).context("the logits are not all finite")? as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_follows_the_contract() {
        let ids = prompt(2, 5, 248_320);
        let expected: Vec<u32> =
            (2..7u64).map(|i| ((i * 2_654_435_761) % (1 << 32) % 248_320) as u32).collect();
        assert_eq!(ids, expected);
    }
}
