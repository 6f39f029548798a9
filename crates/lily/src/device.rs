//! Checkpoints, devices and threads, as command-line arguments name them.

use std::{borrow::Cow, cell::Cell, path::Path, sync::Arc, thread};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use lily_cpu::CpuOptions;
use lily_engine::{
    Backend,
    backend::{cpu::CpuBackend, gpu::GpuBackend, reference::ReferenceBackend},
};
use lily_gpu::{
    Device as GpuDevice, GpuModel, GpuOptions,
    budget::{MemoryBudget, activations, free_memory},
    device::{
        metal::{self, MetalOptions},
        soft::{SoftDevice, SoftOptions},
    },
};
use lily_model::{Checkpoint, MemoryTable, ModelError, ModelWeights, checkpoint};
use lily_text::TextModel;

use crate::embedded;

/// Where the model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// The best device this machine has: its GPU where one can be used, else the CPU.
    Auto,
    /// The CPU, with hand-written SIMD.
    Cpu,
    /// The GPU of a Mac with Apple silicon, macOS 15 or later.
    Metal,
    /// An NVIDIA GPU; needs its driver, and NVRTC when kernels are compiled first.
    Cuda,
    /// A software GPU that runs the GPU kernels on the CPU: slow, for tests. Needs a C++ compiler.
    Soft,
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

/// Tokenizer and template of a checkpoint.
pub fn text_of(checkpoint: &Checkpoint) -> Result<TextModel> {
    text(&checkpoint.place(), |name| Ok(checkpoint.read_file(name)?.map(Cow::into_owned)))
}

/// Tokenizer and template of the checkpoint at `model`; other files need not exist.
pub fn open_text(model: &Path) -> Result<TextModel> {
    if is_embedded(Some(model)) {
        return text(embedded::NAME, |name| Ok(embedded_file(name)));
    }
    if !model.is_dir() {
        bail!("{}: not a directory; give the directory that holds tokenizer.json", model.display());
    }
    text(&model.display().to_string(), |name| checkpoint::read_file_in(model, name))
}

/// A file that is there and cannot be read is an error, not a file that is missing.
fn text(place: &str, read: impl Fn(&str) -> Result<Option<Vec<u8>>, ModelError>) -> Result<TextModel> {
    let failed = Cell::new(None);
    let model = TextModel::from_files(|name| {
        read(name).unwrap_or_else(|error| {
            failed.set(Some(error));
            None
        })
    });
    match failed.into_inner() {
        Some(error) => Err(error.into()),
        None => model.with_context(|| place.to_string()),
    }
}

fn embedded_file(name: &str) -> Option<Vec<u8>> {
    embedded::files().iter().find(|(n, _)| *n == name).map(|(_, bytes)| bytes.to_vec())
}

/// The model on a device. `threads` 0 = one a core; `ignore_memory_check`: see the flag of that name.
pub fn backend(
    device: Device,
    weights: Arc<ModelWeights>,
    threads_wanted: usize,
    ignore_memory_check: bool,
) -> Result<Box<dyn Backend>> {
    backend_for(device, weights, threads_wanted, ignore_memory_check, None)
}

/// The same; what will be `needed`, for a sequence of so many tokens, is compared with the device's memory before anything is
/// allocated.
pub fn backend_for(
    device: Device,
    weights: Arc<ModelWeights>,
    threads_wanted: usize,
    ignore_memory_check: bool,
    needed: Option<(&MemoryTable, usize)>,
) -> Result<Box<dyn Backend>> {
    if device == Device::Reference {
        return Ok(Box::new(ReferenceBackend::new(weights)));
    }
    match open_gpu(device)? {
        None => cpu(weights, threads_wanted),
        Some(gpu) => {
            if let Some((table, context)) = needed {
                let scratch = activations(&weights, gpu.as_ref(), context);
                let budget = MemoryBudget::new(table, scratch, gpu.facts(), free_memory());
                budget.check(&gpu.facts().name, ignore_memory_check)?;
                if budget.is_tight() {
                    tracing::warn!("little memory is free, so this may be slow: {budget}");
                } else {
                    tracing::info!("{budget}");
                }
            }
            let model = GpuModel::new(weights, gpu, GpuOptions { ignore_memory_check })?;
            tracing::info!("{}: {}", model.device().facts().name, model.load_report());
            Ok(Box::new(GpuBackend::new(model)))
        }
    }
}

/// The GPU that `device` means, with its kernels compiled; `None` where that is no GPU.
pub fn open_gpu(device: Device) -> Result<Option<Box<dyn GpuDevice>>> {
    Ok(match device {
        Device::Cpu | Device::Reference => None,
        Device::Metal => Some(metal::open(&MetalOptions::new())?),
        Device::Cuda => Some(cuda()?),
        Device::Soft => Some(Box::new(SoftDevice::new(SoftOptions::default())?)),
        Device::Auto if !metal::available() => match cuda() {
            Ok(gpu) => Some(gpu),
            Err(reason) => {
                tracing::debug!("{reason}");
                None
            }
        },
        Device::Auto => match metal::open(&MetalOptions::new()) {
            Ok(gpu) => Some(gpu),
            // A GPU that should work and does not must not pass unseen.
            Err(error) => {
                tracing::warn!("{error}; the CPU is used, see `lily selftest --device metal`");
                None
            }
        },
    })
}

fn cpu(weights: Arc<ModelWeights>, threads_wanted: usize) -> Result<Box<dyn Backend>> {
    let options = CpuOptions { threads: threads(threads_wanted)?, isa: None };
    Ok(Box::new(CpuBackend::new(weights, options)?))
}

/// The first NVIDIA GPU of this machine.
#[cfg(not(target_os = "macos"))]
fn cuda() -> Result<Box<dyn GpuDevice>> {
    use lily_gpu::device::cuda::{CudaDevice, CudaOptions};
    Ok(Box::new(CudaDevice::new(CudaOptions::default())?))
}

/// The first NVIDIA GPU of this machine.
#[cfg(target_os = "macos")]
fn cuda() -> Result<Box<dyn GpuDevice>> {
    let reason = "there is no CUDA on macOS; use --device metal".to_string();
    Err(lily_gpu::GpuError::NoDevice { device: "cuda", reason }.into())
}

/// Most compute threads; more than any machine has cores, and few enough to start.
const MOST_THREADS: usize = 1024;

/// Compute threads: as asked, or one a core.
pub fn threads(asked: usize) -> Result<usize> {
    match asked {
        0 => Ok(thread::available_parallelism().map_or(1, usize::from)),
        1..=MOST_THREADS => Ok(asked),
        n => bail!("--threads is {n}; expected at most {MOST_THREADS}, or 0 for one a core"),
    }
}
