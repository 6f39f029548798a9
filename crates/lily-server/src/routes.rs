//! The paths the server answers.

use axum::{
    Json, Router,
    extract::{Path, Request, State, rejection::PathRejection},
    handler::Handler,
    http::{Method, StatusCode},
    middleware,
    routing::{MethodRouter, get, post},
};
use serde_json::{Value, json};

use crate::{
    anthropic,
    app::App,
    cloud, completions,
    error::ApiError,
    guard, metrics, openapi,
    params::{ANY_MODEL, model_not_found},
    responses, tokens,
};

/// A path and what answers it.
pub(crate) struct Route {
    /// `get` or `post`.
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    handler: MethodRouter<App>,
}

impl Route {
    fn get<T: 'static>(path: &'static str, handler: impl Handler<T, App>) -> Self {
        Self { method: "get", path, handler: get(handler) }
    }

    fn post<T: 'static>(path: &'static str, handler: impl Handler<T, App>) -> Self {
        Self { method: "post", path, handler: post(handler) }
    }
}

/// What the server answers. `GET /openapi.json` describes the same list: a test compares.
pub(crate) fn table() -> Vec<Route> {
    vec![
        Route::get("/health", health),
        Route::get("/v1/models", models),
        // Ids may contain slashes.
        Route::get("/v1/models/{*id}", model),
        Route::post("/v1/chat/completions", cloud::completions),
        Route::post("/v1/gate/check", cloud::check),
        Route::get("/v1/audit/{id}", cloud::audit),
        Route::post("/v1/completions", completions::completions),
        Route::post("/v1/responses", responses::responses),
        Route::post("/v1/messages", anthropic::messages),
        Route::post("/v1/messages/count_tokens", anthropic::count_tokens),
        Route::post("/tokenize", tokens::tokenize),
        Route::post("/detokenize", tokens::detokenize),
        Route::post("/apply-template", tokens::apply_template),
        Route::get("/metrics", metrics::show),
        Route::get("/openapi.json", openapi::show),
    ]
}

/// The router.
pub(crate) fn router(app: App) -> Router {
    table()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(route.path, route.handler))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), guard::check))
        .layer(middleware::from_fn_with_state(app.clone(), metrics::count))
        .with_state(app)
}

/// Whether the engine takes requests, and how busy it is.
async fn health(State(app): State<App>) -> (StatusCode, Json<Value>) {
    let engine = app.engine.engine();
    let (waiting, running) = engine.load();
    let up = engine.is_running();
    let status = if up { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let word = if up { "ok" } else { "the engine stopped" };
    let body = json!({"status": word, "model": app.model_id(), "waiting": waiting, "running": running});
    (status, Json(body))
}

async fn models(State(app): State<App>) -> Json<Value> {
    let data: Vec<Value> =
        served(&app).iter().filter(|id| *id != ANY_MODEL).map(|id| model_object(&app, id)).collect();
    Json(json!({"object": "list", "data": data}))
}

async fn model(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|e| ApiError::body(format!("the path is wrong: {}", e.body_text())))?;
    let served = served(&app);
    match served.iter().find(|s| **s == id && id != ANY_MODEL) {
        Some(id) => Ok(Json(model_object(&app, id))),
        None => Err(model_not_found(&id, &served)),
    }
}

/// Models of this machine, then those in the cloud.
fn served(app: &App) -> Vec<String> {
    let cloud = app.cloud.iter().flat_map(|cloud| cloud.models());
    app.context.models.iter().cloned().chain(cloud).collect()
}

/// OpenAI's fields, and `max_model_len` as vLLM has it.
fn model_object(app: &App, id: &str) -> Value {
    json!({
        "id": id,
        "object": "model",
        "created": app.created,
        "owned_by": "lily",
        "max_model_len": app.engine.engine().options().context_limit,
    })
}

async fn not_found(request: Request) -> ApiError {
    ApiError {
        code: Some("unknown_path"),
        ..ApiError::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            format!("{} does not exist; GET /openapi.json lists what this server has", request.uri().path()),
        )
    }
}

async fn method_not_allowed(method: Method, request: Request) -> ApiError {
    ApiError {
        code: Some("method_not_allowed"),
        ..ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "invalid_request_error",
            format!("{method} is not allowed on {}; see the Allow header", request.uri().path()),
        )
    }
}
