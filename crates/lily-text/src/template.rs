//! The checkpoint's chat template (Jinja2), rendered as Python's `transformers` renders it.
//!
//! `minijinja` with Python's methods on strings and maps, `trim_blocks` and `lstrip_blocks`, Python's `tojson`, `trim`
//! and `items`, and `raise_exception`.
//!
//! A template is a file from a stranger, so its instructions, the text it makes and its recursion are bounded. What the
//! engine does not count is printing or adding up lists that contain each other many times over: a template made for
//! it can still take long. Requests cannot bring templates, so only the owner of a checkpoint is concerned.

use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, State, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde, ValueKind},
};
use serde_json::Map;

use crate::{
    TextError,
    python::{JsonStyle, is_space, json_dumps},
};

/// Work one rendering may do, in `minijinja`'s units (an instruction, or 64 bytes of a new string): less than a second
/// and 640 MB of strings. A chat of 4,000 messages (2 MB) needs about a sixth of it.
const FUEL: u64 = 10_000_000;
/// Macro calls inside each other.
const RECURSION_LIMIT: usize = 100;
/// Name of the one template in its environment.
const NAME: &str = "chat_template";

/// What a template is rendered with.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RenderRequest {
    /// Chat messages, objects with `role`, `content`, ...
    pub messages: Vec<serde_json::Value>,
    /// Tool definitions in OpenAI's form. `None`: the template sees no `tools`.
    pub tools: Option<Vec<serde_json::Value>>,
    /// Template keywords: `add_generation_prompt`, `enable_thinking`, `preserve_thinking`, or any other the template
    /// knows. `messages` and `tools` are not allowed here.
    pub kwargs: Map<String, serde_json::Value>,
}

/// A compiled chat template. Safe to share between threads.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

/// Marks the error of a template's own `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles a template.
    pub fn new(source: &str) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| render_error(&e))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(python_method);
        environment.add_filter("tojson", tojson);
        environment.add_filter("trim", trim);
        environment.add_filter("items", items);
        environment.add_function("raise_exception", raise_exception);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_LIMIT);
        environment.add_template_owned(NAME, source.to_string()).map_err(|e| TextError::File {
            file: "chat_template.jinja",
            reason: format!(
                "line {}: {}",
                e.line().unwrap_or(0),
                e.detail().map_or_else(|| e.kind().to_string(), str::to_string)
            ),
        })?;
        Ok(Self { environment })
    }

    /// Gives the template a variable in every rendering, as `transformers` does with `bos_token`, `eos_token`, ...
    /// A keyword of the same name wins.
    pub fn set_global(&mut self, name: &str, value: &str) {
        self.environment.add_global(name.to_string(), value.to_string());
    }

    /// Whether the template reads a variable of this name from outside: a keyword it does not read has no effect.
    /// Its functions and the variables set for it are not keywords.
    pub fn reads(&self, name: &str) -> bool {
        !self.environment.globals().any(|(global, _)| global == name)
            && self.environment.get_template(NAME).is_ok_and(|t| t.undeclared_variables(false).contains(name))
    }

    /// Renders the messages as they are. What the template refuses by `raise_exception` is a [`TextError::Template`]
    /// with the template's own words.
    pub fn render(&self, request: &RenderRequest) -> Result<String, TextError> {
        let mut context = serde_json::Map::new();
        for (name, value) in &request.kwargs {
            if name == "messages" || name == "tools" {
                return Err(TextError::message(
                    name.clone(),
                    "a template keyword of this name",
                    format!("`{name}` outside the template keywords"),
                ));
            }
            context.insert(name.clone(), value.clone());
        }
        let variables = Value::from(Serde(&Variables {
            keywords: &context,
            messages: &request.messages,
            tools: request.tools.as_deref(),
        }));
        // Arithmetic or allocation a template provokes inside the engine must not take the process down.
        let rendered = catch_unwind(AssertUnwindSafe(|| {
            self.environment.get_template(NAME).and_then(|template| template.render(variables))
        }));
        match rendered {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(error)) => Err(render_error(&error)),
            Err(_) => Err(TextError::Render {
                line: None,
                message: "the template engine gave up; the template asks for something impossible"
                    .to_string(),
            }),
        }
    }
}

/// The template's variables without copying messages.
#[derive(serde::Serialize)]
struct Variables<'a> {
    #[serde(flatten)]
    keywords: &'a serde_json::Map<String, serde_json::Value>,
    messages: &'a [serde_json::Value],
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a [serde_json::Value]>,
}

/// Our error of a failed rendering: `raise_exception`'s words if it was that, wherever in the chain.
fn render_error(error: &Error) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TextError::Template { message: message.clone() };
        }
        cause = current.source();
    }
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    TextError::Render { line: error.line(), message }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// `value|tojson`, with `json.dumps`'s keyword arguments; a first positional argument is the indent.
fn tojson(state: &State, value: &Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let kwargs = match indent {
        Some(indent) => Kwargs::from_iter([("indent", indent)]),
        None => kwargs,
    };
    Ok(Value::from(json_dumps(state, value, &JsonStyle::from_kwargs(&kwargs)?)?))
}

/// `value|trim`: Python's `str.strip`, of white space or of the given characters.
fn trim(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => Ok(strip(text, chars, true, true).to_string()),
        (None, ValueKind::Undefined | ValueKind::None | ValueKind::Bool | ValueKind::Number) => {
            Ok(strip(&value.to_string(), chars, true, true).to_string())
        }
        (None, kind) => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("trim: found a {kind}, expected text")))
        }
    }
}

/// `value|items`: (key, value) pairs of a mapping; nothing of an undefined value; an error in Jinja2's words for all
/// else.
fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() || value.kind() == ValueKind::Map {
        return minijinja::filters::items(value);
    }
    Err(Error::new(ErrorKind::InvalidOperation, "Can only get item pairs from a mapping."))
}

/// Python's string methods where white space matters; the rest is `minijinja-contrib`'s.
fn python_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let (Some(text), "strip" | "lstrip" | "rstrip") = (value.as_str(), method) {
        let (chars,): (Option<&str>,) = minijinja::value::from_args(args)?;
        return Ok(Value::from(strip(text, chars, method != "rstrip", method != "lstrip")));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// Removes white space (or the given characters) from the start, the end, or both.
fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let unwanted = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(unwanted) } else { text };
    if end { text.trim_end_matches(unwanted) } else { text }
}
