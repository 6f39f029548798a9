//! Projections: quantised weights times quantised activations.

use lily_model::QuantMatrix;

use super::Machine;
use crate::{
    acts::{Acts, Order, TILE, Tile},
    error::Result,
    kernels::{BLOCK, Kernels, RowsRef, Unpacked},
    pool::{BlockMut, columns},
    worker::{BLOCKS, CHUNK, PANEL, Worker},
};

/// Bytes of weights that make a piece of work of a few microseconds.
const PIECE: usize = 64 << 10;

/// Bytes of rows that single tokens are multiplied with in turn: small enough to stay in the first-level cache for the
/// next token.
const REUSED: usize = 8 << 10;

/// Rows of `m` that are multiplied with each of `tokens` single tokens before the next ones.
pub(crate) fn rows_reused(m: &QuantMatrix, tokens: usize) -> usize {
    let rows = if tokens == 1 { m.rows } else { REUSED / row_bytes(m) };
    // Products of a piece fit a worker's buffer.
    rows.next_multiple_of(16).clamp(16, PANEL * BLOCK)
}

/// Rows a thread takes at a time in a matrix-vector product: small enough to balance, large enough to stream.
pub(crate) fn rows_a_piece(rows: usize, row_bytes: usize, threads: usize) -> usize {
    let balanced = rows.div_ceil(threads * 4);
    (PIECE / row_bytes).min(balanced).next_multiple_of(16).max(16)
}

/// Bytes of a row of `m` with its scales and biases.
pub(crate) fn row_bytes(m: &QuantMatrix) -> usize {
    m.cols * m.bits / 8 + m.cols / m.group_size * 4
}

/// `out = m x` for the rows from `row` on, one token.
#[inline]
pub(crate) fn gemv(k: &Kernels, m: &QuantMatrix, expert: usize, row: usize, x: &Acts, out: &mut [f32]) {
    gemv_rows(k, &RowsRef::new(&m.expert(expert), row, out.len()), x, out);
}

/// `out = m x`, one token.
#[inline]
pub(crate) fn gemv_rows(k: &Kernels, m: &RowsRef<'_>, x: &Acts, out: &mut [f32]) {
    k.gemv(m, &x.tile(0, Kernels::order(m)), out);
}

/// Several projections of the same one vector in one dispatch: `outs[i] = ms[i] x`, where every thread first makes
/// its own copy of the vector with `init`.
pub(crate) fn gemv_all(
    m: &mut Machine,
    ms: &[&QuantMatrix],
    outs: &mut [&mut [f32]],
    init: impl Fn(&mut Worker) + Sync,
) -> Result<()> {
    let k = m.k;
    let rows = ms.iter().map(|m| m.rows).sum();
    let widest = ms.iter().map(|m| row_bytes(m)).max().unwrap_or(1);
    let chunk = rows_a_piece(rows, widest, m.pool.threads());
    m.pool.run_segments(&mut m.workers, outs, chunk, init, |w, i, row, out| {
        gemv(k, ms[i], 0, row, &w.acts, out);
    })
}

/// `y += m x` for one token, where every thread first makes its own copy of `x` with `init`.
pub(crate) fn gemv_add(
    m: &mut Machine,
    matrix: &QuantMatrix,
    y: &mut [f32],
    init: impl Fn(&mut Worker) + Sync,
) -> Result<()> {
    let k = m.k;
    let chunk = rows_a_piece(matrix.rows, row_bytes(matrix), m.pool.threads());
    m.pool.run_segments(&mut m.workers, &mut [y], chunk, init, |w, _, row, y| {
        let out = &mut w.row[..y.len()];
        gemv(k, matrix, 0, row, &w.acts, out);
        k.axpy(1.0, out, y);
    })
}

/// One projection of many tokens.
pub(crate) struct Gemm<'a> {
    pub(crate) matrix: &'a QuantMatrix,
    /// `[tokens][rows]`.
    pub(crate) out: &'a mut [f32],
    /// Whether the product is added to `out`.
    pub(crate) add: bool,
}

/// Several projections of the same tokens in one dispatch.
pub(crate) fn gemm(m: &mut Machine, jobs: &mut [Gemm<'_>], x: &Acts) -> Result<()> {
    let (k, n) = (m.k, x.tiles().n);
    let rows: usize = jobs.iter().map(|j| j.matrix.rows).sum();
    // Wide pieces fetch the activations less often; but each thread wants several.
    let piece = rows.div_ceil(m.pool.threads() * 4).next_multiple_of(BLOCK).min(BLOCKS * BLOCK);
    let mut items = Vec::new();
    for job in jobs {
        for block in columns(&mut job.out[..n * job.matrix.rows], job.matrix.rows, piece) {
            items.push((job.matrix, job.add, block));
        }
    }
    m.pool.run_items(
        &mut m.workers,
        &mut items,
        |_| {},
        |w, _, (matrix, add, block)| {
            gemm_block(k, w, matrix, *add, block, x);
        },
    )
}

/// The rows of `matrix` that are the columns of `block`, for all tokens.
fn gemm_block(
    k: &Kernels,
    w: &mut Worker,
    matrix: &QuantMatrix,
    add: bool,
    block: &mut BlockMut<'_>,
    x: &Acts,
) {
    let (row0, rows) = (block.col0, block.cols());
    let dense = matrix.dense();
    let order = Order::of_bits(matrix.bits);
    let tiles = x.tiles();
    if tiles.singly() {
        let piece = rows_reused(matrix, tiles.n);
        for r in (0..rows).step_by(piece) {
            let width = piece.min(rows - r);
            let m = RowsRef::new(&dense, row0 + r, width);
            for t in 0..tiles.n {
                let to = &mut block.row_mut(t)[r..r + width];
                if add {
                    let product = &mut w.products[0][..width];
                    k.gemv(&m, &x.tile(t, order), product);
                    k.axpy(1.0, product, to);
                } else {
                    k.gemv(&m, &x.tile(t, order), to);
                }
            }
        }
        return;
    }
    // A panel of activations stays in the second-level cache for all rows.
    for first in (0..tiles.count).step_by(PANEL / TILE) {
        let panel = first..tiles.count.min(first + PANEL / TILE);
        for r in (0..rows).step_by(BLOCK) {
            let width = BLOCK.min(rows - r);
            let m = RowsRef::new(&dense, row0 + r, width);
            let products = &mut w.products[0];
            multiply(k, &m, &mut w.unpacked, panel.clone().map(|i| x.tile(i, order)), products);
            let token0 = tiles.start(first);
            for t in token0..tiles.start(panel.end) {
                let from = &products[(t - token0) * BLOCK..][..width];
                let to = &mut block.row_mut(t)[r..r + width];
                if add { k.axpy(1.0, from, to) } else { to.copy_from_slice(from) }
            }
        }
    }
}

/// `out[t][r] = row r . x_t` for up to [`BLOCK`] rows and all tokens of the tiles, `[tokens][BLOCK]`.
#[inline]
pub(crate) fn multiply<'a>(
    k: &Kernels,
    m: &RowsRef<'_>,
    unpacked: &mut Unpacked,
    tiles: impl Iterator<Item = Tile<'a>> + Clone,
    out: &mut [f32],
) {
    let tokens: usize = tiles.clone().map(|t| t.tokens).sum();
    out[..tokens * BLOCK].fill(0.0);
    for first in (0..m.groups).step_by(CHUNK) {
        k.unpack(&m.columns(first, CHUNK.min(m.groups - first)), unpacked);
        let mut at = 0;
        for tile in tiles.clone() {
            // Once is enough.
            let prefetch = (at == 0).then_some(m);
            k.tile(unpacked, &tile, first, prefetch, &mut out[at * BLOCK..]);
            at += tile.tokens;
        }
    }
}
