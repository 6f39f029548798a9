//! Names of persons, where the text says that a name follows: a title, a greeting, "my name is", a mail header, a
//! sign-off, a form's label. Other names are for layer 2.

mod table;

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use crate::{
    Category, Evidence,
    text::{Hit, Scan, line_before},
};
use table::{CJK, CUES, Kind, NOT_NAMES, PARTICLES, UNINTRODUCED};

const VERSION: u16 = 1;

/// A name has at most so many words.
const MAX_WORDS: usize = 5;

/// The words before a name, compiled.
#[derive(Debug)]
pub(crate) struct Person {
    automaton: AhoCorasick,
    kinds: Vec<Kind>,
    cjk: regex::Regex,
}

impl Person {
    pub fn new() -> Result<Self, String> {
        let mut phrases = Vec::new();
        let mut kinds = Vec::new();
        for (kind, words) in CUES {
            for word in words.split('|') {
                phrases.push(word.to_owned());
                kinds.push(*kind);
                let capital: String = {
                    let mut chars = word.chars();
                    chars.next().into_iter().flat_map(char::to_uppercase).chain(chars).collect()
                };
                if !word.is_ascii() && capital != word {
                    phrases.push(capital);
                    kinds.push(*kind);
                }
            }
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .ascii_case_insensitive(true)
            .build(&phrases)
            .map_err(|e| e.to_string())?;
        Ok(Self { automaton, kinds, cjk: regex::Regex::new(CJK).map_err(|e| e.to_string())? })
    }

    pub fn scan(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        for found in self.automaton.find_iter(scan.text) {
            let kind = self.kinds[found.pattern().as_usize()];
            if let Some(range) = self.follow(scan, kind, found.range()) {
                hits.push(hit(range));
            }
        }
        if scan.unspaced {
            for captures in self.cjk.captures_iter(scan.text) {
                let name = captures.iter().skip(1).flatten().next();
                if let Some(name) = name.filter(|n| !NOT_NAMES.contains(&n.as_str())) {
                    hits.push(hit(name.range()));
                }
            }
        }
    }

    /// The name after the cue at `cue`.
    fn follow(&self, scan: &Scan, kind: Kind, cue: Range<usize>) -> Option<Range<usize>> {
        let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        if word(scan.char_before(cue.start))
            || (word(scan.char_after(cue.end)) && !scan.text[..cue.end].ends_with(' '))
        {
            return None;
        }
        // Titles and labels are capitalised where they are meant ("Mr", "From:"), except inside JSON keys.
        let lower = scan.char_after(cue.start).is_some_and(char::is_lowercase);
        match kind {
            Kind::Title if lower => return None,
            // Only at the start of a line.
            Kind::Greeting | Kind::Closing | Kind::Header => {
                let line = line_before(scan.text, cue.start);
                let opened =
                    line.trim_matches([' ', '>', '*', '-', '"', '\t', '\'', '(', '|', '_', '#']).is_empty();
                let sentence = line.trim_end().ends_with(['.', '!', '?', ':']) && kind != Kind::Header;
                if !opened && !sentence || lower && kind != Kind::Header {
                    return None;
                }
            }
            _ => {}
        }
        let rest = &scan.text[cue.end..];
        let skipped = match kind {
            // A sign-off stands on its own line, the name below.
            Kind::Closing => {
                let after = rest.trim_start_matches([',', '.', '!', ' ', '\r', '*']);
                if !after.starts_with('\n') {
                    // "Thanks, Ann Lee" at the end of the text.
                    if !rest.starts_with(", ") {
                        return None;
                    }
                }
                after.trim_start_matches(['\n', '\r', ' ', '*', '-', '_', '\t', '—', '–', '>'])
            }
            Kind::Label | Kind::WeakLabel | Kind::Header => {
                let after = rest.trim_start_matches(['"', '\'', ' ', '*', '_', '\t', '`']);
                let after = after.strip_prefix([':', '=', '：', '|'])?;
                after.trim_start_matches(['"', '\'', ' ', '*', '_', '\t', '`', '>'])
            }
            Kind::Title => rest.trim_start_matches(['.', ' ', '\u{a0}']),
            Kind::Greeting => rest.trim_start_matches([' ', ',', '\u{a0}']),
            Kind::Introduction => rest.trim_start_matches([':', ' ', '"', '\'', '“', ',']),
        };
        let start = scan.text.len() - skipped.len();
        let title_gap =
            matches!(kind, Kind::Title | Kind::Greeting | Kind::Introduction) && start > cue.end + 4;
        if start == cue.end && !scan.text[..cue.end].ends_with(['.', ' ', ':']) || title_gap {
            return None;
        }
        name(scan, start, kind)
    }
}

fn hit(range: Range<usize>) -> Hit {
    Hit {
        range,
        category: Category::Person,
        evidence: Evidence::Cue,
        recognizer: "person",
        version: VERSION,
        subtype: None,
    }
}

/// The capitalised words from `start` on that make a name. Titles inside it ("Dr.") count as part of it.
fn name(scan: &Scan, start: usize, kind: Kind) -> Option<Range<usize>> {
    let first = scan.token_at(start);
    if scan.tokens.get(first)?.start != start {
        return None;
    }
    let mut end = None;
    let mut words = 0;
    let mut begin = start;
    let mut i = first;
    while i < scan.tokens.len() && words < MAX_WORDS {
        let token = scan.tokens[i];
        let text = scan.token(i);
        let lower = text.to_lowercase();
        let particle = words > 0 && PARTICLES.contains(&lower.as_str());
        if !token.is_name_like() && !particle {
            break;
        }
        if UNINTRODUCED.contains(&lower.as_str())
            && words == 0
            && !matches!(kind, Kind::Label | Kind::WeakLabel)
        {
            // "Dear Mr. Smith": the title is no name, what follows is.
            let gap = scan.gap(i);
            if !matches!(gap, " " | ". " | ".") || i + 1 >= scan.tokens.len() {
                return None;
            }
            i += 1;
            begin = scan.tokens[i].start;
            continue;
        }
        // "O'Brien"
        let elided = text == "O" && scan.gap(i).starts_with(['\'', '’']);
        if NOT_NAMES.contains(&lower.as_str()) && !elided {
            break;
        }
        words += 1;
        if !particle {
            end = Some(token.end);
        }
        match scan.gap(i) {
            " " | "-" | "'" | "’" | "." | ". " | "\u{a0}" => {
                // An initial's dot goes on; another one ends the sentence.
                let initial = text.chars().count() == 1;
                if scan.gap(i).starts_with('.')
                    && !initial
                    && !matches!(lower.as_str(), "dr" | "st" | "jr" | "sr" | "prof")
                {
                    break;
                }
            }
            // "Lee, Ann" in a label or header.
            ", " if matches!(kind, Kind::Label | Kind::WeakLabel | Kind::Header) && words == 1 => {}
            _ => break,
        }
        i += 1;
    }
    let end = end?;
    let text = scan.str(begin..end);
    let letters = text.chars().filter(|c| c.is_alphabetic()).count();
    // A single word after a weak cue must look like one name: a capital, then small letters, or a title before it.
    let shouted = words == 1
        && letters > 1
        && text.chars().all(|c| !c.is_lowercase())
        && text.chars().any(char::is_uppercase);
    if letters < 2 || (shouted && kind != Kind::Title) {
        return None;
    }
    if kind == Kind::WeakLabel {
        let rest = scan.text[end..].trim_start_matches(['"', '\'', '*', ' ', '`']);
        let whole = rest.is_empty() || rest.starts_with(['\n', '\r', ',', ';', '<', '|', '}', '(', '/']);
        if words < 2 || !whole {
            return None;
        }
    }
    // "From: Ann" names a person, "From: Berlin to Rome" a journey; two words or an address after it decide.
    if kind == Kind::Header && words == 1 {
        let rest = &scan.text[end..];
        let addressed = rest.trim_start_matches([' ', '"']).starts_with(['<', '(', '['])
            || rest.is_empty()
            || rest.starts_with(['\n', '\r']);
        if !addressed {
            return None;
        }
    }
    Some(begin..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::texts;

    fn found(text: &str) -> Vec<String> {
        static ALL: std::sync::LazyLock<Person> = std::sync::LazyLock::new(|| Person::new().unwrap());
        texts(text, |s, h| ALL.scan(s, h))
    }

    #[test]
    fn names_after_their_cue() {
        for (text, name) in [
            ("Dear Ann Lee,\nthank you", "Ann Lee"),
            ("Dear Mr. Smith,", "Smith"),
            ("Hi Ann,", "Ann"),
            ("My name is Ann O'Brien and I", "Ann O'Brien"),
            ("I saw Dr. Ludwig van Beethoven yesterday", "Ludwig van Beethoven"),
            ("we met Mrs. J. K. Rowling there", "J. K. Rowling"),
            ("From: Ann Lee <ann@example.org>", "Ann Lee"),
            ("Best regards,\nAnn Lee\nCEO", "Ann Lee"),
            ("Kind regards,\n\nAnn-Marie Lee", "Ann-Marie Lee"),
            ("Name: Lee, Ann\nAge: 7", "Lee, Ann"),
            ("ich heiße Jörg Müller.", "Jörg Müller"),
            ("Sehr geehrte Frau Müller,", "Müller"),
            ("Mit freundlichen Grüßen\nJörg Müller", "Jörg Müller"),
            ("je m'appelle Éloïse Dupont.", "Éloïse Dupont"),
            ("me llamo José García López y", "José García López"),
            ("меня зовут Иван Петров.", "Иван Петров"),
            ("我叫王小明，", "王小明"),
            ("田中太郎様", "田中太郎"),
            ("\"full_name\": \"Ann Lee\"", "Ann Lee"),
        ] {
            assert_eq!(found(text), [name], "{text}");
        }
    }

    #[test]
    fn no_names() {
        for text in [
            "Dear Customer,",
            "Dear Sir or Madam,",
            "Hello World!",
            "Hi there,",
            "my name is not important",
            "Dear Hiring Manager,",
            "File name: README",
            "a mr in lower case",
            "From: Berlin to Rome",
            "Thanks, that works",
            "Dear All,",
            "username: admin",
            "DR DOS was an operating system",
        ] {
            assert!(found(text).is_empty(), "{text}: {:?}", found(text));
        }
    }
}
