//! Attention of one token on the checked soft device against f64, at the head counts of the tiny model, of lily-mini and
//! of the 35B model, in two schedules.

use std::sync::OnceLock;

use crate::common::attention::{rates, rotated};
use crate::common::coverage::{Sizes, Sizes::*, at};
use crate::common::device::*;
use crate::common::*;
use bytemuck::cast_slice;
use half::bf16;
use lily_msl::soft::{Arg, SoftLibrary};

fn library() -> Option<&'static SoftLibrary> {
    static LIB: OnceLock<Option<SoftLibrary>> = OnceLock::new();
    LIB.get_or_init(|| {
        kernel_library("attention_test.metal", include_str!("../kernels/attention_test.metal"))
    })
    .as_ref()
}

pub fn rotation_is_exact_at_any_position() {
    let Some(lib) = library() else { return };
    let mut r = Random(6);
    let x = floats(&mut r, 256);
    let gain = bfloats(&mut r, 256, 0.5, 1.0);
    for position in [0u32, 1, 1000, 262_143] {
        let mut y = vec![f32::NAN; 256];
        run(
            lib,
            "test_rotate",
            [1, 1, 1],
            32,
            0,
            vec![
                ("x", read(&x)),
                ("gain", read(&gain)),
                ("rates", read(&rates())),
                ("y", write(&mut y)),
                ("position", Arg::Bytes(cast_slice(&[position]))),
                ("eps", Arg::Bytes(cast_slice(&[EPS]))),
            ],
        );
        close(&format!("position {position}"), &y, &rotated(&wide(&x), &gain, position), 2e-6);
    }
}

pub fn attention_over_splits() {
    let Some(lib) = library() else { return };
    // (heads, KV heads, span, positions of the tokens); edges of spans.
    for (sizes, heads, kv_heads, span, positions) in [
        (Mini, 4, 1, 64, &[0, 63, 64][..]),
        (Tiny, 4, 2, 32, &[31, 100]),
        (Large, 16, 2, 64, &[130]),
        (Large, 16, 2, 1024, &[3]),
        (Ragged, 2, 2, 16, &[40, 0]),
    ] {
        // No position is the last of its span everywhere.
        at(&[sizes, Ragged]);
        attention(lib, heads, kv_heads, Layout::Spans(span), positions);
    }
}

pub fn attention_over_fixed_blocks() {
    let Some(lib) = library() else { return };
    // (heads, KV heads, blocks, positions): shares of 8, 16 and 24 positions; more blocks than shares.
    let cases: [(Sizes, usize, usize, usize, &[u32]); 5] = [
        (Mini, 4, 1, 8, &[0, 63, 64]),
        (Tiny, 4, 2, 64, &[7, 8, 100]),
        (Large, 16, 2, 8, &[130]),
        (Large, 16, 2, 70, &[159]),
        (Ragged, 2, 2, 7, &[155, 55]),
    ];
    for (sizes, heads, kv_heads, blocks, positions) in cases {
        at(&[sizes, Ragged]);
        attention(lib, heads, kv_heads, Layout::Blocks(blocks), positions);
    }
}

/// How the positions are shared.
#[derive(Clone, Copy)]
enum Layout {
    Spans(u32),
    Blocks(usize),
}

fn attention(lib: &SoftLibrary, heads: usize, kv_heads: usize, layout: Layout, positions: &[u32]) {
    const D: usize = 256;
    let span = if let Layout::Spans(span) = layout { span } else { 0 };
    let mut r = Random(heads as u64 * 100 + if span > 0 { span as u64 } else { 7 });
    let (tokens, group, capacity) = (positions.len(), heads / kv_heads, 160usize);
    let stride = heads * 2 * D + 2 * kv_heads * D;
    let (splits, name) = match layout {
        Layout::Spans(span) => ((capacity as u32).div_ceil(span) as usize, "split"),
        Layout::Blocks(blocks) => (blocks, "blocks"),
    };
    let projected: Vec<f32> = floats(&mut r, tokens * stride).iter().map(|x| 3.0 * x).collect();
    let (q_gain, k_gain) = (bfloats(&mut r, D, 0.5, 1.5), bfloats(&mut r, D, 0.5, 1.5));
    let slots: Vec<u32> = (0..tokens as u32).rev().collect();
    let cache = tokens * kv_heads * capacity * D;
    let (keys0, values0) = (bfloats(&mut r, cache, 1.5, 0.0), bfloats(&mut r, cache, 1.0, 0.2));
    let at = |t: usize, kv: usize, p: usize| ((slots[t] as usize * kv_heads + kv) * capacity + p) * D;

    // What the cache must hold after, and the result.
    let (mut keys_after, mut values_after) = (keys0.clone(), values0.clone());
    let mut want = Vec::new();
    for t in 0..tokens {
        let p = positions[t] as usize;
        let row = &projected[t * stride..(t + 1) * stride];
        for kv in 0..kv_heads {
            let k = rotated(&wide(&row[heads * 2 * D + kv * D..][..D]), &k_gain, p as u32);
            for i in 0..D {
                keys_after[at(t, kv, p) + i] = bf16::from_f64(k[i]);
                values_after[at(t, kv, p) + i] = bf16::from_f32(row[heads * 2 * D + (kv_heads + kv) * D + i]);
            }
        }
        for h in 0..heads {
            let q = rotated(&wide(&row[h * 2 * D..][..D]), &q_gain, p as u32);
            let score = |n: usize| {
                let k = &keys_after[at(t, h / group, n)..][..D];
                k.iter().zip(&q).map(|(k, q)| k.to_f64() * q).sum::<f64>() / 16.0
            };
            let scores: Vec<f64> = (0..=p).map(score).collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let total: f64 = weights.iter().sum();
            for i in 0..D {
                let v = |n: usize| values_after[at(t, h / group, n) + i].to_f64();
                let o: f64 = weights.iter().enumerate().map(|(n, w)| w * v(n)).sum::<f64>() / total;
                want.push(o * sigmoid(row[h * 2 * D + D + i] as f64));
            }
        }
    }
    let mut shape = vec![heads as u32, kv_heads as u32, capacity as u32, span, splits as u32, stride as u32];
    shape.push(EPS.to_bits());
    for seed in SEEDS {
        let (mut keys, mut values) = (keys0.clone(), values0.clone());
        let mut partial = vec![f32::NAN; tokens * heads * splits * D];
        let mut weights = vec![f32::NAN; tokens * heads * splits * 2];
        let mut y = vec![f32::NAN; tokens * heads * D];
        let o = run(
            lib,
            &format!("attention_{name}_{group}"),
            [splits as u32, kv_heads as u32, tokens as u32],
            128,
            seed,
            vec![
                ("projected", read(&projected)),
                ("q_gain", read(&q_gain)),
                ("k_gain", read(&k_gain)),
                ("rates", read(&rates())),
                ("positions", read(positions)),
                ("slots", read(&slots)),
                ("keys", write(&mut keys)),
                ("values", write(&mut values)),
                ("partial", write(&mut partial)),
                ("weights", write(&mut weights)),
                ("shape", Arg::Bytes(cast_slice(&shape))),
            ],
        );
        // Every cached row is read once for all heads of its group; the new one is only written.
        let rows: u64 = positions.iter().map(|&p| p as u64).sum::<u64>() * kv_heads as u64;
        assert_eq!((o.touched[6].bytes_read(), o.touched[7].bytes_read()), (rows * 512, rows * 512));
        assert_eq!(o.touched[6].bytes_written(), (tokens * kv_heads * D * 2) as u64);
        run(
            lib,
            if name == "split" { "attention_combine" } else { "attention_blocks_combine" },
            [heads as u32, tokens as u32, 1],
            256,
            seed,
            vec![
                ("projected", read(&projected)),
                ("positions", read(positions)),
                ("partial", read(&partial)),
                ("weights", read(&weights)),
                ("y", write(&mut y)),
                ("shape", Arg::Bytes(cast_slice(&shape))),
            ],
        );
        let what = format!("attention {heads}/{kv_heads}, {name}, span {span}");
        close(&what, &y, &want, 1e-5);
        assert_eq!(values, values_after, "{what}");
        // A rounding of f32 may fall on the other side of a bfloat's.
        close(&format!("{what}: keys"), &narrow(&keys), &wide_bf16(&keys_after), 0.008);
    }
}
