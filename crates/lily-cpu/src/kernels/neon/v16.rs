//! Four NEON registers as [`V16`].

use std::arch::aarch64::*;

use crate::kernels::v16::V16;

/// Sixteen f32 in four registers.
#[derive(Clone, Copy)]
pub(crate) struct Quad4([float32x4_t; 4]);

macro_rules! each {
    (|$i:ident| $e:expr) => {
        // SAFETY: the caller has NEON, as the trait demands.
        unsafe {
            Quad4([
                {
                    let $i = 0;
                    $e
                },
                {
                    let $i = 1;
                    $e
                },
                {
                    let $i = 2;
                    $e
                },
                {
                    let $i = 3;
                    $e
                },
            ])
        }
    };
}

impl V16 for Quad4 {
    const REGISTERS: usize = 8;
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        each!(|i| vld1q_f32(p.add(4 * i)))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        for (i, x) in self.0.into_iter().enumerate() {
            // SAFETY: the trait's contract.
            unsafe { vst1q_f32(p.add(4 * i), x) }
        }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        each!(|_i| vdupq_n_f32(x))
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        each!(|i| vaddq_f32(self.0[i], b.0[i]))
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        each!(|i| vsubq_f32(self.0[i], b.0[i]))
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        each!(|i| vmulq_f32(self.0[i], b.0[i]))
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        each!(|i| vdivq_f32(self.0[i], b.0[i]))
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        each!(|i| vmaxq_f32(self.0[i], b.0[i]))
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        each!(|i| vminq_f32(self.0[i], b.0[i]))
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        each!(|i| vfmaq_f32(c.0[i], self.0[i], b.0[i]))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        each!(|i| vrndnq_f32(self.0[i]))
    }
    #[inline(always)]
    unsafe fn scale2(self, n: Self) -> Self {
        each!(|i| {
            let power = vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n.0[i]), vdupq_n_s32(127)));
            vmulq_f32(self.0[i], vreinterpretq_f32_s32(power))
        })
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u16) -> (Self, Self) {
        // SAFETY: the trait's contract; `vld1q_u16` needs no more alignment than a `u16`.
        let x = unsafe { [0, 1, 2, 3].map(|i| vreinterpretq_u32_u16(vld1q_u16(p.add(8 * i)))) };
        let even = each!(|i| vreinterpretq_f32_u32(vshlq_n_u32::<16>(x[i])));
        let odd = each!(|i| vreinterpretq_f32_u32(vandq_u32(x[i], vdupq_n_u32(0xffff_0000))));
        (even, odd)
    }
    #[inline(always)]
    unsafe fn reduce_add(self) -> f32 {
        // SAFETY: the trait's contract.
        unsafe { vaddvq_f32(vaddq_f32(vaddq_f32(self.0[0], self.0[1]), vaddq_f32(self.0[2], self.0[3]))) }
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        // SAFETY: the trait's contract.
        unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(self.0[0], self.0[1]), vmaxq_f32(self.0[2], self.0[3]))) }
    }
}
