//! Full attention with grouped KV heads, partial rotary positions and an output gate.
//!
//! For a token at position `p`, head `h`, KV head `h / (heads / kv_heads)`:
//!
//! ```text
//! [q_h; gate_h] = q_proj x          per head: head_dim query values, then head_dim gate values
//! q_h = rope(rmsnorm(q_h), p),      k = rope(rmsnorm(k_proj x), p),      v = v_proj x
//! a_t = softmax_t(q_h . k_t / sqrt(head_dim)),  t = 0..=p
//! o_h = sigmoid(gate_h) * sum_t a_t v_t
//! y   = o_proj [o_0; o_1; ...]
//! ```

use super::{
    linear::{Linear, dot},
    norm::{rms_norm, softmax},
    sigmoid,
    state::AttentionState,
};
use crate::{ModelConfig, weights::AttentionWeights};

#[derive(Debug)]
pub(super) struct Attention {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rotary_dim: usize,
    rope_theta: f64,
    eps: f32,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
}

impl Attention {
    pub(super) fn new(c: &ModelConfig, w: &AttentionWeights, keep: bool) -> Self {
        Self {
            heads: c.num_attention_heads,
            kv_heads: c.num_key_value_heads,
            head_dim: c.head_dim,
            rotary_dim: c.rotary_dim,
            rope_theta: c.rope_theta,
            eps: c.rms_norm_eps,
            q_proj: Linear::new(&w.q_proj, keep),
            k_proj: Linear::new(&w.k_proj, keep),
            v_proj: Linear::new(&w.v_proj, keep),
            o_proj: Linear::new(&w.o_proj, keep),
        }
    }

    /// `x` and the result are `[tokens, hidden]`.
    pub(super) fn forward(&self, w: &AttentionWeights, s: &mut AttentionState, x: &[f32]) -> Vec<f32> {
        let (d, kv_width) = (self.head_dim, self.kv_heads * self.head_dim);
        let first = s.keys.len() / kv_width;

        let mut keys = rms_norm(&self.k_proj.apply(0, x), &w.k_norm, self.eps);
        for (t, token) in keys.chunks_exact_mut(kv_width).enumerate() {
            self.rotate(token, first + t);
        }
        s.keys.extend(keys);
        s.values.extend(self.v_proj.apply(0, x));

        let projected = self.q_proj.apply(0, x);
        let mut out = Vec::with_capacity(projected.len() / 2);
        for (t, token) in projected.chunks_exact(self.heads * 2 * d).enumerate() {
            for (h, head) in token.chunks_exact(2 * d).enumerate() {
                let (query, gate) = head.split_at(d);
                let mut query = rms_norm(query, &w.q_norm, self.eps);
                self.rotate(&mut query, first + t);
                let o = self.attend(s, &query, h / (self.heads / self.kv_heads), first + t + 1);
                out.extend(o.iter().zip(gate).map(|(o, g)| o * sigmoid(*g)));
            }
        }
        self.o_proj.apply(0, &out)
    }

    /// Softmax attention of one query over the first `len` tokens of a KV head.
    fn attend(&self, s: &AttentionState, query: &[f32], kv_head: usize, len: usize) -> Vec<f32> {
        let (d, kv_width) = (self.head_dim, self.kv_heads * self.head_dim);
        let head = |cache: &[f32], t: usize| {
            t * kv_width + kv_head * d..cache.len().min(t * kv_width + (kv_head + 1) * d)
        };
        let scale = 1.0 / (d as f32).sqrt();
        let mut scores: Vec<f32> = (0..len).map(|t| dot(query, &s.keys[head(&s.keys, t)]) * scale).collect();
        softmax(&mut scores);
        let mut out = vec![0.0f64; d];
        for (t, &a) in scores.iter().enumerate() {
            for (o, &v) in out.iter_mut().zip(&s.values[head(&s.values, t)]) {
                *o += (a * v) as f64;
            }
        }
        out.iter().map(|&o| o as f32).collect()
    }

    /// Rotary positions (Su et al. 2021, arXiv:2104.09864) on the first `rotary_dim` values of each head: value `i`
    /// of the first half is paired with value `i` of the second half, and the pair turned by
    /// `position * theta^(-2 i / rotary_dim)`. The three axes of the model's M-RoPE are equal for text.
    fn rotate(&self, heads: &mut [f32], position: usize) {
        let half = self.rotary_dim / 2;
        for i in 0..half {
            let angle = position as f64 * self.rope_theta.powf(-(i as f64) / half as f64);
            let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
            for head in heads.chunks_exact_mut(self.head_dim) {
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * cos - b * sin;
                head[i + half] = b * cos + a * sin;
            }
        }
    }
}
