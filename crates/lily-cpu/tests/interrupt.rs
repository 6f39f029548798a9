//! Giving up a call half-way.

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use common::{max_diff, model, prefill, tiny};
use lily_cpu::{CpuError, Isa, LogitsWanted};

#[test]
fn an_interrupted_chunk_leaves_the_sequence_as_it_was() {
    let weights = tiny();
    let isa = *Isa::available().last().expect("the scalar path exists everywhere");
    let mut m = model(&weights, 2, isa);
    let ids: Vec<u32> = (1..40).collect();
    let mut seq = m.new_sequence(100).unwrap();
    let whole = prefill(&mut m, &mut seq, &ids, 512);

    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    m.set_interrupt(Some(Arc::new(move || counter.fetch_add(1, Ordering::Relaxed) == 2)));
    let mut seq = m.new_sequence(100).unwrap();
    let mut out = Vec::new();
    let ended = m.prefill(&mut seq, &ids, LogitsWanted::Last, &mut out);
    assert!(matches!(ended, Err(CpuError::Interrupted)), "{ended:?}");
    assert_eq!(asked.load(Ordering::Relaxed), 3, "asked before each of three layers");

    // The sequence is as before: the same chunk on top of it gives what it would have given.
    m.set_interrupt(None);
    assert_eq!(seq.position(), 0);
    assert_eq!(max_diff(&prefill(&mut m, &mut seq, &ids, 512), &whole), 0.0);
    let more: Vec<u32> = (50..80).collect();
    let mut copy = m.new_sequence(100).unwrap();
    copy.restore(&seq.snapshot().unwrap()).unwrap();
    let straight = prefill(&mut m, &mut copy, &more, 512);
    let calls = AtomicUsize::new(0);
    m.set_interrupt(Some(Arc::new(move || calls.fetch_add(1, Ordering::Relaxed) == 3)));
    assert!(matches!(m.prefill(&mut seq, &more, LogitsWanted::Last, &mut out), Err(CpuError::Interrupted)));
    m.set_interrupt(None);
    assert_eq!(max_diff(&prefill(&mut m, &mut seq, &more, 512), &straight), 0.0);
}
