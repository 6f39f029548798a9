//! Turns that ended in calls, kept as the model wrote them.
//!
//! A client that runs the calls sends the turn back, rebuilt from its parts. Rendered from parts it would differ from
//! what the model wrote (blanks, the form of arguments, reasoning the client dropped), and the state computed for it
//! could not be reused. The ids of the calls find the turn again; it is used only if what the client sends is what it
//! was told.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
};

use lily_text::Replay;
use lru::LruCache;
use serde_json::Value;

use crate::generate::Turn;

/// Most turns kept.
const MAX_TURNS: usize = 4096;
/// Most bytes of turns kept.
const MAX_BYTES: usize = 64 << 20;

/// A turn and how the prompt opened it.
struct Kept {
    opener: String,
    turn: Turn,
}

impl Kept {
    fn bytes(&self) -> usize {
        let turn = &self.turn;
        let calls: usize = turn.calls.iter().map(|c| c.id.len() + c.name.len() + c.arguments.len()).sum();
        self.opener.len() + turn.written.len() + turn.reasoning.len() + turn.content.len() + calls + 256
    }
}

/// The turns, by the id of their first call.
pub(crate) struct Replays(Mutex<Turns>);

struct Turns {
    by_call: LruCache<String, Arc<Kept>>,
    bytes: usize,
}

impl Default for Replays {
    fn default() -> Self {
        let most = NonZeroUsize::new(MAX_TURNS).unwrap_or(NonZeroUsize::MIN);
        Self(Mutex::new(Turns { by_call: LruCache::new(most), bytes: 0 }))
    }
}

impl Replays {
    /// Keeps a turn. The least recently used ones make room.
    pub(crate) fn keep(&self, opener: &str, turn: &Turn) {
        let Some(first) = turn.calls.first() else { return };
        let kept = Arc::new(Kept { opener: opener.to_string(), turn: turn.clone() });
        let size = kept.bytes();
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.bytes += size;
        if let Some((_, old)) = turns.by_call.push(first.id.clone(), kept) {
            turns.bytes -= old.bytes();
        }
        while turns.bytes > MAX_BYTES
            && let Some((_, old)) = turns.by_call.pop_lru()
        {
            turns.bytes -= old.bytes();
        }
    }

    /// The messages that are turns kept here, unchanged.
    pub(crate) fn find(&self, messages: &[Value]) -> Vec<Replay> {
        let found = messages.iter().enumerate().filter_map(|(i, message)| {
            let calls = message.get("tool_calls")?.as_array()?;
            let id = calls.first()?.get("id")?.as_str()?;
            let kept = {
                let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                turns.by_call.get(id).cloned()?
            };
            same(message, calls, &kept.turn).then(|| Replay {
                message: i,
                opener: kept.opener.clone(),
                written: kept.turn.written.clone(),
            })
        });
        found.collect()
    }
}

/// Whether the message says what the turn said.
fn same(message: &Value, calls: &[Value], turn: &Turn) -> bool {
    let same_text = |field: &str, written: &str| match message.get(field) {
        None | Some(Value::Null) => None,
        Some(value) => Some(text(value).trim() == written.trim()),
    };
    // Content that is missing was empty; reasoning that is missing was dropped by the client.
    let content = same_text("content", &turn.content).unwrap_or(turn.content.trim().is_empty());
    let reasoning = same_text("reasoning_content", &turn.reasoning).unwrap_or(true);
    content
        && reasoning
        && calls.len() == turn.calls.len()
        && calls.iter().zip(&turn.calls).all(|(sent, told)| {
            let function = &sent["function"];
            sent["id"] == told.id.as_str()
                && function["name"] == told.name.as_str()
                && same_arguments(&function["arguments"], &told.arguments)
        })
}

/// Content as a string, or its text parts.
fn text(content: &Value) -> String {
    match content {
        Value::Array(parts) => parts.iter().filter_map(|p| p.get("text").and_then(Value::as_str)).collect(),
        other => other.as_str().unwrap_or("\u{0}").to_string(),
    }
}

fn same_arguments(sent: &Value, told: &str) -> bool {
    let Ok(told) = serde_json::from_str::<Value>(told) else { return false };
    match sent {
        Value::String(text) => serde_json::from_str::<Value>(text).is_ok_and(|sent| sent == told),
        Value::Object(_) => *sent == told,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::generate::TurnCall;

    fn turn(id: &str) -> Turn {
        Turn {
            written: "hm</think>\n\nLook.\n<tool_call>...".into(),
            reasoning: "hm".into(),
            content: "Look.".into(),
            calls: vec![TurnCall {
                id: id.into(),
                name: "f".into(),
                arguments: "{\"n\":1,\"s\":\"x\"}".into(),
            }],
        }
    }

    fn message(id: &str, content: Value, arguments: Value) -> Value {
        json!({"role": "assistant", "content": content,
            "tool_calls": [{"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}]})
    }

    #[test]
    fn only_unchanged_turns_are_replayed() {
        let replays = Replays::default();
        replays.keep("<think>\n", &turn("a"));
        let user = json!({"role": "user", "content": "q"});
        let same = json!("{ \"s\": \"x\", \"n\": 1 }");
        let found = replays.find(&[user.clone(), message("a", json!(" Look.\n"), same.clone())]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].message, found[0].written.as_str()), (1, turn("a").written.as_str()));
        let parts = json!([{"type": "text", "text": "Look."}]);
        assert_eq!(replays.find(&[message("a", parts, json!({"n": 1, "s": "x"}))]).len(), 1);
        let mut with_reasoning = message("a", json!("Look."), same.clone());
        with_reasoning["reasoning_content"] = json!("hm");
        assert_eq!(replays.find(&[with_reasoning.clone()]).len(), 1);
        with_reasoning["reasoning_content"] = json!("other");
        for changed in [
            with_reasoning,
            message("b", json!("Look."), same.clone()),
            message("a", json!("Look!"), same.clone()),
            message("a", Value::Null, same.clone()),
            message("a", json!("Look."), json!("{\"n\": 2, \"s\": \"x\"}")),
            message("a", json!("Look."), json!("{")),
            user,
        ] {
            assert!(replays.find(std::slice::from_ref(&changed)).is_empty(), "{changed}");
        }
    }

    #[test]
    fn bytes_are_bounded() {
        let replays = Replays::default();
        for i in 0..200 {
            let written = "x".repeat(1 << 20);
            replays.keep("", &Turn { written, ..turn(&i.to_string()) });
            replays.keep("", &turn("again"));
        }
        let turns = replays.0.lock().unwrap();
        assert!(turns.bytes <= MAX_BYTES && turns.by_call.len() > 30);
        let real: usize = turns.by_call.iter().map(|(_, k)| k.bytes()).sum();
        assert_eq!(turns.bytes, real);
    }
}
