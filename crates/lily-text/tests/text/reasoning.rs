//! The reasoning block at any chunking.

use lily_text::{Piece, ReasoningSplitter, RenderRequest, prompt_starts_in_reasoning};
use proptest::prelude::*;
use serde_json::json;

use crate::MINI;

/// Pieces of the same kind joined.
fn split(chunks: &[&str], starts_in_reasoning: bool) -> Vec<Piece> {
    let mut splitter = ReasoningSplitter::new(starts_in_reasoning);
    let mut pieces: Vec<Piece> = chunks.iter().flat_map(|chunk| splitter.push(chunk)).collect();
    pieces.extend(splitter.finish());
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(Piece::Reasoning(all)), Piece::Reasoning(text))
            | (Some(Piece::Content(all)), Piece::Content(text)) => {
                assert!(!text.is_empty());
                all.push_str(&text);
            }
            (_, piece) => joined.push(piece),
        }
    }
    joined
}

fn reasoning(text: &str) -> Piece {
    Piece::Reasoning(text.to_string())
}

fn content(text: &str) -> Piece {
    Piece::Content(text.to_string())
}

#[test]
fn blocks_are_split_and_the_formats_line_breaks_dropped() {
    let cases: Vec<(bool, &str, Vec<Piece>)> = vec![
        (true, "why\nso\n</think>\n\nanswer", vec![reasoning("why\nso"), content("answer")]),
        (false, "<think>\nwhy\n</think>\n\nanswer\n", vec![reasoning("why"), content("answer\n")]),
        (false, "answer", vec![content("answer")]),
        (false, "  answer", vec![content("  answer")]),
        (true, "never closed\n", vec![reasoning("never closed\n")]),
        (true, "\n</think>\n\nanswer", vec![content("answer")]),
        (true, "</think>answer", vec![content("answer")]),
        (true, "", vec![]),
        (true, "\n", vec![]),
        (false, " \n<think>a</think>b", vec![reasoning("a"), content("b")]),
        // A block opened twice, closed twice, or followed by another one.
        (true, "<think>\na\n</think>\n\nb", vec![reasoning("a"), content("b")]),
        (true, "a</think>\n</think>\nb", vec![reasoning("a"), content("b")]),
        (true, "a</think>\n\n<think>\nc\n</think>\n\nb", vec![reasoning("ac"), content("b")]),
        // Line breaks inside stay.
        (true, "a\n\n\nb\n\n\n</think>\n\n\n c", vec![reasoning("a\n\n\nb"), content(" c")]),
        (false, "<think>\n\n a</think>b", vec![reasoning("\n a"), content("b")]),
        // Almost tags.
        (true, "a < b </thin </think", vec![reasoning("a < b </thin </think")]),
        (false, "<thin", vec![content("<thin")]),
        (false, "</thing>", vec![content("</thing>")]),
        // Tags the answer talks about are the answer's.
        (false, "Use <think>x</think>.", vec![content("Use <think>x</think>.")]),
        (
            true,
            "r</think>\n\nThe tag </think> ends <think>.",
            vec![reasoning("r"), content("The tag </think> ends <think>.")],
        ),
        (true, "mention <think> here</think>ok", vec![reasoning("mention <think> here"), content("ok")]),
    ];
    for (starts, text, expected) in cases {
        assert_eq!(split(&[text], starts), expected, "{text:?}");
        let single: Vec<String> = text.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert_eq!(split(&single, starts), expected, "{text:?} by characters");
    }
}

#[test]
fn text_comes_out_as_soon_as_it_is_certain() {
    let mut splitter = ReasoningSplitter::new(true);
    assert_eq!(splitter.push("I think"), [reasoning("I think")]);
    assert_eq!(splitter.push(" so.\n"), [reasoning(" so.")]);
    assert_eq!(splitter.push("Yes"), [reasoning("\nYes")]);
    assert_eq!(splitter.push("\n</th"), []);
    assert_eq!(splitter.push("ink>\n"), []);
    assert_eq!(splitter.push("\nIt"), [content("It")]);
    assert_eq!(splitter.push(" is <"), [content(" is <")]);
    assert_eq!(splitter.finish(), []);
}

#[test]
fn prompts_that_open_a_block_are_told() {
    let prompt = |enable_thinking: bool| {
        let kwargs = json!({"add_generation_prompt": true, "enable_thinking": enable_thinking});
        let messages = vec![json!({"role": "user", "content": "what is <think>?"})];
        MINI.render(
            &RenderRequest { messages, tools: None, kwargs: kwargs.as_object().unwrap().clone() },
            true,
        )
        .unwrap()
    };
    assert!(prompt_starts_in_reasoning(&prompt(true)));
    assert!(!prompt_starts_in_reasoning(&prompt(false)));
    assert!(prompt_starts_in_reasoning("<|im_start|>assistant\n<think>\nso far"));
    assert!(!prompt_starts_in_reasoning("<|im_start|>assistant\n<think>\nx\n</think>\n\nso far"));
    assert!(!prompt_starts_in_reasoning("<|im_start|>user\n<think>\n"));
    assert!(!prompt_starts_in_reasoning("<|im_start|>user\n<think>\n<|im_end|>\n<|im_start|>assistant\n"));
    assert!(!prompt_starts_in_reasoning("<|im_start|>assistant\n<think>\nx<|im_end|>\n"));
    assert!(prompt_starts_in_reasoning("Question: 1+1?\n<think>"));
    assert!(!prompt_starts_in_reasoning("no turns, no tags"));
    assert!(!prompt_starts_in_reasoning(""));
}

/// Splitting what the template renders gives back what it was given.
#[test]
fn splitting_is_the_templates_inverse() {
    for (why, answer) in [("because", "yes"), ("a\n\nb", "line\n\nline"), ("", "just this"), ("why", "")] {
        let messages = vec![
            json!({"role": "user", "content": "q"}),
            json!({"role": "assistant", "content": answer, "reasoning_content": why}),
        ];
        let text = MINI.render(&RenderRequest { messages, ..Default::default() }, true).unwrap();
        let written =
            text.split_once("<|im_start|>assistant\n").unwrap().1.strip_suffix("<|im_end|>\n").unwrap();
        let mut expected = Vec::new();
        expected.extend((!why.is_empty()).then(|| reasoning(why)));
        expected.extend((!answer.is_empty()).then(|| content(answer)));
        assert_eq!(split(&[written], false), expected, "{written:?}");
        let after_opener = written.strip_prefix("<think>\n").unwrap();
        assert_eq!(split(&[after_opener], true), expected, "{after_opener:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn chunking_does_not_matter(
        parts in prop::collection::vec(
            prop::sample::select(vec!["<think>", "</think>", "\n", "a", " ", "<", "</", "think>", "é", "\n\n", "<thi"]),
            0..14,
        ),
        starts in any::<bool>(),
        cuts in prop::collection::vec(any::<bool>(), 1..10),
    ) {
        let text = parts.concat();
        let whole = split(&[&text], starts);
        let mut pieces = vec![String::new()];
        for (c, cut) in text.chars().zip(cuts.iter().cycle()) {
            if *cut {
                pieces.push(String::new());
            }
            pieces.last_mut().unwrap().push(c);
        }
        let chunks: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(split(&chunks, starts), whole.clone());
        // Nothing but tags and line breaks is lost: no tag has one of these letters.
        let letters = |text: &str| text.chars().filter(|c| "aé".contains(*c)).collect::<String>();
        let out: String =
            whole.iter().map(|p| match p { Piece::Reasoning(t) | Piece::Content(t) => t.as_str() }).collect();
        prop_assert_eq!(letters(&out), letters(&text));
    }
}
