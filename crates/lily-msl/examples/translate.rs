//! Translates a kernel source for looking at or for another compiler:
//!
//! ```text
//! cargo run -p lily-msl --example translate -- soft|cuda|strict|metal|manifest|lint FILE.metal [VERSION] > out
//! ```
//!
//! VERSION is Metal's: 320 (the default), or 400 for what needs Metal 4. Quoted includes are read from the file's directory. Findings go to standard error; the exit status is 1 then.

use std::path::Path;
use std::process::ExitCode;

use lily_msl::emit::CudaOptions;
use lily_msl::{ParseOptions, Sources, Unit};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let version = match args.get(2).map(|v| v.parse()) {
        None => Some(ParseOptions::default().metal_version),
        Some(given) => given.ok(),
    };
    let (Some([form, path]), Some(version), true) = (args.first_chunk(), version, args.len() <= 3) else {
        eprintln!("usage: translate soft|cuda|strict|metal|manifest|lint FILE.metal [320|400]");
        return ExitCode::from(2);
    };
    match translate(form, Path::new(path), version) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn translate(form: &str, path: &Path, metal_version: u32) -> Result<String, String> {
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut sources = Sources::new();
    let entries = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if (name.ends_with(".h") || name.ends_with(".metal"))
            && let Ok(text) = std::fs::read_to_string(entry.path())
        {
            sources.add(name, text);
        }
    }
    let root = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    if form == "metal" {
        return sources.flatten(&root).map_err(|e| e.to_string());
    }
    let mut options = ParseOptions { metal_version, ..ParseOptions::default() };
    if form == "cuda" {
        options.defines.push(("LILY_CUDA".into(), "1".into()));
    }
    let unit = Unit::parse(&sources, &root, &options).map_err(|e| e.to_string())?;
    match form {
        "soft" => Ok(unit.soft_source().cpp),
        "cuda" => unit.cuda_source(&CudaOptions::default()).map_err(|e| e.to_string()),
        "strict" => Ok(unit.strict_source()),
        "manifest" => {
            let m = unit.manifest().map_err(|e| e.to_string())?;
            serde_json::to_string_pretty(&m).map_err(|e| e.to_string())
        }
        "lint" => unit
            .lint()
            .map(|()| format!("{root}: {} kernels, no findings", unit.kernels.len()))
            .map_err(|e| e.to_string()),
        _ => Err(format!("unknown form {form:?}; use soft, cuda, strict, metal, manifest or lint")),
    }
}
