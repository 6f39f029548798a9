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

/// The address `ahead` elements after `at` in `now`, where `next`, at least as long, follows `now`. Of what follows `next`
/// nothing is known: pieces shorter than `ahead` fetch one piece ahead.
#[inline(always)]
fn ahead<T>(now: &[T], at: usize, ahead: usize, next: *const T) -> *const i8 {
    let at = at + ahead.min(now.len());
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

/// The dot products of a line of 4-bit weights (two groups) with its activations, as f32: lanes 0..8 add up to the
/// first group's, 8..16 to the second's. `x`: `hi` of even, `hi` of odd, `lo` of even, `lo` of odd elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn dot(w: __m512i, x: [__m512i; 4]) -> __m512 {
    let low = _mm512_set1_epi8(15);
    let (even, odd) = (_mm512_and_si512(w, low), _mm512_and_si512(_mm512_srli_epi16::<4>(w), low));
    let d = _mm512_dpbusd_epi32(_mm512_setzero_si512(), even, x[0]);
    let d = _mm512_slli_epi32::<8>(_mm512_dpbusd_epi32(d, odd, x[1]));
    let d = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(d, even, x[2]), odd, x[3]);
    _mm512_cvtepi32_ps(d)
}

/// The four lines of a pair.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn pair(lines: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller's pointer is valid for a pair.
    unsafe { [0, 1, 2, 3].map(|i| _mm512_loadu_si512(lines.add(64 * i).cast())) }
}

/// 4-bit rows.
///
/// # Safety
/// AVX-512 F, BW, VL, VNNI; lengths as checked by [`crate::kernels::Kernels::gemv`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn gemv4(m: &RowsRef<'_>, x: &Tile<'_>, out: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        let done = match m.groups {
            1 if m.stride == 1 => shortest_rows(m, x, out),
            2 if m.stride == 2 => short_rows::<2>(m, x, out),
            4 if m.stride == 4 => short_rows::<4>(m, x, out),
            8 if m.stride == 8 => short_rows::<8>(m, x, out),
            _ => 0,
        };
        any_rows(m, x, done, out);
    }
}

/// Prefetches what is `FAR` after the 16 groups from `block * 16` on, for rows without gaps, and `NEAR`.
#[inline]
#[target_feature(enable = "avx512f")]
#[allow(unused_unsafe)] // Prefetches are unsafe functions in older compilers.
fn prefetch_block(m: &RowsRef<'_>, block: usize) {
    // SAFETY: prefetches may point anywhere.
    unsafe {
        let far = ahead(m.weight, block * 512, FAR, m.next.weight);
        let near = ahead(m.weight, block * 512, NEAR, m.next.weight);
        for line in 0..8 {
            _mm_prefetch::<_MM_HINT_T1>(far.wrapping_add(64 * line));
            _mm_prefetch::<_MM_HINT_T0>(near.wrapping_add(64 * line));
        }
        _mm_prefetch::<_MM_HINT_T0>(ahead(m.scales, block * 16, SCALES, m.next.scales));
        _mm_prefetch::<_MM_HINT_T0>(ahead(m.biases, block * 16, SCALES, m.next.biases));
    }
}

/// Rows of `G` = 2, 4 or 8 groups without gaps: sixteen groups, of `16 / G` rows, share the loads of scales and biases
/// and the sums over lanes. Returns how many rows are done; fewer than `16 / G` are left.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn short_rows<const G: usize>(m: &RowsRef<'_>, x: &Tile<'_>, out: &mut [f32]) -> usize {
    let rows = 16 / G;
    // SAFETY: a block is 512 bytes of weights and 16 scales and biases of whole rows; `x` has `G / 2` pairs.
    unsafe {
        let index: [__m512i; 8] = std::array::from_fn(|p| _mm512_loadu_si512(PAIR_INDEX[p].as_ptr().cast()));
        let tiled = |v: &[f32]| {
            let v: [f32; 16] = std::array::from_fn(|i| v[i % G]);
            _mm512_loadu_ps(v.as_ptr())
        };
        let (x_scale, x_sum) = (tiled(x.scale), tiled(x.sum));
        for (block, out) in out.chunks_exact_mut(rows).enumerate() {
            prefetch_block(m, block);
            let scale = _mm512_mul_ps(load_bf16(m.scales.as_ptr().add(block * 16), !0), x_scale);
            let bias = _mm512_mul_ps(load_bf16(m.biases.as_ptr().add(block * 16), !0), x_sum);
            let w = m.weight.as_ptr().add(block * 512);
            // Each row starts with its own biases.
            let mut acc: [__m512; 8] = std::array::from_fn(|r| {
                let lanes = if r < rows { ((1u32 << G) - 1) << (r * G) } else { 0 };
                _mm512_maskz_mov_ps(lanes as __mmask16, bias)
            });
            for (line, index) in index.iter().enumerate() {
                let (row, p) = (line / (G / 2), line % (G / 2));
                let d = dot(
                    _mm512_loadu_si512(w.add(64 * line).cast()),
                    pair(x.lines.as_ptr().add(p * PAIR_BYTES)),
                );
                acc[row] = _mm512_fmadd_ps(d, _mm512_permutexvar_ps(*index, scale), acc[row]);
            }
            if G == 8 {
                out[0] = _mm512_reduce_add_ps(acc[0]);
                out[1] = _mm512_reduce_add_ps(acc[1]);
            } else {
                _mm_storeu_ps(out.as_mut_ptr(), reduce4([acc[0], acc[1], acc[2], acc[3]]));
                if G == 2 {
                    _mm_storeu_ps(out.as_mut_ptr().add(4), reduce4([acc[4], acc[5], acc[6], acc[7]]));
                }
            }
        }
    }
    out.len() / rows * rows
}

/// Rows of one group: a line is two rows. Returns how many rows are done; fewer than sixteen are left.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn shortest_rows(m: &RowsRef<'_>, x: &Tile<'_>, out: &mut [f32]) -> usize {
    // SAFETY: as in `short_rows`; the first halves of the four lines of `x` are its only group.
    unsafe {
        let index: [__m512i; 8] = std::array::from_fn(|p| _mm512_loadu_si512(PAIR_INDEX[p].as_ptr().cast()));
        let twice = [0, 1, 2, 3]
            .map(|i| _mm512_broadcast_i64x4(_mm256_loadu_si256(x.lines.as_ptr().add(64 * i).cast())));
        let (x_scale, x_sum) = (_mm512_set1_ps(x.scale[0]), _mm512_set1_ps(x.sum[0]));
        for (block, out) in out.chunks_exact_mut(16).enumerate() {
            prefetch_block(m, block);
            let scale = _mm512_mul_ps(load_bf16(m.scales.as_ptr().add(block * 16), !0), x_scale);
            let bias = load_bf16(m.biases.as_ptr().add(block * 16), !0);
            let w = m.weight.as_ptr().add(block * 512);
            let v: [__m512; 8] = std::array::from_fn(|line| {
                let d = dot(_mm512_loadu_si512(w.add(64 * line).cast()), twice);
                _mm512_mul_ps(d, _mm512_permutexvar_ps(index[line], scale))
            });
            // Per 128-bit lane, sums of rows 0, 2, 4, 6 (twice) and 1, 3, 5, 7 (twice); then of 8 to 15.
            let (a, b) = (add4([v[0], v[1], v[2], v[3]]), add4([v[4], v[5], v[6], v[7]]));
            let sums = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b),
            );
            let order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
            let sums = _mm512_permutexvar_ps(order, sums);
            _mm512_storeu_ps(out.as_mut_ptr(), _mm512_fmadd_ps(bias, x_sum, sums));
        }
    }
    out.len() / 16 * 16
}

/// Per 128-bit lane, the sums of the lanes of four vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn add4(v: [__m512; 4]) -> __m512 {
    let ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    let cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    let (low, high) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
    _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
}

/// The sums of the lanes of four vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn reduce4(v: [__m512; 4]) -> __m128 {
    let x = add4(v);
    let x = _mm256_add_ps(
        _mm512_castps512_ps256(x),
        _mm512_castps512_ps256(_mm512_shuffle_f32x4::<0b1110>(x, x)),
    );
    _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x))
}

/// Rows of any number of groups, from row `first` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn any_rows(m: &RowsRef<'_>, x: &Tile<'_>, first: usize, out: &mut [f32]) {
    let groups = m.groups;
    let row_bytes = m.row_bytes();
    // SAFETY: rows, scales and lines are read inside their slices: whole lines while two groups remain, half a
    // line for a last odd group; scales under a mask. Prefetches may point anywhere.
    unsafe {
        let index: [__m512i; 8] = std::array::from_fn(|p| _mm512_loadu_si512(PAIR_INDEX[p].as_ptr().cast()));
        let lines = x.lines.as_ptr();
        for (r, out) in out.iter_mut().enumerate().skip(first) {
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
                    let d = dot(_mm512_loadu_si512(w.add(64 * p).cast()), pair(lines.add(p * PAIR_BYTES)));
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
                    let d = dot(line, pair(lines.add(p * PAIR_BYTES)));
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
