//! Fields that are known but not implemented: allowed while their value changes nothing, refused by name
//! otherwise. Fields in no list are refused as unknown.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// What a known field may hold.
#[derive(Debug, Clone, Copy)]
pub enum Allowed {
    /// Labels for the caller's own book-keeping, or hints that cannot change the answer: anything.
    Anything,
    /// Only `null`, the same as leaving it out.
    Nothing,
    /// `null` or this JSON text.
    Only(&'static str),
    /// `null` or one of these JSON texts.
    OneOf(&'static [&'static str]),
}
use Allowed::{Anything, Nothing, OneOf, Only};

/// Fields of a chat completion request that OpenAI, vLLM, SGLang and llama.cpp know beyond those implemented here.
pub const CHAT: &[(&str, Allowed)] = &[
    // OpenAI.
    ("user", Anything),
    ("metadata", Anything),
    ("safety_identifier", Anything),
    ("prompt_cache_key", Anything),
    ("prompt_cache_retention", Anything),
    ("store", Only("false")),
    ("service_tier", OneOf(&["\"auto\"", "\"default\""])),
    ("verbosity", Only("\"medium\"")),
    ("modalities", Only("[\"text\"]")),
    ("audio", Nothing),
    ("prediction", Nothing),
    ("web_search_options", Nothing),
    ("functions", Nothing),
    ("function_call", OneOf(&["\"none\"", "\"auto\""])),
    // Other engines.
    ("best_of", Only("1")),
    ("use_beam_search", Only("false")),
    ("length_penalty", OneOf(&["1", "1.0"])),
    ("ignore_eos", Only("false")),
    ("skip_special_tokens", Only("true")),
    ("spaces_between_special_tokens", Anything),
    ("include_stop_str_in_output", Only("false")),
    ("min_tokens", Only("0")),
    ("stop_token_ids", Only("[]")),
    ("prompt_logprobs", Nothing),
    ("echo", Only("false")),
    ("add_generation_prompt", Only("true")),
    ("continue_final_message", Only("false")),
    ("cache_prompt", Only("true")),
    ("timings_per_token", Only("false")),
    ("repeat_penalty", OneOf(&["1", "1.0"])),
    ("typical_p", OneOf(&["1", "1.0"])),
    ("tfs_z", OneOf(&["1", "1.0"])),
    ("top_a", OneOf(&["0", "0.0"])),
    ("mirostat", Only("0")),
    ("dry_multiplier", OneOf(&["0", "0.0"])),
    ("xtc_probability", OneOf(&["0", "0.0"])),
    ("grammar", Nothing),
    ("json_schema", Nothing),
    ("logit_processors", Nothing),
];

/// A JSON value for an error message, shortened.
pub fn shown(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        None => text,
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// [`check`] of an object's fields but those in `read`.
pub fn check_others(
    prefix: &str,
    object: &Value,
    read: &[&str],
    known: &[(&str, Allowed)],
) -> Result<(), ApiError> {
    let others = object.as_object().into_iter().flatten().filter(|(name, _)| !read.contains(&name.as_str()));
    check(prefix, &others.map(|(name, value)| (name.clone(), value.clone())).collect(), known)
}

/// Checks the fields of an object that no code reads. `prefix` is the object's path with a trailing dot, or empty.
pub fn check(prefix: &str, fields: &Map<String, Value>, known: &[(&str, Allowed)]) -> Result<(), ApiError> {
    for (name, value) in fields {
        let path = format!("{prefix}{name}");
        let Some((_, allowed)) = known.iter().find(|(known, _)| known == name) else {
            return Err(ApiError::unknown(path));
        };
        let texts: &[&str] = match allowed {
            Anything => continue,
            Nothing => &[],
            Only(text) => std::slice::from_ref(text),
            OneOf(texts) => texts,
        };
        if value.is_null() || texts.contains(&value.to_string().as_str()) {
            continue;
        }
        let what = match texts {
            [] => "leave it out".to_string(),
            texts => format!("leave it out or send {}", texts.join(" or ")),
        };
        return Err(ApiError::unsupported(
            path.clone(),
            format!("`{path}` is not supported (found {}); {what}", shown(value)),
        ));
    }
    Ok(())
}
