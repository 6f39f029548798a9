//! The reference model against what `mlx_lm` computes from the same checkpoint in f32 (Hugging Face transformers
//! agrees with it to 6.4e-5).

mod common;

use std::sync::Arc;

use lily_model::{
    Checkpoint,
    reference::{LayerState, ReferenceModel, Trace},
};
use safetensors::SafeTensors;

/// Largest difference allowed anywhere.
const BAR: f32 = 2e-4;

struct Golden {
    tensors: Vec<u8>,
    facts: serde_json::Value,
}

impl Golden {
    fn load() -> Self {
        let read = |name: &str| std::fs::read(common::fixtures().join(name)).unwrap();
        Self {
            tensors: read("tiny_golden.safetensors"),
            facts: serde_json::from_slice(&read("tiny_golden.json")).unwrap(),
        }
    }
    fn tensor(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.tensors).unwrap();
        let bytes = file.tensor(name).unwrap().data();
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
    fn ids(&self, path: &str) -> Vec<u32> {
        let list = self.facts.pointer(path).unwrap().as_array().unwrap();
        list.iter().map(|v| v.as_u64().unwrap() as u32).collect()
    }
}

fn model() -> ReferenceModel {
    ReferenceModel::new(Arc::new(Checkpoint::open(&common::tiny()).unwrap().weights().unwrap()))
}

#[track_caller]
fn compare(what: &str, ours: &[f32], golden: &[f32]) {
    assert_eq!(ours.len(), golden.len(), "{what}");
    assert!(ours.iter().all(|x| x.is_finite()), "{what}");
    let worst = ours.iter().zip(golden).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{what}: largest difference {worst:.2e}");
    assert!(worst <= BAR, "{what}: largest difference {worst:e}");
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    best.0 as u32
}

/// Prefill, then 32 greedy tokens: the ids, and the logits of steps 1 to 31.
fn greedy(model: &ReferenceModel, prompt: &[u32]) -> (Vec<f32>, Vec<u32>, Vec<Vec<f32>>) {
    let mut state = model.new_state();
    let prefill = model.forward(&mut state, prompt, None);
    let vocab = model.weights().config.vocab_size;
    let mut ids = vec![argmax(&prefill[prefill.len() - vocab..])];
    let mut steps = Vec::new();
    while ids.len() < 32 {
        let logits = model.forward(&mut state, &ids[ids.len() - 1..], None);
        ids.push(argmax(&logits));
        steps.push(logits);
    }
    assert_eq!(state.position, prompt.len() + 31);
    (prefill, ids, steps)
}

#[test]
fn short_prompt() {
    let (golden, model) = (Golden::load(), model());
    let prompt = golden.ids("/prompts/short");
    let (prefill, ids, steps) = greedy(&model, &prompt);
    assert_eq!(ids, golden.ids("/short/greedy"));
    compare("short.prefill_logits", &prefill, &golden.tensor("short.prefill_logits"));
    compare("short.decode_logits", &steps.concat(), &golden.tensor("short.decode_logits"));
    let argmaxes: Vec<u32> = prefill.chunks(1024).map(argmax).collect();
    assert_eq!(argmaxes, golden.ids("/short/argmax_prefill"));
}

#[test]
fn long_prompt() {
    let (golden, model) = (Golden::load(), model());
    let (prefill, ids, steps) = greedy(&model, &golden.ids("/prompts/long"));
    assert_eq!(ids, golden.ids("/long/greedy"));
    compare(
        "long.prefill_logits_last",
        &prefill[prefill.len() - 1024..],
        &golden.tensor("long.prefill_logits_last"),
    );
    let picked = [&steps[0][..], &steps[1], &steps[30]].concat();
    compare("long.decode_logits", &picked, &golden.tensor("long.decode_logits"));
    let argmaxes: Vec<u32> = prefill.chunks(1024).map(argmax).collect();
    assert_eq!(argmaxes, golden.ids("/long/argmax_prefill"));
}

#[test]
fn prompt_of_one_token() {
    let (golden, model) = (Golden::load(), model());
    let (prefill, ids, steps) = greedy(&model, &golden.ids("/prompts/one"));
    assert_eq!(ids, golden.ids("/one/greedy"));
    compare("one.prefill_logits", &prefill, &golden.tensor("one.prefill_logits"));
    let picked = [&steps[0][..], &steps[1], &steps[30]].concat();
    compare("one.decode_logits", &picked, &golden.tensor("one.decode_logits"));
}

#[test]
fn hidden_states_and_final_state() {
    let (golden, model) = (Golden::load(), model());
    let prompt = golden.ids("/prompts/short");
    let (mut state, mut trace) = (model.new_state(), Trace::default());
    model.forward(&mut state, &prompt, Some(&mut trace));

    let hidden = golden.tensor("short.hidden");
    let size = prompt.len() * 128;
    compare("embedding", &trace.embedding, &hidden[..size]);
    for (i, layer) in trace.layers.iter().enumerate() {
        compare(&format!("layer {i}"), layer, &hidden[(i + 1) * size..(i + 2) * size]);
    }
    compare("final_norm", &trace.final_norm, &golden.tensor("short.final_norm"));
    let LayerState::Gdn(gdn) = &state.layers[0] else { panic!("layer 0 is Gated DeltaNet") };
    compare("gdn state", &gdn.state[..128 * 128], &golden.tensor("short.gdn_state.0.head0"));
    compare("conv state", &gdn.conv, &golden.tensor("short.conv_state.0"));
}

#[test]
fn chunks_equal_one_shot_and_a_clone_branches() {
    let (golden, model) = (Golden::load(), model());
    let prompt = golden.ids("/prompts/long");
    let mut whole_state = model.new_state();
    let mut whole_trace = Trace::default();
    let whole = model.forward(&mut whole_state, &prompt, Some(&mut whole_trace));
    for size in [1, 7, 64] {
        let (mut state, mut trace) = (model.new_state(), Trace::default());
        let chunks = prompt.chunks(size);
        let logits: Vec<f32> = chunks.flat_map(|c| model.forward(&mut state, c, Some(&mut trace))).collect();
        // Every token is computed by the same operations in the same order, whatever the chunk.
        assert!(logits == whole && state == whole_state && trace == whole_trace, "chunks of {size}");
    }
    let mut state = model.new_state();
    model.hidden(&mut state, &prompt[..100], None);
    let mut branch = state.clone();
    model.forward_last(&mut branch, &[1, 2, 3]);
    let last = model.forward_last(&mut state, &prompt[100..]);
    assert!(last == whole[whole.len() - 1024..] && state == whole_state);
    assert!(model.forward_last(&mut state, &[]).is_empty());
}
