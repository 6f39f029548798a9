//! Tool calls: the functions a request declares, and the scanner that finds calls to them in what the model
//! writes.
//!
//! The format is the one the chat template teaches (Qwen3-Coder's XML-like form, `chat_template.jinja`):
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
//! It is not XML: values are raw text and may hold markup, so this is a byte scanner. Only declared functions
//! become calls; any other span goes back out as the text it was.

use serde_json::{Map, Value};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";

/// A call the model made.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Name of a declared function.
    pub name: String,
    /// Arguments by parameter name, typed by the function's schema, in the order written.
    pub arguments: Map<String, Value>,
}

/// The functions a request offers.
#[derive(Debug, Clone, Default)]
pub struct ToolSet {
    functions: Vec<Function>,
}

#[derive(Debug, Clone)]
struct Function {
    name: String,
    /// JSON Schema of each declared parameter.
    properties: Map<String, Value>,
}

impl ToolSet {
    /// Adds a function with the JSON Schema of its parameters (an object schema, or nothing).
    pub fn add(&mut self, name: &str, parameters: Option<&Value>) {
        let properties = parameters
            .and_then(|p| p.get("properties"))
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        self.functions.push(Function { name: name.to_string(), properties });
    }

    /// Whether a function of this name was added.
    pub fn contains(&self, name: &str) -> bool {
        self.functions.iter().any(|f| f.name == name)
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Whether `inner`, which may still grow, can be the inside of a call of a declared function.
    fn may_begin(&self, inner: &str) -> bool {
        let inner = inner.trim_ascii_start();
        let Some(rest) = inner.strip_prefix(FUNCTION) else { return FUNCTION.starts_with(inner) };
        match rest.split_once('>') {
            Some((name, _)) => self.contains(name.trim_ascii()),
            None => self.functions.iter().any(|f| f.name.starts_with(rest.trim_ascii())),
        }
    }

    /// Parses the inside of a `<tool_call>` element. `None` when it is not a whole call of a declared function.
    fn parse(&self, inner: &str) -> Option<ToolCall> {
        let rest = inner.trim_ascii().strip_prefix(FUNCTION)?;
        let (name, body) = rest.split_once('>')?;
        let name = name.trim_ascii();
        let function = self.functions.iter().find(|f| f.name == name)?;
        let mut body = body.trim_ascii_end().strip_suffix("</function>")?.trim_ascii();
        let mut arguments = Map::new();
        while !body.is_empty() {
            let (key, after) = body.strip_prefix("<parameter=")?.split_once('>')?;
            // The value ends at the last closer before the next parameter: closers inside a value stay in it.
            let span = after.find("\n<parameter=").unwrap_or(after.len());
            let end = after[..span].rfind("</parameter>")?;
            if !after[end + "</parameter>".len()..span].trim_ascii().is_empty() {
                return None;
            }
            let value = after[..end].strip_prefix('\n').unwrap_or(&after[..end]);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let key = key.trim_ascii();
            arguments.insert(key.to_string(), typed(value, function.properties.get(key)));
            body = after[span..].trim_ascii_start();
        }
        Some(ToolCall { name: name.to_string(), arguments })
    }
}

/// `text` as the type the schema names, or as a string when the schema names none or the text does not fit.
fn typed(text: &str, schema: Option<&Value>) -> Value {
    let raw = || Value::String(text.to_string());
    let Some(schema) = schema else { return raw() };
    let mut types = Vec::new();
    collect_types(schema, &mut types);
    if types.is_empty() || types == ["string"] {
        return raw();
    }
    match serde_json::from_str::<Value>(text.trim()) {
        Ok(value) if types.iter().any(|t| is_of_type(&value, t)) => value,
        _ => raw(),
    }
}

/// JSON types other than string are tried; a string that a schema allows stays as it was written.
fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|f| f.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

fn collect_types<'a>(schema: &'a Value, out: &mut Vec<&'a str>) {
    match schema.get("type") {
        Some(Value::String(name)) => out.push(name),
        Some(Value::Array(names)) => out.extend(names.iter().filter_map(Value::as_str)),
        _ => {}
    }
    for key in ["anyOf", "oneOf"] {
        for branch in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
            collect_types(branch, out);
        }
    }
}

/// A stretch of the answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Span {
    /// Text for the reader.
    Text(String),
    /// A whole call.
    Call(ToolCall),
}

/// Finds calls in an answer that arrives in chunks of any size.
///
/// Text is passed on as it comes, except what could still become part of a call: a beginning of `<tool_call>`, and
/// blanks, which belong to the format when a call follows or precedes them.
#[derive(Debug)]
pub struct ToolScanner {
    tools: ToolSet,
    /// Not yet passed on: outside a call, blanks and a possible beginning of [`OPEN`]; inside, all from [`OPEN`] on.
    held: String,
    /// Blanks before the call that `held` may become; text again if it does not.
    blanks: String,
    in_call: bool,
    /// A call was the last thing found: blanks that follow are the format's.
    after_call: bool,
    /// How far `held` was searched for [`CLOSE`], so that a long call is not searched anew for every chunk.
    searched: usize,
    calls: usize,
}

impl ToolScanner {
    /// A scanner for calls of `tools`.
    pub fn new(tools: ToolSet) -> Self {
        Self {
            tools,
            held: String::new(),
            blanks: String::new(),
            in_call: false,
            after_call: false,
            searched: 0,
            calls: 0,
        }
    }

    /// Calls found so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Takes the next chunk and returns what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<Span> {
        self.held.push_str(text);
        let mut out = Vec::new();
        while self.step(&mut out) {}
        out
    }

    /// The answer is over: returns what was held back.
    pub fn finish(&mut self) -> Vec<Span> {
        let mut out = Vec::new();
        while self.in_call {
            // The model may end its turn right after `</function>`.
            match self.tools.parse(&self.held[OPEN.len()..]) {
                Some(call) => self.found(call, self.held.len(), &mut out),
                None => self.not_a_call(OPEN.len(), &mut out),
            }
            while self.step(&mut out) {}
        }
        let held = std::mem::take(&mut self.held);
        self.text(&held, &mut out);
        out
    }

    /// One move; `false` when more text is needed.
    fn step(&mut self, out: &mut Vec<Span>) -> bool {
        if self.in_call { self.step_call(out) } else { self.step_text(out) }
    }

    fn step_text(&mut self, out: &mut Vec<Span>) -> bool {
        let open = self.held.find(OPEN);
        let limit = open.unwrap_or(self.held.len() - partial_suffix(&self.held, OPEN));
        let certain = self.held[..limit].trim_ascii_end().len();
        let text: String = self.held.drain(..certain).collect();
        self.text(&text, out);
        if open.is_some() {
            self.blanks = self.held.drain(..limit - certain).collect();
            self.in_call = true;
            self.searched = OPEN.len();
        }
        open.is_some()
    }

    fn step_call(&mut self, out: &mut Vec<Span>) -> bool {
        if !self.tools.may_begin(&self.held[OPEN.len()..]) {
            self.not_a_call(OPEN.len(), out);
            return true;
        }
        let Some(at) = self.held[self.searched..].find(CLOSE).map(|i| i + self.searched) else {
            // The closer may be split between this chunk and the next.
            let mut from = self.held.len().saturating_sub(CLOSE.len()).max(self.searched);
            while !self.held.is_char_boundary(from) {
                from -= 1;
            }
            self.searched = from;
            return false;
        };
        let end = at + CLOSE.len();
        match self.tools.parse(&self.held[OPEN.len()..at]) {
            Some(call) => self.found(call, end, out),
            // Perhaps a closer inside a value: keep looking. `finish` gives the text back if none fits.
            None => self.searched = end,
        }
        true
    }

    /// The first `len` bytes of `held` were this call.
    fn found(&mut self, call: ToolCall, len: usize, out: &mut Vec<Span>) {
        out.push(Span::Call(call));
        self.held.drain(..len);
        self.blanks.clear();
        self.in_call = false;
        self.after_call = true;
        self.calls += 1;
    }

    /// The first `len` bytes of `held` are text after all.
    fn not_a_call(&mut self, len: usize, out: &mut Vec<Span>) {
        let mut text = std::mem::take(&mut self.blanks);
        text.extend(self.held.drain(..len));
        self.in_call = false;
        self.text(&text, out);
    }

    fn text(&mut self, text: &str, out: &mut Vec<Span>) {
        let text = if self.after_call { text.trim_ascii_start() } else { text };
        if !text.is_empty() {
            self.after_call = false;
            out.push(Span::Text(text.to_string()));
        }
    }
}

/// Length of the longest end of `text` that is a beginning of `marker` (which is ASCII).
fn partial_suffix(text: &str, marker: &str) -> usize {
    (1..marker.len())
        .rev()
        .find(|&n| text.len() >= n && text.as_bytes().ends_with(&marker.as_bytes()[..n]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn tools() -> ToolSet {
        let mut tools = ToolSet::default();
        let schema = json!({"type": "object", "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "tags": {"type": "array"},
            "limit": {"type": ["number", "null"]},
            "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        }});
        tools.add("weather", Some(&schema));
        tools.add("now", None);
        tools
    }

    /// Runs `text` through a scanner in chunks of `size` characters and joins neighbouring text.
    fn scan(text: &str, size: usize) -> Vec<Span> {
        let mut scanner = ToolScanner::new(tools());
        let chars: Vec<char> = text.chars().collect();
        let mut out: Vec<Span> = Vec::new();
        let mut spans: Vec<Span> =
            chars.chunks(size).flat_map(|c| scanner.push(&c.iter().collect::<String>())).collect();
        spans.extend(scanner.finish());
        for span in spans {
            match (out.last_mut(), span) {
                (Some(Span::Text(a)), Span::Text(b)) => a.push_str(&b),
                (_, span) => out.push(span),
            }
        }
        out
    }

    fn check(text: &str, expected: &[Span]) {
        for size in [1, 2, 3, 7, usize::MAX] {
            assert_eq!(scan(text, size), expected, "chunks of {size}: {text:?}");
        }
    }

    fn text(t: &str) -> Span {
        Span::Text(t.to_string())
    }

    fn call(name: &str, arguments: Value) -> Span {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        Span::Call(ToolCall { name: name.into(), arguments })
    }

    fn written(name: &str, parameters: &[(&str, &str)]) -> String {
        let body: String =
            parameters.iter().map(|(k, v)| format!("<parameter={k}>\n{v}\n</parameter>\n")).collect();
        format!("<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>")
    }

    #[test]
    fn a_call_is_found_and_typed_by_the_schema() {
        let source = written(
            "weather",
            &[
                ("city", "12"),
                ("days", "3"),
                ("exact", "true"),
                ("tags", "[1, \"b\"]"),
                ("limit", "null"),
                ("unit", "C"),
            ],
        );
        check(
            &source,
            &[call(
                "weather",
                json!({"city": "12", "days": 3, "exact": true, "tags": [1, "b"], "limit": null, "unit": "C"}),
            )],
        );
    }

    #[test]
    fn values_that_do_not_fit_stay_raw() {
        let source = written("weather", &[("days", "three"), ("exact", "1"), ("undeclared", "5")]);
        check(&source, &[call("weather", json!({"days": "three", "exact": "1", "undeclared": "5"}))]);
    }

    #[test]
    fn text_before_and_between_calls_loses_only_the_formats_blanks() {
        let source = format!(
            "I will look.\n\n{}\n{}\n",
            written("weather", &[("city", "Reykjavík")]),
            written("now", &[])
        );
        check(
            &source,
            &[text("I will look."), call("weather", json!({"city": "Reykjavík"})), call("now", json!({}))],
        );
    }

    #[test]
    fn multi_line_values_and_markup_inside_values_are_kept() {
        let value = "line one\n\n  <b>two</b> </parameter> three\n</tool_call>\n";
        let source = written("weather", &[("city", value), ("unit", "x")]);
        check(&source, &[call("weather", json!({"city": value, "unit": "x"}))]);
    }

    #[test]
    fn undeclared_functions_and_broken_spans_stay_text() {
        for source in [
            written("rm", &[("path", "/")]),
            "<tool_call>\n<function=weather>\n<parameter=city>\nOslo".to_string(),
            "<tool_call>{}</tool_call> and on".to_string(),
            "text\n\n<tool_call> is how a call begins".to_string(),
            "a < b, <tool_cal, <tool_call".to_string(),
            "ends with blanks \n\n".to_string(),
            "<tool_call>\n<function=weather>\nnot a parameter\n</function>\n</tool_call>".to_string(),
        ] {
            check(&source, &[text(&source)]);
        }
    }

    #[test]
    fn a_turn_that_ends_after_the_function_is_a_call() {
        check(
            "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>",
            &[call("weather", json!({"city": "Oslo"}))],
        );
    }

    #[test]
    fn a_broken_span_does_not_hide_the_call_after_it() {
        let good = written("now", &[]);
        let broken = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n";
        check(&format!("{broken}{good}"), &[text(broken.trim_ascii_end()), call("now", json!({}))]);
        let prose = "See <tool_call>x</tool_call>.";
        check(&format!("{prose}\n{good}\n bye"), &[text(prose), call("now", json!({})), text("bye")]);
    }

    #[test]
    fn plain_text_is_not_delayed() {
        let mut scanner = ToolScanner::new(tools());
        assert_eq!(scanner.push("Hello"), [text("Hello")]);
        assert_eq!(scanner.push(" there <"), [text(" there")]);
        assert_eq!(scanner.push("b"), [text(" <b")]);
    }

    proptest! {
        #[test]
        fn text_without_calls_comes_out_unchanged(source in "[a-z<>/_=\n é]{0,60}", size in 1usize..9) {
            let joined: String = scan(&source, size)
                .into_iter()
                .map(|s| match s { Span::Text(t) => t, Span::Call(_) => unreachable!() })
                .collect();
            prop_assert_eq!(joined, source);
        }

        #[test]
        fn chunking_never_matters(
            parts in prop::collection::vec(
                prop_oneof![
                    Just("<tool_call>".to_string()), Just("</tool_call>".to_string()),
                    Just("<function=weather>".to_string()), Just("</function>".to_string()),
                    Just("<parameter=city>\n".to_string()), Just("\n</parameter>\n".to_string()),
                    Just("\n".to_string()), "[a-zé<]{0,5}"
                ], 0..14),
            size in 1usize..9,
        ) {
            let source = parts.concat();
            prop_assert_eq!(scan(&source, size), scan(&source, usize::MAX));
        }
    }
}
