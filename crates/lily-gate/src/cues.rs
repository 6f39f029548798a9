//! Words that say what a number near them is: "card", "Kontonummer", "SSN".

use std::{collections::BTreeMap, ops::Range};

use aho_corasick::{AhoCorasick, MatchKind};

use crate::cue_table::TABLE;

/// What a cue announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Cue {
    Card,
    CardCode,
    Iban,
    Account,
    Routing,
    Swift,
    Wallet,
    /// National number of the country with this ISO 3166 code.
    Id(&'static str),
    /// A personal number of any state.
    AnyId,
    Passport,
    Licence,
    Phone,
    Birth,
    Mac,
    Coordinates,
    /// The number is a version, not an address.
    Version,
    /// The number is an order, invoice or the like, not a telephone.
    Reference,
    Address,
    Secret,
}

/// All cue words, compiled.
#[derive(Debug)]
pub(crate) struct Cues {
    automaton: AhoCorasick,
    /// What each phrase announces: "nif" is a number of two countries.
    kinds: Vec<Vec<Cue>>,
}

impl Cues {
    pub fn new() -> Result<Self, String> {
        let mut by_phrase: BTreeMap<String, Vec<Cue>> = BTreeMap::new();
        for (kind, words) in TABLE {
            for word in words.split('|') {
                for form in forms(word) {
                    by_phrase.entry(form).or_default().push(*kind);
                }
            }
        }
        let (phrases, kinds): (Vec<String>, Vec<Vec<Cue>>) = by_phrase.into_iter().unzip();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .ascii_case_insensitive(true)
            .build(&phrases)
            .map_err(|e| e.to_string())?;
        Ok(Self { automaton, kinds })
    }

    /// Every cue of `text`, in order, none overlapping another.
    pub fn find(&self, text: &str) -> Vec<(Cue, Range<usize>)> {
        self.automaton
            .find_iter(text)
            .filter(|m| starts_word(text, m.start()) && ends_word(text, m.end()))
            .flat_map(|m| self.kinds[m.pattern().as_usize()].iter().map(move |kind| (*kind, m.range())))
            .collect()
    }
}

/// The automaton folds ASCII case only: other scripts get their usual spellings.
fn forms(word: &str) -> Vec<String> {
    let mut forms = vec![word.to_owned()];
    if !word.is_ascii() {
        let mut chars = word.chars();
        let capitalised: String =
            chars.next().into_iter().flat_map(char::to_uppercase).chain(chars).collect();
        for form in [capitalised, word.to_uppercase()] {
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
    }
    forms
}

/// Scripts that write no spaces between words.
pub(crate) fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{0e00}'..='\u{0e7f}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}')
}

/// A word starts here: also after `_` and at a hump (`userPhone`).
fn starts_word(text: &str, at: usize) -> bool {
    let (Some(first), before) = (text[at..].chars().next(), text[..at].chars().next_back()) else {
        return false;
    };
    match before {
        Some(before) if before.is_alphanumeric() => {
            is_unspaced(first) || !first.is_alphanumeric() || (before.is_lowercase() && first.is_uppercase())
        }
        _ => true,
    }
}

/// A word ends here: also before a plural `s`, `_` and a hump (`phoneNumber`).
fn ends_word(text: &str, at: usize) -> bool {
    let Some(last) = text[..at].chars().next_back() else { return false };
    let mut rest = text[at..].chars();
    match rest.next() {
        Some(next) if next.is_alphanumeric() => {
            is_unspaced(last)
                || !last.is_alphanumeric()
                || (last.is_lowercase() && next.is_uppercase())
                || (next.is_ascii_digit() && !last.is_ascii_digit())
                || (next == 's' && !rest.next().is_some_and(char::is_alphanumeric))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cues_are_whole_words_of_any_spelling() {
        let cues = Cues::new().unwrap();
        let found = |text: &str, kind: Cue| cues.find(text).iter().any(|(k, _)| *k == kind);
        for text in
            ["Phone: 1", "phoneNumber", "user_phone", "userPhone", "phones", "ТЕЛЕФОН: 1", "我的电话是1"]
        {
            assert!(found(text, Cue::Phone), "{text}");
        }
        for text in ["phonetic", "xylophone", "gramophonist"] {
            assert!(!found(text, Cue::Phone), "{text}");
        }
        assert!(found("my SSN is", Cue::Id("us")));
        assert!(found("IBAN:DE", Cue::Iban));
    }

    #[test]
    fn every_phrase_is_found_alone() {
        let cues = Cues::new().unwrap();
        for (kind, words) in TABLE {
            for word in words.split('|') {
                let text = format!("{word}: 5");
                assert!(cues.find(&text).iter().any(|(k, _)| k == kind), "{word} as {kind:?}");
            }
        }
    }
}
