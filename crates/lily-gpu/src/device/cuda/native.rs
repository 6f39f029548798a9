//! Native CUDA kernels (`kernels/cuda/*.cu`) in place of translated ones: which, and how they are launched, are pure
//! functions of the op and the device's limits.

use std::fmt::Write as _;

use lily_msl::manifest::{ArgManifest, KernelManifest, Manifest};

use super::{
    CudaOptions,
    driver::Limits,
    native_batch,
    native_prefill::{HOPPER, HOPPER_SYMBOLS},
};
use crate::{
    error::{GpuError, Result},
    plan::{ArgValue, Op, Plan, Scalar, routes::Splits},
};

/// The sources, in order.
const SOURCES: &[(&str, &str)] = &[
    ("project.cu", include_str!("../../../../../kernels/cuda/project.cu")),
    ("moe.cu", include_str!("../../../../../kernels/cuda/moe.cu")),
    ("batch.cu", include_str!("../../../../../kernels/cuda/batch.cu")),
    ("batch_long.cu", include_str!("../../../../../kernels/cuda/batch_long.cu")),
    ("batch_moe.cu", include_str!("../../../../../kernels/cuda/batch_moe.cu")),
    ("gdn.cu", include_str!("../../../../../kernels/cuda/gdn.cu")),
    ("attention.cu", include_str!("../../../../../kernels/cuda/attention.cu")),
    ("halves.cu", include_str!("../../../../../kernels/cuda/halves.cu")),
    ("gemm.cu", include_str!("../../../../../kernels/cuda/gemm.cu")),
    ("gdn_prefill.cu", include_str!("../../../../../kernels/cuda/gdn_prefill.cu")),
    ("moe_prefill.cu", include_str!("../../../../../kernels/cuda/moe_prefill.cu")),
    ("expand.cu", include_str!("../../../../../kernels/cuda/expand.cu")),
    ("synthetic.cu", include_str!("../../../../../kernels/cuda/synthetic.cu")),
];
/// Those with instructions that only Hopper has.
const HOPPER_SOURCES: &[(&str, &str)] = &[
    ("wgmma.cu", include_str!("../../../../../kernels/cuda/wgmma.cu")),
    ("split.cu", include_str!("../../../../../kernels/cuda/split.cu")),
    ("gemm_hopper.cu", include_str!("../../../../../kernels/cuda/gemm_hopper.cu")),
    ("attention_hopper.cu", include_str!("../../../../../kernels/cuda/attention_hopper.cu")),
];
const COMMON: &str = include_str!("../../../../../kernels/cuda/common.cuh");

/// (structure, kernel whose arguments it holds).
const STRUCTURES: &[(&str, &str)] = &[
    ("ProjectArgs", "project_norm_1"),
    ("MoeGateUpArgs", "moe_gate_up_1"),
    ("MoeDownArgs", "moe_down_1"),
    ("GdnArgs", "gdn_step"),
    ("AttentionSplitArgs", "attention_split_8"),
    ("AttentionCombineArgs", "attention_combine"),
    ("GemmArgs", "gemm_float_64"),
    ("ExpertsGateUpArgs", "experts_gate_up"),
    ("ExpertsDownArgs", "experts_down"),
    ("SharedGateUpArgs", "shared_gate_up"),
    ("GdnConvolveArgs", "gdn_convolve"),
    ("GdnFactorsArgs", "gdn_factors"),
    ("GdnScanArgs", "gdn_scan"),
    ("MoeSortArgs", "moe_sort"),
    ("MoeBlocksArgs", "moe_blocks"),
    ("AttentionPrefillArgs", "attention_prefill_float_8"),
];

/// Symbols of the native kernels that every architecture from [`super::compile::NATIVE_ARCH`] on has.
pub const SYMBOLS: &[&str] = &[
    "native_project_norm",
    "native_project_norm_mixed",
    "native_project_add",
    "native_moe_gate_up",
    "native_moe_down",
    "native_batch_norm_8",
    "native_batch_norm_16",
    "native_batch_norm_mixed_8",
    "native_batch_norm_mixed_16",
    "native_batch_add_8",
    "native_batch_add_16",
    "native_batch_long_8",
    "native_batch_long_16",
    "native_batch_gate_up",
    "native_batch_down",
    "native_gdn_step",
    "native_attention_split",
    "native_attention_combine",
    "native_gemm",
    "native_gemm_add",
    "native_experts_gate_up",
    "native_experts_down",
    "native_shared_gate_up",
    "native_gdn_convolve",
    "native_gdn_factors",
    "native_gdn_scan",
    "native_router",
    "native_moe_sort",
    "native_moe_blocks",
    "native_expand",
    "native_fill",
];

/// Symbols of all native kernels of an architecture.
pub fn symbols(arch: u32) -> impl Iterator<Item = &'static str> {
    let hopper = if arch == HOPPER { HOPPER_SYMBOLS } else { &[] };
    SYMBOLS.iter().chain(hopper).copied()
}

/// The text for NVRTC.
pub fn source(arch: u32, manifest: &Manifest) -> Result<String> {
    let mut out = String::from("#line 1 \"common.cuh\"\n");
    out.push_str(COMMON);
    out.push_str("#line 1 \"<arguments>\"\n");
    for (name, kernel) in STRUCTURES {
        let kernel = manifest.kernel(kernel).map_err(|e| GpuError::Kernels(e.to_string()))?;
        structure(&mut out, name, kernel)?;
    }
    let hopper = if arch == HOPPER { HOPPER_SOURCES } else { &[] };
    for (name, text) in SOURCES.iter().chain(hopper) {
        let _ = writeln!(out, "#line 1 \"{name}\"");
        out.push_str(text);
    }
    Ok(out)
}

/// The argument structure of a kernel, laid out as the manifest says.
fn structure(out: &mut String, name: &str, kernel: &KernelManifest) -> Result<()> {
    let _ = writeln!(out, "struct {name} {{");
    for a in &kernel.args {
        let _ = match a.inline_bytes() {
            None => writeln!(out, "  void* {};", a.name),
            Some(layout) => {
                // A value by itself has no fields.
                if layout.fields.iter().all(|f| f.name.is_empty()) {
                    writeln!(out, "  {} {};", c_type(a, &a.element)?, a.name)
                } else {
                    let mut fields = String::new();
                    for f in &layout.fields {
                        let _ = write!(fields, " {} {};", c_type(a, &f.ty)?, f.name);
                    }
                    writeln!(out, "  struct alignas({}) {{{fields} }} {};", layout.align, a.name)
                }
            }
        };
    }
    for t in &kernel.threadgroup_args {
        let _ = writeln!(out, "  unsigned threadgroup{};", t.index);
    }
    let _ = writeln!(
        out,
        "  unsigned end;\n}};\nstatic_assert(sizeof({name}) == {}, \"layout\");",
        kernel.cuda_args_bytes
    );
    Ok(())
}

fn c_type(arg: &ArgManifest, ty: &str) -> Result<&'static str> {
    match ty {
        "uint" => Ok("unsigned"),
        "float" => Ok("float"),
        "uint4" => Ok("uint4"),
        "float4" => Ok("float4"),
        _ => Err(GpuError::Kernels(format!(
            "argument {}: a field of type {ty} has no CUDA form yet",
            arg.name
        ))),
    }
}

/// How a native kernel is launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Its symbol.
    pub symbol: &'static str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Words of the second parameter, an even number. Behind them comes a [`Step`].
    pub extra: Vec<u32>,
}

/// `Step` of common.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Step {
    /// Whether the next kernel may start before this one has waited.
    pub release_first: u32,
    /// Nothing.
    pub unused: u32,
}

/// Whether a kernel reads, before it waits, what came from two kernels back: then the kernel between may let it start only
/// after its own wait.
pub fn reads_two_back(symbol: &str) -> bool {
    matches!(
        symbol,
        "native_moe_gate_up" | "native_moe_down" | "native_batch_down" | "native_attention_combine"
    )
}

/// Whether the native kernel of the op that stands at `at` in `order` may read what it reads before it waits: the op in
/// front must not have made it; of state and caches, no op of the step.
pub fn early_reads_hold(plan: &Plan, order: &[usize], at: usize) -> bool {
    let op = &plan.ops[order[at]];
    let (names, from): (&[&str], usize) = match op.kernel.as_str() {
        k if k.starts_with("moe_gate_up_") => (&["residual"], at.saturating_sub(1)),
        k if k.starts_with("moe_down_") => (&["routed", "residual"], at.saturating_sub(1)),
        "attention_combine" | "attention_blocks_combine" => (&["projected"], at.saturating_sub(1)),
        "gdn_step" => (&["ring", "state"], 0),
        "attention_split_8" | "attention_blocks_8" => (&["keys", "values"], 0),
        _ => return true,
    };
    let writers = &order[from..at];
    op.args.iter().filter(|a| names.contains(&a.name)).all(|a| {
        let ArgValue::Buffer { view, .. } = a.value else { return true };
        !writers.iter().any(|&j| plan.ops[j].writes.iter().any(|w| w.touches(&view)))
    })
}

/// A scalar of the op's inline structure.
pub(super) fn scalar(op: &Op, name: &str) -> Option<u32> {
    fields(op).find_map(|(n, v)| match v {
        Scalar::U32(v) if n == name => Some(v),
        _ => None,
    })
}

pub(super) fn four(op: &Op, name: &str) -> Option<[u32; 4]> {
    fields(op).find_map(|(n, v)| match v {
        Scalar::U32x4(v) if n == name => Some(v),
        _ => None,
    })
}

fn fields(op: &Op) -> impl Iterator<Item = (&'static str, Scalar)> + '_ {
    op.args
        .iter()
        .flat_map(|a| match &a.value {
            ArgValue::Inline(list) => list.as_slice(),
            ArgValue::Buffer { .. } => &[],
        })
        .copied()
}

/// The native kernel for an op, if there is one for its shape. Bulk copies need addresses that are multiples of 16; the
/// caller checks those of the buffers, shapes are checked here.
pub fn route(op: &Op, limits: &Limits, options: &CudaOptions) -> Option<Launch> {
    if limits.arch < super::compile::NATIVE_ARCH {
        return None;
    }
    if let Some(launch) = native_batch::route(op, limits, options).filter(|l| l.shared <= limits.shared) {
        return Some(launch);
    }
    let launch = match op.kernel.as_str() {
        k if k.starts_with("project_") => project(op, limits),
        k if k.starts_with("moe_gate_up_") => moe_gate_up(op, limits),
        k if k.starts_with("moe_down_") => moe_down(op),
        "gdn_step" => gdn_step(op),
        "attention_split_8" | "attention_blocks_8" => attention_split(op, options),
        "attention_combine" | "attention_blocks_combine" => attention_combine(op),
        _ => super::native_prefill::route(op, limits),
    }?;
    (launch.shared <= limits.shared).then_some(launch)
}

/// Most bytes of a block's ring: two kernels' blocks share a multiprocessor while one hands over to the next.
const MOST_RING: u32 = 152 << 10;
/// `MOST_STAGES` of project.cu.
const MOST_STAGES: u32 = 12;
/// Most tokens whose activations a block keeps.
const MOST_TOKENS: u32 = 8;
/// Rows of a tile.
pub(super) const TILE_ROWS: u32 = 16;

/// `STAGED_BYTES` of common.cuh, padded.
const fn staged(cols: u32) -> u32 {
    (cols * 2 + cols / 64 * 8).next_multiple_of(128)
}

/// A tile of 16 rows in shared memory, with its scales and biases.
const fn tile_bytes(cols: u32, bits: u32) -> u32 {
    TILE_ROWS * (cols / 8 * bits + cols / 64 * 4)
}

fn project(op: &Op, limits: &Limits) -> Option<Launch> {
    let (cols, matrices) = (scalar(op, "cols")?, scalar(op, "matrices")? as usize);
    let (rows, bits) = (four(op, "rows")?, four(op, "bits")?);
    let widest = bits[..matrices].iter().copied().max()?;
    let symbol = match (op.kernel.starts_with("project_norm_"), cols, widest) {
        (true, 2048, 4) => "native_project_norm",
        (true, 2048, 8) => "native_project_norm_mixed",
        (false, 4096, 4) => "native_project_add",
        _ => return None,
    };
    let tokens = op.grid[1];
    let tiles: u32 = rows[..matrices].iter().map(|r| r.div_ceil(TILE_ROWS)).sum();
    let stage = tile_bytes(cols, widest);
    let blocks = tiles.min(limits.multiprocessors);
    let stages = tiles.div_ceil(blocks).min(MOST_RING / stage).clamp(1, MOST_STAGES);
    let most_tokens = tokens.min(MOST_TOKENS);
    // Two rounds' sums: a float for each row and slice of 256 columns.
    let sums = 2 * stages * (cols / 256) * TILE_ROWS * 4;
    Some(Launch {
        symbol,
        grid: [blocks, tokens.div_ceil(most_tokens), 1],
        threads: 17 * 32,
        shared: 1024 + (most_tokens * staged(cols)).next_multiple_of(128) + sums + stages * stage,
        extra: vec![tiles / blocks, tiles % blocks, stages, stage, tokens, most_tokens],
    })
}

fn moe_gate_up(op: &Op, limits: &Limits) -> Option<Launch> {
    let (hidden, width, chosen) = (scalar(op, "hidden")?, scalar(op, "width")?, scalar(op, "chosen")?);
    if hidden != 2048 || width != 512 || scalar(op, "experts")? > 256 || chosen > 8 {
        return None;
    }
    let tiles = chosen * width / 8;
    let most = tiles.div_ceil(limits.multiprocessors);
    // `GATE_UP_TILES` of moe.cu.
    if most > 8 {
        return None;
    }
    let blocks = tiles.div_ceil(most);
    Some(Launch {
        symbol: "native_moe_gate_up",
        grid: [blocks, 1, op.grid[2]],
        threads: 17 * 32,
        shared: 1024 + staged(hidden) + 8 * (hidden / 256) * 16 * 4 + most * tile_bytes(hidden, 4),
        extra: vec![tiles / blocks, tiles % blocks],
    })
}

fn moe_down(op: &Op) -> Option<Launch> {
    let (hidden, experts) = (scalar(op, "hidden")?, scalar(op, "experts")?);
    let widths = [scalar(op, "width")?, scalar(op, "shared_width")?, scalar(op, "chosen")?];
    if hidden % 16 != 0 || experts > 256 || widths != [512, 512, 8] {
        return None;
    }
    Some(Launch {
        symbol: "native_moe_down",
        grid: [hidden / 16, 1, op.grid[2]],
        threads: 19 * 32,
        shared: 2048 + staged(9 * 512) + 9 * tile_bytes(512, 4),
        extra: vec![0, 0],
    })
}

fn gdn_step(op: &Op) -> Option<Launch> {
    Some(Launch {
        symbol: "native_gdn_step",
        grid: [4 * scalar(op, "value_heads")?, op.grid[1], 1],
        threads: 256,
        shared: 0,
        extra: vec![],
    })
}

fn attention_split(op: &Op, options: &CudaOptions) -> Option<Launch> {
    let span = scalar(op, "span")?;
    if span % 16 != 0 {
        return None;
    }
    // A tile of 16 positions for each warp; rows of 512 bytes are padded.
    let warps = if span == 0 { 8 } else { (span / 16).min(8) };
    let row = 512 + 16;
    // The warps' results meet in the same place.
    let ring = warps * (2 * 16 * row).max(8 * 260 * 4);
    let copies = if options.packed { 1 } else { 8 };
    Some(Launch {
        symbol: "native_attention_split",
        grid: [op.grid[0], op.grid[1] * copies, op.grid[2]],
        threads: 256,
        shared: 2 * 8 * row + 1024 + ring,
        extra: vec![warps, copies],
    })
}

fn attention_combine(op: &Op) -> Option<Launch> {
    if scalar(op, "splits")? > MOST_SPLITS as u32 {
        return None;
    }
    Some(Launch {
        symbol: "native_attention_combine",
        grid: op.grid,
        threads: 256,
        shared: 0,
        extra: vec![0, 1],
    })
}

/// How a context is split in decode attention on a GPU of so many multiprocessors: one block for each KV head and
/// split, so that with two KV heads all of them have one. A short context has splits of a fixed length, as many as it
/// needs; a long one is cut into equal blocks, as many as there is room for.
pub fn attention_splits(context: usize, limits: Limits) -> Splits {
    let most = (limits.multiprocessors as usize / 2).clamp(1, MOST_SPLITS);
    let class = context.max(1).next_power_of_two().max(SHORTEST_SPAN);
    match class / SHORTEST_SPAN {
        count if count <= most => Splits::Spans { span: SHORTEST_SPAN, count },
        _ => Splits::Blocks(most),
    }
}

/// Four tiles of positions.
const SHORTEST_SPAN: usize = 64;
/// `MOST_SPLITS` of attention.cu.
const MOST_SPLITS: usize = 256;
