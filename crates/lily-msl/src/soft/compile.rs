//! Calling the C++ compiler.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::emit::SoftSource;

/// Why a soft library could not be made or used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages print
pub enum SoftError {
    #[error("no C++ compiler: tried {tried}; install g++ or clang++, or set CXX")]
    NoCompiler { tried: String },
    #[error("{compiler} refused the kernels of {unit}:\n{output}")]
    Refused { compiler: String, unit: String, output: String },
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{path}: {source}")]
    Load { path: String, source: libloading::Error },
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Fault(Box<super::library::Fault>),
    #[error(transparent)]
    Bind(#[from] crate::manifest::BindError),
    #[error("{0}")]
    Source(#[from] crate::diag::Diagnostics),
}

/// A C++17 compiler: g++ 11 or later, or clang++ 15 or later.
#[derive(Debug, Clone)]
pub struct Compiler {
    program: OsString,
}

impl Compiler {
    /// The compiler of `CXX`, else `c++`, `g++` or `clang++`, whichever answers first.
    pub fn find() -> Result<Compiler, SoftError> {
        let mut tried: Vec<OsString> = Vec::new();
        let named = std::env::var_os("CXX").filter(|c| !c.is_empty());
        let candidates =
            named.map(|c| vec![c]).unwrap_or_else(|| ["c++", "g++", "clang++"].map(OsString::from).to_vec());
        for program in candidates {
            let answer = Command::new(&program).arg("--version").output();
            if answer.is_ok_and(|o| o.status.success()) {
                return Ok(Compiler { program });
            }
            tried.push(program);
        }
        let tried: Vec<String> = tried.iter().map(|t| t.to_string_lossy().into_owned()).collect();
        Err(SoftError::NoCompiler { tried: tried.join(", ") })
    }

    /// Compiles kernels and runtime into a shared library in `dir`.
    pub(super) fn build(
        &self,
        source: &SoftSource,
        unit: &str,
        checked: bool,
        dir: &Path,
    ) -> Result<PathBuf, SoftError> {
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text)
                .map_err(|source| SoftError::Io { path: path.display().to_string(), source })
                .map(|()| path)
        };
        let kernels = write("kernels.cpp", &source.cpp)?;
        write("soft_abi.h", include_str!("../../prelude/soft_abi.h"))?;
        write("soft_check.hpp", include_str!("../../prelude/soft_check.hpp"))?;
        let runtime = write("soft_rt.cpp", include_str!("../../prelude/soft_rt.cpp"))?;

        let common = [
            "-std=c++17",
            "-fPIC",
            "-fvisibility=hidden",
            "-fno-exceptions",
            "-fno-rtti",
            "-fno-strict-aliasing",
            "-c",
        ];
        let kernels_object = dir.join("kernels.o");
        // -ffp-contract=off: a * b + c is two roundings, as written. Warnings are the strict check's business.
        let mut flags: Vec<&str> = vec!["-ffp-contract=off", "-fno-math-errno", "-w", "-g1"];
        flags.push(if checked { "-O1" } else { "-O2" });
        if checked {
            flags.push("-fsanitize=thread");
        }
        if cfg!(target_arch = "x86_64") {
            flags.push("-mfma"); // fma() as one instruction
        }
        let compile = |input: &Path, output: &Path, flags: &[&str]| {
            let mut c = Command::new(&self.program);
            c.args(common).args(flags).arg(input).arg("-o").arg(output);
            self.run(c, unit)
        };
        compile(&kernels, &kernels_object, &flags)?;
        let runtime_object = dir.join("soft_rt.o");
        let defines: &[&str] = if checked { &["-O2", "-DLILY_CHECKED"] } else { &["-O2"] };
        compile(&runtime, &runtime_object, defines)?;
        // The instrumentation's own runtime is ours, so the sanitizer's library is not linked.
        let library = dir.join(format!("kernels.{}", std::env::consts::DLL_EXTENSION));
        let mut link = Command::new(&self.program);
        link.arg("-shared").arg(&kernels_object).arg(&runtime_object).arg("-o").arg(&library).arg("-lm");
        self.run(link, unit)?;
        Ok(library)
    }

    fn run(&self, mut command: Command, unit: &str) -> Result<(), SoftError> {
        let compiler = self.program.to_string_lossy().into_owned();
        let out = command.output().map_err(|source| SoftError::Io { path: compiler.clone(), source })?;
        if out.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&out.stderr);
        let output: String = text.lines().take(60).collect::<Vec<_>>().join("\n");
        Err(SoftError::Refused { compiler, unit: unit.to_string(), output })
    }
}
