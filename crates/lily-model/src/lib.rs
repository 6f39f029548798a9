//! Everything Lily knows about a checkpoint of the `qwen3_5_moe` architecture.
//!
//! * [`config`]: the model's sizes and constants, read from `config.json`, `generation_config.json` and
//!   `tokenizer_config.json`;
//! * [`tensor`]: typed views into memory-mapped (or embedded, or in-memory) tensor data;
//! * [`quant`]: affine-quantised matrices in the MLX layout;
//! * [`weights`]: the tensors of the whole model, by role;
//! * [`checkpoint`]: reading and validating a checkpoint directory;
//! * [`reference`]: the slow, clear f32 model that every backend is tested against.

pub mod checkpoint;
pub mod config;
pub mod error;
pub mod quant;
pub mod reference;
pub mod tensor;
pub mod weights;

pub use checkpoint::Checkpoint;
pub use config::{LayerType, ModelConfig};
pub use error::ModelError;
pub use quant::{QuantMatrix, QuantRows};
pub use tensor::{Storage, TensorData};
pub use weights::ModelWeights;
