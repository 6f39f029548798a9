//! Checkpoints, devices and threads, as command-line arguments name them.

use std::{path::Path, sync::Arc, thread};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use lily_cpu::CpuOptions;
use lily_engine::{
    Backend,
    backend::{cpu::CpuBackend, reference::ReferenceBackend},
};
use lily_model::{Checkpoint, ModelWeights};
use lily_text::TextModel;

use crate::embedded;

/// Where the model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// The best device this machine has; today that is always the CPU.
    Auto,
    /// The CPU, with hand-written SIMD.
    Cpu,
    /// The slow f32 reference that every device is tested against.
    Reference,
}

/// Whether `model` means the model inside the binary. A directory of that name is `./lily-mini`.
pub fn is_embedded(model: Option<&Path>) -> bool {
    model.is_none_or(|m| m == Path::new(embedded::NAME))
}

/// The checkpoint at `model`, or the embedded one.
pub fn open_checkpoint(model: Option<&Path>) -> Result<Checkpoint> {
    let checkpoint = match model.filter(|_| !is_embedded(model)) {
        Some(dir) => Checkpoint::open(dir),
        None => Checkpoint::from_static(embedded::files()),
    };
    checkpoint.map_err(Into::into)
}

/// Tokenizer and template of the checkpoint at `model`; other files need not exist.
pub fn open_text(model: &Path) -> Result<TextModel> {
    if is_embedded(Some(model)) {
        return Ok(TextModel::from_files(embedded_file)?);
    }
    if !model.is_dir() {
        bail!("{}: not a directory; give the directory that holds tokenizer.json", model.display());
    }
    TextModel::from_files(|name| std::fs::read(model.join(name)).ok())
        .with_context(|| model.display().to_string())
}

fn embedded_file(name: &str) -> Option<Vec<u8>> {
    embedded::files().iter().find(|(n, _)| *n == name).map(|(_, bytes)| bytes.to_vec())
}

/// The model on a device. `threads` 0 = one a core.
pub fn backend(
    device: Device,
    weights: Arc<ModelWeights>,
    threads_wanted: usize,
) -> Result<Box<dyn Backend>> {
    Ok(match device {
        Device::Auto | Device::Cpu => {
            let options = CpuOptions { threads: threads(threads_wanted), isa: None };
            Box::new(CpuBackend::new(weights, options)?)
        }
        Device::Reference => Box::new(ReferenceBackend::new(weights)),
    })
}

/// Compute threads: as asked, or one a core.
pub fn threads(asked: usize) -> usize {
    match asked {
        0 => thread::available_parallelism().map_or(1, usize::from),
        n => n,
    }
}
