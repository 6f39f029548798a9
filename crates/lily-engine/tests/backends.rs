//! Every backend of this crate, on the `tiny` checkpoint: through the engine against the golden's greedy ids, and
//! against the contract of [`Backend`].

mod common;

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    thread,
    time::Instant,
};

use common::{ask, generate, submit};
use lily_cpu::CpuOptions;
use lily_engine::{
    Backend, BackendError, CacheOptions, CheckpointKind, CpuBackend, Draw, Engine, EngineOptions,
    FinishReason, GenerateRequest, GpuBackend, Logits, ReferenceBackend, SamplingParams, SequenceId,
    Snapshot,
    cache::{Found, PrefixCache},
    evaluate,
};
use lily_gpu::{
    GpuModel,
    device::soft::{SoftDevice, SoftOptions},
};
use lily_model::{Checkpoint, ModelWeights};

/// A backend under test, and how far its logits may be from those of another way to the same position.
struct Subject {
    make: fn() -> Box<dyn Backend>,
    bar: f32,
    /// Two logits closer than this in the reference may change places: twice the errors of the golden's logits.
    tie: f32,
    /// Whether prompts and repeats are cut short.
    slow: bool,
    /// Why it cannot run here.
    missing: fn() -> Option<String>,
}

impl Subject {
    /// Whether it can run; says so where not.
    fn present(&self) -> bool {
        let reason = (self.missing)();
        reason.iter().for_each(|r| println!("skipped: {r}"));
        reason.is_none()
    }
}

/// Chunked, cached and batched results of the reference differ only by the order of sums.
const REFERENCE: Subject = Subject {
    make: || Box::new(ReferenceBackend::new(tiny())),
    bar: 2e-4,
    tie: 0.0,
    slow: false,
    missing: || None,
};

/// Two threads: every parallel path runs, and tests beside each other do not fight for cores.
const CPU: Subject = Subject {
    make: || Box::new(CpuBackend::new(tiny(), CpuOptions { threads: 2, isa: None }).unwrap()),
    bar: 0.05,
    tie: 0.0,
    slow: false,
    missing: || None,
};

/// The GPU's kernels, plans and host side on the software GPU.
const SOFT: Subject = Subject {
    make: || {
        let device = SoftDevice::new(SoftOptions::default()).unwrap();
        Box::new(GpuBackend::new(GpuModel::new(tiny(), Box::new(device), Default::default()).unwrap()))
    },
    bar: 0.05,
    // Its largest error on the golden's logits is 0.0114: from the cache's BF16.
    tie: 0.023,
    slow: true,
    missing: || {
        let error = SoftDevice::new(SoftOptions::default()).err()?.to_string();
        assert!(error.contains("no C++ compiler"), "{error}");
        Some(error)
    },
};

fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../lily-model/tests/fixtures"))
}

fn tiny() -> Arc<ModelWeights> {
    static WEIGHTS: OnceLock<Arc<ModelWeights>> = OnceLock::new();
    let load = || Arc::new(Checkpoint::open(&fixtures().join("tiny")).unwrap().weights().unwrap());
    WEIGHTS.get_or_init(load).clone()
}

/// A prompt of the golden and the 32 greedy ids after it. The two largest logits are 0.005 or more apart at every
/// step, so a backend with errors of 0.0025 or less must choose the same.
struct Golden {
    name: &'static str,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
}

impl Golden {
    /// The greedy ids up to the end, or up to where the reference's two best logits are nearly tied.
    fn check(&self, subject: &Subject, ids: &[u32], what: &str) {
        assert_eq!(ids.len(), self.greedy.len());
        let Some(at) = (0..ids.len()).find(|&i| ids[i] != self.greedy[i]) else { return };
        let mut reference = ReferenceBackend::new(tiny());
        let id = reference.new_sequence(400).unwrap();
        let logits = prefill(&mut reference, id, &[&self.prompt[..], &self.greedy[..at]].concat());
        let [ours, theirs] = [ids[at], self.greedy[at]].map(|i| logits[i as usize]);
        println!(
            "{} {what}: id {at} is another, which the reference has {} behind",
            self.name,
            theirs - ours
        );
        assert!(theirs - ours <= subject.tie, "{} {what}: {ids:?}, expected {:?}", self.name, self.greedy);
    }
}

fn goldens() -> Vec<Golden> {
    let text = std::fs::read(fixtures().join("tiny_golden.json")).unwrap();
    let facts: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let ids = |v: &serde_json::Value| -> Vec<u32> {
        v.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
    };
    ["short", "long", "one"]
        .into_iter()
        .map(|name| Golden {
            name,
            prompt: ids(&facts["prompts"][name]),
            greedy: ids(&facts[name]["greedy"]),
        })
        .collect()
}

fn options(prefill_chunk: usize) -> EngineOptions {
    EngineOptions { context_limit: 1024, prefill_chunk: Some(prefill_chunk), ..Default::default() }
}

fn golden_ids_through_the_engine(subject: &Subject) {
    for chunk in if subject.slow { vec![7, 64] } else { vec![1, 7, 64] } {
        let engine = Engine::start((subject.make)(), options(chunk));
        for golden in goldens() {
            let done = generate(&engine, ask(&golden.prompt, 32));
            golden.check(subject, &done.tokens, &format!("in chunks of {chunk}"));
            let (reason, stats) = done.end.unwrap();
            assert_eq!((reason, stats.completion_tokens), (FinishReason::Length, 32));
        }
        let memory = engine.memory();
        assert!(memory.weights > 0 && memory.kv == 0 && memory.state == 0, "nothing runs: {memory:?}");
        assert!(engine.figures().cache.ram_bytes > 0);
    }
}

fn parallel_submitters(subject: &Subject) {
    let engine = Engine::start((subject.make)(), options(16));
    let goldens = goldens();
    let (submitters, prompts) = if subject.slow { (3, 2) } else { (8, 3) };
    thread::scope(|scope| {
        for t in 0..submitters {
            let (engine, goldens) = (engine.clone(), &goldens);
            scope.spawn(move || {
                for i in 0..prompts {
                    let golden = &goldens[(t + i) % 3];
                    let done = generate(&engine, ask(&golden.prompt, 32));
                    golden.check(subject, &done.tokens, &format!("submitter {t}"));
                }
            });
        }
    });
}

/// Five turns; each is checked against a cold engine, and must reuse all that the last one computed.
fn conversations(subject: &Subject) {
    let warm = Engine::start((subject.make)(), options(16));
    let mut history = goldens().remove(1).prompt;
    let (first, mut seen) = (history.len(), 0);
    for turn in 0..5 {
        // The fourth turn rewrites the first answer: what is left is the first turn's checkpoint before its end.
        if turn == 3 {
            let at = first + 2;
            history[at] = (history[at] + 1) % 1000;
            seen = first - 8;
        }
        let request = GenerateRequest { logprobs: Some(3), ..ask(&history, 20) };
        let hit = generate(&warm, request.clone());
        let cold = Engine::start((subject.make)(), options(64));
        let miss = generate(&cold, request);
        assert_eq!(hit.tokens, miss.tokens, "turn {turn}");
        assert_eq!(hit.end.unwrap().1.cached_tokens, seen, "turn {turn}");
        assert_eq!(miss.end.unwrap().1.cached_tokens, 0);
        seen = history.len() + 19;
        history.extend(hit.tokens);
        history.extend([5 + turn, 17, 400]);
    }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The logits at the end of a prompt from every kind of checkpoint, kept in memory or read from files, against those of
/// a cold run.
fn hit_logits_equal_cold_ones(subject: &Subject) {
    let dir = tempfile::tempdir().unwrap();
    let options = CacheOptions { dir: Some(dir.path().into()), ..Default::default() };
    let length = if subject.slow { 300 } else { 700 };
    let prompt: Vec<u32> = goldens()[1].prompt.iter().cycle().take(length).copied().collect();
    let cuts = if subject.slow { [40, 100, 256, 270, 280, 299] } else { [40, 100, 256, 300, 512, 699] };
    let mut backend = (subject.make)();
    let backend = backend.as_mut();
    let cold = {
        let id = backend.new_sequence(800).unwrap();
        let logits = prefill(backend, id, &prompt);
        backend.free_sequence(id);
        logits
    };
    {
        let mut cache = PrefixCache::open(&options, backend, || {}).unwrap();
        for (cut, kind) in cuts.into_iter().zip(CheckpointKind::ALL) {
            let id = backend.new_sequence(800).unwrap();
            prefill(backend, id, &prompt[..cut]);
            assert!(cache.save(backend, id, &prompt[..cut], kind));
            backend.free_sequence(id);
        }
        for (cut, kind) in cuts.into_iter().zip(CheckpointKind::ALL) {
            check_hit(subject, backend, &mut cache, &prompt, cut, kind, &cold);
        }
        cache.close();
    }
    // Another process.
    let mut other = (subject.make)();
    let mut cache = PrefixCache::open(&options, other.as_ref(), || {}).unwrap();
    assert_eq!(cache.figures().disk_checkpoints, cuts.len() as u64);
    for (cut, kind) in cuts.into_iter().zip(CheckpointKind::ALL) {
        check_hit(subject, other.as_mut(), &mut cache, &prompt, cut, kind, &cold);
    }
    let figures = cache.figures();
    assert_eq!((figures.disk_errors, figures.ram_checkpoints), (0, cuts.len() as u64));
}

/// The checkpoint at `cut` is found by a prompt that parts from the others after it, and leads to the same logits.
fn check_hit(
    subject: &Subject,
    backend: &mut dyn Backend,
    cache: &mut PrefixCache,
    prompt: &[u32],
    cut: usize,
    kind: CheckpointKind,
    cold: &[f32],
) {
    let mut asked = prompt[..=cut].to_vec();
    asked[cut] = (asked[cut] + 1) % 1000;
    let found = loop {
        match cache.find(&asked) {
            Found::Ready(id) => break id,
            Found::Loading => {
                cache.poll();
                thread::yield_now();
            }
            Found::Nothing(why) => panic!("{cut}: {why:?}"),
        }
    };
    let id = backend.new_sequence(800).unwrap();
    assert_eq!(cache.restore(backend, id, found).unwrap(), (cut, kind));
    let hit = prefill(backend, id, &prompt[cut..]);
    backend.free_sequence(id);
    let worst = largest_difference(&hit, cold);
    println!("{kind:?} at {cut}: largest difference {worst:.2e}");
    assert!(worst <= subject.bar, "{kind:?} at {cut}: {worst}");
}

fn prefill(backend: &mut dyn Backend, id: SequenceId, tokens: &[u32]) -> Vec<f32> {
    let mut out = Vec::new();
    for part in tokens.chunks(backend.max_chunk().min(64)) {
        backend.prefill(id, part, Logits::Last, &mut out).unwrap();
    }
    out
}

fn snapshots_restore_exactly(subject: &Subject) {
    let mut backend = (subject.make)();
    let backend = backend.as_mut();
    let prompt = &goldens()[1].prompt;
    let (a, b) = (backend.new_sequence(400).unwrap(), backend.new_sequence(400).unwrap());
    prefill(backend, a, &prompt[..50]);
    let snapshot = backend.snapshot(a).unwrap();
    assert_eq!(snapshot.position, 50);
    assert!(snapshot.format.starts_with(backend.name()), "{}", snapshot.format);
    let want = prefill(backend, a, &prompt[50..90]);
    // Into a sequence that had seen something else, into itself, and into another instance of the same model.
    prefill(backend, b, &[9, 8, 7]);
    for id in [b, a] {
        backend.restore(id, &snapshot).unwrap();
        assert_eq!(backend.position(id).unwrap(), 50);
        assert_eq!(prefill(backend, id, &prompt[50..90]), want);
    }
    let mut other = (subject.make)();
    let c = other.new_sequence(400).unwrap();
    other.restore(c, &snapshot).unwrap();
    assert_eq!(prefill(other.as_mut(), c, &prompt[50..90]), want);
    // No room.
    let small = backend.new_sequence(49).unwrap();
    assert!(backend.restore(small, &snapshot).is_err());
    // An empty sequence has a snapshot too.
    let empty = backend.new_sequence(10).unwrap();
    let nothing = backend.snapshot(empty).unwrap();
    backend.restore(b, &nothing).unwrap();
    assert_eq!(backend.position(b).unwrap(), 0);
    assert!(matches!(backend.snapshot(SequenceId(999)), Err(BackendError::UnknownSequence(_))));
    assert!(matches!(backend.restore(SequenceId(999), &nothing), Err(BackendError::UnknownSequence(_))));
}

fn damaged_snapshots_are_refused(subject: &Subject) {
    let mut backend = (subject.make)();
    let id = backend.new_sequence(100).unwrap();
    prefill(backend.as_mut(), id, &[1, 2, 3, 4, 5]);
    let good = backend.snapshot(id).unwrap();
    let refused = |backend: &mut dyn Backend, snapshot: Snapshot, what: &str| {
        let error = backend.restore(id, &snapshot).expect_err(what);
        assert!(
            matches!(error, BackendError::BadSnapshot { .. } | BackendError::Full { .. }),
            "{what}: {error}"
        );
    };
    let b = backend.as_mut();
    refused(b, Snapshot { format: "metal/1".into(), ..good.clone() }, "another backend's");
    refused(b, Snapshot { position: 4, ..good.clone() }, "another position");
    refused(b, Snapshot { position: 1 << 60, ..good.clone() }, "an absurd position");
    refused(b, Snapshot { data: vec![], ..good.clone() }, "no data");
    let mut longer = good.data.clone();
    longer.push(0);
    refused(b, Snapshot { data: longer, ..good.clone() }, "a byte too many");
    let mut weights = (*tiny()).clone();
    weights.final_norm[0] += 1.0;
    let foreign = {
        let mut other = ReferenceBackend::new(Arc::new(weights));
        let id = other.new_sequence(100).unwrap();
        prefill(&mut other, id, &[1, 2, 3, 4, 5]);
        other.snapshot(id).unwrap()
    };
    refused(b, foreign, "another model's");
    for cut in (0..good.data.len()).step_by(good.data.len() / 61) {
        refused(b, Snapshot { data: good.data[..cut].to_vec(), ..good.clone() }, "truncated");
    }
    // The sequence can be used after a refused restore followed by a good one.
    b.restore(id, &good).unwrap();
    assert_eq!(b.position(id).unwrap(), 5);
}

fn batches_equal_single_steps(subject: &Subject) {
    let mut backend = (subject.make)();
    let backend = backend.as_mut();
    let prompts: Vec<Vec<u32>> = goldens().into_iter().map(|g| g.prompt).collect();
    let ids: Vec<SequenceId> = prompts
        .iter()
        .map(|p| {
            let id = backend.new_sequence(400).unwrap();
            prefill(backend, id, p);
            id
        })
        .collect();
    let single: Vec<SequenceId> = ids
        .iter()
        .map(|&id| {
            let copy = backend.new_sequence(400).unwrap();
            let snapshot = backend.snapshot(id).unwrap();
            backend.restore(copy, &snapshot).unwrap();
            copy
        })
        .collect();
    let vocab = backend.config().vocab_size;
    let (mut batch, mut one) = (Vec::new(), Vec::new());
    for step in 0..5u32 {
        let tokens: Vec<u32> = (0..3).map(|i| (step * 211 + i * 97) % vocab as u32).collect();
        let pairs: Vec<_> = ids.iter().copied().zip(tokens.iter().copied()).collect();
        backend.decode(&pairs, &mut batch).unwrap();
        assert_eq!(batch.len(), 3 * vocab);
        for (i, row) in batch.chunks(vocab).enumerate() {
            backend.decode(&[(single[i], tokens[i])], &mut one).unwrap();
            let worst = largest_difference(row, &one);
            assert!(worst <= subject.bar, "step {step}, sequence {i}: {worst}");
        }
    }
}

/// A run of steps chooses what its logits say, ends when it is told to, and counts its steps; who does not choose says so.
fn runs_of_steps(subject: &Subject) {
    let mut backend = (subject.make)();
    let backend = backend.as_mut();
    let vocab = backend.config().vocab_size;
    let start = |b: &mut dyn Backend, n: u32| {
        let id = b.new_sequence(40).unwrap();
        prefill(b, id, &[3, 5, 7 + n]);
        id
    };
    let batch: Vec<_> = (0..2).map(|n| (start(backend, n), 40 + n)).collect();
    let draws = [Some(Draw::GREEDY); 2];
    let mut steps: Vec<Vec<u32>> = Vec::new();
    let result = backend.decode_run(&batch, &draws, 9, vocab, &mut |chosen| {
        steps.push(chosen.ids.to_vec());
        steps.len() < 4
    });
    if backend.most_drawn() == 0 {
        assert!(matches!(result, Err(BackendError::Device(_))));
        assert_eq!((steps.len(), backend.position(batch[0].0).unwrap()), (0, 3));
        return;
    }
    result.unwrap();
    assert!(backend.most_drawn() >= 2 && (4..=5).contains(&steps.len()), "{}", steps.len());
    let mut out = Vec::new();
    for (n, &(id, token)) in batch.iter().enumerate() {
        assert_eq!(backend.position(id).unwrap(), 3 + steps.len());
        let (alone, mut token) = (start(backend, n as u32), token);
        for step in &steps {
            backend.decode(&[(alone, token)], &mut out).unwrap();
            token = step[n];
            let best = out.iter().copied().fold(f32::MIN, f32::max);
            assert!(out[token as usize] >= best - subject.tie, "{token} of sequence {n} is not the best");
        }
        // Both have seen the same.
        let token = steps[steps.len() - 1][n];
        backend.decode(&[(id, token)], &mut out).unwrap();
        let after = out.clone();
        backend.decode(&[(alone, token)], &mut out).unwrap();
        assert!(largest_difference(&out, &after) <= subject.bar, "sequence {n}");
    }
    let ghost = [(SequenceId(12_345), 1)];
    let refused = backend.decode_run(&ghost, &draws[..1], 1, vocab, &mut |_| true);
    assert!(matches!(refused, Err(BackendError::UnknownSequence(_))));
    let full = backend.decode_run(&batch[..1], &draws[..1], 41, vocab, &mut |_| true);
    assert!(matches!(full, Err(BackendError::Full { capacity: 40, .. })));
}

fn the_contract(subject: &Subject) {
    let mut backend = (subject.make)();
    let backend = backend.as_mut();
    let vocab = backend.config().vocab_size;
    let most = backend.max_chunk();
    let mut out = vec![1.0];
    let id = backend.new_sequence(8).unwrap();
    let ghost = SequenceId(12_345);
    let unknown = |r: Result<(), BackendError>| assert!(matches!(r, Err(BackendError::UnknownSequence(_))));
    unknown(backend.prefill(ghost, &[1], Logits::Last, &mut out));
    unknown(backend.decode(&[(ghost, 1)], &mut out));
    unknown(backend.position(ghost).map(drop));
    backend.free_sequence(ghost);
    for bad in [vec![], vec![1; most + 1]] {
        let error = backend.prefill(id, &bad, Logits::Last, &mut out).unwrap_err();
        assert!(matches!(error, BackendError::BadChunk { .. }), "{error}");
    }
    let error = backend.prefill(id, &[1, vocab as u32], Logits::Last, &mut out).unwrap_err();
    assert!(matches!(error, BackendError::BadToken { .. }), "{error}");
    assert!(backend.decode(&[(id, u32::MAX)], &mut out).is_err());
    let again = backend.decode(&[(id, 1), (id, 2)], &mut out).unwrap_err();
    assert!(matches!(again, BackendError::Device(_)), "{again}");
    // Errors require a new sequence by contract.
    backend.free_sequence(id);
    let id = backend.new_sequence(8).unwrap();
    for (logits, rows) in [(Logits::None, 0), (Logits::Last, 1), (Logits::All, 3)] {
        let id = backend.new_sequence(8).unwrap();
        backend.prefill(id, &[1, 2, 3], logits, &mut out).unwrap();
        assert_eq!((out.len(), backend.position(id).unwrap()), (rows * vocab, 3));
        backend.free_sequence(id);
    }
    let whole = backend.memory();
    backend.prefill(id, &[1; 6], Logits::None, &mut out).unwrap();
    assert!(backend.memory().kv >= whole.kv);
    let error = backend.prefill(id, &[1; 3], Logits::Last, &mut out).unwrap_err();
    assert!(matches!(error, BackendError::Full { position: 6, capacity: 8, asked: 3 }), "{error}");
    backend.free_sequence(id);
    unknown(backend.position(id).map(drop));
    let empty = backend.memory();
    assert_eq!(empty.state, 0, "no sequence, no state: {empty:?}");
}

/// Sampled answers of the same seed do not depend on chunking.
fn sampled_answers(subject: &Subject) {
    let prompt = &goldens()[0].prompt;
    let sample = |chunk, seed| {
        let engine = Engine::start((subject.make)(), options(chunk));
        let sampling =
            SamplingParams { temperature: 1.0, top_k: 20, top_p: 0.95, seed, ..Default::default() };
        generate(&engine, GenerateRequest { sampling, ..ask(prompt, 12) }).tokens
    };
    assert_eq!(sample(64, 1), sample(64, 1));
    assert_ne!(sample(64, 1), sample(64, 2));
}

/// Cancelling a real prompt takes at most the chunk that runs; prints the time.
fn cancelling_a_long_prompt(subject: &Subject) {
    let engine = Engine::start((subject.make)(), EngineOptions { context_limit: 9000, ..options(16) });
    let prompt: Vec<u32> = (0..8000).map(|i| i * 7 % 1000).collect();
    let running = submit(&engine, ask(&prompt, 5)).unwrap();
    running.wait_prefill(32);
    let at = Instant::now();
    running.cancel.cancel();
    let done = running.finish();
    println!("cancelled a prefill on the {} backend after {:?}", engine.backend_name(), at.elapsed());
    assert_eq!(done.end.unwrap().0, FinishReason::Cancelled);
    // One chunk may have been running, and a few may have gone before this thread woke.
    let most = done.prefills.last().map_or(32, |p| p.0);
    assert!(most < 8000, "the prompt ran to its end");
}

fn run(subject: &Subject, test: fn(&Subject)) {
    if subject.present() {
        test(subject);
    }
}

macro_rules! subject {
    ($module:ident, $subject:expr) => {
        mod $module {
            #[test]
            fn golden_ids_through_the_engine() {
                super::run(&$subject, super::golden_ids_through_the_engine);
            }
            #[test]
            fn parallel_submitters() {
                super::run(&$subject, super::parallel_submitters);
            }
            #[test]
            fn conversations() {
                super::run(&$subject, super::conversations);
            }
            #[test]
            fn hit_logits_equal_cold_ones() {
                super::run(&$subject, super::hit_logits_equal_cold_ones);
            }
            #[test]
            fn snapshots_restore_exactly() {
                super::run(&$subject, super::snapshots_restore_exactly);
            }
            #[test]
            fn damaged_snapshots_are_refused() {
                super::run(&$subject, super::damaged_snapshots_are_refused);
            }
            #[test]
            fn batches_equal_single_steps() {
                super::run(&$subject, super::batches_equal_single_steps);
            }
            #[test]
            fn runs_of_steps() {
                super::run(&$subject, super::runs_of_steps);
            }
            #[test]
            fn the_contract() {
                super::run(&$subject, super::the_contract);
            }
            #[test]
            fn sampled_answers() {
                super::run(&$subject, super::sampled_answers);
            }
            #[test]
            fn cancelling_a_long_prompt() {
                super::run(&$subject, super::cancelling_a_long_prompt);
            }
        }
    };
}

subject!(reference, crate::REFERENCE);
subject!(cpu, crate::CPU);
subject!(soft, crate::SOFT);

/// Every chunk boundary of a prompt against steps alone: in both ways the f32 reference, to the bar.
#[test]
fn chunks_of_the_software_gpu_evaluated_against_the_reference() {
    if !SOFT.present() {
        return;
    }
    let sequences: Vec<Vec<u32>> = goldens().iter().map(|g| [&g.prompt[..], &g.greedy].concat()).collect();
    for chunk in [64, 5] {
        let e =
            evaluate(&mut ReferenceBackend::new(tiny()), (SOFT.make)().as_mut(), &sequences, chunk, |_| {})
                .unwrap();
        println!("{}", serde_json::to_string_pretty(&e).unwrap());
        assert_eq!((e.backend.as_str(), e.positions), ("soft", 267));
        assert!(e.mean_kl > 0.0 && e.mean_kl <= 1e-4, "mean KL {}", e.mean_kl);
        assert!(e.perplexity_change.abs() <= 5e-4, "perplexity {:+}", e.perplexity_change);
        assert!(e.max_logit_difference <= SOFT.bar as f64, "{}", e.max_logit_difference);
        assert!(e.top1_agreement >= 0.99, "{}", e.top1_agreement);
    }
}

#[test]
fn the_cpu_evaluated_against_the_reference() {
    let sequences: Vec<Vec<u32>> = goldens().iter().map(|g| [&g.prompt[..], &g.greedy].concat()).collect();
    let e =
        evaluate(&mut ReferenceBackend::new(tiny()), (CPU.make)().as_mut(), &sequences, 64, |_| {}).unwrap();
    println!("{}", serde_json::to_string_pretty(&e).unwrap());
    assert_eq!((e.backend.as_str(), e.reference.as_str(), e.positions), ("cpu", "reference", 267));
    assert!(e.mean_kl > 0.0 && e.mean_kl <= 1e-4, "mean KL {}", e.mean_kl);
    assert!(e.perplexity_change.abs() <= 2e-4, "perplexity {:+}", e.perplexity_change);
    assert!(e.max_logit_difference <= CPU.bar as f64, "{}", e.max_logit_difference);
    assert!(e.top1_agreement >= 0.99, "{}", e.top1_agreement);
}

#[test]
fn a_backend_evaluated_against_itself() {
    let sequences: Vec<Vec<u32>> = goldens().iter().map(|g| [&g.prompt[..], &g.greedy].concat()).collect();
    let (mut a, mut b) = (ReferenceBackend::new(tiny()), ReferenceBackend::new(tiny()));
    let mut calls = Vec::new();
    let e = evaluate(&mut a, &mut b, &sequences, 50, |p| calls.push((p.done, p.total))).unwrap();
    let total: usize = sequences.iter().map(|s| s.len() - 1).sum();
    assert_eq!((e.positions, e.sequences, e.mean_kl, e.max_kl), (total, 3, 0.0, 0.0));
    assert_eq!((e.top1_agreement, e.perplexity_change, e.max_logit_difference), (1.0, 0.0, 0.0));
    assert!(e.perplexity > 1.0 && e.perplexity == e.reference_perplexity);
    assert_eq!(calls.last(), Some(&(total, total)));
    assert!(calls.windows(2).all(|w| w[0].0 < w[1].0));
    assert_eq!(a.memory().state, 0, "its sequences are freed");
    let bad = |s: &[Vec<u32>]| {
        evaluate(&mut ReferenceBackend::new(tiny()), &mut ReferenceBackend::new(tiny()), s, 50, |_| {})
            .unwrap_err()
            .to_string()
    };
    assert_eq!(bad(&[]), "there are no token sequences to evaluate");
    assert_eq!(bad(&[vec![1, 2], vec![3]]), "sequence 1 has 1 tokens; at least 2 are needed");
    assert_eq!(bad(&[vec![1, 2, 1024]]), "sequence 0 has token id 1024 at index 2; the vocabulary has 1024");
}
