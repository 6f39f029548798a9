//! The Privacy Gate: it reads everything of a request before any of it may leave the machine.
//!
//! * [`views`]: every string of a typed chat request with the place it stands at, and the way back;
//! * [`detect`]: layer 1, recognisers without a model: a text in, [`Span`]s out;
//! * [`span`]: what a recogniser says it found, and how sure the evidence makes it.
//!
//! The crate is pure: no network, no files, no clock, no model.

pub mod detect;
mod normalize;
pub mod span;
pub mod views;

pub use detect::{Detector, DetectorConfig, DetectorError, OwnerTerm};
pub use span::{Category, Evidence, Span};
pub use views::{Field, FieldPart, FieldRole, Refusal, RefusalKind, fields, replace};
