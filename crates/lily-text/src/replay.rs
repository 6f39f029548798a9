//! Writing an assistant's turn back into the prompt exactly as the model wrote it.
//!
//! A template renders a turn from its parts: blanks are trimmed, arguments come out in JSON's form, reasoning that the
//! client did not send back is missing. The prompt then differs from what the model's state has seen, and the state
//! cannot be reused. With a [`Replay`] the turn is a stand-in while the template runs, and the model's own text after.

use serde_json::{Value, json};

/// A message to be written as the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Index in the messages; one of the assistant's.
    pub message: usize,
    /// How the prompt opened the turn, after `<|im_start|>assistant\n`: `<think>\n` or an empty block.
    pub opener: String,
    /// Everything the model wrote after it.
    pub written: String,
}

const TURN: &str = "<|im_start|>assistant\n";
const END: &str = "<|im_end|>\n";
const CLOSE: &str = "</think>";

/// Puts stand-ins in the place of the messages to replay; returns their texts.
pub(crate) fn place(messages: &mut [Value], replays: &[Replay]) -> Vec<String> {
    let mut mark = "\u{e000}turn".to_string();
    let whole = Value::Array(messages.to_vec()).to_string();
    while whole.contains(&mark) {
        mark.push('\u{e000}');
    }
    let stand_ins: Vec<String> = (0..replays.len()).map(|i| format!("{mark}-{i}.")).collect();
    for (replay, stand_in) in replays.iter().zip(&stand_ins) {
        if let Some(message) = messages.get_mut(replay.message) {
            *message = json!({"role": "assistant", "content": stand_in});
        }
    }
    stand_ins
}

/// Writes the turns into the rendered text. `None`: the template writes turns in a way that is not known here.
pub(crate) fn restore(rendered: &str, replays: &[Replay], stand_ins: &[String]) -> Option<String> {
    let mut text = rendered.to_string();
    for (replay, stand_in) in replays.iter().zip(stand_ins) {
        // With its reasoning (turns after the last question), or without.
        let with_block = format!("{TURN}<think>\n\n{CLOSE}\n\n{stand_in}{END}");
        let (found, turn) = match text.find(&with_block) {
            Some(at) => {
                (at..at + with_block.len(), format!("{TURN}{}{}{END}", replay.opener, replay.written))
            }
            None => {
                let without = format!("{TURN}{stand_in}{END}");
                let at = text.find(&without)?;
                (at..at + without.len(), format!("{TURN}{}{END}", replay.answer()))
            }
        };
        text.replace_range(found, &turn);
    }
    Some(text)
}

impl Replay {
    /// The turn without its reasoning, as templates trim it.
    fn answer(&self) -> &str {
        let in_block = match (self.opener.rfind("<think>"), self.opener.rfind(CLOSE)) {
            (Some(open), Some(close)) => open > close,
            (open, _) => open.is_some(),
        };
        let starts_with_block = self.written.trim_start().starts_with("<think>");
        let answer = match self.written.split_once(CLOSE) {
            Some((_, answer)) if in_block || starts_with_block => answer,
            _ if in_block => "",
            _ => &self.written,
        };
        answer.trim()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(opener: &str, written: &str) -> Replay {
        Replay { message: 1, opener: opener.into(), written: written.into() }
    }

    #[test]
    fn the_answer_is_what_follows_the_block() {
        assert_eq!(replay("<think>\n", "why\n</think>\n\n<call>\n").answer(), "<call>");
        assert_eq!(replay("<think>\n\n</think>\n\n", "a</think> <call>").answer(), "a</think> <call>");
        assert_eq!(replay("", "<think>b</think>\n<call>").answer(), "<call>");
        assert_eq!(replay("<think>\n", "never closed").answer(), "");
    }

    #[test]
    fn stand_ins_differ_from_anything_said() {
        let said = json!({"role": "user", "content": "\u{e000}turn-0. \u{e000}turn\u{e000}"});
        let mut messages = vec![said.clone(), json!({"role": "assistant", "content": "x"})];
        let stand_ins = place(&mut messages, &[replay("", "y")]);
        assert!(!said.to_string().contains(&stand_ins[0]));
        assert_eq!(messages[1]["content"], stand_ins[0].as_str());
        let unknown = restore("[assistant] something", &[replay("", "y")], &stand_ins);
        assert_eq!(unknown, None);
    }
}
