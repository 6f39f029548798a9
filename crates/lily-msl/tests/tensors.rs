//! Metal 4's tensor operations on the soft device: what a library for Metal 3 has of them (nothing), and faults put into copies
//! of the kernels, one at a time: each is caught.

mod common;

use bytemuck::cast_slice;
use common::device::*;
use common::*;
use lily_msl::emit::CudaOptions;
use lily_msl::soft::{Arg, Dispatch, Fault, FaultKind, SoftError, SoftLibrary};
use lily_msl::{Rule, Unit};

/// Metal 3 and CUDA get the same text whether the file is there or not, and Metal 4 gets it besides all others.
#[test]
fn other_libraries_have_none_of_it() {
    let without = kernel_text("all.metal").replace("#include \"tensor.metal\"\n", "");
    assert_ne!(without, kernel_text("all.metal"));
    let others: Vec<(&str, &str)> =
        KERNELS.into_iter().filter(|k| !["all.metal", "tensor.metal"].contains(&k.0)).collect();
    let (a, b) =
        (unit("all.metal", kernel_text("all.metal"), &KERNELS), unit("all.metal", &without, &others));
    let text = |u: &Unit| {
        let cuda = u.cuda_source(&CudaOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        [u.soft_source().cpp, u.strict_source(), cuda]
    };
    assert!(text(&a) == text(&b));
    assert!(text(&a).iter().all(|t| !t.contains("matmul2d") && !t.contains("_tensor")));

    let manifest = |u: &Unit| u.manifest().unwrap_or_else(|e| panic!("{e}")).kernels;
    let (three, four) = (manifest(&a), manifest(&unit4("all.metal", kernel_text("all.metal"), &KERNELS)));
    for k in &three {
        assert!(four.contains(k), "{}", k.name);
    }
    let new: Vec<&str> = four.iter().filter(|k| !three.contains(k)).map(|k| k.name.as_str()).collect();
    assert_eq!(
        new,
        [
            "gemm_tensor_32",
            "gemm_tensor_64",
            "gemm_tensor_add_32",
            "gemm_tensor_add_64",
            "experts_gate_up_tensor",
            "shared_gate_up_tensor",
            "experts_down_tensor",
        ]
    );
    // Their arguments are those of the kernels whose place they take.
    for (name, plain) in [
        ("experts_gate_up_tensor", "experts_gate_up_float"),
        ("shared_gate_up_tensor", "shared_gate_up_float"),
        ("experts_down_tensor", "experts_down_float"),
        ("gemm_tensor_32", "gemm_float_32"),
        ("gemm_tensor_add_64", "gemm_float_add_64"),
    ] {
        let args = |name: &str| &four.iter().find(|k| k.name == name).unwrap().args;
        assert_eq!(args(name), args(plain), "{name}");
    }
}

const FILE: &str = "tensor.metal";
const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_threadgroup);";

/// The kernels with one occurrence of `from` replaced by `to`; of the products only one instance.
fn seeded(from: &str, to: &str, occurrence: usize) -> Unit {
    let kept = |line: &&str| !line.starts_with("GEMM_TENSOR(") || line.contains("\"gemm_tensor_\", 32");
    let text = kernel_text(FILE).lines().filter(kept).collect::<Vec<&str>>().join("\n");
    let (at, _) = text.match_indices(from).nth(occurrence).unwrap_or_else(|| panic!("{FILE} has no {from}"));
    let text = format!("{}{to}{}", &text[..at], &text[at + from.len()..]);
    unit4(FILE, &text, &KERNELS.into_iter().filter(|k| k.0 != FILE).collect::<Vec<_>>())
}

/// 20 tokens, 40 rows of 128 columns: neither fills a tile.
fn product(lib: &SoftLibrary, seed: u32) -> Result<Vec<f32>, Box<Fault>> {
    let mut r = Random(1);
    let (cols, rows, tokens) = (128usize, 40usize, 20usize);
    let m = Quant::random(&mut r, rows, cols, 4);
    let x = floats(&mut r, tokens * cols);
    let mut y = vec![7.0f32; tokens * rows];
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
    let d = Dispatch {
        kernel: "gemm_tensor_32",
        grid: [1, 1, 1],
        group: [128, 1, 1],
        args,
        threadgroup: &[],
        constants: &[],
        seed,
    };
    match lib.dispatch(d) {
        Ok(_) => Ok(y),
        Err(SoftError::Fault(f)) => Err(f),
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn missing_barriers_are_races() {
    let Some(c) = compiler() else { return };
    let sound = checked(&seeded(BARRIER, BARRIER, 0), &c);
    for seed in SEEDS {
        assert!(product(&sound, seed).unwrap().iter().all(|v| v.is_finite()));
    }
    // Behind the staging of a step, behind its use, and behind the results.
    for (n, what) in ["staged", "used", "result"].into_iter().enumerate() {
        let lib = checked(&seeded(BARRIER, "", n), &c);
        for seed in [0, 1, 2, 31, 77] {
            let f = product(&lib, seed).expect_err(what);
            assert!(matches!(f.kind, FaultKind::Race | FaultKind::Uninitialised), "{what}: {f}");
        }
        // A barrier of one simdgroup is too little.
        let simd = BARRIER.replace("threadgroup_barrier", "simdgroup_barrier");
        let f = product(&checked(&seeded(BARRIER, &simd, n), &c), 0).expect_err(what);
        assert!(matches!(f.kind, FaultKind::Race | FaultKind::Uninitialised), "{what}: {f}");
    }
}

#[test]
fn sums_that_nobody_clears_are_no_numbers() {
    let Some(c) = compiler() else { return };
    let lib = checked(&seeded("  clear_tensor(sums);\n", "", 0), &c);
    for seed in SEEDS {
        assert!(product(&lib, seed).unwrap().iter().all(|v| v.is_nan()));
    }
    // Cleared but for one element of each thread: some results are none.
    let lib = checked(&seeded("for (ushort i = 0; i < sums", "for (ushort i = 1; i < sums", 0), &c);
    assert!(product(&lib, 0).unwrap().iter().any(|v| v.is_nan()));
}

#[test]
fn operands_and_scopes_that_do_not_fit_are_faults() {
    let Some(c) = compiler() else { return };
    let step = "product.run(left, right, sums);";
    for (from, to, kind, said) in [
        ("int(count))", "int(count) - 1)", FaultKind::Tensor, "left operand has 32 x 31 elements"),
        (
            "int(TILE_DEPTH), int(count)",
            "16, int(count)",
            FaultKind::Tensor,
            "left operand has 16 x 32 elements",
        ),
        ("{1, int(TILE_PITCH)}", "{2, int(TILE_PITCH)}", FaultKind::Tensor, "strides 2 and 40"),
        (
            "inputs + ROWS * TILE_PITCH;",
            "inputs + 3 * ROWS * TILE_PITCH;",
            FaultKind::Bounds,
            "threadgroup memory tile",
        ),
        (
            "execution_simdgroups<TILE_SIMDGROUPS>",
            "execution_simdgroups<2>",
            FaultKind::Tensor,
            "of 2 simdgroups in a threadgroup of 4",
        ),
        // One thread, and one simdgroup, that leave the others alone with an operation.
        (step, "if (tid != 70) product.run(left, right, sums);", FaultKind::Barrier, "different barriers"),
        (step, "if (tid < 96) product.run(left, right, sums);", FaultKind::Barrier, "different barriers"),
        (
            "sums.store(results);",
            "if (tid >= 32) sums.store(results);",
            FaultKind::Barrier,
            "different barriers",
        ),
        // Tokens past the chunk's end, and rows past the matrix's.
        ("if (token0 + r < tokens && out_row < rows)", "if (out_row < rows)", FaultKind::Bounds, "(y)"),
        (
            "if (token0 + r < tokens && out_row < rows)",
            "if (token0 + r < tokens)",
            FaultKind::Race,
            "of a buffer",
        ),
    ] {
        let lib = checked(&seeded(from, to, 0), &c);
        let f = product(&lib, 0).expect_err(to);
        assert!(f.kind == kind && f.to_string().contains(said), "{to}: {f}");
        let site = matches!(kind, FaultKind::Tensor | FaultKind::Barrier);
        assert!(!site || f.place.starts_with("tensor.metal:"), "{to}: {f}");
    }
}

#[test]
fn an_operation_that_some_threads_may_miss_is_found_without_running() {
    let step = "product.run(left, right, sums);";
    for condition in ["if (tid < 64) ", "if (tid / 32 == 1) "] {
        let errors = seeded(step, &format!("{condition}{step}"), 0).lint().unwrap_err();
        assert!(errors.to_string().contains("run needs the whole threadgroup"), "{errors}");
        assert!(errors.0.iter().any(|d| d.rule == Rule::Divergence && d.file == FILE), "{errors}");
    }
    seeded(step, step, 0).lint().unwrap_or_else(|e| panic!("{e}"));
}
