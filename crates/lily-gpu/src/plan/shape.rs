//! The sizes that a plan is a function of.

use std::collections::BTreeMap;

use lily_model::{ModelConfig, ModelWeights, Quantization, expected_tensors};

use super::routes::products;
use crate::device::DeviceFacts;

/// Columns that share a scale and a bias.
pub(crate) const GROUP: usize = 64;

/// What enters the products of a prefill chunk: inputs and dequantised weights. Sums are f32 in either case, decode
/// steps have f32 activations anyway, and the router's products are f32 always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Products {
    /// Rounded to half precision, for tensor cores: 11 bits, where BF16 has 8 at the same speed.
    F16,
    /// Not rounded: chunks agree with decode steps to the order of sums (and to half precision of the queries).
    F32,
}

impl Products {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Products::F16 => 2,
            Products::F32 => 4,
        }
    }

    /// The element's type in kernels.
    pub fn element(self) -> &'static str {
        match self {
            Products::F16 => "half",
            Products::F32 => "float",
        }
    }
}

/// A model's configuration, the bits of its matrices, and the number format of its products.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    /// Sizes.
    pub config: ModelConfig,
    /// Format of prefill's products: [`Products::F16`] unless [`ModelShape::with_products`] said otherwise.
    pub products: Products,
    /// Whether the device has tensor operations: not unless [`ModelShape::with_tensor_ops`] said so.
    pub tensor_ops: bool,
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
        Self { config: config.clone(), products: Products::F16, tensor_ops: false, bits }
    }

    /// From loaded weights.
    pub fn from_weights(weights: &ModelWeights) -> Self {
        let bits = weights.matrices().map(|(module, m)| (module, m.bits)).collect();
        Self { config: weights.config.clone(), products: Products::F16, tensor_ops: false, bits }
    }

    /// From loaded weights, for a device.
    pub fn on(weights: &ModelWeights, device: &DeviceFacts) -> Self {
        Self::from_weights(weights).with_products(products(device)).with_tensor_ops(device.tensor_ops)
    }

    /// The same with another number format of prefill's products.
    pub fn with_products(self, products: Products) -> Self {
        Self { products, ..self }
    }

    /// The same for a device with or without tensor operations.
    pub fn with_tensor_ops(self, tensor_ops: bool) -> Self {
        Self { tensor_ops, ..self }
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
