//! The body of `POST /v1/responses`, as a job.

use lily_engine::SamplingParams;
use lily_text::RenderRequest;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    input,
    output::{Echo, Namespaces},
};
use crate::{
    chat::{RequestContext, thinking::Thinking},
    error::ApiError,
    fields::{self, Allowed, shown},
    format,
    generate::GenerateOptions,
    job::{Job, Source},
    params,
    tools::{Declared, Offered, openai_choice},
};

/// Fields that are known beyond those implemented here.
const KNOWN: &[(&str, Allowed)] = &[
    ("user", Allowed::Anything),
    ("safety_identifier", Allowed::Anything),
    ("prompt_cache_key", Allowed::Anything),
    ("prompt_cache_retention", Allowed::Anything),
    ("client_metadata", Allowed::Anything),
    ("service_tier", Allowed::OneOf(&["\"auto\"", "\"default\""])),
    ("store", Allowed::Only("false")),
    ("background", Allowed::Only("false")),
    ("truncation", Allowed::Only("\"disabled\"")),
    ("previous_response_id", Allowed::Nothing),
    ("conversation", Allowed::Nothing),
    ("prompt", Allowed::Nothing),
    ("max_tool_calls", Allowed::Nothing),
    ("context_management", Allowed::Nothing),
    ("moderation", Allowed::Nothing),
];

#[derive(Debug, Default, Deserialize)]
struct Body {
    model: Option<String>,
    input: Option<Value>,
    instructions: Option<String>,
    max_output_tokens: Option<u64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    seed: Option<Value>,
    stop: Option<Value>,
    top_logprobs: Option<u64>,
    include: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    text: Option<Map<String, Value>>,
    reasoning: Option<Map<String, Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    enable_thinking: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<Map<String, Value>>,
    metadata: Option<Map<String, Value>>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

/// A checked request.
#[derive(Debug)]
pub(super) struct ResponseJob {
    pub(super) job: Job,
    pub(super) echo: Echo,
    pub(super) stream: bool,
}

/// Reads and checks a body.
pub(super) fn parse(body: &[u8], context: &RequestContext) -> Result<ResponseJob, ApiError> {
    let body: Body = params::read_json(body)?;
    fields::check("", &body.extra, KNOWN)?;
    params::check_model(body.model.as_deref(), &context.models)?;
    if let Some(options) = &body.stream_options {
        fields::check("stream_options.", options, &[("include_obfuscation", Allowed::Only("false"))])?;
    }
    let text = json!(body.text.clone().unwrap_or_default());
    fields::check_others("text.", &text, &["format"], &[("verbosity", Allowed::Only("\"medium\""))])?;
    let format = format::response_format(text.get("format"), "text.format")?;
    let effort = reasoning(body.reasoning.as_ref())?;
    let wants_logprobs = include(body.include.as_deref().unwrap_or_default())?;
    let logprobs = params::logprobs(Some(wants_logprobs || body.top_logprobs.is_some()), body.top_logprobs)?;

    let list = body.tools.unwrap_or_default();
    let (offered, namespaces) = tools(&list)?;
    let choice = openai_choice(body.tool_choice.as_ref(), |tool| tool.get("name"))?;
    let parallel = body.parallel_tool_calls != Some(false);
    let plan = offered.plan(&choice, "tool_choice", parallel, format)?;

    let given = body.input.as_ref().ok_or_else(|| params::missing("input", "a text or a list of items"))?;
    let mut messages = input::messages(given)?;
    if let Some(instructions) = body.instructions.as_ref().filter(|t| !t.is_empty()) {
        messages.insert(0, json!({"role": "system", "content": instructions}));
    }
    let said = Thinking {
        enable: body.enable_thinking,
        preserve: None,
        effort: effort.as_deref(),
        effort_path: "reasoning.effort",
        kwargs: body.chat_template_kwargs,
    };
    let kwargs = said.keywords(context)?;
    let defaults = &context.sampling;
    let max_tokens = match body.max_output_tokens {
        Some(0) => {
            return Err(ApiError::invalid(
                "max_output_tokens",
                "max_output_tokens is 0; expected at least 1",
            ));
        }
        n => n.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
    };
    let sampling = SamplingParams {
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
        logit_bias: Vec::new(),
        seed: params::seed(body.seed.as_ref())?,
    };
    let echo = Echo {
        instructions: body.instructions.map_or(Value::Null, Value::from),
        max_output_tokens: max_tokens,
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_logprobs: body.top_logprobs.unwrap_or(0),
        logprobs: logprobs.is_some(),
        effort: effort.map_or(Value::Null, Value::from),
        format: text.get("format").cloned().unwrap_or_else(|| json!({"type": "text"})),
        tools: list,
        namespaces,
        tool_choice: body.tool_choice.unwrap_or_else(|| json!("auto")),
        parallel_tool_calls: parallel,
        metadata: body.metadata.unwrap_or_default(),
    };
    let options = GenerateOptions {
        max_tokens,
        stop: params::stop_strings(body.stop)?,
        logprobs,
        max_tool_calls: plan.max_tool_calls,
        tools: plan.set,
        sampling,
        ..GenerateOptions::default()
    };
    let render = RenderRequest { messages, tools: plan.definitions, kwargs };
    let job = Job { answer: plan.answer, calls: plan.calls, ..Job::new(Source::Chat(render), options) };
    Ok(ResponseJob { job, echo, stream: body.stream.unwrap_or(false) })
}

/// The effort asked for. Summaries of reasoning are not made; the reasoning itself is returned.
fn reasoning(reasoning: Option<&Map<String, Value>>) -> Result<Option<String>, ApiError> {
    let Some(reasoning) = reasoning else { return Ok(None) };
    let known = [
        ("summary", Allowed::OneOf(&["\"auto\"", "\"none\""])),
        ("generate_summary", Allowed::OneOf(&["\"auto\""])),
    ];
    fields::check_others("reasoning.", &json!(reasoning), &["effort"], &known)?;
    match reasoning.get("effort") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(effort)) => Ok(Some(effort.clone())),
        Some(other) => Err(ApiError::invalid(
            "reasoning.effort",
            format!("found {}; expected none, minimal, low, medium, high or xhigh", shown(other)),
        )),
    }
}

/// Whether log-probabilities are among what to include. Encrypted reasoning is for servers that hide it; here it is in
/// the item's `content`.
fn include(list: &[Value]) -> Result<bool, ApiError> {
    let mut logprobs = false;
    for (i, what) in list.iter().enumerate() {
        match what.as_str() {
            Some("message.output_text.logprobs") => logprobs = true,
            Some("reasoning.encrypted_content") => {}
            _ => {
                return Err(ApiError::unsupported(
                    format!("include[{i}]"),
                    format!("including {} is not supported; leave it out", shown(what)),
                ));
            }
        }
    }
    Ok(logprobs)
}

/// Joins a namespace and a function's name, for the model, which knows no namespaces.
const NAMESPACE_SEPARATOR: &str = ".";

/// The functions offered, and for those of a namespace what their joined names mean.
fn tools(list: &[Value]) -> Result<(Offered, Namespaces), ApiError> {
    Offered::check_count(list.len())?;
    let (mut offered, mut namespaces) = (Offered::default(), Namespaces::default());
    for (i, tool) in list.iter().enumerate() {
        let path = format!("tools[{i}]");
        match tool.get("type").and_then(Value::as_str) {
            Some("function") => add(&mut offered, &path, tool, tool.get("name"))?,
            Some("namespace") => {
                fields::check_others(
                    &format!("{path}."),
                    tool,
                    &["type", "name", "description", "tools"],
                    &[],
                )?;
                let space = tool.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
                let space =
                    space.ok_or_else(|| params::missing(&format!("{path}.name"), "the namespace's name"))?;
                let inner = tool.get("tools").and_then(Value::as_array).into_iter().flatten();
                for (j, tool) in inner.enumerate() {
                    let path = format!("{path}.tools[{j}]");
                    if tool.get("type").and_then(Value::as_str) != Some("function") {
                        return Err(not_a_function(&path, tool));
                    }
                    let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
                    let joined = [space, name].join(NAMESPACE_SEPARATOR);
                    add(&mut offered, &path, tool, Some(&json!(joined)))?;
                    namespaces.insert(joined, (space.to_string(), name.to_string()));
                }
            }
            _ => return Err(not_a_function(&path, tool)),
        }
    }
    Ok((offered, namespaces))
}

fn not_a_function(path: &str, tool: &Value) -> ApiError {
    match tool.get("type").and_then(Value::as_str) {
        Some(other) => ApiError::unsupported(
            format!("{path}.type"),
            format!("tools of type {other:?} are not supported; only \"function\" and \"namespace\" are"),
        ),
        None => ApiError::invalid(
            format!("{path}.type"),
            format!("found {}; expected an object of type \"function\"", shown(tool)),
        ),
    }
}

fn add(offered: &mut Offered, path: &str, tool: &Value, name: Option<&Value>) -> Result<(), ApiError> {
    let known = ["type", "name", "description", "parameters", "strict"];
    let neutral = [("defer_loading", Allowed::Only("false")), ("output_schema", Allowed::Anything)];
    fields::check_others(&format!("{path}."), tool, &known, &neutral)?;
    offered.add(&Declared {
        path,
        name,
        description: tool.get("description"),
        parameters: tool.get("parameters"),
        schema_field: "parameters",
        strict: tool.get("strict"),
    })
}
