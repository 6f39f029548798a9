//! arm64 with the dot-product extension: `sdot` multiplies 16 signed bytes with 16 signed bytes and adds groups of
//! four into four i32 lanes.
//!
//! 4-bit weights are signed bytes as they are. 8-bit ones are moved by 128, and `128 * scale` is added to their biases:
//! `w = s q + b = s (q - 128) + (b + 128 s)`.

mod gemm;
mod gemv;
mod quantize;
mod v16;

use std::arch::{aarch64::*, asm};

use super::kernel_table;
use crate::isa::Isa;

kernel_table! {
    isa: Isa::Neon, vector: super::v16::Quad4,
    attributes: [target_feature(enable = "neon,dotprod")],
    quantize: quantize::quantize_group,
    gemv: [gemv::gemv4, gemv::gemv8],
    unpack: [gemm::unpack4, gemm::unpack8],
    tile: [gemm::tile4, gemm::tile8]
}

/// `acc[i] += a[4 i..4 i + 4] . b[4 i..4 i + 4]`. (The intrinsic is not stable yet.)
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: reads and writes registers only; this function has the instruction.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b",
            acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// `acc[i] += a[4 i..4 i + 4] . b[4 LANE..4 LANE + 4]`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot_lane<const LANE: usize>(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: reads and writes registers only; this function has the instruction.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]",
            acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}
