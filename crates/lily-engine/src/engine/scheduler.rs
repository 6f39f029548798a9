//! The engine thread: many generations, one backend.
//!
//! A round is one decode call for all sequences that wait for a token (a run of steps where nothing else waits and the
//! device chooses the tokens itself), then at most one chunk of one prompt, so a long
//! prompt never holds up a running answer for longer than a chunk takes; while answers run, chunks are made so short that
//! this is about [`Setting::slice`]. Among prompts the one that is done soonest goes first, and every fourth chunk is the
//! oldest one's, so that no prompt waits for ever.

mod decode;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    generation::{Generation, Outcome, Phase, Setting, end_unstarted},
    queue::{Queue, Wait},
};
use crate::{
    backend::{Backend, BackendError, MemoryFigures, SequenceId},
    cache::{CacheOutcome, CheckpointKind, Found, PrefixCache},
    figures::EngineFigures,
    request::{EngineError, FinishReason},
    timeline::Timeline,
};

/// Of so many chunks one is the oldest prompt's.
const TURNS: u64 = 4;

/// First chunk beside running answers, while it is not known how long a token of prefill takes.
const FIRST_CHUNK: usize = 64;
/// Least chunk: shorter ones cost nearly as much, since the weights are read all the same.
const LEAST_CHUNK: usize = 16;

/// A prompt waits for a checkpoint that another one is about to take when that saves at least so many tokens.
const WORTH_WAITING: usize = 64;

/// Tokens after the last checkpoint from which on the end of an answer is kept too.
const WORTH_KEEPING: usize = 8;

/// How long to wait when all generations wait for something else: it may be memory, or a cancelled one.
const PAUSE: Duration = Duration::from_millis(20);

/// Fails whatever waits when the thread ends, for whatever reason.
struct StopGuard(Arc<Queue>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        for job in self.0.stop() {
            end_unstarted(job, Outcome::Failed(EngineError::Stopped));
        }
    }
}

/// The backend cannot be used any more.
struct Unusable;

/// Runs jobs until the queue stops or the backend becomes unusable.
pub fn run(queue: Arc<Queue>, backend: Box<dyn Backend>, cache: PrefixCache, setting: Setting) {
    let guard = StopGuard(queue.clone());
    let mut scheduler = Scheduler {
        queue,
        backend,
        cache,
        setting,
        running: Vec::new(),
        figures: EngineFigures::default(),
        logits: Vec::new(),
        seconds_a_token: None,
        chunks: 0,
    };
    let usable = scheduler.serve();
    // First: whoever hears that a running request failed must find the engine stopped.
    drop(guard);
    let stopped = scheduler.stop();
    if usable.and(stopped).is_err() {
        tracing::error!("the backend failed while cleaning up after a panic; the engine stops");
    }
    let Scheduler { cache, backend, .. } = scheduler;
    cache.close();
    drop(backend);
}

struct Scheduler {
    queue: Arc<Queue>,
    backend: Box<dyn Backend>,
    cache: PrefixCache,
    setting: Setting,
    /// The oldest first.
    running: Vec<Generation>,
    figures: EngineFigures,
    logits: Vec<f32>,
    /// Of prefill, lately.
    seconds_a_token: Option<f64>,
    chunks: u64,
}

impl Scheduler {
    fn serve(&mut self) -> Result<(), Unusable> {
        loop {
            let wait = if self.running.is_empty() {
                Wait::Forever
            } else if self.running.iter().all(|g| g.phase == Phase::Start) {
                Wait::For(PAUSE)
            } else {
                Wait::No
            };
            if wait != Wait::No {
                self.publish();
            }
            let Some(taken) = self.queue.take(wait) else { return Ok(()) };
            for (job, reason) in taken.ended {
                self.count_end(&Outcome::Finished(reason));
                end_unstarted(job, Outcome::Finished(reason));
            }
            for job in taken.jobs {
                self.figures.requests += 1;
                self.running.push(Generation::new(job, &self.setting));
            }
            self.cache.poll();
            self.round()?;
        }
    }

    /// Fails what runs.
    fn stop(&mut self) -> Result<(), Unusable> {
        let mut result = Ok(());
        while !self.running.is_empty() {
            result = result.and(self.end(0, Outcome::Failed(EngineError::Stopped)));
        }
        result
    }

    fn round(&mut self) -> Result<(), Unusable> {
        let mut i = 0;
        while i < self.running.len() {
            match self.running[i].interrupted() {
                Some(reason) => self.end(i, Outcome::Finished(reason))?,
                None => i += 1,
            }
        }
        self.start()?;
        self.decode()?;
        self.prefill()
    }

    /// Calls the backend; a panic is an error.
    fn call<T>(
        backend: &mut dyn Backend,
        work: impl FnOnce(&mut dyn Backend) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        // Unwind safety: after an error of any kind the sequences of the call are freed.
        catch_unwind(AssertUnwindSafe(|| work(backend))).unwrap_or_else(|panic| {
            let message = panic_message(panic.as_ref());
            tracing::error!(message, "the backend panicked; the request fails");
            Err(BackendError::Device(format!("backend {} panicked: {message}", backend.name())))
        })
    }

    fn free(&mut self, sequence: SequenceId) -> Result<(), Unusable> {
        catch_unwind(AssertUnwindSafe(|| self.backend.free_sequence(sequence))).map_err(|_| Unusable)
    }

    /// Gives sequences to those that have none.
    fn start(&mut self) -> Result<(), Unusable> {
        let mut i = 0;
        while i < self.running.len() {
            if self.running[i].phase != Phase::Start {
                i += 1;
                continue;
            }
            match self.start_one(i) {
                Ok(()) => i += 1,
                Err(outcome) => self.end(i, outcome)?,
            }
        }
        Ok(())
    }

    fn start_one(&mut self, i: usize) -> Result<(), Outcome> {
        let found = self.cache.find(&self.running[i].target);
        let (checkpoint, why) = match found {
            Found::Ready(id) => (Some(id), None),
            Found::Loading => {
                self.running[i].waited_for_file = true;
                return Ok(());
            }
            Found::Nothing(why) => (None, Some(why)),
        };
        let position = checkpoint.map_or(0, |id| self.cache.position_of(id));
        if self.another_is_about_to_save(i, position) {
            return Ok(());
        }
        let capacity = self.running[i].capacity(&self.setting);
        let sequence = match Self::call(self.backend.as_mut(), |b| b.new_sequence(capacity)) {
            Ok(sequence) => sequence,
            // When another one ends there may be memory for this one.
            Err(BackendError::OutOfMemory { .. }) if self.running.iter().any(|g| g.timeline.is_some()) => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let restored = checkpoint.map(|id| {
            let cache = &mut self.cache;
            Self::call(self.backend.as_mut(), |b| cache.restore(b, sequence, id))
        });
        let generation = &mut self.running[i];
        let from_file = std::mem::take(&mut generation.waited_for_file);
        let (position, outcome, sequence) = match restored {
            Some(Ok((position, kind))) if from_file => (position, CacheOutcome::HitDisk(kind), sequence),
            Some(Ok((position, kind))) => (position, CacheOutcome::HitRam(kind), sequence),
            None if from_file => (0, CacheOutcome::Damaged, sequence),
            None => (0, why.unwrap_or_default(), sequence),
            Some(Err(error)) => {
                tracing::warn!(%error, "a checkpoint could not be restored; the prompt is computed");
                // Whatever the failed call left in it.
                self.free(sequence)
                    .map_err(|_| BackendError::Device("a sequence could not be freed".into()))?;
                let fresh = Self::call(self.backend.as_mut(), |b| b.new_sequence(capacity))?;
                (0, CacheOutcome::RestoreFailed, fresh)
            }
        };
        let generation = &mut self.running[i];
        let tokens = generation.target[..position].to_vec();
        generation.begin(Timeline { sequence, tokens });
        if std::mem::replace(&mut generation.counted, true) {
            return Ok(());
        }
        let prompt = generation.request.prompt.len();
        generation.stats.cached_tokens = position;
        generation.stats.cache = outcome;
        let kind = outcome.kind().map_or("", CheckpointKind::name);
        tracing::info!(
            code = outcome.code(),
            kind,
            cached = position,
            new = prompt - position,
            "prefix cache"
        );
        self.cache.count(outcome, position, prompt);
        generation.progress().map_or(Ok(()), Err)
    }

    /// Whether a prompt that is being computed will soon leave a checkpoint that is better than what there is.
    fn another_is_about_to_save(&self, i: usize, position: usize) -> bool {
        let target = &self.running[i].target;
        let enabled = self.cache.is_enabled();
        enabled
            && self.running.iter().filter(|g| g.phase == Phase::Prefill && !g.places.is_empty()).any(
                |other| {
                    let common = target.iter().zip(&other.target).take_while(|(a, b)| a == b).count();
                    let usable = common.min(target.len() - 1);
                    other
                        .places
                        .iter()
                        .any(|m| m.position <= usable && m.position >= position + WORTH_WAITING)
                },
            )
    }

    /// The prompt whose chunk is next.
    fn next_prompt(&self) -> Option<usize> {
        let mut waiting = self.running.iter().enumerate().filter(|(_, g)| g.phase == Phase::Prefill);
        if self.chunks.is_multiple_of(TURNS) {
            waiting.next().map(|(i, _)| i)
        } else {
            waiting.min_by_key(|(_, g)| g.left()).map(|(i, _)| i)
        }
    }

    /// Tokens of the next chunk.
    fn chunk(&self) -> usize {
        let most = self.setting.prefill_chunk;
        if !self.running.iter().any(|g| g.phase == Phase::Decode) {
            return most;
        }
        match self.seconds_a_token {
            None => FIRST_CHUNK.min(most),
            Some(seconds) => {
                let tokens = self.setting.slice.as_secs_f64() / seconds;
                (tokens as usize).clamp(LEAST_CHUNK.min(most), most)
            }
        }
    }

    /// A chunk of one prompt.
    fn prefill(&mut self) -> Result<(), Unusable> {
        let Some(i) = self.next_prompt() else { return Ok(()) };
        self.chunks += 1;
        let chunk = self.chunk();
        let generation = &mut self.running[i];
        let (total, done) = (generation.target.len(), generation.position());
        let mut end = total.min(done + chunk);
        let place = generation.places.first().copied();
        end = place.map_or(end, |m| end.min(m.position));
        let interrupt = generation.interrupt();
        let Some(timeline) = &mut generation.timeline else { return Ok(()) };
        let (target, logits) = (&generation.target, &mut self.logits);
        let started = Instant::now();
        let result = Self::call(self.backend.as_mut(), |b| {
            b.set_interrupt(Some(interrupt));
            let result = timeline.prefill(b, &target[done..end], end == total, logits);
            b.set_interrupt(None);
            result
        });
        match result {
            Ok(()) => {}
            Err(BackendError::Interrupted) => {
                // The chunks before this one are kept for whoever asks again.
                let reason = generation.interrupted().unwrap_or(FinishReason::Cancelled);
                return self.end(i, Outcome::Finished(reason));
            }
            Err(error) => return self.fail(i, error),
        }
        let seconds = started.elapsed().as_secs_f64();
        let each = seconds / (end - done) as f64;
        self.seconds_a_token = Some(self.seconds_a_token.map_or(each, |before| (before + each) / 2.0));
        self.figures.prefill_tokens += (end - done) as u64;
        self.figures.prefill_seconds += seconds;
        self.figures.prefill_chunks += 1;
        if let Some(mark) = place.filter(|m| m.position == end) {
            self.running[i].places.remove(0);
            self.save(i, mark.kind);
        }
        let generation = &mut self.running[i];
        let mut over = generation.progress();
        if over.is_none() && end == total {
            over = generation.accept(&self.logits);
        }
        match over {
            Some(outcome) => self.end(i, outcome),
            None => Ok(()),
        }
    }

    /// Keeps the state of a generation's sequence.
    fn save(&mut self, i: usize, kind: CheckpointKind) {
        let generation = &mut self.running[i];
        let Some(timeline) = &generation.timeline else { return };
        let cache = &mut self.cache;
        // The cache's own state is consistent between any two of its calls of the backend.
        let saved = Self::call(self.backend.as_mut(), |b| {
            Ok(cache.save(b, timeline.sequence, &timeline.tokens, kind))
        });
        if saved.unwrap_or(false) {
            generation.saved = timeline.tokens.len();
        }
    }

    /// Ends a generation whose sequence is in an unknown state.
    fn fail(&mut self, i: usize, error: BackendError) -> Result<(), Unusable> {
        self.end(i, error.into())
    }

    /// Ends a generation: its last event, a checkpoint of what it has seen (not after a failure), and its sequence.
    fn end(&mut self, i: usize, outcome: Outcome) -> Result<(), Unusable> {
        self.count_end(&outcome);
        let failed = matches!(outcome, Outcome::Failed(_));
        let memory = self.memory();
        // Released first: who hears of the end may submit again at once.
        self.queue.release(memory.unwrap_or_default());
        self.running[i].end(outcome);
        let position = self.running[i].position();
        if !failed && position >= self.running[i].saved + WORTH_KEEPING {
            let kind = match self.running[i].phase {
                Phase::Decode => CheckpointKind::EndOfResponse,
                Phase::Start | Phase::Prefill => CheckpointKind::Interrupted,
            };
            self.save(i, kind);
        }
        let generation = self.running.remove(i);
        let freed = match &generation.timeline {
            Some(timeline) => self.free(timeline.sequence),
            None => Ok(()),
        };
        let memory = self.memory();
        self.queue.set_memory(memory.unwrap_or_default());
        self.publish();
        // Only now is the sink dropped.
        drop(generation);
        freed.and(memory.map(drop).ok_or(Unusable))
    }

    fn memory(&self) -> Option<MemoryFigures> {
        catch_unwind(AssertUnwindSafe(|| self.backend.memory())).ok()
    }

    fn count_end(&mut self, outcome: &Outcome) {
        let ended = &mut self.figures.ended;
        *match outcome {
            Outcome::Finished(FinishReason::Stop) => &mut ended.stop,
            Outcome::Finished(FinishReason::Length) => &mut ended.length,
            Outcome::Finished(FinishReason::Cancelled) => &mut ended.cancelled,
            Outcome::Finished(FinishReason::Deadline) => &mut ended.deadline,
            Outcome::Failed(_) => &mut ended.failed,
        } += 1;
    }

    fn publish(&self) {
        self.queue.set_figures(&self.figures, self.cache.figures());
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
