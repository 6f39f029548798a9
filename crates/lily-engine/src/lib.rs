//! The engine: a loaded model behind a [`Backend`], sequences, sampling and the generation loop.

pub mod backend;
pub mod engine;
pub mod eval;
pub mod request;
pub mod sampling;
pub mod timeline;
pub mod validate;

pub use backend::{
    Backend, BackendError, Interrupt, Logits, MemoryFigures, SequenceId, Snapshot, cpu::CpuBackend,
    gpu::GpuBackend, reference::ReferenceBackend,
};
pub use engine::{Engine, EngineOptions};
pub use eval::{EvalError, Evaluation, evaluate};
pub use request::{
    CancelFlag, EngineError, Event, FinishReason, GenerateRequest, SamplingParams, Stats, TokenLogprobs,
};
pub use sampling::{SampleError, Sampled, Sampler};
