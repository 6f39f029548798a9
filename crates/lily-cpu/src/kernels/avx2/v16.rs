//! Two `ymm` registers as [`V16`].

use std::arch::x86_64::*;

use crate::kernels::v16::V16;

/// Sixteen f32 in two registers.
#[derive(Clone, Copy)]
pub(crate) struct Ymm2(__m256, __m256);

macro_rules! both {
    ($f:ident($($x:expr),*)) => {
        // SAFETY: the caller has AVX2 and FMA, as the trait demands.
        unsafe { both!(@ $f, $($x),*) }
    };
    (@ $f:ident, $a:expr) => { Ymm2($f($a.0), $f($a.1)) };
    (@ $f:ident, $a:expr, $b:expr) => { Ymm2($f($a.0, $b.0), $f($a.1, $b.1)) };
    (@ $f:ident, $a:expr, $b:expr, $c:expr) => { Ymm2($f($a.0, $b.0, $c.0), $f($a.1, $b.1, $c.1)) };
}

impl V16 for Ymm2 {
    const REGISTERS: usize = 8;
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Ymm2(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the trait's contract.
        let x = unsafe { _mm256_set1_ps(x) };
        Ymm2(x, x)
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        both!(_mm256_add_ps(self, b))
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        both!(_mm256_sub_ps(self, b))
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        both!(_mm256_mul_ps(self, b))
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        both!(_mm256_div_ps(self, b))
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        both!(_mm256_max_ps(self, b))
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        both!(_mm256_min_ps(self, b))
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        both!(_mm256_fmadd_ps(self, b, c))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: the trait's contract.
        unsafe { Ymm2(_mm256_round_ps::<NEAREST>(self.0), _mm256_round_ps::<NEAREST>(self.1)) }
    }
    #[inline(always)]
    unsafe fn scale2(self, n: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let power = |n: __m256| {
                let n = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))
            };
            Ymm2(_mm256_mul_ps(self.0, power(n.0)), _mm256_mul_ps(self.1, power(n.1)))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u16) -> (Self, Self) {
        // SAFETY: the trait's contract.
        unsafe {
            let x = _mm256_loadu_si256(p.cast());
            let y = _mm256_loadu_si256(p.add(16).cast());
            let even = |x| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(x));
            let mask = _mm256_set1_epi32(0xffff_0000u32 as i32);
            let odd = |x| _mm256_castsi256_ps(_mm256_and_si256(x, mask));
            (Ymm2(even(x), even(y)), Ymm2(odd(x), odd(y)))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u16) {
        // SAFETY: prefetches may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn reduce_add(self) -> f32 {
        // SAFETY: the trait's contract.
        unsafe { hsum(_mm256_add_ps(self.0, self.1)) }
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        // SAFETY: the trait's contract.
        unsafe {
            let x = _mm256_max_ps(self.0, self.1);
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }
    }
}

/// The sum of eight lanes.
///
/// # Safety
/// AVX2.
#[inline(always)]
pub(super) unsafe fn hsum(x: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }
}
