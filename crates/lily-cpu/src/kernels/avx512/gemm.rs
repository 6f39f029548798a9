//! Products of 32 rows with a tile of tokens.
//!
//! A lane is a row: `vpdpbusd` multiplies four elements of each of sixteen rows with four activation bytes, broadcast.
//! So the rows are transposed once, four bytes at a time ([`unpack4`]), for all tokens of a chunk. A group costs 32
//! `vpdpbusd` a (16 rows, token), and 6 operations to shift, convert and scale: 84 % of the machine's integer peak.

use std::arch::x86_64::*;

use crate::{
    acts::{PAIR_BYTES, Tile},
    kernels::{BLOCK, Next, RowsRef, portable::step_offsets},
};

/// Transposes 16 rows of 16 dwords. `row(i)` gives the address of row `i`'s bytes, of which `mask` dwords are read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn transpose(rows: &[*const u8; 16], offset: usize, mask: __mmask16) -> [__m512i; 16] {
    // SAFETY: the caller's pointers are valid for the dwords in `mask`.
    unsafe {
        let r: [__m512i; 16] =
            std::array::from_fn(|i| _mm512_maskz_loadu_epi32(mask, rows[i].add(offset).cast()));
        // Dwords of neighbouring rows, then qwords, inside each 128-bit lane.
        let a: [__m512i; 16] = std::array::from_fn(|i| {
            let (x, y) = (r[i & !1], r[i | 1]);
            if i & 1 == 0 { _mm512_unpacklo_epi32(x, y) } else { _mm512_unpackhi_epi32(x, y) }
        });
        // b[4 q + c]: column c of each 128-bit lane, rows 4 q..4 q + 4.
        let b: [__m512i; 16] = std::array::from_fn(|i| {
            let (q, c) = (i & !3, i & 3);
            let (x, y) = (a[q + c / 2], a[q + 2 + c / 2]);
            if c & 1 == 0 { _mm512_unpacklo_epi64(x, y) } else { _mm512_unpackhi_epi64(x, y) }
        });
        // Gather 128-bit lane l of the four row groups: column 4 l + c.
        std::array::from_fn(|col| {
            let (l, c) = (col / 4, col & 3);
            let pick = |x: __m512i, y: __m512i| match l {
                0 | 2 => _mm512_shuffle_i32x4::<0b10_00_10_00>(x, y),
                _ => _mm512_shuffle_i32x4::<0b11_01_11_01>(x, y),
            };
            // (lanes l % 2 and l % 2 + 2 of rows 0..4, same of rows 4..8), and of rows 8..16.
            let (lo, hi) = (pick(b[c], b[4 + c]), pick(b[8 + c], b[12 + c]));
            if l < 2 {
                _mm512_shuffle_i32x4::<0b10_00_10_00>(lo, hi)
            } else {
                _mm512_shuffle_i32x4::<0b11_01_11_01>(lo, hi)
            }
        })
    }
}

/// Transposes bf16 `[rows][groups]` to f32 `[group][BLOCK]`, rows at `lane0..lane0 + 16`. Writes groups in pairs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn transpose_bf16(rows: &[*const u16; 16], groups: usize, lane0: usize, out: &mut [f32]) {
    debug_assert!(out.len() >= groups.next_multiple_of(2) * BLOCK);
    for g in (0..groups).step_by(8) {
        let n = (groups - g).min(8);
        let mask = ((1u32 << n) - 1) as __mmask8;
        // SAFETY: `n` groups are read from each row; `out` has room for `groups` padded to a pair.
        unsafe {
            let load = |r: usize| _mm_maskz_loadu_epi16(mask, rows[r].add(g).cast());
            // 128-bit lane i of the j-th vector: eight groups (four dwords) of row 4 i + j.
            let r: [__m512i; 4] = std::array::from_fn(|j| {
                let x = _mm512_castsi128_si512(load(j));
                let x = _mm512_inserti32x4::<1>(x, load(4 + j));
                let x = _mm512_inserti32x4::<2>(x, load(8 + j));
                _mm512_inserti32x4::<3>(x, load(12 + j))
            });
            let (a, b) = (_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
            let (c, d) = (_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
            let columns = [
                _mm512_unpacklo_epi64(a, c),
                _mm512_unpackhi_epi64(a, c),
                _mm512_unpacklo_epi64(b, d),
                _mm512_unpackhi_epi64(b, d),
            ];
            let to = out.as_mut_ptr().add(g * BLOCK + lane0);
            for (c, &x) in columns.iter().enumerate() {
                if 2 * c < n {
                    let high = _mm512_and_si512(x, _mm512_set1_epi32(0xffff_0000u32 as i32));
                    _mm512_storeu_si512(to.add(2 * c * BLOCK).cast(), _mm512_slli_epi32::<16>(x));
                    _mm512_storeu_si512(to.add((2 * c + 1) * BLOCK).cast(), high);
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn unpack<const BITS: usize>(m: &RowsRef<'_>, w: &mut [u8], s: &mut [f32], b: &mut [f32]) {
    let groups = m.groups;
    let row_bytes = m.row_bytes();
    let out = w.as_mut_ptr();
    // SAFETY: rows are clamped to the last one; whole lines are read while they lie inside the row, half a line
    // for a last odd group of 4-bit weights. `w` holds `groups` blocks of 2048 bytes.
    unsafe {
        for rv in 0..2 {
            let row = |i: usize| (rv * 16 + i).min(m.rows - 1);
            let rows: [*const u8; 16] = std::array::from_fn(|i| m.weight.as_ptr().add(row(i) * row_bytes));
            let scales: [*const u16; 16] = std::array::from_fn(|i| m.scales.as_ptr().add(row(i) * m.stride));
            let biases: [*const u16; 16] = std::array::from_fn(|i| m.biases.as_ptr().add(row(i) * m.stride));
            transpose_bf16(&scales, groups, rv * 16, s);
            transpose_bf16(&biases, groups, rv * 16, b);
            let low = _mm512_set1_epi8(15);
            let block = |g: usize| out.add((g * 2 + rv) * 1024);
            if BITS == 4 {
                for g in (0..groups).step_by(2) {
                    let mask: __mmask16 = if g + 1 == groups { 0xff } else { !0 };
                    let columns = transpose(&rows, g * 32, mask);
                    // Two loops of a fixed length: they are unrolled, and the columns stay in registers.
                    let put = |p: *mut u8, x: __m512i| {
                        _mm512_storeu_si512(p.cast(), _mm512_and_si512(x, low));
                        let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(x), low);
                        _mm512_storeu_si512(p.add(512).cast(), odd);
                    };
                    let p = block(g);
                    for (c, &x) in columns[..8].iter().enumerate() {
                        put(p.add(c * 64), x);
                    }
                    if g + 1 < groups {
                        let p = block(g + 1);
                        for (c, &x) in columns[8..].iter().enumerate() {
                            put(p.add(c * 64), x);
                        }
                    }
                }
            } else {
                for g in 0..groups {
                    for (c, &x) in transpose(&rows, g * 64, !0).iter().enumerate() {
                        _mm512_storeu_si512(block(g).add(c * 64).cast(), x);
                    }
                }
            }
        }
    }
}

/// 4-bit rows; as [`crate::kernels::portable::unpack`].
///
/// # Safety
/// AVX-512 F, BW, VL; lengths as checked by [`crate::kernels::Kernels::unpack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn unpack4(m: &RowsRef<'_>, w: &mut [u8], s: &mut [f32], b: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { unpack::<4>(m, w, s, b) }
}

/// 8-bit rows.
///
/// # Safety
/// As [`unpack4`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn unpack8(m: &RowsRef<'_>, w: &mut [u8], s: &mut [f32], b: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { unpack::<8>(m, w, s, b) }
}

/// `T` tokens: 2 T accumulators, two weight vectors and a broadcast in registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn tile_of<const BITS: usize, const T: usize>(
    w: &[u8],
    s: &[f32],
    b: &[f32],
    groups: usize,
    x: &Tile<'_>,
    next: Option<&Next>,
    out: &mut [f32],
) {
    debug_assert_eq!(x.tokens, T);
    // SAFETY: `w`, `s`, `b` hold `groups` blocks; `x` holds `groups` padded to pairs; `out` is `[T][BLOCK]`.
    unsafe {
        let out = out.as_mut_ptr();
        for g in 0..groups {
            if let Some(next) = next {
                // As much of the rows that come next as this group is of these.
                for line in 0..4 * BITS {
                    _mm_prefetch::<_MM_HINT_T1>(next.weight.wrapping_add((g * 4 * BITS + line) * 64).cast());
                }
                _mm_prefetch::<_MM_HINT_T1>(next.scales.wrapping_add(g * BLOCK).cast());
                _mm_prefetch::<_MM_HINT_T1>(next.biases.wrapping_add(g * BLOCK).cast());
            }
            let w = w.as_ptr().add(g * 2048);
            let lines = x.lines.as_ptr().add(g / 2 * PAIR_BYTES * T);
            let mut acc = [[_mm512_setzero_si512(); 2]; T];
            for half in 0..2 {
                let (first, second) = step_offsets::<BITS>(T, g % 2, half);
                for (step0, at) in [(0, first), (8, second)] {
                    let x = lines.add(at);
                    for step in 0..8 {
                        let w = w.add((step0 + step) * 64);
                        let (w0, w1) = (_mm512_loadu_si512(w.cast()), _mm512_loadu_si512(w.add(1024).cast()));
                        for (t, acc) in acc.iter_mut().enumerate() {
                            let x = x.add(t * 64 + step * 4).cast::<i32>().read_unaligned();
                            let x = _mm512_set1_epi32(x);
                            acc[0] = _mm512_dpbusd_epi32(acc[0], w0, x);
                            acc[1] = _mm512_dpbusd_epi32(acc[1], w1, x);
                        }
                    }
                }
                if half == 0 {
                    for acc in &mut acc {
                        *acc = [_mm512_slli_epi32::<8>(acc[0]), _mm512_slli_epi32::<8>(acc[1])];
                    }
                }
            }
            let load = |p: &[f32], rv: usize| _mm512_loadu_ps(p.as_ptr().add(g * BLOCK + rv * 16));
            let (s, b) = ([load(s, 0), load(s, 1)], [load(b, 0), load(b, 1)]);
            for (t, acc) in acc.iter().enumerate() {
                let scale = _mm512_set1_ps(*x.scale.as_ptr().add(g * T + t));
                let sum = _mm512_set1_ps(*x.sum.as_ptr().add(g * T + t));
                for rv in 0..2 {
                    let p = out.add(t * BLOCK + rv * 16);
                    let d = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[rv]), scale);
                    let y = _mm512_fmadd_ps(b[rv], sum, _mm512_loadu_ps(p));
                    _mm512_storeu_ps(p, _mm512_fmadd_ps(d, s[rv], y));
                }
            }
        }
    }
}

macro_rules! tiles {
    ($name:ident, $bits:literal, $($t:literal)*) => {
        /// As [`crate::kernels::portable::tile`].
        ///
        /// # Safety
        /// AVX-512 F, BW, VL, VNNI; lengths as checked by [`crate::kernels::Kernels::tile`].
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        pub(super) unsafe fn $name(
            w: &[u8],
            s: &[f32],
            b: &[f32],
            groups: usize,
            x: &Tile<'_>,
            next: Option<&Next>,
            out: &mut [f32],
        ) {
            // SAFETY: the caller's promise.
            unsafe {
                match x.tokens {
                    $($t => tile_of::<$bits, $t>(w, s, b, groups, x, next, out),)*
                    n => unreachable!("a tile has 1 to 12 tokens, not {n}"),
                }
            }
        }
    };
}
tiles!(tile4, 4, 1 2 3 4 5 6 7 8 9 10 11 12);
tiles!(tile8, 8, 1 2 3 4 5 6 7 8 9 10 11 12);
