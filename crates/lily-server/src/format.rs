//! The form an answer must have: `response_format` and its relatives, as grammars.

use serde_json::Value;

use crate::{
    error::ApiError,
    fields::{self, Allowed, shown},
    grammar::Grammar,
};

/// The fields of a chat or completion request that ask for a form. At most one may.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ChatFields<'a> {
    /// OpenAI's.
    pub(crate) response_format: Option<&'a Value>,
    /// vLLM's present field and its former ones.
    pub(crate) structured_outputs: Option<&'a Value>,
    pub(crate) guided_json: Option<&'a Value>,
    pub(crate) guided_regex: Option<&'a Value>,
    pub(crate) guided_choice: Option<&'a Value>,
    pub(crate) guided_grammar: Option<&'a Value>,
}

type Format = Option<(Grammar, String)>;

/// The grammar that the fields ask for, with the path of the field.
pub(crate) fn chat(asked: &ChatFields) -> Result<Format, ApiError> {
    let mut found: Format = None;
    let mut add = |format: Format| match (&found, format) {
        (_, None) => Ok(()),
        (Some((_, first)), Some((_, second))) => Err(ApiError::invalid(
            second.clone(),
            format!("`{second}` and `{first}` both say what the answer must look like; send one of them"),
        )),
        (None, format) => {
            found = format;
            Ok(())
        }
    };
    add(response_format(asked.response_format, "response_format")?)?;
    for (path, value, kind) in [
        ("guided_json", asked.guided_json, "json"),
        ("guided_regex", asked.guided_regex, "regex"),
        ("guided_choice", asked.guided_choice, "choice"),
        ("guided_grammar", asked.guided_grammar, "grammar"),
    ] {
        if let Some(value) = value.filter(|v| !v.is_null()) {
            add(Some((guided(path, kind, value)?, path.to_string())))?;
        }
    }
    for (kind, value) in asked.structured_outputs.and_then(Value::as_object).into_iter().flatten() {
        let path = format!("structured_outputs.{kind}");
        match kind.as_str() {
            _ if value.is_null() => {}
            "json" | "regex" | "choice" | "grammar" => {
                let grammar = guided(&path, kind, value)?;
                add(Some((grammar, path)))?;
            }
            "json_object" if *value == Value::Bool(true) => add(Some((Grammar::JsonObject, path)))?,
            "json_object" if *value == Value::Bool(false) => {}
            "disable_fallback" | "disable_any_whitespace" | "disable_additional_properties"
                if value.is_boolean() => {}
            _ => {
                return Err(ApiError::unsupported(
                    path.clone(),
                    format!("`{path}` is not supported; send json, regex, choice, grammar or json_object"),
                ));
            }
        }
    }
    if let Some(other) = asked.structured_outputs.filter(|v| !v.is_object() && !v.is_null()) {
        return Err(ApiError::invalid(
            "structured_outputs",
            format!("found {}; expected an object", shown(other)),
        ));
    }
    Ok(found)
}

/// `{"type": "text" | "json_object" | "json_schema"}`, where the schema is in a `json_schema` object (chat) or beside
/// the type (responses).
pub(crate) fn response_format(format: Option<&Value>, path: &str) -> Result<Format, ApiError> {
    let Some(format) = format.filter(|f| !f.is_null()) else { return Ok(None) };
    let prefix = format!("{path}.");
    match format.get("type").and_then(Value::as_str) {
        Some("text") => {
            fields::check_others(&prefix, format, &["type"], &[])?;
            Ok(None)
        }
        Some("json_object") => {
            // llama.cpp and others take a schema here too.
            fields::check_others(&prefix, format, &["type", "schema"], &[])?;
            let grammar = match format.get("schema").filter(|s| !s.is_null()) {
                Some(schema) => Grammar::JsonSchema(check_schema(schema, &format!("{prefix}schema"))?),
                None => Grammar::JsonObject,
            };
            Ok(Some((grammar, path.to_string())))
        }
        Some("json_schema") => {
            let (holder, prefix) = match format.get("json_schema") {
                Some(inner) => {
                    fields::check_others(&prefix, format, &["type", "json_schema"], &[])?;
                    (inner, format!("{prefix}json_schema."))
                }
                None => (format, prefix),
            };
            let labels = [("name", Allowed::Anything), ("description", Allowed::Anything)];
            fields::check_others(&prefix, holder, &["type", "schema", "strict"], &labels)?;
            let strict = holder.get("strict").filter(|s| !s.is_null() && !s.is_boolean());
            if let Some(other) = strict {
                return Err(ApiError::invalid(
                    format!("{prefix}strict"),
                    format!("found {}; expected true or false", shown(other)),
                ));
            }
            let schema_path = format!("{prefix}schema");
            let Some(schema) = holder.get("schema").filter(|s| !s.is_null()) else {
                return Err(ApiError::invalid(schema_path.clone(), format!("`{schema_path}` is missing")));
            };
            // Not strict would mean "may differ"; keeping to the schema is right in both.
            Ok(Some((Grammar::JsonSchema(check_schema(schema, &schema_path)?), schema_path)))
        }
        Some("regex") => {
            let path = format!("{prefix}pattern");
            let pattern = format.get("pattern").unwrap_or(&Value::Null);
            Ok(Some((guided(&path, "regex", pattern)?, path)))
        }
        Some(other) => Err(ApiError::unsupported(
            format!("{prefix}type"),
            format!("a format of type {other:?} is not supported; send text, json_object or json_schema"),
        )),
        None => Err(ApiError::invalid(
            format!("{prefix}type"),
            format!("found {}; expected an object with a `type`", shown(format)),
        )),
    }
}

fn check_schema(schema: &Value, path: &str) -> Result<Value, ApiError> {
    if schema.is_object() || schema.is_boolean() {
        return Ok(schema.clone());
    }
    Err(ApiError::invalid(path, format!("found {}; expected a JSON Schema", shown(schema))))
}

fn guided(path: &str, kind: &str, value: &Value) -> Result<Grammar, ApiError> {
    let text = || match value {
        Value::String(text) if !text.is_empty() => Ok(text.clone()),
        other => Err(ApiError::invalid(path, format!("found {}; expected a text", shown(other)))),
    };
    match kind {
        "json" => {
            // A schema may come as its text.
            let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
            Ok(Grammar::JsonSchema(check_schema(parsed.as_ref().unwrap_or(value), path)?))
        }
        "regex" => text().map(Grammar::Regex),
        "grammar" => text().map(Grammar::Lark),
        _ => {
            let list = value.as_array().filter(|l| !l.is_empty());
            let texts: Option<Vec<String>> =
                list.and_then(|l| l.iter().map(|v| v.as_str().map(String::from)).collect());
            texts.map(Grammar::Choice).ok_or_else(|| {
                ApiError::invalid(path, format!("found {}; expected a list of texts", shown(value)))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn openai(format: &Value) -> Result<Format, ApiError> {
        chat(&ChatFields { response_format: Some(format), ..ChatFields::default() })
    }

    #[test]
    fn every_form_of_asking() {
        let schema = json!({"type": "object"});
        assert_eq!(openai(&json!({"type": "text"})).unwrap(), None);
        assert_eq!(openai(&json!({"type": "json_object"})).unwrap().unwrap().0, Grammar::JsonObject);
        let found = openai(
            &json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}}),
        );
        let (grammar, path) = found.unwrap().unwrap();
        assert_eq!(
            (grammar, path.as_str()),
            (Grammar::JsonSchema(schema.clone()), "response_format.json_schema.schema")
        );
        let flat = json!({"type": "json_schema", "name": "n", "schema": schema});
        let (_, path) = response_format(Some(&flat), "text.format").unwrap().unwrap();
        assert_eq!(path, "text.format.schema");
        let outputs = json!({"choice": ["a", "b"], "regex": null});
        let found = chat(&ChatFields { structured_outputs: Some(&outputs), ..ChatFields::default() });
        assert_eq!(found.unwrap().unwrap().0, Grammar::Choice(vec!["a".into(), "b".into()]));
        let text = json!("{\"type\": \"integer\"}");
        let found = chat(&ChatFields { guided_json: Some(&text), ..ChatFields::default() });
        assert_eq!(found.unwrap().unwrap().0, Grammar::JsonSchema(json!({"type": "integer"})));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (format, param) in [
            (json!("json"), "response_format.type"),
            (json!({"type": "xml"}), "response_format.type"),
            (json!({"type": "json_schema"}), "response_format.schema"),
            (
                json!({"type": "json_schema", "json_schema": {"name": "n"}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"type": "json_schema", "json_schema": {"schema": 3}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"type": "json_schema", "json_schema": {"schema": {}, "extra": 1}}),
                "response_format.json_schema.extra",
            ),
            (json!({"type": "regex", "pattern": ""}), "response_format.pattern"),
        ] {
            assert_eq!(openai(&format).unwrap_err().param.as_deref(), Some(param), "{format}");
        }
        let (format, regex) = (json!({"type": "json_object"}), json!("a+"));
        let both = chat(&ChatFields {
            response_format: Some(&format),
            guided_regex: Some(&regex),
            ..ChatFields::default()
        });
        assert_eq!(both.unwrap_err().param.as_deref(), Some("guided_regex"));
    }
}
