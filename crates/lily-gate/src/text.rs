//! One text as the recognisers see it: its words, its runs of digits and its cues, found once for all of them.

use std::ops::Range;

use unicode_normalization::char::is_combining_mark;

use crate::{
    Category, Evidence,
    cues::{Cue, Cues, is_unspaced},
};

/// A maximal run of letters, digits and their combining marks, of a script with blanks between words or of one
/// without.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    pub start: usize,
    pub end: usize,
    pub has_digit: bool,
    pub has_letter: bool,
    /// The first character is an upper-case letter.
    pub capital: bool,
    pub ascii: bool,
}

impl Token {
    /// ASCII digits only.
    pub fn is_number(&self) -> bool {
        self.has_digit && !self.has_letter && self.ascii
    }

    /// Letters only, the first one upper case.
    pub fn is_name_like(&self) -> bool {
        self.capital && !self.has_digit
    }

    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }
}

/// What a recogniser reports: a span of the text it was shown.
#[derive(Debug, Clone)]
pub(crate) struct Hit {
    pub range: Range<usize>,
    pub category: Category,
    pub evidence: Evidence,
    pub recognizer: &'static str,
    pub version: u16,
    pub subtype: Option<&'static str>,
}

/// A text and what was found in one pass over it.
#[derive(Debug)]
pub(crate) struct Scan<'t> {
    pub text: &'t str,
    pub tokens: Vec<Token>,
    /// Indices of the tokens that hold a digit.
    pub numeric: Vec<usize>,
    /// Maximal runs of ASCII digits, also inside tokens.
    pub digits: Vec<Range<usize>>,
    pub cues: Vec<(Cue, Range<usize>)>,
    /// A script without blanks between words occurs: Chinese, Japanese, Korean, Thai.
    pub unspaced: bool,
}

impl<'t> Scan<'t> {
    pub fn new(text: &'t str, cues: &Cues) -> Self {
        let tokens = tokens(text);
        let numeric = (0..tokens.len()).filter(|&i| tokens[i].has_digit).collect();
        let mut digits = Vec::new();
        for token in tokens.iter().filter(|t| t.has_digit) {
            let bytes = text.as_bytes();
            let mut at = token.start;
            while at < token.end {
                if bytes[at].is_ascii_digit() {
                    let start = at;
                    while at < token.end && bytes[at].is_ascii_digit() {
                        at += 1;
                    }
                    digits.push(start..at);
                } else {
                    at += 1;
                }
            }
        }
        let unspaced = !text.is_ascii() && text.chars().any(is_unspaced);
        Self { text, tokens, numeric, digits, cues: cues.find(text), unspaced }
    }

    pub fn str(&self, range: Range<usize>) -> &'t str {
        &self.text[range]
    }

    pub fn token(&self, index: usize) -> &'t str {
        &self.text[self.tokens[index].range()]
    }

    /// The text between token `index` and the next one; what follows the last token.
    pub fn gap(&self, index: usize) -> &'t str {
        let end = self.tokens.get(index + 1).map_or(self.text.len(), |t| t.start);
        &self.text[self.tokens[index].end..end]
    }

    /// The first token that starts at `at` or later.
    pub fn token_at(&self, at: usize) -> usize {
        self.tokens.partition_point(|t| t.start < at)
    }

    pub fn char_before(&self, at: usize) -> Option<char> {
        self.text[..at].chars().next_back()
    }

    pub fn char_after(&self, at: usize) -> Option<char> {
        self.text[at..].chars().next()
    }

    /// Neither side continues a word or an identifier. Scripts without blanks tie nothing ("卡号4111...").
    pub fn is_bounded(&self, range: &Range<usize>) -> bool {
        let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() && !is_unspaced(c) || c == '_');
        !word(self.char_before(range.start)) && !word(self.char_after(range.end))
    }

    /// [`Scan::is_bounded`], and no `-`, `.`, `/` or `,` ties it to more digits or letters: not a piece of a
    /// decimal number, a version, a UUID or a longer code.
    pub fn is_isolated(&self, range: &Range<usize>) -> bool {
        if !self.is_bounded(range) {
            return false;
        }
        let tie = |c: char| matches!(c, '-' | '.' | '/' | ',' | ':' | '+');
        let mut before = self.text[..range.start].chars().rev();
        let tied_before = before.next().is_some_and(tie) && before.next().is_some_and(char::is_alphanumeric);
        // A label may end in such a character ("ID/...", "nr.12"), digits or a hex group may not.
        let label = self
            .word_before(range.start.saturating_sub(1))
            .is_some_and(|w| !w.bytes().any(|b| b.is_ascii_digit()))
            && !matches!(self.char_before(range.start), Some('-' | ','));
        let mut after = self.text[range.end..].chars();
        let tied_after = after.next().is_some_and(tie) && after.next().is_some_and(char::is_alphanumeric);
        (!tied_before || label) && !tied_after
    }

    /// The word that ends at `at`.
    fn word_before(&self, at: usize) -> Option<&'t str> {
        let next = self.tokens.partition_point(|t| t.end <= at);
        let token = self.tokens.get(next.checked_sub(1)?)?;
        (token.end == at).then(|| self.str(token.range()))
    }

    /// Whether a cue of one of `kinds` ends at most `within` bytes before `at`, no blank line between.
    pub fn cue_before(&self, at: usize, within: usize, kinds: impl Fn(Cue) -> bool) -> bool {
        let end = self.cues.partition_point(|(_, r)| r.end <= at);
        self.cues[..end]
            .iter()
            .rev()
            // Cues do not overlap, so their ends are sorted.
            .take_while(|(_, r)| r.end + within >= at)
            .any(|(cue, r)| kinds(*cue) && !breaks(&self.text[r.end..at]))
    }

    /// The last cue of `kinds` that ends at most `within` bytes before `at`.
    pub fn nearest_cue(&self, at: usize, within: usize, kinds: impl Fn(Cue) -> bool) -> Option<Cue> {
        let end = self.cues.partition_point(|(_, r)| r.end <= at);
        self.cues[..end]
            .iter()
            .rev()
            .take_while(|(_, r)| r.end + within >= at)
            .find(|(cue, r)| kinds(*cue) && !breaks(&self.text[r.end..at]))
            .map(|(cue, _)| *cue)
    }

    /// Whether a cue of one of `kinds` starts at most `within` bytes after `at`, in the same line.
    pub fn cue_after(&self, at: usize, within: usize, kinds: impl Fn(Cue) -> bool) -> bool {
        let start = self.cues.partition_point(|(_, r)| r.start < at);
        self.cues[start..]
            .iter()
            .take_while(|(_, r)| r.start <= at + within)
            .any(|(cue, r)| kinds(*cue) && !self.text[at..r.start].contains('\n'))
    }

    /// A cue close by on either side: 48 bytes before or 24 after.
    pub fn is_cued(&self, range: &Range<usize>, kinds: impl Fn(Cue) -> bool + Copy) -> bool {
        self.cue_before(range.start, 48, kinds) || self.cue_after(range.end, 24, kinds)
    }
}

impl Scan<'_> {
    /// The number that starts at `start` goes on from the head of an IBAN ("FR74 4587 2240 ..."): a country, two
    /// digits, and groups of up to four characters over one kind of separator.
    pub fn follows_account_head(&self, start: usize) -> bool {
        let mut k = self.tokens.partition_point(|t| t.start < start);
        let mut separator = None;
        for _ in 0..8 {
            let Some(previous) = k.checked_sub(1) else { return false };
            let gap = self.gap(previous);
            if !matches!(gap, " " | "-")
                || separator.is_some_and(|s| s != gap)
                || self.tokens[previous].len() > 4
            {
                return false;
            }
            separator = Some(gap);
            let bytes = self.token(previous).as_bytes();
            if matches!(bytes, [a, b, c, d] if a.is_ascii_alphabetic() && b.is_ascii_alphabetic() && c.is_ascii_digit() && d.is_ascii_digit())
            {
                return true;
            }
            k = previous;
        }
        false
    }
}

/// What stands on the line before `at`, its last 160 bytes at most: looking further back for every hit would not be
/// linear on one long line.
pub(crate) fn line_before(text: &str, at: usize) -> &str {
    let mut start = at.saturating_sub(160);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let tail = &text[start..at];
    tail.rfind('\n').map_or(tail, |end| &tail[end + 1..])
}

/// A blank line, two line ends, or a sentence that ends with its line.
fn breaks(gap: &str) -> bool {
    let closed = [".\n", "!\n", "?\n", "。\n", "！\n", "？\n"];
    gap.contains("\n\n")
        || closed.iter().any(|c| gap.contains(c))
        || gap.bytes().filter(|b| *b == b'\n').count() > 1
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::with_capacity(text.len() / 6 + 1);
    let mut open: Option<Token> = None;
    let mut unspaced = false;
    for (at, c) in text.char_indices() {
        let (letter, digit) = if c.is_ascii() {
            (c.is_ascii_alphabetic(), c.is_ascii_digit())
        } else {
            let alphanumeric = c.is_alphanumeric();
            (alphanumeric && !c.is_numeric() || is_combining_mark(c), alphanumeric && c.is_numeric())
        };
        if !letter && !digit {
            tokens.extend(open.take());
            continue;
        }
        let end = at + c.len_utf8();
        // A number in Chinese or Japanese text is a word of its own.
        if is_unspaced(c) != unspaced {
            tokens.extend(open.take());
            unspaced = !unspaced;
        }
        let token = open.get_or_insert(Token {
            start: at,
            end,
            has_digit: false,
            has_letter: false,
            capital: c.is_uppercase(),
            ascii: true,
        });
        token.end = end;
        token.has_digit |= digit;
        token.has_letter |= letter;
        token.ascii &= c.is_ascii();
    }
    tokens.extend(open);
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_digits() {
        let cues = Cues::new().unwrap();
        let scan = Scan::new("Tel.: +49 30/12x34 Jörg नमस्ते", &cues);
        let words: Vec<&str> = (0..scan.tokens.len()).map(|i| scan.token(i)).collect();
        assert_eq!(words, ["Tel", "49", "30", "12x34", "Jörg", "नमस्ते"]);
        assert_eq!(scan.digits.len(), 4);
        assert!(scan.tokens[4].is_name_like() && !scan.tokens[5].is_name_like());
    }

    #[test]
    fn isolation() {
        let cues = Cues::new().unwrap();
        for (text, isolated) in [
            ("a 123456 b", true),
            ("a 123456.", true),
            ("no.123456", true),
            ("1.123456", false),
            ("ab-123456", false),
            ("123456-ab", false),
            ("x123456", false),
            ("_123456", false),
        ] {
            let scan = Scan::new(text, &cues);
            let start = text.find("123456").unwrap();
            assert_eq!(scan.is_isolated(&(start..start + 6)), isolated, "{text}");
        }
    }
}
