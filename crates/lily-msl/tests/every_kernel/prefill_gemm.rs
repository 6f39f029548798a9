//! Prefill's rows and matrix products on the checked soft device, at shapes of the tiny model, of lily-mini and of the
//! 35B model (some rows of its matrices), with ragged edges, in two schedules. References are f64 sums over what the
//! matrix unit takes: inputs and weights rounded to f16, or not at all.

use std::sync::OnceLock;

use crate::common::coverage::{Sizes, Sizes::*, at};
use crate::common::device::*;
use crate::common::*;
use bytemuck::{Pod, cast_slice};
use half::{bf16, f16};
use lily_msl::soft::{Arg, Outcome, SoftLibrary};

fn library() -> Option<&'static SoftLibrary> {
    static LIB: OnceLock<Option<SoftLibrary>> = OnceLock::new();
    LIB.get_or_init(|| kernel_file("gemm.metal")).as_ref()
}

/// A projection: columns, rows of each matrix, bits of each, tokens.
pub struct Case {
    pub sizes: &'static [Sizes],
    pub cols: usize,
    pub rows: &'static [usize],
    pub bits: &'static [usize],
    pub tokens: usize,
}

impl Case {
    pub fn matrices(&self, r: &mut Random) -> Vec<Quant> {
        self.rows.iter().zip(self.bits).map(|(&n, &b)| Quant::random(r, n, self.cols, b)).collect()
    }

    pub fn stride(&self) -> usize {
        self.rows.iter().sum::<usize>() + 3
    }

    /// Runs `kernel` with tiles of `tile` tokens, in a grid for up to `capacity` tokens.
    #[allow(clippy::too_many_arguments)]
    pub fn run<X: Pod, Y: Pod>(
        &self,
        lib: &SoftLibrary,
        kernel: &str,
        tile: usize,
        m: &[Quant],
        x: &[X],
        y: &mut [Y],
        seed: u32,
    ) -> Outcome {
        let four = |f: fn(&Quant) -> u32| -> [u32; 4] { std::array::from_fn(|i| m.get(i).map_or(0, f)) };
        // cols, matrices, padding to 16, rows, bits, stride, eps, padding.
        let mut shape = vec![self.cols as u32, m.len() as u32, 0, 0];
        shape.extend(four(|q| q.rows as u32));
        shape.extend(four(|q| q.bits as u32));
        shape.extend([self.stride() as u32, EPS.to_bits(), 0, 0]);
        let chunk = chunk(77, self.tokens, 0);
        let mut args = vec![
            ("x", read(x)),
            ("y", write(y)),
            ("chunk", read(&chunk)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        const NAMES: [[&str; 3]; 4] =
            [["w0", "s0", "b0"], ["w1", "s1", "b1"], ["w2", "s2", "b2"], ["w3", "s3", "b3"]];
        for (i, n) in NAMES.iter().enumerate() {
            let q = m.get(i).unwrap_or(&m[0]);
            args.extend([(n[0], read(&q.codes)), (n[1], read(&q.scales)), (n[2], read(&q.biases))]);
        }
        let blocks: usize = self.rows.iter().map(|n| n.div_ceil(64)).sum();
        // One tile more than there are tokens: it must find nothing to do.
        let grid = [blocks as u32, self.tokens.div_ceil(tile) as u32 + 1, 1];
        run(lib, &format!("{kernel}_{tile}"), grid, 128, seed, args)
    }
}

pub const CASES: [Case; 6] = [
    Case { sizes: &[Tiny], cols: 128, rows: &[200, 96, 4, 4], bits: &[4, 4, 4, 4], tokens: 37 },
    Case { sizes: &[Mini], cols: 256, rows: &[130, 64, 64], bits: &[4, 4, 4], tokens: 70 },
    Case { sizes: &[Large], cols: 2048, rows: &[70, 5], bits: &[4, 8], tokens: 33 }, // input projections
    Case { sizes: &[Large], cols: 4096, rows: &[40], bits: &[4], tokens: 3 },        // output projections
    Case { sizes: &[Ragged], cols: 64, rows: &[5], bits: &[4], tokens: 1 },
    Case { sizes: &[Ragged], cols: 192, rows: &[9, 64, 65], bits: &[4, 8, 4], tokens: 64 },
];

pub fn products() {
    let Some(lib) = library() else { return };
    for (n, case) in CASES.iter().enumerate() {
        at(case.sizes);
        let mut r = Random(n as u64 + 1);
        let x = halves(&mut r, case.tokens * case.cols, 1.0, 0.1);
        let m = case.matrices(&mut r);
        let stride = case.stride();
        let before = floats(&mut r, case.tokens * stride);
        let exact_x = floats(&mut r, case.tokens * case.cols);
        // Products of every token stored, and added to what was there; in the gap between two tokens nothing is written.
        let want = |inputs: &[f64], rounded: bool| -> (Vec<f64>, Vec<f64>) {
            let (mut stored, mut added) = (wide(&before), wide(&before));
            for (t, input) in inputs.chunks(case.cols).enumerate() {
                let dots =
                    |q: &Quant| if rounded { q.rounded_dots(0..q.rows, input) } else { q.apply(input) };
                for (i, o) in m.iter().flat_map(dots).enumerate() {
                    stored[t * stride + i] = o;
                    added[t * stride + i] += o;
                }
            }
            (stored, added)
        };
        let (stored, added) = want(&wide(&widen(&x)), true);
        let (exact, exact_added) = want(&wide(&exact_x), false);
        for (tile, seed) in [32, 64].into_iter().flat_map(|t| SEEDS.map(|s| (t, s))) {
            let what = format!("{}x{:?}, {} tokens, tile {tile}", case.cols, case.rows, case.tokens);
            let mut y = before.clone();
            let o = case.run(lib, "gemm", tile, &m, &x, &mut y, seed);
            close(&what, &y, &stored, 4e-6);
            // Every weight is read and no expanded weight is written anywhere: only the outputs are.
            for (i, q) in m.iter().enumerate() {
                assert_eq!(o.touched[4 + 3 * i].bytes_read(), q.codes.len() as u64 * 4, "{what}");
            }
            assert_eq!(o.touched[1].bytes_written(), (case.tokens * (stride - 3) * 4) as u64, "{what}");
            assert_eq!(o.touched[1].bytes_read(), 0, "{what}");

            let mut y = before.clone();
            case.run(lib, "gemm_add", tile, &m, &x, &mut y, seed);
            close(&format!("{what}, added"), &y, &added, 4e-6);

            let mut y = before.clone();
            case.run(lib, "gemm_float", tile, &m, &exact_x, &mut y, seed);
            close(&format!("{what}, floats"), &y, &exact, 8e-6);
            let mut y = before.clone();
            case.run(lib, "gemm_float_add", tile, &m, &exact_x, &mut y, seed);
            close(&format!("{what}, floats added"), &y, &exact_added, 8e-6);
        }
    }
}

/// Weights and rows at the ends of half's range: tiny scales keep their bits, what is too large becomes the largest half, and
/// what is not a number stays that.
pub fn ranges_of_halves() {
    let (Some(lib), Some(rows)) = (library(), kernel_file("rows_prefill.metal")) else { return };
    let case = Case { sizes: &[Ragged], cols: 64, rows: &[40], bits: &[4], tokens: 5 };
    for (scale, bias) in [(3e-7, -2e-6), (1e-5, -8e-5), (8.0, -60.0)] {
        let mut r = Random(11);
        let mut m = case.matrices(&mut r);
        m[0].scales.fill(bf16::from_f32(scale));
        m[0].biases.fill(bf16::from_f32(bias));
        let x = halves(&mut r, 5 * 64, 1.0, 0.5);
        let want: Vec<f64> = wide(&widen(&x)).chunks(64).flat_map(|x| m[0].apply(x)).collect();
        let mut y = vec![f32::NAN; 5 * case.stride()];
        case.run(lib, "gemm", 32, &m, &x, &mut y, 1);
        let got: Vec<f32> = y.chunks(43).flat_map(|row| row[..40].to_vec()).collect();
        close(&format!("scales of {scale}"), &got, &want, 1.0 / 2048.0);
    }
    // 65,504 / 256 is the largest weight.
    let mut m = case.matrices(&mut Random(12));
    m[0].scales.fill(bf16::from_f32(1e30));
    m[0].biases.fill(bf16::from_f32(1e30));
    m[0].biases[39] = bf16::NAN;
    let x = vec![f16::from_f32(0.5); 5 * 64];
    let mut y = vec![f32::NAN; 5 * case.stride()];
    case.run(lib, "gemm", 32, &m, &x, &mut y, 1);
    for row in y.chunks(43) {
        assert!(
            row[..39].iter().all(|&v| v == 32.0 * 65504.0 / 256.0) && row[39].is_nan(),
            "{:?}",
            &row[..40]
        );
    }

    let mut residual = vec![1.0f32; 2 * 64];
    residual[64 + 7] = f32::NAN;
    let mut gain = vec![bf16::from_f32(1.0); 64];
    (gain[3], gain[4], gain[5]) = (bf16::from_f32(1e6), bf16::from_f32(-1e6), bf16::INFINITY);
    let mut y = vec![f16::NAN; 2 * 64];
    let (chunk, shape) = (chunk(0, 2, 0), [64, EPS.to_bits()]);
    let a = vec![
        ("residual", read(&residual)),
        ("gain", read(&gain)),
        ("y", write(&mut y)),
        ("chunk", read(&chunk)),
        ("shape", Arg::Bytes(cast_slice(&shape))),
    ];
    run(&rows, "norm_rows", [2, 1, 1], 128, 1, a);
    assert_eq!((y[3], y[4], y[5]), (f16::MAX, f16::MIN, f16::INFINITY));
    assert!((y[0].to_f32() - 1.0).abs() < 1e-3 && y[64..].iter().all(|v| v.is_nan()));
}

pub fn router_logits_are_not_rounded() {
    let Some(lib) = library() else { return };
    let cases = [
        Case { sizes: &[Tiny], cols: 128, rows: &[16, 1], bits: &[8, 8], tokens: 5 },
        Case { sizes: &[Mini], cols: 256, rows: &[64, 1], bits: &[8, 8], tokens: 40 },
        Case { sizes: &[Large, Ragged], cols: 2048, rows: &[66, 1], bits: &[8, 8], tokens: 33 },
    ];
    for case in cases {
        at(case.sizes);
        let mut r = Random(case.cols as u64);
        let x = floats(&mut r, case.tokens * case.cols);
        let m = case.matrices(&mut r);
        let mut want = vec![f64::NAN; case.tokens * case.stride()];
        for t in 0..case.tokens {
            let input = wide(&x[t * case.cols..(t + 1) * case.cols]);
            let out: Vec<f64> = m.iter().flat_map(|q| q.apply(&input)).collect();
            want[t * case.stride()..][..out.len()].copy_from_slice(&out);
        }
        let outputs = |y: &[f32]| -> Vec<f32> {
            y.chunks(case.stride()).flat_map(|row| row[..row.len() - 3].to_vec()).collect()
        };
        let want: Vec<f64> =
            want.chunks(case.stride()).flat_map(|row| row[..row.len() - 3].to_vec()).collect();
        for seed in SEEDS {
            let mut y = vec![f32::NAN; case.tokens * case.stride()];
            case.run(lib, "gemm_float", 32, &m, &x, &mut y, seed);
            close(&format!("router of {}", case.cols), &outputs(&y), &want, 8e-6);
        }
    }
}

pub fn rows_are_normed() {
    let Some(lib) = kernel_file("rows_prefill.metal") else { return };
    for (sizes, cols, tokens) in
        [(Tiny, 128usize, 3usize), (Mini, 256, 5), (Large, 2048, 2), (Ragged, 192, 1)]
    {
        at(&[sizes]);
        let mut r = Random(cols as u64);
        let residual = floats(&mut r, (tokens + 2) * cols);
        let gain = bfloats(&mut r, cols, 0.5, 1.0);
        let want: Vec<f64> = (0..tokens)
            .flat_map(|t| rms_norm(&wide(&residual[t * cols..(t + 1) * cols]), &wide_bf16(&gain), EPS as f64))
            .collect();
        let shape = [cols as u32, EPS.to_bits()];
        let chunk = chunk(0, tokens, 1);
        for seed in SEEDS {
            // Two rows too many in the grid: they stay as they were.
            let grid = [tokens as u32 + 2, 1, 1];
            let (mut y, mut y2) = (vec![f16::NAN; want.len()], vec![f16::NAN; want.len()]);
            let (mut exact, mut alone) = (vec![f32::NAN; want.len()], vec![f32::NAN; want.len()]);
            let a = vec![
                ("residual", read(&residual)),
                ("gain", read(&gain)),
                ("y", write(&mut y)),
                ("chunk", read(&chunk)),
                ("shape", Arg::Bytes(cast_slice(&shape))),
            ];
            run(&lib, "norm_rows", grid, 128, seed, a);
            let b = vec![
                ("residual", read(&residual)),
                ("gain", read(&gain)),
                ("y", write(&mut y2)),
                ("exact", write(&mut exact)),
                ("chunk", read(&chunk)),
                ("shape", Arg::Bytes(cast_slice(&shape))),
            ];
            run(&lib, "norm_rows_exact", grid, 128, seed, b);
            close("rows", &exact, &want, 1e-6);
            let rounded: Vec<f16> = exact.iter().map(|&v| f16::from_f32(v)).collect();
            assert!(y == rounded && y2 == rounded, "the rounded rows are those of the exact ones");
            let a = vec![
                ("residual", read(&residual)),
                ("gain", read(&gain)),
                ("y", write(&mut alone)),
                ("chunk", read(&chunk)),
                ("shape", Arg::Bytes(cast_slice(&shape))),
            ];
            run(&lib, "norm_rows_float", grid, 128, seed, a);
            assert_eq!(alone, exact);

            let mut last = vec![f32::NAN; cols];
            let c = vec![
                ("residual", read(&residual)),
                ("y", write(&mut last)),
                ("chunk", read(&chunk)),
                ("shape", Arg::Bytes(cast_slice(&shape))),
            ];
            run(&lib, "last_row", [cols.div_ceil(128) as u32, 1, 1], 32, seed, c);
            assert_eq!(last, residual[(tokens - 1) * cols..tokens * cols]);
        }
    }
}
