//! Which kernels ran at which sizes and in which schedules, in this process.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

/// Sizes that every kernel must have been run at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sizes {
    /// Widths, heads and experts of the 35B model; of its longest dimension some rows.
    Large,
    /// Of lily-mini.
    Mini,
    /// Of the tiny model.
    Tiny,
    /// Some dimension fills neither a tile nor a block of the kernel.
    Ragged,
}

thread_local! {
    static NOW: RefCell<Vec<Sizes>> = const { RefCell::new(Vec::new()) };
}

type Runs = BTreeMap<String, BTreeMap<Sizes, BTreeSet<u32>>>;
static RUNS: Mutex<Runs> = Mutex::new(Runs::new());

/// Says what the dispatches that follow on this thread are like.
pub fn at(sizes: &[Sizes]) {
    NOW.with_borrow_mut(|now| *now = sizes.to_vec());
}

/// Notes a dispatch of a checked library, which is strict.
pub fn record(kernel: &str, seed: u32) {
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    let of_kernel = runs.entry(kernel.to_string()).or_default();
    NOW.with_borrow(|now| {
        for &sizes in now {
            of_kernel.entry(sizes).or_default().insert(seed);
        }
    });
}

/// What is missing for a kernel to have run at all of `sizes`, each in two schedules.
pub fn missing(kernel: &str, sizes: &[Sizes]) -> Vec<String> {
    let runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    let schedules = |s: &Sizes| runs.get(kernel).and_then(|r| r.get(s)).map_or(0, BTreeSet::len);
    sizes
        .iter()
        .filter(|s| schedules(s) < 2)
        .map(|s| format!("{kernel}: {} schedules at {s:?} sizes", schedules(s)))
        .collect()
}
