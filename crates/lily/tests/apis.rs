//! Every API of the real binary with lily-mini, over sockets: bodies, events, and what they have in common.

mod common;

use common::Server;
use serde_json::{Value, json};

fn lookup(name_of_schema: &str) -> Value {
    json!({
        "name": "lookup_word",
        "description": "Look up the meaning of a word in the dictionary.",
        name_of_schema: {"type": "object", "properties": {
            "word": {"type": "string", "description": "the word to look up"}}, "required": ["word"]},
    })
}

fn good((status, body): (u16, Value)) -> Value {
    assert_eq!(status, 200, "{body}");
    body
}

/// The events of a stream as (name, body).
fn events(server: &Server, path: &str, body: Value) -> Vec<(String, Value)> {
    server
        .stream_of(path, body)
        .map(|(name, data)| (name, serde_json::from_str(&data).unwrap_or(Value::Null)))
        .collect()
}

fn ask() -> Value {
    json!([{"role": "user", "content": "define heron"}])
}

#[test]
fn anthropic_messages() {
    let server = Server::start(&[]);
    let path = "/v1/messages";
    let body = |fields: Value| {
        let mut body = json!({"model": "lily-mini", "max_tokens": 300, "messages": ask()});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let whole = good(server.post(path, &body(json!({}))));
    let text = whole["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("bird"), "{whole}");
    assert_eq!((&whole["type"], &whole["stop_reason"]), (&json!("message"), &json!("end_turn")));
    let usage = &whole["usage"];
    let counted =
        good(server.post("/v1/messages/count_tokens", &json!({"model": "lily-mini", "messages": ask()})));
    let input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted, json!({"input_tokens": input}));

    let list = events(&server, path, body(json!({"thinking": {"type": "enabled", "budget_tokens": 200}})));
    let names: Vec<&str> = list.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.first(), Some(&"message_start"));
    assert_eq!(names[names.len() - 2..], ["message_delta", "message_stop"]);
    assert!(list.iter().all(|(name, body)| body["type"] == name.as_str()));
    let joined = |kind: &str, field: &str| {
        let deltas = list.iter().filter(|(_, b)| b["delta"]["type"] == kind);
        deltas.map(|(_, b)| b["delta"][field].as_str().unwrap()).collect::<String>()
    };
    assert!(
        !joined("thinking_delta", "thinking").is_empty() && joined("text_delta", "text").contains("bird")
    );
    // Blocks open and close in order.
    let starts: Vec<&Value> =
        list.iter().filter(|(n, _)| n == "content_block_start").map(|(_, b)| &b["index"]).collect();
    let stops: Vec<&Value> =
        list.iter().filter(|(n, _)| n == "content_block_stop").map(|(_, b)| &b["index"]).collect();
    assert_eq!((starts, stops), (vec![&json!(0), &json!(1)], vec![&json!(0), &json!(1)]));

    // A tool, whole and streamed, and its result.
    let tools = json!([lookup("input_schema")]);
    let called = good(server.post(path, &body(json!({"tools": tools}))));
    assert_eq!(called["stop_reason"], "tool_use", "{called}");
    let call = &called["content"][0];
    assert_eq!((&call["type"], &call["input"]), (&json!("tool_use"), &json!({"word": "heron"})));
    let list = events(&server, path, body(json!({"tools": tools})));
    let input: String = list.iter().filter_map(|(_, b)| b["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), call["input"]);
    let messages = json!([
        ask()[0],
        {"role": "assistant", "content": called["content"]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "a wading bird"}]}]},
    ]);
    let after = good(server.post(path, &body(json!({"tools": tools, "messages": messages}))));
    assert_eq!(after["stop_reason"], "end_turn", "{after}");

    // Errors in this API's form.
    let (status, error) = server.post(path, &json!({"model": "lily-mini", "messages": ask()}));
    assert_eq!(
        (status, &error["type"], &error["error"]["type"]),
        (400, &json!("error"), &json!("invalid_request_error"))
    );
    assert!(error["error"]["message"].as_str().unwrap().contains("max_tokens"), "{error}");
    let locked = Server::start(&["--api-key", "k"]);
    let (status, error) = locked.post(path, &body(json!({})));
    assert_eq!((status, &error["error"]["type"]), (401, &json!("authentication_error")));
}

#[test]
fn openai_responses() {
    let server = Server::start(&[]);
    let path = "/v1/responses";
    let body = |fields: Value| {
        let mut body = json!({"model": "lily-mini", "input": "define heron"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let whole = good(server.post(path, &body(json!({"metadata": {"a": "b"}}))));
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("completed")));
    assert_eq!(whole["metadata"], json!({"a": "b"}));
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("bird"), "{whole}");
    let usage = &whole["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64().unwrap(),
        usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap()
    );

    let list = events(&server, path, body(json!({"reasoning": {"effort": "low"}})));
    for (i, (name, body)) in list.iter().enumerate() {
        assert_eq!((&body["type"], &body["sequence_number"]), (&json!(name), &json!(i)));
    }
    let (last, end) = list.last().unwrap();
    assert_eq!(last, "response.completed");
    let kinds: Vec<&str> =
        end["response"]["output"].as_array().unwrap().iter().map(|i| i["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message"]);
    let streamed: String = list
        .iter()
        .filter(|(n, _)| n == "response.output_text.delta")
        .map(|(_, b)| b["delta"].as_str().unwrap())
        .collect();
    assert_eq!(end["response"]["output"][1]["content"][0]["text"], streamed.as_str());

    let mut tool = lookup("parameters");
    tool["type"] = "function".into();
    let list = events(&server, path, body(json!({"tools": [tool]})));
    let done = list.iter().find(|(n, _)| n == "response.function_call_arguments.done").unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(done.1["arguments"].as_str().unwrap()).unwrap(),
        json!({"word": "heron"})
    );
    let output = list.last().unwrap().1["response"]["output"].clone();
    let mut input = vec![json!({"role": "user", "content": "define heron"})];
    input.extend(output.as_array().unwrap().clone());
    input.push(
        json!({"type": "function_call_output", "call_id": output[0]["call_id"], "output": "a wading bird"}),
    );
    let after = good(server.post(path, &body(json!({"input": input, "tools": [tool]}))));
    assert!(after["output"][0]["content"][0]["text"].as_str().unwrap().contains("bird"), "{after}");
    assert!(after["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);

    let cut = good(server.post(path, &body(json!({"max_output_tokens": 3}))));
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let (status, error) = server.post(path, &body(json!({"previous_response_id": "resp_1"})));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("previous_response_id")));
}

#[test]
fn completions_and_the_text_side() {
    let server = Server::start(&[]);
    let prompt = good(server.post("/apply-template", &json!({"messages": ask(), "enable_thinking": false})));
    let text = prompt["prompt"].as_str().unwrap();
    assert!(text.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"), "{text}");
    let tokens = good(server.post("/tokenize", &json!({"content": text})));
    assert_eq!(tokens["count"], prompt["count"]);
    assert_eq!(
        good(server.post("/tokenize", &json!({"messages": ask(), "enable_thinking": false})))["tokens"],
        tokens["tokens"]
    );
    let back = good(server.post("/detokenize", &json!({"tokens": tokens["tokens"]})));
    assert_eq!(back["content"], text);
    let plain = good(server.post("/tokenize", &json!({"content": "<|im_end|>", "parse_special": false})));
    assert!(plain["count"].as_u64().unwrap() > 1);
    let pieces = good(server.post("/tokenize", &json!({"content": "a heron", "with_pieces": true})));
    let joined: String =
        pieces["tokens"].as_array().unwrap().iter().map(|t| t["piece"].as_str().unwrap()).collect();
    assert_eq!(joined, "a heron");

    // The same prompt as text, as ids, and through the chat API.
    let chat = server.choice(json!({"temperature": 0}))["message"]["content"].clone();
    for given in [json!(text), tokens["tokens"].clone()] {
        let body = json!({"model": "lily-mini", "prompt": given, "max_tokens": 300, "temperature": 0});
        let whole = good(server.post("/v1/completions", &body));
        assert_eq!((&whole["object"], &whole["choices"][0]["text"]), (&json!("text_completion"), &chat));
        let chunks = server.stream_of("/v1/completions", body).chunks();
        let streamed: String = chunks.iter().filter_map(|c| c["choices"][0]["text"].as_str()).collect();
        assert_eq!(chat, streamed.as_str());
    }
    let body = json!({"model": "lily-mini", "prompt": text, "max_tokens": 4, "temperature": 0, "logprobs": 2, "n": 2});
    let whole = good(server.post("/v1/completions", &body));
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    let logprobs = &choices[0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 4);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    let short = good(server.post("/v1/completions", &json!({"prompt": "heron"})));
    assert_eq!(
        short["usage"]["completion_tokens"].as_u64().map(|n| n <= 16),
        Some(true),
        "16 tokens when not said"
    );
    for (path, body, param) in [
        ("/v1/completions", json!({}), "prompt"),
        ("/v1/completions", json!({"prompt": ["a", "b"]}), "prompt"),
        ("/v1/completions", json!({"prompt": [1, -1]}), "prompt[1]"),
        ("/v1/completions", json!({"prompt": "a", "suffix": "b"}), "suffix"),
        ("/tokenize", json!({}), "content"),
        ("/tokenize", json!({"content": "a", "weight": 1}), "weight"),
        ("/detokenize", json!({"tokens": [99_999_999]}), "tokens[0]"),
        ("/apply-template", json!({"messages": []}), "messages"),
    ] {
        let (status, error) = server.post(path, &body);
        assert_eq!((status, error["error"]["param"].as_str()), (400, Some(param)), "{path} {body}: {error}");
    }
}

#[test]
fn metrics_and_the_description() {
    let server = Server::start(&[]);
    server.choice(json!({"max_tokens": 5}));
    server.chat(json!({"temperature": 9}));
    server.get("/nowhere");
    let (_, metrics) = server.get("/metrics");
    let metrics = metrics.as_str().unwrap();
    for line in [
        "lily_requests_total{path=\"/v1/chat/completions\",status=\"200\"} 1",
        "lily_requests_total{path=\"/v1/chat/completions\",status=\"400\"} 1",
        "lily_requests_total{path=\"other\",status=\"404\"} 1",
        "lily_generations_total{reason=\"length\"} 1",
        "lily_completion_tokens_total 5",
        "lily_requests_running 0",
        "lily_up 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in\n{metrics}");
    }
    let (_, document) = server.get("/openapi.json");
    // Every path it describes exists, by every method.
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let url = path.replace("{id}", "lily-mini");
            let (status, body) = match method.as_str() {
                "get" => server.get(&url),
                _ => server.post(&url, &json!({})),
            };
            assert!(status == 200 || status == 400, "{method} {path}: {status} {body}");
        }
    }
}

#[test]
fn several_answers_and_progress() {
    let server = Server::start(&[]);
    let fields = json!({"n": 3, "temperature": 2, "top_p": 1, "seed": 1, "top_k": 0, "max_tokens": 40, "logit_bias": common::endless()});
    let (_, body) = server.chat(fields.clone());
    let texts: Vec<&str> = body["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["message"]["content"].as_str().unwrap())
        .collect();
    assert!(texts.len() == 3 && (texts[0] != texts[1] || texts[1] != texts[2]), "{texts:?}");
    assert_eq!(body["usage"]["completion_tokens"], 120);
    let chunks = server.stream(fields).chunks();
    for (index, text) in texts.iter().enumerate() {
        let of_choice =
            chunks.iter().flat_map(|c| c["choices"].as_array().unwrap()).filter(|c| c["index"] == index);
        let joined: String = of_choice.filter_map(|c| c["delta"]["content"].as_str()).collect();
        assert_eq!(joined, *text, "choice {index}");
    }
    let long = "a long question ".repeat(800);
    let messages = json!([{"role": "user", "content": long}]);
    let chunks =
        server.stream(json!({"messages": messages, "return_progress": true, "max_tokens": 1})).chunks();
    let progress: Vec<&Value> =
        chunks.iter().map(|c| &c["prompt_progress"]).filter(|p| p.is_object()).collect();
    let processed: Vec<u64> = progress.iter().map(|p| p["processed"].as_u64().unwrap()).collect();
    assert!(processed.len() > 2 && processed.is_sorted(), "{processed:?}");
    assert_eq!(progress.last().unwrap()["processed"], progress[0]["total"]);
}

#[test]
fn structured_output_is_valid_and_thinking_free() {
    let server = Server::start(&[]);
    let schema = json!({
        "type": "object",
        "properties": {"word": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "minimum": 1, "maximum": 9},
            "kind": {"enum": ["bird", "fish"]}},
        "required": ["word", "count", "kind"], "additionalProperties": false,
    });
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}});
    for seed in 0..6 {
        let thinking = seed % 2 == 1;
        let fields = json!({"response_format": format, "temperature": 1.5, "top_p": 1, "seed": seed,
            "enable_thinking": thinking, "max_tokens": 2000});
        let choice = server.choice(fields.clone());
        let content = choice["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(content).unwrap_or_else(|e| panic!("{e}: {content}"));
        assert_eq!(choice["finish_reason"], "stop");
        assert!((1..=9).contains(&value["count"].as_u64().unwrap()), "{value}");
        assert!(value["kind"] == "bird" || value["kind"] == "fish");
        assert_eq!(value.as_object().unwrap().len(), 3);
        assert_eq!(choice["message"].get("reasoning_content").is_some(), thinking);
        let chunks = server.stream(fields).chunks();
        assert_eq!(common::joined(&chunks, "content"), content);
    }
    let choice =
        server.choice(json!({"guided_regex": "[ab]{3}", "temperature": 1.5, "enable_thinking": false}));
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(content.len() == 3 && content.chars().all(|c| "ab".contains(c)), "{content}");
    let (_, metrics) = server.get("/metrics");
    assert!(metrics.as_str().unwrap().contains("lily_grammar_masks_total"));
}

#[test]
fn a_tool_turn_is_replayed_as_it_was_written() {
    let server = Server::start(&[]);
    let tools = json!([{"type": "function", "function": lookup("parameters")}]);
    let fields = json!({"tools": tools, "enable_thinking": true, "temperature": 0});
    let (_, first) = server.chat(fields.clone());
    let message = &first["choices"][0]["message"];
    assert!(message["tool_calls"].is_array() && message["reasoning_content"].is_string(), "{first}");
    // The client drops the reasoning and writes the arguments in its own way.
    let mut call = message["tool_calls"][0].clone();
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    call["function"]["arguments"] = serde_json::to_string_pretty(&arguments).unwrap().into();
    let messages = json!([
        {"role": "user", "content": "define heron"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "a wading bird"},
    ]);
    let mut second = fields.clone();
    second["messages"] = messages.clone();
    let prompt = good(
        server
            .post("/apply-template", &json!({"messages": messages, "tools": tools, "enable_thinking": true})),
    );
    let reasoning = message["reasoning_content"].as_str().unwrap();
    assert!(prompt["prompt"].as_str().unwrap().contains(&format!("<think>\n{reasoning}")), "{prompt}");
    let (_, body) = server.chat(second);
    let seen = first["usage"]["total_tokens"].as_u64().unwrap();
    let cached = body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    println!("{cached} of the {seen} tokens seen were reused");
    assert!(cached + 2 >= seen, "{cached} of {seen}: {body}");
}
