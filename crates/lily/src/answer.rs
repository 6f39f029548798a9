//! One answer in the terminal: shared by `lily run` and `lily chat`.

use std::sync::mpsc;

use anyhow::{Result, bail};
use clap::{Args, builder::RangedU64ValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use lily_engine::{CancelFlag, SamplingParams, Stats};
use lily_server::{Delta, Finish, GenerateOptions, Outcome, TextEngine, Update};
use lily_text::RenderRequest;
use serde_json::{Map, Value};

use crate::output::AnswerPrinter;

/// How answers are generated.
#[derive(Debug, Clone, Args)]
pub struct AnswerArgs {
    /// 0 always takes the most likely token; higher is more varied. Default: the checkpoint's.
    #[arg(long, value_name = "T", allow_negative_numbers = true, env = "LILY_TEMPERATURE")]
    temperature: Option<f32>,

    /// Draw from the fewest tokens whose probability reaches P. Default: the checkpoint's.
    #[arg(long, value_name = "P", allow_negative_numbers = true, env = "LILY_TOP_P")]
    top_p: Option<f32>,

    /// Draw from the K most likely tokens; 0 = all. Default: the checkpoint's.
    #[arg(long, value_name = "K", allow_negative_numbers = true, env = "LILY_TOP_K")]
    top_k: Option<usize>,

    /// Seed of the draw; the same seed gives the same answer. Default: another one every time.
    #[arg(long, value_name = "N", allow_negative_numbers = true, env = "LILY_SEED")]
    seed: Option<u64>,

    /// Most tokens of an answer. Default: as many as the context has room for.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = RangedU64ValueParser::<usize>::new().range(1..), env = "LILY_MAX_TOKENS")]
    max_tokens: Option<usize>,
}

impl AnswerArgs {
    /// As options for the engine, with the checkpoint's defaults.
    pub fn options(&self, defaults: &SamplingParams) -> GenerateOptions {
        GenerateOptions {
            sampling: SamplingParams {
                temperature: self.temperature.unwrap_or(defaults.temperature),
                top_p: self.top_p.unwrap_or(defaults.top_p),
                top_k: self.top_k.unwrap_or(defaults.top_k),
                seed: self.seed.unwrap_or_else(rand::random),
                ..defaults.clone()
            },
            max_tokens: self.max_tokens,
            ..GenerateOptions::default()
        }
    }
}

/// What the model said.
#[derive(Debug, Default)]
pub struct Answer {
    /// The answer.
    pub content: String,
    /// The thinking before it.
    pub reasoning: String,
}

/// Generates an answer to `messages` and prints it as it comes.
pub fn answer(
    engine: &TextEngine,
    messages: Vec<Value>,
    thinking: Option<bool>,
    options: GenerateOptions,
    cancel: CancelFlag,
) -> Result<(Answer, Outcome)> {
    let mut kwargs = Map::new();
    kwargs.insert("add_generation_prompt".into(), true.into());
    if let Some(thinking) = thinking {
        kwargs.insert("enable_thinking".into(), thinking.into());
    }
    let prompt = engine.prompt(&RenderRequest { messages, tools: None, kwargs })?;
    let (sender, updates) = mpsc::channel();
    // Writing fails when the reader is gone; dropping the receiver then stops the generation.
    engine.generate(prompt, options, cancel, move |update| sender.send(update).is_ok())?;

    let mut answer = Answer::default();
    let mut printer = AnswerPrinter::new();
    let mut prefill = PrefillBar(None);
    for update in updates {
        match update {
            Update::Prefill { done, total } => prefill.show(done, total),
            Update::Output(output) => {
                prefill.hide();
                for delta in output.deltas {
                    match delta {
                        Delta::Content(text) => {
                            printer.content(&text)?;
                            answer.content.push_str(&text);
                        }
                        Delta::Reasoning(text) => {
                            printer.reasoning(&text)?;
                            answer.reasoning.push_str(&text);
                        }
                        // No tools are offered here, so none are looked for.
                        Delta::CallStart { .. }
                        | Delta::CallArguments { .. }
                        | Delta::CallEnd { .. }
                        | Delta::CallBroken { .. } => {}
                    }
                }
            }
            Update::Finished(outcome) => {
                prefill.hide();
                printer.finish()?;
                return Ok((answer, outcome));
            }
            Update::Failed(error) => {
                prefill.hide();
                printer.finish()?;
                return Err(error.into());
            }
        }
    }
    bail!("the engine stopped before the answer was complete")
}

/// Progress of reading a long prompt, on stderr when that is a terminal.
struct PrefillBar(Option<ProgressBar>);

impl PrefillBar {
    /// Shorter prompts are read before a bar could be seen.
    const FROM: usize = 2048;

    fn show(&mut self, done: usize, total: usize) {
        if total < Self::FROM {
            return;
        }
        let bar = self.0.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("reading the prompt {bar:30} {pos}/{len} tokens");
            ProgressBar::new(total as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_position(done as u64);
    }

    fn hide(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

/// A remark for the reader when an answer did not end by itself.
pub fn remark(finish: &Finish) -> Option<&'static str> {
    match finish {
        Finish::Length => Some("the answer was cut: --max-tokens or the context limit was reached"),
        Finish::Cancelled => Some("stopped"),
        _ => None,
    }
}

/// Counts and rates in one line.
pub fn stats_line(stats: &Stats) -> String {
    let rate = |tokens: usize, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    let (prefill, decode) = (stats.prefill.as_secs_f64(), stats.decode.as_secs_f64());
    let computed = stats.prompt_tokens.saturating_sub(stats.cached_tokens);
    format!(
        "prompt {} tokens ({} cached), {:.1} ms, {:.0} tok/s; answer {} tokens, {:.1} ms, {:.0} tok/s",
        stats.prompt_tokens,
        stats.cached_tokens,
        prefill * 1e3,
        rate(computed, prefill),
        stats.completion_tokens,
        decode * 1e3,
        rate(stats.completion_tokens, decode),
    )
}
