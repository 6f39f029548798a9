//! Checking and normalising chat messages before a template sees them.
//!
//! Chat templates expect one system message, at the beginning, and tool arguments as objects; clients send
//! `developer` messages, several system messages, and arguments as JSON text. [`normalize_messages`] bridges that and
//! refuses what is not a chat message, naming the field. `place_system_turns` and `restore_system_turns` render
//! system messages that come later in the chat in their place, with templates that would refuse them.

use serde_json::{Map, Value, json};

use crate::{TextError, python::is_space};

/// Roles of the chat API after normalisation.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];
/// Content parts templates can render in user, assistant and tool messages.
const MEDIA_PARTS: [&str; 4] = ["image", "image_url", "video", "video_url"];

/// Checks messages and brings them into the form templates expect, in place:
///
/// * `developer` becomes `system`;
/// * leading system messages become one, their texts joined by a blank line (blank ones are left out);
/// * later system messages stay where they are, their content as one string;
/// * `tool_calls[].function.arguments` given as JSON text becomes an object (blank text: no arguments);
/// * an assistant message with tool calls or reasoning but no content gets empty content.
///
/// An error names the path (`messages[3].content[0].type`), what was found and what is allowed.
pub fn normalize_messages(messages: &mut Vec<Value>) -> Result<(), TextError> {
    if messages.is_empty() {
        return Err(TextError::message("messages", "an empty list", "at least one message"));
    }
    for (i, message) in messages.iter_mut().enumerate() {
        normalize_message(message, &format!("messages[{i}]"))?;
    }
    merge_leading_system(messages);
    Ok(())
}

/// Path of the first image or video among the messages' content parts, for callers whose model sees none.
pub fn first_media_part(messages: &[Value]) -> Option<String> {
    messages.iter().enumerate().find_map(|(i, message)| {
        let parts = message.get("content")?.as_array()?;
        let is_media = |part: &Value| {
            let named = part.get("type").and_then(Value::as_str).is_some_and(|t| MEDIA_PARTS.contains(&t));
            named || ["image", "image_url", "video"].iter().any(|key| part.get(key).is_some())
        };
        parts.iter().position(is_media).map(|j| format!("messages[{i}].content[{j}]"))
    })
}

fn normalize_message(message: &mut Value, path: &str) -> Result<(), TextError> {
    let Value::Object(message) = message else {
        return Err(TextError::message(path, shown(message), "an object with `role` and `content`"));
    };
    let expected_roles = "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";
    let role = match message.get("role") {
        Some(Value::String(role)) if role == "developer" => "system".to_string(),
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role.clone(),
        other => {
            return Err(TextError::message(format!("{path}.role"), shown_option(other), expected_roles));
        }
    };
    message.insert("role".to_string(), Value::String(role.clone()));

    if role == "assistant" {
        normalize_assistant(message, path)?;
    }
    check_content(message, &role, path)?;
    if role == "system" {
        let text = text_of(message.get("content"));
        message.insert("content".to_string(), Value::String(text));
    }
    Ok(())
}

/// Reasoning and tool calls; content may be absent beside either.
fn normalize_assistant(message: &mut Map<String, Value>, path: &str) -> Result<(), TextError> {
    match message.get("reasoning_content") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(other) => {
            let path = format!("{path}.reasoning_content");
            return Err(TextError::message(path, shown(other), "a string or null"));
        }
    }
    let has_reasoning = message.get("reasoning_content").is_some_and(Value::is_string);
    let has_calls = match message.get_mut("tool_calls") {
        None | Some(Value::Null) => false,
        Some(Value::Array(calls)) => {
            for (j, call) in calls.iter_mut().enumerate() {
                normalize_tool_call(call, &format!("{path}.tool_calls[{j}]"))?;
            }
            !calls.is_empty()
        }
        Some(other) => {
            let path = format!("{path}.tool_calls");
            return Err(TextError::message(path, shown(other), "a list of tool calls"));
        }
    };
    if (has_calls || has_reasoning) && message.get("content").is_none_or(Value::is_null) {
        message.insert("content".to_string(), Value::String(String::new()));
    }
    Ok(())
}

/// `{"function": {"name", "arguments"}}`, or the bare inner object, as templates accept both.
fn normalize_tool_call(call: &mut Value, path: &str) -> Result<(), TextError> {
    let expected = "an object with `function`: {`name`, `arguments`}";
    let Value::Object(outer) = call else {
        return Err(TextError::message(path, shown(call), expected));
    };
    let (function, path) = if outer.contains_key("function") {
        match outer.get_mut("function") {
            Some(Value::Object(function)) => (function, format!("{path}.function")),
            other => {
                let found = shown_option(other.as_deref());
                return Err(TextError::message(format!("{path}.function"), found, "an object"));
            }
        }
    } else {
        (outer, path.to_string())
    };
    match function.get("name") {
        Some(Value::String(name)) if !name.is_empty() => {}
        other => {
            let found = shown_option(other);
            return Err(TextError::message(format!("{path}.name"), found, "the function's name"));
        }
    }
    let path = format!("{path}.arguments");
    let parsed = match function.get("arguments") {
        None | Some(Value::Object(_)) => return Ok(()),
        Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|e| {
            TextError::message(&path, format!("{} ({e})", shown_text(text)), "the text of a JSON object")
        })?,
        Some(other) => {
            return Err(TextError::message(path, shown(other), "a JSON object, or the text of one"));
        }
    };
    if !parsed.is_object() {
        return Err(TextError::message(path, shown(&parsed), "a JSON object, or the text of one"));
    }
    function.insert("arguments".to_string(), parsed);
    Ok(())
}

/// A string, or a list of parts; images and videos not in system messages.
fn check_content(message: &Map<String, Value>, role: &str, path: &str) -> Result<(), TextError> {
    let path = format!("{path}.content");
    let parts = match message.get("content") {
        Some(Value::String(_)) => return Ok(()),
        Some(Value::Array(parts)) => parts,
        other => {
            return Err(TextError::message(path, shown_option(other), "a string or a list of content parts"));
        }
    };
    for (j, part) in parts.iter().enumerate() {
        let path = format!("{path}[{j}]");
        let Value::Object(part) = part else {
            return Err(TextError::message(
                path,
                shown(part),
                "an object like {\"type\": \"text\", \"text\": ...}",
            ));
        };
        match part.get("type") {
            Some(Value::String(kind)) if kind == "text" => match part.get("text") {
                Some(Value::String(_)) => {}
                other => {
                    let found = shown_option(other);
                    return Err(TextError::message(format!("{path}.text"), found, "a string"));
                }
            },
            Some(Value::String(kind)) if role != "system" && MEDIA_PARTS.contains(&kind.as_str()) => {}
            other => {
                let found = shown_option(other);
                return Err(TextError::message(format!("{path}.type"), found, "\"text\""));
            }
        }
    }
    Ok(())
}

/// Text of checked content: a string, or its text parts one after the other.
fn text_of(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect()
        }
        _ => String::new(),
    }
}

/// The leading system messages as one. A single one keeps its text, blank or not.
fn merge_leading_system(messages: &mut Vec<Value>) {
    let count = messages.iter().take_while(|m| is_system(m)).count();
    if count < 2 {
        return;
    }
    let texts: Vec<String> = messages
        .drain(..count)
        .map(|message| text_of(message.get("content")))
        .filter(|text| !text.chars().all(is_space))
        .collect();
    messages.insert(0, json!({ "role": "system", "content": texts.join("\n\n") }));
}

fn is_system(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("system")
}

/// System turns taken out of a chat, to be put back into the rendered text.
#[derive(Debug, Default)]
pub(crate) struct SystemTurns {
    /// (stand-in content, the system message's text), in order.
    turns: Vec<(String, String)>,
}

/// Replaces system messages after the first message by user messages that stand in for them.
///
/// The stand-in's content is wrapped in `<tool_response>`: Qwen's template does not take such a user message for a
/// question, so which reasoning it keeps does not change, and renders its content as it is.
pub(crate) fn place_system_turns(messages: &mut [Value]) -> SystemTurns {
    let mut turns = SystemTurns::default();
    if !messages.iter().skip(1).any(is_system) {
        return turns;
    }
    let mut mark = "\u{e000}system-turn".to_string();
    let whole = Value::Array(messages.to_vec()).to_string();
    while whole.contains(&mark) {
        mark.push('\u{e000}');
    }
    for message in messages.iter_mut().skip(1).filter(|m| is_system(m)) {
        let stand_in = format!("<tool_response>{mark}-{}</tool_response>", turns.turns.len());
        turns.turns.push((stand_in.clone(), text_of(message.get("content"))));
        *message = json!({ "role": "user", "content": stand_in });
    }
    turns
}

/// Replaces the rendered stand-ins by system turns: `<|im_start|>system\n...<|im_end|>\n`, the text stripped as
/// templates strip it.
pub(crate) fn restore_system_turns(rendered: String, turns: &SystemTurns) -> Result<String, TextError> {
    let mut text = rendered;
    for (stand_in, system) in &turns.turns {
        let user_turn = format!("<|im_start|>user\n{stand_in}<|im_end|>\n");
        let Some(at) = text.find(&user_turn) else {
            return Err(TextError::Render {
                line: None,
                message: "a system message after the first turn cannot be placed: the template does not write turns \
                          as <|im_start|>role ... <|im_end|>; put system messages first"
                    .to_string(),
            });
        };
        let stripped = system.trim_matches(is_space);
        text.replace_range(at..at + user_turn.len(), &format!("<|im_start|>system\n{stripped}<|im_end|>\n"));
    }
    Ok(text)
}

/// A value as an error shows it: JSON, shortened.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => format!("a list, {}", shown_text(&value.to_string())),
        Value::Object(_) => format!("an object, {}", shown_text(&value.to_string())),
        _ => shorten(&value.to_string()),
    }
}

fn shown_option(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".to_string(), shown)
}

fn shown_text(text: &str) -> String {
    shorten(text)
}

/// At most 60 characters.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}
