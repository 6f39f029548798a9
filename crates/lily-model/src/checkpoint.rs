//! Reading and validating a checkpoint directory.

/// A validated checkpoint.
#[derive(Debug)]
pub struct Checkpoint {}
