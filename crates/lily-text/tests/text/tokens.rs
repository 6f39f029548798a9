//! Ids, text and streams of ids, against Hugging Face's `tokenizers` in Python.

use std::sync::Arc;

use lily_text::{Detokenizer, Tokenizer};
use proptest::prelude::*;
use serde::Deserialize;

use crate::{MINI, fixture};

#[derive(Deserialize)]
struct Tokens {
    encoded: Vec<Encoded>,
    decoded: Vec<Decoded>,
}

#[derive(Deserialize)]
struct Encoded {
    text: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Decoded {
    ids: Vec<u32>,
    text: String,
    text_without_special: String,
}

const HINT: &str = "after a new tokenizer.json run tests/fixtures/make_fixtures.py";

#[test]
fn texts_have_the_librarys_ids() {
    for Encoded { text, ids } in fixture::<Tokens>("tokens.json").encoded {
        for pass in ["computed", "cached"] {
            assert_eq!(MINI.tokenizer.encode(&text).unwrap(), ids, "{text:?}, {pass}; {HINT}");
        }
    }
}

#[test]
fn ids_have_the_librarys_text() {
    for case in fixture::<Tokens>("tokens.json").decoded {
        assert_eq!(MINI.tokenizer.decode(&case.ids, false), case.text, "{:?}; {HINT}", case.ids);
        assert_eq!(
            MINI.tokenizer.decode(&case.ids, true),
            case.text_without_special,
            "{:?}; {HINT}",
            case.ids
        );
    }
}

#[test]
fn control_tokens_are_special_and_markup_is_not() {
    let tokenizer = &MINI.tokenizer;
    let id = |text: &str| tokenizer.token_id(text).unwrap_or_else(|| panic!("{text} is missing"));
    for text in ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|image_pad|>"] {
        assert!(tokenizer.is_special(id(text)), "{text}");
        assert_eq!(tokenizer.token_bytes(id(text)).unwrap(), text.as_bytes());
        assert_eq!(tokenizer.encode(text).unwrap(), [id(text)]);
        assert!(tokenizer.encode_ordinary(text).unwrap().len() > 1, "{text}");
        assert_eq!(tokenizer.decode(&tokenizer.encode_ordinary(text).unwrap(), true), text);
    }
    for text in ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>"] {
        assert!(!tokenizer.is_special(id(text)), "{text}");
        assert_eq!(tokenizer.decode(&[id(text)], true), text);
    }
    assert_eq!(tokenizer.token_bytes(id("Ġthe")).unwrap(), b" the");
    assert_eq!(tokenizer.token_id("no such token"), None);
    let beyond = tokenizer.vocab_size() as u32;
    assert!(tokenizer.token_bytes(beyond - 1).is_some() && tokenizer.token_bytes(beyond).is_none());
    assert!(!tokenizer.is_special(beyond) && tokenizer.decode(&[beyond, u32::MAX], false).is_empty());
}

fn streamed(ids: &[u32], skip_special: bool) -> String {
    let mut detokenizer = Detokenizer::new(Arc::clone(&MINI.tokenizer), skip_special);
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text.push_str(&detokenizer.finish());
    text
}

/// Ids of the bytes of a text, one each.
fn byte_ids(bytes: &[u8]) -> Vec<u32> {
    let single = |byte: u8| {
        (0..MINI.tokenizer.vocab_size() as u32)
            .find(|&id| MINI.tokenizer.token_bytes(id) == Some(vec![byte]))
            .unwrap()
    };
    bytes.iter().map(|&byte| single(byte)).collect()
}

#[test]
fn characters_come_whole() {
    let mut detokenizer = Detokenizer::new(Arc::clone(&MINI.tokenizer), true);
    let text = "é😀!";
    let pieces: Vec<String> = byte_ids(text.as_bytes()).into_iter().map(|id| detokenizer.push(id)).collect();
    assert_eq!(pieces, ["", "é", "", "", "", "😀", "!"]);
    assert_eq!(detokenizer.finish(), "");
}

#[test]
fn invalid_bytes_become_one_replacement_each_as_in_python() {
    // bytes.decode(errors="replace") of each.
    for (bytes, expected) in [
        (&b"a\xff\xfeb"[..], "a\u{fffd}\u{fffd}b"),
        (b"\xe2\x82x", "\u{fffd}x"),
        (b"\xe2\x82", "\u{fffd}"),
        (b"\xf0\x9f\x98", "\u{fffd}"),
        (b"\xf0\x9f\xe2\x82\xac", "\u{fffd}\u{20ac}"),
        (b"\xc0\xaf", "\u{fffd}\u{fffd}"),
        (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}"),
        (b"\xf4\x90\x80\x80", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}"),
        (b"\x80", "\u{fffd}"),
    ] {
        let ids = byte_ids(bytes);
        assert_eq!(streamed(&ids, true), expected, "{bytes:x?}");
        assert_eq!(MINI.tokenizer.decode(&ids, true), expected, "{bytes:x?}");
    }
}

/// Ids of which many are parts of characters, control tokens or markup.
fn any_ids() -> impl Strategy<Value = Vec<u32>> {
    let size = MINI.tokenizer.vocab_size() as u32;
    let added: Vec<u32> = (0..size).rev().take(26).collect();
    let emoji = MINI.tokenizer.encode("😀👩‍👧🏳️‍🌈 日本語é").unwrap();
    let id = prop_oneof![
        3 => 0..256u32,
        2 => 0..size + 3,
        1 => prop::sample::select(added),
        3 => prop::sample::select(emoji),
    ];
    prop::collection::vec(id, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn streaming_equals_decoding(ids in any_ids(), skip_special in any::<bool>()) {
        prop_assert_eq!(streamed(&ids, skip_special), MINI.tokenizer.decode(&ids, skip_special));
    }

    #[test]
    fn any_text_survives(text in "\\PC{0,60}") {
        // NFC changes some characters, once.
        let ids = MINI.tokenizer.encode(&text).unwrap();
        let back = MINI.tokenizer.decode(&ids, false);
        prop_assert_eq!(MINI.tokenizer.encode(&back).unwrap(), ids);
    }

    /// Segment by segment, cached or not, is what the library does with the whole text.
    #[test]
    fn segments_equal_the_library(parts in prop::collection::vec(
        prop_oneof![
            prop::sample::select(vec![
                "<|im_start|>", "<|im_end|>\n", "<think>", "</think>\n\n", "<|im_", "> \u{338}", "e\u{301}", "  ",
                "a segment long enough for the cache ", "\n\n",
            ]).prop_map(String::from),
            "\\PC{0,12}",
        ],
        0..8,
    )) {
        let text = parts.concat();
        let expected = LIBRARY.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
        prop_assert_eq!(&MINI.tokenizer.encode(&text).unwrap(), &expected);
        prop_assert_eq!(&MINI.tokenizer.encode(&text).unwrap(), &expected);
    }
}

/// lily-mini's tokenizer in the library's own form.
static LIBRARY: std::sync::LazyLock<tokenizers::Tokenizer> = std::sync::LazyLock::new(|| {
    tokenizers::Tokenizer::from_bytes(crate::mini_file("tokenizer.json").expect("tokenizer.json")).unwrap()
});

#[test]
fn long_and_repetitive_texts_take_linear_time() {
    let tokenizer: &Tokenizer = &MINI.tokenizer;
    for unit in ["a", " ", "\n", "\t ", "1", "!", "é", "😀", "\u{301}", "a ", "<|im_"] {
        let text = unit.repeat(200_000 / unit.len());
        let began = std::time::Instant::now();
        let ids = tokenizer.encode(&text).unwrap();
        let elapsed = began.elapsed();
        println!("{unit:?} x {}: {} ids, {elapsed:.1?}", 200_000 / unit.len(), ids.len());
        assert_eq!(tokenizer.decode(&ids, false), text);
        assert!(elapsed.as_secs() < 10, "{unit:?}: {elapsed:?}");
    }
}
