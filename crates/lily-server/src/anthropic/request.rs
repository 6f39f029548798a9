//! The body of `POST /v1/messages`, as a job.

use lily_engine::SamplingParams;
use lily_text::RenderRequest;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    chat::{RequestContext, thinking::Thinking},
    error::ApiError,
    fields::{self, Allowed, shown},
    format,
    generate::GenerateOptions,
    job::{Job, Source},
    params,
    tools::{Choice, Declared, Offered},
};

/// Claude Code begins its system prompt with a line that differs from request to request. It says nothing to the
/// model, and no prompt after it would ever be found in the cache.
const BILLING: &str = "x-anthropic-billing-header:";
/// Most stop sequences.
const MAX_STOPS: usize = 16;

/// Fields that are known beyond those implemented here.
const KNOWN: &[(&str, Allowed)] = &[
    ("metadata", Allowed::Anything),
    ("cache_control", Allowed::Anything),
    ("service_tier", Allowed::OneOf(&["\"auto\"", "\"standard_only\""])),
    ("container", Allowed::Nothing),
    ("mcp_servers", Allowed::Only("[]")),
    ("inference_geo", Allowed::Nothing),
    ("speed", Allowed::Only("\"standard\"")),
];
/// Fields of any content block that say nothing here.
const BLOCK: &[(&str, Allowed)] = &[("cache_control", Allowed::Anything), ("citations", Allowed::Nothing)];
/// Fields of a tool that say nothing here.
const TOOL: &[(&str, Allowed)] = &[
    ("cache_control", Allowed::Anything),
    ("eager_input_streaming", Allowed::Anything),
    ("input_examples", Allowed::Only("[]")),
    ("defer_loading", Allowed::Only("false")),
    ("allowed_callers", Allowed::Only("[\"direct\"]")),
];

#[derive(Debug, Default, Deserialize)]
struct Body {
    model: Option<String>,
    messages: Option<Vec<Value>>,
    system: Option<Value>,
    max_tokens: Option<u64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    stop_sequences: Option<Vec<Value>>,
    stream: Option<bool>,
    thinking: Option<Map<String, Value>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    output_config: Option<Value>,
    output_format: Option<Value>,
    context_management: Option<Value>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

/// A checked request.
#[derive(Debug)]
pub(super) struct MessagesJob {
    pub(super) job: Job,
    pub(super) stream: bool,
}

/// Reads and checks a body. `generate`: `max_tokens` is needed.
pub(super) fn parse(body: &[u8], context: &RequestContext, generate: bool) -> Result<MessagesJob, ApiError> {
    let body: Body = params::read_json(body)?;
    fields::check("", &body.extra, KNOWN)?;
    params::check_model(body.model.as_deref(), &context.models)?;
    if generate && body.max_tokens.is_none() {
        return Err(params::missing("max_tokens", "the most tokens to generate"));
    }
    check_context_management(body.context_management.as_ref())?;
    let max_tokens = params::max_tokens(body.max_tokens, None)?;
    let (format, effort) = output_config(body.output_config.as_ref(), body.output_format.as_ref())?;
    let offered = tools(body.tools.as_deref().unwrap_or_default())?;
    let (choice, parallel) = tool_choice(body.tool_choice.as_ref())?;
    let plan = offered.plan(&choice, "tool_choice", parallel, format)?;
    let mut messages = system(body.system.as_ref())?;
    let list = body.messages.ok_or_else(|| params::missing("messages", "a list of messages"))?;
    if list.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty; expected at least one message"));
    }
    for (i, message) in list.iter().enumerate() {
        add_message(&mut messages, &format!("messages[{i}]"), message)?;
    }
    if messages.last().is_some_and(|m| m["role"] == "assistant") {
        return Err(ApiError::unsupported(
            "messages",
            "the last message is the assistant's; beginning its answer for it is not supported",
        ));
    }
    let (enable, budget) = thinking(body.thinking.as_ref(), max_tokens)?;
    let said = Thinking {
        enable,
        preserve: None,
        effort: effort.as_deref().filter(|_| enable.is_none()),
        effort_path: "output_config.effort",
        kwargs: None,
    };
    let mut kwargs = said.keywords(context)?;
    // In this API thinking is asked for.
    kwargs.entry("enable_thinking").or_insert(Value::Bool(false));
    let defaults = &context.sampling;
    let options = GenerateOptions {
        max_tokens,
        stop: stops(body.stop_sequences.unwrap_or_default())?,
        max_tool_calls: plan.max_tool_calls,
        tools: plan.set,
        sampling: SamplingParams {
            temperature: params::range("temperature", body.temperature, 0.0, 1.0)?
                .unwrap_or(defaults.temperature),
            top_p: params::top_p(body.top_p)?.unwrap_or(defaults.top_p),
            top_k: params::top_k(body.top_k)?.unwrap_or(defaults.top_k),
            seed: rand::random(),
            ..defaults.clone()
        },
        ..GenerateOptions::default()
    };
    let render = RenderRequest { messages, tools: plan.definitions, kwargs };
    let job = Job {
        answer: plan.answer,
        calls: plan.calls,
        thinking_budget: budget,
        ..Job::new(Source::Chat(render), options)
    };
    Ok(MessagesJob { job, stream: body.stream.unwrap_or(false) })
}

fn stops(list: Vec<Value>) -> Result<Vec<String>, ApiError> {
    if list.len() > MAX_STOPS {
        return Err(ApiError::invalid(
            "stop_sequences",
            format!("{} stop sequences; at most {MAX_STOPS} are allowed", list.len()),
        ));
    }
    list.into_iter()
        .enumerate()
        .map(|(i, value)| match value {
            Value::String(stop) => params::check_stop(&format!("stop_sequences[{i}]"), stop),
            other => Err(ApiError::invalid(
                format!("stop_sequences[{i}]"),
                format!("found {}; expected a string", shown(&other)),
            )),
        })
        .collect()
}

/// Whether to think, and at most how long.
fn thinking(
    thinking: Option<&Map<String, Value>>,
    max_tokens: Option<usize>,
) -> Result<(Option<bool>, Option<usize>), ApiError> {
    let Some(thinking) = thinking else { return Ok((None, None)) };
    let path = "thinking.budget_tokens";
    let known = [("display", Allowed::OneOf(&["\"summarized\"", "\"full\""]))];
    fields::check_others("thinking.", &json!(thinking), &["type", "budget_tokens"], &known)?;
    let budget = match thinking.get("budget_tokens") {
        None | Some(Value::Null) => None,
        Some(value) => Some(value.as_u64().and_then(|n| usize::try_from(n).ok()).ok_or_else(|| {
            ApiError::invalid(path, format!("found {}; expected a number of tokens", shown(value)))
        })?),
    };
    match thinking.get("type").and_then(Value::as_str) {
        Some("enabled") => match (budget, max_tokens) {
            (None, _) => Err(params::missing(path, "the most tokens of thinking")),
            (Some(budget), Some(most)) if budget >= most => Err(ApiError::invalid(
                path,
                format!("budget_tokens is {budget}; expected less than max_tokens, which is {most}"),
            )),
            (Some(budget), _) => Ok((Some(true), Some(budget))),
        },
        Some("adaptive") => Ok((Some(true), budget)),
        Some("disabled") => Ok((Some(false), None)),
        _ => {
            let found = thinking.get("type").map_or_else(|| "nothing".to_string(), shown);
            Err(ApiError::invalid(
                "thinking.type",
                format!("found {found}; expected \"enabled\", \"adaptive\" or \"disabled\""),
            ))
        }
    }
}

type Format = Option<(crate::grammar::Grammar, String)>;

/// The answer's form, and the effort.
fn output_config(
    config: Option<&Value>,
    beta_format: Option<&Value>,
) -> Result<(Format, Option<String>), ApiError> {
    let mut format = format::response_format(beta_format, "output_format")?;
    let Some(config) = config.filter(|c| !c.is_null()) else { return Ok((format, None)) };
    if !config.is_object() {
        return Err(ApiError::invalid(
            "output_config",
            format!("found {}; expected an object", shown(config)),
        ));
    }
    fields::check_others("output_config.", config, &["effort", "format"], &[])?;
    if let Some(inner) = config.get("format").filter(|f| !f.is_null()) {
        format = format::response_format(Some(inner), "output_config.format")?;
    }
    match config.get("effort") {
        None | Some(Value::Null) => Ok((format, None)),
        Some(Value::String(effort)) => Ok((format, Some(effort.clone()))),
        Some(other) => Err(ApiError::invalid(
            "output_config.effort",
            format!("found {}; expected low, medium, high or max", shown(other)),
        )),
    }
}

/// Editing earlier turns is not supported; keeping all of them is.
fn check_context_management(value: Option<&Value>) -> Result<(), ApiError> {
    let Some(value) = value.filter(|v| !v.is_null()) else { return Ok(()) };
    let edits = value.get("edits").and_then(Value::as_array);
    let keeps_all = |edit: &Value| {
        edit["type"].as_str().is_some_and(|t| t.starts_with("clear_thinking_")) && edit["keep"] == "all"
    };
    match edits {
        Some(edits) if edits.iter().all(keeps_all) => Ok(()),
        _ => Err(ApiError::unsupported(
            "context_management",
            format!("`context_management` is not supported (found {}); leave it out", shown(value)),
        )),
    }
}

fn tools(list: &[Value]) -> Result<Offered, ApiError> {
    Offered::check_count(list.len())?;
    let mut offered = Offered::default();
    for (i, tool) in list.iter().enumerate() {
        let path = format!("tools[{i}]");
        match tool.get("type") {
            None | Some(Value::Null) => {}
            Some(kind) if kind == "custom" => {}
            Some(kind) => {
                return Err(ApiError::unsupported(
                    format!("{path}.type"),
                    format!(
                        "tools of type {} are not supported; only those with an input_schema are",
                        shown(kind)
                    ),
                ));
            }
        }
        if !tool.is_object() {
            return Err(ApiError::invalid(path, format!("found {}; expected an object", shown(tool))));
        }
        let known = ["type", "name", "description", "input_schema", "strict"];
        fields::check_others(&format!("{path}."), tool, &known, TOOL)?;
        offered.add(&Declared {
            path: &path,
            name: tool.get("name"),
            description: tool.get("description"),
            parameters: tool.get("input_schema"),
            schema_field: "input_schema",
            strict: tool.get("strict"),
        })?;
    }
    Ok(offered)
}

/// The choice, and whether several calls may come.
fn tool_choice(choice: Option<&Value>) -> Result<(Choice, bool), ApiError> {
    let Some(choice) = choice.filter(|c| !c.is_null()) else { return Ok((Choice::Auto, true)) };
    let known = ["type", "name", "disable_parallel_tool_use"];
    fields::check_others("tool_choice.", choice, &known, &[])?;
    let parallel = match choice.get("disable_parallel_tool_use") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(disable)) => !disable,
        Some(other) => {
            return Err(ApiError::invalid(
                "tool_choice.disable_parallel_tool_use",
                format!("found {}; expected true or false", shown(other)),
            ));
        }
    };
    let kind = match choice.get("type").and_then(Value::as_str) {
        Some("auto") => Choice::Auto,
        Some("any") => Choice::Required(Vec::new()),
        Some("none") => Choice::None,
        Some("tool") => match choice.get("name") {
            Some(Value::String(name)) => Choice::Required(vec![name.clone()]),
            _ => return Err(params::missing("tool_choice.name", "the tool's name")),
        },
        _ => {
            let found = shown(choice);
            return Err(ApiError::invalid(
                "tool_choice.type",
                format!("found {found}; expected \"auto\", \"any\", \"tool\" or \"none\""),
            ));
        }
    };
    Ok((kind, parallel))
}

/// The system prompt as messages, without the line that differs every time.
fn system(system: Option<&Value>) -> Result<Vec<Value>, ApiError> {
    let texts: Vec<String> = match system {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(blocks)) => {
            let text = |(i, block)| text_block(&format!("system[{i}]"), block);
            blocks.iter().enumerate().map(text).collect::<Result<_, _>>()?
        }
        Some(other) => {
            return Err(ApiError::invalid(
                "system",
                format!("found {}; expected a string or a list of text blocks", shown(other)),
            ));
        }
    };
    let kept: Vec<String> =
        texts.iter().map(|text| without_billing(text)).filter(|t| !t.is_empty()).collect();
    Ok(if kept.is_empty() {
        Vec::new()
    } else {
        vec![json!({"role": "system", "content": kept.join("\n\n")})]
    })
}

fn without_billing(text: &str) -> String {
    match text.trim_start().strip_prefix(BILLING) {
        Some(rest) => rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start_matches('\n').to_string(),
        None => text.to_string(),
    }
}

fn text_block(path: &str, block: &Value) -> Result<String, ApiError> {
    match (block.get("type").and_then(Value::as_str), block.get("text")) {
        (Some("text"), Some(Value::String(text))) => {
            fields::check_others(&format!("{path}."), block, &["type", "text"], BLOCK)?;
            Ok(text.clone())
        }
        (Some("text"), found) => {
            let found = found.map_or_else(|| "nothing".to_string(), shown);
            Err(ApiError::invalid(format!("{path}.text"), format!("found {found}; expected a string")))
        }
        (Some(kind @ ("image" | "document" | "search_result")), _) => Err(ApiError::unsupported(
            format!("{path}.type"),
            format!("content of type {kind:?} is not supported; this server reads text only"),
        )),
        _ => Err(ApiError::invalid(
            format!("{path}.type"),
            format!("found {}; expected a text block", shown(block)),
        )),
    }
}

/// Appends one of this API's messages: a user's may hold tool results, which are messages of their own here.
fn add_message(out: &mut Vec<Value>, path: &str, message: &Value) -> Result<(), ApiError> {
    if !message.is_object() {
        return Err(ApiError::invalid(path, format!("found {}; expected an object", shown(message))));
    }
    fields::check_others(&format!("{path}."), message, &["role", "content"], &[])?;
    let role = match message.get("role").and_then(Value::as_str) {
        Some(role @ ("user" | "assistant" | "system")) => role,
        _ => {
            let found = message.get("role").map_or_else(|| "nothing".to_string(), shown);
            return Err(ApiError::invalid(
                format!("{path}.role"),
                format!("found {found}; expected user or assistant"),
            ));
        }
    };
    let path = format!("{path}.content");
    let blocks = match message.get("content") {
        Some(Value::String(text)) => {
            out.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        Some(Value::Array(blocks)) if !blocks.is_empty() => blocks,
        found => {
            let found = found.map_or_else(|| "nothing".to_string(), shown);
            return Err(ApiError::invalid(
                path,
                format!("found {found}; expected a string or a list of blocks"),
            ));
        }
    };
    if role == "assistant" {
        out.push(assistant(&path, blocks)?);
        return Ok(());
    }
    let mut texts: Vec<String> = Vec::new();
    for (i, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{i}]");
        if block.get("type").and_then(Value::as_str) == Some("tool_result") {
            flush(out, role, &mut texts);
            out.push(tool_result(&path, block)?);
        } else {
            texts.push(text_block(&path, block)?);
        }
    }
    flush(out, role, &mut texts);
    Ok(())
}

/// Text blocks that follow each other are one message, a line each.
fn flush(out: &mut Vec<Value>, role: &str, texts: &mut Vec<String>) {
    if !texts.is_empty() {
        out.push(json!({"role": role, "content": texts.join("\n")}));
        texts.clear();
    }
}

fn tool_result(path: &str, block: &Value) -> Result<Value, ApiError> {
    let known = ["type", "tool_use_id", "content", "is_error"];
    fields::check_others(&format!("{path}."), block, &known, BLOCK)?;
    let Some(id) = block.get("tool_use_id").and_then(Value::as_str) else {
        return Err(params::missing(&format!("{path}.tool_use_id"), "the id of the call"));
    };
    let path = format!("{path}.content");
    let text = match block.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(blocks)) => {
            let text = |(i, block)| text_block(&format!("{path}[{i}]"), block);
            blocks.iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?.join("\n")
        }
        Some(other) => {
            return Err(ApiError::invalid(path, format!("found {}; expected text", shown(other))));
        }
    };
    // The chat format has no mark for failures but words.
    let failed = block.get("is_error") == Some(&Value::Bool(true));
    let says_so = text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("error"));
    let text = if failed && !says_so { format!("Error: {text}") } else { text };
    Ok(json!({"role": "tool", "tool_call_id": id, "content": text}))
}

fn assistant(path: &str, blocks: &[Value]) -> Result<Value, ApiError> {
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for (i, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let prefix = format!("{path}.");
        match block.get("type").and_then(Value::as_str) {
            Some("thinking") => {
                fields::check_others(&prefix, block, &["type", "thinking", "signature"], BLOCK)?;
                reasoning.push_str(block.get("thinking").and_then(Value::as_str).unwrap_or_default());
            }
            Some("tool_use") => {
                let known = [("cache_control", Allowed::Anything), ("caller", Allowed::Anything)];
                fields::check_others(&prefix, block, &["type", "id", "name", "input"], &known)?;
                let text = |field: &str| {
                    let path = format!("{prefix}{field}");
                    block.get(field).and_then(Value::as_str).ok_or_else(|| params::missing(&path, "a string"))
                };
                let input = block
                    .get("input")
                    .filter(|v| v.is_object())
                    .ok_or_else(|| params::missing(&format!("{prefix}input"), "an object"))?;
                calls.push(json!({"id": text("id")?, "type": "function",
                    "function": {"name": text("name")?, "arguments": input}}));
            }
            _ => content.push_str(&text_block(&path, block)?),
        }
    }
    let mut message = json!({"role": "assistant", "content": content});
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Ok(message)
}
