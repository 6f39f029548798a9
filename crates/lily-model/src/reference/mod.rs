//! The f32 model: slow, clear, the specification of every backend.
