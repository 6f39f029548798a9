//! Telephone numbers: international ones by their `+`, national ones by the grouping of their country, any grouping
//! with a cue.

use std::ops::Range;

use crate::{
    Category, Evidence, checks,
    cues::Cue,
    text::{Hit, Scan},
};

const VERSION: u16 = 1;

/// E.164 numbers have at most 15 digits; prefixes to leave a country come on top.
const MAX_DIGITS: usize = 18;
const MAX_GROUPS: usize = 9;

/// Words of an extension: "ext. 12", "x12", "Durchwahl 12".
const EXTENSIONS: &[&str] = &[
    "x",
    "ext",
    "ext.",
    "extension",
    "poste",
    "durchwahl",
    "dw",
    "доб",
    "доб.",
    "int",
    "int.",
    "interno",
    "anexo",
    "ramal",
    "wew",
    "wew.",
];

/// Groups of digits with what stands between them.
#[derive(Debug)]
struct Run<'t> {
    range: Range<usize>,
    /// Digits of the groups.
    groups: Vec<&'t str>,
    separators: Vec<&'t str>,
    plus: bool,
    /// An opening parenthesis before the first group.
    paren: bool,
}

impl Run<'_> {
    fn digits(&self) -> usize {
        self.groups.iter().map(|g| g.len()).sum()
    }

    fn sizes(&self) -> Vec<usize> {
        self.groups.iter().map(|g| g.len()).collect()
    }

    fn first(&self) -> &str {
        self.groups.first().copied().unwrap_or_default()
    }
}

/// Reports telephone numbers.
pub(crate) fn scan(scan: &Scan, hits: &mut Vec<Hit>) {
    let mut next = 0;
    for first in 0..scan.digits.len() {
        if first < next {
            continue;
        }
        let Some(whole) = run(scan, first) else { continue };
        let groups = whole.groups.len();
        // The longest number that starts here; shorter ones only end where a blank stands.
        for count in (1..=groups).rev() {
            let whole_run = count == groups;
            if !whole_run && !matches!(whole.separators[count - 1], " " | " (" | " - ") {
                continue;
            }
            let part = part(scan, &whole, first, count);
            if let Some(evidence) = judge(scan, &part, whole_run) {
                let end = extension(scan, part.range.end);
                next = first + count + usize::from(end != part.range.end);
                hits.push(Hit {
                    range: part.range.start..end,
                    category: Category::Phone,
                    evidence,
                    recognizer: "phone",
                    version: VERSION,
                    subtype: None,
                });
                break;
            }
        }
    }
}

fn part<'t>(scan: &Scan<'t>, whole: &Run<'t>, first: usize, count: usize) -> Run<'t> {
    let last = &scan.digits[first + count - 1];
    Run {
        range: whole.range.start..last.end,
        groups: whole.groups[..count].to_vec(),
        separators: whole.separators[..count - 1].to_vec(),
        plus: whole.plus,
        paren: whole.paren,
    }
}

fn is_separator(between: &str) -> bool {
    matches!(
        between,
        " " | "-"
            | "."
            | "/"
            | ") "
            | ")"
            | " ("
            | "("
            | ")-"
            | ") - "
            | " - "
            | " / "
            | "  "
            | "-("
            | ".("
            | ")/"
            | ") /"
    )
}

/// All groups from digit run `first` on. None if a word or a number goes on before it.
fn run<'t>(scan: &Scan<'t>, first: usize) -> Option<Run<'t>> {
    let head = scan.digits[first].clone();
    let mut start = head.start;
    let mut paren = false;
    let mut plus = false;
    let before = |at: usize| scan.char_before(at);
    if before(start) == Some('(') {
        paren = true;
        start -= 1;
    }
    match before(start) {
        Some('+') => {
            plus = true;
            start -= 1;
            // "(+49)"
            if before(start) == Some('(') {
                start -= 1;
                paren = true;
            }
        }
        Some(' ') if scan.text[..start - 1].ends_with('+') && !paren => {
            plus = true;
            start -= 2;
        }
        _ => {}
    }
    let tied = |c: char| !crate::cues::is_unspaced(c);
    if before(start)
        .filter(|c| tied(*c))
        .is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '$' | '€' | '£' | '#' | '@' | '%'))
        && !plus
    {
        return None;
    }
    let mut run = Run {
        range: start..head.end,
        groups: vec![scan.str(head.clone())],
        separators: Vec::new(),
        plus,
        paren,
    };
    let mut at = first + 1;
    while let Some(next) = scan.digits.get(at) {
        let between = scan.str(run.range.end..next.start);
        if !is_separator(between) || run.groups.len() >= MAX_GROUPS || run.digits() + next.len() > MAX_DIGITS
        {
            break;
        }
        run.separators.push(between);
        run.groups.push(scan.str(next.clone()));
        run.range.end = next.end;
        at += 1;
    }
    Some(run)
}

fn judge(scan: &Scan, run: &Run, whole: bool) -> Option<Evidence> {
    let digits = run.digits();
    if !(6..=MAX_DIGITS).contains(&digits) || !ends_here(scan, run.range.end) || !opens_and_closes(run) {
        return None;
    }
    let kind = |c: Cue| c == Cue::Phone;
    // What is a telephone number of North America to the digit is one, whatever a text calls it.
    let sure = is_american(run);
    let reference = scan.cue_before(run.range.start, 24, |c| {
        matches!(c, Cue::Version | Cue::Account | Cue::Iban | Cue::Card | Cue::Id(_))
            || c == Cue::Reference && !sure
    });
    let cued = scan.cue_before(run.range.start, 40, kind) || scan.cue_after(run.range.end, 16, kind);
    let nearer = cued && !nearest_is_reference(scan, run.range.start);
    if is_dated(run) {
        return None;
    }
    if run.plus && (7..=15).contains(&digits) && !run.first().starts_with('0') {
        return Some(if cued { Evidence::Cue } else { Evidence::Shape });
    }
    if continues(scan, run.range.start) || scan.follows_account_head(run.range.start) {
        return None;
    }
    // No country's own numbers are longer; with a prefix to leave one, they may be.
    let most = if run.first().starts_with("00") || run.first() == "011" { 16 } else { 13 };
    if nearer && (6..=most).contains(&digits) && (digits >= 7 || run.groups.len() > 1) && is_sane(run) {
        return Some(Evidence::Cue);
    }
    if reference || !whole || !stands_alone(scan, run) {
        return None;
    }
    (is_national(run) || is_international(run) || has_own_line(scan, run)).then_some(Evidence::Shape)
}

/// Of the cues before `at`, the nearest speaks of an order and not of a telephone.
fn nearest_is_reference(scan: &Scan, at: usize) -> bool {
    let end = scan.cues.partition_point(|(_, r)| r.end <= at);
    let nearest = scan.cues[..end].iter().rev().find(|(cue, _)| {
        matches!(
            cue,
            Cue::Phone
                | Cue::Reference
                | Cue::Account
                | Cue::Card
                | Cue::Iban
                | Cue::Id(_)
                | Cue::AnyId
                | Cue::Version
        )
    });
    nearest.is_some_and(|(cue, range)| *cue != Cue::Phone && range.end + 40 >= at)
}

/// No letter, decimal point or further group goes on.
fn ends_here(scan: &Scan, end: usize) -> bool {
    let mut rest = scan.text[end..].chars();
    match rest.next() {
        Some('x' | 'X') => rest.next().is_some_and(|c| c.is_ascii_digit()),
        Some(c) if c.is_alphanumeric() && !crate::cues::is_unspaced(c) => false,
        Some('_' | '%' | '@') => false,
        Some('.' | ',' | '-' | '/' | ':' | '+') => !rest.next().is_some_and(char::is_alphanumeric),
        _ => true,
    }
}

/// Parentheses come in pairs: an area code in them, or none.
fn opens_and_closes(run: &Run) -> bool {
    let mut open = run.paren;
    for separator in &run.separators {
        for c in separator.chars() {
            match c {
                ')' if open => open = false,
                '(' if !open => open = true,
                '(' | ')' => return false,
                _ => {}
            }
        }
    }
    !open
}

/// More digits stand right before, tied by a sign: the middle of a longer number.
fn continues(scan: &Scan, start: usize) -> bool {
    let mut before = scan.text[..start].chars().rev();
    matches!(before.next(), Some('-' | '.' | '/' | ',')) && before.next().is_some_and(|c| c.is_ascii_digit())
}

/// Not a piece of a longer row of numbers, a product code, a decimal or a list.
fn stands_alone(scan: &Scan, run: &Run) -> bool {
    let mut before = scan.text[..run.range.start].chars().rev();
    let tied = match before.next() {
        Some('-' | '.' | ',' | '/' | ':' | '=') => before.next().is_some_and(|c| c.is_ascii_digit()),
        // Digits, a blank, and then this number: a row of figures.
        Some(' ') => before.next().is_some_and(|c| c.is_ascii_digit()),
        _ => false,
    };
    let mut after = scan.text[run.range.end..].chars();
    let row = after.next() == Some(' ') && after.next().is_some_and(|c| c.is_ascii_digit());
    !tied && !row
}

/// Groups of two to four digits alone on their line, as under a signature: 784 047 869.
fn has_own_line(scan: &Scan, run: &Run) -> bool {
    let before = scan.text[..run.range.start].trim_end_matches([' ', '\t']);
    let after = scan.text[run.range.end..].trim_start_matches([' ', '\t']);
    let alone = before.ends_with('\n') && (after.is_empty() || after.starts_with(['\n', '\r']));
    let spaced = run.separators.iter().all(|s| matches!(*s, " " | "-" | " - " | "/"));
    alone
        && spaced
        && run.groups.len() >= 3
        && (9..=11).contains(&run.digits())
        && run.groups.iter().all(|g| (2..=4).contains(&g.len()))
        // The line above has words: not a column of figures.
        && crate::text::line_before(scan.text, before.len() - 1).chars().any(char::is_alphabetic)
}

/// Dates and times: 2024-01-31, 31.01.2024, 01/31/2024 10:00.
fn is_dated(run: &Run) -> bool {
    if run.plus || run.paren || run.groups.len() < 3 {
        return false;
    }
    let number = |i: usize| run.groups[i].parse::<u32>().unwrap_or(u32::MAX);
    let sizes = run.sizes();
    let (a, b, c) = (number(0), number(1), number(2));
    match sizes[..3] {
        [4, 1..=2, 1..=2] => checks::is_date(a, b, c),
        [1..=2, 1..=2, 4] => checks::is_date(c, b, a) || checks::is_date(c, a, b),
        [1..=2, 1..=2, 2] => sizes.len() == 3,
        _ => false,
    }
}

/// With a cue: groups of up to eleven digits, not all of one or two digits unless they come in pairs.
fn is_sane(run: &Run) -> bool {
    let sizes = run.sizes();
    let singles = sizes.iter().filter(|s| **s == 1).count();
    let distinct = run.groups.concat();
    // 26288.69 is an amount.
    let amount = run.separators == ["."] && sizes[1] <= 2;
    !amount
        && singles <= 2
        && sizes.iter().all(|s| *s <= 13)
        && distinct.bytes().any(|b| b != distinct.as_bytes()[0])
}

/// `00` or `001` or `011` and a country code: only in groups.
fn is_international(run: &Run) -> bool {
    let digits = run.digits();
    let first = run.first();
    run.groups.len() >= 3
        && (11..=16).contains(&digits)
        && ((first.starts_with("00") && (3..=5).contains(&first.len())) || first == "011" || first == "00")
        && run.groups[1..].iter().all(|g| (1..=8).contains(&g.len()))
}

/// 212-555-0123: neither the area nor the exchange begins with 0 or 1.
fn is_american(run: &Run) -> bool {
    let begins = |group: &str| group.starts_with(|c| ('2'..='9').contains(&c));
    run.sizes() == [3, 3, 4] && run.separators == ["-", "-"] && begins(run.groups[0]) && begins(run.groups[1])
}

/// Groupings that are hardly anything else, without a cue.
fn is_national(run: &Run) -> bool {
    let sizes = run.sizes();
    let digits = run.digits();
    let first = run.first();
    let separators: Vec<&str> = run.separators.clone();
    let one_separator = separators.windows(2).all(|w| w[0] == w[1]);
    // North America: 555-123-4567, (555) 123-4567, 1-800-555-1234, 555.123.4567.
    if sizes == [3, 3, 4] && (run.paren || (one_separator && matches!(separators[0], "-" | "."))) {
        return true;
    }
    if sizes == [1, 3, 3, 4] && first == "1" && separators.iter().all(|s| *s != "." && *s != "/") {
        return true;
    }
    if sizes == [3, 3, 4] && separators == [" ", "-"] && !first.starts_with('0') {
        return true;
    }
    // An area code in parentheses and the number: (030) 123456, (11) 91234-5678, (0)171/1234567.
    if run.paren && (1..=5).contains(&sizes[0]) && sizes.len() >= 2 && (8..=12).contains(&digits) {
        return sizes[1..].iter().sum::<usize>() >= 5 && sizes[1..].iter().all(|s| *s >= 2);
    }
    // Russia: 8 (495) 123-45-67, 8 495 123-45-67.
    if first == "8" && digits == 11 && sizes[1] == 3 && sizes.len() >= 4 {
        return true;
    }
    // A national prefix of 0: 030 123456, 0171-1234567, 01 23 45 67 89, 0412 345 678.
    if first.starts_with('0') && !first.starts_with("00") && sizes.len() >= 2 && (9..=13).contains(&digits) {
        let grouped = sizes.iter().all(|s| (2..=8).contains(s)) && sizes[0] <= 6;
        let separated = separators.iter().all(|s| matches!(*s, " " | "-" | "/" | " / " | " - " | "."));
        let decimal = separators.contains(&".") && !(one_separator && sizes.len() >= 3);
        // 02110-1301 is a postcode.
        let postcode = sizes == [5, 4] && separators == ["-"];
        return grouped && separated && !decimal && !postcode && !first.bytes().all(|b| b == b'0');
    }
    // Brazil: 12 3558-0433, 11 91234-5678.
    if matches!(sizes[..], [2, 4 | 5, 4]) && separators == [" ", "-"] {
        return true;
    }
    // Korea, China, Japan without the 0: 1588-1234 needs a cue, 400-123-4567 is North America's shape.
    false
}

/// The end of an extension that follows, or `end`.
fn extension(scan: &Scan, end: usize) -> usize {
    let rest = &scan.text[end..];
    let trimmed = rest.trim_start_matches([' ', ',', '(', '#']);
    if rest.len() - trimmed.len() > 3 {
        return end;
    }
    let digits = |from: &str| from.bytes().take(7).take_while(u8::is_ascii_digit).count();
    if rest.len() > trimmed.len() && rest[..rest.len() - trimmed.len()].contains('#') {
        let count = digits(trimmed);
        return if (1..=6).contains(&count) { scan.text.len() - trimmed.len() + count } else { end };
    }
    let word: usize =
        trimmed.chars().take(10).take_while(|c| c.is_alphabetic() || *c == '.').map(char::len_utf8).sum();
    if word == 0 || !EXTENSIONS.contains(&trimmed[..word].to_lowercase().as_str()) {
        return end;
    }
    let number = trimmed[word..].trim_start_matches([' ', ':', '.', '#']);
    let count = digits(number);
    if (1..=6).contains(&count) { scan.text.len() - number.len() + count } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::texts;

    fn found(text: &str) -> Vec<String> {
        texts(text, scan)
    }

    #[test]
    fn numbers_by_their_shape() {
        for number in [
            "+49 30 1234567",
            "+1-555-123-4567",
            "+1 (555) 123-4567",
            "(+44) 20 7946 0958",
            "+44(0)1234 567890",
            "+4915112345678",
            "(555) 123-4567",
            "555-123-4567",
            "555.123.4567",
            "1-800-555-1234",
            "001-555-123-4567x123",
            "555-123-4567 ext. 89",
            "0049 30 1234567",
            "030 1234567",
            "0171/1234567",
            "01 23 45 67 89",
            "0412 345 678",
            "(06) 1234 5678",
            "(11) 91234-5678",
            "8 (495) 123-45-67",
            "03-1234-5678",
            "010-1234-5678",
            "020 7946 0958",
            "203-555-0142",
        ] {
            let text = format!("It is {number}.");
            assert_eq!(found(&text), [number], "{text}");
        }
    }

    #[test]
    fn numbers_by_a_cue() {
        for text in [
            "call me at 5551234567",
            "Phone: 555 123 4567",
            "tel 612 345 678",
            "555-1234 is my phone",
            "手机13812345678",
            "Telefon: 12 34 56 78",
            "Reference record: 203-555-0142",
        ] {
            assert_eq!(found(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn other_numbers() {
        for text in [
            "on 2024-01-31 it was",
            "on 31.01.2024 it was",
            "31/01/2024",
            "pi is 3.14159265358979",
            "from 1990-2000",
            "order number 155-123-4567",
            "0.123 0.456 0.789",
            "5551234567",
            "100 200 3000",
            "00 01 02 03 04 05 06 07 08 09 0a",
            "192.168.100.200",
            "ISBN 978-3-16-148410-0",
            "1,234,567,890",
            "$555-123-4567",
            "id_555-123-4567",
            "4111 1111 1111 1112",
            "2001-02-03 04 05",
        ] {
            assert!(found(text).is_empty(), "{text}: {:?}", found(text));
        }
    }
}
