//! A parameter's text as the JSON type its schema names.

use serde_json::Value;

use super::json::{minified, quoted};

/// Schemas refer to each other (`$ref`) and nest (`anyOf`); deeper ones count as saying nothing.
const MAX_DEPTH: usize = 16;

/// What a schema says of a value written as text.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Typing {
    /// JSON types allowed, as far as the schema names them.
    types: Vec<String>,
    /// Values of `enum` and `const` that are not strings.
    values: Vec<Value>,
}

impl Typing {
    /// Any text: the value is a string as it stands.
    pub(crate) fn text() -> Self {
        Self::default()
    }

    /// What `schema` says; `root` is where its local references (`#/$defs/...`) point into.
    pub(crate) fn of(schema: &Value, root: &Value) -> Self {
        let mut typing = Self::default();
        typing.collect(schema, root, 0);
        typing
    }

    /// Whether the value can only be a string, so that it can be passed on while it is written.
    pub(crate) fn is_text(&self) -> bool {
        self.values.is_empty() && self.types.iter().all(|t| t == "string")
    }

    /// The JSON text of a value: of the type named, or a string when the text does not fit one. Numbers, lists and
    /// objects stay as they were written, but for blanks.
    pub(crate) fn json(&self, text: &str) -> String {
        if self.is_text() {
            return quoted(text);
        }
        let trimmed = text.trim();
        // Models trained on Python write its words.
        let written = match trimmed {
            "True" if self.allows("boolean") => "true",
            "False" if self.allows("boolean") => "false",
            "None" if self.allows("null") => "null",
            other => other,
        };
        match serde_json::from_str::<Value>(written) {
            Ok(value) if self.fits(&value) => minified(written),
            _ => quoted(text),
        }
    }

    fn allows(&self, name: &str) -> bool {
        self.types.iter().any(|t| t == name)
    }

    /// Types other than string: a string stays as it was written, quotes and all.
    fn fits(&self, value: &Value) -> bool {
        self.values.contains(value)
            || self.types.iter().any(|name| match name.as_str() {
                "integer" => {
                    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|f| f.fract() == 0.0)
                }
                "number" => value.is_number(),
                "boolean" => value.is_boolean(),
                "null" => value.is_null(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                _ => false,
            })
    }

    fn collect(&mut self, schema: &Value, root: &Value, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#')) {
            if let Some(target) = root.pointer(target) {
                self.collect(target, root, depth + 1);
            }
            return;
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.types.push(name.clone()),
            Some(Value::Array(names)) => {
                self.types.extend(names.iter().filter_map(Value::as_str).map(String::from));
            }
            _ => {
                for (key, name) in [("properties", "object"), ("items", "array")] {
                    if schema.get(key).is_some() {
                        self.types.push(name.to_string());
                    }
                }
                let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
                self.values.extend(listed.chain(schema.get("const")).filter(|v| !v.is_string()).cloned());
            }
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            for branch in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
                self.collect(branch, root, depth + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_becomes_what_the_schema_names() {
        let root = json!({"$defs": {
            "Unit": {"enum": ["C", "F"], "type": "string"},
            "Point": {"type": "object", "properties": {"x": {"type": "number"}}},
            "Loop": {"$ref": "#/$defs/Loop"},
        }});
        for (schema, text, expected) in [
            (json!({"type": "string"}), "12", "\"12\""),
            (json!({}), "{\"a\": 1}", "\"{\\\"a\\\": 1}\""),
            (json!({"type": "integer"}), " 12 ", "12"),
            (json!({"type": "integer"}), "1.5", "\"1.5\""),
            (json!({"type": "integer"}), "123456789012345678901234", "123456789012345678901234"),
            (json!({"type": "number"}), "1.50", "1.50"),
            (json!({"type": "number"}), "one", "\"one\""),
            (json!({"type": "number"}), "NaN", "\"NaN\""),
            (json!({"type": "boolean"}), "True", "true"),
            (json!({"type": "string"}), "True", "\"True\""),
            (json!({"type": ["string", "null"]}), "null", "null"),
            (json!({"type": ["string", "null"]}), "None", "null"),
            (json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "None", "null"),
            (json!({"type": "array"}), "[1, \"a b\", {\"c\": null}]", "[1,\"a b\",{\"c\":null}]"),
            (json!({"items": {}}), "[ ]", "[]"),
            (json!({"type": "object"}), "[1]", "\"[1]\""),
            (json!({"type": "object"}), "{\"a\": ", "\"{\\\"a\\\": \""),
            (json!({"$ref": "#/$defs/Unit"}), "C", "\"C\""),
            (json!({"$ref": "#/$defs/Point"}), "{\"x\": 1}", "{\"x\":1}"),
            (json!({"$ref": "#/$defs/Loop"}), "1", "\"1\""),
            (json!({"$ref": "#/$defs/none"}), "1", "\"1\""),
            (json!({"allOf": [{"$ref": "#/$defs/Point"}]}), "{}", "{}"),
            (json!({"enum": [1, 2, "x"]}), "2", "2"),
            (json!({"enum": [1, 2, "x"]}), "3", "\"3\""),
            (json!({"enum": [1, 2, "x"]}), "x", "\"x\""),
            (json!({"const": true}), "true", "true"),
        ] {
            assert_eq!(Typing::of(&schema, &root).json(text), expected, "{schema} {text:?}");
        }
    }
}
