//! Shared by the tests that compile kernels; not every one uses all of it.
#![allow(dead_code)]

pub mod attention;
pub mod coverage;
pub mod device;
pub mod gdn;

use lily_msl::soft::{Compiler, SoftLibrary};
use lily_msl::{ParseOptions, Sources, Unit};

/// Parses a source; panics with the findings.
pub fn unit(name: &str, text: &str, headers: &[(&str, &str)]) -> Unit {
    let mut s = Sources::new();
    for (n, t) in headers {
        s.add(*n, *t);
    }
    s.add(name, text);
    Unit::parse(&s, name, &ParseOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// The same for Metal 4.
pub fn unit4(name: &str, text: &str, headers: &[(&str, &str)]) -> Unit {
    let mut s = Sources::new();
    for (n, t) in headers {
        s.add(*n, *t);
    }
    s.add(name, text);
    let options = ParseOptions { metal_version: 400, ..ParseOptions::default() };
    Unit::parse(&s, name, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// The compiler, or `None` after saying that the test is skipped.
pub fn compiler() -> Option<Compiler> {
    match Compiler::find() {
        Ok(c) => Some(c),
        Err(e) => {
            println!("skipped: no C++ compiler ({e})");
            None
        }
    }
}

/// Builds a checked library.
pub fn checked(u: &Unit, c: &Compiler) -> SoftLibrary {
    SoftLibrary::build(u, c, true).unwrap_or_else(|e| panic!("{e}"))
}

/// A deterministic stream of values between -1 and 1.
pub struct Random(pub u64);

impl Random {
    pub fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    pub fn unit(&mut self) -> f32 {
        (self.word() & 0xffffff) as f32 / 8388608.0 - 1.0
    }
}

/// A quantised matrix in the MLX layout with random codes and sane scales.
pub struct Quant {
    pub rows: usize,
    pub cols: usize,
    pub bits: usize,
    pub codes: Vec<u32>,
    pub scales: Vec<half::bf16>,
    pub biases: Vec<half::bf16>,
}

impl Quant {
    pub fn random(r: &mut Random, rows: usize, cols: usize, bits: usize) -> Quant {
        let top = (1 << bits) as f32;
        let step = 2.0 / top / (cols as f32).sqrt();
        let groups = rows * cols / 64;
        Quant {
            rows,
            cols,
            bits,
            codes: (0..rows * cols * bits / 32).map(|_| r.word() ^ (r.word() << 13)).collect(),
            scales: (0..groups).map(|_| half::bf16::from_f32(step * (1.5 + 0.5 * r.unit()))).collect(),
            biases: (0..groups)
                .map(|_| half::bf16::from_f32(-0.5 * top * step * (1.2 + 0.3 * r.unit())))
                .collect(),
        }
    }

    /// Row `row` in f64, exact.
    pub fn row(&self, row: usize) -> Vec<f64> {
        let per_word = 32 / self.bits;
        let words = &self.codes[row * self.cols / per_word..];
        (0..self.cols)
            .map(|i| {
                let q = words[i / per_word] >> (self.bits * (i % per_word)) & ((1 << self.bits) - 1);
                let g = (row * self.cols + i) / 64;
                self.scales[g].to_f64() * q as f64 + self.biases[g].to_f64()
            })
            .collect()
    }

    /// Row `row` as a matrix unit takes it: the f32 sum of product and bias times 2^8, rounded to f16.
    pub fn row_rounded(&self, row: usize) -> Vec<f64> {
        self.row(row).iter().map(|&w| half::f16::from_f32(w as f32 * 256.0).to_f64() / 256.0).collect()
    }

    /// `W x` with rounded weights, of the rows given.
    pub fn rounded_dots(&self, rows: std::ops::Range<usize>, x: &[f64]) -> Vec<f64> {
        rows.map(|r| self.row_rounded(r).iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    /// `W x`.
    pub fn apply(&self, x: &[f64]) -> Vec<f64> {
        (0..self.rows).map(|r| self.row_dot(r, x)).collect()
    }

    pub fn row_dot(&self, row: usize, x: &[f64]) -> f64 {
        self.row(row).iter().zip(x).map(|(w, x)| w * x).sum()
    }
}

/// Compares with a reference: every element within `rel` of the larger of itself and the vector's root mean square.
pub fn close(what: &str, got: &[f32], want: &[f64], rel: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = (want.iter().map(|w| w * w).sum::<f64>() / want.len().max(1) as f64).sqrt();
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let error = (g as f64 - w).abs();
        assert!(error <= rel * w.abs().max(scale), "{what}, element {i}: {g} is not {w} (error {error:.2e})");
    }
}

pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| v as f64).collect()
}

pub fn wide_bf16(x: &[half::bf16]) -> Vec<f64> {
    x.iter().map(|v| v.to_f64()).collect()
}

/// To bf16 and back.
pub fn round_bf16(x: &[f64]) -> Vec<f64> {
    x.iter().map(|&v| half::bf16::from_f64(v).to_f64()).collect()
}

pub fn narrow(x: &[half::bf16]) -> Vec<f32> {
    x.iter().map(|v| v.to_f32()).collect()
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

pub fn rms_norm(x: &[f64], gain: &[f64], eps: f64) -> Vec<f64> {
    let ms = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let s = 1.0 / (ms + eps).sqrt();
    x.iter().zip(gain).map(|(x, g)| x * s * g).collect()
}
