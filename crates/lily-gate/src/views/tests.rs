use serde_json::{Value, json};

use super::*;

fn refused(request: Value) -> Refusal {
    fields(&request).unwrap_err()
}

fn user(content: Value) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": content}]})
}

fn whole() -> Value {
    json!({
        "model": "cloud/x",
        "temperature": 0.5,
        "privacy": {"mode": "cloud"},
        "user": "u-17",
        "stop": ["END", "STOP"],
        "metadata": {"ticket": "T1"},
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [{
                "id": "call_1", "type": "function",
                "function": {"name": "find", "arguments": "{ \"who\": {\"a#b/c\": \"Ann\\u0040x\"}, \"n\": 4111111111111111 }"}
            }]},
            {"role": "tool", "tool_call_id": "call_1", "content": "found"}
        ],
        "tools": [{"type": "function", "function": {
            "name": "find", "description": "looks up",
            "parameters": {"type": "object", "properties": {"who": {"enum": ["Ann", "Bob"]}}}
        }}]
    })
}

#[test]
fn every_string_is_seen_once_with_its_place() {
    let found = fields(&whole()).unwrap();
    let texts: Vec<&str> = found.iter().map(|f| f.text.as_str()).collect();
    for text in
        ["u-17", "END", "STOP", "T1", "be kind", "Ann", "hello", "hm", "Ann@x", "found", "looks up", "Bob"]
    {
        assert!(texts.contains(&text), "{text} not seen in {texts:?}");
    }
    let argument = found.iter().find(|f| f.text == "Ann@x").unwrap();
    assert_eq!(argument.path, "/messages/2/tool_calls/0/function/arguments#/who/a~2b~1c");
    assert_eq!(argument.role, FieldRole::ToolArgument);
    assert_eq!(argument.tool.as_deref(), Some("find"));
    assert_eq!(argument.key.as_deref(), Some("a#b/c"));
    let number = found.iter().find(|f| f.part == FieldPart::Number).unwrap();
    assert_eq!(number.text, "4111111111111111");
    let result = found.iter().find(|f| f.text == "found").unwrap();
    assert_eq!((result.role, result.tool.as_deref()), (FieldRole::ToolResult, Some("find")));
    let mut unique: Vec<_> = found.iter().map(|f| (f.path.clone(), f.part as u8)).collect();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), found.len());
}

#[test]
fn unchanged_fields_give_the_request_back() {
    let request = whole();
    let mut expected = request.clone();
    expected.as_object_mut().unwrap().shift_remove("privacy");
    expected["messages"][2]["tool_calls"][0]["function"]["arguments"] =
        json!("{\"who\":{\"a#b/c\":\"Ann@x\"},\"n\":4111111111111111}");
    let out = replace(&request, &fields(&request).unwrap()).unwrap();
    assert_eq!(out, expected);
    assert_eq!(out.to_string(), expected.to_string(), "members keep their order");
}

#[test]
fn edits_land_where_they_belong() {
    let request = whole();
    let mut edited = fields(&request).unwrap();
    for field in &mut edited {
        if field.role != FieldRole::Identifier
            && (field.text.contains("Ann") || field.part == FieldPart::Number)
        {
            field.text = "[[P]]".into();
        }
        if field.text == "a#b/c" {
            field.text = "[[K]]".into();
        }
    }
    let out = replace(&request, &edited).unwrap();
    let arguments = out["messages"][2]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert_eq!(arguments, r#"{"who":{"[[K]]":"[[P]]"},"n":"[[P]]"}"#);
    assert_eq!(out["messages"][1]["name"], "[[P]]");
    let enums = &out["tools"][0]["function"]["parameters"]["properties"]["who"]["enum"];
    assert_eq!(*enums, json!(["[[P]]", "Bob"]));
    assert!(!out.to_string().contains("Ann"));
}

#[test]
fn an_escape_or_a_repeated_key_hides_nothing() {
    let request = json!({"messages": [{"role": "assistant", "tool_calls": [{
        "id": "c", "type": "function",
        "function": {"name": "f", "arguments": "{\"a\": \"s3cret\", \"a\": \"x\"}"}
    }]}]});
    let out = replace(&request, &fields(&request).unwrap()).unwrap();
    assert!(!out.to_string().contains("s3cret"), "the parser keeps the last, so must what leaves");
}

#[test]
fn arguments_that_are_no_json_are_one_text() {
    let request = json!({"messages": [{"role": "assistant", "tool_calls": [{
        "id": "c", "type": "function", "function": {"name": "f", "arguments": "call Ann"}
    }]}]});
    let found = fields(&request).unwrap();
    assert_eq!(found.last().unwrap().text, "call Ann");
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let cases = [
        (json!({"messages": [], "telemetry": 1}), "/telemetry"),
        (json!({"messages": [{"role": "critic", "content": "x"}]}), "/messages/0/role"),
        (json!({"messages": [{"role": "user", "content": "x", "mood": "y"}]}), "/messages/0/mood"),
        (json!({"messages": [{"role": "user", "content": "x", "mood": null}]}), "/messages/0/mood"),
        (user(json!([{"type": "hologram"}])), "/messages/0/content/0/type"),
        (user(json!([{"type": "text", "text": "x", "hint": "y"}])), "/messages/0/content/0/hint"),
        (json!({"tools": [{"type": "function", "cost": 1}]}), "/tools/0/cost"),
    ];
    for (request, path) in cases {
        let refusal = refused(request);
        assert_eq!((refusal.kind, refusal.path.as_str()), (RefusalKind::Unknown, path));
    }
    for request in [json!([]), json!({"messages": "hi"}), user(json!(7)), json!({"temperature": "Ann"})] {
        assert_eq!(refused(request).kind, RefusalKind::Malformed);
    }
}

#[test]
fn what_cannot_be_read_stays() {
    let bytes: Vec<u8> = (0..600u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let blob = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &bytes);
    let wrapped: Vec<&str> = blob.as_bytes().chunks(76).map(|c| std::str::from_utf8(c).unwrap()).collect();
    let cases = [
        user(json!([{"type": "image_url", "image_url": {"url": "https://x"}}])),
        user(json!([{"type": "input_audio", "input_audio": {}}])),
        user(json!([{"type": "file", "file": {}}])),
        user(json!("look: data:image/png;base64,iVBORw0KGgo=")),
        user(json!(format!("here: {blob}."))),
        user(json!(format!("here:\n{}\n", wrapped.join("\n")))),
        json!({"modalities": ["text", "audio"]}),
    ];
    for request in cases {
        assert_eq!(refused(request.clone()).kind, RefusalKind::KeepLocal, "{request}");
    }
    let words = "alpha/Beta2/gamma-delta_".repeat(60);
    assert!(fields(&user(json!(words))).is_ok(), "a long path is no data");
    let hex = "0123456789abcdef".repeat(64);
    assert!(fields(&user(json!(hex))).is_ok(), "hex digits can be read");
}

#[test]
fn deep_nesting_is_refused_also_inside_arguments() {
    let nest = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
    let call = |arguments: String| {
        json!({"messages": [{"role": "assistant", "tool_calls": [{
            "id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}
        }]}]})
    };
    assert!(fields(&call(nest(40))).is_ok());
    assert_eq!(refused(call(nest(70))).kind, RefusalKind::TooDeep);
    let deep: Value = serde_json::from_str(&nest(70)).unwrap();
    assert_eq!(refused(json!({"metadata": deep})).kind, RefusalKind::TooDeep);
    // Too deep for the JSON parser: one text, in which recognisers look.
    assert_eq!(fields(&call(nest(400))).unwrap().last().unwrap().part, FieldPart::Value);
}

#[test]
fn identifiers_carry_no_prose_and_no_edits() {
    let request = json!({"model": "Ann Smith, 4 Elm Street"});
    assert_eq!(refused(request).kind, RefusalKind::Malformed);
    let request = json!({"model": "ann-smith"});
    let mut edited = fields(&request).unwrap();
    edited[0].text = "[[P]]".into();
    assert_eq!(replace(&request, &edited).unwrap_err().kind, RefusalKind::Edit);
}

#[test]
fn foreign_or_colliding_edits_are_refused() {
    let request = json!({"metadata": {"ann": "1", "bob": "2"}});
    let mut edited = fields(&request).unwrap();
    assert!(replace(&request, &edited[1..]).is_err());
    let mut longer = edited.clone();
    longer.push(edited[0].clone());
    assert!(replace(&request, &longer).is_err());
    for field in edited.iter_mut().filter(|f| f.part == FieldPart::Key) {
        field.text = "same".into();
    }
    assert_eq!(replace(&request, &edited).unwrap_err().kind, RefusalKind::Edit);
}
