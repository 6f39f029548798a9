//! Decode calls: one token for every sequence that waits for one, or several in a row where the device chooses them.

use std::time::Instant;

use super::{Scheduler, Unusable};
use crate::{
    backend::{BackendError, Draw, SequenceId},
    engine::generation::{Outcome, Phase},
    timeline::check_rows,
};

/// A sequence that waits for a token: which generation it is, its sequence, the token it has not seen.
type Row = (usize, SequenceId, u32);

impl Scheduler {
    /// Tokens for every sequence that waits for one.
    pub(super) fn decode(&mut self) -> Result<(), Unusable> {
        let batch: Vec<Row> = (self.running.iter().enumerate())
            .filter(|(_, g)| g.phase == Phase::Decode)
            .filter_map(|(i, g)| Some((i, g.timeline.as_ref()?.sequence, g.next?)))
            .collect();
        if batch.is_empty() {
            return Ok(());
        }
        // Whether a request's tokens are chosen by the device depends on the request alone, never on what runs beside it.
        let most = self.backend.most_drawn();
        let drawn = most > 0 && batch.iter().any(|row| self.running[row.0].draw.is_some());
        let (mut over, mut again) = (Vec::new(), Vec::new());
        for part in batch.chunks(if drawn { most } else { batch.len() }) {
            let result = match drawn {
                true => self.decode_run(part, part.len() < batch.len(), &mut over),
                false => self.decode_step(part, &mut over),
            };
            let Err(error) = result else { continue };
            // What has ended before the failure has ended.
            let left = part.iter().map(|row| row.0).filter(|i| over.iter().all(|(ended, _)| ended != i));
            if let [(i, ..)] = part {
                if left.count() > 0 {
                    over.push((*i, error.into()));
                }
            } else {
                // Which of them it was is not known. Computed again, each by itself, only that one fails again.
                tracing::warn!(%error, sequences = part.len(), "a batch failed; its sequences are computed again");
                again.extend(left);
            }
        }
        for i in again {
            if let Some(timeline) = self.running[i].restart() {
                self.free(timeline.sequence)?;
            }
        }
        // From the last on, so that the numbers before stay right.
        over.sort_by_key(|(i, _)| *i);
        for (i, outcome) in over.into_iter().rev() {
            self.end(i, outcome)?;
        }
        Ok(())
    }

    /// One token each, chosen by the host. `over`: generations that have ended.
    fn decode_step(&mut self, batch: &[Row], over: &mut Vec<(usize, Outcome)>) -> Result<(), BackendError> {
        let rows: Vec<(SequenceId, u32)> = batch.iter().map(|&(_, s, t)| (s, t)).collect();
        let started = Instant::now();
        let logits = &mut self.logits;
        Self::call(self.backend.as_mut(), |b| {
            // Not cleared before: that would only be filled again, a megabyte a sequence.
            b.decode(&rows, logits)?;
            check_rows(b, logits, rows.len())
        })?;
        self.figures.decoded(batch.len(), started.elapsed().as_secs_f64());
        let vocab = self.backend.config().vocab_size;
        for (row, &(i, _, token)) in self.logits.chunks_exact(vocab).zip(batch) {
            let generation = &mut self.running[i];
            generation.next = None;
            if let Some(timeline) = &mut generation.timeline {
                timeline.tokens.push(token);
            }
            over.extend(generation.accept(row).map(|outcome| (i, outcome)));
        }
        Ok(())
    }

    /// Tokens chosen by the device, step after step until one of the generations ends or something else is to be done;
    /// those that the host has to choose make it one step.
    fn decode_run(
        &mut self,
        batch: &[Row],
        more: bool,
        over: &mut Vec<(usize, Outcome)>,
    ) -> Result<(), BackendError> {
        let Self { backend, running, figures, queue, setting, .. } = self;
        let rows: Vec<(SequenceId, u32)> = batch.iter().map(|&(_, s, t)| (s, t)).collect();
        let draws: Vec<Option<Draw>> = batch.iter().map(|row| running[row.0].draw).collect();
        let wait = more || draws.contains(&None) || running.iter().any(|g| g.phase != Phase::Decode);
        let most = batch.iter().map(|row| running[row.0].most_steps(setting)).min();
        let steps = if wait { 1 } else { most.unwrap_or(1) };
        let vocab = backend.config().vocab_size;
        let mut unseen: Vec<u32> = rows.iter().map(|row| row.1).collect();
        let mut ended = vec![false; batch.len()];
        let mut before = Instant::now();
        let mut each = |chosen: lily_gpu::Chosen<'_>| {
            let now = Instant::now();
            figures.decoded(batch.len(), (now - before).as_secs_f64());
            before = now;
            let mut logits = chosen.logits.chunks_exact(vocab);
            for (k, &(i, ..)) in batch.iter().enumerate() {
                let generation = &mut running[i];
                // Also where it has ended already: the sequence has seen the token that was its last.
                if let Some(timeline) = &mut generation.timeline {
                    timeline.tokens.push(unseen[k]);
                }
                unseen[k] = chosen.ids[k];
                let row = if draws[k].is_none() { logits.next() } else { None };
                if ended[k] {
                    continue;
                }
                generation.next = None;
                let outcome = match draws[k] {
                    Some(_) => generation.accept_drawn(chosen.ids[k]),
                    None => generation.accept(row.unwrap_or_default()),
                };
                ended[k] = outcome.is_some();
                over.extend(outcome.map(|outcome| (i, outcome)));
            }
            !ended.contains(&true)
                && !queue.wants_attention()
                && batch.iter().all(|row| running[row.0].interrupted().is_none())
        };
        Self::call(backend.as_mut(), |b| b.decode_run(&rows, &draws, steps, setting.valid_vocab, &mut each))
    }
}
