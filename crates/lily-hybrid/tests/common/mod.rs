//! A provider on this machine that keeps every byte it gets.
#![allow(dead_code, reason = "each test file uses a part")]

use std::{
    io,
    sync::{Arc, Mutex},
};

use lily_gate::{
    Category, Detector, DetectorConfig, Evidence, Field, Span,
    body::{Decision, Gate, GateConfig, GatedBody, Inbound},
    policy::Policy,
    propose::{Proposer, Recognise, ScriptedProposer},
};
use lily_hybrid::{Answer, AuditLog, Cloud, CloudConfig, CloudEvent, Ending, audit::Sink};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// How the provider answers a body.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// These bytes, and the connection's end.
    Bytes(Vec<Vec<u8>>),
    /// These bytes, and then silence until the client is gone.
    Hang(Vec<u8>),
    /// Nothing at all.
    Close,
}

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Captured {
    pub head: String,
    pub body: Vec<u8>,
}

type Script = Arc<dyn Fn(&[u8]) -> Reply + Send + Sync>;

/// The provider.
#[derive(Clone)]
pub struct Provider {
    pub url: String,
    pub captured: Arc<Mutex<Vec<Captured>>>,
    /// Clients that went away while an answer hung.
    pub left: Arc<Mutex<usize>>,
}

impl Provider {
    pub async fn start(script: impl Fn(&[u8]) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider = Self {
            url: format!("http://{}/v1", listener.local_addr().unwrap()),
            captured: Arc::default(),
            left: Arc::default(),
        };
        let (this, script): (_, Script) = (provider.clone(), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(this.clone().serve(stream, Arc::clone(&script)));
            }
        });
        provider
    }

    async fn serve(self, mut stream: TcpStream, script: Script) {
        let mut bytes = Vec::new();
        let mut buffer = [0; 8192];
        let (head, length) = loop {
            let Ok(n @ 1..) = stream.read(&mut buffer).await else { return };
            bytes.extend_from_slice(&buffer[..n]);
            if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
                bytes.drain(..end + 4);
                let lower = head.to_lowercase();
                let length =
                    lower.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse::<usize>().ok());
                break (head, length.expect("a body of known length"));
            }
        };
        while bytes.len() < length {
            let Ok(n @ 1..) = stream.read(&mut buffer).await else { return };
            bytes.extend_from_slice(&buffer[..n]);
        }
        assert_eq!(bytes.len(), length, "nothing after the body");
        let reply = script(&bytes);
        self.captured.lock().unwrap().push(Captured { head, body: bytes });
        match reply {
            Reply::Close => {}
            Reply::Bytes(pieces) => {
                for piece in pieces {
                    if stream.write_all(&piece).await.is_err() {
                        return;
                    }
                }
                let _ = stream.shutdown().await;
            }
            Reply::Hang(bytes) => {
                let _ = stream.write_all(&bytes).await;
                while let Ok(1..) = stream.read(&mut buffer).await {}
                *self.left.lock().unwrap() += 1;
            }
        }
    }

    pub fn bodies(&self) -> Vec<Vec<u8>> {
        self.captured.lock().unwrap().iter().map(|c| c.body.clone()).collect()
    }

    /// The configuration that names it.
    pub fn config(&self, more: &str) -> String {
        format!("[upstreams.x]\nurl = \"{}\"\nmodel = \"big-1\"\n{more}\n", self.url)
    }
}

/// An answer's head and the beginning of its stream.
pub const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

/// A streamed answer of these chunks.
pub fn events(chunks: &[Value]) -> Vec<u8> {
    let mut out = STREAM.as_bytes().to_vec();
    for chunk in chunks {
        out.extend(format!("data: {chunk}\n\n").into_bytes());
    }
    out.extend(b"data: [DONE]\n\n");
    out
}

/// An answer with this status and JSON.
pub fn answer_json(status: u16, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Layer 1, and planted values of kinds that it need not know; it fails where a text says so.
pub struct Planted(Detector);

impl Planted {
    pub fn shared() -> Arc<dyn Recognise> {
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

pub fn gate_with(policy: &str, proposer: Option<ScriptedProposer>) -> Arc<Gate> {
    Arc::new(Gate::new(GateConfig {
        recogniser: Planted::shared(),
        proposer: proposer.map(|p| Arc::new(p) as Arc<dyn Proposer>),
        policy: Policy::parse(policy, None).unwrap(),
        install_key: [3; 32],
    }))
}

/// A log in memory.
#[derive(Clone, Default)]
pub struct Lines(pub Arc<Mutex<Vec<u8>>>);

impl Sink for Lines {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().extend_from_slice(line);
        Ok(())
    }
}

impl Lines {
    pub fn log(&self) -> AuditLog {
        AuditLog::with_sink(Box::new(self.clone()), [3; 32])
    }

    pub fn records(&self, kind: &str) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).filter(|v: &Value| v["kind"] == kind).collect()
    }
}

/// A disk that is full.
pub struct Full;

impl Sink for Full {
    fn append(&mut self, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

pub fn cloud(provider: &Provider, gate: Arc<Gate>, audit: AuditLog, more: &str) -> Arc<Cloud> {
    let config = CloudConfig::parse(&provider.config(more), true).unwrap();
    Arc::new(
        Cloud::new(&config, gate, audit, |name| (name == "KEY").then(|| "sk-upstream".into()), true).unwrap(),
    )
}

pub fn inbound(request: &Value) -> Inbound<'_> {
    Inbound {
        request,
        model: "big-1",
        client: "c",
        session: None,
        approval: None,
        style: None,
        dry_run: false,
    }
}

pub fn gated(gate: &Gate, request: &Value) -> GatedBody {
    match gate.check(inbound(request)) {
        Decision::Send(body) => *body,
        other => panic!("{other:?}"),
    }
}

pub fn user(text: &str, stream: bool) -> Value {
    json!({"model": "cloud/x", "stream": stream, "messages": [{"role": "user", "content": text}]})
}

/// The text of the first answer, and how it ended.
pub async fn read(mut answer: Answer) -> (String, Result<Ending, &'static str>) {
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
pub fn said(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    let messages = body["messages"].as_array().unwrap();
    messages.last().unwrap()["content"].as_str().unwrap_or_default().to_owned()
}

/// Says back what it was told, in random pieces.
pub fn echo(body: &[u8]) -> Reply {
    let text = said(body);
    let streamed = serde_json::from_slice::<Value>(body).unwrap()["stream"] == true;
    if !streamed {
        let message = json!({"role": "assistant", "content": text});
        let whole = json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}});
        return Reply::Bytes(vec![answer_json(200, &whole)]);
    }
    let mut chunks = vec![
        json!({"id": "up-1", "model": "secret-model", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}),
    ];
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let at = rest
            .char_indices()
            .map(|(i, _)| i)
            .chain([rest.len()])
            .nth(rand::random_range(1..6))
            .unwrap_or(rest.len());
        let (piece, more) = rest.split_at(at);
        chunks.push(json!({"choices": [{"index": 0, "delta": {"content": piece}}]}));
        rest = more;
    }
    chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
    let bytes = events(&chunks);
    let cut = rand::random_range(0..bytes.len());
    Reply::Bytes(vec![bytes[..cut].to_vec(), bytes[cut..].to_vec()])
}
