//! The checkpoint's tokenizer: byte-level BPE with added tokens.
//!
//! Encoding is done by the `tokenizers` crate, segment by segment: the text is cut at added tokens (leftmost, longest,
//! as that crate does), and each segment between them is normalised, pre-tokenized and merged on its own. Since no
//! segment's ids depend on its neighbours, a segment seen before is answered from a cache. Decoding needs only the
//! bytes of each id and is done here.

use std::{collections::HashMap, panic::catch_unwind};

use aho_corasick::{AhoCorasick, MatchKind};
use serde::Deserialize;
use tokenizers::{AddedVocabulary, DecoderWrapper, ModelWrapper};

use crate::{
    TextError,
    segment_cache::SegmentCache,
    vocab::{TokenKind, VocabTable},
};

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Memory for the ids of segments seen before.
const CACHE_BYTES: usize = 32 << 20;

/// Added tokens that are part of the model's written answer rather than of the chat framing. They are kept when
/// control tokens are left out, whatever a checkpoint's `special` flag says, since the reasoning splitter and the
/// tool-call parser read them.
const MARKUP_TOKENS: [&str; 6] =
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];

/// Text to ids and back. Safe to share between threads.
#[derive(Debug)]
pub struct Tokenizer {
    /// The BPE pipeline without any added token.
    ordinary: tokenizers::Tokenizer,
    /// The whole pipeline, when an added token is not simply its literal text (see [`AddedToken::is_literal`]).
    whole: Option<tokenizers::Tokenizer>,
    /// Finds added tokens; pattern `i` has id `added_ids[i]`. `None`: there are none.
    added: Option<AhoCorasick>,
    added_ids: Vec<u32>,
    /// Text of the added tokens to id.
    added_by_text: HashMap<String, u32>,
    table: VocabTable,
    cache: SegmentCache,
}

/// An added token as both files describe it.
#[derive(Debug, Clone, Deserialize)]
struct AddedToken {
    #[serde(default)]
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
}

/// The part of `tokenizer.json` read here; the rest is the `tokenizers` crate's.
#[derive(Debug, Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

/// The part of `tokenizer_config.json` read here.
#[derive(Debug, Deserialize)]
struct TokenizerConfigJson {
    #[serde(default)]
    added_tokens_decoder: HashMap<String, AddedToken>,
}

impl Tokenizer {
    /// From the contents of `tokenizer.json` and, when there is one, `tokenizer_config.json`, whose
    /// `added_tokens_decoder` may list added tokens that the first file lacks (Qwen3.6: 26 and 7 more).
    pub fn from_bytes(
        tokenizer_json: &[u8],
        tokenizer_config_json: Option<&[u8]>,
    ) -> Result<Self, TextError> {
        let file = |reason: String| TextError::File { file: TOKENIZER, reason };
        let mut ordinary = read_pipeline(tokenizer_json)?;
        let added = added_tokens(tokenizer_json, tokenizer_config_json)?;
        let whole = if added.iter().all(AddedToken::is_literal) {
            None
        } else {
            Some(with_added_tokens(ordinary.clone(), &added)?)
        };
        ordinary.with_added_vocabulary(AddedVocabulary::new());

        let vocab = ordinary.get_vocab(false);
        for token in &added {
            if let Some(&id) = vocab.get(&token.content).filter(|&&id| id != token.id) {
                return Err(file(format!(
                    "added token {:?} has id {} but the vocabulary says {id}",
                    token.content, token.id
                )));
            }
        }
        let described: Vec<(u32, &str, TokenKind)> =
            added.iter().map(|t| (t.id, t.content.as_str(), t.kind())).collect();
        let table = VocabTable::new(&vocab, &described)?;

        let searcher = if added.is_empty() {
            None
        } else {
            let contents = added.iter().map(|t| t.content.as_bytes());
            let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents);
            Some(built.map_err(|e| file(format!("added tokens: {e}")))?)
        };
        Ok(Self {
            ordinary,
            whole,
            added: searcher,
            added_ids: added.iter().map(|t| t.id).collect(),
            added_by_text: added.iter().map(|t| (t.content.clone(), t.id)).collect(),
            table,
            cache: SegmentCache::new(CACHE_BYTES),
        })
    }

    /// Ids of a rendered prompt: text of added tokens (`<|im_start|>`, `<think>`, ...) becomes their ids.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        if let Some(whole) = &self.whole {
            return Ok(encode_with(whole, text)?.get_ids().to_vec());
        }
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut start = 0;
        if let Some(added) = &self.added {
            for found in added.find_iter(text) {
                self.encode_segment(&text[start..found.start()], &mut ids)?;
                ids.push(self.added_ids[found.pattern().as_usize()]);
                start = found.end();
            }
        }
        self.encode_segment(&text[start..], &mut ids)?;
        Ok(ids)
    }

    /// Ids of a text in which nothing is special: `<|im_end|>` is seven or so ordinary tokens.
    pub fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.encode_segment(text, &mut ids)?;
        Ok(ids)
    }

    /// Appends the ids of a segment without added tokens.
    fn encode_segment(&self, segment: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        if segment.is_empty() {
            return Ok(());
        }
        if let Some(known) = self.cache.get(segment) {
            ids.extend_from_slice(&known);
            return Ok(());
        }
        let encoding = encode_with(&self.ordinary, segment)?;
        ids.extend_from_slice(encoding.get_ids());
        self.cache.put(segment, encoding.get_ids());
        Ok(())
    }

    /// Text of ids. Invalid UTF-8 becomes U+FFFD as Python's `errors="replace"` does it; ids without a token are
    /// left out. `skip_special` leaves out control tokens (see [`Tokenizer::is_special`]).
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            if let Some(token) = self.visible_bytes(id, skip_special) {
                bytes.extend_from_slice(token);
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Raw bytes of a token (an added token: its text), which need not be whole characters. `None`: no such token.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.table.bytes(id).map(<[u8]>::to_vec)
    }

    /// The bytes a token adds to the text; `None` for unknown ids and, if asked, control tokens.
    pub(crate) fn visible_bytes(&self, id: u32, skip_special: bool) -> Option<&[u8]> {
        if skip_special && self.is_special(id) {
            return None;
        }
        self.table.bytes(id)
    }

    /// Highest id + 1. The model's logits may have more rows; those ids have no token.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// Id of a token given by its text: an added token (`<|im_end|>`) or a byte-level vocabulary entry (`Ġthe`).
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.added_by_text.get(token).copied().or_else(|| self.ordinary.token_to_id(token))
    }

    /// Whether the id is an added token (`<|im_end|>`, `<think>`, `<tool_call>`, ...), which text never becomes unless
    /// it is written as that token.
    pub fn is_added(&self, id: u32) -> bool {
        matches!(self.table.kind(id), TokenKind::Markup | TokenKind::Control)
    }

    /// Whether the id is a control token: an added token that the checkpoint declares `special` and that is not part
    /// of the written answer. `<|im_end|>` is; `<think>`, `</think>`, `<tool_call>`, ... are not.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.kind(id) == TokenKind::Control
    }
}

impl AddedToken {
    fn kind(&self) -> TokenKind {
        if self.special && !MARKUP_TOKENS.contains(&self.content.as_str()) {
            TokenKind::Control
        } else {
            TokenKind::Markup
        }
    }

    /// Whether the token is matched as it stands, anywhere in the text. All of Qwen's are; tokens added later by
    /// `transformers` may be matched in the normalised text, at word borders, or with the blanks around them.
    fn is_literal(&self) -> bool {
        !(self.normalized || self.lstrip || self.rstrip || self.single_word)
    }
}

/// Reads `tokenizer.json`. Only byte-level BPE can be decoded by bytes; every Qwen tokenizer is that.
fn read_pipeline(tokenizer_json: &[u8]) -> Result<tokenizers::Tokenizer, TextError> {
    let file = |reason: String| TextError::File { file: TOKENIZER, reason };
    check_steps(tokenizer_json)?;
    // The library panics on some files it does not expect.
    let read = catch_unwind(|| tokenizers::Tokenizer::from_bytes(tokenizer_json))
        .map_err(|_| file("not a tokenizer of the `tokenizers` library: reading it failed".to_string()))?;
    let mut tokenizer =
        read.map_err(|e| file(format!("not a tokenizer of the `tokenizers` library: {e}")))?;
    let found = match (tokenizer.get_model(), tokenizer.get_decoder()) {
        (ModelWrapper::BPE(_), Some(DecoderWrapper::ByteLevel(_))) => None,
        (ModelWrapper::BPE(_), _) => Some("`decoder.type` is not \"ByteLevel\""),
        _ => Some("`model.type` is not \"BPE\""),
    };
    if let Some(found) = found {
        return Err(file(format!("{found}; only byte-level BPE tokenizers are supported")));
    }
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|e| file(e.to_string()))?;
    Ok(tokenizer)
}

/// Refuses steps no byte-level BPE tokenizer of this architecture has, before the library sees them: it panics on some
/// normalizers it cannot read, others make a text a million times longer, and with dropout ids are a matter of chance.
fn check_steps(tokenizer_json: &[u8]) -> Result<(), TextError> {
    #[derive(Default, Deserialize)]
    struct Steps {
        normalizer: Option<serde_json::Value>,
        #[serde(default)]
        model: Model,
    }
    #[derive(Default, Deserialize)]
    struct Model {
        dropout: Option<serde_json::Value>,
    }
    // What is not even an object of this form is the library's to complain about.
    let Ok(steps) = serde_json::from_slice::<Steps>(tokenizer_json) else { return Ok(()) };
    let refuse = |found: String| Err(TextError::File { file: TOKENIZER, reason: found });
    if let Some(normalizer) = steps.normalizer.filter(|n| n["type"] != "NFC") {
        let found = &normalizer["type"];
        return refuse(format!("`normalizer.type` is {found}; expected \"NFC\", or no normalizer"));
    }
    if let Some(dropout) = steps.model.dropout.filter(|d| d.as_f64() != Some(0.0)) {
        return refuse(format!(
            "`model.dropout` is {dropout}; expected none: ids must not be a matter of chance"
        ));
    }
    Ok(())
}

/// The pipeline with all added tokens, each at the id the files give it.
fn with_added_tokens(
    mut tokenizer: tokenizers::Tokenizer,
    added: &[AddedToken],
) -> Result<tokenizers::Tokenizer, TextError> {
    let bad = |reason: String| TextError::File { file: TOKENIZER, reason };
    let missing: Vec<_> = added
        .iter()
        .filter(|t| tokenizer.token_to_id(&t.content) != Some(t.id))
        .map(|t| {
            tokenizers::AddedToken::from(t.content.clone(), t.special)
                .normalized(t.normalized)
                .lstrip(t.lstrip)
                .rstrip(t.rstrip)
                .single_word(t.single_word)
        })
        .collect();
    tokenizer.add_tokens(missing).map_err(|e| bad(e.to_string()))?;
    for token in added {
        let given = tokenizer.token_to_id(&token.content);
        if given != Some(token.id) {
            let reason = format!(
                "added token {:?} has id {}, but counting on from the vocabulary its id is {given:?}",
                token.content, token.id
            );
            return Err(bad(reason));
        }
    }
    Ok(tokenizer)
}

/// Ids of a text by the library.
fn encode_with(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<tokenizers::Encoding, TextError> {
    tokenizer
        .encode_fast(text, false)
        .map_err(|e| TextError::Encode { bytes: text.len(), reason: e.to_string() })
}

/// The added tokens of both files, in order of id.
fn added_tokens(
    tokenizer_json: &[u8],
    tokenizer_config_json: Option<&[u8]>,
) -> Result<Vec<AddedToken>, TextError> {
    let bad = |file: &'static str, reason: String| TextError::File { file, reason };
    let json: TokenizerJson =
        serde_json::from_slice(tokenizer_json).map_err(|e| bad(TOKENIZER, format!("`added_tokens`: {e}")))?;
    let mut tokens = json.added_tokens;
    if let Some(config) = tokenizer_config_json {
        let config: TokenizerConfigJson = serde_json::from_slice(config)
            .map_err(|e| bad(TOKENIZER_CONFIG, format!("`added_tokens_decoder`: {e}")))?;
        for (id, mut token) in config.added_tokens_decoder {
            token.id = id.parse().map_err(|_| {
                bad(TOKENIZER_CONFIG, format!("`added_tokens_decoder` has the key {id:?}; expected an id"))
            })?;
            // The flags of tokenizer.json win where both files know the token.
            if !tokens.iter().any(|t| t.id == token.id && t.content == token.content) {
                tokens.push(token);
            }
        }
    }
    tokens.sort_by_key(|t| t.id);

    let mut texts: HashMap<&str, u32> = HashMap::new();
    for pair in tokens.windows(2) {
        if pair[0].id == pair[1].id {
            let (a, b) = (&pair[0].content, &pair[1].content);
            let reason = format!("id {} is given to two added tokens, {a:?} and {b:?}", pair[0].id);
            return Err(bad(TOKENIZER, reason));
        }
    }
    for token in &tokens {
        let (id, text) = (token.id, token.content.as_str());
        if text.is_empty() {
            return Err(bad(TOKENIZER, format!("the added token with id {id} has no text")));
        }
        if let Some(other) = texts.insert(text, id) {
            return Err(bad(TOKENIZER, format!("added token {text:?} has two ids, {other} and {id}")));
        }
    }
    Ok(tokens)
}
