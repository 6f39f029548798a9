//! Counters as Markdown tables: decode at several contexts, prefill chunks of several sizes, choices undone.

use lily_model::{ModelConfig, Quantization};

use super::{
    Ablation, Counters, DecodeShape, Floor, ModelShape, PrefillHead, PrefillShape, Products,
    decode_ablations, decode_plan, prefill_ablations, prefill_plan,
};

/// All tables for a model. Choices of decode are undone at every context from 32K on, those of prefill at every size from
/// 512 to 4,096; where there is none, at the largest context.
pub fn report(name: &str, config: &ModelConfig, quantization: &Quantization, contexts: &[usize]) -> String {
    let model = ModelShape::from_quantization(config, quantization);
    let mut out = decode_table(name, config, quantization, contexts);
    out += &prefill_table(name, &model, contexts);
    let model = model.with_products(Products::F32);
    for context in chosen(contexts, 32_768, usize::MAX) {
        out += &format!("\nDecode at {} with one choice undone.\n\n", grouped(context));
        out += &ablation_table(&decode_ablations(&model, &DecodeShape::single(context, config.vocab_size)));
    }
    for context in chosen(contexts, 512, 4096) {
        out += &format!("\nPrefill of {} tokens with one choice undone.\n\n", grouped(context));
        out += &ablation_table(&prefill_ablations(&model, &chunk(context)));
    }
    out
}

/// The contexts in a range; the largest of all where none is.
fn chosen(contexts: &[usize], least: usize, most: usize) -> Vec<usize> {
    let inside: Vec<usize> = contexts.iter().copied().filter(|c| (least..=most).contains(c)).collect();
    if inside.is_empty() { contexts.iter().copied().max().into_iter().collect() } else { inside }
}

/// Digits in groups of three.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// All tokens in one chunk, logits of the last.
fn chunk(tokens: usize) -> PrefillShape {
    let tokens = tokens.next_multiple_of(32);
    PrefillShape { tokens, slots: 1, capacity: tokens, context: tokens, head: PrefillHead::Last }
}

fn mb(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / 1e6)
}

/// One chunk of several sizes.
fn prefill_table(name: &str, model: &ModelShape, sizes: &[usize]) -> String {
    let mut out = format!(
        "\nPrefill of one chunk from an empty sequence, {name}. Bytes as above. Products take f32 (Metal, Hopper) or F16 (other CUDA GPUs).\n\n\
         | tokens | products | dispatches | levels | weights read | weights written | KV | state | activations | together | \
         MB a token |\n|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    let formats = [(Products::F32, "f32"), (Products::F16, "F16")];
    for (&tokens, (products, format)) in sizes.iter().flat_map(|s| formats.map(|f| (s, f))) {
        let shape = chunk(tokens);
        let c = Counters::of(&prefill_plan(&model.clone().with_products(products), &shape));
        out += &format!(
            "| {} | {format} | {} | {} | {} | {} | {} | {} | {} | {} | {:.2} |\n",
            grouped(shape.tokens),
            c.dispatches,
            c.levels,
            mb(c.weights.read),
            c.weights.written,
            mb(c.kv.total()),
            mb(c.state.total()),
            mb(c.activations.total()),
            mb(c.bytes()),
            c.bytes() as f64 / 1e6 / shape.tokens as f64
        );
    }
    out
}

fn ablation_table(list: &[Ablation]) -> String {
    let mut out = String::from(
        "| without | instead | dispatches | waits of the host | MB moved | MB of memory | published gain in speed |\n\
         |---|---|---:|---:|---:|---:|---|\n",
    );
    for a in list {
        out += &format!(
            "| {} | {} | {:+} | {:+} | {:+.2} | {:+.2} | {} |\n",
            a.without,
            a.instead,
            a.dispatches,
            a.round_trips,
            a.bytes as f64 / 1e6,
            a.memory as f64 / 1e6,
            a.published
        );
    }
    out
}

/// One decoded token, greedy, at several contexts.
fn decode_table(name: &str, config: &ModelConfig, quantization: &Quantization, contexts: &[usize]) -> String {
    let model = ModelShape::from_quantization(config, quantization);
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
