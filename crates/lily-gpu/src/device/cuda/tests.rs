//! What can be tested without a GPU: routes, layouts, the text for the compiler.

use super::{
    compile,
    driver::Limits,
    native::{self, attention_splits},
};
use crate::{
    kernels,
    plan::{DecodeShape, Head, Ids, ModelShape, Op, Plan, bind, decode_plan, routes::Splits},
};
use lily_model::{ModelConfig, config::Quantization};

const H200: Limits = Limits { arch: 90, multiprocessors: 132, shared: 232_448 };

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

fn op(plan: &Plan, label: &str) -> Op {
    plan.ops.iter().find(|o| o.label == label).unwrap_or_else(|| panic!("no op {label}")).clone()
}

/// Every kernel of a step but the embedding and the arg-max has a native form on an H200, and none on older GPUs.
#[test]
fn which_ops_are_native() {
    let plan = plan(1);
    for o in &plan.ops {
        let expected = !matches!(o.kernel.as_str(), "embed" | "argmax_blocks" | "argmax_final");
        assert_eq!(native::route(o, &H200).is_some(), expected, "{}", o.label);
        assert_eq!(native::route(o, &Limits { arch: 89, ..H200 }), None, "{}", o.label);
    }
}

/// Launches of the projections at their edges: every row in a tile, no more blocks than multiprocessors, rings that fit.
#[test]
fn projections() {
    let one = plan(1);
    // 12,352 rows: 772 tiles of 16 rows on 132 blocks, six at most, all in the ring.
    let l = native::route(&op(&one, "layers.0.gdn.in"), &H200).expect("native");
    assert_eq!((l.symbol, l.grid, l.threads), ("native_project_norm", [132, 1, 1], 544));
    let tile = 16 * (1024 + 128);
    assert_eq!(l.extra, [5, 112, 6, tile, 1, 1]);
    assert_eq!(l.shared, 1024 + 4352 + 2 * 6 * 8 * 16 * 4 + 6 * tile);
    // 2,048 rows: a tile for each of 128 blocks.
    let l = native::route(&op(&one, "layers.0.gdn.out"), &H200).expect("native");
    assert_eq!((l.symbol, l.grid), ("native_project_add", [128, 1, 1]));
    assert_eq!(l.extra[..4], [1, 0, 1, 16 * (2048 + 256)]);
    // 256 + 1 rows of 8 bits, 512 + 512 of 4.
    let l = native::route(&op(&one, "layers.0.router"), &H200).expect("native");
    assert_eq!((l.symbol, l.grid), ("native_project_norm_mixed", [16 + 1 + 32 + 32, 1, 1]));
    assert_eq!(l.extra[..4], [1, 0, 1, 16 * (2048 + 128)]);
    // 248,320 rows stream through the ring.
    let l = native::route(&op(&one, "lm_head"), &H200).expect("native");
    assert_eq!((l.grid, &l.extra[..3]), ([132, 1, 1], &[117, 76, 8][..]));
    assert_eq!(l.extra[0] * 132 + l.extra[1], 15_520);
    // A batch: eight tokens a block.
    let l = native::route(&op(&plan(16), "layers.0.gdn.in"), &H200).expect("native");
    assert_eq!((l.grid, l.extra[4], l.extra[5]), ([132, 2, 1], 16, 8));
    for tokens in 1..=32 {
        for o in &plan(tokens).ops {
            let Some(l) = native::route(o, &H200) else { continue };
            assert!(l.shared <= H200.shared && l.grid.iter().all(|&g| g > 0), "{tokens} tokens: {}", o.label);
        }
    }
}

#[test]
fn experts() {
    let one = plan(1);
    // 512 tiles, four for each of 128 blocks.
    let l = native::route(&op(&one, "layers.0.experts.gate_up"), &H200).expect("native");
    assert_eq!((l.grid, l.extra.as_slice()), ([128, 1, 1], &[4, 0][..]));
    let l = native::route(&op(&one, "layers.0.experts.down"), &H200).expect("native");
    assert_eq!((l.grid, l.threads), ([128, 1, 1], 608));
    let l = native::route(&op(&one, "layers.0.gdn.step"), &H200).expect("native");
    assert_eq!((l.grid, l.threads), ([128, 1, 1], 288));
}

#[test]
fn splits_of_contexts() {
    let splits = |context| attention_splits(context, H200);
    let spans = |span, count| Splits::Spans { span, count };
    assert_eq!(splits(0), spans(64, 1));
    assert_eq!(splits(64), spans(64, 1));
    assert_eq!(splits(65), spans(64, 2));
    assert_eq!(splits(4_096), spans(64, 64));
    assert_eq!(splits(4_097), spans(128, 64));
    assert_eq!(splits(131_072), spans(2_048, 64));
    for context in 1..5000 {
        assert!(splits(context).most(usize::MAX) >= context && splits(context).count() <= 64);
    }
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
    for symbol in native::SYMBOLS {
        assert!(
            program.source.contains(&format!("{symbol}(")) || program.source.contains(&format!("({symbol},")),
            "{symbol}"
        );
    }
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
