//! Faults put into copies of the prefill kernels, one at a time: each is caught.

mod common;

use std::process::Command;

use bytemuck::cast_slice;
use common::device::*;
use common::*;
use half::{bf16, f16};
use lily_msl::emit::STRICT_FLAGS;
use lily_msl::soft::{Arg, Dispatch, Fault, FaultKind, SoftError, SoftLibrary};

/// The kernels of `root` with one occurrence of `from` in the file `changed` replaced by `to`. Of a template's
/// instantiations only those stay that the tests here run.
fn seeded(root: &str, changed: &str, from: &str, to: &str, occurrence: usize) -> lily_msl::Unit {
    let used = [
        "GEMM(\"gemm_\", half, 32",
        "FLASH(\"attention_prefill_\", 4",
        "template [[host_name(\"experts_down\")]]",
    ];
    let kept = |line: &&str| {
        let instance = ["GEMM(", "FLASH(", "template [[host_name("].iter().any(|s| line.starts_with(s));
        !instance || used.iter().any(|s| line.starts_with(s))
    };
    let text = kernel_text(changed).lines().filter(kept).collect::<Vec<&str>>().join("\n");
    let (at, _) =
        text.match_indices(from).nth(occurrence).unwrap_or_else(|| panic!("{changed} has no {from}"));
    let text = format!("{}{to}{}", &text[..at], &text[at + from.len()..]);
    let sources: Vec<(&str, &str)> =
        KERNELS.iter().map(|&(n, t)| (n, if n == changed { text.as_str() } else { t })).collect();
    let root_text = sources.iter().find(|s| s.0 == root).unwrap().1;
    unit(root, root_text, &sources)
}

const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_threadgroup);";
const SIMD_BARRIER: &str = "simdgroup_barrier(mem_flags::mem_threadgroup);";

fn dispatch(
    lib: &SoftLibrary,
    kernel: &str,
    grid: [u32; 3],
    seed: u32,
    args: Vec<(&str, Arg<'_>)>,
) -> Result<(), Box<Fault>> {
    let d = Dispatch { kernel, grid, group: [128, 1, 1], args, threadgroup: &[], constants: &[], seed };
    match lib.dispatch(d) {
        Ok(_) => Ok(()),
        Err(SoftError::Fault(f)) => Err(f),
        Err(e) => panic!("{e}"),
    }
}

fn gemm(lib: &SoftLibrary, seed: u32) -> Result<(), Box<Fault>> {
    let mut r = Random(1);
    let (cols, rows, tokens) = (128usize, 40usize, 20usize);
    let m = Quant::random(&mut r, rows, cols, 4);
    let x = halves(&mut r, tokens * cols, 1.0, 0.0);
    let mut y = vec![f32::NAN; tokens * rows];
    let shape = [cols as u32, 1, 0, 0, rows as u32, 0, 0, 0, 4, 0, 0, 0, rows as u32, EPS.to_bits(), 0, 0];
    let chunk = chunk(0, tokens, 0);
    let mut args = vec![
        ("x", read(&x)),
        ("y", write(&mut y)),
        ("chunk", read(&chunk)),
        ("shape", Arg::Bytes(cast_slice(&shape))),
    ];
    for n in [["w0", "s0", "b0"], ["w1", "s1", "b1"], ["w2", "s2", "b2"], ["w3", "s3", "b3"]] {
        args.extend([(n[0], read(&m.codes)), (n[1], read(&m.scales)), (n[2], read(&m.biases))]);
    }
    dispatch(lib, "gemm_32", [1, 1, 1], seed, args)
}

#[test]
fn missing_barriers_of_the_product_are_races() {
    let Some(c) = compiler() else { return };
    let sound = checked(&seeded("gemm.metal", "gemm.metal", BARRIER, BARRIER, 0), &c);
    SEEDS.iter().for_each(|&s| gemm(&sound, s).unwrap());
    // Behind the staging of a step, behind its use, and around the results.
    for (what, barrier, n) in [
        ("staged", BARRIER, 0),
        ("used", BARRIER, 1),
        ("result", SIMD_BARRIER, 0),
        ("taken", SIMD_BARRIER, 1),
    ] {
        let lib = checked(&seeded("gemm.metal", "gemm.metal", barrier, "", n), &c);
        for seed in SEEDS {
            let f = gemm(&lib, seed).expect_err(what);
            assert!(matches!(f.kind, FaultKind::Race | FaultKind::Uninitialised), "{what}: {f}");
        }
    }
}

#[test]
fn reads_past_the_end_are_caught() {
    let Some(c) = compiler() else { return };
    for (from, to) in [
        ("uint row = min(row0 + tid / 2, rows - 1)", "uint row = row0 + tid / 2"),
        (
            "uint token = min(token0 + input_row<ROWS>(tid), tokens - 1)",
            "uint token = token0 + input_row<ROWS>(tid)",
        ),
        ("out_token < tokens && out_row < rows", "out_row < rows"),
    ] {
        let lib = checked(&seeded("gemm.metal", "gemm.metal", from, to, 0), &c);
        let f = gemm(&lib, 0).expect_err(from);
        assert_eq!(f.kind, FaultKind::Bounds, "{f}");
    }
}

#[test]
fn a_wrong_address_space_is_no_kernel() {
    if !Command::new("clang-19").arg("--version").output().is_ok_and(|o| o.status.success()) {
        println!("skipped: no clang-19");
        return;
    }
    let check = |u: &lily_msl::Unit| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.clcpp");
        std::fs::write(&path, u.strict_source()).unwrap();
        let args = ["-x", "clcpp", "-fsyntax-only"];
        let out = Command::new("clang-19").args(args).args(STRICT_FLAGS).arg(&path).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let sound = check(&seeded("gemm.metal", "gemm.metal.h", "threadgroup T* tile", "threadgroup T* tile", 0));
    assert!(sound.0, "{}", sound.1);
    let (accepted, log) =
        check(&seeded("gemm.metal", "gemm.metal.h", "threadgroup T* tile", "device T* tile", 0));
    assert!(!accepted && log.contains("put_weights"), "{log}");
}

/// A chunk of five tokens behind 66 others through both dispatches of attention; the results.
fn attention(lib: &SoftLibrary, seed: u32) -> Result<Vec<f16>, Box<Fault>> {
    const D: usize = 256;
    let mut r = Random(2);
    let (tokens, heads, start, capacity) = (5usize, 4usize, 66usize, 80usize);
    let stride = heads * 2 * D + 2 * D;
    let projected = floats(&mut r, tokens * stride);
    let gain = bfloats(&mut r, D, 0.5, 1.0);
    let rates = common::attention::rates();
    let shape = [heads as u32, 1, capacity as u32, 0, 0, stride as u32, EPS.to_bits()];
    let chunk = chunk(start, tokens, 0);
    let (mut keys, mut values) = (bfloats(&mut r, start * D, 1.0, 0.0), bfloats(&mut r, start * D, 1.0, 0.0));
    keys.resize(capacity * D, bf16::NAN);
    values.resize(capacity * D, bf16::NAN);
    let mut queries = vec![f16::NAN; tokens * heads * D];
    let mut y = vec![f16::NAN; tokens * heads * D];
    let a = vec![
        ("projected", read(&projected)),
        ("q_gain", read(&gain)),
        ("k_gain", read(&gain)),
        ("rates", read(&rates)),
        ("chunk", read(&chunk)),
        ("queries", write(&mut queries)),
        ("keys", write(&mut keys)),
        ("values", write(&mut values)),
        ("shape", Arg::Bytes(cast_slice(&shape))),
    ];
    dispatch(lib, "attention_prepare", [heads as u32 + 2, 3, 1], seed, a)?;
    let (mut half_keys, mut half_values) = (vec![f16::NAN; capacity * D], vec![f16::NAN; capacity * D]);
    let h = vec![
        ("keys", read(&keys)),
        ("values", read(&values)),
        ("half_keys", write(&mut half_keys)),
        ("half_values", write(&mut half_values)),
        ("chunk", read(&chunk)),
        ("shape", Arg::Bytes(cast_slice(&shape))),
    ];
    dispatch(lib, "attention_halves", [2, 1, 1], seed, h)?;
    let b = vec![
        ("queries", read(&queries)),
        ("keys", read(&half_keys)),
        ("values", read(&half_values)),
        ("projected", read(&projected)),
        ("y", write(&mut y)),
        ("chunk", read(&chunk)),
        ("shape", Arg::Bytes(cast_slice(&shape))),
    ];
    dispatch(lib, "attention_prefill_4", [1, 1, 1], seed, b)?;
    Ok(y)
}

#[test]
fn missing_barriers_of_attention_are_races() {
    let Some(c) = compiler() else { return };
    let file = "attention_prefill.metal";
    let sound = checked(&seeded(file, file, BARRIER, BARRIER, 0), &c);
    for seed in SEEDS {
        assert!(attention(&sound, seed).unwrap().iter().all(|v| v.is_finite()));
    }
    // Behind the queries, the scores, the weights, their use, the divisors.
    for n in 0..5 {
        let lib = checked(&seeded(file, file, BARRIER, "", n), &c);
        for seed in SEEDS {
            let f = attention(&lib, seed).expect_err(&format!("barrier {n}"));
            assert!(matches!(f.kind, FaultKind::Race | FaultKind::Uninitialised), "barrier {n}: {f}");
        }
    }
}

#[test]
fn what_was_never_written_shows_as_nan() {
    let Some(c) = compiler() else { return };
    // Without the zeros that fill up eight positions, weights of zero meet the cache's NaN.
    let file = "attention_prefill.metal";
    let from = "position < (chunk->position + tokens + 7) / 8 * 8";
    let lib = checked(&seeded(file, file, from, "false", 0), &c);
    assert!(attention(&lib, 0).unwrap().iter().any(|v| v.is_nan()));
}

/// The factors of two steps of one head, from random tokens.
fn factors(lib: &SoftLibrary, seed: u32) -> Result<(), Box<Fault>> {
    let mut r = Random(3);
    let (tokens, channels, stride) = (40usize, 3 * 128usize, 4 * 128 + 4usize);
    let projected = floats(&mut r, tokens * stride);
    let u = floats(&mut r, 64 * channels);
    let (a_log, dt_bias) = ([0.5f32], [0.1f32]);
    let mut ring = vec![0f32; 4 * channels];
    let mut factors = vec![f32::NAN; 2 * (2 * 1024 + 512)];
    let shape = [1, 1, stride as u32, EPS.to_bits()];
    let chunk = chunk(0, tokens, 0);
    let args = vec![
        ("projected", read(&projected)),
        ("u", read(&u)),
        ("a_log", read(&a_log)),
        ("dt_bias", read(&dt_bias)),
        ("ring", write(&mut ring)),
        ("factors", write(&mut factors)),
        ("chunk", read(&chunk)),
        ("shape", Arg::Bytes(cast_slice(&shape))),
    ];
    dispatch(lib, "gdn_factors", [2, 1, 1], seed, args)
}

#[test]
fn missing_barriers_and_doubled_writes_of_gated_deltanet_are_races() {
    let Some(c) = compiler() else { return };
    let file = "gdn_prefill.metal";
    let sound = checked(&seeded(file, file, BARRIER, BARRIER, 0), &c);
    SEEDS.iter().for_each(|&s| factors(&sound, s).unwrap());
    let ring = "if (first + GDN_TOKENS >= tokens) {";
    for (what, from, n) in [("products", BARRIER, 0), ("exponents", BARRIER, 1), ("ring", ring, 0)] {
        // Without its condition the ring is written by the groups of all steps.
        let to = if what == "ring" { "{" } else { "" };
        let lib = checked(&seeded(file, file, from, to, n), &c);
        for seed in SEEDS {
            let f = factors(&lib, seed).expect_err(what);
            assert!(matches!(f.kind, FaultKind::Race | FaultKind::Uninitialised), "{what}: {f}");
        }
    }
}

#[test]
fn a_block_that_reads_past_its_pairs_is_caught() {
    let Some(c) = compiler() else { return };
    let file = "moe_prefill.metal";
    let down = |lib: &SoftLibrary| {
        let mut r = Random(4);
        let (hidden, width, pairs) = (64usize, 64usize, 9usize);
        let h = halves(&mut r, pairs * width, 1.0, 0.0);
        let m = Quant::random(&mut r, hidden, width, 4);
        let order: Vec<u32> = (0..pairs as u32).rev().collect();
        let blocks = [[0u32, 0, pairs as u32, 0], [0; 4]];
        let mut y = vec![f32::NAN; pairs * hidden];
        let shape = [hidden as u32, 1, 1, width as u32, 64, 2, EPS.to_bits()];
        let args = vec![
            ("h", read(&h)),
            ("pairs", read(&order)),
            ("blocks", read(&blocks)),
            ("down_w", read(&m.codes)),
            ("down_s", read(&m.scales)),
            ("down_b", read(&m.biases)),
            ("y", write(&mut y)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        dispatch(lib, "experts_down", [1, 2, 1], 0, args)
    };
    let from = "uint source = first + min(input_row<EXPERT_ROWS>(tid), count - 1), source_column";
    let to = "uint source = first + input_row<EXPERT_ROWS>(tid), source_column";
    down(&checked(&seeded(file, file, from, from, 0), &c)).unwrap();
    let f = down(&checked(&seeded(file, file, from, to, 0), &c)).expect_err("a read past the pairs");
    assert_eq!(f.kind, FaultKind::Bounds, "{f}");
}
