//! Thousands of requests with planted values and injected faults: what arrives is what the log says, and no planted value
//! is in it.

mod common;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use common::{Full, Lines, Planted, Provider, Reply, answer_json, cloud, echo, gate_with, inbound, read};
use lily_gate::{
    body::{Decision, Gate, GateConfig},
    policy::Policy,
    propose::{Fault, ItemType, Proposer, ScriptedProposer},
};
use lily_hybrid::{AuditLog, CloudError, egress::EgressError};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

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
    let words = [
        "please",
        "look",
        "at",
        "⟦PERSON_1·abcd⟧",
        "[[x]]",
        "é",
        "🏠",
        "\"",
        "\\",
        "\n",
        "語",
        "\u{200b}",
        "{",
        "}",
    ];
    let mut text = |rng: &mut StdRng, most: usize| {
        let parts = (0..rng.random_range(1..most)).map(|_| {
            if rng.random_bool(0.3) {
                canary(rng)
            } else {
                words[rng.random_range(0..words.len())].to_owned()
            }
        });
        parts.collect::<Vec<_>>().join(" ")
    };
    let mut messages = Vec::new();
    if rng.random_bool(0.5) {
        messages.push(json!({"role": "system", "content": text(rng, 6)}));
    }
    for i in 0..rng.random_range(0..3) {
        let arguments = json!({"q": text(rng, 4), text(rng, 3): [1, {"deep": text(rng, 4)}]}).to_string();
        messages
            .push(json!({"role": "user", "name": "u", "content": [{"type": "text", "text": text(rng, 5)}]}));
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
            recogniser: Planted::shared(),
            proposer: Some(proposer),
            policy: Policy::parse(policy, None).unwrap(),
            install_key: [3; 32],
        }))
    };
    let gate = with(Arc::new(Names), policy);
    let good = cloud(&provider, Arc::clone(&gate), lines.log(), "retries = 1");
    let full =
        cloud(&provider, Arc::clone(&gate), AuditLog::with_sink(Box::new(Full), [3; 32]), "retries = 1");
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
                    [
                        Fault::Unavailable,
                        Fault::Slow(Duration::from_millis(40)),
                        Fault::Garbage,
                        Fault::Asleep,
                        Fault::Panic,
                    ][rng.random_range(0..5)],
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
                                let shared =
                                    shown.chars().zip(last.chars()).take_while(|(a, b)| a == b).count();
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
    let wire: String =
        arrived.iter().map(|b| String::from_utf8_lossy(b).to_lowercase()).collect::<Vec<_>>().join("\n");
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
