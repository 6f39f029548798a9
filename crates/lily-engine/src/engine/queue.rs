//! The bounded queue between callers and the engine thread.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::{
    backend::MemoryFigures,
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

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    running: usize,
    stopped: bool,
    memory: MemoryFigures,
}

impl State {
    /// Requests that wait and still want to run.
    fn live(&self, now: Instant) -> usize {
        self.waiting.iter().filter(|j| j.interrupted(now).is_none()).count()
    }
}

/// First in, first out; at most `limit` requests wait.
pub struct Queue {
    limit: usize,
    state: Mutex<State>,
    changed: Condvar,
}

/// Generations that run at once.
const SLOTS: usize = 1;

impl Queue {
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default(), changed: Condvar::new() }
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
        let room = (self.limit.saturating_add(SLOTS)).saturating_sub(state.running);
        let live = state.live(job.submitted);
        // Cancelled jobs hold no place, but they hold memory until the engine thread's next step sweeps them out.
        if live >= room || state.waiting.len() >= room.saturating_mul(2).saturating_add(64) {
            let waiting = (live + state.running).saturating_sub(SLOTS);
            return Err(EngineError::QueueFull { waiting, limit: self.limit });
        }
        state.waiting.push_back(job);
        self.changed.notify_one();
        Ok(())
    }

    /// Waits for a job and counts it as running. `None`: the engine is stopping.
    pub fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(job) = state.waiting.pop_front() {
                state.running += 1;
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes out the jobs that were cancelled or whose deadline has passed. `None`: the engine is stopping.
    pub fn sweep(&self, now: Instant) -> Option<Vec<(Job, FinishReason)>> {
        let mut state = self.lock();
        if state.stopped {
            return None;
        }
        let mut out = Vec::new();
        let mut i = 0;
        while i < state.waiting.len() {
            match state.waiting[i].interrupted(now) {
                Some(reason) => out.extend(state.waiting.remove(i).map(|job| (job, reason))),
                None => i += 1,
            }
        }
        Some(out)
    }

    /// The running job has ended.
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

    /// Lets no job in or out any more, and returns those that waited.
    pub fn stop(&self) -> VecDeque<Job> {
        let mut state = self.lock();
        state.stopped = true;
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
