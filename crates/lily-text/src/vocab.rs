//! Id → bytes for the whole vocabulary, in one block of memory.

use std::collections::HashMap;

use crate::TextError;

/// Ids above this are refused: the table below is indexed by id, so a hostile file must not choose its size.
/// Qwen3.6 has 248,320.
const MAX_ID: u32 = (1 << 22) - 1;

/// What an id stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// No token has this id.
    Absent,
    /// A byte-level token of the BPE model.
    Ordinary,
    /// An added token that belongs to the text: `<think>`, `<tool_call>`, ...
    Markup,
    /// An added token that steers the chat format: `<|im_end|>`, `<|endoftext|>`, ...
    Control,
}

/// Bytes and kind of every id.
#[derive(Debug)]
pub(crate) struct VocabTable {
    bytes: Vec<u8>,
    /// `[ids + 1]`; token `i` is `bytes[ends[i]..ends[i + 1]]`.
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
}

impl VocabTable {
    /// `vocab`: byte-level token strings of the BPE model; `added`: (id, text, kind). An added token may be in `vocab`
    /// too, with the same id.
    pub(crate) fn new(
        vocab: &HashMap<String, u32>,
        added: &[(u32, &str, TokenKind)],
    ) -> Result<Self, TextError> {
        let too_large = |id: u32, token: &str| TextError::File {
            file: "tokenizer.json",
            reason: format!("token {token:?} has id {id}; ids up to {MAX_ID} are supported"),
        };
        let mut by_id: Vec<Option<(&str, TokenKind)>> = Vec::with_capacity(vocab.len() + added.len());
        let ordinary = vocab.iter().map(|(token, &id)| (id, token.as_str(), TokenKind::Ordinary));
        for (id, token, kind) in ordinary.chain(added.iter().copied()) {
            if id > MAX_ID {
                return Err(too_large(id, token));
            }
            let index = id as usize;
            if by_id.len() <= index {
                by_id.resize(index + 1, None);
            }
            if let Some((other, _)) = by_id[index].filter(|&(other, _)| other != token) {
                return Err(TextError::File {
                    file: "tokenizer.json",
                    reason: format!("id {id} is given to two tokens, {other:?} and {token:?}"),
                });
            }
            by_id[index] = Some((token, kind));
        }

        let byte_of = byte_level_alphabet();
        let mut table = Self {
            bytes: Vec::with_capacity(by_id.len() * 7),
            ends: Vec::with_capacity(by_id.len() + 1),
            kinds: Vec::with_capacity(by_id.len()),
        };
        table.ends.push(0);
        for entry in by_id {
            let (token, kind) = entry.unwrap_or(("", TokenKind::Absent));
            if kind == TokenKind::Ordinary {
                push_byte_level(token, &byte_of, &mut table.bytes);
            } else {
                table.bytes.extend_from_slice(token.as_bytes());
            }
            let end = u32::try_from(table.bytes.len()).map_err(|_| TextError::File {
                file: "tokenizer.json",
                reason: "the vocabulary's text is longer than 4 GiB".to_string(),
            })?;
            table.ends.push(end);
            table.kinds.push(kind);
        }
        Ok(table)
    }

    /// Highest id + 1.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Kind of an id; [`TokenKind::Absent`] beyond the table.
    pub(crate) fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Absent)
    }

    /// Raw bytes of an id, `None` when no token has it.
    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        if self.kind(id) == TokenKind::Absent {
            return None;
        }
        let i = id as usize;
        Some(&self.bytes[self.ends[i] as usize..self.ends[i + 1] as usize])
    }
}

/// The inverse of the GPT-2 byte alphabet: printable bytes stand for themselves, the other 68 are U+0100 onwards in
/// byte order (Radford et al. 2019, `bytes_to_unicode`). Index: code point; `None`: not in the alphabet.
fn byte_level_alphabet() -> [Option<u8>; 0x144] {
    let mut byte_of = [None; 0x144];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let code_point = if printable {
            usize::from(byte)
        } else {
            next += 1;
            next - 1
        };
        byte_of[code_point] = Some(byte);
    }
    byte_of
}

/// Appends the bytes a byte-level token stands for; a token with a character outside the alphabet is its own UTF-8.
fn push_byte_level(token: &str, byte_of: &[Option<u8>; 0x144], out: &mut Vec<u8>) {
    let start = out.len();
    for c in token.chars() {
        match byte_of.get(c as usize).copied().flatten() {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_covers_every_byte_once() {
        let mut seen: Vec<u8> = byte_level_alphabet().into_iter().flatten().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_level_alphabet()['Ġ' as usize], Some(b' '));
        assert_eq!(byte_level_alphabet()['Ċ' as usize], Some(b'\n'));
    }

    #[test]
    fn added_tokens_keep_their_text_and_gaps_stay_absent() {
        let vocab = HashMap::from([("Ġa".to_string(), 0), ("<x>".to_string(), 1), ("語".to_string(), 4)]);
        let table = VocabTable::new(&vocab, &[(1, "<x>", TokenKind::Control)]).unwrap();
        assert_eq!(table.len(), 5);
        assert_eq!(table.bytes(0), Some(&b" a"[..]));
        assert_eq!(table.bytes(1), Some(&b"<x>"[..]));
        assert_eq!(table.bytes(2), None);
        assert_eq!(table.bytes(4), Some("語".as_bytes()));
        assert_eq!(table.bytes(5), None);
        assert_eq!(table.kind(1), TokenKind::Control);
    }

    #[test]
    fn an_id_has_one_token() {
        let vocab = HashMap::from([("a".to_string(), 0)]);
        let error = VocabTable::new(&vocab, &[(0, "<x>", TokenKind::Control)]).unwrap_err().to_string();
        assert_eq!(error, "tokenizer.json: id 0 is given to two tokens, \"a\" and \"<x>\"");
    }

    #[test]
    fn huge_ids_are_refused() {
        let vocab = HashMap::from([("a".to_string(), u32::MAX)]);
        let error = VocabTable::new(&vocab, &[]).unwrap_err().to_string();
        assert!(error.contains("4294967295"), "{error}");
    }
}
