//! Decodes a number of tokens of a checkpoint with one thread and nothing else, to count instructions. Callgrind counts
//! the whole process, so the difference of two numbers of steps is what a token takes (Valgrind knows no AVX-512):
//!
//! `LILY_CPU_ISA=avx2 valgrind --tool=callgrind target/release/examples/steps DIR CONTEXT STEPS`

use std::sync::Arc;

use lily_cpu::{CpuModel, CpuOptions, LogitsWanted};
use lily_model::Checkpoint;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, dir, context, steps] = &args[..] else {
        eprintln!("usage: steps DIR CONTEXT STEPS");
        std::process::exit(2);
    };
    let [context, steps] = [context, steps].map(|n| n.parse::<usize>().expect("a number of tokens"));
    let weights = Arc::new(Checkpoint::open(dir.as_ref()).expect("a checkpoint").weights().expect("weights"));
    let vocab = weights.config.vocab_size;
    let token = |i: usize| (i as u64 * 2_654_435_761 % (1 << 32) % vocab as u64) as u32;
    let mut model = CpuModel::new(weights, CpuOptions { threads: 1, isa: None }).expect("a model");
    let mut sequence = model.new_sequence(context + steps).expect("a sequence");
    let mut logits = Vec::new();
    let prompt: Vec<u32> = (0..context).map(token).collect();
    for chunk in prompt.chunks(model.max_chunk()) {
        model.prefill(&mut sequence, chunk, LogitsWanted::None, &mut logits).expect("prefill");
    }
    for i in 0..steps {
        model.decode(&mut [(&mut sequence, token(context + i))], &mut logits).expect("decode");
    }
    println!("{dir}, {}: {context} tokens of prefill, {steps} of decoding", model.isa().name());
}
