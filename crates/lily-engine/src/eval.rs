//! Teacher-forced evaluation of a backend against a reference: perplexity of both, top-1 agreement, and
//! `KL(reference || backend)`, position by position on given token sequences.
//!
//! Both run the same chunks side by side and only running sums are kept, so memory is bounded by two chunks of
//! logits. All statistics are in f64 over the whole vocabulary (unused rows included: they are part of what both
//! compute).

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{
    backend::{Backend, BackendError, Logits, SequenceId},
    sampling::select::{argmax, log_sum_exp},
};

/// Logits of one chunk, in values: 64 MiB.
const CHUNK_VALUES: usize = 16 << 20;

/// What an evaluation found. One position is one predicted token: a sequence of `n` tokens has `n - 1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Device name of the backend.
    pub backend: String,
    /// Device name of the reference.
    pub reference: String,
    /// Sequences evaluated.
    pub sequences: usize,
    /// Positions evaluated.
    pub positions: usize,
    /// `exp` of the backend's mean negative log-likelihood of the next token.
    pub perplexity: f64,
    /// The same of the reference.
    pub reference_perplexity: f64,
    /// `perplexity / reference_perplexity - 1`.
    pub perplexity_change: f64,
    /// Share of positions where both have the same most likely token (lowest id on ties), 0 to 1.
    pub top1_agreement: f64,
    /// Mean of `KL(reference || backend)`, in nats.
    pub mean_kl: f64,
    /// Largest `KL(reference || backend)`, in nats.
    pub max_kl: f64,
    /// Where it is: (index of the sequence, index of the token whose successor is predicted).
    pub max_kl_at: (usize, usize),
    /// Largest difference of two logits.
    pub max_logit_difference: f64,
    /// Time the backend took.
    pub backend_seconds: f64,
    /// Time the reference took.
    pub reference_seconds: f64,
}

/// How far an evaluation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Positions done.
    pub done: usize,
    /// Positions in all.
    pub total: usize,
}

/// Why an evaluation could not be made.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// No sequences.
    #[error("there are no token sequences to evaluate")]
    Empty,
    /// A sequence predicts nothing.
    #[error("sequence {sequence} has {found} tokens; at least 2 are needed")]
    TooShort {
        /// Its index.
        sequence: usize,
        /// Its length.
        found: usize,
    },
    /// A token id outside the vocabulary.
    #[error("sequence {sequence} has token id {id} at index {index}; the vocabulary has {vocab}")]
    BadToken {
        /// Index of the sequence.
        sequence: usize,
        /// Index in it.
        index: usize,
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// The two do not run the same model.
    #[error("{backend} has a vocabulary of {found}, {reference} of {expected}; both must run the same model")]
    Vocabulary {
        /// Device name of the backend.
        backend: &'static str,
        /// Its vocabulary.
        found: usize,
        /// Device name of the reference.
        reference: &'static str,
        /// Its vocabulary.
        expected: usize,
    },
    /// One of the two failed.
    #[error("{device}, sequence {sequence}: {source}")]
    Backend {
        /// Its device name.
        device: &'static str,
        /// Index of the sequence.
        sequence: usize,
        /// The reason.
        source: BackendError,
    },
}

/// Evaluates `backend` against `reference` on `sequences`, in chunks of at most `chunk` tokens. `progress` is called
/// after every chunk.
pub fn evaluate(
    reference: &mut dyn Backend,
    backend: &mut dyn Backend,
    sequences: &[Vec<u32>],
    chunk: usize,
    mut progress: impl FnMut(Progress),
) -> Result<Evaluation, EvalError> {
    let vocab = check(reference, backend, sequences)?;
    let chunk =
        chunk.min(reference.max_chunk()).min(backend.max_chunk()).min(CHUNK_VALUES / vocab.max(1)).max(1);
    let total = sequences.iter().map(|s| s.len() - 1).sum();
    let mut sums = Sums::default();
    let mut ours = Runner::new(backend);
    let mut theirs = Runner::new(reference);
    for (index, tokens) in sequences.iter().enumerate() {
        let inputs = &tokens[..tokens.len() - 1];
        ours.begin(index, inputs.len())?;
        theirs.begin(index, inputs.len())?;
        for (c, part) in inputs.chunks(chunk).enumerate() {
            theirs.compute(part)?;
            ours.compute(part)?;
            for i in 0..part.len() {
                let at = c * chunk + i;
                let row = i * vocab..(i + 1) * vocab;
                let (p, q) = (&theirs.logits[row.clone()], &ours.logits[row]);
                sums.add(p, q, tokens[at + 1], (index, at)).map_err(|who| {
                    let device = if who == Side::Reference { theirs.name() } else { ours.name() };
                    let source = BackendError::NonFinite { position: at };
                    EvalError::Backend { device, sequence: index, source }
                })?;
            }
            progress(Progress { done: sums.positions, total });
        }
    }
    let seconds = (ours.time.as_secs_f64(), theirs.time.as_secs_f64());
    let names = (ours.name(), theirs.name());
    Ok(sums.finish(names, seconds, sequences.len()))
}

fn check(reference: &dyn Backend, backend: &dyn Backend, sequences: &[Vec<u32>]) -> Result<usize, EvalError> {
    let (vocab, found) = (reference.config().vocab_size, backend.config().vocab_size);
    if vocab != found {
        let (backend, reference) = (backend.name(), reference.name());
        return Err(EvalError::Vocabulary { backend, found, reference, expected: vocab });
    }
    if sequences.is_empty() {
        return Err(EvalError::Empty);
    }
    for (sequence, tokens) in sequences.iter().enumerate() {
        if tokens.len() < 2 {
            return Err(EvalError::TooShort { sequence, found: tokens.len() });
        }
        if let Some((index, &id)) = tokens.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
            return Err(EvalError::BadToken { sequence, index, id, vocab });
        }
    }
    Ok(vocab)
}

/// One of the two, with its sequence, its logits of the current chunk `[tokens, vocab]` and its clock. Frees its
/// sequence when dropped.
struct Runner<'a> {
    backend: &'a mut dyn Backend,
    sequence: Option<SequenceId>,
    index: usize,
    logits: Vec<f32>,
    time: Duration,
}

impl<'a> Runner<'a> {
    fn new(backend: &'a mut dyn Backend) -> Self {
        Self { backend, sequence: None, index: 0, logits: Vec::new(), time: Duration::ZERO }
    }

    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn failed(&self, source: BackendError) -> EvalError {
        EvalError::Backend { device: self.backend.name(), sequence: self.index, source }
    }

    fn begin(&mut self, index: usize, capacity: usize) -> Result<(), EvalError> {
        self.end();
        self.index = index;
        self.sequence = Some(self.backend.new_sequence(capacity).map_err(|e| self.failed(e))?);
        Ok(())
    }

    fn compute(&mut self, tokens: &[u32]) -> Result<(), EvalError> {
        let started = Instant::now();
        let Some(sequence) = self.sequence else {
            return Err(self.failed(BackendError::Device("no sequence was begun".into())));
        };
        self.backend
            .prefill(sequence, tokens, Logits::All, &mut self.logits)
            .map_err(|source| self.failed(source))?;
        self.time += started.elapsed();
        let (found, expected) = (self.logits.len(), tokens.len() * self.backend.config().vocab_size);
        if found != expected {
            return Err(self.failed(BackendError::Device(format!("{found} logits; expected {expected}"))));
        }
        Ok(())
    }

    fn end(&mut self) {
        if let Some(sequence) = self.sequence.take() {
            self.backend.free_sequence(sequence);
        }
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Reference,
    Backend,
}

/// Running sums over positions.
#[derive(Debug, Default)]
struct Sums {
    positions: usize,
    nll: f64,
    reference_nll: f64,
    agree: usize,
    kl: f64,
    max_kl: f64,
    max_kl_at: (usize, usize),
    max_difference: f64,
}

impl Sums {
    /// Adds one position: logits `p` of the reference, `q` of the backend, the token that follows. Fails with the
    /// side that has a value that is not finite.
    fn add(&mut self, p: &[f32], q: &[f32], next: u32, at: (usize, usize)) -> Result<(), Side> {
        let best_p = argmax(p).ok_or(Side::Reference)?;
        let best_q = argmax(q).ok_or(Side::Backend)?;
        let (norm_p, norm_q) = (log_sum_exp(p), log_sum_exp(q));
        let mut kl = 0.0;
        for (&a, &b) in p.iter().zip(q) {
            let (a, b) = (a as f64, b as f64);
            self.max_difference = self.max_difference.max((a - b).abs());
            let log_p = a - norm_p;
            kl += log_p.exp() * (log_p - (b - norm_q));
        }
        // Rounding may leave -1e-17 where both are equal.
        let kl = kl.max(0.0);
        if kl > self.max_kl || self.positions == 0 {
            self.max_kl = kl;
            self.max_kl_at = at;
        }
        self.kl += kl;
        self.reference_nll += norm_p - p[next as usize] as f64;
        self.nll += norm_q - q[next as usize] as f64;
        self.agree += usize::from(best_p == best_q);
        self.positions += 1;
        Ok(())
    }

    fn finish(self, names: (&str, &str), seconds: (f64, f64), sequences: usize) -> Evaluation {
        let n = self.positions as f64;
        Evaluation {
            backend: names.0.into(),
            reference: names.1.into(),
            sequences,
            positions: self.positions,
            perplexity: (self.nll / n).exp(),
            reference_perplexity: (self.reference_nll / n).exp(),
            perplexity_change: ((self.nll - self.reference_nll) / n).exp_m1(),
            top1_agreement: self.agree as f64 / n,
            mean_kl: self.kl / n,
            max_kl: self.max_kl,
            max_kl_at: self.max_kl_at,
            max_logit_difference: self.max_difference,
            backend_seconds: seconds.0,
            reference_seconds: seconds.1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_against_hand_computed_values() {
        let mut sums = Sums::default();
        // p = (1/2, 1/2), q = (3/4, 1/4): KL = ln 2 - (ln 3) / 2 with the constants worked out.
        let (p, q) = ([0.0f32, 0.0], [3f32.ln(), 0.0]);
        sums.add(&p, &q, 1, (0, 0)).unwrap();
        let kl = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
        sums.add(&q, &q, 0, (0, 1)).unwrap();
        let e = sums.finish(("cpu", "reference"), (1.0, 2.0), 1);
        assert_eq!(e.positions, 2);
        assert!((e.mean_kl - kl / 2.0).abs() < 1e-7, "{}", e.mean_kl);
        assert!((e.max_kl - kl).abs() < 1e-7 && e.max_kl_at == (0, 0));
        assert_eq!(e.top1_agreement, 1.0);
        assert!((e.reference_perplexity - (0.5f64 * 0.75).powf(-0.5)).abs() < 1e-6);
        assert!((e.perplexity - (0.25f64 * 0.75).powf(-0.5)).abs() < 1e-6);
        assert!((e.perplexity_change - (e.perplexity / e.reference_perplexity - 1.0)).abs() < 1e-12);
        assert!((e.max_logit_difference - 3f64.ln()).abs() < 1e-6);
        let text = serde_json::to_string(&e).unwrap();
        assert_eq!(serde_json::from_str::<Evaluation>(&text).unwrap(), e);
    }

    #[test]
    fn a_side_that_is_not_finite_is_named() {
        let good = [0.0f32, 1.0];
        assert_eq!(Sums::default().add(&[f32::NAN, 0.0], &good, 0, (0, 0)), Err(Side::Reference));
        assert_eq!(Sums::default().add(&good, &[0.0, f32::INFINITY], 0, (0, 0)), Err(Side::Backend));
    }
}
