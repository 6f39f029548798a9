//! The default model against the f32 reference, teacher-forced.

mod common;

use common::{MINI, argmax, model, prefill, weights};
use lily_cpu::Isa;
use lily_model::reference::ReferenceModel;

/// Log-softmax in f64.
fn log_softmax(x: &[f32]) -> Vec<f64> {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = x.iter().map(|&v| (v as f64 - max).exp()).sum();
    x.iter().map(|&v| v as f64 - max - sum.ln()).collect()
}

#[test]
fn distributions_agree_with_the_reference() {
    let weights = weights(MINI);
    let reference = ReferenceModel::new(weights.clone());
    let vocab = weights.config.vocab_size;
    // Greedy continuations of short random beginnings: text the model finds likely, and random ids, which it does
    // not.
    let mut ids: Vec<u32> = vec![8166];
    let mut state = reference.new_state();
    let mut logits = reference.forward_last(&mut state, &ids);
    for i in 0..239u32 {
        let id = if i % 30 < 4 { (i.wrapping_mul(2_654_435_761) >> 7) % 8000 } else { argmax(&logits) };
        ids.push(id);
        logits = reference.forward_last(&mut state, &[id]);
    }
    let want = reference.forward(&mut reference.new_state(), &ids, None);
    for isa in Isa::available() {
        let mut m = model(&weights, 2, isa);
        for chunk in [512, 1] {
            let mut seq = m.new_sequence(ids.len()).unwrap();
            let got = prefill(&mut m, &mut seq, &ids, chunk);
            let (mut kl, mut worst, mut same) = (0.0, 0.0f64, 0);
            for (got, want) in got.chunks(vocab).zip(want.chunks(vocab)) {
                let (g, w) = (log_softmax(got), log_softmax(want));
                let d: f64 = w.iter().zip(&g).map(|(w, g)| w.exp() * (w - g)).sum();
                (kl, worst) = (kl + d, worst.max(d));
                same += usize::from(argmax(got) == argmax(want));
            }
            kl /= ids.len() as f64;
            println!(
                "{} chunks of {chunk}: mean KL {kl:.2e}, largest {worst:.2e}, same arg-max {same}/{}",
                isa.name(),
                ids.len()
            );
            assert!(kl <= 1e-4 && same * 1000 >= ids.len() * 995, "{} chunks of {chunk}", isa.name());
        }
    }
}
