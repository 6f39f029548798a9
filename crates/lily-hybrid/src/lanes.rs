//! A provider's answer, chunk by chunk, taken apart into lanes and put together from what our own types hold.
//!
//! Only what is named here gets through: texts by way of their lane, ids and tool names after a check of their
//! characters, finish reasons and token counts. Whatever else a chunk holds ends here.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lily_gate::{
    policy::Policy,
    restore::{Lane, LaneCounts, RestoreMap},
};
use serde_json::Value;

use crate::event::{CloudEvent, Usage};

/// Most answers to one request.
const MOST_CHOICES: u64 = 16;
/// Most tool calls in one answer.
const MOST_CALLS: u64 = 256;
/// Longest id or tool name.
const LONGEST_NAME: usize = 256;

/// What an answer must not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadAnswer(pub String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LaneKey {
    Content,
    Reasoning,
    Refusal,
    Call(usize),
}

#[derive(Default)]
struct Choice {
    lanes: BTreeMap<LaneKey, Lane>,
    /// Calls whose name was given on.
    begun: BTreeSet<usize>,
    finished: Option<&'static str>,
}

/// All lanes of one answer.
pub(crate) struct Lanes {
    map: Arc<RestoreMap>,
    policy: Arc<Policy>,
    choices: BTreeMap<usize, Choice>,
    ended: LaneCounts,
    cut_tokens: bool,
    pub usage: Option<Usage>,
}

impl Lanes {
    pub(crate) fn new(map: Arc<RestoreMap>, policy: Arc<Policy>) -> Self {
        Self {
            map,
            policy,
            choices: BTreeMap::new(),
            ended: LaneCounts::default(),
            cut_tokens: false,
            usage: None,
        }
    }

    /// Takes a chunk (`delta`) or a whole answer (`message`).
    pub(crate) fn take(&mut self, body: &Value, out: &mut Vec<CloudEvent>) -> Result<(), BadAnswer> {
        if let Some(usage) = body.get("usage").filter(|u| u.is_object()) {
            self.usage = Some(read_usage(usage));
        }
        let choices = match body.get("choices") {
            None | Some(Value::Null) => &[],
            Some(Value::Array(choices)) => choices.as_slice(),
            Some(_) => return Err(bad("choices", "an array")),
        };
        for (at, choice) in choices.iter().enumerate() {
            let index = match choice.get("index") {
                None | Some(Value::Null) => at as u64,
                Some(index) => index.as_u64().ok_or_else(|| bad("choices[].index", "a number"))?,
            };
            if index >= MOST_CHOICES {
                return Err(bad("choices[].index", "fewer than 16 answers"));
            }
            // At most 15.
            let index = index as usize;
            self.choices.entry(index).or_default();
            if let Some(delta) =
                choice.get("delta").or_else(|| choice.get("message")).filter(|d| !d.is_null())
            {
                self.delta(index, delta, out)?;
            }
            if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
                self.finish(index, reason, out);
            }
        }
        Ok(())
    }

    fn delta(&mut self, choice: usize, delta: &Value, out: &mut Vec<CloudEvent>) -> Result<(), BadAnswer> {
        let texts = [
            (LaneKey::Reasoning, "reasoning_content"),
            (LaneKey::Reasoning, "reasoning"),
            (LaneKey::Content, "content"),
            (LaneKey::Refusal, "refusal"),
        ];
        let mut reasoned = false;
        for (key, name) in texts {
            let text = read_text(delta.get(name), name)?;
            // Providers that fill both fields say the same thing twice.
            if text.is_empty() || (key == LaneKey::Reasoning && std::mem::replace(&mut reasoned, true)) {
                continue;
            }
            self.text(choice, key, &text, out);
        }
        let calls = match delta.get("tool_calls") {
            None | Some(Value::Null) => &[],
            Some(Value::Array(calls)) => calls.as_slice(),
            Some(_) => return Err(bad("tool_calls", "an array")),
        };
        for (at, call) in calls.iter().enumerate() {
            let index = call.get("index").and_then(Value::as_u64).unwrap_or(at as u64);
            if index >= MOST_CALLS {
                return Err(bad("tool_calls[].index", "fewer than 256 calls"));
            }
            self.call(choice, index as usize, call, out)?;
        }
        Ok(())
    }

    fn call(
        &mut self,
        choice: usize,
        index: usize,
        call: &Value,
        out: &mut Vec<CloudEvent>,
    ) -> Result<(), BadAnswer> {
        let begun = self.choices.entry(choice).or_default().begun.contains(&index);
        let function = call.get("function").unwrap_or(&Value::Null);
        if !begun {
            let name = read_name(function.get("name"), "tool_calls[].function.name")?;
            let id = match call.get("id").filter(|id| !id.is_null()) {
                Some(id) => read_name(Some(id), "tool_calls[].id")?,
                None => format!("call_{choice}_{index}"),
            };
            let (policy, tool) = (Arc::clone(&self.policy), name.clone());
            let restores = Arc::new(move |argument: &str| policy.restores(&tool, argument));
            let lane = Lane::arguments(Arc::clone(&self.map), restores);
            let state = self.choices.entry(choice).or_default();
            state.lanes.insert(LaneKey::Call(index), lane);
            state.begun.insert(index);
            out.push(CloudEvent::ToolCall { choice, index, id, name });
        }
        match function.get("arguments") {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => self.text(choice, LaneKey::Call(index), text, out),
            // Some providers give the object itself.
            Some(object @ Value::Object(_)) => {
                self.text(choice, LaneKey::Call(index), &object.to_string(), out)
            }
            Some(_) => return Err(bad("tool_calls[].function.arguments", "a string")),
        }
        Ok(())
    }

    fn text(&mut self, choice: usize, key: LaneKey, text: &str, out: &mut Vec<CloudEvent>) {
        let map = &self.map;
        let state = self.choices.entry(choice).or_default();
        let lane = state.lanes.entry(key).or_insert_with(|| Lane::text(Arc::clone(map)));
        emit(choice, key, lane.push(text), out);
    }

    fn finish(&mut self, choice: usize, reason: &str, out: &mut Vec<CloudEvent>) {
        let reason = match reason {
            "length" => "length",
            "tool_calls" | "function_call" => "tool_calls",
            "content_filter" => "content_filter",
            _ => "stop",
        };
        self.end_lanes(choice, reason == "length", out);
        let state = self.choices.entry(choice).or_default();
        if state.finished.is_none() {
            state.finished = Some(reason);
            out.push(CloudEvent::Finish { choice, reason });
        }
    }

    fn end_lanes(&mut self, choice: usize, may_be_cut: bool, out: &mut Vec<CloudEvent>) {
        let Some(state) = self.choices.get_mut(&choice) else { return };
        for (key, mut lane) in std::mem::take(&mut state.lanes) {
            emit(choice, key, lane.finish(), out);
            let counts = lane.counts();
            self.cut_tokens |= counts.cut > 0 && !may_be_cut;
            self.ended += counts;
        }
    }

    /// Ends what is still open, when nothing more will come. Whether every answer had an end of its own.
    pub(crate) fn close(&mut self, out: &mut Vec<CloudEvent>) -> bool {
        let complete = !self.choices.is_empty() && self.choices.values().all(|c| c.finished.is_some());
        let open: Vec<usize> = self.choices.keys().copied().collect();
        for choice in open {
            self.end_lanes(choice, false, out);
        }
        complete
    }

    /// Ends what is still open as if the provider had said `stop`: it said that nothing more comes.
    pub(crate) fn finish_all(&mut self, out: &mut Vec<CloudEvent>) {
        let open: Vec<usize> =
            self.choices.iter().filter(|(_, c)| c.finished.is_none()).map(|(i, _)| *i).collect();
        for choice in open {
            let calls = self.choices.get(&choice).is_some_and(|c| !c.begun.is_empty());
            self.finish(choice, if calls { "tool_calls" } else { "stop" }, out);
        }
    }

    /// Whether nothing came yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// Whether a stand-in stopped in its middle where the answer did not.
    pub(crate) fn has_cut_token(&self) -> bool {
        self.cut_tokens
    }

    /// What happened in all lanes.
    pub(crate) fn counts(&self) -> LaneCounts {
        let mut counts = self.ended;
        for lane in self.choices.values().flat_map(|c| c.lanes.values()) {
            counts += lane.counts();
        }
        counts
    }
}

fn emit(choice: usize, key: LaneKey, text: String, out: &mut Vec<CloudEvent>) {
    if text.is_empty() {
        return;
    }
    out.push(match key {
        LaneKey::Content => CloudEvent::Content { choice, text },
        LaneKey::Reasoning => CloudEvent::Reasoning { choice, text },
        LaneKey::Refusal => CloudEvent::Refusal { choice, text },
        LaneKey::Call(index) => CloudEvent::Arguments { choice, index, text },
    });
}

fn bad(field: &str, expected: &str) -> BadAnswer {
    BadAnswer(format!("`{field}` of the provider's answer is wrong; expected {expected}"))
}

/// A text, or a list of text parts.
fn read_text(value: Option<&Value>, name: &str) -> Result<String, BadAnswer> {
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => Ok(parts.iter().filter_map(|p| p.get("text")?.as_str()).collect()),
        Some(_) => Err(bad(name, "a string")),
    }
}

fn read_name(value: Option<&Value>, field: &str) -> Result<String, BadAnswer> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.:/|-".contains(c);
    match value.and_then(Value::as_str) {
        Some(name) if (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(allowed) => {
            Ok(name.to_owned())
        }
        _ => Err(bad(field, "letters, digits and `_ . : / | -`")),
    }
}

fn read_usage(usage: &Value) -> Usage {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    Usage {
        prompt_tokens: number(&usage["prompt_tokens"]),
        completion_tokens: number(&usage["completion_tokens"]),
        total_tokens: number(&usage["total_tokens"]),
        cached_tokens: number(&usage["prompt_tokens_details"]["cached_tokens"]),
        reasoning_tokens: number(&usage["completion_tokens_details"]["reasoning_tokens"]),
    }
}
