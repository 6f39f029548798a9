//! What the model writes, as events: reasoning, answer and tool calls apart.
//!
//! [`ReasoningSplitter`] and [`ToolScanner`] joined. A call the model left inside its reasoning counts when it is
//! whole; when the model repeats that very call after its reasoning, it counts once.

use crate::{
    reasoning::{Piece, ReasoningSplitter},
    tools::{ToolEvent, ToolScanner, ToolSet},
};

/// What became certain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// A call of a declared function begins.
    CallStart {
        /// Place among the calls, from 0.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of a call's arguments: JSON text, an object when joined.
    CallArguments {
        /// The call.
        index: usize,
        /// The piece.
        json: String,
    },
    /// A call is whole.
    CallEnd {
        /// The call.
        index: usize,
        /// The arguments, a JSON object as text.
        arguments: String,
        /// What the model wrote.
        raw: String,
    },
    /// A call that began will not be whole; what the model wrote follows as content.
    CallBroken {
        /// The call.
        index: usize,
    },
}

/// Turns a model's output, in chunks of any size, into events.
#[derive(Debug)]
pub struct OutputParser {
    tools: Option<ToolSet>,
    splitter: ReasoningSplitter,
    in_reasoning: bool,
    /// For calls left inside the reasoning.
    reasoning: Option<ToolScanner>,
    content: Option<ToolScanner>,
    /// Calls found in the reasoning: (function, arguments).
    left_inside: Vec<(String, String)>,
    /// Name and events of the call that is being passed on.
    name: String,
    group: Vec<ToolEvent>,
    next: usize,
    calls: usize,
    released: Released,
}

/// Bytes of text that are out of doubt, markup of calls included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Released {
    /// Of the reasoning.
    pub reasoning: usize,
    /// Of the answer.
    pub content: usize,
}

impl OutputParser {
    /// A parser of output after a prompt that ended inside a `<think>` block, or not
    /// ([`prompt_starts_in_reasoning`](crate::prompt_starts_in_reasoning)). Without tools nothing becomes a call.
    pub fn new(tools: Option<ToolSet>, starts_in_reasoning: bool) -> Self {
        let tools = tools.filter(|t| !t.is_empty());
        Self {
            splitter: ReasoningSplitter::new(starts_in_reasoning),
            in_reasoning: starts_in_reasoning,
            reasoning: tools.clone().map(ToolScanner::whole_calls),
            content: None,
            tools,
            left_inside: Vec::new(),
            name: String::new(),
            group: Vec::new(),
            next: 0,
            calls: 0,
            released: Released::default(),
        }
    }

    /// Takes more of the output; gives what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        let pieces = self.splitter.push(text);
        self.pieces(pieces)
    }

    /// The end. `cut`: something else than the model ended it (a token limit), so a call without its closer is not
    /// whole.
    pub fn finish(&mut self, cut: bool) -> Vec<OutputEvent> {
        let pieces = self.splitter.finish();
        let mut out = self.pieces(pieces);
        if let Some(mut scanner) = self.reasoning.take() {
            let events = scanner.finish(cut);
            self.reasoning_events(events, &mut out);
        }
        if let Some(mut scanner) = self.content.take() {
            let events = scanner.finish(cut);
            self.content_events(events, &mut out);
        }
        out
    }

    /// Whole calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Whether the reasoning was begun and not closed.
    pub fn is_unclosed(&self) -> bool {
        self.splitter.is_open()
    }

    /// Whether what came last was reasoning.
    pub fn in_reasoning(&self) -> bool {
        self.in_reasoning
    }

    /// Bytes told apart so far as reasoning and as answer.
    pub fn released(&self) -> Released {
        self.released
    }

    fn pieces(&mut self, pieces: Vec<Piece>) -> Vec<OutputEvent> {
        let mut out = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => {
                    self.in_reasoning = true;
                    self.released.reasoning += text.len();
                    match &mut self.reasoning {
                        None => out.push(OutputEvent::Reasoning(text)),
                        Some(scanner) => {
                            let events = scanner.push(&text);
                            self.reasoning_events(events, &mut out);
                        }
                    }
                }
                Piece::Content(text) => {
                    self.in_reasoning = false;
                    self.released.content += text.len();
                    self.content(text, &mut out);
                }
            }
        }
        out
    }

    fn content(&mut self, text: String, out: &mut Vec<OutputEvent>) {
        if let Some(mut scanner) = self.reasoning.take() {
            let events = scanner.finish(true);
            self.reasoning_events(events, out);
        }
        let Some(tools) = &self.tools else { return out.push(OutputEvent::Content(text)) };
        let (again, next) = (!self.left_inside.is_empty(), self.next);
        let scanner = self.content.get_or_insert_with(|| {
            // What may be a repetition is looked at as a whole.
            let scanner = if again { ToolScanner::whole_calls } else { ToolScanner::new };
            scanner(tools.clone()).with_first_index(next)
        });
        let events = scanner.push(&text);
        self.content_events(events, out);
    }

    fn reasoning_events(&mut self, events: Vec<ToolEvent>, out: &mut Vec<OutputEvent>) {
        for event in events {
            match event {
                ToolEvent::Text(text) => out.push(OutputEvent::Reasoning(text)),
                ToolEvent::Start { ref name, .. } => {
                    self.name.clone_from(name);
                    self.call(event, out);
                }
                ToolEvent::End { ref arguments, .. } => {
                    self.left_inside.push((self.name.clone(), arguments.clone()));
                    self.call(event, out);
                }
                event => self.call(event, out),
            }
        }
    }

    fn content_events(&mut self, events: Vec<ToolEvent>, out: &mut Vec<OutputEvent>) {
        for event in events {
            if self.left_inside.is_empty() && self.group.is_empty() {
                self.call(event, out);
                continue;
            }
            match &event {
                ToolEvent::Start { name, .. } => {
                    self.name.clone_from(name);
                    self.group.push(event);
                }
                ToolEvent::Arguments { .. } => self.group.push(event),
                ToolEvent::End { arguments, .. } => {
                    let again = self.left_inside.iter().position(|(n, a)| *n == self.name && a == arguments);
                    let group = std::mem::take(&mut self.group);
                    match again {
                        Some(at) => drop(self.left_inside.swap_remove(at)),
                        None => group.into_iter().chain([event]).for_each(|e| self.call(e, out)),
                    }
                }
                _ => self.call(event, out),
            }
        }
    }

    /// Passes an event on. Indices are given here, since a repeated call is left out.
    fn call(&mut self, event: ToolEvent, out: &mut Vec<OutputEvent>) {
        out.push(match event {
            ToolEvent::Text(text) => OutputEvent::Content(text),
            ToolEvent::Markup(_) => return,
            ToolEvent::Start { name, .. } => {
                self.next += 1;
                OutputEvent::CallStart { index: self.next - 1, name }
            }
            ToolEvent::Arguments { json, .. } => OutputEvent::CallArguments { index: self.next - 1, json },
            ToolEvent::End { arguments, raw, .. } => {
                self.calls += 1;
                OutputEvent::CallEnd { index: self.next - 1, arguments, raw }
            }
            ToolEvent::Broken { .. } => OutputEvent::CallBroken { index: self.next - 1 },
        });
    }
}
