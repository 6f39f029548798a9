//! Matrix times vector: `y[r] = sum_c W[r, c] x[c]`, no bias.

use std::{borrow::Cow, sync::OnceLock};

use crate::QuantMatrix;

/// Partial sums of a dot product.
const LANES: usize = 16;

/// A dense projection or a stack of them, dequantised once (or, for models too large for that, row by row).
#[derive(Debug)]
pub struct Linear {
    matrix: QuantMatrix,
    /// `[experts]` of `[rows, cols]`; empty when nothing is kept.
    cache: Vec<OnceLock<Vec<f32>>>,
}

impl Linear {
    /// A projection by `matrix`, which keeps dequantised matrices if `keep`.
    pub fn new(matrix: &QuantMatrix, keep: bool) -> Self {
        let kept = if keep { matrix.experts } else { 0 };
        Self { matrix: matrix.clone(), cache: (0..kept).map(|_| OnceLock::new()).collect() }
    }

    /// Applies the matrix of `expert` to each row of `x`, `[n, cols]`, giving `[n, rows]`.
    pub fn apply(&self, expert: usize, x: &[f32]) -> Vec<f32> {
        let (rows, cols) = (self.matrix.rows, self.matrix.cols);
        assert!(x.len().is_multiple_of(cols), "input of {} values for a matrix of {cols} columns", x.len());
        let mut y = vec![0.0; x.len() / cols * rows];
        let mut buffer = vec![0.0; cols];
        for r in 0..rows {
            let w = self.weights(expert, r, &mut buffer);
            for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(rows)) {
                y[r] = dot(&w, x);
            }
        }
        y
    }

    /// Writes row `r` of a dense projection into `out`, `[cols]`.
    pub fn row(&self, r: usize, out: &mut [f32]) {
        self.matrix.dense().dequantize_row(r, out);
    }

    /// Row `r` of `expert`, from the kept matrix or through `buffer`.
    fn weights<'a>(&'a self, expert: usize, r: usize, buffer: &'a mut [f32]) -> Cow<'a, [f32]> {
        let cols = self.matrix.cols;
        let Some(slot) = self.cache.get(expert) else {
            self.matrix.expert(expert).dequantize_row(r, buffer);
            return Cow::Borrowed(buffer);
        };
        let all = slot.get_or_init(|| {
            let matrix = self.matrix.expert(expert);
            let mut all = vec![0.0; matrix.rows * cols];
            for (r, row) in all.chunks_exact_mut(cols).enumerate() {
                matrix.dequantize_row(r, row);
            }
            all
        });
        Cow::Borrowed(&all[r * cols..(r + 1) * cols])
    }
}

/// `sum_i a[i] b[i]`: element `i` is added to partial sum `i % 16`, in order, in f32 (rounded after the product and
/// after the sum); the partial sums are then added in f64, the upper half to the lower half, four times.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = partial_sums(a, b);
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[i] += a * b;
    }
    let mut sums = sums.map(|s| s as f64);
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0] as f32
}

/// Kept apart from the final sum: compiled together, the order of that sum spreads shuffles over this loop, and
/// a token of lily-mini takes 1.7 times as long.
#[inline(never)]
fn partial_sums(a: &[[f32; LANES]], b: &[[f32; LANES]]) -> [f32; LANES] {
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::{Linear, dot};
    use crate::{ModelConfig, synthetic::synthetic_weights};

    #[test]
    fn kept_and_unkept_matrices_are_the_same() {
        let config = ModelConfig { vocab_size: 64, num_experts: 3, ..ModelConfig::qwen3_6_35b_a3b(1) };
        let weights = synthetic_weights(&config, 5);
        let matrix = &weights.layers[0].moe.experts_down;
        let x: Vec<f32> = (0..2 * matrix.cols).map(|i| (i as f32 * 0.1).sin()).collect();
        let (kept, unkept) = (Linear::new(matrix, true), Linear::new(matrix, false));
        for expert in [0, 2] {
            assert_eq!(kept.apply(expert, &x), unkept.apply(expert, &x));
        }
        assert_ne!(kept.apply(0, &x), kept.apply(2, &x));
    }

    #[test]
    fn dot_is_near_the_exact_sum_at_every_length() {
        for n in 0..200 {
            let a: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin()).collect();
            let b: Vec<f32> = (0..n).map(|i| (i as f32 * 0.73).cos()).collect();
            let exact: f64 = a.iter().zip(&b).map(|(&a, &b)| a as f64 * b as f64).sum();
            assert!((dot(&a, &b) as f64 - exact).abs() < 1e-5, "length {n}");
        }
    }
}
