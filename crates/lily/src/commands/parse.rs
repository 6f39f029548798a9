//! `lily parse`: what a client would get for a model's output.

use std::{
    fs,
    io::{Read, Write, stdin, stdout},
    path::PathBuf,
};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, builder::RangedU64ValueParser};
use lily_text::{OutputEvent, OutputParser, ToolSet};
use serde_json::{Value, json};

/// Show what a client gets for a model's raw output.
///
/// Reads the output on stdin and prints the events a client would get, one JSON object a line: `reasoning` and
/// `content` (with `text`), `tool_call_start` (`index`, `id`, `name`), `tool_call_arguments` (`index`, `arguments`: a
/// piece of JSON), `tool_call_end` (`index`, `name`, `arguments`: the whole JSON text) and, last, `finish` (`reason`:
/// stop, tool_calls or length). A call that is not whole has no end and comes out as content.
#[derive(Debug, Args)]
pub struct ParseArgs {
    /// The tools the request offered: a JSON file with a list of them, or a request with `tools`.
    ///
    /// OpenAI's form ({"type": "function", "function": {"name", "parameters"}}), Anthropic's ({"name", "input_schema"})
    /// or the bare inner object.
    #[arg(long, value_name = "TOOLS.json", env = "LILY_PARSE_TOOLS")]
    tools: Option<PathBuf>,

    /// The prompt ended inside a `<think>` block, as it does with thinking on.
    #[arg(long, env = "LILY_PARSE_THINKING", value_parser = clap::builder::BoolishValueParser::new())]
    thinking: bool,

    /// Feed the parser N bytes at a time (rounded up to whole characters), as tokens would come. Default: all at once.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..), env = "LILY_PARSE_CHUNK")]
    chunk: Option<usize>,

    /// The output was cut by a token limit.
    #[arg(long, env = "LILY_PARSE_CUT", value_parser = clap::builder::BoolishValueParser::new())]
    cut: bool,
}

/// Runs the command.
pub fn run(args: &ParseArgs) -> Result<()> {
    let tools = match &args.tools {
        Some(path) => {
            let name = path.display().to_string();
            let bytes = fs::read(path).with_context(|| name.clone())?;
            read_tools(&bytes).with_context(|| name)?
        }
        None => ToolSet::default(),
    };
    let mut bytes = Vec::new();
    stdin().read_to_end(&mut bytes).context("stdin")?;
    // A detokeniser makes U+FFFD of bytes that are no characters; so does this.
    let text = String::from_utf8_lossy(&bytes);

    let mut out = stdout().lock();
    let mut printer = Printer::default();
    let mut parser = OutputParser::new(Some(tools), args.thinking);
    for chunk in chunks(&text, args.chunk.unwrap_or(usize::MAX)) {
        for event in parser.push(chunk) {
            writeln!(out, "{}", printer.line(event))?;
        }
    }
    for event in parser.finish(args.cut) {
        writeln!(out, "{}", printer.line(event))?;
    }
    let reason = if parser.calls() > 0 && !args.cut {
        "tool_calls"
    } else if args.cut || parser.is_unclosed() || printer.broken {
        "length"
    } else {
        "stop"
    };
    writeln!(out, "{}", json!({"type": "finish", "reason": reason}))?;
    Ok(())
}

fn read_tools(bytes: &[u8]) -> Result<ToolSet> {
    let json: Value = serde_json::from_slice(bytes).context("expected JSON")?;
    let list = match &json {
        Value::Array(list) => list,
        Value::Object(request) => match request.get("tools") {
            Some(Value::Array(list)) => list,
            Some(_) => bail!("`tools` is not a list"),
            None => bail!("expected a list of tools, or an object with `tools`"),
        },
        _ => bail!("expected a list of tools, or an object with `tools`"),
    };
    ToolSet::from_definitions(list).map_err(|e| anyhow!(e))
}

/// `text` in pieces of `size` bytes, each as long as the next character's end.
fn chunks(text: &str, size: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut end = size.min(rest.len());
        while !rest.is_char_boundary(end) {
            end += 1;
        }
        let (chunk, after) = rest.split_at(end);
        rest = after;
        Some(chunk)
    })
}

#[derive(Default)]
struct Printer {
    name: String,
    broken: bool,
}

impl Printer {
    fn line(&mut self, event: OutputEvent) -> Value {
        match event {
            OutputEvent::Reasoning(text) => json!({"type": "reasoning", "text": text}),
            OutputEvent::Content(text) => json!({"type": "content", "text": text}),
            OutputEvent::CallStart { index, name } => {
                self.name.clone_from(&name);
                let id = format!("call_{:024x}", rand::random::<u128>() >> 32);
                json!({"type": "tool_call_start", "index": index, "id": id, "name": name})
            }
            OutputEvent::CallArguments { index, json } => {
                json!({"type": "tool_call_arguments", "index": index, "arguments": json})
            }
            OutputEvent::CallEnd { index, arguments, .. } => {
                json!({"type": "tool_call_end", "index": index, "name": self.name, "arguments": arguments})
            }
            OutputEvent::CallBroken { index } => {
                self.broken = true;
                let reason = "not whole: what was written of it follows as content";
                json!({"type": "tool_call_broken", "index": index, "reason": reason})
            }
        }
    }
}
