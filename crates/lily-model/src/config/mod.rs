//! Sizes and constants of a `qwen3_5_moe` model, its quantisation and its generation defaults.

mod generation;
pub(crate) mod parse;
mod quantization;
pub(crate) mod tokenizer;

pub use generation::GenerationDefaults;
pub use quantization::{GROUP_SIZE, Quantization};

/// What mixes tokens in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerType {
    /// Gated DeltaNet.
    LinearAttention,
    /// Softmax attention with a KV cache.
    FullAttention,
}

/// The text model's configuration. Field names follow `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// One entry a layer.
    pub layer_types: Vec<LayerType>,
    /// Rows of the embedding and of `lm_head`.
    pub vocab_size: usize,
    /// RMSNorm epsilon.
    pub rms_norm_eps: f32,
    /// Longest context the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// Query heads of full attention.
    pub num_attention_heads: usize,
    /// Key/value heads of full attention.
    pub num_key_value_heads: usize,
    /// Width of an attention head.
    pub head_dim: usize,
    /// Leading dims of a head that are rotated (`head_dim * partial_rotary_factor`).
    pub rotary_dim: usize,
    /// Rotary base.
    pub rope_theta: f64,
    /// GDN key heads.
    pub linear_num_key_heads: usize,
    /// GDN value heads.
    pub linear_num_value_heads: usize,
    /// GDN key width.
    pub linear_key_head_dim: usize,
    /// GDN value width.
    pub linear_value_head_dim: usize,
    /// Taps of the causal convolution.
    pub linear_conv_kernel_dim: usize,
    /// Routed experts.
    pub num_experts: usize,
    /// Experts a token uses.
    pub num_experts_per_tok: usize,
    /// Width of a routed expert.
    pub moe_intermediate_size: usize,
    /// Width of the shared expert.
    pub shared_expert_intermediate_size: usize,
}

impl ModelConfig {
    /// The sizes of Qwen3.6-35B-A3B, with `layers` decoder layers instead of its 40 (full attention in every
    /// fourth), so that a machine that cannot hold the whole model can measure a part of it.
    pub fn qwen3_6_35b_a3b(layers: usize) -> Self {
        let kind = |i| if i % 4 == 3 { LayerType::FullAttention } else { LayerType::LinearAttention };
        Self {
            hidden_size: 2048,
            num_hidden_layers: layers,
            layer_types: (0..layers).map(kind).collect(),
            vocab_size: 248_320,
            rms_norm_eps: 1e-6,
            max_position_embeddings: 262_144,
            num_attention_heads: 16,
            num_key_value_heads: 2,
            head_dim: 256,
            rotary_dim: 64,
            rope_theta: 1e7,
            linear_num_key_heads: 16,
            linear_num_value_heads: 32,
            linear_key_head_dim: 128,
            linear_value_head_dim: 128,
            linear_conv_kernel_dim: 4,
            num_experts: 256,
            num_experts_per_tok: 8,
            moe_intermediate_size: 512,
            shared_expert_intermediate_size: 512,
        }
    }

    /// Channels of the GDN convolution: q, k and v.
    pub fn conv_channels(&self) -> usize {
        2 * self.linear_num_key_heads * self.linear_key_head_dim + self.gdn_value_width()
    }

    /// `value_heads * value_dim`.
    pub fn gdn_value_width(&self) -> usize {
        self.linear_num_value_heads * self.linear_value_head_dim
    }

    /// Layers of type `t`.
    pub fn count(&self, t: LayerType) -> usize {
        self.layer_types.iter().filter(|&&x| x == t).count()
    }

    /// KV cache bytes a token over all attention layers, at `bytes` per element.
    pub fn kv_bytes_per_token(&self, bytes: usize) -> usize {
        self.count(LayerType::FullAttention) * 2 * self.num_key_value_heads * self.head_dim * bytes
    }

    /// Bytes of the fixed-size state of one sequence: GDN state and convolution tail, f32.
    pub fn state_bytes(&self) -> usize {
        let gdn = self.linear_num_value_heads * self.linear_value_head_dim * self.linear_key_head_dim;
        let conv = self.conv_channels() * (self.linear_conv_kernel_dim - 1);
        self.count(LayerType::LinearAttention) * (gdn + conv) * 4
    }
}
