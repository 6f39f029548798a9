//! What can be tested without a GPU: routes, layouts, the text for the compiler.

use super::{
    CudaOptions, Together, compile,
    driver::Limits,
    native::{self, Launch, attention_splits},
    native_prefill::{HOPPER, HOPPER_SYMBOLS, misplaced, precision},
    workspace::{self, Need, Workspace},
};
use crate::{
    device::Precision,
    kernels,
    plan::{
        DecodeShape, Head, Ids, ModelShape, Op, Plan, PrefillHead, PrefillShape, Products, WORKSPACE, bind,
        decode_plan, prefill_plan, routes::Splits,
    },
};
use lily_model::{ModelConfig, config::Quantization};

const H200: Limits = Limits { arch: 90, multiprocessors: 132, shared: 232_448, clusters: 15 };

fn plan(tokens: usize) -> Plan {
    let config = ModelConfig::qwen3_6_35b_a3b(4);
    let model = ModelShape::from_quantization(&config, &Quantization::mlx_4bit(4));
    let shape = DecodeShape {
        tokens,
        slots: tokens,
        capacity: 4096,
        splits: attention_splits(4096, H200),
        context: 4096,
        ids: Ids::Input,
        head: Head::Greedy { slot: 0, valid: config.vocab_size },
    };
    decode_plan(&model, &shape)
}

/// The route with the usual options.
fn route(op: &Op, limits: &Limits) -> Option<Launch> {
    native::route(op, limits, &CudaOptions::default())
}

/// The route without the kernels of batch.cu.
fn route_each(op: &Op) -> Option<Launch> {
    native::route(op, &H200, &CudaOptions { together: Together::Never, ..CudaOptions::default() })
}

fn op(plan: &Plan, label: &str) -> Op {
    plan.ops.iter().find(|o| o.label == label).unwrap_or_else(|| panic!("no op {label}")).clone()
}

/// Every kernel of a step but the embedding and the arg-max has a native form on an H200, and none on older GPUs.
#[test]
fn which_ops_are_native() {
    let plan = plan(1);
    for o in &plan.ops {
        let expected = !matches!(o.kernel.as_str(), "embed" | "argmax_blocks" | "argmax_final");
        assert_eq!(route(o, &H200).is_some(), expected, "{}", o.label);
        assert_eq!(route(o, &Limits { arch: 89, ..H200 }), None, "{}", o.label);
    }
}

/// Launches of the projections at their edges: every row in a tile, no more blocks than multiprocessors, rings that fit.
#[test]
fn projections() {
    let one = plan(1);
    // 12,352 rows: 772 tiles of 16 rows on 132 blocks, six at most, all in the ring.
    let l = route(&op(&one, "layers.0.gdn.in"), &H200).expect("native");
    assert_eq!((l.symbol, l.grid, l.threads), ("native_project_norm", [132, 1, 1], 544));
    let tile = 16 * (1024 + 128);
    assert_eq!(l.extra, [5, 112, 6, tile, 1, 1]);
    assert_eq!(l.shared, 1024 + 4352 + 2 * 6 * 8 * 16 * 4 + 6 * tile);
    // 2,048 rows: a tile for each of 128 blocks.
    let l = route(&op(&one, "layers.0.gdn.out"), &H200).expect("native");
    assert_eq!((l.symbol, l.grid), ("native_project_add", [128, 1, 1]));
    assert_eq!(l.extra[..4], [1, 0, 1, 16 * (2048 + 256)]);
    // 256 + 1 rows of 8 bits, 512 + 512 of 4.
    let l = route(&op(&one, "layers.0.router"), &H200).expect("native");
    assert_eq!((l.symbol, l.grid), ("native_project_norm_mixed", [16 + 1 + 32 + 32, 1, 1]));
    assert_eq!(l.extra[..4], [1, 0, 1, 16 * (2048 + 128)]);
    // 248,320 rows stream through the ring.
    let l = route(&op(&one, "lm_head"), &H200).expect("native");
    assert_eq!((l.grid, &l.extra[..3]), ([132, 1, 1], &[117, 76, 8][..]));
    assert_eq!(l.extra[0] * 132 + l.extra[1], 15_520);
    // A batch: eight tokens a block.
    let l = route_each(&op(&plan(16), "layers.0.gdn.in")).expect("native");
    assert_eq!((l.grid, l.extra[4], l.extra[5]), ([132, 2, 1], 16, 8));
    for tokens in 1..=32 {
        for o in &plan(tokens).ops {
            let always = CudaOptions { together: Together::Always, ..CudaOptions::default() };
            for l in [route(o, &H200), route_each(o), native::route(o, &H200, &always)].into_iter().flatten()
            {
                assert!(
                    l.shared <= H200.shared && l.grid.iter().all(|&g| g > 0),
                    "{tokens} tokens: {}",
                    o.label
                );
            }
        }
    }
}

#[test]
fn experts() {
    let one = plan(1);
    // 512 tiles, four for each of 128 blocks.
    let l = route(&op(&one, "layers.0.experts.gate_up"), &H200).expect("native");
    assert_eq!((l.grid, l.extra.as_slice()), ([128, 1, 1], &[4, 0][..]));
    let l = route(&op(&one, "layers.0.experts.down"), &H200).expect("native");
    assert_eq!((l.grid, l.threads), ([128, 1, 1], 608));
    let l = route(&op(&one, "layers.0.gdn.step"), &H200).expect("native");
    assert_eq!((l.grid, l.threads), ([128, 1, 1], 256));
}

/// Which kernels a step of several sequences takes: where weights are read once for all, and where not.
#[test]
fn measured_batches() {
    let at = |tokens: usize, label: &str| route(&op(&plan(tokens), label), &H200).expect("native").symbol;
    for (tokens, project, gate_up, down) in [
        (1, "native_project_norm", "native_moe_gate_up", "native_moe_down"),
        (2, "native_project_norm", "native_moe_gate_up", "native_moe_down"),
        (3, "native_batch_norm_8", "native_moe_gate_up", "native_moe_down"),
        (4, "native_batch_norm_8", "native_batch_gate_up", "native_batch_down"),
        (8, "native_batch_norm_8", "native_batch_gate_up", "native_batch_down"),
        (9, "native_batch_norm_16", "native_batch_gate_up", "native_batch_down"),
        (32, "native_batch_norm_16", "native_batch_gate_up", "native_batch_down"),
    ] {
        assert_eq!(at(tokens, "layers.0.gdn.in"), project, "{tokens}");
        assert_eq!(at(tokens, "layers.0.experts.gate_up"), gate_up, "{tokens}");
        assert_eq!(at(tokens, "layers.0.experts.down"), down, "{tokens}");
    }
}

/// The kernels for several tokens, at the edges of 8 and 16.
#[test]
fn batches() {
    let options = CudaOptions { together: Together::Always, ..CudaOptions::default() };
    let with = |limits: &Limits, tokens: usize, label: &str| {
        native::route(&op(&plan(tokens), label), limits, &options).expect("native")
    };
    let at = |tokens: usize, label: &str| with(&H200, tokens, label);
    for (tokens, symbol, blocks) in [
        (1, "native_project_norm", 1),
        (2, "native_batch_norm_8", 1),
        (8, "native_batch_norm_8", 1),
        (9, "native_batch_norm_16", 1),
        (16, "native_batch_norm_16", 1),
        (17, "native_batch_norm_16", 2),
        (32, "native_batch_norm_16", 2),
    ] {
        let l = at(tokens, "layers.0.gdn.in");
        assert_eq!((l.symbol, l.grid[1]), (symbol, blocks), "{tokens}");
        // 15 clusters of eight blocks: 51 of the 772 tiles for each, one more for seven of them.
        if tokens > 1 {
            assert_eq!((l.grid[0], l.threads), (120, 512));
            assert_eq!(l.extra, [51, 7, tokens as u32, 0]);
        }
    }
    assert_eq!(at(3, "layers.0.router").symbol, "native_batch_norm_mixed_8");
    assert_eq!(at(13, "layers.0.router").symbol, "native_batch_norm_mixed_16");
    assert_eq!(at(8, "layers.0.gdn.out").symbol, "native_batch_add_8");
    // 128 tiles: eight for seven clusters, nine for eight.
    let l = at(9, "layers.0.gdn.out");
    assert_eq!((l.symbol, l.grid), ("native_batch_add_16", [120, 1, 1]));
    assert_eq!(l.extra, [8, 8, 9, 0]);
    // 7,760 pairs of tiles: 58 for each block, one more for 104.
    let l = at(2, "lm_head");
    assert_eq!((l.symbol, l.grid, l.threads), ("native_batch_long_8", [132, 1, 1], 512));
    assert_eq!(l.extra, [58, 104, 2, 0]);
    assert_eq!((at(17, "lm_head").symbol, at(17, "lm_head").grid), ("native_batch_long_16", [132, 2, 1]));
    let l = at(17, "layers.0.experts.gate_up");
    assert_eq!((l.symbol, l.grid, l.threads), ("native_batch_gate_up", [132, 1, 2], 1024));
    let l = at(16, "layers.0.experts.down");
    assert_eq!((l.symbol, l.grid, l.threads), ("native_batch_down", [120, 1, 1], 864));
    assert_eq!(l.extra, [8, 8, 16, 0]);
    // Other GPUs. A cluster has room for nine tiles, so 15 it is; blocks of few multiprocessors would have units of more
    // than two jobs; without clusters no kernel of a batch.
    let with_clusters = |clusters| with(&Limits { clusters, ..H200 }, 16, "layers.0.experts.down").grid[0];
    assert_eq!([8, 14, 15, 16, 18].map(with_clusters), [120, 120, 120, 128, 144]);
    for (multiprocessors, symbol) in [(126, "native_moe_gate_up"), (127, "native_batch_gate_up")] {
        let l = with(&Limits { multiprocessors, ..H200 }, 16, "layers.0.experts.gate_up");
        assert_eq!(l.symbol, symbol);
    }
    for label in ["layers.0.gdn.in", "layers.0.experts.gate_up", "layers.0.experts.down"] {
        let l = with(&Limits { clusters: 0, ..H200 }, 16, label);
        assert!(!l.symbol.contains("batch"), "{label}");
    }
}

/// Attention without packing: eight blocks do what one does with it.
#[test]
fn packing() {
    let op = op(&plan(1), "layers.3.attention.split");
    let packed = route(&op, &H200).expect("native");
    let options = CudaOptions { packed: false, ..CudaOptions::default() };
    let unpacked = native::route(&op, &H200, &options).expect("native");
    assert_eq!((packed.grid, packed.extra[1]), ([64, 2, 1], 1));
    assert_eq!((unpacked.grid, unpacked.extra[1]), ([64, 16, 1], 8));
}

#[test]
fn splits_of_contexts() {
    let splits = |context| attention_splits(context, H200);
    let spans = |span, count| Splits::Spans { span, count };
    assert_eq!(splits(0), spans(64, 1));
    assert_eq!(splits(64), spans(64, 1));
    assert_eq!(splits(65), spans(64, 2));
    assert_eq!(splits(4_096), spans(64, 64));
    assert_eq!(splits(4_097), Splits::Blocks(66));
    assert_eq!(splits(131_072), Splits::Blocks(66));
    for context in 1..5000 {
        assert!(splits(context).most(usize::MAX) >= context && splits(context).count() <= 66);
    }
    // A GPU of few multiprocessors, and one of very many.
    assert_eq!(attention_splits(64, Limits { multiprocessors: 1, ..H200 }), spans(64, 1));
    assert_eq!(attention_splits(4_096, Limits { multiprocessors: 16, ..H200 }), Splits::Blocks(8));
    assert_eq!(attention_splits(1 << 20, Limits { multiprocessors: 1 << 12, ..H200 }), Splits::Blocks(256));
}

/// In a decode step every native kernel may read early what it does; where the op in front makes it, it may not.
#[test]
fn early_reads() {
    let mut plan = plan(2);
    let order: Vec<usize> = plan.levels.iter().flatten().copied().collect();
    assert_eq!(order.len(), plan.ops.len());
    assert!((0..order.len()).all(|at| native::early_reads_hold(&plan, &order, at)));
    // The router written by the op right before the experts' down.
    let down = plan.ops.iter().position(|o| o.label == "layers.0.experts.down").expect("an op");
    let routed = plan.ops.iter().find(|o| o.label == "layers.0.router").expect("an op").writes.clone();
    plan.ops[down - 1].writes.extend(routed);
    assert!(!native::early_reads_hold(
        &plan,
        &order,
        order.iter().position(|&i| i == down).expect("in order")
    ));
    // State that an earlier op of the step has written.
    let step = plan.ops.iter().position(|o| o.label == "layers.2.gdn.step").expect("an op");
    let state = plan.ops[step].writes.clone();
    plan.ops[0].writes.extend(state);
    assert!(!native::early_reads_hold(
        &plan,
        &order,
        order.iter().position(|&i| i == step).expect("in order")
    ));
}

/// The structures that native kernels are compiled with are as long as the manifest's, and hold every argument.
#[test]
fn source_has_every_structure_and_kernel() {
    let manifest = kernels::manifest().expect("the kernels parse");
    let program = compile::native_program(90, manifest).expect("the source can be written");
    for symbol in native::symbols(90) {
        assert!(
            program.source.contains(&format!("{symbol}(")) || program.source.contains(&format!("({symbol},")),
            "{symbol}"
        );
    }
    assert!(program.options.contains(&"-arch=sm_90a".to_string()));
    // Later architectures do not have Hopper's own instructions.
    let later = compile::native_program(120, manifest).expect("the source can be written");
    assert!(later.options.contains(&"-arch=sm_120".to_string()) && !later.source.contains("wgmma"));
    assert!(native::symbols(120).all(|s| !HOPPER_SYMBOLS.contains(&s) && later.source.contains(s)));
    let project = manifest.kernel("project_norm_1").expect("a kernel");
    for a in &project.args {
        assert!(program.source.contains(&format!(" {};", a.name)), "{}", a.name);
    }
    assert!(
        program.source.contains(&format!("static_assert(sizeof(ProjectArgs) == {}", project.cuda_args_bytes))
    );
    // All variants of a family take the same arguments, so one structure serves them.
    for k in manifest.kernels.iter().filter(|k| k.name.starts_with("project_")) {
        let shape = |k: &lily_msl::manifest::KernelManifest| {
            k.args.iter().map(|a| (a.name.clone(), a.cuda_offset)).collect::<Vec<_>>()
        };
        assert_eq!(shape(k), shape(project), "{}", k.name);
    }
}

/// The plan binds to the manifest that the CUDA kernels are compiled from.
#[test]
fn plan_binds() {
    let manifest = kernels::manifest().expect("the kernels parse");
    assert_eq!(bind(&plan(2), manifest).expect("binds").len(), plan(2).ops.len());
}

fn prefill(tokens: usize) -> Plan {
    prefill_of(tokens, Products::F32)
}

fn prefill_of(tokens: usize, products: Products) -> Plan {
    let config = ModelConfig::qwen3_6_35b_a3b(4);
    let model = ModelShape::from_quantization(&config, &Quantization::mlx_4bit(4)).with_products(products);
    let shape = PrefillShape { tokens, slots: 1, capacity: 8192, context: tokens, head: PrefillHead::Last };
    prefill_plan(&model, &shape)
}

fn symbols(plan: &Plan, limits: &Limits) -> Vec<String> {
    plan.ops.iter().map(|o| route(o, limits).map_or(o.kernel.clone(), |l| l.symbol.to_string())).collect()
}

#[test]
fn kernels_of_a_chunk() {
    let plan = prefill(2048);
    let halves = prefill_of(2048, Products::F16);
    let of = |limits: &Limits, label: &str| {
        let plan = if limits.arch == HOPPER { &plan } else { &halves };
        route(&op(plan, label), limits).map(|l| l.symbol)
    };
    for (label, hopper, later) in [
        ("layers.0.gdn.in", "hopper_gemm_128", "native_gemm"),
        ("layers.0.gdn.out", "hopper_gemm_add_128", "native_gemm_add"),
        ("layers.0.gdn.convolve", "native_gdn_convolve", "native_gdn_convolve"),
        ("layers.0.gdn.factors", "native_gdn_factors", "native_gdn_factors"),
        ("layers.0.gdn.scan", "native_gdn_scan", "native_gdn_scan"),
        ("layers.0.experts.router", "native_router", "native_router"),
        ("layers.0.experts.sort", "native_moe_sort", "native_moe_sort"),
        ("layers.0.experts.gate_up", "hopper_experts_gate_up_128", "native_experts_gate_up"),
        ("layers.0.experts.down", "hopper_experts_down_128", "native_experts_down"),
        ("layers.0.experts.shared_gate_up", "hopper_shared_gate_up", "native_shared_gate_up"),
    ] {
        assert_eq!(of(&H200, label), Some(hopper), "{label}");
        assert_eq!(of(&Limits { arch: 100, ..H200 }, label), Some(later), "{label}");
        assert_eq!(of(&Limits { arch: 80, ..H200 }, label), None, "{label}");
    }
    assert_eq!(of(&H200, "layers.0.experts.blocks"), Some("native_moe_blocks"));
    assert_eq!(of(&H200, "layers.3.attention.flash"), Some("hopper_attention_prefill"));
    for later in ["layers.0.experts.blocks", "layers.3.attention.flash"] {
        assert_eq!(of(&Limits { arch: 120, ..H200 }, later), None, "{later}");
    }
    // Every grid has blocks and fits; 128 tokens of eight heads a block of attention, two KV heads.
    for tokens in [32, 64, 96, 320, 512, 2048, 8192] {
        for o in &prefill(tokens).ops {
            let Some(l) = route(o, &H200) else { continue };
            assert!(l.shared <= H200.shared && l.grid.iter().all(|&g| g > 0), "{tokens}: {}", o.label);
            assert!(l.extra.len() % 2 == 0, "{}", o.label);
        }
    }
    // 32 tokens a block, whatever the translated kernel's tile: 2,048 are 64 of them, 320 ten, 96 three.
    for (tokens, blocks) in [(2048, 64), (320, 10), (96, 3)] {
        let router = route(&op(&prefill(tokens), "layers.0.experts.router"), &H200).expect("native");
        assert_eq!(router.grid[1], blocks, "{tokens}");
    }
    let flash = route(&op(&plan, "layers.3.attention.flash"), &H200).expect("native");
    assert_eq!(flash.grid, [2048 / 16 * 2, 1, 1]);
}

/// A GDN chunk's three kernels share a layout: together or not at all. Blocks of more than 32 pairs are for Hopper's products only.
#[test]
fn kernels_that_go_together() {
    let check = |plan: &Plan, limits: &Limits| {
        let order: Vec<usize> = (0..plan.ops.len()).collect();
        let symbols = symbols(plan, limits);
        let names: Vec<&str> = symbols.iter().map(String::as_str).collect();
        misplaced(plan, &order, &names).into_iter().map(|at| plan.ops[at].label.clone()).collect::<Vec<_>>()
    };
    for tokens in [32, 64, 2048] {
        assert_eq!(check(&prefill(tokens), &H200), Vec::<String>::new(), "{tokens}");
    }
    // Too little shared memory for the scan: convolution and factors stay translated as well.
    let little = Limits { arch: 120, shared: 101_376, ..H200 };
    let found = check(&prefill(64), &little);
    assert_eq!(found.len(), 6, "{found:?}");
    assert!(found.iter().all(|l| l.ends_with("gdn.convolve") || l.ends_with("gdn.factors")), "{found:?}");
    // One of the three alone finds the translated kernels' layout.
    for kernel in ["convolve", "factors", "scan"] {
        let mut alone = prefill(64);
        alone.ops.retain(|o| o.label == format!("layers.0.gdn.{kernel}"));
        assert_eq!(check(&alone, &H200), [format!("layers.0.gdn.{kernel}")]);
    }
    // An odd step of 32 tokens: none of the three has a native form.
    assert!(route(&op(&prefill(96), "layers.0.gdn.scan"), &H200).is_none());
    // Products of the experts that cannot take large blocks.
    let plan = prefill(64);
    let order: Vec<usize> = (0..plan.ops.len()).collect();
    let mut names = symbols(&plan, &H200);
    let at = plan.ops.iter().position(|o| o.label == "layers.1.experts.down").expect("an op");
    names[at] = "native_experts_down".into();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = misplaced(&plan, &order, &names);
    assert_eq!(found.len(), 4);
    assert!(found.iter().all(|&at| plan.ops[at].kernel == "moe_blocks"));
}

/// Of the kernels whose arguments are f32 only Hopper's attention computes with halves.
#[test]
fn precision_of_kernels() {
    let coarse: Vec<&str> = native::symbols(90).filter(|s| precision(s) == Precision::F16).collect();
    assert_eq!(coarse, ["hopper_attention_prefill"]);
    assert_eq!(precision("gdn_scan"), Precision::F32);
}

/// Rows that are halves are for GPUs without Hopper's kernels, f32 rows for those with.
#[test]
fn rows_of_a_chunk() {
    let halves = prefill_of(2048, Products::F16);
    for o in &halves.ops {
        let symbol = route(o, &H200).map_or("", |l| l.symbol);
        assert!(!symbol.starts_with("hopper_"), "{}: {symbol}", o.label);
    }
    for o in &prefill(2048).ops {
        let later = route(o, &Limits { arch: 120, ..H200 }).map_or("", |l| l.symbol);
        assert!(!later.starts_with("hopper_") && !later.contains("gemm"), "{}: {later}", o.label);
    }
}

/// What products and attention of a chunk want of memory, and which of them find it as they want it.
#[test]
fn workspace_of_a_chunk() {
    let plan = prefill(2048);
    let order: Vec<usize> = plan.levels.iter().flatten().copied().collect();
    let needs: Vec<Option<Need>> = order
        .iter()
        .map(|&i| route(&plan.ops[i], &H200).and_then(|l| Need::of(&plan.ops[i], l.symbol)))
        .collect();
    let need = |label: &str| {
        needs[order.iter().position(|&i| plan.ops[i].label == label).expect("an op")].expect("a need")
    };
    let workspace = Workspace::of(needs.iter().flatten().copied());
    let all = workspace.places.iter().sum();
    let workspace = Workspace { address: 1 << 20, bytes: all, ..workspace };
    // Two halves a value, and 8 KiB of sums and factors for 128 rows of 512 columns.
    let rows = |n: u64, cols: u64| n * cols * 4 + n / 128 * (cols / 512) * 8192;
    for (label, want) in [
        ("layers.0.gdn.in", rows(2048, 2048)),
        ("layers.0.gdn.out", rows(2048, 4096)),
        ("layers.3.attention.out", rows(2048, 4096)),
        ("layers.0.experts.gate_up", rows(2048, 2048)),
        ("layers.0.experts.shared_gate_up", rows(2048, 2048)),
        ("layers.0.experts.down", rows(2048 * 8, 512)),
        ("layers.0.experts.shared_down", rows(2048, 512)),
        // Two KV heads, keys and values, 8,192 positions of 512 bytes.
        ("layers.3.attention.flash", 2 * 2 * 8192 * 512),
    ] {
        assert_eq!(need(label).bytes(), want, "{label}");
        let [a, b] = need(label).places(workspace).expect("room");
        assert!(b > a && b < a + want && a % 256 == 0 && b % 256 == 0, "{label}");
        // Two places, of which the second is kept from what the others write.
        let (from, end) =
            if label.ends_with("gate_up") { (workspace.places[0], all) } else { (0, workspace.places[0]) };
        assert!(a >= (1 << 20) + from && a + want <= (1 << 20) + end, "{label}");
        let short = Workspace { bytes: a - (1 << 20) + want - 1, ..workspace };
        assert!(need(label).places(short).is_none(), "{label}");
    }
    // The two products of the experts' inputs want the same, and no other two.
    let held = workspace::held(&plan, &order, &needs);
    let labels: Vec<&str> = held.iter().map(|&at| plan.ops[order[at]].label.as_str()).collect();
    let pairs = labels.iter().filter(|l| l.ends_with("gate_up")).count();
    assert_eq!((labels.len(), pairs), (4, 4), "{labels:?}");
    // Unless something writes the inputs between them.
    let mut spoiled = plan.clone();
    let normed =
        spoiled.ops.iter().find(|o| o.label == "layers.0.experts.norm").expect("an op").writes.clone();
    let blocks = spoiled.ops.iter().position(|o| o.label == "layers.0.experts.blocks").expect("an op");
    spoiled.ops[blocks].writes.extend(normed);
    assert_eq!(workspace::held(&spoiled, &order, &needs).len(), 3);
    // Memory of one's own is one more buffer, which no op names.
    let with = plan.clone().with_workspace(77);
    assert_eq!(with.buffers.len(), plan.buffers.len() + 1);
    assert_eq!(with.buffer(WORKSPACE).map(|b| with.spec(b).bytes), Some(77));
    assert_eq!(plan.clone().with_workspace(0), plan);
}

/// Blocks of pairs are as large as the experts' tiles, at every size of a chunk.
#[test]
fn pairs_of_a_block() {
    for tokens in [32, 2048, 8192] {
        let plan = prefill(tokens);
        let launch = |label: &str| route(&op(&plan, label), &H200).expect("native");
        assert_eq!(launch("layers.0.experts.blocks").extra, [128, 0], "{tokens}");
        for kernel in ["gate_up", "down"] {
            let l = launch(&format!("layers.0.experts.{kernel}"));
            assert_eq!(l.symbol, format!("hopper_experts_{kernel}_128"), "{tokens}");
        }
    }
}
