//! The steps of a layer, each one or a few dispatches of the thread pool.

pub(crate) mod attention;
pub(crate) mod embed;
pub(crate) mod gdn;
pub(crate) mod linear;
pub(crate) mod moe;
pub(crate) mod norm;

use crate::{kernels::Kernels, pool::Pool, worker::Worker};

/// The machine: kernels, threads and their scratch.
pub(crate) struct Machine {
    pub(crate) k: &'static Kernels,
    pub(crate) pool: Pool,
    pub(crate) workers: Vec<Worker>,
    /// Counts steps whose dispatches leave something in the workers for the next one.
    pub(crate) step: u64,
}

/// Consecutive rows of the activations that belong to one sequence.
pub(crate) struct Span<'a> {
    /// First row.
    pub(crate) row: usize,
    /// Rows (tokens).
    pub(crate) n: usize,
    /// Position of the first of them.
    pub(crate) position: usize,
    pub(crate) sequence: &'a mut crate::Sequence,
}
