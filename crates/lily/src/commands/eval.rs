//! `lily eval`: how close a device is to the f32 reference.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lily_engine::{Evaluation, evaluate};
use lily_model::Checkpoint;
use serde_json::Value;

use crate::{
    device::{self, Device},
    output::{grouped, print, table},
};

/// Tokens computed together; small enough that the progress bar moves.
const CHUNK: usize = 256;

/// Measure a device's quality against the f32 reference.
///
/// Every token of the data is predicted from the ones before it by both. Printed are the perplexity of both, the share
/// of positions where both have the same most likely token, and the mean and largest KL divergence. Without data,
/// the held-out set beside the checkpoint (heldout.json) is used.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Checkpoint directory, or `lily-mini` for the model inside this program.
    #[arg(value_name = "MODEL", env = "LILY_MODEL")]
    model: Option<PathBuf>,

    /// A text file; it is tokenized and cut into windows.
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    text: Option<PathBuf>,

    /// A JSON file of token ids: a list, a list of lists, or an object with such a list as `sequences`.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,

    /// Tokens of a window of `--text`.
    #[arg(long, value_name = "TOKENS", default_value_t = 512, env = "LILY_EVAL_WINDOW")]
    window: usize,

    /// Device to measure.
    #[arg(long, value_enum, default_value_t = Device::Auto, env = "LILY_DEVICE")]
    device: Device,

    /// Compute threads; 0 = one a core.
    #[arg(long, default_value_t = 0, value_name = "N", env = "LILY_THREADS")]
    threads: usize,

    /// Also write the result as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &EvalArgs) -> Result<()> {
    let checkpoint = device::open_checkpoint(args.model.as_deref())?;
    let sequences = sequences(args, &checkpoint)?;
    let weights = Arc::new(checkpoint.weights()?);
    let mut reference = device::backend(Device::Reference, weights.clone(), args.threads, false)?;
    let mut backend = device::backend(args.device, weights, args.threads, false)?;

    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} tokens, {eta} left")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let result = evaluate(reference.as_mut(), backend.as_mut(), &sequences, CHUNK, |progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
    });
    bar.finish_and_clear();
    let result = result?;

    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&result)? + "\n";
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    Ok(print(&report(checkpoint.name(), &result))?)
}

fn report(name: &str, e: &Evaluation) -> String {
    let rate = |seconds: f64| e.positions as f64 / seconds.max(1e-9);
    format!("{name}, {} against {}\n", e.backend, e.reference)
        + &table(&[
            ("positions", format!("{} in {} sequences", grouped(e.positions), grouped(e.sequences))),
            (
                "perplexity",
                format!(
                    "{:.6} ({}: {:.6}, {:+.4} %)",
                    e.perplexity,
                    e.reference,
                    e.reference_perplexity,
                    e.perplexity_change * 100.0
                ),
            ),
            ("top-1 agreement", format!("{:.3} %", e.top1_agreement * 100.0)),
            (
                "KL divergence",
                format!(
                    "mean {:.3e}, largest {:.3e} (sequence {}, token {})",
                    e.mean_kl, e.max_kl, e.max_kl_at.0, e.max_kl_at.1
                ),
            ),
            ("largest logit difference", format!("{:.4}", e.max_logit_difference)),
            (
                "speed",
                format!(
                    "{}: {:.0} tok/s, {}: {:.0} tok/s",
                    e.backend,
                    rate(e.backend_seconds),
                    e.reference,
                    rate(e.reference_seconds)
                ),
            ),
        ])
}

fn sequences(args: &EvalArgs, checkpoint: &Checkpoint) -> Result<Vec<Vec<u32>>> {
    if let Some(path) = &args.text {
        let place = path.display().to_string();
        let text = fs::read_to_string(path).with_context(|| format!("{place} (expected UTF-8 text)"))?;
        return windows(&text, args.window, checkpoint).with_context(|| place);
    }
    let (place, bytes) = match &args.tokens {
        Some(path) => {
            let place = path.display().to_string();
            let bytes = fs::read(path).with_context(|| place.clone())?;
            (place, bytes)
        }
        None => match checkpoint.file("heldout.json") {
            Some(bytes) => ("heldout.json".to_string(), bytes.into_owned()),
            None => bail!(
                "the checkpoint {} has no heldout.json; give data with --text or --tokens",
                checkpoint.name()
            ),
        },
    };
    let value: Value = serde_json::from_slice(&bytes).with_context(|| format!("{place}: not JSON"))?;
    token_lists(value).with_context(|| place)
}

/// The text's tokens, cut into windows; a last window too short to predict anything is left out.
fn windows(text: &str, window: usize, checkpoint: &Checkpoint) -> Result<Vec<Vec<u32>>> {
    ensure!(window >= 2, "--window is {window}; at least 2 tokens are needed to predict one");
    let ids = device::text_of(checkpoint)?.tokenizer.encode_ordinary(text)?;
    let windows: Vec<Vec<u32>> = ids.chunks(window).filter(|w| w.len() >= 2).map(<[u32]>::to_vec).collect();
    ensure!(!windows.is_empty(), "the text has {} tokens; at least 2 are needed", ids.len());
    Ok(windows)
}

fn token_lists(value: Value) -> Result<Vec<Vec<u32>>> {
    let list = match value {
        Value::Object(mut fields) => fields.remove("sequences").context("the object has no `sequences`")?,
        other => other,
    };
    let nested = list.as_array().is_some_and(|l| l.first().is_none_or(Value::is_array));
    let parsed = if nested {
        serde_json::from_value::<Vec<Vec<u32>>>(list)
    } else {
        serde_json::from_value::<Vec<u32>>(list).map(|one| vec![one])
    };
    parsed.context("expected token ids: a list, a list of lists, or an object with `sequences`")
}
