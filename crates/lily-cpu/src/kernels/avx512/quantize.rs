//! Quantising a group of activations.

use std::arch::x86_64::*;

use crate::{acts::GROUP, kernels::portable};

/// As [`portable::quantize_group`].
///
/// # Safety
/// AVX-512 F, BW, VL; each buffer is empty or holds `3 * stride + 64` bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn quantize_group(
    x: &[f32; GROUP],
    nibble: &mut [u8],
    byte: &mut [u8],
    stride: usize,
    parity: usize,
) -> (f32, f32) {
    // SAFETY: `x` holds four vectors; the buffers are long enough by the caller's promise.
    unsafe {
        let v: [__m512; 4] = std::array::from_fn(|i| _mm512_loadu_ps(x.as_ptr().add(16 * i)));
        let abs = |v: __m512| _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fff_ffff));
        // As integers, so that a NaN is the largest and reaches the scale.
        let m =
            _mm512_max_epi32(_mm512_max_epi32(abs(v[0]), abs(v[1])), _mm512_max_epi32(abs(v[2]), abs(v[3])));
        let amax = f32::from_bits(_mm512_reduce_max_epi32(m) as u32);
        let (scale, inverse) = portable::steps(amax);
        let inverse = _mm512_set1_ps(inverse);
        let q: [__m512i; 4] = std::array::from_fn(|i| _mm512_cvtps_epi32(_mm512_mul_ps(v[i], inverse)));
        let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(
            _mm512_add_epi32(q[0], q[1]),
            _mm512_add_epi32(q[2], q[3]),
        ));
        // Words 0..32 and 32..64 in natural order.
        let words = |a: __m512i, b: __m512i| {
            _mm512_inserti64x4::<1>(
                _mm512_castsi256_si512(_mm512_cvtepi32_epi16(a)),
                _mm512_cvtepi32_epi16(b),
            )
        };
        let (w0, w1) = (words(q[0], q[1]), words(q[2], q[3]));
        let hi = |w: __m512i| {
            _mm512_cvtepi16_epi8(_mm512_srai_epi16::<8>(_mm512_add_epi16(w, _mm512_set1_epi16(128))))
        };
        let lo = |w: __m512i| _mm512_cvtepi16_epi8(w);
        let put = |p: *mut u8, x: __m256i| _mm256_storeu_si256(p.cast(), x);
        if !nibble.is_empty() {
            // A dword is (even, odd): truncation takes the even word, a shift brings the odd one down.
            let even = _mm512_inserti64x4::<1>(
                _mm512_castsi256_si512(_mm512_cvtepi32_epi16(w0)),
                _mm512_cvtepi32_epi16(w1),
            );
            let odd = _mm512_inserti64x4::<1>(
                _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(w0))),
                _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(w1)),
            );
            let p = nibble.as_mut_ptr().add(parity * 32);
            put(p, hi(even));
            put(p.add(stride), hi(odd));
            put(p.add(2 * stride), lo(even));
            put(p.add(3 * stride), lo(odd));
        }
        if !byte.is_empty() {
            let p = byte.as_mut_ptr().add(parity * stride);
            put(p, hi(w0));
            put(p.add(32), hi(w1));
            put(p.add(2 * stride), lo(w0));
            put(p.add(2 * stride + 32), lo(w1));
        }
        (scale, scale * sum as f32)
    }
}
