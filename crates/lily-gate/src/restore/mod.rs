//! Answers on their way back: stand-ins become the originals again, while the answer streams.
//!
//! Every lane of an answer (content, reasoning, the arguments of each tool call) has its own [`Lane`], which may be
//! fed in pieces of any size and gives the same text whatever the pieces are:
//!
//! ```text
//! piece -> characters (JSON strings decoded) -> scan: hide what was never sent -> match: stand-ins -> text
//! ```
//!
//! A lane holds back only what could still become a stand-in that was sent with this very request, or a value that
//! has to be hidden.

mod json;
mod matcher;
mod scan;
#[cfg(test)]
mod tests;

use std::{collections::HashSet, sync::Arc};

use zeroize::Zeroizing;

use crate::{
    hash,
    policy::ResponseRedact,
    propose::Recognise,
    vault::{Live, key_form},
};

use json::JsonLane;
use matcher::Matcher;
use scan::Scanner;

/// What stands in an answer for a value that had to be hidden.
pub const REDACTED: &str = "[redacted]";

/// One character and how it was spelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    pub c: char,
    /// Its spelling, where it was escaped.
    pub raw: Option<Box<str>>,
}

impl Unit {
    pub(crate) fn plain(c: char) -> Self {
        Self { c, raw: None }
    }

    fn write(&self, out: &mut String) {
        match &self.raw {
            Some(raw) => out.push_str(raw),
            None => out.push(self.c),
        }
    }
}

/// How a restored value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Escape {
    /// As it is.
    None,
    /// As the inside of a JSON string.
    Json,
}

/// Everything needed to restore the answer to one request: the stand-ins that left with it, and nothing else, so that
/// no other session's and no other request's value can come back.
pub struct RestoreMap {
    tag: String,
    /// Name and tag in lower case, in every way of joining them, or an invented name; and original. Sorted.
    fulls: Vec<(String, Arc<Zeroizing<String>>)>,
    /// Fingerprints of all that layer 1 found in the request.
    seen: HashSet<[u8; 32]>,
    key: Zeroizing<[u8; 32]>,
    redact: ResponseRedact,
    recogniser: Option<Arc<dyn Recognise>>,
}

impl std::fmt::Debug for RestoreMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RestoreMap")
            .field("tag", &self.tag)
            .field("values", &(self.fulls.len() / 4))
            .finish_non_exhaustive()
    }
}

impl RestoreMap {
    pub(crate) fn new(tag: &str, live: impl IntoIterator<Item = Live>, key: Zeroizing<[u8; 32]>) -> Self {
        let mut fulls = Vec::new();
        for Live { name, value, invented } in live {
            let Some(value) = value else { continue };
            let value = Arc::new(value);
            fulls.extend(invented.map(|name| (name.to_lowercase(), Arc::clone(&value))));
            let name = name.to_lowercase();
            for separator in ['·', '_', '.', '-'] {
                fulls.push((format!("{name}{separator}{tag}"), Arc::clone(&value)));
            }
        }
        fulls.sort_by(|a, b| a.0.cmp(&b.0));
        Self {
            tag: tag.to_owned(),
            fulls,
            seen: HashSet::new(),
            key,
            redact: ResponseRedact::Off,
            recogniser: None,
        }
    }

    /// Hides in answers what `recogniser` finds and the request (`seen`) did not hold.
    pub(crate) fn with_scan(
        mut self,
        redact: ResponseRedact,
        recogniser: Arc<dyn Recognise>,
        seen: HashSet<[u8; 32]>,
    ) -> Self {
        self.redact = redact;
        self.recogniser = (redact != ResponseRedact::Off).then_some(recogniser);
        self.seen = seen;
        self
    }

    fn was_sent(&self, value: &str) -> bool {
        let form = Zeroizing::new(key_form(value));
        self.seen.contains(&hash::hmac(&self.key, &[form.as_bytes()]))
    }

    /// Restores a whole text; no scan. For the gate's own check that masking can be undone.
    pub(crate) fn restore_text(&self, text: &str) -> String {
        let mut matcher = Matcher::new();
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            matcher.push(self, Unit::plain(c), Escape::None, true, &mut out);
        }
        matcher.flush(self, Escape::None, true, &mut out);
        out
    }
}

/// What happened in a lane so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// Stand-ins replaced by their originals.
    pub restored: u64,
    /// Texts with this session's tag that were left: unknown, of another request, stripped, or kept from a network
    /// tool.
    pub unrestored: u64,
    /// Values hidden.
    pub redacted: u64,
    /// Stand-ins that the text ended in the middle of; what there was of them was given as it came.
    pub cut: u64,
}

impl std::ops::AddAssign for LaneCounts {
    fn add_assign(&mut self, other: Self) {
        self.restored += other.restored;
        self.unrestored += other.unrestored;
        self.redacted += other.redacted;
        self.cut += other.cut;
    }
}

/// Whether an argument (its top-level name) gets originals back.
pub type Restores = Arc<dyn Fn(&str) -> bool + Send + Sync>;

enum Kind {
    Text,
    Arguments(Box<JsonLane>),
}

/// One lane of one answer.
pub struct Lane {
    map: Arc<RestoreMap>,
    kind: Kind,
    stage: Stage,
}

/// Scan and match, for one run of text.
pub(crate) struct Stage {
    scanner: Option<Scanner>,
    matcher: Matcher,
    scratch: Vec<Unit>,
}

impl Stage {
    fn new(map: &RestoreMap) -> Self {
        let scanner = map.recogniser.as_ref().map(|r| Scanner::new(Arc::clone(r), map.redact));
        Self { scanner, matcher: Matcher::new(), scratch: Vec::new() }
    }

    pub(crate) fn push(
        &mut self,
        map: &RestoreMap,
        unit: Unit,
        escape: Escape,
        restore: bool,
        out: &mut String,
    ) {
        match &mut self.scanner {
            None => self.matcher.push(map, unit, escape, restore, out),
            Some(scanner) => {
                scanner.push(map, unit, &mut self.scratch);
                for unit in self.scratch.drain(..) {
                    self.matcher.push(map, unit, escape, restore, out);
                }
            }
        }
    }

    /// Ends the run: nothing is held back any more.
    pub(crate) fn flush(&mut self, map: &RestoreMap, escape: Escape, restore: bool, out: &mut String) {
        if let Some(scanner) = &mut self.scanner {
            scanner.flush(map, &mut self.scratch);
            for unit in self.scratch.drain(..) {
                self.matcher.push(map, unit, escape, restore, out);
            }
        }
        self.matcher.flush(map, escape, restore, out);
    }

    /// Whether a scalar written outside strings (a number) has to be hidden.
    pub(crate) fn hides(&mut self, map: &RestoreMap, scalar: &str) -> bool {
        self.scanner.as_mut().is_some_and(|scanner| scanner.hides(map, scalar))
    }

    fn counts(&self) -> LaneCounts {
        LaneCounts {
            restored: self.matcher.restored,
            unrestored: self.matcher.unrestored,
            cut: self.matcher.cut,
            redacted: self.scanner.as_ref().map_or(0, |s| s.redacted),
        }
    }
}

impl Lane {
    /// A lane of plain text: content, reasoning, refusal.
    pub fn text(map: Arc<RestoreMap>) -> Self {
        Self { stage: Stage::new(&map), map, kind: Kind::Text }
    }

    /// The arguments of a tool call: a JSON text in pieces. Values are restored on the decoded strings and escaped
    /// again; what needs no change keeps its spelling. `restores` says which arguments are restored at all.
    pub fn arguments(map: Arc<RestoreMap>, restores: Restores) -> Self {
        Self { stage: Stage::new(&map), map, kind: Kind::Arguments(Box::new(JsonLane::new(restores))) }
    }

    /// The text that is certain after `piece`.
    pub fn push(&mut self, piece: &str) -> String {
        let mut out = String::with_capacity(piece.len());
        match &mut self.kind {
            Kind::Text => {
                for c in piece.chars() {
                    self.stage.push(&self.map, Unit::plain(c), Escape::None, true, &mut out);
                }
            }
            Kind::Arguments(json) => {
                for c in piece.chars() {
                    json.push(&self.map, &mut self.stage, c, &mut out);
                }
            }
        }
        out
    }

    /// The rest, at the end of the lane. What was held back and is no stand-in is given as it came.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        match &mut self.kind {
            Kind::Text => self.stage.flush(&self.map, Escape::None, true, &mut out),
            Kind::Arguments(json) => json.finish(&self.map, &mut self.stage, &mut out),
        }
        out
    }

    /// What happened so far.
    pub fn counts(&self) -> LaneCounts {
        self.stage.counts()
    }
}
