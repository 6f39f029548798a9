//! The `metal` device: the kernels on Apple's GPUs.
//!
//! ```text
//! MetalDevice<D: Driver>   buffers, windows over mapped files, plans, depth-2 submission     (any machine)
//!   |-- encode             a step as encoder calls: what is bound already is not bound again  (any machine)
//!   |-- memory             pages, windows, residency sets                                     (any machine)
//!   |-- archive            where compiled kernels are kept                                    (any machine)
//!   |-- reflect            Apple's view of a kernel's arguments against ours                  (any machine)
//!   `-- Driver             the calls of Metal that are needed
//!         |-- ObjcDriver   over objc2-metal                                                   (macOS)
//!         `-- in tests     the software GPU behind the same calls, late and shuffled
//! ```
//!
//! Everything that decides something is generic over [`Driver`], so that it runs in tests on machines that are no Mac:
//! `tests/metal_host.rs` runs plans and a whole model through [`MetalDevice`] over the software GPU. What is left for a
//! Mac to show is that the objc2 calls do what the trait says.

pub mod archive;
pub mod driver;
pub mod encode;
pub mod host;
pub mod memory;
#[cfg(target_os = "macos")]
mod objc;
pub mod reflect;

pub use driver::{Driver, DriverFacts, Encoder, PipelineFacts};
pub use host::MetalDevice;

use std::path::PathBuf;

use super::Device;
use crate::error::Result;

/// Name of the device.
pub const NAME: &str = "metal";

/// How the device is set up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetalOptions {
    /// Directory for compiled kernels; `None`: they are compiled at every start.
    pub archive_dir: Option<PathBuf>,
}

impl MetalOptions {
    /// With the user's cache directory.
    pub fn new() -> Self {
        Self { archive_dir: archive::user_directory() }
    }
}

/// Opens this machine's GPU and compiles the kernels, or takes them from the archive.
#[cfg(target_os = "macos")]
pub fn open(options: &MetalOptions) -> Result<Box<dyn Device>> {
    let driver = objc::ObjcDriver::open(options)?;
    Ok(Box::new(MetalDevice::new(driver)?))
}

/// Metal is there on macOS only: always an error.
#[cfg(not(target_os = "macos"))]
pub fn open(_options: &MetalOptions) -> Result<Box<dyn Device>> {
    Err(crate::error::GpuError::NoDevice {
        device: NAME,
        reason: format!("this program was built for {}; use a Mac, or --device cpu", std::env::consts::OS),
    })
}

/// Whether this machine has a GPU that [`open`] would take.
pub fn available() -> bool {
    #[cfg(target_os = "macos")]
    return objc::ObjcDriver::available();
    #[cfg(not(target_os = "macos"))]
    false
}
