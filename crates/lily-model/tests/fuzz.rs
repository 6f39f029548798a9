//! Random damage never panics: it is an error, or it changed nothing that matters.

mod common;

use common::Copy;
use proptest::{prelude::*, sample::Index};

/// Changes `bytes` at random places: (where, new value) pairs, then perhaps a cut.
fn damage(bytes: &mut Vec<u8>, flips: &[(Index, u8)], cut: Option<Index>) {
    for (at, value) in flips {
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len() + 1));
    }
}

/// Bytes that matter in JSON are likelier than others.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![any::<u8>(), proptest::sample::select(b"{}[]\",:-.0123456789e \\ntfu".to_vec())]
}

fn flips() -> impl Strategy<Value = Vec<(Index, u8)>> {
    proptest::collection::vec((any::<Index>(), byte()), 0..6)
}

fn cut() -> impl Strategy<Value = Option<Index>> {
    proptest::option::weighted(0.2, any::<Index>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn safetensors_header(flips in flips(), cut in cut()) {
        let copy = Copy::new();
        let mut bytes = copy.parts().bytes(true);
        let data = bytes.split_off(bytes.len() - copy.parts().data.len());
        damage(&mut bytes, &flips, cut);
        copy.single([bytes, data].concat());
        if let Err(error) = copy.load() {
            prop_assert!(error.to_string().contains("model.safetensors") || error.to_string().contains("missing"), "{error}");
        }
    }

    #[test]
    fn json_files(file in 0usize..5, flips in flips(), cut in cut()) {
        let names = [
            "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
            common::INDEX,
        ];
        let copy = Copy::new();
        let mut bytes = std::fs::read(copy.path(names[file])).unwrap();
        damage(&mut bytes, &flips, cut);
        copy.write(names[file], bytes);
        if let Err(error) = copy.load() {
            prop_assert!(error.to_string().contains("; "), "{error}");
        }
    }

    #[test]
    fn truncated_anywhere(cut in any::<Index>()) {
        let copy = Copy::new();
        let mut bytes = copy.parts().bytes(true);
        let full = bytes.len();
        damage(&mut bytes, &[], Some(cut));
        let short = bytes.len() < full;
        copy.single(bytes);
        let message = copy.load().err().map(|e| e.to_string()).unwrap_or_default();
        prop_assert_eq!(short, message.contains("model.safetensors"), "{}", message);
    }
}
