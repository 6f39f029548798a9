//! The small parts of an address: house numbers, names, directions.

use super::tail::Lists;
use crate::text::Scan;

/// A house number with what belongs to it: "12", "12a", "12-14", "12/3", "12 bis", "№ 12", "д. 12".
#[derive(Debug)]
pub(super) struct House {
    /// Token of the number.
    pub first: usize,
    /// Token of a word before it that says "number": "No.", "nr", "д".
    pub label: Option<usize>,
    pub start: usize,
    pub end: usize,
    /// The token after it.
    pub next: usize,
    /// Nothing ties it to what stands before: it may open an address.
    pub opens: bool,
    /// 1900 to 2099.
    pub year_like: bool,
}

/// Words that say "number" before a house number.
const LABELS: &[&str] = &[
    "no", "nr", "n", "nº", "n°", "núm", "num", "numero", "número", "д", "дом", "буд", "č", "čp", "sn", "số",
    "km", "block", "blok", "house", "αρ", "رقم", "مبنى",
];

/// What is counted, not lived in: "at 5 PM", "located at 2 GHz".
pub(super) fn is_measure(word: &str) -> bool {
    matches!(
        word,
        "AM" | "PM"
            | "Uhr"
            | "UTC"
            | "GMT"
            | "CET"
            | "EST"
            | "PST"
            | "Hz"
            | "kHz"
            | "MHz"
            | "GHz"
            | "KB"
            | "MB"
            | "GB"
            | "TB"
            | "KiB"
            | "MiB"
            | "GiB"
            | "EUR"
            | "USD"
            | "GBP"
            | "Prozent"
            | "Euro"
            | "Dollar"
    )
}

/// The house number at token `i`.
pub(super) fn house(scan: &Scan, i: usize) -> Option<House> {
    let token = scan.tokens[i];
    let text = scan.token(i);
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let suffix = &text[digits..];
    if !(1..=5).contains(&digits) || suffix.chars().count() > 1 || !suffix.chars().all(char::is_alphabetic) {
        return None;
    }
    let before = scan.char_before(token.start);
    if before.is_some_and(|c| {
        matches!(c, '$' | '€' | '£' | '@' | '%' | '_' | '+' | '<' | '=' | '{' | '[' | '\\')
            || c.is_alphanumeric() && !crate::cues::is_unspaced(c)
    }) {
        return None;
    }
    let mut rest = scan.text[token.end..].chars();
    if matches!(rest.next(), Some('.' | ',')) && rest.next().is_some_and(|c| c.is_ascii_digit()) {
        return None;
    }
    if scan.text[token.end..].starts_with(['%', '_', '$', '€', '@', '=', ']', '}'])
        || scan.gap(i) == " " && i + 1 < scan.tokens.len() && is_measure(scan.token(i + 1))
    {
        return None;
    }
    let mut end = token.end;
    let mut next = i + 1;
    // "12-14", "12/3", "12 a", "12 bis", "12, 3º", "12 - 14".
    while next < scan.tokens.len() && next <= i + 2 {
        let part = scan.tokens[next];
        let word = scan.token(next);
        let joined = match scan.gap(next - 1) {
            "-" | "/" | "–" => part.has_digit && part.len() <= 5 || part.len() == 1,
            " " => {
                word.len() == 1 && word.bytes().all(|b| b.is_ascii_alphabetic()) && ends_word(scan, next)
                    || matches!(word, "bis" | "ter" | "quater")
            }
            " - " | " / " => part.has_digit && part.len() <= 4,
            _ => false,
        };
        if !joined {
            break;
        }
        end = part.end;
        next += 1;
    }
    // "Carrera 7 # 32-16 Sur": the quarter of the city.
    if let Some(quarter) = scan.tokens.get(next).filter(|_| scan.gap(next - 1) == " ")
        && matches!(
            scan.token(next),
            "Sur" | "Este" | "Norte" | "Oeste" | "Oriente" | "Occidente" | "Poniente"
        )
        && (!scan.gap(next).starts_with(' ') || next + 1 >= scan.tokens.len())
    {
        end = quarter.end;
        next += 1;
    }
    let label = i.checked_sub(1).filter(|&k| {
        let word = scan.token(k).to_lowercase();
        LABELS.contains(&word.as_str())
            && matches!(scan.gap(k), " " | ". " | "." | ": " | ":" | ".: " | "° " | "º " | "°" | "º")
    });
    let tied = i > 0
        && (matches!(scan.gap(i - 1), "-" | "/" | "." | ":" | "'" | "’")
            || (scan.gap(i - 1) == " " && scan.tokens[i - 1].is_number()));
    let value: u32 = text[..digits].parse().unwrap_or(0);
    Some(House {
        first: i,
        label,
        start: token.start,
        end,
        next,
        opens: !tied,
        year_like: digits == 4 && (1900..2100).contains(&value) && suffix.is_empty(),
    })
}

/// "S/N", "s/n": a house without a number, as Spanish and Portuguese write it. Token `i` is the `S`.
pub(super) fn no_number(scan: &Scan, i: usize) -> Option<House> {
    let is = |k: usize, letter: &str| k < scan.tokens.len() && scan.token(k).eq_ignore_ascii_case(letter);
    (is(i, "s") && scan.gap(i) == "/" && is(i + 1, "n")).then(|| House {
        first: i,
        label: None,
        start: scan.tokens[i].start,
        end: scan.tokens[i + 1].end,
        next: i + 2,
        opens: false,
        year_like: false,
    })
}

/// A single letter after the number is its own only if the text then breaks: "12 B," but not "12 A man".
fn ends_word(scan: &Scan, i: usize) -> bool {
    let last = i + 1 >= scan.tokens.len();
    last || !scan.gap(i).starts_with(' ') && !matches!(scan.gap(i), "'" | "’" | "-" | ".")
}

/// What may stand between a street and its number: "Roma 12", "Roma, 12", "Ленина, д. 5", "n. 5".
pub(super) fn joins_number(gap: &str) -> bool {
    matches!(
        gap,
        " " | ", "
            | ". "
            | "."
            | " n. "
            | " nº "
            | " n° "
            | " № "
            | " #"
            | ", № "
            | ",№"
            | ", #"
            | " # "
            | "، "
            | " - "
            | "  "
            | "., "
            | "/"
            | " \" "
            | "\" "
            | ", nº "
    )
}

/// Words of a name.
#[derive(Debug)]
pub(super) struct Name {
    pub last: usize,
}

/// The capitalised words from token `first` on, with the small words between them; `leading` small words may open it
/// ("de la Paix").
pub(super) fn name_words(
    lists: &Lists,
    scan: &Scan,
    first: usize,
    limit: usize,
    leading: bool,
) -> Option<Name> {
    let mut last = None;
    for k in first..scan.tokens.len().min(first + limit) {
        let token = scan.tokens[k];
        let word = scan.token(k).to_lowercase();
        let particle = lists.is_particle(&word) && (leading || last.is_some());
        let dated = token.has_digit && last.is_some() && token.len() <= 2;
        // "boulevard Plante Apt. 277": the part of the building is no part of the name.
        if last.is_some() && lists.opens_unit(scan, k) {
            break;
        }
        if (token.is_name_like() && !lists.is_no_place(&word)) || dated {
            last = Some(k);
        } else if !particle {
            break;
        }
        if !matches!(scan.gap(k), " " | "-" | "'" | "’" | ". ") {
            break;
        }
    }
    last.map(|last| Name { last })
}

/// Where the name that ends before token `end` starts: up to `limit` capitalised words.
pub(super) fn names_before(
    lists: &Lists,
    scan: &Scan,
    end: usize,
    limit: usize,
    done: usize,
) -> Option<usize> {
    let mut start = None;
    for k in (end.saturating_sub(limit)..end).rev() {
        let token = scan.tokens[k];
        let word = scan.token(k).to_lowercase();
        if token.start < done || (k + 1 < end && !matches!(scan.gap(k), " " | "-" | ". " | "." | "'" | "’"))
        {
            break;
        }
        let particle = start.is_some() && lists.is_particle(&word);
        if token.is_name_like() && !lists.is_no_place(&word) {
            start = Some(token.start);
        } else if !(particle || token.has_digit && token.len() <= 3 && start.is_some()) {
            break;
        }
    }
    start
}

/// Where a street of one word begins: over the parts joined by dashes, and one or two capitalised words before.
pub(super) fn compound_start(lists: &Lists, scan: &Scan, last: usize, done: usize) -> usize {
    let mut start = scan.tokens[last].start;
    let mut k = last;
    while k > 0 && scan.gap(k - 1) == "-" && scan.tokens[k - 1].start >= done && scan.tokens[k - 1].has_letter
    {
        k -= 1;
        start = scan.tokens[k].start;
    }
    let mut words = 0;
    while k > 0 && words < 2 && matches!(scan.gap(k - 1), " " | ". ") && scan.tokens[k - 1].start >= done {
        let token = scan.tokens[k - 1];
        let word = scan.token(k - 1).to_lowercase();
        let opener = token.len() <= 3 || lists.is_no_place(&word) || OPENERS.contains(&word.as_str());
        if !token.is_name_like() || opener {
            break;
        }
        k -= 1;
        words += 1;
        start = scan.tokens[k].start;
    }
    start
}

/// Capitalised words at the start of a sentence before a street.
const OPENERS: &[&str] = &[
    "adresse",
    "anschrift",
    "wohnort",
    "wohnhaft",
    "straße",
    "strasse",
    "lieferung",
    "versand",
    "unsere",
    "meine",
    "seine",
    "ihre",
    "adres",
    "woonplaats",
    "straat",
    "adress",
    "bor",
    "bostad",
    "address",
    "osoite",
    "firma",
    "haus",
    "büro",
    "praxis",
    "standort",
];

/// "Street NW", "Avenue South": the end of a direction after token `k`.
pub(super) fn direction(scan: &Scan, k: usize) -> Option<usize> {
    let next = scan.tokens.get(k + 1)?;
    let word = scan.token(k + 1);
    let known = matches!(
        word,
        "N" | "S"
            | "E"
            | "W"
            | "NE"
            | "NW"
            | "SE"
            | "SW"
            | "North"
            | "South"
            | "East"
            | "West"
            | "Northeast"
            | "Northwest"
            | "Southeast"
            | "Southwest"
    );
    (known && matches!(scan.gap(k), " " | ". " | ", ")).then_some(next.end)
}
