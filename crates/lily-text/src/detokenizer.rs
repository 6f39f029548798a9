//! Text from ids as they come, never half a character.

use std::sync::Arc;

use crate::Tokenizer;

/// Turns a stream of ids into text. All pieces joined equal [`Tokenizer::decode`] of all ids.
///
/// With `skip_special`, control tokens (`<|im_end|>`, `<|endoftext|>`, ...) add nothing; tokens of the written answer
/// (`<think>`, `</think>`, `<tool_call>`, ...) always show, since the reasoning splitter and the tool-call parser read
/// them from the text. [`Tokenizer::is_special`] says which is which.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// The beginning of a character whose rest has not come yet: at most 3 bytes between pushes.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// A detokenizer at the beginning of a text.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, pending: Vec::new() }
    }

    /// Text that is complete once `id` has come. Bytes that can never become a character are U+FFFD, one for each
    /// maximal invalid piece; an incomplete character is held back.
    pub fn push(&mut self, id: u32) -> String {
        if let Some(bytes) = self.tokenizer.visible_bytes(id, self.skip_special) {
            self.pending.extend_from_slice(bytes);
        }
        let mut text = String::new();
        let mut held = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            if is_incomplete(invalid) && invalid.as_ptr_range().end == self.pending.as_ptr_range().end {
                held = invalid.len();
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.drain(..self.pending.len() - held);
        text
    }

    /// The end of the text: U+FFFD if a character stayed incomplete.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// Whether more bytes could make the invalid bytes at the end of a text a character.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
}
