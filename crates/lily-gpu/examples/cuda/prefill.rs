//! Prefill of whole prompts of the real shapes: tokens a second, share of the GPU's peak, milliseconds by kernel; and the
//! accuracy of native and translated kernels against decode steps, layer by layer.

use std::{collections::HashMap, error::Error, fs, path::Path, sync::Arc, time::Instant};

use lily_gpu::{
    Device,
    device::{
        PlanHandle, Region,
        cuda::{CudaDevice, CudaOptions},
    },
    plan::{
        BufferKind, DecodeShape, Head, Ids, ModelShape, Plan, PrefillHead, PrefillShape,
        decode::InputLayout,
        decode_plan,
        prefill::PrefillInputs,
        prefill_plan,
        routes::{attention_splits, products},
    },
    synthetic::SyntheticModel,
};
use lily_model::{LayerType, ModelConfig, config::Quantization};
use serde_json::{Value, json};

use crate::{
    bench::show_ops,
    compare::{divergence, first_choice},
};

/// Tokens of a chunk.
const CHUNK: usize = 8192;
/// What the card's tensor cores do with dense bfloats, by its data sheet, and what a large product reaches on random data.
const PEAK: f64 = 989e12;
const REACHED: f64 = 790e12;

struct Prefill {
    device: CudaDevice,
    model: ModelShape,
    memory: HashMap<String, Region>,
}

impl Prefill {
    fn new(layers: usize, options: CudaOptions) -> Result<Self, Box<dyn Error>> {
        let config = ModelConfig::qwen3_6_35b_a3b(layers);
        let model = ModelShape::from_quantization(&config, &Quantization::mlx_4bit(layers));
        let device = CudaDevice::new(options)?;
        let model = model.with_products(products(device.facts()));
        Ok(Self { device, model, memory: HashMap::new() })
    }

    /// A plan with memory; weights and caches are filled when a buffer is made.
    fn prepare(&mut self, tokens: usize, capacity: usize) -> Result<(PlanHandle, Arc<Plan>), Box<dyn Error>> {
        let shape = PrefillShape { tokens, slots: 1, capacity, context: capacity, head: PrefillHead::Last };
        self.prepare_plan(prefill_plan(&self.model, &shape))
    }

    fn prepare_plan(&mut self, plan: Plan) -> Result<(PlanHandle, Arc<Plan>), Box<dyn Error>> {
        let workspace = self.device.workspace(&plan);
        let plan = Arc::new(plan.with_workspace(workspace));
        let mut regions = Vec::new();
        for spec in &plan.buffers {
            if spec.kind == BufferKind::Input {
                regions.push(None);
                continue;
            }
            if let Some(old) = self.memory.get(&spec.name).copied().filter(|r| r.len < spec.bytes) {
                self.device.release(old.buffer);
                self.memory.remove(&spec.name);
            }
            let region = match self.memory.get(&spec.name) {
                Some(r) => *r,
                None => {
                    let buffer = self.device.allocate(&spec.name, spec.bytes)?;
                    let region = Region { buffer, offset: 0, len: spec.bytes };
                    self.device.fill(region, &SyntheticModel::new(&self.model, &plan, 1).content(spec))?;
                    self.memory.insert(spec.name.clone(), region);
                    region
                }
            };
            regions.push(Some(region));
        }
        Ok((self.device.prepare(plan.clone(), &regions)?, plan))
    }

    /// State as at the start.
    fn reset(&mut self, plan: &Plan) -> Result<(), Box<dyn Error>> {
        for spec in plan.buffers.iter().filter(|b| b.kind == BufferKind::State) {
            self.device
                .fill(self.memory[&spec.name], &SyntheticModel::new(&self.model, plan, 1).content(spec))?;
        }
        Ok(())
    }

    fn chunk(
        &mut self,
        handle: PlanHandle,
        most: usize,
        tokens: usize,
        position: usize,
    ) -> Result<(), Box<dyn Error>> {
        let vocab = self.model.config.vocab_size;
        let ids: Vec<u32> = (position..position + tokens).map(|i| token(i, vocab)).collect();
        let ticket =
            self.device.submit(handle, &PrefillInputs::new(most).encode(&ids, position as u32, 0))?;
        Ok(self.device.wait(ticket)?)
    }

    /// Seconds for a prompt, chunk after chunk.
    fn prompt(&mut self, handle: PlanHandle, chunk: usize, tokens: usize) -> Result<f64, Box<dyn Error>> {
        let started = Instant::now();
        for position in (0..tokens).step_by(chunk) {
            self.chunk(handle, chunk, chunk.min(tokens - position), position)?;
        }
        Ok(started.elapsed().as_secs_f64())
    }
}

fn token(i: usize, vocab: usize) -> u32 {
    ((i as u64 * 2_654_435_761) % (1 << 32) % vocab as u64) as u32
}

/// Operations of a prompt: two for each weight a token uses, and attention's products. Recurrence, convolution and
/// embedding are left out.
fn operations(c: &ModelConfig, tokens: usize) -> f64 {
    let hidden = c.hidden_size as f64;
    let experts = (c.num_experts + 1) as f64
        + 3.0 * (c.num_experts_per_tok * c.moe_intermediate_size + c.shared_expert_intermediate_size) as f64;
    let mut all = 0.0;
    for kind in &c.layer_types {
        let mixer = match kind {
            LayerType::LinearAttention => {
                let width = c.gdn_value_width() as f64;
                (c.conv_channels() as f64 + width + 2.0 * c.linear_num_value_heads as f64) + width
            }
            LayerType::FullAttention => {
                let width = (c.num_attention_heads * c.head_dim) as f64;
                2.0 * width + 2.0 * (c.num_key_value_heads * c.head_dim) as f64 + width
            }
        };
        all += 2.0 * hidden * (mixer + experts) * tokens as f64;
        if *kind == LayerType::FullAttention {
            // Pairs of a query and a key it sees, times two products of two operations.
            let pairs = tokens as f64 * (tokens as f64 + 1.0) / 2.0;
            all += 4.0 * pairs * (c.num_attention_heads * c.head_dim) as f64;
        }
    }
    all
}

pub fn run(layers: usize, prompts: &[usize], out: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let mut b = Prefill::new(layers, CudaOptions::default())?;
    let name = b.device.facts().name.clone();
    let mut results: Vec<Value> = Vec::new();
    for &tokens in prompts {
        let chunk = tokens.min(CHUNK);
        let (handle, plan) = b.prepare(chunk, tokens.next_multiple_of(64))?;
        b.reset(&plan)?;
        // The first chunk twice, so that clocks and caches are warm.
        b.chunk(handle, chunk, chunk, 0)?;
        b.chunk(handle, chunk, chunk, 0)?;
        let mut times = Vec::new();
        for _ in 0..if tokens > 65_536 { 1 } else { 5 } {
            b.reset(&plan)?;
            times.push(b.prompt(handle, chunk, tokens)?);
        }
        times.sort_unstable_by(f64::total_cmp);
        let seconds = times[times.len() / 2];
        let flops = operations(&b.model.config, tokens) / seconds;
        println!(
            "{layers} layers, a prompt of {tokens} in chunks of {chunk}: {:.1} ms, {:.0} tok/s, {:.0} TFLOP/s, {:.1} % of the data sheet's peak, {:.1} % of a large product's",
            seconds * 1e3,
            tokens as f64 / seconds,
            flops / 1e12,
            flops / PEAK * 100.0,
            flops / REACHED * 100.0
        );
        let mut kernels = Vec::new();
        if tokens <= CHUNK || tokens > 65_536 {
            // Behind the prompt's last chunk the input still has its position.
            kernels = show_ops(&b.device.time_ops(handle, if tokens > 65_536 { 1 } else { 3 })?);
        }
        results.push(json!({"case": "prompt", "layers": layers, "tokens": tokens, "chunk": chunk, "ms": seconds * 1e3,
            "runs": times.len(), "tok_s": tokens as f64 / seconds, "tflop_s": flops / 1e12, "share_of_peak": flops / PEAK,
            "kernels": kernels}));
        b.device.discard(handle);
    }
    if let Some(out) = out {
        fs::write(out, serde_json::to_vec_pretty(&json!({"device": name, "results": results}))?)?;
    }
    Ok(())
}

/// Tokens of the check, and the chunk's room.
const TOKENS: usize = 300;
const ROOM: usize = 320;

/// What came out for every token: residual stream, the last layer's experts as a set, logits.
struct Outcome {
    residual: Vec<f32>,
    experts: Vec<Vec<u32>>,
    logits: Vec<f32>,
}

impl Prefill {
    /// The check's tokens in one chunk.
    fn at_once(&mut self, head: PrefillHead) -> Result<Outcome, Box<dyn Error>> {
        let shape = PrefillShape { tokens: ROOM, slots: 1, capacity: 512, context: 512, head };
        let plan = prefill_plan(&self.model, &shape);
        let (handle, plan) = self.prepare_plan(plan)?;
        self.reset(&plan)?;
        self.chunk(handle, ROOM, TOKENS, 0)?;
        let c = self.model.config.clone();
        let chosen = c.num_experts_per_tok;
        let ids: Vec<u32> = self.read("expert_ids", TOKENS * chosen)?;
        let experts = ids.chunks(chosen).map(<[u32]>::to_vec).map(sorted).collect();
        let logits = match head {
            PrefillHead::All => self.read("logits", TOKENS * c.vocab_size)?,
            _ => Vec::new(),
        };
        Ok(Outcome { residual: self.read("residual", TOKENS * c.hidden_size)?, experts, logits })
    }

    /// The check's tokens as decode steps, which keep activations in f32 (or 15 bits): the reference.
    fn one_by_one(&mut self, head: Head) -> Result<Outcome, Box<dyn Error>> {
        let shape = DecodeShape {
            tokens: 1,
            slots: 1,
            capacity: 512,
            splits: attention_splits(512),
            context: 512,
            ids: Ids::Input,
            head,
        };
        let plan = decode_plan(&self.model, &shape);
        let (handle, plan) = self.prepare_plan(plan)?;
        self.reset(&plan)?;
        let c = self.model.config.clone();
        let mut all = Outcome { residual: Vec::new(), experts: Vec::new(), logits: Vec::new() };
        for i in 0..TOKENS {
            let id = token(i, c.vocab_size);
            let inputs = InputLayout::new(1).encode(&[id], &[i as u32], &[0]);
            let ticket = self.device.submit(handle, &inputs)?;
            self.device.wait(ticket)?;
            all.residual.extend(self.read::<f32>("residual", c.hidden_size)?);
            if head == Head::Logits {
                all.logits.extend(self.read::<f32>("logits", c.vocab_size)?);
            }
            // The router's row begins with the experts' logits.
            let logits: Vec<f32> = self.read("routed", c.num_experts)?;
            let mut order: Vec<u32> = (0..c.num_experts as u32).collect();
            order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
            order.truncate(c.num_experts_per_tok);
            all.experts.push(sorted(order));
        }
        Ok(all)
    }

    fn read<T: bytemuck::Pod>(&mut self, name: &str, n: usize) -> Result<Vec<T>, Box<dyn Error>> {
        let region = self.memory.get(name).ok_or_else(|| format!("no buffer {name}"))?;
        let mut out = vec![T::zeroed(); n];
        self.device.read(region.buffer, region.offset, bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }
}

fn sorted(mut ids: Vec<u32>) -> Vec<u32> {
    ids.sort_unstable();
    ids
}

/// Relative error of each token's residual.
fn errors(a: &[f32], b: &[f32]) -> Vec<f64> {
    let hidden = a.len() / TOKENS;
    a.chunks(hidden)
        .zip(b.chunks(hidden))
        .map(|(a, b)| {
            let norm: f64 = b.iter().map(|x| (*x as f64).powi(2)).sum();
            let difference: f64 = a.iter().zip(b).map(|(x, y)| ((x - y) as f64).powi(2)).sum();
            (difference / norm).sqrt()
        })
        .collect()
}

fn show(mut e: Vec<f64>) -> String {
    // NaN sorts last.
    e.sort_unstable_by(f64::total_cmp);
    match e.len() {
        0 => "none".into(),
        n => format!(
            "{n} with median {:.2e}, 90 % below {:.2e}, largest {:.2e}",
            e[n / 2],
            e[n * 9 / 10],
            e[n - 1]
        ),
    }
}

/// Prefill of 300 tokens through one to four layers, native and translated kernels, against decode steps. A router's choice
/// is discrete: where two logits are nearly equal, rounding decides, and from there on a token's residual differs as a
/// whole, and with it those of later tokens that look at it. So tokens with the same experts in all layers so far are
/// told apart from the others, and the native kernels' errors are compared with the translated ones'.
pub fn check() -> Result<(), Box<dyn Error>> {
    let (mut flipped, mut good) = ([[false; TOKENS]; 2], true);
    for layers in 1..=4 {
        let last = layers == 4;
        let mut b = Prefill::new(layers, CudaOptions::default())?;
        let reference = b.one_by_one(if last { Head::Logits } else { Head::None })?;
        drop(b);
        let (mut medians, mut allowed) = ([0f64; 2], f64::NAN);
        for (which, native) in [false, true].into_iter().enumerate() {
            let options = CudaOptions { native, early: native, ..CudaOptions::default() };
            let mut b = Prefill::new(layers, options)?;
            // The translated kernels' inputs are halves; what is split in two halves must be far nearer.
            allowed = if b.device.facts().split_products { 0.25 } else { 1.25 };
            let found = b.at_once(if last { PrefillHead::All } else { PrefillHead::Last })?;
            drop(b);
            let e = errors(&found.residual, &reference.residual);
            for (t, flip) in flipped[which].iter_mut().enumerate() {
                *flip |= found.experts[t] != reference.experts[t];
            }
            let of = |flip: bool| {
                (0..TOKENS).filter(|&t| flipped[which][t] == flip).map(|t| e[t]).collect::<Vec<_>>()
            };
            let name = ["translated", "native"][which];
            println!(
                "{layers} layers, {name:<10} same experts: {}; others: {}",
                show(of(false)),
                show(of(true))
            );
            let mut all = e.clone();
            all.sort_unstable_by(f64::total_cmp);
            medians[which] = all[TOKENS / 2];
            if last {
                let vocab = found.logits.len() / TOKENS;
                let each: Vec<(f64, bool)> = reference
                    .logits
                    .chunks(vocab)
                    .zip(found.logits.chunks(vocab))
                    .map(|(a, b)| (divergence(a, b), first_choice(a) == first_choice(b)))
                    .collect();
                let kl = |flip: bool| {
                    (0..TOKENS).filter(|&t| flipped[which][t] == flip).map(|t| each[t].0).collect::<Vec<_>>()
                };
                println!(
                    "   logits, {name}: mean KL {:.2e}, {} of {TOKENS} largest the same; KL with the same experts: {}; others: {}",
                    each.iter().map(|x| x.0).sum::<f64>() / TOKENS as f64,
                    each.iter().filter(|x| x.1).count(),
                    show(kl(false)),
                    show(kl(true))
                );
            }
        }
        // NaN must fail.
        good &= medians[1] <= allowed * medians[0];
    }
    if good { Ok(()) } else { Err("native prefill is further from decode than translated".into()) }
}
