//! The only way out: one HTTP client, to one host, for bytes that the gate made.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Once,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lily_gate::body::GatedBody;
use reqwest::{
    Client, Response, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
    redirect,
};

use crate::{
    audit::{AuditError, AuditLog, RequestRecord},
    config::{Upstream, is_this_machine},
};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

static CLIENTS: AtomicUsize = AtomicUsize::new(0);

/// How many HTTP clients this process has made. None unless the cloud is configured.
pub fn clients_made() -> usize {
    CLIENTS.load(Ordering::Acquire)
}

/// Why nothing was answered.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The client could not be made.
    #[error("upstream {name}: {reason}")]
    Client {
        /// Which upstream.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The log could not be written: nothing was sent.
    #[error("nothing was sent, since the audit log could not be written: {0}")]
    Audit(#[from] AuditError),
    /// Nothing came back.
    #[error("{destination}: {reason}")]
    Unreachable {
        /// The host.
        destination: String,
        /// What happened.
        reason: String,
    },
}

/// One upstream with its client.
pub struct Egress {
    name: String,
    endpoint: Url,
    headers: HeaderMap,
    client: Client,
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Egress")
            .field("name", &self.name)
            .field("endpoint", &self.endpoint.as_str())
            .finish_non_exhaustive()
    }
}

/// Refuses names that lead to this machine.
struct NotHere;

impl Resolve for NotHere {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            if let Some(here) = found.iter().find(|a| is_this_machine(&a.ip())) {
                return Err(format!("{} leads to this machine ({})", name.as_str(), here.ip()).into());
            }
            let found: Addrs = Box::new(found.into_iter());
            Ok(found)
        })
    }
}

impl Egress {
    /// A client for an upstream. `key` is its API key.
    ///
    /// # Errors
    /// A header or key that cannot be sent, or no TLS.
    pub fn new(
        name: &str,
        upstream: &Upstream,
        key: Option<&str>,
        allow_loopback: bool,
    ) -> Result<Self, EgressError> {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            // Another part of the process may have chosen one; any will do.
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let error = |reason: String| EgressError::Client { name: name.to_owned(), reason };
        let endpoint = upstream.endpoint(allow_loopback).map_err(error)?;
        let mut headers = HeaderMap::new();
        for (header, value) in &upstream.headers {
            let named: HeaderName =
                header.parse().map_err(|_| error(format!("header {header:?} is none")))?;
            let value: HeaderValue =
                value.parse().map_err(|_| error(format!("header {header:?}: its value is none")))?;
            headers.insert(named, value);
        }
        if let Some(key) = key {
            let mut value: HeaderValue = format!("Bearer {key}")
                .parse()
                .map_err(|_| error("its API key holds characters no header can".into()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut builder = Client::builder()
            // To the host that was configured, and nowhere else.
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .https_only(!allow_loopback)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(upstream.timeout())
            .tcp_nodelay(true);
        if !allow_loopback {
            builder = builder.dns_resolver(Arc::new(NotHere));
        }
        let client = builder.build().map_err(|e| error(describe(&e)))?;
        CLIENTS.fetch_add(1, Ordering::AcqRel);
        Ok(Self { name: name.to_owned(), endpoint, headers, client })
    }

    /// Where requests go.
    pub fn destination(&self) -> &str {
        self.endpoint.as_str()
    }

    /// Sends `body`, after it was written to the log. Answers the log's id for it and what came back.
    ///
    /// # Errors
    /// With [`EgressError::Audit`], nothing was sent. With an id beside the error, something may have been.
    pub async fn send(
        &self,
        body: &Arc<GatedBody>,
        audit: &AuditLog,
        attempt: u32,
    ) -> Result<(String, Result<Response, EgressError>), EgressError> {
        let mut headers = self.headers.clone();
        let accept = if body.stream() { "text/event-stream" } else { "application/json" };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let mut names: Vec<String> = headers.keys().map(|name| name.as_str().to_owned()).collect();
        names.sort();
        let id = {
            let (body, log) = (Arc::clone(body), audit.clone());
            let (name, destination) = (self.name.clone(), self.endpoint.to_string());
            // It waits for the disk.
            let written = tokio::task::spawn_blocking(move || {
                let record = RequestRecord::new(&body, &name, &destination, names, attempt).map_err(|e| {
                    AuditError::Content {
                        path: log.path().to_owned(),
                        reason: format!("the body is no text: {e}"),
                    }
                })?;
                log.request(&record)
            });
            written.await.map_err(|e| AuditError::Content {
                path: audit.path().to_owned(),
                reason: format!("the writer ended early: {e}"),
            })??
        };
        let sent =
            self.client.post(self.endpoint.clone()).headers(headers).body(body.bytes().to_vec()).send().await;
        let answer = sent.map_err(|e| EgressError::Unreachable {
            destination: self.endpoint.host_str().unwrap_or_default().to_owned(),
            reason: describe(&e),
        });
        Ok((id, answer))
    }
}

/// An error with its causes; reqwest's own text leaves them out.
pub(crate) fn describe(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() { "timed out".to_owned() } else { String::new() };
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        let part = error.to_string();
        // The address was told already, and each error repeats the one below it.
        if !part.contains("http://") && !part.contains("https://") && !text.contains(&part) {
            if !text.is_empty() {
                text += ": ";
            }
            text += &part;
        }
        cause = error.source();
    }
    if text.is_empty() { "the connection failed".into() } else { text }
}
