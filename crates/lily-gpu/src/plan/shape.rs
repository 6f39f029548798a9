//! The sizes that a plan is a function of.

use std::collections::BTreeMap;

use lily_model::{ModelConfig, ModelWeights, Quantization, expected_tensors};

/// Columns that share a scale and a bias.
pub(crate) const GROUP: usize = 64;

/// A model's configuration and the bits of its matrices.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    /// Sizes.
    pub config: ModelConfig,
    bits: BTreeMap<String, usize>,
}

/// A quantised matrix, or a stack of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatrixInfo {
    /// Path of the module: `model.layers.0.mlp.gate`.
    pub module: String,
    /// Matrices stacked; 1 for a dense projection.
    pub experts: usize,
    /// Output width.
    pub rows: usize,
    /// Input width.
    pub cols: usize,
    /// 4 or 8.
    pub bits: usize,
}

impl MatrixInfo {
    /// Bytes of the packed codes.
    pub fn weight_bytes(&self) -> usize {
        self.experts * self.rows * self.cols * self.bits / 8
    }

    /// Bytes of the scales, and of the biases.
    pub fn group_bytes(&self) -> usize {
        self.experts * self.rows * (self.cols / GROUP) * 2
    }

    /// Columns, in 32-column chunks.
    pub(crate) fn staged_bytes(&self) -> usize {
        staged_bytes(self.cols)
    }
}

/// Threadgroup memory in which `cols` activations are staged (`pitch_of` in common.metal.h: 8 rows of float4, each one
/// longer than the number of 32-column chunks).
pub(crate) fn staged_bytes(cols: usize) -> usize {
    128 * (cols / 32 + 1)
}

impl ModelShape {
    /// From a configuration alone.
    pub fn from_quantization(config: &ModelConfig, quantization: &Quantization) -> Self {
        let bits = expected_tensors(config, quantization)
            .iter()
            .filter_map(|t| t.name.strip_suffix(".scales"))
            .map(|module| {
                (module.trim_start_matches("language_model.").to_string(), quantization.bits_of(module))
            })
            .collect();
        Self { config: config.clone(), bits }
    }

    /// From loaded weights.
    pub fn from_weights(weights: &ModelWeights) -> Self {
        let bits = weights.matrices().map(|(module, m)| (module, m.bits)).collect();
        Self { config: weights.config.clone(), bits }
    }

    /// Bits of a module's matrix; `None` where there is no such module.
    pub fn bits_of(&self, module: &str) -> Option<usize> {
        self.bits.get(module).copied()
    }

    /// A dense matrix.
    pub fn dense(&self, module: impl Into<String>, rows: usize, cols: usize) -> MatrixInfo {
        self.stack(module, 1, rows, cols)
    }

    /// A stack of matrices.
    pub fn stack(&self, module: impl Into<String>, experts: usize, rows: usize, cols: usize) -> MatrixInfo {
        let module = module.into();
        let bits = self.bits.get(&module).copied().unwrap_or(4);
        MatrixInfo { module, experts, rows, cols, bits }
    }
}
