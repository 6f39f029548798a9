//! Gated DeltaNet between its projections: convolution, normalisation, the recurrence, and the gated output norm.
//!
//! The recurrence runs token by token also in prefill. Written with lanes over the rows of the state (see
//! [`crate::kernels::generic::gdn`]) it needs no sums across lanes and costs about 3 % of a layer's projections, so the
//! chunked (WY) form has nothing to win on a CPU.
//!
//! In decoding the states are much of what memory must deliver, and a batch has as many of them as sequences. So a single
//! token only reads the state, and its rank-1 update waits in [`crate::sequence::Late`] until some tokens' are written at
//! once ([`crate::kernels::generic::gdn_late`]).

use lily_model::{ModelConfig, weights::GdnWeights};

use super::{Machine, Span, norm::rms_scale};
use crate::{
    buf::Buf,
    error::Result,
    kernels::{GdnLate, GdnTokens, GdnUpdates, Kernels, LATE},
    pool::{BlockMut, grid},
    sequence::{GdnState, LayerState, TAPS, flush_head},
    worker::{GDN_TOKENS, GdnScratch},
};

/// Epsilon of the L2 norm of queries and keys.
const L2_EPS: f32 = 1e-6;

/// What the kernels need of a GDN layer besides its matrices, prepared once.
#[derive(Debug)]
pub(crate) struct GdnPlan {
    /// Convolution, transposed: `[tap][channel]`, oldest tap first.
    conv: Buf<f32>,
    /// `-exp(A_log)`, `[value_heads]`.
    decay: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
}

impl GdnPlan {
    pub(crate) fn new(c: &ModelConfig, w: &GdnWeights) -> Result<Self> {
        let channels = c.conv_channels();
        let mut conv = Buf::new(TAPS * channels, "the convolution weights")?;
        for (channel, taps) in w.conv1d.chunks_exact(TAPS).enumerate() {
            for (k, &tap) in taps.iter().enumerate() {
                conv[k * channels + channel] = tap;
            }
        }
        let decay = w.a_log.iter().map(|a| -a.exp()).collect();
        Ok(Self { conv, decay, dt_bias: w.dt_bias.clone(), norm: w.norm.clone() })
    }
}

/// The projections of all rows.
#[derive(Clone, Copy)]
pub(crate) struct GdnInputs<'a> {
    /// `[rows][channels]`: q, k, v before the convolution.
    pub(crate) qkv: &'a [f32],
    /// `[rows][value_heads * value_dim]`.
    pub(crate) z: &'a [f32],
    /// `[rows][value_heads]`.
    pub(crate) b: &'a [f32],
    /// `[rows][value_heads]`.
    pub(crate) a: &'a [f32],
}

/// Updates of one value head that wait; see [`crate::sequence::Late`].
struct LateHead<'a> {
    n: usize,
    keys: &'a mut [f32],
    updates: &'a mut [f32],
    factors: &'a mut [f32],
}

/// A value head of one sequence.
struct Item<'a> {
    head: usize,
    row: usize,
    position: usize,
    state: &'a mut [f32],
    late: LateHead<'a>,
    past: [&'a [f32]; TAPS],
    out: BlockMut<'a>,
    /// Address of the state that will be read next, for prefetching.
    next: usize,
}

/// Mixes the tokens of every span; `out` is `[rows][value_heads * value_dim]`, normed and gated. Moves the GDN state
/// of the sequences on, but not the convolution rows: see [`keep_inputs`].
pub(crate) fn mix(
    m: &mut Machine,
    c: &ModelConfig,
    plan: &GdnPlan,
    layer: usize,
    spans: &mut [Span<'_>],
    x: GdnInputs<'_>,
    out: &mut [f32],
) -> Result<()> {
    let (heads, dk, dv) = (c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim);
    let ranges: Vec<_> = spans.iter().map(|s| s.row..s.row + s.n).collect();
    let mut blocks = grid(out, heads * dv, &ranges, dv).into_iter();
    let mut items = Vec::with_capacity(spans.len() * heads);
    for span in spans.iter_mut() {
        let gdn = gdn_state(&mut span.sequence.layers[layer]);
        let past = gdn.conv.each_ref().map(|row| &row[..]);
        let late = &mut gdn.late;
        let mut keys = late.keys.chunks_exact_mut(LATE * dk);
        let mut updates = late.updates.chunks_exact_mut(LATE * dv);
        let mut factors = late.factors.chunks_exact_mut(LATE + 1);
        for (head, state) in gdn.state.chunks_exact_mut(dk * dv).enumerate() {
            const EACH: &str = "one a head and span";
            let late = LateHead {
                n: late.n,
                keys: keys.next().expect(EACH),
                updates: updates.next().expect(EACH),
                factors: factors.next().expect(EACH),
            };
            let out = blocks.next().expect(EACH);
            items.push(Item {
                head,
                row: span.row,
                position: span.position,
                state,
                late,
                past,
                out,
                next: 0,
            });
        }
    }
    // Decoding, the states of a batch are most of what a step reads: megabytes that no other layer touches. This thread's
    // next item is most likely the one that follows.
    let mut next = 0;
    for item in items.iter_mut().rev() {
        item.next = std::mem::replace(&mut next, item.state.as_ptr().addr());
    }
    let k = m.k;
    m.pool.run_items(
        &mut m.workers,
        &mut items,
        |_| {},
        |w, _, item| {
            head(k, c, plan, x, item, &mut w.gdn);
        },
    )?;
    drop(items);
    for span in spans {
        let late = &mut gdn_state(&mut span.sequence.layers[layer]).late;
        late.n = if span.n == 1 { (late.n + 1) % LATE } else { 0 };
    }
    Ok(())
}

/// Stores the last inputs of the convolution in the sequences.
pub(crate) fn keep_inputs(layer: usize, spans: &mut [Span<'_>], qkv: &[f32], channels: usize) {
    for span in spans {
        let gdn = gdn_state(&mut span.sequence.layers[layer]);
        for t in span.n.saturating_sub(TAPS)..span.n {
            gdn.conv[(span.position + t) % TAPS]
                .copy_from_slice(&qkv[(span.row + t) * channels..][..channels]);
        }
    }
}

/// The GDN state of a layer that is one.
pub(crate) fn gdn_state(layer: &mut LayerState) -> &mut GdnState {
    match layer {
        LayerState::Gdn(g) => g,
        LayerState::Attention(_) => unreachable!("the layers of a sequence follow the model's"),
    }
}

/// What will be read after `block` of a head's state: the block that follows, after the last one the next item's.
fn ahead(block: &[f32], last: bool, next: usize) -> *const f32 {
    if last { std::ptr::without_provenance(next) } else { block.as_ptr_range().end }
}

/// Makes the recurrence's inputs of token `token` of the item, as number `t` of the scratch.
#[allow(clippy::too_many_arguments)]
fn prepare(
    k: &Kernels,
    c: &ModelConfig,
    plan: &GdnPlan,
    x: GdnInputs<'_>,
    item: &Item<'_>,
    token: usize,
    t: usize,
    s: &mut GdnScratch,
) {
    let (heads, dk, dv) = (c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim);
    let channels = c.conv_channels();
    let key_width = c.linear_num_key_heads * dk;
    let key_head = item.head / (heads / c.linear_num_key_heads);
    let (q_at, k_at, v_at) = (key_head * dk, key_width + key_head * dk, 2 * key_width + item.head * dv);
    // The inputs of this token and the three before it: of this call, or kept from earlier ones.
    let taps = |channel: usize, width: usize| -> [&[f32]; TAPS] {
        std::array::from_fn(|i| {
            let back = TAPS - 1 - i;
            let row = if token >= back {
                &x.qkv[(item.row + token - back) * channels..][..channels]
            } else {
                item.past[(item.position + TAPS + token - back) % TAPS]
            };
            &row[channel..channel + width]
        })
    };
    let q = &mut s.q[t * dk..(t + 1) * dk];
    k.conv_silu(taps(q_at, dk), &plan.conv[q_at..], channels, q);
    k.scale(q, 1.0 / ((k.sum_squares(q) + L2_EPS) * dk as f32).sqrt());
    let key = &mut s.k[t * dk..(t + 1) * dk];
    k.conv_silu(taps(k_at, dk), &plan.conv[k_at..], channels, key);
    k.scale(key, 1.0 / (k.sum_squares(key) + L2_EPS).sqrt());
    k.conv_silu(taps(v_at, dv), &plan.conv[v_at..], channels, &mut s.v[t * dv..(t + 1) * dv]);
    s.kq[t] = k.dot(key, q);
    let at = (item.row + token) * heads + item.head;
    s.g[t] = (plan.decay[item.head] * softplus(x.a[at] + plan.dt_bias[item.head])).exp();
    s.beta[t] = 1.0 / (1.0 + (-x.b[at]).exp());
}

/// The recurrence of a single token, number 0 of the scratch. Its update of the state waits, until [`LATE`] do.
fn decode(k: &Kernels, dk: usize, dv: usize, item: &mut Item<'_>, s: &mut GdnScratch) {
    let late = &mut item.late;
    let n = late.n;
    let (q, key) = (&s.q[..dk], &s.k[..dk]);
    let (mut along_k, mut along_q) = ([0.0; LATE], [0.0; LATE]);
    for i in 0..n {
        let old = &late.keys[i * dk..(i + 1) * dk];
        along_k[i] = late.factors[i] * k.dot(old, key);
        along_q[i] = late.factors[i] * k.dot(old, q);
    }
    let decay = if n == 0 { 1.0 } else { late.factors[LATE] };
    late.factors[..n].iter_mut().for_each(|f| *f *= s.g[0]);
    late.factors[n] = 1.0;
    late.factors[LATE] = decay * s.g[0];
    late.keys[n * dk..(n + 1) * dk].copy_from_slice(key);
    for (rows, state) in item.state.chunks_exact_mut(dk * 16).enumerate() {
        let (old, new) = late.updates.split_at_mut(n * dv);
        let x = GdnLate {
            q,
            k: key,
            v: &s.v[rows * 16..],
            g: s.g[0],
            beta: s.beta[0],
            kq: s.kq[0],
            decay,
            updates: old.get(rows * 16..).unwrap_or_default(),
            stride: dv,
            along_k: &along_k[..n],
            along_q: &along_q[..n],
            ahead: ahead(state, (rows + 1) * 16 == dv, item.next),
        };
        k.gdn_late(state, &x, &mut new[rows * 16..], &mut s.o[rows * 16..]);
        if n + 1 == LATE {
            // Now, while the block is in the first-level cache.
            let updates = GdnUpdates {
                keys: late.keys,
                updates: &late.updates[rows * 16..],
                stride: dv,
                factors: &late.factors[..LATE],
                decay: late.factors[LATE],
            };
            k.gdn_flush(state, &updates);
        }
    }
}

/// Mixes the tokens of one value head.
fn head(
    k: &Kernels,
    c: &ModelConfig,
    plan: &GdnPlan,
    x: GdnInputs<'_>,
    item: &mut Item<'_>,
    s: &mut GdnScratch,
) {
    let (heads, dk, dv) = (c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim);
    let tokens = item.out.rows();
    if tokens > 1 {
        let late = &item.late;
        flush_head(k, item.state, dk, late.n, late.keys, late.updates, late.factors);
    }
    for t0 in (0..tokens).step_by(GDN_TOKENS) {
        let n = GDN_TOKENS.min(tokens - t0);
        for t in 0..n {
            prepare(k, c, plan, x, item, t0 + t, t, s);
        }
        if tokens == 1 {
            decode(k, dk, dv, item, s);
        } else {
            for (rows, state) in item.state.chunks_exact_mut(dk * 16).enumerate() {
                let ahead = ahead(state, (rows + 1) * 16 == dv, item.next);
                let tokens = GdnTokens {
                    key_dim: dk,
                    q: &s.q[..n * dk],
                    k: &s.k[..n * dk],
                    v: &s.v[rows * 16..],
                    v_stride: dv,
                    g: &s.g[..n],
                    beta: &s.beta[..n],
                    kq: &s.kq[..n],
                    ahead,
                };
                k.gdn(state, &tokens, &mut s.o[rows * 16..]);
            }
        }
        for t in 0..n {
            let out = item.out.row_mut(t0 + t);
            out.copy_from_slice(&s.o[t * dv..(t + 1) * dv]);
            let z = &x.z[(item.row + t0 + t) * heads * dv + item.head * dv..][..dv];
            k.gated_gain(out, rms_scale(k, out, c.rms_norm_eps), &plan.norm, z);
        }
    }
}

/// `ln(1 + e^x)`; for large x that is x itself, where `exp` would overflow.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
