//! From command-line arguments to a model that speaks text.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use lily_engine::{CacheOptions, Engine, EngineOptions, SamplingParams};
use lily_model::{
    Checkpoint, ModelConfig,
    config::GenerationDefaults,
    memory::{MemoryTable, memory_table},
};
use lily_server::TextEngine;

use crate::{
    cold_start,
    device::{self, Device},
    embedded, output,
};

/// Context limit when none is asked for: enough for long documents, while one sequence's KV cache stays small.
pub const DEFAULT_CONTEXT: usize = 32_768;
/// Bytes of a KV cache element on the CPU: BF16.
pub const KV_ELEMENT_BYTES: usize = 2;

/// Where and how the model runs.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Device that runs the model.
    ///
    /// `auto` takes the best one this machine has. `reference` is the plain f32 model that devices are tested
    /// against: exact and slow.
    #[arg(long, value_enum, default_value_t = Device::Auto, env = "LILY_DEVICE")]
    pub device: Device,

    /// Compute threads; 0 = one a core.
    ///
    /// Decoding is bound by memory bandwidth, so threads beyond the physical cores do not help.
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, env = "LILY_THREADS")]
    pub threads: usize,

    /// Use a GPU even where weights and caches seem not to fit its memory.
    ///
    /// Before memory is taken on a GPU, what is needed is compared with what the system recommends and has free.
    #[arg(long, env = "LILY_IGNORE_MEMORY_CHECK")]
    pub ignore_memory_check: bool,

    /// Most tokens of prompt and answer together.
    ///
    /// Longer requests are refused, never cut. Default: 32768, or the model's own limit when that is smaller.
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, env = "LILY_CONTEXT")]
    pub context: Option<usize>,
}

/// Whether the model thinks before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Thinking {
    /// As the chat template does by itself; off for the embedded lily-mini, whose answers need none.
    Auto,
    /// On.
    On,
    /// Off.
    Off,
}

/// A model ready to answer.
pub struct Loaded {
    /// The model.
    pub engine: TextEngine,
    /// Its name.
    pub name: String,
    /// Where it was found.
    pub place: String,
    /// Bytes it takes.
    pub memory: MemoryTable,
    /// Whether it is the one inside the binary, or a copy of it.
    is_mini: bool,
}

impl Loaded {
    /// What `thinking` means for this model: the template's keyword, or `None` to leave it out.
    pub fn thinking(&self, thinking: Thinking) -> Option<bool> {
        match thinking {
            Thinking::On => Some(true),
            Thinking::Off => Some(false),
            Thinking::Auto => self.is_mini.then_some(false),
        }
    }
}

/// How many requests there may be, and what is kept of them.
#[derive(Debug, Clone)]
pub struct Serving {
    /// Most requests that wait.
    pub queue: usize,
    /// Most requests that run at once.
    pub parallel: usize,
    /// The prefix cache.
    pub cache: CacheOptions,
}

impl Serving {
    /// For one person: one request at a time, and what was said before is kept in memory.
    pub fn one() -> Self {
        Self { queue: 0, parallel: 1, cache: CacheOptions::default() }
    }
}

/// Loads a checkpoint and starts its engine.
pub fn load(model: Option<PathBuf>, args: &RunArgs, serving: &Serving) -> Result<Loaded> {
    let model = model.as_deref();
    let checkpoint = device::open_checkpoint(model)?;
    let context = context(args.context, checkpoint.config())?;
    let text = device::text_of(&checkpoint)?;
    let weights = Arc::new(checkpoint.weights()?);
    cold_start::read_weights(&checkpoint);
    let memory = memory(&checkpoint, context);
    let backend = device::backend_for(
        args.device,
        weights,
        args.threads,
        args.ignore_memory_check,
        Some((&memory, context)),
    )?;
    let options = EngineOptions {
        context_limit: context,
        queue_limit: serving.queue,
        max_running: serving.parallel,
        valid_vocab: Some(checkpoint.valid_vocab()),
        ..EngineOptions::default()
    };
    let engine = Engine::start_with_cache(backend, options, &serving.cache)?;
    let defaults = checkpoint.generation();
    let engine = TextEngine::new(engine, text, sampling(defaults), defaults.eos_token_ids.clone());
    let place = match model.filter(|_| !device::is_embedded(model)) {
        Some(dir) => dir.display().to_string(),
        None => "inside this program".to_string(),
    };
    let name = checkpoint.name().to_string();
    Ok(Loaded { engine, is_mini: name == embedded::NAME, name, place, memory })
}

/// The context limit asked for, within the model's.
pub fn context(asked: Option<usize>, config: &ModelConfig) -> Result<usize> {
    let most = config.max_position_embeddings;
    match asked {
        Some(0 | 1) => bail!("--context is less than 2 tokens; give room for a prompt and an answer"),
        Some(n) if n > most => bail!("--context is {n}; the model was made for at most {most} tokens"),
        Some(n) => Ok(n),
        None => Ok(DEFAULT_CONTEXT.min(most)),
    }
}

/// The memory table of a checkpoint with one sequence of `context` tokens.
pub fn memory(checkpoint: &Checkpoint, context: usize) -> MemoryTable {
    memory_table(checkpoint.config(), checkpoint.quantization(), context, KV_ELEMENT_BYTES)
}

/// The memory table, printed.
pub fn memory_text(memory: &MemoryTable, context: usize) -> String {
    output::table(&[
        (
            "weights",
            format!(
                "{} (mapped; {} read a token)",
                output::size(memory.weights),
                output::size(memory.weights_per_token)
            ),
        ),
        (
            "KV cache",
            format!(
                "{} for {} tokens ({} per 1,024)",
                output::size(memory.kv),
                output::grouped(context),
                output::size(memory.kv_per_1k_tokens)
            ),
        ),
        ("GDN state", format!("{} a sequence", output::size(memory.state))),
        ("scratch", format!("{} (estimate)", output::size(memory.scratch))),
        ("together", output::size(memory.total())),
    ])
}

/// The checkpoint's sampling defaults as engine parameters.
fn sampling(defaults: &GenerationDefaults) -> SamplingParams {
    SamplingParams {
        temperature: defaults.temperature,
        top_k: defaults.top_k,
        top_p: defaults.top_p,
        min_p: defaults.min_p,
        repetition_penalty: defaults.repetition_penalty,
        ..SamplingParams::default()
    }
}
