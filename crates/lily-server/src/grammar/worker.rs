//! A thread that follows a grammar beside the engine's.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Instant,
};

use lily_engine::{ConstraintError, TokenMask};
use llguidance::Matcher;

use super::MaskTimes;

/// What may come next.
pub(super) enum Next {
    /// These tokens.
    Mask(TokenMask),
    /// Nothing: the grammar is over.
    Over,
}

/// Computes masks one ahead: the mask for the next token while the model computes that token's logits.
pub(super) struct Worker {
    tokens: Sender<u32>,
    masks: Receiver<Result<Next, ConstraintError>>,
    times: Arc<MaskTimes>,
}

impl Worker {
    /// Starts the thread, which computes the first mask at once. It ends with the last mask asked for after the worker
    /// was dropped.
    pub(super) fn start(
        matcher: Matcher,
        vocab: usize,
        times: Arc<MaskTimes>,
    ) -> Result<Self, ConstraintError> {
        let (tokens, received) = channel();
        let (computed, masks) = channel();
        let counted = times.clone();
        thread::Builder::new()
            .name("lily-grammar".into())
            .spawn(move || run(matcher, vocab, &received, &computed, &counted))
            .map_err(|e| ConstraintError(format!("a thread for the grammar could not be started: {e}")))?;
        Ok(Self { tokens, masks, times })
    }

    /// The chosen token.
    pub(super) fn accept(&self, id: u32) -> Result<(), ConstraintError> {
        self.tokens.send(id).map_err(|_| gone())
    }

    /// Waits for the mask after the last accepted token. Asked once a token.
    pub(super) fn next(&self) -> Result<Next, ConstraintError> {
        let started = Instant::now();
        let next = self.masks.recv().map_err(|_| gone())?;
        self.times.waited(microseconds(started));
        next
    }
}

fn gone() -> ConstraintError {
    ConstraintError("the grammar's thread ended".to_string())
}

fn microseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

fn run(
    mut matcher: Matcher,
    vocab: usize,
    tokens: &Receiver<u32>,
    masks: &Sender<Result<Next, ConstraintError>>,
    times: &MaskTimes,
) {
    loop {
        let started = Instant::now();
        let next = next(&mut matcher, vocab);
        times.computed(microseconds(started));
        let go_on = matches!(next, Ok(Next::Mask(_)));
        if masks.send(next).is_err() || !go_on {
            return;
        }
        let Ok(id) = tokens.recv() else { return };
        if let Err(error) = matcher.consume_token(id) {
            let _ = masks.send(Err(ConstraintError(super::first_line(&error.to_string()))));
            return;
        }
    }
}

fn next(matcher: &mut Matcher, vocab: usize) -> Result<Next, ConstraintError> {
    let failed = |message: &str| ConstraintError(super::first_line(message));
    if let Some(error) = matcher.get_error() {
        return Err(failed(&error));
    }
    if matcher.is_stopped() {
        return Ok(Next::Over);
    }
    let mask = matcher.compute_mask().map_err(|e| failed(&e.to_string()))?;
    Ok(Next::Mask(TokenMask::from_words(mask.as_slice(), vocab)))
}
