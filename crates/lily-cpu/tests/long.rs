//! Long sequences: the GDN state must not drift, and attention must work across many blocks of its cache.

mod common;

use std::sync::Arc;

use common::{max_diff, model, prefill, tiny};
use lily_cpu::{Isa, LogitsWanted};
use lily_model::reference::ReferenceModel;

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u64).map(|i| (i * 2_654_435_761 % (1 << 32) % 1000) as u32).collect()
}

/// Against the reference: the three GDN layers of the small checkpoint after 32,768 tokens.
#[test]
fn gdn_state_after_32k_tokens() {
    let mut weights = (*tiny()).clone();
    weights.layers.truncate(3);
    weights.config.layer_types.truncate(3);
    weights.config.num_hidden_layers = 3;
    let weights = Arc::new(weights);
    let reference = ReferenceModel::new(weights.clone());
    let all = tokens(32_768);
    let mut state = reference.new_state();
    let mut want = Vec::new();
    for part in all.chunks(1024) {
        want = reference.forward_last(&mut state, part);
    }
    let mut m = model(&weights, 2, Isa::available()[0]);
    let mut seq = m.new_sequence(all.len()).unwrap();
    let mut out = Vec::new();
    for part in all.chunks(512) {
        m.prefill(&mut seq, part, LogitsWanted::Last, &mut out).unwrap();
    }
    let diff = max_diff(&out, &want);
    println!("after 32,768 tokens: largest difference {diff:.5}");
    assert!(diff <= 0.05, "{diff}");
}

/// Decode with a split context against prefill, which does not split, at the edges of the cache's blocks.
#[test]
fn split_contexts_agree_with_whole_ones() {
    let mut weights = (*tiny()).clone();
    // All experts for every token: with random weights a choice of some can hang on the last bit.
    weights.config.num_experts_per_tok = weights.config.num_experts;
    let weights = Arc::new(weights);
    for isa in Isa::available().into_iter().filter(|&i| i != Isa::Scalar) {
        let mut m = model(&weights, 2, isa);
        let vocab = m.config().vocab_size;
        let all = tokens(2300);
        let mut seq = m.new_sequence(all.len()).unwrap();
        let whole = prefill(&mut m, &mut seq, &all, 512);
        let mut worst = 0.0f32;
        for start in [250, 510, 1020, 2290] {
            let mut seq = m.new_sequence(all.len()).unwrap();
            prefill(&mut m, &mut seq, &all[..start], 512);
            let mut out = Vec::new();
            for (t, &token) in all.iter().enumerate().skip(start).take(10) {
                m.decode(&mut [(&mut seq, token)], &mut out).unwrap();
                worst = worst.max(max_diff(&out, &whole[t * vocab..(t + 1) * vocab]));
            }
        }
        println!("{}: {worst:.5}", isa.name());
        assert!(worst <= 0.05, "{}: {worst}", isa.name());
    }
}
