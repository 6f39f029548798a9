//! A generation's tokens as deltas: detokeniser → stop strings → reasoning and tool calls.

use std::sync::Arc;

use lily_engine::{FinishReason, TokenLogprobs};
use lily_text::{Detokenizer, OutputEvent, OutputParser, StopMatcher, Tokenizer};

use crate::generate::{Delta, Finish, GenerateOptions, Output, TokenLogprob, TokenText, Turn, TurnCall};

/// Turns a generation's tokens into deltas.
pub(crate) struct Decoder {
    tokenizer: Arc<Tokenizer>,
    /// Taken at the end.
    detokenizer: Option<Detokenizer>,
    stops: StopMatcher,
    parser: OutputParser,
    /// Everything is content: no reasoning, no calls.
    raw: bool,
    max_tool_calls: usize,
    reasoning_tokens: usize,
    /// Tokens whose text is not out yet.
    pending: Vec<TokenLogprob>,
    /// Set when the text itself ended the generation.
    finish: Option<Finish>,
    turn: Turn,
}

impl Decoder {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, options: &GenerateOptions, in_reasoning: bool) -> Self {
        Self {
            detokenizer: Some(Detokenizer::new(tokenizer.clone(), true)),
            tokenizer,
            stops: StopMatcher::new(options.stop.clone()),
            parser: OutputParser::new(Some(options.tools.clone()), in_reasoning && !options.raw),
            raw: options.raw,
            max_tool_calls: options.max_tool_calls.unwrap_or(usize::MAX),
            reasoning_tokens: 0,
            pending: Vec::new(),
            finish: None,
            turn: Turn::default(),
        }
    }

    /// Whether the text itself has ended the generation.
    pub(crate) fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// Tokens spent on reasoning so far.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    pub(crate) fn token(&mut self, id: u32, logprobs: Option<TokenLogprobs>) -> Output {
        if self.finish.is_some() {
            return Output::default();
        }
        self.reasoning_tokens += usize::from(self.parser.in_reasoning());
        if let Some(logprobs) = logprobs {
            let entry = TokenLogprob {
                token: self.token_text(id),
                logprob: logprobs.logprob,
                top: logprobs.top.iter().map(|&(id, logprob)| (self.token_text(id), logprob)).collect(),
            };
            self.pending.push(entry);
        }
        let Some(detokenizer) = &mut self.detokenizer else { return Output::default() };
        let text = detokenizer.push(id);
        self.text(&text, None)
    }

    /// What was held back until the end, which came for this reason.
    pub(crate) fn end(&mut self, reason: FinishReason) -> Output {
        if self.finish.is_some() {
            return Output::default();
        }
        let text = self.detokenizer.take().map_or_else(String::new, Detokenizer::finish);
        self.text(&text, Some(reason))
    }

    fn text(&mut self, text: &str, last: Option<FinishReason>) -> Output {
        let outcome = self.stops.push(text);
        let mut text = outcome.text;
        let stopped = outcome.stopped.is_some();
        if let Some(stop) = outcome.stopped {
            self.finish = Some(Finish::StopString(stop));
        } else if last.is_some() {
            text.push_str(&self.stops.finish());
        }
        self.turn.written.push_str(&text);
        let mut output = Output::default();
        let before = self.parser.released();
        let mut released = before;
        if self.raw {
            released.content += text.len();
            push_text(&mut output.deltas, Delta::Content(text));
        } else {
            let mut events = self.parser.push(&text);
            if last.is_some() || stopped {
                events.extend(self.parser.finish(last != Some(FinishReason::Stop)));
            }
            released = self.parser.released();
            self.events(events, &mut output.deltas);
        }
        let (reasoning_bytes, content_bytes) =
            (released.reasoning - before.reasoning, released.content - before.content);
        if content_bytes > 0 {
            output.content_logprobs = self.take_pending(content_bytes, stopped);
        }
        if reasoning_bytes > 0 {
            output.reasoning_logprobs = self.take_pending(reasoning_bytes, stopped);
        }
        if content_bytes > 0 {
            // What is left made neither: `</think>` and the blanks after it.
            self.pending.clear();
        }
        output
    }

    fn events(&mut self, events: Vec<OutputEvent>, deltas: &mut Vec<Delta>) {
        for event in events {
            match event {
                OutputEvent::Reasoning(text) => {
                    self.turn.reasoning.push_str(&text);
                    push_text(deltas, Delta::Reasoning(text));
                }
                OutputEvent::Content(text) => {
                    self.turn.content.push_str(&text);
                    push_text(deltas, Delta::Content(text));
                }
                OutputEvent::CallStart { index, name } => {
                    let id = format!("call_{:024x}", rand::random::<u128>() >> 32);
                    let arguments = String::new();
                    self.turn.calls.push(TurnCall { id: id.clone(), name: name.clone(), arguments });
                    deltas.push(Delta::CallStart { index, id, name });
                }
                OutputEvent::CallArguments { index, json } => match deltas.last_mut() {
                    Some(Delta::CallArguments { index: i, json: all }) if *i == index => all.push_str(&json),
                    _ => deltas.push(Delta::CallArguments { index, json }),
                },
                OutputEvent::CallEnd { index, arguments, .. } => {
                    if let Some(call) = self.turn.calls.last_mut() {
                        call.arguments = arguments;
                    }
                    deltas.push(Delta::CallEnd { index });
                    if self.parser.calls() >= self.max_tool_calls {
                        // What was written beyond the call belongs to nothing: this is no turn to replay.
                        self.turn.written.clear();
                        self.finish.get_or_insert(Finish::ToolCalls);
                        break;
                    }
                }
                OutputEvent::CallBroken { index } => {
                    self.turn.calls.pop();
                    deltas.push(Delta::CallBroken { index });
                }
            }
        }
    }

    /// The pending tokens that made `bytes` bytes of text: the last ones that are long enough, since tokens before
    /// them left no text (tags and blanks around them). When a stop string cut the text, its tokens come last
    /// instead, and the first ones made the text.
    fn take_pending(&mut self, bytes: usize, cut: bool) -> Vec<TokenLogprob> {
        let mut covered = 0;
        let mut enough = |entry: &TokenLogprob| {
            let more = covered < bytes;
            covered += entry.token.0.len();
            more
        };
        if cut {
            let n = self.pending.iter().take_while(|e| enough(e)).count();
            let taken = self.pending.drain(..n).collect();
            self.pending.clear();
            taken
        } else {
            let n = self.pending.iter().rev().take_while(|e| enough(e)).count();
            self.pending.split_off(self.pending.len() - n)
        }
    }

    fn token_text(&self, id: u32) -> TokenText {
        TokenText(self.tokenizer.token_bytes(id).unwrap_or_default())
    }

    /// Why the answer ended, given why the engine did.
    pub(crate) fn finish(&self, reason: FinishReason) -> Finish {
        if let Some(finish) = &self.finish {
            return finish.clone();
        }
        match reason {
            FinishReason::Stop if self.parser.calls() > 0 => Finish::ToolCalls,
            // The turn ended without an answer.
            FinishReason::Stop if !self.raw && self.parser.is_unclosed() => Finish::Length,
            FinishReason::Stop => Finish::EndOfTurn,
            FinishReason::Length => Finish::Length,
            FinishReason::Cancelled => Finish::Cancelled,
            FinishReason::Deadline => Finish::Deadline,
        }
    }

    /// The turn as the model wrote it, if it ended it with calls.
    pub(crate) fn take_turn(&mut self, finish: &Finish) -> Option<Box<Turn>> {
        let turn = std::mem::take(&mut self.turn);
        let whole = *finish == Finish::ToolCalls && !turn.written.is_empty() && !turn.calls.is_empty();
        whole.then(|| Box::new(turn))
    }
}

/// Appends text, joined to the last delta when that is of the same kind.
fn push_text(deltas: &mut Vec<Delta>, delta: Delta) {
    match (deltas.last_mut(), delta) {
        (_, Delta::Content(text) | Delta::Reasoning(text)) if text.is_empty() => {}
        (Some(Delta::Content(a)), Delta::Content(b)) | (Some(Delta::Reasoning(a)), Delta::Reasoning(b)) => {
            a.push_str(&b);
        }
        (_, delta) => deltas.push(delta),
    }
}
