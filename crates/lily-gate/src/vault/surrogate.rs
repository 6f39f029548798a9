//! Invented names for people: stand-ins that read like prose.
//!
//! Their words are made of syllables that make no name or word in use, each is unlike every other of the session, and
//! none stands in the request. Where one touches a letter it could not be told from a longer word: a plain stand-in is
//! written there.

use super::{LOOK_ALIKE, Live, Part, Vault};
use crate::policy::Style;

const STARTS: &[&str] = &[
    "Bro", "Cae", "Dre", "Fel", "Gru", "Hes", "Jov", "Kel", "Lum", "Mor", "Nev", "Oss", "Pel", "Quo", "Rhu",
    "Sev", "Tos", "Ulv", "Vel", "Wex", "Yor", "Zan",
];
const MIDDLES: &[&str] = &[
    "ba", "ci", "da", "fo", "gi", "ka", "li", "ma", "no", "pu", "qui", "ri", "sto", "tu", "va", "wo", "xi",
    "zu",
];
const ENDS: &[&str] = &[
    "bren", "cor", "dax", "fin", "gorn", "lund", "mar", "nix", "phor", "quin", "rast", "sk", "thal", "vik",
    "wyn", "zel",
];
/// Tries for words that nothing else uses.
const TRIES: usize = 64;

/// First and last name of nobody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Invented {
    pub first: String,
    pub last: String,
}

fn word() -> String {
    let pick = |list: &[&'static str]| list[rand::random_range(0..list.len())];
    format!("{}{}{}", pick(STARTS), pick(MIDDLES), pick(ENDS))
}

impl Vault {
    /// Sets what the request says, in lower case: no invented name may stand in it.
    pub(crate) fn avoid(&mut self, texts: Vec<String>) {
        self.avoided = texts;
    }

    /// An invented name for the person at `entry`, if the session writes such. None when no unused one is found: a plain
    /// stand-in does then.
    pub(super) fn invent(&mut self, entry: usize) {
        let wanted = self.style == Style::Surrogate
            && self
                .entries
                .get(entry)
                .is_some_and(|e| e.kind == "PERSON" && e.reversible && e.invented.is_none());
        if !wanted {
            return;
        }
        let used = |word: &str| {
            let word = word.to_lowercase();
            self.avoided.iter().any(|text| text.contains(&word))
                || self.entries.iter().any(|e| {
                    e.spellings
                        .iter()
                        .any(|s| s.to_lowercase().contains(&word) || word.contains(&s.to_lowercase()))
                        || e.invented.iter().any(|i| {
                            [&i.first, &i.last].into_iter().any(|other| {
                                let other = other.to_lowercase();
                                other.starts_with(&word) || word.starts_with(&other)
                            })
                        })
                })
        };
        let draw = |other: Option<&str>| {
            (0..TRIES)
                .map(|_| word())
                .find(|w| !used(w) && other.is_none_or(|o| !o.starts_with(w.as_str()) && !w.starts_with(o)))
        };
        let Some(first) = draw(None) else { return };
        let Some(last) = draw(Some(&first)) else { return };
        self.entries[entry].invented = Some(Invented { first, last });
    }

    /// The text that leaves for a stand-in between these characters.
    pub(crate) fn write(&self, live: &Live, before: Option<char>, after: Option<char>) -> String {
        let touches = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        match &live.invented {
            Some(name) if self.style == Style::Surrogate && !touches(before) && !touches(after) => {
                name.clone()
            }
            _ => self.render(&live.name),
        }
    }

    /// The invented words of the session: where a text holds one, it is no stand-in of ours.
    pub(crate) fn invented_words(&self) -> Vec<&str> {
        let all = self.entries.iter().filter(|e| e.kind != LOOK_ALIKE).filter_map(|e| e.invented.as_ref());
        all.flat_map(|i| [i.first.as_str(), i.last.as_str()]).collect()
    }

    /// The parts of a person's name that an answer may use alone, once the whole has left.
    pub(crate) fn parts_of(&self, live: &Live) -> Vec<Live> {
        let at = self
            .entries
            .iter()
            .position(|e| live.invented.is_some() && e.live(Part::Spelling(0)).name == live.name);
        at.into_iter().flat_map(|at| [self.part(at, true), self.part(at, false)]).flatten().collect()
    }
}
