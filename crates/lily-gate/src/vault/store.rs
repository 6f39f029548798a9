//! The vaults of all sessions.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{Vault, random_tag};
use crate::policy::Style;

/// Most sessions kept; beyond, the one unused for longest goes.
const MOST_SESSIONS: usize = 1024;
/// Tries for a tag that nothing else uses.
const TAG_TRIES: usize = 64;

/// Why a session has no vault. The request is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Every tag tried was in use, or in the request's text.
    #[error("no unused session tag was found in {TAG_TRIES} tries; send the request again")]
    Tag,
}

struct Slot {
    vault: Arc<Mutex<Vault>>,
    tag: String,
    used: Instant,
}

/// Vaults by session; each is known to one session only.
#[derive(Default)]
pub struct VaultStore {
    slots: Mutex<HashMap<[u8; 32], Slot>>,
}

impl std::fmt::Debug for VaultStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VaultStore").field("sessions", &self.len()).finish()
    }
}

impl VaultStore {
    /// The session's vault, a new one if it has none or was unused for `ttl`. `taken` says which tags must not be
    /// drawn: those that a text of the request holds.
    pub fn session(
        &self,
        session: [u8; 32],
        style: Style,
        ttl: Duration,
        taken: impl Fn(&str) -> bool,
    ) -> Result<Arc<Mutex<Vault>>, StoreError> {
        self.session_at(session, style, ttl, taken, random_tag, Instant::now())
    }

    pub(super) fn session_at(
        &self,
        session: [u8; 32],
        style: Style,
        ttl: Duration,
        taken: impl Fn(&str) -> bool,
        mut draw: impl FnMut() -> String,
        now: Instant,
    ) -> Result<Arc<Mutex<Vault>>, StoreError> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|_, slot| now.saturating_duration_since(slot.used) <= ttl && !slot.vault.is_poisoned());
        if let Some(slot) = slots.get_mut(&session) {
            slot.used = now;
            return Ok(Arc::clone(&slot.vault));
        }
        while slots.len() >= MOST_SESSIONS {
            let Some(oldest) = slots.iter().min_by_key(|(_, slot)| slot.used).map(|(key, _)| *key) else {
                break;
            };
            slots.remove(&oldest);
        }
        let free = |tag: &String| !taken(tag) && !slots.values().any(|slot| slot.tag == *tag);
        let tag = (0..TAG_TRIES).map(|_| draw()).find(free).ok_or(StoreError::Tag)?;
        let vault = Arc::new(Mutex::new(Vault::new(tag.clone(), style)));
        slots.insert(session, Slot { vault: Arc::clone(&vault), tag, used: now });
        Ok(vault)
    }

    /// The session's vault if it has one; it does not count as used.
    pub(crate) fn peek(&self, session: &[u8; 32], ttl: Duration) -> Option<Arc<Mutex<Vault>>> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.get(session).filter(|slot| slot.used.elapsed() <= ttl)?;
        Some(Arc::clone(&slot.vault))
    }

    /// Forgets a session; its originals are overwritten once no answer needs them.
    pub fn forget(&self, session: &[u8; 32]) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
    }

    /// Number of sessions kept.
    pub fn len(&self) -> usize {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether no session is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
