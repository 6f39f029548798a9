//! The walk over an OpenAI chat request: a closed list of fields.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{
    FieldRole, Refusal, RefusalKind,
    any::{Context, Visit, any, child, embedded, kind_of, string},
};

/// Fields for this server alone; they never leave.
pub(super) const LOCAL_ONLY: &[&str] = &["privacy"];

/// Numbers and switches: no text.
const SCALARS: &[&str] = &[
    "frequency_penalty",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "min_p",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "store",
    "stream",
    "temperature",
    "top_k",
    "top_logprobs",
    "top_p",
];

/// Free text or JSON of any shape, and the role of what is in it.
const FREE: &[(&str, FieldRole)] = &[
    ("chat_template_kwargs", FieldRole::Parameter),
    ("logit_bias", FieldRole::Parameter),
    ("metadata", FieldRole::Metadata),
    ("prompt_cache_key", FieldRole::Metadata),
    ("reasoning_effort", FieldRole::Parameter),
    ("response_format", FieldRole::Schema),
    ("safety_identifier", FieldRole::Metadata),
    ("service_tier", FieldRole::Parameter),
    ("stop", FieldRole::Parameter),
    ("stream_options", FieldRole::Parameter),
    ("user", FieldRole::Metadata),
    ("verbosity", FieldRole::Parameter),
    ("web_search_options", FieldRole::Parameter),
];

pub(super) fn walk(request: &mut Value, visit: Visit) -> Result<(), Refusal> {
    let request = as_object(request, "")?;
    let tools = tool_names(request);
    for (name, value) in request.iter_mut() {
        let path = child("", name);
        match name.as_str() {
            "messages" => {
                for (i, message) in as_array(value, &path)?.iter_mut().enumerate() {
                    self::message(message, &child(&path, &i.to_string()), &tools, visit)?;
                }
            }
            "model" => identifier(value, &path, visit)?,
            "tools" => {
                for (i, tool) in as_array(value, &path)?.iter_mut().enumerate() {
                    self::tool(tool, &child(&path, &i.to_string()), visit)?;
                }
            }
            "tool_choice" => {
                any(value, &path, 2, Context { role: FieldRole::Identifier, tool: None }, None, visit)?;
            }
            "prediction" => prediction(value, &path, visit)?,
            "modalities" => {
                let text_only = value.as_array().is_some_and(|all| all.iter().all(|m| m == "text"));
                if !text_only {
                    return Err(Refusal::new(RefusalKind::KeepLocal, &path, "only text can be checked"));
                }
            }
            "audio" => return Err(Refusal::new(RefusalKind::KeepLocal, &path, "audio cannot be checked")),
            scalar if SCALARS.contains(&scalar) => match value {
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
                other => {
                    let reason = format!("expected a number or a boolean, found {}", kind_of(other));
                    return Err(Refusal::new(RefusalKind::Malformed, &path, reason));
                }
            },
            local if LOCAL_ONLY.contains(&local) => {}
            other => match FREE.iter().find(|(known, _)| *known == other) {
                Some((_, role)) => any(value, &path, 2, Context { role: *role, tool: None }, None, visit)?,
                None => return Err(unknown(&path, "field")),
            },
        }
    }
    Ok(())
}

/// Which tool each call id names, over all messages: results carry the id only.
fn tool_names(request: &Map<String, Value>) -> HashMap<String, String> {
    let messages = request.get("messages").and_then(Value::as_array).into_iter().flatten();
    let calls = messages.filter_map(|m| m.get("tool_calls").and_then(Value::as_array)).flatten();
    calls
        .filter_map(|call| {
            let id = call.get("id")?.as_str()?;
            let function = call.get("function").or_else(|| call.get("custom"))?;
            Some((id.to_owned(), function.get("name")?.as_str()?.to_owned()))
        })
        .collect()
}

fn message(
    message: &mut Value,
    path: &str,
    tools: &HashMap<String, String>,
    visit: Visit,
) -> Result<(), Refusal> {
    let message = as_object(message, path)?;
    let role = match message.get("role").and_then(Value::as_str) {
        Some("system" | "developer") => FieldRole::System,
        Some("user") => FieldRole::User,
        Some("assistant") => FieldRole::Assistant,
        Some("tool") => FieldRole::ToolResult,
        Some(_) => return Err(unknown(&child(path, "role"), "role")),
        None => return Err(Refusal::new(RefusalKind::Malformed, path, "a message needs a `role`")),
    };
    let tool = message.get("tool_call_id").and_then(Value::as_str).and_then(|id| tools.get(id)).cloned();
    let context = Context { role, tool: tool.as_deref() };
    for (name, value) in message.iter_mut() {
        let path = child(path, name);
        if value.is_null() {
            // Clients send back every optional member of an answer as null.
            if MESSAGE_FIELDS.contains(&name.as_str()) {
                continue;
            }
            return Err(unknown(&path, "message field"));
        }
        match name.as_str() {
            "role" => {}
            "content" => content(value, &path, context, visit)?,
            "name" => string(value, &path, Context { role: FieldRole::Name, tool: None }, visit)?,
            "refusal" => string(value, &path, context, visit)?,
            "reasoning" | "reasoning_content" => {
                string(value, &path, Context { role: FieldRole::Reasoning, tool: None }, visit)?;
            }
            "annotations" => any(value, &path, 4, context, None, visit)?,
            "tool_call_id" => identifier(value, &path, visit)?,
            "tool_calls" => {
                for (i, call) in as_array(value, &path)?.iter_mut().enumerate() {
                    tool_call(call, &child(&path, &i.to_string()), visit)?;
                }
            }
            "audio" => return Err(Refusal::new(RefusalKind::KeepLocal, &path, "audio cannot be checked")),
            _ => return Err(unknown(&path, "message field")),
        }
    }
    Ok(())
}

const MESSAGE_FIELDS: &[&str] = &[
    "role",
    "content",
    "name",
    "refusal",
    "reasoning",
    "reasoning_content",
    "annotations",
    "tool_call_id",
    "tool_calls",
    "audio",
    "function_call",
];

fn content(value: &mut Value, path: &str, context: Context, visit: Visit) -> Result<(), Refusal> {
    if value.is_string() {
        return string(value, path, context, visit);
    }
    for (i, part) in as_array(value, path)?.iter_mut().enumerate() {
        let path = child(path, &i.to_string());
        let part = as_object(part, &path)?;
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let text = match kind.as_str() {
            "text" | "refusal" => kind.as_str(),
            "image_url" | "input_audio" | "file" | "image" | "video" | "video_url" | "audio" => {
                let reason = format!("{kind} parts cannot be checked; they can be answered on this machine");
                return Err(Refusal::new(RefusalKind::KeepLocal, &path, reason));
            }
            _ => return Err(unknown(&child(&path, "type"), "content part")),
        };
        for (name, value) in part.iter_mut() {
            match name.as_str() {
                "type" => {}
                name if name == text => string(value, &child(&path, name), context, visit)?,
                _ => return Err(unknown(&child(&path, name), "field of a content part")),
            }
        }
    }
    Ok(())
}

fn tool_call(call: &mut Value, path: &str, visit: Visit) -> Result<(), Refusal> {
    for (name, value) in as_object(call, path)?.iter_mut() {
        let path = child(path, name);
        match name.as_str() {
            "id" => identifier(value, &path, visit)?,
            "index" if value.is_number() => {}
            "type" if value == "function" || value == "custom" => {}
            "function" | "custom" => called(value, &path, visit)?,
            _ => return Err(unknown(&path, "field of a tool call")),
        }
    }
    Ok(())
}

fn called(function: &mut Value, path: &str, visit: Visit) -> Result<(), Refusal> {
    let function = as_object(function, path)?;
    let tool = function.get("name").and_then(Value::as_str).map(str::to_owned);
    let context = Context { role: FieldRole::ToolArgument, tool: tool.as_deref() };
    for (name, value) in function.iter_mut() {
        let path = child(path, name);
        match name.as_str() {
            "name" => identifier(value, &path, visit)?,
            "arguments" => embedded(value, &path, 6, context, visit)?,
            "input" => embedded(value, &path, 6, context, visit)?,
            _ => return Err(unknown(&path, "field of a called function")),
        }
    }
    Ok(())
}

fn tool(tool: &mut Value, path: &str, visit: Visit) -> Result<(), Refusal> {
    for (name, value) in as_object(tool, path)?.iter_mut() {
        let path = child(path, name);
        match name.as_str() {
            "type" if value == "function" || value == "custom" => {}
            "function" | "custom" => {
                let function = as_object(value, &path)?;
                let tool = function.get("name").and_then(Value::as_str).map(str::to_owned);
                let context = Context { role: FieldRole::Schema, tool: tool.as_deref() };
                for (name, value) in function.iter_mut() {
                    let path = child(&path, name);
                    match name.as_str() {
                        "name" => identifier(value, &path, visit)?,
                        "strict" if value.is_boolean() || value.is_null() => {}
                        "description" if value.is_null() => {}
                        "description" => string(value, &path, context, visit)?,
                        "parameters" | "format" => any(value, &path, 4, context, None, visit)?,
                        _ => return Err(unknown(&path, "field of a tool")),
                    }
                }
            }
            _ => return Err(unknown(&path, "field of a tool")),
        }
    }
    Ok(())
}

fn prediction(value: &mut Value, path: &str, visit: Visit) -> Result<(), Refusal> {
    if value.is_null() {
        return Ok(());
    }
    for (name, value) in as_object(value, path)?.iter_mut() {
        let path = child(path, name);
        match name.as_str() {
            "type" if value == "content" => {}
            "content" => {
                content(value, &path, Context { role: FieldRole::Parameter, tool: None }, visit)?;
            }
            _ => return Err(unknown(&path, "field of a prediction")),
        }
    }
    Ok(())
}

/// Longest identifier.
const MAX_IDENTIFIER: usize = 256;

/// A name or id: letters, digits and `_ . : / | -`, so that no prose travels in it.
fn identifier(value: &mut Value, path: &str, visit: Visit) -> Result<(), Refusal> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.:/|-".contains(c);
    match value.as_str() {
        Some(text) if text.len() <= MAX_IDENTIFIER && text.chars().all(allowed) => {
            string(value, path, Context { role: FieldRole::Identifier, tool: None }, visit)
        }
        _ => {
            let reason = format!(
                "expected a name of at most {MAX_IDENTIFIER} letters, digits and `_ . : / | -`, found {}",
                if value.is_string() { "another text" } else { kind_of(value) }
            );
            Err(Refusal::new(RefusalKind::Malformed, path, reason))
        }
    }
}

fn unknown(path: &str, what: &str) -> Refusal {
    Refusal::new(RefusalKind::Unknown, path, format!("unknown {what}; only known ones may leave"))
}

fn as_object<'a>(value: &'a mut Value, path: &str) -> Result<&'a mut Map<String, Value>, Refusal> {
    let reason = format!("expected an object, found {}", kind_of(value));
    value.as_object_mut().ok_or_else(|| Refusal::new(RefusalKind::Malformed, path, reason))
}

fn as_array<'a>(value: &'a mut Value, path: &str) -> Result<&'a mut Vec<Value>, Refusal> {
    let reason = format!("expected an array, found {}", kind_of(value));
    value.as_array_mut().ok_or_else(|| Refusal::new(RefusalKind::Malformed, path, reason))
}
