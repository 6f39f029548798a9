//! Errors of tokenizing and rendering. Each names the file or the message field, what was found and what was
//! expected.

/// Why text could not become tokens.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file of the checkpoint is missing or cannot be used.
    #[error("{file}: {reason}")]
    File {
        /// `tokenizer.json`, `tokenizer_config.json` or `chat_template.jinja`.
        file: &'static str,
        /// What was found, what was expected and what to do.
        reason: String,
    },
    /// A message does not have the form the chat API defines.
    #[error("{path}: found {found}; expected {expected}")]
    Message {
        /// Where, for example `messages[3].content[0].type`.
        path: String,
        /// What is there, shortened.
        found: String,
        /// What is allowed.
        expected: String,
    },
    /// The template refused the messages by its own `raise_exception`; the text is the template's, unchanged.
    #[error("{message}")]
    Template {
        /// The template's own words.
        message: String,
    },
    /// The template failed while it was rendered (wrong types, no fuel left, nested too deep).
    #[error("chat template failed{}: {message}", line.map_or(String::new(), |l| format!(" at line {l}")))]
    Render {
        /// Line of the template, counted from 1.
        line: Option<usize>,
        /// What went wrong.
        message: String,
    },
    /// The text could not be tokenized.
    #[error("the text of {bytes} bytes could not be tokenized: {reason}")]
    Encode {
        /// Length of the text in UTF-8 bytes.
        bytes: usize,
        /// The tokenizer's reason.
        reason: String,
    },
}

impl TextError {
    /// A [`TextError::Message`].
    pub(crate) fn message(
        path: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Message { path: path.into(), found: found.into(), expected: expected.into() }
    }
}
