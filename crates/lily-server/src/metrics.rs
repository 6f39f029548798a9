//! Counters, as Prometheus reads them.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{
    app::App,
    generate::{Finish, Outcome},
};

/// What the server counts.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// By path and status.
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    finished: Mutex<BTreeMap<&'static str, u64>>,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    reasoning_tokens: AtomicU64,
    queued_us: AtomicU64,
    prefill_us: AtomicU64,
    decode_us: AtomicU64,
}

impl Metrics {
    /// Counts a generation that ended.
    pub(crate) fn finished(&self, outcome: &Outcome) {
        let stats = &outcome.stats;
        let add = |counter: &AtomicU64, n: usize| counter.fetch_add(n as u64, Ordering::Relaxed);
        let spent = |counter: &AtomicU64, time: Duration| {
            counter.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed)
        };
        add(&self.prompt_tokens, stats.prompt_tokens);
        add(&self.cached_tokens, stats.cached_tokens);
        add(&self.completion_tokens, stats.completion_tokens);
        add(&self.reasoning_tokens, outcome.reasoning_tokens);
        spent(&self.queued_us, stats.queued);
        spent(&self.prefill_us, stats.prefill);
        spent(&self.decode_us, stats.decode);
        let reason = match outcome.finish {
            Finish::EndOfTurn => "stop",
            Finish::StopString(_) => "stop_string",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
            Finish::Cancelled => "cancelled",
            Finish::Deadline => "deadline",
        };
        *self.finished.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }

    fn request(&self, path: &str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((path.to_string(), status)).or_default() += 1;
    }
}

/// The middleware that counts requests. Paths the server does not have are counted together.
pub(crate) async fn count(State(app): State<App>, request: Request, next: Next) -> Response {
    let path =
        request.extensions().get::<MatchedPath>().map_or("other".to_string(), |p| p.as_str().to_string());
    let response = next.run(request).await;
    app.metrics.request(&path, response.status().as_u16());
    response
}

/// `GET /metrics`.
pub(crate) async fn show(State(app): State<App>) -> Response {
    let text = text(&app);
    ([(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"))], text)
        .into_response()
}

fn text(app: &App) -> String {
    let metrics = &app.metrics;
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, rows: Vec<(String, f64)>| {
        let _ = writeln!(out, "# HELP lily_{name} {help}\n# TYPE lily_{name} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(out, "lily_{name}{labels} {value}");
        }
    };
    let one = |value: f64| vec![(String::new(), value)];
    let requests = metrics.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let rows = requests
        .iter()
        .map(|((path, status), n)| (format!("{{path=\"{path}\",status=\"{status}\"}}"), *n as f64));
    metric("requests_total", "counter", "Requests answered.", rows.collect());
    let finished = metrics.finished.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let rows = finished.iter().map(|(reason, n)| (format!("{{reason=\"{reason}\"}}"), *n as f64));
    metric("generations_total", "counter", "Generations ended, by reason.", rows.collect());
    for (name, help, counter) in [
        ("prompt_tokens_total", "Prompt tokens.", &metrics.prompt_tokens),
        ("cached_tokens_total", "Prompt tokens whose state was reused.", &metrics.cached_tokens),
        ("completion_tokens_total", "Tokens generated.", &metrics.completion_tokens),
        ("reasoning_tokens_total", "Tokens generated as reasoning.", &metrics.reasoning_tokens),
    ] {
        metric(name, "counter", help, one(counter.load(Ordering::Relaxed) as f64));
    }
    for (name, help, counter) in [
        ("queued_seconds_total", "Time requests waited.", &metrics.queued_us),
        ("prefill_seconds_total", "Time spent on prompts.", &metrics.prefill_us),
        ("decode_seconds_total", "Time spent on generating.", &metrics.decode_us),
    ] {
        metric(name, "counter", help, one(counter.load(Ordering::Relaxed) as f64 / 1e6));
    }
    let engine = app.engine.engine();
    let (waiting, running) = engine.load();
    metric("requests_waiting", "gauge", "Requests that wait for the engine.", one(waiting as f64));
    metric("requests_running", "gauge", "Requests the engine works on.", one(running as f64));
    metric(
        "up",
        "gauge",
        "Whether the engine takes requests.",
        one(f64::from(u8::from(engine.is_running()))),
    );
    let figures = engine.figures();
    let cache = &figures.cache;
    let rows = cache
        .lookups
        .iter()
        .map(|((code, kind), n)| (format!("{{reason=\"{code}\",checkpoint=\"{kind}\"}}"), *n as f64));
    metric(
        "cache_lookups_total",
        "counter",
        "Prompts, by what the prefix cache had for them and why.",
        rows.collect(),
    );
    let rows = cache.taken.iter().map(|(kind, n)| (format!("{{checkpoint=\"{kind}\"}}"), *n as f64));
    metric("cache_checkpoints_taken_total", "counter", "Checkpoints taken, by kind.", rows.collect());
    for (name, kind, help, value) in [
        ("cache_ram_bytes", "gauge", "Bytes of checkpoints in memory.", cache.ram_bytes),
        ("cache_ram_checkpoints", "gauge", "Checkpoints in memory.", cache.ram_checkpoints),
        (
            "cache_ram_evictions_total",
            "counter",
            "Checkpoints that left memory for others.",
            cache.ram_evictions,
        ),
        ("cache_disk_bytes", "gauge", "Bytes of checkpoints on disk.", cache.disk_bytes),
        ("cache_disk_checkpoints", "gauge", "Checkpoints on disk.", cache.disk_checkpoints),
        (
            "cache_disk_evictions_total",
            "counter",
            "Checkpoints that left the disk for others.",
            cache.disk_evictions,
        ),
        (
            "cache_disk_errors_total",
            "counter",
            "Reads and writes of checkpoints that failed.",
            cache.disk_errors,
        ),
        ("requests_refused_total", "counter", "Requests refused since the queue was full.", figures.refused),
    ] {
        metric(name, kind, help, one(value as f64));
    }
    let rows = figures.decode_batches.iter().enumerate().filter(|(_, n)| **n > 0);
    let rows = rows.map(|(i, n)| (format!("{{sequences=\"{}\"}}", i + 1), *n as f64));
    metric("decode_steps_total", "counter", "Decode steps, by sequences in the batch.", rows.collect());
    let [count, total, worst, waited] = app.engine.mask_times();
    metric("grammar_masks_total", "counter", "Token masks computed.", one(count as f64));
    metric("grammar_mask_seconds_total", "counter", "Time spent on token masks.", one(total as f64 / 1e6));
    metric("grammar_mask_worst_seconds", "gauge", "The longest token mask.", one(worst as f64 / 1e6));
    let help = "Time the engine waited for token masks.";
    metric("grammar_wait_seconds_total", "counter", help, one(waited as f64 / 1e6));
    out
}
