//! `lily run`: one prompt, one answer.

use std::{
    io::{self, IsTerminal, Read},
    path::PathBuf,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use lily_engine::CancelFlag;
use serde_json::json;

use crate::{
    answer::{self, AnswerArgs},
    load::{self, Thinking},
};

/// Answer one prompt and print the answer as it is written.
///
/// The prompt is the words of the command line; without any, or where one of them is `-`, it is read from stdin. The
/// answer goes to stdout; reasoning and remarks go to stderr.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The prompt. `-` stands for what stdin holds.
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,

    /// Checkpoint directory, or `lily-mini` for the model inside this program.
    ///
    /// The directory holds config.json, tokenizer.json, chat_template.jinja and one or several safetensors files.
    #[arg(short, long, value_name = "MODEL", env = "LILY_MODEL")]
    model: Option<PathBuf>,

    /// System message before the prompt.
    #[arg(long, value_name = "TEXT", env = "LILY_SYSTEM")]
    system: Option<String>,

    /// Think before answering.
    #[arg(long, value_enum, default_value_t = Thinking::Auto, env = "LILY_THINKING")]
    thinking: Thinking,

    /// Print counts and speeds to stderr at the end.
    #[arg(long, env = "LILY_STATS", value_parser = clap::builder::BoolishValueParser::new())]
    stats: bool,

    #[command(flatten)]
    answer: AnswerArgs,

    #[command(flatten)]
    device: load::RunArgs,
}

/// Runs the command.
pub fn run(args: RunArgs) -> Result<()> {
    let prompt = prompt(&args.prompt)?;
    let loaded = load::load(args.model, &args.device, &load::Serving::one())?;
    let mut messages = Vec::new();
    if let Some(system) = args.system {
        messages.push(json!({"role": "system", "content": system}));
    }
    messages.push(json!({"role": "user", "content": prompt}));
    let options = args.answer.options(loaded.engine.default_sampling());
    let thinking = loaded.thinking(args.thinking);
    let (_, outcome) = answer::answer(&loaded.engine, messages, thinking, options, CancelFlag::new())?;
    if let Some(remark) = answer::remark(&outcome.finish) {
        eprintln!("({remark})");
    }
    if args.stats {
        eprintln!("{}", answer::stats_line(&outcome.stats));
    }
    Ok(())
}

fn prompt(words: &[String]) -> Result<String> {
    let prompt = match words {
        [] => stdin()?,
        words if words.iter().any(|w| w == "-") => {
            let piped = stdin()?;
            let piped = piped.trim_end();
            words.iter().map(|w| if w == "-" { piped } else { w }).collect::<Vec<_>>().join(" ")
        }
        words => words.join(" "),
    };
    if prompt.trim().is_empty() {
        bail!("the prompt is empty; give it as words, for example: lily run \"define heron\"");
    }
    Ok(prompt)
}

fn stdin() -> Result<String> {
    let mut text = String::new();
    if io::stdin().is_terminal() {
        eprintln!("(reading the prompt from the terminal; end it with Ctrl-D)");
    }
    io::stdin().read_to_string(&mut text).context("stdin")?;
    Ok(text)
}
