//! Parameters that several APIs share: reading a body, and the checks of sampling parameters, stop strings and models.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{error::ApiError, fields::shown};

/// Most stop strings (OpenAI's limit).
const MAX_STOPS: usize = 4;
/// Longest stop string in bytes: text that may begin one is held back from the client.
const MAX_STOP_BYTES: usize = 1024;
/// Most entries of `logit_bias`.
const MAX_BIASES: usize = 1024;
/// Most rivals reported a token (OpenAI's limit).
const MAX_TOP_LOGPROBS: u64 = 20;
/// As an alias it makes the server take any model's name for its own.
pub const ANY_MODEL: &str = "*";

/// Deserialises a JSON object; errors name the path of the field and use JSON's words for types.
pub fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let parsed: Result<T, _> = serde_path_to_error::deserialize(&mut deserializer);
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

pub fn missing(param: &str, expected: &str) -> ApiError {
    ApiError::invalid(param, format!("`{param}` is missing; expected {expected}"))
}

/// A request that names no model means the one there is; one that names another is not answered by this one.
pub fn check_model(asked: Option<&str>, served: &[String]) -> Result<(), ApiError> {
    match asked {
        Some(asked) if !served.iter().any(|id| id == asked || id == ANY_MODEL) => {
            Err(model_not_found(asked, served))
        }
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

pub fn max_tokens(old: Option<u64>, new: Option<u64>) -> Result<Option<usize>, ApiError> {
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

pub fn range(name: &str, value: Option<f64>, low: f64, high: f64) -> Result<Option<f32>, ApiError> {
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

pub fn top_p(value: Option<f64>) -> Result<Option<f32>, ApiError> {
    match value {
        Some(v) if v <= 0.0 => {
            Err(ApiError::invalid("top_p", format!("top_p is {v}; expected more than 0, at most 1")))
        }
        value => Ok(range("top_p", value, 0.0, 1.0)?.map(|v| v.max(f32::MIN_POSITIVE))),
    }
}

/// -1 and 0 both mean all tokens; clients use either.
pub fn top_k(value: Option<i64>) -> Result<Option<usize>, ApiError> {
    match value {
        Some(-1) => Ok(Some(0)),
        Some(k) => usize::try_from(k).map(Some).map_err(|_| {
            ApiError::invalid("top_k", format!("top_k is {k}; expected 0 (all tokens) or more"))
        }),
        None => Ok(None),
    }
}

pub fn repetition_penalty(value: Option<f64>) -> Result<Option<f32>, ApiError> {
    match value {
        Some(v) if v <= 0.0 => Err(ApiError::invalid(
            "repetition_penalty",
            format!("repetition_penalty is {v}; expected more than 0, at most 10"),
        )),
        value => range("repetition_penalty", value, 0.0, 10.0),
    }
}

pub fn logit_bias(bias: Option<Map<String, Value>>, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
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
                let found = shown(&value);
                ApiError::invalid(&path, format!("found {found}; expected a number from -100 to 100"))
            })?;
            Ok((id, range(&path, Some(bias), -100.0, 100.0)?.unwrap_or(0.0)))
        })
        .collect()
}

/// Any 64-bit integer; without one the draw differs from request to request.
pub fn seed(value: Option<&Value>) -> Result<u64, ApiError> {
    match value {
        None => Ok(rand::random()),
        Some(v) => v.as_i64().map(i64::cast_unsigned).or_else(|| v.as_u64()).ok_or_else(|| {
            ApiError::invalid("seed", format!("found {}; expected a 64-bit integer", shown(v)))
        }),
    }
}

pub fn stop_strings(stop: Option<Value>) -> Result<Vec<String>, ApiError> {
    let list = match stop {
        None => return Ok(Vec::new()),
        Some(Value::String(one)) => return check_stop("stop", one).map(|s| vec![s]),
        Some(Value::Array(list)) => list,
        Some(other) => {
            let found = shown(&other);
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
                format!("found {}; expected a string", shown(&other)),
            )),
        })
        .collect()
}

pub fn check_stop(path: &str, stop: String) -> Result<String, ApiError> {
    match stop.len() {
        0 => Err(ApiError::invalid(path, "a stop string is empty; leave it out or give it a character")),
        1..=MAX_STOP_BYTES => Ok(stop),
        n => Err(ApiError::invalid(
            path,
            format!("a stop string has {n} bytes; at most {MAX_STOP_BYTES} are allowed"),
        )),
    }
}

pub fn logprobs(wanted: Option<bool>, top: Option<u64>) -> Result<Option<usize>, ApiError> {
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
