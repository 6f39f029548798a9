//! The reasoning block apart from the answer.
//!
//! The chat format is `<think>\nreasoning\n</think>\n\nanswer`. The splitter undoes it: the tags, one line break after
//! `<think>`, the line breaks before `</think>` and those after it belong to the format, not to either text.
//!
//! Tags count only before the answer has begun. From its first character on, `<think>` is something the answer talks
//! about (code that handles such tags, say) and stays in it; hiding the rest of an answer as reasoning would be worse
//! than showing a stray tag.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A piece of a model's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Inside the reasoning block.
    Reasoning(String),
    /// The answer.
    Content(String),
}

/// Splits a stream of text into reasoning and answer. The pieces joined do not depend on how the text was chunked, a
/// tag of the format never comes out, not even in part, and a block that is never closed stays reasoning.
#[derive(Debug, Clone)]
pub struct ReasoningSplitter {
    state: State,
    /// Text whose role is not known yet.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing of the answer yet, no block before: white space may belong to the answer or precede a tag.
    Start,
    /// Right after `<think>`, or at the start of a block opened by the prompt: a repeated tag is dropped.
    ReasoningStart,
    /// In the block.
    Reasoning,
    /// After `</think>`: line breaks are the format's.
    AfterReasoning,
    /// In the answer.
    Content,
}

impl ReasoningSplitter {
    /// `starts_in_reasoning`: the prompt ended inside an open block (see [`prompt_starts_in_reasoning`]).
    pub fn new(starts_in_reasoning: bool) -> Self {
        let state = if starts_in_reasoning { State::ReasoningStart } else { State::Start };
        Self { state, held: String::new() }
    }

    /// Whether the text so far ends inside a block that is not closed.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::ReasoningStart | State::Reasoning)
    }

    /// Takes the next piece of text; gives what is certain now, in order, no piece empty.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// The end of the text: what was held back. Use a new splitter for the next text.
    pub fn finish(&mut self) -> Vec<Piece> {
        let rest = std::mem::take(&mut self.held);
        if rest.is_empty() {
            return Vec::new();
        }
        match self.state {
            State::ReasoningStart => match rest.strip_prefix('\n').unwrap_or(&rest) {
                "" => Vec::new(),
                rest => vec![Piece::Reasoning(rest.to_string())],
            },
            State::Reasoning => vec![Piece::Reasoning(rest)],
            State::Start | State::Content => vec![Piece::Content(rest)],
            State::AfterReasoning => match rest.trim_start_matches('\n') {
                "" => Vec::new(),
                rest => vec![Piece::Content(rest.to_string())],
            },
        }
    }

    /// Decides the beginning of the held text; `false` when more is needed.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match self.state {
            State::Start | State::AfterReasoning => self.before_answer(),
            State::ReasoningStart => self.reasoning_start(),
            State::Reasoning => self.reasoning(pieces),
            State::Content => {
                if !self.held.is_empty() {
                    pieces.push(Piece::Content(std::mem::take(&mut self.held)));
                }
                false
            }
        }
    }

    /// Before the answer: a tag changes the state, white space waits, anything else begins the answer.
    fn before_answer(&mut self) -> bool {
        if self.state == State::AfterReasoning {
            let breaks = self.held.len() - self.held.trim_start_matches('\n').len();
            self.held.drain(..breaks);
        }
        let blank = self.held.len() - self.held.trim_start().len();
        let rest = &self.held[blank..];
        if rest.starts_with(OPEN) {
            self.held.drain(..blank + OPEN.len());
            self.state = State::ReasoningStart;
            return true;
        }
        if rest.starts_with(CLOSE) {
            self.held.drain(..blank + CLOSE.len());
            self.state = State::AfterReasoning;
            return true;
        }
        if OPEN.starts_with(rest) || CLOSE.starts_with(rest) {
            return false;
        }
        self.state = State::Content;
        true
    }

    /// The first characters of a block: one line break and a repeated tag are dropped.
    fn reasoning_start(&mut self) -> bool {
        let blank = self.held.len() - self.held.trim_start().len();
        let rest = &self.held[blank..];
        if rest.starts_with(OPEN) {
            self.held.drain(..blank + OPEN.len());
            return true;
        }
        if OPEN.starts_with(rest) {
            return false;
        }
        if self.held.starts_with('\n') {
            self.held.remove(0);
        }
        self.state = State::Reasoning;
        true
    }

    /// In the block: everything up to the line breaks and the tag that may end it.
    fn reasoning(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let (end, next) = match self.held.find(CLOSE) {
            Some(at) => (at, at + CLOSE.len()),
            None => {
                let end = self.held.len() - begun(&self.held, CLOSE);
                (end, end)
            }
        };
        let closed = next > end;
        let text_end = self.held[..end].trim_end_matches('\n').len();
        let rest = self.held.split_off(if closed { next } else { text_end });
        self.held.truncate(text_end);
        let text = std::mem::replace(&mut self.held, rest);
        if !text.is_empty() {
            pieces.push(Piece::Reasoning(text));
        }
        if closed {
            self.state = State::AfterReasoning;
        }
        closed
    }
}

/// Length of the longest end of `text` that begins `tag` but is not all of it.
fn begun(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|&n| text.ends_with(&tag[..n])).unwrap_or(0)
}

/// Whether a rendered prompt ends inside an open `<think>` block of the turn it opens.
///
/// Only the last turn counts, and only if it is the assistant's: a user may write `<think>` too. A prompt without
/// turns (`<|im_start|>`) is looked at as a whole.
pub fn prompt_starts_in_reasoning(rendered: &str) -> bool {
    let turn = match rendered.rsplit_once("<|im_start|>") {
        Some((_, turn)) => match turn.strip_prefix("assistant\n") {
            Some(turn) if !turn.contains("<|im_end|>") => turn,
            _ => return false,
        },
        None => rendered,
    };
    match (turn.rfind(OPEN), turn.rfind(CLOSE)) {
        (Some(open), Some(close)) => open > close,
        (open, _) => open.is_some(),
    }
}
