//! The model on a GPU.
//!
//! ```text
//! ModelConfig --decode_plan--> Plan: ops with the byte ranges they read and write
//!                                |---levels: what may run together, derived from the ranges
//!                                |---counters: dispatches, levels, bytes against the floor
//!                                `---bind: against the kernels' manifest, at start
//! ModelWeights --load--> buffers --+
//!                                  +--> Device: prepare a plan once, submit it every step
//! GpuModel: sequences, batches, chunks, snapshots; the host side of a step
//! ```
//!
//! A plan is a pure function of the model's sizes and of the batch's shape: it can be built, checked and counted for
//! the 35B model on a machine that has no GPU. Nobody places a barrier by hand: an op declares which bytes it reads and
//! writes, levels follow from that, and the `soft` device holds the ops to what they declared.

#![warn(missing_docs)]

pub mod budget;
pub mod device;
pub mod error;
pub mod kernels;
pub mod model;
pub mod plan;
pub mod selftest;
pub mod synthetic;

pub use device::{Device, DeviceFacts};
pub use error::GpuError;
pub use model::{Chosen, GpuModel, GpuOptions, LoadReport, LogitsWanted};
pub use plan::{Counters, Draw, ModelShape, Plan};
