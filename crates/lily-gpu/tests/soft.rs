//! The model end to end on the soft device, unchecked, against the golden of `tiny` and the f32 reference on lily-mini.

use std::{path::Path, sync::Arc};

use lily_gpu::{
    Chosen, Draw, GpuError, GpuModel, GpuOptions, LogitsWanted,
    device::soft::{SoftDevice, SoftOptions},
};
use lily_model::{Checkpoint, ModelWeights, reference::ReferenceModel};

/// Activations are f32 in steps and in chunks; the cache is BF16: the bar of the CPU backend.
const BAR: f32 = 0.05;
/// The golden path has steps whose two best logits are 0.001 apart; another choice than the golden's counts as the same
/// when it wins by less than this.
const TIE: f32 = 0.01;

fn path(dir: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(dir)
}

fn weights(dir: &str) -> Arc<ModelWeights> {
    Arc::new(Checkpoint::open(&path(dir)).unwrap().weights().unwrap())
}

const TINY: &str = "crates/lily-model/tests/fixtures/tiny";
const MINI: &str = "models/lily-mini";

fn model(weights: Arc<ModelWeights>, seed: u32) -> Option<GpuModel> {
    on(weights, SoftDevice::new(SoftOptions { checked: false, seed }))
}

/// The same on a device with tensor operations: chunks of more than 32 tokens take halves.
fn tensor_model(weights: Arc<ModelWeights>, seed: u32) -> Option<GpuModel> {
    let m = on(weights, SoftDevice::with_tensor_ops(SoftOptions { checked: false, seed }))?;
    assert!(m.device().facts().tensor_ops);
    Some(m)
}

fn on(weights: Arc<ModelWeights>, device: Result<SoftDevice, GpuError>) -> Option<GpuModel> {
    match device {
        Ok(device) => Some(GpuModel::new(weights, Box::new(device), GpuOptions::default()).unwrap()),
        Err(GpuError::NoDevice { reason, .. }) if reason.contains("no C++ compiler") => {
            println!("skipped: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn prefill(m: &mut GpuModel, s: u64, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let (mut all, mut out) = (Vec::new(), Vec::new());
    for part in tokens.chunks(chunk) {
        m.prefill(s, part, LogitsWanted::All, &mut out).unwrap();
        all.extend_from_slice(&out);
    }
    all
}

fn argmax(x: &[f32]) -> u32 {
    (0..x.len()).fold(0, |best, i| if x[i] > x[best] { i } else { best }) as u32
}

fn max_diff(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn tiny_matches_the_golden() {
    let Some(mut m) = model(weights(TINY), 1) else { return };
    // Step by step and in chunks; [`chunks_equal_steps`] has chunks that end anywhere.
    tiny_golden(&mut m, &[1, 64]);
}

/// Halves in prefill's products stay within the bar of exact ones. Steps are the same.
#[test]
fn tiny_on_tensor_operations() {
    let Some(mut m) = tensor_model(weights(TINY), 1) else { return };
    tiny_golden(&mut m, &[64]);
}

/// Prompts, greedy ids and logits that MLX-LM computed in f32.
fn tiny_golden(m: &mut GpuModel, chunks: &[usize]) {
    let fixtures = path("crates/lily-model/tests/fixtures");
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixtures.join("tiny_golden.json")).unwrap()).unwrap();
    let bytes = std::fs::read(fixtures.join("tiny_golden.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |name: &str| -> Option<Vec<f32>> {
        let t = file.tensor(name).ok()?;
        Some(t.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
    };
    let ids = |v: &serde_json::Value| -> Vec<u32> {
        v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
    };
    let vocab = m.config().vocab_size;
    for (name, chunk) in
        ["short", "long", "one"].into_iter().flat_map(|n| chunks.iter().map(move |&c| (n, c)))
    {
        let (prompt, greedy) = (ids(&json["prompts"][name]), ids(&json[name]["greedy"]));
        let s = m.new_sequence(prompt.len() + greedy.len()).unwrap();
        let logits = prefill(m, s, &prompt, chunk);
        let last = &logits[logits.len() - vocab..];
        let worst = match tensor(&format!("{name}.prefill_logits")) {
            Some(want) => max_diff(&logits, &want),
            None => max_diff(last, &tensor(&format!("{name}.prefill_logits_last")).unwrap()),
        };
        // Along the golden path, so that a near tie does not end the comparison.
        let (mut out, mut steps) = (last.to_vec(), Vec::new());
        for (i, &id) in greedy.iter().enumerate() {
            let ours = argmax(&out);
            let gap = out[ours as usize] - out[id as usize];
            assert!(gap < TIE, "{name}: step {i} chose {ours}, not {id}, by {gap}");
            if i + 1 < greedy.len() {
                m.decode(&[(s, id)], &mut out).unwrap();
                steps.extend_from_slice(&out);
            }
        }
        let want = tensor(&format!("{name}.decode_logits")).unwrap();
        let n = steps.len();
        // Of some prompts the golden keeps steps 1, 2 and the last only.
        let kept = if want.len() == n { steps } else { [&steps[..2 * vocab], &steps[n - vocab..]].concat() };
        let decode = max_diff(&kept, &want);
        println!(
            "{name} in chunks of {chunk}: largest difference in prefill {worst:.2e}, in decode {decode:.2e}"
        );
        assert!(worst <= BAR && decode <= BAR, "{name}: {worst} {decode}");
        m.free_sequence(s);
    }
}

#[test]
fn lily_mini_agrees_with_the_reference() {
    let weights = weights(MINI);
    let Some(mut m) = model(weights.clone(), 7) else { return };
    mini_agrees(&mut m, weights, &[1, 64]);
}

/// Halves in prefill's products stay within the bars of exact ones here.
#[test]
fn lily_mini_on_tensor_operations() {
    let weights = weights(MINI);
    let Some(mut m) = tensor_model(weights.clone(), 7) else { return };
    mini_agrees(&mut m, weights, &[64]);
}

/// Teacher-forced along the reference's own greedy path with a random id here and there, by steps and by chunks, to the
/// bars of the CPU backend. `lily eval --device soft` measures the same over the held-out set.
fn mini_agrees(m: &mut GpuModel, weights: Arc<ModelWeights>, chunks: &[usize]) {
    let reference = ReferenceModel::new(weights);
    let vocab = m.config().vocab_size;
    let (mut ids, mut want): (Vec<u32>, Vec<Vec<f32>>) = (vec![8166], Vec::new());
    let mut state = reference.new_state();
    want.push(reference.forward_last(&mut state, &ids));
    for i in 0..39u32 {
        let random = i % 16 == 0;
        let next =
            if random { (i.wrapping_mul(2_654_435_761) >> 7) % 8000 } else { argmax(&want[i as usize]) };
        ids.push(next);
        want.push(reference.forward_last(&mut state, &[next]));
    }
    for &chunk in chunks {
        let s = m.new_sequence(ids.len()).unwrap();
        let got = prefill(m, s, &ids, chunk);
        m.free_sequence(s);
        let (mut kl, mut same): (Vec<f64>, usize) = (Vec::new(), 0);
        for (got, want) in got.chunks(vocab).zip(&want) {
            let (g, w) = (log_softmax(got), log_softmax(want));
            kl.push(w.iter().zip(&g).map(|(w, g)| w.exp() * (w - g)).sum());
            same += usize::from(argmax(got) == argmax(want));
        }
        let mean = kl.iter().sum::<f64>() / kl.len() as f64;
        kl.sort_by(f64::total_cmp);
        let (median, most) = (kl[kl.len() / 2], kl[kl.len() * 9 / 10]);
        println!(
            "chunks of {chunk}: KL mean {mean:.2e}, median {median:.2e}, 90 % below {most:.2e}, same arg-max {same}/40"
        );
        assert!(same == 40 && mean <= 1e-4, "{same} {mean}");
    }
}

fn log_softmax(x: &[f32]) -> Vec<f64> {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = x.iter().map(|&v| (v as f64 - max).exp()).sum();
    x.iter().map(|&v| v as f64 - max - sum.ln()).collect()
}

/// The greedy path, where the ids stay on the device, equals choosing on the host.
#[test]
fn ids_that_stay_on_the_device() {
    let Some(mut m) = model(weights(TINY), 9) else { return };
    let reference = ReferenceModel::new(weights(TINY));
    let starts: [&[u32]; 2] = [&[5, 700, 31], &[88]];
    let mut batch = Vec::new();
    let mut want: Vec<Vec<u32>> = Vec::new();
    let mut out = Vec::new();
    for start in starts {
        let s = m.new_sequence(80).unwrap();
        let (last, body) = start.split_last().unwrap();
        if !body.is_empty() {
            m.prefill(s, body, LogitsWanted::None, &mut out).unwrap();
        }
        batch.push((s, *last));
        let mut state = reference.new_state();
        let mut logits = reference.forward_last(&mut state, start);
        want.push(
            (0..70)
                .map(|_| {
                    let id =
                        (0..logits.len()).fold(0, |b, i| if logits[i] > logits[b] { i } else { b }) as u32;
                    logits = reference.forward_last(&mut state, &[id]);
                    id
                })
                .collect(),
        );
    }
    // Past 64 positions the attention's splits change, with other memory for them.
    let steps = chosen(&mut m, &batch, &[Draw::GREEDY; 2], 70, 1024).unwrap();
    for (i, want) in want.iter().enumerate() {
        let got: Vec<u32> = steps.iter().map(|s| s[i]).collect();
        assert_eq!(&got, want, "sequence {i}");
    }
    assert_eq!(m.position(batch[0].0).unwrap(), 2 + 70);
}

/// Ids of a run, step by step.
fn chosen(
    m: &mut GpuModel,
    batch: &[(u64, u32)],
    draws: &[Draw],
    steps: usize,
    valid: usize,
) -> Result<Vec<Vec<u32>>, GpuError> {
    let mut all = Vec::new();
    let draws: Vec<_> = draws.iter().copied().map(Some).collect();
    m.decode_run(batch, &draws, steps, valid, &mut |chosen| {
        all.push(chosen.ids.to_vec());
        true
    })?;
    Ok(all)
}

/// Drawn tokens are those that the limits leave, the same in every batch, and each sequence's own; who stops finds the
/// sequences where it was told.
#[test]
fn tokens_drawn_on_the_device() {
    let Some(mut m) = model(weights(TINY), 11) else { return };
    let warm = |seed| Draw { temperature: 0.9, top_p: 0.95, min_p: 0.0, top_k: 5, seed };
    let draws = [warm(7), Draw::GREEDY, warm(u64::MAX - 3)];
    let start = |m: &mut GpuModel, n: u32| {
        let s = m.new_sequence(40).unwrap();
        prefill(m, s, &[5, 700, 31 + n], 40);
        s
    };
    let batch: Vec<(u64, u32)> = (0..3).map(|i| (start(&mut m, i), 80 + i)).collect();
    let together = chosen(&mut m, &batch, &draws, 12, 1000).unwrap();
    let mut out = Vec::new();
    let (mut differ, vocab) = (0, m.config().vocab_size);
    for i in 0..3 {
        // By itself, in two runs.
        let s = start(&mut m, i as u32);
        let mut alone = chosen(&mut m, &[(s, batch[i].1)], &draws[i..=i], 5, 1000).unwrap();
        alone.extend(chosen(&mut m, &[(s, alone[4][0])], &draws[i..=i], 7, 1000).unwrap());
        let column: Vec<u32> = together.iter().map(|ids| ids[i]).collect();
        assert_eq!(alone.concat(), column, "sequence {i}");
        // Against the logits.
        let s = start(&mut m, i as u32);
        let mut token = batch[i].1;
        for &id in &column {
            m.decode(&[(s, token)], &mut out).unwrap();
            let row = &out[..1000.min(vocab)];
            let ahead = row.iter().filter(|&&l| l > row[id as usize]).count();
            assert!(
                ahead < if draws[i] == Draw::GREEDY { 1 } else { 5 },
                "sequence {i}: {ahead} are likelier"
            );
            differ += usize::from(ahead > 0);
            token = id;
        }
    }
    assert!(differ > 0, "nothing but the likeliest was ever drawn");
    let mut calls = 0;
    let position = m.position(batch[0].0).unwrap();
    m.decode_run(&[(batch[0].0, 3)], &[Some(warm(1))], 20, 1000, &mut |_| {
        calls += 1;
        calls < 4
    })
    .unwrap();
    assert_eq!((calls, m.position(batch[0].0).unwrap()), (5, position + 5), "one step was under way");

    // One of a batch is chosen by the host: its logits are those of a step by itself.
    let [a, b] = [0, 1].map(|n| start(&mut m, n));
    let mut logits = Vec::new();
    m.decode_run(&[(a, 9), (b, 9)], &[Some(warm(1)), None], 1, 1000, &mut |chosen| {
        logits = chosen.logits.to_vec();
        true
    })
    .unwrap();
    let alone = start(&mut m, 1);
    m.decode(&[(alone, 9)], &mut out).unwrap();
    assert_eq!((logits.len(), max_diff(&logits, &out) <= 1e-3), (vocab, true));
    let mut none = |_: Chosen<'_>| true;
    let refused = m.decode_run(&[(a, 9), (b, 9)], &[Some(warm(1)), None], 2, 1000, &mut none);
    assert!(matches!(refused, Err(GpuError::BadChunk { found: 2, most: 1 })));
}

/// Caches that grow keep what they hold; a batch equals single sequences; a snapshot restored continues bit for bit.
#[test]
fn growth_batches_and_snapshots() {
    let Some(mut m) = model(weights(TINY), 3) else { return };
    let vocab = m.config().vocab_size;
    let tokens: Vec<u32> = (0..90).map(|i| (i * 31 + 7) % 1000).collect();
    // Alone, in a cache of its own size.
    let alone = |m: &mut GpuModel, n: usize| {
        let s = m.new_sequence(100).unwrap();
        prefill(m, s, &tokens[..n], 40);
        let mut out = Vec::new();
        m.decode(&[(s, 5)], &mut out).unwrap();
        let snapshot = m.snapshot(s).unwrap();
        m.free_sequence(s);
        (out, snapshot)
    };
    let lengths = [1, 40, 66, 90];
    let want: Vec<_> = lengths.iter().map(|&n| alone(&mut m, n)).collect();

    let Some(mut m) = model(weights(TINY), 4) else { return };
    let mut batch = Vec::new();
    for (i, &n) in lengths.iter().enumerate() {
        // Each needs a slot more, and a longer one.
        let s = m.new_sequence(100 + 100 * i).unwrap();
        prefill(&mut m, s, &tokens[..n], 40);
        batch.push((s, 5));
    }
    let mut out = Vec::new();
    m.decode(&batch, &mut out).unwrap();
    for (row, (alone, _)) in out.chunks(vocab).zip(&want) {
        let worst = max_diff(row, alone);
        assert!(worst <= 1e-3, "{worst}");
    }
    for (i, &(s, _)) in batch.iter().enumerate() {
        assert_eq!(m.position(s).unwrap(), lengths[i] + 1);
        let saved = m.snapshot(s).unwrap();
        assert_eq!(saved.len(), want[i].1.len());
        let mut continued = Vec::new();
        m.decode(&[(s, 9)], &mut continued).unwrap();
        // Into a fresh sequence of this model, and of another.
        let fresh = m.new_sequence(lengths[i] + 2).unwrap();
        m.restore(fresh, &saved).unwrap();
        assert_eq!(m.snapshot(fresh).unwrap(), saved);
        m.decode(&[(fresh, 9)], &mut out).unwrap();
        assert!(out == continued, "sequence {i}");
        assert!(matches!(m.decode(&[(fresh, 9)], &mut out), Err(GpuError::Full { asked: 1, .. })));
        m.free_sequence(fresh);
        let Some(mut other) = model(weights(TINY), 5) else { return };
        let there = other.new_sequence(200).unwrap();
        other.restore(there, &saved).unwrap();
        other.decode(&[(there, 9)], &mut out).unwrap();
        assert!(max_diff(&out, &continued) <= 1e-3);
    }
}

/// Chunks of any size, steps, and both mixed end where one long chunk ends.
#[test]
fn chunks_equal_steps() {
    let Some(mut m) = model(weights(TINY), 8) else { return };
    let vocab = m.config().vocab_size;
    let tokens: Vec<u32> = (0..77).map(|i| (i * 41 + 3) % 1000).collect();
    let s = m.new_sequence(100).unwrap();
    let want = prefill(&mut m, s, &tokens, 1);
    let stepped = first_layer(&mut m, s);
    m.free_sequence(s);
    for chunk in [64, 32, 21, 7] {
        let s = m.new_sequence(100).unwrap();
        let got = prefill(&mut m, s, &tokens, chunk);
        let mut differences: Vec<f32> =
            got.chunks(vocab).zip(want.chunks(vocab)).map(|(a, b)| max_diff(a, b)).collect();
        differences.sort_by(f32::total_cmp);
        let (median, worst) = (differences[38], differences[76]);
        // Before the first router nothing but rounding differs.
        let state = relative(&first_layer(&mut m, s), &stepped);
        println!(
            "chunks of {chunk}: logits differ by {median:.2e} (median), {worst:.2e} (largest); first state by {state:.2e}"
        );
        assert!(worst <= BAR && state <= 1e-4, "chunks of {chunk}: {worst} {state}");
        m.free_sequence(s);
    }
    // The last token's logits alone are those of all tokens' last row.
    let (mut last, mut all) = (Vec::new(), Vec::new());
    for (wanted, out) in [(LogitsWanted::Last, &mut last), (LogitsWanted::All, &mut all)] {
        let s = m.new_sequence(100).unwrap();
        m.prefill(s, &tokens[..64], wanted, out).unwrap();
        m.free_sequence(s);
    }
    assert!(max_diff(&last, &all[63 * vocab..]) <= 1e-5);
}

/// Convolution inputs and GDN state of the first layer: they stand first in a snapshot, behind 24 bytes.
fn first_layer(m: &mut GpuModel, s: u64) -> Vec<f32> {
    let floats = (4 * m.config().conv_channels()) + m.config().gdn_value_width() * 128;
    let snapshot = m.snapshot(s).unwrap();
    snapshot[24..24 + 4 * floats].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Root mean square of the difference over that of `b`.
fn relative(a: &[f32], b: &[f32]) -> f32 {
    let square = |x: f32| x * x;
    let (d, n): (f32, f32) =
        a.iter().zip(b).fold((0.0, 0.0), |(d, n), (a, b)| (d + square(a - b), n + square(*b)));
    (d / n).sqrt()
}

#[test]
fn bad_calls_are_errors() {
    let Some(mut m) = model(weights(TINY), 1) else { return };
    let mut out = Vec::new();
    let s = m.new_sequence(10).unwrap();
    let last = LogitsWanted::Last;
    assert!(matches!(m.prefill(s, &[], last, &mut out), Err(GpuError::BadChunk { found: 0, .. })));
    let long = vec![0; m.max_chunk() + 1];
    assert!(matches!(m.prefill(s, &long, last, &mut out), Err(GpuError::BadChunk { .. })));
    assert!(matches!(m.prefill(s, &[1024], last, &mut out), Err(GpuError::BadToken { id: 1024, .. })));
    assert!(matches!(m.prefill(s, &[1; 11], last, &mut out), Err(GpuError::Full { asked: 11, .. })));
    assert!(matches!(m.decode(&[], &mut out), Err(GpuError::BadChunk { .. })));
    assert!(matches!(m.decode(&[(s, 1), (s, 2)], &mut out), Err(GpuError::BadChunk { .. })));
    assert!(matches!(m.decode(&[(99, 1)], &mut out), Err(GpuError::UnknownSequence(99))));
    let greedy = [Draw::GREEDY];
    assert!(matches!(chosen(&mut m, &[(s, 1)], &greedy, 11, 1024), Err(GpuError::Full { asked: 11, .. })));
    assert!(matches!(chosen(&mut m, &[(s, 1)], &greedy, 1, 1025), Err(GpuError::BadToken { .. })));
    assert!(matches!(chosen(&mut m, &[(s, 1)], &[], 1, 9), Err(GpuError::BadChunk { .. })));
    m.prefill(s, &[1; 9], last, &mut out).unwrap();

    let good = m.snapshot(s).unwrap();
    let mut damaged = vec![good[..23].to_vec(), good[..good.len() - 1].to_vec()];
    for at in [0, 7, 8, 16, 23] {
        let mut b = good.clone();
        b[at] ^= 3;
        damaged.push(b);
    }
    for bytes in damaged {
        assert!(matches!(m.restore(s, &bytes), Err(GpuError::BadSnapshot { .. })));
        assert!(m.snapshot(s).unwrap() == good);
    }

    let mut w = (*weights(TINY)).clone();
    w.config.head_dim = 128;
    let device = SoftDevice::new(SoftOptions::default()).unwrap();
    let error = GpuModel::new(Arc::new(w), Box::new(device), GpuOptions::default()).unwrap_err().to_string();
    assert!(error.contains("head_dim") && error.contains("128") && error.contains("256"), "{error}");
}
