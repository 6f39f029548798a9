//! A request's constraint: thinking, then the answer.

use std::{collections::VecDeque, sync::Arc};

use lily_engine::{Constraint, ConstraintError, ConstraintHandle, TokenMask};
use lily_text::Tokenizer;

use super::{
    CLOSE_THINK, Compiled, Grammars,
    worker::{Next, Worker},
};

/// What a request constrains; nothing of it means no constraint.
#[derive(Clone, Default)]
pub struct ConstraintSpec {
    /// The whole answer.
    pub answer: Option<Compiled>,
    /// Each call the model begins by itself, from after its `<tool_call>`.
    pub calls: Option<Compiled>,
    /// Most tokens of thinking; then it is closed.
    pub thinking_budget: Option<usize>,
    /// Most tokens of the whole generation. An answer in JSON that comes near it is brought to its end: a value cut in
    /// two is of no use to anyone.
    pub max_tokens: Option<usize>,
}

/// Share of the tokens that are kept for bringing an answer to its end, and the most of them.
const ENDING_SHARE: usize = 4;
const ENDING_MOST: usize = 512;

impl ConstraintSpec {
    /// A fresh constraint for one generation, or `None` when there is nothing to constrain. `in_reasoning`: the prompt
    /// ended inside a `<think>` block.
    pub fn start(
        &self,
        grammars: &Arc<Grammars>,
        tokenizer: &Arc<Tokenizer>,
        in_reasoning: bool,
    ) -> Result<Option<ConstraintHandle>, ConstraintError> {
        let budget = self.thinking_budget.filter(|_| in_reasoning);
        if self.answer.is_none() && self.calls.is_none() && budget.is_none() {
            return Ok(None);
        }
        if budget.is_some() && grammars.close_think.is_none() {
            return Err(ConstraintError("the model's vocabulary has no </think> token".to_string()));
        }
        let mut constraint = AnswerConstraint {
            grammars: grammars.clone(),
            tokenizer: tokenizer.clone(),
            spec: self.clone(),
            phase: Phase::Free,
            // The mask that answers the first question is computed while the prompt is.
            ready: None,
            written: 0,
            mask: TokenMask::none(grammars.vocab),
        };
        constraint.phase = if in_reasoning {
            Phase::Thinking { written: 0, tail: Vec::new() }
        } else {
            constraint.answer()?
        };
        Ok(Some(ConstraintHandle::new(constraint)))
    }
}

enum Phase {
    /// Inside the block: free, but for its end.
    Thinking {
        written: usize,
        /// The last bytes written, enough to hold a `</think>`.
        tail: Vec<u8>,
    },
    /// These tokens must come.
    Forced(VecDeque<u32>),
    /// The answer's grammar.
    Answer(Worker),
    /// No constraint, but for calls that begin.
    Free,
    /// Inside a call.
    Call(Worker),
    /// Only the end may come.
    Over,
}

struct AnswerConstraint {
    grammars: Arc<Grammars>,
    tokenizer: Arc<Tokenizer>,
    spec: ConstraintSpec,
    phase: Phase,
    /// What the worker said and was not used up.
    ready: Option<Next>,
    /// Tokens written, thinking included.
    written: usize,
    mask: TokenMask,
}

impl AnswerConstraint {
    /// The phase after thinking.
    fn answer(&self) -> Result<Phase, ConstraintError> {
        match &self.spec.answer {
            Some(grammar) => self.worker(grammar).map(Phase::Answer),
            None => Ok(Phase::Free),
        }
    }

    fn worker(&self, grammar: &Compiled) -> Result<Worker, ConstraintError> {
        Worker::start(grammar.matcher(), self.grammars.vocab, self.grammars.times.clone())
    }

    /// The tokens that close the block as the template writes it: `\n</think>\n\n`.
    fn closers(&self, tail: &[u8]) -> VecDeque<u32> {
        let line_break = self.grammars.line_break.filter(|_| !tail.is_empty() && !tail.ends_with(b"\n"));
        line_break.into_iter().chain(self.grammars.close_think).chain(self.grammars.blank_line).collect()
    }

    /// Whether an answer in JSON should come to its end.
    fn must_end(&self) -> bool {
        let json = self.spec.answer.as_ref().is_some_and(|answer| answer.is_json);
        let most = self.spec.max_tokens.filter(|_| json);
        most.is_some_and(|most| self.written + (most / ENDING_SHARE).min(ENDING_MOST) >= most)
    }

    fn only(&mut self, ids: &[u32]) {
        self.mask = TokenMask::none(self.grammars.vocab);
        ids.iter().for_each(|&id| self.mask.insert(id));
    }

    fn thought(&mut self, written: usize, mut tail: Vec<u8>, id: u32) -> Result<Phase, ConstraintError> {
        if self.grammars.stop_tokens.contains(&id) {
            return Ok(Phase::Over);
        }
        tail.extend(self.tokenizer.token_bytes(id).unwrap_or_default());
        let found = tail.windows(CLOSE_THINK.len()).position(|w| w == CLOSE_THINK);
        match found {
            None => {
                let keep = tail.len().saturating_sub(CLOSE_THINK.len());
                tail.drain(..keep);
                Ok(Phase::Thinking { written: written + 1, tail })
            }
            // Blanks that came with the tag are those between reasoning and answer.
            Some(at) if tail.len() > at + CLOSE_THINK.len() => self.answer(),
            Some(_) => match self.grammars.blank_line {
                Some(blank) if self.spec.answer.is_some() => Ok(Phase::Forced(VecDeque::from([blank]))),
                _ => self.answer(),
            },
        }
    }
}

impl Constraint for AnswerConstraint {
    fn mask(&mut self) -> Result<Option<&TokenMask>, ConstraintError> {
        if let Phase::Answer(worker) | Phase::Call(worker) = &self.phase
            && self.ready.is_none()
        {
            self.ready = Some(worker.next()?);
        }
        if let (Phase::Call(_), Some(Next::Over)) = (&self.phase, &self.ready) {
            self.phase = Phase::Free;
            self.ready = None;
        }
        match &self.phase {
            Phase::Free => return Ok(None),
            Phase::Thinking { written, tail } => {
                if self.spec.thinking_budget.is_some_and(|budget| *written >= budget) {
                    let closers = self.closers(tail);
                    self.only(closers.front().map_or(&[][..], std::slice::from_ref));
                    self.phase = Phase::Forced(closers);
                } else if self.spec.answer.is_none() {
                    return Ok(None);
                } else {
                    // The turn may not end without its answer, and the answer's first token may not come glued to the
                    // tag, where the grammar would not see it.
                    let begun = (1..CLOSE_THINK.len()).rev().find(|&n| tail.ends_with(&CLOSE_THINK[..n]));
                    self.mask = TokenMask::all(self.grammars.vocab);
                    self.grammars.stop_tokens.iter().for_each(|&id| self.mask.remove(id));
                    for done in [Some(0), begun].into_iter().flatten() {
                        self.grammars.glued[done].iter().for_each(|&id| self.mask.remove(id));
                    }
                }
            }
            Phase::Forced(ids) => {
                let next: Vec<u32> = ids.front().copied().into_iter().collect();
                self.only(&next);
            }
            Phase::Answer(_) | Phase::Call(_) => match &self.ready {
                Some(Next::Mask(mask)) => {
                    self.mask.clone_from(mask);
                    if self.must_end() {
                        self.grammars.closers.narrow(&mut self.mask);
                    }
                }
                _ => {
                    let stops = self.grammars.stop_tokens.clone();
                    self.only(&stops);
                    self.phase = Phase::Over;
                }
            },
            Phase::Over => {
                let stops = self.grammars.stop_tokens.clone();
                self.only(&stops);
            }
        }
        Ok(Some(&self.mask))
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        self.ready = None;
        self.written += 1;
        self.phase = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Thinking { written, tail } => self.thought(written, tail, id)?,
            Phase::Forced(mut ids) => {
                ids.pop_front();
                if ids.is_empty() { self.answer()? } else { Phase::Forced(ids) }
            }
            Phase::Answer(worker) => {
                worker.accept(id)?;
                Phase::Answer(worker)
            }
            Phase::Call(worker) => {
                worker.accept(id)?;
                Phase::Call(worker)
            }
            Phase::Free => match &self.spec.calls {
                Some(grammar) if self.grammars.open_call == Some(id) => Phase::Call(self.worker(grammar)?),
                _ => Phase::Free,
            },
            Phase::Over => Phase::Over,
        };
        Ok(())
    }
}
