//! The body of `POST /v1/chat/completions`: reading it, checking it, and turning it into a job.
//!
//! Every field is honoured, neutral, or refused with its name. Types and ranges are OpenAI's, plus the widely used
//! additions `top_k`, `min_p`, `repetition_penalty`, `chat_template_kwargs`, `enable_thinking` and
//! `preserve_thinking`.

use std::sync::Arc;

use lily_engine::SamplingParams;
use lily_text::{ChatTemplate, RenderRequest};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{messages, neutral, thinking::Thinking, tools};
use crate::{error::ApiError, generate::GenerateOptions};

/// Most stop strings (OpenAI's limit).
const MAX_STOPS: usize = 4;
/// Longest stop string in bytes: text that may begin one is held back from the client.
const MAX_STOP_BYTES: usize = 1024;
/// Most entries of `logit_bias`.
const MAX_BIASES: usize = 1024;
/// Most rivals reported a token (OpenAI's limit).
const MAX_TOP_LOGPROBS: u64 = 20;

/// What a request's checks need to know about the server.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The checkpoint's sampling defaults.
    pub sampling: SamplingParams,
    /// Token ids below this exist.
    pub vocab: usize,
    /// Thinking when the request does not say; `None`: as the template does.
    pub thinking: Option<bool>,
    /// Model ids served, the first being the one reported.
    pub models: Vec<String>,
    /// The model's chat template, which says what keywords there are.
    pub template: Option<Arc<ChatTemplate>>,
}

/// A checked request.
#[derive(Debug, Clone)]
pub struct ChatJob {
    /// What the prompt is rendered from.
    pub render: RenderRequest,
    /// How the answer is generated.
    pub options: GenerateOptions,
    /// Answer by server-sent events.
    pub stream: bool,
    /// One more chunk with the usage at the end of a stream.
    pub include_usage: bool,
}

/// The body as sent.
#[derive(Debug, Default, Deserialize)]
struct Body {
    model: Option<String>,
    messages: Option<Vec<Value>>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    logit_bias: Option<Map<String, Value>>,
    seed: Option<Value>,
    stop: Option<Value>,
    n: Option<u64>,
    logprobs: Option<bool>,
    top_logprobs: Option<u64>,
    stream: Option<bool>,
    stream_options: Option<Map<String, Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    enable_thinking: Option<bool>,
    preserve_thinking: Option<bool>,
    reasoning_effort: Option<String>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    response_format: Option<Value>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

/// Reads and checks a body.
pub fn parse(body: &[u8], context: &RequestContext) -> Result<ChatJob, ApiError> {
    let body: Body = read_json(body)?;
    neutral::check("", &body.extra, neutral::CHAT)?;
    check_model(body.model.as_deref(), &context.models)?;
    if body.n.is_some_and(|n| n != 1) {
        return Err(ApiError::unsupported("n", "only n = 1 is supported; send the request several times"));
    }
    check_response_format(body.response_format.as_ref())?;
    let (tool_set, offered) = tools::read(body.tools, body.tool_choice.as_ref())?;
    let messages = body.messages.ok_or_else(|| missing("messages", "a list of chat messages"))?;
    let messages = messages::check(messages)?;
    let stream = body.stream.unwrap_or(false);
    let include_usage = stream_options(body.stream_options.as_ref(), stream)?;
    let thinking = Thinking {
        enable: body.enable_thinking,
        preserve: body.preserve_thinking,
        effort: body.reasoning_effort.as_deref(),
        kwargs: body.chat_template_kwargs,
    };
    let options = GenerateOptions {
        max_tokens: max_tokens(body.max_tokens, body.max_completion_tokens)?,
        stop: stop_strings(body.stop)?,
        logprobs: logprobs(body.logprobs, body.top_logprobs)?,
        max_tool_calls: (body.parallel_tool_calls == Some(false)).then_some(1),
        tools: tool_set,
        deadline: None,
        sampling: SamplingParams {
            temperature: range("temperature", body.temperature, 0.0, 2.0)?
                .unwrap_or(context.sampling.temperature),
            top_p: top_p(body.top_p)?.unwrap_or(context.sampling.top_p),
            top_k: top_k(body.top_k)?.unwrap_or(context.sampling.top_k),
            min_p: range("min_p", body.min_p, 0.0, 1.0)?.unwrap_or(context.sampling.min_p),
            presence_penalty: range("presence_penalty", body.presence_penalty, -2.0, 2.0)?
                .unwrap_or(context.sampling.presence_penalty),
            frequency_penalty: range("frequency_penalty", body.frequency_penalty, -2.0, 2.0)?
                .unwrap_or(context.sampling.frequency_penalty),
            repetition_penalty: repetition_penalty(body.repetition_penalty)?
                .unwrap_or(context.sampling.repetition_penalty),
            logit_bias: logit_bias(body.logit_bias, context.vocab)?,
            seed: seed(body.seed.as_ref())?,
        },
    };
    let render = RenderRequest { messages, tools: offered, kwargs: thinking.keywords(context)? };
    Ok(ChatJob { render, options, stream, include_usage })
}

/// Deserialises a JSON object; errors name the path of the field and use JSON's words for types.
fn read_json(body: &[u8]) -> Result<Body, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let parsed: Result<Body, _> = serde_path_to_error::deserialize(&mut deserializer);
    let parsed = parsed.map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        let reason = json_words(&inner.to_string());
        match inner.classify() {
            serde_json::error::Category::Data if path != "." && path != "?" => {
                ApiError::invalid(path.clone(), format!("`{path}`: {reason}"))
            }
            serde_json::error::Category::Data => ApiError::body(format!("the body is wrong: {reason}")),
            _ => ApiError::body(format!("the body is not valid JSON: {reason}")),
        }
    })?;
    deserializer.end().map_err(|e| ApiError::body(format!("the body is not valid JSON: {e}")))?;
    Ok(parsed)
}

/// Serde's type names in the words of JSON.
fn json_words(reason: &str) -> String {
    [
        ("expected struct Body", "expected an object"),
        ("expected f64", "expected a number"),
        ("expected u64", "expected a whole number that is not negative"),
        ("expected i64", "expected a whole number"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected an object"),
        ("expected a boolean", "expected true or false"),
        ("invalid type: map", "found an object"),
        ("invalid type: sequence", "found a list"),
        ("invalid type:", "found"),
        ("invalid value:", "found"),
    ]
    .iter()
    .fold(reason.to_string(), |text, (from, to)| text.replace(from, to))
}

fn missing(param: &str, expected: &str) -> ApiError {
    ApiError::invalid(param, format!("`{param}` is missing; expected {expected}"))
}

/// A request that names no model means the one there is; one that names another is not answered by this one.
fn check_model(asked: Option<&str>, served: &[String]) -> Result<(), ApiError> {
    match asked {
        Some(asked) if !served.iter().any(|id| id == asked) => Err(model_not_found(asked, served)),
        _ => Ok(()),
    }
}

/// 404 for a model this server does not have.
pub fn model_not_found(asked: &str, served: &[String]) -> ApiError {
    ApiError {
        param: Some("model".to_string()),
        code: Some("model_not_found"),
        ..ApiError::new(
            axum::http::StatusCode::NOT_FOUND,
            "invalid_request_error",
            format!("the model {asked:?} is not served here; this server has {}", served.join(", ")),
        )
    }
}

fn check_response_format(format: Option<&Value>) -> Result<(), ApiError> {
    let Some(format) = format else { return Ok(()) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(()),
        Some(kind @ ("json_object" | "json_schema" | "grammar" | "regex")) => Err(ApiError::unsupported(
            "response_format",
            format!("response_format of type {kind:?} is not supported; only \"text\" is"),
        )),
        _ => Err(ApiError::invalid(
            "response_format.type",
            format!("found {}; expected {{\"type\": \"text\"}}", messages::shown(format)),
        )),
    }
}

fn stream_options(options: Option<&Map<String, Value>>, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = options else { return Ok(false) };
    if !stream {
        return Err(ApiError::invalid(
            "stream_options",
            "stream_options is only allowed when stream is true",
        ));
    }
    let mut include_usage = false;
    for (key, value) in options {
        match (key.as_str(), value) {
            ("include_usage", Value::Bool(b)) => include_usage = *b,
            ("include_usage" | "include_obfuscation", Value::Null)
            | ("include_obfuscation", Value::Bool(false)) => {}
            ("include_obfuscation", Value::Bool(true)) => {
                return Err(ApiError::unsupported(
                    "stream_options.include_obfuscation",
                    "include_obfuscation is not supported; leave it out",
                ));
            }
            ("include_usage" | "include_obfuscation", other) => {
                return Err(ApiError::invalid(
                    format!("stream_options.{key}"),
                    format!("found {}; expected true or false", messages::shown(other)),
                ));
            }
            _ => return Err(ApiError::unknown(format!("stream_options.{key}"))),
        }
    }
    Ok(include_usage)
}

fn max_tokens(old: Option<u64>, new: Option<u64>) -> Result<Option<usize>, ApiError> {
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        return Err(ApiError::invalid(
            "max_tokens",
            format!("max_tokens is {old} and max_completion_tokens is {new}; send one of them"),
        ));
    }
    let name = if new.is_some() { "max_completion_tokens" } else { "max_tokens" };
    match new.or(old) {
        Some(0) => Err(ApiError::invalid(name, format!("{name} is 0; expected at least 1"))),
        Some(n) => Ok(Some(usize::try_from(n).unwrap_or(usize::MAX))),
        None => Ok(None),
    }
}

fn range(name: &str, value: Option<f64>, low: f64, high: f64) -> Result<Option<f32>, ApiError> {
    match value {
        Some(v) if !(low..=high).contains(&v) => {
            Err(ApiError::invalid(name, format!("{name} is {v}; expected {low} to {high}")))
        }
        // OpenAI's parameters have at most a few digits.
        #[allow(clippy::cast_possible_truncation)]
        Some(v) => Ok(Some(v as f32)),
        None => Ok(None),
    }
}

fn top_p(value: Option<f64>) -> Result<Option<f32>, ApiError> {
    match value {
        Some(v) if v <= 0.0 => {
            Err(ApiError::invalid("top_p", format!("top_p is {v}; expected more than 0, at most 1")))
        }
        value => Ok(range("top_p", value, 0.0, 1.0)?.map(|v| v.max(f32::MIN_POSITIVE))),
    }
}

/// -1 and 0 both mean all tokens; clients use either.
fn top_k(value: Option<i64>) -> Result<Option<usize>, ApiError> {
    match value {
        Some(-1) => Ok(Some(0)),
        Some(k) => usize::try_from(k).map(Some).map_err(|_| {
            ApiError::invalid("top_k", format!("top_k is {k}; expected 0 (all tokens) or more"))
        }),
        None => Ok(None),
    }
}

fn repetition_penalty(value: Option<f64>) -> Result<Option<f32>, ApiError> {
    match value {
        Some(v) if v <= 0.0 => Err(ApiError::invalid(
            "repetition_penalty",
            format!("repetition_penalty is {v}; expected more than 0, at most 10"),
        )),
        value => range("repetition_penalty", value, 0.0, 10.0),
    }
}

fn logit_bias(bias: Option<Map<String, Value>>, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let bias = bias.unwrap_or_default();
    if bias.len() > MAX_BIASES {
        return Err(ApiError::invalid(
            "logit_bias",
            format!("{} entries; at most {MAX_BIASES} are allowed", bias.len()),
        ));
    }
    bias.into_iter()
        .map(|(key, value)| {
            let path = format!("logit_bias.{key}");
            let id: u32 = key.parse().ok().filter(|&id| (id as usize) < vocab).ok_or_else(|| {
                ApiError::invalid(&path, format!("{key:?} is not a token id below {vocab}"))
            })?;
            let bias = value.as_f64().ok_or_else(|| {
                let found = messages::shown(&value);
                ApiError::invalid(&path, format!("found {found}; expected a number from -100 to 100"))
            })?;
            Ok((id, range(&path, Some(bias), -100.0, 100.0)?.unwrap_or(0.0)))
        })
        .collect()
}

/// Any 64-bit integer; without one the draw differs from request to request.
fn seed(value: Option<&Value>) -> Result<u64, ApiError> {
    match value {
        None => Ok(rand::random()),
        Some(v) => v.as_i64().map(i64::cast_unsigned).or_else(|| v.as_u64()).ok_or_else(|| {
            ApiError::invalid("seed", format!("found {}; expected a 64-bit integer", messages::shown(v)))
        }),
    }
}

fn stop_strings(stop: Option<Value>) -> Result<Vec<String>, ApiError> {
    let list = match stop {
        None => return Ok(Vec::new()),
        Some(Value::String(one)) => return check_stop("stop", one).map(|s| vec![s]),
        Some(Value::Array(list)) => list,
        Some(other) => {
            let found = messages::shown(&other);
            return Err(ApiError::invalid(
                "stop",
                format!("found {found}; expected a string or a list of strings"),
            ));
        }
    };
    if list.len() > MAX_STOPS {
        return Err(ApiError::invalid(
            "stop",
            format!("{} stop strings; at most {MAX_STOPS} are allowed", list.len()),
        ));
    }
    list.into_iter()
        .enumerate()
        .map(|(i, value)| match value {
            Value::String(stop) => check_stop(&format!("stop[{i}]"), stop),
            other => Err(ApiError::invalid(
                format!("stop[{i}]"),
                format!("found {}; expected a string", messages::shown(&other)),
            )),
        })
        .collect()
}

fn check_stop(path: &str, stop: String) -> Result<String, ApiError> {
    match stop.len() {
        0 => Err(ApiError::invalid(path, "a stop string is empty; leave it out or give it a character")),
        1..=MAX_STOP_BYTES => Ok(stop),
        n => Err(ApiError::invalid(
            path,
            format!("a stop string has {n} bytes; at most {MAX_STOP_BYTES} are allowed"),
        )),
    }
}

fn logprobs(wanted: Option<bool>, top: Option<u64>) -> Result<Option<usize>, ApiError> {
    match (wanted.unwrap_or(false), top) {
        (_, Some(n)) if n > MAX_TOP_LOGPROBS => Err(ApiError::invalid(
            "top_logprobs",
            format!("top_logprobs is {n}; expected 0 to {MAX_TOP_LOGPROBS}"),
        )),
        (false, Some(1..)) => {
            Err(ApiError::invalid("top_logprobs", "top_logprobs is only allowed when logprobs is true"))
        }
        (false, _) => Ok(None),
        (true, n) => Ok(Some(usize::try_from(n.unwrap_or(0)).unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn context() -> RequestContext {
        let sampling = SamplingParams { temperature: 0.7, top_k: 20, ..SamplingParams::default() };
        RequestContext {
            sampling,
            vocab: 100,
            thinking: Some(false),
            models: vec!["m".into()],
            template: None,
        }
    }

    fn with(fields: Value) -> Result<ChatJob, ApiError> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        parse(body.to_string().as_bytes(), &context())
    }

    #[test]
    fn defaults_are_the_checkpoints() {
        let job = with(json!({})).unwrap();
        assert_eq!((job.options.sampling.temperature, job.options.sampling.top_k), (0.7, 20));
        assert_eq!(job.render.kwargs["enable_thinking"], false);
        let job = with(json!({"temperature": 0, "top_k": -1, "seed": -3})).unwrap();
        assert_eq!((job.options.sampling.temperature, job.options.sampling.top_k), (0.0, 0));
        assert_eq!(job.options.sampling.seed, (-3i64).cast_unsigned());
    }

    #[test]
    fn template_keywords_pass_through() {
        let kwargs = json!({"preserve_thinking": true, "add_vision_id": 1});
        let job = with(json!({"chat_template_kwargs": kwargs, "reasoning_effort": "high"})).unwrap();
        let expected = json!({"preserve_thinking": true, "add_vision_id": 1, "enable_thinking": true, "add_generation_prompt": true});
        assert_eq!(Value::Object(job.render.kwargs), expected);
    }

    #[test]
    fn messages_keep_only_what_the_template_sees() {
        let sent = json!([
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}], "name": "ann"},
            {"role": "assistant", "content": null, "refusal": null, "annotations": [], "audio": null,
             "reasoning": "hm", "tool_calls": [
                {"id": "1", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "b"},
        ]);
        let job = with(json!({"messages": sent})).unwrap();
        let first = json!({"role": "user", "content": [{"type": "text", "text": "a"}]});
        assert_eq!(job.render.messages[0], first);
        assert_eq!(job.render.messages[1]["content"], "");
        assert_eq!(job.render.messages[1]["reasoning_content"], "hm");
        assert!(job.render.messages[1].get("refusal").is_none());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z_{}<>]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let key = prop_oneof!["[a-z]{1,6}", prop::sample::select(NAMES).prop_map(String::from)];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    const NAMES: &[&str] = &[
        "role",
        "content",
        "type",
        "text",
        "function",
        "name",
        "arguments",
        "parameters",
        "tool_calls",
        "properties",
        "include_usage",
        "strict",
    ];
    const FIELDS: &[&str] = &[
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "logit_bias",
        "seed",
        "stop",
        "n",
        "logprobs",
        "top_logprobs",
        "stream",
        "stream_options",
        "chat_template_kwargs",
        "tools",
        "tool_choice",
        "response_format",
        "reasoning_effort",
        "user",
        "store",
        "modalities",
    ];

    proptest! {
        #[test]
        fn no_body_panics(
            fields in prop::collection::vec((prop::sample::select(FIELDS), any_json()), 0..6),
            bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let fields: Map<String, Value> = fields.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
            if let Err(error) = with(Value::Object(fields)) {
                prop_assert!(error.status.is_client_error() && !error.message.is_empty());
            }
            prop_assert!(parse(&bytes, &context()).is_err());
        }
    }
}
