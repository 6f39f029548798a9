//! Bank accounts: IBAN by its check digits, other account and routing numbers and wallet addresses by cue.

use std::ops::Range;

use super::grouped;
use crate::{
    Category, Evidence, checks,
    cues::Cue,
    text::{Hit, Scan},
};

const VERSION: u16 = 1;

/// Length of an IBAN by country (SWIFT's registry).
const IBAN_LENGTHS: &[(&str, usize)] = &[
    ("AD", 24),
    ("AE", 23),
    ("AL", 28),
    ("AT", 20),
    ("AZ", 28),
    ("BA", 20),
    ("BE", 16),
    ("BG", 22),
    ("BH", 22),
    ("BI", 27),
    ("BR", 29),
    ("BY", 28),
    ("CH", 21),
    ("CR", 22),
    ("CY", 28),
    ("CZ", 24),
    ("DE", 22),
    ("DJ", 27),
    ("DK", 18),
    ("DO", 28),
    ("EE", 20),
    ("EG", 29),
    ("ES", 24),
    ("FI", 18),
    ("FK", 18),
    ("FO", 18),
    ("FR", 27),
    ("GB", 22),
    ("GE", 22),
    ("GI", 23),
    ("GL", 18),
    ("GR", 27),
    ("GT", 28),
    ("HN", 28),
    ("HR", 21),
    ("HU", 28),
    ("IE", 22),
    ("IL", 23),
    ("IQ", 23),
    ("IS", 26),
    ("IT", 27),
    ("JO", 30),
    ("KW", 30),
    ("KZ", 20),
    ("LB", 28),
    ("LC", 32),
    ("LI", 21),
    ("LT", 20),
    ("LU", 20),
    ("LV", 21),
    ("LY", 25),
    ("MC", 27),
    ("MD", 24),
    ("ME", 22),
    ("MK", 19),
    ("MN", 20),
    ("MR", 27),
    ("MT", 31),
    ("MU", 30),
    ("NI", 28),
    ("NL", 18),
    ("NO", 15),
    ("OM", 23),
    ("PK", 24),
    ("PL", 28),
    ("PS", 29),
    ("PT", 25),
    ("QA", 29),
    ("RO", 24),
    ("RS", 22),
    ("RU", 33),
    ("SA", 24),
    ("SC", 31),
    ("SD", 18),
    ("SE", 24),
    ("SI", 19),
    ("SK", 24),
    ("SM", 27),
    ("SO", 23),
    ("ST", 25),
    ("SV", 28),
    ("TL", 23),
    ("TN", 24),
    ("TR", 26),
    ("UA", 29),
    ("VA", 22),
    ("VG", 24),
    ("XK", 20),
    ("YE", 30),
];

/// Reports IBANs, account numbers, routing numbers, SWIFT codes and wallets.
pub(crate) fn scan(scan: &Scan, hits: &mut Vec<Hit>) {
    for &i in &scan.numeric {
        hits.extend(iban(scan, i));
        hits.extend(wallet(scan, i));
    }
    hits.extend((0..scan.digits.len()).filter_map(|first| account(scan, first)));
    swift(scan, hits);
}

fn hit(range: Range<usize>, category: Category, evidence: Evidence, subtype: &'static str) -> Hit {
    let recognizer = if category == Category::Iban { "iban" } else { "bank_account" };
    Hit { range, category, evidence, recognizer, version: VERSION, subtype: Some(subtype) }
}

fn iban(scan: &Scan, first: usize) -> Option<Hit> {
    let token = scan.tokens[first];
    let head = scan.token(first).as_bytes();
    let starts = token.ascii
        && head.len() >= 4
        && head[..2].iter().all(u8::is_ascii_alphabetic)
        && head[2..4].iter().all(u8::is_ascii_digit);
    if !starts {
        return None;
    }
    let country = scan.token(first)[..2].to_ascii_uppercase();
    let length = IBAN_LENGTHS.iter().find(|(c, _)| *c == country);
    length.and_then(|(_, length)| of_length(scan, first, *length)).or_else(|| of_any_length(scan, first))
}

/// An IBAN as long as its country's are.
fn of_length(scan: &Scan, first: usize, length: usize) -> Option<Hit> {
    let token = scan.tokens[first];
    let mut number = scan.token(first).to_owned();
    let mut last = first;
    while number.len() < length && last + 1 < scan.tokens.len() && matches!(scan.gap(last), " " | "-") {
        last += 1;
        if !scan.tokens[last].ascii {
            return None;
        }
        number.push_str(scan.token(last));
    }
    let range = token.start..scan.tokens[last].end;
    if number.len() != length || !scan.is_bounded(&range) {
        return None;
    }
    if checks::mod97_is_one(number[4..].bytes().chain(number[..4].bytes())) {
        return Some(hit(range, Category::Iban, Evidence::Validated, "iban"));
    }
    scan.is_cued(&range, |c| c == Cue::Iban).then(|| hit(range, Category::Iban, Evidence::Cue, "iban"))
}

/// Capitals and digits whose check digits hold, of another length than the country's or of a country without IBANs:
/// registries change, and test data is often so. All groups of the number: of a row of beginnings one in 97 holds by chance.
fn of_any_length(scan: &Scan, first: usize) -> Option<Hit> {
    let mut number = String::new();
    let mut best = None;
    for last in first..scan.tokens.len().min(first + 9) {
        let group = scan.token(last);
        let fits = last == first
            || (matches!(scan.gap(last - 1), " " | "-") && group.len() <= 4 && scan.tokens[first].len() == 4);
        if !fits || !group.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit()) {
            break;
        }
        best = None;
        number.push_str(group);
        if (15..=34).contains(&number.len())
            && checks::mod97_is_one(number[4..].bytes().chain(number[..4].bytes()))
        {
            best = Some(scan.tokens[first].start..scan.tokens[last].end);
        }
    }
    best.filter(|range| scan.is_bounded(range))
        .map(|range| hit(range, Category::Iban, Evidence::Shape, "iban"))
}

/// Digits with a cue right before them.
fn account(scan: &Scan, first: usize) -> Option<Hit> {
    let start = scan.digits[first].start;
    let routing = scan.cue_before(start, 16, |c| c == Cue::Routing);
    let cued = routing || scan.cue_before(start, 24, |c| c == Cue::Account);
    if !cued {
        return None;
    }
    // Not the second group of a number that was reported from its first.
    if first > 0 && matches!(scan.str(scan.digits[first - 1].end..start), " " | "-" | ".") {
        return None;
    }
    let number = grouped(scan, first, 20)?;
    let range = number.start..number.end;
    if !scan.is_bounded(&range) || scan.text[scan.digits[first].end..].starts_with(['/', '%']) {
        return None;
    }
    let digits = number.digits.len();
    if routing && (6..=9).contains(&digits) {
        let evidence = if digits == 9 && aba(&number.digits) { Evidence::Validated } else { Evidence::Cue };
        return Some(hit(range, Category::BankAccount, evidence, "routing_number"));
    }
    (6..=20).contains(&digits).then(|| hit(range, Category::BankAccount, Evidence::Cue, "account_number"))
}

/// Check digit of a US routing number.
fn aba(number: &str) -> bool {
    checks::digits(number).is_some_and(|d| {
        d.len() == 9 && checks::weighted(&d, &[3, 7, 1, 3, 7, 1, 3, 7, 1]).is_multiple_of(10)
    })
}

/// ISO 9362 codes right after their cue: four letters, two of the country, two and maybe three more.
fn swift(scan: &Scan, hits: &mut Vec<Hit>) {
    for (_, cue) in scan.cues.iter().filter(|(c, _)| *c == Cue::Swift) {
        let first = scan.token_at(cue.end);
        for i in first..(first + 3).min(scan.tokens.len()) {
            let word = scan.token(i).as_bytes();
            let shaped = matches!(word.len(), 8 | 11)
                && word[..6].iter().all(u8::is_ascii_uppercase)
                && word[6..].iter().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
            if shaped && scan.tokens[i].start <= cue.end + 16 {
                hits.push(hit(scan.tokens[i].range(), Category::BankAccount, Evidence::Cue, "swift"));
                break;
            }
        }
    }
}

/// Addresses of crypto-currencies: Bech32 by its checksum, the others with a cue.
fn wallet(scan: &Scan, i: usize) -> Option<Hit> {
    let token = scan.tokens[i];
    if !token.ascii || !(26..=95).contains(&token.len()) || !scan.is_bounded(&token.range()) {
        return None;
    }
    let text = scan.token(i);
    if is_bech32(text) {
        return Some(hit(token.range(), Category::BankAccount, Evidence::Validated, "wallet"));
    }
    let base58 = |b: u8| b.is_ascii_alphanumeric() && !matches!(b, b'0' | b'O' | b'I' | b'l');
    let shaped = (text.starts_with(['1', '3', 'L', 'D', 'r', 'T', 'X'])
        && text.bytes().all(base58)
        && text.len() <= 36)
        || (text.len() == 42 && text.starts_with("0x") && text[2..].bytes().all(|b| b.is_ascii_hexdigit()))
        || (text.len() == 95 && text.starts_with(['4', '8']) && text.bytes().all(base58));
    (shaped && scan.is_cued(&token.range(), |c| c == Cue::Wallet))
        .then(|| hit(token.range(), Category::BankAccount, Evidence::Cue, "wallet"))
}

/// BIP 173 and 350: prefix `bc` or `tb`, `1`, data with a checksum of six characters.
fn is_bech32(text: &str) -> bool {
    const ALPHABET: &[u8] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
    const GENERATOR: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    let lower = text.to_ascii_lowercase();
    if lower != text && text.to_ascii_uppercase() != text {
        return false;
    }
    let Some(data) = lower.strip_prefix("bc1").or_else(|| lower.strip_prefix("tb1")) else { return false };
    let values: Option<Vec<u32>> =
        data.bytes().map(|b| ALPHABET.iter().position(|a| *a == b).map(|v| v as u32)).collect();
    let Some(values) = values else { return false };
    let prefix = lower.as_bytes();
    let expanded = [
        u32::from(prefix[0] >> 5),
        u32::from(prefix[1] >> 5),
        0,
        u32::from(prefix[0] & 31),
        u32::from(prefix[1] & 31),
    ];
    let checksum = expanded.into_iter().chain(values).fold(1u32, |sum, value| {
        let top = sum >> 25;
        let shifted = (sum & 0x01ff_ffff) << 5 ^ value;
        GENERATOR.iter().enumerate().filter(|(i, _)| top >> i & 1 == 1).fold(shifted, |s, (_, g)| s ^ g)
    });
    // Constants of Bech32 and Bech32m.
    checksum == 1 || checksum == 0x2bc8_30a3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spans;

    fn found(text: &str) -> Vec<(String, Category, Evidence)> {
        spans(text, scan).into_iter().map(|s| (text[s.range].to_owned(), s.category, s.evidence)).collect()
    }

    #[test]
    fn ibans_hold_whole() {
        for iban in [
            "GB82WEST12345698765432",
            "GB82 WEST 1234 5698 7654 32",
            "DE89370400440532013000",
            "FR14 2004 1010 0505 0001 3M02 606",
            "NO9386011117947",
            "gb82west12345698765432",
            "MT84MALT011000012345MTLCAST001S",
        ] {
            let text = format!("pay to {iban}.");
            assert_eq!(found(&text), [(iban.to_owned(), Category::Iban, Evidence::Validated)], "{text}");
        }
        for twin in [
            "GB82WEST12345698765433",
            "DE89 3704 0044 0532 0130 01",
            "DE8937040044053201300",
            "ZZ82WEST12345698765432",
        ] {
            assert!(found(&format!("pay to {twin}.")).is_empty(), "{twin}");
        }
        assert_eq!(found("IBAN DE89 3704 0044 0532 0130 01")[0].2, Evidence::Cue);
    }

    #[test]
    fn accounts_need_a_cue() {
        assert_eq!(found("account number 12345678")[0].0, "12345678");
        assert_eq!(found("Kontonummer: 0532 0130 00")[0].0, "0532 0130 00");
        assert_eq!(found("routing number 021000021")[0].2, Evidence::Validated);
        assert_eq!(found("sort code 12-34-56")[0].0, "12-34-56");
        assert_eq!(found("SWIFT: DEUTDEFF500")[0].0, "DEUTDEFF500");
        assert!(found("I counted 12345678 sheep").is_empty());
        assert!(
            found("swift as the wind, HIGHLAND").is_empty() || found("swift HIGHLAND")[0].0 == "HIGHLAND"
        );
    }

    #[test]
    fn wallets() {
        for address in [
            "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4",
            "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0",
        ] {
            assert_eq!(found(&format!("to {address} now"))[0].2, Evidence::Validated, "{address}");
        }
        assert!(found("to bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t5 now").is_empty());
        assert_eq!(found("bitcoin 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2")[0].2, Evidence::Cue);
        assert!(found("hash 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2").is_empty());
    }
}
