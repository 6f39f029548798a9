//! Small models whose plans hold every kernel.

use std::collections::HashMap;

use lily_model::{LayerType, ModelConfig, synthetic::synthetic_weights};

use super::compare::Format;
use crate::{
    error::{GpuError, Result},
    model::tensors,
    plan::{
        Access, Arg, ArgValue, BufferId, BufferKind, BufferSpec, DecodeShape, Head, Ids, ModelShape, Op,
        Plan, PrefillHead, PrefillShape, Products, View,
        decode::InputLayout,
        decode_plan,
        prefill::PrefillInputs,
        prefill_plan,
        routes::{Splits, attention_splits},
    },
};

/// A plan, and what its buffers hold before it runs.
#[derive(Debug, Clone)]
pub struct Case {
    /// For messages.
    pub name: String,
    /// The plan.
    pub plan: Plan,
    /// Bytes of each buffer.
    pub contents: Vec<Vec<u8>>,
}

use LayerType::{FullAttention as Attention, LinearAttention as Gdn};

/// A model of one or two layers. `heads` share one KV head.
fn config(layers: &[LayerType], heads: usize, vocab: usize) -> ModelConfig {
    ModelConfig {
        hidden_size: 192,
        num_hidden_layers: layers.len(),
        layer_types: layers.to_vec(),
        vocab_size: vocab,
        max_position_embeddings: 4096,
        num_attention_heads: heads,
        num_key_value_heads: 1,
        linear_num_key_heads: 1,
        linear_num_value_heads: 2,
        num_experts: 12,
        num_experts_per_tok: 3,
        moe_intermediate_size: 128,
        shared_expert_intermediate_size: 64,
        ..ModelConfig::qwen3_6_35b_a3b(layers.len())
    }
}

/// Tokens of a decode step: (id, position), each of a sequence of its own.
fn decode(name: &str, config: &ModelConfig, tokens: &[(u32, u32)]) -> Result<Case> {
    let longest = tokens.iter().map(|t| t.1 as usize + 1).max().unwrap_or(1);
    decode_with(name, config, tokens, attention_splits(longest))
}

/// The same with splits that routes choose for other contexts.
fn decode_with(name: &str, config: &ModelConfig, tokens: &[(u32, u32)], splits: Splits) -> Result<Case> {
    let weights = synthetic_weights(config, 41);
    let longest = tokens.iter().map(|t| t.1 as usize + 1).max().unwrap_or(1);
    let shape = DecodeShape {
        tokens: tokens.len(),
        slots: tokens.len() + 1,
        capacity: longest.next_multiple_of(64),
        splits,
        context: longest,
        ids: Ids::Input,
        head: Head::Greedy { slot: 1, valid: config.vocab_size - 3 },
    };
    let plan = decode_plan(&ModelShape::from_weights(&weights), &shape);
    let ids: Vec<u32> = tokens.iter().map(|t| t.0).collect();
    let positions: Vec<u32> = tokens.iter().map(|t| t.1).collect();
    // Not the natural order, and one slot free.
    let slots: Vec<u32> = (0..tokens.len() as u32).rev().map(|s| s + 1).collect();
    let inputs = InputLayout::new(tokens.len()).encode(&ids, &positions, &slots);
    finish(name, plan, tensors(&weights), inputs)
}

fn finish(name: &str, plan: Plan, mut tensors: HashMap<String, Vec<u8>>, inputs: Vec<u8>) -> Result<Case> {
    let mut contents = Vec::with_capacity(plan.buffers.len());
    for (i, spec) in plan.buffers.iter().enumerate() {
        let bytes = spec.bytes as usize;
        contents.push(match spec.kind {
            BufferKind::Weight | BufferKind::Constant => {
                let tensor = tensors.remove(&spec.name).filter(|t| t.len() == bytes);
                tensor.ok_or_else(|| {
                    GpuError::Kernels(format!("{name}: no tensor {} of {bytes} bytes", spec.name))
                })?
            }
            BufferKind::Input => inputs.clone(),
            BufferKind::Kv => fill(Format::Bf16, bytes, i as u64),
            BufferKind::State | BufferKind::Scratch => fill(Format::F32, bytes, i as u64),
            BufferKind::TokenSlots => vec![0; bytes],
        });
    }
    Ok(Case { name: name.to_string(), plan, contents })
}

/// Numbers between -1 and 1 of a format, the same on every machine (SplitMix64).
pub(super) fn fill(format: Format, bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // 24 bits: exact in f32.
        ((z >> 40) as f32 - (1 << 23) as f32) / (1 << 23) as f32
    };
    let mut out = Vec::with_capacity(bytes);
    while out.len() < bytes {
        let v = next();
        match format {
            Format::F32 => out.extend(v.to_le_bytes()),
            Format::Bf16 => out.extend(half::bf16::from_f32(v).to_le_bytes()),
            Format::F16 => out.extend(half::f16::from_f32(v).to_le_bytes()),
            Format::Words => out.extend(0u32.to_le_bytes()),
        }
    }
    out.truncate(bytes);
    out
}

/// A case with those ops only whose kernels `keep` chooses; the others' results come from the generator.
fn only(mut case: Case, keep: impl Fn(&str) -> bool) -> Case {
    case.plan.ops.retain(|op| keep(&op.kernel));
    case.plan.derive_levels();
    case
}

/// Attention in blocks, as contexts from 32K on have it.
fn blocks(heads: usize, count: usize, tokens: &[(u32, u32)]) -> Result<Case> {
    let name = format!("{heads} heads, {count} blocks");
    let case = decode_with(&name, &config(&[Attention], heads, 130), tokens, Splits::Blocks(count))?;
    Ok(only(case, |kernel| kernel.starts_with("attention_blocks")))
}

/// A chunk of `tokens` tokens behind `position` others; the plan is made for `room` tokens.
fn prefill(name: &str, products: Products, config: &ModelConfig, sizes: (usize, u32, u32)) -> Result<Case> {
    prefill_with(name, |model| model.with_products(products), config, sizes)
}

fn prefill_with(
    name: &str,
    change: impl FnOnce(ModelShape) -> ModelShape,
    config: &ModelConfig,
    (room, tokens, position): (usize, u32, u32),
) -> Result<Case> {
    let weights = synthetic_weights(config, 43);
    let context = (position + tokens) as usize;
    let shape = PrefillShape {
        tokens: room,
        slots: 3,
        capacity: context.next_multiple_of(64),
        context,
        head: PrefillHead::Last,
    };
    let plan = prefill_plan(&change(ModelShape::from_weights(&weights)), &shape);
    let ids: Vec<u32> = (0..tokens).map(|i| i * 7919 % config.vocab_size as u32).collect();
    let inputs = PrefillInputs::new(room).encode(&ids, position, 1);
    finish(name, plan, tensors(&weights), inputs)
}

/// The argument of an op of a case, by the names of kernel and parameter.
fn arg(case: &Case, kernel: &str, name: &str) -> Option<Arg> {
    let op = case.plan.ops.iter().find(|op| op.kernel.starts_with(kernel))?;
    op.args.iter().find(|a| a.name == name).cloned()
}

fn view(arg: &Arg) -> Option<View> {
    match arg.value {
        ArgValue::Buffer { view, .. } => Some(view),
        ArgValue::Inline(_) => None,
    }
}

/// A new buffer of a case.
fn add_buffer(case: &mut Case, name: &str, content: Vec<u8>) -> View {
    let len = content.len() as u64;
    case.plan.buffers.push(BufferSpec { name: name.into(), bytes: len, kind: BufferKind::State });
    case.contents.push(content);
    View { buffer: BufferId(case.plan.buffers.len() - 1), offset: 0, len }
}

fn whole(view: View) -> Access {
    Access { buffer: view.buffer, start: view.offset, end: view.offset + view.len, bytes: view.len }
}

/// The sampler, which the host of a plan chooses: the same logits drawn from with different limits. Each entry is
/// temperature, top-p, min-p, top-k.
fn add_draws(case: &mut Case) -> Option<()> {
    for (i, (floats, top_k)) in
        [([0.0f32, 1.0, 0.0], 0u32), ([1.0, 1.0, 0.0], 0), ([0.8, 0.9, 0.0], 40), ([1.3, 1.0, 0.1], 2)]
            .into_iter()
            .enumerate()
    {
        let mut params: Vec<u8> = floats.iter().flat_map(|f| f.to_le_bytes()).collect();
        [top_k, 77 + i as u32, 5].iter().for_each(|n| params.extend(n.to_le_bytes()));
        let params = add_buffer(case, &format!("draw_params {i}"), params);
        let ids = add_buffer(case, &format!("drawn {i}"), vec![0; 4]);
        let buffer =
            |name, element, view, writes| Arg { name, element, value: ArgValue::Buffer { view, writes } };
        let args = vec![
            arg(case, "argmax_blocks", "logits")?,
            arg(case, "argmax_final", "best_logits")?,
            arg(case, "argmax_final", "best_ids")?,
            buffer("params", "DrawParams", params, false),
            arg(case, "attention_split_", "positions")?,
            buffer("ids", "uint", ids, true),
            arg(case, "argmax_blocks", "shape")?,
        ];
        let reads = args.iter().filter_map(view).filter(|v| v.buffer != ids.buffer).map(whole).collect();
        case.plan.ops.push(Op {
            kernel: "draw".into(),
            label: format!("draw {i}"),
            args,
            threadgroup: Vec::new(),
            grid: [1, 1, 1],
            group: [512, 1, 1],
            reads,
            writes: vec![whole(ids)],
        });
    }
    Some(())
}

/// Kernels whose results or inputs are halves where products are rounded, and the routing that the experts need.
fn rounds(kernel: &str) -> bool {
    let beginnings = ["norm_rows", "gemm_", "gdn_gate", "attention_", "moe_", "experts_", "shared_"];
    beginnings.iter().any(|b| kernel.starts_with(b))
        && !kernel.starts_with("gemm_float")
        && kernel != "experts_combine"
}

/// Attention alone.
fn flash(kernel: &str) -> bool {
    kernel.starts_with("attention_")
}

/// All cases.
pub fn cases() -> Result<Vec<Case>> {
    let changed = |mut case: Case, change: fn(&mut Case) -> Option<()>| match change(&mut case) {
        Some(()) => Ok(case),
        None => Err(GpuError::Kernels(format!("case {}: an op it is about is not in its plan", case.name))),
    };
    Ok(vec![
        // More than one split of 64 positions, a ragged last one, and more than one block of logits.
        changed(decode("8 heads", &config(&[Gdn, Attention], 8, 2100), &[(2099, 100)])?, add_draws)?,
        // A batch: the first position and a middle one.
        decode("4 heads", &config(&[Attention], 4, 130), &[(5, 0), (129, 63)])?,
        decode("2 heads", &config(&[Attention, Gdn], 2, 130), &[(7, 64), (0, 3), (64, 1)])?,
        decode("1 head", &config(&[Attention], 1, 130), &[(1, 131)])?,
        // Blocks of 24 and 8 positions, ragged, and more of them than there are positions.
        blocks(8, 5, &[(3, 100)])?,
        blocks(4, 9, &[(5, 70), (1, 0)])?,
        blocks(2, 64, &[(7, 64), (0, 131)])?,
        blocks(1, 2, &[(1, 15)])?,
        // Chunks that fill neither their plan nor a tile, behind other tokens and at the start.
        prefill("prefill, 8 heads", Products::F32, &config(&[Gdn, Attention], 8, 130), (64, 45, 70))?,
        prefill("prefill, 4 heads", Products::F32, &config(&[Attention], 4, 130), (32, 9, 0))?,
        prefill("prefill, 2 heads", Products::F32, &config(&[Attention], 2, 130), (32, 32, 3))?,
        prefill("prefill, 1 head", Products::F32, &config(&[Attention], 1, 130), (32, 17, 100))?,
        // The kernels that differ where products are rounded.
        only(
            prefill("F16, 8 heads", Products::F16, &config(&[Gdn, Attention], 8, 130), (64, 45, 70))?,
            rounds,
        ),
        only(prefill("F16, 4 heads", Products::F16, &config(&[Attention], 4, 130), (32, 9, 0))?, flash),
        only(prefill("F16, 2 heads", Products::F16, &config(&[Attention], 2, 130), (32, 32, 3))?, flash),
        only(prefill("F16, 1 head", Products::F16, &config(&[Attention], 1, 130), (32, 17, 100))?, flash),
    ])
}

/// The cases of a device with tensor operations, besides [`cases`]: products of chunks that fill neither their plan nor a
/// tile, and the routing that the experts need.
pub fn tensor_cases() -> Result<Vec<Case>> {
    let shape = |model: ModelShape| model.with_products(Products::F32).with_tensor_ops(true);
    let keep = |kernel: &str| kernel.contains("_tensor") || kernel.starts_with("moe_");
    let small = config(&[Gdn, Attention], 8, 130);
    Ok(vec![
        only(prefill_with("tensor operations", shape, &small, (64, 45, 70))?, keep),
        only(prefill_with("tensor operations, many tokens", shape, &small, (256, 131, 0))?, keep),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kernels, selftest::isolate::variants};

    /// Those that every device has are [`every_kernel_has_a_case`]'s.
    #[test]
    fn every_kernel_of_tensor_operations_has_a_case() {
        let all = tensor_cases().unwrap();
        let run: Vec<String> =
            all.iter().flat_map(|c| &c.plan.ops).flat_map(variants).map(|op| op.kernel).collect();
        let common = kernels::manifest().unwrap();
        let mut seen = 0;
        for k in &kernels::manifest_with(true).unwrap().kernels {
            if common.kernel(&k.name).is_err() {
                assert!(run.contains(&k.name), "add a case for {}", k.name);
                seen += 1;
            }
        }
        assert_eq!(seen, 7);
        let names: Vec<String> = [cases().unwrap(), all].concat().into_iter().map(|c| c.name).collect();
        assert!(names.iter().enumerate().all(|(i, n)| !names[..i].contains(n)), "{names:?}");
    }

    #[test]
    fn every_kernel_has_a_case() {
        let all = cases().unwrap();
        let run: Vec<String> =
            all.iter().flat_map(|c| &c.plan.ops).flat_map(variants).map(|op| op.kernel).collect();
        let manifest = kernels::manifest().unwrap();
        let names = || manifest.kernels.iter().map(|k| k.name.as_str());
        let missing: Vec<&str> = names().filter(|k| !run.iter().any(|r| r == k)).collect();
        assert!(missing.is_empty(), "add a case for {missing:?}");
        let mut cases: Vec<&str> = all.iter().map(|c| c.name.as_str()).collect();
        cases.sort_unstable();
        cases.dedup();
        assert_eq!(cases.len(), all.len(), "golden vectors go by the case's name");
    }

    #[test]
    fn the_generator_is_the_same_everywhere() {
        let bits = |format, n| {
            fill(format, n, 5).iter().fold(0u64, |h, &b| h.wrapping_mul(31).wrapping_add(b as u64))
        };
        assert_eq!(fill(Format::F32, 400, 5)[..40], fill(Format::F32, 40, 5)[..]);
        assert_ne!(bits(Format::F32, 400), bits(Format::Bf16, 400));
        let values: Vec<f32> = fill(Format::F32, 40_000, 1)
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        assert!(values.iter().all(|v| (-1.0..1.0).contains(v)) && mean.abs() < 0.02, "{mean}");
    }
}
