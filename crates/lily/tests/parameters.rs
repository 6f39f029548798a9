//! Every parameter of OpenAI's and Anthropic's bodies: its effect, or its refusal by name.

mod common;

use common::Server;
use serde_json::{Map, Value, json};

/// What must happen.
enum Want {
    /// 400 with this `param` (in Anthropic's body: in the message).
    Refused(&'static str),
    /// A label for the caller's own books: the answer is the one without it.
    Label,
    /// The answer shows the parameter at work: (answer, answer without it).
    Shows(fn(&Value, &Value) -> bool),
}
use Want::{Label, Refused, Shows};

type Case = (&'static str, Value, Want);

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "lookup_word", "description": "Look up the meaning of a word in the dictionary.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string", "description": "the word to look up"}}, "required": ["word"]}}}])
}

fn flat(schema: &str) -> Value {
    let function = &tools()[0]["function"];
    json!([{"type": if schema == "parameters" { json!("function") } else { json!("custom") },
        "name": function["name"], "description": function["description"], schema: function["parameters"]}])
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_default()
}

fn differs(answer: &Value, base: &Value) -> bool {
    content(answer) != content(base)
}

fn is_json(answer: &Value, _: &Value) -> bool {
    serde_json::from_str::<Map<String, Value>>(content(answer)).is_ok()
}

#[rustfmt::skip]
fn chat() -> Vec<Case> {
    let hot = |more: Value| {
        let mut fields = json!({"temperature": 2, "seed": 3, "top_p": 1, "max_tokens": 20});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fields
    };
    vec![
        ("messages", json!({"messages": [{"role": "user", "content": "define whale"}]}), Shows(differs)),
        ("model", json!({"model": "gpt-5"}), Refused("model")),
        ("audio", json!({"audio": {"voice": "x", "format": "wav"}}), Refused("audio")),
        ("function_call", json!({"function_call": {"name": "f"}}), Refused("function_call")),
        ("functions", json!({"functions": [{"name": "f"}]}), Refused("functions")),
        ("logit_bias", json!({"logit_bias": {"300": 100}, "max_tokens": 3}), Shows(differs)),
        ("logprobs", json!({"logprobs": true}), Shows(|a, _| !a["choices"][0]["logprobs"]["content"].as_array().unwrap().is_empty())),
        ("max_completion_tokens", json!({"max_completion_tokens": 2}), Shows(|a, _| a["usage"]["completion_tokens"] == 2)),
        ("max_tokens", json!({"max_tokens": 3}), Shows(|a, _| a["usage"]["completion_tokens"] == 3)),
        ("metadata", json!({"metadata": {"a": "b"}}), Label),
        ("modalities", json!({"modalities": ["audio"]}), Refused("modalities")),
        ("n", json!({"n": 2}), Shows(|a, _| a["choices"].as_array().unwrap().len() == 2)),
        ("parallel_tool_calls", json!({"parallel_tool_calls": false, "tools": tools(), "tool_choice": "required"}), Shows(|a, _| a["choices"][0]["message"]["tool_calls"].as_array().unwrap().len() == 1)),
        ("prediction", json!({"prediction": {"type": "content", "content": "x"}}), Refused("prediction")),
        ("prompt_cache_key", json!({"prompt_cache_key": "k"}), Label),
        ("reasoning_effort", json!({"reasoning_effort": "high"}), Shows(|a, _| a["choices"][0]["message"]["reasoning_content"].is_string())),
        ("response_format", json!({"response_format": {"type": "json_object"}, "max_tokens": 100}), Shows(is_json)),
        ("safety_identifier", json!({"safety_identifier": "s"}), Label),
        ("seed", hot(json!({})), Shows(|a, _| !content(a).is_empty())),
        ("service_tier", json!({"service_tier": "flex"}), Refused("service_tier")),
        ("stop", json!({"stop": " bird"}), Shows(|a, base| content(base).contains(" bird") && !content(a).contains("bird"))),
        ("store", json!({"store": true}), Refused("store")),
        ("stream_options", json!({"stream_options": {"include_usage": true}}), Refused("stream_options")),
        ("temperature", hot(json!({"temperature": 2})), Shows(differs)),
        ("tool_choice", json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "lookup_word"}}}), Shows(|a, _| a["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "lookup_word")),
        ("tools", json!({"tools": tools()}), Shows(|a, _| a["choices"][0]["finish_reason"] == "tool_calls")),
        ("top_logprobs", json!({"logprobs": true, "top_logprobs": 4}), Shows(|a, _| a["choices"][0]["logprobs"]["content"][0]["top_logprobs"].as_array().unwrap().len() == 4)),
        ("top_p", hot(json!({"top_p": 0.000_001, "max_tokens": 400})), Shows(|a, base| content(a) == content(base))),
        ("user", json!({"user": "u"}), Label),
        ("verbosity", json!({"verbosity": "low"}), Refused("verbosity")),
        ("web_search_options", json!({"web_search_options": {}}), Refused("web_search_options")),
        // Beyond OpenAI's own.
        ("top_k", hot(json!({"top_k": 1, "max_tokens": 400})), Shows(|a, base| content(a) == content(base))),
        ("min_p", hot(json!({"min_p": 1, "max_tokens": 400})), Shows(|a, base| content(a) == content(base))),
        ("repetition_penalty", json!({"repetition_penalty": 5}), Shows(differs)),
        ("thinking_budget", json!({"enable_thinking": true, "thinking_budget": 2}), Shows(|a, _| a["choices"][0]["message"]["reasoning_content"].as_str().unwrap().split_whitespace().count() <= 3 && !content(a).is_empty())),
        ("guided_choice", json!({"guided_choice": ["yes", "no"]}), Shows(|a, _| ["yes", "no"].contains(&content(a)))),
        ("guided_regex", json!({"guided_regex": "[0-9]{4}"}), Shows(|a, _| content(a).parse::<u32>().is_ok() && content(a).len() == 4)),
        ("structured_outputs", json!({"structured_outputs": {"json": {"type": "boolean"}}}), Shows(|a, _| ["true", "false"].contains(&content(a)))),
        ("ignore_eos", json!({"ignore_eos": true}), Refused("ignore_eos")),
        ("best_of", json!({"best_of": 3}), Refused("best_of")),
    ]
}

fn text_of(answer: &Value) -> String {
    let blocks = answer["content"].as_array().into_iter().flatten();
    blocks.filter_map(|b| b["text"].as_str()).collect()
}

#[rustfmt::skip]
fn anthropic() -> Vec<Case> {
    let tools = || flat("input_schema");
    vec![
        ("model", json!({"model": "claude-x"}), Refused("model")),
        ("messages", json!({"messages": [{"role": "user", "content": "define whale"}]}), Shows(|a, b| text_of(a) != text_of(b))),
        ("max_tokens", json!({"max_tokens": 3}), Shows(|a, _| a["usage"]["output_tokens"] == 3 && a["stop_reason"] == "max_tokens")),
        ("cache_control", json!({"cache_control": {"type": "ephemeral"}}), Label),
        ("container", json!({"container": "c"}), Refused("container")),
        ("context_management", json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}), Refused("context_management")),
        ("mcp_servers", json!({"mcp_servers": [{"type": "url", "url": "https://x"}]}), Refused("mcp_servers")),
        ("metadata", json!({"metadata": {"user_id": "u"}}), Label),
        ("output_config", json!({"output_config": {"format": {"type": "json_schema", "schema": {"type": "boolean"}}}}), Shows(|a, _| ["true", "false"].contains(&text_of(a).as_str()))),
        ("output_format", json!({"output_format": {"type": "json_schema", "schema": {"type": "null"}}}), Shows(|a, _| text_of(a) == "null")),
        ("service_tier", json!({"service_tier": "priority"}), Refused("service_tier")),
        ("stop_sequences", json!({"stop_sequences": [" bird"]}), Shows(|a, _| a["stop_reason"] == "stop_sequence" && a["stop_sequence"] == " bird")),
        ("system", json!({"system": [{"type": "text", "text": "Be brief."}]}), Shows(|a, b| a["usage"]["input_tokens"].as_u64() > b["usage"]["input_tokens"].as_u64())),
        ("temperature", json!({"temperature": 1.2}), Refused("temperature")),
        ("thinking", json!({"thinking": {"type": "enabled", "budget_tokens": 100}}), Shows(|a, _| a["content"][0]["type"] == "thinking")),
        ("tool_choice", json!({"tools": tools(), "tool_choice": {"type": "tool", "name": "lookup_word"}}), Shows(|a, _| a["content"][0]["name"] == "lookup_word")),
        ("tools", json!({"tools": tools()}), Shows(|a, _| a["stop_reason"] == "tool_use")),
        ("top_k", json!({"top_k": 1, "temperature": 1}), Shows(|a, b| text_of(a) == text_of(b))),
        ("top_p", json!({"top_p": 0.000_001, "temperature": 1}), Shows(|a, b| text_of(a) == text_of(b))),
    ]
}

fn output(answer: &Value) -> &str {
    answer["output"][0]["content"][0]["text"].as_str().unwrap_or_default()
}

#[rustfmt::skip]
fn responses() -> Vec<Case> {
    let tools = || flat("parameters");
    vec![
        ("background", json!({"background": true}), Refused("background")),
        ("conversation", json!({"conversation": "c"}), Refused("conversation")),
        ("include", json!({"include": ["message.output_text.logprobs"]}), Shows(|a, _| !a["output"][0]["content"][0]["logprobs"].as_array().unwrap().is_empty())),
        ("input", json!({"input": "define whale"}), Shows(|a, b| output(a) != output(b))),
        ("instructions", json!({"instructions": "Be brief."}), Shows(|a, b| a["usage"]["input_tokens"].as_u64() > b["usage"]["input_tokens"].as_u64())),
        ("max_output_tokens", json!({"max_output_tokens": 4}), Shows(|a, _| a["usage"]["output_tokens"] == 4)),
        ("max_tool_calls", json!({"max_tool_calls": 1}), Refused("max_tool_calls")),
        ("metadata", json!({"metadata": {"k": "v"}}), Shows(|a, _| a["metadata"]["k"] == "v")),
        ("model", json!({"model": "o9"}), Refused("model")),
        ("parallel_tool_calls", json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false}), Shows(|a, _| a["output"].as_array().unwrap().len() == 1)),
        ("previous_response_id", json!({"previous_response_id": "r"}), Refused("previous_response_id")),
        ("prompt", json!({"prompt": {"id": "p"}}), Refused("prompt")),
        ("prompt_cache_key", json!({"prompt_cache_key": "k"}), Label),
        ("reasoning", json!({"reasoning": {"effort": "medium"}}), Shows(|a, _| a["output"][0]["type"] == "reasoning")),
        ("safety_identifier", json!({"safety_identifier": "s"}), Label),
        ("service_tier", json!({"service_tier": "flex"}), Refused("service_tier")),
        ("store", json!({"store": true}), Refused("store")),
        ("temperature", json!({"temperature": 3}), Refused("temperature")),
        ("text", json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "boolean"}}}}), Shows(|a, _| ["true", "false"].contains(&output(a)))),
        ("tool_choice", json!({"tools": tools(), "tool_choice": "none"}), Shows(|a, _| output(a).contains("bird"))),
        ("tools", json!({"tools": tools()}), Shows(|a, _| a["output"][0]["type"] == "function_call")),
        ("tools of a kind not there", json!({"tools": [{"type": "web_search"}]}), Refused("tools[0].type")),
        ("top_logprobs", json!({"top_logprobs": 2}), Shows(|a, _| a["output"][0]["content"][0]["logprobs"][0]["top_logprobs"].as_array().unwrap().len() == 2)),
        ("top_p", json!({"top_p": 0}), Refused("top_p")),
        ("truncation", json!({"truncation": "auto"}), Refused("truncation")),
        ("user", json!({"user": "u"}), Label),
    ]
}

/// The part of an answer that a label must not change.
fn said(answer: &Value) -> Value {
    json!([content(answer), text_of(answer), output(answer)])
}

fn run(server: &Server, path: &str, base: &Value, cases: Vec<Case>, wrong: &mut Vec<String>) -> usize {
    let (status, plain) = server.post(path, base);
    assert_eq!(status, 200, "{plain}");
    let n = cases.len();
    for (name, fields, want) in cases {
        let mut body = base.clone();
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let (status, answer) = server.post(path, &body);
        let right = match &want {
            Refused(param) => {
                let error = &answer["error"];
                let named =
                    error["param"] == *param || error["message"].as_str().is_some_and(|m| m.contains(param));
                (status == 400 || status == 404) && named
            }
            Label => status == 200 && said(&answer) == said(&plain),
            Shows(effect) => status == 200 && effect(&answer, &plain),
        };
        if !right {
            wrong.push(format!("{path} {name} {fields}: {status} {answer}"));
        }
    }
    n
}

#[test]
fn every_parameter_acts_or_is_refused() {
    let server = Server::start(&[]);
    let mut wrong = Vec::new();
    let ask = json!([{"role": "user", "content": "define heron"}]);
    let base = json!({"model": "lily-mini", "messages": ask, "temperature": 0, "enable_thinking": null});
    let mut n = run(&server, "/v1/chat/completions", &base, chat(), &mut wrong);
    // An answer that the model is not sure of, so that penalties within their range change it.
    let guess = json!({"model": "lily-mini", "messages": [{"role": "user", "content": "define blorptic"}], "temperature": 0,
        "max_tokens": 60});
    let penalties =
        ["frequency_penalty", "presence_penalty"].map(|name| (name, json!({name: -2}), Shows(differs)));
    n += run(&server, "/v1/chat/completions", &guess, penalties.into(), &mut wrong);
    let base = json!({"model": "lily-mini", "messages": ask, "temperature": 0, "max_tokens": 300});
    n += run(&server, "/v1/messages", &base, anthropic(), &mut wrong);
    let base = json!({"model": "lily-mini", "input": "define heron", "temperature": 0});
    n += run(&server, "/v1/responses", &base, responses(), &mut wrong);
    assert!(wrong.is_empty(), "{} of {n} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n >= 60);
    println!("{n} parameters");

    // `stream` has its own shape in every API.
    let stream = |path: &str, body: Value| server.stream_of(path, body).count();
    assert!(stream("/v1/chat/completions", json!({"messages": ask})) > 5);
    assert!(stream("/v1/messages", json!({"messages": ask, "max_tokens": 100})) > 5);
    assert!(stream("/v1/responses", json!({"input": "define heron"})) > 5);
}
