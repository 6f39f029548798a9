//! Gated DeltaNet in f64, token by token.

use half::bf16;

use super::device::EPS;
use super::{rms_norm, sigmoid, silu, wide_bf16};

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
    const D: usize = 128;
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
