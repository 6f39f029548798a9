//! The owner's own names, hosts and addresses: found wherever they stand, in every case and usual spelling.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::{
    Category, Evidence, OwnerTerm,
    text::{Hit, Scan},
};

const VERSION: u16 = 1;

/// Letters that languages put at the end of a name ("Annas", "Иванову"): at most so many.
const MAX_INFLECTION: usize = 3;

/// Shorter terms must stand alone, without an ending.
const MIN_INFLECTED: usize = 4;

/// The dictionary, compiled.
#[derive(Debug)]
pub(crate) struct Owner {
    automaton: Option<AhoCorasick>,
    /// Length in characters of each pattern's term.
    lengths: Vec<usize>,
    /// Digits of the owner's telephone numbers, from the end.
    phones: Vec<String>,
}

impl Owner {
    /// # Errors
    /// A term without a letter or digit, or what the automaton says.
    pub fn new(terms: &[OwnerTerm]) -> Result<Self, (String, String)> {
        let mut patterns = Vec::new();
        let mut lengths = Vec::new();
        let mut phones = Vec::new();
        for term in terms {
            let text = term.text.trim();
            if text.chars().filter(|c| c.is_alphanumeric()).count() < 2 {
                return Err((term.text.clone(), "needs at least two letters or digits".to_owned()));
            }
            if term.kind == "phone" {
                let digits: String = text.chars().filter(char::is_ascii_digit).collect();
                if digits.len() < 6 {
                    return Err((
                        term.text.clone(),
                        "a telephone number needs at least six digits".to_owned(),
                    ));
                }
                // Without the country code and the 0 before the area.
                phones.push(digits[digits.len().saturating_sub(9)..].to_owned());
            }
            for variant in variants(text) {
                for form in forms(&variant) {
                    lengths.push(text.chars().count());
                    patterns.push(form);
                }
            }
        }
        let automaton = match patterns.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .ascii_case_insensitive(true)
                    .build(&patterns)
                    .map_err(|e| (String::new(), e.to_string()))?,
            ),
        };
        Ok(Self { automaton, lengths, phones })
    }

    pub fn scan(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        let hit = |range| Hit {
            range,
            category: Category::Owner,
            evidence: Evidence::Validated,
            recognizer: "owner",
            version: VERSION,
            subtype: None,
        };
        if let Some(automaton) = &self.automaton {
            for found in automaton.find_iter(scan.text) {
                let length = self.lengths[found.pattern().as_usize()];
                if let Some(end) = word_end(scan, found.start(), found.end(), length) {
                    hits.push(hit(found.start()..end));
                }
            }
        }
        for (first, run) in scan.digits.iter().enumerate().filter(|_| !self.phones.is_empty()) {
            let mut digits = String::new();
            let mut end = run.end;
            for next in scan.digits[first..].iter().take(8) {
                if next.start.saturating_sub(end) > 3 || digits.len() >= 15 {
                    break;
                }
                digits.push_str(scan.str(next.clone()));
                end = next.end;
                if self.phones.iter().any(|phone| digits.ends_with(phone)) {
                    hits.push(hit(run.start..end));
                    break;
                }
            }
        }
    }
}

/// The end of the word that starts with the term, endings included; none if the term is a part of another word.
fn word_end(scan: &Scan, start: usize, end: usize, length: usize) -> Option<usize> {
    let joined = |c: char| c.is_alphanumeric() && !crate::cues::is_unspaced(c);
    let first = scan.char_after(start)?;
    if joined(first) && scan.char_before(start).is_some_and(joined) {
        return None;
    }
    let ending = scan.text[end..].chars().take_while(|c| joined(*c));
    let (letters, bytes) =
        ending.clone().take(MAX_INFLECTION + 1).fold((0, 0), |(n, b), c| (n + 1, b + c.len_utf8()));
    let inflected = letters <= MAX_INFLECTION
        && length >= MIN_INFLECTED
        && scan.text[end..end + bytes].chars().all(char::is_lowercase);
    let digits = scan.text[end..end + bytes].chars().all(|c| c.is_ascii_digit());
    (letters == 0 || inflected || (digits && letters <= MAX_INFLECTION)).then_some(end + bytes)
}

/// Spellings of a term of several words: "Ann Lee", "ann.lee", "annlee", "Lee, Ann", "lee_ann".
fn variants(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut all = vec![words.join(" ")];
    // Longer terms are addresses: only their own wording.
    if (2..=3).contains(&words.len())
        && words.iter().all(|w| w.chars().all(|c| c.is_alphabetic() || "'-.".contains(c)))
    {
        let mut reversed = words.clone();
        reversed.reverse();
        let mut last_first = words.clone();
        last_first.rotate_right(1);
        for order in [&words, &reversed, &last_first] {
            for separator in ["", ".", "_", "-", " ", "\u{a0}", "  "] {
                all.push(order.join(separator));
            }
        }
        if let Some((last, given)) = words.split_last() {
            all.push(format!("{last}, {}", given.join(" ")));
        }
    }
    all.sort();
    all.dedup();
    all
}

/// The automaton folds ASCII only: other letters in their three usual cases.
fn forms(text: &str) -> Vec<String> {
    let mut forms = vec![text.to_owned()];
    if !text.is_ascii() {
        forms.extend([text.to_lowercase(), text.to_uppercase()]);
        forms.dedup();
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::texts;

    fn found(terms: &[(&str, &'static str)], text: &str) -> Vec<String> {
        let terms: Vec<_> =
            terms.iter().map(|(t, k)| OwnerTerm { text: (*t).to_owned(), kind: (*k).into() }).collect();
        let owner = Owner::new(&terms).unwrap();
        texts(text, |s, h| owner.scan(s, h))
    }

    #[test]
    fn a_name_in_all_its_spellings() {
        let terms = [("Ann Lee", "name")];
        for text in ["Ann Lee", "ANN LEE", "ann.lee", "annlee", "Lee, Ann", "lee_ann", "ann-lee42"] {
            assert_eq!(found(&terms, &format!("x {text} y")), [text], "{text}");
        }
        assert_eq!(found(&[("Иванов", "name")], "письмо Иванову, ИВАНОВ"), ["Иванову", "ИВАНОВ"]);
        assert_eq!(found(&[("Müller", "name")], "Müllers Haus, MÜLLER"), ["Müllers", "MÜLLER"]);
        assert_eq!(found(&[("lee", "login")], "lee leek sleep lee's"), ["lee", "lee"]);
        assert!(found(&terms, "Annabel Leesville").is_empty());
    }

    #[test]
    fn a_telephone_number_in_all_its_groupings() {
        let terms = [("+49 151 2345678", "phone")];
        for text in ["0151 2345678", "+49 151 23 45 678", "01512345678", "(0151) 234-5678"] {
            assert_eq!(found(&terms, text).len(), 1, "{text}");
        }
        assert!(found(&terms, "0151 2345679").is_empty());
    }

    #[test]
    fn empty_terms_are_refused() {
        let term = OwnerTerm { text: " - ".to_owned(), kind: "name".into() };
        assert!(Owner::new(&[term]).is_err());
    }
}
