//! One request to a model in the cloud and its answer.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use lily_gate::{
    body::{Gate, GatedBody},
    policy::Policy,
};
use reqwest::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::{
    audit::{AuditLog, Outcome, ResponseRecord},
    config::{CloudConfig, ConfigError},
    egress::{Egress, EgressError, describe},
    event::{CloudEvent, Ending},
    lanes::Lanes,
    sse::SseReader,
};

/// Most bytes of an answer.
const MOST_BYTES: u64 = 256 << 20;
/// Events that may wait for a slow client before the provider is read more slowly.
const WAITING_EVENTS: usize = 256;
/// Pause before the same bytes are sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CloudError {
    /// No upstream has this name.
    #[error("no model cloud/{0} is configured")]
    Unknown(String),
    /// The way out failed.
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// The provider said no.
    #[error("{destination} answered {status}: {message}")]
    Refused {
        /// The host.
        destination: String,
        /// Its status.
        status: u16,
        /// What it said, shortened.
        message: String,
    },
}

/// Why the cloud cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// See [`ConfigError`].
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// See [`EgressError`].
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// A key that is not there.
    #[error("upstreams.{name}.api_key_env: the variable {variable} is not set")]
    Key {
        /// Which upstream.
        name: String,
        /// Which variable.
        variable: String,
    },
}

struct Target {
    egress: Egress,
    model: String,
    retries: u32,
}

/// The models in the cloud, behind the gate.
pub struct Cloud {
    gate: Arc<Gate>,
    policy: Arc<Policy>,
    audit: AuditLog,
    targets: BTreeMap<String, Target>,
}

impl fmt::Debug for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cloud")
            .field("models", &self.targets.keys())
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}

/// An answer on its way.
#[derive(Debug)]
pub struct Answer {
    /// The id of the request in the audit log.
    pub audit_id: String,
    /// What comes; the last is [`CloudEvent::End`] or [`CloudEvent::Failed`]. Dropping it ends the request.
    pub events: mpsc::Receiver<CloudEvent>,
}

impl Cloud {
    /// Makes the clients. `variable` reads an environment variable; `allow_loopback` is for tests.
    ///
    /// # Errors
    /// An upstream that cannot be used: none is, then.
    pub fn new(
        config: &CloudConfig,
        gate: Arc<Gate>,
        audit: AuditLog,
        variable: impl Fn(&str) -> Option<String>,
        allow_loopback: bool,
    ) -> Result<Self, SetupError> {
        let mut targets = BTreeMap::new();
        for (name, upstream) in &config.upstreams {
            upstream.check(name, allow_loopback)?;
            let key = match &upstream.api_key_env {
                None => None,
                Some(env) => Some(
                    variable(env)
                        .filter(|key| !key.is_empty())
                        .ok_or_else(|| SetupError::Key { name: name.clone(), variable: env.clone() })?,
                ),
            };
            let egress = Egress::new(name, upstream, key.as_deref(), allow_loopback)?;
            targets.insert(
                name.clone(),
                Target { egress, model: upstream.model.clone(), retries: upstream.retries },
            );
        }
        let policy = Arc::new(gate.policy().clone());
        Ok(Self { gate, policy, audit, targets })
    }

    /// The gate that everything passes.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// The log.
    pub fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// Names of the models.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.targets.keys().map(String::as_str)
    }

    /// The provider's name of a model.
    pub fn model(&self, name: &str) -> Option<&str> {
        self.targets.get(name).map(|t| t.model.as_str())
    }

    /// Sends a body that the gate made, and answers once the provider began to.
    ///
    /// # Errors
    /// Nothing was answered. Failures before any answer are tried again with the very same bytes.
    pub async fn send(&self, name: &str, body: GatedBody) -> Result<Answer, CloudError> {
        let target = self.targets.get(name).ok_or_else(|| CloudError::Unknown(name.to_owned()))?;
        let body = Arc::new(body);
        let mut attempt = 1;
        loop {
            let (audit_id, answer) = target.egress.send(&body, &self.audit, attempt).await?;
            let again = attempt <= target.retries;
            match answer {
                Ok(response) if response.status().is_success() => {
                    return Ok(self.answer(audit_id, &body, response));
                }
                Ok(response) => {
                    let status = response.status();
                    let message = refusal(response).await;
                    self.log_end(&audit_id, Outcome::Refused, Some(status), message.len() as u64).await;
                    let passing = matches!(status.as_u16(), 502..=504);
                    if !(passing && again) {
                        let destination = target.egress.destination().to_owned();
                        return Err(CloudError::Refused { destination, status: status.as_u16(), message });
                    }
                }
                Err(error) => {
                    self.log_end(&audit_id, Outcome::Unreachable, None, 0).await;
                    if !again {
                        return Err(error.into());
                    }
                }
            }
            attempt += 1;
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    async fn log_end(&self, request: &str, outcome: Outcome, status: Option<StatusCode>, bytes: u64) {
        let record = ResponseRecord {
            request: request.to_owned(),
            outcome,
            status: status.map(|s| s.as_u16()),
            bytes,
            restored: 0,
            unrestored: 0,
            redacted: 0,
        };
        log(self.audit.clone(), record).await;
    }

    fn answer(&self, audit_id: String, body: &GatedBody, response: Response) -> Answer {
        let (sender, events) = mpsc::channel(WAITING_EVENTS);
        let reader = Reader {
            lanes: Lanes::new(Arc::clone(body.restore()), Arc::clone(&self.policy)),
            status: response.status(),
            bytes: 0,
            sender,
        };
        let (audit, id) = (self.audit.clone(), audit_id.clone());
        tokio::spawn(reader.run(response, audit, id));
        Answer { audit_id, events }
    }
}

/// What a provider says when it refuses, shortened.
async fn refusal(mut response: Response) -> String {
    const MOST: usize = 64 << 10;
    const SHOWN: usize = 500;
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        bytes.extend_from_slice(&piece);
        if bytes.len() > MOST {
            break;
        }
    }
    let parsed: Option<Value> = serde_json::from_slice(&bytes).ok();
    let message =
        parsed.as_ref().and_then(|v| v.pointer("/error/message").or_else(|| v.get("message"))?.as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(&bytes).into_owned(), str::to_owned);
    text.chars().take(SHOWN).collect()
}

/// The log must not hold an answer up; a line that cannot be written is told in the server's own log.
async fn log(audit: AuditLog, record: ResponseRecord) {
    match tokio::task::spawn_blocking(move || audit.response(&record)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::error!(%error, "the end of a cloud request is not in the audit log"),
        Err(error) => tracing::error!(%error, "the end of a cloud request is not in the audit log"),
    }
}

/// How reading ended.
enum End {
    Complete,
    Cut(&'static str, String),
    Cancelled,
}

struct Reader {
    lanes: Lanes,
    status: StatusCode,
    bytes: u64,
    sender: mpsc::Sender<CloudEvent>,
}

impl Reader {
    async fn run(mut self, response: Response, audit: AuditLog, request: String) {
        let content_type = response.headers().get(reqwest::header::CONTENT_TYPE);
        let streamed = content_type
            .and_then(|v| v.to_str().ok())
            .is_some_and(|v| v.to_ascii_lowercase().contains("event-stream"));
        let end = if streamed { self.stream(response).await } else { self.whole(response).await };
        let counts = self.lanes.counts();
        let outcome = match &end {
            End::Complete => Outcome::Complete,
            End::Cut(..) => Outcome::Cut,
            End::Cancelled => Outcome::Cancelled,
        };
        let record = ResponseRecord {
            request,
            outcome,
            status: Some(self.status.as_u16()),
            bytes: self.bytes,
            restored: counts.restored,
            unrestored: counts.unrestored,
            redacted: counts.redacted,
        };
        log(audit, record).await;
        let last = match end {
            End::Complete => CloudEvent::End(Ending {
                usage: self.lanes.usage,
                restored: counts.restored,
                unrestored: counts.unrestored,
                redacted: counts.redacted,
            }),
            End::Cut(code, message) => CloudEvent::Failed { code, message },
            End::Cancelled => return,
        };
        let _ = self.sender.send(last).await;
    }

    /// The next piece of the body; none at its end.
    async fn piece(&mut self, response: &mut Response) -> Result<Option<Vec<u8>>, End> {
        let piece = tokio::select! {
            () = self.sender.closed() => return Err(End::Cancelled),
            piece = response.chunk() => piece,
        };
        match piece {
            Ok(Some(piece)) => {
                self.bytes += piece.len() as u64;
                if self.bytes > MOST_BYTES {
                    return Err(End::Cut("upstream_invalid", "the provider's answer is too long".into()));
                }
                Ok(Some(piece.to_vec()))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                Err(End::Cut("upstream_cut", format!("the provider's answer stopped: {}", describe(&error))))
            }
        }
    }

    async fn give(&self, events: &mut Vec<CloudEvent>) -> Result<(), End> {
        for event in events.drain(..) {
            self.sender.send(event).await.map_err(|_| End::Cancelled)?;
        }
        Ok(())
    }

    async fn stream(&mut self, response: Response) -> End {
        let mut events = Vec::new();
        let end = match self.read_stream(response, &mut events).await {
            Ok(()) if self.lanes.has_cut_token() => cut_token(),
            Ok(()) => return End::Complete,
            Err(end) => end,
        };
        if !matches!(end, End::Cancelled) {
            // What is certain of the part that came.
            self.lanes.close(&mut events);
            if let Err(cancelled) = self.give(&mut events).await {
                return cancelled;
            }
        }
        end
    }

    async fn read_stream(&mut self, mut response: Response, events: &mut Vec<CloudEvent>) -> Result<(), End> {
        let mut reader = SseReader::default();
        let mut data = Vec::new();
        while let Some(piece) = self.piece(&mut response).await? {
            let bad =
                |e: String| End::Cut("upstream_invalid", format!("the provider's answer is wrong: {e}"));
            reader.push(&piece, &mut data).map_err(|e| bad(e.to_string()))?;
            for data in data.drain(..) {
                if data.trim() == "[DONE]" {
                    if self.lanes.is_empty() {
                        return Err(bad("it holds no choices".into()));
                    }
                    self.lanes.finish_all(events);
                    return self.give(events).await;
                }
                let chunk: Value =
                    serde_json::from_str(&data).map_err(|e| bad(format!("an event is no JSON: {e}")))?;
                if !chunk.is_object() {
                    return Err(bad("an event is no object".into()));
                }
                if let Some(error) = chunk.get("error").filter(|e| !e.is_null()) {
                    let message = error.get("message").and_then(Value::as_str).unwrap_or("no reason given");
                    let message: String = message.chars().take(500).collect();
                    return Err(End::Cut(
                        "upstream_error",
                        format!("the provider ended its answer: {message}"),
                    ));
                }
                self.lanes.take(&chunk, events).map_err(|e| bad(e.0))?;
                self.give(events).await?;
            }
        }
        // Some providers end without the mark, but never without a reason.
        if self.lanes.close(events) {
            return self.give(events).await;
        }
        Err(End::Cut("upstream_cut", "the provider's answer stopped before its end".into()))
    }

    async fn whole(&mut self, mut response: Response) -> End {
        let mut body = Vec::new();
        loop {
            match self.piece(&mut response).await {
                Ok(Some(piece)) => body.extend(piece),
                Ok(None) => break,
                Err(end) => return end,
            }
        }
        let mut events = Vec::new();
        let bad = |e: String| End::Cut("upstream_invalid", format!("the provider's answer is wrong: {e}"));
        let parsed: Value = match serde_json::from_slice(&body) {
            Ok(parsed) => parsed,
            Err(error) => return bad(format!("it is no JSON: {error}")),
        };
        if let Err(error) = self.lanes.take(&parsed, &mut events) {
            return bad(error.0);
        }
        self.lanes.finish_all(&mut events);
        if events.is_empty() {
            return bad("it holds no choices".into());
        }
        if let Err(end) = self.give(&mut events).await {
            return end;
        }
        if self.lanes.has_cut_token() { cut_token() } else { End::Complete }
    }
}

fn cut_token() -> End {
    End::Cut(
        "placeholder_cut",
        "the answer ends in the middle of a stand-in, which could not be restored".into(),
    )
}
