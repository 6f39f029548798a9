//! Everything Lily knows about a checkpoint of the `qwen3_5_moe` architecture.
//!
//! * [`config`]: the model's sizes and constants, read from `config.json`, `generation_config.json` and
//!   `tokenizer_config.json`;
//! * [`tensor`]: typed views into memory-mapped (or embedded, or in-memory) tensor data;
//! * [`quant`]: affine-quantised matrices in the MLX layout;
//! * [`weights`]: the tensors of the whole model, by role;
//! * [`checkpoint`]: reading and validating a checkpoint directory;
//! * [`layout`]: which tensors there are, under which names and in which shapes;
//! * [`memory`]: what a model and its context take;
//! * [`synthetic`]: random weights of any size, for measuring speed;
//! * [`mod@reference`]: the slow, clear f32 model that every backend is tested against.

pub mod checkpoint;
pub mod config;
pub mod error;
mod json;
pub mod layout;
pub mod memory;
pub mod quant;
pub mod reference;
pub mod synthetic;
pub mod tensor;
pub mod weights;

pub use checkpoint::{Checkpoint, LoadReport};
pub use config::{GenerationDefaults, LayerType, ModelConfig, Quantization};
pub use error::ModelError;
pub use layout::{ExpectedTensor, expected_tensors};
pub use memory::{MemoryTable, memory_table};
pub use quant::{QuantMatrix, QuantRows};
pub use tensor::{Storage, TensorData};
pub use weights::ModelWeights;
