//! AVX2 and FMA: `vpmaddubsw` multiplies 32 unsigned weight bytes with 32 signed activation bytes and adds
//! neighbours into sixteen i16 lanes.
//!
//! A 4-bit weight times a signed byte is at most 15 * 128 = 1920 in magnitude, two of them 3840, and eight such sums
//! 30720: so eight `vpmaddubsw` may be added in i16 before they are widened. 8-bit weights are split in nibbles.

mod gemm;
mod gemv;
mod quantize;
mod v16;

use super::kernel_table;
use crate::isa::Isa;

kernel_table! {
    isa: Isa::Avx2, vector: super::v16::Ymm2,
    attributes: [target_feature(enable = "avx2,fma")],
    quantize: quantize::quantize_group,
    gemv: [gemv::gemv4, gemv::gemv8],
    unpack: [gemm::unpack4, gemm::unpack8],
    tile: [gemm::tile4, gemm::tile8]
}
