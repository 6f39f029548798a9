//! The thread pool: one dispatch runs one closure on all threads and returns when all are done.
//!
//! A decoded token passes through about 200 dispatches, so their cost counts in microseconds. The caller is
//! thread 0 and works too; the others spin for `SPIN` after each dispatch and only then go to sleep, so that
//! an idle engine burns no CPU. Work is split in items; each thread starts with a contiguous share of them and,
//! when done, takes items from the far end of the others' shares, which keeps a busy or slow core from holding
//! everyone up. For the same reason a dispatch waits only for the workers that have entered it: one that the system
//! did not let run in time finds the gate closed and skips it.

mod blocks;

use std::{
    any::Any,
    cell::UnsafeCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{JoinHandle, Thread},
    time::{Duration, Instant},
};

pub use blocks::{BlockMut, columns, grid};

use crate::error::{CpuError, Result};

/// How long an idle thread spins before it sleeps. Waking a sleeping thread costs about 50 us.
const SPIN: Duration = Duration::from_micros(100);

/// Keeps a value on cache lines of its own (two, since adjacent lines are fetched together).
#[repr(align(128))]
struct Padded<T>(T);

/// The closure of the current dispatch, with its type erased.
#[derive(Clone, Copy)]
struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize),
}

/// Low bits of the gate: workers inside.
const INSIDE: u64 = 0xffff;
/// The gate is closed: no worker may enter.
const CLOSED: u64 = 1 << 16;
/// One more dispatch.
const DISPATCH: u64 = 1 << 17;

struct Shared {
    /// `dispatch number * DISPATCH | CLOSED | workers inside`.
    gate: Padded<AtomicU64>,
    /// Written while the gate is closed and no one is inside; read by workers inside.
    job: UnsafeCell<Job>,
    /// Per thread, the items it has not started: `next | end << 32`.
    shares: Vec<Padded<AtomicU64>>,
    /// Per worker, whether it sleeps or is about to.
    asleep: Vec<Padded<AtomicBool>>,
    panicked: AtomicBool,
    shutdown: AtomicBool,
}

// SAFETY: `job` is written only by the dispatching thread while the gate is closed and empty, and read only by workers
// that entered through the open gate, whose opening follows the write.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointers in `job` are only used as described above.
unsafe impl Send for Shared {}

/// A pool of `threads` threads, the caller's included.
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    wakers: Vec<Thread>,
}

impl Pool {
    /// Starts `threads - 1` workers.
    pub fn new(threads: usize) -> Result<Self> {
        assert!(threads >= 1, "a pool has at least one thread");
        let shared = Arc::new(Shared {
            gate: Padded(AtomicU64::new(CLOSED)),
            job: UnsafeCell::new(Job { data: std::ptr::null(), call: |_, _| {} }),
            shares: (0..threads).map(|_| Padded(AtomicU64::new(0))).collect(),
            asleep: (1..threads).map(|_| Padded(AtomicBool::new(false))).collect(),
            panicked: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
        });
        let mut pool = Self { shared, handles: Vec::new(), wakers: Vec::new() };
        for index in 1..threads {
            let shared = pool.shared.clone();
            let handle = std::thread::Builder::new()
                .name(format!("lily-cpu-{index}"))
                .spawn(move || worker(&shared, index))
                .map_err(|source| CpuError::Spawn { index, source })?;
            pool.wakers.push(handle.thread().clone());
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    /// Threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Runs `f(0)` on the calling thread and, unless `alone`, `f(thread)` at most once on each other thread. `f` must
    /// finish the work whoever takes part.
    fn run<F: Fn(usize) + Sync>(&mut self, alone: bool, f: F) -> Result<()> {
        unsafe fn call<F: Fn(usize) + Sync>(data: *const (), thread: usize) {
            // SAFETY: `data` is the `&F` of the dispatch below, which outlives it.
            let f = unsafe { &*(data as *const F) };
            f(thread);
        }
        let shared = &*self.shared;
        let gate = &shared.gate.0;
        let alone = alone || self.handles.is_empty();
        if !alone {
            // SAFETY: the gate is closed and empty between dispatches, so no one reads it.
            unsafe { *shared.job.get() = Job { data: &f as *const F as *const (), call: call::<F> } };
            // SeqCst pairs with a worker's store to `asleep` and load of the gate: one of us sees the other.
            let number = gate.load(Ordering::Relaxed) / DISPATCH + 1;
            gate.store(number * DISPATCH, Ordering::SeqCst);
            for (asleep, thread) in shared.asleep.iter().zip(&self.wakers) {
                if asleep.0.load(Ordering::SeqCst) && asleep.0.swap(false, Ordering::SeqCst) {
                    thread.unpark();
                }
            }
        }
        // The workers borrow `f`: never leave, not even by a panic, before they are out.
        let own = catch_unwind(AssertUnwindSafe(|| f(0)));
        if !alone {
            let mut now = gate.fetch_or(CLOSED, Ordering::AcqRel);
            let mut spins = 0u32;
            while now & INSIDE != 0 {
                spins += 1;
                if spins < 1 << 12 {
                    std::hint::spin_loop()
                } else {
                    std::thread::yield_now()
                }
                now = gate.load(Ordering::Acquire);
            }
        }
        if let Err(panic) = own {
            report(0, &*panic);
            shared.panicked.store(true, Ordering::Relaxed);
        }
        if shared.panicked.swap(false, Ordering::Relaxed) { Err(CpuError::WorkerPanicked) } else { Ok(()) }
    }

    /// Runs `f(state, i)` for every `i` in `0..count`, on any thread, after `init(state)` on each thread that takes
    /// part. Thread `t` uses `states[t]`.
    fn run_indexed<W: Send>(
        &mut self,
        states: &mut [W],
        count: usize,
        init: impl Fn(&mut W) + Sync,
        f: impl Fn(&mut W, usize) + Sync,
    ) -> Result<()> {
        let threads = self.threads();
        assert!(states.len() >= threads, "one state a thread");
        assert!(count <= u32::MAX as usize, "too many items");
        for (t, share) in self.shared.shares.iter().enumerate() {
            let (lo, hi) = (count * t / threads, count * (t + 1) / threads);
            share.0.store(lo as u64 | (hi as u64) << 32, Ordering::Relaxed);
        }
        let shared = self.shared.clone();
        let states = blocks::Raw(states.as_mut_ptr());
        // One item is one thread's: the others need not know.
        self.run(count <= 1, |thread| {
            // SAFETY: `thread` is below `threads <= states.len()` and different on every thread.
            let state = unsafe { &mut *states.at(thread) };
            init(state);
            while let Some(i) = shared.claim(thread) {
                f(state, i);
            }
        })
    }

    /// Runs `f(state, i, &mut items[i])` for every item, on any thread, after `init(state)` on each thread that takes
    /// part.
    pub fn run_items<W: Send, I: Send>(
        &mut self,
        states: &mut [W],
        items: &mut [I],
        init: impl Fn(&mut W) + Sync,
        f: impl Fn(&mut W, usize, &mut I) + Sync,
    ) -> Result<()> {
        let count = items.len();
        let items = blocks::Raw(items.as_mut_ptr());
        self.run_indexed(states, count, init, |state, i| {
            // SAFETY: `i < count`, and every index is claimed once.
            f(state, i, unsafe { &mut *items.at(i) })
        })
    }

    /// Cuts every segment into pieces of `chunk` elements (the last may be shorter) and runs
    /// `f(state, segment, first element, piece)` for each of them, after `init(state)` on each thread that takes part.
    pub fn run_segments<W: Send, T: Send>(
        &mut self,
        states: &mut [W],
        segments: &mut [&mut [T]],
        chunk: usize,
        init: impl Fn(&mut W) + Sync,
        f: impl Fn(&mut W, usize, usize, &mut [T]) + Sync,
    ) -> Result<()> {
        const MOST: usize = 8;
        assert!(segments.len() <= MOST, "too many segments");
        let mut raw = [(blocks::Raw(std::ptr::null_mut::<T>()), 0usize); MOST];
        let mut count = 0;
        for (slot, segment) in raw.iter_mut().zip(segments.iter_mut()) {
            *slot = (blocks::Raw(segment.as_mut_ptr()), segment.len());
            count += segment.len().div_ceil(chunk);
        }
        let used = segments.len();
        self.run_indexed(states, count, init, |state, mut i| {
            for (s, &(ptr, len)) in raw[..used].iter().enumerate() {
                let pieces = len.div_ceil(chunk);
                if i < pieces {
                    let start = i * chunk;
                    // SAFETY: the piece lies inside its segment, and every piece is claimed once.
                    let piece =
                        unsafe { std::slice::from_raw_parts_mut(ptr.at(start), chunk.min(len - start)) };
                    return f(state, s, start, piece);
                }
                i -= pieces;
            }
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        self.shared.gate.0.fetch_add(DISPATCH, Ordering::SeqCst);
        for thread in &self.wakers {
            thread.unpark();
        }
        for handle in self.handles.drain(..) {
            // A worker catches the panics of its jobs, so it ends normally.
            let _ = handle.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Shared {
    /// Enters dispatch `number`, unless it is over.
    #[inline]
    fn enter(&self, number: u64) -> bool {
        let gate = &self.gate.0;
        let mut now = gate.load(Ordering::Relaxed);
        while now / DISPATCH == number && now & CLOSED == 0 {
            match gate.compare_exchange_weak(now, now + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(found) => now = found,
            }
        }
        false
    }

    /// The next item for `thread`: from the front of its own share, else from the back of another's.
    #[inline]
    fn claim(&self, thread: usize) -> Option<usize> {
        let n = self.shares.len();
        for k in 0..n {
            let victim = if thread + k < n { thread + k } else { thread + k - n };
            let share = &self.shares[victim].0;
            let mut now = share.load(Ordering::Relaxed);
            loop {
                let (lo, hi) = (now & 0xffff_ffff, now >> 32);
                if lo >= hi {
                    break;
                }
                let (item, next) = if k == 0 { (lo, now + 1) } else { (hi - 1, now - (1 << 32)) };
                match share.compare_exchange_weak(now, next, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return Some(item as usize),
                    Err(found) => now = found,
                }
            }
        }
        None
    }
}

fn worker(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        seen = wait_for_job(shared, index, seen);
        if shared.shutdown.load(Ordering::SeqCst) {
            return;
        }
        if !shared.enter(seen) {
            continue;
        }
        // SAFETY: inside the gate; the job stays valid until we leave.
        let job = unsafe { *shared.job.get() };
        // SAFETY: `call` was made for the closure type behind `data`.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.data, index) }));
        if let Err(panic) = result {
            report(index, &*panic);
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.gate.0.fetch_sub(1, Ordering::Release);
    }
}

/// Spins, then sleeps, until the dispatch number is no longer `seen`; returns the new one.
fn wait_for_job(shared: &Shared, index: usize, seen: u64) -> u64 {
    let mut since = None;
    loop {
        for _ in 0..64 {
            let number = shared.gate.0.load(Ordering::Acquire) / DISPATCH;
            if number != seen {
                return number;
            }
            std::hint::spin_loop();
        }
        if since.get_or_insert_with(Instant::now).elapsed() < SPIN {
            continue;
        }
        let asleep = &shared.asleep[index - 1].0;
        asleep.store(true, Ordering::SeqCst);
        while shared.gate.0.load(Ordering::SeqCst) / DISPATCH == seen {
            std::thread::park();
        }
        asleep.store(false, Ordering::SeqCst);
    }
}

fn report(thread: usize, panic: &(dyn Any + Send)) {
    let text = panic
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_string());
    tracing::error!(thread, "compute thread panicked: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_once_and_threads_that_work_are_initialised() {
        for threads in [1, 2, 3, 7] {
            let mut pool = Pool::new(threads).unwrap();
            for count in [0, 1, 2, 5, 100, 1000] {
                let mut states = vec![(0usize, 0usize); threads];
                let mut items = vec![0u32; count];
                pool.run_items(
                    &mut states,
                    &mut items,
                    |s| s.0 += 1,
                    |s, i, x| {
                        s.1 += 1;
                        *x += i as u32 + 1;
                    },
                )
                .unwrap();
                assert!(items.iter().enumerate().all(|(i, &x)| x == i as u32 + 1));
                assert!(states[0].0 == 1 && states.iter().all(|s| s.0 <= 1));
                assert_eq!(states.iter().map(|s| s.1).sum::<usize>(), count);
            }
        }
    }

    #[test]
    fn segments_are_cut_at_their_ends() {
        let mut pool = Pool::new(3).unwrap();
        let (mut a, mut b, mut c) = (vec![0usize; 130], vec![0usize; 0], vec![0usize; 64]);
        let mut states = vec![(); 3];
        let mut segments: [&mut [usize]; 3] = [&mut a, &mut b, &mut c];
        pool.run_segments(
            &mut states,
            &mut segments,
            64,
            |_| {},
            |_, s, start, piece| {
                assert!(piece.len() == 64 || piece.len() == 2);
                for (i, x) in piece.iter_mut().enumerate() {
                    *x += 1000 * (s + 1) + start + i;
                }
            },
        )
        .unwrap();
        assert!(a.iter().enumerate().all(|(i, &x)| x == 1000 + i));
        assert!(c.iter().enumerate().all(|(i, &x)| x == 3000 + i));
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_goes_on() {
        let mut pool = Pool::new(3).unwrap();
        let mut states = vec![(); 3];
        for bad in [0usize, 50, 99] {
            let mut items = vec![0u8; 100];
            let result = pool.run_items(
                &mut states,
                &mut items,
                |_| {},
                |_, i, _| {
                    assert_ne!(i, bad, "item {bad} is bad on purpose");
                },
            );
            assert!(matches!(result, Err(CpuError::WorkerPanicked)));
            let mut items = vec![0u8; 100];
            pool.run_items(&mut states, &mut items, |_| {}, |_, _, x| *x = 1).unwrap();
            assert!(items.iter().all(|&x| x == 1));
        }
    }

    #[test]
    fn sleeping_workers_wake() {
        let mut pool = Pool::new(2).unwrap();
        let mut states = vec![false; 2];
        for _ in 0..1000 {
            std::thread::sleep(Duration::from_millis(1));
            // Long enough for a sleeping thread to come.
            let mut items = vec![0u8; 100];
            pool.run_items(
                &mut states,
                &mut items,
                |s| *s = true,
                |_, _, _| {
                    std::thread::sleep(Duration::from_micros(50));
                },
            )
            .unwrap();
            if states[1] {
                return;
            }
        }
        panic!("the worker never took part");
    }
}
