//! Tokenizer and chat template of one checkpoint.

use std::{borrow::Cow, sync::Arc};

use serde_json::Value;

use crate::{
    ChatTemplate, RenderRequest, Replay, TextError, Tokenizer,
    messages::{normalize_messages, place_system_turns, restore_system_turns},
    replay,
};

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The text side of a checkpoint.
#[derive(Debug, Clone)]
pub struct TextModel {
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Messages to text; `None`: the checkpoint has no chat template.
    pub template: Option<Arc<ChatTemplate>>,
}

impl TextModel {
    /// From a checkpoint's files: `get` gives the content of `tokenizer.json` (needed), `tokenizer_config.json` and
    /// `chat_template.jinja`. Without the last, the template is `chat_template` of `tokenizer_config.json`: a string,
    /// or a list of `{"name", "template"}` of which `default` is taken.
    pub fn from_files(get: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Self, TextError> {
        let tokenizer_json = get(TOKENIZER).ok_or_else(|| TextError::File {
            file: TOKENIZER,
            reason: "not found; the checkpoint directory must have this file".to_string(),
        })?;
        let config_json = get(TOKENIZER_CONFIG);
        let tokenizer = Tokenizer::from_bytes(&tokenizer_json, config_json.as_deref())?;

        let config: Value = match &config_json {
            Some(bytes) => serde_json::from_slice(bytes)
                .map_err(|e| TextError::File { file: TOKENIZER_CONFIG, reason: e.to_string() })?,
            None => Value::Null,
        };
        let source = match get(CHAT_TEMPLATE) {
            Some(bytes) => Some(String::from_utf8(bytes).map_err(|e| TextError::File {
                file: CHAT_TEMPLATE,
                reason: format!("not UTF-8 text: {e}"),
            })?),
            None => template_in_config(&config)?,
        };
        let template = match source {
            Some(source) => {
                let mut template = ChatTemplate::new(&source)?;
                for name in ["bos_token", "eos_token", "pad_token", "unk_token"] {
                    if let Some(text) = token_text(&config[name]) {
                        template.set_global(name, text);
                    }
                }
                Some(Arc::new(template))
            }
            None => None,
        };
        Ok(Self { tokenizer: Arc::new(tokenizer), template })
    }

    /// The rendered prompt. With `normalize`, the messages are first checked and normalised
    /// ([`normalize_messages`]), and system messages after the first turn become system turns in their place;
    /// without, the template gets the messages as they are.
    pub fn render(&self, request: &RenderRequest, normalize: bool) -> Result<String, TextError> {
        let template = self.template.as_ref().ok_or_else(|| TextError::File {
            file: CHAT_TEMPLATE,
            reason: "not found, and tokenizer_config.json has no `chat_template`; chat needs one of them"
                .to_string(),
        })?;
        if !normalize {
            return template.render(request);
        }
        let mut request = Cow::Borrowed(request);
        let messages = &mut request.to_mut().messages;
        normalize_messages(messages)?;
        let turns = place_system_turns(messages);
        restore_system_turns(template.render(&request)?, &turns)
    }

    /// [`render`](Self::render), and the ids of the result.
    pub fn render_ids(
        &self,
        request: &RenderRequest,
        normalize: bool,
    ) -> Result<(String, Vec<u32>), TextError> {
        let text = self.render(request, normalize)?;
        let ids = self.tokenizer.encode(&text)?;
        Ok((text, ids))
    }

    /// [`render_ids`](Self::render_ids) of normalised messages, some of which are written as the model wrote them. A
    /// template that writes turns in another way than ChatML renders them from their parts.
    pub fn render_ids_replaying(
        &self,
        request: &RenderRequest,
        replays: &[Replay],
    ) -> Result<(String, Vec<u32>), TextError> {
        if replays.is_empty() {
            return self.render_ids(request, true);
        }
        let mut replaced = request.clone();
        // A message that is replayed is checked all the same.
        normalize_messages(&mut request.messages.clone())?;
        let stand_ins = replay::place(&mut replaced.messages, replays);
        let rendered = self.render(&replaced, true)?;
        match replay::restore(&rendered, replays, &stand_ins) {
            Some(text) => {
                let ids = self.tokenizer.encode(&text)?;
                Ok((text, ids))
            }
            None => self.render_ids(request, true),
        }
    }
}

/// `chat_template` of `tokenizer_config.json`.
fn template_in_config(config: &Value) -> Result<Option<String>, TextError> {
    let bad = |reason: String| TextError::File { file: TOKENIZER_CONFIG, reason };
    let named = match &config["chat_template"] {
        Value::Null => return Ok(None),
        Value::String(source) => return Ok(Some(source.clone())),
        Value::Array(named) => named,
        _ => {
            return Err(bad("`chat_template` is neither a string nor a list of named templates".to_string()));
        }
    };
    let chosen = match named.as_slice() {
        [only] => Some(only),
        several => several.iter().find(|t| t["name"] == "default"),
    };
    match chosen.map(|t| &t["template"]) {
        Some(Value::String(source)) => Ok(Some(source.clone())),
        _ => Err(bad("`chat_template` is a list without a template named \"default\"".to_string())),
    }
}

/// A special token is written as a string or as an object with `content`.
fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}
