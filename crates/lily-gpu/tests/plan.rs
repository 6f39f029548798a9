//! Plans as data: counters of the 35B model, agreement with the kernels' manifest, and seeded faults that must not get
//! past the start. Nothing here needs a compiler or a GPU.

use std::path::Path;

use lily_gpu::{
    GpuError, kernels,
    plan::{
        ArgValue, BoundOp, BufferKind, Counters, DecodeShape, Floor, Head, Ids, ModelShape, Plan,
        PrefillHead, PrefillShape, Products, Scalar, bind, decode_plan, prefill_plan, report,
        routes::attention_splits,
    },
};
use lily_model::{Checkpoint, ModelConfig, Quantization};

fn shapes() -> Vec<(&'static str, ModelShape)> {
    let open = |dir: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(dir);
        let c = Checkpoint::open(&path).unwrap();
        ModelShape::from_quantization(c.config(), c.quantization())
    };
    let large = ModelShape::from_quantization(&ModelConfig::qwen3_6_35b_a3b(40), &Quantization::mlx_4bit(40));
    vec![
        ("35B", large),
        ("tiny", open("crates/lily-model/tests/fixtures/tiny")),
        ("lily-mini", open("models/lily-mini")),
    ]
}

fn step(tokens: usize, context: usize, ids: Ids, head: Head) -> DecodeShape {
    DecodeShape { tokens, slots: 4, capacity: context, splits: attention_splits(context), context, ids, head }
}

/// The bars: at most 260 dispatches and 260 levels a token, at most 1.03 of the bytes that must move.
#[test]
fn counters_of_the_35b_model() {
    let config = ModelConfig::qwen3_6_35b_a3b(40);
    let quantization = Quantization::mlx_4bit(40);
    let model = ModelShape::from_quantization(&config, &quantization);
    for context in [128, 4096, 32_768, 262_144] {
        let plan = decode_plan(&model, &DecodeShape::single(context, config.vocab_size));
        let c = Counters::of(&plan);
        let floor = Floor::decode(&config, &quantization, context);
        let share = c.bytes() as f64 / floor.bytes() as f64;
        println!("context {context}: {share:.4} of the floor\n{c}");
        assert!(c.dispatches <= 260 && c.levels <= 260, "{} {}", c.dispatches, c.levels);
        assert!(share <= 1.03, "context {context}: {share}");
        // Nothing that must move is left out of the count. Vectors in f32 count more than the floor's BF16, and the
        // convolution's ring writes one input where the floor's tail writes three.
        assert!(c.weights.read >= floor.weights && c.kv.total() >= floor.kv, "{c}");
        assert!(c.state.total() as f64 > 0.95 * floor.state as f64, "{c}");
        assert_eq!(c.weights.written, 0);
    }
}

#[test]
fn plans_fit_the_kernels() {
    let manifest = kernels::manifest().unwrap_or_else(|e| panic!("{e}"));
    for (name, model) in shapes() {
        for tokens in [1, 3, 32] {
            for context in [1, 64, 65, 4096, 100_000] {
                for (ids, head) in [
                    (Ids::Input, Head::None),
                    (Ids::Input, Head::Logits),
                    (Ids::Slot(0), Head::Greedy { slot: 1, valid: model.config.vocab_size - 7 }),
                    (Ids::Slot(1), Head::Greedy { slot: 0, valid: 1 }),
                ] {
                    let plan = decode_plan(&model, &step(tokens, context, ids, head));
                    let ops = bind(&plan, manifest).unwrap_or_else(|e| panic!("{name}, {}: {e}", plan.name));
                    assert_eq!(ops.len(), plan.ops.len());
                    no_conflict_inside_a_level(&plan);
                }
            }
        }
    }
}

#[test]
fn prefill_plans_fit_the_kernels() {
    let manifest = kernels::manifest().unwrap_or_else(|e| panic!("{e}"));
    let both = |(name, model): (_, ModelShape)| {
        [Products::F32, Products::F16].map(|p| (name, model.clone().with_products(p)))
    };
    for (name, model) in shapes().into_iter().flat_map(both) {
        for tokens in [32, 64, 256, 2048] {
            for head in [PrefillHead::None, PrefillHead::Last, PrefillHead::All] {
                let shape = PrefillShape { tokens, slots: 4, capacity: 4096, context: 4096, head };
                let plan = prefill_plan(&model, &shape);
                let ops = bind(&plan, manifest).unwrap_or_else(|e| panic!("{name}, {}: {e}", plan.name));
                assert_eq!(ops.len(), plan.ops.len());
                no_conflict_inside_a_level(&plan);
            }
        }
    }
}

/// The same ops, arguments, grids and levels with or without tensor operations: they are other kernels for some ops.
#[test]
fn prefill_plans_of_tensor_operations() {
    let manifest = kernels::manifest_with(true).unwrap_or_else(|e| panic!("{e}"));
    for (name, model) in shapes() {
        let model = model.with_products(Products::F32);
        for tokens in [32, 64, 256, 2048] {
            let head = PrefillHead::Last;
            let shape = PrefillShape { tokens, slots: 4, capacity: 4096, context: 4096, head };
            let plain = prefill_plan(&model, &shape);
            let mut plan = prefill_plan(&model.clone().with_tensor_ops(true), &shape);
            bind(&plan, manifest).unwrap_or_else(|e| panic!("{name}, {}: {e}", plan.name));
            // A device without them has no such kernels.
            let common = kernels::manifest().unwrap();
            assert_eq!(bind(&plan, common).is_ok(), tokens == 32, "{name}, {tokens}");
            for (op, was) in plan.ops.iter_mut().zip(&plain.ops) {
                let product = op.kernel.starts_with("gemm_") || op.kernel.ends_with("_tensor");
                let exact = op.label.ends_with(".router") || tokens == 32;
                assert_eq!(op.kernel.contains("_tensor"), product && !exact, "{name}: {}", op.label);
                op.kernel.clone_from(&was.kernel);
            }
            assert_eq!(plan, plain, "{name}, {tokens}");
        }
    }
}

/// What every Apple GPU from M1 on has: 32 KiB of threadgroup memory, 1,024 threads of a threadgroup, 31 buffers. Sizes that
/// depend on the model are added by the plans, whose binding checks them too.
#[test]
fn every_kernel_fits_an_m1() {
    let manifest = kernels::manifest().unwrap();
    let (mut most, mut seen) = (std::collections::BTreeMap::new(), 0);
    for k in &manifest.kernels {
        assert!(k.threadgroup_bytes <= 32 << 10, "{}: {} bytes", k.name, k.threadgroup_bytes);
        assert!(k.args.iter().all(|a| a.index < 31), "{}", k.name);
        let threads = k.threads_per_threadgroup.unwrap_or(32);
        assert!(threads <= 1024 && threads.is_multiple_of(32), "{}: {threads} threads", k.name);
        most.insert(k.name.as_str(), k.threadgroup_bytes);
    }
    let plans = shapes().into_iter().flat_map(|(_, model)| {
        let step = decode_plan(&model, &step(3, 4096, Ids::Input, Head::Logits));
        let chunk =
            PrefillShape { tokens: 256, slots: 4, capacity: 4096, context: 4096, head: PrefillHead::Last };
        let chunks =
            [Products::F32, Products::F16].map(|p| prefill_plan(&model.clone().with_products(p), &chunk));
        [vec![step], chunks.to_vec()].concat()
    });
    for op in plans.flat_map(|p| p.ops) {
        let threads: u32 = op.group.iter().product();
        let fixed = manifest.kernel(&op.kernel).unwrap().threadgroup_bytes;
        let bytes = fixed + op.threadgroup.iter().map(|n| n.next_multiple_of(16)).sum::<u32>();
        assert!(bytes <= 32 << 10 && threads <= 1024, "{}: {bytes} bytes, {threads} threads", op.label);
        most.entry(manifest.kernel(&op.kernel).unwrap().name.as_str()).and_modify(|b| *b = bytes.max(*b));
        seen += 1;
    }
    println!("threadgroup memory: {most:#?}");
    assert!(seen > 500, "{seen}");
}

/// 4,096 tokens of the 35B model in one chunk: every weight is read once, none is written, and no buffer is as large as
/// an expanded matrix stack would be.
#[test]
fn counters_of_a_chunk_of_the_35b_model() {
    let config = ModelConfig::qwen3_6_35b_a3b(40);
    let quantization = Quantization::mlx_4bit(40);
    let model = ModelShape::from_quantization(&config, &quantization).with_products(Products::F32);
    let shape =
        PrefillShape { tokens: 4096, slots: 1, capacity: 4096, context: 4096, head: PrefillHead::Last };
    let plan = prefill_plan(&model, &shape);
    let c = Counters::of(&plan);
    println!("{c}");
    let all: u64 = lily_model::memory_table(&config, &quantization, 1, 2).weights as u64;
    let table = model.dense("model.embed_tokens", config.vocab_size, config.hidden_size);
    let table = (table.weight_bytes() + 2 * table.group_bytes()) as u64;
    // Everything but the embedding's unused rows.
    assert!(c.weights.read >= all - table && c.weights.read < all, "{c}");
    assert_eq!(c.weights.written, 0);
    let expanded = (config.num_experts * config.moe_intermediate_size * config.hidden_size * 2) as u64;
    for b in plan.buffers.iter().filter(|b| b.kind == BufferKind::Scratch) {
        assert!(b.bytes < expanded, "{} has {} bytes", b.name, b.bytes);
    }
}

/// What `lily bench --plan` prints has a row a context, and the figures of the counters.
#[test]
fn the_report_prints_the_counters() {
    let config = ModelConfig::qwen3_6_35b_a3b(40);
    let text =
        report("qwen3.6-35b-a3b, 40 layers", &config, &Quantization::mlx_4bit(40), &[256, 4096, 32_768]);
    println!("{text}");
    let prefill = ["| 4,096 | f32 | 663 | 583 |", "| 4,096 | F16 | 673 | 593 |"];
    for row in ["| 256 | 254 | 254 |", "| 4,096 | 254 | 254 |"].into_iter().chain(prefill) {
        assert!(text.contains(row), "{row}");
    }
    assert!(text.contains("| dequantisation inside the products |"));
}

/// No two ops of a level touch the same byte when one writes it, and every op is in one level.
fn no_conflict_inside_a_level(plan: &Plan) {
    let mut seen = vec![0; plan.ops.len()];
    for level in &plan.levels {
        for (n, &i) in level.iter().enumerate() {
            seen[i] += 1;
            for &j in &level[n + 1..] {
                let (a, b) = (&plan.ops[i], &plan.ops[j]);
                let hits = |x: &[lily_gpu::plan::Access], y: &[lily_gpu::plan::Access]| {
                    x.iter().any(|x| y.iter().any(|y| x.overlaps(y)))
                };
                let conflict =
                    hits(&a.writes, &b.writes) || hits(&a.writes, &b.reads) || hits(&a.reads, &b.writes);
                assert!(!conflict, "{} and {}", a.label, b.label);
            }
        }
    }
    assert!(seen.iter().all(|&n| n == 1));
}

type Fields = Vec<(&'static str, Scalar)>;

fn tiny_plan() -> Plan {
    let model = &shapes()[1].1;
    decode_plan(model, &step(1, 64, Ids::Slot(0), Head::Greedy { slot: 1, valid: 1024 }))
}

/// Every op's arguments, exchanged with their neighbours, dropped, doubled, with the other constness, and with another
/// element type: each is an error before anything runs.
#[test]
fn wrong_arguments_are_refused() {
    let manifest = kernels::manifest().unwrap();
    let plan = tiny_plan();
    let refused = |change: &dyn Fn(&mut Plan), what: String| {
        let mut p = plan.clone();
        change(&mut p);
        assert!(bind(&p, manifest).is_err(), "{what}");
    };
    let mut tried = 0;
    for i in 0..plan.ops.len() {
        let op = &plan.ops[i];
        for k in 0..op.args.len() {
            let what = format!("{}, argument {}", op.label, op.args[k].name);
            if k + 1 < op.args.len() {
                refused(&|p| p.ops[i].args.swap(k, k + 1), format!("{what} exchanged"));
            }
            refused(&|p| drop(p.ops[i].args.remove(k)), format!("{what} dropped"));
            refused(&|p| p.ops[i].args.insert(k, op.args[k].clone()), format!("{what} doubled"));
            refused(&|p| p.ops[i].args[k].element = "half3", format!("{what} of another type"));
            if let ArgValue::Buffer { .. } = op.args[k].value {
                refused(
                    &|p| {
                        if let ArgValue::Buffer { writes, .. } = &mut p.ops[i].args[k].value {
                            *writes = !*writes;
                        }
                    },
                    format!("{what} with the other constness"),
                );
            }
            tried += 5;
        }
        refused(&|p| p.ops[i].kernel.push('x'), format!("{}: no such kernel", op.label));
        refused(&|p| p.ops[i].threadgroup.push(16), format!("{}: threadgroup memory", op.label));
        refused(&|p| p.ops[i].grid[1] = 0, format!("{}: an empty grid", op.label));
    }
    println!("{tried} wrong arguments refused");
}

#[test]
fn wrong_structures_and_ranges_are_refused() {
    let manifest = kernels::manifest().unwrap();
    let plan = tiny_plan();
    for i in 0..plan.ops.len() {
        let fields = |change: &dyn Fn(&mut Fields)| {
            let mut p = plan.clone();
            for arg in &mut p.ops[i].args {
                if let ArgValue::Inline(f) = &mut arg.value {
                    change(f);
                }
            }
            bind(&p, manifest)
        };
        let label = &plan.ops[i].label;
        let message = |r: Result<Vec<BoundOp>, GpuError>| -> String { r.expect_err(label).to_string() };
        assert!(message(fields(&|f| f.truncate(f.len() - 1))).contains("is not set"));
        assert!(message(fields(&|f| f[0].0 = "colour")).contains("no field colour"));
        assert!(message(fields(&|f| f.push(f[0]))).contains("set twice"));
        assert!(message(fields(&|f| f[0].1 = Scalar::F32(1.0))).contains("not float"));
    }
    // A declared range that no argument covers, a view behind its buffer's end, a misaligned one.
    let mut p = plan.clone();
    let foreign = p.ops[5].writes[0];
    p.ops[0].writes.push(foreign);
    assert!(bind(&p, manifest).unwrap_err().to_string().contains("no argument"), "{}", p.ops[0].label);
    let mut p = plan.clone();
    let ArgValue::Buffer { view, .. } = &mut p.ops[1].args[0].value else { panic!() };
    view.len += 4;
    assert!(bind(&p, manifest).is_err());
    let mut p = plan;
    let ArgValue::Buffer { view, .. } = &mut p.ops[1].args[0].value else { panic!() };
    (view.offset, view.len) = (4, view.len - 4);
    assert!(bind(&p, manifest).unwrap_err().to_string().contains("multiple of 16"));
}
