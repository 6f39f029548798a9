//! Numbers that states give to persons and companies.
//!
//! A scheme is a row of a table: the shapes it is written in and a check. A number is reported when its check
//! digits hold (and the shape is telling, or a cue stands by), or when a cue of its country stands by the shape
//! whatever the digits say. Checks that one number in ten passes by chance never count without either.

mod checks_a_k;
mod checks_l_z;
mod documents;
mod schemes;

use std::collections::HashMap;

use crate::{
    Category, Evidence,
    cues::Cue,
    text::{Hit, Scan},
};

const VERSION: u16 = 1;

/// What a scheme's check says about a number of its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// The check digits hold.
    Valid,
    /// There are none, and the parts (dates, regions, letters) are possible.
    Possible,
    /// Impossible, or the check digits are wrong.
    Invalid,
}

impl Check {
    pub fn valid_if(valid: bool) -> Self {
        if valid { Check::Valid } else { Check::Invalid }
    }

    pub fn possible_if(possible: bool) -> Self {
        if possible { Check::Possible } else { Check::Invalid }
    }
}

/// One national number.
pub(crate) struct Scheme {
    /// `us_ssn`.
    pub id: &'static str,
    /// ISO 3166 code of the country, as in [`Cue::Id`].
    pub country: &'static str,
    /// Shapes that count without a cue, separated by `|`: `d` a digit, `a` a letter, anything else itself.
    pub telling: &'static str,
    /// Shapes that need a cue.
    pub plain: &'static str,
    /// Of the digits and letters, upper case.
    pub check: fn(&str) -> Check,
}

/// Looks `number` (digits and letters only, upper case) up in a scheme, for the audit against other
/// implementations. None if there is no such scheme.
pub(crate) fn check(scheme: &str, number: &str) -> Option<Check> {
    schemes::SCHEMES.iter().find(|s| s.id == scheme).map(|s| (s.check)(number))
}

/// The schemes' names.
pub(crate) fn ids() -> impl Iterator<Item = &'static str> {
    schemes::SCHEMES.iter().map(|s| s.id)
}

/// All shapes of all schemes, and those of passports and licences.
#[derive(Debug)]
pub(crate) struct National {
    /// Shape to (scheme, whether the shape tells by itself).
    shapes: HashMap<&'static str, Vec<(usize, bool)>>,
}

/// Longest shape, in characters.
const MAX_SHAPE: usize = 24;

impl National {
    /// The schemes of `countries` (ISO 3166 codes, lower case); all if it is empty.
    pub fn new(countries: &[String]) -> Self {
        let mut shapes: HashMap<&'static str, Vec<(usize, bool)>> = HashMap::new();
        for (i, scheme) in schemes::SCHEMES.iter().enumerate() {
            if !countries.is_empty() && !countries.iter().any(|c| c == scheme.country) {
                continue;
            }
            for (list, telling) in [(scheme.telling, true), (scheme.plain, false)] {
                for shape in list.split('|').filter(|s| !s.is_empty()) {
                    shapes.entry(shape).or_default().push((i, telling));
                }
            }
        }
        Self { shapes }
    }

    pub fn scan(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        let mut done = 0;
        for &i in &scan.numeric {
            // A scheme may start with letters of their own ("QQ 12 34 56 C").
            let lettered = i.checked_sub(1).filter(|&p| {
                let token = scan.tokens[p];
                token.ascii && !token.has_digit && token.len() <= 2 && token.capital && scan.gap(p) == " "
            });
            for first in lettered.into_iter().chain([i]) {
                if scan.tokens[first].start < done {
                    continue;
                }
                if let Some(hit) = self.longest(scan, first) {
                    done = hit.range.end;
                    hits.push(hit);
                    break;
                }
            }
        }
        documents::scan(scan, hits);
    }

    /// The best number that starts with token `first`: by evidence, then by length.
    fn longest(&self, scan: &Scan, first: usize) -> Option<Hit> {
        let mut shape = String::with_capacity(MAX_SHAPE);
        let mut compact = String::with_capacity(MAX_SHAPE);
        let mut best: Option<Hit> = None;
        let start = scan.tokens[first].start;
        for last in first..scan.tokens.len().min(first + 9) {
            let token = scan.tokens[last];
            if !token.ascii || shape.len() + token.len() > MAX_SHAPE {
                break;
            }
            if last > first {
                match scan.gap(last - 1) {
                    gap @ (" " | "-" | "." | "/" | "+" | "(") => shape.push_str(gap),
                    _ => break,
                }
            }
            for b in scan.token(last).bytes() {
                shape.push(if b.is_ascii_digit() { 'd' } else { 'a' });
                compact.push(b.to_ascii_uppercase() as char);
            }
            let mut end = token.end;
            if shape.contains('(') && scan.gap(last).starts_with(')') {
                shape.push(')');
                end += 1;
            }
            if compact.len() < 7 {
                continue;
            }
            let range = start..end;
            if let Some(found) = self.shapes.get(shape.as_str()) {
                for &(scheme, telling) in found {
                    let better = |hit: &Hit| best.as_ref().is_none_or(|b| hit.evidence >= b.evidence);
                    if let Some(hit) = judge(scan, &range, &schemes::SCHEMES[scheme], telling, &compact)
                        && better(&hit)
                    {
                        best = Some(hit);
                    }
                }
            }
        }
        best
    }
}

fn judge(
    scan: &Scan,
    range: &std::ops::Range<usize>,
    scheme: &Scheme,
    telling: bool,
    compact: &str,
) -> Option<Hit> {
    let own = scan.cue_before(range.start, 60, |c| c == Cue::Id(scheme.country))
        || scan.cue_after(range.end, 32, |c| c == Cue::Id(scheme.country));
    let cued = own || scan.is_cued(range, |c| c == Cue::AnyId);
    let check = (scheme.check)(compact);
    let evidence = match check {
        Check::Valid if telling || cued => Evidence::Validated,
        Check::Possible if cued => Evidence::Cue,
        Check::Possible if telling => Evidence::Shape,
        Check::Invalid if own => Evidence::Cue,
        _ => return None,
    };
    // Without a cue the number must stand alone, in capitals, and not be one of a list of like groups.
    let alone = scan.is_isolated(range)
        && !scan.str(range.clone()).bytes().any(|b| b.is_ascii_lowercase())
        && !joins_more_digits(scan, range);
    if !scan.is_bounded(range) || !(cued || alone) {
        return None;
    }
    Some(Hit {
        range: range.clone(),
        category: Category::NationalId,
        evidence,
        recognizer: "national_id",
        version: VERSION,
        subtype: Some(scheme.id),
    })
}

/// A blank and another group of digits on either side of a number that has blanks itself.
fn joins_more_digits(scan: &Scan, range: &std::ops::Range<usize>) -> bool {
    if !scan.str(range.clone()).contains(' ') {
        return false;
    }
    let digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let (before, after) = (&scan.text[..range.start], &scan.text[range.end..]);
    before.strip_suffix(' ').is_some_and(|b| digit(b.chars().next_back()))
        || after.strip_prefix(' ').is_some_and(|a| digit(a.chars().next()))
}

#[cfg(test)]
mod tests;
