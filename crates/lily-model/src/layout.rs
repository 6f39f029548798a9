//! Which tensors the architecture has, under which names and in which shapes: written once, and used to list
//! what a checkpoint must hold ([`expected_tensors`]), to load it, and to make synthetic weights.
//!
//! Names and shapes are those of `mlx_lm`'s `qwen3_5_moe` checkpoints.

use safetensors::Dtype;

use crate::{
    LayerType, ModelConfig, ModelWeights, QuantMatrix, TensorData,
    config::{GROUP_SIZE, Quantization},
    error::ModelError,
    weights::{AttentionWeights, GdnWeights, LayerWeights, MixerWeights, MoeWeights},
};

/// Prefix of every tensor of the language model.
const PREFIX: &str = "language_model";

/// The shape of a quantised module: `experts` is `None` for a dense projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MatrixShape {
    pub experts: Option<usize>,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
}

impl MatrixShape {
    /// `[experts, rows, last]`, without `experts` for a dense projection.
    fn with_last(&self, last: usize) -> Vec<usize> {
        self.experts.into_iter().chain([self.rows, last]).collect()
    }
    /// Shape of the packed weight, u32.
    pub(crate) fn packed(&self, bits: usize) -> Vec<usize> {
        self.with_last(self.cols * bits / 32)
    }
    /// Shape of scales and biases.
    pub(crate) fn groups(&self) -> Vec<usize> {
        self.with_last(self.cols / GROUP_SIZE)
    }
}

/// What a small, unquantised tensor is for; decides which layouts are accepted and what values are likely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VectorKind {
    /// Gain of an RMSNorm, `[n]`.
    Norm,
    /// Log of the decay rate, `[value_heads]`.
    ALog,
    /// Bias of the step size, `[value_heads]`.
    DtBias,
    /// Depthwise convolution of `n / kernel` channels: `[channels, kernel, 1]` (MLX) or `[channels, 1, kernel]`
    /// (PyTorch). Both have the same order in memory.
    Conv {
        /// Taps.
        kernel: usize,
    },
}

impl VectorKind {
    /// Accepted shapes of a tensor of `n` elements, the usual one first.
    pub(crate) fn shapes(self, n: usize) -> Vec<Vec<usize>> {
        match self {
            VectorKind::Conv { kernel } => vec![vec![n / kernel, kernel, 1], vec![n / kernel, 1, kernel]],
            _ => vec![vec![n]],
        }
    }
}

/// Something that has (or makes, or lists) the tensors of a model.
pub(crate) trait TensorSource {
    /// The quantised matrix called `module`.
    fn matrix(&mut self, module: &str, shape: MatrixShape) -> Result<QuantMatrix, ModelError>;
    /// The `n` values of the tensor called `name`, as f32.
    fn vector(&mut self, name: &str, kind: VectorKind, n: usize) -> Result<Vec<f32>, ModelError>;
}

/// Asks `source` for every tensor of the model and puts them in their places.
pub(crate) fn assemble(
    config: &ModelConfig,
    source: &mut dyn TensorSource,
) -> Result<ModelWeights, ModelError> {
    let mut b = Builder { c: config, source };
    let table = MatrixShape { experts: None, rows: config.vocab_size, cols: config.hidden_size };
    Ok(ModelWeights {
        config: config.clone(),
        embed_tokens: b.source.matrix(&format!("{PREFIX}.model.embed_tokens"), table)?,
        layers: (0..config.num_hidden_layers).map(|i| b.layer(i)).collect::<Result<_, _>>()?,
        final_norm: b.norm(&format!("{PREFIX}.model.norm.weight"), config.hidden_size)?,
        lm_head: b.source.matrix(&format!("{PREFIX}.lm_head"), table)?,
    })
}

struct Builder<'a> {
    c: &'a ModelConfig,
    source: &'a mut dyn TensorSource,
}

impl Builder<'_> {
    fn layer(&mut self, i: usize) -> Result<LayerWeights, ModelError> {
        let at = format!("{PREFIX}.model.layers.{i}");
        let hidden = self.c.hidden_size;
        Ok(LayerWeights {
            input_norm: self.norm(&format!("{at}.input_layernorm.weight"), hidden)?,
            mixer: match self.c.layer_types[i] {
                LayerType::FullAttention => {
                    MixerWeights::Attention(self.attention(&format!("{at}.self_attn"))?)
                }
                LayerType::LinearAttention => MixerWeights::Gdn(self.gdn(&format!("{at}.linear_attn"))?),
            },
            post_attention_norm: self.norm(&format!("{at}.post_attention_layernorm.weight"), hidden)?,
            moe: self.moe(&format!("{at}.mlp"))?,
        })
    }

    fn attention(&mut self, at: &str) -> Result<AttentionWeights, ModelError> {
        let ModelConfig { hidden_size, head_dim, num_attention_heads, num_key_value_heads, .. } = *self.c;
        let (q, kv) = (num_attention_heads * head_dim, num_key_value_heads * head_dim);
        Ok(AttentionWeights {
            q_proj: self.dense(at, "q_proj", 2 * q, hidden_size)?,
            k_proj: self.dense(at, "k_proj", kv, hidden_size)?,
            v_proj: self.dense(at, "v_proj", kv, hidden_size)?,
            o_proj: self.dense(at, "o_proj", hidden_size, q)?,
            q_norm: self.norm(&format!("{at}.q_norm.weight"), head_dim)?,
            k_norm: self.norm(&format!("{at}.k_norm.weight"), head_dim)?,
        })
    }

    fn gdn(&mut self, at: &str) -> Result<GdnWeights, ModelError> {
        let (hidden, value_width) = (self.c.hidden_size, self.c.gdn_value_width());
        let (channels, heads) = (self.c.conv_channels(), self.c.linear_num_value_heads);
        let kernel = self.c.linear_conv_kernel_dim;
        let conv = VectorKind::Conv { kernel };
        Ok(GdnWeights {
            in_proj_qkv: self.dense(at, "in_proj_qkv", channels, hidden)?,
            in_proj_z: self.dense(at, "in_proj_z", value_width, hidden)?,
            in_proj_b: self.dense(at, "in_proj_b", heads, hidden)?,
            in_proj_a: self.dense(at, "in_proj_a", heads, hidden)?,
            conv1d: self.source.vector(&format!("{at}.conv1d.weight"), conv, channels * kernel)?,
            a_log: self.source.vector(&format!("{at}.A_log"), VectorKind::ALog, heads)?,
            dt_bias: self.source.vector(&format!("{at}.dt_bias"), VectorKind::DtBias, heads)?,
            norm: self.norm(&format!("{at}.norm.weight"), self.c.linear_value_head_dim)?,
            out_proj: self.dense(at, "out_proj", hidden, value_width)?,
        })
    }

    fn moe(&mut self, at: &str) -> Result<MoeWeights, ModelError> {
        let ModelConfig { hidden_size: hidden, num_experts, .. } = *self.c;
        let (width, shared) = (self.c.moe_intermediate_size, self.c.shared_expert_intermediate_size);
        let mut stack = |name: &str, rows, cols| {
            let shape = MatrixShape { experts: Some(num_experts), rows, cols };
            self.source.matrix(&format!("{at}.switch_mlp.{name}"), shape)
        };
        let experts_gate = stack("gate_proj", width, hidden)?;
        let experts_up = stack("up_proj", width, hidden)?;
        let experts_down = stack("down_proj", hidden, width)?;
        Ok(MoeWeights {
            gate: self.dense(at, "gate", num_experts, hidden)?,
            experts_gate,
            experts_up,
            experts_down,
            shared_gate_proj: self.dense(at, "shared_expert.gate_proj", shared, hidden)?,
            shared_up_proj: self.dense(at, "shared_expert.up_proj", shared, hidden)?,
            shared_down_proj: self.dense(at, "shared_expert.down_proj", hidden, shared)?,
            shared_expert_gate: self.dense(at, "shared_expert_gate", 1, hidden)?,
        })
    }

    fn dense(&mut self, at: &str, name: &str, rows: usize, cols: usize) -> Result<QuantMatrix, ModelError> {
        self.source.matrix(&format!("{at}.{name}"), MatrixShape { experts: None, rows, cols })
    }

    fn norm(&mut self, name: &str, n: usize) -> Result<Vec<f32>, ModelError> {
        self.source.vector(name, VectorKind::Norm, n)
    }
}

/// A tensor that a checkpoint must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedTensor {
    /// Full name.
    pub name: String,
    /// Accepted element types.
    pub dtypes: &'static [Dtype],
    /// Accepted shapes, the usual one first. All have the same number of elements.
    pub shapes: Vec<Vec<usize>>,
}

impl ExpectedTensor {
    /// Elements.
    pub fn len(&self) -> usize {
        self.shapes[0].iter().product()
    }

    /// Whether it has no elements (never, in a valid configuration).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes in the first of the accepted element types.
    pub fn byte_len(&self) -> usize {
        self.len() * self.dtypes[0].bitsize() / 8
    }
}

/// Packed elements.
const PACKED: &[Dtype] = &[Dtype::U32];
/// Scales and biases.
pub(crate) const GROUPS: &[Dtype] = &[Dtype::BF16];
/// Small vectors: converters keep BF16 or widen to F32.
const VECTOR: &[Dtype] = &[Dtype::BF16, Dtype::F32];

/// Every tensor of the language model, in the order of the model's layers.
pub fn expected_tensors(config: &ModelConfig, quantization: &Quantization) -> Vec<ExpectedTensor> {
    let mut list = Lister { quantization, tensors: Vec::new() };
    let empty = assemble(config, &mut list);
    debug_assert!(empty.is_ok(), "listing cannot fail");
    list.tensors
}

struct Lister<'a> {
    quantization: &'a Quantization,
    tensors: Vec<ExpectedTensor>,
}

impl TensorSource for Lister<'_> {
    fn matrix(&mut self, module: &str, shape: MatrixShape) -> Result<QuantMatrix, ModelError> {
        let bits = self.quantization.bits_of(module);
        let mut push = |part: &str, dtypes, shape| {
            self.tensors.push(ExpectedTensor {
                name: format!("{module}.{part}"),
                dtypes,
                shapes: vec![shape],
            });
        };
        push("weight", PACKED, shape.packed(bits));
        push("scales", GROUPS, shape.groups());
        push("biases", GROUPS, shape.groups());
        Ok(QuantMatrix {
            experts: 0,
            rows: 0,
            cols: 0,
            bits,
            group_size: GROUP_SIZE,
            weight: TensorData::from_slice(&[]),
            scales: TensorData::from_slice(&[]),
            biases: TensorData::from_slice(&[]),
        })
    }

    fn vector(&mut self, name: &str, kind: VectorKind, n: usize) -> Result<Vec<f32>, ModelError> {
        self.tensors.push(ExpectedTensor { name: name.into(), dtypes: VECTOR, shapes: kind.shapes(n) });
        Ok(Vec::new())
    }
}
