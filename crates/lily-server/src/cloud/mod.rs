//! Requests for models in the cloud: `cloud/NAME` on `POST /v1/chat/completions`, the gate's dry run on
//! `POST /v1/gate/check`, and what left on `GET /v1/audit/{id}`.
//!
//! ```text
//! body -> gate -> GatedBody -> audit log -> provider -> lanes -> restored answer
//!           \-> 409 (ask) | an answer of this machine (local) | an error (refuse)
//! ```
//!
//! Without a configured cloud there is no client, and `cloud/NAME` is a model that does not exist.

mod answer;
mod audit;
mod check;
mod errors;
mod options;
mod proposer;

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use lily_gate::{
    body::{Decision, Gate, Inbound},
    policy::{OnLocal, OnUnreachable},
};
use lily_hybrid::Cloud;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) use audit::show as audit;
pub(crate) use check::check;
use options::Options;
pub use proposer::EngineProposer;

use crate::{app::App, body, chat, error::ApiError};

/// Most requests on their way to providers at a time.
const PLACES: usize = 64;
/// Prefix of the models' names.
const PREFIX: &str = "cloud/";

const ROUTE: HeaderName = HeaderName::from_static("x-lily-route");
const ROUTE_REASON: HeaderName = HeaderName::from_static("x-lily-route-reason");
const LAYER2: HeaderName = HeaderName::from_static("x-lily-layer2");
const AUDIT: HeaderName = HeaderName::from_static("x-lily-audit");

/// What the server knows of the gate and the cloud.
#[derive(Debug, Clone)]
pub struct CloudMode {
    /// The gate; none when it could not be made.
    gate: Option<Arc<Gate>>,
    /// The models; none when only the gate is configured.
    cloud: Option<Arc<Cloud>>,
    /// Models that are refused, and why: there is no gate for them.
    closed: Arc<(Vec<String>, String)>,
    places: Arc<Semaphore>,
}

impl CloudMode {
    /// The gate alone: only dry runs.
    pub fn gate_only(gate: Arc<Gate>) -> Self {
        Self {
            gate: Some(gate),
            cloud: None,
            closed: Arc::default(),
            places: Arc::new(Semaphore::new(PLACES)),
        }
    }

    /// No gate, for this reason: models of these names are refused, and those of this machine work. No client is made.
    pub fn closed(names: Vec<String>, reason: String) -> Self {
        Self {
            gate: None,
            cloud: None,
            closed: Arc::new((names, reason)),
            places: Arc::new(Semaphore::new(PLACES)),
        }
    }

    /// With models.
    pub fn new(cloud: Arc<Cloud>) -> Self {
        Self {
            gate: Some(Arc::clone(cloud.gate())),
            cloud: Some(cloud),
            closed: Arc::default(),
            places: Arc::new(Semaphore::new(PLACES)),
        }
    }

    /// Names of the models, as clients ask for them.
    pub fn models(&self) -> Vec<String> {
        let open = self.cloud.iter().flat_map(|cloud| cloud.names());
        open.chain(self.closed.0.iter().map(String::as_str)).map(|name| format!("{PREFIX}{name}")).collect()
    }

    /// The gate, or why there is none.
    fn gate(&self) -> Result<&Arc<Gate>, ApiError> {
        self.gate.as_ref().ok_or_else(|| errors::closed(&self.closed.1))
    }
}

/// Where a request is answered.
enum Route {
    /// It was answered, in the cloud.
    Answered(Response),
    /// On this machine, with this body; the reason, if it was meant for elsewhere.
    Here(Vec<u8>, Option<String>),
}

/// The handler of `/v1/chat/completions`: requests for `cloud/NAME` are answered here, all others by [`chat`].
pub(crate) async fn completions(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let Some(mode) = app.cloud.clone().filter(|mode| mode.cloud.is_some() || mode.gate.is_none()) else {
        return chat::completions(State(app), request).await;
    };
    let (mut parts, body) = request.into_parts();
    let again = Request::from_parts(parts.clone(), body);
    // Bounding requests before their bodies are read bounds memory.
    let place = mode.places.clone().try_acquire_owned().ok();
    let place = place.ok_or_else(|| {
        ApiError::overloaded(format!("{PLACES} requests are on their way to providers, the most at a time"))
    })?;
    let body = body::read_json(again, app.config.body_limit).await?;
    match route(&app, &mode, &parts.headers, body, place).await? {
        Route::Answered(response) => Ok(response),
        Route::Here(body, reason) => {
            parts.headers.remove(header::CONTENT_LENGTH);
            let request = Request::from_parts(parts, Body::from(body));
            let mut response = chat::completions(State(app), request).await?;
            if let Some(reason) = reason {
                response.headers_mut().insert(ROUTE, HeaderValue::from_static("local"));
                response.headers_mut().insert(ROUTE_REASON, header_text(&reason));
            }
            Ok(response)
        }
    }
}

/// Answers a request for `cloud/NAME`, or gives it back.
async fn route(
    app: &App,
    mode: &CloudMode,
    headers: &HeaderMap,
    body: Vec<u8>,
    place: OwnedSemaphorePermit,
) -> Result<Route, ApiError> {
    // Bodies that are wrong are left to the usual checks.
    let Ok(request) = serde_json::from_slice::<Value>(&body) else { return Ok(Route::Here(body, None)) };
    let asked = request.get("model").and_then(Value::as_str).and_then(|model| model.strip_prefix(PREFIX));
    let Some(name) = asked.map(str::to_owned) else { return here(body, request) };
    if mode.closed.0.contains(&name) {
        mode.gate()?;
    }
    // A model that is not there gets the usual error.
    let Some(cloud) = &mode.cloud else { return Ok(Route::Here(body, None)) };
    let Some(model) = cloud.model(&name).map(str::to_owned) else { return Ok(Route::Here(body, None)) };
    let options = Options::read(headers, &request)?;
    let include_usage = options::include_usage(&request);
    let (decision, request, options) =
        decide(Arc::clone(cloud.gate()), request, model, options, false).await?;
    let policy = cloud.gate().policy();
    let stay = |reason: String, mut request: Value| {
        request["model"] = app.model_id().into();
        if let Some(fields) = request.as_object_mut() {
            fields.shift_remove("privacy");
        }
        let body = serde_json::to_vec(&request).map_err(|e| ApiError::body(e.to_string()))?;
        Ok(Route::Here(body, Some(reason)))
    };
    let gated = match decision {
        Decision::Send(gated) => *gated,
        Decision::Ask(consent) => return Ok(Route::Answered(errors::consent(&consent))),
        Decision::Refuse(kept) => return Err(errors::kept(&kept)),
        Decision::Local(kept) => {
            let answer = options.answer_here.unwrap_or(policy.on_local == OnLocal::Answer);
            return if answer { stay(kept.reason.clone(), request) } else { Err(errors::kept(&kept)) };
        }
    };
    let (stream, looked) = (gated.stream(), gated.report().layer2);
    let answer = match cloud.send(&name, gated).await {
        Ok(answer) => answer,
        Err(error) if policy.on_unreachable == OnUnreachable::Answer && errors::is_outage(&error) => {
            return stay(error.to_string(), request);
        }
        Err(error) => return Err(errors::cloud(&error)),
    };
    let audit_id = answer.audit_id.clone();
    let shown = format!("{PREFIX}{name}");
    let mut response = if stream {
        answer::stream(answer, &shown, include_usage, place)
    } else {
        let body = answer::collect(answer, &shown).await;
        drop(place);
        body?.into_response()
    };
    let headers = response.headers_mut();
    headers.insert(ROUTE, header_text(&shown));
    headers.insert(AUDIT, header_text(&audit_id));
    headers.insert(LAYER2, HeaderValue::from_static(looked));
    Ok(Route::Answered(response))
}

/// A request for a model of this machine: what it says of privacy is checked and taken out.
fn here(body: Vec<u8>, mut request: Value) -> Result<Route, ApiError> {
    if !options::take_local(&mut request)? {
        return Ok(Route::Here(body, None));
    }
    let body = serde_json::to_vec(&request).map_err(|e| ApiError::body(e.to_string()))?;
    Ok(Route::Here(body, None))
}

/// The gate's decision, on a thread that may block: layer 2 is a model.
async fn decide(
    gate: Arc<Gate>,
    request: Value,
    model: String,
    options: Options,
    dry_run: bool,
) -> Result<(Decision, Value, Options), ApiError> {
    let work = move || {
        let decision = gate.check(Inbound {
            request: &request,
            model: &model,
            client: &options.client,
            session: options.session.as_deref(),
            approval: options.approval.as_deref(),
            style: options.style,
            dry_run,
        });
        (decision, request, options)
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "the gate failed; nothing was sent")
    })
}

/// Text for a header: what a header cannot hold is left out.
fn header_text(text: &str) -> HeaderValue {
    let plain: String = text.chars().filter(|c| matches!(c, ' '..='~')).take(300).collect();
    HeaderValue::from_str(&plain).unwrap_or_else(|_| HeaderValue::from_static(""))
}
