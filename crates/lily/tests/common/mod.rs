//! Starts the real binary and talks to it over sockets.
#![allow(dead_code, reason = "each test file uses a part")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// The binary under test.
pub fn lily() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
    // Settings of whoever runs the tests must not reach them.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LILY_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// The random checkpoint of four layers.
pub fn tiny() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../lily-model/tests/fixtures/tiny"))
}

/// Runs a command to its end with `input` on stdin.
pub fn run_with_input(command: &mut Command, input: &str) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A child that fails early closes its end; its output says why.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A running `lily serve`, ended when dropped.
pub struct Server {
    pub child: Child,
    pub address: String,
    /// What it printed until it listened.
    pub banner: String,
    agent: ureq::Agent,
}

impl Server {
    pub fn start(args: &[&str]) -> Self {
        let mut child = lily()
            .args(["serve", "--port", "0"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut banner = String::new();
        let address = loop {
            let line = lines.next().expect("the server ended before it listened").unwrap();
            banner += &line;
            banner.push('\n');
            if let Some(address) = line.strip_prefix("listening on http://") {
                break address.to_string();
            }
        };
        for line in lines.by_ref().map_while(Result::ok).take(4) {
            banner += &line;
            banner.push('\n');
        }
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(120)))
            .build()
            .into();
        Self { child, address, banner, agent }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        read(self.agent.get(self.url(path)).call().unwrap())
    }

    /// `GET` with a header.
    pub fn get_with(&self, path: &str, name: &str, value: &str) -> (u16, Value) {
        read(self.agent.get(self.url(path)).header(name, value).call().unwrap())
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        read(self.agent.post(self.url(path)).send_json(body).unwrap())
    }

    /// A chat completion of a request with `fields` beside the model.
    pub fn chat(&self, fields: Value) -> (u16, Value) {
        self.post("/v1/chat/completions", &chat_body(fields))
    }

    /// A completion that must work: its one choice.
    pub fn choice(&self, fields: Value) -> Value {
        let (status, mut body) = self.chat(fields);
        assert_eq!(status, 200, "{body}");
        body["choices"][0].take()
    }

    /// A stream of server-sent events. Dropping it closes the connection.
    pub fn stream(&self, fields: Value) -> Events {
        self.stream_of("/v1/chat/completions", chat_body(fields))
    }

    /// [`stream`](Self::stream) of any path with this body.
    pub fn stream_of(&self, path: &str, mut body: Value) -> Events {
        body["stream"] = true.into();
        // A connection of its own, so that dropping it is what the server sees.
        let agent: ureq::Agent =
            ureq::Agent::config_builder().max_idle_connections(0).http_status_as_error(false).build().into();
        let response = agent.post(self.url(path)).send_json(body).unwrap();
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events(BufReader::new(Box::new(response.into_body().into_reader())))
    }

    /// Sends raw bytes and returns the status and body of what comes back; 0 when nothing does.
    pub fn raw(&self, bytes: &[u8]) -> (u16, String) {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The server may answer and close before it has read everything.
        let _ = socket.write_all(bytes);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_string();
        (status, body)
    }

    /// (waiting, running) as `/health` says.
    pub fn load(&self) -> (u64, u64) {
        let (status, health) = self.get("/health");
        assert_eq!(status, 200, "{health}");
        (health["waiting"].as_u64().unwrap(), health["running"].as_u64().unwrap())
    }

    /// Polls until the load is `wanted`; the time it took.
    pub fn wait_for_load(&self, wanted: (u64, u64), most: Duration) -> Duration {
        let started = Instant::now();
        loop {
            let load = self.load();
            if load == wanted {
                return started.elapsed();
            }
            let waited = started.elapsed();
            assert!(waited < most, "load is {load:?} after {waited:?}; expected {wanted:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A body for lily-mini with a default message.
pub fn chat_body(fields: Value) -> Value {
    let mut body = json!({
        "model": "lily-mini",
        "messages": [{"role": "user", "content": "define heron"}],
    });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn read(mut response: ureq::http::Response<ureq::Body>) -> (u16, Value) {
    let status = response.status().as_u16();
    let text = response.body_mut().read_to_string().unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Server-sent events: (event name, data).
pub struct Events(BufReader<Box<dyn Read>>);

impl Iterator for Events {
    type Item = (String, String);

    fn next(&mut self) -> Option<Self::Item> {
        let (mut name, mut data) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end_matches(['\n', '\r']) {
                "" if data.is_empty() => {}
                "" => return Some((name, data)),
                line => {
                    if let Some(value) = line.strip_prefix("data: ") {
                        data.push_str(value);
                    } else if let Some(value) = line.strip_prefix("event: ") {
                        name = value.to_string();
                    } else {
                        assert!(line.starts_with(':'), "not an event line: {line:?}");
                    }
                }
            }
        }
    }
}

impl Events {
    /// All chunks to the end, which must be `[DONE]`.
    pub fn chunks(self) -> Vec<Value> {
        let mut data: Vec<String> = self
            .map(|(name, data)| {
                assert_eq!(name, "", "{data}");
                data
            })
            .collect();
        assert_eq!(data.pop().as_deref(), Some("[DONE]"));
        data.iter().map(|d| serde_json::from_str(d).unwrap()).collect()
    }
}

/// Joins a field of the deltas of a stream.
pub fn joined(chunks: &[Value], field: &str) -> String {
    chunks.iter().filter_map(|c| c["choices"][0]["delta"][field].as_str()).collect()
}

/// Bias that keeps lily-mini from ending its turn, so that it writes for as long as it may.
pub fn endless() -> Value {
    let output = run_with_input(lily().args(["tokenize", "lily-mini"]), "<|im_end|><|endoftext|>");
    let ids: Vec<u32> = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(ids.len(), 2, "{ids:?}");
    ids.iter().map(|id| (id.to_string(), json!(-100))).collect::<serde_json::Map<_, _>>().into()
}

/// Sends a request that is not streamed and does not read the answer.
pub fn abandoned(server: &Server, fields: &Value) -> TcpStream {
    let body = chat_body(fields.clone()).to_string();
    let mut socket = TcpStream::connect(&server.address).unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        server.address,
        body.len()
    );
    socket.write_all((head + &body).as_bytes()).unwrap();
    socket
}
