//! Hiding in an answer what the request never held: secrets by default, all that layer 1 finds on demand.
//!
//! Characters are held back until the words around them are known. The positions at which the text is looked at
//! depend on the text alone and not on how it was cut into pieces, and so does what is hidden.

use std::sync::Arc;

use super::{REDACTED, RestoreMap, Unit};
use crate::{Category, Span, policy::ResponseRedact, propose::Recognise, vault::is_unspaced};

/// Bytes of text before the held ones that recognisers see, for the words that give a value away.
const CONTEXT: usize = 384;
/// Least distance of two looks, in bytes.
const STEP: usize = 24;
/// Bytes after a position that must be known before text up to it is let through, when everything is hidden: the
/// longest value with blanks in it (an address).
const WINDOW_ALL: usize = 128;
/// Most bytes held back. A value that is longer is hidden up to here and goes on being hidden.
const MOST_HELD: usize = 64 * 1024;

const PEM_BEGIN: &str = "-----BEGIN ";
const PEM_END: &str = "-----END ";

pub(super) struct Scanner {
    recogniser: Arc<dyn Recognise>,
    redact: ResponseRedact,
    window: usize,
    /// Text already let through, then the text of `held`.
    text: String,
    /// Where the held text begins in `text`.
    start: usize,
    held: Vec<Unit>,
    /// Where the next look may be, in `text`.
    look: usize,
    /// The last character let through belonged to a hidden value.
    hiding: bool,
    /// Positions in `text` at which a word has just ended.
    borders: Vec<usize>,
    pub redacted: u64,
}

impl Scanner {
    pub(super) fn new(recogniser: Arc<dyn Recognise>, redact: ResponseRedact) -> Self {
        let window = if redact == ResponseRedact::All { WINDOW_ALL } else { 0 };
        Self {
            recogniser,
            redact,
            window,
            text: String::new(),
            start: 0,
            held: Vec::new(),
            look: STEP,
            hiding: false,
            borders: Vec::new(),
            redacted: 0,
        }
    }

    pub(super) fn push(&mut self, map: &RestoreMap, unit: Unit, out: &mut Vec<Unit>) {
        let c = unit.c;
        self.text.push(c);
        self.held.push(unit);
        let overdue = self.text.len() - self.borders.last().copied().unwrap_or(self.start) >= MOST_HELD;
        if c.is_whitespace() || is_unspaced(c) || overdue {
            self.borders.push(self.text.len());
            self.looks(map, out);
        }
    }

    /// All looks whose surroundings are known.
    fn looks(&mut self, map: &RestoreMap, out: &mut Vec<Unit>) {
        loop {
            let Some(&at) = self.borders.iter().find(|b| **b >= self.look) else { return };
            let Some(&known) = self.borders.iter().find(|b| **b >= at + self.window) else { return };
            let spans = self.spans(map, known);
            let mut end = at;
            for span in spans.iter().rev() {
                if span.range.start < end && end < span.range.end {
                    end = span.range.start;
                }
            }
            if let Some(open) = self.open_block(end) {
                end = end.min(open);
            }
            if at - self.start >= MOST_HELD {
                end = at;
            }
            self.release(end.max(self.start), &spans, out);
            self.look = at + STEP;
            let look = self.look;
            self.borders.retain(|b| *b >= look);
            self.trim();
        }
    }

    pub(super) fn flush(&mut self, map: &RestoreMap, out: &mut Vec<Unit>) {
        let mut spans = self.spans(map, self.text.len());
        // A key block that ends in the middle is a key block all the same.
        if let Some(open) =
            self.open_block(self.text.len()).filter(|&open| self.text[open..].contains("PRIVATE KEY"))
        {
            spans.retain(|s| s.range.start < open);
            spans.push(whole_block(open..self.text.len()));
        }
        self.release(self.text.len(), &spans, out);
        self.text.clear();
        self.borders.clear();
        (self.start, self.look, self.hiding) = (0, STEP, false);
    }

    /// Whether `scalar` by itself has to be hidden.
    pub(super) fn hides(&mut self, map: &RestoreMap, scalar: &str) -> bool {
        let spans = self.recogniser.spans_in(scalar);
        let hidden = spans.iter().any(|s| self.is_hidden(map, s, scalar));
        self.redacted += u64::from(hidden);
        hidden
    }

    fn is_hidden(&self, map: &RestoreMap, span: &Span, text: &str) -> bool {
        let wanted = self.redact == ResponseRedact::All || span.category == Category::Secret;
        wanted && text.get(span.range.clone()).is_some_and(|value| !map.was_sent(value))
    }

    /// What has to be hidden in `text[..end]`.
    fn spans(&self, map: &RestoreMap, end: usize) -> Vec<Span> {
        let text = &self.text[..end];
        let mut spans = self.recogniser.spans_in(text);
        spans.retain(|span| {
            let value = text.get(span.range.clone()).unwrap_or_default();
            // Stand-ins are no private values, and neither is what is built around one.
            let holds_token = value.to_lowercase().contains(&map.tag) && value.contains(['·', '_', '⟦', '[']);
            span.range.end > self.start && !holds_token && self.is_hidden(map, span, text)
        });
        spans.sort_by_key(|s| s.range.start);
        spans
    }

    /// Where a key block begins that has not ended before `end`.
    fn open_block(&self, end: usize) -> Option<usize> {
        let held = self.text.get(self.start..end)?;
        let begin = held.rfind(PEM_BEGIN)?;
        let ends = held[begin..].split_once(PEM_END).is_some_and(|(_, rest)| rest.contains("-----"));
        (!ends).then_some(self.start + begin)
    }

    /// Lets the held text up to `end` through, with `spans` hidden.
    fn release(&mut self, end: usize, spans: &[Span], out: &mut Vec<Unit>) {
        let mut at = self.start;
        let mut count = 0;
        let mut open: Option<usize> = None;
        let mut last = self.hiding;
        for unit in &self.held {
            if at >= end {
                break;
            }
            let inside = spans.iter().position(|s| s.range.contains(&at));
            match inside {
                None => out.push(unit.clone()),
                // The marker stands where the value began.
                Some(span) if open.is_none() && self.hiding && spans[span].range.start < self.start => {
                    open = Some(span)
                }
                Some(span) if open != Some(span) => {
                    out.extend(REDACTED.chars().map(Unit::plain));
                    self.redacted += 1;
                    open = Some(span);
                }
                Some(_) => {}
            }
            last = inside.is_some();
            at += unit.c.len_utf8();
            count += 1;
        }
        self.held.drain(..count);
        self.start = at;
        self.hiding = last;
    }

    /// Forgets text that no recogniser needs any more.
    fn trim(&mut self) {
        let mut cut = self.start.saturating_sub(CONTEXT);
        // Only in large steps: it moves the whole text.
        if cut < CONTEXT {
            return;
        }
        while !self.text.is_char_boundary(cut) {
            cut -= 1;
        }
        self.text.drain(..cut);
        self.start -= cut;
        self.look -= cut;
        self.borders.iter_mut().for_each(|b| *b -= cut);
    }
}

fn whole_block(range: std::ops::Range<usize>) -> Span {
    Span {
        range,
        category: Category::Secret,
        evidence: crate::Evidence::Shape,
        recognizer: "open_key_block".into(),
        version: 1,
        subtype: None,
    }
}
