//! Models and golden values that several tests need.
#![allow(dead_code)]

use std::{collections::HashMap, path::Path, sync::Arc};

use lily_cpu::{CpuModel, CpuOptions, Isa, LogitsWanted, Sequence};
use lily_model::{Checkpoint, ModelWeights};

pub const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lily-model/tests/fixtures");
pub const MINI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lily-mini");

pub fn weights(dir: &str) -> Arc<ModelWeights> {
    Arc::new(Checkpoint::open(Path::new(dir)).unwrap().weights().unwrap())
}

pub fn tiny() -> Arc<ModelWeights> {
    weights(&format!("{FIXTURES}/tiny"))
}

pub fn model(weights: &Arc<ModelWeights>, threads: usize, isa: Isa) -> CpuModel {
    CpuModel::new(weights.clone(), CpuOptions { threads, isa: Some(isa) }).unwrap()
}

/// Feeds `tokens` in chunks of `chunk`; returns the logits of every position.
pub fn prefill(m: &mut CpuModel, seq: &mut Sequence, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let (mut all, mut out) = (Vec::new(), Vec::new());
    for part in tokens.chunks(chunk) {
        m.prefill(seq, part, LogitsWanted::All, &mut out).unwrap();
        all.extend_from_slice(&out);
    }
    all
}

pub fn argmax(x: &[f32]) -> u32 {
    (0..x.len()).fold(0, |best, i| if x[i] > x[best] { i } else { best }) as u32
}

pub fn max_diff(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// A prompt of the golden file.
pub struct Prompt {
    pub name: String,
    pub ids: Vec<u32>,
    pub greedy: Vec<u32>,
}

pub struct Golden {
    pub prompts: Vec<Prompt>,
    tensors: HashMap<String, Vec<f32>>,
}

impl Golden {
    pub fn read() -> Self {
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(format!("{FIXTURES}/tiny_golden.json")).unwrap()).unwrap();
        let ids = |v: &serde_json::Value| -> Vec<u32> {
            v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
        };
        let bytes = std::fs::read(format!("{FIXTURES}/tiny_golden.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file
            .tensors()
            .into_iter()
            .map(|(name, t)| {
                let floats = t.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
                (name, floats.collect())
            })
            .collect();
        let prompts = ["short", "long", "one"]
            .into_iter()
            .map(|name| Prompt {
                name: name.to_string(),
                ids: ids(&json["prompts"][name]),
                greedy: ids(&json[name]["greedy"]),
            })
            .collect();
        Self { prompts, tensors }
    }

    pub fn tensor(&self, name: &str) -> &[f32] {
        &self.tensors[name]
    }

    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }
}
