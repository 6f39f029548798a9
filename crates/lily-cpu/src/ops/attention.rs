//! Full attention between its projections: norms, rotary positions, the KV cache, softmax attention and the output
//! gate.
//!
//! All query heads that share a KV head are rows of one small matrix product with each block of keys and values, so
//! each key and value is read (and widened from bf16) once for all of them. Softmax is computed on the fly (Milakov,
//! Gimelshein 2018, arXiv:1805.02867). A single token's context is split over the threads and the parts are combined;
//! many tokens are split in groups of [`QUERY_TOKENS`].

use lily_model::{ModelConfig, weights::AttentionWeights};

use super::{Machine, Span, norm::rms_scale};
use crate::{
    buf::Buf,
    error::Result,
    kernels::Kernels,
    kv::{KvCache, LANES, POSITIONS},
    pool::{BlockMut, grid},
    sequence::LayerState,
    worker::{ATTEND, AttentionScratch, QUERY_TOKENS},
};

/// Parts that the contexts of single tokens are split into, all together. Not a matter of the number of threads: the
/// bits of the result would depend on it.
const PARTS: usize = 32;

/// The projections of all rows.
#[derive(Clone, Copy)]
pub(crate) struct AttentionInputs<'a> {
    /// `[rows][heads * 2 * head_dim]`: per head, queries then gates.
    pub(crate) q: &'a [f32],
    /// `[rows][kv_heads * head_dim]`.
    pub(crate) k: &'a [f32],
    /// `[rows][kv_heads * head_dim]`.
    pub(crate) v: &'a [f32],
    /// `[rows][rotary_dim]`: cosines, then sines.
    pub(crate) rope: &'a [f32],
}

/// The rotary frequencies, `theta^(-2 i / rotary_dim)` for the pairs of rotated dims (Su et al. 2021, arXiv:2104.09864;
/// the three axes of M-RoPE are equal for text).
pub(crate) fn rope_frequencies(c: &ModelConfig) -> Vec<f64> {
    let half = c.rotary_dim / 2;
    (0..half).map(|i| c.rope_theta.powf(-(i as f64) / half as f64)).collect()
}

/// Writes cosines and sines of the rotary angles, position times frequency, of all rows to `out`, `[rows][rotary_dim]`.
/// Computed in f64: the angles of a long context have no digits to spare in f32.
pub(crate) fn rope(m: &mut Machine, frequencies: &[f64], spans: &[Span<'_>], out: &mut [f32]) -> Result<()> {
    let half = frequencies.len();
    let rows: usize = spans.iter().map(|s| s.n).sum();
    let mut items = Vec::with_capacity(rows);
    let mut rest = &mut out[..rows * 2 * half];
    for span in spans {
        for t in 0..span.n {
            let (row, tail) = rest.split_at_mut(2 * half);
            items.push((span.position + t, row));
            rest = tail;
        }
    }
    m.pool.run_items(
        &mut m.workers,
        &mut items,
        |_| {},
        |_, _, (position, row)| {
            let (cos, sin) = row.split_at_mut(half);
            for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(frequencies) {
                let angle = *position as f64 * frequency;
                (*cos, *sin) = (angle.cos() as f32, angle.sin() as f32);
            }
        },
    )
}

/// Turns value `i` of the first half with value `i` of the second half of the rotated dims.
#[inline]
fn rotate(x: &mut [f32], rope: &[f32]) {
    let half = rope.len() / 2;
    let (cos, sin) = rope.split_at(half);
    let (first, rest) = x.split_at_mut(half);
    for i in 0..half {
        let (a, b) = (first[i], rest[i]);
        first[i] = a * cos[i] - b * sin[i];
        rest[i] = b * cos[i] + a * sin[i];
    }
}

fn kv_cache(layer: &LayerState) -> &KvCache {
    match layer {
        LayerState::Attention(kv) => kv,
        LayerState::Gdn(_) => unreachable!("the layers of a sequence follow the model's"),
    }
}

/// Norms and rotates the keys of all rows and appends them and the values to the sequences' caches, which have room.
pub(crate) fn append(
    m: &mut Machine,
    c: &ModelConfig,
    w: &AttentionWeights,
    layer: usize,
    spans: &mut [Span<'_>],
    x: AttentionInputs<'_>,
) -> Result<()> {
    let (k, dim) = (m.k, c.head_dim);
    let width = c.num_key_value_heads * dim;
    let mut items = Vec::new();
    let mut tokens = 0;
    for span in spans {
        tokens += span.n;
        let positions = span.position..span.position + span.n;
        let kv = match &mut span.sequence.layers[layer] {
            LayerState::Attention(kv) => kv,
            LayerState::Gdn(_) => unreachable!("the layers of a sequence follow the model's"),
        };
        for part in kv.heads_mut(positions.clone()) {
            items.push((part, span.row, positions.clone()));
        }
    }
    let run = |part: &mut crate::kv::HeadBlockMut<'_>,
               row: usize,
               positions: std::ops::Range<usize>,
               key: &mut [f32]| {
        let first = positions.start.max(part.first);
        for p in first..positions.end.min(part.first + POSITIONS) {
            let row = row + p - positions.start;
            let at = row * width + part.kv_head * dim;
            let from = &x.k[at..at + dim];
            k.scale_gain(from, rms_scale(k, from, c.rms_norm_eps), &w.k_norm, key);
            rotate(key, &x.rope[row * c.rotary_dim..(row + 1) * c.rotary_dim]);
            part.put(p, key, &x.v[at..at + dim]);
        }
    };
    if tokens == 1 {
        // Less work than a dispatch costs.
        for (part, row, positions) in &mut items {
            run(part, *row, positions.clone(), &mut m.workers[0].row[..dim]);
        }
        return Ok(());
    }
    m.pool.run_items(
        &mut m.workers,
        &mut items,
        |_| {},
        |w, _, (part, row, positions)| {
            run(part, *row, positions.clone(), &mut w.row[..dim]);
        },
    )
}

/// Some tokens of one span and one KV head.
struct Query<'a> {
    kv: &'a KvCache,
    kv_head: usize,
    /// First row of the activations.
    row: usize,
    tokens: usize,
    /// Position of the first token.
    position: usize,
}

/// Attends; `out` is `[rows][heads * head_dim]`, gated. `partial` is scratch for split contexts, see
/// [`partial_len`].
#[allow(clippy::too_many_arguments)]
pub(crate) fn attend(
    m: &mut Machine,
    c: &ModelConfig,
    w: &AttentionWeights,
    layer: usize,
    spans: &[Span<'_>],
    x: AttentionInputs<'_>,
    partial: &mut Buf<f32>,
    out: &mut [f32],
) -> Result<()> {
    let k = m.k;
    let ranges: Vec<_> = spans
        .iter()
        .flat_map(|s| (0..s.n).step_by(QUERY_TOKENS).map(|t| s.row + t..s.row + s.n.min(t + QUERY_TOKENS)))
        .collect();
    let group = c.num_attention_heads / c.num_key_value_heads;
    let mut blocks = grid(out, c.num_attention_heads * c.head_dim, &ranges, group * c.head_dim).into_iter();
    let mut queries = Vec::with_capacity(ranges.len() * c.num_key_value_heads);
    for span in spans {
        let kv = kv_cache(&span.sequence.layers[layer]);
        for t in (0..span.n).step_by(QUERY_TOKENS) {
            for kv_head in 0..c.num_key_value_heads {
                let tokens = QUERY_TOKENS.min(span.n - t);
                let query = Query { kv, kv_head, row: span.row + t, tokens, position: span.position + t };
                queries.push((query, blocks.next().expect("one block a KV head and group of tokens")));
            }
        }
    }
    // A few single tokens: each would be one thread's whole context.
    if queries.len() < PARTS && queries.iter().all(|(q, _)| q.tokens == 1) {
        return attend_split(m, c, w, x, queries, partial);
    }
    let mut whole = queries;
    // Later tokens see more context: start with the longest.
    whole.reverse();
    m.pool.run_items(
        &mut m.workers,
        &mut whole,
        |_| {},
        |worker, _, (query, block)| {
            let s = &mut worker.attention;
            prepare(k, c, w, x, query, s);
            attend_range(k, c, query, 0..query.position + query.tokens, s);
            let rows = query.tokens * group;
            for r in 0..rows {
                let acc = &s.acc[r * c.head_dim..(r + 1) * c.head_dim];
                let to = &mut block.row_mut(r / group)[r % group * c.head_dim..][..c.head_dim];
                finish(k, c, x, query, r, acc, s.sum[r], to);
            }
        },
    )
}

/// Floats of [`attend`]'s scratch: accumulators, maxima and sums of every part.
pub(crate) fn partial_len(c: &ModelConfig) -> usize {
    let group = c.num_attention_heads / c.num_key_value_heads;
    // Fewer queries than this, and as many parts, rounded up for each query.
    2 * PARTS * part_len(c, group)
}

fn part_len(c: &ModelConfig, group: usize) -> usize {
    (group * (c.head_dim + 2)).next_multiple_of(32)
}

/// Single tokens: the context of every query in parts.
fn attend_split(
    m: &mut Machine,
    c: &ModelConfig,
    w: &AttentionWeights,
    x: AttentionInputs<'_>,
    queries: Vec<(Query<'_>, BlockMut<'_>)>,
    partial: &mut Buf<f32>,
) -> Result<()> {
    let (k, dim) = (m.k, c.head_dim);
    let group = c.num_attention_heads / c.num_key_value_heads;
    let len = part_len(c, group);
    let most = PARTS.div_ceil(queries.len());
    // Parts end at blocks of the cache, so that each is a run of memory.
    let mut scratch = partial.chunks_exact_mut(len);
    let mut items = Vec::new();
    let mut first = Vec::with_capacity(queries.len() + 1);
    for (q, (query, _)) in queries.iter().enumerate() {
        first.push(items.len());
        let end = query.position + 1;
        let blocks = end.div_ceil(POSITIONS);
        let parts = blocks.min(most);
        for i in 0..parts {
            let bound = |i: usize| (blocks * i / parts * POSITIONS).min(end);
            items.push((q, bound(i)..bound(i + 1), scratch.next().expect("room for all parts")));
        }
    }
    first.push(items.len());
    m.pool.run_items(
        &mut m.workers,
        &mut items,
        |_| {},
        |worker, _, (q, positions, to)| {
            let (query, s) = (&queries[*q].0, &mut worker.attention);
            prepare(k, c, w, x, query, s);
            attend_range(k, c, query, positions.clone(), s);
            to[..group * dim].copy_from_slice(&s.acc[..group * dim]);
            to[group * dim..][..group].copy_from_slice(&s.max[..group]);
            to[group * dim + group..][..group].copy_from_slice(&s.sum[..group]);
        },
    )?;
    drop(items);
    let s = &mut m.workers[0].attention;
    for (i, (query, mut block)) in queries.into_iter().enumerate() {
        let parts = &partial[first[i] * len..first[i + 1] * len];
        for r in 0..group {
            let of = |part: &[f32], what: usize| part[group * dim + what * group + r];
            let max = parts.chunks_exact(len).map(|p| of(p, 0)).fold(f32::NEG_INFINITY, f32::max);
            let acc = &mut s.acc[..dim];
            acc.fill(0.0);
            let mut sum = 0.0;
            for part in parts.chunks_exact(len) {
                let weight = (of(part, 0) - max).exp();
                sum += weight * of(part, 1);
                k.axpy(weight, &part[r * dim..(r + 1) * dim], acc);
            }
            finish(k, c, x, &query, r, acc, sum, &mut block.row_mut(0)[r * dim..(r + 1) * dim]);
        }
    }
    Ok(())
}

/// Norms, rotates and scales the query rows: token by token, the heads of the KV head.
fn prepare(
    k: &Kernels,
    c: &ModelConfig,
    w: &AttentionWeights,
    x: AttentionInputs<'_>,
    query: &Query<'_>,
    s: &mut AttentionScratch,
) {
    let (heads, dim) = (c.num_attention_heads, c.head_dim);
    let group = heads / c.num_key_value_heads;
    let scale = 1.0 / (dim as f32).sqrt();
    for r in 0..query.tokens * group {
        let row = query.row + r / group;
        let head = query.kv_head * group + r % group;
        let from = &x.q[(row * heads + head) * 2 * dim..][..dim];
        let q = &mut s.q[r * dim..(r + 1) * dim];
        k.scale_gain(from, scale * rms_scale(k, from, c.rms_norm_eps), &w.q_norm, q);
        rotate(q, &x.rope[row * c.rotary_dim..(row + 1) * c.rotary_dim]);
    }
}

/// Softmax attention of the query rows over `positions` (from a multiple of [`LANES`]), causal; leaves accumulators,
/// maxima and sums in `s`.
fn attend_range(
    k: &Kernels,
    c: &ModelConfig,
    query: &Query<'_>,
    positions: std::ops::Range<usize>,
    s: &mut AttentionScratch,
) {
    let dim = c.head_dim;
    let group = c.num_attention_heads / c.num_key_value_heads;
    let rows = query.tokens * group;
    s.acc[..rows * dim].fill(0.0);
    s.max[..rows].fill(f32::NEG_INFINITY);
    s.sum[..rows].fill(0.0);
    for p in positions.clone().step_by(ATTEND) {
        let n = ATTEND.min(positions.end - p);
        for sub in (0..n).step_by(LANES) {
            let keys = query.kv.keys(query.kv_head, p + sub);
            // The values of these positions are needed next; read row by row in pieces of a line, they would come late.
            let values = query.kv.values(query.kv_head, p + sub);
            k.scores(rows, &s.q, dim, keys, &mut s.scores[sub..], ATTEND, values);
        }
        let whole = n.next_multiple_of(LANES);
        for r in 0..rows {
            let scores = &mut s.scores[r * ATTEND..r * ATTEND + whole];
            // A token sees the positions up to its own.
            let seen = (query.position + r / group + 1).saturating_sub(p).min(n);
            scores[seen..].fill(f32::NEG_INFINITY);
            let max = k.max(scores).max(s.max[r]);
            if max > s.max[r] {
                let shrink = (s.max[r] - max).exp();
                s.sum[r] *= shrink;
                if s.max[r] != f32::NEG_INFINITY {
                    k.scale(&mut s.acc[r * dim..(r + 1) * dim], shrink);
                }
                s.max[r] = max;
            }
            s.sum[r] += k.exp_sub(scores, max);
        }
        let values = query.kv.values(query.kv_head, p);
        let next = if p + ATTEND < positions.end { query.kv.keys(query.kv_head, p + ATTEND) } else { values };
        k.weighted_values(rows, &s.scores, ATTEND, n, values, dim, &mut s.acc, next);
    }
}

/// Divides by the sum, restores the order of the dims and gates: `out = sigmoid(gate) * acc / sum`.
#[allow(clippy::too_many_arguments)]
fn finish(
    k: &Kernels,
    c: &ModelConfig,
    x: AttentionInputs<'_>,
    query: &Query<'_>,
    r: usize,
    acc: &[f32],
    sum: f32,
    out: &mut [f32],
) {
    let (heads, dim) = (c.num_attention_heads, c.head_dim);
    let group = heads / c.num_key_value_heads;
    let inverse = 1.0 / sum;
    for (out, acc) in out.chunks_exact_mut(32).zip(acc.chunks_exact(32)) {
        let (even, odd) = acc.split_at(16);
        for i in 0..16 {
            out[2 * i] = even[i] * inverse;
            out[2 * i + 1] = odd[i] * inverse;
        }
    }
    let head = query.kv_head * group + r % group;
    let gate = &x.q[((query.row + r / group) * heads + head) * 2 * dim + dim..][..dim];
    k.gate_sigmoid(out, gate);
}
