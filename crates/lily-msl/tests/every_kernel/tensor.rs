//! Products on tensor operations, on the checked soft device: the shapes, routing and ragged edges of the same products on
//! simdgroup matrices, in two schedules. References are f64 sums over halves: what the operations take.

use std::ops::Range;
use std::sync::OnceLock;

use super::prefill_gemm::{CASES, Case};
use super::prefill_moe::{Element, experts, full_width};
use crate::common::coverage::{Sizes::*, at};
use crate::common::device::*;
use crate::common::*;
use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use lily_msl::soft::SoftLibrary;

/// The kernels, and the routing that the experts need.
fn library() -> Option<&'static SoftLibrary> {
    static LIB: OnceLock<Option<SoftLibrary>> = OnceLock::new();
    let source = "#include \"moe_prefill.metal\"\n#include \"tensor.metal\"\n";
    LIB.get_or_init(|| {
        let u = unit4("tensor_and_routing.metal", source, &KERNELS);
        u.lint().unwrap_or_else(|e| panic!("{e}"));
        compiler().map(|c| checked(&u, &c))
    })
    .as_ref()
}

/// `W x` of rows, both as halves.
fn dots_of_halves(q: &Quant, rows: Range<usize>, x: &[f64]) -> Vec<f64> {
    let x: Vec<f64> = x.iter().map(|&x| f16::from_f64(x).to_f64()).collect();
    q.rounded_dots(rows, &x)
}

pub fn products_of_halves() {
    let Some(lib) = library() else { return };
    for (n, case) in CASES.iter().enumerate() {
        at(case.sizes);
        let mut r = Random(n as u64 + 1);
        let m = case.matrices(&mut r);
        let stride = case.stride();
        let before = floats(&mut r, case.tokens * stride);
        let x = floats(&mut r, case.tokens * case.cols);
        // In the gap between two tokens nothing is written.
        let (mut stored, mut added) = (wide(&before), wide(&before));
        for (t, input) in wide(&x).chunks(case.cols).enumerate() {
            for (i, o) in m.iter().flat_map(|q| dots_of_halves(q, 0..q.rows, input)).enumerate() {
                stored[t * stride + i] = o;
                added[t * stride + i] += o;
            }
        }
        for (tile, seed) in [32, 64].into_iter().flat_map(|t| SEEDS.map(|s| (t, s))) {
            let what = format!("{}x{:?}, {} tokens, tile {tile}", case.cols, case.rows, case.tokens);
            let mut y = before.clone();
            let o = case.run(lib, "gemm_tensor", tile, &m, &x, &mut y, seed);
            close(&what, &y, &stored, 4e-6);
            for (i, q) in m.iter().enumerate() {
                assert_eq!(o.touched[4 + 3 * i].bytes_read(), q.codes.len() as u64 * 4, "{what}");
            }
            assert_eq!(o.touched[1].bytes_written(), (case.tokens * (stride - 3) * 4) as u64, "{what}");
            assert_eq!(o.touched[1].bytes_read(), 0, "{what}");
            // Operands, then results: 68 floats a row.
            assert_eq!(o.stats.threadgroup_bytes, tile as u32 * 68 * 4, "{what}");

            let mut y = before.clone();
            case.run(lib, "gemm_tensor_add", tile, &m, &x, &mut y, seed);
            close(&format!("{what}, added"), &y, &added, 4e-6);
        }
    }
}

/// Inputs and weights beyond the largest half become that, with their sign; what is no number stays none and spoils its own
/// token only; weights of tiny scales keep their bits.
pub fn ends_of_the_range() {
    let Some(lib) = library() else { return };
    at(&[Ragged]);
    let case = Case { sizes: &[Ragged], cols: 64, rows: &[40], bits: &[4], tokens: 5 };
    let run = |m: &[Quant], x: &[f32]| -> Vec<Vec<f32>> {
        let mut y = vec![f32::NAN; case.tokens * case.stride()];
        case.run(lib, "gemm_tensor", 32, m, x, &mut y, 1);
        y.chunks(case.stride()).map(|row| row[..40].to_vec()).collect()
    };
    let mut r = Random(3);
    for (scale, bias) in [(3e-7, -2e-6), (1e-5, -8e-5), (8.0, -60.0)] {
        let mut m = case.matrices(&mut r);
        m[0].scales.fill(bf16::from_f32(scale));
        m[0].biases.fill(bf16::from_f32(bias));
        let x: Vec<f32> = floats(&mut r, 5 * 64).iter().map(|x| x + 0.5).collect();
        for (got, x) in run(&m, &x).iter().zip(wide(&x).chunks(64)) {
            close(&format!("scales of {scale}"), got, &m[0].apply(x), 1.0 / 1024.0);
        }
    }
    let mut m = case.matrices(&mut r);
    m[0].scales.fill(bf16::ZERO);
    m[0].biases.fill(bf16::ONE);
    let mut x = vec![0.0f32; 5 * 64];
    (x[3], x[64 + 9], x[128 + 1], x[192]) = (1e9, -7e4, f32::NAN, f32::INFINITY);
    let y = run(&m, &x);
    assert!(y[0].iter().all(|&v| v == 65504.0) && y[1].iter().all(|&v| v == -65504.0), "{y:?}");
    assert!(y[2].iter().all(|v| v.is_nan()) && y[3].iter().all(|&v| v == f32::INFINITY), "{y:?}");
    assert!(y[4].iter().all(|&v| v == 0.0), "{y:?}");
    // 65,504 / 256 is the largest weight.
    m[0].biases.fill(bf16::from_f32(-1e30));
    m[0].biases[39] = bf16::NAN;
    let y = run(&m, &[0.5; 5 * 64]);
    assert!(y.iter().all(|row| row[..39].iter().all(|&v| v == -32.0 * 65504.0 / 256.0) && row[39].is_nan()));
}

/// Floats that become halves inside the tile.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
struct Halved(f32);

impl Element for Halved {
    const NAME: &str = "_tensor";
    const NAN: Self = Halved(f32::NAN);
    const ROUNDING: f64 = 1e-5;

    fn of(x: f32) -> Self {
        Halved(x)
    }

    fn value(self) -> f32 {
        self.0
    }

    fn library() -> Option<&'static SoftLibrary> {
        library()
    }

    fn dots(q: &Quant, rows: Range<usize>, x: &[f64]) -> Vec<f64> {
        dots_of_halves(q, rows, x)
    }
}

pub fn experts_of_halves() {
    experts::<Halved>();
    full_width::<Halved>();
}
