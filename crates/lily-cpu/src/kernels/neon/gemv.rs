//! Matrix-vector products, one row after the other.

use std::arch::aarch64::*;

use lily_model::quant::bf16_to_f32;

use super::sdot;
use crate::{
    acts::{PAIR_BYTES, Tile},
    kernels::RowsRef,
};

/// 4-bit rows: 32 bytes are a group.
///
/// # Safety
/// NEON with the dot product; lengths as checked by [`crate::kernels::Kernels::gemv`].
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn gemv4(m: &RowsRef<'_>, x: &Tile<'_>, out: &mut [f32]) {
    // SAFETY: each group is 32 bytes of its row and 32-byte halves of the four lines of its pair.
    unsafe {
        let low = vdupq_n_u8(15);
        for (r, out) in out.iter_mut().enumerate() {
            let w = m.weight.as_ptr().add(r * m.row_bytes());
            let mut acc = vdupq_n_f32(0.0);
            let mut bias = 0.0;
            for g in 0..m.groups {
                let line = x.lines.as_ptr().add(g / 2 * PAIR_BYTES + g % 2 * 32).cast::<i8>();
                let (mut hi, mut lo) = (vdupq_n_s32(0), vdupq_n_s32(0));
                for half in 0..2 {
                    let w = vld1q_u8(w.add(g * 32 + half * 16));
                    let even = vreinterpretq_s8_u8(vandq_u8(w, low));
                    let odd = vreinterpretq_s8_u8(vshrq_n_u8::<4>(w));
                    let x = |i: usize| vld1q_s8(line.add(64 * i + half * 16));
                    hi = sdot(sdot(hi, even, x(0)), odd, x(1));
                    lo = sdot(sdot(lo, even, x(2)), odd, x(3));
                }
                let d = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32::<8>(hi), lo));
                let i = r * m.stride + g;
                let scale = bf16_to_f32(*m.scales.get_unchecked(i)) * *x.scale.get_unchecked(g);
                bias += bf16_to_f32(*m.biases.get_unchecked(i)) * *x.sum.get_unchecked(g);
                acc = vfmaq_n_f32(acc, d, scale);
            }
            *out = vaddvq_f32(acc) + bias;
        }
    }
}

/// 8-bit rows: 64 bytes are a group.
///
/// # Safety
/// As [`gemv4`].
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn gemv8(m: &RowsRef<'_>, x: &Tile<'_>, out: &mut [f32]) {
    // SAFETY: each group is 64 bytes of its row and of two lines of its pair.
    unsafe {
        let middle = vdupq_n_u8(128);
        for (r, out) in out.iter_mut().enumerate() {
            let w = m.weight.as_ptr().add(r * m.row_bytes());
            let mut acc = vdupq_n_f32(0.0);
            let mut bias = 0.0;
            for g in 0..m.groups {
                let line = x.lines.as_ptr().add(g / 2 * PAIR_BYTES + g % 2 * 64).cast::<i8>();
                let (mut hi, mut lo) = (vdupq_n_s32(0), vdupq_n_s32(0));
                for i in 0..4 {
                    let w = vld1q_u8(w.add(g * 64 + 16 * i));
                    let w = vreinterpretq_s8_u8(veorq_u8(w, middle));
                    hi = sdot(hi, w, vld1q_s8(line.add(16 * i)));
                    lo = sdot(lo, w, vld1q_s8(line.add(128 + 16 * i)));
                }
                let d = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32::<8>(hi), lo));
                let i = r * m.stride + g;
                let scale = bf16_to_f32(*m.scales.get_unchecked(i));
                let moved = bf16_to_f32(*m.biases.get_unchecked(i)) + 128.0 * scale;
                bias += moved * *x.sum.get_unchecked(g);
                acc = vfmaq_n_f32(acc, d, scale * *x.scale.get_unchecked(g));
            }
            *out = vaddvq_f32(acc) + bias;
        }
    }
}
