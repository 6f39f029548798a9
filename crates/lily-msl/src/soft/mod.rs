//! The soft device: kernels compiled by the system's C++ compiler into a shared library, run on the CPU thread by
//! thread as a GPU would.
//!
//! * Simdgroups of 32 lanes go in lockstep at collectives; threadgroups meet at barriers; both are computed when
//!   all are there, and in strict mode a missing lane is a fault.
//! * Threadgroup memory starts as NaN (all bits set).
//! * The order of lanes, simdgroups and threadgroups is natural for seed 0 and shuffled for any other seed, so
//!   that what depends on it shows.
//! * A *checked* library also watches every memory access: bounds of every buffer and threadgroup variable,
//!   threadgroup memory read before it is written, races between threads with no barrier between them (also across
//!   threadgroups), and which bytes of every buffer a dispatch reads and writes.
//!
//! Not watched: a thread's own arrays and uninitialised local variables.

mod compile;
mod library;
mod run;

pub use compile::{Compiler, SoftError};
pub use library::{Fault, FaultKind, SoftLibrary, Stats};
pub use run::{Arg, Dispatch, Outcome, RawArg, RawDispatch, Touched, Value};
