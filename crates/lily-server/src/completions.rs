//! `POST /v1/completions`: text in, text out, without a chat template.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response, sse::Event},
};
use lily_engine::SamplingParams;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    app::App,
    body,
    chat::{
        self, RequestContext,
        response::{Head, Timings, Usage, finish_reason},
    },
    error::ApiError,
    fields::{self, Allowed, shown},
    format,
    generate::{Delta, GenerateOptions, Outcome, Output, TokenLogprob, TokenText},
    job::{self, Answer, Job, Source},
    params,
    sse::{Adapter, EventStream, event, named},
};

/// Tokens generated when the request does not say (OpenAI's default).
const DEFAULT_MAX_TOKENS: usize = 16;
/// Most rivals reported a token (OpenAI's limit for this API).
const MAX_LOGPROBS: u64 = 5;

/// Fields that are known beyond those implemented here.
const KNOWN: &[(&str, Allowed)] = &[
    ("user", Allowed::Anything),
    ("metadata", Allowed::Anything),
    ("best_of", Allowed::Only("1")),
    ("suffix", Allowed::Only("\"\"")),
    ("use_beam_search", Allowed::Only("false")),
    ("length_penalty", Allowed::OneOf(&["1", "1.0"])),
    ("ignore_eos", Allowed::Only("false")),
    ("skip_special_tokens", Allowed::Only("true")),
    ("spaces_between_special_tokens", Allowed::Anything),
    ("include_stop_str_in_output", Allowed::Only("false")),
    ("min_tokens", Allowed::Only("0")),
    ("stop_token_ids", Allowed::Only("[]")),
    ("prompt_logprobs", Allowed::Nothing),
    ("cache_prompt", Allowed::Only("true")),
    ("repeat_penalty", Allowed::OneOf(&["1", "1.0"])),
];

#[derive(Debug, Default, Deserialize)]
struct Body {
    model: Option<String>,
    prompt: Option<Value>,
    max_tokens: Option<u64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    logit_bias: Option<Map<String, Value>>,
    seed: Option<Value>,
    stop: Option<Value>,
    n: Option<u64>,
    logprobs: Option<u64>,
    echo: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<Map<String, Value>>,
    response_format: Option<Value>,
    structured_outputs: Option<Value>,
    guided_json: Option<Value>,
    guided_regex: Option<Value>,
    guided_choice: Option<Value>,
    guided_grammar: Option<Value>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

/// What the request asked of its answer.
#[derive(Debug, Clone, Copy)]
struct Settings {
    logprobs: bool,
    echo: bool,
    stream: bool,
    include_usage: bool,
}

fn parse(body: &[u8], context: &RequestContext) -> Result<(Job, Settings), ApiError> {
    let body: Body = params::read_json(body)?;
    fields::check("", &body.extra, KNOWN)?;
    params::check_model(body.model.as_deref(), &context.models)?;
    let source = prompt(body.prompt.as_ref(), context.vocab)?;
    let stream = body.stream.unwrap_or(false);
    let echo = body.echo.unwrap_or(false);
    let logprobs = match body.logprobs {
        Some(n) if n > MAX_LOGPROBS => {
            return Err(ApiError::invalid(
                "logprobs",
                format!("logprobs is {n}; expected 0 to {MAX_LOGPROBS}"),
            ));
        }
        n => n.map(|n| usize::try_from(n).unwrap_or(0)),
    };
    if echo && logprobs.is_some() {
        return Err(ApiError::unsupported(
            "echo",
            "echo together with logprobs is not supported: log-probabilities of the prompt are not computed",
        ));
    }
    let defaults = &context.sampling;
    let options = GenerateOptions {
        max_tokens: params::max_tokens(body.max_tokens, None)?.or(Some(DEFAULT_MAX_TOKENS)),
        stop: params::stop_strings(body.stop)?,
        logprobs,
        raw: true,
        sampling: SamplingParams {
            temperature: params::range("temperature", body.temperature, 0.0, 2.0)?
                .unwrap_or(defaults.temperature),
            top_p: params::top_p(body.top_p)?.unwrap_or(defaults.top_p),
            top_k: params::top_k(body.top_k)?.unwrap_or(defaults.top_k),
            min_p: params::range("min_p", body.min_p, 0.0, 1.0)?.unwrap_or(defaults.min_p),
            presence_penalty: params::range("presence_penalty", body.presence_penalty, -2.0, 2.0)?
                .unwrap_or(defaults.presence_penalty),
            frequency_penalty: params::range("frequency_penalty", body.frequency_penalty, -2.0, 2.0)?
                .unwrap_or(defaults.frequency_penalty),
            repetition_penalty: params::repetition_penalty(body.repetition_penalty)?
                .unwrap_or(defaults.repetition_penalty),
            logit_bias: params::logit_bias(body.logit_bias, context.vocab)?,
            seed: params::seed(body.seed.as_ref())?,
        },
        ..GenerateOptions::default()
    };
    let answer = format::chat(&format::ChatFields {
        response_format: body.response_format.as_ref(),
        structured_outputs: body.structured_outputs.as_ref(),
        guided_json: body.guided_json.as_ref(),
        guided_regex: body.guided_regex.as_ref(),
        guided_choice: body.guided_choice.as_ref(),
        guided_grammar: body.guided_grammar.as_ref(),
    })?;
    let include_usage = chat::stream_options(body.stream_options.as_ref(), stream)?;
    let job = Job { answer, n: chat::choices(body.n)?, ..Job::new(source, options) };
    Ok((job, Settings { logprobs: logprobs.is_some(), echo, stream, include_usage }))
}

/// Checks a body.
pub(crate) fn check(body: &[u8], context: &RequestContext) -> Result<(), ApiError> {
    parse(body, context).map(drop)
}

/// Text or token ids, alone or as a list of one.
fn prompt(value: Option<&Value>, vocab: usize) -> Result<Source, ApiError> {
    let expected = "a text or a list of token ids";
    match value {
        None => Err(params::missing("prompt", expected)),
        Some(Value::String(text)) if !text.is_empty() => Ok(Source::Text(text.clone())),
        Some(Value::Array(list)) => match list.as_slice() {
            [only @ (Value::String(_) | Value::Array(_))] => prompt(Some(only), vocab),
            [Value::String(_) | Value::Array(_), ..] => Err(ApiError::unsupported(
                "prompt",
                format!("{} prompts in one request are not supported; send one request for each", list.len()),
            )),
            _ => token_ids(list, vocab, "prompt").map(Source::Ids),
        },
        Some(other) => {
            Err(ApiError::invalid("prompt", format!("found {}; expected {expected}", shown(other))))
        }
    }
}

/// Token ids below `vocab`, at least one.
pub(crate) fn token_ids(list: &[Value], vocab: usize, path: &str) -> Result<Vec<u32>, ApiError> {
    if list.is_empty() {
        return Err(ApiError::invalid(path, format!("`{path}` is empty; expected at least one token id")));
    }
    let id = |(i, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < vocab);
        id.ok_or_else(|| {
            let path = format!("{path}[{i}]");
            ApiError::invalid(path, format!("found {}; expected a token id below {vocab}", shown(value)))
        })
    };
    list.iter().enumerate().map(id).collect()
}

/// The handler.
pub(crate) async fn completions(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let permit = app.admit()?;
    let body = body::read_json(request, app.config.body_limit).await?;
    let app_ = app.clone();
    let (prepared, settings) = job::blocking(move || {
        let (job, settings) = parse(&body, &app_.context)?;
        Ok((job::prepare(&app_, job)?, settings))
    })
    .await?;
    let echo = settings.echo.then(|| prepared.prompt.text.clone());
    let running = job::start(&app, prepared)?;
    if settings.stream {
        let adapter = TextStream::new(app.model_id(), running.n, settings, echo);
        return Ok(EventStream::new(running, adapter, permit).into_response());
    }
    let answers = job::collect(running).await?;
    drop(permit);
    Ok(Json(whole(app.model_id(), answers, settings, echo.as_deref())).into_response())
}

/// A whole answer, or a chunk of one: both are `text_completion`.
#[derive(Debug, Serialize)]
struct TextBody {
    #[serde(flatten)]
    head: Head,
    choices: Vec<TextChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

#[derive(Debug, Serialize)]
struct TextChoice {
    index: usize,
    text: String,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<&'static str>,
}

/// Log-probabilities in this API's form: parallel lists.
#[derive(Debug, Default, Serialize)]
struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Where each token begins in the text, in characters.
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// `offset`: characters of text before these tokens; counted on.
    fn new(entries: Vec<TokenLogprob>, offset: &mut usize) -> Self {
        let text = |token: &TokenText| String::from_utf8_lossy(&token.0).into_owned();
        let mut out = Self::default();
        for entry in entries {
            let token = text(&entry.token);
            out.text_offset.push(*offset);
            *offset += token.chars().count();
            out.tokens.push(token);
            out.token_logprobs.push(entry.logprob.max(-9999.0));
            out.top_logprobs.push(entry.top.iter().map(|(t, l)| (text(t), l.max(-9999.0))).collect());
        }
        out
    }
}

fn whole(model: &str, answers: Vec<Answer>, settings: Settings, echo: Option<&str>) -> TextBody {
    let usage = Some(Some(Usage::of(answers.iter().map(|a| &a.outcome))));
    let timings = answers.first().map(|a| Timings::new(&a.outcome.stats));
    let choices = answers.into_iter().enumerate().map(|(index, mut answer)| {
        let entries = std::mem::take(&mut answer.content_logprobs);
        TextChoice {
            index,
            text: echo.unwrap_or_default().to_string() + &answer.content().unwrap_or_default(),
            logprobs: settings.logprobs.then(|| TextLogprobs::new(entries, &mut 0)),
            finish_reason: Some(finish_reason(&answer.outcome.finish)),
        }
    });
    let choices = choices.collect();
    TextBody { head: Head::with_prefix("cmpl", "text_completion", model), choices, usage, timings }
}

struct TextStream {
    head: Head,
    settings: Settings,
    echo: Option<String>,
    /// Characters with log-probabilities so far, by choice.
    offsets: Vec<usize>,
    outcomes: Vec<Outcome>,
}

impl TextStream {
    fn new(model: &str, n: usize, settings: Settings, echo: Option<String>) -> Self {
        let head = Head::with_prefix("cmpl", "text_completion", model);
        Self { head, settings, echo, offsets: vec![0; n], outcomes: Vec::new() }
    }

    fn chunk(&self, choices: Vec<TextChoice>) -> TextBody {
        let usage = self.settings.include_usage.then_some(None);
        TextBody { head: self.head.clone(), choices, usage, timings: None }
    }
}

impl Adapter for TextStream {
    fn begin(&mut self) -> Vec<Event> {
        let Some(echo) = self.echo.take() else { return Vec::new() };
        let choice = |index| TextChoice { index, text: echo.clone(), logprobs: None, finish_reason: None };
        (0..self.offsets.len()).map(|index| event(&self.chunk(vec![choice(index)]))).collect()
    }

    fn output(&mut self, choice: usize, output: Output) -> Vec<Event> {
        let text =
            output.deltas.into_iter().filter_map(|d| if let Delta::Content(t) = d { Some(t) } else { None });
        let entries = output.content_logprobs;
        let offset = &mut self.offsets[choice];
        let logprobs =
            (self.settings.logprobs && !entries.is_empty()).then(|| TextLogprobs::new(entries, offset));
        let choice = TextChoice { index: choice, text: text.collect(), logprobs, finish_reason: None };
        vec![event(&self.chunk(vec![choice]))]
    }

    fn finished(&mut self, choice: usize, outcome: &Outcome) -> Vec<Event> {
        let last = TextChoice {
            index: choice,
            text: String::new(),
            logprobs: None,
            finish_reason: Some(finish_reason(&outcome.finish)),
        };
        let timings = Some(Timings::new(&outcome.stats));
        self.outcomes.push(outcome.clone());
        vec![event(&TextBody { timings, ..self.chunk(vec![last]) })]
    }

    fn end(&mut self) -> Vec<Event> {
        let usage = self.settings.include_usage.then(|| {
            let usage = Some(Some(Usage::of(&self.outcomes)));
            event(&TextBody { usage, ..self.chunk(Vec::new()) })
        });
        usage.into_iter().chain([Event::default().data("[DONE]")]).collect()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Event> {
        vec![named("error", &error.to_json())]
    }
}
