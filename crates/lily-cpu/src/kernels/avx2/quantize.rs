//! Quantising a group of activations.

use crate::{acts::GROUP, kernels::portable};

/// As [`portable::quantize_group`], which the compiler vectorises well enough: a decoded token quantises about
/// 10,000 elements a layer.
///
/// # Safety
/// AVX2; each buffer is empty or holds `3 * stride + 64` bytes.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn quantize_group(
    x: &[f32; GROUP],
    nibble: &mut [u8],
    byte: &mut [u8],
    stride: usize,
    parity: usize,
) -> (f32, f32) {
    portable::quantize_group(x, nibble, byte, stride, parity)
}
