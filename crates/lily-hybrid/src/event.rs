//! What an answer from the cloud consists of, once it is restored. Nothing of the provider's envelope is in it: ids, model
//! names and times are this server's own.

use serde::Serialize;

/// One step of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum CloudEvent {
    /// More of the answer's text.
    Content {
        /// Which of several answers.
        choice: usize,
        /// The text.
        text: String,
    },
    /// More of the reasoning.
    Reasoning {
        /// Which of several answers.
        choice: usize,
        /// The text.
        text: String,
    },
    /// More of a refusal.
    Refusal {
        /// Which of several answers.
        choice: usize,
        /// The text.
        text: String,
    },
    /// A tool call begins.
    ToolCall {
        /// Which of several answers.
        choice: usize,
        /// Which of its calls.
        index: usize,
        /// The call's id.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of a tool call's arguments.
    Arguments {
        /// Which of several answers.
        choice: usize,
        /// Which of its calls.
        index: usize,
        /// A piece of a JSON text.
        text: String,
    },
    /// An answer is over.
    Finish {
        /// Which of several answers.
        choice: usize,
        /// `stop`, `length`, `tool_calls` or `content_filter`.
        reason: &'static str,
    },
    /// Everything is over.
    End(Ending),
    /// Everything is over, by an error; what came before is a part.
    Failed {
        /// For programs.
        code: &'static str,
        /// For people.
        message: String,
    },
}

/// The end of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ending {
    /// Token counts, where the provider told them.
    pub usage: Option<Usage>,
    /// Stand-ins that got their originals back.
    pub restored: u64,
    /// Stand-ins that did not.
    pub unrestored: u64,
    /// Values hidden in the answer.
    pub redacted: u64,
}

/// Token counts of the provider.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Of the request.
    pub prompt_tokens: u64,
    /// Of the answer.
    pub completion_tokens: u64,
    /// Of both.
    pub total_tokens: u64,
    /// Of the request, from the provider's cache.
    #[serde(skip)]
    pub cached_tokens: u64,
    /// Of the answer, reasoning.
    #[serde(skip)]
    pub reasoning_tokens: u64,
}
