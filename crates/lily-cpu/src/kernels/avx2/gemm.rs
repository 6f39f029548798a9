//! Products of 32 rows with a tile of tokens: a lane is a row, as in the AVX-512 version.
//!
//! The 32 rows are four vectors of 8 rows; two of them and up to 4 tokens are in registers at a time.

use std::arch::x86_64::*;

use crate::{
    acts::{PAIR_BYTES, Tile},
    kernels::{BLOCK, Next, RowsRef, portable},
};

/// Transposes 8 rows of 8 dwords.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn transpose(rows: &[*const u8; 8], offset: usize) -> [__m256i; 8] {
    // SAFETY: the caller's pointers are valid for 32 bytes at `offset`.
    unsafe {
        let r: [__m256i; 8] = std::array::from_fn(|i| _mm256_loadu_si256(rows[i].add(offset).cast()));
        // Dwords, then qwords, inside each 128-bit lane.
        let a: [__m256i; 8] = std::array::from_fn(|i| {
            let (x, y) = (r[i & !1], r[i | 1]);
            if i & 1 == 0 { _mm256_unpacklo_epi32(x, y) } else { _mm256_unpackhi_epi32(x, y) }
        });
        // b[4 q + c]: column c of each 128-bit lane, rows 4 q..4 q + 4.
        let b: [__m256i; 8] = std::array::from_fn(|i| {
            let (q, c) = (i & !3, i & 3);
            let (x, y) = (a[q + c / 2], a[q + 2 + c / 2]);
            if c & 1 == 0 { _mm256_unpacklo_epi64(x, y) } else { _mm256_unpackhi_epi64(x, y) }
        });
        std::array::from_fn(|i| {
            let (x, y) = (b[i & 3], b[4 + (i & 3)]);
            if i < 4 {
                _mm256_permute2x128_si256::<0x20>(x, y)
            } else {
                _mm256_permute2x128_si256::<0x31>(x, y)
            }
        })
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn unpack<const BITS: usize>(m: &RowsRef<'_>, w: &mut [u8], s: &mut [f32], b: &mut [f32]) {
    portable::unpack_scales(m, s, b);
    let out = w.as_mut_ptr();
    let low = _mm256_set1_epi8(15);
    // SAFETY: rows are clamped to the last one, and every group is whole; `w` holds `groups` blocks of 2048 bytes.
    unsafe {
        for eight in 0..4 {
            let rows: [*const u8; 8] = std::array::from_fn(|i| {
                m.weight.as_ptr().add((eight * 8 + i).min(m.rows - 1) * m.row_bytes())
            });
            for g in 0..m.groups {
                let p = out.add((g * 2 + eight / 2) * 1024 + eight % 2 * 32);
                let put = |step: usize, x: __m256i| _mm256_storeu_si256(p.add(step * 64).cast(), x);
                if BITS == 4 {
                    let columns = transpose(&rows, g * 32);
                    for (c, &x) in columns.iter().enumerate() {
                        put(c, _mm256_and_si256(x, low));
                        put(8 + c, _mm256_and_si256(_mm256_srli_epi16::<4>(x), low));
                    }
                } else {
                    for half in 0..2 {
                        let columns = transpose(&rows, g * 64 + half * 32);
                        for (c, &x) in columns.iter().enumerate() {
                            put(half * 8 + c, x);
                        }
                    }
                }
            }
        }
    }
}

/// 4-bit rows; as [`portable::unpack`].
///
/// # Safety
/// AVX2; lengths as checked by [`crate::kernels::Kernels::unpack`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn unpack4(m: &RowsRef<'_>, w: &mut [u8], s: &mut [f32], b: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { unpack::<4>(m, w, s, b) }
}

/// 8-bit rows.
///
/// # Safety
/// As [`unpack4`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn unpack8(m: &RowsRef<'_>, w: &mut [u8], s: &mut [f32], b: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { unpack::<8>(m, w, s, b) }
}

/// Products of the 8 steps at `w` (64 bytes apart, 16 rows of which two vectors of 8) with the bytes at `x`, added
/// to `acc`. Eight products stay inside i16; see the module documentation of [`super`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn eight_steps<const BITS: usize, const T: usize>(
    w: *const u8,
    x: *const u8,
    acc: &mut [[__m256i; 2]; T],
) {
    // SAFETY: the caller's pointers are valid for 8 steps and T tokens.
    unsafe {
        let low = _mm256_set1_epi8(15);
        let ones = _mm256_set1_epi16(1);
        let load = |step: usize, v: usize| _mm256_loadu_si256(w.add(step * 64 + v * 32).cast());
        let broadcast = |t: usize, step: usize| {
            _mm256_set1_epi32(x.add(t * 64 + step * 4).cast::<i32>().read_unaligned())
        };
        let zero = [[_mm256_setzero_si256(); 2]; T];
        let mut sum = zero;
        let mut high = zero;
        for step in 0..8 {
            let w = [load(step, 0), load(step, 1)];
            for t in 0..T {
                let x = broadcast(t, step);
                for v in 0..2 {
                    let lo = if BITS == 4 { w[v] } else { _mm256_and_si256(w[v], low) };
                    sum[t][v] = _mm256_add_epi16(sum[t][v], _mm256_maddubs_epi16(lo, x));
                    if BITS == 8 {
                        let hi = _mm256_and_si256(_mm256_srli_epi16::<4>(w[v]), low);
                        high[t][v] = _mm256_add_epi16(high[t][v], _mm256_maddubs_epi16(hi, x));
                    }
                }
            }
        }
        for t in 0..T {
            for v in 0..2 {
                acc[t][v] = _mm256_add_epi32(acc[t][v], _mm256_madd_epi16(sum[t][v], ones));
                if BITS == 8 {
                    let high = _mm256_slli_epi32::<4>(_mm256_madd_epi16(high[t][v], ones));
                    acc[t][v] = _mm256_add_epi32(acc[t][v], high);
                }
            }
        }
    }
}

/// Tokens `t0..t0 + T` of a tile of `tn`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn tokens_of<const BITS: usize, const T: usize>(
    (w, s, b): (&[u8], &[f32], &[f32]),
    groups: usize,
    x: &Tile<'_>,
    t0: usize,
    out: &mut [f32],
) {
    let tn = x.tokens;
    // SAFETY: `w`, `s`, `b` hold `groups` blocks; `x` holds `groups` padded to pairs; `out` is `[tn][BLOCK]`.
    unsafe {
        let out = out.as_mut_ptr().add(t0 * BLOCK);
        for g in 0..groups {
            let lines = x.lines.as_ptr().add(g / 2 * PAIR_BYTES * tn + t0 * 64);
            for rv in 0..2 {
                let w = w.as_ptr().add((g * 2 + rv) * 1024);
                let mut acc = [[_mm256_setzero_si256(); 2]; T];
                for half in 0..2 {
                    let (first, second) = portable::step_offsets::<BITS>(tn, g % 2, half);
                    eight_steps::<BITS, T>(w, lines.add(first), &mut acc);
                    eight_steps::<BITS, T>(w.add(512), lines.add(second), &mut acc);
                    if half == 0 {
                        for acc in &mut acc {
                            *acc = [_mm256_slli_epi32::<8>(acc[0]), _mm256_slli_epi32::<8>(acc[1])];
                        }
                    }
                }
                for (t, acc) in acc.iter().enumerate() {
                    let scale = _mm256_set1_ps(*x.scale.as_ptr().add(g * tn + t0 + t));
                    let sum = _mm256_set1_ps(*x.sum.as_ptr().add(g * tn + t0 + t));
                    for (v, &acc) in acc.iter().enumerate() {
                        let at = rv * 16 + v * 8;
                        let p = out.add(t * BLOCK + at);
                        let s = _mm256_loadu_ps(s.as_ptr().add(g * BLOCK + at));
                        let b = _mm256_loadu_ps(b.as_ptr().add(g * BLOCK + at));
                        let d = _mm256_mul_ps(_mm256_cvtepi32_ps(acc), scale);
                        let y = _mm256_fmadd_ps(b, sum, _mm256_loadu_ps(p));
                        _mm256_storeu_ps(p, _mm256_fmadd_ps(d, s, y));
                    }
                }
            }
        }
    }
}

macro_rules! tiles {
    ($name:ident, $bits:literal) => {
        /// As [`portable::tile`].
        ///
        /// # Safety
        /// AVX2, FMA; lengths as checked by [`crate::kernels::Kernels::tile`].
        #[target_feature(enable = "avx2,fma")]
        pub(super) unsafe fn $name(
            w: &[u8],
            s: &[f32],
            b: &[f32],
            groups: usize,
            x: &Tile<'_>,
            _next: Option<&Next>,
            out: &mut [f32],
        ) {
            let (mut t, m) = (0, (w, s, b));
            // SAFETY: the caller's promise; `t..t + T` stays inside the tile.
            unsafe {
                while t + 4 <= x.tokens {
                    tokens_of::<$bits, 4>(m, groups, x, t, out);
                    t += 4;
                }
                match x.tokens - t {
                    3 => tokens_of::<$bits, 3>(m, groups, x, t, out),
                    2 => tokens_of::<$bits, 2>(m, groups, x, t, out),
                    1 => tokens_of::<$bits, 1>(m, groups, x, t, out),
                    _ => {}
                }
            }
        }
    };
}
tiles!(tile4, 4);
tiles!(tile8, 8);
