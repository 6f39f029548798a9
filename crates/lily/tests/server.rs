//! The HTTP API of the real binary with lily-mini, over sockets.

mod common;

use std::thread;

use common::{Server, endless, joined, lily};
use serde_json::{Value, json};

/// Replaces what differs from run to run, or with a retrained model, by its kind.
fn normalised(mut value: Value) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields.iter_mut() {
                    match (name.as_str(), &*value) {
                        (_, Value::Number(_)) if name != "index" => *value = "<number>".into(),
                        ("id", Value::String(id)) => {
                            *value =
                                format!("<{} id>", id.split(['-', '_']).next().unwrap_or_default()).into();
                        }
                        ("content" | "token", Value::String(text)) if !text.is_empty() => {
                            *value = "<text>".into()
                        }
                        ("bytes", _) => *value = "<bytes>".into(),
                        ("system_fingerprint", _) => *value = "<version>".into(),
                        _ => walk(value),
                    }
                }
            }
            Value::Array(list) => list.iter_mut().for_each(walk),
            _ => {}
        }
    }
    walk(&mut value);
    value
}

#[test]
fn bodies() {
    let server = Server::start(&[]);
    let (_, body) = server.chat(json!({"logprobs": true, "top_logprobs": 1, "max_tokens": 2}));
    insta::assert_json_snapshot!("completion", normalised(body));
    let fields = json!({"max_tokens": 2, "stream_options": {"include_usage": true}});
    let chunks = server.stream(fields).chunks();
    insta::assert_json_snapshot!("chunks", normalised(chunks.into()));
    insta::assert_json_snapshot!("models", normalised(server.get("/v1/models").1));
    insta::assert_json_snapshot!("health", normalised(server.get("/health").1));
    insta::assert_json_snapshot!("error", server.chat(json!({"temperature": 3})).1);
}

#[test]
fn a_definition_whole_and_streamed() {
    let server = Server::start(&[]);
    assert!(server.banner.contains("curl -N"), "{}", server.banner);
    assert!(server.banner.contains("KV cache"), "{}", server.banner);

    let (status, body) = server.chat(json!({}));
    assert_eq!(status, 200, "{body}");
    let choice = &body["choices"][0];
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(content.contains("bird"), "{content}");
    assert_eq!(choice["finish_reason"], "stop");
    assert!(choice["message"].get("reasoning_content").is_none(), "lily-mini does not think unless asked");
    let usage = &body["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64().unwrap(),
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap()
    );
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());
    assert!(body["timings"]["predicted_per_second"].as_f64().unwrap() > 0.0);

    let chunks = server.stream(json!({"stream_options": {"include_usage": true}})).chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(joined(&chunks, "content"), content, "streamed and whole answers are the same");
    assert!(chunks.len() > 10, "tokens come one by one: {} chunks", chunks.len());
    let (usage_chunk, rest) = chunks.split_last().unwrap();
    assert_eq!(usage_chunk["choices"], json!([]));
    assert_eq!(usage_chunk["usage"]["completion_tokens"], usage["completion_tokens"]);
    assert!(rest.iter().all(|c| c["usage"].is_null() && c.get("usage").is_some()));
    let last = rest.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert!(last["timings"]["prompt_ms"].is_number());
    let ids: Vec<&Value> = chunks.iter().map(|c| &c["id"]).collect();
    assert!(ids.iter().all(|id| *id == ids[0]));

    let without = server.stream(json!({})).chunks();
    assert!(without.iter().all(|c| c.get("usage").is_none()));
}

#[test]
fn thinking_is_split_off() {
    let server = Server::start(&[]);
    for on in [
        json!({"enable_thinking": true}),
        json!({"chat_template_kwargs": {"enable_thinking": true}}),
        json!({"reasoning_effort": "low"}),
    ] {
        let choice = server.choice(on.clone());
        let message = &choice["message"];
        assert!(!message["reasoning_content"].as_str().unwrap().is_empty(), "{on}: {message}");
        let content = message["content"].as_str().unwrap();
        assert!(content.contains("bird") && !content.contains("think>"), "{message}");

        let chunks = server.stream(on).chunks();
        assert_eq!(joined(&chunks, "content"), content);
        assert_eq!(joined(&chunks, "reasoning_content"), message["reasoning_content"].as_str().unwrap());
    }
    for off in [json!({}), json!({"enable_thinking": false}), json!({"reasoning_effort": "none"})] {
        assert!(server.choice(off)["message"].get("reasoning_content").is_none());
    }
    // Cut in the middle of thinking: reasoning, and the reason says so.
    let (_, body) = server.chat(json!({"enable_thinking": true, "max_tokens": 3}));
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["choices"][0]["message"]["content"], "");
    assert_eq!(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);

    let on = Server::start(&["--thinking", "on"]);
    assert!(on.choice(json!({}))["message"]["reasoning_content"].is_string());
}

#[test]
fn stop_strings_end_the_answer_and_are_not_shown() {
    let server = Server::start(&[]);
    let whole = server.choice(json!({}))["message"]["content"].as_str().unwrap().to_string();
    // Ends in the middle of a token, and begins with something that comes earlier.
    let at = whole.find("bird").unwrap();
    for stop in [json!("bird"), json!(["never seen", "bird"]), json!("bir"), json!([" bird"])] {
        let choice = server.choice(json!({"stop": stop}));
        let content = choice["message"]["content"].as_str().unwrap();
        assert_eq!(content.trim_end(), whole[..at].trim_end(), "{stop}");
        assert_eq!(choice["finish_reason"], "stop");
        let chunks = server.stream(json!({"stop": stop})).chunks();
        assert_eq!(joined(&chunks, "content"), content, "{stop}");
    }
    assert_eq!(server.choice(json!({"stop": "never seen"}))["message"]["content"], whole.as_str());
}

#[test]
fn logprobs_cover_the_answer() {
    let server = Server::start(&[]);
    let choice = server.choice(json!({"logprobs": true, "top_logprobs": 3}));
    let content = choice["message"]["content"].as_str().unwrap();
    let entries = choice["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<u8> = entries
        .iter()
        .flat_map(|e| {
            e["bytes"].as_array().unwrap().iter().map(|b| u8::try_from(b.as_u64().unwrap()).unwrap())
        })
        .collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), content, "the tokens' bytes are the answer");
    for entry in entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(top[0]["bytes"], entry["bytes"], "greedy takes the most likely token");
        let values: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert!(values[0] <= 0.0 && values.is_sorted_by(|a, b| a >= b), "{values:?}");
    }
    // With thinking, the answer's tokens are still the answer's only, streamed too.
    let fields = json!({"logprobs": true, "enable_thinking": true});
    let text = |entries: &[Value]| entries.iter().map(|e| e["token"].as_str().unwrap()).collect::<String>();
    let choice = server.choice(fields.clone());
    assert_eq!(text(choice["logprobs"]["content"].as_array().unwrap()), choice["message"]["content"]);
    assert!(!choice["logprobs"]["reasoning_content"].as_array().unwrap().is_empty());
    let chunks = server.stream(fields).chunks();
    let streamed: Vec<Value> = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(text(&streamed), joined(&chunks, "content"));
    // Up to a stop string.
    let choice = server.choice(json!({"logprobs": true, "stop": " bird"}));
    assert_eq!(text(choice["logprobs"]["content"].as_array().unwrap()), choice["message"]["content"]);
}

#[test]
fn sampling_parameters_act() {
    let server = Server::start(&[]);
    let draw = |seed: u64| {
        let fields =
            json!({"temperature": 2, "top_p": 1, "seed": seed, "max_tokens": 24, "logit_bias": endless()});
        server.choice(fields)["message"]["content"].as_str().unwrap().to_string()
    };
    assert_eq!(draw(7), draw(7), "the same seed gives the same answer");
    let different: std::collections::HashSet<String> = (0..4).map(draw).collect();
    assert!(different.len() > 1, "{different:?}");

    // One token is all there is to draw from: greedy at any temperature.
    let greedy = server.choice(json!({}))["message"]["content"].clone();
    for narrow in [json!({"temperature": 2, "top_k": 1}), json!({"temperature": 2, "top_p": 1e-9})] {
        assert_eq!(server.choice(narrow)["message"]["content"], greedy);
    }
    assert_eq!(server.choice(json!({"temperature": 1.5, "min_p": 1.0}))["message"]["content"], greedy);

    // A banned first token does not come.
    let first = server.choice(json!({"max_tokens": 1, "logprobs": true}));
    let first = first["logprobs"]["content"][0]["token"].as_str().unwrap().to_string();
    let ids = common::run_with_input(lily().args(["tokenize", "lily-mini"]), &first);
    let ids: Vec<u32> = serde_json::from_str(&common::stdout(&ids)).unwrap();
    let bias = json!({ids[0].to_string(): -100});
    let other = server.choice(json!({"max_tokens": 1, "logprobs": true, "logit_bias": bias}));
    assert_ne!(other["logprobs"]["content"][0]["token"], first.as_str());

    for tokens in [1, 5] {
        let (_, body) = server.chat(json!({"max_completion_tokens": tokens}));
        assert_eq!(body["usage"]["completion_tokens"], tokens);
        assert_eq!(body["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn penalties_change_what_is_repeated() {
    let server = Server::start(&[]);
    let count = |fields: Value| {
        let mut all = json!({"max_tokens": 60, "logprobs": true, "logit_bias": endless()});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let choice = server.choice(all);
        let tokens = choice["logprobs"]["content"].as_array().unwrap();
        tokens
            .iter()
            .map(|t| t["token"].as_str().unwrap().to_string())
            .collect::<std::collections::HashSet<_>>()
            .len()
    };
    let plain = count(json!({}));
    for penalty in
        [json!({"frequency_penalty": 2}), json!({"presence_penalty": 2}), json!({"repetition_penalty": 5})]
    {
        let varied = count(penalty.clone());
        assert!(varied > plain, "{penalty}: {varied} different tokens, {plain} without");
    }
}

fn dictionary_tool() -> Value {
    json!([{"type": "function", "function": {
        "name": "lookup_word",
        "description": "Look up the meaning of a word in the dictionary.",
        "parameters": {"type": "object", "properties": {
            "word": {"type": "string", "description": "the word to look up"}}, "required": ["word"]},
    }}])
}

#[test]
fn a_tool_is_called_and_its_result_used() {
    let server = Server::start(&[]);
    let tools = dictionary_tool();
    let (_, body) = server.chat(json!({"tools": tools}));
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{body}");
    let message = &choice["message"];
    assert!(message["content"].is_null(), "{message}");
    let call = &message["tool_calls"][0];
    assert_eq!(call["type"], "function");
    assert_eq!(call["function"]["name"], "lookup_word");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"word": "heron"}));

    let chunks = server.stream(json!({"tools": tools})).chunks();
    let calls: Vec<&Value> =
        chunks.iter().filter_map(|c| c["choices"][0]["delta"]["tool_calls"].as_array()).flatten().collect();
    assert!(calls.len() > 2, "arguments come as they are written: {calls:?}");
    assert!(calls.iter().all(|c| c["index"] == 0));
    assert_eq!(calls[0]["function"]["name"], "lookup_word");
    assert!(calls[0]["id"].is_string() && calls[1..].iter().all(|c| c.get("id").is_none()));
    let streamed: String = calls.iter().filter_map(|c| c["function"]["arguments"].as_str()).collect();
    assert_eq!(streamed, call["function"]["arguments"]);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    // The conversation goes on with the message as it was sent and the tool's answer.
    let result = "a wading bird";
    let messages = json!([
        {"role": "user", "content": "define heron"},
        message,
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]);
    let choice = server.choice(json!({"tools": tools, "messages": messages}));
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    assert!(choice["message"]["content"].as_str().unwrap().contains(result), "{choice}");

    // Without permission the tools are not even shown.
    let choice = server.choice(json!({"tools": tools, "tool_choice": "none"}));
    assert!(choice["message"]["content"].as_str().unwrap().contains("bird"), "{choice}");
}

#[test]
fn a_conversation_reuses_what_it_computed() {
    let server = Server::start(&[]);
    // With its thinking kept, the history is exactly what the model has seen.
    let fields = json!({"enable_thinking": true, "preserve_thinking": true});
    let (_, first) = server.chat(fields.clone());
    let mut second = fields;
    second["messages"] = json!([
        {"role": "user", "content": "define heron"},
        first["choices"][0]["message"],
        {"role": "user", "content": "define whale"},
    ]);
    let (_, body) = server.chat(second);
    let cached = body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let seen = first["usage"]["total_tokens"].as_u64().unwrap();
    println!("second turn: {cached} of {} prompt tokens cached", body["usage"]["prompt_tokens"]);
    assert!(cached + 2 >= seen && cached <= seen, "{cached} of {seen} tokens were reused: {body}");
    assert_eq!(body["timings"]["cache_n"], cached);
}

#[test]
fn eight_at_once() {
    let server = Server::start(&[]);
    let words = ["heron", "whale", "river", "apple", "bridge", "piano", "doctor", "winter"];
    let ask = |word: &str| {
        let messages = json!([{"role": "user", "content": format!("define {word}")}]);
        server.choice(json!({"messages": messages}))["message"]["content"].as_str().unwrap().to_string()
    };
    let alone: Vec<String> = words.iter().map(|w| ask(w)).collect();
    let together: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = words.iter().map(|w| scope.spawn(|| ask(w))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
    for (word, answer) in words.iter().zip(&alone) {
        assert!(answer.starts_with(word), "{answer}");
    }
}

#[test]
fn keys_hosts_and_origins_are_checked() {
    let server = Server::start(&["--api-key", "sesame", "--allow-host", "box.example"]);
    assert!(server.banner.contains("Authorization: Bearer"), "{}", server.banner);
    assert!(!server.banner.contains("sesame"), "the key is not printed");
    assert_eq!(server.get("/health").0, 200, "health needs no key");
    let (status, body) = server.get("/v1/models");
    assert_eq!((status, body["error"]["code"].as_str()), (401, Some("invalid_api_key")));
    assert_eq!(server.get_with("/v1/models", "authorization", "Bearer wrong").0, 401);
    assert_eq!(server.get_with("/v1/models", "authorization", "Bearer sesame").0, 200);
    assert_eq!(server.get_with("/v1/models/lily-mini", "x-api-key", "sesame").0, 200);

    assert_eq!(server.get_with("/health", "host", "evil.example").0, 403);
    assert_eq!(server.get_with("/health", "host", "box.example:80").0, 200);
    assert_eq!(server.get_with("/health", "origin", "http://evil.example").0, 403);
    assert_eq!(server.get_with("/health", "origin", "null").0, 403);
    assert_eq!(server.get_with("/health", "origin", "http://localhost:3000").0, 200);
}

#[test]
fn models_have_ids_and_aliases() {
    let server = Server::start(&["--model-id", "house/mini", "--alias", "gpt-4o,other"]);
    let (_, list) = server.get("/v1/models");
    let ids: Vec<&str> = list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["house/mini", "gpt-4o", "other"]);
    assert_eq!(server.get("/v1/models/house/mini").1["id"], "house/mini");
    let (status, body) = server.get("/v1/models/nobody");
    assert_eq!((status, body["error"]["code"].as_str()), (404, Some("model_not_found")));
    let (status, body) = server.chat(json!({"model": "gpt-4o", "max_tokens": 1}));
    assert_eq!((status, body["model"].as_str()), (200, Some("house/mini")), "{body}");
    assert_eq!(server.chat(json!({"model": "lily-mini"})).0, 404);
}

#[test]
fn an_open_address_needs_a_key() {
    let refused = lily().args(["serve", "--host", "0.0.0.0", "--port", "0"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(common::stderr(&refused).contains("--api-key"), "{}", common::stderr(&refused));
}
