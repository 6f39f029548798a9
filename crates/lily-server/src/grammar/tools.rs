//! Grammars of tool calls, in the form the chat template teaches.

use std::fmt::Write as _;

use lily_text::ToolSet;
use serde_json::{Map, Value, json};

use super::{GrammarError, check_size, compact};

/// A text as a Lark literal.
pub(super) fn literal(text: &str) -> String {
    // JSON's escapes are Lark's, but for those of control characters.
    Value::from(text).to_string()
}

/// One call, or one and more.
pub(super) fn calls(tools: &ToolSet, many: bool) -> Result<String, GrammarError> {
    let more = if many { " (\"\\n\" call)*" } else { "" };
    grammar(tools, &format!("start: call{more}\ncall: <tool_call> rest\n"))
}

/// An answer in JSON, or calls.
pub(super) fn json_or_calls(schema: &Value, tools: &ToolSet, many: bool) -> Result<String, GrammarError> {
    let more = if many { " (\"\\n\" call)*" } else { "" };
    grammar(tools, &format!("start: answer | call{more}\nanswer: %json {schema}\ncall: <tool_call> rest\n"))
}

/// A call after its `<tool_call>`.
pub(super) fn rest_of_call(tools: &ToolSet) -> Result<String, GrammarError> {
    grammar(tools, "start: rest\n")
}

fn grammar(tools: &ToolSet, start: &str) -> Result<String, GrammarError> {
    if tools.is_empty() {
        return Err(GrammarError("a tool call needs at least one tool".to_string()));
    }
    let mut out = start.to_string();
    let names: Vec<String> = (0..tools.iter().count()).map(|i| format!("f{i}")).collect();
    let _ = writeln!(out, "rest: \"\\n\" ({}) \"\\n\" </tool_call>", names.join(" | "));
    // Ends at the first closer on a line of its own.
    out.push_str("text[lazy]: /(.|\\n)*\\n<\\/parameter>\\n/\n");
    for (i, (name, schema)) in tools.iter().enumerate() {
        function(&mut out, i, name, schema);
    }
    check_size(&out)?;
    Ok(out)
}

/// Parameters come in the schema's order; those that are not required may be left out.
fn function(out: &mut String, i: usize, name: &str, schema: &Value) {
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut rule = format!("f{i}: {}", literal(&format!("<function={name}>\n")));
    let mut parameters = String::new();
    for (j, (key, property)) in properties.iter().enumerate() {
        let optional = if required.contains(&key.as_str()) { "" } else { "?" };
        let _ = write!(rule, " p{i}_{j}{optional}");
        let open = literal(&format!("<parameter={key}>\n"));
        let _ = writeln!(parameters, "p{i}_{j}: {open} {}", value(property, schema));
    }
    let _ = writeln!(out, "{rule} \"</function>\"\n{parameters}");
}

/// A value and its closer: raw text for strings, JSON for everything else.
fn value(property: &Value, root: &Value) -> String {
    let close = literal("\n</parameter>\n");
    let resolved = resolve(property, root);
    if let Some(Value::Array(values)) = resolved.get("enum")
        && !values.is_empty()
    {
        let texts: Vec<String> = values.iter().map(|v| literal(&plain(v))).collect();
        return format!("({}) {close}", texts.join(" | "));
    }
    if let Some(value) = resolved.get("const") {
        return format!("{} {close}", literal(&plain(value)));
    }
    if may_be_text(resolved, root, 0) {
        return "text".to_string();
    }
    let mut schema = resolved.as_object().cloned().unwrap_or_default();
    for key in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(key) {
            schema.entry(key).or_insert_with(|| definitions.clone());
        }
    }
    format!("%json {} {close}", compact(&json!(schema)))
}

/// A value as the template writes it.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

fn resolve<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..16 {
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#'));
        match target.and_then(|t| root.pointer(t)) {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

/// Whether the schema allows strings, which are written without quotes.
fn may_be_text(schema: &Value, root: &Value, depth: usize) -> bool {
    let schema = resolve(schema, root);
    let branches = |key: &str| schema.get(key).and_then(Value::as_array).into_iter().flatten();
    match schema.get("type") {
        Some(Value::String(name)) => name == "string",
        Some(Value::Array(names)) => names.iter().any(|n| n == "string"),
        _ if depth > 8 => true,
        _ => {
            let mut any = branches("anyOf").chain(branches("oneOf")).chain(branches("allOf")).peekable();
            if any.peek().is_none() {
                return schema.get("properties").is_none() && schema.get("items").is_none();
            }
            any.any(|branch| may_be_text(branch, root, depth + 1))
        }
    }
}
