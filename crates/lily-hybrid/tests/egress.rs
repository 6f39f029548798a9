//! What leaves is what the log says, and no planted value is in it, whatever goes wrong.

mod common;

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use common::{Provider, Reply, events, json as answer_json};
use lily_gate::{
    Category, Detector, DetectorConfig, Evidence, Field, Span,
    body::{Decision, Gate, GateConfig, GatedBody, Inbound},
    policy::Policy,
    propose::{Fault, ItemType, Proposer, Recognise, ScriptedProposer},
};
use lily_hybrid::{
    Answer, AuditError, AuditLog, Cloud, CloudConfig, CloudError, CloudEvent, Ending,
    audit::{Sink, verify},
    egress::{EgressError, clients_made},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

/// Layer 1, and planted values of kinds that it need not know; it fails where a text says so.
struct Planted(Detector);

impl Planted {
    fn new() -> Arc<dyn Recognise> {
        Arc::new(Self(Detector::new(DetectorConfig::default()).unwrap()))
    }
}

impl Recognise for Planted {
    fn spans(&self, field: &Field) -> Vec<Span> {
        assert!(!field.text.contains("PANIC-NOW"), "on purpose");
        let mut spans = self.0.detect_field(field);
        spans.extend(self.planted(&field.text));
        spans
    }

    fn spans_in(&self, text: &str) -> Vec<Span> {
        let mut spans = self.0.detect(text);
        spans.extend(self.planted(text));
        spans
    }
}

impl Planted {
    fn planted(&self, text: &str) -> Vec<Span> {
        let kinds = [("secret-", Category::Secret), ("Person-", Category::Person), ("iban-", Category::Iban)];
        let mut spans = Vec::new();
        for (prefix, category) in kinds {
            for (at, _) in text.match_indices(prefix) {
                let rest = &text[at + prefix.len()..];
                let length = rest.bytes().take_while(|b| b.is_ascii_hexdigit()).count();
                if length >= 8 {
                    spans.push(Span {
                        range: at..at + prefix.len() + length,
                        category,
                        evidence: Evidence::Validated,
                        recognizer: "planted".into(),
                        version: 1,
                        subtype: None,
                    });
                }
            }
        }
        spans
    }
}

fn gate_with(policy: &str, proposer: Option<ScriptedProposer>) -> Arc<Gate> {
    Arc::new(Gate::new(GateConfig {
        recogniser: Planted::new(),
        proposer: proposer.map(|p| Arc::new(p) as Arc<dyn Proposer>),
        policy: Policy::parse(policy, None).unwrap(),
        install_key: [3; 32],
    }))
}

/// A log in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Sink for Lines {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().extend_from_slice(line);
        Ok(())
    }
}

impl Lines {
    fn log(&self) -> AuditLog {
        AuditLog::with_sink(Box::new(self.clone()), [3; 32])
    }

    fn records(&self, kind: &str) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).filter(|v: &Value| v["kind"] == kind).collect()
    }
}

/// A disk that is full.
struct Full;

impl Sink for Full {
    fn append(&mut self, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

fn cloud(provider: &Provider, gate: Arc<Gate>, audit: AuditLog, more: &str) -> Arc<Cloud> {
    let config = CloudConfig::parse(&provider.config(more), true).unwrap();
    Arc::new(Cloud::new(&config, gate, audit, |name| (name == "KEY").then(|| "sk-upstream".into()), true).unwrap())
}

fn inbound(request: &Value) -> Inbound<'_> {
    Inbound { request, model: "big-1", client: "c", session: None, approval: None, dry_run: false }
}

fn gated(gate: &Gate, request: &Value) -> GatedBody {
    match gate.check(inbound(request)) {
        Decision::Send(body) => *body,
        other => panic!("{other:?}"),
    }
}

fn user(text: &str, stream: bool) -> Value {
    json!({"model": "cloud/x", "stream": stream, "messages": [{"role": "user", "content": text}]})
}

/// The text of the first answer, and how it ended.
async fn read(mut answer: Answer) -> (String, Result<Ending, &'static str>) {
    let mut text = String::new();
    while let Some(event) = answer.events.recv().await {
        match event {
            CloudEvent::Content { text: more, .. } => text += &more,
            CloudEvent::End(ending) => return (text, Ok(ending)),
            CloudEvent::Failed { code, .. } => return (text, Err(code)),
            _ => {}
        }
    }
    (text, Err("no end"))
}

/// The last message's text in what arrived.
fn said(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    let messages = body["messages"].as_array().unwrap();
    messages.last().unwrap()["content"].as_str().unwrap_or_default().to_owned()
}

/// Says back what it was told, in random pieces.
fn echo(body: &[u8]) -> Reply {
    let text = said(body);
    let streamed = serde_json::from_slice::<Value>(body).unwrap()["stream"] == true;
    if !streamed {
        let message = json!({"role": "assistant", "content": text});
        let whole = json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}});
        return Reply::Bytes(vec![answer_json(200, &whole)]);
    }
    let mut chunks = vec![json!({"id": "up-1", "model": "secret-model", "choices": [{"index": 0, "delta": {"role": "assistant"}}]})];
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let at = rest.char_indices().map(|(i, _)| i).chain([rest.len()]).nth(rand::random_range(1..6)).unwrap_or(rest.len());
        let (piece, more) = rest.split_at(at);
        chunks.push(json!({"choices": [{"index": 0, "delta": {"content": piece}}]}));
        rest = more;
    }
    chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
    let bytes = events(&chunks);
    let cut = rand::random_range(0..bytes.len());
    Reply::Bytes(vec![bytes[..cut].to_vec(), bytes[cut..].to_vec()])
}

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
        assert_eq!(line["body"].as_str().unwrap().as_bytes(), captured.body, "what the log says is what arrived");
        assert!(!line.to_string().contains("ann@") && !line.to_string().contains("00aa11bb"), "{line}");
        assert_eq!((about[0]["outcome"].as_str(), about[0]["restored"].as_u64()), (Some("complete"), Some(2)));
        // The headers are the configured ones and those that HTTP needs: nothing of the client's.
        let mut names: Vec<String> =
            captured.head.lines().skip(1).filter_map(|l| Some(l.split_once(':')?.0.to_lowercase())).collect();
        names.sort();
        assert_eq!(names, ["accept", "authorization", "content-length", "content-type", "host", "x-organization"]);
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
            5 => Reply::Bytes(vec![b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/elsewhere\r\ncontent-length: 0\r\n\r\n".to_vec()]),
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
    assert!(matches!(&refused, CloudError::Refused { status: 400, message, .. } if message == "no such model"), "{refused}");
    let redirected = cloud.send("x", gated(&gate, &user("x", true))).await.unwrap_err();
    assert!(matches!(redirected, CloudError::Refused { status: 307, .. }), "redirects are not followed: {redirected}");
    let gone = cloud.send("x", gated(&gate, &user("x", true))).await.unwrap_err();
    assert!(matches!(gone, CloudError::Egress(EgressError::Unreachable { .. })), "{gone}");
    assert_eq!(provider.bodies().len(), 8, "three, one, one, and three times the last");
    assert_eq!(lines.records("request").len(), 8);
}

#[tokio::test]
async fn answers_that_stop_or_are_none_end_in_an_error() {
    let cases: Vec<(&str, Vec<u8>, &str, &str)> = vec![
        ("cut", common::STREAM.as_bytes().iter().chain(b"data: {\"choices\":[{\"delta\":{\"content\":\"hi TOKEN[[EMA\"}}]}\n\n").copied().collect(),
         "hi ann@x.example[[EMA", "upstream_cut"),
        ("half a stand-in at the end", events(&[json!({"choices": [{"delta": {"content": "to ⟦EMAI"}}]})]), "to ⟦EMAI", "placeholder_cut"),
        ("an error in the stream", events(&[json!({"choices": [{"delta": {"content": "a "}}]}), json!({"error": {"message": "overloaded"}})]),
         "a ", "upstream_error"),
        ("no object", events(&[json!("x")]), "", "upstream_invalid"),
        ("no choices", events(&[json!({"choices": []})]), "", "upstream_invalid"),
        ("a broken event", b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\ndata: {\"a\n\n".to_vec(), "", "upstream_invalid"),
        ("a bad tool name", events(&[json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "a b<"}}]}}]})]),
         "", "upstream_invalid"),
        ("not UTF-8", b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\ndata: \xff\n\n".to_vec(), "", "upstream_invalid"),
        ("nothing", b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}".to_vec(), "", "upstream_invalid"),
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
    let provider = Provider::start(|_| Reply::Hang(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\n".to_vec())).await;
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
    let gate = gate_with("layer2 = \"off\"\n[tools.file]\nsink = \"local\"\n[tools.mail]\nrestore = [\"to\"]", None);
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

/// A request with planted values anywhere, the text that its answer must be, and what was planted.
fn random_request(rng: &mut StdRng) -> (Value, String, Vec<String>) {
    let mut planted = Vec::new();
    let mut canary = |rng: &mut StdRng| {
        let hex = format!("{:012x}", rng.random::<u64>() >> 16);
        let (text, core) = match rng.random_range(0..4) {
            0 => (format!("canary.{hex}@mail{}.example", rng.random_range(0..9)), format!("canary.{hex}")),
            1 => (format!("Person-{hex}"), format!("Person-{hex}")),
            2 => (format!("iban-{hex}"), format!("iban-{hex}")),
            _ => (format!("name{hex}"), format!("name{hex}")),
        };
        planted.push(core);
        text
    };
    let words = ["please", "look", "at", "⟦PERSON_1·abcd⟧", "[[x]]", "é", "🏠", "\"", "\\", "\n", "語", "\u{200b}", "{", "}"];
    let mut text = |rng: &mut StdRng, most: usize| {
        let parts = (0..rng.random_range(1..most)).map(|_| {
            if rng.random_bool(0.3) { canary(rng) } else { words[rng.random_range(0..words.len())].to_owned() }
        });
        parts.collect::<Vec<_>>().join(" ")
    };
    let mut messages = Vec::new();
    if rng.random_bool(0.5) {
        messages.push(json!({"role": "system", "content": text(rng, 6)}));
    }
    for i in 0..rng.random_range(0..3) {
        let arguments = json!({"q": text(rng, 4), text(rng, 3): [1, {"deep": text(rng, 4)}]}).to_string();
        messages.push(json!({"role": "user", "name": "u", "content": [{"type": "text", "text": text(rng, 5)}]}));
        messages.push(json!({"role": "assistant", "content": text(rng, 4), "reasoning_content": text(rng, 4),
            "tool_calls": [{"id": format!("call_{i}"), "type": "function", "function": {"name": "find", "arguments": arguments}}]}));
        messages.push(json!({"role": "tool", "tool_call_id": format!("call_{i}"), "content": text(rng, 6)}));
    }
    let last = text(rng, 12);
    messages.push(json!({"role": "user", "content": last}));
    let mut request = json!({"model": "cloud/x", "stream": rng.random_bool(0.7), "messages": messages});
    if rng.random_bool(0.3) {
        request["metadata"] = json!({"note": text(rng, 4)});
        request["user"] = text(rng, 3).into();
        request["stop"] = json!([text(rng, 3)]);
    }
    if rng.random_bool(0.3) {
        request["tools"] = json!([{"type": "function", "function": {"name": "find", "description": text(rng, 5),
            "parameters": {"type": "object", "properties": {"q": {"type": "string", "enum": [text(rng, 3)], "description": text(rng, 3)}}}}}]);
    }
    (request, last, planted)
}

/// Layer 2 knows the names that no pattern knows.
struct Names;

impl Proposer for Names {
    fn digest(&self) -> String {
        "names".into()
    }

    fn propose(&self, text: &str, deadline: std::time::Instant) -> Result<String, String> {
        let mut values = Vec::new();
        for (at, _) in text.match_indices("name") {
            let length = text[at + 4..].bytes().take_while(|b| b.is_ascii_hexdigit()).count();
            if length == 12 {
                values.push((ItemType::Person, &text[at..at + 16]));
            }
        }
        ScriptedProposer::new(&values).propose(text, deadline)
    }
}

/// What goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    Panic,
    Layer2(Fault),
    Disk,
    Provider,
    Client,
}

/// The number of requests; more with `LILY_FUZZ_REQUESTS`.
fn requests() -> u64 {
    std::env::var("LILY_FUZZ_REQUESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(2_500)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_requests_with_faults() {
    let provider = Provider::start(|body| {
        // Requests that ask for trouble say so in their model's temperature.
        let asked: Value = serde_json::from_slice(body).unwrap();
        let whole = echo(body);
        let Reply::Bytes(pieces) = &whole else { unreachable!() };
        let bytes = pieces.concat();
        match asked["temperature"].as_f64() {
            None => whole,
            Some(t) if t < 0.3 => Reply::Bytes(vec![bytes[..rand::random_range(0..bytes.len())].to_vec()]),
            Some(t) if t < 0.6 => Reply::Bytes(vec![answer_json(502, &json!({"error": "bad gateway"}))]),
            Some(_) => Reply::Close,
        }
    })
    .await;
    let lines = Lines::default();
    let policy = "layer2_timeout_ms = 60000\nsession_minutes = 1\nlayer2_max_items = 512";
    let with = |proposer: Arc<dyn Proposer>, policy: &str| {
        Arc::new(Gate::new(GateConfig {
            recogniser: Planted::new(),
            proposer: Some(proposer),
            policy: Policy::parse(policy, None).unwrap(),
            install_key: [3; 32],
        }))
    };
    let gate = with(Arc::new(Names), policy);
    let good = cloud(&provider, Arc::clone(&gate), lines.log(), "retries = 1");
    let full = cloud(&provider, Arc::clone(&gate), AuditLog::with_sink(Box::new(Full), [3; 32]), "retries = 1");
    let planted = Arc::new(Mutex::new(Vec::new()));
    let done: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
    let places = Arc::new(tokio::sync::Semaphore::new(16));
    let mut tasks = Vec::new();
    for seed in 0..requests() {
        let place = Arc::clone(&places).acquire_owned().await.unwrap();
        let (gate, good, full) = (Arc::clone(&gate), Arc::clone(&good), Arc::clone(&full));
        let (planted, done) = (Arc::clone(&planted), Arc::clone(&done));
        tasks.push(tokio::spawn(async move {
            let mut rng = StdRng::seed_from_u64(seed);
            let (mut request, last, values) = random_request(&mut rng);
            planted.lock().unwrap().extend(values);
            let wrong = match rng.random_range(0..100) {
                0..55 => Wrong::Nothing,
                55..57 => Wrong::Panic,
                57..63 => Wrong::Layer2(
                    [Fault::Unavailable, Fault::Slow(Duration::from_millis(40)), Fault::Garbage, Fault::Asleep, Fault::Panic][rng.random_range(0..5)],
                ),
                63..70 => Wrong::Disk,
                70..88 => Wrong::Provider,
                _ => Wrong::Client,
            };
            let used = match wrong {
                Wrong::Panic => {
                    request["metadata"] = json!({"x": "PANIC-NOW"});
                    with_fault(None)
                }
                Wrong::Layer2(fault) => with_fault(Some(fault)),
                _ => gate,
            };
            if wrong == Wrong::Provider {
                request["temperature"] = [0.1, 0.5, 0.9][rng.random_range(0..3)].into();
            }
            let checked = {
                let (used, request) = (Arc::clone(&used), request.clone());
                tokio::task::spawn_blocking(move || used.check(inbound(&request))).await.unwrap()
            };
            let body = match (wrong, checked) {
                (Wrong::Panic, Decision::Refuse(_)) | (Wrong::Layer2(_), Decision::Local(_)) => None,
                (Wrong::Panic | Wrong::Layer2(_), other) => panic!("{wrong:?}: {other:?}"),
                (_, Decision::Send(body)) => Some(*body),
                (_, other) => panic!("{other:?}"),
            };
            let outcome = match body {
                None => "kept",
                Some(body) => {
                    let cloud = if wrong == Wrong::Disk { full } else { good };
                    match (wrong, cloud.send("x", body).await) {
                        (Wrong::Disk, Err(CloudError::Egress(EgressError::Audit(_)))) => "not written",
                        (Wrong::Disk, other) => panic!("{other:?}"),
                        (Wrong::Client, Ok(mut answer)) => {
                            for _ in 0..rng.random_range(0..3) {
                                answer.events.recv().await;
                            }
                            "left"
                        }
                        (Wrong::Provider, Err(_)) => "provider failed",
                        (Wrong::Provider, Ok(answer)) => match read(answer).await {
                            // Whatever there is of a part is a part of the truth, but for a stand-in cut in its middle.
                            (shown, Err(_)) => {
                                let shared = shown.chars().zip(last.chars()).take_while(|(a, b)| a == b).count();
                                assert!(shown.chars().count() - shared < 40, "{shown:?} of {last:?}");
                                "cut"
                            }
                            (shown, Ok(_)) => {
                                assert_eq!(shown, last);
                                "whole"
                            }
                        },
                        (Wrong::Nothing, Ok(answer)) => {
                            let (shown, ending) = read(answer).await;
                            assert_eq!(shown, last, "seed {seed}");
                            ending.unwrap();
                            "whole"
                        }
                        (wrong, Err(error)) => panic!("{wrong:?}: {error}"),
                        (wrong, Ok(_)) => panic!("{wrong:?}"),
                    }
                }
            };
            *done.lock().unwrap().entry(outcome.to_owned()).or_default() += 1;
            drop(place);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let done = done.lock().unwrap().clone();
    println!("{done:?}");
    for outcome in ["kept", "not written", "left", "provider failed", "cut", "whole"] {
        assert!(done.get(outcome).is_some_and(|n| *n > 0), "{outcome} never happened: {done:?}");
    }
    // Every body that arrived was written down before, and every body written down arrived.
    let mut arrived = provider.bodies();
    let mut written: Vec<Vec<u8>> =
        lines.records("request").iter().map(|r| r["body"].as_str().unwrap().as_bytes().to_vec()).collect();
    arrived.sort();
    written.sort();
    assert!(arrived.len() as u64 > requests() / 2);
    assert_eq!(arrived.len(), written.len());
    assert!(arrived == written, "the log and the wire differ");
    // No planted value is in anything that arrived, nor in the log.
    let planted = planted.lock().unwrap();
    assert!(planted.len() > 1000 || requests() < 1000);
    let wire: String = arrived.iter().map(|b| String::from_utf8_lossy(b).to_lowercase()).collect::<Vec<_>>().join("\n");
    let heads: String = provider.captured.lock().unwrap().iter().map(|c| c.head.clone()).collect();
    let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap().to_lowercase();
    let search = aho_corasick(&planted);
    for (place, text) in [("wire", &wire), ("headers", &heads.to_lowercase()), ("log", &log)] {
        assert_eq!(search(text), 0, "planted values on the {place}");
    }
    assert!(search(&planted[0].to_lowercase()) == 1, "the search finds what is there");
}

/// A gate of its own, since a fault shuts it.
fn with_fault(fault: Option<Fault>) -> Arc<Gate> {
    let proposer = fault.map(ScriptedProposer::failing).unwrap_or_else(|| ScriptedProposer::new(&[]));
    gate_with("layer2_timeout_ms = 20", Some(proposer))
}

/// Counts hits of any of `words`, whatever their case.
fn aho_corasick(words: &[String]) -> impl Fn(&str) -> usize {
    let words: std::collections::HashSet<String> = words.iter().map(|w| w.to_lowercase()).collect();
    move |text: &str| {
        // Planted values end in 12 hex digits after a fixed word; everything of that shape is looked up.
        ["canary.", "person-", "iban-", "name"]
            .iter()
            .flat_map(|prefix| text.match_indices(prefix).map(move |(at, _)| (at, prefix.len())))
            .filter(|(at, length)| text.get(*at..at + length + 12).is_some_and(|w| words.contains(w)))
            .count()
    }
}
