//! How much one session may give away before somebody is asked.
//!
//! A stand-in hides a value, but not that there is one, nor how many values belong together; and who writes enough is
//! known by what is left in clear. The budget bounds both, and the bytes.

use serde::{Deserialize, Serialize};

use super::{Action, PolicyError};

/// Limits of one session, all its requests together. A consent for a request beyond them begins a new budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Most distinct values masked.
    pub values: u64,
    /// Most distinct values that were found and that the policy let leave as they are. Each says something about somebody,
    /// and some of them together say who it is.
    pub clear: u64,
    /// Most KiB sent, counted as the client sent them; a conversation that is sent again counts again.
    pub kib: u64,
    /// What is done with a request beyond it: `ask`, `local` or `refuse`.
    pub action: Action,
}

impl Default for Budget {
    fn default() -> Self {
        Self { values: 500, clear: 200, kib: 32 << 10, action: Action::Ask }
    }
}

impl Budget {
    pub(super) fn check(&self) -> Result<(), PolicyError> {
        match self.action {
            Action::Ask | Action::Local | Action::Refuse => Ok(()),
            found => Err(PolicyError::Action {
                field: "budget.action",
                found,
                expected: "\"ask\", \"local\" or \"refuse\"",
            }),
        }
    }
}
