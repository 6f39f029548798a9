//! Consents: one-time ids, each bound to one request.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::hash;

/// How long a consent may be given.
const VALID: Duration = Duration::from_secs(15 * 60);
/// Most that may be open; beyond, the oldest lapses.
const MOST_OPEN: usize = 1024;

/// Why a consent does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ApprovalError {
    /// Never issued, used already, or lapsed.
    #[error(
        "the approval id is not known: it was used already, is older than 15 minutes, or was never issued; send the request without it for a new one"
    )]
    Unknown,
    /// Issued for another request.
    #[error("the approval id was issued for another request; what is sent must be the same to the byte")]
    Changed,
}

/// All open consents.
#[derive(Default)]
pub(super) struct Approvals {
    open: Mutex<HashMap<String, ([u8; 32], Instant)>>,
}

impl Approvals {
    /// A new id for the request with this hash.
    pub(super) fn issue(&self, bound: [u8; 32]) -> String {
        let id = format!("apr_{}", hash::hex(&rand::random::<[u8; 16]>()));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, (_, issued)| issued.elapsed() < VALID);
        if open.len() >= MOST_OPEN
            && let Some(oldest) = open.iter().min_by_key(|(_, (_, issued))| *issued).map(|(id, _)| id.clone())
        {
            open.remove(&oldest);
        }
        open.insert(id.clone(), (bound, Instant::now()));
        id
    }

    /// Uses an id up. One that is shown with another request is used up as well.
    pub(super) fn redeem(&self, id: &str, bound: [u8; 32]) -> Result<(), ApprovalError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.remove(id) {
            Some((_, issued)) if issued.elapsed() >= VALID => Err(ApprovalError::Unknown),
            Some((expected, _)) if expected == bound => Ok(()),
            Some(_) => Err(ApprovalError::Changed),
            None => Err(ApprovalError::Unknown),
        }
    }
}
