//! Sixteen f32 lanes, the vector type of the kernels that are written once for all instruction sets
//! ([`super::generic`]): one `zmm`, two `ymm`, four NEON registers, or a plain array.

/// Sixteen f32 lanes.
///
/// # Safety
/// Every method needs the instruction set of its implementation; pointers need not be aligned, but must be valid
/// for the 64 bytes (or the 32 bf16) that are read or written.
pub(crate) trait V16: Copy {
    /// Vectors that the machine's registers hold.
    const REGISTERS: usize;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn splat(x: f32) -> Self;
    unsafe fn add(self, b: Self) -> Self;
    unsafe fn sub(self, b: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    unsafe fn div(self, b: Self) -> Self;
    unsafe fn max(self, b: Self) -> Self;
    unsafe fn min(self, b: Self) -> Self;
    /// `self * b + c`, fused where the machine has it.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// To the nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// `self * 2^n` for integral `n` in -126..=127.
    unsafe fn scale2(self, n: Self) -> Self;
    /// Reads 32 bf16: (those of even, those of odd index).
    unsafe fn load_bf16_pairs(p: *const u16) -> (Self, Self);
    unsafe fn reduce_add(self) -> f32;
    unsafe fn reduce_max(self) -> f32;
    /// Fetches the cache line at `p`, which may be any address, into the second-level cache. Only a hint.
    #[inline(always)]
    unsafe fn prefetch(p: *const u16) {
        let _ = p;
    }
}

/// `[f32; 16]`, for any machine.
#[derive(Clone, Copy)]
pub(crate) struct Array16([f32; 16]);

macro_rules! lanes {
    (|$i:ident| $e:expr) => {{
        let mut out = [0.0f32; 16];
        for $i in 0..16 {
            out[$i] = $e;
        }
        Array16(out)
    }};
}

impl V16 for Array16 {
    const REGISTERS: usize = 8;
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Array16(unsafe { p.cast::<[f32; 16]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[f32; 16]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Array16([x; 16])
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        lanes!(|i| self.0[i] + b.0[i])
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        lanes!(|i| self.0[i] - b.0[i])
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        lanes!(|i| self.0[i] * b.0[i])
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        lanes!(|i| self.0[i] / b.0[i])
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        lanes!(|i| if self.0[i] > b.0[i] { self.0[i] } else { b.0[i] })
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        lanes!(|i| if self.0[i] < b.0[i] { self.0[i] } else { b.0[i] })
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // Not `mul_add`: without an FMA instruction that is a library call per lane.
        lanes!(|i| self.0[i] * b.0[i] + c.0[i])
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // Adding and taking away 1.5 * 2^23 rounds values below 2^22, which is all `exp` needs.
        const MAGIC: f32 = 12_582_912.0;
        lanes!(|i| (self.0[i] + MAGIC) - MAGIC)
    }
    #[inline(always)]
    unsafe fn scale2(self, n: Self) -> Self {
        lanes!(|i| self.0[i] * f32::from_bits(((n.0[i] as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u16) -> (Self, Self) {
        // SAFETY: the caller's promise.
        let x = unsafe { p.cast::<[u16; 32]>().read_unaligned() };
        (
            lanes!(|i| f32::from_bits((x[2 * i] as u32) << 16)),
            lanes!(|i| f32::from_bits((x[2 * i + 1] as u32) << 16)),
        )
    }
    #[inline(always)]
    unsafe fn reduce_add(self) -> f32 {
        let mut x = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                x[i] += x[i + half];
            }
        }
        x[0]
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        self.0.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
    }
}

/// `e^x` to about 2 units in the last place for x in -87..88; below, 0 or the smallest normal numbers; above, inf.
/// NaN stays NaN.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn exp<V: V16>(x: V) -> V {
    // SAFETY: same instruction set.
    unsafe {
        // x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 in two parts so that r is exact (Cody and Waite).
        let lo = V::splat(-87.336_54);
        let hi = V::splat(88.722_83);
        // The order of the operands keeps a NaN in `x` (max and min return their second operand then).
        let xc = hi.min(lo.max(x));
        let n = xc.mul(V::splat(std::f32::consts::LOG2_E)).round();
        let r = n.fma(V::splat(-0.693_359_4), xc);
        let r = n.fma(V::splat(2.121_944_4e-4), r);
        // Minimax polynomial of degree 6 for e^r.
        let p = V::splat(1.987_569_1e-4);
        let p = p.fma(r, V::splat(1.398_199_9e-3));
        let p = p.fma(r, V::splat(8.333_452e-3));
        let p = p.fma(r, V::splat(4.166_579_6e-2));
        let p = p.fma(r, V::splat(1.666_666_5e-1));
        let p = p.fma(r, V::splat(5e-1));
        let p = p.fma(r.mul(r), r).add(V::splat(1.0));
        // n = 128 is out of scale2's range: two steps.
        let half = n.mul(V::splat(0.5)).round();
        p.scale2(half).scale2(n.sub(half))
    }
}

/// `1 / (1 + e^-x)`.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn sigmoid<V: V16>(x: V) -> V {
    // SAFETY: same instruction set.
    unsafe { V::splat(1.0).div(V::splat(1.0).add(exp(V::splat(0.0).sub(x)))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_over_its_range() {
        let mut worst = 0.0f64;
        for i in 0..200_000 {
            let x = -87.0 + 175.0 * i as f32 / 200_000.0;
            // SAFETY: plain arrays need no instruction set.
            let y = unsafe { exp(Array16::splat(x)) }.0[3] as f64;
            let want = (x as f64).exp();
            worst = worst.max(((y - want) / want).abs());
        }
        assert!(worst < 3e-7, "{worst}");
    }

    #[test]
    fn exp_at_the_ends() {
        // SAFETY: plain arrays need no instruction set.
        let f = |x: f32| unsafe { exp(Array16::splat(x)) }.0[0];
        assert!(f(-1e30) < 2e-38 && f(f32::NEG_INFINITY) < 2e-38);
        assert!(f(1e30) > 3e38 || f(1e30).is_infinite());
        assert!(f(f32::NAN).is_nan());
        assert_eq!(f(0.0), 1.0);
    }
}
