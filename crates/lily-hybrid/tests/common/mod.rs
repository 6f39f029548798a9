//! A provider on this machine that keeps every byte it gets.
#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::{Arc, Mutex};

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
                let length = lower.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse::<usize>().ok());
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
pub fn events(chunks: &[serde_json::Value]) -> Vec<u8> {
    let mut out = STREAM.as_bytes().to_vec();
    for chunk in chunks {
        out.extend(format!("data: {chunk}\n\n").into_bytes());
    }
    out.extend(b"data: [DONE]\n\n");
    out
}

/// An answer with this status and JSON.
pub fn json(status: u16, body: &serde_json::Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
