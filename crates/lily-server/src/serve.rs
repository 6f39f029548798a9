//! Listening, serving connections, and going away in good order.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use crate::{app::App, generate::TextEngine, routes};

/// A client that has not sent its headers by then is dropped.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of headers (and of one read); more is 431.
pub(crate) const HEADER_BYTES: usize = 64 * 1024;
/// Most headers; more is 431.
const HEADER_COUNT: usize = 100;
/// Most connections at a time; further ones wait to be accepted.
const CONNECTIONS: usize = 1024;
/// A peer that is silent for so long is asked whether it is still there, and one that leaves data unacknowledged for
/// so long is given up: its generation is then cancelled.
const DEAD_PEER: Duration = Duration::from_secs(30);
/// Pause after the system refuses a connection, for example because no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How the server listens and what it allows.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Address to bind; port 0 takes a free one.
    pub address: SocketAddr,
    /// Key every request must carry (except `/health`).
    pub api_key: Option<String>,
    /// Allow binding to other machines without a key.
    pub insecure: bool,
    /// Host names beside `localhost` and IP addresses that requests may be for.
    pub allowed_hosts: Vec<String>,
    /// Largest request body in bytes.
    pub body_limit: usize,
    /// Model id reported and accepted.
    pub model_id: String,
    /// Further ids accepted.
    pub aliases: Vec<String>,
    /// Thinking when a request does not say; `None`: as the template does.
    pub thinking: Option<bool>,
    /// The gate and models in the cloud; `None`: everything stays on this machine.
    pub cloud: Option<crate::CloudMode>,
}

impl ServerConfig {
    /// Loopback, port 8080, no key, bodies up to 16 MiB.
    pub fn new(model_id: impl Into<String>) -> Self {
        Self {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080),
            api_key: None,
            insecure: false,
            allowed_hosts: Vec::new(),
            body_limit: 16 << 20,
            model_id: model_id.into(),
            aliases: Vec::new(),
            thinking: None,
            cloud: None,
        }
    }
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Other machines could use it without a key.
    #[error(
        "{0} can be reached from other machines; set --api-key, or --insecure to let everyone in, or bind to \
         127.0.0.1"
    )]
    Unprotected(SocketAddr),
    /// An empty key would let everyone in.
    #[error("the API key is empty; give it at least one character or leave it out")]
    EmptyKey,
    /// The address cannot be bound.
    #[error(
        "cannot listen on {address}: {source}; is another server running there? --port 0 takes a free port"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
}

/// A server that listens but does not answer yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: App,
}

impl Server {
    /// Checks the configuration and binds the address.
    pub async fn bind(engine: TextEngine, config: ServerConfig) -> Result<Self, ServeError> {
        let address = config.address;
        if config.api_key.as_deref() == Some("") {
            return Err(ServeError::EmptyKey);
        }
        if !address.ip().to_canonical().is_loopback() && config.api_key.is_none() && !config.insecure {
            return Err(ServeError::Unprotected(address));
        }
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = bound.await.map_err(|source| ServeError::Bind { address, source })?;
        Ok(Self { listener, address, app: App::new(engine, config) })
    }

    /// The address bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` is ready, then lets answers that have begun end.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let service = routes::router(self.app);
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
        let graceful = GracefulShutdown::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                accepted = accept(&self.listener, &connections) => accepted,
            };
            let Some((stream, permit)) = accepted else { continue };
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(HEADER_BYTES)
                .max_headers(HEADER_COUNT)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service.clone()));
            let connection = graceful.watch(connection);
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "connection ended");
                }
                drop(permit);
            });
        }
        drop(self.listener);
        tracing::info!("shutting down: answers that have begun may end");
        graceful.shutdown().await;
    }
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = connections.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            if let Err(error) = set_options(&stream) {
                tracing::debug!(%error, "socket options");
            }
            Some((stream, permit))
        }
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    // Each token is a small write that must not wait for the next.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(DEAD_PEER))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(DEAD_PEER))?;
    Ok(())
}
