//! AVX-512 with VNNI: `vpdpbusd` multiplies 64 unsigned weight bytes with 64 signed activation bytes and adds groups
//! of four into sixteen i32 lanes, twice a cycle.

mod gemm;
mod gemv;
mod quantize;
mod v16;

use super::kernel_table;
use crate::isa::Isa;

kernel_table! {
    isa: Isa::Avx512Vnni, vector: super::v16::Zmm,
    attributes: [target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")],
    quantize: quantize::quantize_group,
    gemv: [gemv::gemv4, gemv::gemv8],
    unpack: [gemm::unpack4, gemm::unpack8],
    tile: [gemm::tile4, gemm::tile8]
}
