//! The decode kernels of `kernels/` on the checked soft device against f64, at the shapes of the tiny model, of
//! lily-mini and of the 35B model (some rows where whole matrices would take long), in two schedules.

use std::sync::OnceLock;

use crate::common::coverage::{Sizes, Sizes::*, at};
use crate::common::device::*;
use crate::common::gdn::gdn_reference;
use crate::common::*;
use bytemuck::cast_slice;
use lily_msl::soft::{Arg, SoftLibrary};

/// The library of one source, built once.
fn library(name: &'static str) -> Option<&'static SoftLibrary> {
    const NAMES: [&str; 4] = ["gemv.metal", "gdn_decode.metal", "moe_decode.metal", "sample.metal"];
    static LIBS: [OnceLock<Option<SoftLibrary>>; 4] = [const { OnceLock::new() }; 4];
    let i = NAMES.iter().position(|s| *s == name).expect("a known source");
    LIBS[i].get_or_init(|| kernel_file(name)).as_ref()
}

/// All kernels in one source, as a host compiles them: names do not collide, and the manifest is complete.
#[test]
fn all_kernels_are_one_library() {
    let mut s = lily_msl::Sources::new();
    for (name, text) in KERNELS {
        s.add(name, text);
    }
    let u = lily_msl::Unit::parse(&s, "all.metal", &Default::default()).unwrap_or_else(|e| panic!("{e}"));
    u.lint().unwrap_or_else(|e| panic!("{e}"));
    let m = u.manifest().unwrap_or_else(|e| panic!("{e}"));
    assert!(m.kernels.len() >= 52, "{} kernels", m.kernels.len());
    let names: std::collections::BTreeSet<&str> = u.constants.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names.len(), u.constants.len(), "two constants have one name");
    // Metal's own compiler gets one text with every file once.
    let flat = s.flatten("all.metal").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(flat.matches("inline float silu(").count(), 1);
    assert!(!flat.contains("#include \""));
}

pub fn project_with_norm_and_with_addition() {
    let Some(lib) = library("gemv.metal") else { return };
    // Columns, rows of each matrix, bits, tokens.
    type Case = (&'static [Sizes], usize, &'static [usize], &'static [usize], usize);
    let cases: [Case; 7] = [
        (&[Tiny], 128, &[1024, 512, 4, 4], &[4, 4, 4, 4], 2), // GDN
        (&[Mini], 256, &[64, 1, 128, 128], &[8, 8, 4, 4], 1), // router and shared expert
        (&[Large, Ragged], 2048, &[40, 1, 17, 33], &[8, 8, 4, 4], 1),
        (&[Large, Ragged], 2048, &[50, 31, 32, 3], &[4, 4, 4, 4], 2),
        (&[Ragged], 64, &[5], &[4], 3),
        (&[Large, Ragged], 4096, &[70], &[4], 1),
        (&[Ragged], 192, &[9, 7], &[4, 8], 1),
    ];
    for (sizes, cols, rows, bits, tokens) in cases {
        at(sizes);
        let mut r = Random(cols as u64 + rows[0] as u64);
        let x = floats(&mut r, tokens * cols);
        let gain = bfloats(&mut r, cols, 0.5, 1.0);
        let m: Vec<Quant> = rows.iter().zip(bits).map(|(&n, &b)| Quant::random(&mut r, n, cols, b)).collect();
        let stride = rows.iter().sum::<usize>() + 3;
        let before = floats(&mut r, tokens * stride);
        let four = |f: fn(&Quant) -> u32| -> [u32; 4] { std::array::from_fn(|i| m.get(i).map_or(0, f)) };
        // cols, matrices, padding to 16, rows, bits, stride, eps, padding.
        let mut shape = vec![cols as u32, m.len() as u32, 0, 0];
        shape.extend(four(|q| q.rows as u32));
        shape.extend(four(|q| q.bits as u32));
        shape.extend([stride as u32, EPS.to_bits(), 0, 0]);
        for add in [false, true] {
            let mut want = wide(&before);
            for t in 0..tokens {
                let input = wide(&x[t * cols..(t + 1) * cols]);
                let input = if add { input } else { rms_norm(&input, &wide_bf16(&gain), EPS as f64) };
                let out: Vec<f64> = m.iter().flat_map(|q| q.apply(&input)).collect();
                for (i, o) in out.iter().enumerate() {
                    let at = &mut want[t * stride + i];
                    *at = if add { *at + o } else { *o };
                }
            }
            for (per_group, seed) in [1, 2, 4, 8].into_iter().flat_map(|n| SEEDS.map(|s| (n, s))) {
                let blocks: usize = rows.iter().map(|n| n.div_ceil(per_group * 4)).sum();
                let mut y = before.clone();
                let any = |i: usize| m.get(i).unwrap_or(&m[0]);
                let kernel = format!("project_{}{per_group}", if add { "add_" } else { "norm_" });
                let mut args = vec![
                    ("x", read(&x)),
                    ("gain", read(&gain)),
                    ("y", write(&mut y)),
                    ("shape", Arg::Bytes(cast_slice(&shape))),
                ];
                const NAMES: [[&str; 3]; 4] =
                    [["w0", "s0", "b0"], ["w1", "s1", "b1"], ["w2", "s2", "b2"], ["w3", "s3", "b3"]];
                for (i, n) in NAMES.iter().enumerate() {
                    args.push((n[0], read(&any(i).codes)));
                    args.push((n[1], read(&any(i).scales)));
                    args.push((n[2], read(&any(i).biases)));
                }
                let o = run_with(
                    lib,
                    &kernel,
                    [blocks as u32, tokens as u32, 1],
                    128,
                    &[staged(cols)],
                    seed,
                    args,
                );
                close(&format!("{kernel} {cols}x{rows:?}"), &y, &want, 4e-6);
                // Every weight is read, none twice over; exactly the outputs are written.
                for (i, q) in m.iter().enumerate() {
                    assert_eq!(o.touched[4 + 3 * i].bytes_read(), q.codes.len() as u64 * 4);
                }
                assert_eq!(o.touched[2].bytes_written(), (tokens * (stride - 3) * 4) as u64);
                assert_eq!(o.touched[1].bytes_read() > 0, !add, "the gain is read only for the norm");
            }
        }
    }
}

pub fn embedding_rows() {
    let Some(lib) = library("gemv.metal") else { return };
    // The last: an id behind the table's end (of a step whose logits are all NaN), and the largest there is.
    let cases = [
        (Large, 2048usize, vec![7u32, 0, 99]),
        (Mini, 256, vec![98]),
        (Tiny, 128, vec![3]),
        (Ragged, 192, vec![5, u32::MAX, 100]),
    ];
    for (sizes, cols, ids) in cases {
        at(&[sizes]);
        let mut r = Random(cols as u64);
        let m = Quant::random(&mut r, 100, cols, 4);
        for seed in SEEDS {
            let mut y = vec![f32::NAN; ids.len() * cols];
            let shape = [cols as u32, 100];
            let args = vec![
                ("ids", read(&ids)),
                ("w", read(&m.codes)),
                ("scales", read(&m.scales)),
                ("biases", read(&m.biases)),
                ("y", write(&mut y)),
                ("shape", Arg::Bytes(cast_slice(&shape))),
            ];
            run(lib, "embed", [cols.div_ceil(1024) as u32, ids.len() as u32, 1], 32, seed, args);
            // One product and one sum, each rounded: exactly what f32 gives.
            for (t, &id) in ids.iter().enumerate() {
                let row = id.min(99) as usize;
                for i in 0..cols {
                    let q = m.codes[(row * cols + i) / 8] >> (4 * (i % 8)) & 15;
                    let g = (row * cols + i) / 64;
                    assert_eq!(y[t * cols + i], m.scales[g].to_f32() * q as f32 + m.biases[g].to_f32());
                }
            }
        }
    }
}

pub fn gdn_steps() {
    let Some(lib) = library("gdn_decode.metal") else { return };
    const D: usize = 128;
    // (key heads, value heads, steps)
    let cases: [(&[Sizes], usize, usize, usize); 3] =
        [(&[Tiny, Mini], 2, 4, 6), (&[Large], 16, 32, 2), (&[Ragged], 1, 3, 2)];
    for (sizes, kh, vh, steps) in cases {
        at(sizes);
        let mut r = Random(kh as u64);
        let (kw, vw) = (kh * D, vh * D);
        let channels = 2 * kw + vw;
        let stride = channels + vw + 2 * vh;
        let conv = bfloats(&mut r, channels * 4, 0.5, 0.1);
        let a_log: Vec<f32> = (0..vh).map(|_| r.unit()).collect();
        let dt_bias: Vec<f32> = (0..vh).map(|_| 4.0 * r.unit()).collect();
        let gain = bfloats(&mut r, D, 0.5, 1.0);
        // Two sequences at different positions, in places 2 and 0 of three.
        let slots = [2u32, 0];
        let offset = [0u32, 5];
        let mut inputs: Vec<Vec<Vec<f32>>> = vec![Vec::new(); 2];
        let mut state = vec![0f32; 3 * vh * D * D];
        let mut ring = vec![0f32; 3 * 4 * channels];
        let mut reference = vec![vec![0f64; vh * D * D]; 2];
        // The second sequence has seen five inputs already; only its last three matter to the convolution.
        for p in 0..5 {
            let x = floats(&mut r, stride);
            ring[(p % 4) * channels..][..channels].copy_from_slice(&x[..channels]);
            inputs[1].push(x);
        }
        for step in 0..steps {
            let projected: Vec<f32> = (0..2).flat_map(|_| floats(&mut r, stride)).collect();
            let positions = offset.map(|o| o + step as u32);
            let mut want = Vec::new();
            for t in 0..2 {
                inputs[t].push(projected[t * stride..(t + 1) * stride].to_vec());
                want.extend(gdn_reference(
                    &inputs[t],
                    &mut reference[t],
                    kh,
                    vh,
                    &conv,
                    &a_log,
                    &dt_bias,
                    &gain,
                ));
            }
            let (state0, ring0) = (state.clone(), ring.clone());
            for seed in SEEDS {
                (state, ring) = (state0.clone(), ring0.clone());
                let mut y = vec![f32::NAN; 2 * vw];
                let o = run(
                    lib,
                    "gdn_step",
                    [vh as u32, 2, 1],
                    512,
                    seed,
                    vec![
                        ("projected", read(&projected)),
                        ("conv_weight", read(&conv)),
                        ("a_log", read(&a_log)),
                        ("dt_bias", read(&dt_bias)),
                        ("gain", read(&gain)),
                        ("positions", read(&positions)),
                        ("slots", read(&slots)),
                        ("ring", write(&mut ring)),
                        ("state", write(&mut state)),
                        ("y", write(&mut y)),
                        (
                            "shape",
                            Arg::Bytes(cast_slice(&[kh as u32, vh as u32, stride as u32, EPS.to_bits()])),
                        ),
                    ],
                );
                close(&format!("gdn {kh}/{vh} step {step}"), &y, &want, 1e-5);
                // The state of the two sequences is read once and written once.
                let bytes = (2 * vh * D * D * 4) as u64;
                assert_eq!((o.touched[8].bytes_read(), o.touched[8].bytes_written()), (bytes, bytes));
                assert_eq!(o.touched[7].bytes_written(), (2 * channels * 4) as u64);
            }
            for t in 0..2 {
                let s = &state[slots[t] as usize * vh * D * D..][..vh * D * D];
                close(&format!("state {kh}/{vh} step {step}"), s, &reference[t], 1e-5);
            }
        }
    }
}

pub fn mixture_of_experts() {
    let Some(lib) = library("moe_decode.metal") else { return };
    // (hidden, experts, chosen, width, shared width, tokens)
    let cases = [
        (Tiny, 128usize, 16usize, 4usize, 64usize, 128usize, 2usize),
        (Mini, 256, 64, 8, 64, 128, 1),
        (Large, 128, 256, 8, 64, 64, 1),  // the routing
        (Large, 2048, 8, 8, 512, 512, 1), // the widths; all experts chosen
        (Ragged, 64, 13, 3, 64, 64, 3),
    ];
    for (sizes, hidden, experts, chosen, width, shared_width, tokens) in cases {
        at(&[sizes]);
        let mut r = Random(experts as u64 + hidden as u64);
        let residual0 = floats(&mut r, tokens * hidden);
        let gain = bfloats(&mut r, hidden, 0.5, 1.0);
        let stride = experts + 1 + 2 * shared_width + 2;
        let mut routed: Vec<f32> = floats(&mut r, tokens * stride).iter().map(|x| 2.0 * x).collect();
        // A tie for a place among the chosen: the lower id gets it.
        routed[3] = 1.75;
        routed[9 % experts] = routed[3];
        let gate = Quant::random(&mut r, experts * width, hidden, 4);
        let up = Quant::random(&mut r, experts * width, hidden, 4);
        let down = Quant::random(&mut r, experts * hidden, width, 4);
        let shared = Quant::random(&mut r, hidden, shared_width, 4);

        let (mut want_h, mut want) = (Vec::new(), wide(&residual0));
        for t in 0..tokens {
            let x = rms_norm(&wide(&residual0[t * hidden..(t + 1) * hidden]), &wide_bf16(&gain), EPS as f64);
            let row = &routed[t * stride..(t + 1) * stride];
            let mut ids: Vec<usize> = (0..experts).collect();
            ids.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            ids.truncate(chosen);
            let e: Vec<f64> = ids.iter().map(|&i| (row[i] as f64 - row[ids[0]] as f64).exp()).collect();
            let y = &mut want[t * hidden..(t + 1) * hidden];
            for (n, &id) in ids.iter().enumerate() {
                let h: Vec<f64> = (0..width)
                    .map(|i| silu(gate.row_dot(id * width + i, &x)) * up.row_dot(id * width + i, &x))
                    .collect();
                for (i, y) in y.iter_mut().enumerate() {
                    *y += e[n] / e.iter().sum::<f64>() * down.row_dot(id * hidden + i, &h);
                }
                want_h.extend(h);
            }
            let (g, u) = row[experts + 1..].split_at(shared_width);
            let h: Vec<f64> = g.iter().zip(u).map(|(&g, &u)| silu(g as f64) * u as f64).collect();
            for (i, y) in y.iter_mut().enumerate() {
                *y += sigmoid(row[experts] as f64) * shared.row_dot(i, &h);
            }
        }
        let mut shape: Vec<u32> =
            [hidden, experts, chosen, width, shared_width, stride].iter().map(|&v| v as u32).collect();
        shape.push(EPS.to_bits());
        for (seed, rows) in SEEDS.into_iter().flat_map(|s| [1u32, 2, 4].map(|n| (s, n))) {
            let mut h = vec![f32::NAN; tokens * chosen * width];
            let grid = |n: usize, y: u32| [(n as u32).div_ceil(4 * rows), y, tokens as u32];
            let o = run_with(
                lib,
                &format!("moe_gate_up_{rows}"),
                grid(width, chosen as u32),
                128,
                &[staged(hidden)],
                seed,
                vec![
                    ("residual", read(&residual0)),
                    ("gain", read(&gain)),
                    ("routed", read(&routed)),
                    ("gate_w", read(&gate.codes)),
                    ("gate_s", read(&gate.scales)),
                    ("gate_b", read(&gate.biases)),
                    ("up_w", read(&up.codes)),
                    ("up_s", read(&up.scales)),
                    ("up_b", read(&up.biases)),
                    ("h", write(&mut h)),
                    ("shape", Arg::Bytes(cast_slice(&shape))),
                ],
            );
            close(&format!("experts of {hidden}"), &h, &want_h, 1e-5);
            // Only the chosen experts' weights are read.
            if tokens == 1 {
                assert_eq!(o.touched[3].bytes_read(), (chosen * width * hidden / 2) as u64);
            }
            let mut residual = residual0.clone();
            run_with(
                lib,
                &format!("moe_down_{rows}"),
                grid(hidden, 1),
                128,
                &[staged(chosen * width + shared_width)],
                seed,
                vec![
                    ("routed", read(&routed)),
                    ("h", read(&h)),
                    ("down_w", read(&down.codes)),
                    ("down_s", read(&down.scales)),
                    ("down_b", read(&down.biases)),
                    ("shared_w", read(&shared.codes)),
                    ("shared_s", read(&shared.scales)),
                    ("shared_b", read(&shared.biases)),
                    ("residual", write(&mut residual)),
                    ("shape", Arg::Bytes(cast_slice(&shape))),
                ],
            );
            close(&format!("mixture of {hidden}"), &residual, &want, 1e-5);
        }
    }
}

pub fn argmax_of_logits() {
    let Some(lib) = library("sample.metal") else { return };
    let mut r = Random(8);
    // (vocabulary, valid ids, block)
    for (sizes, vocab, valid, block) in [
        (Tiny, 1024usize, 1024u32, 2048u32),
        (Mini, 8192, 8100, 2048),
        (Large, 248_320, 248_077, 2048),
        (Ragged, 777, 700, 64),
    ] {
        at(&[sizes]);
        let blocks = valid.div_ceil(block);
        let mut logits = floats(&mut r, 3 * vocab);
        // Token 0: a tie across blocks; token 1: the best is an id that must not be chosen; token 2: negative only.
        logits[valid as usize - 2] = 5.0;
        logits[600] = 5.0;
        logits[vocab + vocab - 1] = 9.0;
        logits[vocab + 77] = 2.0;
        (2 * vocab..3 * vocab).for_each(|i| logits[i] -= 100.0);
        let want: Vec<u32> = (0..3)
            .map(|t| {
                let row = &logits[t * vocab..][..valid as usize];
                let top = row.iter().copied().fold(f32::MIN, f32::max);
                row.iter().position(|&v| v == top).unwrap() as u32
            })
            .collect();
        let valid_only = if vocab > valid as usize { 77 } else { vocab as u32 - 1 };
        assert_eq!((want[0], want[1]), (600, valid_only));
        let shape = [vocab as u32, valid, block, blocks];
        for seed in SEEDS {
            let (mut best, mut ids) = (vec![f32::NAN; 3 * blocks as usize], vec![0u32; 3 * blocks as usize]);
            let mut out = vec![0u32; 3];
            let a = vec![
                ("logits", read(&logits)),
                ("best_logits", write(&mut best)),
                ("best_ids", write(&mut ids)),
                ("shape", Arg::Bytes(cast_slice(&shape))),
            ];
            run(lib, "argmax_blocks", [blocks, 3, 1], 256, seed, a);
            let b = vec![
                ("best_logits", read(&best)),
                ("best_ids", read(&ids)),
                ("ids", write(&mut out)),
                ("shape", Arg::Bytes(cast_slice(&shape))),
            ];
            run(lib, "argmax_final", [1, 3, 1], 256, seed, b);
            assert_eq!(out, want);
        }
    }
}
