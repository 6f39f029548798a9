//! What a model takes in memory, computed from its sizes alone.

use crate::{LayerType, ModelConfig, config::Quantization, layout::expected_tensors};

/// Tokens of a prefill chunk that [`MemoryTable::scratch`] is estimated for.
const CHUNK: usize = 512;

/// Bytes, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryTable {
    /// Packed weights, scales, biases and vectors of the language model. They stay in the mapped files and become
    /// resident as they are used.
    pub weights: usize,
    /// Weight bytes that one decoded token reads: everything but the embedding table and the experts not chosen.
    pub weights_per_token: usize,
    /// KV cache of 1,024 tokens.
    pub kv_per_1k_tokens: usize,
    /// KV cache of a sequence of `context` tokens.
    pub kv: usize,
    /// GDN state and convolution tails of one sequence.
    pub state: usize,
    /// Activations of a prefill chunk of 512 tokens, in f32, and one row of logits: an estimate.
    pub scratch: usize,
}

impl MemoryTable {
    /// Everything for one sequence.
    pub fn total(&self) -> usize {
        self.weights + self.kv + self.state + self.scratch
    }
}

/// The memory of a model with one sequence of `context` tokens, whose KV cache has `kv_element_bytes` bytes per element
/// (2 for BF16, as the CPU backend keeps it).
pub fn memory_table(
    config: &ModelConfig,
    quantization: &Quantization,
    context: usize,
    kv_element_bytes: usize,
) -> MemoryTable {
    let kv_token = config.kv_bytes_per_token(kv_element_bytes);
    let (mut weights, mut per_token) = (0, 0);
    for tensor in expected_tensors(config, quantization) {
        let bytes = tensor.byte_len();
        weights += bytes;
        per_token += if tensor.name.contains(".switch_mlp.") {
            bytes / config.num_experts * config.num_experts_per_tok
        } else if tensor.name.contains(".embed_tokens.") {
            bytes / config.vocab_size
        } else {
            bytes
        };
    }
    MemoryTable {
        weights,
        weights_per_token: per_token,
        kv_per_1k_tokens: kv_token * 1024,
        kv: kv_token * context,
        state: config.state_bytes(),
        scratch: scratch(config),
    }
}

/// The residual stream, its norm and a mixer's output; the widest mixer's projections; the chosen experts' inner and
/// outer vectors.
fn scratch(c: &ModelConfig) -> usize {
    let attention = c.num_attention_heads * c.head_dim * 4 + c.num_key_value_heads * c.head_dim * 2;
    let gdn = 2 * c.conv_channels() + 3 * c.gdn_value_width();
    let mixer = [(LayerType::FullAttention, attention), (LayerType::LinearAttention, gdn)];
    let mixer = mixer.iter().filter(|m| c.count(m.0) > 0).map(|m| m.1).max().unwrap_or(0);
    let experts = c.num_experts_per_tok * (2 * c.moe_intermediate_size + c.hidden_size)
        + 2 * c.shared_expert_intermediate_size
        + c.num_experts;
    (CHUNK * (3 * c.hidden_size + mixer + experts) + c.vocab_size) * size_of::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_large_model() {
        let config = ModelConfig::qwen3_6_35b_a3b(40);
        let table = memory_table(&config, &Quantization::mlx_4bit(40), 262_144, 2);
        // 20,480 bytes a token; 63 MiB of state; 1.67 GB of weights a token.
        assert_eq!(table.kv_per_1k_tokens, 20_480 * 1024);
        assert_eq!(table.kv, 20_480 * 262_144);
        assert_eq!(table.state, 30 * (32 * 128 * 128 + 3 * 8192) * 4);
        assert!((1.66e9..1.68e9).contains(&(table.weights_per_token as f64)), "{}", table.weights_per_token);
        assert!((19.4e9..19.6e9).contains(&(table.weights as f64)), "{}", table.weights);
        assert!(table.scratch < 1 << 30);
        assert_eq!(table.total(), table.weights + table.kv + table.state + table.scratch);
    }
}
