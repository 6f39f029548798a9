//! Items of a conversation as chat messages.

use serde_json::{Map, Value, json};

use crate::{
    error::ApiError,
    fields::{self, Allowed, shown},
    params,
};

/// Fields of items that clients send back as they got them.
const ITEM: &[(&str, Allowed)] =
    &[("id", Allowed::Anything), ("status", Allowed::Anything), ("phase", Allowed::Anything)];

/// The messages of an input: a text, or items.
pub(super) fn messages(input: &Value) -> Result<Vec<Value>, ApiError> {
    let items = match input {
        Value::String(text) if !text.is_empty() => return Ok(vec![json!({"role": "user", "content": text})]),
        Value::Array(items) if !items.is_empty() => items,
        other => {
            return Err(ApiError::invalid(
                "input",
                format!("found {}; expected a text or a list of items", shown(other)),
            ));
        }
    };
    let mut messages = Messages::default();
    for (i, item) in items.iter().enumerate() {
        messages.item(&format!("input[{i}]"), item)?;
    }
    messages.flush();
    Ok(messages.done)
}

/// Messages so far. An assistant's turn comes as several items: reasoning, a message, calls.
#[derive(Default)]
struct Messages {
    done: Vec<Value>,
    turn: Option<Turn>,
}

#[derive(Default)]
struct Turn {
    reasoning: String,
    content: Option<String>,
    calls: Vec<Value>,
}

impl Messages {
    fn item(&mut self, path: &str, item: &Value) -> Result<(), ApiError> {
        if !item.is_object() {
            return Err(ApiError::invalid(path, format!("found {}; expected an object", shown(item))));
        }
        let prefix = format!("{path}.");
        match item.get("type").and_then(Value::as_str) {
            None | Some("message") => self.message(path, item),
            Some("function_call") => {
                let read = ["type", "call_id", "name", "arguments", "namespace"];
                fields::check_others(&prefix, item, &read, ITEM)?;
                let [id, name, arguments] =
                    ["call_id", "name", "arguments"].map(|field| text(&prefix, item, field));
                let name = match item.get("namespace").and_then(Value::as_str) {
                    Some(space) => [space, name?].join("."),
                    None => name?.to_string(),
                };
                let function = json!({"name": name, "arguments": arguments?});
                let call = json!({"id": id?, "type": "function", "function": function});
                self.turn.get_or_insert_default().calls.push(call);
                Ok(())
            }
            Some("function_call_output") => {
                fields::check_others(&prefix, item, &["type", "call_id", "output"], ITEM)?;
                let id = text(&prefix, item, "call_id")?;
                let output = content(&format!("{path}.output"), item.get("output"))?;
                self.flush();
                self.done.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
                Ok(())
            }
            Some("reasoning") => {
                let known =
                    [ITEM, &[("summary", Allowed::Anything), ("encrypted_content", Allowed::Anything)]];
                fields::check_others(&prefix, item, &["type", "content"], &known.concat())?;
                let text = match item.get("content").filter(|c| !c.is_null()) {
                    Some(parts) => content(&format!("{path}.content"), Some(parts))?,
                    None => String::new(),
                };
                if self.turn.as_ref().is_some_and(|turn| turn.content.is_some() || !turn.calls.is_empty()) {
                    self.flush();
                }
                self.turn.get_or_insert_default().reasoning.push_str(&text);
                Ok(())
            }
            Some(other) => Err(ApiError::unsupported(
                format!("{path}.type"),
                format!(
                    "items of type {other:?} are not supported; send message, function_call, function_call_output \
                     or reasoning"
                ),
            )),
        }
    }

    fn message(&mut self, path: &str, item: &Value) -> Result<(), ApiError> {
        fields::check_others(&format!("{path}."), item, &["type", "role", "content"], ITEM)?;
        let text = content(&format!("{path}.content"), item.get("content"))?;
        match item.get("role").and_then(Value::as_str) {
            Some("assistant") => {
                if self.turn.as_ref().is_some_and(|turn| turn.content.is_some() || !turn.calls.is_empty()) {
                    self.flush();
                }
                self.turn.get_or_insert_default().content = Some(text);
            }
            Some(role @ ("user" | "system" | "developer")) => {
                self.flush();
                self.done.push(json!({"role": role, "content": text}));
            }
            _ => {
                let found = item.get("role").map_or_else(|| "nothing".to_string(), shown);
                return Err(ApiError::invalid(
                    format!("{path}.role"),
                    format!("found {found}; expected user, assistant, system or developer"),
                ));
            }
        }
        Ok(())
    }

    /// The turn is over.
    fn flush(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        message.insert("content".into(), turn.content.unwrap_or_default().into());
        if !turn.reasoning.is_empty() {
            message.insert("reasoning_content".into(), turn.reasoning.into());
        }
        if !turn.calls.is_empty() {
            message.insert("tool_calls".into(), turn.calls.into());
        }
        self.done.push(message.into());
    }
}

fn text<'a>(prefix: &str, item: &'a Value, field: &str) -> Result<&'a str, ApiError> {
    let path = format!("{prefix}{field}");
    item.get(field).and_then(Value::as_str).ok_or_else(|| params::missing(&path, "a string"))
}

/// A text, or text parts joined.
fn content(path: &str, content: Option<&Value>) -> Result<String, ApiError> {
    let parts = match content {
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        found => {
            let found = found.map_or_else(|| "nothing".to_string(), shown);
            return Err(ApiError::invalid(
                path,
                format!("found {found}; expected a string or a list of text parts"),
            ));
        }
    };
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let path = format!("{path}[{i}]");
        match part.get("type").and_then(Value::as_str) {
            Some("input_text" | "output_text" | "reasoning_text" | "text") => {}
            Some(kind @ ("input_image" | "input_file" | "input_audio" | "refusal" | "output_image")) => {
                return Err(ApiError::unsupported(
                    format!("{path}.type"),
                    format!("content of type {kind:?} is not supported; this server reads text only"),
                ));
            }
            _ => {
                return Err(ApiError::invalid(
                    format!("{path}.type"),
                    format!("found {}; expected input_text or output_text", shown(part)),
                ));
            }
        }
        let known = [("annotations", Allowed::Only("[]")), ("logprobs", Allowed::Anything)];
        fields::check_others(&format!("{path}."), part, &["type", "text"], &known)?;
        match part.get("text") {
            Some(Value::String(part)) => text.push_str(part),
            found => {
                let found = found.map_or_else(|| "nothing".to_string(), shown);
                return Err(ApiError::invalid(
                    format!("{path}.text"),
                    format!("found {found}; expected a string"),
                ));
            }
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        let input = json!([
            {"role": "developer", "content": "be kind"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
             "content": [{"type": "output_text", "text": "look", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}", "status": "completed"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"x\": 1}"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"role": "assistant", "content": "done"},
            {"role": "assistant", "content": "really"},
        ]);
        let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        assert_eq!(
            Value::from(messages(&input).unwrap()),
            json!([
                {"role": "developer", "content": "be kind"},
                {"role": "user", "content": "ab"},
                {"role": "assistant", "content": "look", "reasoning_content": "hm",
                 "tool_calls": [call("c1", "f", "{}"), call("c2", "g", "{\"x\": 1}")]},
                {"role": "tool", "tool_call_id": "c1", "content": "one"},
                {"role": "tool", "tool_call_id": "c2", "content": "two"},
                {"role": "assistant", "content": "done"},
                {"role": "assistant", "content": "really"},
            ])
        );
        assert_eq!(messages(&json!("hi")).unwrap(), [json!({"role": "user", "content": "hi"})]);
    }

    #[test]
    fn what_is_not_an_item_is_named() {
        for (input, param) in [
            (json!(3), "input"),
            (json!([]), "input"),
            (json!(["x"]), "input[0]"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0].type"),
            (json!([{"role": "robot", "content": "x"}]), "input[0].role"),
            (
                json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
                "input[0].content[0].type",
            ),
            (json!([{"role": "user", "content": [{"type": "input_text"}]}]), "input[0].content[0].text"),
            (json!([{"role": "user", "content": "x", "weight": 1}]), "input[0].weight"),
            (json!([{"type": "function_call", "call_id": "c", "name": "f"}]), "input[0].arguments"),
            (json!([{"type": "function_call_output", "output": "x"}]), "input[0].call_id"),
        ] {
            assert_eq!(messages(&input).unwrap_err().param.as_deref(), Some(param), "{input}");
        }
    }
}
