//! The CPU backend.
//!
//! The idea: decode is bound by reading memory, so the packed 4-bit weights are multiplied where they lie (in the
//! mapped file, no copy, no unpacked array) by activations that were turned into integers once; prefill is bound by
//! arithmetic, so 32 rows are unpacked at a time into the first-level cache and used for all tokens. The layers of
//! this crate, bottom up:
//!
//! * [`isa`], [`kernels`]: instruction sets, and one table of kernels for each, chosen at run time;
//! * [`acts`]: activations as integers, and their layout;
//! * [`pool`]: threads that spin between the steps of a token and sleep when idle;
//! * `kv`, `sequence`: what a sequence remembers, and snapshots of it;
//! * `ops`: the steps of a layer, each one or a few dispatches of the pool;
//! * `model`: [`CpuModel`], their order.
//!
//! Results do not depend on the number of threads, and are the same bits from run to run.

pub mod acts;
mod buf;
mod check;
mod error;
pub mod floor;
pub mod isa;
pub mod kernels;
mod kv;
mod model;
mod ops;
mod options;
mod pages;
pub mod pool;
mod sequence;
mod worker;

pub use error::{CpuError, Result};
pub use isa::Isa;
pub use model::{CpuModel, Interrupt};
pub use options::{CpuOptions, LogitsWanted};
pub use pages::PAGE;
pub use sequence::Sequence;
