//! Payment card numbers: issuer range, length and Luhn; with a cue also without Luhn.

use std::ops::{Range, RangeInclusive};

use super::{Grouped, grouped};
use crate::{
    Category, Evidence,
    checks::luhn,
    cues::Cue,
    text::{Hit, Scan},
};

const VERSION: u16 = 1;

/// First digits of an issuer: a range of numbers with equally many digits.
type Prefix = RangeInclusive<u32>;

/// Issuer, first digits, lengths (ISO/IEC 7812 registry, as the networks publish it).
const NETWORKS: &[(&str, &[Prefix], RangeInclusive<usize>)] = &[
    ("visa", &[4..=4], 13..=19),
    ("mastercard", &[51..=55, 2221..=2720], 16..=16),
    ("amex", &[34..=34, 37..=37], 15..=15),
    ("discover", &[6011..=6011, 644..=649, 65..=65, 622126..=622925], 16..=19),
    ("diners", &[300..=305, 3095..=3095, 36..=36, 38..=39], 14..=19),
    // 3528 to 3589 are in use; the whole range is the network's.
    ("jcb", &[35..=35], 16..=19),
    ("jcb", &[1800..=1800, 2131..=2131], 15..=16),
    ("unionpay", &[62..=62, 81..=81], 16..=19),
    ("mir", &[2200..=2204], 16..=19),
    ("rupay", &[60..=60, 82..=82, 508..=508], 16..=16),
    ("troy", &[9792..=9792], 16..=16),
    ("verve", &[506099..=506198, 650002..=650027], 16..=19),
    ("elo", &[504175..=504175, 506699..=506778, 509000..=509999, 636297..=636297, 636368..=636368], 16..=16),
    // The banks of Iran's network that no other row has.
    (
        "shetab",
        &[
            5022..=5022,
            502806..=502806,
            502908..=502910,
            502938..=502938,
            504172..=504172,
            504706..=504706,
            505416..=505416,
            505785..=505809,
            507677..=507677,
            610433..=610433,
            636214..=636214,
            636795..=636797,
            636949..=636949,
            639194..=639217,
            639346..=639370,
            639599..=639607,
            991975..=991975,
        ],
        16..=16,
    ),
    ("napas", &[9704..=9704], 16..=19),
    ("uzcard", &[8600..=8600, 5614..=5614], 16..=16),
    ("humo", &[9860..=9860], 16..=16),
    ("belkart", &[9112..=9112], 16..=16),
    ("dankort", &[5019..=5019], 16..=16),
    (
        "maestro",
        &[
            604..=604, // written 0604
            5018..=5018,
            5020..=5020,
            5038..=5038,
            5612..=5612,
            5893..=5893,
            6304..=6304,
            6390..=6390,
            6759..=6759,
            6761..=6763,
            560000..=589999,
            676770..=676774,
        ],
        12..=19,
    ),
];

/// The network that such a number belongs to.
fn network(digits: &str) -> Option<&'static str> {
    NETWORKS.iter().find_map(|(name, prefixes, lengths)| {
        let starts = |prefix: &Prefix| {
            let width = if *prefix.start() == 604 { 4 } else { prefix.start().ilog10() as usize + 1 };
            digits.get(..width).and_then(|d| d.parse().ok()).is_some_and(|d: u32| prefix.contains(&d))
        };
        (lengths.contains(&digits.len()) && prefixes.iter().any(starts)).then_some(*name)
    })
}

/// Groups as they are embossed: four digits first, none of one digit but the last.
fn is_embossed(sizes: &[usize]) -> bool {
    sizes.len() == 1
        || (sizes[0] == 4
            && sizes.len() <= 5
            && sizes[1..sizes.len() - 1].iter().all(|s| (4..=7).contains(s)))
}

/// Reports card numbers and, beside their cue, card codes.
pub(crate) fn scan(scan: &Scan, hits: &mut Vec<Hit>) {
    let mut next = 0;
    for first in 0..scan.digits.len() {
        if first < next {
            continue;
        }
        if let Some((end, hit)) = number(scan, first) {
            next = end;
            hits.push(hit);
        } else if let Some(hit) = code(scan, first) {
            hits.push(hit);
        }
    }
}

fn hit(range: Range<usize>, evidence: Evidence, subtype: &'static str) -> Hit {
    Hit {
        range,
        category: Category::Card,
        evidence,
        recognizer: "card",
        version: VERSION,
        subtype: Some(subtype),
    }
}

/// The longest run of groups that holds; failing that, the whole with a cue.
fn number(scan: &Scan, first: usize) -> Option<(usize, Hit)> {
    let all = grouped(scan, first, 19)?;
    let shaped = |found: &Grouped| {
        let range = found.start..found.end;
        let bounded = if found.runs == 1 { scan.is_isolated(&range) } else { scan.is_bounded(&range) };
        (12..=19).contains(&found.digits.len()) && is_embossed(&found.sizes) && bounded
    };
    let candidates =
        (1..=all.runs).rev().filter_map(|runs| all.first_groups(scan, first, runs)).filter(shaped);
    let mut cued = None;
    for found in candidates {
        let range = found.start..found.end;
        let network = network(&found.digits);
        // Four groups of four are a card's whoever issued it: not all issuers are listed.
        let unlisted = found.sizes == [4; 4]
            && !found.digits.starts_with(['0', '1'])
            && !is_row(scan, first + found.runs, &found);
        if (network.is_some() || unlisted)
            && luhn(&found.digits)
            && !(found.runs > 1 && scan.follows_account_head(found.start))
            && !is_reference(scan, &found)
            && !is_tail(scan, first, &found)
            && !is_head(&all, &found)
        {
            // A longer number that a cue announces is masked whole, not only its beginning that happens to hold.
            if cued.is_some() {
                return cued;
            }
            let evidence = if network.is_some() { Evidence::Validated } else { Evidence::Shape };
            return Some((first + found.runs, hit(range, evidence, network.unwrap_or("unknown"))));
        }
        if cued.is_none() && found.digits.len() >= 13 && is_announced(scan, &range) {
            cued = Some((first + found.runs, hit(range, Evidence::Cue, network.unwrap_or("unknown"))));
        }
    }
    cued
}

/// More digits follow over the same separator, or the groups are years: a row of figures. `next` is the run after them.
fn is_row(scan: &Scan, next: usize, found: &Grouped) -> bool {
    let goes_on = scan.digits.get(next).is_some_and(|run| {
        let mut between = scan.str(found.end..run.start).chars();
        between.next() == found.separator && between.next().is_none()
    });
    let year = |group: &[u8]| matches!(group, [b'1', b'9', ..] | [b'2', b'0', ..]);
    goes_on || found.digits.as_bytes().chunks(4).all(year)
}

/// Four digits follow groups of four: the beginning of a longer number that holds by chance.
fn is_head(all: &Grouped, found: &Grouped) -> bool {
    found.runs > 1
        && all.sizes.get(found.runs) == Some(&4)
        && all.sizes[..found.runs].iter().all(|size| *size == 4)
}

/// Four digits stand before it over the same separator: these are the last groups of a longer number.
fn is_tail(scan: &Scan, first: usize, found: &Grouped) -> bool {
    let (Some(separator), Some(before)) = (found.separator, first.checked_sub(1).map(|i| &scan.digits[i]))
    else {
        return false;
    };
    let mut between = scan.str(before.end..found.start).chars();
    before.len() == 4 && between.next() == Some(separator) && between.next().is_none()
}

/// Twelve or thirteen digits that an article's or order's cue announces ("EAN 4258306655010").
fn is_reference(scan: &Scan, found: &Grouped) -> bool {
    found.digits.len() <= 13 && scan.nearest_cue(found.start, 24, |_| true) == Some(Cue::Reference)
}

/// A cue of cards stands by, and no other kind of number is announced between them.
fn is_announced(scan: &Scan, range: &Range<usize>) -> bool {
    let card = |c: Cue| matches!(c, Cue::Card | Cue::CardCode);
    let nearest =
        scan.nearest_cue(range.start, 48, |c| !matches!(c, Cue::Address | Cue::Secret | Cue::Version));
    nearest.map_or_else(|| scan.cue_after(range.end, 24, card), card)
}

/// Three or four digits right after "CVV".
fn code(scan: &Scan, first: usize) -> Option<Hit> {
    let range = scan.digits[first].clone();
    let cued = matches!(range.len(), 3 | 4)
        && scan.is_bounded(&range)
        && scan.cue_before(range.start, 12, |c| c == Cue::CardCode);
    cued.then(|| hit(range, Evidence::Cue, "code"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spans;

    fn found(text: &str) -> Vec<(String, Evidence)> {
        spans(text, scan).into_iter().map(|s| (text[s.range].to_owned(), s.evidence)).collect()
    }

    #[test]
    fn numbers_that_hold() {
        for number in [
            "4111111111111111",
            "4111 1111 1111 1111",
            "4111-1111-1111-1111",
            "378282246310005",
            "3782 822463 10005",
            "6011111111111117",
            "30569309025904",
            "3530111333300000",
            "5555.5555.5555.4444",
            "2223000048400011",
            "4222222222222",
        ] {
            let text = format!("see {number}, ok");
            assert_eq!(found(&text), [(number.to_owned(), Evidence::Validated)], "{text}");
        }
    }

    #[test]
    fn networks_of_one_country() {
        let valid = |prefix: &str| {
            let body = format!("{prefix}{}", &"7304915826073"[..15 - prefix.len()]);
            (0..10).map(|d| format!("{body}{d}")).find(|n| luhn(n)).unwrap()
        };
        for prefix in
            ["502229", "505785", "639607", "991975", "9704", "8600", "9860", "9112", "5019", "509040"]
        {
            let number = valid(prefix);
            assert_eq!(found(&format!("see {number}, ok")), [(number, Evidence::Validated)], "{prefix}");
        }
        for prefix in ["9342", "9601", "7777"] {
            let number = valid(prefix);
            assert!(found(&format!("see {number}, ok")).is_empty(), "nobody issues {prefix}");
        }
    }

    #[test]
    fn broken_twins_need_a_cue() {
        for twin in ["4111111111111112", "4111 1111 1111 1112", "378282246310006"] {
            assert!(found(&format!("value {twin} here")).is_empty(), "{twin}");
            assert_eq!(found(&format!("card number: {twin}"))[0].1, Evidence::Cue);
        }
    }

    #[test]
    fn parts_of_other_numbers_are_no_cards() {
        for text in [
            "0.4111111111111111",
            "x4111111111111111",
            "41111111111111111111111",
            "1b4e28ba-2fa1-11d2-883f-560400000000",
            "4111-1111-1111-1111-1111-1111",
            "4493 4970 0323 6190 819",
            "6222-5792-1584-4880",
        ] {
            assert!(found(text).is_empty(), "{text}: {:?}", found(text));
        }
    }

    #[test]
    fn a_number_is_masked_whole_or_not_at_all() {
        // Its first twelve digits hold as a number of twelve.
        let number = "5018 1234 0005 6647";
        assert!(!luhn("5018123400056647") && luhn("501812340005") && network("501812340005").is_some());
        assert!(found(&format!("value {number} here")).is_empty());
        assert_eq!(found(&format!("card {number}."))[0].0, number);
    }

    #[test]
    fn a_card_beside_another_number() {
        assert_eq!(found("2 4111111111111111 5")[0].0, "4111111111111111");
        assert_eq!(found("4111 1111 1111 1111 123")[0].0, "4111 1111 1111 1111");
    }

    #[test]
    fn groups_of_four_need_no_known_issuer() {
        assert_eq!(
            found("pay 7777 3897 9490 6647 now"),
            [("7777 3897 9490 6647".to_owned(), Evidence::Shape)]
        );
        assert!(
            found("pay 7777389794906647 now").is_empty() && found("pay 7777 3897 9490 6648 now").is_empty()
        );
    }

    #[test]
    fn codes_beside_their_cue() {
        assert_eq!(found("CVV: 123"), [("123".to_owned(), Evidence::Cue)]);
        assert!(found("room 123").is_empty());
    }
}
