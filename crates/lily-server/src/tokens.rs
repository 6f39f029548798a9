//! `POST /tokenize`, `/detokenize` and `/apply-template`: the text side alone, without generating.

use axum::{
    Json,
    extract::{Request, State},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    app::App,
    body, chat,
    completions::token_ids,
    error::ApiError,
    fields::{self, Allowed},
    job::{self, Source},
    params,
};

/// Text (llama.cpp's `content`, vLLM's `prompt`), or the fields of a chat request.
#[derive(Debug, Deserialize)]
struct TokenizeBody {
    model: Option<String>,
    content: Option<String>,
    prompt: Option<String>,
    /// Special tokens' text becomes those tokens.
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
    return_token_strs: Option<bool>,
    messages: Option<Value>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

/// The tokenizer adds nothing around a text.
const KNOWN: &[(&str, Allowed)] =
    &[("add_special", Allowed::Only("false")), ("add_special_tokens", Allowed::Anything)];

/// `POST /tokenize`: `{"tokens": [...], "count": n, "max_model_len": n}`.
pub(crate) async fn tokenize(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let _permit = app.admit()?;
    let body = body::read_json(request, app.config.body_limit).await?;
    job::blocking(move || {
        let asked: TokenizeBody = params::read_json(&body)?;
        params::check_model(asked.model.as_deref(), &app.context.models)?;
        let tokenizer = app.engine.tokenizer();
        let ids = match (asked.content.or(asked.prompt), &asked.messages) {
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid("messages", "send a text or messages, not both"));
            }
            (None, None) => return Err(params::missing("content", "a text, or `messages`")),
            (None, Some(_)) => rendered(&app, &body)?.ids,
            (Some(text), None) => {
                fields::check("", &asked.extra, KNOWN)?;
                let encoded = match asked.parse_special {
                    Some(false) => tokenizer.encode_ordinary(&text),
                    _ => tokenizer.encode(&text),
                };
                encoded.map_err(|e| ApiError::invalid("content", e.to_string()))?
            }
        };
        let piece = |id: &u32| {
            let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
            String::from_utf8(bytes).map_or_else(|e| json!(e.into_bytes()), Value::from)
        };
        let mut answer =
            json!({"count": ids.len(), "max_model_len": app.engine.engine().options().context_limit});
        if asked.return_token_strs == Some(true) {
            let pieces: Vec<String> = ids.iter().map(|&id| tokenizer.decode(&[id], false)).collect();
            answer["token_strs"] = json!(pieces);
        }
        answer["tokens"] = if asked.with_pieces == Some(true) {
            ids.iter().map(|id| json!({"id": id, "piece": piece(id)})).collect()
        } else {
            json!(ids)
        };
        Ok(Json(answer))
    })
    .await
}

#[derive(Debug, Deserialize)]
struct DetokenizeBody {
    model: Option<String>,
    tokens: Option<Vec<Value>>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

/// `POST /detokenize`: `{"content": ..., "prompt": ...}` (llama.cpp's name and vLLM's).
pub(crate) async fn detokenize(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let _permit = app.admit()?;
    let body = body::read_json(request, app.config.body_limit).await?;
    job::blocking(move || {
        let asked: DetokenizeBody = params::read_json(&body)?;
        fields::check("", &asked.extra, &[])?;
        params::check_model(asked.model.as_deref(), &app.context.models)?;
        let list = asked.tokens.ok_or_else(|| params::missing("tokens", "a list of token ids"))?;
        let ids = if list.is_empty() { Vec::new() } else { token_ids(&list, app.engine.vocab(), "tokens")? };
        let text = app.engine.tokenizer().decode(&ids, false);
        Ok(Json(json!({"content": text, "prompt": text})))
    })
    .await
}

/// `POST /apply-template`: the body of a chat request; `{"prompt": ...}`.
pub(crate) async fn apply_template(
    State(app): State<App>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let _permit = app.admit()?;
    let body = body::read_json(request, app.config.body_limit).await?;
    job::blocking(move || {
        let prompt = rendered(&app, &body)?;
        Ok(Json(json!({"prompt": prompt.text, "count": prompt.ids.len()})))
    })
    .await
}

/// The prompt of a chat request's body.
fn rendered(app: &App, body: &[u8]) -> Result<crate::Prompt, ApiError> {
    let mut fields: Map<String, Value> = params::read_json(body)?;
    // What /tokenize has beyond a chat request's fields.
    ["with_pieces", "return_token_strs", "parse_special", "add_special", "add_special_tokens"]
        .iter()
        .for_each(|name| drop(fields.shift_remove(*name)));
    let asked = chat::parse(Value::Object(fields).to_string().as_bytes(), &app.context)?;
    let Source::Chat(render) = asked.job.source else {
        return Err(params::missing("messages", "a list of chat messages"));
    };
    let replays = app.replays.find(&render.messages);
    app.engine.prompt_replaying(&render, &replays).map_err(job::text_error)
}
