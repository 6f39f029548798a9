//! The integer kernels in plain Rust: the definition that the SIMD versions are tested against, and what
//! [`crate::Isa::Scalar`] runs. Inlined into `target_feature` functions where an instruction set has no version of
//! its own.

use super::{BLOCK, Next, RowsRef};
use crate::acts::{GROUP, PAIR_BYTES, Tile};
use lily_model::quant::bf16_to_f32;

/// Largest 16-bit magnitude whose two signed bytes stay in -127..=127 and -128..=127.
pub(crate) const MAX_Q: f32 = 32639.0;
/// Groups whose largest magnitude is below this count as zero: the inverse of the step would overflow.
pub(crate) const TINY: f32 = 1e-30;

/// The step of a group with largest magnitude `amax` and its inverse.
#[inline(always)]
pub(crate) fn steps(amax: f32) -> (f32, f32) {
    if amax < TINY { (0.0, 0.0) } else { (amax * (1.0 / MAX_Q), MAX_Q / amax) }
}

/// Quantises a group; see [`crate::acts`]. Writes 32-byte halves of the four lines (`stride` bytes apart) of
/// `nibble`, 64-byte lines of `byte`, each if not empty. Returns (scale, sum). A value that is not finite makes
/// the scale NaN or infinite, and with it every product.
#[inline(always)]
pub(crate) fn quantize_group(
    x: &[f32; GROUP],
    nibble: &mut [u8],
    byte: &mut [u8],
    stride: usize,
    parity: usize,
) -> (f32, f32) {
    // As integers, magnitudes order like floats and NaN comes out on top.
    let amax = f32::from_bits(x.iter().fold(0u32, |m, v| m.max(v.to_bits() & 0x7fff_ffff)));
    let (scale, inverse) = steps(amax);
    let mut q = [0i16; GROUP];
    let mut sum = 0i32;
    for (q, x) in q.iter_mut().zip(x) {
        *q = (x * inverse).round_ties_even() as i16;
        sum += *q as i32;
    }
    let hi = |v: i16| ((v as i32 + 128) >> 8) as u8;
    if !nibble.is_empty() {
        for (j, pair) in q.chunks_exact(2).enumerate() {
            let at = parity * 32 + j;
            nibble[at] = hi(pair[0]);
            nibble[stride + at] = hi(pair[1]);
            nibble[2 * stride + at] = pair[0] as u8;
            nibble[3 * stride + at] = pair[1] as u8;
        }
    }
    if !byte.is_empty() {
        for (j, &v) in q.iter().enumerate() {
            byte[parity * stride + j] = hi(v);
            byte[(2 + parity) * stride + j] = v as u8;
        }
    }
    (scale, scale * sum as f32)
}

/// `out[r] = row r . x` for a tile of one token.
#[inline(always)]
pub(crate) fn gemv<const BITS: usize>(m: &RowsRef<'_>, x: &Tile<'_>, out: &mut [f32]) {
    let row_bytes = m.row_bytes();
    for (r, out) in out.iter_mut().enumerate() {
        let row = &m.weight[r * row_bytes..];
        let mut acc = 0.0;
        for g in 0..m.groups {
            let w = &row[g * GROUP * BITS / 8..(g + 1) * GROUP * BITS / 8];
            let lines = &x.lines[g / 2 * PAIR_BYTES..(g / 2 + 1) * PAIR_BYTES];
            let at = |line: usize, j: usize| lines[line * 64 + j] as i8 as i32;
            let (mut hi, mut lo) = (0i32, 0i32);
            for (j, &b) in w.iter().enumerate() {
                let b = b as i32;
                if BITS == 4 {
                    let j = g % 2 * 32 + j;
                    hi += (b & 15) * at(0, j) + (b >> 4) * at(1, j);
                    lo += (b & 15) * at(2, j) + (b >> 4) * at(3, j);
                } else {
                    hi += b * at(g % 2, j);
                    lo += b * at(2 + g % 2, j);
                }
            }
            let i = r * m.stride + g;
            acc += bf16_to_f32(m.scales[i]) * x.scale[g] * ((hi << 8) + lo) as f32;
            acc += bf16_to_f32(m.biases[i]) * x.sum[g];
        }
        *out = acc;
    }
}

/// Unpacks up to [`BLOCK`] rows for [`tile`]: see [`super::Unpacked`]. Missing rows repeat the last one.
#[inline(always)]
pub(crate) fn unpack<const BITS: usize>(m: &RowsRef<'_>, w: &mut [u8], s: &mut [f32], b: &mut [f32]) {
    let row_bytes = m.row_bytes();
    for lane in 0..BLOCK {
        let r = lane.min(m.rows - 1);
        let row = &m.weight[r * row_bytes..];
        for g in 0..m.groups {
            let out = &mut w[(g * 2 + lane / 16) * 1024..][..1024];
            for step in 0..16 {
                for k in 0..4 {
                    let byte = if BITS == 4 {
                        // Steps 0..8 are the even elements, 8..16 the odd ones.
                        let v = row[g * 32 + step % 8 * 4 + k];
                        if step < 8 { v & 15 } else { v >> 4 }
                    } else {
                        row[g * 64 + step * 4 + k]
                    };
                    out[step * 64 + lane % 16 * 4 + k] = byte;
                }
            }
        }
    }
    unpack_scales(m, s, b);
}

/// Scales and biases as f32, `[group][BLOCK]`.
#[inline(always)]
pub(crate) fn unpack_scales(m: &RowsRef<'_>, s: &mut [f32], b: &mut [f32]) {
    for lane in 0..BLOCK {
        let at = lane.min(m.rows - 1) * m.stride;
        let rows = m.scales[at..at + m.groups].iter().zip(&m.biases[at..at + m.groups]);
        let out = s.chunks_exact_mut(BLOCK).zip(b.chunks_exact_mut(BLOCK));
        for ((s, b), (&scale, &bias)) in out.zip(rows) {
            s[lane] = bf16_to_f32(scale);
            b[lane] = bf16_to_f32(bias);
        }
    }
}

/// Offsets in a tile of `t` tokens, from the start of a pair, of the bytes that steps 0..8 and 8..16 of a group
/// multiply: for `half` 0 the `hi` bytes, for 1 the `lo` bytes. Token `i` is `64 * i` further on.
#[inline(always)]
pub(crate) fn step_offsets<const BITS: usize>(t: usize, parity: usize, half: usize) -> (usize, usize) {
    if BITS == 4 {
        let even = half * 2 * t * 64 + parity * 32;
        (even, even + t * 64)
    } else {
        let line = (half * 2 + parity) * t * 64;
        (line, line + 32)
    }
}

/// `out[t][r] += row r . x_t` for [`BLOCK`] unpacked rows and all tokens of a tile.
#[inline(always)]
pub(crate) fn tile<const BITS: usize>(
    w: &[u8],
    s: &[f32],
    b: &[f32],
    groups: usize,
    x: &Tile<'_>,
    _next: Option<&Next>,
    out: &mut [f32],
) {
    let tn = x.tokens;
    for (t, out) in out.chunks_exact_mut(BLOCK).enumerate() {
        for g in 0..groups {
            let lines = &x.lines[g / 2 * PAIR_BYTES * tn..(g / 2 + 1) * PAIR_BYTES * tn];
            let mut dots = [0i32; BLOCK];
            for half in 0..2 {
                let (first, second) = step_offsets::<BITS>(tn, g % 2, half);
                for step in 0..16 {
                    let at = t * 64 + if step < 8 { first + step * 4 } else { second + (step - 8) * 4 };
                    let x = &lines[at..at + 4];
                    for (lane, dot) in dots.iter_mut().enumerate() {
                        let w = &w[(g * 2 + lane / 16) * 1024 + step * 64 + lane % 16 * 4..][..4];
                        for k in 0..4 {
                            *dot += w[k] as i32 * x[k] as i8 as i32;
                        }
                    }
                }
                if half == 0 {
                    dots.iter_mut().for_each(|d| *d <<= 8);
                }
            }
            let (scale, sum) = (x.scale[g * tn + t], x.sum[g * tn + t]);
            for (lane, out) in out.iter_mut().enumerate() {
                *out += dots[lane] as f32 * scale * s[g * BLOCK + lane] + b[g * BLOCK + lane] * sum;
            }
        }
    }
}
