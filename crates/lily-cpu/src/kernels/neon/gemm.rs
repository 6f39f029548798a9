//! Products of 32 rows with a tile of tokens: a lane is a row, as in the AVX-512 version.
//!
//! 16 rows (four vectors of four) times up to 4 tokens are in registers at a time; the four bytes of a token that a
//! step multiplies are a lane of a register, so nothing is broadcast.

use std::arch::aarch64::*;

use super::sdot_lane;
use crate::{
    acts::{PAIR_BYTES, Tile},
    kernels::{BLOCK, Next, RowsRef, portable},
};

/// Transposes 4 rows of 4 dwords.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn transpose(rows: &[*const u8; 4], offset: usize) -> [uint8x16_t; 4] {
    // SAFETY: the caller's pointers are valid for 16 bytes at `offset`.
    unsafe {
        let r: [uint32x4_t; 4] = [0, 1, 2, 3].map(|i| vreinterpretq_u32_u8(vld1q_u8(rows[i].add(offset))));
        let wide = vreinterpretq_u64_u32;
        let (a, b) = (wide(vtrn1q_u32(r[0], r[1])), wide(vtrn2q_u32(r[0], r[1])));
        let (c, d) = (wide(vtrn1q_u32(r[2], r[3])), wide(vtrn2q_u32(r[2], r[3])));
        let bytes = vreinterpretq_u8_u64;
        [bytes(vzip1q_u64(a, c)), bytes(vzip1q_u64(b, d)), bytes(vzip2q_u64(a, c)), bytes(vzip2q_u64(b, d))]
    }
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn unpack<const BITS: usize>(m: &RowsRef<'_>, w: &mut [u8], s: &mut [f32], b: &mut [f32]) {
    portable::unpack_scales(m, s, b);
    if BITS == 8 {
        let n = m.groups * BLOCK;
        b[..n].iter_mut().zip(&s[..n]).for_each(|(b, s)| *b += 128.0 * s);
    }
    let out = w.as_mut_ptr();
    // SAFETY: rows are clamped to the last one, and every group is whole; `w` holds `groups` blocks of 2048 bytes.
    unsafe {
        for four in 0..8 {
            let rows: [*const u8; 4] = std::array::from_fn(|i| {
                m.weight.as_ptr().add((four * 4 + i).min(m.rows - 1) * m.row_bytes())
            });
            for g in 0..m.groups {
                let p = out.add((g * 2 + four / 4) * 1024 + four % 4 * 16);
                let put = |step: usize, x: uint8x16_t| vst1q_u8(p.add(step * 64), x);
                for part in 0..BITS / 2 {
                    let columns = transpose(&rows, g * 8 * BITS + part * 16);
                    for (c, &x) in columns.iter().enumerate() {
                        if BITS == 4 {
                            put(part * 4 + c, vandq_u8(x, vdupq_n_u8(15)));
                            put(8 + part * 4 + c, vshrq_n_u8::<4>(x));
                        } else {
                            put(part * 4 + c, veorq_u8(x, vdupq_n_u8(128)));
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
/// NEON with the dot product; lengths as checked by [`crate::kernels::Kernels::unpack`].
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn unpack4(m: &RowsRef<'_>, w: &mut [u8], s: &mut [f32], b: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { unpack::<4>(m, w, s, b) }
}

/// 8-bit rows, moved by 128; see the module documentation of [`super`].
///
/// # Safety
/// As [`unpack4`].
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn unpack8(m: &RowsRef<'_>, w: &mut [u8], s: &mut [f32], b: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { unpack::<8>(m, w, s, b) }
}

/// Products of the four steps at `w` with the 16 bytes of each token at `x`, added to `acc`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn four_steps<const T: usize>(w: *const u8, x: *const u8, acc: &mut [[int32x4_t; 4]; T]) {
    // SAFETY: the caller's pointers are valid for 4 steps and T tokens.
    unsafe {
        let x: [int8x16_t; T] = std::array::from_fn(|t| vld1q_s8(x.add(t * 64).cast()));
        macro_rules! step {
            ($s:literal) => {
                for v in 0..4 {
                    let w = vld1q_s8(w.add($s * 64 + v * 16).cast());
                    for t in 0..T {
                        acc[t][v] = sdot_lane::<$s>(acc[t][v], w, x[t]);
                    }
                }
            };
        }
        step!(0);
        step!(1);
        step!(2);
        step!(3);
    }
}

/// Tokens `t0..t0 + T` of a tile.
#[inline]
#[target_feature(enable = "neon,dotprod")]
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
                let mut acc = [[vdupq_n_s32(0); 4]; T];
                for half in 0..2 {
                    let (first, second) = portable::step_offsets::<BITS>(tn, g % 2, half);
                    four_steps(w, lines.add(first), &mut acc);
                    four_steps(w.add(256), lines.add(first + 16), &mut acc);
                    four_steps(w.add(512), lines.add(second), &mut acc);
                    four_steps(w.add(768), lines.add(second + 16), &mut acc);
                    if half == 0 {
                        acc.iter_mut().flatten().for_each(|a| *a = vshlq_n_s32::<8>(*a));
                    }
                }
                for (t, acc) in acc.iter().enumerate() {
                    let scale = *x.scale.as_ptr().add(g * tn + t0 + t);
                    let sum = *x.sum.as_ptr().add(g * tn + t0 + t);
                    for (v, &acc) in acc.iter().enumerate() {
                        let at = rv * 16 + v * 4;
                        let p = out.add(t * BLOCK + at);
                        let s = vld1q_f32(s.as_ptr().add(g * BLOCK + at));
                        let b = vld1q_f32(b.as_ptr().add(g * BLOCK + at));
                        let d = vmulq_n_f32(vcvtq_f32_s32(acc), scale);
                        let y = vfmaq_n_f32(vld1q_f32(p), b, sum);
                        vst1q_f32(p, vfmaq_f32(y, d, s));
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
        /// NEON with the dot product; lengths as checked by [`crate::kernels::Kernels::tile`].
        #[target_feature(enable = "neon,dotprod")]
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
