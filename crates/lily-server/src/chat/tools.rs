//! The `tools` and `tool_choice` of a chat request.

use serde_json::Value;

use crate::{
    error::ApiError,
    fields::{self, Allowed, shown},
    tools::{Declared, Offered},
};

/// Fields of a tool beside `type` and `function`. Prompt caching needs no hint here.
const TOOL: &[(&str, Allowed)] = &[("cache_control", Allowed::Anything)];

/// Checks the offered tools.
pub fn read(tools: Option<Vec<Value>>) -> Result<Offered, ApiError> {
    let tools = tools.unwrap_or_default();
    Offered::check_count(tools.len())?;
    let mut offered = Offered::default();
    for (i, tool) in tools.iter().enumerate() {
        add(&mut offered, &format!("tools[{i}]"), tool)?;
    }
    Ok(offered)
}

fn add(offered: &mut Offered, path: &str, tool: &Value) -> Result<(), ApiError> {
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
    fields::check_others(&format!("{path}."), tool, &["type", "function"], TOOL)?;
    let Some(function) = tool.get("function").filter(|f| f.is_object()) else {
        return Err(ApiError::invalid(format!("{path}.function"), "expected an object with at least a name"));
    };
    let path = format!("{path}.function");
    let known = ["name", "description", "parameters", "strict"];
    fields::check_others(&format!("{path}."), function, &known, &[])?;
    offered.add(&Declared {
        path: &path,
        name: function.get("name"),
        description: function.get("description"),
        parameters: function.get("parameters"),
        schema_field: "parameters",
        strict: function.get("strict"),
    })
}
