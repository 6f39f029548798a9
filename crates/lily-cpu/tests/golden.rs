//! The random checkpoint `tiny` against what MLX-LM computes from it in f32: every instruction set, every way to
//! feed a prompt.

mod common;

use common::{Golden, argmax, max_diff, model, prefill, tiny};
use lily_cpu::{CpuError, CpuModel, Isa, LogitsWanted, PAGE, Sequence};

/// The bar for a CPU backend on this checkpoint, whose logits have standard deviation 3.
const BAR: f32 = 0.05;
/// The golden path has steps whose two best logits are 0.001 apart; another choice than the golden's counts as the
/// same when it wins by less than this.
const TIE: f32 = 0.01;

fn vocab(m: &CpuModel) -> usize {
    m.config().vocab_size
}

/// Decodes greedily; returns ids and the logits of each step.
fn greedy(m: &mut CpuModel, seq: &mut Sequence, first: u32, n: usize) -> (Vec<u32>, Vec<f32>) {
    let (mut ids, mut steps, mut out) = (vec![first], Vec::new(), Vec::new());
    while ids.len() < n {
        let id = *ids.last().unwrap();
        m.decode(&mut [(seq, id)], &mut out).unwrap();
        ids.push(argmax(&out));
        steps.extend_from_slice(&out);
    }
    (ids, steps)
}

#[test]
fn prefill_and_decode_match_the_golden() {
    let (golden, weights) = (Golden::read(), tiny());
    for isa in Isa::available() {
        for threads in [1, 2, 3] {
            let mut m = model(&weights, threads, isa);
            let vocab = vocab(&m);
            let mut worst = 0.0f32;
            for p in &golden.prompts {
                let mut seq = m.new_sequence(1000).unwrap();
                let logits = prefill(&mut m, &mut seq, &p.ids, 512);
                if golden.has(&format!("{}.prefill_logits", p.name)) {
                    let want = golden.tensor(&format!("{}.prefill_logits", p.name));
                    worst = worst.max(max_diff(&logits, want));
                } else {
                    let want = golden.tensor(&format!("{}.prefill_logits_last", p.name));
                    worst = worst.max(max_diff(&logits[logits.len() - vocab..], want));
                }
                // Along the golden path, so that a near tie does not end the comparison.
                let mut steps = Vec::new();
                let mut out = logits[logits.len() - vocab..].to_vec();
                for (i, &id) in p.greedy.iter().enumerate() {
                    let ours = argmax(&out);
                    let gap = out[ours as usize] - out[id as usize];
                    assert!(
                        gap < TIE,
                        "{} {}: step {i} chose {ours}, not {id}, by {gap}",
                        isa.name(),
                        p.name
                    );
                    if i + 1 < p.greedy.len() {
                        m.decode(&mut [(&mut seq, id)], &mut out).unwrap();
                        steps.extend_from_slice(&out);
                    }
                }
                let want = golden.tensor(&format!("{}.decode_logits", p.name));
                if want.len() == 3 * vocab {
                    // Steps 1, 2 and the last.
                    let n = steps.len();
                    let kept = [&steps[..2 * vocab], &steps[n - vocab..]].concat();
                    worst = worst.max(max_diff(&kept, want));
                } else {
                    worst = worst.max(max_diff(&steps, want));
                }
            }
            println!("{} {threads} threads: largest difference {worst:.5}", isa.name());
            assert!(worst <= BAR, "{} {threads} threads: {worst}", isa.name());
        }
    }
}

#[test]
fn chunks_equal_one_shot() {
    let (golden, weights) = (Golden::read(), tiny());
    for isa in Isa::available() {
        let mut m = model(&weights, 2, isa);
        for p in &golden.prompts {
            let mut seq = m.new_sequence(1000).unwrap();
            let whole = prefill(&mut m, &mut seq, &p.ids, 512);
            for chunk in [1, 7, 64] {
                let mut seq = m.new_sequence(1000).unwrap();
                let parts = prefill(&mut m, &mut seq, &p.ids, chunk);
                let diff = max_diff(&whole, &parts);
                println!("{} {} chunks of {chunk}: {diff:.6}", isa.name(), p.name);
                assert!(diff <= BAR, "{} {} chunks of {chunk}: {diff}", isa.name(), p.name);
            }
        }
    }
}

#[test]
fn threads_and_runs_give_the_same_bits() {
    let (golden, weights) = (Golden::read(), tiny());
    // Several blocks of the KV cache.
    let prompt: Vec<u32> = golden.prompts[1].ids.iter().cycle().take(700).copied().collect();
    for isa in Isa::available().into_iter().filter(|&i| i != Isa::Scalar) {
        let mut want: Option<Vec<f32>> = None;
        for threads in [1, 2, 3, 2] {
            let mut m = model(&weights, threads, isa);
            let mut seq = m.new_sequence(1000).unwrap();
            let mut logits = prefill(&mut m, &mut seq, &prompt, 100);
            logits.extend(greedy(&mut m, &mut seq, 5, 10).1);
            match &want {
                None => want = Some(logits),
                Some(want) => assert!(*want == logits, "{} {threads} threads", isa.name()),
            }
        }
    }
}

#[test]
fn a_batch_equals_single_sequences() {
    let (golden, weights) = (Golden::read(), tiny());
    for isa in Isa::available() {
        let mut m = model(&weights, 2, isa);
        let vocab = vocab(&m);
        let prompt = &golden.prompts[1].ids;
        let starts: Vec<&[u32]> = vec![&prompt[..40], &prompt[10..11], &prompt[3..150], &prompt[7..30]];
        let tokens = [[3u32, 9, 500], [4, 4, 4], [1000, 2, 77], [8, 600, 12]];
        let mut single = Vec::new();
        for (start, tokens) in starts.iter().zip(&tokens) {
            let mut seq = m.new_sequence(400).unwrap();
            prefill(&mut m, &mut seq, start, 512);
            let mut out = Vec::new();
            for &t in tokens {
                m.decode(&mut [(&mut seq, t)], &mut out).unwrap();
                single.push(out.clone());
            }
        }
        let mut seqs: Vec<Sequence> = Vec::new();
        for start in &starts {
            let mut seq = m.new_sequence(400).unwrap();
            prefill(&mut m, &mut seq, start, 512);
            seqs.push(seq);
        }
        let mut worst = 0.0f32;
        for step in 0..3 {
            let mut batch: Vec<(&mut Sequence, u32)> =
                seqs.iter_mut().zip(&tokens).map(|(s, t)| (s, t[step])).collect();
            let mut out = Vec::new();
            m.decode(&mut batch, &mut out).unwrap();
            assert_eq!(out.len(), 4 * vocab);
            for (i, row) in out.chunks(vocab).enumerate() {
                worst = worst.max(max_diff(row, &single[i * 3 + step]));
            }
        }
        println!("{}: batched against single {worst:.6}", isa.name());
        assert!(worst <= BAR, "{}: {worst}", isa.name());
        assert_eq!(seqs[0].position(), 43);
    }
}

/// Batches whose tokens are multiplied one by one, in one tile and in several, over more steps than updates of the GDN
/// state wait; in between one sequence is prefilled further and another one restored from a snapshot.
#[test]
fn batches_of_all_sizes_equal_single_sequences() {
    let weights = tiny();
    for isa in Isa::available() {
        for (size, threads) in [(2, 1), (3, 2), (4, 2), (8, 2), (13, 3), (17, 2)] {
            let mut m = model(&weights, threads, isa);
            let vocab = vocab(&m);
            let id = |s: usize, t: usize| ((s * 131 + t * 29 + 5) % 1000) as u32;
            let run = |m: &mut CpuModel, seqs: &mut [Sequence], first: usize| -> Vec<Vec<f32>> {
                let mut out = Vec::new();
                for (s, seq) in seqs.iter_mut().enumerate() {
                    let prompt: Vec<u32> = (0..3 + 5 * (first + s)).map(|t| id(first + s, t)).collect();
                    prefill(m, seq, &prompt, 512);
                }
                let mut steps = Vec::new();
                for step in 0..20 {
                    if step == 5 {
                        let tokens = [7, 8, 9, 10, 11];
                        for (s, seq) in seqs.iter_mut().enumerate() {
                            if (first + s) % 2 == 1 {
                                m.prefill(seq, &tokens, LogitsWanted::None, &mut out).unwrap();
                            } else {
                                let saved = seq.snapshot().unwrap();
                                *seq = m.new_sequence(400).unwrap();
                                seq.restore(&saved).unwrap();
                            }
                        }
                    }
                    let mut batch: Vec<(&mut Sequence, u32)> = (seqs.iter_mut().enumerate())
                        .map(|(s, seq)| (seq, id(first + s, 1000 + step)))
                        .collect();
                    m.decode(&mut batch, &mut out).unwrap();
                    steps.push(out.clone());
                }
                steps
            };
            let mut seqs: Vec<Sequence> = (0..size).map(|_| m.new_sequence(400).unwrap()).collect();
            let together = run(&mut m, &mut seqs, 0);
            let mut worst = 0.0f32;
            for s in 0..size {
                let mut seq = [m.new_sequence(400).unwrap()];
                let alone = run(&mut m, &mut seq, s);
                for (alone, together) in alone.iter().zip(&together) {
                    worst = worst.max(max_diff(alone, &together[s * vocab..(s + 1) * vocab]));
                }
            }
            println!("{}: {size} together against single {worst:.6}", isa.name());
            assert!(worst <= BAR, "{}, {size} together: {worst}", isa.name());
        }
    }
}

#[test]
fn logits_wanted() {
    let weights = tiny();
    let mut m = model(&weights, 2, Isa::available()[0]);
    let vocab = vocab(&m);
    let tokens: Vec<u32> = (0..50).map(|i| i * 7 % 1000).collect();
    let mut seq = m.new_sequence(100).unwrap();
    let all = prefill(&mut m, &mut seq, &tokens, 512);
    let mut out = vec![1.0; 3];
    let mut seq = m.new_sequence(100).unwrap();
    m.prefill(&mut seq, &tokens, LogitsWanted::None, &mut out).unwrap();
    assert!(out.is_empty());
    let mut seq = m.new_sequence(100).unwrap();
    m.prefill(&mut seq, &tokens, LogitsWanted::Last, &mut out).unwrap();
    assert_eq!(out.len(), vocab);
    assert!(max_diff(&out, &all[49 * vocab..]) < 1e-3);
}

#[test]
fn snapshots_restore_exactly() {
    let weights = tiny();
    let tokens: Vec<u32> = (0..300).map(|i| (i * 31 + 7) % 1000).collect();
    for n in [0, 1, 3, 16, 250, 256, 257, 300] {
        let mut m = model(&weights, 2, Isa::available()[0]);
        let mut seq = m.new_sequence(400).unwrap();
        if n > 0 {
            prefill(&mut m, &mut seq, &tokens[..n], 512);
        }
        let saved = seq.snapshot().unwrap();
        let want = greedy(&mut m, &mut seq, 11, 20);
        // Into itself, into a fresh one, into one that has seen something else, by another model object.
        seq.restore(&saved).unwrap();
        assert_eq!(seq.position(), n);
        assert!(greedy(&mut m, &mut seq, 11, 20) == want);
        let mut other = model(&weights, 1, Isa::available()[0]);
        let mut fresh = other.new_sequence(400).unwrap();
        fresh.restore(&saved).unwrap();
        assert!(fresh.snapshot().unwrap() == saved);
        assert!(greedy(&mut other, &mut fresh, 11, 20) == want);
        let mut used = m.new_sequence(400).unwrap();
        prefill(&mut m, &mut used, &tokens[..123], 512);
        used.restore(&saved).unwrap();
        assert!(greedy(&mut m, &mut used, 11, 20) == want);
    }
}

/// State and pages, of which the whole ones come from another sequence with the same beginning.
#[test]
fn pages_restore_exactly() {
    let weights = tiny();
    let tokens: Vec<u32> = (0..600).map(|i| (i * 31 + 7) % 1000).collect();
    let mut m = model(&weights, 2, Isa::available()[0]);
    let mut long = m.new_sequence(700).unwrap();
    prefill(&mut m, &mut long, &tokens, 512);
    for n in [0, 1, 16, 250, 256, 257, 512, 600] {
        let mut seq = m.new_sequence(700).unwrap();
        if n > 0 {
            prefill(&mut m, &mut seq, &tokens[..n], 512);
        }
        let state = seq.snapshot_state().unwrap();
        let pages: Vec<Vec<u8>> = (0..n.div_ceil(PAGE))
            .map(|i| if (i + 1) * PAGE <= n { long.read_page(i) } else { seq.read_page(i) }.unwrap())
            .collect();
        let pages: Vec<&[u8]> = pages.iter().map(|p| &p[..]).collect();
        assert!(seq.read_page(n.div_ceil(PAGE)).unwrap().is_empty());
        let want = greedy(&mut m, &mut seq, 11, 20);
        let mut fresh = m.new_sequence(700).unwrap();
        fresh.restore_pages(&state, &pages).unwrap();
        assert_eq!(fresh.position(), n);
        assert!(greedy(&mut m, &mut fresh, 11, 20) == want, "{n}");
        // Into one that has seen more.
        let mut used = m.new_sequence(700).unwrap();
        prefill(&mut m, &mut used, &tokens[100..], 512);
        used.restore_pages(&state, &pages).unwrap();
        assert!(greedy(&mut m, &mut used, 11, 20) == want, "{n}");

        // What does not fit is refused and changes nothing.
        let before = fresh.snapshot().unwrap();
        let mut other = state.clone();
        other[9] ^= 1;
        assert!(matches!(fresh.restore_pages(&other, &pages), Err(CpuError::BadSnapshot { .. })));
        assert!(matches!(fresh.restore_pages(&state[1..], &pages), Err(CpuError::BadSnapshot { .. })));
        if n > 0 {
            assert!(matches!(fresh.restore_pages(&state, &pages[1..]), Err(CpuError::BadSnapshot { .. })));
            let mut short = pages.clone();
            short[0] = &short[0][1..];
            assert!(matches!(fresh.restore_pages(&state, &short), Err(CpuError::BadSnapshot { .. })));
        }
        assert!(fresh.snapshot().unwrap() == before);
    }
}

#[test]
fn bad_snapshots_are_refused_and_change_nothing() {
    let weights = tiny();
    let mut m = model(&weights, 1, Isa::available()[0]);
    let mut seq = m.new_sequence(400).unwrap();
    prefill(&mut m, &mut seq, &[1, 2, 3, 4, 5], 512);
    let good = seq.snapshot().unwrap();
    let damaged = |f: &dyn Fn(&mut Vec<u8>)| {
        let mut b = good.clone();
        f(&mut b);
        b
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("length", Vec::new()),
        ("length", good[..23].to_vec()),
        ("length", good[..good.len() - 1].to_vec()),
        ("length", damaged(&|b| b.push(0))),
        ("format", damaged(&|b| b[0] ^= 1)),
        ("format", damaged(&|b| b[7] ^= 1)),
        ("model", damaged(&|b| b[8] ^= 1)),
        ("position", damaged(&|b| b[23] = 255)),
        ("position", damaged(&|b| b[16..24].copy_from_slice(&401u64.to_le_bytes()))),
        ("length", damaged(&|b| b[16] = 6)),
    ];
    for (what, bytes) in cases {
        let error = seq.restore(&bytes).unwrap_err();
        assert!(matches!(error, CpuError::BadSnapshot { .. }));
        assert!(error.to_string().contains(what), "{error}");
        assert!(seq.snapshot().unwrap() == good);
    }
    let mut small = m.new_sequence(4).unwrap();
    assert!(matches!(small.restore(&good), Err(CpuError::BadSnapshot { .. })));
}

#[test]
fn bad_calls_are_errors() {
    let weights = tiny();
    let mut m = model(&weights, 2, Isa::available()[0]);
    let mut out = Vec::new();
    let mut seq = m.new_sequence(10).unwrap();
    let last = LogitsWanted::Last;
    assert!(matches!(m.prefill(&mut seq, &[], last, &mut out), Err(CpuError::BadChunk { found: 0, .. })));
    let long = vec![0; m.max_chunk() + 1];
    assert!(matches!(m.prefill(&mut seq, &long, last, &mut out), Err(CpuError::BadChunk { .. })));
    assert!(matches!(m.prefill(&mut seq, &[1024], last, &mut out), Err(CpuError::BadToken { id: 1024, .. })));
    assert!(matches!(m.prefill(&mut seq, &[1; 11], last, &mut out), Err(CpuError::Full { asked: 11, .. })));
    m.prefill(&mut seq, &[1; 10], last, &mut out).unwrap();
    assert!(matches!(m.decode(&mut [(&mut seq, 1)], &mut out), Err(CpuError::Full { position: 10, .. })));
    assert!(matches!(m.decode(&mut [], &mut out), Err(CpuError::BadChunk { .. })));

    let mut other = (*weights).clone();
    other.layers[0].input_norm[3] += 0.5;
    let mut foreign = model(&std::sync::Arc::new(other), 1, Isa::available()[0]).new_sequence(10).unwrap();
    assert!(matches!(m.prefill(&mut foreign, &[1], last, &mut out), Err(CpuError::OtherModel { .. })));
}

#[test]
fn values_that_are_not_finite_are_found_and_the_sequence_is_lost() {
    let mut weights = (*tiny()).clone();
    // One channel of the residual stream overflows in the first layer.
    weights.layers[1].input_norm[7] = f32::INFINITY;
    let weights = std::sync::Arc::new(weights);
    for isa in Isa::available() {
        let mut m = model(&weights, 2, isa);
        let mut out = Vec::new();
        for tokens in [&[5u32][..], &[5, 6, 7]] {
            for wanted in [LogitsWanted::None, LogitsWanted::Last, LogitsWanted::All] {
                let mut seq = m.new_sequence(10).unwrap();
                let error = m.prefill(&mut seq, tokens, wanted, &mut out).unwrap_err();
                assert!(matches!(error, CpuError::NonFinite { position: 0 }), "{error}");
                let again = m.prefill(&mut seq, tokens, wanted, &mut out).unwrap_err();
                assert!(matches!(again, CpuError::Poisoned), "{again}");
                assert!(matches!(seq.snapshot(), Err(CpuError::Poisoned)));
            }
        }
    }
}

#[test]
fn unsupported_shapes_are_refused_by_name() {
    let mut w = (*tiny()).clone();
    w.lm_head.group_size = 32;
    let error = CpuModel::new(std::sync::Arc::new(w), Default::default()).unwrap_err().to_string();
    assert!(error.contains("lm_head") && error.contains("32") && error.contains("64"), "{error}");
}
