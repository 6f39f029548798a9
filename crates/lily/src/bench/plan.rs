//! `lily bench --plan`: what the GPU plan of a model costs, counted, as Markdown.

use anyhow::Result;
use lily_gpu::plan::{Counters, DecodeShape, Floor, ModelShape, decode_plan};
use lily_model::{ModelConfig, config::Quantization};

use super::{BenchArgs, check_contexts, synthetic_layers};
use crate::{
    device,
    output::{grouped, print as print_text},
};

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
    Ok(print_text(&decode_table(&name, &config, &quantization, &contexts))?)
}

/// One decoded token, greedy, at several contexts.
fn decode_table(name: &str, config: &ModelConfig, quantization: &Quantization, contexts: &[usize]) -> String {
    let model = ModelShape::from_quantization(config, quantization);
    let mb = |bytes: u64| format!("{:.2}", bytes as f64 / 1e6);
    let mut out = format!(
        "Decode of one token, {name}. Bytes in MB (10^6), read and written together; the floor is weights, KV and state \
         that must move.\n\n\
         | context | dispatches | levels | weights | KV | state | activations | together | floor | of the floor |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    for &context in contexts {
        let plan = decode_plan(&model, &DecodeShape::single(context, config.vocab_size));
        let c = Counters::of(&plan);
        let floor = Floor::decode(config, quantization, context).bytes();
        out += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.4} |\n",
            grouped(context),
            c.dispatches,
            c.levels,
            mb(c.weights.total()),
            mb(c.kv.total()),
            mb(c.state.total()),
            mb(c.activations.total()),
            mb(c.bytes()),
            mb(floor),
            c.bytes() as f64 / floor as f64
        );
    }
    out
}
