//! The sampler on the checked soft device: the sets of top-k, top-p and min-p against plain sorting, the noise against
//! Philox in Rust, and the distribution of many draws.

use std::sync::OnceLock;

use crate::common::Random;
use crate::common::coverage::{Sizes::*, at};
use crate::common::device::*;
use bytemuck::{Pod, Zeroable, cast_slice};
use lily_msl::soft::{Arg, SoftLibrary};

fn library() -> Option<&'static SoftLibrary> {
    static LIB: OnceLock<Option<SoftLibrary>> = OnceLock::new();
    LIB.get_or_init(|| kernel_file("sample.metal")).as_ref()
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    temperature: f32,
    top_p: f32,
    min_p: f32,
    top_k: u32,
    seed: [u32; 2],
}

const FREE: Params = Params { temperature: 1.0, top_p: 1.0, min_p: 0.0, top_k: 0, seed: [7, 11] };

/// Philox4x32-10.
fn philox(mut c: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let product = |a: u32, b: u32| a as u64 * b as u64;
        let (p0, p1) = (product(0xD251_1F53, c[0]), product(0xCD9E_8D57, c[2]));
        let (high, low) = (|p: u64| (p >> 32) as u32, |p: u64| p as u32);
        c = [high(p1) ^ c[1] ^ key[0], low(p1), high(p0) ^ c[3] ^ key[1], low(p0)];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

/// The ids that may be drawn, best first.
fn allowed(logits: &[f32], p: &Params) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    ids.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    if p.top_k > 0 {
        ids.truncate(p.top_k as usize);
    }
    let top = logits[ids[0]] as f64;
    let weight = |i: usize| ((logits[i] as f64 - top) / p.temperature as f64).exp();
    if p.top_p < 1.0 {
        let needed = p.top_p as f64 * ids.iter().map(|&i| weight(i)).sum::<f64>();
        let mut mass = 0.0;
        let last = ids.iter().position(|&i| {
            mass += weight(i);
            mass >= needed
        });
        ids.truncate(last.map_or(ids.len(), |n| n + 1));
    }
    ids.retain(|&i| weight(i) >= p.min_p as f64);
    ids
}

/// The id with the largest noisy logit, and by how much it wins.
fn winner(logits: &[f32], p: &Params, position: u32) -> (u32, f64) {
    let score = |&i: &usize| {
        let v = (philox([i as u32, position, 0, 0], p.seed)[0] as f64 + 0.5) / 2f64.powi(32);
        logits[i] as f64 / p.temperature as f64 - (-(-v).ln_1p()).ln()
    };
    let mut scores: Vec<(f64, u32)> = allowed(logits, p).iter().map(|i| (score(i), *i as u32)).collect();
    scores.sort_by(|a, b| b.0.total_cmp(&a.0));
    (scores[0].1, scores[0].0 - scores.get(1).map_or(f64::MIN, |s| s.0))
}

/// Draws a token for every row of `logits`; sizes are the vocabulary, the valid ids and a block's.
fn draw(
    lib: &SoftLibrary,
    logits: &[f32],
    (vocab, valid, block): (usize, u32, u32),
    params: &[Params],
    positions: &[u32],
    seed: u32,
) -> Vec<u32> {
    let rows = logits.len() / vocab;
    let blocks = valid.div_ceil(block);
    let shape = [vocab as u32, valid, block, blocks];
    let mut best = vec![f32::NAN; rows * blocks as usize];
    let mut best_ids = vec![0u32; best.len()];
    let a = vec![
        ("logits", read(logits)),
        ("best_logits", write(&mut best)),
        ("best_ids", write(&mut best_ids)),
        ("shape", Arg::Bytes(cast_slice(&shape))),
    ];
    run(lib, "argmax_blocks", [blocks, rows as u32, 1], 256, seed, a);
    let mut ids = vec![0u32; rows];
    let b = vec![
        ("logits", read(logits)),
        ("best_logits", read(&best)),
        ("best_ids", read(&best_ids)),
        ("params", read(params)),
        ("positions", read(positions)),
        ("ids", write(&mut ids)),
        ("shape", Arg::Bytes(cast_slice(&shape))),
    ];
    run(lib, "draw", [1, rows as u32, 1], 512, seed, b);
    ids
}

#[test]
fn philox_known_answers() {
    // From the authors' Random123 library (kat_vectors).
    assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(philox([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
}

pub fn sets_and_noise_are_exact() {
    let Some(lib) = library() else { return };
    let mut r = Random(12);
    // (vocabulary, valid ids, block)
    at(&[Ragged]);
    for (vocab, valid, block) in [(1500usize, 1450u32, 128u32), (400, 400, 1024), (3000, 3000, 100)] {
        let mut row = |spread: f32| -> Vec<f32> {
            (0..vocab)
                .map(|i| if i < valid as usize { spread * r.unit() * r.unit() * r.unit() } else { 1e9 })
                .collect()
        };
        // A usual row, a nearly flat one, one of few values (ties everywhere).
        let usual = row(20.0);
        let flat = row(0.01);
        let ties: Vec<f32> = row(3.0).iter().map(|x| if *x < 1e8 { x.round() } else { *x }).collect();
        let params = [
            Params { temperature: 0.7, ..FREE },
            Params { temperature: 1.0, top_k: 20, top_p: 0.95, ..FREE },
            Params { temperature: 0.6, top_k: 20, top_p: 0.95, seed: [1, 0], ..FREE },
            Params { top_k: 1, ..FREE },
            Params { top_k: 3, temperature: 2.5, ..FREE },
            Params { top_k: 150, top_p: 0.5, ..FREE },
            Params { top_p: 0.9, ..FREE },
            Params { top_p: 0.0, ..FREE },
            Params { min_p: 0.1, ..FREE },
            Params { min_p: 0.05, top_k: 50, top_p: 0.99, temperature: 1.3, ..FREE },
            Params { top_k: valid + 5, top_p: 0.3, ..FREE },
        ];
        let (mut logits, mut each, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        for (n, p) in params.iter().enumerate() {
            for (m, row) in [&usual, &flat, &ties].into_iter().enumerate() {
                logits.extend_from_slice(row);
                each.push(*p);
                positions.push((n * 100 + m) as u32);
            }
        }
        for seed in SEEDS {
            let got = draw(lib, &logits, (vocab, valid, block), &each, &positions, seed);
            let mut sure = 0;
            for (i, &id) in got.iter().enumerate() {
                let row = &logits[i * vocab..][..valid as usize];
                let what = format!("vocabulary {vocab}, row {}, parameters {}", i % 3, i / 3);
                let set = allowed(row, &each[i]);
                assert!(set.contains(&(id as usize)), "{what}: {id} is not in the set of {}", set.len());
                let (want, margin) = winner(row, &each[i], positions[i]);
                // A lead within f32 rounding may go to the second.
                if margin > 1e-4 {
                    sure += 1;
                    assert_eq!(id, want, "{what}, won by {margin}");
                }
            }
            assert!(
                sure * 10 > got.len() * 9,
                "{sure} of {} draws are decided by more than rounding",
                got.len()
            );
        }
    }
}

/// One logit that is not finite, wherever it stands, and no token is chosen, drawn or not; unused rows may hold anything.
pub fn temperature_zero_is_the_argmax_and_what_is_not_finite_is_said() {
    let Some(lib) = library() else { return };
    let (vocab, valid) = (600usize, 597u32);
    let row: Vec<f32> = (0..vocab).map(|i| ((i * 37) % 101) as f32).collect();
    let best = (0..valid as usize).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a))).unwrap();
    let greedy = Params { temperature: 0.0, top_k: 20, ..FREE };
    let mut logits = row.clone();
    logits[valid as usize..].copy_from_slice(&[f32::NAN, f32::INFINITY, 1e9]);
    let (mut params, mut want) = (vec![greedy], vec![best as u32]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 300, valid as usize - 1] {
            for p in [greedy, FREE, Params { top_k: 3, ..FREE }] {
                let from = logits.len();
                logits.extend_from_slice(&row);
                logits[from + at] = bad;
                params.push(p);
                want.push(u32::MAX);
            }
        }
    }
    let positions: Vec<u32> = (0..params.len() as u32).collect();
    assert_eq!(draw(lib, &logits, (vocab, valid, 64), &params, &positions, 3), want);
}

/// At the vocabularies of the models, with the limits that the published model's card recommends and without any.
pub fn the_large_vocabulary() {
    let Some(lib) = library() else { return };
    for (sizes, vocab, valid) in [(Tiny, 1024usize, 1024u32), (Mini, 8192, 8100), (Large, 248_320, 248_077)] {
        at(&[sizes]);
        let mut r = Random(vocab as u64);
        let row: Vec<f32> = (0..vocab).map(|_| 12.0 * r.unit() * r.unit() * r.unit()).collect();
        let params = [Params { temperature: 0.7, top_k: 20, top_p: 0.8, ..FREE }, FREE];
        let logits: Vec<f32> = params.iter().flat_map(|_| row.clone()).collect();
        for seed in SEEDS {
            let got = draw(lib, &logits, (vocab, valid, 2048), &params, &[3, 4], seed);
            for (i, p) in params.iter().enumerate() {
                let (want, margin) = winner(&row[..valid as usize], p, 3 + i as u32);
                assert!(margin > 1e-4, "{vocab}, {i}: the draw is decided by rounding; choose another seed");
                assert_eq!(got[i], want, "{vocab}, {i}");
            }
        }
    }
}

pub fn draws_follow_the_distribution() {
    let Some(lib) = library() else { return };
    let (vocab, draws) = (24usize, 700usize);
    let row: Vec<f32> = (0..vocab).map(|i| 1.5 * ((i * 7 % 24) as f32 / 8.0)).collect();
    let logits: Vec<f32> = (0..draws).flat_map(|_| row.clone()).collect();
    let p = Params { temperature: 1.5, top_p: 0.98, ..FREE };
    let positions: Vec<u32> = (0..draws as u32).collect();
    let ids = draw(lib, &logits, (vocab, vocab as u32, 8), &vec![p; draws], &positions, 0);
    let set = allowed(&row, &p);
    let weight = |i: usize| (row[i] as f64 / p.temperature as f64).exp();
    let total: f64 = set.iter().map(|&i| weight(i)).sum();
    let chi: f64 = set
        .iter()
        .map(|&i| {
            let expected = draws as f64 * weight(i) / total;
            let seen = ids.iter().filter(|&&d| d as usize == i).count() as f64;
            (seen - expected).powi(2) / expected
        })
        .sum();
    assert!(ids.iter().all(|&d| set.contains(&(d as usize))));
    // Chi-square of at most 23 degrees of freedom is below 49.7 with p = 0.999.
    assert!(set.len() > 10 && chi < 49.7, "chi-square {chi} of {} ids", set.len());
}
