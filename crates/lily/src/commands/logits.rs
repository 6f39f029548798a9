//! `lily logits`: the numbers themselves, for comparison with other engines.

use std::{fs, path::PathBuf, sync::Arc};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lily_engine::{Backend, Logits, SequenceId, argmax};
use safetensors::tensor::{Dtype, TensorView};

use crate::device::{self, Device};

/// Write the logits of a prompt, and of tokens generated after it, to a safetensors file.
///
/// The file holds `logits`, F32 `[n, vocab]`, for every position of the prompt, and with `--decode N` also
/// `decode_ids`, I64 `[N]`, and `decode_logits`, F32 `[N-1, vocab]`: greedy, the first id being the arg-max after the
/// prompt (the lowest id on ties), over all rows of the vocabulary.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    /// Checkpoint directory, or `lily-mini` for the model inside this program.
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// The prompt: a JSON file with a list of token ids.
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,

    /// Device that runs the model.
    #[arg(long, value_enum, default_value_t = Device::Auto, env = "LILY_DEVICE")]
    device: Device,

    /// Compute threads; 0 = one a core.
    #[arg(long, default_value_t = 0, value_name = "N", env = "LILY_THREADS")]
    threads: usize,

    /// The file to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Also generate N tokens.
    #[arg(long, default_value_t = 0, value_name = "N")]
    decode: usize,
}

/// Runs the command.
pub fn run(args: &LogitsArgs) -> Result<()> {
    let path = args.tokens.display().to_string();
    let bytes = fs::read(&args.tokens).with_context(|| path.clone())?;
    let prompt: Vec<u32> = serde_json::from_slice(&bytes)
        .with_context(|| format!("{path}: expected a JSON list of token ids"))?;
    ensure!(!prompt.is_empty(), "{path}: the list of token ids is empty");

    let checkpoint = device::open_checkpoint(Some(&args.model))?;
    let config = checkpoint.config();
    for (i, &id) in prompt.iter().enumerate() {
        let vocab = config.vocab_size;
        ensure!((id as usize) < vocab, "{path}: index {i} is {id}; the vocabulary has {vocab} tokens");
    }
    let most = config.max_position_embeddings;
    let capacity = prompt.len().saturating_add(args.decode);
    ensure!(
        capacity <= most,
        "{} prompt tokens and {} to decode; the model was made for {most}",
        prompt.len(),
        args.decode
    );
    let mut backend = device::backend(args.device, Arc::new(checkpoint.weights()?), args.threads, false)?;
    let sequence = backend.new_sequence(capacity)?;
    let logits = prefill(backend.as_mut(), sequence, &prompt)?;
    let (ids, decoded) = decode(backend.as_mut(), sequence, &logits, args.decode)?;
    write(args, prompt.len(), &logits, &ids, &decoded)
}

/// Logits of every prompt position, `[n, vocab]`.
fn prefill(backend: &mut dyn Backend, sequence: SequenceId, prompt: &[u32]) -> Result<Vec<f32>> {
    let mut logits = Vec::new();
    let mut chunk_logits = Vec::new();
    for chunk in prompt.chunks(backend.max_chunk().max(1)) {
        backend.prefill(sequence, chunk, Logits::All, &mut chunk_logits)?;
        logits.extend_from_slice(&chunk_logits);
    }
    Ok(logits)
}

/// `count` greedy ids and the logits after all of them but the last, `[count - 1, vocab]`.
fn decode(
    backend: &mut dyn Backend,
    sequence: SequenceId,
    prompt_logits: &[f32],
    count: usize,
) -> Result<(Vec<i64>, Vec<f32>)> {
    let vocab = backend.config().vocab_size;
    let (mut ids, mut all) = (Vec::new(), Vec::new());
    let mut row = prompt_logits[prompt_logits.len() - vocab..].to_vec();
    while ids.len() < count {
        let id = argmax(&row).context("the logits are not all finite")? as u32;
        ids.push(i64::from(id));
        if ids.len() < count {
            backend.decode(&[(sequence, id)], &mut row)?;
            all.extend_from_slice(&row);
        }
    }
    Ok((ids, all))
}

fn write(args: &LogitsArgs, positions: usize, logits: &[f32], ids: &[i64], decoded: &[f32]) -> Result<()> {
    let vocab = logits.len() / positions;
    let floats = |shape: Vec<usize>, values| {
        TensorView::new(Dtype::F32, shape, bytemuck::cast_slice::<f32, u8>(values))
    };
    let mut tensors = vec![("logits", floats(vec![positions, vocab], logits)?)];
    if !ids.is_empty() {
        tensors
            .push(("decode_ids", TensorView::new(Dtype::I64, vec![ids.len()], bytemuck::cast_slice(ids))?));
        tensors.push(("decode_logits", floats(vec![ids.len() - 1, vocab], decoded)?));
    }
    safetensors::serialize_to_file(tensors, None, &args.out).with_context(|| args.out.display().to_string())
}
