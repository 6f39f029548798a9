//! Stand-ins and the originals behind them, for one session.
//!
//! A value has one stand-in for the whole session, so that a model in the cloud can tell two people apart and its
//! provider's prefix cache keeps working: `⟦PERSON_3·k7qp⟧` is the third person, `k7qp` the session's random tag, without
//! which a document that holds `⟦PERSON_3⟧` could be mistaken for ours. Another spelling of a value (`ANN LEE`) is the
//! same value with its own ending (`⟦PERSON_3.2·k7qp⟧`), so that restoring is exact to the byte; first and last names
//! of a known person are `.first` and `.last`.
//!
//! Originals lie in memory only and are overwritten when dropped. Of values that a policy strips, nothing is kept but
//! a keyed hash that recognises them.

mod fold;
mod spent;
mod store;
mod surrogate;
mod sweep;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use zeroize::Zeroizing;

use crate::{Category, hash, policy::Style};

pub(crate) use fold::key_form;
pub use store::{StoreError, VaultStore};
pub(crate) use sweep::{Found, Hit, Needle, Sweeper, is_unspaced};

/// Length of a session's tag.
const TAG_LENGTH: usize = 4;
/// Letters and digits of tags: none that looks like another, no vowels and so no words.
const TAG_ALPHABET: &[u8] = b"bcdfghjkmnpqrstvwxz23456789";
/// Kind of the stand-ins for text that looks like a stand-in.
pub(crate) const LOOK_ALIKE: &str = "TEXT";

/// The word in a stand-in for a category.
pub(crate) const fn kind_of(category: Category) -> &'static str {
    match category {
        Category::Card => "CARD",
        Category::Iban => "IBAN",
        Category::BankAccount => "ACCOUNT",
        Category::NationalId => "ID",
        Category::Secret => "SECRET",
        Category::Email => "EMAIL",
        Category::Phone => "PHONE",
        Category::Url => "URL",
        Category::Ip => "IP",
        Category::Mac => "MAC",
        Category::Coordinates => "PLACE",
        Category::Address => "ADDRESS",
        Category::BirthDate => "BIRTHDATE",
        Category::Person => "PERSON",
        Category::Org => "ORG",
        // That it is the owner's is nobody's business.
        Category::Owner => "PRIVATE",
        Category::Other => "VALUE",
    }
}

/// Which text of an entry a stand-in stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The n-th spelling.
    Spelling(usize),
    First,
    Last,
}

struct Entry {
    kind: &'static str,
    index: u32,
    /// Stripped values are never given back.
    reversible: bool,
    /// As met, in order; empty when not reversible.
    spellings: Vec<Zeroizing<String>>,
    /// The names of a person, where there are two.
    first: Option<Zeroizing<String>>,
    last: Option<Zeroizing<String>>,
    /// The name of nobody that stands for a person.
    invented: Option<surrogate::Invented>,
}

/// A stand-in that leaves, and what it is given back for.
#[derive(Clone)]
pub(crate) struct Live {
    /// `PERSON_3`, `PERSON_3.2`, `PERSON_3.first`.
    pub name: String,
    /// The original; none for stripped values.
    pub value: Option<Zeroizing<String>>,
    /// The invented name that may be written instead.
    pub invented: Option<String>,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The stand-ins of one session.
pub struct Vault {
    tag: String,
    style: Style,
    key: Zeroizing<[u8; 32]>,
    entries: Vec<Entry>,
    by_value: HashMap<[u8; 32], usize>,
    counters: HashMap<&'static str, u32>,
    /// What the session's budget counts, besides the entries.
    bytes: u64,
    clear: HashSet<[u8; 32]>,
    /// Values masked under earlier budgets.
    before: u64,
    /// What the request at hand says, in lower case; only while it is masked.
    avoided: Vec<String>,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vault")
            .field("tag", &self.tag)
            .field("values", &self.entries.len())
            .finish_non_exhaustive()
    }
}

/// A random tag.
pub(crate) fn random_tag() -> String {
    (0..TAG_LENGTH).map(|_| char::from(TAG_ALPHABET[rand::random_range(0..TAG_ALPHABET.len())])).collect()
}

impl Vault {
    /// An empty vault with this tag.
    pub(crate) fn new(tag: String, style: Style) -> Self {
        Self {
            tag,
            style,
            key: Zeroizing::new(rand::random()),
            entries: Vec::new(),
            by_value: HashMap::new(),
            counters: HashMap::new(),
            bytes: 0,
            clear: HashSet::new(),
            before: 0,
            avoided: Vec::new(),
        }
    }

    /// How stand-ins are written from now on. Answers are restored in either form.
    pub(crate) fn set_style(&mut self, style: Style) {
        self.style = style;
    }

    /// The session's tag.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Number of values known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A keyed hash by which a value is recognised, whatever its case and spacing.
    pub(crate) fn fingerprint(&self, value: &str) -> [u8; 32] {
        let form = Zeroizing::new(key_form(value));
        hash::hmac(&self.key, &[form.as_bytes()])
    }

    /// The key of [`Vault::fingerprint`].
    pub(crate) fn fingerprint_key(&self) -> Zeroizing<[u8; 32]> {
        self.key.clone()
    }

    /// The name of the stand-in for `value`, which is met now. `reversible` false wins for good: the originals kept
    /// so far are overwritten.
    pub(crate) fn token(&mut self, kind: &'static str, value: &str, reversible: bool) -> Live {
        let print = self.fingerprint(value);
        let at = match self.by_value.get(&print) {
            Some(&at) => at,
            None => {
                let index = self.counters.entry(kind).or_insert(0);
                *index += 1;
                let (first, last) =
                    if reversible && kind == "PERSON" { name_parts(value) } else { (None, None) };
                self.entries.push(Entry {
                    kind,
                    index: *index,
                    reversible,
                    spellings: Vec::new(),
                    first,
                    last,
                    invented: None,
                });
                self.by_value.insert(print, self.entries.len() - 1);
                self.entries.len() - 1
            }
        };
        if reversible {
            self.invent(at);
        }
        let entry = &mut self.entries[at];
        if !reversible {
            entry.invented = None;
            entry.reversible = false;
            entry.spellings.clear();
            entry.first = None;
            entry.last = None;
        }
        if !entry.reversible {
            return entry.live(Part::Spelling(0));
        }
        let spelling = entry.spellings.iter().position(|s| s.as_str() == value).unwrap_or_else(|| {
            entry.spellings.push(Zeroizing::new(value.to_owned()));
            entry.spellings.len() - 1
        });
        entry.live(Part::Spelling(spelling))
    }

    /// The stand-in for the first or last name of the person that `whole` is; none when it has no such part.
    fn part_token(&self, entry: usize, part: Part) -> Option<Live> {
        let entry = self.entries.get(entry)?;
        match part {
            Part::First => entry.first.as_ref()?,
            Part::Last => entry.last.as_ref()?,
            Part::Spelling(n) => entry.spellings.get(n)?,
        };
        Some(entry.live(part))
    }

    /// Stand-in for a sweep's needle of a person's part.
    pub(crate) fn part(&self, entry: usize, first: bool) -> Option<Live> {
        self.part_token(entry, if first { Part::First } else { Part::Last })
    }

    /// Whether `value` is already known, and if so whether its original is kept.
    pub(crate) fn known(&self, value: &str) -> Option<bool> {
        self.by_value.get(&self.fingerprint(value)).map(|&at| self.entries[at].reversible)
    }

    /// Every original that is kept, for the sweep over new text: its kind and text, and the parts of names with
    /// their entry.
    pub(crate) fn needles(&self) -> Vec<Needle> {
        let mut needles = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            if entry.kind == LOOK_ALIKE {
                continue;
            }
            for spelling in &entry.spellings {
                needles.push(Needle::value(spelling, entry.kind, entry.reversible));
            }
            for (part, first) in [(&entry.first, true), (&entry.last, false)] {
                if let Some(part) = part {
                    needles.push(Needle::name_part(part, at, first));
                }
            }
        }
        needles
    }

    /// The text that leaves for a stand-in.
    pub(crate) fn render(&self, name: &str) -> String {
        match self.style {
            Style::Unicode | Style::Surrogate => format!("⟦{name}·{}⟧", self.tag),
            Style::Ascii => format!("[[{name}_{}]]", self.tag),
        }
    }

    /// Whether `text` is the stand-in of a stripped value, with its brackets or without: it may leave as it is, since
    /// nothing is given back for it.
    pub(crate) fn is_stripped_token(&self, text: &str) -> bool {
        let bare = text.trim_matches(['⟦', '⟧', '[', ']']);
        let name = bare.strip_suffix(&self.tag).and_then(|rest| rest.strip_suffix(['·', '_']));
        name.is_some_and(|name| {
            self.entries.iter().any(|e| !e.reversible && e.live(Part::Spelling(0)).name == name)
        })
    }
}

impl Entry {
    fn live(&self, part: Part) -> Live {
        let Self { kind, index, .. } = self;
        let (name, value) = match part {
            Part::Spelling(0) => (format!("{kind}_{index}"), self.spellings.first()),
            Part::Spelling(n) => (format!("{kind}_{index}.{}", n + 1), self.spellings.get(n)),
            Part::First => (format!("{kind}_{index}.first"), self.first.as_ref()),
            Part::Last => (format!("{kind}_{index}.last"), self.last.as_ref()),
        };
        let invented = self.invented.as_ref().and_then(|invented| match part {
            Part::Spelling(0) if self.first.is_some() => {
                Some(format!("{} {}", invented.first, invented.last))
            }
            Part::Spelling(0) => Some(invented.first.clone()),
            Part::Spelling(_) => None,
            Part::First => Some(invented.first.clone()),
            Part::Last => Some(invented.last.clone()),
        });
        Live { name, value: value.filter(|_| self.reversible).cloned(), invented }
    }
}

/// First and last name of a person's full name, where it has both.
fn name_parts(name: &str) -> (Option<Zeroizing<String>>, Option<Zeroizing<String>>) {
    let words: Vec<&str> = name
        .split_whitespace()
        .map(|w| w.trim_matches(|c: char| !c.is_alphanumeric()))
        // Titles and initials are no names.
        .filter(|w| w.chars().count() >= 3 && w.chars().next().is_some_and(char::is_uppercase))
        .filter(|w| !TITLES.contains(w))
        .collect();
    match words[..] {
        [first, .., last] if first != last => {
            (Some(Zeroizing::new(first.to_owned())), Some(Zeroizing::new(last.to_owned())))
        }
        _ => (None, None),
    }
}

const TITLES: &[&str] = &[
    "Mrs",
    "Miss",
    "Doctor",
    "Prof",
    "Professor",
    "Herr",
    "Frau",
    "Madame",
    "Monsieur",
    "Señor",
    "Señora",
    "Signor",
    "Signora",
    "Dear",
    "Sir",
];
