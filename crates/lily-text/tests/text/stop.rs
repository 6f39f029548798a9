//! Stop strings at any chunking, against a search in the whole text.

use lily_text::{StopMatcher, StopOutcome};
use proptest::prelude::*;

/// Text before the stop string that ends first (the longest of those), and that string.
fn naive(text: &str, stops: &[String]) -> (String, Option<String>) {
    let ends = stops
        .iter()
        .filter(|s| !s.is_empty())
        .filter_map(|s| text.find(s.as_str()).map(|at| (at + s.len(), at, s)));
    match ends.min() {
        Some((_, at, stop)) => (text[..at].to_string(), Some(stop.clone())),
        None => (text.to_string(), None),
    }
}

/// All text that comes out of a matcher, and the stop string found.
fn matched(chunks: &[&str], stops: &[String]) -> (String, Option<String>) {
    let mut matcher = StopMatcher::new(stops.to_vec());
    let (mut all, mut stopped) = (String::new(), None);
    for chunk in chunks {
        let outcome = matcher.push(chunk);
        all.push_str(&outcome.text);
        stopped = stopped.or(outcome.stopped);
    }
    all.push_str(&matcher.finish());
    (all, stopped)
}

/// Cuts a text after the characters `cuts` says.
fn chunks<'a>(text: &'a str, cuts: &[bool]) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for ((at, _), &cut) in text.char_indices().zip(cuts.iter().cycle()) {
        if cut {
            pieces.push(&text[start..at]);
            start = at;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

#[test]
fn text_that_may_begin_a_stop_string_is_held() {
    let mut matcher = StopMatcher::new(vec!["END".to_string(), "\n\n".to_string()]);
    let out = |text: &str, stopped: Option<&str>| StopOutcome {
        text: text.into(),
        stopped: stopped.map(Into::into),
    };
    assert_eq!(matcher.push("one E"), out("one ", None));
    assert_eq!(matcher.push("N"), out("", None));
    assert_eq!(matcher.push("E"), out("EN", None));
    assert_eq!(matcher.push("\n"), out("E", None));
    assert_eq!(matcher.push(" two END more"), out("\n two ", Some("END")));
    assert_eq!(matcher.push("\n\n"), out("", Some("END")));
    assert_eq!(matcher.finish(), "");
}

#[test]
fn the_stop_string_that_ends_first_wins() {
    let stops = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(matched(&["abcd"], &stops(&["bcd", "c"])), ("ab".to_string(), Some("c".to_string())));
    assert_eq!(matched(&["xabc"], &stops(&["c", "abc", "bc"])), ("x".to_string(), Some("abc".to_string())));
    assert_eq!(matched(&["abab", "abac"], &stops(&["abac"])), ("abab".to_string(), Some("abac".to_string())));
    assert_eq!(matched(&["text"], &stops(&["", "zz"])), ("text".to_string(), None));
    assert_eq!(matched(&["日本", "語"], &stops(&["本語"])), ("日".to_string(), Some("本語".to_string())));
}

#[test]
fn hostile_stop_strings_cost_one_step_a_byte() {
    let stop = "a".repeat(100_000) + "b";
    let text = "a".repeat(300_000);
    let began = std::time::Instant::now();
    let pieces: Vec<&str> = text.as_bytes().chunks(7).map(|c| std::str::from_utf8(c).unwrap()).collect();
    assert_eq!(matched(&pieces, &[stop]), (text.clone(), None));
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn any_chunking_equals_the_whole_search(
        text in "[abé\n]{0,40}",
        stops in prop::collection::vec("[abé\n]{0,5}", 0..4),
        cuts in prop::collection::vec(any::<bool>(), 1..12),
    ) {
        prop_assert_eq!(matched(&chunks(&text, &cuts), &stops), naive(&text, &stops));
    }
}
