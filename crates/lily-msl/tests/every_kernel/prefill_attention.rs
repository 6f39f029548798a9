//! Attention of a chunk on the checked soft device against f64, at the head counts of the tiny model, of lily-mini and
//! of the 35B model, behind prefixes of any length, in two schedules. Caches and scratch are NaN where nothing was
//! written yet.

use std::sync::OnceLock;

use crate::common::attention::{rates, rotated};
use crate::common::coverage::{Sizes, Sizes::*, at};
use crate::common::device::*;
use crate::common::*;
use bytemuck::cast_slice;
use half::{bf16, f16};
use lily_msl::soft::{Arg, SoftLibrary};

const D: usize = 256;
const CAPACITY: usize = 200;

fn library() -> Option<&'static SoftLibrary> {
    static LIB: OnceLock<Option<SoftLibrary>> = OnceLock::new();
    LIB.get_or_init(|| kernel_file("attention_prefill.metal")).as_ref()
}

/// Heads, KV heads, position of the chunk, tokens.
struct Case(Sizes, usize, usize, usize, usize);

pub fn causal_behind_a_prefix() {
    let Some(lib) = library() else { return };
    let cases = [
        Case(Mini, 4, 1, 0, 19),
        Case(Mini, 4, 1, 61, 9), // the prefix ends inside eight positions, the chunk in the second block of 64
        Case(Tiny, 4, 2, 5, 40),
        Case(Large, 16, 2, 0, 9),
        Case(Large, 16, 2, 130, 13), // three blocks
        Case(Ragged, 2, 2, 40, 35),  // no packing, two tiles
        Case(Ragged, 8, 1, 199, 1),  // the cache's last position
    ];
    for case in cases {
        // No chunk fills its tiles.
        at(&[case.0, Ragged]);
        check(lib, &case);
    }
}

fn check(lib: &SoftLibrary, &Case(_, heads, kv_heads, start, tokens): &Case) {
    let what = format!("{heads}/{kv_heads} heads, {tokens} tokens behind {start}");
    let mut r = Random((heads * 1000 + start) as u64);
    let (group, end) = (heads / kv_heads, start + tokens);
    let stride = heads * 2 * D + 2 * kv_heads * D + 4;
    let projected: Vec<f32> = floats(&mut r, tokens * stride).iter().map(|x| 3.0 * x).collect();
    let (q_gain, k_gain) = (bfloats(&mut r, D, 0.5, 1.5), bfloats(&mut r, D, 0.5, 1.5));
    let slot = 1;
    let at_row = |kv: usize, p: usize| ((slot * kv_heads + kv) * CAPACITY + p) * D;
    let (mut keys0, mut values0) = (vec![bf16::NAN; 2 * kv_heads * CAPACITY * D], Vec::new());
    values0.resize(keys0.len(), bf16::NAN);
    for kv in 0..kv_heads {
        let prefix = at_row(kv, 0)..at_row(kv, start);
        keys0[prefix.clone()].copy_from_slice(&bfloats(&mut r, start * D, 1.5, 0.0));
        values0[prefix].copy_from_slice(&bfloats(&mut r, start * D, 1.0, 0.2));
    }

    // What the caches must hold after: the chunk's rows, and zero values up to a multiple of 8.
    let (mut keys_after, mut values_after) = (keys0.clone(), values0.clone());
    for kv in 0..kv_heads {
        for t in 0..tokens {
            let row = &projected[t * stride + heads * 2 * D..];
            let k = rotated(&wide(&row[kv * D..][..D]), &k_gain, (start + t) as u32);
            for i in 0..D {
                keys_after[at_row(kv, start + t) + i] = bf16::from_f64(k[i]);
                values_after[at_row(kv, start + t) + i] = bf16::from_f32(row[(kv_heads + kv) * D + i]);
            }
        }
        values_after[at_row(kv, end)..at_row(kv, end.next_multiple_of(8))].fill(bf16::ZERO);
    }
    let scaled = |t: usize, h: usize| -> Vec<f64> {
        let q = rotated(&wide(&projected[t * stride + h * 2 * D..][..D]), &q_gain, (start + t) as u32);
        q.iter().map(|q| q * std::f64::consts::LOG2_E / 16.0).collect()
    };
    let want_q: Vec<f64> =
        (0..tokens).flat_map(|t| (0..heads).flat_map(|h| scaled(t, h)).collect::<Vec<f64>>()).collect();
    // The result for queries and keys as they enter the products.
    let reference = |queries: &[f32], keys: &[bf16]| -> Vec<f64> {
        let mut want = Vec::new();
        for (row, q) in queries.chunks(D).enumerate() {
            let (t, h) = (row / heads, row % heads);
            let score = |n: usize| -> f64 {
                let k = &keys[at_row(h / group, n)..][..D];
                k.iter().zip(q).map(|(k, &q)| k.to_f64() * q as f64).sum()
            };
            let scores: Vec<f64> = (0..=start + t).map(score).collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp2()).collect();
            let total: f64 = weights.iter().sum();
            for i in 0..D {
                let v = |n: usize| values_after[at_row(h / group, n) + i].to_f64();
                let o: f64 = weights.iter().enumerate().map(|(n, w)| w * v(n)).sum::<f64>() / total;
                want.push(o * sigmoid(projected[t * stride + h * 2 * D + D + i] as f64));
            }
        }
        want
    };

    let shape = [heads as u32, kv_heads as u32, CAPACITY as u32, 0, 0, stride as u32, EPS.to_bits()];
    let chunk = chunk(start, tokens, slot);
    let rates = rates();
    for seed in SEEDS {
        let (mut keys, mut values) = (keys0.clone(), values0.clone());
        let mut queries = vec![f16::NAN; tokens * heads * D];
        let a = vec![
            ("projected", read(&projected)),
            ("q_gain", read(&q_gain)),
            ("k_gain", read(&k_gain)),
            ("rates", read(&rates)),
            ("chunk", read(&chunk)),
            ("queries", write(&mut queries)),
            ("keys", write(&mut keys)),
            ("values", write(&mut values)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        let grid = [(heads + 2 * kv_heads) as u32, (tokens + 7).div_ceil(4) as u32, 1];
        run(lib, "attention_prepare", grid, 128, seed, a);
        close(&format!("{what}: queries"), &widen(&queries), &want_q, 2.0 / 4096.0);
        let same = |a: &[bf16], b: &[bf16]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same(&values, &values_after), "{what}: values in the cache");
        // A rounding of f32 may fall on the other side of a bfloat's.
        for kv in 0..kv_heads {
            let rows = at_row(kv, 0)..at_row(kv, end);
            close(&what, &narrow(&keys[rows.clone()]), &wide_bf16(&keys_after[rows]), 0.008);
            assert!(same(
                &keys[at_row(kv, end)..at_row(kv, CAPACITY)],
                &keys0[at_row(kv, end)..at_row(kv, CAPACITY)]
            ));
        }

        // Halves of this sequence's rows, up to a multiple of eight positions; beyond them nothing is read or written.
        let seen = end.next_multiple_of(8);
        let mut half_keys = vec![f16::NAN; kv_heads * CAPACITY * D];
        let mut half_values = half_keys.clone();
        let h = vec![
            ("keys", read(&keys)),
            ("values", read(&values)),
            ("half_keys", write(&mut half_keys)),
            ("half_values", write(&mut half_values)),
            ("chunk", read(&chunk)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        let o =
            run(lib, "attention_halves", [CAPACITY.div_ceil(64) as u32, kv_heads as u32, 1], 128, seed, h);
        let rows = (kv_heads * seen * D * 2) as u64;
        assert_eq!([0, 1].map(|i| o.touched[i].bytes_read()), [rows; 2], "{what}");
        assert_eq!([2, 3].map(|i| o.touched[i].bytes_written()), [rows; 2], "{what}");
        for (halves, cache) in [(&half_keys, &keys), (&half_values, &values)] {
            for (kv, p) in (0..kv_heads).flat_map(|kv| (0..end).map(move |p| (kv, p))) {
                let (half, bfloat) = (&halves[(kv * CAPACITY + p) * D..][..D], &cache[at_row(kv, p)..][..D]);
                assert!(half.iter().zip(bfloat).all(|(h, b)| h.to_f32() == b.to_f32()), "{what}: {kv}, {p}");
            }
        }

        let mut y = vec![f16::NAN; tokens * heads * D];
        let b = vec![
            ("queries", read(&queries)),
            ("keys", read(&half_keys)),
            ("values", read(&half_values)),
            ("projected", read(&projected)),
            ("y", write(&mut y)),
            ("chunk", read(&chunk)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        // One tile too many.
        let grid = [(tokens * group).div_ceil(32) as u32 + 1, kv_heads as u32, 1];
        let o = run(lib, &format!("attention_prefill_{group}"), grid, 128, seed, b);
        // The output's rounding and the weights'.
        close(&what, &widen(&y), &reference(&widen(&queries), &keys), 2.0 / 2048.0);
        assert_eq!(o.touched[4].bytes_written(), (tokens * heads * D * 2) as u64);
        // Only this sequence's rows are read, and of positions nobody sees at most the rest of the last eight.
        assert_eq!((o.touched[1].bytes_read(), o.touched[2].bytes_read()), (rows, rows), "{what}");

        // The same with floats in the products: the result is not rounded.
        let mut y = vec![f32::NAN; tokens * heads * D];
        let d = vec![
            ("queries", read(&queries)),
            ("keys", read(&keys)),
            ("values", read(&values)),
            ("projected", read(&projected)),
            ("y", write(&mut y)),
            ("chunk", read(&chunk)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        let grid = [(tokens * group).div_ceil(32) as u32 + 1, kv_heads as u32, 1];
        let o = run(lib, &format!("attention_prefill_float_{group}"), grid, 128, seed, d);
        close(&what, &y, &reference(&widen(&queries), &keys), 1e-5);
        assert_eq!(o.touched[4].bytes_written(), (tokens * heads * D * 4) as u64);
        assert_eq!((o.touched[1].bytes_read(), o.touched[2].bytes_read()), (rows, rows), "{what}");
    }
}
