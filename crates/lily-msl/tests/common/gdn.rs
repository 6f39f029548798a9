//! A Gated DeltaNet layer: its kernels, and the recurrence in f64, token by token.

use bytemuck::cast_slice;
use half::{bf16, f16};
use lily_msl::soft::{Arg, SoftLibrary};

use super::device::*;
use super::*;

const D: usize = 128;

/// The mixed output of the last of `inputs`, all tokens of a sequence so far; moves `state` on by it.
#[allow(clippy::too_many_arguments)]
pub fn gdn_reference(
    inputs: &[Vec<f32>],
    state: &mut [f64],
    kh: usize,
    vh: usize,
    conv: &[bf16],
    a_log: &[f32],
    dt_bias: &[f32],
    gain: &[bf16],
) -> Vec<f64> {
    let (kw, vw) = (kh * D, vh * D);
    let channels = 2 * kw + vw;
    let now = inputs.last().unwrap();
    let u: Vec<f64> = (0..channels)
        .map(|c| {
            let taps = (0..4).map(|j| {
                let x = (inputs.len() + j).checked_sub(4).map_or(0.0, |i| inputs[i][c]);
                conv[c * 4 + j].to_f64() * x as f64
            });
            silu(taps.sum())
        })
        .collect();
    let l2 = |v: &[f64]| {
        let s = 1.0 / (v.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        v.iter().map(|x| x * s).collect::<Vec<f64>>()
    };
    let mut out = Vec::new();
    for h in 0..vh {
        let key = h / (vh / kh) * D;
        let q: Vec<f64> = l2(&u[key..key + D]).iter().map(|x| x / (D as f64).sqrt()).collect();
        let k = l2(&u[kw + key..kw + key + D]);
        let v = &u[2 * kw + h * D..][..D];
        let (b, a) = (now[channels + vw + h] as f64, now[channels + vw + vh + h] as f64);
        let softplus = (1.0 + (a + dt_bias[h] as f64).exp()).ln();
        let decay = (-(a_log[h] as f64).exp() * softplus).exp();
        let o: Vec<f64> = (0..D)
            .map(|i| {
                let row = &mut state[(h * D + i) * D..][..D];
                row.iter_mut().for_each(|s| *s *= decay);
                let sk: f64 = row.iter().zip(&k).map(|(s, k)| s * k).sum();
                let delta = sigmoid(b) * (v[i] - sk);
                row.iter_mut().zip(&k).for_each(|(s, k)| *s += delta * k);
                row.iter().zip(&q).map(|(s, q)| s * q).sum()
            })
            .collect();
        let z = &now[channels + h * D..][..D];
        let normed = rms_norm(&o, &wide_bf16(gain), EPS as f64);
        out.extend(normed.iter().zip(z).map(|(o, &z)| o * silu(z as f64)));
    }
    out
}

/// A layer's weights and sizes.
pub struct Layer {
    pub key_heads: usize,
    pub value_heads: usize,
    pub conv: Vec<bf16>,
    pub a_log: Vec<f32>,
    pub dt_bias: Vec<f32>,
    pub gain: Vec<bf16>,
}

impl Layer {
    pub fn random(r: &mut Random, key_heads: usize, value_heads: usize) -> Layer {
        let channels = (2 * key_heads + value_heads) * D;
        Layer {
            key_heads,
            value_heads,
            conv: bfloats(r, channels * 4, 0.5, 0.1),
            // From heads that keep almost everything to heads that forget within a token or two.
            a_log: (0..value_heads).map(|h| -3.0 + 5.0 * h as f32 / value_heads as f32).collect(),
            dt_bias: (0..value_heads).map(|_| 3.0 * r.unit() - 1.0).collect(),
            gain: bfloats(r, D, 0.5, 1.0),
        }
    }

    pub fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * D
    }

    /// Projections of a token, and what makes them a multiple of 4.
    pub fn stride(&self) -> usize {
        (self.channels() + self.value_heads * (D + 2)).next_multiple_of(4)
    }

    fn shape(&self) -> [u32; 4] {
        [self.key_heads as u32, self.value_heads as u32, self.stride() as u32, EPS.to_bits()]
    }

    /// All dispatches of a chunk; the mixed output, `[tokens, value_heads * D]`, rounded to f16 and not rounded.
    #[allow(clippy::too_many_arguments)]
    pub fn prefill(
        &self,
        lib: &SoftLibrary,
        projected: &[f32],
        position: usize,
        slot: usize,
        ring: &mut [f32],
        state: &mut [f32],
        seed: u32,
    ) -> (Vec<f32>, Vec<f32>) {
        let tokens = projected.len() / self.stride();
        let padded = tokens.next_multiple_of(32);
        let steps = padded as u32 / 32;
        let (heads, shape) = (self.value_heads as u32, self.shape());
        let chunk = chunk(position, tokens, slot);
        let mut u = vec![f32::NAN; padded * self.channels()];
        let a = vec![
            ("projected", read(projected)),
            ("conv_weight", read(&self.conv)),
            ("ring", read(ring)),
            ("u", write(&mut u)),
            ("chunk", read(&chunk)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        let grid = [(2 * self.key_heads + self.value_heads) as u32, steps + 1, 1];
        run(lib, "gdn_convolve", grid, 128, seed, a);
        let mut factors = vec![f32::NAN; steps as usize * self.value_heads * (2 * 1024 + 2 * 256)];
        let b = vec![
            ("projected", read(projected)),
            ("u", read(&u)),
            ("a_log", read(&self.a_log)),
            ("dt_bias", read(&self.dt_bias)),
            ("ring", write(ring)),
            ("factors", write(&mut factors)),
            ("chunk", read(&chunk)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        let o = run(lib, "gdn_factors", [steps + 1, heads, 1], 128, seed, b);
        if lib.checked {
            assert_eq!(o.touched[4].bytes_written(), (tokens.min(4) * self.channels() * 4) as u64);
        }
        let mut out = vec![f32::NAN; padded * self.value_heads * D];
        let c = vec![
            ("u", read(&u)),
            ("factors", read(&factors)),
            ("state", write(state)),
            ("o", write(&mut out)),
            ("chunk", read(&chunk)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        let o = run(lib, "gdn_scan", [2, heads, 1], 128, seed, c);
        // The state of this sequence is read once and written once.
        let bytes = (self.value_heads * D * D * 4) as u64;
        if lib.checked {
            assert_eq!((o.touched[2].bytes_read(), o.touched[2].bytes_written()), (bytes, bytes));
        }
        let (mut y, mut exact) = (vec![f16::NAN; tokens * self.value_heads * D], Vec::new());
        exact.resize(y.len(), f32::NAN);
        for (kernel, y) in [("gdn_gate", write(&mut y)), ("gdn_gate_float", write(&mut exact))] {
            let d = vec![
                ("projected", read(projected)),
                ("o", read(&out)),
                ("gain", read(&self.gain)),
                ("y", y),
                ("chunk", read(&chunk)),
                ("shape", Arg::Bytes(cast_slice(&shape))),
            ];
            run(lib, kernel, [heads, tokens.div_ceil(4) as u32 + 1, 1], 128, seed, d);
        }
        (widen(&y), exact)
    }

    /// A decode step of one sequence; the mixed output.
    pub fn step(
        &self,
        lib: &SoftLibrary,
        projected: &[f32],
        position: usize,
        ring: &mut [f32],
        state: &mut [f32],
        seed: u32,
    ) -> Vec<f32> {
        let mut y = vec![f32::NAN; self.value_heads * D];
        let (positions, slots) = ([position as u32], [0u32]);
        let shape = self.shape();
        let args = vec![
            ("projected", read(projected)),
            ("conv_weight", read(&self.conv)),
            ("a_log", read(&self.a_log)),
            ("dt_bias", read(&self.dt_bias)),
            ("gain", read(&self.gain)),
            ("positions", read(&positions)),
            ("slots", read(&slots)),
            ("ring", write(ring)),
            ("state", write(state)),
            ("y", write(&mut y)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        run(lib, "gdn_step", [self.value_heads as u32, 1, 1], 512, seed, args);
        y
    }

    /// The same by the recurrence.
    pub fn reference(&self, inputs: &mut Vec<Vec<f32>>, projected: &[f32], state: &mut [f64]) -> Vec<f64> {
        let mut out = Vec::new();
        for row in projected.chunks(self.stride()) {
            inputs.push(row.to_vec());
            out.extend(gdn_reference(
                inputs,
                state,
                self.key_heads,
                self.value_heads,
                &self.conv,
                &self.a_log,
                &self.dt_bias,
                &self.gain,
            ));
        }
        out
    }
}
