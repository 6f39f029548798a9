//! Downloading a checkpoint from a model hub: resumed where it broke off, and every byte verified.
//!
//! The hub's list of a revision names each file with its size and hash: SHA-256 for large files, git's blob hash
//! (SHA-1) for small ones. A file is written to `NAME.part`, continued after an interruption, and takes its name only
//! when size and hash are right. All requests name the commit, so that a revision that moves meanwhile mixes nothing.

mod hash;
mod hub;
mod transfer;

pub use hub::Hub;
pub use transfer::{Progress, Transfer, fetch};
