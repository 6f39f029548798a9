//! The model on the checked soft device: counters against what the kernels touch, and seeded faults of the plan.

use std::{
    path::Path,
    sync::{Arc, Mutex, OnceLock},
};

use lily_model::{Checkpoint, LayerType, ModelConfig, ModelWeights, synthetic::synthetic_weights};

use super::*;
use crate::{
    device::soft::{OpTraffic, SoftDevice, SoftOptions},
    plan::{
        Access, ArgValue, BufferKind, Head, Ids, Op, Plan, PrefillHead, Products, Scalar, decode_plan,
        prefill_plan, routes::chunk_class,
    },
};

fn weights(dir: &str) -> Arc<ModelWeights> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(dir);
    Arc::new(Checkpoint::open(&path).unwrap().weights().unwrap())
}

fn tiny() -> Arc<ModelWeights> {
    static WEIGHTS: OnceLock<Arc<ModelWeights>> = OnceLock::new();
    WEIGHTS.get_or_init(|| weights("crates/lily-model/tests/fixtures/tiny")).clone()
}

/// A model on a checked device, or `None` after saying that the test is skipped.
fn model(weights: Arc<ModelWeights>, seed: u32) -> Option<(GpuModel, Arc<Mutex<Vec<OpTraffic>>>)> {
    match SoftDevice::new(SoftOptions { checked: true, seed }) {
        Ok(device) => {
            let traffic = device.traffic();
            Some((GpuModel::new(weights, Box::new(device), GpuOptions::default()).unwrap(), traffic))
        }
        Err(GpuError::NoDevice { reason, .. }) if reason.contains("no C++ compiler") => {
            println!("skipped: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn step_plan(m: &GpuModel, position: u32) -> (DecodeShape, Plan) {
    let mut shape = m.step_shape(&[position], Ids::Input, Head::Logits);
    let key = shape;
    shape.context = position as usize + 1;
    (key, decode_plan(&m.shape, &shape))
}

/// One decode step of the tiny model with a changed plan.
fn step_with(m: &mut GpuModel, change: impl FnOnce(&mut Plan)) -> Result<Vec<f32>> {
    let sequence = m.new_sequence(20)?;
    let (key, mut plan) = step_plan(m, 0);
    change(&mut plan);
    let result = m.prepare(plan).and_then(|handle| {
        m.plans.insert(PlanKey::Decode(key), handle);
        let mut out = Vec::new();
        m.decode(&[(sequence, 5)], &mut out)?;
        Ok(out)
    });
    m.discard_plans();
    m.free_sequence(sequence);
    result
}

/// What the plan says an op moves is what the kernel touches, byte for byte: so the counters of shapes that are too
/// large to run here are right too.
#[test]
fn declared_bytes_are_the_bytes_touched() {
    for (dir, positions) in
        [("crates/lily-model/tests/fixtures/tiny", [0u32, 66]), ("models/lily-mini", [0, 5])]
    {
        let Some((mut m, traffic)) = model(weights(dir), 3) else { return };
        let sequence = m.new_sequence(128).unwrap();
        let mut out = Vec::new();
        for position in positions {
            while m.position(sequence).unwrap() < position as usize {
                let n = (position as usize - m.position(sequence).unwrap()).min(m.max_chunk());
                let ids: Vec<u32> = (0..n as u32).map(|i| 7 * i % 1000).collect();
                m.prefill(sequence, &ids, LogitsWanted::None, &mut out).unwrap();
            }
            m.decode(&[(sequence, 11)], &mut out).unwrap();
            let (_, plan) = step_plan(&m, position);
            let touched = traffic.lock().unwrap().clone();
            assert_eq!(touched.len(), plan.ops.len());
            for (op, t) in plan.ops.iter().zip(&touched) {
                let declared = OpTraffic {
                    read: op.reads.iter().map(|a| a.bytes).sum(),
                    written: op.writes.iter().map(|a| a.bytes).sum(),
                };
                assert_eq!(*t, declared, "{dir}, position {position}: {} ({})", op.label, op.kernel);
            }
        }
    }
}

/// The same for a chunk, where the number of experts and of cached rows depends on the tokens: nothing moves more than is
/// declared, and most ops just that. Two chunks, the second behind a decode step, with a ragged end.
#[test]
fn declared_bytes_of_chunks() {
    for products in [Products::F32, Products::F16] {
        let Some((mut m, traffic)) = model(tiny(), 3) else { return };
        assert_eq!(m.shape.products, Products::F32);
        m.shape.products = products;
        bytes_of_chunks(&mut m, &traffic, 32);
    }
}

/// The same where tensor operations multiply the tiles, which they do from 33 tokens on.
#[test]
fn declared_bytes_of_chunks_on_tensor_operations() {
    let device = match SoftDevice::with_tensor_ops(SoftOptions { checked: true, seed: 3 }) {
        Ok(device) => device,
        Err(error) => return println!("skipped: {error}"),
    };
    let traffic = device.traffic();
    let mut m = GpuModel::new(tiny(), Box::new(device), GpuOptions::default()).unwrap();
    let plan = bytes_of_chunks(&mut m, &traffic, 64);
    let used = |kernel: &str| plan.ops.iter().filter(|op| op.kernel.contains(kernel)).count();
    // Per layer: two products of the mixer, two of the experts, two of the shared one; and the router's, which is exact.
    let layers = m.config().num_hidden_layers;
    assert_eq!((used("_tensor"), used("gemm_float_32")), (6 * layers, layers));
}

/// A chunk of 21 tokens, a step, a chunk of `n`; the last one's plan.
fn bytes_of_chunks(m: &mut GpuModel, traffic: &Mutex<Vec<OpTraffic>>, n: u32) -> Plan {
    let sequence = m.new_sequence(128).unwrap();
    let mut out = Vec::new();
    let ids: Vec<u32> = (0..n).map(|i| 37 * i % 1000).collect();
    m.prefill(sequence, &ids[..21], LogitsWanted::None, &mut out).unwrap();
    m.decode(&[(sequence, 11)], &mut out).unwrap();
    m.prefill(sequence, &ids, LogitsWanted::Last, &mut out).unwrap();
    let context = m.position(sequence).unwrap();
    let head = PrefillHead::Last;
    let capacity = m.cache.capacity;
    let tokens = chunk_class(n as usize);
    let plan =
        prefill_plan(&m.shape, &PrefillShape { tokens, slots: m.cache.slots, capacity, context, head });
    let touched = traffic.lock().unwrap().clone();
    assert_eq!(touched.len(), plan.ops.len());
    let mut wrong = Vec::new();
    for (op, t) in plan.ops.iter().zip(&touched) {
        let read: u64 = op.reads.iter().map(|a| a.bytes).sum();
        let written: u64 = op.writes.iter().map(|a| a.bytes).sum();
        // Which experts and which rows of the table are read depends on the tokens; of position, tokens and slot an op
        // reads some.
        let some = op.label.contains("gate_up") || op.label.ends_with("down") || op.label == "embed";
        if t.written != written || t.read > read || (read - t.read > 8 && !some) {
            wrong.push(format!("{} ({}): {t:?}, declared {read} and {written}", op.label, op.kernel));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    plan
}

/// Every declared access of every op of a GDN layer, an attention layer, embedding and head, left out one by one.
#[test]
fn a_missing_dependency_is_caught() {
    let Some((mut m, _)) = model(tiny(), 0) else { return };
    let sequence = m.new_sequence(20).unwrap();
    let (_, plan) = step_plan(&m, 0);
    m.free_sequence(sequence);
    let good = step_with(&mut m, |_| {}).unwrap();
    let mut caught = 0;
    for (i, op) in plan.ops.iter().enumerate() {
        if op.label.starts_with("layers.1.") || op.label.starts_with("layers.2.") {
            continue; // as layer 0
        }
        // At the start there is nothing to read in the caches; what is not touched cannot be missed.
        let first = op.label.contains("attention.split");
        for (write, access) in accesses(op) {
            if access.bytes == 0 || (first && !write && plan.spec(access.buffer).kind == BufferKind::Kv) {
                continue;
            }
            let error = step_with(&mut m, |p| leave_out(p, i, write, access))
                .expect_err(&format!("{}, {access:?}", op.label));
            // Either the op itself is stopped, or, where its level moved up, it read what was not there yet.
            assert!(matches!(error, GpuError::Hazard { .. }), "{}: {error}", op.label);
            caught += 1;
        }
    }
    println!("{caught} missing declarations caught");
    assert!(caught > 60);
    assert_eq!(step_with(&mut m, |_| {}).unwrap(), good);
}

/// What an op declares: reads, then writes, each with whether it is a write.
fn accesses(op: &Op) -> impl Iterator<Item = (bool, Access)> {
    let of = |write: bool, list: &[Access]| list.iter().map(move |&a| (write, a)).collect::<Vec<_>>();
    of(false, &op.reads).into_iter().chain(of(true, &op.writes))
}

/// The plan as if an op had not declared this.
fn leave_out(plan: &mut Plan, op: usize, write: bool, access: Access) {
    let list = if write { &mut plan.ops[op].writes } else { &mut plan.ops[op].reads };
    list.retain(|a| *a != access);
    plan.derive_levels();
}

/// The plan of a short chunk at the start, and what it is kept under.
fn chunk_plan(m: &GpuModel) -> (PrefillShape, Plan) {
    let (slots, capacity) = (m.cache.slots, m.cache.capacity);
    let key = PrefillShape { tokens: 32, slots, capacity, context: capacity, head: PrefillHead::Last };
    (key, prefill_plan(&m.shape, &PrefillShape { context: 5, ..key }))
}

/// A chunk of five tokens with a changed plan.
fn chunk_with(m: &mut GpuModel, change: impl FnOnce(&mut Plan)) -> Result<Vec<f32>> {
    let sequence = m.new_sequence(40)?;
    let (key, mut plan) = chunk_plan(m);
    change(&mut plan);
    let result = m.prepare(plan).and_then(|handle| {
        m.plans.insert(PlanKey::Prefill(key), handle);
        let mut out = Vec::new();
        m.prefill(sequence, &[5, 9, 700, 3, 11], LogitsWanted::Last, &mut out)?;
        Ok(out)
    });
    m.discard_plans();
    m.free_sequence(sequence);
    result
}

/// A GDN layer and an attention layer, as small as the kernels allow.
fn two_layers() -> Arc<ModelWeights> {
    let config = ModelConfig {
        hidden_size: 64,
        num_hidden_layers: 2,
        layer_types: vec![LayerType::LinearAttention, LayerType::FullAttention],
        vocab_size: 1000,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        linear_num_key_heads: 1,
        linear_num_value_heads: 1,
        num_experts: 4,
        num_experts_per_tok: 2,
        moe_intermediate_size: 64,
        shared_expert_intermediate_size: 64,
        ..ModelConfig::qwen3_6_35b_a3b(2)
    };
    Arc::new(synthetic_weights(&config, 6))
}

/// The same two faults in a chunk: every declared access left out one by one, but those of the second layer's experts, and
/// every two neighbouring levels made one.
#[test]
fn faults_of_a_chunks_plan_are_caught() {
    let Some((mut m, _)) = model(two_layers(), 0) else { return };
    let sequence = m.new_sequence(40).unwrap();
    let (_, plan) = chunk_plan(&m);
    m.free_sequence(sequence);
    let good = chunk_with(&mut m, |_| {}).unwrap();
    let mut caught = 0;
    for (i, op) in plan.ops.iter().enumerate() {
        let again = op.label.starts_with("layers.1.experts");
        for (write, access) in accesses(op) {
            if access.bytes == 0 || again {
                continue;
            }
            let error = chunk_with(&mut m, |p| leave_out(p, i, write, access))
                .expect_err(&format!("{}, {access:?}", op.label));
            assert!(matches!(error, GpuError::Hazard { .. }), "{}: {error}", op.label);
            caught += 1;
        }
    }
    println!("{caught} missing declarations caught");
    assert!(caught > 100, "{caught}");
    for level in 0..plan.levels.len() - 1 {
        let error = chunk_with(&mut m, |p| {
            let next = p.levels.remove(level + 1);
            p.levels[level].extend(next);
        })
        .expect_err(&format!("levels {level} and {}", level + 1));
        assert!(matches!(error, GpuError::Hazard { .. }), "{error}");
    }
    assert_eq!(chunk_with(&mut m, |_| {}).unwrap(), good);
}

/// What is printed before anything is allocated is what is allocated then.
#[test]
fn activations_are_known_before() {
    let device = match SoftDevice::new(SoftOptions { checked: false, seed: 4 }) {
        Ok(device) => device,
        Err(error) => return println!("skipped: {error}"),
    };
    let said = |device: &dyn Device, n| crate::budget::activations(&tiny(), device, n);
    let (short, long) = (said(&device, 8), said(&device, 120));
    let mut m = GpuModel::new(tiny(), Box::new(device), GpuOptions::default()).unwrap();
    let s = m.new_sequence(120).unwrap();
    let tokens: Vec<u32> = (0..119).collect();
    let mut out = Vec::new();
    m.prefill(s, &tokens, LogitsWanted::Last, &mut out).unwrap();
    m.decode(&[(s, 5)], &mut out).unwrap();
    let used = m.memory().scratch;
    println!("said {long}, used {used}");
    assert!(used > 0 && (used as f64 / long as f64 - 1.0).abs() < 0.05, "said {long}, used {used}");
    assert!(short < long);
}

/// Products rounded to halves, as CUDA has them but on Hopper: logits stay within the bar for backends of 16 bits where no router's near tie
/// is decided otherwise.
#[test]
fn chunks_of_f16_products() {
    let device = match SoftDevice::new(SoftOptions { checked: false, seed: 4 }) {
        Ok(device) => device,
        Err(error) => return println!("skipped: {error}"),
    };
    let mut m = GpuModel::new(tiny(), Box::new(device), GpuOptions::default()).unwrap();
    let tokens: Vec<u32> = (0..77).map(|i| (i * 41 + 3) % 1000).collect();
    let vocab = m.config().vocab_size;
    let mut run = |products| {
        m.shape.products = products;
        m.discard_plans();
        let s = m.new_sequence(100).unwrap();
        let (mut all, mut out) = (Vec::new(), Vec::new());
        for part in tokens.chunks(64) {
            m.prefill(s, part, LogitsWanted::All, &mut out).unwrap();
            all.extend_from_slice(&out);
        }
        m.free_sequence(s);
        all
    };
    let (exact, rounded) = (run(Products::F32), run(Products::F16));
    let mut differences: Vec<f32> = exact
        .chunks(vocab)
        .zip(rounded.chunks(vocab))
        .map(|(a, b)| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max))
        .collect();
    differences.sort_by(f32::total_cmp);
    let (median, worst) = (differences[38], differences[76]);
    println!("F16 products against f32: logits differ by {median:.2e} (median), {worst:.2e} (largest)");
    assert!(median > 1e-4 && median <= 0.05 && worst <= 0.25, "{median} {worst}");
}

/// Products in halves against MLX-LM's logits in f32: within the bar of backends of 16 bits, but for one row of the short prompt
/// (the eleventh, off by 0.85), and the three behind it are nearer to the bar than others: as a router's near tie would be.
#[test]
fn f16_products_against_the_golden_of_tiny() {
    let device = match SoftDevice::new(SoftOptions { checked: false, seed: 2 }) {
        Ok(device) => device,
        Err(error) => return println!("skipped: {error}"),
    };
    let mut m = GpuModel::new(tiny(), Box::new(device), GpuOptions::default()).unwrap();
    m.shape.products = Products::F16;
    let vocab = m.config().vocab_size;
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lily-model/tests/fixtures");
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixtures.join("tiny_golden.json")).unwrap()).unwrap();
    let bytes = std::fs::read(fixtures.join("tiny_golden.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (name, golden) in [("short", "short.prefill_logits"), ("long", "long.prefill_logits_last")] {
        let want = file.tensor(golden).unwrap();
        let want = want.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        let prompt: Vec<u32> =
            json["prompts"][name].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
        let s = m.new_sequence(prompt.len()).unwrap();
        let (mut all, mut out) = (Vec::new(), Vec::new());
        for part in prompt.chunks(64) {
            m.prefill(s, part, LogitsWanted::All, &mut out).unwrap();
            all.extend_from_slice(&out);
        }
        m.free_sequence(s);
        let got = &all[all.len() - want.len()..];
        let want: Vec<f32> = want.collect();
        let rows: Vec<f32> = got
            .chunks(vocab)
            .zip(want.chunks(vocab))
            .map(|(a, b)| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max))
            .collect();
        println!("{name}, largest differences of rows: {rows:.3?}");
        let over: Vec<f32> = rows.iter().copied().filter(|d| *d > 0.1).collect();
        assert!(rows.iter().all(|d| d.is_finite()) && over.len() <= usize::from(name == "short"), "{over:?}");
        assert!(over.iter().all(|&d| d < 1.0), "{over:?}");
    }
}

/// Two neighbouring levels made one, everywhere: the barrier between them was needed.
#[test]
fn a_missing_barrier_between_levels_is_caught() {
    let Some((mut m, _)) = model(tiny(), 0) else { return };
    let sequence = m.new_sequence(20).unwrap();
    let (_, plan) = step_plan(&m, 0);
    m.free_sequence(sequence);
    for level in 0..plan.levels.len() - 1 {
        let error = step_with(&mut m, |p| {
            let next = p.levels.remove(level + 1);
            p.levels[level].extend(next);
        })
        .expect_err(&format!("levels {level} and {}", level + 1));
        assert!(matches!(error, GpuError::Hazard { .. }), "{error}");
    }
}

/// An op left out leaves NaN where it should have written.
#[test]
fn unwritten_scratch_is_caught() {
    let Some((mut m, _)) = model(tiny(), 5) else { return };
    let sequence = m.new_sequence(20).unwrap();
    let (_, plan) = step_plan(&m, 0);
    m.free_sequence(sequence);
    for label in
        ["embed", "layers.0.gdn.in", "layers.0.gdn.step", "layers.0.router", "layers.3.attention.split"]
    {
        let error = step_with(&mut m, |p| {
            p.ops.retain(|o| o.label != label);
            p.derive_levels();
        })
        .unwrap_err();
        assert!(error.to_string().contains("before anything wrote them"), "{label}: {error}");
    }
    assert!(plan.ops.iter().any(|o| o.label == "layers.3.attention.split"));
    // A device that does not watch has the NaN all the same, and the logits show it.
    let device = SoftDevice::new(SoftOptions { checked: false, seed: 1 }).unwrap();
    let mut m = GpuModel::new(tiny(), Box::new(device), GpuOptions::default()).unwrap();
    let error = step_with(&mut m, |p| {
        p.ops.retain(|o| o.label != "layers.0.gdn.step");
        p.derive_levels();
    })
    .unwrap_err();
    assert!(matches!(error, GpuError::NonFinite { position: 0 }), "{error}");
}

/// Sizes that are wrong let a kernel leave its arguments.
#[test]
fn an_out_of_range_access_is_caught() {
    let Some((mut m, _)) = model(tiny(), 2) else { return };
    let set = |p: &mut Plan, label: &str, field: &str, value: Scalar| {
        let op = p.ops.iter_mut().find(|o| o.label == label).unwrap();
        for arg in &mut op.args {
            if let ArgValue::Inline(fields) = &mut arg.value {
                fields.iter_mut().find(|f| f.0 == field).unwrap().1 = value;
            }
        }
    };
    type Case<'a> = (&'a str, &'a dyn Fn(&mut Plan));
    let cases: [Case<'_>; 5] = [
        ("embed", &|p| set(p, "embed", "cols", Scalar::U32(4096))),
        ("layers.0.gdn.step", &|p| set(p, "layers.0.gdn.step", "value_heads", Scalar::U32(64))),
        ("layers.3.attention.split", &|p| {
            set(p, "layers.3.attention.split", "capacity", Scalar::U32(1 << 14));
            // With another slot than the first, the capacity matters.
            set(p, "layers.3.attention.split", "kv_heads", Scalar::U32(64));
        }),
        ("layers.0.experts.down", &|p| set(p, "layers.0.experts.down", "hidden", Scalar::U32(1 << 12))),
        ("lm_head", &|p| {
            let op = p.ops.iter_mut().find(|o| o.label == "lm_head").unwrap();
            // The last rows' codes are cut off.
            for arg in &mut op.args {
                if let ArgValue::Buffer { view, .. } = &mut arg.value
                    && arg.name == "w0"
                {
                    view.len -= 64;
                }
            }
            op.reads.iter_mut().filter(|a| a.end == 65_536).for_each(|a| a.end -= 64);
        }),
    ];
    for (label, change) in cases {
        let Err(error) = step_with(&mut m, change) else { panic!("{label} is not caught") };
        assert!(matches!(error, GpuError::Fault { .. } | GpuError::Hazard { .. }), "{label}: {error}");
        assert!(error.to_string().contains(label), "{label}: {error}");
    }
}

/// Random weights are the same numbers on the device as elsewhere: nothing of them is rounded when it is loaded.
#[test]
fn synthetic_weights_are_not_rounded() {
    let config = ModelConfig {
        hidden_size: 128,
        vocab_size: 512,
        num_experts: 8,
        moe_intermediate_size: 64,
        shared_expert_intermediate_size: 64,
        ..ModelConfig::qwen3_6_35b_a3b(4)
    };
    let Some((m, _)) = model(Arc::new(synthetic_weights(&config, 2)), 0) else { return };
    assert_eq!(m.load_report().rounded_vectors, 0);
    let mut w = synthetic_weights(&config, 2);
    w.layers[0].input_norm[3] = 1.0 + 1e-5;
    let Some((m, _)) = model(Arc::new(w), 0) else { return };
    assert_eq!(m.load_report().rounded_vectors, 1);
}

/// Values that are not finite stop the request and lose the sequence, whatever was asked for.
#[test]
fn values_that_are_not_finite_are_reported() {
    let mut w = (*tiny()).clone();
    w.layers[1].input_norm[7] = f32::INFINITY;
    let Some((mut m, _)) = model(Arc::new(w), 1) else { return };
    let mut out = Vec::new();
    for wanted in [LogitsWanted::None, LogitsWanted::Last, LogitsWanted::All] {
        let s = m.new_sequence(10).unwrap();
        let error = m.prefill(s, &[5, 6], wanted, &mut out).unwrap_err();
        assert!(matches!(error, GpuError::NonFinite { .. }), "{error}");
        assert!(matches!(m.prefill(s, &[5], wanted, &mut out), Err(GpuError::Poisoned)));
        assert!(matches!(m.snapshot(s), Err(GpuError::Poisoned)));
        m.free_sequence(s);
    }
}
