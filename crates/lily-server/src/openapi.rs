//! `GET /openapi.json`: what the server speaks, for clients and people that read such documents.
//!
//! Bodies are OpenAI's and Anthropic's, whose own documents describe them in full; here they are named, with what this
//! server adds. The paths are the router's: a test compares.

use axum::Json;
use serde_json::{Map, Value, json};

use crate::routes;

/// (method, path, summary, whether it has a JSON body, whether it can stream).
pub(crate) const PATHS: &[(&str, &str, &str, bool, bool)] = &[
    ("get", "/health", "Whether the engine takes requests", false, false),
    ("get", "/metrics", "Counters in Prometheus' text form", false, false),
    ("get", "/openapi.json", "This document", false, false),
    ("get", "/v1/models", "The models served", false, false),
    ("get", "/v1/models/{id}", "One model", false, false),
    ("post", "/v1/chat/completions", "OpenAI's chat completions", true, true),
    ("post", "/v1/completions", "OpenAI's text completions", true, true),
    ("post", "/v1/responses", "OpenAI's responses; not stored", true, true),
    ("post", "/v1/messages", "Anthropic's messages", true, true),
    ("post", "/v1/messages/count_tokens", "Tokens of a request to /v1/messages", true, false),
    ("post", "/v1/gate/check", "What of a request would leave; sends nothing", true, false),
    ("get", "/v1/audit/{id}", "What left for a request to a model in the cloud", false, false),
    ("post", "/tokenize", "Token ids of a text or of a chat request", true, false),
    ("post", "/detokenize", "Text of token ids", true, false),
    ("post", "/apply-template", "The prompt of a chat request", true, false),
];

/// The handler.
pub(crate) async fn show() -> Json<Value> {
    Json(document())
}

fn document() -> Value {
    let mut paths = Map::new();
    for route in routes::table() {
        let path = &route.path.replace("{*", "{");
        // A test sees to it that there is one.
        let described = PATHS.iter().find(|(method, of, ..)| *method == route.method && of == path);
        let Some((method, _, summary, body, streams)) = described else { continue };
        let mut content = Map::new();
        let kind = if path == "/metrics" { "text/plain" } else { "application/json" };
        content.insert(kind.to_string(), json!({}));
        if *streams {
            content.insert("text/event-stream".to_string(), json!({}));
        }
        let mut operation = json!({
            "summary": summary,
            "responses": {
                "200": {"description": "The answer", "content": content},
                "default": {
                    "description": "An error that names what was wrong",
                    "content": {"application/json": {"schema": {"$ref": error(path)}}},
                },
            },
        });
        if *body {
            let schema =
                json!({"type": "object", "properties": body_fields(path), "required": required(path)});
            operation["requestBody"] =
                json!({"required": true, "content": {"application/json": {"schema": schema}}});
        }
        if path.contains("{id}") {
            operation["parameters"] =
                json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]);
        }
        let entry = paths.entry(path.to_string()).or_insert_with(|| json!({}));
        entry[*method] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Lily",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A local inference engine. Unknown and unsupported parameters are refused by name.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"key": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": {
                "OpenAIError": {
                    "type": "object",
                    "properties": {"error": {"type": "object", "properties": {
                        "message": {"type": "string"},
                        "type": {"type": "string"},
                        "param": {"type": ["string", "null"], "description": "Path of the field at fault"},
                        "code": {"type": ["string", "null"]},
                    }, "required": ["message", "type", "param", "code"]}},
                    "required": ["error"],
                },
                "AnthropicError": {
                    "type": "object",
                    "properties": {
                        "type": {"const": "error"},
                        "error": {"type": "object", "properties": {
                            "type": {"type": "string"}, "message": {"type": "string"},
                        }, "required": ["type", "message"]},
                    },
                    "required": ["type", "error"],
                },
            },
        },
    })
}

fn error(path: &str) -> &'static str {
    if path.starts_with("/v1/messages") {
        "#/components/schemas/AnthropicError"
    } else {
        "#/components/schemas/OpenAIError"
    }
}

fn required(path: &str) -> &'static [&'static str] {
    match path {
        "/v1/messages" => &["max_tokens", "messages"],
        "/v1/chat/completions" | "/v1/gate/check" | "/v1/messages/count_tokens" | "/apply-template" => {
            &["messages"]
        }
        "/v1/completions" => &["prompt"],
        "/v1/responses" => &["input"],
        "/detokenize" => &["tokens"],
        _ => &[],
    }
}

/// The fields each endpoint honours.
fn body_fields(path: &str) -> Map<String, Value> {
    const SAMPLING: &str = "temperature top_p top_k";
    const MORE_SAMPLING: &str = "min_p presence_penalty frequency_penalty repetition_penalty seed stop";
    const FORMS: &str =
        "response_format structured_outputs guided_json guided_regex guided_choice guided_grammar";
    let names = match path {
        "/v1/chat/completions" | "/v1/gate/check" => {
            format!(
                "model messages max_tokens max_completion_tokens {SAMPLING} {MORE_SAMPLING} logit_bias n logprobs \
                 top_logprobs stream stream_options tools tool_choice parallel_tool_calls {FORMS} reasoning_effort \
                 enable_thinking preserve_thinking thinking_budget chat_template_kwargs return_progress privacy"
            )
        }
        "/v1/completions" => format!(
            "model prompt max_tokens {SAMPLING} {MORE_SAMPLING} logit_bias n logprobs echo stream stream_options {FORMS}"
        ),
        "/v1/responses" => format!(
            "model input instructions max_output_tokens {SAMPLING} {MORE_SAMPLING} top_logprobs include tools \
             tool_choice parallel_tool_calls text reasoning enable_thinking chat_template_kwargs stream metadata"
        ),
        "/v1/messages" => format!(
            "model messages system max_tokens {SAMPLING} stop_sequences stream thinking tools tool_choice \
             output_config output_format"
        ),
        "/v1/messages/count_tokens" => "model messages system thinking tools tool_choice".to_string(),
        "/tokenize" => {
            "model content prompt messages tools parse_special with_pieces return_token_strs".to_string()
        }
        "/detokenize" => "model tokens".to_string(),
        "/apply-template" => {
            "model messages tools tool_choice enable_thinking chat_template_kwargs".to_string()
        }
        _ => String::new(),
    };
    names.split_whitespace().map(|name| (name.to_string(), kind(name))).collect()
}

/// The type of a field; the same name means the same everywhere.
fn kind(name: &str) -> Value {
    match name {
        "model" | "instructions" | "content" | "reasoning_effort" | "guided_regex" | "guided_grammar" => {
            json!({"type": "string"})
        }
        "messages" | "tools" | "tokens" | "include" | "stop_sequences" | "guided_choice" => {
            json!({"type": "array"})
        }
        "max_tokens"
        | "max_completion_tokens"
        | "max_output_tokens"
        | "top_k"
        | "n"
        | "seed"
        | "top_logprobs"
        | "thinking_budget" => json!({"type": "integer"}),
        "temperature" | "top_p" | "min_p" | "presence_penalty" | "frequency_penalty"
        | "repetition_penalty" => {
            json!({"type": "number"})
        }
        "stream"
        | "echo"
        | "parallel_tool_calls"
        | "enable_thinking"
        | "preserve_thinking"
        | "return_progress"
        | "parse_special"
        | "with_pieces"
        | "return_token_strs" => json!({"type": "boolean"}),
        "logit_bias"
        | "stream_options"
        | "chat_template_kwargs"
        | "response_format"
        | "structured_outputs"
        | "text"
        | "reasoning"
        | "metadata"
        | "privacy"
        | "thinking"
        | "output_config"
        | "output_format" => {
            json!({"type": "object"})
        }
        // Texts or lists, objects or words.
        _ => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn it_has_the_routes_of_the_router_and_no_others() {
        let routes: Vec<(String, String)> = (routes::table().into_iter())
            .map(|route| (route.method.to_string(), route.path.replace("{*", "{")))
            .collect();
        let described: Vec<(String, String)> =
            PATHS.iter().map(|(method, path, ..)| (method.to_string(), path.to_string())).collect();
        let set = |list: &[(String, String)]| list.iter().cloned().collect::<BTreeSet<_>>();
        assert_eq!(set(&routes), set(&described));
        assert_eq!(
            (routes.len(), described.len()),
            (set(&routes).len(), set(&described).len()),
            "a path twice"
        );
    }

    #[test]
    fn every_path_is_described() {
        let document = document();
        for (method, path, _, body, _) in PATHS {
            let operation = &document["paths"][path][method];
            assert!(operation["summary"].is_string(), "{path}");
            assert_eq!(operation.get("requestBody").is_some(), *body, "{path}");
        }
        let chat = &document["paths"]["/v1/chat/completions"]["post"]["requestBody"];
        let fields = &chat["content"]["application/json"]["schema"]["properties"];
        assert_eq!(fields["temperature"]["type"], "number");
    }
}
