//! Tool calls in what the model writes.
//!
//! The format is the one the chat template teaches (Qwen3-Coder's XML-like form):
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! It is not XML: values are raw text and may hold markup, so this is a byte scanner. Only declared functions become
//! calls; whatever is not a call of one goes back out as the text it was. [`ToolScanner`] documents what it accepts.

mod json;
mod scanner;
mod tag;
mod typed;
mod value;

use std::sync::Arc;

use serde_json::{Map, Value};

pub use scanner::{ToolEvent, ToolScanner};

/// The functions a request offers. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolSet {
    functions: Arc<Vec<Function>>,
}

/// A declared function.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// JSON Schema of the parameters object.
    schema: Value,
}

impl ToolSet {
    /// Adds a function with the JSON Schema of its parameters (an object schema, or nothing).
    pub fn add(&mut self, name: &str, parameters: Option<&Value>) {
        let function =
            Function { name: name.to_string(), schema: parameters.cloned().unwrap_or(Value::Null) };
        Arc::make_mut(&mut self.functions).push(function);
    }

    /// From definitions in OpenAI's form (`{"type": "function", "function": {"name", "parameters"}}`), or the bare
    /// inner objects, or Anthropic's (`{"name", "input_schema"}`).
    pub fn from_definitions(tools: &[Value]) -> Result<Self, String> {
        let mut set = Self::default();
        for (i, tool) in tools.iter().enumerate() {
            let inner = tool.get("function").unwrap_or(tool);
            let name = match inner.get("name").and_then(Value::as_str) {
                Some(name) if !name.is_empty() => name,
                _ => return Err(format!("tools[{i}]: expected an object with the function's `name`")),
            };
            if set.contains(name) {
                return Err(format!("tools[{i}]: two functions are called {name:?}"));
            }
            set.add(name, inner.get("parameters").or_else(|| inner.get("input_schema")));
        }
        Ok(set)
    }

    /// Whether a function of this name was added.
    pub fn contains(&self, name: &str) -> bool {
        self.position(name).is_some()
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Names and parameter schemas (`null`: none given), in the order added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.functions.iter().map(|f| (f.name.as_str(), &f.schema))
    }

    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.functions.iter().position(|f| f.name == name)
    }

    pub(crate) fn get(&self, at: usize) -> &Function {
        &self.functions[at]
    }
}

impl Function {
    fn properties(&self) -> Option<&Map<String, Value>> {
        self.schema.get("properties").and_then(Value::as_object)
    }

    /// Whether the schema names this parameter.
    pub(crate) fn declares(&self, key: &str) -> bool {
        self.properties().is_some_and(|p| p.contains_key(key))
    }

    /// How the text of this parameter's value becomes JSON.
    pub(crate) fn typing(&self, key: &str) -> typed::Typing {
        match self.properties().and_then(|p| p.get(key)) {
            Some(schema) => typed::Typing::of(schema, &self.schema),
            None => typed::Typing::text(),
        }
    }
}
