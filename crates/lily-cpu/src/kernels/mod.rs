//! Kernels: one table of functions per instruction set, chosen at run time.
//!
//! Two families:
//! * integer products of packed weights with quantised activations ([`crate::acts`]): [`Kernels::gemv`] for one
//!   token, [`Kernels::unpack`] + [`Kernels::tile`] for several. `portable` defines them; `avx512`, `avx2` and
//!   `neon` have hand-written versions;
//! * f32 vector work (norms, activations, the GDN state, attention): written once in `generic`.

pub(crate) mod generic;
pub(crate) mod portable;
pub(crate) mod v16;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(test)]
mod tests;

use lily_model::QuantRows;

use crate::{
    acts::{GROUP, Order, PAIR_BYTES, TILE, Tile},
    buf::Buf,
    error::Result,
    isa::Isa,
};
pub(crate) use generic::{GdnLate, GdnTokens, GdnUpdates, LATE};

/// Rows that are unpacked together: two vectors of 16 lanes.
pub const BLOCK: usize = 32;

/// Rows of a packed matrix, or some neighbouring groups of them.
#[derive(Clone, Copy)]
pub struct RowsRef<'a> {
    pub(crate) rows: usize,
    /// Groups of a row that take part.
    pub(crate) groups: usize,
    /// Groups of a whole row: the distance from one row to the next.
    pub(crate) stride: usize,
    pub(crate) bits: usize,
    /// Row `r` is the `groups * 8 * bits` bytes at `r * stride * 8 * bits`.
    pub(crate) weight: &'a [u8],
    /// BF16; row `r` is the `groups` values at `r * stride`.
    pub(crate) scales: &'a [u16],
    /// BF16, like `scales`.
    pub(crate) biases: &'a [u16],
    /// What will be read after these rows, for prefetching.
    pub(crate) next: Next,
}

/// Addresses of the weights, scales and biases that will be read next. They are only prefetched, never read.
#[derive(Clone, Copy)]
pub(crate) struct Next {
    pub(crate) weight: *const u8,
    pub(crate) scales: *const u16,
    pub(crate) biases: *const u16,
}

impl<'a> RowsRef<'a> {
    /// Rows `start..start + rows` of `m`.
    pub fn new(m: &QuantRows<'a>, start: usize, rows: usize) -> Self {
        assert!(m.group_size == GROUP && (m.bits == 4 || m.bits == 8) && m.cols.is_multiple_of(GROUP));
        assert!(rows > 0);
        let groups = m.cols / GROUP;
        let row_bytes = m.cols * m.bits / 8;
        let weight: &[u8] = &bytemuck::cast_slice(m.weight)[start * row_bytes..(start + rows) * row_bytes];
        let scales = &m.scales[start * groups..(start + rows) * groups];
        let biases = &m.biases[start * groups..(start + rows) * groups];
        // Unless said otherwise the rows that follow in memory are next.
        let next = Next {
            weight: weight.as_ptr_range().end,
            scales: scales.as_ptr_range().end,
            biases: biases.as_ptr_range().end,
        };
        Self { rows, groups, stride: groups, bits: m.bits, weight, scales, biases, next }
    }

    /// The same rows, after which `next` will be read.
    pub fn then(mut self, next: &RowsRef<'_>) -> Self {
        self.next =
            Next { weight: next.weight.as_ptr(), scales: next.scales.as_ptr(), biases: next.biases.as_ptr() };
        self
    }

    /// Bytes from one row's weights to the next's.
    #[inline]
    pub(crate) fn row_bytes(&self) -> usize {
        self.stride * 8 * self.bits
    }

    /// Groups `first..first + n` of the same rows; `first` is even.
    pub fn columns(&self, first: usize, n: usize) -> Self {
        assert!(first.is_multiple_of(2) && n > 0 && first + n <= self.groups);
        let end = (self.rows - 1) * self.stride + first + n;
        let group_bytes = 8 * self.bits;
        Self {
            groups: n,
            weight: &self.weight[first * group_bytes..end * group_bytes],
            scales: &self.scales[first..end],
            biases: &self.biases[first..end],
            ..*self
        }
    }
}

/// [`BLOCK`] rows, unpacked for [`Kernels::tile`]: bytes `[group][2][step 0..16][row 0..16][4]`, where a step is
/// four elements that meet four activation bytes, and f32 scales and biases `[group][32]`.
#[derive(Debug)]
pub struct Unpacked {
    w: Buf<u8>,
    s: Buf<f32>,
    b: Buf<f32>,
    groups: usize,
    bits: usize,
}

impl Unpacked {
    /// Room for rows of up to `cols` elements.
    pub fn new(cols: usize) -> Result<Self> {
        let groups = cols / GROUP;
        // The SIMD versions write groups in pairs.
        let padded = groups.next_multiple_of(2);
        Ok(Self {
            w: Buf::new(groups.next_multiple_of(2) * BLOCK * GROUP, "unpacked weights")?,
            s: Buf::new(padded * BLOCK, "unpacked scales")?,
            b: Buf::new(padded * BLOCK, "unpacked biases")?,
            groups: 0,
            bits: 4,
        })
    }

    /// Bytes held.
    pub fn byte_len(&self) -> usize {
        self.w.byte_len() + self.s.byte_len() + self.b.byte_len()
    }
}

type GemvFn = unsafe fn(&RowsRef<'_>, &Tile<'_>, &mut [f32]);
type UnpackFn = unsafe fn(&RowsRef<'_>, &mut [u8], &mut [f32], &mut [f32]);
type TileFn = unsafe fn(&[u8], &[f32], &[f32], usize, &Tile<'_>, Option<&Next>, &mut [f32]);
type QuantizeFn = unsafe fn(&[f32; GROUP], &mut [u8], &mut [u8], usize, usize) -> (f32, f32);
type ConvFn = unsafe fn([&[f32]; 4], &[f32], usize, &mut [f32]);
type ScoresFn = unsafe fn(&[f32], usize, &[u16], &mut [f32], usize, &[u16]);
type ValuesFn = unsafe fn(&[f32], usize, usize, &[u16], usize, &mut [f32], &[u16]);

/// The kernels of one instruction set.
pub struct Kernels {
    isa: Isa,
    quantize_group: QuantizeFn,
    /// 4-bit, 8-bit.
    gemv: [GemvFn; 2],
    unpack: [UnpackFn; 2],
    tile: [TileFn; 2],
    sum_squares: unsafe fn(&[f32]) -> f32,
    scale_gain: unsafe fn(&[f32], f32, &[f32], &mut [f32]),
    scale: unsafe fn(&mut [f32], f32),
    axpy: unsafe fn(f32, &[f32], &mut [f32]),
    dot: unsafe fn(&[f32], &[f32]) -> f32,
    swiglu: unsafe fn(&[f32], &[f32], &mut [f32]),
    gate_sigmoid: unsafe fn(&mut [f32], &[f32]),
    gated_gain: unsafe fn(&mut [f32], f32, &[f32], &[f32]),
    conv_silu: ConvFn,
    gdn: unsafe fn(&mut [f32], &GdnTokens<'_>, &mut [f32]),
    gdn_late: unsafe fn(&[f32], &GdnLate<'_>, &mut [f32], &mut [f32]),
    gdn_flush: unsafe fn(&mut [f32], &GdnUpdates<'_>),
    /// For 8, 4, 2 and 1 rows.
    scores: [ScoresFn; 4],
    values: [ValuesFn; 4],
    /// The same with prefetching.
    scores_ahead: [ScoresFn; 4],
    values_ahead: [ValuesFn; 4],
    max: unsafe fn(&[f32]) -> f32,
    exp_sub: unsafe fn(&mut [f32], f32) -> f32,
    all_finite: unsafe fn(&[f32]) -> bool,
}

/// Makes the table of an instruction set: the generic kernels compiled for the vector type `$v` with the target
/// features of `$attr`, and the integer kernels named by the caller.
macro_rules! kernel_table {
    (isa: $isa:expr, vector: $v:ty, attributes: [$($attr:meta),*], quantize: $quantize:path,
     gemv: [$g4:path, $g8:path], unpack: [$u4:path, $u8:path], tile: [$t4:path, $t8:path]) => {
        mod table {
            use super::*;
            use crate::kernels::{GdnLate, GdnTokens, GdnUpdates, Kernels, generic};

            $(#[$attr])*
            unsafe fn sum_squares(x: &[f32]) -> f32 {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::sum_squares::<$v>(x) }
            }
            $(#[$attr])*
            unsafe fn scale_gain(x: &[f32], s: f32, gain: &[f32], out: &mut [f32]) {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::scale_gain::<$v>(x, s, gain, out) }
            }
            $(#[$attr])*
            unsafe fn scale(x: &mut [f32], s: f32) {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::scale::<$v>(x, s) }
            }
            $(#[$attr])*
            unsafe fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::axpy::<$v>(a, x, y) }
            }
            $(#[$attr])*
            unsafe fn dot(x: &[f32], y: &[f32]) -> f32 {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::dot::<$v>(x, y) }
            }
            $(#[$attr])*
            unsafe fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::swiglu::<$v>(gate, up, out) }
            }
            $(#[$attr])*
            unsafe fn gate_sigmoid(x: &mut [f32], gate: &[f32]) {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::gate_sigmoid::<$v>(x, gate) }
            }
            $(#[$attr])*
            unsafe fn gated_gain(x: &mut [f32], s: f32, gain: &[f32], z: &[f32]) {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::gated_gain::<$v>(x, s, gain, z) }
            }
            $(#[$attr])*
            unsafe fn conv_silu(taps: [&[f32]; 4], w: &[f32], w_stride: usize, out: &mut [f32]) {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::conv_silu::<$v>(taps, w, w_stride, out) }
            }
            $(#[$attr])*
            unsafe fn gdn(state: &mut [f32], x: &GdnTokens<'_>, out: &mut [f32]) {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::gdn::<$v>(state, x, out) }
            }
            $(#[$attr])*
            unsafe fn gdn_late(state: &[f32], x: &GdnLate<'_>, update: &mut [f32], out: &mut [f32]) {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::gdn_late::<$v>(state, x, update, out) }
            }
            $(#[$attr])*
            unsafe fn gdn_flush(state: &mut [f32], x: &GdnUpdates<'_>) {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::gdn_flush::<$v>(state, x) }
            }
            /// Attention kernels for a number of rows, without and with prefetching.
            mod rows {
                use super::*;

                $(#[$attr])*
                pub(super) unsafe fn scores<const R: usize, const AHEAD: bool>(
                    q: &[f32],
                    dim: usize,
                    k: &[u16],
                    out: &mut [f32],
                    stride: usize,
                    ahead: &[u16],
                ) {
                    // SAFETY: this function has the instruction set of the vector type.
                    unsafe { generic::scores::<$v, R, AHEAD>(q, dim, k, out, stride, ahead) }
                }
                $(#[$attr])*
                pub(super) unsafe fn values<const R: usize, const AHEAD: bool>(
                    p: &[f32],
                    stride: usize,
                    n: usize,
                    v: &[u16],
                    dim: usize,
                    acc: &mut [f32],
                    ahead: &[u16],
                ) {
                    // SAFETY: this function has the instruction set of the vector type.
                    unsafe { generic::weighted_values::<$v, R, AHEAD>(p, stride, n, v, dim, acc, ahead) }
                }
            }
            $(#[$attr])*
            unsafe fn max(x: &[f32]) -> f32 {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::max::<$v>(x) }
            }
            $(#[$attr])*
            unsafe fn exp_sub(x: &mut [f32], m: f32) -> f32 {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::exp_sub::<$v>(x, m) }
            }
            $(#[$attr])*
            unsafe fn all_finite(x: &[f32]) -> bool {
                // SAFETY: this function has the instruction set of the vector type.
                unsafe { generic::all_finite::<$v>(x) }
            }

            pub(crate) static KERNELS: Kernels = Kernels {
                isa: $isa,
                quantize_group: $quantize,
                gemv: [$g4, $g8],
                unpack: [$u4, $u8],
                tile: [$t4, $t8],
                sum_squares,
                scale_gain,
                scale,
                axpy,
                dot,
                swiglu,
                gate_sigmoid,
                gated_gain,
                conv_silu,
                gdn,
                gdn_late,
                gdn_flush,
                scores: [
                    rows::scores::<8, false>,
                    rows::scores::<4, false>,
                    rows::scores::<2, false>,
                    rows::scores::<1, false>,
                ],
                values: [
                    rows::values::<8, false>,
                    rows::values::<4, false>,
                    rows::values::<2, false>,
                    rows::values::<1, false>,
                ],
                scores_ahead: [
                    rows::scores::<8, true>,
                    rows::scores::<4, true>,
                    rows::scores::<2, true>,
                    rows::scores::<1, true>,
                ],
                values_ahead: [
                    rows::values::<8, true>,
                    rows::values::<4, true>,
                    rows::values::<2, true>,
                    rows::values::<1, true>,
                ],
                max,
                exp_sub,
                all_finite,
            };
        }
        pub(crate) use table::KERNELS;
    };
}
use kernel_table;

/// Row counts of the attention kernels, largest first.
const ROWS: [usize; 4] = [8, 4, 2, 1];

impl Kernels {
    /// The kernels of `isa`, which must be available.
    pub fn of(isa: Isa) -> &'static Kernels {
        assert!(isa.is_available(), "{} is not available here", isa.name());
        match isa {
            Isa::Scalar => &scalar::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => &avx512::KERNELS,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &neon::KERNELS,
            #[allow(unreachable_patterns)]
            _ => unreachable!("available sets are compiled in"),
        }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Quantises one group; see [`portable::quantize_group`].
    #[inline]
    pub(crate) fn quantize_group(
        &self,
        x: &[f32; GROUP],
        nibble: &mut [u8],
        byte: &mut [u8],
        stride: usize,
        parity: usize,
    ) -> (f32, f32) {
        assert!(parity < 2);
        assert!(nibble.is_empty() || nibble.len() >= 3 * stride + 64);
        assert!(byte.is_empty() || byte.len() >= 3 * stride + 64);
        // SAFETY: the instruction set was checked by `of`; the lines are long enough.
        unsafe { (self.quantize_group)(x, nibble, byte, stride, parity) }
    }

    /// `out[r] = row r . x` for the rows of `m` and a tile of one token.
    #[inline]
    pub fn gemv(&self, m: &RowsRef<'_>, x: &Tile<'_>, out: &mut [f32]) {
        assert!(x.tokens == 1 && m.rows == out.len() && x.cols == m.groups * GROUP);
        assert!(
            x.lines.len() >= m.groups.div_ceil(2) * 256 && x.scale.len() >= m.groups.next_multiple_of(16)
        );
        assert!(x.sum.len() >= m.groups.next_multiple_of(16));
        // SAFETY: the instruction set was checked by `of`; `RowsRef::new` and the assertions fix all lengths.
        unsafe { self.gemv[usize::from(m.bits == 8)](m, x, out) }
    }

    /// Unpacks 1 to [`BLOCK`] rows.
    #[inline]
    pub fn unpack(&self, m: &RowsRef<'_>, out: &mut Unpacked) {
        assert!((1..=BLOCK).contains(&m.rows) && m.groups * BLOCK * GROUP <= out.w.len());
        assert!(m.groups.next_multiple_of(2) * BLOCK <= out.s.len().min(out.b.len()));
        (out.groups, out.bits) = (m.groups, m.bits);
        // SAFETY: the instruction set was checked by `of`; the buffers hold `groups` padded to 32.
        unsafe { self.unpack[usize::from(m.bits == 8)](m, &mut out.w, &mut out.s, &mut out.b) }
    }

    /// `out[t][r] += row r . x_t` for [`BLOCK`] rows and the tokens of a tile, over the groups that were unpacked,
    /// of which the first is group `first` of `x`. `prefetch`: the whole rows these groups are of, to fetch a part of
    /// what [`RowsRef::then`] says comes after them.
    #[inline]
    pub fn tile(
        &self,
        m: &Unpacked,
        x: &Tile<'_>,
        first: usize,
        prefetch: Option<&RowsRef<'_>>,
        out: &mut [f32],
    ) {
        let tokens = x.tokens;
        assert!((1..=TILE).contains(&tokens) && out.len() >= tokens * BLOCK && first.is_multiple_of(2));
        let part = Tile {
            tokens,
            cols: m.groups * GROUP,
            lines: &x.lines[first / 2 * PAIR_BYTES * tokens..],
            scale: &x.scale[first * tokens..],
            sum: &x.sum[first * tokens..],
        };
        assert!(part.lines.len() >= m.groups.div_ceil(2) * PAIR_BYTES * tokens);
        assert!(part.scale.len() >= m.groups * tokens && part.sum.len() >= m.groups * tokens);
        let out = &mut out[..tokens * BLOCK];
        let next = prefetch.map(|rows| Next {
            weight: rows.next.weight.wrapping_add(first * BLOCK * 8 * m.bits),
            scales: rows.next.scales.wrapping_add(first * BLOCK),
            biases: rows.next.biases.wrapping_add(first * BLOCK),
        });
        // SAFETY: the instruction set was checked by `of`; the assertions fix all lengths.
        unsafe { self.tile[usize::from(m.bits == 8)](&m.w, &m.s, &m.b, m.groups, &part, next.as_ref(), out) }
    }

    /// The order of activations that `m` reads.
    #[inline]
    pub fn order(m: &RowsRef<'_>) -> Order {
        Order::of_bits(m.bits)
    }

    /// Attention scores of any number of rows; see [`generic::scores`]. `ahead` is what will be read next, as long as
    /// `k`; it is prefetched where one pass over `k` serves all rows (with more passes, arithmetic takes the time).
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn scores(
        &self,
        rows: usize,
        q: &[f32],
        dim: usize,
        k: &[u16],
        out: &mut [f32],
        stride: usize,
        ahead: &[u16],
    ) {
        if let Some(i) = ROWS.iter().position(|n| *n == rows) {
            // SAFETY: the instruction set was checked by `of`; lengths are checked inside.
            return unsafe { (self.scores_ahead[i])(q, dim, k, out, stride, ahead) };
        }
        let mut r = 0;
        for (i, &n) in ROWS.iter().enumerate() {
            while rows - r >= n {
                // SAFETY: the instruction set was checked by `of`; lengths are checked inside.
                unsafe { self.scores[i](&q[r * dim..], dim, k, &mut out[r * stride..], stride, &[]) };
                r += n;
            }
        }
    }

    /// Weighted values of any number of rows; see [`generic::weighted_values`]. `ahead` as in [`Kernels::scores`].
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn weighted_values(
        &self,
        rows: usize,
        p: &[f32],
        stride: usize,
        n: usize,
        v: &[u16],
        dim: usize,
        acc: &mut [f32],
        ahead: &[u16],
    ) {
        if let Some(i) = ROWS.iter().position(|n| *n == rows) {
            // SAFETY: the instruction set was checked by `of`; lengths are checked inside.
            return unsafe { (self.values_ahead[i])(p, stride, n, v, dim, acc, ahead) };
        }
        let mut r = 0;
        for (i, &m) in ROWS.iter().enumerate() {
            while rows - r >= m {
                // SAFETY: the instruction set was checked by `of`; lengths are checked inside.
                unsafe { self.values[i](&p[r * stride..], stride, n, v, dim, &mut acc[r * dim..], &[]) };
                r += m;
            }
        }
    }
}

/// Safe forms of the generic kernels, which check lengths themselves.
macro_rules! safe {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        impl Kernels {
            $($(#[$doc])*
            #[inline]
            pub(crate) fn $name(&self, $($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the instruction set was checked by `of`; lengths are checked inside.
                unsafe { (self.$name)($($arg),*) }
            })*
        }
    };
}

safe! {
    /// `sum x^2`.
    sum_squares(x: &[f32]) -> f32;
    /// `out = x * s * gain`.
    scale_gain(x: &[f32], s: f32, gain: &[f32], out: &mut [f32]);
    /// `x *= s`.
    scale(x: &mut [f32], s: f32);
    /// `y += a * x`.
    axpy(a: f32, x: &[f32], y: &mut [f32]);
    /// `sum x * y`.
    dot(x: &[f32], y: &[f32]) -> f32;
    /// `out = silu(gate) * up`.
    swiglu(gate: &[f32], up: &[f32], out: &mut [f32]);
    /// `x *= sigmoid(gate)`.
    gate_sigmoid(x: &mut [f32], gate: &[f32]);
    /// `x = x * s * gain * silu(z)`.
    gated_gain(x: &mut [f32], s: f32, gain: &[f32], z: &[f32]);
    /// Causal convolution of width 4 and SiLU.
    conv_silu(taps: [&[f32]; 4], w: &[f32], w_stride: usize, out: &mut [f32]);
    /// The gated delta rule.
    gdn(state: &mut [f32], x: &GdnTokens<'_>, out: &mut [f32]);
    /// The gated delta rule for one token whose update waits.
    gdn_late(state: &[f32], x: &GdnLate<'_>, update: &mut [f32], out: &mut [f32]);
    /// Applies updates that waited.
    gdn_flush(state: &mut [f32], x: &GdnUpdates<'_>);
    /// `max x`.
    max(x: &[f32]) -> f32;
    /// `x = e^(x - m)`; returns the sum.
    exp_sub(x: &mut [f32], m: f32) -> f32;
    /// Whether all elements are finite.
    all_finite(x: &[f32]) -> bool;
}
