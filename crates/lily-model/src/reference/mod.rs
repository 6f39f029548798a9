//! The f32 model: slow, clear, the specification of every backend.
//!
//! Plain f32 without SIMD intrinsics, threads or tricks, one file an operation, readable beside the equations. The
//! equations are those of the Gated DeltaNet paper (Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464) and of the
//! `Qwen3_5Moe` model of Hugging Face transformers and `mlx_lm`, which agree with each other and with this code on
//! the test fixtures.
//!
//! A decoder layer, for the residual stream `x` of one token:
//!
//! ```text
//! h = x + mixer(rmsnorm(x; input_norm))           mixer: attention or Gated DeltaNet
//! y = h + moe(rmsnorm(h; post_attention_norm))
//! ```
//!
//! and the model: `logits = lm_head(rmsnorm(layers(embed_tokens[id]); final_norm))`.
//!
//! Precision: values and products are f32; sums run in 16 f32 partial sums that are added in f64 ([`linear::dot`]), or
//! in f64 where a sum may be long (RMSNorm, softmax, attention output); rotary angles are computed in f64.

mod attention;
mod gdn;
pub mod linear;
mod moe;
mod norm;
mod state;

use std::sync::Arc;

use crate::{ModelWeights, weights::MixerWeights};
use attention::Attention;
use gdn::Gdn;
use linear::Linear;
use moe::Moe;
pub use state::{AttentionState, GdnState, LayerState, ReferenceState};

/// Dequantised matrices are kept when all of them together take at most this many bytes.
const CACHE_LIMIT: usize = 2 << 30;

/// The reference model.
#[derive(Debug)]
pub struct ReferenceModel {
    weights: Arc<ModelWeights>,
    embed_tokens: Linear,
    layers: Vec<Layer>,
    lm_head: Linear,
}

#[derive(Debug)]
struct Layer {
    mixer: Mixer,
    moe: Moe,
}

#[derive(Debug)]
enum Mixer {
    Attention(Attention),
    Gdn(Gdn),
}

/// Intermediate values of [`ReferenceModel::forward`], appended to at every call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// Embedding output, `[tokens, hidden]`.
    pub embedding: Vec<f32>,
    /// Residual stream after each layer, `[layers][tokens, hidden]`.
    pub layers: Vec<Vec<f32>>,
    /// After the final norm, `[tokens, hidden]`.
    pub final_norm: Vec<f32>,
}

impl ReferenceModel {
    /// The model with these weights. Matrices are dequantised when first used, and kept if the whole model takes at
    /// most 2 GiB in f32; otherwise row by row at every use.
    pub fn new(weights: Arc<ModelWeights>) -> Self {
        let elements: usize = weights.matrices().map(|(_, m)| m.experts * m.rows * m.cols).sum();
        let keep = elements <= CACHE_LIMIT / 4;
        let config = &weights.config;
        let layers = weights.layers.iter().map(|l| Layer {
            mixer: match &l.mixer {
                MixerWeights::Attention(a) => Mixer::Attention(Attention::new(config, a, keep)),
                MixerWeights::Gdn(g) => Mixer::Gdn(Gdn::new(config, g, keep)),
            },
            moe: Moe::new(config, &l.moe, keep),
        });
        Self {
            layers: layers.collect(),
            embed_tokens: Linear::new(&weights.embed_tokens, false),
            lm_head: Linear::new(&weights.lm_head, keep),
            weights,
        }
    }

    /// The weights.
    pub fn weights(&self) -> &Arc<ModelWeights> {
        &self.weights
    }

    /// An empty sequence.
    pub fn new_state(&self) -> ReferenceState {
        ReferenceState::new(&self.weights.config)
    }

    /// Appends `tokens` to the sequence and returns the logits after each of them, `[tokens, vocab]`.
    ///
    /// # Panics
    /// When a token id is not below `vocab_size`, or `state` belongs to a model of other sizes.
    pub fn forward(&self, state: &mut ReferenceState, tokens: &[u32], trace: Option<&mut Trace>) -> Vec<f32> {
        let x = self.hidden(state, tokens, trace);
        self.lm_head.apply(0, &x)
    }

    /// As [`forward`](Self::forward), but only the logits after the last token, `[vocab]`; empty when `tokens` is.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    pub fn forward_last(&self, state: &mut ReferenceState, tokens: &[u32]) -> Vec<f32> {
        let x = self.hidden(state, tokens, None);
        let last = x.len().saturating_sub(self.weights.config.hidden_size);
        self.lm_head.apply(0, &x[last..])
    }

    /// Appends `tokens` and returns the output of the final norm, `[tokens, hidden]`.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    pub fn hidden(
        &self,
        state: &mut ReferenceState,
        tokens: &[u32],
        mut trace: Option<&mut Trace>,
    ) -> Vec<f32> {
        let c = &self.weights.config;
        assert_eq!(state.layers.len(), self.layers.len(), "the state belongs to another model");
        let mut x = vec![0.0; tokens.len() * c.hidden_size];
        for (&id, row) in tokens.iter().zip(x.chunks_exact_mut(c.hidden_size)) {
            assert!(
                (id as usize) < c.vocab_size,
                "token id {id} is outside the vocabulary of {}",
                c.vocab_size
            );
            self.embed_tokens.row(id as usize, row);
        }
        if let Some(t) = trace.as_deref_mut() {
            t.embedding.extend(&x);
            t.layers.resize(self.layers.len(), Vec::new());
        }
        for (i, (layer, w)) in self.layers.iter().zip(&self.weights.layers).enumerate() {
            let normed = norm::rms_norm(&x, &w.input_norm, c.rms_norm_eps);
            let mixed = match (&layer.mixer, &w.mixer, &mut state.layers[i]) {
                (Mixer::Attention(m), MixerWeights::Attention(w), LayerState::Attention(s)) => {
                    m.forward(w, s, &normed)
                }
                (Mixer::Gdn(m), MixerWeights::Gdn(w), LayerState::Gdn(s)) => m.forward(w, s, &normed),
                _ => panic!("the state belongs to another model: layer {i} is of another type"),
            };
            add(&mut x, &mixed);
            let normed = norm::rms_norm(&x, &w.post_attention_norm, c.rms_norm_eps);
            add(&mut x, &layer.moe.forward(&normed));
            if let Some(t) = trace.as_deref_mut() {
                t.layers[i].extend(&x);
            }
        }
        state.position += tokens.len();
        let x = norm::rms_norm(&x, &self.weights.final_norm, c.rms_norm_eps);
        if let Some(t) = trace {
            t.final_norm.extend(&x);
        }
        x
    }
}

/// `x += y`.
fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// `1 / (1 + exp(-x))`.
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`.
fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}
