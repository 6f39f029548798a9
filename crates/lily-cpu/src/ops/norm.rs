//! RMSNorm, and quantising its result.

use super::Machine;
use crate::{
    acts::{Acts, TileMut},
    error::Result,
    kernels::Kernels,
};

/// `1 / sqrt(mean(x^2) + eps)` (Zhang, Sennrich 2019, arXiv:1910.07467).
#[inline]
pub(crate) fn rms_scale(k: &Kernels, x: &[f32], eps: f32) -> f32 {
    1.0 / (k.sum_squares(x) / x.len() as f32 + eps).sqrt()
}

/// Norms one vector into `row` and quantises it into `acts`.
pub(crate) fn norm_one(k: &Kernels, x: &[f32], gain: &[f32], eps: f32, row: &mut [f32], acts: &mut Acts) {
    let row = &mut row[..x.len()];
    k.scale_gain(x, rms_scale(k, x, eps), gain, row);
    quantize_one(k, row, acts);
}

/// Quantises one vector into `acts`.
pub(crate) fn quantize_one(k: &Kernels, x: &[f32], acts: &mut Acts) {
    acts.reset(1, x.len());
    acts.only_tile_mut().quantize(k, 0, x);
}

/// Norms the `n` rows of `x` and quantises them into `acts`.
pub(crate) fn norm_all(
    m: &mut Machine,
    x: &[f32],
    n: usize,
    gain: &[f32],
    eps: f32,
    acts: &mut Acts,
) -> Result<()> {
    let (k, width) = (m.k, gain.len());
    acts.reset(n, width);
    let mut tiles = acts.tiles_mut();
    m.pool.run_items(
        &mut m.workers,
        &mut tiles,
        |_| {},
        |w, _, tile: &mut TileMut<'_>| {
            for t in 0..tile.tokens {
                let x = &x[(tile.token0 + t) * width..][..width];
                let row = &mut w.row[..width];
                k.scale_gain(x, rms_scale(k, x, eps), gain, row);
                tile.quantize(k, t, row);
            }
        },
    )
}

/// Quantises the `n` rows of `x`, each `width` long, into `acts`.
pub(crate) fn quantize_all(
    m: &mut Machine,
    x: &[f32],
    n: usize,
    width: usize,
    acts: &mut Acts,
) -> Result<()> {
    let k = m.k;
    acts.reset(n, width);
    let mut tiles = acts.tiles_mut();
    m.pool.run_items(
        &mut m.workers,
        &mut tiles,
        |_| {},
        |_, _, tile: &mut TileMut<'_>| {
            for t in 0..tile.tokens {
                tile.quantize(k, t, &x[(tile.token0 + t) * width..][..width]);
            }
        },
    )
}
