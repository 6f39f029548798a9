//! Attention in f64.

use half::bf16;

use super::device::EPS;
use super::{rms_norm, wide_bf16};

/// The 64-bit binary fraction of turns a position makes, for each of 32 rotations, high word first.
pub fn rates() -> Vec<[u32; 2]> {
    (0..32)
        .map(|i| {
            let turns = 1e7f64.powf(-(i as f64) / 32.0) / std::f64::consts::TAU;
            let fraction = (turns * 2f64.powi(64)) as u64;
            [(fraction >> 32) as u32, fraction as u32]
        })
        .collect()
}

/// A head after norm and rotation.
pub fn rotated(x: &[f64], gain: &[bf16], position: u32) -> Vec<f64> {
    let mut v = rms_norm(x, &wide_bf16(gain), EPS as f64);
    for i in 0..32 {
        let angle = position as f64 * 1e7f64.powf(-(i as f64) / 32.0);
        let (a, b) = (v[i], v[i + 32]);
        v[i] = a * angle.cos() - b * angle.sin();
        v[i + 32] = b * angle.cos() + a * angle.sin();
    }
    v
}
