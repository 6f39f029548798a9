//! The tensors of the whole model, by role. Small vectors are widened to f32 when loaded; matrices stay packed
//! where they are.

use crate::{ModelConfig, QuantMatrix};

/// All weights of a model, with its configuration.
#[derive(Debug, Clone)]
pub struct ModelWeights {
    /// Sizes and constants.
    pub config: ModelConfig,
    /// Token embedding, `[vocab, hidden]`.
    pub embed_tokens: QuantMatrix,
    /// One entry a decoder layer.
    pub layers: Vec<LayerWeights>,
    /// Gain of the final RMSNorm, `[hidden]` (as stored: already 1 + w).
    pub final_norm: Vec<f32>,
    /// Output projection, `[vocab, hidden]`.
    pub lm_head: QuantMatrix,
}

/// One decoder layer: norm, mixer, norm, mixture of experts.
#[derive(Debug, Clone)]
pub struct LayerWeights {
    /// `input_layernorm`, `[hidden]`.
    pub input_norm: Vec<f32>,
    /// Full attention or Gated DeltaNet.
    pub mixer: MixerWeights,
    /// `post_attention_layernorm`, `[hidden]`.
    pub post_attention_norm: Vec<f32>,
    /// The mixture of experts.
    pub moe: MoeWeights,
}

/// The token mixer of a layer.
#[derive(Debug, Clone)]
pub enum MixerWeights {
    /// `self_attn`.
    Attention(AttentionWeights),
    /// `linear_attn`.
    Gdn(GdnWeights),
}

/// Full attention with an output gate.
#[derive(Debug, Clone)]
pub struct AttentionWeights {
    /// `[heads * 2 * head_dim, hidden]`: per head, `head_dim` query rows then `head_dim` gate rows.
    pub q_proj: QuantMatrix,
    /// `[kv_heads * head_dim, hidden]`.
    pub k_proj: QuantMatrix,
    /// `[kv_heads * head_dim, hidden]`.
    pub v_proj: QuantMatrix,
    /// `[hidden, heads * head_dim]`.
    pub o_proj: QuantMatrix,
    /// `[head_dim]`.
    pub q_norm: Vec<f32>,
    /// `[head_dim]`.
    pub k_norm: Vec<f32>,
}

/// Gated DeltaNet.
#[derive(Debug, Clone)]
pub struct GdnWeights {
    /// `[2 * key_heads * key_dim + value_heads * value_dim, hidden]`: q rows, k rows, v rows.
    pub in_proj_qkv: QuantMatrix,
    /// Output gate, `[value_heads * value_dim, hidden]`.
    pub in_proj_z: QuantMatrix,
    /// Write strength, `[value_heads, hidden]`.
    pub in_proj_b: QuantMatrix,
    /// Decay input, `[value_heads, hidden]`.
    pub in_proj_a: QuantMatrix,
    /// Causal depthwise convolution, `[channels, kernel]`, oldest tap first.
    pub conv1d: Vec<f32>,
    /// `[value_heads]`.
    pub a_log: Vec<f32>,
    /// `[value_heads]`.
    pub dt_bias: Vec<f32>,
    /// Gain of the gated RMSNorm, `[value_dim]`.
    pub norm: Vec<f32>,
    /// `[hidden, value_heads * value_dim]`.
    pub out_proj: QuantMatrix,
}

/// Router, routed experts and the shared expert.
#[derive(Debug, Clone)]
pub struct MoeWeights {
    /// Router, `[experts, hidden]` (8-bit).
    pub gate: QuantMatrix,
    /// Stack of `[expert_width, hidden]`.
    pub experts_gate: QuantMatrix,
    /// Stack of `[expert_width, hidden]`.
    pub experts_up: QuantMatrix,
    /// Stack of `[hidden, expert_width]`.
    pub experts_down: QuantMatrix,
    /// `[shared_width, hidden]`.
    pub shared_gate_proj: QuantMatrix,
    /// `[shared_width, hidden]`.
    pub shared_up_proj: QuantMatrix,
    /// `[hidden, shared_width]`.
    pub shared_down_proj: QuantMatrix,
    /// `[1, hidden]` (8-bit).
    pub shared_expert_gate: QuantMatrix,
}
