//! Choosing the next token from a row of logits.
//!
//! The order is fixed and documented on [`SamplingParams`]: logit bias, repetition penalty, presence and frequency
//! penalties, temperature, top-k, top-p, min-p, draw. Sets are exact: top-k keeps exactly `k` tokens, top-p the
//! smallest set that reaches its mass, and ties go to the lower id. Probabilities are computed in f64.

pub(crate) mod penalties;
mod rng;
pub mod select;

use penalties::History;

use crate::{
    constraint::{ConstraintError, ConstraintHandle, TokenMask},
    request::{SamplingParams, TokenLogprobs},
};

/// Tokens whose weight relative to the most likely one is below `exp(-60)` are left out of sets and draws: all of a
/// 248,320-token vocabulary together weigh less than 2.2e-21 there, far below the 2^-53 steps of a draw.
const NEGLIGIBLE: f64 = -60.0;

/// Tokens that top-p looks at first.
const FEW: usize = 256;

/// Why no token could be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// A logit is NaN or infinite.
    #[error("the logits hold a value that is not finite")]
    NonFinite,
    /// The row is shorter than the vocabulary.
    #[error("a row of {found} logits; expected at least {expected}")]
    Shape {
        /// Logits given.
        found: usize,
        /// Ids that may be sampled.
        expected: usize,
    },
    /// The constraint failed or allows no token.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub id: u32,
    /// When asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// A token that survived truncation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// Logit after bias and penalties, before the temperature.
    pub logit: f32,
    /// `exp((logit - max) / temperature)`: its probability but for the normaliser.
    pub weight: f64,
}

/// The sampling state of one generation.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    valid_vocab: usize,
    logprobs: Option<usize>,
    history: History,
    /// Tokens drawn so far: the counter of the random numbers.
    drawn: u64,
    adjusted: Vec<f32>,
    ranked: Vec<(u32, f32)>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler for a generation after `prompt`. Ids from `valid_vocab` on are never chosen. `logprobs`: as in
    /// [`GenerateRequest`](crate::GenerateRequest). `params` must have passed
    /// [`validate`](crate::validate::sampling).
    pub fn new(params: SamplingParams, prompt: &[u32], valid_vocab: usize, logprobs: Option<usize>) -> Self {
        let mut history = History::default();
        if params.repetition_penalty != 1.0 {
            prompt.iter().for_each(|&id| history.add_prompt(id));
        }
        Self {
            params,
            valid_vocab,
            logprobs,
            history,
            drawn: 0,
            adjusted: Vec::new(),
            ranked: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// Chooses a token from `logits` (`[vocab]`) and notes it as generated.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Sampled, SampleError> {
        self.sample_masked(logits, None)
    }

    /// [`sample`](Self::sample) among the tokens that `constraint` allows, which is told what was chosen.
    pub fn sample_within(
        &mut self,
        logits: &[f32],
        constraint: Option<&ConstraintHandle>,
    ) -> Result<Sampled, SampleError> {
        let Some(constraint) = constraint else { return self.sample_masked(logits, None) };
        constraint.with(|constraint| {
            let sampled = self.sample_masked(logits, constraint.mask()?)?;
            constraint.accept(sampled.id)?;
            Ok(sampled)
        })
    }

    /// [`sample`](Self::sample) among the tokens in `mask`. What is not in it is out before temperature, top-k, top-p
    /// and min-p, so that these choose among tokens that may come; log-probabilities stay the model's raw ones.
    pub fn sample_masked(
        &mut self,
        logits: &[f32],
        mask: Option<&TokenMask>,
    ) -> Result<Sampled, SampleError> {
        let id = if self.params.temperature == 0.0 {
            self.greedy(logits, mask)?
        } else {
            self.draw(logits, mask)?
        };
        let logprobs = self.logprobs.map(|n| self.raw_logprobs(logits, id, n));
        self.drawn += 1;
        if penalties::looks_at_history(&self.params) {
            self.history.add_generated(id);
        }
        Ok(Sampled { id, logprobs })
    }

    /// The tokens that may be drawn next with their weights, after everything but the draw, in no particular order.
    /// At temperature 0 this is the arg-max alone.
    pub fn distribution(&mut self, logits: &[f32]) -> Result<&[Candidate], SampleError> {
        if self.params.temperature == 0.0 {
            let id = self.greedy(logits, None)?;
            self.candidates.clear();
            self.candidates.push(Candidate { id, logit: logits[id as usize], weight: 1.0 });
        } else {
            self.truncate(logits, None)?;
        }
        Ok(&self.candidates)
    }

    fn greedy(&mut self, logits: &[f32], mask: Option<&TokenMask>) -> Result<u32, SampleError> {
        self.check(logits)?;
        let best = if mask.is_some() || penalties::any(&self.params) {
            self.adjust(logits, mask)?;
            select::argmax(&self.adjusted)
        } else {
            select::argmax(&logits[..self.valid_vocab])
        };
        best.map(|i| i as u32).ok_or(SampleError::NonFinite)
    }

    fn draw(&mut self, logits: &[f32], mask: Option<&TokenMask>) -> Result<u32, SampleError> {
        self.truncate(logits, mask)?;
        let total: f64 = self.candidates.iter().map(|c| c.weight).sum();
        let mut left = rng::uniform(self.params.seed, self.drawn) * total;
        for c in &self.candidates {
            left -= c.weight;
            if left < 0.0 {
                return Ok(c.id);
            }
        }
        // Rounding may leave a remainder of some 1e-16 of the total.
        self.candidates.last().map(|c| c.id).ok_or(SampleError::NonFinite)
    }

    fn check(&self, logits: &[f32]) -> Result<(), SampleError> {
        if logits.len() < self.valid_vocab || self.valid_vocab == 0 {
            return Err(SampleError::Shape { found: logits.len(), expected: self.valid_vocab.max(1) });
        }
        // Unused rows count too: a NaN there means the hidden state or the weights are broken. The rest is checked
        // where it is read.
        if select::all_finite(&logits[self.valid_vocab..]) { Ok(()) } else { Err(SampleError::NonFinite) }
    }

    /// Fills `adjusted` with the valid logits after bias, penalties and mask.
    fn adjust(&mut self, logits: &[f32], mask: Option<&TokenMask>) -> Result<(), SampleError> {
        if !select::all_finite(&logits[..self.valid_vocab]) {
            return Err(SampleError::NonFinite);
        }
        self.adjusted.clear();
        self.adjusted.extend_from_slice(&logits[..self.valid_vocab]);
        penalties::apply(&self.params, &self.history, &mut self.adjusted);
        if let Some(mask) = mask {
            mask.apply(&mut self.adjusted);
            // Real logits are far above the value that stands for "not allowed".
            if self.adjusted.iter().all(|&logit| logit == f32::MIN) {
                return Err(
                    ConstraintError("the constraint allows no token of the vocabulary".to_string()).into()
                );
            }
        }
        Ok(())
    }

    /// Fills `candidates`.
    fn truncate(&mut self, logits: &[f32], mask: Option<&TokenMask>) -> Result<(), SampleError> {
        self.check(logits)?;
        let values = if mask.is_some() || penalties::any(&self.params) {
            self.adjust(logits, mask)?;
            &self.adjusted
        } else {
            &logits[..self.valid_vocab]
        };
        let max = values[select::argmax(values).ok_or(SampleError::NonFinite)?];
        let temperature = self.params.temperature as f64;
        let scaled = |logit: f32| (logit as f64 - max as f64) / temperature;
        let candidates = &mut self.candidates;
        candidates.clear();
        if self.params.top_k > 0 && self.params.top_k < values.len() {
            select::top_k(values, self.params.top_k, &mut self.ranked);
            candidates.extend(self.ranked.iter().map(|&(id, logit)| Candidate {
                id,
                logit,
                weight: scaled(logit).exp(),
            }));
        } else {
            candidates.extend(values.iter().enumerate().filter_map(|(id, &logit)| {
                let z = scaled(logit);
                (z >= NEGLIGIBLE).then(|| Candidate { id: id as u32, logit, weight: z.exp() })
            }));
        }
        if let Some(mask) = mask {
            // top-k may have had to take some that are not allowed, to be `k`.
            candidates.retain(|c| mask.contains(c.id));
        }
        if self.params.top_p < 1.0 {
            let needed = self.params.top_p as f64 * weight(candidates);
            // The set is usually within a few tokens, which are found without moving a whole vocabulary about.
            if candidates.len() > FEW {
                select::top_k(values, FEW, &mut self.ranked);
                let few = || self.ranked.iter().map(|&(_, logit)| scaled(logit).exp());
                if few().sum::<f64>() >= needed {
                    let kept = self.ranked.iter().zip(few());
                    candidates.clear();
                    candidates.extend(kept.map(|(&(id, logit), weight)| Candidate { id, logit, weight }));
                }
            }
            keep_mass(candidates, needed);
        }
        if self.params.min_p > 0.0 {
            let least = self.params.min_p as f64;
            candidates.retain(|c| c.weight >= least);
        }
        Ok(())
    }

    /// Log-softmax over the whole row, unused rows included: the model's own distribution. The list of rivals holds
    /// valid ids only.
    fn raw_logprobs(&mut self, logits: &[f32], id: u32, top: usize) -> TokenLogprobs {
        let norm = select::log_sum_exp(logits);
        let logprob = |logit: f32| (logit as f64 - norm) as f32;
        select::top_k(&logits[..self.valid_vocab], top, &mut self.ranked);
        TokenLogprobs {
            logprob: logprob(logits[id as usize]),
            top: self.ranked.iter().map(|&(id, logit)| (id, logprob(logit))).collect(),
        }
    }
}

fn weight(set: &[Candidate]) -> f64 {
    set.iter().map(|c| c.weight).sum()
}

/// Cuts `candidates` to the smallest set of the most likely ones whose weight is at least `needed` (Holtzman et al.
/// 2020), in no particular order.
///
/// Selects by mass instead of sorting: the part that holds the end of the set is halved again and again. Linear in
/// the vocabulary even when the distribution is flat (a sort would take some 50 ms there, at 248,320 tokens).
fn keep_mass(candidates: &mut Vec<Candidate>, mut needed: f64) {
    let rank = |c: &Candidate| select::rank((c.id, c.logit));
    // The first `done` candidates outrank the others and are kept, those from `end` on are not; `needed` is the mass
    // still to be found between.
    let (mut done, mut end) = (0, candidates.len());
    while end - done > 32 {
        let half = (end - done) / 2;
        candidates[done..end].select_nth_unstable_by_key(half, rank);
        let mass = weight(&candidates[done..done + half]);
        if mass >= needed {
            end = done + half;
        } else {
            needed -= mass;
            done += half;
        }
    }
    candidates[done..end].sort_unstable_by_key(rank);
    let last = candidates[done..end].iter().position(|c| {
        needed -= c.weight;
        needed <= 0.0
    });
    candidates.truncate(last.map_or(end, |i| done + i + 1));
}

#[cfg(test)]
mod tests;
