//! The kernel sources inside the binary, and what the front end says about them.

use std::sync::OnceLock;

use lily_msl::{ParseOptions, Sources, Unit, manifest::Manifest};

use crate::error::GpuError;

mod list {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// The file that includes every other.
pub const ROOT: &str = "all.metal";

/// (name, text) of every kernel source.
pub fn files() -> &'static [(&'static str, &'static str)] {
    list::FILES
}

/// The kernel sources as a table.
pub fn sources() -> Sources {
    let mut sources = Sources::new();
    for (name, text) in files() {
        sources.add(*name, *text);
    }
    sources
}

/// The parsed sources of all kernels that every device has.
pub fn unit() -> Result<Unit, GpuError> {
    unit_with(false)
}

/// The same, with those for a device with tensor operations (Metal 4) where it has them.
pub fn unit_with(tensor_ops: bool) -> Result<Unit, GpuError> {
    let mut options = ParseOptions::default();
    if tensor_ops {
        options.metal_version = 400;
    }
    Ok(Unit::parse(&sources(), ROOT, &options)?)
}

/// What every kernel of [`unit()`] takes. Parsed once.
pub fn manifest() -> Result<&'static Manifest, GpuError> {
    manifest_with(false)
}

/// What every kernel of [`unit_with`] takes. Parsed once for each kind of device.
pub fn manifest_with(tensor_ops: bool) -> Result<&'static Manifest, GpuError> {
    static MANIFESTS: [OnceLock<Result<Manifest, String>>; 2] = [const { OnceLock::new() }; 2];
    let made = MANIFESTS[usize::from(tensor_ops)].get_or_init(|| {
        let unit = unit_with(tensor_ops).map_err(|e| e.to_string())?;
        unit.manifest().map_err(|e| e.to_string())
    });
    made.as_ref().map_err(|e| GpuError::Kernels(e.clone()))
}

/// One text with every file, for Metal's own compiler.
pub fn flat() -> Result<String, GpuError> {
    Ok(sources().flatten(ROOT)?)
}
