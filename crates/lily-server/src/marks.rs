//! Where in a rendered chat later prompts are likely to part from it: the places of the engine's checkpoints.
//!
//! ChatML turns begin with `<|im_start|>` and the role. Templates of this family render the answers after the last
//! question with their reasoning and drop it once there is another question, so the next question's prompt parts from
//! this one right after the last question; a prompt that carries a tool result back goes on from this one's end.

use lily_engine::{CheckpointKind, Mark};
use lily_text::Tokenizer;

/// Begins a turn.
const TURN: &str = "<|im_start|>";
/// Begins a tool result, which a user turn wraps.
const TOOL_RESULT: &str = "<tool_response>";
/// Tokens after the turn's first that name the role, and what a wrapped tool result begins with.
const ROLE_TOKENS: usize = 6;

/// The marks of a prompt; none where it is not a chat.
pub fn marks(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<Mark> {
    let Some(turn) = tokenizer.token_id(TURN) else { return Vec::new() };
    let starts: Vec<usize> = (0..ids.len()).filter(|&i| ids[i] == turn).collect();
    let head = |start: usize| {
        let end = ids.len().min(start + 1 + ROLE_TOKENS);
        tokenizer.decode(&ids[start + 1..end], false)
    };
    let is_question = |&start: &usize| {
        head(start).strip_prefix("user").is_some_and(|rest| !rest.trim_start().starts_with(TOOL_RESULT))
    };
    // The last turn is the opener of the answer.
    let Some((&opener, turns)) = starts.split_last() else { return Vec::new() };
    let question = turns.iter().rposition(is_question);
    let mut marks = Vec::with_capacity(starts.len());
    for (i, &end) in starts.iter().enumerate().skip(1) {
        let kind = if end == opener || Some(i - 1) == question {
            CheckpointKind::BeforeOpener
        } else if i == 1 && head(starts[0]).starts_with("system") {
            CheckpointKind::SystemEnd
        } else {
            CheckpointKind::TurnClosure
        };
        marks.push(Mark { position: end, kind });
    }
    marks
}

#[cfg(test)]
mod tests {
    use lily_engine::CheckpointKind::{BeforeOpener, SystemEnd, TurnClosure};

    use super::*;

    fn mini() -> Tokenizer {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lily-mini/");
        let read = |name: &str| std::fs::read(format!("{dir}{name}")).unwrap();
        Tokenizer::from_bytes(&read("tokenizer.json"), Some(&read("tokenizer_config.json"))).unwrap()
    }

    /// Kinds with the text before each mark's end.
    fn places(text: &str) -> Vec<(CheckpointKind, String)> {
        let tokenizer = mini();
        let ids = tokenizer.encode(text).unwrap();
        marks(&tokenizer, &ids)
            .into_iter()
            .map(|m| (m.kind, tokenizer.decode(&ids[..m.position], false)))
            .collect()
    }

    #[test]
    fn turns_of_a_chat_with_tools() {
        let parts = [
            "<|im_start|>system\n# Tools<|im_end|>\n",
            "<|im_start|>user\ndefine heron<|im_end|>\n",
            "<|im_start|>assistant\na bird<|im_end|>\n",
            "<|im_start|>user\nand lute?<|im_end|>\n",
            "<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n<function=lookup>\n</function>\n</tool_call><|im_end|>\n",
            "<|im_start|>user\n<tool_response>\nan instrument\n</tool_response><|im_end|>\n",
            "<|im_start|>assistant\n<think>\n",
        ];
        let until = |n: usize| parts[..n].concat();
        let want = [
            (SystemEnd, until(1)),
            (TurnClosure, until(2)),
            (TurnClosure, until(3)),
            (BeforeOpener, until(4)),
            (TurnClosure, until(5)),
            (BeforeOpener, until(6)),
        ];
        assert_eq!(places(&parts.concat()), want);
    }

    #[test]
    fn a_first_question_and_no_chat() {
        let text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(places(text), [(BeforeOpener, "<|im_start|>user\nhello<|im_end|>\n".to_string())]);
        assert_eq!(places("just text"), []);
        assert_eq!(places("<|im_start|>"), []);
        assert_eq!(places(""), []);
    }
}
