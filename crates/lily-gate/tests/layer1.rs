//! Layer 1 on hostile input: it never panics, its spans are sound, and it stays linear.

use std::{sync::LazyLock, time::Instant};

use lily_gate::{Detector, DetectorConfig};
use proptest::prelude::*;

static DETECTOR: LazyLock<Detector> = LazyLock::new(|| Detector::new(DetectorConfig::default()).unwrap());

/// Pieces that recognisers look for, to be put together in every wrong way.
const PIECES: &[&str] = &[
    "@",
    "ann",
    "x.org",
    "://",
    "http",
    "+49",
    "(",
    ")",
    "-",
    ".",
    " ",
    "\n",
    "\n\n",
    "4111",
    "1111",
    "123-45-6789",
    "GB82",
    "WEST",
    "IBAN",
    "card",
    "Phone:",
    "тел",
    "电话",
    "住在",
    "北京市",
    "朝阳区",
    "路",
    "号",
    "12",
    "Elm",
    "Street",
    "rue",
    "de",
    "la",
    "Via",
    "ул.",
    "д.",
    "Hauptstraße",
    "12345",
    "Berlin",
    "SW1A",
    "1AA",
    "Apt",
    "#",
    "eyJ",
    "sk-",
    "ghp_",
    "password",
    "=",
    "\"",
    "'",
    "\\",
    "\\u00e9",
    "%40",
    "%",
    "&#64;",
    "&amp;",
    "::",
    "fe80",
    "aa:bb",
    "Dear",
    "Mr.",
    "My name is",
    "From:",
    "O'",
    "é",
    "e\u{301}",
    "\u{200b}",
    "４１",
    "٤",
    "а",
    "😀",
    "[[",
    "]]",
    "⟦",
    "⟧",
    "PERSON_1",
    "_k7",
    "-----BEGIN PRIVATE KEY-----",
    "born",
    "1990-01-31",
    "31 de",
    "mai",
    "°",
    "48.8566",
    "2.3522",
    "lat",
    "x",
    "ext",
    "QQ",
    "12 34 56",
    "C",
    "a",
    "A",
    "서울특별시",
    "로",
    "東京都",
    "様",
    "です",
    "curl",
    "-u",
    "a:b",
    "bc1",
    "0x",
    "machine",
    "login",
    "Bearer",
    "Authorization",
    "/home/",
    "\\Users\\",
    "~",
    "|",
    "<",
    ">",
    "{",
    "}",
    ",",
    ";",
    ":",
    "№",
    "küç.",
    "район",
    "буд.",
    "кв",
    "רחוב",
    "ברחוב",
    "شارع",
    "١٢",
    "रोड",
    "५",
    "বাড়ি",
    "তেজগাঁও",
    "ქუჩა",
    "ք.",
    "փողոց",
    "ถนนสุข",
    "อ.",
    "Phường",
    "LV-1010",
    "कोड",
    "में रहता",
];

fn check(text: &str) {
    let spans = DETECTOR.detect(text);
    let mut end = 0;
    for span in &spans {
        assert!(span.range.start >= end && span.range.end > span.range.start, "{spans:?} in {text:?}");
        assert!(text.get(span.range.clone()).is_some(), "{span:?} cuts a character of {text:?}");
        end = span.range.end;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn pieces_in_any_order(picks in prop::collection::vec((0..PIECES.len(), prop::bool::weighted(0.4)), 0..60)) {
        let text: String = picks.iter().flat_map(|(i, blank)| [PIECES[*i], if *blank { " " } else { "" }]).collect();
        check(&text);
    }

    #[test]
    fn any_text(text in "\\PC{0,200}") {
        check(&text);
    }

    #[test]
    fn any_bytes_that_are_text(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_value_is_found_whatever_stands_around_it(left in "[a-z .,;(\n]{0,30}", right in "[ .,;)\n]([a-z .,;)\n]{0,30}[ .,;)\n])?") {
        let text = format!("{left} 4111 1111 1111 1111{right}ann.lee@example.org{right}GB82 WEST 1234 5698 7654 32{right}");
        // Where two touch, one span of the stricter category covers both.
        let spans = DETECTOR.detect(&text);
        for value in ["4111 1111 1111 1111", "ann.lee@example.org", "GB82 WEST 1234 5698 7654 32"] {
            let at = text.find(value).unwrap();
            let covered = |byte| spans.iter().any(|s| s.range.contains(&byte));
            prop_assert!((at..at + value.len()).all(covered), "{value} is not covered by {spans:?}: {text:?}");
        }
    }
}

/// The best of some runs, in seconds.
fn time(text: &str) -> f64 {
    let run = |_| {
        let started = Instant::now();
        std::hint::black_box(DETECTOR.detect(text));
        started.elapsed().as_secs_f64()
    };
    (0..3).map(run).fold(f64::MAX, f64::min)
}

#[test]
fn repeated_pieces_take_linear_time() {
    let patterns = [
        "1 ",
        "1-",
        "12 ",
        "123-45-",
        "a@",
        "@",
        "a.",
        "://",
        "http://a",
        "eyJ",
        "sk-",
        "password=",
        "token: ",
        "Dear A ",
        "from: A ",
        "12 A ",
        "12 Elm St ",
        "A 12 ",
        "Via A ",
        ":",
        "::",
        "a:",
        "aa:",
        "[[",
        "⟦",
        "%",
        "%41",
        "&#",
        "\\u0041",
        "é",
        "e\u{301}",
        "а a ",
        "路1号",
        "1路",
        "市区",
        "curl -u ",
        "-----BEGIN PRIVATE KEY-----",
        "(",
        "[at]",
        "+1",
        "0",
        "AAAA",
        "aA1+",
        "card ",
        "born 1",
        "1.1,",
        "1.111, ",
        "GB82 ",
        "/home/a",
        "regards\n",
        "\n",
        " ",
        "Authorization: ",
        "bc1q",
        "\"",
        "machine a login ",
        "ул. А 1, ",
        "А, ",
        "Áb 1, ",
        "küç. ",
        "רחוב א 1, ",
        "א ",
        "شارع ",
        "12 रोड ",
        "क, ",
        "ถนน1 ",
        "ถ. 1 ",
        "ք. Ա 1\n",
        "Phường 1, ",
        "V ",
        "кв. ",
        "Address: Á 1, ",
    ];
    let mut slow = Vec::new();
    for pattern in patterns {
        let text = |bytes: usize| pattern.repeat(bytes / pattern.len() + 1);
        let (short, long) = (text(20_000), text(160_000));
        // Eight times the text: linear work takes eight times as long, quadratic 64 times. Other programs on the machine only
        // ever make a run longer, so a pattern that seems slow is timed again.
        let (mut small, mut large) = (f64::MAX, f64::MAX);
        let linear = (0..6).any(|_| {
            (small, large) = (small.min(time(&short)), large.min(time(&long)));
            large <= 24.0 * small.max(0.000_2) && large <= 1.5
        });
        if !linear {
            slow.push(format!(
                "{pattern:?}: {:.1} ms for 20 kB, {:.1} ms for 160 kB",
                small * 1e3,
                large * 1e3
            ));
        }
    }
    assert!(slow.is_empty(), "{}", slow.join("\n"));
}
