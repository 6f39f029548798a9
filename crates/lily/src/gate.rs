//! `lily gate`: what of a text would leave, and what would not.

use std::{
    fs,
    io::{self, IsTerminal, Read},
    path::PathBuf,
};

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use lily_gate::{
    body::{Decision, Gate, Inbound, SpanReport, SpanVerdict},
    policy::Policy,
};
use serde_json::{Value, json};

use crate::{
    gate_eval::{self, GateEvalArgs},
    gate_setup::{gate_for_looking, read_policy},
    output::print,
};

/// Show what the Privacy Gate finds in a text: what would be masked before anything left this machine.
///
/// Reads files, or stdin. A JSON object with `messages` is taken for a chat request, anything else for plain text.
/// Layer 1 alone looks (patterns and dictionaries); nothing is sent.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct GateArgs {
    #[command(subcommand)]
    command: Option<GateCommand>,

    /// Files to look at; `-` or none: stdin.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// How to show it. Default: coloured on a terminal, text elsewhere.
    #[arg(long, value_enum, value_name = "FORM", env = "LILY_GATE_FORMAT")]
    format: Option<Format>,

    /// The policy (TOML). Default: the strictest one.
    #[arg(long, value_name = "FILE", env = "LILY_GATE_POLICY")]
    policy: Option<PathBuf>,

    /// Exit with status 1 if anything private was found.
    #[arg(long, env = "LILY_GATE_FAIL", value_parser = clap::builder::BoolishValueParser::new())]
    fail: bool,
}

#[derive(Debug, Subcommand)]
enum GateCommand {
    Eval(GateEvalArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The masked text.
    Text,
    /// Verdict, spans and masked request.
    Json,
    /// The text as it is, with what was found in colours.
    Color,
}

/// Runs the command.
pub fn run(args: &GateArgs) -> Result<()> {
    if let Some(GateCommand::Eval(args)) = &args.command {
        return gate_eval::run(args);
    }
    let policy = match &args.policy {
        Some(file) => read_policy(file)?,
        None => Policy::default(),
    };
    let gate = gate_for_looking(policy)?;
    let default = if io::stdout().is_terminal() { Format::Color } else { Format::Text };
    let format = args.format.unwrap_or(default);
    let stdin = [PathBuf::from("-")];
    let files = if args.files.is_empty() { &stdin[..] } else { &args.files };
    let mut found = 0;
    for file in files {
        let input = read(file)?;
        let (request, plain) = request_of(&input);
        let decision = gate.check(Inbound {
            request: &request,
            model: "model",
            client: "",
            session: None,
            approval: None,
            style: None,
            dry_run: true,
        });
        found += decision.report().spans.iter().filter(|s| s.verdict != SpanVerdict::Allow).count();
        match format {
            Format::Json => {
                print(&format!("{}\n", serde_json::to_string_pretty(&as_json(file, &decision))?))?
            }
            Format::Text => print(&masked(&gate, &decision, plain)?)?,
            Format::Color => print(&coloured(&request, &decision))?,
        }
    }
    anyhow::ensure!(!(args.fail && found > 0), "{found} private values were found");
    Ok(())
}

fn read(file: &PathBuf) -> Result<String> {
    if file.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).context("stdin (expected UTF-8 text)")?;
        return Ok(text);
    }
    fs::read_to_string(file).with_context(|| format!("{} (expected UTF-8 text)", file.display()))
}

/// The request that an input is, and whether it was plain text.
fn request_of(input: &str) -> (Value, bool) {
    match serde_json::from_str::<Value>(input) {
        Ok(request) if request.get("messages").is_some() => (request, false),
        _ => (json!({"messages": [{"role": "user", "content": input}]}), true),
    }
}

fn as_json(file: &std::path::Path, decision: &Decision) -> Value {
    let mut shown = json!({"file": file.display().to_string(), "verdict": decision.verdict(), "report": decision.report()});
    match decision {
        Decision::Send(body) => {
            shown["masked"] = serde_json::from_slice(body.bytes()).unwrap_or(Value::Null);
        }
        Decision::Ask(_) => {}
        Decision::Local(kept) | Decision::Refuse(kept) => shown["reason"] = kept.reason.clone().into(),
    }
    shown
}

/// What would leave; for a request that would not, why.
fn masked(gate: &Gate, decision: &Decision, plain: bool) -> Result<String> {
    Ok(match decision {
        Decision::Send(body) => {
            let body: Value = serde_json::from_slice(body.bytes())?;
            match body.pointer("/messages/0/content").and_then(Value::as_str).filter(|_| plain) {
                Some(text) => text.to_owned(),
                None => format!("{}\n", serde_json::to_string_pretty(&body)?),
            }
        }
        Decision::Ask(consent) => {
            format!("(waits for consent: {} private values)\n", consent.report.spans.len())
        }
        Decision::Local(kept) => format!("(stays on this machine: {})\n", kept.reason),
        Decision::Refuse(kept) => {
            debug_assert!(gate.ready().is_ok());
            format!("(refused: {})\n", kept.reason)
        }
    })
}

/// The request's texts with what was found in colours, and a list of it.
fn coloured(request: &Value, decision: &Decision) -> String {
    const RESET: &str = "\x1b[0m";
    let report = decision.report();
    let mut out = String::new();
    for field in lily_gate::fields(request).unwrap_or_default() {
        let mut spans: Vec<&SpanReport> =
            report.spans.iter().filter(|s| s.path == field.path && s.part == field.part).collect();
        spans.sort_by_key(|s| s.start);
        let mut at = 0;
        for span in spans {
            let (Some(before), Some(value)) =
                (field.text.get(at..span.start), field.text.get(span.start..span.end))
            else {
                continue;
            };
            // Green leaves, yellow is masked, red never leaves.
            let colour = match span.verdict {
                SpanVerdict::Allow => "\x1b[32m",
                SpanVerdict::Mask => "\x1b[30;43m",
                SpanVerdict::Strip | SpanVerdict::Block => "\x1b[97;41m",
            };
            out += &format!("{before}{colour}{value}{RESET}");
            at = span.end;
        }
        out += field.text.get(at..).unwrap_or_default();
        if !out.ends_with('\n') {
            out.push('\n');
        }
    }
    out += &format!(
        "\n{}: {} found, {} further mentions\n",
        decision.verdict().name(),
        report.spans.len(),
        report.swept
    );
    for span in &report.spans {
        let token = span.token.as_deref().unwrap_or("-");
        let evidence = format!("{:?}", span.evidence).to_lowercase();
        out += &format!(
            "  {:<12} {:>3} characters at {}[{}..{}]  {} v{} ({evidence})  {token}\n",
            span.category.name(),
            span.length,
            span.path,
            span.start,
            span.end,
            span.recognizer,
            span.version,
        );
    }
    if let Decision::Local(kept) | Decision::Refuse(kept) = decision {
        out += &format!("  {}\n", kept.reason);
    }
    out
}
