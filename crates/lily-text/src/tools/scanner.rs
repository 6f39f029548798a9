//! The scanner: text in chunks of any size in, text and calls out.

use super::{
    ToolSet,
    json::{JsonEnd, escaped, minified, quoted},
    tag::{Look, Tag, look},
    typed::Typing,
    value::{Step, ValueEnd},
};

/// Blanks, and blanks and tags before a call, are held back up to this many bytes.
const MAX_LEAD: usize = 2048;
/// Longest call in JSON: it is looked at as a whole.
const MAX_JSON: usize = 256 << 10;
/// How often text that turned out not to be a call is searched again for calls inside it.
const MAX_RESCANS: usize = 16;

/// What the scanner found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text for the reader.
    Text(String),
    /// Characters of the format that belong to no text and no call: blanks around calls, closers without a call.
    Markup(String),
    /// A call of a declared function begins.
    Start {
        /// Place among the calls, from 0.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of the call's arguments. All of a call's pieces joined are a JSON object.
    Arguments {
        /// The call.
        index: usize,
        /// Piece of JSON text.
        json: String,
    },
    /// The call is whole.
    End {
        /// The call.
        index: usize,
        /// The arguments, a JSON object as text.
        arguments: String,
        /// What the model wrote, byte for byte.
        raw: String,
    },
    /// The call that began is not whole; what the model wrote follows as text.
    Broken {
        /// The call.
        index: usize,
    },
}

/// Finds calls of declared functions in text that arrives in chunks of any size; the events joined do not depend on
/// the chunks. `Text`, `Markup` and the `raw` of `End`, joined in order, are the input, byte for byte.
///
/// Accepted beside the form the template teaches: `<function=NAME>` without `<tool_call>` around it, names in quotes
/// or as a `name` attribute, `{"name": ..., "arguments": {...}}` in a `<tool_call>`, a JSON object instead of
/// parameters, several functions in one `<tool_call>`, missing or surplus closers, and any markup inside values.
///
/// Arguments are passed on as they are written: strings piece by piece, other types when they are whole (an unfinished
/// number could be another number).
#[derive(Debug)]
pub struct ToolScanner {
    tools: ToolSet,
    /// Calls are passed on only when they are whole, and a bare function only at the start of a line.
    whole_calls: bool,
    /// Text that is not decided: outside a call blanks and what may begin one, in a call the rest of it.
    held: String,
    state: State,
    /// A call was the last thing found: blanks and closers that follow are the format's.
    after_call: bool,
    /// Inside a call of a function nobody declared: bare functions in it are not calls.
    foreign: bool,
    /// The last character passed on as text was a line break, or there was none.
    line_start: bool,
    /// The search for the end of a call in JSON.
    json: JsonEnd,
    begun: usize,
    finished: usize,
    rescans: usize,
}

#[derive(Debug)]
enum State {
    Text,
    /// Between the parameters of a call.
    Body(Call),
    /// In a parameter's value.
    Value(Call, Value),
}

#[derive(Debug)]
struct Call {
    index: usize,
    function: usize,
    /// Blanks before it.
    lead: String,
    raw: String,
    keys: Vec<String>,
    arguments: String,
    /// Events of a call that is passed on when it is whole.
    waiting: Vec<ToolEvent>,
}

#[derive(Debug)]
struct Value {
    /// `None`: the key came before and this value is left out, so that the arguments stay valid JSON.
    typing: Option<Typing>,
    end: ValueEnd,
    /// The line break after the opening tag was looked for.
    started: bool,
}

/// What a `<` in text is.
enum Opening {
    Text,
    Wait,
    /// A closer without a call.
    Orphan(usize),
    /// A call whose body begins after so many bytes.
    Call(usize, usize),
    /// A call without a body, of so many bytes.
    Whole {
        function: usize,
        len: usize,
        arguments: String,
    },
}

impl ToolScanner {
    /// A scanner for calls of `tools` in an answer.
    pub fn new(tools: ToolSet) -> Self {
        Self {
            tools,
            whole_calls: false,
            held: String::new(),
            state: State::Text,
            after_call: false,
            foreign: false,
            line_start: true,
            json: JsonEnd::default(),
            begun: 0,
            finished: 0,
            rescans: 0,
        }
    }

    /// A scanner for text in which calls are unlikely (reasoning): a call is passed on only when it is whole.
    pub fn whole_calls(tools: ToolSet) -> Self {
        Self { whole_calls: true, ..Self::new(tools) }
    }

    /// Counts calls on from `index`.
    pub fn with_first_index(mut self, index: usize) -> Self {
        self.begun = index;
        self
    }

    /// Calls begun so far, counting from the first index.
    pub fn next_index(&self) -> usize {
        self.begun
    }

    /// Whole calls found so far.
    pub fn calls(&self) -> usize {
        self.finished
    }

    /// Takes the next chunk and returns what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<ToolEvent> {
        self.held.push_str(text);
        let mut out = Vec::new();
        if let State::Value(_, value) = &self.state
            && value.end.is_idle()
            && !text.contains('<')
            && self.held.len() < super::value::MAX_TAIL
        {
            return out;
        }
        while self.step(None, &mut out) {}
        out
    }

    /// The text is over: returns what was held back. `cut`: the text was stopped before the model had ended it, so a
    /// call without its closer is not whole.
    pub fn finish(&mut self, cut: bool) -> Vec<ToolEvent> {
        let mut out = Vec::new();
        while self.step(Some(cut), &mut out) {}
        let rest = std::mem::take(&mut self.held);
        self.text(rest, &mut out);
        out
    }

    /// One move; `false` when more text is needed. `last`: no more text comes, and whether it was cut.
    fn step(&mut self, last: Option<bool>, out: &mut Vec<ToolEvent>) -> bool {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.step_text(last.is_some(), out),
            State::Body(call) => self.step_body(call, last, out),
            State::Value(call, value) => self.step_value(call, value, last, out),
        }
    }

    fn step_text(&mut self, last: bool, out: &mut Vec<ToolEvent>) -> bool {
        let mut from = 0;
        while let Some(i) = self.held[from..].find('<') {
            let at = from + i;
            match self.opening(at, last) {
                Opening::Text => {
                    self.json = JsonEnd::default();
                    from = at + 1;
                }
                Opening::Wait => {
                    self.pass_on(at, out);
                    return false;
                }
                Opening::Orphan(len) => {
                    let markup: String = self.held.drain(..at + len).collect();
                    out.push(ToolEvent::Markup(markup));
                    return true;
                }
                Opening::Call(function, len) => {
                    let call = self.begin(function, at, len, out);
                    self.state = State::Body(call);
                    return true;
                }
                Opening::Whole { function, len, arguments } => {
                    let mut call = self.begin(function, at, len, out);
                    self.arguments(&mut call, arguments, out);
                    self.end(call, out);
                    return true;
                }
            }
        }
        self.pass_on(self.held.len(), out);
        false
    }

    /// What the `<` at `at` begins.
    fn opening(&mut self, at: usize, last: bool) -> Opening {
        let text = &self.held[at..];
        let wait = |text: &str| if last || text.len() > MAX_LEAD { Opening::Text } else { Opening::Wait };
        let (tag, len) = match look(text) {
            Look::Tag(tag, len) => (tag, len),
            // A closer of the call before that was cut.
            Look::Partial
                if last
                    && self.after_call
                    && text.starts_with("</")
                    && self.held[..at].trim_ascii().is_empty() =>
            {
                return Opening::Orphan(text.len());
            }
            Look::Partial => return wait(text),
            Look::Other => return Opening::Text,
        };
        match tag {
            Tag::CallOpen => {
                let inner = text[len..].trim_ascii_start();
                let start = text.len() - inner.len();
                self.foreign = false;
                match look(inner) {
                    _ if inner.starts_with('{') => self.json_call(at, start, last),
                    Look::Partial => wait(text),
                    Look::Tag(Tag::FunctionOpen { name, closed }, len) => {
                        let function = self.tools.position(name);
                        self.function(at, function, closed, start + len, true, last)
                    }
                    _ => Opening::Text,
                }
            }
            Tag::FunctionOpen { name, closed } => {
                let function = self.tools.position(name);
                let line = &self.held[..at];
                let at_line_start = match line.rfind('\n') {
                    Some(i) => line[i..].trim_ascii().is_empty(),
                    None => self.line_start && line.trim_ascii().is_empty(),
                };
                if self.foreign || self.whole_calls && !at_line_start {
                    return Opening::Text;
                }
                self.function(at, function, closed, len, false, last)
            }
            Tag::CallClose | Tag::FunctionClose | Tag::ParameterClose => {
                self.foreign &= tag == Tag::ParameterClose;
                let orphan = self.after_call && self.held[..at].trim_ascii().is_empty();
                if orphan { Opening::Orphan(len) } else { Opening::Text }
            }
            Tag::ParameterOpen { .. } => Opening::Text,
        }
    }

    /// A function's opening tag was read up to `len`: a call if the function is declared and a body follows.
    fn function(
        &mut self,
        at: usize,
        function: Option<usize>,
        closed: bool,
        len: usize,
        wrapped: bool,
        last: bool,
    ) -> Opening {
        let text = &self.held[at..];
        let Some(function) = function else {
            self.foreign = true;
            return Opening::Text;
        };
        if closed {
            return Opening::Whole { function, len, arguments: "{}".to_string() };
        }
        let body = text[len..].trim_ascii_start();
        if body.starts_with('{') {
            let start = text.len() - body.len();
            return self.json_body(at, function, start, last);
        }
        match look(body) {
            Look::Partial if !last && text.len() <= MAX_LEAD => Opening::Wait,
            Look::Tag(Tag::ParameterOpen { .. } | Tag::FunctionClose, _) => Opening::Call(function, len),
            Look::Tag(Tag::CallClose, _) if wrapped => Opening::Call(function, len),
            _ => Opening::Text,
        }
    }

    /// `<tool_call>{"name": ..., "arguments": {...}}`: a call once it is whole.
    fn json_call(&mut self, at: usize, start: usize, last: bool) -> Opening {
        let found = self.json_object(at, start, last);
        let JsonObject::Whole(len) = found else { return found.undecided() };
        let text = &self.held[at..];
        let Ok(object) = serde_json::from_str::<RawCall>(&text[start..len]) else { return Opening::Text };
        let Some(function) = self.tools.position(&object.name) else { return Opening::Text };
        let arguments = object.arguments.or(object.parameters).unwrap_or_default();
        // Some models write the object as a string.
        let arguments = match arguments {
            serde_json::Value::String(text) => match serde_json::from_str(&text) {
                Ok(object @ serde_json::Value::Object(_)) => object,
                _ => return Opening::Text,
            },
            serde_json::Value::Null => serde_json::Value::Object(Default::default()),
            object => object,
        };
        if !arguments.is_object() {
            return Opening::Text;
        }
        Opening::Whole { function, len, arguments: arguments.to_string() }
    }

    /// `<function=NAME>{...}`: a call with these arguments once the object is whole.
    fn json_body(&mut self, at: usize, function: usize, start: usize, last: bool) -> Opening {
        let found = self.json_object(at, start, last);
        let JsonObject::Whole(len) = found else { return found.undecided() };
        let arguments = minified(&self.held[at + start..at + len]);
        Opening::Whole { function, len, arguments }
    }

    /// Finds the end of the JSON object that begins `start` bytes after `at`.
    fn json_object(&mut self, at: usize, start: usize, last: bool) -> JsonObject {
        let text = &self.held[at + start..];
        match self.json.step(text) {
            Some(len) => {
                let whole = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text[..len]);
                if whole.is_ok() { JsonObject::Whole(start + len) } else { JsonObject::None }
            }
            None if last || text.len() > MAX_JSON => JsonObject::None,
            None => JsonObject::Wait,
        }
    }

    fn step_body(&mut self, mut call: Call, last: Option<bool>, out: &mut Vec<ToolEvent>) -> bool {
        let blanks = self.held.len() - self.held.trim_ascii_start().len();
        match look(&self.held[blanks..]) {
            Look::Partial if last.is_none() => {
                self.state = State::Body(call);
                return false;
            }
            // Text that was cut may lack parameters; a model that ended its turn forgot the closers.
            Look::Partial if last == Some(true) || self.whole_calls => self.broken(call, out),
            Look::Partial => {
                call.raw.push_str(&std::mem::take(&mut self.held));
                self.close(call, out);
            }
            Look::Tag(Tag::ParameterOpen { name }, len) => {
                let key = name.to_string();
                call.raw.extend(self.held.drain(..blanks + len));
                let value = self.begin_value(&mut call, key, out);
                self.state = State::Value(call, value);
            }
            Look::Tag(Tag::FunctionClose | Tag::CallClose, len) => {
                call.raw.extend(self.held.drain(..blanks + len));
                self.close(call, out);
            }
            _ => self.close(call, out),
        }
        true
    }

    fn begin_value(&mut self, call: &mut Call, key: String, out: &mut Vec<ToolEvent>) -> Value {
        let typing = (!call.keys.contains(&key)).then(|| self.tools.get(call.function).typing(&key));
        if let Some(typing) = &typing {
            let separator = if call.keys.is_empty() { '{' } else { ',' };
            let quote = if typing.is_text() { "\"" } else { "" };
            self.arguments(call, format!("{separator}{}:{quote}", quoted(&key)), out);
            call.keys.push(key);
        }
        Value { typing, end: ValueEnd::default(), started: false }
    }

    fn step_value(
        &mut self,
        mut call: Call,
        mut value: Value,
        last: Option<bool>,
        out: &mut Vec<ToolEvent>,
    ) -> bool {
        if !value.started {
            // One line break after the tag is the format's.
            let breaks = match self.held.as_bytes() {
                [] | [b'\r'] if last.is_none() => {
                    self.state = State::Value(call, value);
                    return false;
                }
                [b'\n', ..] => 1,
                [b'\r', b'\n', ..] => 2,
                _ => 0,
            };
            call.raw.extend(self.held.drain(..breaks));
            value.started = true;
        }
        let function = self.tools.get(call.function);
        let declared = |key: &str| function.declares(key) && !call.keys.iter().any(|k| k == key);
        match value.end.step(&self.held, last.is_some(), declared) {
            Step::End { end, next } => {
                let text = without_break(&self.held[..end]);
                let json = match &value.typing {
                    None => String::new(),
                    Some(typing) if typing.is_text() => escaped(text) + "\"",
                    Some(typing) => typing.json(text),
                };
                call.raw.extend(self.held.drain(..next));
                self.arguments(&mut call, json, out);
                self.state = State::Body(call);
                true
            }
            Step::More { .. } if last.is_some() => {
                self.broken(call, out);
                true
            }
            Step::More { certain } => {
                if value.typing.as_ref().is_some_and(Typing::is_text) {
                    // The line break before the closer is the format's.
                    let n = match self.held.as_bytes()[..certain] {
                        [.., b'\r', b'\n'] => certain - 2,
                        [.., b'\n' | b'\r'] => certain - 1,
                        _ => certain,
                    };
                    let text: String = self.held.drain(..n).collect();
                    value.end.advance(n);
                    self.arguments(&mut call, escaped(&text), out);
                    call.raw.push_str(&text);
                }
                self.state = State::Value(call, value);
                false
            }
        }
    }

    /// A call begins after `at` bytes of text; its first `len` bytes are taken.
    fn begin(&mut self, function: usize, at: usize, len: usize, out: &mut Vec<ToolEvent>) -> Call {
        let text = self.held[..at].trim_ascii_end().len();
        let before: String = self.held.drain(..text).collect();
        self.text(before, out);
        let lead: String = self.held.drain(..at - text).collect();
        let raw: String = self.held.drain(..len).collect();
        self.json = JsonEnd::default();
        let index = self.begun;
        self.begun += 1;
        let mut call = Call {
            index,
            function,
            lead,
            raw,
            keys: Vec::new(),
            arguments: String::new(),
            waiting: Vec::new(),
        };
        let name = self.tools.get(function).name.clone();
        self.emit(&mut call, ToolEvent::Start { index, name }, out);
        call
    }

    fn emit(&self, call: &mut Call, event: ToolEvent, out: &mut Vec<ToolEvent>) {
        if self.whole_calls { call.waiting.push(event) } else { out.push(event) }
    }

    fn arguments(&self, call: &mut Call, json: String, out: &mut Vec<ToolEvent>) {
        if !json.is_empty() {
            call.arguments.push_str(&json);
            let index = call.index;
            self.emit(call, ToolEvent::Arguments { index, json }, out);
        }
    }

    /// The call's parameters are over.
    fn close(&mut self, mut call: Call, out: &mut Vec<ToolEvent>) {
        let closer = if call.keys.is_empty() { "{}" } else { "}" };
        self.arguments(&mut call, closer.to_string(), out);
        self.end(call, out);
    }

    fn end(&mut self, call: Call, out: &mut Vec<ToolEvent>) {
        let Call { index, lead, raw, arguments, waiting, .. } = call;
        if !lead.is_empty() {
            out.push(ToolEvent::Markup(lead));
        }
        out.extend(waiting);
        out.push(ToolEvent::End { index, arguments, raw });
        self.after_call = true;
        self.finished += 1;
    }

    /// The text ended inside the call: it is text after all, but for calls inside it.
    fn broken(&mut self, call: Call, out: &mut Vec<ToolEvent>) {
        if self.whole_calls {
            self.begun = call.index;
        } else {
            out.push(ToolEvent::Broken { index: call.index });
        }
        let rest = std::mem::take(&mut self.held);
        let first = call.lead.len() + 1;
        let mut text = call.lead + &call.raw + &rest;
        self.rescans += 1;
        if self.rescans <= MAX_RESCANS {
            // The call's first `<` was not the beginning of one.
            self.held = text.split_off(first);
        }
        self.text(text, out);
    }

    /// Passes on `held[..at]`, but for blanks at its end: a call may follow.
    fn pass_on(&mut self, at: usize, out: &mut Vec<ToolEvent>) {
        let mut certain = self.held[..at].trim_ascii_end().len();
        if at - certain > MAX_LEAD {
            certain = at;
        }
        let text: String = self.held.drain(..certain).collect();
        self.text(text, out);
    }

    fn text(&mut self, text: String, out: &mut Vec<ToolEvent>) {
        if text.is_empty() {
            return;
        }
        self.line_start = text.ends_with('\n');
        let blanks = if self.after_call { text.len() - text.trim_ascii_start().len() } else { 0 };
        let (markup, text) = text.split_at(blanks);
        if !markup.is_empty() {
            out.push(ToolEvent::Markup(markup.to_string()));
        }
        if !text.is_empty() {
            self.after_call = false;
            out.push(ToolEvent::Text(text.to_string()));
        }
    }
}

/// A call in JSON.
#[derive(serde::Deserialize)]
struct RawCall {
    name: String,
    arguments: Option<serde_json::Value>,
    parameters: Option<serde_json::Value>,
}

/// Where a JSON object ends.
enum JsonObject {
    Whole(usize),
    Wait,
    None,
}

impl JsonObject {
    fn undecided(self) -> Opening {
        if matches!(self, Self::Wait) { Opening::Wait } else { Opening::Text }
    }
}

/// A value without the line break before its closer.
fn without_break(text: &str) -> &str {
    text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(text)
}
