//! Affine-quantised matrices in the MLX layout.
//!
//! A projection of shape `[rows, cols]` is stored as `weight` U32 `[rows, cols * bits / 32]` (lowest element in
//! the lowest bits), `scales` and `biases` BF16 `[rows, cols / group_size]`; `w = scale * q + bias`. Stacked
//! expert projections have one more leading dimension.

use crate::TensorData;

/// A quantised matrix, or a stack of `experts` of them.
#[derive(Debug, Clone)]
pub struct QuantMatrix {
    /// How many matrices are stacked; 1 for a dense projection.
    pub experts: usize,
    /// Output features of one matrix.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Bits per element: 4 or 8.
    pub bits: usize,
    /// Elements that share a scale and a bias.
    pub group_size: usize,
    /// Packed elements, `[experts, rows, cols * bits / 32]`.
    pub weight: TensorData<u32>,
    /// BF16 bit patterns, `[experts, rows, cols / group_size]`.
    pub scales: TensorData<u16>,
    /// BF16 bit patterns, `[experts, rows, cols / group_size]`.
    pub biases: TensorData<u16>,
}

impl QuantMatrix {
    /// The matrix of expert `e` (0 for a dense projection).
    pub fn expert(&self, e: usize) -> QuantRows<'_> {
        assert!(e < self.experts, "expert {e} of {}", self.experts);
        let words = self.rows * self.cols * self.bits / 32;
        let groups = self.rows * self.cols / self.group_size;
        QuantRows {
            rows: self.rows,
            cols: self.cols,
            bits: self.bits,
            group_size: self.group_size,
            weight: &self.weight[e * words..(e + 1) * words],
            scales: &self.scales[e * groups..(e + 1) * groups],
            biases: &self.biases[e * groups..(e + 1) * groups],
        }
    }

    /// The only matrix of a dense projection.
    pub fn dense(&self) -> QuantRows<'_> {
        debug_assert_eq!(self.experts, 1);
        self.expert(0)
    }

    /// Bytes of packed weights, scales and biases.
    pub fn byte_len(&self) -> usize {
        self.weight.len() * 4 + (self.scales.len() + self.biases.len()) * 2
    }
}

/// A borrowed `[rows, cols]` quantised matrix.
#[derive(Debug, Clone, Copy)]
pub struct QuantRows<'a> {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Bits per element: 4 or 8.
    pub bits: usize,
    /// Elements that share a scale and a bias.
    pub group_size: usize,
    /// `[rows, cols * bits / 32]`.
    pub weight: &'a [u32],
    /// BF16 bit patterns, `[rows, cols / group_size]`.
    pub scales: &'a [u16],
    /// BF16 bit patterns, `[rows, cols / group_size]`.
    pub biases: &'a [u16],
}

/// The f32 value of a BF16 bit pattern.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The BF16 bit pattern nearest to `x`, ties to even.
pub fn f32_to_bf16(x: f32) -> u16 {
    half::bf16::from_f32(x).to_bits()
}

impl QuantRows<'_> {
    /// Writes row `r` as f32 into `out` (`cols` long): one multiply and one add, each rounded to f32.
    pub fn dequantize_row(&self, r: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols);
        let per_word = 32 / self.bits;
        let mask = (1u32 << self.bits) - 1;
        let words = &self.weight[r * self.cols / per_word..(r + 1) * self.cols / per_word];
        let groups = self.cols / self.group_size;
        for (i, o) in out.iter_mut().enumerate() {
            let q = (words[i / per_word] >> (self.bits * (i % per_word))) & mask;
            let g = r * groups + i / self.group_size;
            *o = bf16_to_f32(self.scales[g]) * q as f32 + bf16_to_f32(self.biases[g]);
        }
    }
}
