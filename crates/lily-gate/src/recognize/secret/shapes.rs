//! Secrets that their prefix gives away: one automaton finds all prefixes, then the body is checked.

use std::collections::HashMap;

use aho_corasick::AhoCorasick;

use super::{
    entropy, hit,
    table::{INNER, SHAPES},
};
use crate::{
    Evidence,
    text::{Hit, Scan},
};

/// One part of a body.
#[derive(Debug, Clone)]
enum Piece {
    /// So many characters of a class, as many as there are.
    Run(u8, usize, usize),
    Literal(String),
}

/// A body's parts, from the notation of [`super::table`].
#[derive(Debug, Clone)]
pub(super) struct Body(Vec<Piece>);

impl Body {
    pub fn parse(notation: &str) -> Result<Self, String> {
        let wrong = || format!("secret shape {notation:?} is not understood");
        let pieces = notation.split(' ').map(|item| {
            if let Some(literal) = item.strip_prefix('\'') {
                return literal.strip_suffix('\'').map(|l| Piece::Literal(l.to_owned())).ok_or_else(wrong);
            }
            let class = *item.as_bytes().first().ok_or_else(wrong)?;
            let (min, max) = item[1..].split_once('-').unwrap_or((&item[1..], &item[1..]));
            let number = |n: &str| n.parse::<usize>().map_err(|_| wrong());
            Ok(Piece::Run(class, number(min)?, number(max)?))
        });
        pieces.collect::<Result<_, _>>().map(Self)
    }

    /// Length of the body at the start of `bytes`.
    pub fn matches(&self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        for piece in &self.0 {
            match piece {
                Piece::Literal(literal) => {
                    if !bytes[at..].starts_with(literal.as_bytes()) {
                        return None;
                    }
                    at += literal.len();
                }
                Piece::Run(class, min, max) => {
                    let count = bytes[at..].iter().take(*max).take_while(|b| in_class(*class, **b)).count();
                    if count < *min {
                        return None;
                    }
                    at += count;
                }
            }
        }
        Some(at)
    }
}

fn in_class(class: u8, b: u8) -> bool {
    match class {
        b'd' => b.is_ascii_digit(),
        b'h' => matches!(b, b'0'..=b'9' | b'a'..=b'f'),
        b'H' => b.is_ascii_hexdigit(),
        b'l' => matches!(b, b'0'..=b'9' | b'a'..=b'z'),
        b'u' => matches!(b, b'0'..=b'9' | b'A'..=b'Z'),
        b'a' => b.is_ascii_alphanumeric(),
        b'L' => b.is_ascii_alphabetic(),
        b'w' => b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'),
        b'x' => b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'='),
        b'y' => b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'~'),
        b'b' => b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'='),
        b'B' => {
            b.is_ascii_alphanumeric()
                || matches!(b, b'+' | b'/' | b'=' | b'_' | b'-' | b'.' | b'~' | b'%' | b'@')
        }
        _ => false,
    }
}

/// All prefixes and bodies.
#[derive(Debug)]
pub(super) struct Shapes {
    prefixes: AhoCorasick,
    /// For each prefix its kinds and bodies.
    bodies: Vec<Vec<(&'static str, Body)>>,
    markers: AhoCorasick,
    /// For each of [`INNER`] its head and body.
    inner: Vec<(Body, Body)>,
}

/// Prefixes that are words or syllables: a body must look random by itself.
const WEAK: &[&str] = &[
    "1/", "pat", "cio", "sl.", "re_", "sk_", "ak_", "SK", "AC", "YC", "live_", "test_", "pk.", "sk.", "t1.",
    "api-", "sdk-", "key-", "secret_", "fw_", "dose", "oy2", "md-", "pa-", "EAAA", "4b1d", "s.", "y0_",
    "dg_", "sgp_", "cmVmd", "snyk_", "travis_", "mistral-", "A3T", "lkr_",
];

impl Shapes {
    pub fn new() -> Result<Self, String> {
        let mut index: HashMap<&str, usize> = HashMap::new();
        let mut prefixes: Vec<&str> = Vec::new();
        let mut bodies: Vec<Vec<(&'static str, Body)>> = Vec::new();
        for (kind, prefix, body) in SHAPES {
            let at = *index.entry(prefix).or_insert_with(|| {
                prefixes.push(prefix);
                bodies.push(Vec::new());
                prefixes.len() - 1
            });
            bodies[at].push((kind, Body::parse(body)?));
        }
        let prefixes = AhoCorasick::new(&prefixes).map_err(|e| e.to_string())?;
        let markers = AhoCorasick::new(INNER.iter().map(|i| i.1)).map_err(|e| e.to_string())?;
        let inner = INNER
            .iter()
            .map(|i| Ok((Body::parse(i.2)?, Body::parse(i.4)?)))
            .collect::<Result<_, String>>()?;
        Ok(Self { prefixes, bodies, markers, inner })
    }

    pub fn scan(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        let bytes = scan.text.as_bytes();
        for found in self.prefixes.find_overlapping_iter(scan.text) {
            let (start, body_start) = (found.start(), found.end());
            let joined = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            let is_host = bytes[start..body_start].contains(&b'/') && body_start - start > 4;
            if start > 0 && joined(bytes[start - 1]) && !is_host {
                continue;
            }
            let prefix = &scan.text[start..body_start];
            // The longest body first: some kinds have an optional ending.
            let mut bodies: Vec<(usize, &str)> = self.bodies[found.pattern().as_usize()]
                .iter()
                .filter_map(|(kind, body)| Some((body.matches(&bytes[body_start..])?, *kind)))
                .collect();
            bodies.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
            for (length, kind) in bodies {
                let mut end = body_start + length;
                // A dot or an equals sign at the end is the sentence's, unless base64 pads with it.
                while bytes[end - 1] == b'.' && end > body_start {
                    end -= 1;
                }
                if bytes.get(end).is_some_and(|b| joined(*b)) {
                    continue;
                }
                let value = &scan.text[body_start..end];
                let weak = WEAK.contains(&prefix);
                let floor: f64 = if weak { 3.0 } else { 2.4 };
                let mixed = value.bytes().any(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
                let random = entropy::shannon(value) >= floor.min((value.len() as f64).log2() * 0.75)
                    && (mixed || (value.len() >= 24 && !entropy::is_wordy(value)))
                    && !(weak && (entropy::is_wordy(value) || !value.bytes().any(|b| b.is_ascii_digit())));
                let example = if value.len() > 100 { value.contains("EXAMPLE") } else { is_example(value) };
                if random && !example {
                    let start = if is_host { address_start(bytes, start) } else { start };
                    let evidence = if weak { Evidence::Shape } else { Evidence::Validated };
                    hits.push(hit(start..end, evidence, kind));
                    break;
                }
            }
        }
        self.marked(scan, hits);
    }

    /// Secrets with their telling part inside.
    fn marked(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        let bytes = scan.text.as_bytes();
        let joined = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
        for found in self.markers.find_overlapping_iter(scan.text) {
            let index = found.pattern().as_usize();
            let (kind, _, _, length, _) = INNER[index];
            let (head, body) = &self.inner[index];
            let Some(start) = found.start().checked_sub(length) else { continue };
            if head.matches(&bytes[start..found.start()]) != Some(length) {
                continue;
            }
            let Some(tail) = body.matches(&bytes[found.end()..]) else { continue };
            let end = found.end() + tail;
            if !joined(bytes.get(end))
                && (start == 0 || !joined(bytes.get(start - 1)))
                && entropy::shannon(&scan.text[start..end]) >= 3.0
            {
                hits.push(hit(start..end, Evidence::Validated, kind));
            }
        }
    }
}

/// Where the web address begins whose host was found at `at`.
fn address_start(bytes: &[u8], at: usize) -> usize {
    let in_url = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'/');
    at - bytes[..at].iter().rev().take(80).take_while(|b| in_url(b)).count()
}

/// What documentation writes after a real prefix.
fn is_example(value: &str) -> bool {
    let lower = value.to_ascii_lowercase();
    [
        "example",
        "xxxxx",
        "your",
        "placeholder",
        "*****",
        "redacted",
        "changeme",
        "dummy",
        "01234567",
        "12345678",
        "abcdefgh",
        "abcd1234",
        "00000000",
        ".....",
        "foobar",
    ]
    .iter()
    .any(|p| lower.contains(p))
}
