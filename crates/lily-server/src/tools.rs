//! The tools a request offers and which of them it wants called, in the form all APIs share.

use lily_text::ToolSet;
use serde_json::{Map, Value, json};

use crate::{error::ApiError, fields::shown, grammar::Grammar};

/// Most functions a request may offer (OpenAI's limit).
const MAX_TOOLS: usize = 128;
/// Longest function name (OpenAI's limit is 64; some clients prefix theirs).
const MAX_NAME: usize = 128;

/// The functions offered.
#[derive(Debug, Default)]
pub(crate) struct Offered {
    set: ToolSet,
    /// As the template shows them: `{"type": "function", "function": {"name", "description", "parameters"}}`.
    definitions: Vec<Value>,
    /// A function's arguments must keep to their schema.
    strict: bool,
}

/// A function as a request describes it, whatever the API; the paths are for errors.
pub(crate) struct Declared<'a> {
    /// Path of the object that holds the name and the description.
    pub(crate) path: &'a str,
    pub(crate) name: Option<&'a Value>,
    pub(crate) description: Option<&'a Value>,
    pub(crate) parameters: Option<&'a Value>,
    /// What the API calls the parameters' schema.
    pub(crate) schema_field: &'a str,
    pub(crate) strict: Option<&'a Value>,
}

/// Which functions must be called.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Choice {
    Auto,
    None,
    /// At least one, of these or (empty) of all.
    Required(Vec<String>),
    /// Any or none of these.
    Allowed(Vec<String>),
}

/// What follows from tools, choice and the answer's format.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Functions whose calls are looked for.
    pub(crate) set: ToolSet,
    /// Definitions the template shows; `None`: none.
    pub(crate) definitions: Option<Vec<Value>>,
    pub(crate) answer: Option<(Grammar, String)>,
    pub(crate) calls: Option<(Grammar, String)>,
    pub(crate) max_tool_calls: Option<usize>,
}

impl Offered {
    /// Refuses more tools than there may be.
    pub(crate) fn check_count(n: usize) -> Result<(), ApiError> {
        if n <= MAX_TOOLS {
            return Ok(());
        }
        Err(ApiError::invalid("tools", format!("{n} tools; at most {MAX_TOOLS} are allowed")))
    }

    /// Checks and adds a function.
    pub(crate) fn add(&mut self, tool: &Declared) -> Result<(), ApiError> {
        let at = |field: &str| format!("{}.{field}", tool.path);
        let name = match tool.name {
            Some(Value::String(name)) => name,
            found => {
                let found = found.map_or_else(|| "nothing".to_string(), shown);
                return Err(ApiError::invalid(
                    at("name"),
                    format!("found {found}; expected the function's name"),
                ));
            }
        };
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(legal) {
            let found = shown(&Value::from(name.as_str()));
            return Err(ApiError::invalid(
                at("name"),
                format!("found {found}; expected 1 to {MAX_NAME} letters, digits, or any of _ - . : /"),
            ));
        }
        if self.set.contains(name) {
            return Err(ApiError::invalid(at("name"), format!("two functions are called {name:?}")));
        }
        let parameters = tool.parameters.filter(|p| !p.is_null());
        if let Some(parameters) = parameters.filter(|p| !p.is_object()) {
            return Err(ApiError::invalid(
                at(tool.schema_field),
                format!("found {}; expected a JSON Schema object", shown(parameters)),
            ));
        }
        let description = tool.description.filter(|d| !d.is_null());
        if let Some(text) = description.filter(|d| !d.is_string()) {
            return Err(ApiError::invalid(
                at("description"),
                format!("found {}; expected a string", shown(text)),
            ));
        }
        match tool.strict {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) => self.strict = true,
            Some(other) => {
                return Err(ApiError::invalid(
                    at("strict"),
                    format!("found {}; expected true or false", shown(other)),
                ));
            }
        }
        self.set.add(name, parameters);
        let mut function = Map::from_iter([("name".to_string(), json!(name))]);
        function.extend(description.map(|d| ("description".to_string(), d.clone())));
        function.extend(parameters.map(|p| ("parameters".to_string(), p.clone())));
        self.definitions.push(json!({"type": "function", "function": function}));
        Ok(())
    }

    /// The functions of these names; an error names one that was not offered.
    fn only(&self, names: &[String], path: &str) -> Result<ToolSet, ApiError> {
        if names.is_empty() {
            return Ok(self.set.clone());
        }
        let mut set = ToolSet::default();
        for name in names {
            let Some((name, schema)) = self.set.iter().find(|(n, _)| n == name) else {
                return Err(ApiError::invalid(path, format!("{name:?} is not among the tools offered")));
            };
            set.add(name, Some(schema).filter(|s| !s.is_null()));
        }
        Ok(set)
    }

    /// What tools, choice, `parallel` calls and the answer's grammar (`format`) come to. `path`: the choice's field.
    pub(crate) fn plan(
        self,
        choice: &Choice,
        path: &str,
        parallel: bool,
        format: Option<(Grammar, String)>,
    ) -> Result<Plan, ApiError> {
        let many = parallel;
        let max_tool_calls = (!parallel).then_some(1);
        if self.set.is_empty() || *choice == Choice::None {
            if let Choice::Required(_) | Choice::Allowed(_) = choice {
                return Err(ApiError::invalid(
                    path,
                    format!("`{path}` asks for a call, but no tools are offered"),
                ));
            }
            return Ok(Plan { answer: format, ..Plan::default() });
        }
        let mut plan = Plan { answer: format, max_tool_calls, ..Plan::default() };
        match choice {
            Choice::Required(names) => {
                // A call must come, so there is no answer to format.
                let tools = self.only(names, path)?;
                plan.set = tools.clone();
                plan.answer = Some((Grammar::Calls { tools, many }, "tools".to_string()));
            }
            Choice::Auto | Choice::Allowed(_) | Choice::None => {
                plan.set = match choice {
                    Choice::Allowed(names) => self.only(names, path)?,
                    _ => self.set.clone(),
                };
                let tools = plan.set.clone();
                plan.answer = match plan.answer.take() {
                    None => None,
                    Some((Grammar::JsonObject, path)) => {
                        Some((Grammar::JsonOrCalls { schema: json!({"type": "object"}), tools, many }, path))
                    }
                    Some((Grammar::JsonSchema(schema), path)) => {
                        Some((Grammar::JsonOrCalls { schema, tools, many }, path))
                    }
                    Some((_, path)) => {
                        return Err(ApiError::unsupported(
                            path.clone(),
                            format!(
                                "`{path}` together with tools is only supported for JSON; send one of them"
                            ),
                        ));
                    }
                };
                if self.strict && plan.answer.is_none() {
                    plan.calls = Some((Grammar::RestOfCall(plan.set.clone()), "tools".to_string()));
                }
            }
        }
        plan.definitions = Some(self.definitions);
        Ok(plan)
    }
}

/// `tool_choice` of OpenAI's two APIs. `name_of` finds the name in an object of type `function`.
pub(crate) fn openai_choice(
    choice: Option<&Value>,
    name_of: impl Fn(&Value) -> Option<&Value>,
) -> Result<Choice, ApiError> {
    let path = "tool_choice";
    let expected = "\"auto\", \"none\", \"required\" or {\"type\": \"function\", ...}";
    match choice {
        None => Ok(Choice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Ok(Choice::Required(Vec::new())),
            other => Err(ApiError::invalid(path, format!("found {other:?}; expected {expected}"))),
        },
        Some(object @ Value::Object(fields)) => match fields.get("type").and_then(Value::as_str) {
            Some("function") => match name_of(object).and_then(Value::as_str) {
                Some(name) => Ok(Choice::Required(vec![name.to_string()])),
                None => Err(ApiError::invalid(
                    path,
                    format!("found {}; the function's name is missing", shown(object)),
                )),
            },
            Some("allowed_tools") => {
                // The chat API has the list one level deeper.
                let inner = fields.get("allowed_tools").unwrap_or(object);
                let tools = inner.get("tools").and_then(Value::as_array).filter(|t| !t.is_empty());
                let names: Option<Vec<String>> =
                    tools.map(|t| t.iter().filter_map(|t| Some(name_of(t)?.as_str()?.to_string())).collect());
                match (inner.get("mode").and_then(Value::as_str), names) {
                    (Some("auto"), Some(names)) => Ok(Choice::Allowed(names)),
                    (Some("required"), Some(names)) => Ok(Choice::Required(names)),
                    _ => Err(ApiError::invalid(
                        path,
                        format!("found {}; expected `mode` (auto or required) and `tools`", shown(object)),
                    )),
                }
            }
            _ => Err(ApiError::invalid(path, format!("found {}; expected {expected}", shown(object)))),
        },
        Some(other) => Err(ApiError::invalid(path, format!("found {}; expected {expected}", shown(other)))),
    }
}
