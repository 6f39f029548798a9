//! Running a proposer over all texts of a request: windows, canaries, deadline, checks, memory.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::{Item, Proposal, ProposedVerdict, Proposer};
use crate::{hash, policy::Topic};

/// Bytes of one window: about 2,000 tokens. Recall falls in longer ones.
const WINDOW: usize = 8000;
/// Each window begins so far after the one before: half of it is seen twice.
const ADVANCE: usize = WINDOW / 2;
/// Windows whose verdicts are remembered.
const REMEMBERED: usize = 512;

/// Why layer 2 said nothing that counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("layer 2 {kind}: {reason}")]
pub struct Failure {
    /// What kind.
    pub kind: FailureKind,
    /// The details; never a value of the text.
    pub reason: String,
}

/// Kinds of failure of layer 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// It is not there, or broke.
    Unavailable,
    /// It took too long.
    Timeout,
    /// What it said is not a proposal, or names what is not in the text.
    Invalid,
    /// It named more than the policy lets it.
    TooMany,
    /// It did not name the invented values.
    CanaryMissed,
}

impl std::fmt::Display for FailureKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unavailable => "is unavailable",
            Self::Timeout => "took too long",
            Self::Invalid => "answered wrongly",
            Self::TooMany => "named too many values",
            Self::CanaryMissed => "did not see the planted values",
        })
    }
}

fn failure(kind: FailureKind, reason: impl Into<String>) -> Failure {
    Failure { kind, reason: reason.into() }
}

/// What layer 2 found in a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Findings {
    /// Values, in the order of the text; with repetitions.
    pub items: Vec<Item>,
    /// Topics for which a window should stay.
    pub topics: Vec<Topic>,
}

/// A proposer with its memory.
pub(crate) struct Looker {
    proposer: Arc<dyn Proposer>,
    memory: Arc<Mutex<HashMap<[u8; 32], Findings>>>,
    key: [u8; 32],
}

impl Looker {
    pub(crate) fn new(proposer: Arc<dyn Proposer>) -> Self {
        Self { proposer, memory: Arc::default(), key: rand::random() }
    }

    /// Looks at all of `text`. Runs on a thread of its own, so that a proposer that hangs holds up nothing.
    pub(crate) fn look(
        &self,
        text: &str,
        policy: &str,
        max_items: usize,
        limit: Duration,
    ) -> Result<Findings, Failure> {
        let deadline = Instant::now() + limit;
        let (proposer, memory, key) = (Arc::clone(&self.proposer), Arc::clone(&self.memory), self.key);
        let windows: Vec<String> = windows(text).into_iter().map(str::to_owned).collect();
        let policy = policy.to_owned();
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            let digest = proposer.digest();
            let mut all = Findings::default();
            for window in windows {
                let place = hash::hmac(&key, &[window.as_bytes(), policy.as_bytes(), digest.as_bytes()]);
                let known = memory.lock().unwrap_or_else(PoisonError::into_inner).get(&place).cloned();
                let found = match known {
                    Some(found) => Ok(found),
                    None => look_once(&*proposer, &window, max_items, deadline),
                };
                match found {
                    Err(failure) => {
                        let _ = sender.send(Err(failure));
                        return;
                    }
                    Ok(found) => {
                        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
                        if memory.len() >= REMEMBERED {
                            memory.clear();
                        }
                        memory.insert(place, found.clone());
                        all.items.extend(found.items);
                        all.topics.extend(found.topics);
                    }
                }
            }
            let _ = sender.send(Ok(all));
        };
        thread::Builder::new()
            .name("gate-layer2".into())
            .spawn(work)
            .map_err(|e| failure(FailureKind::Unavailable, format!("no thread: {e}")))?;
        match receiver.recv_timeout(limit) {
            Ok(found) => found,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(failure(FailureKind::Timeout, format!("no answer within {} ms", limit.as_millis())))
            }
            // The thread ended without a word: it panicked.
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(failure(FailureKind::Unavailable, "it broke")),
        }
    }
}

/// One window, with two invented values planted in it.
fn look_once(
    proposer: &dyn Proposer,
    window: &str,
    max_items: usize,
    deadline: Instant,
) -> Result<Findings, Failure> {
    let canaries = canaries(window);
    let [person, address] = &canaries;
    let planted = format!("Contact: {person}\n{window}\nDelivered to {address}.");
    let answer = proposer.propose(&planted, deadline).map_err(|reason| {
        let late = Instant::now() >= deadline;
        failure(if late { FailureKind::Timeout } else { FailureKind::Unavailable }, reason)
    })?;
    if Instant::now() >= deadline {
        return Err(failure(FailureKind::Timeout, "the answer came after the deadline"));
    }
    // Serde's messages may quote the answer, and the answer the text.
    let proposal: Proposal = serde_json::from_str(&answer).map_err(|e| {
        failure(FailureKind::Invalid, format!("no proposal at line {}, column {}", e.line(), e.column()))
    })?;
    if proposal.items.len() > max_items + canaries.len() {
        let (found, most) = (proposal.items.len(), max_items);
        return Err(failure(FailureKind::TooMany, format!("{found} items; expected at most {most}")));
    }
    for (i, item) in proposal.items.iter().enumerate() {
        if item.v.trim().is_empty() || !planted.contains(item.v.as_str()) {
            return Err(failure(FailureKind::Invalid, format!("items[{i}].v is not in the text")));
        }
    }
    for (i, canary) in canaries.iter().enumerate() {
        if !proposal.items.iter().any(|item| item.v.contains(canary.as_str())) {
            return Err(failure(FailureKind::CanaryMissed, format!("planted value {} of 2", i + 1)));
        }
    }
    let topics = match (proposal.verdict, proposal.reason.topic()) {
        (ProposedVerdict::Local, Some(topic)) => vec![topic],
        (ProposedVerdict::Local, None) => vec![Topic::Other],
        _ => Vec::new(),
    };
    let mut items = proposal.items;
    items.retain(|item| window.contains(item.v.as_str()));
    Ok(Findings { items, topics })
}

/// A name and an address that nobody has and that `text` does not hold.
fn canaries(text: &str) -> [String; 2] {
    const STARTS: &[&str] =
        &["Bel", "Cor", "Dav", "Fen", "Gal", "Hes", "Jor", "Kel", "Mar", "Nev", "Tam", "Wil"];
    const ENDS: &[&str] = &["ander", "brook", "dale", "ford", "gate", "lin", "mont", "stead", "ton", "wick"];
    let pick = |list: &[&'static str]| list[rand::random_range(0..list.len())];
    let word = || format!("{}{}", pick(STARTS), pick(ENDS));
    loop {
        let person = format!("{} {}", word(), word());
        let address = format!("{} {} Street", rand::random_range(10..990), word());
        if !text.contains(&person) && !text.contains(&address) {
            return [person, address];
        }
    }
}

/// Overlapping stretches of `text`, cut at blanks where there are any.
fn windows(text: &str) -> Vec<&str> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let border = |wanted: usize| {
        let mut at = wanted.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        // A word that is cut in two is seen whole in the next window; a blank nearby is nicer.
        let near = at.saturating_sub(200);
        match text.get(near..at).and_then(|t| t.rfind(char::is_whitespace)) {
            Some(blank) if at < text.len() => near + blank,
            _ => at,
        }
    };
    let mut all = Vec::new();
    let mut start = 0;
    loop {
        let end = border(start + WINDOW);
        all.push(&text[start..end]);
        if end >= text.len() {
            return all;
        }
        start = border(start + ADVANCE).max(start + 1);
        while !text.is_char_boundary(start) {
            start += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_everything_twice() {
        assert!(windows(" \n").is_empty());
        assert_eq!(windows("short"), ["short"]);
        for text in ["word and blank ".repeat(3000), "é".repeat(20_000), "語 ".repeat(9_000)] {
            let all = windows(&text);
            let mut reached = 0;
            for window in &all {
                let at = window.as_ptr() as usize - text.as_ptr() as usize;
                assert!(window.len() <= WINDOW);
                assert!(at <= reached, "a gap before {at}");
                assert!(reached == 0 || reached - at >= WINDOW / 4, "overlap at {at}");
                reached = at + window.len();
            }
            assert_eq!(reached, text.len());
        }
    }
}
