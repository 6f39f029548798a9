//! Native kernels of prefill: which runs for which op, and how. Hopper (compute capability 9.0) has kernels of its own, with
//! its warpgroup instructions; later GPUs don't have those and take the kernels for the instructions that all share.

use super::{
    driver::Limits,
    native::{Launch, four, scalar},
};
use crate::{
    device::Precision,
    plan::{ArgValue, Op, Plan},
};

/// The architecture with warpgroup instructions.
pub const HOPPER: u32 = 90;

/// Symbols that exist on [`HOPPER`] only.
pub const HOPPER_SYMBOLS: &[&str] = &[
    "hopper_gemm_128",
    "hopper_gemm_add_128",
    "hopper_experts_gate_up_128",
    "hopper_experts_down_128",
    "hopper_shared_gate_up",
    "hopper_attention_prefill",
    "hopper_attention_halves",
    "hopper_split_rows",
];

/// Weight rows of a tile in gemm.cu and gemm_hopper.cu.
const WEIGHT_ROWS: u32 = 128;

/// The native kernel of a prefill op, if there is one for its shape. Hopper's take rows of f32, which another kernel splits in
/// two halves before (workspace.rs); those that all share take rows that are halves.
pub fn route(op: &Op, limits: &Limits) -> Option<Launch> {
    let hopper = limits.arch == HOPPER;
    match op.kernel.as_str() {
        "gdn_convolve" | "gdn_factors" | "gdn_scan" => gdn(op),
        "moe_sort" => moe_sort(op),
        "moe_blocks" if hopper => moe_blocks(op),
        "attention_prefill_float_8" if hopper => attention(op),
        k if k.starts_with("gemm_float_") => router(op).or_else(|| hopper_gemm(op, limits)),
        k if k.starts_with("gemm_") => gemm(op),
        "shared_gate_up_float" if hopper => hopper_shared(op, limits),
        "shared_gate_up" => shared_gate_up(op),
        "experts_gate_up_float" | "experts_down_float" if hopper => hopper_experts(op, limits),
        "experts_gate_up" => grouped("native_experts_gate_up", op, scalar(op, "width")?, 64),
        "experts_down" => grouped("native_experts_down", op, scalar(op, "hidden")?, 128),
        _ => None,
    }
}

/// A chunk's GDN, in order.
const GDN: [&str; 3] = ["gdn_convolve", "gdn_factors", "gdn_scan"];

/// What a kernel of f32 arguments computes with: softmax weights of Hopper's attention are halves. What enters the router, the
/// GDN and Hopper's products is split in two halves, and other products' inputs are halves by their type.
pub fn precision(symbol: &str) -> Precision {
    if symbol == "hopper_attention_prefill" { Precision::F16 } else { Precision::F32 }
}

/// Kernels of the plan, by place in `symbols` (those of its ops in the order they run), that must not run because others
/// that know their layout don't: the three of a GDN chunk go together, and blocks of more than 32 pairs need kernels that
/// take them.
pub fn misplaced(plan: &Plan, order: &[usize], symbols: &[&str]) -> Vec<usize> {
    let kernel = |at: usize| plan.ops[order[at]].kernel.as_str();
    let gdn = |at: &usize| GDN.contains(&kernel(*at));
    let of_gdn: Vec<usize> = (0..symbols.len()).filter(gdn).collect();
    let all_gdn = of_gdn.iter().all(|&at| symbols[at].starts_with("native_"))
        && of_gdn.chunks(GDN.len()).all(|three| three.iter().map(|&at| kernel(at)).eq(GDN));
    let all_experts =
        (0..symbols.len()).filter(|&at| kernel(at).starts_with("experts_")).all(|at| match kernel(at) {
            "experts_combine" => true,
            _ => symbols[at].starts_with("hopper_"),
        });
    (0..symbols.len())
        .filter(|at| match kernel(*at) {
            "moe_blocks" => !all_experts && symbols[*at].starts_with("native_"),
            _ => gdn(at) && !all_gdn && symbols[*at].starts_with("native_"),
        })
        .collect()
}

/// Bytes of an argument's buffer.
pub(super) fn bytes(op: &Op, name: &str) -> Option<u64> {
    op.args.iter().find(|a| a.name == name).and_then(|a| match a.value {
        ArgValue::Buffer { view, .. } => Some(view.len),
        ArgValue::Inline(_) => None,
    })
}

/// Bytes of dynamic shared memory of native_gdn_factors and native_gdn_scan (gdn_prefill.cu).
const GDN_FACTORS_SHARED: u32 = 4 * 16_384 + 2 * 64 * 4 + 16;
const GDN_SCAN_SHARED: u32 = 1024 + 2 * (4 * 16_384 + 4 * 5120 + 8192) + 4 * (48 * 32 * 4 + 16);

fn gdn(op: &Op) -> Option<Launch> {
    let (keys, values) = (scalar(op, "key_heads")?, scalar(op, "value_heads")?);
    let channels = (2 * keys + values) * 128;
    let rows = u32::try_from(bytes(op, "u")? / (channels as u64 * 4)).ok()?;
    if rows == 0 || rows % 64 != 0 || keys == 0 || values % keys != 0 {
        return None;
    }
    let (symbol, grid, threads, shared) = match op.kernel.as_str() {
        "gdn_convolve" => ("native_gdn_convolve", [2 * keys + values, rows / 32, 1], 128, 0),
        "gdn_factors" => ("native_gdn_factors", [rows / 64, values, 1], 128, GDN_FACTORS_SHARED),
        _ => ("native_gdn_scan", [4, values, 1], 160, GDN_SCAN_SHARED),
    };
    Some(Launch { symbol, grid, threads, shared, extra: vec![] })
}

fn router(op: &Op) -> Option<Launch> {
    let (cols, matrices) = (scalar(op, "cols")?, scalar(op, "matrices")? as usize);
    let (rows, bits) = (four(op, "rows")?, four(op, "bits")?);
    if cols % 512 != 0 || bits[..matrices].iter().any(|&b| b != 8) || op.kernel.contains("_add_") {
        return None;
    }
    let all: u32 = rows[..matrices].iter().sum();
    let height: u32 = op.kernel.rsplit_once('_')?.1.parse().ok()?;
    Some(Launch {
        symbol: "native_router",
        // `ROUTER_ROWS` and `ROUTER_TOKENS`; blocks beyond the last token do nothing.
        grid: [all.div_ceil(96), op.grid[1] * height / 32, 1],
        threads: 256,
        shared: 4 * (32 * 272 + 96 * 80) + 2 * 96 * (cols / 64 * 2 + 16),
        extra: vec![],
    })
}

fn moe_sort(op: &Op) -> Option<Launch> {
    if scalar(op, "chosen")? % 4 != 0 {
        return None;
    }
    Some(Launch {
        symbol: "native_moe_sort",
        grid: [scalar(op, "experts")?, 1, 1],
        threads: 512,
        shared: 0,
        extra: vec![],
    })
}

/// Inputs of a tile on Hopper; of the experts' products, pairs of a block.
const HOPPER_INPUTS: u32 = 128;

fn moe_blocks(op: &Op) -> Option<Launch> {
    let experts = scalar(op, "experts")?;
    if experts > 256 {
        return None;
    }
    Some(Launch {
        symbol: "native_moe_blocks",
        grid: [1, 1, 1],
        threads: 256,
        shared: 0,
        extra: vec![HOPPER_INPUTS, 0],
    })
}

fn attention(op: &Op) -> Option<Launch> {
    // attention_prefill.metal has 32 rows, 8 heads of 4 tokens, a threadgroup.
    let tokens = op.grid[0] * 4;
    Some(Launch {
        symbol: "hopper_attention_prefill",
        grid: [tokens.div_ceil(16) * scalar(op, "kv_heads")?, 1, 1],
        threads: 384,
        // `FLASH_SHARED`: queries, and five places for keys and values in turn.
        shared: 1024 + 128 * 512 + 5 * 64 * 512,
        extra: vec![],
    })
}

/// `HOPPER_SHARED` of gemm_hopper.cu.
const HOPPER_SHARED: u32 = 7168 + 131_072 + 2 * 128 * (256 + 2 * 16);

fn hopper_launch(symbol: &'static str, tiles: u32, limits: &Limits, extra: Vec<u32>) -> Launch {
    Launch {
        symbol,
        grid: [tiles.min(limits.multiprocessors).max(1), 1, 1],
        threads: 384,
        shared: HOPPER_SHARED,
        extra,
    }
}

fn hopper_gemm(op: &Op, limits: &Limits) -> Option<Launch> {
    let (name, height) = op.kernel.rsplit_once('_')?;
    let (cols, matrices) = (scalar(op, "cols")?, scalar(op, "matrices")? as usize);
    let (rows, bits) = (four(op, "rows")?, four(op, "bits")?);
    let tokens = op.grid[1] * height.parse::<u32>().ok()?;
    if limits.arch != HOPPER || bits[..matrices].iter().any(|&b| b != 4) || cols % 512 != 0 {
        return None;
    }
    let blocks: u32 = rows[..matrices].iter().map(|r| r.div_ceil(WEIGHT_ROWS)).sum();
    let symbol = match name {
        "gemm_float" => "hopper_gemm_128",
        "gemm_float_add" => "hopper_gemm_add_128",
        _ => return None,
    };
    Some(hopper_launch(symbol, blocks * tokens.div_ceil(HOPPER_INPUTS), limits, vec![0, 0]))
}

fn hopper_shared(op: &Op, limits: &Limits) -> Option<Launch> {
    let (hidden, width) = (scalar(op, "hidden")?, scalar(op, "shared_width")?);
    let tokens = op.grid[1] * 32;
    if hidden % 512 != 0 || width % 64 != 0 {
        return None;
    }
    Some(hopper_launch(
        "hopper_shared_gate_up",
        width / 64 * tokens.div_ceil(HOPPER_INPUTS),
        limits,
        vec![0, 0],
    ))
}

fn hopper_experts(op: &Op, limits: &Limits) -> Option<Launch> {
    let (hidden, width) = (scalar(op, "hidden")?, scalar(op, "width")?);
    if hidden % 512 != 0 || width % 512 != 0 {
        return None;
    }
    // Blocks of pairs: at most as many as the buffer has room for.
    let capacity = op.grid[1];
    let (symbol, columns) = match op.kernel.as_str() {
        "experts_gate_up_float" => ("hopper_experts_gate_up_128", width / 64),
        _ => ("hopper_experts_down_128", hidden / 128),
    };
    Some(hopper_launch(symbol, columns * capacity, limits, vec![columns, capacity]))
}

// ---- kernels for the instructions that all GPUs share

/// `GEMM_SHARED` of gemm.cu: three steps of inputs, two of weights, rows of 144 bytes.
const fn gemm_shared(rows: u32) -> u32 {
    (3 * rows + 2 * WEIGHT_ROWS) * 144
}

fn gemm(op: &Op) -> Option<Launch> {
    let (name, height) = op.kernel.rsplit_once('_')?;
    let symbol = match name {
        "gemm" => "native_gemm",
        "gemm_add" => "native_gemm_add",
        _ => return None,
    };
    let (cols, matrices) = (scalar(op, "cols")?, scalar(op, "matrices")? as usize);
    let (rows, bits) = (four(op, "rows")?, four(op, "bits")?);
    let tokens = op.grid[1] * height.parse::<u32>().ok()?;
    // A tile has 128 tokens; short chunks are better off with smaller ones.
    if bits[..matrices].iter().any(|&b| b != 4) || cols % 64 != 0 || tokens < 64 {
        return None;
    }
    let blocks = rows[..matrices].iter().map(|r| r.div_ceil(WEIGHT_ROWS)).sum();
    Some(Launch {
        symbol,
        grid: [blocks, tokens.div_ceil(128), 1],
        threads: 256,
        shared: gemm_shared(128),
        extra: vec![],
    })
}

fn shared_gate_up(op: &Op) -> Option<Launch> {
    let (hidden, width) = (scalar(op, "hidden")?, scalar(op, "shared_width")?);
    // moe_prefill.metal has 32 tokens a threadgroup.
    let tokens = op.grid[1] * 32;
    if hidden % 64 != 0 || width % 64 != 0 || tokens < 64 {
        return None;
    }
    Some(Launch {
        symbol: "native_shared_gate_up",
        grid: [width / 64, tokens.div_ceil(128), 1],
        threads: 256,
        shared: gemm_shared(128),
        extra: vec![],
    })
}

/// A product with the experts' matrices: blocks of at most 32 pairs of one expert.
fn grouped(symbol: &'static str, op: &Op, rows: u32, tile: u32) -> Option<Launch> {
    if scalar(op, "hidden")? % 128 != 0 || scalar(op, "width")? % 64 != 0 {
        return None;
    }
    Some(Launch {
        symbol,
        grid: [rows.div_ceil(tile), op.grid[1], 1],
        threads: 256,
        shared: gemm_shared(32),
        extra: vec![],
    })
}
