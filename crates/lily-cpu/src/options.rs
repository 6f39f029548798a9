//! How a model is run.

use crate::isa::Isa;

/// Options of [`crate::CpuModel::new`].
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuOptions {
    /// Compute threads, the calling one included; 0 = one a core available to the process.
    pub threads: usize,
    /// Instruction set; `None` = what the environment variable `LILY_CPU_ISA` (`scalar`, `avx2`, `avx512`, `neon`)
    /// names, else the fastest that this machine has.
    pub isa: Option<Isa>,
}

impl CpuOptions {
    pub(crate) fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        }
    }
}

/// Which logits a prefill returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsWanted {
    /// None: an inner chunk of a longer prompt.
    None,
    /// Of the last position, `[vocab]`.
    Last,
    /// Of every position of the chunk, `[tokens, vocab]`.
    All,
}
