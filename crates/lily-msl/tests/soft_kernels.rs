//! Kernels on the soft device against plain Rust, in several schedules.

mod common;

use std::sync::OnceLock;

use bytemuck::{cast_slice, cast_slice_mut};
use common::{Random, checked, close, compiler, unit};
use half::bf16;
use lily_msl::manifest::Access;
use lily_msl::soft::{Arg, Dispatch, Outcome, RawArg, RawDispatch, SoftLibrary, Value};

const SEEDS: [u32; 3] = [0, 7, 12345];

fn library() -> Option<&'static SoftLibrary> {
    static LIB: OnceLock<Option<SoftLibrary>> = OnceLock::new();
    LIB.get_or_init(|| {
        let u = unit(
            "basic.metal",
            include_str!("kernels/basic.metal"),
            &[("quant.h", include_str!("kernels/quant.h"))],
        );
        compiler().map(|c| checked(&u, &c))
    })
    .as_ref()
}

fn run(lib: &SoftLibrary, d: Dispatch<'_>) -> Outcome {
    lib.dispatch(d).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn gemv_4bit() {
    let Some(lib) = library() else { return };
    let (n, k, rows) = (37usize, 2048usize, 3u32);
    let mut r = Random(1);
    let w: Vec<u32> = (0..n * k / 8).map(|_| r.word() ^ r.word() << 8).collect();
    let scales: Vec<bf16> = (0..n * k / 64).map(|_| bf16::from_f32(0.01 + 0.002 * r.unit())).collect();
    let biases: Vec<bf16> = (0..n * k / 64).map(|_| bf16::from_f32(-0.08 + 0.01 * r.unit())).collect();
    let x: Vec<f32> = (0..k).map(|_| r.unit()).collect();
    let want: Vec<f64> = (0..n)
        .map(|row| {
            (0..k)
                .map(|i| {
                    let q = w[row * k / 8 + i / 8] >> (4 * (i % 8)) & 15;
                    let g = row * k / 64 + i / 64;
                    (scales[g].to_f64() * q as f64 + biases[g].to_f64()) * x[i] as f64
                })
                .sum()
        })
        .collect();
    for seed in SEEDS {
        let mut y = vec![f32::NAN; n];
        let o = run(
            lib,
            Dispatch {
                kernel: "gemv4_bf16",
                grid: [n.div_ceil(2 * rows as usize) as u32, 1, 1],
                group: [64, 1, 1],
                args: vec![
                    ("w", Arg::Read(cast_slice(&w))),
                    ("scales", Arg::Read(cast_slice(&scales))),
                    ("biases", Arg::Read(cast_slice(&biases))),
                    ("x", Arg::Read(cast_slice(&x))),
                    ("y", Arg::Write(cast_slice_mut(&mut y))),
                    ("shape", Arg::Bytes(cast_slice(&[n as u32, k as u32]))),
                ],
                threadgroup: &[],
                constants: &[(0, Value::Int(rows as i64))],
                seed,
            },
        );
        close("y", &y, &want, 2e-6);
        // Every weight, scale and bias is read, and exactly the rows are written.
        assert_eq!((o.touched[0].read.len(), o.touched[0].bytes_read()), (1, w.len() as u64 * 4));
        assert_eq!(o.touched[1].bytes_read(), scales.len() as u64 * 2);
        assert_eq!((o.touched[4].written.len(), o.touched[4].bytes_written()), (1, n as u64 * 4));
        assert_eq!((o.touched[4].bytes_read(), o.touched[0].bytes_written()), (0, 0));
        assert_eq!(o.stats.collectives, n as u64);
    }
}

#[test]
fn rmsnorm_rows() {
    let Some(lib) = library() else { return };
    let (rows, n, eps) = (5usize, 1000usize, 1e-6f32);
    let mut r = Random(2);
    let x: Vec<f32> = (0..rows * n).map(|_| r.unit()).collect();
    let gain: Vec<f32> = (0..n).map(|_| r.unit()).collect();
    let mut want = Vec::new();
    for row in x.chunks(n) {
        let ms = row.iter().map(|&v| (v as f64).powi(2)).sum::<f64>() / n as f64;
        let s = 1.0 / (ms + eps as f64).sqrt();
        want.extend(row.iter().zip(&gain).map(|(&v, &g)| v as f64 * s * g as f64));
    }
    let mut first: Option<Vec<f32>> = None;
    for seed in SEEDS {
        let mut y = vec![f32::NAN; rows * n];
        let o = run(
            lib,
            Dispatch {
                kernel: "rmsnorm",
                grid: [rows as u32, 1, 1],
                group: [256, 1, 1],
                args: vec![
                    ("x", Arg::Read(cast_slice(&x))),
                    ("gain", Arg::Read(cast_slice(&gain))),
                    ("y", Arg::Write(cast_slice_mut(&mut y))),
                    ("n", Arg::Bytes(cast_slice(&[n as u32]))),
                    ("eps", Arg::Bytes(cast_slice(&[eps]))),
                ],
                threadgroup: &[],
                constants: &[],
                seed,
            },
        );
        close("y", &y, &want, 2e-6);
        assert_eq!((o.stats.barriers, o.stats.threadgroup_bytes), (2 * rows as u64, 128));
        // The schedule changes nothing, bit by bit.
        assert_eq!(first.get_or_insert_with(|| y.clone()), &y);
    }
}

#[test]
fn gemm_with_simdgroup_matrices() {
    let Some(lib) = library() else { return };
    let (m, n, k) = (64usize, 96usize, 64usize);
    let mut r = Random(3);
    let a: Vec<bf16> = (0..m * k).map(|_| bf16::from_f32(r.unit())).collect();
    let b: Vec<bf16> = (0..n * k).map(|_| bf16::from_f32(r.unit())).collect();
    let mut want = vec![0.0f64; m * n];
    for i in 0..m {
        for j in 0..n {
            want[i * n + j] = (0..k).map(|l| a[i * k + l].to_f64() * b[j * k + l].to_f64()).sum();
        }
    }
    let mut first: Option<Vec<f32>> = None;
    for seed in SEEDS {
        let mut c = vec![f32::NAN; m * n];
        run(
            lib,
            Dispatch {
                kernel: "gemm_bf16",
                grid: [(n / 32) as u32, (m / 32) as u32, 1],
                group: [128, 1, 1],
                args: vec![
                    ("a", Arg::Read(cast_slice(&a))),
                    ("b", Arg::Read(cast_slice(&b))),
                    ("c", Arg::Write(cast_slice_mut(&mut c))),
                    ("mnk", Arg::Bytes(cast_slice(&[m as u32, n as u32, k as u32, 0]))),
                ],
                threadgroup: &[2 * 32 * 32 * 2],
                constants: &[],
                seed,
            },
        );
        close("y", &c, &want, 2e-6);
        assert_eq!(first.get_or_insert_with(|| c.clone()), &c);
    }
}

#[test]
fn histogram_with_atomics() {
    let Some(lib) = library() else { return };
    let mut r = Random(4);
    let x: Vec<u32> = (0..1000).map(|_| r.word()).collect();
    let mut want = [0u32; 16];
    x.iter().for_each(|&v| want[v as usize & 15] += 1);
    let mut bins = vec![0u32; 16];
    run(
        lib,
        Dispatch {
            kernel: "histogram",
            grid: [8, 1, 1],
            group: [128, 1, 1],
            args: vec![
                ("x", Arg::Read(cast_slice(&x))),
                ("bins", Arg::Write(cast_slice_mut(&mut bins))),
                ("n", Arg::Bytes(cast_slice(&[1000u32]))),
            ],
            threadgroup: &[],
            constants: &[],
            seed: 3,
        },
    );
    assert_eq!(bins, want);
}

#[test]
fn every_collective() {
    let Some(lib) = library() else { return };
    let mut o = vec![f32::NAN; 448];
    run(
        lib,
        Dispatch {
            kernel: "collectives",
            grid: [1, 1, 1],
            group: [32, 1, 1],
            args: vec![("o", Arg::Write(cast_slice_mut(&mut o)))],
            threadgroup: &[],
            constants: &[],
            seed: 9,
        },
    );
    for l in 0..32usize {
        let f = |x: usize| x as f32;
        let want = [
            f(l * l.wrapping_sub(1) / 2 * (l > 0) as usize),
            f(l * (l + 1) / 2),
            f(l ^ 5),
            f(if l + 3 < 32 { l + 3 } else { l }),
            f(if l >= 3 { l - 3 } else { l }),
            31.0 + 1.0,
            7.0,
            f(31 - l),
            f((l + 1) % 32),
            if l >= 2 { f(l - 2) } else { 100.0 + f(30 + l) },
            1.0,
            16.0,
            f(4 * (l / 4 * 4) + 6),
            32.0,
        ];
        for (i, w) in want.into_iter().enumerate() {
            assert_eq!(o[32 * i + l], w, "result {i} of lane {l}");
        }
    }
}

#[test]
fn vectors_and_conversions() {
    let Some(lib) = library() else { return };
    let mut o = vec![f32::NAN; 256];
    run(
        lib,
        Dispatch {
            kernel: "vectors",
            grid: [1, 1, 1],
            group: [32, 1, 1],
            args: vec![("o", Arg::Write(cast_slice_mut(&mut o)))],
            threadgroup: &[],
            constants: &[],
            seed: 0,
        },
    );
    for l in 0..32usize {
        let v = l as f32;
        // h = (1, 2, v, 4); f = (4, v, 2, 1) + (1, 2, .5, 1); f.xy += 1; f.zw = f.wz.
        assert_eq!(o[l], 6.0 + 10.0 * (v + 3.0) + 100.0 * 2.0 + 1000.0 * 2.5, "lane {l}");
        assert_eq!(o[32 + l], 1.0);
        let tenth = half::f16::from_f32(v * half::f16::from_f32(0.1).to_f32()).to_f32();
        assert_eq!(o[64 + l], bf16::from_f32(v * 1.01).to_f32() + tenth, "lane {l}");
        let q: usize = (0..4).map(|i| (l >> i & 1) << i).sum();
        assert_eq!(o[96 + l], q as f32);
        let picked = if l > 3 { 2.0 } else { 1.0 };
        assert_eq!(o[128 + l], picked + v.clamp(2.0, 4.0) + v.max(5.0) + (2.0 * v + 1.0));
        assert_eq!(o[160 + l], 6.0 * v + 5.0);
        let e = (-v as f64).exp() + (v as f64 + 1.0).ln() + (v as f64).tanh() + 1e-3;
        assert!((o[192 + l] as f64 - e).abs() < 1e-5, "lane {l}: {} is not {e}", o[192 + l]);
        assert_eq!(o[224 + l], (l > 30) as u32 as f32 + 2.0 * (l > 0) as u32 as f32);
    }
}

#[test]
fn an_unchecked_library_gives_the_same_bits() {
    let (Some(lib), Some(c)) = (library(), compiler()) else { return };
    let u = unit(
        "basic.metal",
        include_str!("kernels/basic.metal"),
        &[("quant.h", include_str!("kernels/quant.h"))],
    );
    let fast = SoftLibrary::build(&u, &c, false).unwrap_or_else(|e| panic!("{e}"));
    let mut r = Random(5);
    let mut x: Vec<f32> = (0..512).map(|_| r.unit()).collect();
    let mut gain: Vec<f32> = (0..256).map(|_| r.unit()).collect();
    let (mut n, mut eps) = (256u32, 1e-5f32);
    let mut results = Vec::new();
    for l in [lib, &fast] {
        let mut y = vec![0f32; 512];
        let arg = |name, access, v: &mut [u8]| RawArg { name, access, ptr: v.as_mut_ptr(), len: v.len() };
        let d = RawDispatch {
            kernel: "rmsnorm",
            grid: [2, 1, 1],
            group: [64, 1, 1],
            args: vec![
                arg("x", Access::Read, cast_slice_mut(&mut x)),
                arg("gain", Access::Read, cast_slice_mut(&mut gain)),
                arg("y", Access::ReadWrite, cast_slice_mut(&mut y)),
                arg("n", Access::Bytes, bytemuck::bytes_of_mut(&mut n)),
                arg("eps", Access::Bytes, bytemuck::bytes_of_mut(&mut eps)),
            ],
            threadgroup: &[],
            constants: &[],
            seed: 4,
            strict: true,
        };
        // SAFETY: the arguments are live, distinct and as large as the kernel uses.
        let o = unsafe { l.dispatch_raw(&d) }.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(o.touched.is_empty(), !l.checked);
        results.push(y);
    }
    assert_eq!(results[0], results[1]);
}

#[test]
fn helpers_of_every_form_translate() {
    let Some(c) = compiler() else { return };
    // Address spaces first, overloads that differ in them only, members, operators, templates, a helper whose
    // structure comes straight from memory: all of its bytes are seen.
    let u = unit(
        "k.metal",
        "#include <metal_stdlib>\nusing namespace metal;\n\
         struct Pair { float a; float b; float sum() const { return a + b; } };\n\
         device float* at(device float* p, uint i) { return p + i; }\n\
         inline float get(device const float* p) { return p[0]; }\n\
         inline float get(constant float* p) { return p[0]; }\n\
         float both(Pair p) { return p.sum(); }\n\
         template <typename T> static inline T twice(T v) { return v + v; }\n\
         kernel void k(device const Pair* p [[buffer(0)]], device float* y [[buffer(1)]],\n\
                       uint i [[thread_index_in_simdgroup]]) {\n\
           *at(y, i) = twice(both(p[i]));\n\
         }",
        &[],
    );
    u.lint().unwrap_or_else(|e| panic!("{e}"));
    let lib = checked(&u, &c);
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let mut y = vec![0f32; 32];
    let args = vec![("p", Arg::Read(cast_slice(&x))), ("y", Arg::Write(cast_slice_mut(&mut y)))];
    let d = Dispatch {
        kernel: "k",
        grid: [1, 1, 1],
        group: [32, 1, 1],
        args,
        threadgroup: &[],
        constants: &[],
        seed: 0,
    };
    let o = run(&lib, d);
    assert_eq!(y, (0..32).map(|i| (8 * i + 2) as f32).collect::<Vec<_>>());
    assert_eq!(o.touched[0].bytes_read(), 256);
}
