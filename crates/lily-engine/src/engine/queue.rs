//! The bounded queue between callers and the engine thread.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    backend::MemoryFigures,
    cache::CacheFigures,
    figures::EngineFigures,
    request::{CancelFlag, EngineError, Event, FinishReason, GenerateRequest},
};

/// Where a generation's events go.
pub type Sink = Box<dyn FnMut(Event) -> bool + Send>;

/// A validated request that waits.
pub struct Job {
    pub request: GenerateRequest,
    pub cancel: CancelFlag,
    pub sink: Sink,
    pub submitted: Instant,
}

impl Job {
    /// Why this request must not go on, if so.
    pub fn interrupted(&self, now: Instant) -> Option<FinishReason> {
        interrupted(&self.request, &self.cancel, now)
    }
}

/// Why a request must not go on, if so: its caller cancelled, or its deadline has passed.
pub fn interrupted(request: &GenerateRequest, cancel: &CancelFlag, now: Instant) -> Option<FinishReason> {
    if cancel.is_cancelled() {
        Some(FinishReason::Cancelled)
    } else if request.deadline.is_some_and(|d| now >= d) {
        Some(FinishReason::Deadline)
    } else {
        None
    }
}

/// How long [`Queue::take`] waits for something to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: there is work.
    No,
    /// Until a job comes or something else wakes the thread.
    Forever,
    /// As long, or for this time.
    For(Duration),
}

/// What the engine thread takes from the queue.
#[derive(Default)]
pub struct Taken {
    /// To run, the oldest first; they count as running.
    pub jobs: Vec<Job>,
    /// Cancelled while they waited, or too late.
    pub ended: Vec<(Job, FinishReason)>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    running: usize,
    stopped: bool,
    /// Something that is no job wants the engine thread's attention.
    woken: bool,
    memory: MemoryFigures,
    figures: EngineFigures,
}

impl State {
    /// Requests that wait and still want to run.
    fn live(&self, now: Instant) -> usize {
        self.waiting.iter().filter(|j| j.interrupted(now).is_none()).count()
    }
}

/// First in, first out; at most `limit` requests wait while `slots` run.
pub struct Queue {
    limit: usize,
    slots: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    pub fn new(limit: usize, slots: usize) -> Self {
        Self { limit, slots, state: Mutex::default(), changed: Condvar::new() }
    }

    /// The state is consistent between any two statements below, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a job, or says why not. A request for which a slot is free does not count as waiting, even before the
    /// engine thread has woken to take it.
    pub fn push(&self, job: Job) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.stopped {
            return Err(EngineError::Stopped);
        }
        let room = (self.limit.saturating_add(self.slots)).saturating_sub(state.running);
        let live = state.live(job.submitted);
        // Cancelled jobs hold no place, but they hold memory until the engine thread's next step sweeps them out.
        if live >= room || state.waiting.len() >= room.saturating_mul(2).saturating_add(64) {
            let waiting = (live + state.running).saturating_sub(self.slots);
            state.figures.refused += 1;
            return Err(EngineError::QueueFull { waiting, limit: self.limit });
        }
        state.waiting.push_back(job);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes out as many jobs as there are free slots, and those that need not run any more. `None`: the engine is
    /// stopping.
    pub fn take(&self, wait: Wait) -> Option<Taken> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            let mut taken = Taken::default();
            let now = Instant::now();
            let mut i = 0;
            while i < state.waiting.len() {
                match state.waiting[i].interrupted(now) {
                    Some(reason) => taken.ended.extend(state.waiting.remove(i).map(|job| (job, reason))),
                    None => i += 1,
                }
            }
            while state.running < self.slots
                && let Some(job) = state.waiting.pop_front()
            {
                state.running += 1;
                taken.jobs.push(job);
            }
            let woken = std::mem::take(&mut state.woken);
            if wait == Wait::No || woken || !taken.jobs.is_empty() || !taken.ended.is_empty() {
                return Some(taken);
            }
            // A deadline may pass while nothing else happens.
            state = match wait {
                Wait::For(time) => {
                    let waited = self.changed.wait_timeout(state, time);
                    let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() {
                        return (!state.stopped).then_some(taken);
                    }
                    state
                }
                _ => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Whether [`take`](Self::take) would have something to tell at once.
    pub fn wants_attention(&self) -> bool {
        let state = self.lock();
        let now = Instant::now();
        state.stopped
            || state.woken
            || (state.running < self.slots && !state.waiting.is_empty())
            || state.waiting.iter().any(|j| j.interrupted(now).is_some())
    }

    /// Makes a waiting engine thread look around.
    pub fn wake(&self) {
        self.lock().woken = true;
        self.changed.notify_all();
    }

    /// A running job has ended.
    pub fn release(&self, memory: MemoryFigures) {
        let mut state = self.lock();
        state.running = state.running.saturating_sub(1);
        state.memory = memory;
    }

    /// Notes the backend's memory figures.
    pub fn set_memory(&self, memory: MemoryFigures) {
        self.lock().memory = memory;
    }

    /// The memory figures last noted.
    pub fn memory(&self) -> MemoryFigures {
        self.lock().memory
    }

    /// Notes what the engine thread counted.
    pub fn set_figures(&self, figures: &EngineFigures, cache: CacheFigures) {
        let mut state = self.lock();
        let refused = state.figures.refused;
        state.figures = EngineFigures { refused, cache, ..figures.clone() };
    }

    /// The figures last noted.
    pub fn figures(&self) -> EngineFigures {
        self.lock().figures.clone()
    }

    /// Lets no job in or out any more, and returns those that waited.
    pub fn stop(&self) -> VecDeque<Job> {
        let mut state = self.lock();
        state.stopped = true;
        state.running = 0;
        self.changed.notify_all();
        std::mem::take(&mut state.waiting)
    }

    /// Asks the engine thread to stop at its next step; it fails the jobs that wait.
    pub fn ask_to_stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Whether jobs are let in.
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Requests waiting (cancelled ones do not count) and running.
    pub fn load(&self) -> (usize, usize) {
        let state = self.lock();
        (state.live(Instant::now()), state.running)
    }
}
