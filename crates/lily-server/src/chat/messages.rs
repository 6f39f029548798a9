//! The `messages` of a request: which fields a message may have, and what its content may be.
//!
//! This looks at form only; meaning (roles in order, merging of system messages, arguments as objects) is
//! `lily_text::normalize_messages`'s and the template's.

use serde_json::{Map, Value};

use crate::{
    error::ApiError,
    fields::{self, Allowed, shown},
};

/// Fields any message may have that the prompt does not show. `name` tells participants apart in OpenAI's API; the
/// chat format has no place for it.
const COMMON: &[(&str, Allowed)] = &[("name", Allowed::Anything)];

/// Further fields of assistant messages, as clients send back what they were sent.
const ASSISTANT: &[(&str, Allowed)] = &[
    ("name", Allowed::Anything),
    ("refusal", Allowed::Nothing),
    ("audio", Allowed::Nothing),
    ("function_call", Allowed::Nothing),
    ("annotations", Allowed::Only("[]")),
    ("reasoning", Allowed::Anything),
    ("reasoning_details", Allowed::Anything),
];

/// Fields of a content part beside `type` and `text`. Prompt caching needs no hint here.
const PART: &[(&str, Allowed)] = &[("cache_control", Allowed::Anything)];

/// Fields of a tool call and of its function that say nothing.
const CALL: &[(&str, Allowed)] = &[("index", Allowed::Anything)];

/// Checks every message and returns them with only the fields the template sees.
pub fn check(messages: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty; expected at least one message"));
    }
    messages.into_iter().enumerate().map(|(i, m)| check_message(&format!("messages[{i}]"), m)).collect()
}

fn check_message(path: &str, message: Value) -> Result<Value, ApiError> {
    let Value::Object(mut fields) = message else {
        return Err(ApiError::invalid(path, format!("found {}; expected an object", shown(&message))));
    };
    let role = match fields.get("role") {
        None => {
            return Err(ApiError::invalid(
                format!("{path}.role"),
                format!("a message has no role; expected {ROLES}"),
            ));
        }
        Some(Value::String(role)) => role.clone(),
        Some(other) => {
            return Err(ApiError::invalid(
                format!("{path}.role"),
                format!("found {}; expected {ROLES}", shown(other)),
            ));
        }
    };
    let mut kept = Map::new();
    let mut keep = |fields: &mut Map<String, Value>, name: &str| {
        if let Some(value) = fields.shift_remove(name).filter(|v| !v.is_null()) {
            kept.insert(name.to_string(), value);
        }
    };
    keep(&mut fields, "role");
    keep(&mut fields, "content");
    match role.as_str() {
        "system" | "developer" | "user" => fields::check(&format!("{path}."), &fields, COMMON)?,
        "assistant" => {
            // vLLM calls the field `reasoning`.
            if !fields.contains_key("reasoning_content")
                && let Some(reasoning) = fields.shift_remove("reasoning")
            {
                fields.insert("reasoning_content".into(), reasoning);
            }
            keep(&mut fields, "reasoning_content");
            keep(&mut fields, "tool_calls");
            fields::check(&format!("{path}."), &fields, ASSISTANT)?;
        }
        "tool" => {
            keep(&mut fields, "tool_call_id");
            fields::check(&format!("{path}."), &fields, COMMON)?;
        }
        other => {
            return Err(ApiError::invalid(
                format!("{path}.role"),
                format!("found role {other:?}; expected {ROLES}"),
            ));
        }
    }
    check_content(path, &role, &mut kept)?;
    if let Some(reasoning) = kept.get("reasoning_content").filter(|r| !r.is_string()) {
        return Err(ApiError::invalid(
            format!("{path}.reasoning_content"),
            format!("found {}; expected a string", shown(reasoning)),
        ));
    }
    if let Some(calls) = kept.get("tool_calls") {
        check_tool_calls(&format!("{path}.tool_calls"), calls)?;
    }
    match kept.get("tool_call_id") {
        Some(Value::String(_)) => {}
        None if role != "tool" => {}
        found => {
            let found = found.map_or_else(|| "nothing".to_string(), shown);
            return Err(ApiError::invalid(
                format!("{path}.tool_call_id"),
                format!("found {found}; expected the id of the call this message answers"),
            ));
        }
    }
    Ok(Value::Object(kept))
}

const ROLES: &str = "system, developer, user, assistant or tool";

fn check_content(path: &str, role: &str, message: &mut Map<String, Value>) -> Result<(), ApiError> {
    let path = format!("{path}.content");
    let may_be_absent = message.contains_key("tool_calls") || message.contains_key("reasoning_content");
    match message.get_mut("content") {
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) if !parts.is_empty() => {
            parts.iter_mut().enumerate().try_for_each(|(i, part)| check_part(&format!("{path}[{i}]"), part))
        }
        // A turn that only calls tools, or only thought, has no content.
        None if may_be_absent => {
            message.insert("content".into(), Value::String(String::new()));
            Ok(())
        }
        None => Err(ApiError::invalid(
            path,
            format!("a message of role {role} has no content; expected a string or a list of text parts"),
        )),
        Some(other) => Err(ApiError::invalid(
            path,
            format!("found {}; expected a string or a list of text parts", shown(other)),
        )),
    }
}

fn check_part(path: &str, part: &mut Value) -> Result<(), ApiError> {
    let Value::Object(fields) = part else {
        return Err(ApiError::invalid(path, format!("found {}; expected a text part", shown(part))));
    };
    match fields.get("type").and_then(Value::as_str) {
        Some("text") => {}
        Some(
            kind @ ("image_url" | "image" | "input_image" | "input_audio" | "audio" | "audio_url" | "video"
            | "video_url" | "file" | "input_file"),
        ) => {
            return Err(ApiError::unsupported(
                format!("{path}.type"),
                format!("content of type {kind:?} is not supported; this server reads text only"),
            ));
        }
        _ => {
            let found = fields.get("type").map_or_else(|| "nothing".to_string(), shown);
            return Err(ApiError::invalid(
                format!("{path}.type"),
                format!("found {found}; expected \"text\""),
            ));
        }
    }
    if !fields.get("text").is_some_and(Value::is_string) {
        let found = fields.get("text").map_or_else(|| "nothing".to_string(), shown);
        return Err(ApiError::invalid(format!("{path}.text"), format!("found {found}; expected a string")));
    }
    let rest: Map<String, Value> =
        fields.iter().filter(|(k, _)| !matches!(k.as_str(), "type" | "text")).map(clone_entry).collect();
    fields::check(&format!("{path}."), &rest, PART)?;
    fields.retain(|key, _| matches!(key.as_str(), "type" | "text"));
    Ok(())
}

fn clone_entry((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

fn check_tool_calls(path: &str, calls: &Value) -> Result<(), ApiError> {
    let Some(calls) = calls.as_array() else {
        return Err(ApiError::invalid(path, format!("found {}; expected a list of calls", shown(calls))));
    };
    for (i, call) in calls.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let Some(fields) = call.as_object() else {
            return Err(ApiError::invalid(path, format!("found {}; expected an object", shown(call))));
        };
        if let Some(kind) = fields.get("type").filter(|k| *k != "function") {
            return Err(ApiError::unsupported(
                format!("{path}.type"),
                format!("found {}; expected \"function\"", shown(kind)),
            ));
        }
        if let Some(id) = fields.get("id").filter(|id| !id.is_string()) {
            return Err(ApiError::invalid(
                format!("{path}.id"),
                format!("found {}; expected a string", shown(id)),
            ));
        }
        let Some(function) = fields.get("function").and_then(Value::as_object) else {
            return Err(ApiError::invalid(
                format!("{path}.function"),
                "expected an object with name and arguments",
            ));
        };
        if function.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(ApiError::invalid(format!("{path}.function.name"), "expected the function's name"));
        }
        let rest = fields.iter().filter(|(k, _)| !matches!(k.as_str(), "type" | "id" | "function"));
        fields::check(&format!("{path}."), &rest.map(clone_entry).collect(), CALL)?;
        let rest = function.iter().filter(|(k, _)| !matches!(k.as_str(), "name" | "arguments"));
        fields::check(&format!("{path}.function."), &rest.map(clone_entry).collect(), &[])?;
    }
    Ok(())
}
