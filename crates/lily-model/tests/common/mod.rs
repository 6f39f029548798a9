//! What several tests need.
#![allow(dead_code)]

use std::path::PathBuf;

/// The fixtures of this crate.
pub fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures"))
}

/// The small random checkpoint.
pub fn tiny() -> PathBuf {
    fixtures().join("tiny")
}

/// The default model.
pub fn lily_mini() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lily-mini"))
}
