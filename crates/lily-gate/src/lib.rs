//! The Privacy Gate: it reads everything of a request before any of it may leave the machine.
//!
//! * [`views`]: every string of a typed chat request with the place it stands at, and the way back;
//! * [`detect`]: layer 1, recognisers without a model: a text in, [`Span`]s out;
//! * [`span`]: what a recogniser says it found, and how sure the evidence makes it;
//! * [`eval`]: scores against texts with known spans;
//! * [`schemes`]: the national numbers' check digits by themselves;
//! * [`propose`]: layer 2, a model that may add to what layer 1 found;
//! * [`policy`]: what is done with it;
//! * [`vault`]: stand-ins and the originals behind them;
//! * [`body`]: all of it together: the gate, and the bytes that may leave;
//! * [`restore`]: originals put back into the answer, while it streams.
//!
//! Layer 1 reads a text as it is and, where they differ, its normalised, decoded and base64 readings; finds words,
//! digits and cues once (`text`); runs the recognisers of `recognize` over them; and resolves their conflicts
//! (`merge`). All of it takes linear time.
//!
//! The crate is pure: no network, no files, no clock, no model.

pub mod body;
mod checks;
mod cue_table;
mod cues;
pub mod detect;
pub mod eval;
pub mod hash;
mod merge;
mod normalize;
pub mod policy;
pub mod propose;
mod recognize;
pub mod restore;
pub mod schemes;
pub mod span;
#[cfg(test)]
mod testing;
mod text;
pub mod vault;
pub mod views;

pub use detect::{Detector, DetectorConfig, DetectorError, OwnerTerm};
pub use span::{Category, Evidence, Span};
pub use views::{Field, FieldPart, FieldRole, Refusal, RefusalKind, fields, replace};
