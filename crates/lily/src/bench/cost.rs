//! What a token must cost at least: bytes for decode, operations for prefill.
//!
//! Counted from the list of tensors that the configuration implies, so that every size of model, and every cut of
//! its depth, has its own floor.

use lily_model::{
    LayerType, ModelConfig,
    config::Quantization,
    layout::{ExpectedTensor, expected_tensors},
};
use serde::Serialize;

/// Bytes that one decode step of one sequence must move.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DecodeBytes {
    /// Packed weights, scales and biases: everything dense, the chosen experts, one embedding row.
    pub weights: usize,
    /// GDN state and convolution tails, read and written (f32).
    pub state: usize,
    /// Keys and values read, at 2 bytes an element.
    pub kv: usize,
}

impl DecodeBytes {
    /// All together.
    pub fn total(&self) -> usize {
        self.weights + self.state + self.kv
    }
}

/// How much of a tensor one token uses: a stack of experts only in part, the embedding only one row.
fn used_share(config: &ModelConfig, name: &str) -> f64 {
    if name.contains(".switch_mlp.") {
        config.num_experts_per_tok as f64 / config.num_experts as f64
    } else if name.contains(".embed_tokens.") {
        1.0 / config.vocab_size as f64
    } else {
        1.0
    }
}

/// Bytes that a decode step at `context` tokens must move.
pub fn decode_bytes(config: &ModelConfig, quantization: &Quantization, context: usize) -> DecodeBytes {
    let weights: f64 = expected_tensors(config, quantization)
        .iter()
        .map(|t| t.byte_len() as f64 * used_share(config, &t.name))
        .sum();
    DecodeBytes {
        weights: weights.round() as usize,
        state: 2 * config.state_bytes(),
        kv: config.kv_bytes_per_token(2) * context,
    }
}

/// Elements of the matrix whose packed words tensor `t` holds; 0 for anything else.
fn matrix_elements(quantization: &Quantization, t: &ExpectedTensor) -> f64 {
    let has_scales = t.dtypes.contains(&safetensors::Dtype::U32);
    match t.name.strip_suffix(".weight") {
        Some(module) if has_scales => (t.len() * 32 / quantization.bits_of(module)) as f64,
        _ => 0.0,
    }
}

/// Operations (a multiply and an add are two) of prefilling `tokens` tokens: matrix products of the layers, scores and
/// values of attention (half the square), the delta rule's passes over the state, and `lm_head` for the last token.
pub fn prefill_operations(config: &ModelConfig, quantization: &Quantization, tokens: usize) -> f64 {
    let n = tokens as f64;
    let products: f64 = expected_tensors(config, quantization)
        .iter()
        .map(|t| {
            let times = match t.name.as_str() {
                name if name.contains(".embed_tokens.") => 0.0,
                name if name.contains("lm_head.") => 1.0,
                name => n * used_share(config, name),
            };
            2.0 * times * matrix_elements(quantization, t)
        })
        .sum();
    products + attention_operations(config, n) + gdn_operations(config, n)
}

fn attention_operations(config: &ModelConfig, n: f64) -> f64 {
    let width = (config.num_attention_heads * config.head_dim) as f64;
    // q k^T and p v, two operations each, over the causal half of n x n.
    config.count(LayerType::FullAttention) as f64 * width * 4.0 * n * n / 2.0
}

fn gdn_operations(config: &ModelConfig, n: f64) -> f64 {
    let state = (config.gdn_value_width() * config.linear_key_head_dim) as f64;
    // Decay (1), S k (2), rank-one update (2), S q (2).
    config.count(LayerType::LinearAttention) as f64 * state * 7.0 * n
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ARCHITECTURE's figures: 1.67 GB of weights, 0.126 GB of GDN state (and 0.006 GB of convolution tails), 20,480
    /// bytes of KV a token of context.
    #[test]
    fn decode_floor_of_the_35b_model() {
        let config = ModelConfig::qwen3_6_35b_a3b(40);
        let bytes = decode_bytes(&config, &Quantization::mlx_4bit(40), 1);
        assert!((bytes.weights as f64 / 1.67e9 - 1.0).abs() < 0.01, "{}", bytes.weights);
        assert!((bytes.state as f64 / 0.1317e9 - 1.0).abs() < 0.01, "{}", bytes.state);
        assert_eq!(bytes.kv, 20_480);
    }

    /// "3B active": about 2.5e9 multiply-adds a token outside the embedding and `lm_head`.
    #[test]
    fn prefill_operations_of_the_35b_model() {
        let config = ModelConfig::qwen3_6_35b_a3b(40);
        let q = Quantization::mlx_4bit(40);
        let per_token = (prefill_operations(&config, &q, 1001) - prefill_operations(&config, &q, 1)) / 1000.0;
        assert!((4.4e9..5.6e9).contains(&per_token), "{per_token:e}");
    }
}
