//! The engine: a loaded model behind a [`Backend`], sequences, sampling and the generation loop.

pub mod backend;
pub mod cache;
pub mod constraint;
pub mod engine;
pub mod eval;
pub mod figures;
pub mod request;
pub mod sampling;
pub mod timeline;
pub mod validate;

pub use backend::{
    Backend, BackendError, Chosen, Draw, Interrupt, Logits, MemoryFigures, PAGE, SequenceId, Snapshot,
    cpu::CpuBackend, gpu::GpuBackend, reference::ReferenceBackend,
};
pub use cache::{CacheFigures, CacheOptions, CacheOutcome, CheckpointKind, DiskError, Mark};
pub use constraint::{Constraint, ConstraintError, ConstraintHandle, TokenMask};
pub use engine::{Engine, EngineOptions};
pub use eval::{EvalError, Evaluation, evaluate};
pub use figures::EngineFigures;
pub use request::{
    CancelFlag, EngineError, Event, FinishReason, GenerateRequest, SamplingParams, Stats, TokenLogprobs,
};
pub use sampling::{SampleError, Sampled, Sampler, select::argmax};
