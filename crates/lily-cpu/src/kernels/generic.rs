//! Kernels written once over [`V16`] and compiled for each instruction set.
//!
//! Lengths are in elements and multiples of 16 unless said. Every function needs the instruction set of `V` and
//! is inlined into the `target_feature` functions that [`super`] makes of it.

use super::v16::{V16, exp, sigmoid};

/// `sum x^2`.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn sum_squares<V: V16>(x: &[f32]) -> f32 {
    debug_assert!(x.len().is_multiple_of(16));
    // SAFETY: in-range pointers; same instruction set.
    unsafe {
        let mut acc = [V::splat(0.0); 4];
        let n = x.len() / 16;
        for i in 0..n {
            let v = V::load(x.as_ptr().add(16 * i));
            acc[i % 4] = v.fma(v, acc[i % 4]);
        }
        acc[0].add(acc[1]).add(acc[2].add(acc[3])).reduce_add()
    }
}

/// `out = x * scale * gain`.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn scale_gain<V: V16>(x: &[f32], scale: f32, gain: &[f32], out: &mut [f32]) {
    assert!(x.len() == gain.len() && x.len() == out.len() && x.len().is_multiple_of(16));
    // SAFETY: in-range pointers; same instruction set.
    unsafe {
        let s = V::splat(scale);
        for i in (0..x.len()).step_by(16) {
            let v = V::load(x.as_ptr().add(i)).mul(s).mul(V::load(gain.as_ptr().add(i)));
            v.store(out.as_mut_ptr().add(i));
        }
    }
}

/// `x *= scale`.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn scale<V: V16>(x: &mut [f32], scale: f32) {
    assert!(x.len().is_multiple_of(16));
    // SAFETY: in-range pointers; same instruction set.
    unsafe {
        let s = V::splat(scale);
        for i in (0..x.len()).step_by(16) {
            let p = x.as_mut_ptr().add(i);
            V::load(p).mul(s).store(p);
        }
    }
}

/// `y += a * x`.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn axpy<V: V16>(a: f32, x: &[f32], y: &mut [f32]) {
    assert!(x.len() == y.len());
    // SAFETY: in-range pointers; same instruction set.
    unsafe {
        let s = V::splat(a);
        let whole = x.len() / 16 * 16;
        for i in (0..whole).step_by(16) {
            let p = y.as_mut_ptr().add(i);
            V::load(x.as_ptr().add(i)).fma(s, V::load(p)).store(p);
        }
        for i in whole..x.len() {
            y[i] += a * x[i];
        }
    }
}

/// `sum x * y`.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn dot<V: V16>(x: &[f32], y: &[f32]) -> f32 {
    assert!(x.len() == y.len() && x.len().is_multiple_of(16));
    // SAFETY: in-range pointers; same instruction set.
    unsafe {
        let mut acc = [V::splat(0.0); 2];
        for i in 0..x.len() / 16 {
            let (a, b) = (V::load(x.as_ptr().add(16 * i)), V::load(y.as_ptr().add(16 * i)));
            acc[i % 2] = a.fma(b, acc[i % 2]);
        }
        acc[0].add(acc[1]).reduce_add()
    }
}

/// `out = silu(gate) * up`, any length.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn swiglu<V: V16>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == up.len() && gate.len() == out.len());
    let whole = gate.len() / 16 * 16;
    // SAFETY: in-range pointers; same instruction set.
    unsafe {
        for i in (0..whole).step_by(16) {
            let g = V::load(gate.as_ptr().add(i));
            g.mul(sigmoid(g)).mul(V::load(up.as_ptr().add(i))).store(out.as_mut_ptr().add(i));
        }
    }
    for i in whole..gate.len() {
        out[i] = gate[i] / (1.0 + (-gate[i]).exp()) * up[i];
    }
}

/// `x *= sigmoid(gate)`.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn gate_sigmoid<V: V16>(x: &mut [f32], gate: &[f32]) {
    assert!(x.len() == gate.len() && x.len().is_multiple_of(16));
    // SAFETY: in-range pointers; same instruction set.
    unsafe {
        for i in (0..x.len()).step_by(16) {
            let p = x.as_mut_ptr().add(i);
            V::load(p).mul(sigmoid(V::load(gate.as_ptr().add(i)))).store(p);
        }
    }
}

/// `x = x * scale * gain * silu(z)`: the output norm of the GDN.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn gated_gain<V: V16>(x: &mut [f32], scale: f32, gain: &[f32], z: &[f32]) {
    assert!(x.len() == gain.len() && x.len() == z.len() && x.len().is_multiple_of(16));
    // SAFETY: in-range pointers; same instruction set.
    unsafe {
        let s = V::splat(scale);
        for i in (0..x.len()).step_by(16) {
            let p = x.as_mut_ptr().add(i);
            let z = V::load(z.as_ptr().add(i));
            let v = V::load(p).mul(s).mul(V::load(gain.as_ptr().add(i)));
            v.mul(z.mul(sigmoid(z))).store(p);
        }
    }
}

/// `out = silu(sum_k taps[k] * w[k])`: the causal depthwise convolution of width 4 at one token, oldest tap first.
/// `w` is `[4][w_stride]`, starting at the first channel.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn conv_silu<V: V16>(taps: [&[f32]; 4], w: &[f32], w_stride: usize, out: &mut [f32]) {
    let n = out.len();
    assert!(n.is_multiple_of(16) && taps.iter().all(|t| t.len() == n) && w.len() >= 3 * w_stride + n);
    // SAFETY: in-range pointers; same instruction set.
    unsafe {
        for i in (0..n).step_by(16) {
            let mut acc = V::load(taps[0].as_ptr().add(i)).mul(V::load(w.as_ptr().add(i)));
            for (k, tap) in taps.iter().enumerate().skip(1) {
                let w = V::load(w.as_ptr().add(k * w_stride + i));
                acc = V::load(tap.as_ptr().add(i)).fma(w, acc);
            }
            acc.mul(sigmoid(acc)).store(out.as_mut_ptr().add(i));
        }
    }
}

/// The inputs of [`gdn`] for `n` tokens of one value head.
#[derive(Clone, Copy)]
pub(crate) struct GdnTokens<'a> {
    /// Key width.
    pub key_dim: usize,
    /// `[n, key_dim]`, normalised and scaled.
    pub q: &'a [f32],
    /// `[n, key_dim]`, normalised.
    pub k: &'a [f32],
    /// `[n, v_stride]`, of which the first 16 are read.
    pub v: &'a [f32],
    /// Elements from one token's `v` to the next, and from one token's output to the next.
    pub v_stride: usize,
    /// Decay, `[n]`.
    pub g: &'a [f32],
    /// Write strength, `[n]`.
    pub beta: &'a [f32],
    /// `k . q`, `[n]`.
    pub kq: &'a [f32],
    /// What will be read after this state, as long as it: only prefetched, never read, so any address will do.
    pub ahead: *const f32,
}

/// The gated delta rule for 16 rows of a head's state over `n` tokens:
///
/// ```text
/// S = g S + d k^T,  d = beta (v - g S k),  o = S q          (S before: the left-hand sides' g S is decayed)
/// ```
///
/// `state` is `[key_dim][16]`, one lane a row; `out` is like `v`. Each token is one pass: it applies the update of
/// the token before and takes `S k` and `S q` of its own; `o = g (S q) + d (k . q)` then needs no second one.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn gdn<V: V16>(state: &mut [f32], x: &GdnTokens<'_>, out: &mut [f32]) {
    let (dk, n) = (x.key_dim, x.g.len());
    assert!(n > 0 && dk.is_multiple_of(2) && state.len() == dk * 16);
    assert!(x.q.len() == n * dk && x.k.len() == n * dk && x.beta.len() == n && x.kq.len() == n);
    assert!(x.v_stride >= 16 && x.v.len() >= (n - 1) * x.v_stride + 16);
    assert!(out.len() >= (n - 1) * x.v_stride + 16);
    // SAFETY: the assertions keep every pointer in range; same instruction set.
    unsafe {
        let s = state.as_mut_ptr();
        let zero = V::splat(0.0);
        // The first pass only reads: its pending update is the identity.
        let (mut sk, mut sq) = ([zero; 2], [zero; 2]);
        for j in (0..dk).step_by(2) {
            for h in 0..2 {
                V::prefetch(x.ahead.wrapping_add((j + h) * 16).cast());
                let v = V::load(s.add((j + h) * 16));
                sk[h] = v.fma(V::splat(*x.k.as_ptr().add(j + h)), sk[h]);
                sq[h] = v.fma(V::splat(*x.q.as_ptr().add(j + h)), sq[h]);
            }
        }
        for t in 0..n {
            let g = V::splat(x.g[t]);
            let v = V::load(x.v.as_ptr().add(t * x.v_stride));
            let d = v.sub(g.mul(sk[0].add(sk[1]))).mul(V::splat(x.beta[t]));
            let o = g.mul(sq[0].add(sq[1])).add(d.mul(V::splat(x.kq[t])));
            o.store(out.as_mut_ptr().add(t * x.v_stride));
            let k = x.k.as_ptr().add(t * dk);
            if t + 1 == n {
                for j in 0..dk {
                    let p = s.add(j * 16);
                    d.fma(V::splat(*k.add(j)), V::load(p).mul(g)).store(p);
                }
                break;
            }
            let (k1, q1) = (k.add(dk), x.q.as_ptr().add((t + 1) * dk));
            (sk, sq) = ([zero; 2], [zero; 2]);
            for j in (0..dk).step_by(2) {
                for h in 0..2 {
                    let p = s.add((j + h) * 16);
                    let v = d.fma(V::splat(*k.add(j + h)), V::load(p).mul(g));
                    v.store(p);
                    sk[h] = v.fma(V::splat(*k1.add(j + h)), sk[h]);
                    sq[h] = v.fma(V::splat(*q1.add(j + h)), sq[h]);
                }
            }
        }
    }
}

/// Most updates of the state that wait: see [`gdn_late`].
pub(crate) const LATE: usize = 8;

/// The inputs of [`gdn_late`] for a token of one value head.
#[derive(Clone, Copy)]
pub(crate) struct GdnLate<'a> {
    /// `[key_dim]`, normalised and scaled.
    pub q: &'a [f32],
    /// `[key_dim]`, normalised.
    pub k: &'a [f32],
    /// `[16]`.
    pub v: &'a [f32],
    /// Decay of this token.
    pub g: f32,
    /// Write strength.
    pub beta: f32,
    /// `k . q`.
    pub kq: f32,
    /// Decay of the tokens whose updates wait, multiplied.
    pub decay: f32,
    /// Updates that wait, `[n][stride]`, of which the first 16 of each are read.
    pub updates: &'a [f32],
    /// Elements from one update to the next.
    pub stride: usize,
    /// Of each update, its decay since, times `key . k`.
    pub along_k: &'a [f32],
    /// Of each update, its decay since, times `key . q`.
    pub along_q: &'a [f32],
    /// As in [`GdnTokens`].
    pub ahead: *const f32,
}

/// The gated delta rule for 16 rows of a head's state and one token, without writing the state: with
/// `S = decay state + sum_i factor_i update_i key_i^T`,
///
/// ```text
/// update = beta (v - g S k),  out = g S q + update (k . q)
/// ```
///
/// `state` is as in [`gdn`]. Decoding, the states are read once a token; written only every [`LATE`]th time
/// ([`gdn_flush`]), that is all the traffic they cause.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn gdn_late<V: V16>(state: &[f32], x: &GdnLate<'_>, update: &mut [f32], out: &mut [f32]) {
    let (dk, n) = (x.k.len(), x.along_k.len());
    assert!(dk.is_multiple_of(4) && state.len() == dk * 16 && x.q.len() == dk && x.along_q.len() == n);
    assert!(x.v.len() >= 16 && update.len() >= 16 && out.len() >= 16 && x.stride >= 16);
    assert!(n == 0 || x.updates.len() >= (n - 1) * x.stride + 16);
    // SAFETY: the assertions keep every pointer in range; same instruction set.
    unsafe {
        let zero = V::splat(0.0);
        let (mut sk, mut sq) = ([zero; 4], [zero; 4]);
        for j in (0..dk).step_by(4) {
            for h in 0..4 {
                V::prefetch(x.ahead.wrapping_add((j + h) * 16).cast());
                let v = V::load(state.as_ptr().add((j + h) * 16));
                sk[h] = v.fma(V::splat(*x.k.as_ptr().add(j + h)), sk[h]);
                sq[h] = v.fma(V::splat(*x.q.as_ptr().add(j + h)), sq[h]);
            }
        }
        let decay = V::splat(x.decay);
        let mut sk = sk[0].add(sk[1]).add(sk[2].add(sk[3])).mul(decay);
        let mut sq = sq[0].add(sq[1]).add(sq[2].add(sq[3])).mul(decay);
        for i in 0..n {
            let d = V::load(x.updates.as_ptr().add(i * x.stride));
            sk = d.fma(V::splat(x.along_k[i]), sk);
            sq = d.fma(V::splat(x.along_q[i]), sq);
        }
        let g = V::splat(x.g);
        let d = V::load(x.v.as_ptr()).sub(g.mul(sk)).mul(V::splat(x.beta));
        d.store(update.as_mut_ptr());
        g.mul(sq).add(d.mul(V::splat(x.kq))).store(out.as_mut_ptr());
    }
}

/// Updates that wait, see [`gdn_late`].
#[derive(Clone, Copy)]
pub(crate) struct GdnUpdates<'a> {
    /// `[n][key_dim]`.
    pub keys: &'a [f32],
    /// `[n][stride]`, of which the first 16 of each are read.
    pub updates: &'a [f32],
    /// Elements from one update to the next.
    pub stride: usize,
    /// Decay since, of each; up to [`LATE`].
    pub factors: &'a [f32],
    /// Decay of the state.
    pub decay: f32,
}

/// Applies updates that waited to 16 rows of a head's state: `state = decay state + sum_i factor_i update_i key_i^T`.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn gdn_flush<V: V16>(state: &mut [f32], x: &GdnUpdates<'_>) {
    let (dk, n) = (state.len() / 16, x.factors.len());
    assert!(state.len() == dk * 16 && n <= LATE && x.keys.len() >= n * dk && x.stride >= 16);
    assert!(n == 0 || x.updates.len() >= (n - 1) * x.stride + 16);
    // SAFETY: the assertions keep every pointer in range; same instruction set.
    unsafe {
        let mut d = [V::splat(0.0); LATE];
        for (i, d) in d.iter_mut().enumerate().take(n) {
            *d = V::load(x.updates.as_ptr().add(i * x.stride)).mul(V::splat(x.factors[i]));
        }
        let decay = V::splat(x.decay);
        for j in 0..dk {
            let p = state.as_mut_ptr().add(j * 16);
            let mut v = V::load(p).mul(decay);
            // Of a length the compiler knows: the updates stay in registers.
            for (i, d) in d.iter().enumerate() {
                if i < n {
                    v = d.fma(V::splat(*x.keys.as_ptr().add(i * dk + j)), v);
                }
            }
            v.store(p);
        }
    }
}

/// Attention scores of `R` query rows against 16 positions.
///
/// `q` is `[R][dim]` f32, already scaled; `k` is `[dim / 2][16 positions][2]` bf16; `out` row `r` gets 16 scores at
/// `r * out_stride`. With `AHEAD`, as many bytes from `ahead` on are prefetched as `k` has.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn scores<V: V16, const R: usize, const AHEAD: bool>(
    q: &[f32],
    dim: usize,
    k: &[u16],
    out: &mut [f32],
    out_stride: usize,
    ahead: &[u16],
) {
    assert!(dim.is_multiple_of(4));
    assert!(q.len() >= R * dim && k.len() >= dim * 16 && out.len() >= (R - 1) * out_stride + 16);
    // SAFETY: the assertions keep every pointer in range; same instruction set.
    unsafe {
        // Few rows get several sums each, for even and odd dims and for every other pair of them: two FMAs of four cycles
        // can begin in a cycle, so eight must be under way. Keys and products need some registers too.
        let fits = |split: usize| split * R <= 8 && split * R + 4 <= V::REGISTERS;
        let split = if fits(4) { 4 } else { 1 + usize::from(fits(2)) };
        let mut acc = [[V::splat(0.0); 4]; R];
        for p in (0..dim / 2).step_by(2) {
            for h in 0..2 {
                let p = p + h;
                let (even, odd) = V::load_bf16_pairs(k.as_ptr().add(p * 32));
                if AHEAD {
                    V::prefetch(ahead.as_ptr().wrapping_add(p * 32));
                }
                for (r, sums) in acc.iter_mut().enumerate() {
                    let q = q.as_ptr().add(r * dim + 2 * p);
                    let (a, b) = (2 * h % split, (2 * h + 1) % split);
                    sums[a] = even.fma(V::splat(*q), sums[a]);
                    sums[b] = odd.fma(V::splat(*q.add(1)), sums[b]);
                }
            }
        }
        for (r, sums) in acc.iter().enumerate() {
            let mut sum = sums[0];
            for part in &sums[1..split] {
                sum = sum.add(*part);
            }
            sum.store(out.as_mut_ptr().add(r * out_stride));
        }
    }
}

/// Adds the values of `n` positions, weighted: `acc[r] += sum_i p[r][i] * v[i]` for `R` rows.
///
/// `p` is `[R][p_stride]`; `v` is `[n][dim]` bf16; `acc` is `[R][dim]` f32 in *paired* order: each 32 dims are stored
/// as 16 of even, then 16 of odd index. With `AHEAD`, as many bytes from `ahead` on are prefetched as are read: the keys
/// of the positions that are next.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn weighted_values<V: V16, const R: usize, const AHEAD: bool>(
    p: &[f32],
    p_stride: usize,
    n: usize,
    v: &[u16],
    dim: usize,
    acc: &mut [f32],
    ahead: &[u16],
) {
    assert!(dim.is_multiple_of(32) && v.len() >= n * dim && acc.len() >= R * dim);
    assert!(p_stride >= n && p.len() >= (R - 1) * p_stride + n);
    // SAFETY: the assertions keep every pointer in range; same instruction set.
    unsafe {
        for d in (0..dim).step_by(32) {
            let mut even = [V::splat(0.0); R];
            let mut odd = [V::splat(0.0); R];
            for r in 0..R {
                even[r] = V::load(acc.as_ptr().add(r * dim + d));
                odd[r] = V::load(acc.as_ptr().add(r * dim + d + 16));
            }
            for i in 0..n {
                let (e, o) = V::load_bf16_pairs(v.as_ptr().add(i * dim + d));
                if AHEAD {
                    V::prefetch(ahead.as_ptr().wrapping_add(d * n + i * 32));
                }
                for r in 0..R {
                    let w = V::splat(*p.as_ptr().add(r * p_stride + i));
                    even[r] = e.fma(w, even[r]);
                    odd[r] = o.fma(w, odd[r]);
                }
            }
            for r in 0..R {
                even[r].store(acc.as_mut_ptr().add(r * dim + d));
                odd[r].store(acc.as_mut_ptr().add(r * dim + d + 16));
            }
        }
    }
}

/// `max x`.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn max<V: V16>(x: &[f32]) -> f32 {
    assert!(x.len().is_multiple_of(16));
    // SAFETY: in-range pointers; same instruction set.
    unsafe {
        let mut m = V::splat(f32::NEG_INFINITY);
        for i in (0..x.len()).step_by(16) {
            m = m.max(V::load(x.as_ptr().add(i)));
        }
        m.reduce_max()
    }
}

/// `x = e^(x - m)`; returns the sum.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn exp_sub<V: V16>(x: &mut [f32], m: f32) -> f32 {
    assert!(x.len().is_multiple_of(16));
    // SAFETY: in-range pointers; same instruction set.
    unsafe {
        let m = V::splat(m);
        let mut sum = V::splat(0.0);
        for i in (0..x.len()).step_by(16) {
            let p = x.as_mut_ptr().add(i);
            let e = exp(V::load(p).sub(m));
            e.store(p);
            sum = sum.add(e);
        }
        sum.reduce_add()
    }
}

/// Whether all elements are finite.
///
/// # Safety
/// As [`V16`].
#[inline(always)]
pub(crate) unsafe fn all_finite<V: V16>(x: &[f32]) -> bool {
    let whole = x.len() / 16 * 16;
    // x * 0 is 0 for finite x and NaN otherwise, and NaN stays in a sum.
    // SAFETY: in-range pointers; same instruction set.
    let sum = unsafe {
        let zero = V::splat(0.0);
        let mut sum = zero;
        for i in (0..whole).step_by(16) {
            sum = V::load(x.as_ptr().add(i)).fma(zero, sum);
        }
        sum.reduce_add()
    };
    sum == 0.0 && x[whole..].iter().all(|x| x.is_finite())
}
