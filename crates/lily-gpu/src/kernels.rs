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

/// The parsed sources of all kernels.
pub fn unit() -> Result<Unit, GpuError> {
    Ok(Unit::parse(&sources(), ROOT, &ParseOptions::default())?)
}

/// What every kernel takes. Parsed once.
pub fn manifest() -> Result<&'static Manifest, GpuError> {
    static MANIFEST: OnceLock<Result<Manifest, String>> = OnceLock::new();
    let made = MANIFEST.get_or_init(|| {
        let unit = unit().map_err(|e| e.to_string())?;
        unit.manifest().map_err(|e| e.to_string())
    });
    made.as_ref().map_err(|e| GpuError::Kernels(e.clone()))
}

/// One text with every file, for Metal's own compiler.
pub fn flat() -> Result<String, GpuError> {
    Ok(sources().flatten(ROOT)?)
}
