//! Gated DeltaNet: linear attention whose state forgets by a gate and writes by the delta rule
//! (Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464).
//!
//! For a token, value head `h`, key head `h / (value_heads / key_heads)`:
//!
//! ```text
//! u        = silu(conv(in_proj_qkv x))       causal, depthwise, 4 taps, over all q, k and v channels
//! q, k     = l2norm(u_q) / sqrt(key_dim), l2norm(u_k)           eps 1e-6 inside the root
//! g        = exp(-exp(A_log) * softplus(in_proj_a x + dt_bias))
//! beta     = sigmoid(in_proj_b x)
//! S        = g S
//! S        = S + beta (v - S k) k^T          S: [value_dim, key_dim]
//! o        = S q
//! y        = out_proj [rmsnorm(o) * silu(z)],   z = in_proj_z x
//! ```

use super::{
    linear::{Linear, dot},
    norm::{l2_norm, rms_norm},
    sigmoid, silu,
    state::GdnState,
};
use crate::{ModelConfig, weights::GdnWeights};

/// Epsilon of the L2 norm of queries and keys.
const L2_EPS: f32 = 1e-6;

#[derive(Debug)]
pub(super) struct Gdn {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    kernel: usize,
    eps: f32,
    in_proj_qkv: Linear,
    in_proj_z: Linear,
    in_proj_b: Linear,
    in_proj_a: Linear,
    out_proj: Linear,
}

impl Gdn {
    pub(super) fn new(c: &ModelConfig, w: &GdnWeights, keep: bool) -> Self {
        Self {
            key_heads: c.linear_num_key_heads,
            value_heads: c.linear_num_value_heads,
            key_dim: c.linear_key_head_dim,
            value_dim: c.linear_value_head_dim,
            kernel: c.linear_conv_kernel_dim,
            eps: c.rms_norm_eps,
            in_proj_qkv: Linear::new(&w.in_proj_qkv, keep),
            in_proj_z: Linear::new(&w.in_proj_z, keep),
            in_proj_b: Linear::new(&w.in_proj_b, keep),
            in_proj_a: Linear::new(&w.in_proj_a, keep),
            out_proj: Linear::new(&w.out_proj, keep),
        }
    }

    /// `x` and the result are `[tokens, hidden]`.
    pub(super) fn forward(&self, w: &GdnWeights, s: &mut GdnState, x: &[f32]) -> Vec<f32> {
        let key_width = self.key_heads * self.key_dim;
        let value_width = self.value_heads * self.value_dim;
        let channels = 2 * key_width + value_width;
        let qkv = self.in_proj_qkv.apply(0, x);
        let z = self.in_proj_z.apply(0, x);
        let b = self.in_proj_b.apply(0, x);
        let a = self.in_proj_a.apply(0, x);

        let mut out = Vec::with_capacity(z.len());
        for (t, input) in qkv.chunks_exact(channels).enumerate() {
            let mut u = self.convolve(w, s, input);
            let (q, rest) = u.split_at_mut(key_width);
            let (k, v) = rest.split_at_mut(key_width);
            for q in q.chunks_exact_mut(self.key_dim) {
                l2_norm(q, L2_EPS);
                let scale = 1.0 / (self.key_dim as f32).sqrt();
                q.iter_mut().for_each(|q| *q *= scale);
            }
            k.chunks_exact_mut(self.key_dim).for_each(|k| l2_norm(k, L2_EPS));

            let per_key_head = self.value_heads / self.key_heads;
            for (h, v) in v.chunks_exact(self.value_dim).enumerate() {
                let at = t * self.value_heads + h;
                let gate = (-w.a_log[h].exp() * softplus(a[at] + w.dt_bias[h])).exp();
                let key_head = h / per_key_head * self.key_dim..(h / per_key_head + 1) * self.key_dim;
                let state =
                    &mut s.state[h * self.value_dim * self.key_dim..][..self.value_dim * self.key_dim];
                let o = step(state, &q[key_head.clone()], &k[key_head], v, gate, sigmoid(b[at]));
                let z = &z[at * self.value_dim..][..self.value_dim];
                let normed = rms_norm(&o, &w.norm, self.eps);
                out.extend(normed.iter().zip(z).map(|(o, z)| o * silu(*z)));
            }
        }
        self.out_proj.apply(0, &out)
    }

    /// The convolution's output for one token, after SiLU; moves the tail on by one.
    fn convolve(&self, w: &GdnWeights, s: &mut GdnState, input: &[f32]) -> Vec<f32> {
        let channels = input.len();
        let u = (0..channels).map(|c| {
            let taps = &w.conv1d[c * self.kernel..(c + 1) * self.kernel];
            let (now, past) = taps.split_last().expect("the kernel has taps");
            let sum = past.iter().enumerate().map(|(j, tap)| tap * s.conv[j * channels + c]).sum::<f32>();
            silu(sum + now * input[c])
        });
        let u = u.collect();
        s.conv.copy_within(channels.., 0);
        let last = s.conv.len() - channels;
        s.conv[last..].copy_from_slice(input);
        u
    }
}

/// One token of one value head. `state` is `[value_dim, key_dim]`; the result is `[value_dim]`.
fn step(state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], gate: f32, beta: f32) -> Vec<f32> {
    let rows = state.chunks_exact_mut(k.len()).zip(v);
    rows.map(|(row, v)| {
        row.iter_mut().for_each(|s| *s *= gate);
        let delta = beta * (v - dot(row, k));
        row.iter_mut().zip(k).for_each(|(s, k)| *s += delta * k);
        dot(row, q)
    })
    .collect()
}

/// `ln(1 + exp(x))`; for large x that is x itself, where `exp` would overflow.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_is_smooth_at_the_switch() {
        assert_eq!(softplus(100.0), 100.0);
        assert!((softplus(20.0) - softplus(20.000_002)).abs() < 1e-5);
        assert!((softplus(0.0) - std::f32::consts::LN_2).abs() < 1e-7);
        assert!(softplus(-100.0) >= 0.0);
    }

    #[test]
    fn what_is_written_is_read_back() {
        // With gate 1, beta 1 and a unit key, the state returns the last value stored under the key.
        let (mut state, key) = (vec![0.5; 2 * 4], [0.5; 4]);
        assert_eq!(step(&mut state, &key, &key, &[3.0, -2.0], 1.0, 1.0), [3.0, -2.0]);
        assert_eq!(step(&mut state, &key, &key, &[7.0, 1.0], 1.0, 1.0), [7.0, 1.0]);
        // A gate of 0 forgets, beta 0 writes nothing.
        assert_eq!(step(&mut state, &key, &key, &[9.0, 9.0], 0.0, 0.0), [0.0, 0.0]);
    }
}
