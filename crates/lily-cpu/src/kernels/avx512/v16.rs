//! One `zmm` register as [`V16`].

use std::arch::x86_64::*;

use crate::kernels::v16::V16;

/// Sixteen f32 in a register.
#[derive(Clone, Copy)]
pub(crate) struct Zmm(__m512);

// SAFETY (whole impl): each method's caller has AVX-512 F and passes valid pointers, as the trait demands.
impl V16 for Zmm {
    const REGISTERS: usize = 32;
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_add_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_sub_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_mul_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_div_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_max_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_min_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_roundscale_ps::<0>(self.0)) }
    }
    #[inline(always)]
    unsafe fn scale2(self, n: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_scalef_ps(self.0, n.0)) }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u16) -> (Self, Self) {
        // SAFETY: the trait's contract.
        unsafe {
            let x = _mm512_loadu_si512(p.cast());
            let high = _mm512_and_si512(x, _mm512_set1_epi32(0xffff_0000u32 as i32));
            (Zmm(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(x))), Zmm(_mm512_castsi512_ps(high)))
        }
    }
    #[inline(always)]
    unsafe fn reduce_add(self) -> f32 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u16) {
        // SAFETY: prefetches may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}
