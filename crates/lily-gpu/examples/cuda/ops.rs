//! Every kind of op of a decode step, alone, on the same random bytes: the software GPU's results are the reference.

use std::{collections::BTreeMap, error::Error, fs, path::Path, sync::Arc};

use lily_gpu::{
    Device,
    device::{
        Region,
        cuda::{CudaDevice, CudaOptions, Together},
        soft::{SoftDevice, SoftOptions},
    },
    plan::{
        ArgValue, BufferId, BufferKind, DecodeShape, Head, Ids, ModelShape, Plan,
        decode::InputLayout,
        decode_plan,
        routes::{Splits, attention_splits},
    },
    synthetic::{Content, SyntheticModel},
};
use lily_model::{ModelConfig, config::Quantization};

/// Relative error (norm of the difference over the norm) that a kernel may have: activations of native kernels have 15
/// bits, attention's queries and weights 16; outputs are f32, cache rows BF16.
const BAR: f64 = 1e-4;

/// One op with the bytes it runs on.
struct Case {
    name: String,
    plan: Arc<Plan>,
    contents: Vec<Content>,
    inputs: Vec<u8>,
}

/// An op as a plan of its own, with only the buffers it uses. Scratch becomes state: it has content.
fn single(plan: &Plan, index: usize) -> Plan {
    let mut op = plan.ops[index].clone();
    let mut ids: Vec<BufferId> = Vec::new();
    let mut place = |id: &mut BufferId| {
        let at = ids.iter().position(|i| i == id).unwrap_or_else(|| {
            ids.push(*id);
            ids.len() - 1
        });
        *id = BufferId(at);
    };
    for arg in &mut op.args {
        if let ArgValue::Buffer { view, .. } = &mut arg.value {
            place(&mut view.buffer);
        }
    }
    op.reads.iter_mut().chain(&mut op.writes).for_each(|a| place(&mut a.buffer));
    let mut buffers: Vec<_> = ids.iter().map(|i| plan.spec(*i).clone()).collect();
    for b in &mut buffers {
        if b.kind == BufferKind::Scratch {
            b.kind = BufferKind::State;
        }
    }
    Plan { name: op.label.clone(), buffers, ops: vec![op], levels: vec![vec![0]] }
}

/// What golden results are made for: context 300 ends inside a tile of positions; 3 tokens are a batch.
fn cases() -> Vec<Case> {
    [(1, 300), (3, 300), (1, 5_000)]
        .into_iter()
        .flat_map(|(tokens, context)| cases_of(tokens, context))
        // The head's 248,320 rows once are enough.
        .filter(|c| !c.name.starts_with("lm_head, 3 tokens"))
        .collect()
}

/// Every kind of op of a step of `tokens` sequences.
fn cases_of(tokens: usize, context: usize) -> Vec<Case> {
    let config = ModelConfig::qwen3_6_35b_a3b(4);
    let model = ModelShape::from_quantization(&config, &Quantization::mlx_4bit(4));
    let mut cases: Vec<Case> = Vec::new();
    let shape = DecodeShape {
        tokens,
        slots: tokens,
        capacity: context + 20,
        // As the cuda device splits them: the longer context in equal blocks.
        splits: if context > 4096 { Splits::Blocks(66) } else { attention_splits(context) },
        context,
        ids: Ids::Input,
        head: Head::Greedy { slot: 0, valid: config.vocab_size - 5 },
    };
    let plan = decode_plan(&model, &shape);
    let synthetic = SyntheticModel::new(&model, &plan, 7);
    let mut seen = Vec::new();
    for (i, op) in plan.ops.iter().enumerate() {
        let kind =
            op.label.split('.').skip(if op.label.starts_with("layers.") { 2 } else { 0 }).collect::<Vec<_>>();
        let kind = kind.join(".");
        // A longer context changes attention only.
        let skipped = context > 300 && !op.kernel.starts_with("attention");
        if skipped || seen.contains(&kind) {
            continue;
        }
        seen.push(kind.clone());
        let single = single(&plan, i);
        let contents = single
            .buffers
            .iter()
            .map(|b| match (b.name.as_str(), synthetic.content(b)) {
                // Sums of weights are positive.
                ("attention_softmax", Content::Floats { seed, .. }) => {
                    Content::Floats { seed, low: 0.5, high: 1.5 }
                }
                (_, content) => content,
            })
            .collect();
        let uses_input = single.buffers.iter().any(|b| b.kind == BufferKind::Input);
        let positions: Vec<u32> =
            (0..tokens).map(|t| ((context - 1).saturating_sub(70 * t)) as u32).collect();
        let slots: Vec<u32> = (0..tokens as u32).rev().collect();
        let ids: Vec<u32> = (0..tokens as u32).map(|t| 1_000 + 77_777 * t).collect();
        let inputs = InputLayout::new(tokens).encode(&ids, &positions, &slots);
        cases.push(Case {
            name: format!("{kind}, {tokens} tokens, context {context}"),
            plan: Arc::new(single),
            contents,
            inputs: if uses_input { inputs } else { Vec::new() },
        });
    }
    cases
}

/// Bytes of what the case's op wrote, one after the other.
fn run<D: Device>(
    case: &Case,
    device: &mut D,
    fill: impl Fn(&mut D, Region, &Content) -> Result<(), Box<dyn Error>>,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut regions: Vec<Option<Region>> = Vec::new();
    for (spec, content) in case.plan.buffers.iter().zip(&case.contents) {
        if spec.kind == BufferKind::Input {
            regions.push(None);
            continue;
        }
        let region = Region { buffer: device.allocate(&spec.name, spec.bytes)?, offset: 0, len: spec.bytes };
        fill(device, region, content)?;
        regions.push(Some(region));
    }
    let handle = device.prepare(case.plan.clone(), &regions)?;
    let ticket = device.submit(handle, &case.inputs)?;
    device.wait(ticket)?;
    let mut out = Vec::new();
    for w in &case.plan.ops[0].writes {
        if let Some(region) = regions[w.buffer.0] {
            let from = out.len();
            out.resize(from + (w.end - w.start) as usize, 0);
            device.read(region.buffer, region.offset + w.start, &mut out[from..])?;
        }
    }
    device.discard(handle);
    regions.iter().flatten().for_each(|r| device.release(r.buffer));
    Ok(out)
}

fn fill_from_host<D: Device>(
    device: &mut D,
    region: Region,
    content: &Content,
) -> Result<(), Box<dyn Error>> {
    let mut bytes = vec![0u8; region.len as usize];
    content.fill(&mut bytes);
    Ok(device.write(region.buffer, region.offset, &bytes)?)
}

/// Runs all on the software GPU and writes the results.
pub fn golden(file: &Path) -> Result<(), Box<dyn Error>> {
    let mut soft = SoftDevice::new(SoftOptions { checked: false, seed: 0 })?;
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for case in cases() {
        let started = std::time::Instant::now();
        let out = run(&case, &mut soft, fill_from_host)?;
        // Caches are mostly what they were filled with: what is kept is what changed.
        let kept = changed(&case, &out);
        println!("{}: {} values, {:.1} s", case.name, kept.len(), started.elapsed().as_secs_f64());
        let hex: String =
            kept.iter().flat_map(|(i, v)| [*i, v.to_bits()]).map(|w| format!("{w:08x}")).collect();
        all.insert(case.name, hex);
    }
    Ok(fs::write(file, serde_json::to_vec(&all)?)?)
}

/// What the op's writes hold, as numbers.
fn values(case: &Case, out: &[u8]) -> Vec<f32> {
    let op = &case.plan.ops[0];
    let mut rest = out;
    let mut all = Vec::new();
    for w in &op.writes {
        let element = op.args.iter().find_map(|a| match &a.value {
            ArgValue::Buffer { view, writes: true } if view.buffer == w.buffer => Some(a.element),
            _ => None,
        });
        let (bytes, after) = rest.split_at(((w.end - w.start) as usize).min(rest.len()));
        rest = after;
        match element {
            Some("bfloat") => all.extend(
                bytes
                    .chunks_exact(2)
                    .map(|b| f32::from_bits((u16::from_le_bytes([b[0], b[1]]) as u32) << 16)),
            ),
            // Ids are exact in f32 up to 16,777,216.
            Some("uint") => {
                all.extend(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32))
            }
            _ => all.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
        }
    }
    all
}

/// (place, value) of everything that is not as it was filled.
fn changed(case: &Case, out: &[u8]) -> Vec<(u32, f32)> {
    let mut before = Vec::new();
    for w in &case.plan.ops[0].writes {
        let mut bytes = vec![0u8; case.plan.spec(w.buffer).bytes as usize];
        case.contents[w.buffer.0].fill(&mut bytes);
        before.extend_from_slice(&bytes[w.start as usize..w.end as usize]);
    }
    let (before, after) = (values(case, &before), values(case, out));
    (0..)
        .zip(before.iter().zip(&after))
        .filter(|(_, (b, a))| b.to_bits() != a.to_bits())
        .map(|(i, (_, a))| (i, *a))
        .collect()
}

/// The GPU makes the same random bytes as the host.
fn same_content(cuda: &mut CudaDevice) -> Result<(), Box<dyn Error>> {
    let table = std::array::from_fn(|i| 0x3f00 + i as u16);
    for content in [
        Content::Bytes(vec![1, 2, 3]),
        Content::Words { seed: 3 },
        Content::Picks { seed: 4, table },
        Content::Floats { seed: 5, low: -0.3, high: 0.7 },
        Content::Bfloats { seed: 6, low: -0.3, high: 0.7 },
    ] {
        let (mut host, mut gpu) = (vec![0u8; 1 << 16], vec![0xaau8; 1 << 16]);
        content.fill(&mut host);
        let buffer = cuda.allocate("content", 1 << 16)?;
        cuda.fill(Region { buffer, offset: 0, len: 1 << 16 }, &content)?;
        cuda.read(buffer, 0, &mut gpu)?;
        cuda.release(buffer);
        if host != gpu {
            return Err(format!("{content:?} differs between host and GPU").into());
        }
    }
    Ok(())
}

/// Runs all on the GPU, translated and native, against what `golden` wrote.
pub fn check(file: &Path) -> Result<(), Box<dyn Error>> {
    let golden: BTreeMap<String, String> = serde_json::from_slice(&fs::read(file)?)?;
    let mut worst = 0f64;
    for (what, options) in [
        ("translated", CudaOptions { native: false, early: false, ..CudaOptions::default() }),
        ("native", CudaOptions { together: Together::Always, ..CudaOptions::default() }),
    ] {
        let mut cuda = CudaDevice::new(options)?;
        println!("{what} kernels on {}", cuda.facts().name);
        same_content(&mut cuda)?;
        for case in cases() {
            let hex = golden.get(&case.name).ok_or_else(|| format!("{}: not in the file", case.name))?;
            let words: Vec<u32> = (0..hex.len() / 8)
                .map(|i| u32::from_str_radix(&hex[8 * i..8 * i + 8], 16))
                .collect::<Result<_, _>>()?;
            let expected: Vec<(u32, f32)> =
                words.chunks_exact(2).map(|w| (w[0], f32::from_bits(w[1]))).collect();
            let out = run(&case, &mut cuda, |d, region, content| Ok(d.fill(region, content)?))?;
            let found: BTreeMap<u32, f32> = changed(&case, &out).into_iter().collect();
            let (mut difference, mut norm, mut largest, mut missing) = (0f64, 0f64, 0f32, 0);
            let all = values(&case, &out);
            for (i, want) in &expected {
                let got = all[*i as usize];
                missing += usize::from(!found.contains_key(i) && got != *want);
                difference += ((got - want) as f64).powi(2);
                norm += (*want as f64).powi(2);
                largest = largest.max((got - want).abs());
            }
            let wanted: std::collections::HashSet<u32> = expected.iter().map(|e| e.0).collect();
            let stray = found.keys().filter(|i| !wanted.contains(i)).count();
            let error = (difference / norm.max(1e-30)).sqrt();
            // NaN must count as the worst.
            worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
            // A value may come out as what was there before by chance, in BF16 even often.
            let bad = error.is_nan() || error > BAR || stray > expected.len() / 50 + 2;
            println!(
                "{:<6} {:<44} {:>8} values, relative error {error:.2e}, largest {largest:.2e}, not written {missing}, stray {stray}",
                if bad { "BAD" } else { "ok" },
                case.name,
                expected.len()
            );
        }
    }
    println!("largest relative error {worst:.2e}, bar {BAR:.0e}");
    if worst > BAR { Err("a kernel differs from the software GPU".into()) } else { Ok(()) }
}

/// Steps of several sequences on the GPU, native against translated kernels, which take one token after the other and are
/// checked by [`check`]. Twice, natively: the bits must be the same.
pub fn check_batches() -> Result<(), Box<dyn Error>> {
    let late = CudaOptions { native: false, early: false, ..CudaOptions::default() };
    let always = CudaOptions { together: Together::Always, ..CudaOptions::default() };
    let (mut translated, mut native) = (CudaDevice::new(late)?, CudaDevice::new(always)?);
    let (mut worst, mut count) = (0f64, 0);
    for tokens in [2, 5, 8, 9, 16, 19] {
        for mut case in cases_of(tokens, 300) {
            let kind = case.plan.ops[0].kernel.clone();
            if !["project_", "moe_", "gdn_"].iter().any(|k| kind.starts_with(k)) {
                continue;
            }
            for alike in [false, true] {
                if alike && !(kind.starts_with("moe_") && share_experts(&mut case, tokens)) {
                    continue;
                }
                let fill =
                    |d: &mut CudaDevice, region: Region, content: &Content| Ok(d.fill(region, content)?);
                let want = values(&case, &run(&case, &mut translated, fill)?);
                let first = run(&case, &mut native, fill)?;
                let again = run(&case, &mut native, fill)?;
                let got = values(&case, &first);
                let difference: f64 = want.iter().zip(&got).map(|(a, b)| ((a - b) as f64).powi(2)).sum();
                let norm: f64 = want.iter().map(|a| (*a as f64).powi(2)).sum();
                let error = (difference / norm.max(1e-30)).sqrt();
                worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
                count += 1;
                let same = first == again;
                let bad = error.is_nan() || error > BAR || !same;
                if bad || alike || tokens == 16 {
                    println!(
                        "{:<6} {:<44} {:>8} values, relative error {error:.2e}, {}{}",
                        if bad { "BAD" } else { "ok" },
                        case.name,
                        got.len(),
                        if same { "the same bits twice" } else { "other bits the second time" },
                        if alike { ", most tokens choose the same experts" } else { "" },
                    );
                }
                if !same {
                    return Err("a batch kernel is not deterministic".into());
                }
            }
        }
    }
    println!("{count} batches, largest relative error {worst:.2e}, bar {BAR:.0e}");
    if worst > BAR { Err("a batch kernel differs from the translated one".into()) } else { Ok(()) }
}

/// Gives two thirds of the tokens the first one's router logits: more than eight of sixteen then share all their experts.
fn share_experts(case: &mut Case, tokens: usize) -> bool {
    let Some(i) = case.plan.buffers.iter().position(|b| b.name == "routed") else { return false };
    let mut bytes = vec![0u8; case.plan.buffers[i].bytes as usize];
    case.contents[i].fill(&mut bytes);
    let row = bytes.len() / tokens;
    for t in 1..tokens * 2 / 3 {
        bytes.copy_within(..row, t * row);
    }
    case.contents[i] = Content::Bytes(bytes);
    true
}
