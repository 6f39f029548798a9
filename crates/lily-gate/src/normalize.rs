//! Other ways to read a text, each with a map back to the raw bytes.
//!
//! A number in full-width digits, a zero-width space inside a name, a Cyrillic "а" in a Latin word, `%40` for `@`
//! or base64 hide nothing: the recognisers read the text, and where it differs its normalised, decoded and base64
//! readings as well. Plain ASCII text has one reading, so it pays nothing.

use std::ops::Range;

use base64::{
    Engine as _, alphabet,
    engine::{
        DecodePaddingMode,
        general_purpose::{GeneralPurpose, GeneralPurposeConfig},
    },
};
use unicode_normalization::{UnicodeNormalization, char::is_combining_mark};

/// A reading of a raw text.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub text: String,
    /// For each byte of `text`, the raw range that its character came from.
    origin: Vec<(u32, u32)>,
}

impl View {
    /// The raw range that `range` of this reading came from; empty ranges give empty ones.
    pub fn to_raw(&self, range: &Range<usize>) -> Range<usize> {
        let Some(first) = self.origin.get(range.start) else { return 0..0 };
        if range.is_empty() {
            return first.0 as usize..first.0 as usize;
        }
        first.0 as usize..self.origin[range.end - 1].1 as usize
    }

    fn with_capacity(capacity: usize) -> Self {
        Self { text: String::with_capacity(capacity), origin: Vec::with_capacity(capacity) }
    }

    fn push(&mut self, c: char, from: (u32, u32)) {
        self.text.push(c);
        self.origin.extend(std::iter::repeat_n(from, c.len_utf8()));
    }

    /// This reading of a reading, as a reading of the raw text.
    fn through(mut self, outer: &View) -> View {
        for origin in &mut self.origin {
            let raw = outer.to_raw(&(origin.0 as usize..origin.1 as usize));
            *origin = (raw.start as u32, raw.end as u32);
        }
        self
    }
}

/// All readings of `text` that differ from it. Texts over 4 GiB have none: requests are far smaller.
pub(crate) fn views(text: &str) -> Vec<View> {
    if u32::try_from(text.len()).is_err() {
        return Vec::new();
    }
    let mut views = Vec::new();
    views.extend(normalized(text));
    if let Some(decoded) = decoded(text) {
        if let Some(both) = normalized(&decoded.text) {
            views.push(both.through(&decoded));
        }
        views.push(decoded);
    }
    views
}

/// NFKC, zero-width characters dropped, digits of all scripts as ASCII, dashes as `-`, and look-alike letters of a
/// mixed-script word as Latin ones. None if nothing changes.
fn normalized(text: &str) -> Option<View> {
    if text.is_ascii() {
        return None;
    }
    let mut view = View::with_capacity(text.len());
    let mut chars = text.char_indices().peekable();
    while let Some((start, c)) = chars.next() {
        let mut end = start + c.len_utf8();
        if c.is_ascii() && !chars.peek().is_some_and(|(_, next)| is_combining_mark(*next)) {
            view.push(c, (start as u32, end as u32));
            continue;
        }
        // A base character with its marks normalises as one.
        while let Some((at, mark)) = chars.next_if(|(_, next)| is_combining_mark(*next)) {
            end = at + mark.len_utf8();
        }
        if is_invisible(c) {
            continue;
        }
        for n in text[start..end].nfkc() {
            if let Some(folded) = fold(n) {
                view.push(folded, (start as u32, end as u32));
            }
        }
    }
    fold_look_alikes(&mut view);
    (view.text != text).then_some(view)
}

/// Zero-width and directional characters, soft hyphens, variation selectors.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}'
    )
}

fn fold(c: char) -> Option<char> {
    if c.is_ascii() {
        return Some(c);
    }
    if is_invisible(c) {
        return None;
    }
    Some(match c {
        '\u{2010}'..='\u{2015}' | '\u{2212}' | '\u{fe58}' | '\u{ff0d}' => '-',
        '\u{2018}' | '\u{2019}' | '\u{201b}' | '\u{2bc}' => '\'',
        '\u{201c}' | '\u{201d}' | '\u{201e}' => '"',
        '\u{2044}' | '\u{2215}' => '/',
        c => decimal_digit(c).unwrap_or(c),
    })
}

/// First characters of the blocks of ten decimal digits (Unicode category Nd, the scripts in use).
const DIGIT_ZEROS: &[u32] = &[
    0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x17e0, 0x1810, 0xff10,
];

fn decimal_digit(c: char) -> Option<char> {
    let code = c as u32;
    let zero = DIGIT_ZEROS.iter().find(|zero| (**zero..**zero + 10).contains(&code))?;
    char::from_digit(code - zero, 10)
}

/// Letters of other scripts that look like Latin ones (a choice from Unicode's confusables).
fn look_alike(c: char) -> Option<char> {
    Some(match c {
        'а' | 'α' => 'a',
        'в' => 'b',
        'с' | 'ϲ' => 'c',
        'ԁ' => 'd',
        'е' | 'ҽ' => 'e',
        'һ' => 'h',
        'і' | 'ι' | 'ı' => 'i',
        'ј' | 'ϳ' => 'j',
        'к' | 'κ' => 'k',
        'ӏ' => 'l',
        'п' => 'n',
        'о' | 'ο' => 'o',
        'р' | 'ρ' => 'p',
        'ԛ' => 'q',
        'г' => 'r',
        'ѕ' => 's',
        'т' | 'τ' => 't',
        'υ' => 'u',
        'ν' | 'ѵ' => 'v',
        'ԝ' => 'w',
        'х' | 'χ' => 'x',
        'у' | 'γ' => 'y',
        'А' | 'Α' => 'A',
        'В' | 'Β' => 'B',
        'С' => 'C',
        'Е' | 'Ε' => 'E',
        'Н' | 'Η' => 'H',
        'І' | 'Ι' => 'I',
        'Ј' => 'J',
        'К' | 'Κ' => 'K',
        'М' | 'Μ' => 'M',
        'Ν' => 'N',
        'О' | 'Ο' => 'O',
        'Р' | 'Ρ' => 'P',
        'Ѕ' => 'S',
        'Т' | 'Τ' => 'T',
        'У' | 'Υ' => 'Y',
        'Х' | 'Χ' => 'X',
        'Ζ' => 'Z',
        _ => return None,
    })
}

/// Folds look-alikes in words that also hold ASCII letters; a word all in Cyrillic or Greek stays as it is.
fn fold_look_alikes(view: &mut View) {
    if !view.text.chars().any(|c| look_alike(c).is_some()) {
        return;
    }
    let mut folded = View::with_capacity(view.text.len());
    for word in view.text.split_inclusive(char::is_whitespace) {
        let start = word.as_ptr() as usize - view.text.as_ptr() as usize;
        let mixed = word.bytes().any(|b| b.is_ascii_alphabetic());
        for (at, c) in word.char_indices() {
            let c = if mixed { look_alike(c).unwrap_or(c) } else { c };
            folded.push(c, view.origin[start + at]);
        }
    }
    *view = folded;
}

/// Percent-encoding, HTML entities and JSON's `\uXXXX` decoded once. None if there is none.
fn decoded(text: &str) -> Option<View> {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|b| matches!(b, b'%' | b'&' | b'\\')) {
        return None;
    }
    let mut view = View::with_capacity(text.len());
    let mut changed = false;
    let mut at = 0;
    while at < bytes.len() {
        let found = match bytes[at] {
            b'%' => percent(&bytes[at..]),
            b'&' => entity(&bytes[at..]),
            b'\\' => escape(&bytes[at..]),
            _ => None,
        };
        if let Some((c, length)) = found {
            view.push(c, (at as u32, (at + length) as u32));
            changed = true;
            at += length;
        } else {
            // `at` only ever stops on a character boundary: all forms above are ASCII.
            let c = text[at..].chars().next()?;
            view.push(c, (at as u32, (at + c.len_utf8()) as u32));
            at += c.len_utf8();
        }
    }
    changed.then_some(view)
}

fn hex(bytes: &[u8], digits: usize) -> Option<u32> {
    let text = std::str::from_utf8(bytes.get(..digits)?).ok()?;
    if text.bytes().all(|b| b.is_ascii_hexdigit()) { u32::from_str_radix(text, 16).ok() } else { None }
}

/// `%XX`, as many as one UTF-8 character needs.
fn percent(bytes: &[u8]) -> Option<(char, usize)> {
    let octet = |i: usize| -> Option<u8> {
        let group = bytes.get(3 * i..)?;
        if group.first() != Some(&b'%') {
            return None;
        }
        hex(&group[1..], 2).map(|v| v as u8)
    };
    let first = octet(0)?;
    let count = match first {
        0x00..=0x7f => 1,
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return None,
    };
    let octets: Option<Vec<u8>> = (0..count).map(octet).collect();
    let octets = octets?;
    let c = std::str::from_utf8(&octets).ok()?.chars().next()?;
    Some((c, 3 * count))
}

/// `&amp;`, `&#64;`, `&#x40;`.
fn entity(bytes: &[u8]) -> Option<(char, usize)> {
    let end = bytes.iter().take(12).position(|b| *b == b';')?;
    let name = std::str::from_utf8(&bytes[1..end]).ok()?;
    let c = if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(digits) => u32::from_str_radix(digits, 16).ok()?,
            None => number.parse().ok()?,
        };
        char::from_u32(code)?
    } else {
        match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            "nbsp" => ' ',
            "commat" => '@',
            "period" => '.',
            "colon" => ':',
            "sol" => '/',
            "hyphen" | "dash" => '-',
            "lowbar" => '_',
            "plus" => '+',
            _ => return None,
        }
    };
    Some((c, end + 1))
}

/// `\u0040`, with surrogate pairs, and `\/`.
fn escape(bytes: &[u8]) -> Option<(char, usize)> {
    if bytes.get(1) == Some(&b'/') {
        return Some(('/', 2));
    }
    let unit = |at: usize| -> Option<u32> {
        if bytes.get(at) != Some(&b'\\') || bytes.get(at + 1) != Some(&b'u') {
            return None;
        }
        hex(bytes.get(at + 2..)?, 4)
    };
    let high = unit(0)?;
    if (0xd800..0xdc00).contains(&high) {
        let low = unit(6).filter(|low| (0xdc00..0xe000).contains(low))?;
        return Some((char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))?, 12));
    }
    Some((char::from_u32(high)?, 6))
}

/// Shortest run that is tried as base64: 12 bytes of text, about an e-mail address.
const MIN_BASE64: usize = 16;

/// Runs of base64 that decode to printable text, with their texts: one level, no base64 in base64.
pub(crate) fn base64_texts(text: &str) -> Vec<(Range<usize>, String)> {
    let bytes = text.as_bytes();
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'-' | b'_');
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !is_base64(bytes[at]) {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && is_base64(bytes[at]) {
            at += 1;
        }
        let body = at;
        while at < bytes.len() && bytes[at] == b'=' && at - body < 2 {
            at += 1;
        }
        // Letters of both cases: words and hex numbers are not worth decoding.
        let run = &bytes[start..body];
        let mixed = run.len() >= MIN_BASE64
            && run.len() % 4 != 1
            && run.iter().any(u8::is_ascii_uppercase)
            && run.iter().any(u8::is_ascii_lowercase);
        if mixed
            && let Some(decoded) = decode_base64(run)
            && let Ok(inner) = String::from_utf8(decoded)
            && is_printable(&inner)
        {
            found.push((start..at, inner));
        }
    }
    found
}

/// Text and not binary that happens to be UTF-8: no control characters, and ASCII for the most part or letters.
fn is_printable(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t'))
        && text.chars().filter(|c| c.is_ascii() || c.is_alphanumeric()).count() * 10
            >= text.chars().count() * 9
}

/// The bytes of base64 text, of either alphabet, padded or not; none if it is not base64.
pub(crate) fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let url = text.iter().any(|b| matches!(b, b'-' | b'_'));
    let alphabet = if url { &alphabet::URL_SAFE } else { &alphabet::STANDARD };
    GeneralPurpose::new(alphabet, config).decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(raw: &str, wanted: &str, hidden: &str) {
        let found = views(raw).into_iter().find_map(|view| {
            let at = view.text.find(wanted)?;
            Some(raw[view.to_raw(&(at..at + wanted.len()))].to_owned())
        });
        assert_eq!(found.as_deref(), Some(hidden), "{wanted} in {raw:?}");
    }

    #[test]
    fn disguises_are_read_and_mapped_back() {
        finds("at ４１１１ now", "4111", "４１１１");
        finds("رقم ٠١٢٣", "0123", "٠١٢٣");
        finds("x 41\u{200b}11\u{2060} y", "4111", "41\u{200b}11");
        finds("an pаypаl@x.org!", "paypal@x.org", "pаypаl@x.org");
        finds("12–34", "12-34", "12–34");
        finds("ann%40example.org", "ann@example.org", "ann%40example.org");
        finds("J%C3%B6rg M", "Jörg", "J%C3%B6rg");
        finds("ann&#64;x.org &amp; co", "ann@x.org", "ann&#64;x.org");
        finds("{\"n\": \"J\\u00f6rg\"}", "Jörg", "J\\u00f6rg");
        finds("\\ud83d\\ude00!", "😀", "\\ud83d\\ude00");
        finds("ann%EF%BC%A0x.org", "ann@x.org", "ann%EF%BC%A0x.org");
        finds("Jo\u{308}rg", "Jörg", "Jo\u{308}rg");
    }

    #[test]
    fn ordinary_text_has_one_reading() {
        for text in ["plain", "Привет, мир", "Γειά σου Κόσμε", "Jörg", "100 % & more", "", "\\u12", "%zz &x;"]
        {
            assert!(views(text).is_empty(), "{text}: {:?}", views(text));
        }
    }

    #[test]
    fn base64_is_read_where_it_is_text() {
        let text = "token dXNlcjogYW5uQGV4YW1wbGUub3Jn end";
        let found = base64_texts(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1, "user: ann@example.org");
        assert_eq!(&text[found[0].0.clone()], "dXNlcjogYW5uQGV4YW1wbGUub3Jn");
        assert!(base64_texts("AbCdEfGhIjKlMnOpQrStUvWxYz0123456789").is_empty());
    }
}
