//! What a session has given away.

use super::{LOOK_ALIKE, Vault};

/// Counts since the budget began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Distinct values masked.
    pub values: u64,
    /// Distinct values that left in clear.
    pub clear: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Vault {
    /// Counts since the budget began.
    pub(crate) fn spent(&self) -> Spent {
        Spent {
            values: self.values().saturating_sub(self.before),
            clear: self.clear.len() as u64,
            bytes: self.bytes,
        }
    }

    /// Books a request.
    pub(crate) fn spend<'a>(&mut self, bytes: u64, clear: impl Iterator<Item = &'a str>) {
        self.bytes = self.bytes.saturating_add(bytes);
        for value in clear {
            self.clear.insert(self.fingerprint(value));
        }
    }

    /// Begins a new budget. What was masked so far is known, and does not count again.
    pub(crate) fn renew_budget(&mut self) {
        self.before = self.values();
        self.clear.clear();
        self.bytes = 0;
    }

    /// Whether `value` left in clear under this budget.
    pub(crate) fn was_clear(&self, value: &str) -> bool {
        self.clear.contains(&self.fingerprint(value))
    }

    /// Distinct values, without texts that merely look like stand-ins.
    fn values(&self) -> u64 {
        self.entries.iter().filter(|e| e.kind != LOOK_ALIKE).count() as u64
    }
}
