//! The body of `POST /v1/chat/completions`: reading it, checking it, and turning it into a job.
//!
//! Every field is honoured, neutral, or refused with its name. Types and ranges are OpenAI's, plus the widely used
//! additions `top_k`, `min_p`, `repetition_penalty`, `chat_template_kwargs`, `enable_thinking` and
//! `preserve_thinking`.

use std::sync::Arc;

use lily_engine::SamplingParams;
use lily_text::{ChatTemplate, RenderRequest};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{messages, thinking::Thinking, tools};
use crate::{
    error::ApiError,
    fields::{self, shown},
    format,
    generate::GenerateOptions,
    job::{Job, MAX_CHOICES, Source},
    params,
    tools::openai_choice,
};

/// What a request's checks need to know about the server.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The checkpoint's sampling defaults.
    pub sampling: SamplingParams,
    /// Token ids below this exist.
    pub vocab: usize,
    /// Thinking when the request does not say; `None`: as the template does.
    pub thinking: Option<bool>,
    /// Model ids served, the first being the one reported.
    pub models: Vec<String>,
    /// The model's chat template, which says what keywords there are.
    pub template: Option<Arc<ChatTemplate>>,
}

/// A checked request.
#[derive(Debug, Clone)]
pub struct ChatJob {
    /// What to generate.
    pub job: Job,
    /// Log-probabilities are wanted.
    pub logprobs: bool,
    /// Answer by server-sent events.
    pub stream: bool,
    /// One more chunk with the usage at the end of a stream.
    pub include_usage: bool,
    /// Chunks that tell how much of the prompt is processed.
    pub progress: bool,
}

/// The body as sent.
#[derive(Debug, Default, Deserialize)]
struct Body {
    model: Option<String>,
    messages: Option<Vec<Value>>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
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
    logprobs: Option<bool>,
    top_logprobs: Option<u64>,
    stream: Option<bool>,
    stream_options: Option<Map<String, Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    enable_thinking: Option<bool>,
    preserve_thinking: Option<bool>,
    reasoning_effort: Option<String>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    response_format: Option<Value>,
    structured_outputs: Option<Value>,
    guided_json: Option<Value>,
    guided_regex: Option<Value>,
    guided_choice: Option<Value>,
    guided_grammar: Option<Value>,
    thinking_budget: Option<u64>,
    return_progress: Option<bool>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

/// Reads and checks a body.
pub fn parse(body: &[u8], context: &RequestContext) -> Result<ChatJob, ApiError> {
    let body: Body = params::read_json(body)?;
    fields::check("", &body.extra, fields::CHAT)?;
    params::check_model(body.model.as_deref(), &context.models)?;
    let n = choices(body.n)?;
    let format = format::chat(&format::ChatFields {
        response_format: body.response_format.as_ref(),
        structured_outputs: body.structured_outputs.as_ref(),
        guided_json: body.guided_json.as_ref(),
        guided_regex: body.guided_regex.as_ref(),
        guided_choice: body.guided_choice.as_ref(),
        guided_grammar: body.guided_grammar.as_ref(),
    })?;
    let offered = tools::read(body.tools)?;
    let choice = openai_choice(body.tool_choice.as_ref(), |tool| tool.get("function")?.get("name"))?;
    let plan = offered.plan(&choice, "tool_choice", body.parallel_tool_calls != Some(false), format)?;
    let messages = body.messages.ok_or_else(|| params::missing("messages", "a list of chat messages"))?;
    let messages = messages::check(messages)?;
    let stream = body.stream.unwrap_or(false);
    let include_usage = stream_options(body.stream_options.as_ref(), stream)?;
    if body.return_progress == Some(true) && !stream {
        return Err(ApiError::invalid(
            "return_progress",
            "return_progress is only allowed when stream is true",
        ));
    }
    let thinking = Thinking {
        enable: body.enable_thinking,
        preserve: body.preserve_thinking,
        effort: body.reasoning_effort.as_deref(),
        effort_path: "reasoning_effort",
        kwargs: body.chat_template_kwargs,
    };
    let logprobs = params::logprobs(body.logprobs, body.top_logprobs)?;
    let defaults = &context.sampling;
    let options = GenerateOptions {
        max_tokens: params::max_tokens(body.max_tokens, body.max_completion_tokens)?,
        stop: params::stop_strings(body.stop)?,
        logprobs,
        max_tool_calls: plan.max_tool_calls,
        tools: plan.set,
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
    let render = RenderRequest { messages, tools: plan.definitions, kwargs: thinking.keywords(context)? };
    let job = Job {
        source: Source::Chat(render),
        options,
        answer: plan.answer,
        calls: plan.calls,
        thinking_budget: body.thinking_budget.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
        n,
    };
    let progress = body.return_progress.unwrap_or(false);
    Ok(ChatJob { job, logprobs: logprobs.is_some(), stream, include_usage, progress })
}

/// Answers wanted.
pub fn choices(n: Option<u64>) -> Result<usize, ApiError> {
    match n {
        None => Ok(1),
        Some(n) => match usize::try_from(n) {
            Ok(n @ 1..=MAX_CHOICES) => Ok(n),
            _ => Err(ApiError::invalid("n", format!("n is {n}; expected 1 to {MAX_CHOICES}"))),
        },
    }
}

pub fn stream_options(options: Option<&Map<String, Value>>, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = options else { return Ok(false) };
    if !stream {
        return Err(ApiError::invalid(
            "stream_options",
            "stream_options is only allowed when stream is true",
        ));
    }
    let mut include_usage = false;
    for (key, value) in options {
        match (key.as_str(), value) {
            ("include_usage", Value::Bool(b)) => include_usage = *b,
            ("include_usage" | "include_obfuscation", Value::Null)
            | ("include_obfuscation", Value::Bool(false)) => {}
            ("include_obfuscation", Value::Bool(true)) => {
                return Err(ApiError::unsupported(
                    "stream_options.include_obfuscation",
                    "include_obfuscation is not supported; leave it out",
                ));
            }
            ("include_usage" | "include_obfuscation", other) => {
                return Err(ApiError::invalid(
                    format!("stream_options.{key}"),
                    format!("found {}; expected true or false", shown(other)),
                ));
            }
            _ => return Err(ApiError::unknown(format!("stream_options.{key}"))),
        }
    }
    Ok(include_usage)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn context() -> RequestContext {
        let sampling = SamplingParams { temperature: 0.7, top_k: 20, ..SamplingParams::default() };
        RequestContext {
            sampling,
            vocab: 100,
            thinking: Some(false),
            models: vec!["m".into()],
            template: None,
        }
    }

    fn with(fields: Value) -> Result<ChatJob, ApiError> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        parse(body.to_string().as_bytes(), &context())
    }

    fn render(job: &ChatJob) -> &RenderRequest {
        match &job.job.source {
            Source::Chat(render) => render,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults_are_the_checkpoints() {
        let job = with(json!({})).unwrap();
        assert_eq!((job.job.options.sampling.temperature, job.job.options.sampling.top_k), (0.7, 20));
        assert_eq!(render(&job).kwargs["enable_thinking"], false);
        let job = with(json!({"temperature": 0, "top_k": -1, "seed": -3})).unwrap();
        assert_eq!((job.job.options.sampling.temperature, job.job.options.sampling.top_k), (0.0, 0));
        assert_eq!(job.job.options.sampling.seed, (-3i64).cast_unsigned());
    }

    #[test]
    fn template_keywords_pass_through() {
        let kwargs = json!({"preserve_thinking": true, "add_vision_id": 1});
        let job = with(json!({"chat_template_kwargs": kwargs, "reasoning_effort": "high"})).unwrap();
        let expected = json!({"preserve_thinking": true, "add_vision_id": 1, "enable_thinking": true, "add_generation_prompt": true});
        assert_eq!(Value::Object(render(&job).kwargs.clone()), expected);
    }

    #[test]
    fn messages_keep_only_what_the_template_sees() {
        let sent = json!([
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}], "name": "ann"},
            {"role": "assistant", "content": null, "refusal": null, "annotations": [], "audio": null,
             "reasoning": "hm", "tool_calls": [
                {"id": "1", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "b"},
        ]);
        let job = with(json!({"messages": sent})).unwrap();
        let first = json!({"role": "user", "content": [{"type": "text", "text": "a"}]});
        assert_eq!(render(&job).messages[0], first);
        assert_eq!(render(&job).messages[1]["content"], "");
        assert_eq!(render(&job).messages[1]["reasoning_content"], "hm");
        assert!(render(&job).messages[1].get("refusal").is_none());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z_{}<>]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let key = prop_oneof!["[a-z]{1,6}", prop::sample::select(NAMES).prop_map(String::from)];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    const NAMES: &[&str] = &[
        "role",
        "content",
        "type",
        "text",
        "function",
        "name",
        "arguments",
        "parameters",
        "tool_calls",
        "properties",
        "include_usage",
        "strict",
    ];
    const FIELDS: &[&str] = &[
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "logit_bias",
        "seed",
        "stop",
        "n",
        "logprobs",
        "top_logprobs",
        "stream",
        "stream_options",
        "chat_template_kwargs",
        "tools",
        "tool_choice",
        "response_format",
        "reasoning_effort",
        "user",
        "store",
        "modalities",
    ];

    proptest! {
        #[test]
        fn no_body_panics(
            fields in prop::collection::vec((prop::sample::select(FIELDS), any_json()), 0..6),
            bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let fields: Map<String, Value> = fields.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
            if let Err(error) = with(Value::Object(fields)) {
                prop_assert!(error.status.is_client_error() && !error.message.is_empty());
            }
            prop_assert!(parse(&bytes, &context()).is_err());
        }
    }
}
