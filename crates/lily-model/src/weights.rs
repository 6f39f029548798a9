//! The tensors of the whole model, by role. Small vectors are widened to f32 when loaded; matrices stay packed
//! where they are.

use crate::{ModelConfig, ModelError, QuantMatrix, error::DOWNLOAD_AGAIN};

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

impl ModelWeights {
    /// Every matrix, with the path of its module inside the language model.
    pub fn matrices(&self) -> impl Iterator<Item = (String, &QuantMatrix)> {
        let layers = self.layers.iter().enumerate().flat_map(|(i, layer)| {
            layer.matrices().into_iter().map(move |(name, m)| (format!("model.layers.{i}.{name}"), m))
        });
        std::iter::once(("model.embed_tokens".to_string(), &self.embed_tokens))
            .chain(layers)
            .chain(std::iter::once(("lm_head".to_string(), &self.lm_head)))
    }

    /// Bytes of all packed matrices and of the vectors as they are kept (f32).
    pub fn byte_len(&self) -> usize {
        let vectors: usize =
            self.layers.iter().map(LayerWeights::vector_len).sum::<usize>() + self.final_norm.len();
        self.matrices().map(|(_, m)| m.byte_len()).sum::<usize>() + vectors * 4
    }

    /// Checks that every scale and bias is finite, reading all of them (6 % of the weights' bytes). `place` names the
    /// checkpoint in the error.
    pub fn check_finite(&self, place: &str) -> Result<(), ModelError> {
        for (name, matrix) in self.matrices() {
            for (part, values) in [("scales", &matrix.scales), ("biases", &matrix.biases)] {
                check_finite_bf16(place, &format!("language_model.{name}.{part}"), values)?;
            }
        }
        Ok(())
    }
}

/// Checks the BF16 patterns of tensor `name` of `file`.
pub(crate) fn check_finite_bf16(file: &str, name: &str, values: &[u16]) -> Result<(), ModelError> {
    // A BF16 number is infinite or NaN when all 8 exponent bits are set.
    match values.iter().position(|&v| v & 0x7f80 == 0x7f80) {
        None => Ok(()),
        Some(i) => Err(ModelError::Tensor {
            file: file.into(),
            tensor: name.into(),
            problem: format!("element {i} is not finite (bit pattern {:#06x})", values[i]),
            advice: DOWNLOAD_AGAIN,
        }),
    }
}

impl LayerWeights {
    fn matrices(&self) -> Vec<(&'static str, &QuantMatrix)> {
        let mut list = match &self.mixer {
            MixerWeights::Attention(a) => vec![
                ("self_attn.q_proj", &a.q_proj),
                ("self_attn.k_proj", &a.k_proj),
                ("self_attn.v_proj", &a.v_proj),
                ("self_attn.o_proj", &a.o_proj),
            ],
            MixerWeights::Gdn(g) => vec![
                ("linear_attn.in_proj_qkv", &g.in_proj_qkv),
                ("linear_attn.in_proj_z", &g.in_proj_z),
                ("linear_attn.in_proj_b", &g.in_proj_b),
                ("linear_attn.in_proj_a", &g.in_proj_a),
                ("linear_attn.out_proj", &g.out_proj),
            ],
        };
        let m = &self.moe;
        list.extend([
            ("mlp.gate", &m.gate),
            ("mlp.switch_mlp.gate_proj", &m.experts_gate),
            ("mlp.switch_mlp.up_proj", &m.experts_up),
            ("mlp.switch_mlp.down_proj", &m.experts_down),
            ("mlp.shared_expert.gate_proj", &m.shared_gate_proj),
            ("mlp.shared_expert.up_proj", &m.shared_up_proj),
            ("mlp.shared_expert.down_proj", &m.shared_down_proj),
            ("mlp.shared_expert_gate", &m.shared_expert_gate),
        ]);
        list
    }

    fn vector_len(&self) -> usize {
        let mixer = match &self.mixer {
            MixerWeights::Attention(a) => a.q_norm.len() + a.k_norm.len(),
            MixerWeights::Gdn(g) => g.conv1d.len() + g.a_log.len() + g.dt_bias.len() + g.norm.len(),
        };
        self.input_norm.len() + self.post_attention_norm.len() + mixer
    }
}
