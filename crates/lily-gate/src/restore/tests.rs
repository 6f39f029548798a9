use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use super::*;
use crate::{Category, Evidence, Field, Span};

const TAG: &str = "k7qp";

fn live(name: &str, value: &str) -> Live {
    Live { name: name.into(), value: Some(Zeroizing::new(value.into())), invented: None }
}

fn people() -> Vec<(&'static str, &'static str)> {
    vec![
        ("PERSON_1", "Ann \"Lee\" O'Neil\\"),
        ("PERSON_1.first", "Ann"),
        ("PERSON_1.2", "ANN LEE"),
        ("PERSON_11", "Bob\nRay"),
        ("EMAIL_1", "ann@x.example"),
        ("ADDRESS_2", "12 Rue de l'Été 🏠"),
        ("TEXT_1", "⟦PERSON_1·k7qp⟧"),
        ("PHONE_1", "PERSON_1·k7qp"),
    ]
}

fn map() -> Arc<RestoreMap> {
    let entries = people().into_iter().map(|(n, v)| live(n, v));
    Arc::new(RestoreMap::new(TAG, entries, Zeroizing::new([7; 32])))
}

fn all(_: &str) -> bool {
    true
}

/// The lane's whole output for `pieces`.
fn fed<'a>(mut lane: Lane, pieces: impl IntoIterator<Item = &'a str>) -> (String, LaneCounts) {
    let mut out: String = pieces.into_iter().map(|piece| lane.push(piece)).collect();
    out += &lane.finish();
    (out, lane.counts())
}

fn text(pieces: &[&str]) -> String {
    fed(Lane::text(map()), pieces.iter().copied()).0
}

fn arguments(pieces: &[&str]) -> String {
    fed(Lane::arguments(map(), Arc::new(all)), pieces.iter().copied()).0
}

/// All ways of cutting `text` in two at a border of characters.
fn cuts(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.char_indices().map(|(at, _)| text.split_at(at))
}

#[test]
fn stand_ins_become_originals_however_they_are_written() {
    for written in [
        "⟦EMAIL_1·k7qp⟧",
        "[[EMAIL_1_k7qp]]",
        "[[EMAIL_1·k7qp]]",
        "⟦EMAIL_1_k7qp⟧",
        "⟦email_1·K7QP⟧",
        "EMAIL_1·k7qp",
        "email_1_k7qp",
        "⟦EMAIL_1·k7qp",
        "EMAIL_1·k7qp⟧",
        "【EMAIL_1•k7qp】",
        "⟦EMAIL_1.k7qp⟧",
        "⟦EMAIL_1-k7qp⟧",
    ] {
        assert_eq!(text(&[written]), "ann@x.example", "{written}");
        let said = format!("To {written}, and ({written}) or {written}.");
        assert_eq!(text(&[&said]), "To ann@x.example, and (ann@x.example) or ann@x.example.", "{written}");
    }
    assert_eq!(text(&["⟦PERSON_1.first·k7qp⟧⟦PERSON_11·k7qp⟧"]), "AnnBob\nRay");
    assert_eq!(text(&["[x](mailto:⟦EMAIL_1·k7qp⟧)"]), "[x](mailto:ann@x.example)");
    assert_eq!(text(&["[[[EMAIL_1_k7qp]]]"]), "[ann@x.example]");
    assert_eq!(
        text(&["⟦TEXT_1·k7qp⟧ ⟦PHONE_1·k7qp⟧"]),
        "⟦PERSON_1·k7qp⟧ PERSON_1·k7qp",
        "never restored twice"
    );
}

#[test]
fn what_is_not_ours_stays_as_it_came() {
    for (said, unrestored) in [
        ("⟦EMAIL_1⟧", 0),
        ("⟦EMAIL_1·zzzz⟧", 0),
        ("⟦EMAIL_9·k7qp⟧", 1),
        ("⟦PERSON_1.last·k7qp⟧ [[CARD_1_k7qp]]", 2),
        ("XEMAIL_1·k7qp", 1),
        ("EMAIL_1·k7qpx", 1),
        ("EMAIL_12·k7qp", 1),
        ("[[]] [ [[ ⟦⟦ ⟦EMAIL_1 EMAIL", 0),
        ("k7qp ·k7q", 0),
    ] {
        let (out, counts) = fed(Lane::text(map()), [said]);
        assert_eq!(out, said);
        assert_eq!((counts.restored, counts.unrestored), (0, unrestored), "{said}");
    }
}

#[test]
fn only_what_may_become_a_stand_in_is_held_back() {
    let mut lane = Lane::text(map());
    assert_eq!(lane.push("Hello, "), "Hello, ");
    assert_eq!(lane.push("x [y] z"), "x [y] z");
    assert_eq!(lane.push(" ⟦PER"), " ");
    assert_eq!(lane.push("MIT⟧"), "⟦PERMIT⟧");
    assert_eq!(lane.push("⟦EMAIL_1·k7qp"), "");
    assert_eq!(lane.push("⟧"), "ann@x.example");
    assert_eq!(lane.push("⟦EMA"), "");
    assert_eq!(lane.finish(), "⟦EMA");
    assert_eq!(lane.counts().cut, 1, "a stand-in was cut off, and that is told");
    let mut lane = Lane::text(map());
    assert_eq!(lane.push("an [[EMAIL_1_k7qp]"), "an ");
    assert_eq!(lane.finish(), "ann@x.example]", "and a missing bracket is no cut");
    assert_eq!(lane.counts().cut, 0);
}

#[test]
fn every_cut_gives_the_same() {
    let entries: Vec<String> = people().iter().map(|(n, _)| format!("⟦{n}·{TAG}⟧")).collect();
    let said = format!(
        "Dear {}, [[EMAIL_1_k7qp]] or ⟦EMAIL_1·zz⟧ é🏠 [[x]] {}",
        entries.join(", "),
        "⟦PERSON_1·k7qp"
    );
    let whole = text(&[&said]);
    assert!(whole.contains("12 Rue de l'Été 🏠") && whole.ends_with("Ann \"Lee\" O'Neil\\"));
    for (a, b) in cuts(&said) {
        assert_eq!(text(&[a, b]), whole, "cut before {b:?}");
        for (b, c) in cuts(b) {
            assert_eq!(text(&[a, b, c]), whole);
        }
    }
}

#[test]
fn arguments_are_restored_inside_their_json() {
    let escaped = r#"{"to":"\u27e6EMAIL_1\u00b7k7qp\u27e7","n":1.50,"who":["⟦PERSON_1·k7qp⟧"],"⟦EMAIL_1·k7qp⟧":"\ud83c\udfe0 \/ ⟦ADDRESS_2·k7qp⟧\n"}"#;
    let whole = arguments(&[escaped]);
    let value: Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(
        value,
        json!({"to": "ann@x.example", "n": 1.5, "who": ["Ann \"Lee\" O'Neil\\"],
               "ann@x.example": "🏠 / 12 Rue de l'Été 🏠\n"})
    );
    assert!(
        whole.contains("1.50") && whole.contains(r"\ud83c\udfe0 \/ "),
        "what needs no change keeps its spelling"
    );
    for (a, b) in cuts(escaped) {
        assert_eq!(arguments(&[a, b]), whole, "cut before {b:?}");
    }
    let ones: Vec<String> = escaped.chars().map(String::from).collect();
    assert_eq!(arguments(&ones.iter().map(String::as_str).collect::<Vec<_>>()), whole);
}

#[test]
fn wrong_json_goes_through_byte_by_byte() {
    for wrong in [
        "",
        "{",
        "{\"a",
        "{\"a\\",
        "{\"a\\u12",
        "{\"a\\u12\"}",
        "{\"a\\ud83c",
        "{\"a\\ud83c\\",
        "{\"a\\ud83c\\u0041\"}",
        "{\"a\\ud83c\\ud83c\\udfe0\"}",
        "{\"\\x\\q\":}",
        "]]}}",
        "{\"a\":12345678",
        "no json at all",
        "\"text\"",
        "  [1, 2",
        "{\"a\\ud83cz\"}",
    ] {
        assert_eq!(arguments(&[wrong]), wrong);
        for (a, b) in cuts(wrong) {
            assert_eq!(arguments(&[a, b]), wrong);
        }
    }
    assert_eq!(arguments(&["write to ⟦EMAIL_1·k7qp⟧"]), "write to ann@x.example");
}

#[test]
fn network_tools_get_originals_only_where_the_policy_names_the_argument() {
    let only_to: Restores = Arc::new(|name: &str| name == "to");
    let said = r#"{"to":["⟦EMAIL_1·k7qp⟧"],"body":{"to":"⟦EMAIL_1·k7qp⟧"},"⟦EMAIL_1·k7qp⟧":1,"\u0074o":"EMAIL_1_k7qp"}"#;
    let (out, counts) = fed(Lane::arguments(map(), Arc::clone(&only_to)), [said]);
    assert_eq!(
        out,
        r#"{"to":["ann@x.example"],"body":{"to":"⟦EMAIL_1·k7qp⟧"},"⟦EMAIL_1·k7qp⟧":1,"\u0074o":"ann@x.example"}"#
    );
    assert_eq!((counts.restored, counts.unrestored), (2, 2));
    assert_eq!(
        fed(Lane::arguments(map(), only_to), ["⟦EMAIL_1·k7qp⟧"]).0,
        "⟦EMAIL_1·k7qp⟧",
        "no name, no original"
    );
}

/// A random answer in pieces, and what it must become.
struct Script {
    rng: StdRng,
    entries: BTreeMap<String, String>,
}

impl Script {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let kinds = ["PERSON", "EMAIL", "ADDRESS", "PHONE", "TEXT"];
        let mut entries = BTreeMap::new();
        for _ in 0..rng.random_range(1..6) {
            let kind = kinds[rng.random_range(0..kinds.len())];
            let part = ["", ".first", ".2", ".last"][rng.random_range(0..4)];
            let name = format!("{kind}_{}{part}", rng.random_range(1..13));
            let mut value = Self::noise(&mut rng, 1, 20);
            // Originals that look like stand-ins are the hard ones.
            if rng.random_bool(0.2) {
                value += &format!("⟦{name}·{TAG}⟧");
            }
            entries.insert(name, value);
        }
        Self { rng, entries }
    }

    fn noise(rng: &mut StdRng, low: usize, high: usize) -> String {
        const BITS: &[&str] = &[
            "a", "E", "P", "PERS", "EMAIL_", "_1", "·", "_", "k7", "k7qp", " ", "\n", "[", "[[", "]", "]]",
            "⟦", "⟧", "é", "🏠", "\"", "\\", "語", "1", ".first", "/", "\u{0}", "⟦⟦", "TEXT_1", "\u{fffd}",
            "{", "}", ",", ":",
        ];
        (0..rng.random_range(low..=high)).map(|_| BITS[rng.random_range(0..BITS.len())]).collect()
    }

    fn token(&mut self) -> (String, String) {
        let at = self.rng.random_range(0..self.entries.len());
        let (name, value) = self.entries.iter().nth(at).unwrap();
        let written = match self.rng.random_range(0..4) {
            0 => format!("[[{name}_{TAG}]]"),
            1 => format!("⟦{}·{TAG}⟧", name.to_lowercase()),
            _ => format!("⟦{name}·{TAG}⟧"),
        };
        (written, value.clone())
    }

    fn map(&self) -> Arc<RestoreMap> {
        let entries = self.entries.iter().map(|(n, v)| live(n, v));
        Arc::new(RestoreMap::new(TAG, entries, Zeroizing::new([1; 32])))
    }

    /// Cuts `text` at random.
    fn pieces<'a>(&mut self, text: &'a str) -> Vec<&'a str> {
        let share = [0.02, 0.2, 0.5, 1.0][self.rng.random_range(0..4)];
        let (mut pieces, mut start) = (Vec::new(), 0);
        for (at, _) in text.char_indices().skip(1) {
            if self.rng.random_bool(share) {
                pieces.push(&text[start..at]);
                start = at;
            }
        }
        pieces.push(&text[start..]);
        pieces
    }

    /// A character's spelling in a JSON string.
    fn spelled(&mut self, text: &str) -> String {
        let mut out = String::new();
        for c in text.chars() {
            if self.rng.random_bool(0.2) {
                let mut units = [0; 2];
                c.encode_utf16(&mut units).iter().for_each(|u| out += &format!("\\u{u:04x}"));
            } else {
                let quoted = serde_json::to_string(&c.to_string()).unwrap();
                out += &quoted[1..quoted.len() - 1];
            }
        }
        out
    }
}

/// Every live stand-in between texts that do not touch it comes back exactly, whatever the pieces; and nothing but
/// originals of this map ever appears.
#[test]
fn ten_thousand_random_streams() {
    for seed in 0..10_000 {
        let mut script = Script::new(seed);
        let (mut said, mut expected) = (String::new(), String::new());
        for _ in 0..script.rng.random_range(1..8) {
            // A blank on each side, so that noise cannot become a part of the stand-in.
            let noise = Script::noise(&mut script.rng, 0, 8).replace(TAG, "");
            let (written, value) = script.token();
            said += &format!("{noise} {written} ");
            expected += &format!("{noise} {value} ");
        }
        let map = script.map();
        let pieces = script.pieces(&said);
        let (out, counts) = fed(Lane::text(Arc::clone(&map)), pieces);
        assert_eq!(out, expected, "seed {seed}: {said:?}");
        assert_eq!(counts.cut, 0);
        // Pure noise, in which anything may happen, but always the same.
        let noise = Script::noise(&mut script.rng, 0, 60);
        let whole = fed(Lane::text(Arc::clone(&map)), [noise.as_str()]);
        let pieces = script.pieces(&noise);
        assert_eq!(fed(Lane::text(Arc::clone(&map)), pieces), whole, "seed {seed}: {noise:?}");
    }
}

#[test]
fn ten_thousand_random_arguments() {
    for seed in 0..10_000 {
        let mut script = Script::new(seed);
        let (mut said, mut expected) = (String::from("{"), serde_json::Map::new());
        for i in 0..script.rng.random_range(1..5) {
            let noise = Script::noise(&mut script.rng, 0, 8).replace(TAG, "");
            let (written, value) = script.token();
            let (key, plain) =
                (script.spelled(&format!("a{i}")), script.spelled(&format!("{noise} {written} ")));
            let comma = if i == 0 { "" } else { " ,\n" };
            said += &match script.rng.random_range(0..3) {
                0 => {
                    expected.insert(format!("a{i}"), json!([format!("{noise} {value} "), 12, null]));
                    format!("{comma}\"{key}\": [\"{plain}\", 12, null]")
                }
                1 => {
                    expected.insert(format!("a{i}"), json!({"x": {"y": format!("{noise} {value} ")}}));
                    format!("{comma}\"{key}\":{{\"x\":{{\"y\":\"{plain}\"}}}}")
                }
                _ => {
                    expected.insert(format!("a{i}"), format!("{noise} {value} ").into());
                    format!("{comma}\"{key}\":\"{plain}\"")
                }
            };
        }
        said.push('}');
        let map = script.map();
        let pieces = script.pieces(&said);
        let (out, _) = fed(Lane::arguments(Arc::clone(&map), Arc::new(all)), pieces);
        let value: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("seed {seed}: {e}: {out}"));
        assert_eq!(value, Value::Object(expected), "seed {seed}: {said}");
        // A stream that is cut anywhere stays a beginning of the whole, but for what is held back.
        let mut cut = script.rng.random_range(0..said.len());
        while !said.is_char_boundary(cut) {
            cut -= 1;
        }
        let (part, _) = fed(Lane::arguments(map, Arc::new(all)), [&said[..cut]]);
        let shared = part.chars().zip(out.chars()).take_while(|(a, b)| a == b).count();
        assert!(part.chars().count() - shared <= 80, "seed {seed}: {part} of {out}");
    }
}

proptest! {
    #[test]
    fn text_without_stand_ins_is_untouched(pieces in prop::collection::vec(".{0,12}", 0..12)) {
        let said: String = pieces.concat();
        prop_assume!(!said.contains(TAG));
        let borrowed: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(fed(Lane::text(map()), borrowed.clone()).0, said.clone());
        prop_assert_eq!(fed(Lane::arguments(map(), Arc::new(all)), borrowed).0, said);
    }

    #[test]
    fn another_request_never_restores(name in "(PERSON|EMAIL)_[0-9]{1,2}", value in "[a-z]{6,9}", other in "[bcdf]{4}") {
        // Same session, other request: the stand-in did not leave with this one.
        let here = Arc::new(RestoreMap::new(TAG, [live("PHONE_77", "+1")], Zeroizing::new([1; 32])));
        let said = format!("⟦{name}·{TAG}⟧ ⟦{name}·{other}⟧");
        prop_assert_eq!(fed(Lane::text(here), [said.as_str()]).0, said.clone());
        // Other session: the same name with its own tag.
        prop_assume!(other != TAG);
        let there = Arc::new(RestoreMap::new(&other, [live(&name, &value)], Zeroizing::new([1; 32])));
        prop_assert_eq!(fed(Lane::text(there), [said.as_str()]).0, format!("⟦{name}·{TAG}⟧ {value}"));
    }
}

/// Finds `sk-` words, anything with `@`, and key blocks.
struct Finder;

impl Recognise for Finder {
    fn spans(&self, field: &Field) -> Vec<Span> {
        self.spans_in(&field.text)
    }

    fn spans_in(&self, text: &str) -> Vec<Span> {
        static PATTERNS: std::sync::LazyLock<Vec<(Category, regex::Regex)>> =
            std::sync::LazyLock::new(|| {
                [
                    (Category::Secret, r"sk-\w+|(?s)-----BEGIN .*?-----END [^\n]*"),
                    (Category::Email, r"[\w.]+(?:@|%40)[\w.]+"),
                    (Category::Phone, r"\d{3} \d{3} \d{4}|\d{10}"),
                ]
                .map(|(category, pattern)| (category, regex::Regex::new(pattern).unwrap()))
                .into()
            });
        let mut spans = Vec::new();
        for (category, pattern) in PATTERNS.iter() {
            spans.extend(pattern.find_iter(text).map(|m| Span {
                range: m.range(),
                category: *category,
                evidence: Evidence::Validated,
                recognizer: "finder".into(),
                version: 1,
                subtype: None,
            }));
        }
        spans
    }
}

fn scanning(redact: ResponseRedact, sent: &str) -> Arc<RestoreMap> {
    let key = Zeroizing::new([7; 32]);
    let seen = HashSet::from([hash::hmac(&key, &[key_form(sent).as_bytes()])]);
    let entries = people().into_iter().map(|(n, v)| live(n, v));
    Arc::new(RestoreMap::new(TAG, entries, key).with_scan(redact, Arc::new(Finder), seen))
}

#[test]
fn values_that_were_never_sent_are_hidden_whatever_the_cut() {
    let said = "Mail ⟦EMAIL_1·k7qp⟧ and bob@y.example, not me@home.example; call 555 010 2345. Key sk-123abc!\n-----BEGIN PRIVATE \
                KEY-----\nabc def\nghi\n-----END PRIVATE KEY-----\nDone. user%40z.example";
    let all = "Mail ann@x.example and [redacted], not me@home.example; call [redacted]. Key [redacted]!\n[redacted]\nDone. [redacted]";
    let secrets = said.replace("⟦EMAIL_1·k7qp⟧", "ann@x.example");
    let begin = secrets.find("sk-").unwrap();
    let secrets = format!("{}[redacted]!\n[redacted]\nDone. user%40z.example", &secrets[..begin]);
    for (redact, expected) in [(ResponseRedact::All, all), (ResponseRedact::Secrets, secrets.as_str())] {
        let map = scanning(redact, "me@home.example");
        assert_eq!(fed(Lane::text(Arc::clone(&map)), [said]).0, expected);
        for (a, b) in cuts(said) {
            assert_eq!(fed(Lane::text(Arc::clone(&map)), [a, b]).0, expected, "{redact:?}, cut before {b:?}");
        }
        let ones: Vec<String> = said.chars().map(String::from).collect();
        assert_eq!(fed(Lane::text(map), ones.iter().map(String::as_str)).0, expected);
    }
    let off = scanning(ResponseRedact::Off, "");
    assert_eq!(fed(Lane::text(off), [said]).0, said.replace("⟦EMAIL_1·k7qp⟧", "ann@x.example"));
}

#[test]
fn no_part_of_a_hidden_value_comes_first() {
    let map = scanning(ResponseRedact::All, "");
    let mut lane = Lane::text(Arc::clone(&map));
    let said = format!("{} bob.longname@y.example and more {}", "word ".repeat(60), "word ".repeat(60));
    let mut out = String::new();
    for c in said.chars() {
        out += &lane.push(&c.to_string());
        assert!(!out.contains("bob"), "{out}");
    }
    out += &lane.finish();
    assert_eq!(out, said.replace("bob.longname@y.example", REDACTED));
    // A key block whose end never comes is hidden all the same.
    let open = "see:\n-----BEGIN RSA PRIVATE KEY-----\nabc def\nghi jkl\n";
    assert_eq!(fed(Lane::text(map), open.split_inclusive(' ')).0, format!("see:\n{REDACTED}"));
}

#[test]
fn hidden_values_leave_good_json() {
    let map = scanning(ResponseRedact::All, "");
    let said = r#"{"mail":"bob\u0040y.example\n","n":5550102345,"x":[1,5550102346],"to":"⟦EMAIL_1·k7qp⟧"}"#;
    let expected =
        json!({"mail": "[redacted]\n", "n": "[redacted]", "x": [1, "[redacted]"], "to": "ann@x.example"});
    for (a, b) in cuts(said) {
        let (out, counts) = fed(Lane::arguments(Arc::clone(&map), Arc::new(all)), [a, b]);
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), expected, "cut before {b:?}");
        assert_eq!((counts.redacted, counts.restored), (3, 1));
    }
}

#[test]
fn random_streams_with_a_scan_do_not_depend_on_the_cuts() {
    let words = [
        "hello ",
        "bob@y.example ",
        "sk-99aa ",
        "⟦EMAIL_1·k7qp⟧ ",
        "555 ",
        "010 ",
        "2345 ",
        "\n",
        "語",
        "-----BEGIN X-----\n",
        "-----END X-----\n",
        "a@",
        "b ",
        "longer words ",
        "⟦PERS",
        "ON_1·k7qp⟧, ",
    ];
    for seed in 0..2000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let said: String =
            (0..rng.random_range(1..80)).map(|_| words[rng.random_range(0..words.len())]).collect();
        let redact = [ResponseRedact::All, ResponseRedact::Secrets][rng.random_range(0..2)];
        let map = scanning(redact, "");
        let whole = fed(Lane::text(Arc::clone(&map)), [said.as_str()]);
        let mut script = Script { rng, entries: BTreeMap::new() };
        let pieces = script.pieces(&said);
        assert_eq!(fed(Lane::text(Arc::clone(&map)), pieces), whole, "seed {seed}: {said:?}");
    }
}
