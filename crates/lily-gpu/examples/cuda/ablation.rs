//! What each of the engine's choices is worth: the same work with one of them undone. The switches exist here only.

use std::{collections::BTreeMap, error::Error, sync::Arc, time::Instant};

use lily_gpu::{
    Device,
    device::{
        PlanHandle, Region,
        cuda::{CudaOptions, PackedMatrix, attention_splits},
    },
    plan::{
        BufferKind, Plan, PrefillHead, PrefillShape, prefill::PrefillInputs, prefill_plan, routes::Splits,
    },
};
use serde_json::{Value, json};

use crate::bench::Bench;

/// Tokens of the prefill cases.
const PREFILL: usize = 512;
/// Positions between which the state of the "not resident" scan goes through memory.
const SHORT_CHUNK: usize = 64;
const REPEATS: usize = 7;

/// One comparison: milliseconds with and without, and what the published engine gained.
fn row(out: &mut Vec<Value>, what: &str, with: f64, without: f64, published: Option<f64>, note: &str) {
    let gain = (without / with - 1.0) * 100.0;
    let theirs = published.map_or("-".to_string(), |p| format!("{p:+.1} %"));
    println!("{what:<52} {with:>9.3} ms with, {without:>9.3} ms without: {gain:+.1} % (published: {theirs})");
    out.push(
        json!({"case": "ablation", "what": what, "with_ms": with, "without_ms": without, "gain_percent": gain,
        "published_percent": published, "note": note}),
    );
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

pub fn run(layers: usize) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut out = Vec::new();
    let mut b = Bench::new(layers, CudaOptions::default())?;
    prefill(&mut b, &mut out)?;
    // Contexts that end where a power of two does, so that splits by powers of two are full.
    let at = |n: usize| n * 1024 - 64;
    let decode = |b: &mut Bench, context: usize| -> Result<f64, Box<dyn Error>> {
        let (step, _, plans, _) = b.measure(1, context)?;
        b.forget(plans);
        Ok(step * 1e3)
    };
    let packed = decode(&mut b, at(32))?;
    for (context, published) in [(32, 7.7), (64, 27.4), (128, 40.2)] {
        b.splits = |device, context| attention_splits(context, device.limits());
        let blocks = decode(&mut b, at(context))?;
        b.splits = |_, context| {
            let class = context.next_power_of_two().max(2048);
            Splits::Spans { span: class / 32, count: 32 }
        };
        let general = decode(&mut b, at(context))?;
        row(
            &mut out,
            &format!("decode at {context}K: as many equal blocks as fit, not 32"),
            blocks,
            general,
            Some(published),
            "",
        );
    }
    drop(b);
    let mut b = Bench::new(layers, CudaOptions { packed: false, ..CudaOptions::default() })?;
    let unpacked = decode(&mut b, at(32))?;
    row(
        &mut out,
        "decode at 32K: GQA packing",
        packed,
        unpacked,
        Some(23.8),
        "without: every query head's block reads the keys and values for itself",
    );
    let near = decode(&mut b, 256)?;
    drop(b);
    let mut b = Bench::new(layers, CudaOptions { early: false, ..CudaOptions::default() })?;
    let serial = decode(&mut b, 256)?;
    row(
        &mut out,
        "decode at 256: kernels start before the last one ends",
        near,
        serial,
        Some(5.6),
        "without: each kernel of the graph waits for the end of the one in front (published: concurrent scheduling)",
    );
    Ok(out)
}

fn prefill(b: &mut Bench, out: &mut Vec<Value>) -> Result<(), Box<dyn Error>> {
    let (_, handle, plan) = b.prefill(PREFILL, 0)?;
    let vocab = b.model.config.vocab_size as u64;
    let ids: Vec<u32> = (0..PREFILL as u64).map(|i| (i * 2_654_435_761 % (1 << 32) % vocab) as u32).collect();
    let inputs = PrefillInputs::new(PREFILL).encode(&ids, 0, 0);
    let whole = |b: &mut Bench| -> Result<f64, Box<dyn Error>> {
        let mut times = Vec::new();
        for _ in 0..REPEATS {
            let started = Instant::now();
            let ticket = b.device.submit(handle, &inputs)?;
            b.device.wait(ticket)?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        Ok(median(&mut times))
    };
    let with = whole(b)?;

    let expanding = expanding(b, &plan)?;
    row(
        out,
        "prefill of 512: dequantisation inside the products",
        with,
        with + expanding,
        Some(77.4),
        "without: every matrix is expanded to BF16 in memory first; that the products would then read four times the bytes is not counted",
    );

    let routed = host_routing(b, &plan, handle, &inputs)?;
    row(
        out,
        "prefill of 512: routing on the GPU",
        with,
        routed,
        Some(89.0),
        "without: each layer's router logits go to the host, which chooses, sorts and sends the lists back",
    );

    let scan = |b: &mut Bench, handle: PlanHandle| -> Result<f64, Box<dyn Error>> {
        let times = b.device.time_ops(handle, REPEATS)?;
        Ok(times
            .iter()
            .filter(|t| t.what.starts_with("gdn.") && t.what != "gdn.in" && t.what != "gdn.out")
            .map(|t| t.ms)
            .sum())
    };
    let long = scan(b, handle)?;
    let shape = PrefillShape {
        tokens: SHORT_CHUNK,
        slots: 1,
        capacity: PREFILL,
        context: SHORT_CHUNK,
        head: PrefillHead::Last,
    };
    let (short_handle, _) = b.prepare(prefill_plan(&b.model, &shape))?;
    // What is timed has the inputs of the last submission.
    let inputs = PrefillInputs::new(SHORT_CHUNK).encode(&ids[..SHORT_CHUNK], 0, 0);
    let ticket = b.device.submit(short_handle, &inputs)?;
    b.device.wait(ticket)?;
    let short = scan(b, short_handle)? * (PREFILL / SHORT_CHUNK) as f64;
    b.device.discard(short_handle);
    b.device.discard(handle);
    row(
        out,
        "GDN of 512 tokens, 30 layers: state stays in registers",
        long,
        short,
        None,
        "without: the state goes to memory and back every 64 tokens, with a launch each",
    );
    Ok(())
}

/// Milliseconds to expand all matrices that the plan reads.
fn expanding(b: &mut Bench, plan: &Plan) -> Result<f64, Box<dyn Error>> {
    let mut matrices = Vec::new();
    let mut largest = 0;
    for spec in plan.buffers.iter().filter(|s| s.kind == BufferKind::Weight) {
        let Some(module) = spec.name.strip_suffix(".weight") else { continue };
        let Some(bits) = b.model.bits_of(module) else { continue };
        // A row of the table is looked up, not multiplied.
        if module.ends_with("embed_tokens") {
            continue;
        }
        let part =
            |name: &str| b.memory.get(&format!("{module}.{name}")).copied().ok_or("a matrix without memory");
        matrices.push(PackedMatrix {
            codes: part("weight")?,
            scales: part("scales")?,
            biases: part("biases")?,
            bits: bits as u32,
        });
        largest = largest.max(spec.bytes * 16 / bits as u64);
    }
    let buffer = b.device.allocate("expanded", largest)?;
    let ms = b.device.time_expanding(&matrices, Region { buffer, offset: 0, len: largest }, REPEATS);
    b.device.release(buffer);
    let ms = ms?;
    println!("   {} matrices expanded: {ms:.3} ms", matrices.len());
    Ok(ms)
}

/// The plan in pieces: each layer's up to the router's logits, the host's turn, and on behind the routing.
fn host_routing(
    b: &mut Bench,
    plan: &Arc<Plan>,
    whole: PlanHandle,
    inputs: &[u8],
) -> Result<f64, Box<dyn Error>> {
    let c = b.model.config.clone();
    let (experts, chosen) = (c.num_experts, c.num_experts_per_tok);
    let routing = |kernel: &str| matches!(kernel, "moe_route" | "moe_sort" | "moe_blocks");
    let mut pieces: Vec<Vec<_>> = vec![Vec::new()];
    for &i in plan.levels.iter().flatten() {
        let op = &plan.ops[i];
        match (op.kernel.as_str(), pieces.last_mut()) {
            ("moe_route", _) => pieces.push(Vec::new()),
            (k, Some(piece)) if !routing(k) => piece.push(op.clone()),
            _ => {}
        }
    }
    let mut handles = Vec::new();
    for ops in pieces {
        let mut piece =
            Plan { name: plan.name.clone(), buffers: plan.buffers.clone(), ops, levels: Vec::new() };
        piece.derive_levels();
        handles.push(b.prepare(piece)?.0);
    }
    // Lists as the GPU leaves them stand for what the host would send; it sends as many bytes.
    let ticket = b.device.submit(whole, inputs)?;
    b.device.wait(ticket)?;
    let mut lists = BTreeMap::new();
    for name in ["expert_scores", "expert_pairs", "expert_blocks"] {
        let region = b.memory[name];
        let mut bytes = vec![0u8; region.len as usize];
        b.device.read(region.buffer, 0, &mut bytes)?;
        lists.insert(name, (region, bytes));
    }
    let logits_at = b.memory["router_logits"];
    let mut logits = vec![0f32; PREFILL * (experts + 1)];
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        let started = Instant::now();
        for (i, &handle) in handles.iter().enumerate() {
            let ticket = b.device.submit(handle, inputs)?;
            b.device.wait(ticket)?;
            if i + 1 == handles.len() {
                break;
            }
            b.device.read(logits_at.buffer, 0, bytemuck::cast_slice_mut(&mut logits))?;
            let pairs = route_on_host(&logits, experts, chosen);
            assert_eq!(pairs.len(), PREFILL * chosen);
            for (region, bytes) in lists.values() {
                b.device.write(region.buffer, 0, bytes)?;
            }
        }
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    handles.into_iter().for_each(|h| b.device.discard(h));
    Ok(median(&mut times))
}

/// Pairs in the order of their experts, from the router's logits.
fn route_on_host(logits: &[f32], experts: usize, chosen: usize) -> Vec<u32> {
    let mut of_expert: Vec<Vec<u32>> = vec![Vec::new(); experts];
    for (token, row) in logits.chunks_exact(experts + 1).enumerate() {
        let mut order: Vec<usize> = (0..experts).collect();
        order.select_nth_unstable_by(chosen - 1, |&i, &j| row[j].total_cmp(&row[i]).then(i.cmp(&j)));
        for (n, &e) in order[..chosen].iter().enumerate() {
            of_expert[e].push((token * chosen + n) as u32);
        }
    }
    of_expert.concat()
}
