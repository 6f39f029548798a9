//! Malformed and hostile requests: each is refused with the right status, the name of the field and a reason, and
//! the server goes on serving.

mod common;

use common::{Server, chat_body};
use serde_json::{Value, json};

/// (name, fields beside a good request, status, `param`, part of the message)
type Case = (&'static str, Value, u16, Option<&'static str>, &'static str);

fn user(content: Value) -> Value {
    json!([{"role": "user", "content": content}])
}

fn tool(function: Value) -> Value {
    json!([{"type": "function", "function": function}])
}

/// Bodies that are JSON objects.
#[rustfmt::skip]
fn cases() -> Vec<Case> {
    let long = "x".repeat(2000);
    vec![
        // Fields.
        ("unknown field", json!({"frobnicate": 1}), 400, Some("frobnicate"), "unknown parameter"),
        ("misspelt field", json!({"max_token": 5}), 400, Some("max_token"), "spelling"),
        ("another model", json!({"model": "gpt-4o"}), 404, Some("model"), "lily-mini"),
        ("model is a path", json!({"model": "../../etc/passwd"}), 404, Some("model"), "not served"),
        ("model is a number", json!({"model": 4}), 400, Some("model"), "expected a string"),
        ("temperature is text", json!({"temperature": "hot"}), 400, Some("temperature"), "expected a number"),
        ("temperature too high", json!({"temperature": 2.5}), 400, Some("temperature"), "0 to 2"),
        ("temperature negative", json!({"temperature": -0.1}), 400, Some("temperature"), "0 to 2"),
        ("temperature is huge", json!({"temperature": 1e300}), 400, Some("temperature"), "0 to 2"),
        ("top_p 0", json!({"top_p": 0}), 400, Some("top_p"), "more than 0"),
        ("top_p over 1", json!({"top_p": 1.01}), 400, Some("top_p"), "0 to 1"),
        ("top_k negative", json!({"top_k": -5}), 400, Some("top_k"), "0 (all tokens)"),
        ("top_k is a fraction", json!({"top_k": 1.5}), 400, Some("top_k"), "whole number"),
        ("min_p over 1", json!({"min_p": 2}), 400, Some("min_p"), "0 to 1"),
        ("presence_penalty", json!({"presence_penalty": 3}), 400, Some("presence_penalty"), "-2 to 2"),
        ("frequency_penalty", json!({"frequency_penalty": -3}), 400, Some("frequency_penalty"), "-2 to 2"),
        ("repetition_penalty 0", json!({"repetition_penalty": 0}), 400, Some("repetition_penalty"), "more than 0"),
        ("max_tokens 0", json!({"max_tokens": 0}), 400, Some("max_tokens"), "at least 1"),
        ("max_tokens negative", json!({"max_tokens": -1}), 400, Some("max_tokens"), "not negative"),
        ("max_tokens is a fraction", json!({"max_tokens": 10.5}), 400, Some("max_tokens"), "whole number"),
        ("two limits", json!({"max_tokens": 5, "max_completion_tokens": 6}), 400, Some("max_tokens"), "one of them"),
        ("more than the context", json!({"max_tokens": 1_000_000}), 400, Some("messages"), "1000015"),
        ("max_tokens overflows", json!({"max_tokens": u64::MAX}), 400, Some("messages"), "context limit"),
        ("too many answers", json!({"n": 17}), 400, Some("n"), "1 to 16"),
        ("no answers", json!({"n": 0}), 400, Some("n"), "1 to 16"),
        ("progress without a stream", json!({"return_progress": true}), 400, Some("return_progress"), "stream is true"),
        ("empty stop string", json!({"stop": ""}), 400, Some("stop"), "empty"),
        ("empty stop string in a list", json!({"stop": ["a", ""]}), 400, Some("stop[1]"), "empty"),
        ("five stop strings", json!({"stop": ["a", "b", "c", "d", "e"]}), 400, Some("stop"), "at most 4"),
        ("stop is a number", json!({"stop": 5}), 400, Some("stop"), "string"),
        ("long stop string", json!({"stop": long}), 400, Some("stop"), "2000 bytes"),
        ("bias of a word", json!({"logit_bias": {"heron": 1}}), 400, Some("logit_bias.heron"), "token id"),
        ("bias beyond the vocabulary", json!({"logit_bias": {"999999": 1}}), 400, Some("logit_bias.999999"), "below"),
        ("bias too strong", json!({"logit_bias": {"5": 101}}), 400, Some("logit_bias.5"), "-100 to 100"),
        ("bias is text", json!({"logit_bias": {"5": "no"}}), 400, Some("logit_bias.5"), "number"),
        ("seed is text", json!({"seed": "lucky"}), 400, Some("seed"), "64-bit integer"),
        ("seed is a fraction", json!({"seed": 1.5}), 400, Some("seed"), "64-bit integer"),
        ("too many rivals", json!({"logprobs": true, "top_logprobs": 21}), 400, Some("top_logprobs"), "0 to 20"),
        ("rivals without logprobs", json!({"top_logprobs": 2}), 400, Some("top_logprobs"), "logprobs is true"),
        ("logprobs is a number", json!({"logprobs": 5}), 400, Some("logprobs"), "true or false"),
        ("stream is text", json!({"stream": "yes"}), 400, Some("stream"), "true or false"),
        ("stream_options alone", json!({"stream_options": {}}), 400, Some("stream_options"), "stream is true"),
        ("unknown stream option", json!({"stream": true, "stream_options": {"x": 1}}), 400, Some("stream_options.x"), "unknown"),
        // What is not implemented.
        ("unknown format", json!({"response_format": {"type": "xml"}}), 400, Some("response_format.type"), "json_schema"),
        ("a schema that is none", json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": 3}}}), 400, Some("response_format.json_schema.schema"), "JSON Schema"),
        ("a schema beyond the grammar", json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array", "uniqueItems": true}}}}), 400, Some("response_format.json_schema.schema"), "uniqueItems"),
        ("a broken regex", json!({"guided_regex": "("}), 400, Some("guided_regex"), "grammar"),
        ("two forms", json!({"guided_regex": "a", "guided_choice": ["a"]}), 400, Some("guided_choice"), "one of them"),
        ("audio", json!({"modalities": ["text", "audio"]}), 400, Some("modalities"), "not supported"),
        ("web search", json!({"web_search_options": {}}), 400, Some("web_search_options"), "not supported"),
        ("old functions", json!({"functions": []}), 400, Some("functions"), "not supported"),
        ("storing", json!({"store": true}), 400, Some("store"), "not supported"),
        ("a tool forced, none offered", json!({"tool_choice": "required"}), 400, Some("tool_choice"), "no tools"),
        ("a tool forced that is not offered", json!({"tools": tool(json!({"name": "f"})), "tool_choice": {"type": "function", "function": {"name": "g"}}}), 400, Some("tool_choice"), "not among"),
        ("an unknown choice", json!({"tools": tool(json!({"name": "f"})), "tool_choice": "maybe"}), 400, Some("tool_choice"), "required"),
        ("strict is a word", json!({"tools": tool(json!({"name": "f", "strict": "yes"}))}), 400, Some("tools[0].function.strict"), "true or false"),
        // Thinking.
        ("unknown effort", json!({"reasoning_effort": "very"}), 400, Some("reasoning_effort"), "none, minimal"),
        ("thinking contradicts itself", json!({"enable_thinking": true, "reasoning_effort": "none"}), 400, Some("reasoning_effort"), "one of them"),
        ("thinking is text", json!({"chat_template_kwargs": {"enable_thinking": "on"}}), 400, Some("chat_template_kwargs.enable_thinking"), "true or false"),
        ("misspelt keyword", json!({"chat_template_kwargs": {"enable_thinkin": true}}), 400, Some("chat_template_kwargs.enable_thinkin"), "does not read"),
        ("a function by keyword", json!({"chat_template_kwargs": {"namespace": 1}}), 400, Some("chat_template_kwargs.namespace"), "does not read"),
        ("messages by keyword", json!({"chat_template_kwargs": {"messages": []}}), 400, Some("chat_template_kwargs.messages"), "server"),
        // Messages.
        ("no messages", json!({"messages": null}), 400, Some("messages"), "missing"),
        ("empty messages", json!({"messages": []}), 400, Some("messages"), "empty"),
        ("messages is text", json!({"messages": "hi"}), 400, Some("messages"), "expected a list"),
        ("a message is text", json!({"messages": ["hi"]}), 400, Some("messages[0]"), "object"),
        ("no role", json!({"messages": [{"content": "hi"}]}), 400, Some("messages[0].role"), "no role"),
        ("unknown role", json!({"messages": [{"role": "robot", "content": "hi"}]}), 400, Some("messages[0].role"), "robot"),
        ("no content", json!({"messages": [{"role": "user"}]}), 400, Some("messages[0].content"), "no content"),
        ("content is a number", json!({"messages": user(json!(5))}), 400, Some("messages[0].content"), "found 5"),
        ("no parts", json!({"messages": user(json!([]))}), 400, Some("messages[0].content"), "text parts"),
        ("an image", json!({"messages": user(json!([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]))}), 400, Some("messages[0].content[0].type"), "text only"),
        ("unknown part", json!({"messages": user(json!([{"type": "smell"}]))}), 400, Some("messages[0].content[0].type"), "smell"),
        ("part without text", json!({"messages": user(json!([{"type": "text"}]))}), 400, Some("messages[0].content[0].text"), "expected a string"),
        ("unknown message field", json!({"messages": [{"role": "user", "content": "hi", "mood": 1}]}), 400, Some("messages[0].mood"), "unknown"),
        ("only a system message", json!({"messages": [{"role": "system", "content": "be brief"}]}), 400, Some("messages"), "user"),
        ("tool result for no call", json!({"messages": [{"role": "tool", "content": "x"}]}), 400, Some("messages[0].tool_call_id"), "id of the call"),
        ("arguments are not JSON", json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}]}]}), 400, Some("messages[1].tool_calls[0].function.arguments"), "JSON"),
        ("calls are not a list", json!({"messages": [{"role": "assistant", "tool_calls": {}}]}), 400, Some("messages[0].tool_calls"), "list"),
        // Tools.
        ("tool without a name", json!({"tools": tool(json!({}))}), 400, Some("tools[0].function.name"), "name"),
        ("tool with markup for a name", json!({"tools": tool(json!({"name": "<function=x>"}))}), 400, Some("tools[0].function.name"), "letters"),
        ("two tools of one name", json!({"tools": [tool(json!({"name": "f"}))[0], tool(json!({"name": "f"}))[0]]}), 400, Some("tools[1].function.name"), "two functions"),
        ("schema is a list", json!({"tools": tool(json!({"name": "f", "parameters": []}))}), 400, Some("tools[0].function.parameters"), "JSON Schema"),
        ("unknown kind of tool", json!({"tools": [{"type": "computer"}]}), 400, Some("tools[0].type"), "computer"),
        ("129 tools", json!({"tools": vec![json!({}); 129]}), 400, Some("tools"), "at most 128"),
    ]
}

fn post(body: &[u8], headers: &str) -> Vec<u8> {
    let mut bytes = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

const JSON: &str = "Content-Type: application/json\r\n";

/// Bytes on the wire: (name, bytes, status, part of the body). Status 0: no answer.
#[rustfmt::skip]
fn raw_cases() -> Vec<(&'static str, Vec<u8>, u16, &'static str)> {
    let good = chat_body(json!({})).to_string();
    let nested = "[".repeat(100_000);
    let duplicate = r#"{"model": "lily-mini", "model": "lily-mini", "messages": []}"#;
    let surrogate = r#"{"model": "lily-mini", "messages": [{"role": "user", "content": "\ud800"}]}"#;
    let headers: String = (0..200).map(|i| format!("X-{i}: 1\r\n")).collect();
    let get = |path: &str, headers: &str| format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").into_bytes();
    let huge = |length: &str| format!("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{JSON}{length}\r\n\r\n").into_bytes();
    let mut endless = huge("Transfer-Encoding: chunked");
    for _ in 0..40 {
        endless.extend_from_slice(b"10000\r\n");
        endless.extend_from_slice(&[b' '; 0x10000]);
        endless.extend_from_slice(b"\r\n");
    }
    let mut smuggled = huge("Content-Length: 5\r\nTransfer-Encoding: chunked");
    smuggled.extend_from_slice(b"0\r\n\r\n");
    vec![
        ("not JSON", post(b"define heron", JSON), 400, "not valid JSON"),
        ("empty body", post(b"", JSON), 400, "not valid JSON"),
        ("half a body", post(&good.as_bytes()[..20], JSON), 400, "not valid JSON"),
        ("text after the object", post((good.clone() + "x").as_bytes(), JSON), 400, "not valid JSON"),
        ("a list", post(b"[]", JSON), 400, "expected an object"),
        ("NaN", post(br#"{"temperature": NaN}"#, JSON), 400, "not valid JSON"),
        ("a number without end", post(format!("{{\"temperature\": 1{}}}", "0".repeat(400)).as_bytes(), JSON), 400, "out of range"),
        ("not UTF-8", post(b"{\"model\": \"\xff\xfe\"}", JSON), 400, "not valid JSON"),
        ("half a surrogate pair", post(surrogate.as_bytes(), JSON), 400, "not valid JSON"),
        ("100,000 brackets", post(nested.as_bytes(), JSON), 400, "body"),
        ("100,000 brackets in a field", post(format!("{{\"metadata\": {nested}").as_bytes(), JSON), 400, "recursion"),
        ("a field twice", post(duplicate.as_bytes(), JSON), 400, "duplicate field"),
        ("a form", post(b"model=lily-mini", "Content-Type: application/x-www-form-urlencoded\r\n"), 415, "application/json"),
        ("plain text", post(good.as_bytes(), "Content-Type: text/plain\r\n"), 415, "application/json"),
        ("announced as 5 GB", huge("Content-Length: 5000000000"), 413, "larger than"),
        ("chunked without end", endless, 413, "larger than"),
        ("two lengths", huge("Content-Length: 5\r\nContent-Length: 6"), 400, ""),
        ("a length and chunks", smuggled, 400, "not valid JSON"),
        ("negative length", huge("Content-Length: -1"), 400, ""),
        ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), 400, ""),
        ("no HTTP either", b"hello there\r\n\r\n".to_vec(), 400, ""),
        ("200 headers", get("/health", &format!("Host: localhost\r\n{headers}")), 431, ""),
        ("a header of 100 kB", get("/health", &format!("Host: localhost\r\nX: {}\r\n", "y".repeat(100_000))), 431, ""),
        ("a header of 2 MB", get("/health", &format!("Host: localhost\r\nX: {}\r\n", "y".repeat(2_000_000))), 431, ""),
        ("a path of 100 kB", get(&format!("/{}", "z".repeat(100_000)), "Host: localhost\r\n"), 414, ""),
        ("no Host", get("/health", ""), 400, "no Host"),
        ("two Hosts", get("/health", "Host: localhost\r\nHost: localhost\r\n"), 400, "two Host"),
        ("a rebound name", get("/health", "Host: evil.example\r\n"), 403, "evil.example"),
        ("another page", get("/health", "Host: localhost\r\nOrigin: http://evil.example\r\n"), 403, "evil.example"),
        ("a file", get("/../../etc/passwd", "Host: localhost\r\n"), 404, "does not exist"),
        ("an unknown path", get("/v1/embeddings", "Host: localhost\r\n"), 404, "does not exist"),
        ("GET for POST", get("/v1/chat/completions", "Host: localhost\r\n"), 405, "not allowed"),
        ("a model that is not text", get("/v1/models/%ff%fe", "Host: localhost\r\n"), 400, "invalid_request_error"),
        ("an unknown model", get("/v1/models/%2e%2e%2fx", "Host: localhost\r\n"), 404, "not served"),
    ]
}

#[test]
fn every_bad_request_is_refused_by_name() {
    let server = Server::start(&["--body-limit", "1"]);
    let cases = cases();
    let mut wrong = Vec::new();
    for (name, fields, status, param, part) in &cases {
        let (found, body) = server.chat(fields.clone());
        let error = &body["error"];
        let message = error["message"].as_str().unwrap_or_default();
        let whole = error["type"].is_string() && error.get("code").is_some();
        if found != *status || error["param"].as_str() != *param || !message.contains(part) || !whole {
            wrong.push(format!("{name}: expected {status} {param:?} {part:?}, found {found} {body}"));
        }
        assert_eq!(server.load(), (0, 0), "{name}: nothing was started");
    }
    let raw = raw_cases();
    for (name, bytes, status, part) in &raw {
        let (found, body) = server.raw(bytes);
        if found != *status || !body.contains(part) {
            let body: String = body.chars().take(300).collect();
            wrong.push(format!("{name}: expected {status} {part:?}, found {found} {body}"));
        }
        let (status, _) = server.get("/health");
        assert_eq!(status, 200, "{name}: the server still answers");
    }
    assert!(wrong.is_empty(), "{} of {} wrong:\n{}", wrong.len(), cases.len() + raw.len(), wrong.join("\n"));
    println!("{} bad requests refused", cases.len() + raw.len());

    // A client that promises a body and leaves.
    for _ in 0..20 {
        drop(common::abandoned(&server, &json!({"messages": user(json!("define heron"))})));
    }
    let choice = server.choice(json!({}));
    assert!(choice["message"]["content"].as_str().unwrap().contains("bird"), "the server still answers");
}

#[test]
fn neutral_values_are_accepted() {
    let server = Server::start(&[]);
    let expected = server.choice(json!({}))["message"]["content"].clone();
    #[rustfmt::skip]
    let neutral = [
        json!({"model": null}),
        json!({"n": 1, "stop": null, "logprobs": false, "top_logprobs": 0, "stream": false, "seed": 1}),
        json!({"user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto"}),
        json!({"response_format": {"type": "text"}, "modalities": ["text"], "verbosity": "medium"}),
        json!({"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {}}),
        json!({"tools": [], "tool_choice": "auto", "parallel_tool_calls": true, "functions": null}),
        json!({"temperature": null, "top_p": null, "max_tokens": null, "stream_options": null}),
        json!({"stop": [], "top_k": -1, "min_p": 0, "max_tokens": 200, "max_completion_tokens": 200}),
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "define heron", "cache_control": {"type": "ephemeral"}}], "name": "ann"}]}),
    ];
    for fields in neutral {
        assert_eq!(server.choice(fields.clone())["message"]["content"], expected, "{fields}");
    }
    // A missing content type is JSON.
    let (status, body) = server.raw(&post(chat_body(json!({"max_tokens": 1})).to_string().as_bytes(), ""));
    assert_eq!(status, 200, "{body}");
}
