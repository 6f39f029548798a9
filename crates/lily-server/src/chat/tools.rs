//! The `tools` and `tool_choice` of a request.

use serde_json::Value;

use super::{
    messages::shown,
    neutral::{self, Allowed},
};
use crate::{error::ApiError, tools::ToolSet};

/// Most functions a request may offer (OpenAI's limit).
const MAX_TOOLS: usize = 128;
/// Longest function name (OpenAI's limit is 64; some clients prefix theirs).
const MAX_NAME: usize = 128;

/// Fields of a tool beside `type` and `function`. Prompt caching needs no hint here.
const TOOL: &[(&str, Allowed)] = &[("cache_control", Allowed::Anything)];

/// Constrained arguments need a grammar, which this server does not have.
const FUNCTION: &[(&str, Allowed)] = &[("strict", Allowed::Only("false"))];

/// Checks the offered tools. Returns the functions whose calls are looked for, and the definitions the template
/// shows.
pub fn read(
    tools: Option<Vec<Value>>,
    choice: Option<&Value>,
) -> Result<(ToolSet, Option<Vec<Value>>), ApiError> {
    let mut tools = tools.unwrap_or_default();
    if tools.len() > MAX_TOOLS {
        return Err(ApiError::invalid(
            "tools",
            format!("{} tools; at most {MAX_TOOLS} are allowed", tools.len()),
        ));
    }
    let mut set = ToolSet::default();
    for (i, tool) in tools.iter_mut().enumerate() {
        add(&mut set, &format!("tools[{i}]"), tool)?;
        if let Some(fields) = tool.as_object_mut() {
            fields.retain(|key, _| matches!(key.as_str(), "type" | "function"));
        }
    }
    if allowed(choice)? && !set.is_empty() { Ok((set, Some(tools))) } else { Ok((ToolSet::default(), None)) }
}

/// Whether the model may call tools. Forcing a call needs a grammar and is refused.
fn allowed(choice: Option<&Value>) -> Result<bool, ApiError> {
    let path = "tool_choice";
    match choice {
        None => Ok(true),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(true),
            "none" => Ok(false),
            "required" => Err(ApiError::unsupported(
                path,
                "tool_choice \"required\" is not supported; use \"auto\" or \"none\"",
            )),
            other => Err(ApiError::invalid(path, format!("found {other:?}; expected \"auto\" or \"none\""))),
        },
        Some(Value::Object(_)) => Err(ApiError::unsupported(
            path,
            "choosing a tool by name is not supported; use \"auto\" or \"none\"",
        )),
        Some(other) => {
            Err(ApiError::invalid(path, format!("found {}; expected \"auto\" or \"none\"", shown(other))))
        }
    }
}

fn add(set: &mut ToolSet, path: &str, tool: &Value) -> Result<(), ApiError> {
    match tool.get("type").and_then(Value::as_str) {
        Some("function") => {}
        Some(other) => {
            return Err(ApiError::unsupported(
                format!("{path}.type"),
                format!("tools of type {other:?} are not supported; only \"function\" is"),
            ));
        }
        None => {
            return Err(ApiError::invalid(
                format!("{path}.type"),
                format!("found {}; expected an object of type \"function\"", shown(tool)),
            ));
        }
    }
    let rest =
        tool.as_object().into_iter().flatten().filter(|(k, _)| !matches!(k.as_str(), "type" | "function"));
    let rest = rest.map(|(k, v)| (k.clone(), v.clone())).collect();
    neutral::check(&format!("{path}."), &rest, TOOL)?;
    let Some(function) = tool.get("function").and_then(Value::as_object) else {
        return Err(ApiError::invalid(format!("{path}.function"), "expected an object with at least a name"));
    };
    let name_path = format!("{path}.function.name");
    let name = match function.get("name") {
        Some(Value::String(name)) => name,
        found => {
            let found = found.map_or_else(|| "nothing".to_string(), shown);
            return Err(ApiError::invalid(name_path, format!("found {found}; expected the function's name")));
        }
    };
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(legal) {
        let found = shown(&Value::from(name.as_str()));
        return Err(ApiError::invalid(
            name_path,
            format!("found {found}; expected 1 to {MAX_NAME} letters, digits, or any of _ - . : /"),
        ));
    }
    if set.contains(name) {
        return Err(ApiError::invalid(name_path, format!("two functions are called {name:?}")));
    }
    let parameters = function.get("parameters").filter(|p| !p.is_null());
    if let Some(parameters) = parameters.filter(|p| !p.is_object()) {
        return Err(ApiError::invalid(
            format!("{path}.function.parameters"),
            format!("found {}; expected a JSON Schema object", shown(parameters)),
        ));
    }
    if let Some(text) = function.get("description").filter(|d| !d.is_string() && !d.is_null()) {
        return Err(ApiError::invalid(
            format!("{path}.function.description"),
            format!("found {}; expected a string", shown(text)),
        ));
    }
    let rest = function.iter().filter(|(k, _)| !matches!(k.as_str(), "name" | "description" | "parameters"));
    let rest = rest.map(|(k, v)| (k.clone(), v.clone())).collect();
    neutral::check(&format!("{path}.function."), &rest, FUNCTION)?;
    set.add(name, parameters);
    Ok(())
}
