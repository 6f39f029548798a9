//! The mixture of experts.
//!
//! One token ([`one`]): three dispatches. Every thread chooses the experts for itself, from the same logits, and
//! quantises the vectors it needs for itself; only weights are shared out.
//!
//! Many tokens ([`many`]): tokens are grouped by expert and each group of up to [`PANEL`] tokens is one piece of work
//! for gate, up and SwiGLU; then every thread takes some output features through all groups. The shared expert is a
//! group of all tokens.

use lily_model::{QuantMatrix, QuantRows, weights::MoeWeights};

use super::{
    Machine,
    linear::{Gemm, gemm, gemv_all, gemv_rows, multiply, row_bytes, rows_a_piece, rows_reused},
    norm::{norm_one, quantize_one},
};
use crate::{
    acts::{Acts, Part, TileMut},
    error::Result,
    kernels::{BLOCK, Kernels, RowsRef},
    pool::{BlockMut, columns},
    worker::{PANEL, Worker},
};

/// Fewer tokens than this are a batch of decoding, or a chunk beside one.
const FEW: usize = 64;

/// Bytes between the weights in use and those asked for from memory, in [`many`] of few tokens.
const AHEAD: usize = 8 << 10;

/// The `n` experts with the largest logits, best first (the lowest id wins ties), with their softmax weights among
/// each other. That equals softmax over all, then renormalising over the chosen.
pub(crate) fn choose(logits: &[f32], n: usize, out: &mut Vec<(usize, f32)>) {
    out.clear();
    for (e, &logit) in logits.iter().enumerate() {
        if out.len() == n && out[n - 1].1.total_cmp(&logit).is_ge() {
            continue;
        }
        let at = out.partition_point(|o| o.1.total_cmp(&logit).is_ge());
        if out.len() == n {
            out.pop();
        }
        out.insert(at, (e, logit));
    }
    let max = out[0].1;
    let mut sum = 0.0;
    for o in out.iter_mut() {
        o.1 = (o.1 - max).exp();
        sum += o.1;
    }
    for o in out.iter_mut() {
        o.1 /= sum;
    }
}

fn rows_of(m: &QuantMatrix, expert: usize, row: usize, rows: usize) -> RowsRef<'_> {
    RowsRef::new(&m.expert(expert), row, rows)
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Activations of the layer that several dispatches share.
pub(crate) struct MoeScratch<'a> {
    /// `[tokens][experts]`.
    pub(crate) logits: &'a mut [f32],
    /// `[tokens]`.
    pub(crate) shared_gate: &'a mut [f32],
    /// `[2][shared width]`: gate and up, for one token.
    pub(crate) shared: &'a mut [f32],
    /// `[experts per token][expert width]`, for one token.
    pub(crate) hidden: &'a mut [f32],
}

/// `x += moe(norm(x))` for one token.
pub(crate) fn one(
    m: &mut Machine,
    w: &MoeWeights,
    gain: &[f32],
    eps: f32,
    per_token: usize,
    s: MoeScratch<'_>,
    x: &mut [f32],
) -> Result<()> {
    let k = m.k;
    let (width, shared_width) = (w.experts_gate.rows, w.shared_gate_proj.rows);
    let logits = &mut s.logits[..w.gate.rows];
    let shared_gate = &mut s.shared_gate[..1];
    let (gate, up) = s.shared[..2 * shared_width].split_at_mut(shared_width);
    m.step += 1;
    let step = m.step;
    let x_in: &[f32] = x;
    let prepare = |w: &mut Worker| {
        if w.acts_of != step {
            norm_one(k, x_in, gain, eps, &mut w.row, &mut w.acts);
            w.acts_of = step;
        }
    };

    // 1. Router and the shared expert's first half.
    {
        let ms = [&w.gate, &w.shared_gate_proj, &w.shared_up_proj, &w.shared_expert_gate];
        let mut outs: [&mut [f32]; 4] = [&mut *logits, &mut *gate, &mut *up, &mut *shared_gate];
        gemv_all(m, &ms, &mut outs, prepare)?;
    }

    // 2. The routed experts' first half. The workers' `acts` still hold the normed input.
    let (logits, gate, up) = (&*logits, &*gate, &*up);
    let route = |w: &mut Worker| {
        if w.route_of != step {
            choose(logits, per_token, &mut w.route);
            w.route_of = step;
        }
    };
    let hidden = &mut s.hidden[..per_token * width];
    let chunk = rows_a_piece(per_token * width, 2 * row_bytes(&w.experts_gate), m.pool.threads());
    let chunk = chunk.min(width);
    {
        let mut experts: Vec<&mut [f32]> =
            hidden.chunks_exact_mut(width).flat_map(|hidden| hidden.chunks_mut(chunk)).collect();
        let init = |w: &mut Worker| {
            prepare(w);
            route(w);
        };
        let pieces = width.div_ceil(chunk);
        m.pool.run_items(&mut m.workers, &mut experts, init, |worker, i, hidden| {
            let piece = |m, i: usize| {
                let row = i % pieces * chunk;
                rows_of(m, worker.route[i / pieces].0, row, chunk.min(width - row))
            };
            let gate = piece(&w.experts_gate, i);
            // This thread's next piece is most likely the one that follows.
            let next = if i + 1 < per_token * pieces { piece(&w.experts_gate, i + 1) } else { gate };
            let up = piece(&w.experts_up, i).then(&next);
            let (a, b) = worker.row[..2 * hidden.len()].split_at_mut(hidden.len());
            gemv_rows(k, &gate.then(&up), &worker.acts, a);
            gemv_rows(k, &up, &worker.acts, b);
            k.swiglu(a, b, hidden);
        })?;
    }

    // 3. All second halves, weighted.
    let hidden = &*hidden;
    let shared_weight = sigmoid(shared_gate[0]);
    let bytes = per_token * row_bytes(&w.experts_down) + row_bytes(&w.shared_down_proj);
    let chunk = rows_a_piece(x.len(), bytes, m.pool.threads());
    let init = |worker: &mut Worker| {
        route(worker);
        let (shared, routed) = worker.hidden.split_last_mut().expect("one more than the experts of a token");
        for (acts, hidden) in routed.iter_mut().zip(hidden.chunks_exact(width)) {
            quantize_one(k, hidden, acts);
        }
        let row = &mut worker.row[..shared_width];
        k.swiglu(gate, up, row);
        quantize_one(k, row, shared);
    };
    m.pool.run_segments(&mut m.workers, &mut [x], chunk, init, |worker, _, row, x| {
        let (n, total) = (x.len(), w.shared_down_proj.rows);
        let out = &mut worker.row[..n];
        let shared = rows_of(&w.shared_down_proj, 0, row, n);
        let routed =
            |i: usize, row: usize| rows_of(&w.experts_down, worker.route[i].0, row, n.min(total - row));
        for (i, (acts, &(_, weight))) in worker.hidden.iter().zip(&worker.route).enumerate() {
            let next = if i + 1 < per_token { routed(i + 1, row) } else { shared };
            gemv_rows(k, &routed(i, row).then(&next), acts, out);
            k.axpy(weight, out, x);
        }
        // This thread's next piece is most likely the one that follows.
        let next = routed(0, if row + n < total { row + n } else { row });
        gemv_rows(k, &shared.then(&next), &worker.hidden[per_token], out);
        k.axpy(shared_weight, out, x);
    })
}

/// Tokens that one expert computes together.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// `None`: the shared expert.
    expert: Option<usize>,
    /// First entry of the grouped list; for the shared expert, first token.
    first: usize,
    n: usize,
}

/// Buffers of [`many`].
#[derive(Debug)]
pub(crate) struct ManyScratch {
    /// Hidden vectors of (token, expert) pairs, grouped by expert.
    routed: Acts,
    /// Hidden vectors of the shared expert.
    shared: Acts,
    /// (token, weight), grouped by expert.
    entries: Vec<(u32, f32)>,
    groups: Vec<Group>,
    route: Vec<Vec<(usize, f32)>>,
}

impl ManyScratch {
    pub(crate) fn new(c: &lily_model::ModelConfig, tokens: usize, need: crate::acts::Need) -> Result<Self> {
        Ok(Self {
            routed: Acts::new(tokens * c.num_experts_per_tok, c.moe_intermediate_size, need)?,
            shared: Acts::new(tokens, c.shared_expert_intermediate_size, need)?,
            entries: Vec::new(),
            groups: Vec::new(),
            route: vec![Vec::new(); tokens],
        })
    }

    pub(crate) fn byte_len(&self) -> usize {
        self.routed.byte_len() + self.shared.byte_len()
    }

    /// Groups the tokens by expert (a counting sort); the shared expert's groups come first, being the largest.
    fn group(&mut self, n: usize, experts: usize) {
        let mut starts = vec![0usize; experts + 1];
        for route in &self.route[..n] {
            for &(e, _) in route {
                starts[e + 1] += 1;
            }
        }
        for e in 0..experts {
            starts[e + 1] += starts[e];
        }
        let mut next = starts.clone();
        self.entries.clear();
        self.entries.resize(starts[experts], (0, 0.0));
        for (t, route) in self.route[..n].iter().enumerate() {
            for &(e, weight) in route {
                self.entries[next[e]] = (t as u32, weight);
                next[e] += 1;
            }
        }
        self.groups.clear();
        let mut push = |expert, start: usize, end: usize| {
            for first in (start..end).step_by(PANEL) {
                self.groups.push(Group { expert, first, n: PANEL.min(end - first) });
            }
        };
        push(None, 0, n);
        for e in 0..experts {
            push(Some(e), starts[e], starts[e + 1]);
        }
    }
}

/// `x += moe(h)` for the `n` normed and quantised tokens in `acts`.
#[allow(clippy::too_many_arguments)]
pub(crate) fn many(
    m: &mut Machine,
    w: &MoeWeights,
    per_token: usize,
    logits: &mut [f32],
    shared_gate: &mut [f32],
    acts: &Acts,
    s: &mut ManyScratch,
    x: &mut [f32],
) -> Result<()> {
    let k = m.k;
    let n = acts.tiles().n;
    let experts = w.gate.rows;
    let mut jobs = [
        Gemm { matrix: &w.gate, out: logits, add: false },
        Gemm { matrix: &w.shared_expert_gate, out: shared_gate, add: false },
    ];
    gemm(m, &mut jobs, acts)?;
    let logits = &logits[..n * experts];
    // The last tokens first makes no difference; eight at a time keeps the dispatch cheap.
    let mut routes: Vec<_> = s.route[..n].chunks_mut(8).collect();
    m.pool.run_items(
        &mut m.workers,
        &mut routes,
        |_| {},
        |_, i, routes| {
            for (j, route) in routes.iter_mut().enumerate() {
                choose(&logits[(i * 8 + j) * experts..][..experts], per_token, route);
            }
        },
    )?;
    drop(routes);
    s.group(n, experts);

    // 1. Gate, up, SwiGLU; the hidden vectors are quantised where they are made.
    s.routed.reset(n * per_token, w.experts_gate.rows);
    s.shared.reset(n, w.shared_gate_proj.rows);
    let of = |shared: bool| s.groups.iter().filter(|g| g.expert.is_none() == shared).map(|g| g.n).collect();
    let (shared_counts, routed_counts): (Vec<usize>, Vec<usize>) = (of(true), of(false));
    let parts = s.shared.parts_mut(&shared_counts).into_iter().chain(s.routed.parts_mut(&routed_counts));
    let mut items: Vec<(Group, Vec<TileMut<'_>>)> = s.groups.iter().copied().zip(parts).collect();
    let (entries, groups) = (&s.entries, &s.groups);
    m.pool.run_items(
        &mut m.workers,
        &mut items,
        |_| {},
        |worker, i, (group, tiles)| {
            let next = groups.get(i + 1).unwrap_or(group);
            first_half(k, worker, w, group, entries, acts, tiles, next);
        },
    )?;
    drop(items);

    // 2. Down, weighted, added: each thread takes some output features of all tokens through all groups.
    let (groups, routed, shared) = (&s.groups, &s.routed, &s.shared);
    let shared_gate = &shared_gate[..n];
    let width = w.shared_down_proj.rows;
    // Few tokens mean many experts with a row or two each: wide pieces make longer streams of them.
    let piece = match n {
        0..FEW => width.div_ceil(2 * m.pool.threads()).next_multiple_of(BLOCK).min(PANEL * BLOCK),
        _ => BLOCK,
    };
    let mut blocks = columns(&mut x[..n * width], width, piece);
    // So many groups ahead is far enough for memory to answer in time.
    let ahead = AHEAD.div_ceil(piece * row_bytes(&w.experts_down));
    m.pool.run_items(
        &mut m.workers,
        &mut blocks,
        |_| {},
        |worker, _, block| {
            for (i, group) in groups.iter().enumerate() {
                let (part, weights) = match group.expert {
                    Some(e) => (routed.part(group.first, group.n), w.experts_down.expert(e)),
                    None => (shared.part(group.first, group.n), w.shared_down_proj.dense()),
                };
                let target = |i: usize| match group.expert {
                    Some(_) => (entries[group.first + i].0 as usize, entries[group.first + i].1),
                    None => (group.first + i, sigmoid(shared_gate[group.first + i])),
                };
                let next = groups.get(i + ahead).or(groups.last()).unwrap_or(group);
                second_half(k, worker, w, &weights, next, part, target, block);
            }
        },
    )
}

/// The first rows that [`first_half`] reads for `group`.
fn first_rows<'a>(w: &'a MoeWeights, group: &Group) -> RowsRef<'a> {
    let (m, expert) = match group.expert {
        Some(e) => (&w.experts_gate, e),
        None => (&w.shared_gate_proj, 0),
    };
    RowsRef::new(&m.expert(expert), 0, BLOCK.min(m.rows))
}

/// Gate, up and SwiGLU of a group's tokens, quantised into `tiles`. `next`: the group that this thread most likely
/// does next.
#[allow(clippy::too_many_arguments)]
fn first_half(
    k: &Kernels,
    worker: &mut Worker,
    w: &MoeWeights,
    group: &Group,
    entries: &[(u32, f32)],
    acts: &Acts,
    tiles: &mut [TileMut<'_>],
    next: &Group,
) {
    let (expert, gate, up) = match group.expert {
        Some(e) => (e, &w.experts_gate, &w.experts_up),
        None => (0, &w.shared_gate_proj, &w.shared_up_proj),
    };
    let token = |i: usize| match group.expert {
        Some(_) => entries[group.first + i].0 as usize,
        None => group.first + i,
    };
    worker.panel.reset(group.n, acts.cols());
    for i in 0..group.n {
        worker.panel.copy_from(i, acts, token(i));
    }
    let width = gate.rows;
    let panel = &worker.panel;
    let hidden = &mut worker.panel_hidden;
    let (gates, ups) = (gate.expert(expert), up.expert(expert));
    let plan = panel.tiles();
    let piece = if plan.singly() { rows_reused(gate, group.n) } else { BLOCK };
    for row in (0..width).step_by(piece) {
        let n = piece.min(width - row);
        let next = if row + n < width {
            RowsRef::new(&gates, row + n, n.min(width - row - n))
        } else {
            first_rows(w, next)
        };
        let up_rows = RowsRef::new(&ups, row, n).then(&next);
        let gate_rows = RowsRef::new(&gates, row, n).then(&up_rows);
        let [g, u] = &mut worker.products;
        if plan.singly() {
            for t in 0..group.n {
                let (g, u) = (&mut g[..n], &mut u[..n]);
                k.gemv(&gate_rows, &panel.tile(t, Kernels::order(&gate_rows)), g);
                k.gemv(&up_rows, &panel.tile(t, Kernels::order(&up_rows)), u);
                k.swiglu(g, u, &mut hidden[t * width + row..][..n]);
            }
            continue;
        }
        for (rows, out) in [(&gate_rows, &mut *g), (&up_rows, &mut *u)] {
            let tiles = (0..plan.count).map(|i| panel.tile(i, Kernels::order(rows)));
            multiply(k, rows, &mut worker.unpacked, tiles, out);
        }
        for t in 0..group.n {
            let at = t * BLOCK..t * BLOCK + n;
            k.swiglu(&g[at.clone()], &u[at], &mut hidden[t * width + row..][..n]);
        }
    }
    for i in 0..group.n {
        let (tile, t) = plan.locate(i);
        tiles[tile].quantize(k, t, &hidden[i * width..(i + 1) * width]);
    }
}

/// Adds the products of `weights`, an expert's down projection, with the hidden vectors of its tokens to the features in
/// `block`. `target(i)`: the token that vector `i` is of, and its weight. `next`: a group whose turn comes soon.
#[allow(clippy::too_many_arguments)]
fn second_half(
    k: &Kernels,
    worker: &mut Worker,
    w: &MoeWeights,
    weights: &QuantRows<'_>,
    next: &Group,
    part: Part<'_>,
    target: impl Fn(usize) -> (usize, f32),
    block: &mut BlockMut<'_>,
) {
    let next = match next.expert {
        Some(e) => w.experts_down.expert(e),
        None => w.shared_down_proj.dense(),
    };
    let (first, cols) = (block.col0, block.cols());
    let products = &mut worker.products[0];
    let piece = if part.tiles.singly() { cols } else { BLOCK };
    for col in (0..cols).step_by(piece) {
        let n = piece.min(cols - col);
        let rows = RowsRef::new(weights, first + col, n).then(&RowsRef::new(&next, first + col, n));
        let order = Kernels::order(&rows);
        if part.tiles.singly() {
            for i in 0..part.tiles.n {
                let (token, weight) = target(i);
                k.gemv(&rows, &part.tile(i, order), &mut products[..n]);
                k.axpy(weight, &products[..n], &mut block.row_mut(token)[col..col + n]);
            }
            continue;
        }
        let tiles = (0..part.tiles.count).map(|i| part.tile(i, order));
        multiply(k, &rows, &mut worker.unpacked, tiles, products);
        for i in 0..part.tiles.n {
            let (token, weight) = target(i);
            k.axpy(weight, &products[i * BLOCK..][..n], &mut block.row_mut(token)[col..col + n]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_id_wins_ties() {
        let mut out = Vec::new();
        choose(&[1.0, 3.0, 2.0, 3.0, 2.0], 3, &mut out);
        assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), [1, 3, 2]);
        assert!((out.iter().map(|o| o.1).sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn nan_does_not_panic() {
        let mut out = Vec::new();
        choose(&[f32::NAN; 8], 4, &mut out);
        assert_eq!(out.len(), 4);
    }
}
