//! Native kernels for steps of several sequences (`batch.cu`, `batch_long.cu`, `batch_moe.cu`), which read a weight once for
//! all of them: which, and how they are launched.

use super::{
    CudaOptions,
    driver::Limits,
    native::{Launch, TILE_ROWS, four, scalar},
};
use crate::plan::Op;

/// Fewest tokens for which weights are read once for all of them, rather than once for each from the second-level cache
/// (H200, see bench/cuda.md): projections, the experts' gate and up, their down.
const TOGETHER_FROM: [u32; 3] = [3, 4, 4];

/// `BATCH_TOKENS` of batch.cu.
const BATCH_TOKENS: u32 = 16;
/// Blocks of a cluster: `BATCH_CLUSTER` of batch.cu.
pub(super) const CLUSTER: u32 = 8;
/// A kernel whose block fills a multiprocessor, for asking how many clusters run at once, and its threads.
pub(super) const LARGEST: (&str, u32) = ("native_batch_down", 27 * 32);
/// Fewest pairs of tiles of a block for which it makes bytes of all columns itself: some for each of its 16 warps.
const LONG_PAIRS: u32 = 32;
/// `GROUPED_BYTES` of batch_moe.cu.
const GROUPED: u32 = (16 * 384 + 128 * (4 + 4 + 4 + 2) + 256 * 8 + 36u32).next_multiple_of(128);

/// `BATCH_ROW` of batch.cu.
const fn batch_row(cols: u32) -> u32 {
    cols * 2 + 64
}

/// The kernel for an op of a step of several sequences.
pub(super) fn route(op: &Op, limits: &Limits, options: &CudaOptions) -> Option<Launch> {
    let kernel = op.kernel.as_str();
    type Route = fn(&Op, u32, &Limits) -> Option<Launch>;
    let (tokens, from, launch) = match kernel {
        k if k.starts_with("project_") => (op.grid[1], TOGETHER_FROM[0], project as Route),
        k if k.starts_with("moe_gate_up_") => (op.grid[2], TOGETHER_FROM[1], gate_up as Route),
        k if k.starts_with("moe_down_") => (op.grid[2], TOGETHER_FROM[2], down as Route),
        _ => return None,
    };
    if limits.clusters == 0 || tokens < options.together.from(from) {
        return None;
    }
    launch(op, tokens, limits)
}

fn project(op: &Op, tokens: u32, limits: &Limits) -> Option<Launch> {
    let (cols, matrices) = (scalar(op, "cols")?, scalar(op, "matrices")? as usize);
    let (rows, bits) = (four(op, "rows")?, four(op, "bits")?);
    let widest = bits[..matrices].iter().copied().max()?;
    let few = tokens <= 8;
    // Warps, tiles that each takes at once, and how many turns' codes are under way: see the kernels' list in batch.cu.
    let (symbol, warps, own, depth) = match (op.kernel.starts_with("project_norm_"), cols, widest, few) {
        (true, 2048, 4, true) => ("native_batch_norm_8", 16, 2, 2),
        (true, 2048, 4, false) => ("native_batch_norm_16", 16, 2, 2),
        (true, 2048, 8, true) => ("native_batch_norm_mixed_8", 16, 1, 1),
        (true, 2048, 8, false) => ("native_batch_norm_mixed_16", 16, 1, 1),
        (false, 4096, 4, true) => ("native_batch_add_8", 32, 1, 1),
        (false, 4096, 4, false) => ("native_batch_add_16", 32, 1, 1),
        _ => return None,
    };
    let together = if few { 8 } else { BATCH_TOKENS };
    let tiles: u32 = rows[..matrices].iter().map(|r| r.div_ceil(TILE_ROWS)).sum();
    // A warp has two tiles at a time.
    let (blocks, pairs) = (limits.multiprocessors, tiles / 2);
    if symbol.starts_with("native_batch_norm_")
        && (matrices, widest, rows[0] % (2 * TILE_ROWS)) == (1, 4, 0)
        && pairs >= blocks * LONG_PAIRS
    {
        // Factors and parts of the norm, scales and sums, staged vectors; 16 warps' places for a slice of two tiles, twice.
        let vectors = 64 + 16 * 16 * 4 + cols / 64 * BATCH_TOKENS * 8 + together * batch_row(cols);
        return Some(Launch {
            symbol: if few { "native_batch_long_8" } else { "native_batch_long_16" },
            grid: [blocks, tokens.div_ceil(together), 1],
            threads: 16 * 32,
            shared: vectors + 16 * 2 * 2 * (4 * 512 + 256),
            extra: vec![pairs / blocks, pairs % blocks, tokens, 0],
        });
    }
    let clusters = tiles.min(limits.clusters);
    let (slices, own_cols) = (cols / 256, cols / CLUSTER);
    let vectors = own_cols / 64 * BATCH_TOKENS * 8 + together * batch_row(own_cols);
    // Two turns' sums of the tiles that a block writes; the warps' places.
    let own_tiles = warps * own / slices;
    let sums = 2 * own_tiles * slices * TILE_ROWS * together * 4;
    Some(Launch {
        symbol,
        grid: [CLUSTER * clusters, tokens.div_ceil(together), 1],
        threads: warps * 32,
        shared: 1024 + vectors + sums + warps * own * depth * (widest * 512 + 256),
        extra: vec![tiles / clusters, tiles % clusters, tokens, 0],
    })
}

fn gate_up(op: &Op, tokens: u32, limits: &Limits) -> Option<Launch> {
    let sizes = [scalar(op, "hidden")?, scalar(op, "width")?, scalar(op, "chosen")?];
    // 128 jobs of 64 units: with so many blocks none has more than 65 units, so of two jobs at most.
    if sizes != [2048, 512, 8] || scalar(op, "experts")? > 256 || limits.multiprocessors < 127 {
        return None;
    }
    // Barriers, zeros, factors and parts of the norm; the warps' sums of two units; scales and sums, staged vectors of four
    // tokens; ten stages (`UNIT_STAGE`).
    let small = 128 + 64 + 64 + 4 * 16 * 4;
    let sums = 2 * 32 * 32 * 4;
    let vectors = 2048 / 64 * 4 * 8 + 4 * batch_row(2048);
    let stage = (2 * (8 * 1024 + 64) + 4 * (8 * 64 + 32u32)).next_multiple_of(128);
    Some(Launch {
        symbol: "native_batch_gate_up",
        grid: [limits.multiprocessors, 1, tokens.div_ceil(BATCH_TOKENS)],
        threads: 32 * 32,
        shared: GROUPED + small + sums + vectors + 10 * stage,
        extra: vec![0, 0, tokens, 0],
    })
}

fn down(op: &Op, tokens: u32, limits: &Limits) -> Option<Launch> {
    let (hidden, experts) = (scalar(op, "hidden")?, scalar(op, "experts")?);
    let widths = [scalar(op, "width")?, scalar(op, "shared_width")?, scalar(op, "chosen")?];
    if hidden % TILE_ROWS != 0 || experts > 256 || widths != [512, 512, 8] {
        return None;
    }
    // A cluster has room for `DOWN_TILES` tiles; more clusters than run at once are right, if slower.
    let tiles = hidden / TILE_ROWS;
    let clusters = tiles.min(limits.clusters).max(tiles.div_ceil(9));
    // Barriers, zeros and jobs; scales of the shared expert's vectors; results of all pairs and tokens for two tiles; staged vectors; four stages
    // (`DOWN_BATCH_STAGE`).
    let (results, vectors) = (2 * BATCH_TOKENS * 9 * TILE_ROWS * 4, 32 * batch_row(512));
    let stage = (2 * (9 * 8 * 256 + 64) + 4 * (9 * 8 * 16 + 64u32)).next_multiple_of(128);
    Some(Launch {
        symbol: "native_batch_down",
        grid: [CLUSTER * clusters, 1, tokens.div_ceil(BATCH_TOKENS)],
        threads: LARGEST.1,
        shared: GROUPED + 192 + 128 + results + vectors + 4 * stage,
        extra: vec![tiles / clusters, tiles % clusters, tokens, 0],
    })
}
