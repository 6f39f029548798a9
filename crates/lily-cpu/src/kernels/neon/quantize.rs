//! Quantising a group of activations.

use crate::{acts::GROUP, kernels::portable};

/// As [`portable::quantize_group`], which the compiler vectorises.
///
/// # Safety
/// NEON with the dot product; each buffer is empty or holds `3 * stride + 64` bytes.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn quantize_group(
    x: &[f32; GROUP],
    nibble: &mut [u8],
    byte: &mut [u8],
    stride: usize,
    parity: usize,
) -> (f32, f32) {
    portable::quantize_group(x, nibble, byte, stride, parity)
}
