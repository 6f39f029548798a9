//! Matrix-vector products: one row after the other, so that memory is read as one stream.
//!
//! A 64-byte line of 4-bit weights holds 128 elements of two groups. Per line: 3 operations to unpack, 4 `vpdpbusd`,
//! 1 shift, 1 conversion, 1 permutation (the two groups' scales to their lanes) and 1 FMA: 5.5 cycles on two
//! ports, against 10 or more that a core needs to fetch the line.

use std::arch::x86_64::*;

use crate::{
    acts::{PAIR_BYTES, Tile},
    kernels::RowsRef,
};

/// How far ahead of use weights are asked for, in bytes: far into the second-level cache, near into the first. Memory
/// is 200 ns away (Xeon of 2023, 2 MiB of second-level cache); sixteen lines can be in flight from the first level, more
/// from the second. Of the rate of a plain sum over the same memory, one thread reaches 63 % without, 90 % with 4 KiB
/// into the first level alone, 98 % with these two; `bench/NOTES.md`.
const FAR: usize = 8192;
const NEAR: usize = 1024;
/// The same for 2-byte scales and biases, of which there are a sixteenth.
const SCALES: usize = FAR / 32;

/// The address `ahead` elements after `at` in `now`, where `next` follows `now`.
#[inline(always)]
fn ahead<T>(now: &[T], at: usize, ahead: usize, next: *const T) -> *const i8 {
    let at = at + ahead;
    let address =
        if at < now.len() { now.as_ptr().wrapping_add(at) } else { next.wrapping_add(at - now.len()) };
    address.cast()
}

/// Lanes 0..8 take the scale of the first, 8..16 that of the second group of a pair.
const fn pair_index() -> [[i32; 16]; 8] {
    let mut index = [[0; 16]; 8];
    let mut p = 0;
    while p < 8 {
        let mut lane = 0;
        while lane < 16 {
            index[p][lane] = 2 * p as i32 + lane as i32 / 8;
            lane += 1;
        }
        p += 1;
    }
    index
}
static PAIR_INDEX: [[i32; 16]; 8] = pair_index();

/// The f32 values of up to 16 bf16 at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn load_bf16(p: *const u16, mask: __mmask16) -> __m512 {
    // SAFETY: the caller's pointer is valid for the lanes in `mask`; others are not touched.
    let x = unsafe { _mm256_maskz_loadu_epi16(mask, p.cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x)))
}

#[inline]
fn first_lanes(n: usize) -> __mmask16 {
    if n >= 16 { !0 } else { (1 << n) - 1 }
}

/// 4-bit rows.
///
/// # Safety
/// AVX-512 F, BW, VL, VNNI; lengths as checked by [`crate::kernels::Kernels::gemv`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn gemv4(m: &RowsRef<'_>, x: &Tile<'_>, out: &mut [f32]) {
    let groups = m.groups;
    let row_bytes = m.row_bytes();
    // SAFETY: rows, scales and lines are read inside their slices: whole lines while two groups remain, half a
    // line for a last odd group; scales under a mask. Prefetches may point anywhere.
    unsafe {
        let low = _mm512_set1_epi8(15);
        let index: [__m512i; 8] = std::array::from_fn(|p| _mm512_loadu_si512(PAIR_INDEX[p].as_ptr().cast()));
        let lines = x.lines.as_ptr();
        let dot = |w: __m512i, line: *const u8| {
            let line = |i: usize| _mm512_loadu_si512(line.add(64 * i).cast());
            let (even, odd) = (_mm512_and_si512(w, low), _mm512_and_si512(_mm512_srli_epi16::<4>(w), low));
            let d = _mm512_dpbusd_epi32(_mm512_setzero_si512(), even, line(0));
            let d = _mm512_slli_epi32::<8>(_mm512_dpbusd_epi32(d, odd, line(1)));
            let d = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(d, even, line(2)), odd, line(3));
            _mm512_cvtepi32_ps(d)
        };
        for (r, out) in out.iter_mut().enumerate() {
            let w = m.weight.as_ptr().add(r * row_bytes);
            let (s, b) = (m.scales.as_ptr().add(r * m.stride), m.biases.as_ptr().add(r * m.stride));
            let far = ahead(m.weight, r * row_bytes, FAR, m.next.weight);
            _mm_prefetch::<_MM_HINT_T0>(ahead(m.scales, r * m.stride, SCALES, m.next.scales));
            _mm_prefetch::<_MM_HINT_T0>(ahead(m.biases, r * m.stride, SCALES, m.next.biases));
            let mut acc = _mm512_setzero_ps();
            let mut bias = _mm512_setzero_ps();
            let mut g = 0;
            while g + 16 <= groups {
                let scale = _mm512_mul_ps(load_bf16(s.add(g), !0), _mm512_loadu_ps(x.scale.as_ptr().add(g)));
                bias = _mm512_fmadd_ps(load_bf16(b.add(g), !0), _mm512_loadu_ps(x.sum.as_ptr().add(g)), bias);
                let (w, lines) = (w.add(g * 32), lines.add(g / 2 * PAIR_BYTES));
                for (p, index) in index.iter().enumerate() {
                    _mm_prefetch::<_MM_HINT_T1>(far.wrapping_add(g * 32 + 64 * p));
                    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(NEAR + 64 * p).cast());
                    let d = dot(_mm512_loadu_si512(w.add(64 * p).cast()), lines.add(p * PAIR_BYTES));
                    acc = _mm512_fmadd_ps(d, _mm512_permutexvar_ps(*index, scale), acc);
                }
                g += 16;
            }
            if g < groups {
                let left = groups - g;
                let mask = first_lanes(left);
                let scale =
                    _mm512_mul_ps(load_bf16(s.add(g), mask), _mm512_loadu_ps(x.scale.as_ptr().add(g)));
                bias =
                    _mm512_fmadd_ps(load_bf16(b.add(g), mask), _mm512_loadu_ps(x.sum.as_ptr().add(g)), bias);
                let (w, lines) = (w.add(g * 32), lines.add(g / 2 * PAIR_BYTES));
                for (p, index) in index.iter().enumerate().take(left.div_ceil(2)) {
                    _mm_prefetch::<_MM_HINT_T1>(far.wrapping_add(g * 32 + 64 * p));
                    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(NEAR + 64 * p).cast());
                    let half: __mmask16 = if left - 2 * p == 1 { 0xff } else { !0 };
                    let line = _mm512_maskz_loadu_epi32(half, w.add(64 * p).cast());
                    let d = dot(line, lines.add(p * PAIR_BYTES));
                    acc = _mm512_fmadd_ps(d, _mm512_permutexvar_ps(*index, scale), acc);
                }
            }
            *out = _mm512_reduce_add_ps(_mm512_add_ps(acc, bias));
        }
    }
}

/// 8-bit rows: a line is one group.
///
/// # Safety
/// As [`gemv4`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn gemv8(m: &RowsRef<'_>, x: &Tile<'_>, out: &mut [f32]) {
    let groups = m.groups;
    // SAFETY: as in `gemv4`; every group is a whole line.
    unsafe {
        for (r, out) in out.iter_mut().enumerate() {
            let w = m.weight.as_ptr().add(r * m.row_bytes());
            let (s, b) = (m.scales.as_ptr().add(r * m.stride), m.biases.as_ptr().add(r * m.stride));
            let mut acc = _mm512_setzero_ps();
            let mut bias = _mm512_setzero_ps();
            for g0 in (0..groups).step_by(16) {
                let n = (groups - g0).min(16);
                let mask = first_lanes(n);
                let scale =
                    _mm512_mul_ps(load_bf16(s.add(g0), mask), _mm512_loadu_ps(x.scale.as_ptr().add(g0)));
                bias = _mm512_fmadd_ps(
                    load_bf16(b.add(g0), mask),
                    _mm512_loadu_ps(x.sum.as_ptr().add(g0)),
                    bias,
                );
                for i in 0..n {
                    let g = g0 + i;
                    let w = _mm512_loadu_si512(w.add(g * 64).cast());
                    let line = x.lines.as_ptr().add(g / 2 * PAIR_BYTES + g % 2 * 64);
                    let d = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, _mm512_loadu_si512(line.cast()));
                    let lo = _mm512_loadu_si512(line.add(128).cast());
                    let d = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(d), w, lo);
                    let scale = _mm512_permutexvar_ps(_mm512_set1_epi32(i as i32), scale);
                    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), scale, acc);
                }
            }
            *out = _mm512_reduce_add_ps(_mm512_add_ps(acc, bias));
        }
    }
}
