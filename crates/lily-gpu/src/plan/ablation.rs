//! What the plan's choices save, as differences of counters: the same forward pass with one choice undone.

use super::{BufferKind, Counters, DecodeShape, ModelShape, Plan, PrefillShape, decode_plan, prefill_plan};

/// A choice undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ablation {
    /// What is undone.
    pub without: &'static str,
    /// What would be done instead.
    pub instead: String,
    /// Dispatches more (or fewer).
    pub dispatches: i64,
    /// Times more that the host must wait inside the pass.
    pub round_trips: i64,
    /// Bytes more that are read and written.
    pub bytes: i64,
    /// Bytes of memory more at the worst moment.
    pub memory: i64,
    /// What the engine published with the model gained in speed by the choice, and where; empty where it says nothing.
    pub published: &'static str,
}

/// Positions of a split in an attention whose splits have a fixed length.
const FIXED_SPAN: usize = 64;

/// Tokens of a GDN step in prefill (gdn_prefill.metal).
const GDN_TOKENS: usize = 32;

/// Undone in a decode step.
pub fn decode_ablations(model: &ModelShape, shape: &DecodeShape) -> Vec<Ablation> {
    let c = &model.config;
    let plan = decode_plan(model, shape);
    let counters = Counters::of(&plan);
    let group = (c.num_attention_heads / c.num_key_value_heads) as i64;
    let layers = c.count(lily_model::LayerType::FullAttention);
    let partial = |splits: usize| {
        2 * (layers * shape.tokens * c.num_attention_heads * splits * (c.head_dim + 2) * size_of::<f32>())
            as i64
    };
    let (used, fixed) = (shape.splits.used(shape.context), shape.context.div_ceil(FIXED_SPAN));
    vec![
        Ablation {
            without: "GQA packing",
            instead: format!("each of {group} query heads reads its keys and values for itself"),
            dispatches: 0,
            round_trips: 0,
            bytes: counters.kv.read as i64 * (group - 1),
            memory: 0,
            published: "+23.8 % at 32K",
        },
        Ablation {
            without: "a bounded number of attention splits",
            instead: format!("{fixed} splits of {FIXED_SPAN} positions instead of {used}"),
            dispatches: 0,
            round_trips: 0,
            bytes: partial(fixed) - partial(used),
            memory: (partial(fixed) - partial(shape.splits.count())) / 2 / layers.max(1) as i64,
            published: "+7.7 % at 32K, +27.4 % at 64K, +40.2 % at 128K",
        },
        expanded(model, &plan, ""),
    ]
}

/// Undone in a prefill chunk.
pub fn prefill_ablations(model: &ModelShape, shape: &PrefillShape) -> Vec<Ablation> {
    let c = &model.config;
    let plan = prefill_plan(model, shape);
    let layers = c.num_hidden_layers as i64;
    let logits = (shape.tokens * c.num_experts * size_of::<f32>()) as i64;
    let pairs = (shape.tokens * c.num_experts_per_tok * 2 * size_of::<u32>()) as i64;
    // Scores of a chunk over its context would be written, read by the softmax, written, and read again.
    let scores = 4 * (c.num_attention_heads * shape.tokens * shape.context * 2) as i64;
    let attention = c.count(lily_model::LayerType::FullAttention) as i64;
    let gdn = c.count(lily_model::LayerType::LinearAttention) as i64;
    let steps = shape.tokens.div_ceil(GDN_TOKENS) as i64 - 1;
    let state = (c.gdn_value_width() * c.linear_key_head_dim * size_of::<f32>()) as i64;
    vec![
        expanded(model, &plan, "+77.4 % at 512 tokens"),
        Ablation {
            without: "routing on the GPU",
            instead:
                "the host reads the router's logits and writes each expert's tokens back, layer by layer"
                    .into(),
            dispatches: -3 * layers,
            round_trips: layers,
            bytes: layers * (logits + 2 * pairs),
            memory: 0,
            published: "+89 % at 512 tokens",
        },
        Ablation {
            without: "flash attention",
            instead: "scores and weights of all positions go through memory in BF16".into(),
            dispatches: 2 * attention,
            round_trips: 0,
            bytes: attention * scores,
            memory: scores / 4,
            published: "",
        },
        Ablation {
            without: "the GDN state in registers",
            instead: format!("a dispatch for each {GDN_TOKENS} tokens, which reads and writes the state"),
            dispatches: gdn * steps,
            round_trips: 0,
            bytes: 2 * gdn * steps * state,
            memory: 0,
            published: "+5.6 %",
        },
    ]
}

/// Every matrix a plan reads, expanded to BF16 in memory first.
fn expanded(model: &ModelShape, plan: &Plan, published: &'static str) -> Ablation {
    let (mut matrices, mut elements, mut largest) = (0, 0u64, 0u64);
    for op in &plan.ops {
        for a in &op.reads {
            let spec = plan.spec(a.buffer);
            let bits = spec.name.strip_suffix(".weight").and_then(|module| model.bits_of(module));
            if let (BufferKind::Weight, Some(bits), false) = (spec.kind, bits, op.label == "embed") {
                let n = a.bytes * 8 / bits as u64;
                (matrices, elements, largest) = (matrices + 1, elements + n, largest.max(n));
            }
        }
    }
    Ablation {
        without: "dequantisation inside the products",
        instead: format!("{matrices} matrices are expanded to BF16, written and read again"),
        dispatches: matrices,
        round_trips: 0,
        bytes: 4 * elements as i64,
        memory: 2 * largest as i64,
        published,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PrefillHead;
    use lily_model::{ModelConfig, Quantization};

    #[test]
    fn the_large_model() {
        let config = ModelConfig::qwen3_6_35b_a3b(40);
        let model = ModelShape::from_quantization(&config, &Quantization::mlx_4bit(40));
        let decode = decode_ablations(&model, &DecodeShape::single(4096, config.vocab_size));
        // Eight query heads a KV head, 20,480 bytes a token of the 4,095 cached ones.
        assert_eq!(decode[0].bytes, 7 * 20_480 * 4095);
        // Active weights: 2.9e9 elements, four bytes each.
        assert!((11e9..13e9).contains(&(decode[2].bytes as f64)), "{:?}", decode[2]);
        let shape =
            PrefillShape { tokens: 4096, slots: 1, capacity: 4096, context: 4096, head: PrefillHead::Last };
        let prefill = prefill_ablations(&model, &shape);
        // 34e9 elements; the output projection is the largest: a gigabyte in BF16.
        assert!((1.3e11..1.4e11).contains(&(prefill[0].bytes as f64)), "{:?}", prefill[0]);
        assert_eq!(prefill[0].memory, 248_320 * 2048 * 2);
        // Per layer: GDN 5, attention 4, router 2, experts 3, shared 3; and the output projection.
        assert_eq!(prefill[0].dispatches, 30 * 5 + 10 * 4 + 40 * 8 + 1);
        assert_eq!(prefill[1].round_trips, 40);
        // 127 more steps of 30 layers with 2 MiB of state, read and written.
        assert_eq!((prefill[3].dispatches, prefill[3].bytes), (30 * 127, 2 * 30 * 127 * (2 << 20)));
    }
}
