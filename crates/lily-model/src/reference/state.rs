//! What a sequence leaves behind for its next token.

use crate::{LayerType, ModelConfig};

/// A sequence's state. Clone it to branch.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceState {
    /// Tokens seen.
    pub position: usize,
    /// One entry a layer.
    pub layers: Vec<LayerState>,
}

/// A layer's state.
#[derive(Debug, Clone, PartialEq)]
pub enum LayerState {
    /// Grows by one row of keys and values a token.
    Attention(AttentionState),
    /// Of fixed size.
    Gdn(GdnState),
}

/// Keys (normalised and rotated) and values of every token seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AttentionState {
    /// `[position, kv_heads, head_dim]`.
    pub keys: Vec<f32>,
    /// `[position, kv_heads, head_dim]`.
    pub values: Vec<f32>,
}

/// The recurrent state, and the last inputs of the convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct GdnState {
    /// S, `[value_heads, value_dim, key_dim]`.
    pub state: Vec<f32>,
    /// `[kernel - 1, channels]`, oldest first; zeros before the first token.
    pub conv: Vec<f32>,
}

impl ReferenceState {
    /// Of an empty sequence.
    pub fn new(c: &ModelConfig) -> Self {
        let gdn = GdnState {
            state: vec![0.0; c.gdn_value_width() * c.linear_key_head_dim],
            conv: vec![0.0; (c.linear_conv_kernel_dim - 1) * c.conv_channels()],
        };
        let layer = |t: &LayerType| match t {
            LayerType::FullAttention => LayerState::Attention(AttentionState::default()),
            LayerType::LinearAttention => LayerState::Gdn(gdn.clone()),
        };
        Self { position: 0, layers: c.layer_types.iter().map(layer).collect() }
    }
}
