//! The sweep: every further mention of a value that was found once, in all texts of a request.
//!
//! Detectors find a value where its surroundings give it away and miss it two lines further down; models do so more
//! often than patterns. Known values are therefore searched as such, in a form that ignores case, accents, invisible
//! characters and spacing (and every separator, for numbers).

use aho_corasick::AhoCorasick;
use zeroize::Zeroizing;

use super::fold::{Folded, Form, folded_value};

/// What is looked for.
pub(crate) struct Needle {
    folded: Zeroizing<String>,
    form: Form,
    /// Only this very spelling counts.
    exact: Option<Zeroizing<String>>,
    /// What a hit stands for.
    pub what: Found,
}

/// What a hit stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// A value of this kind.
    Value { kind: &'static str, reversible: bool },
    /// The first (or last) name of the vault's entry.
    NamePart { entry: usize, first: bool },
}

impl Needle {
    /// A whole value.
    pub(crate) fn value(value: &str, kind: &'static str, reversible: bool) -> Self {
        let form = Form::of(value);
        Self {
            folded: Zeroizing::new(folded_value(value, form)),
            form,
            exact: None,
            what: Found::Value { kind, reversible },
        }
    }

    /// A part of a person's name. Many first names are words as well, so that only the capitalised form counts.
    pub(crate) fn name_part(part: &str, entry: usize, first: bool) -> Self {
        Self {
            folded: Zeroizing::new(folded_value(part, Form::Words)),
            form: Form::Words,
            exact: Some(Zeroizing::new(part.to_owned())),
            what: Found::NamePart { entry, first },
        }
    }
}

/// A mention, in bytes of the raw text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hit {
    pub start: usize,
    pub end: usize,
    pub what: Found,
}

/// All needles at once.
pub(crate) struct Sweeper {
    forms: Vec<(Form, AhoCorasick, Vec<usize>)>,
    needles: Vec<Needle>,
}

/// From this length on a value is looked for inside words too.
const LONG: usize = 12;
/// Most characters of separators between two digits of one number.
const LONGEST_GAP: usize = 3;

impl Sweeper {
    /// Compiles the search; `Err` only when the automaton would be too large.
    pub(crate) fn new(needles: Vec<Needle>) -> Result<Self, String> {
        let mut forms = Vec::new();
        for form in [Form::Words, Form::Solid] {
            let members: Vec<usize> = (0..needles.len())
                .filter(|&i| needles[i].form == form && needles[i].folded.chars().count() >= 2)
                .collect();
            if members.is_empty() {
                continue;
            }
            let search = AhoCorasick::new(members.iter().map(|&i| needles[i].folded.as_str()))
                .map_err(|e| format!("the values to look for make no search: {e}"))?;
            forms.push((form, search, members));
        }
        Ok(Self { forms, needles })
    }

    /// All mentions in `raw`, in no order; they may overlap.
    pub(crate) fn hits(&self, raw: &str) -> Vec<Hit> {
        let mut hits = Vec::new();
        for (form, search, members) in &self.forms {
            let folded = Folded::new(raw, *form);
            for found in search.find_overlapping_iter(&folded.text) {
                let needle = &self.needles[members[found.pattern().as_usize()]];
                let Some((start, end)) = folded.raw(found.start(), found.end()) else { continue };
                if self.counts(needle, raw, start, end) {
                    hits.push(Hit { start, end, what: needle.what });
                }
            }
        }
        hits
    }

    fn counts(&self, needle: &Needle, raw: &str, start: usize, end: usize) -> bool {
        let text = &raw[start..end];
        if needle.exact.as_ref().is_some_and(|exact| exact.as_str() != text) {
            return false;
        }
        if needle.form == Form::Solid {
            let mut gap = 0;
            for c in text.chars() {
                gap = if c.is_alphanumeric() { 0 } else { gap + 1 };
                if gap > LONGEST_GAP {
                    return false;
                }
            }
        } else if needle.folded.chars().count() >= LONG {
            return true;
        }
        !joins(raw[..start].chars().next_back(), text.chars().next())
            && !joins(text.chars().next_back(), raw[end..].chars().next())
    }
}

/// Whether a word (or number) goes on from `a` to `b`. Scripts without blanks have no such borders.
fn joins(a: Option<char>, b: Option<char>) -> bool {
    let in_word = |c: char| c.is_alphanumeric() && !is_unspaced(c);
    a.is_some_and(in_word) && b.is_some_and(in_word)
}

/// Scripts that are written without blanks between words.
pub(crate) fn is_unspaced(c: char) -> bool {
    matches!(c,
        '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3040}'..='\u{30ff}'
        | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}
