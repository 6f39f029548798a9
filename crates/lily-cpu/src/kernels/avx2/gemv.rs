//! Matrix-vector products, one row after the other.

use std::arch::x86_64::*;

use lily_model::quant::bf16_to_f32;

use super::v16::hsum;
use crate::{
    acts::{PAIR_BYTES, Tile},
    kernels::RowsRef,
};

/// How far ahead of use weights are asked for, in bytes.
const AHEAD: usize = 2048;

/// 4-bit rows: 32 bytes are a group.
///
/// # Safety
/// AVX2, FMA; lengths as checked by [`crate::kernels::Kernels::gemv`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn gemv4(m: &RowsRef<'_>, x: &Tile<'_>, out: &mut [f32]) {
    let groups = m.groups;
    // SAFETY: each group is 32 bytes of its row and 32-byte halves of the four lines of its pair. Prefetches may
    // point anywhere.
    unsafe {
        let low = _mm256_set1_epi8(15);
        let ones = _mm256_set1_epi16(1);
        for (r, out) in out.iter_mut().enumerate() {
            let w = m.weight.as_ptr().add(r * m.row_bytes());
            let mut acc = _mm256_setzero_ps();
            let mut bias = 0.0;
            for g in 0..groups {
                _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(g * 32 + AHEAD).cast());
                let line = x.lines.as_ptr().add(g / 2 * PAIR_BYTES + g % 2 * 32);
                let line = |i: usize| _mm256_loadu_si256(line.add(64 * i).cast());
                let w = _mm256_loadu_si256(w.add(g * 32).cast());
                let even = _mm256_and_si256(w, low);
                let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(w), low);
                let hi =
                    _mm256_add_epi16(_mm256_maddubs_epi16(even, line(0)), _mm256_maddubs_epi16(odd, line(1)));
                let lo =
                    _mm256_add_epi16(_mm256_maddubs_epi16(even, line(2)), _mm256_maddubs_epi16(odd, line(3)));
                let hi = _mm256_slli_epi32::<8>(_mm256_madd_epi16(hi, ones));
                let d = _mm256_cvtepi32_ps(_mm256_add_epi32(hi, _mm256_madd_epi16(lo, ones)));
                let i = r * m.stride + g;
                let scale = bf16_to_f32(*m.scales.get_unchecked(i)) * *x.scale.get_unchecked(g);
                bias += bf16_to_f32(*m.biases.get_unchecked(i)) * *x.sum.get_unchecked(g);
                acc = _mm256_fmadd_ps(d, _mm256_set1_ps(scale), acc);
            }
            *out = hsum(acc) + bias;
        }
    }
}

/// 8-bit rows: 64 bytes are a group. Bytes are widened, since two products overflow 16 bits.
///
/// # Safety
/// As [`gemv4`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn gemv8(m: &RowsRef<'_>, x: &Tile<'_>, out: &mut [f32]) {
    let groups = m.groups;
    // SAFETY: each group is 64 bytes of its row and of two lines of its pair.
    unsafe {
        for (r, out) in out.iter_mut().enumerate() {
            let w = m.weight.as_ptr().add(r * m.row_bytes());
            let mut acc = _mm256_setzero_ps();
            let mut bias = 0.0;
            for g in 0..groups {
                let line = x.lines.as_ptr().add(g / 2 * PAIR_BYTES + g % 2 * 64);
                let (mut hi, mut lo) = (_mm256_setzero_si256(), _mm256_setzero_si256());
                for i in 0..4 {
                    let w = _mm256_cvtepu8_epi16(_mm_loadu_si128(w.add(g * 64 + 16 * i).cast()));
                    let x = |at: usize| _mm256_cvtepi8_epi16(_mm_loadu_si128(line.add(at + 16 * i).cast()));
                    hi = _mm256_add_epi32(hi, _mm256_madd_epi16(w, x(0)));
                    lo = _mm256_add_epi32(lo, _mm256_madd_epi16(w, x(128)));
                }
                let d = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_slli_epi32::<8>(hi), lo));
                let i = r * m.stride + g;
                let scale = bf16_to_f32(*m.scales.get_unchecked(i)) * *x.scale.get_unchecked(g);
                bias += bf16_to_f32(*m.biases.get_unchecked(i)) * *x.sum.get_unchecked(g);
                acc = _mm256_fmadd_ps(d, _mm256_set1_ps(scale), acc);
            }
            *out = hsum(acc) + bias;
        }
    }
}
