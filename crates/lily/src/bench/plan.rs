//! `lily bench --plan`: what the GPU plan of a model costs, counted, as Markdown.

use anyhow::Result;
use lily_gpu::plan::report;
use lily_model::{ModelConfig, config::Quantization};

use super::{BenchArgs, check_contexts, synthetic_layers};
use crate::{device, output::print as print_text};

/// Prints the tables.
pub fn print(args: &BenchArgs) -> Result<()> {
    let (name, config, quantization) = match &args.synthetic {
        Some(spec) => {
            let layers = synthetic_layers(spec)?;
            let config = ModelConfig::qwen3_6_35b_a3b(layers);
            (format!("qwen3.6-35b-a3b, {layers} layers"), config, Quantization::mlx_4bit(layers))
        }
        None => {
            let c = device::open_checkpoint(args.model.as_deref())?;
            (c.name().to_string(), c.config().clone(), c.quantization().clone())
        }
    };
    check_contexts(args, config.max_position_embeddings)?;
    let mut contexts = args.contexts.clone();
    contexts.sort_unstable();
    contexts.dedup();
    Ok(print_text(&report(&name, &config, &quantization, &contexts))?)
}
