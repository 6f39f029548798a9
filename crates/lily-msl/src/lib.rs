//! Metal Shading Language front end: the same kernel text for Metal, a software GPU and CUDA.
//!
//! ```text
//! Sources --preprocess, parse--> Unit --lint--> findings with file and line
//!                                 |---manifest: what the host binds, checked at start
//!                                 |---soft_source: C++ -> SoftLibrary, which runs kernels and watches them
//!                                 |---cuda_source: CUDA C++ for NVRTC
//!                                 `---flatten: the text for Metal's own compiler
//! ```
//!
//! Macros, conditions and includes are resolved here ([`Unit::parse`]), so no external tool is needed where kernels
//! are translated on a user's machine. Metal gets the unpreprocessed text with includes inlined
//! ([`Sources::flatten`]).
//!
//! Conventions for kernels, which the manifest relies on:
//! * every parameter has its attribute; buffers are `device` or `constant` pointers, small values `constant T&`;
//! * `constant T&` is passed as bytes with the dispatch; what changes on the GPU comes through a buffer;
//! * `[[max_total_threads_per_threadgroup(n)]]` means exactly `n` threads;
//! * threadgroup variables stand at the outermost level of a kernel;
//! * every simdgroup is full, and all its lanes reach every simdgroup operation;
//! * barriers name the memory they order: the checks hold them to it.

#![warn(missing_docs)]

mod calls;
pub mod diag;
pub mod emit;
mod expr;
mod lexer;
pub mod lint;
pub mod manifest;
pub mod parse;
mod preprocess;
pub mod soft;
mod source;

pub use diag::{Diagnostic, Diagnostics, Loc, Rule};
pub use lexer::{Token, TokenKind};
pub use parse::{ParseOptions, Unit};
pub use source::Sources;
