//! What leaves is what the log says, and an answer that is not whole says so.

mod common;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use common::{
    Full, Lines, Provider, Reply, answer_json, cloud, echo, events, gate_with, gated, read, said, user,
};
use lily_hybrid::{
    AuditError, AuditLog, CloudError, CloudEvent,
    audit::verify,
    egress::{EgressError, clients_made},
};
use serde_json::{Value, json};

#[tokio::test]
async fn masked_out_restored_back_and_written_down() {
    let provider = Provider::start(echo).await;
    let directory = tempfile::tempdir().unwrap();
    let gate = gate_with("layer2 = \"off\"", None);
    let audit = AuditLog::open(directory.path()).unwrap();
    let more = "api_key_env = \"KEY\"\n[upstreams.x.headers]\nx-organization = \"acme\"";
    let cloud = cloud(&provider, Arc::clone(&gate), audit, more);
    assert_eq!((cloud.names().collect::<Vec<_>>(), cloud.model("x")), (vec!["x"], Some("big-1")));
    for stream in [true, false] {
        let text = "Mail ann@x.example for Person-00aa11bb, é🏠";
        let answer = cloud.send("x", gated(&gate, &user(text, stream))).await.unwrap();
        let id = answer.audit_id.clone();
        let (shown, ending) = read(answer).await;
        assert_eq!(shown, text);
        assert_eq!(ending.unwrap().restored, 2);
        let (line, about) = lily_hybrid::audit::find(directory.path(), &id).unwrap();
        let captured = provider.captured.lock().unwrap().last().unwrap().clone();
        assert_eq!(
            line["body"].as_str().unwrap().as_bytes(),
            captured.body,
            "what the log says is what arrived"
        );
        assert!(!line.to_string().contains("ann@") && !line.to_string().contains("00aa11bb"), "{line}");
        assert_eq!(
            (about[0]["outcome"].as_str(), about[0]["restored"].as_u64()),
            (Some("complete"), Some(2))
        );
        // The headers are the configured ones and those that HTTP needs: nothing of the client's.
        let mut names: Vec<String> =
            captured.head.lines().skip(1).filter_map(|l| Some(l.split_once(':')?.0.to_lowercase())).collect();
        names.sort();
        assert_eq!(
            names,
            ["accept", "authorization", "content-length", "content-type", "host", "x-organization"]
        );
        assert!(captured.head.starts_with("POST /v1/chat/completions HTTP/1.1"));
        assert!(captured.head.to_lowercase().contains("authorization: bearer sk-upstream"));
        assert!(!line.to_string().contains("sk-upstream"), "the log names headers, not their values");
    }
    let found = verify(directory.path()).unwrap();
    assert_eq!((found.requests, found.lines), (2, 4));
    assert!(clients_made() > 0);
}

#[tokio::test]
async fn a_log_that_cannot_be_written_stops_everything() {
    let provider = Provider::start(echo).await;
    let gate = gate_with("layer2 = \"off\"", None);
    let cloud = cloud(&provider, Arc::clone(&gate), AuditLog::with_sink(Box::new(Full), [0; 32]), "");
    let error = cloud.send("x", gated(&gate, &user("hello", true))).await.unwrap_err();
    assert!(matches!(error, CloudError::Egress(EgressError::Audit(AuditError::Io { .. }))), "{error}");
    assert!(provider.bodies().is_empty(), "nothing was sent");
    assert!(matches!(cloud.send("y", gated(&gate, &user("hello", true))).await, Err(CloudError::Unknown(_))));
}

#[tokio::test]
async fn failures_are_tried_again_with_the_same_bytes_only() {
    let count = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&count);
    let provider = Provider::start(move |body| {
        let mut count = counter.lock().unwrap();
        *count += 1;
        match *count {
            1 => Reply::Bytes(vec![answer_json(503, &json!({"error": {"message": "busy"}}))]),
            2 => Reply::Close,
            3 => echo(body),
            4 => Reply::Bytes(vec![answer_json(400, &json!({"error": {"message": "no such model"}}))]),
            5 => Reply::Bytes(vec![
                b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/elsewhere\r\ncontent-length: 0\r\n\r\n"
                    .to_vec(),
            ]),
            _ => Reply::Close,
        }
    })
    .await;
    let lines = Lines::default();
    let gate = gate_with("layer2 = \"off\"", None);
    let cloud = cloud(&provider, Arc::clone(&gate), lines.log(), "retries = 2");
    let answer = cloud.send("x", gated(&gate, &user("mail ann@x.example", true))).await.unwrap();
    assert_eq!(read(answer).await.0, "mail ann@x.example");
    let records = lines.records("request");
    assert_eq!(records.iter().map(|r| r["attempt"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(records.iter().all(|r| r["sha256"] == records[0]["sha256"] && r["body"] == records[0]["body"]));
    let outcomes: Vec<Value> = lines.records("response").iter().map(|r| r["outcome"].clone()).collect();
    assert_eq!(outcomes, [json!("refused"), json!("unreachable"), json!("complete")]);

    let refused = cloud.send("x", gated(&gate, &user("x", true))).await.unwrap_err();
    assert!(
        matches!(&refused, CloudError::Refused { status: 400, message, .. } if message == "no such model"),
        "{refused}"
    );
    let redirected = cloud.send("x", gated(&gate, &user("x", true))).await.unwrap_err();
    assert!(
        matches!(redirected, CloudError::Refused { status: 307, .. }),
        "redirects are not followed: {redirected}"
    );
    let gone = cloud.send("x", gated(&gate, &user("x", true))).await.unwrap_err();
    assert!(matches!(gone, CloudError::Egress(EgressError::Unreachable { .. })), "{gone}");
    assert_eq!(provider.bodies().len(), 8, "three, one, one, and three times the last");
    assert_eq!(lines.records("request").len(), 8);
}

#[tokio::test]
async fn answers_that_stop_or_are_none_end_in_an_error() {
    let cases: Vec<(&str, Vec<u8>, &str, &str)> = vec![
        (
            "cut",
            common::STREAM
                .as_bytes()
                .iter()
                .chain(b"data: {\"choices\":[{\"delta\":{\"content\":\"hi TOKEN[[EMA\"}}]}\n\n")
                .copied()
                .collect(),
            "hi ann@x.example[[EMA",
            "upstream_cut",
        ),
        (
            "half a stand-in at the end",
            events(&[json!({"choices": [{"delta": {"content": "to ⟦EMAI"}}]})]),
            "to ⟦EMAI",
            "placeholder_cut",
        ),
        (
            "an error in the stream",
            events(&[
                json!({"choices": [{"delta": {"content": "a "}}]}),
                json!({"error": {"message": "overloaded"}}),
            ]),
            "a ",
            "upstream_error",
        ),
        ("no object", events(&[json!("x")]), "", "upstream_invalid"),
        ("no choices", events(&[json!({"choices": []})]), "", "upstream_invalid"),
        (
            "a broken event",
            b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\ndata: {\"a\n\n".to_vec(),
            "",
            "upstream_invalid",
        ),
        (
            "a bad tool name",
            events(&[
                json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "a b<"}}]}}]}),
            ]),
            "",
            "upstream_invalid",
        ),
        (
            "not UTF-8",
            b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\ndata: \xff\n\n".to_vec(),
            "",
            "upstream_invalid",
        ),
        (
            "nothing",
            b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}".to_vec(),
            "",
            "upstream_invalid",
        ),
    ];
    for (what, bytes, text, code) in cases {
        let reply = bytes.clone();
        let provider = Provider::start(move |body| {
            // The stand-in that arrived, put into the answer.
            let token = said(body);
            let reply = String::from_utf8(reply.clone()).map(|r| r.replace("TOKEN", &token).into_bytes());
            Reply::Bytes(vec![reply.unwrap_or_else(|e| e.into_bytes())])
        })
        .await;
        let lines = Lines::default();
        let gate = gate_with("layer2 = \"off\"", None);
        let cloud = cloud(&provider, Arc::clone(&gate), lines.log(), "retries = 0");
        let answer = cloud.send("x", gated(&gate, &user("ann@x.example", true))).await.unwrap();
        let (shown, ending) = read(answer).await;
        assert_eq!((shown.as_str(), ending.unwrap_err()), (text, code), "{what}");
        assert_eq!(lines.records("response")[0]["outcome"], "cut", "{what}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_request_and_the_vault_stays() {
    let provider = Provider::start(|_| {
        let whole = events(&[json!({"choices": [{"delta": {"content": "one moment "}}]})]);
        Reply::Hang(whole.strip_suffix(b"data: [DONE]\n\n").unwrap().to_vec())
    })
    .await;
    let lines = Lines::default();
    let gate = gate_with("layer2 = \"off\"", None);
    let cloud = cloud(&provider, Arc::clone(&gate), lines.log(), "");
    let answer = cloud.send("x", gated(&gate, &user("mail ann@x.example", true))).await.unwrap();
    drop(answer);
    for _ in 0..200 {
        if *provider.left.lock().unwrap() == 1 && !lines.records("response").is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(*provider.left.lock().unwrap(), 1, "the provider's connection is closed");
    assert_eq!(lines.records("response")[0]["outcome"], "cancelled");
    assert_eq!(gate.vaults().len(), 1, "the session goes on until its time is over");
}

#[tokio::test]
async fn a_silent_provider_is_given_up() {
    let provider = Provider::start(|_| {
        Reply::Hang(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\n".to_vec())
    })
    .await;
    let gate = gate_with("layer2 = \"off\"", None);
    let cloud = cloud(&provider, Arc::clone(&gate), Lines::default().log(), "timeout_s = 1");
    let answer = cloud.send("x", gated(&gate, &user("hi", true))).await.unwrap();
    assert_eq!(read(answer).await.1.unwrap_err(), "upstream_cut");
}

#[tokio::test]
async fn tool_calls_are_restored_by_sink() {
    let provider = Provider::start(|body| {
        let token = said(body);
        let arguments = format!("{{\"to\":\"{token}\",\"note\":\"{token}\"}}");
        let (a, b) = arguments.split_at(7);
        let call = |index: usize, name: &str| json!({"index": index, "id": format!("c{index}"), "type": "function", "function": {"name": name, "arguments": ""}});
        let more = |index: usize, text: &str| json!({"index": index, "function": {"arguments": text}});
        let delta = |calls: Value| json!({"choices": [{"index": 0, "delta": {"tool_calls": calls, "unknown": "dropped"}}], "extra": "dropped"});
        Reply::Bytes(vec![events(&[
            delta(json!([call(0, "file"), call(1, "mail")])),
            delta(json!([more(0, a), more(1, a)])),
            delta(json!([more(1, b), more(0, b)])),
            json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "function_call"}]}),
        ])])
    })
    .await;
    let gate =
        gate_with("layer2 = \"off\"\n[tools.file]\nsink = \"local\"\n[tools.mail]\nrestore = [\"to\"]", None);
    let cloud = cloud(&provider, Arc::clone(&gate), Lines::default().log(), "");
    let mut answer = cloud.send("x", gated(&gate, &user("ann@x.example", true))).await.unwrap();
    let (mut arguments, mut names, mut reason) = (HashMap::<usize, String>::new(), Vec::new(), None);
    while let Some(event) = answer.events.recv().await {
        match event {
            CloudEvent::ToolCall { index, id, name, .. } => names.push((index, id, name)),
            CloudEvent::Arguments { index, text, .. } => arguments.entry(index).or_default().push_str(&text),
            CloudEvent::Finish { reason: r, .. } => reason = Some(r),
            CloudEvent::End(ending) => assert_eq!((ending.restored, ending.unrestored), (3, 1)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(names, [(0, "c0".into(), "file".into()), (1, "c1".into(), "mail".into())]);
    assert_eq!(reason, Some("tool_calls"));
    assert_eq!(arguments[&0], r#"{"to":"ann@x.example","note":"ann@x.example"}"#);
    let mail: Value = serde_json::from_str(&arguments[&1]).unwrap();
    assert_eq!(mail["to"], "ann@x.example");
    assert!(mail["note"].as_str().unwrap().contains("EMAIL_1"));
}
