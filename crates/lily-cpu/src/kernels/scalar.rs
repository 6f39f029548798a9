//! The kernels in plain Rust.

use super::{kernel_table, portable, v16::Array16};
use crate::isa::Isa;

kernel_table! {
    isa: Isa::Scalar, vector: Array16, attributes: [], quantize: portable::quantize_group,
    gemv: [portable::gemv::<4>, portable::gemv::<8>],
    unpack: [portable::unpack::<4>, portable::unpack::<8>],
    tile: [portable::tile::<4>, portable::tile::<8>]
}
