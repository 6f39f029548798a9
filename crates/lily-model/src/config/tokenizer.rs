//! The two facts the model needs of its tokenizer: the highest id there is, and the ids of special tokens by
//! their text. `tokenizer.json` is 20 MB for the large model, so it is read in one pass without being kept.

use std::{collections::HashMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use crate::{
    error::{ModelError, RESTORE_CONFIG},
    json::{Field, clip},
};

/// Ids of a tokenizer.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenizerFacts {
    /// Added tokens by text.
    added: HashMap<String, u32>,
    /// Highest id of vocabulary and added tokens.
    highest: Option<u32>,
}

#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    model: ModelJson,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

#[derive(Deserialize)]
struct ModelJson {
    vocab: HighestId,
}

/// A `{token: id}` object reduced to its highest id.
struct HighestId(Option<u32>);

impl<'de> Deserialize<'de> for HighestId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Ids;
        impl<'de> Visitor<'de> for Ids {
            type Value = HighestId;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of token ids")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HighestId, A::Error> {
                let mut highest = None;
                while let Some((_, id)) = map.next_entry::<IgnoredAny, u32>()? {
                    highest = highest.max(Some(id));
                }
                Ok(HighestId(highest))
            }
        }
        d.deserialize_map(Ids)
    }
}

impl TokenizerFacts {
    /// Reads `tokenizer.json`.
    pub(crate) fn from_tokenizer_json(file: &str, bytes: &[u8]) -> Result<Self, ModelError> {
        let parsed: TokenizerJson = serde_json::from_slice(bytes).map_err(|e| ModelError::Json {
            file: file.into(),
            reason: clip(&e.to_string()),
            advice: RESTORE_CONFIG,
        })?;
        let highest = parsed.added_tokens.iter().map(|t| t.id).max().max(parsed.model.vocab.0);
        let added = parsed.added_tokens.into_iter().map(|t| (t.content, t.id)).collect();
        Ok(Self { added, highest })
    }

    /// Adds the tokens that only `tokenizer_config.json` lists (`added_tokens_decoder`); the published large
    /// checkpoint has seven of them above all others.
    pub(crate) fn add_tokenizer_config(&mut self, config: &Field) -> Result<(), ModelError> {
        let decoder = config.get("added_tokens_decoder");
        if !decoder.is_present() {
            return Ok(());
        }
        for key in decoder.object()?.keys() {
            let entry = decoder.get(key);
            let id: u32 = key.parse().map_err(|_| entry.error("a token id as key"))?;
            let text = entry.get("content").string()?;
            self.added.insert(text.to_string(), id);
            self.highest = self.highest.max(Some(id));
        }
        Ok(())
    }

    /// The id of the `eos_token` of `tokenizer_config.json`, a string or an object with `content`.
    pub(crate) fn eos_token_id(&self, config: &Field) -> Result<Option<u32>, ModelError> {
        let field = config.get("eos_token");
        if !field.is_present() || self.highest.is_none() {
            return Ok(None);
        }
        let text = if field.get("content").is_present() {
            field.get("content").string()?
        } else {
            field.string()?
        };
        match self.added.get(text) {
            Some(&id) => Ok(Some(id)),
            None => Err(field.error("the text of an added token of tokenizer.json")),
        }
    }

    /// One more than the highest id; `vocab_size` when there is no tokenizer.
    pub(crate) fn valid_vocab(&self, file: &str, vocab_size: usize) -> Result<usize, ModelError> {
        match self.highest {
            None => Ok(vocab_size),
            Some(id) if (id as usize) < vocab_size => Ok(id as usize + 1),
            Some(id) => Err(ModelError::Field {
                file: file.into(),
                field: "highest token id".into(),
                found: id.to_string(),
                expected: format!("less than config.json's vocab_size, {vocab_size}"),
                advice: "use the tokenizer and the config of the same checkpoint",
            }),
        }
    }
}
