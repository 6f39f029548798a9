//! Kernels to machine code with NVRTC, once: the result is kept on disk under a hash of everything it depends on.

use std::{
    env,
    ffi::{CStr, CString, c_char, c_int, c_void},
    fs,
    path::{Path, PathBuf},
    ptr,
};

use libloading::Library;
use lily_msl::{emit::CudaOptions, manifest::Manifest};
use sha2::{Digest, Sha256};

use super::{NAME, native, native_prefill::HOPPER};
use crate::{
    error::{GpuError, Result},
    kernels,
};

/// Directory of compiled kernels, instead of the user's cache directory.
pub const CACHE_VARIABLE: &str = "LILY_KERNEL_CACHE";
/// NVRTC's library, instead of the one the system finds.
pub const NVRTC_VARIABLE: &str = "LILY_NVRTC";

/// Text of one compilation.
#[derive(Debug, Clone)]
pub struct Program {
    /// Name for messages.
    pub name: &'static str,
    /// CUDA C++.
    pub source: String,
    /// Compiler options.
    pub options: Vec<String>,
}

/// First architecture with native kernels: bulk copies, clusters, programmatic dependent launch.
pub const NATIVE_ARCH: u32 = 90;

/// The kernels of `kernels/*.metal`, translated.
pub fn shared_program(arch: u32) -> Result<Program> {
    let mut options: Vec<String> =
        ["-std=c++17", "-default-device", "-fmad=false"].map(String::from).to_vec();
    options.push(format!("-arch=sm_{arch}"));
    if arch >= NATIVE_ARCH {
        options.push("-DLILY_PDL".into());
    }
    let source = kernels::unit()?.cuda_source(&CudaOptions::default())?;
    Ok(Program { name: "kernels.cu", source, options })
}

/// The native kernels, for [`NATIVE_ARCH`] and later.
pub fn native_program(arch: u32, manifest: &Manifest) -> Result<Program> {
    // Hopper's own instructions are not part of the architectures after it.
    let suffix = if arch == HOPPER { "a" } else { "" };
    let options = vec!["-std=c++17".into(), format!("-arch=sm_{arch}{suffix}")];
    Ok(Program { name: "native.cu", source: native::source(arch, manifest)?, options })
}

impl Program {
    /// File name of the machine code.
    fn file(&self) -> String {
        let mut hash = Sha256::new();
        for part in self.options.iter().chain([&self.source]) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let hex: String = hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect();
        format!("{}-{hex}.cubin", self.name.trim_end_matches(".cu"))
    }

    /// Machine code: from the cache, or compiled now and put there. With `fresh` the cache is not read.
    pub fn machine_code(&self, fresh: bool) -> Result<Vec<u8>> {
        let file = cache_dir().map(|d| d.join(self.file()));
        if let (Some(file), false) = (&file, fresh)
            && let Ok(code) = fs::read(file)
            && code.starts_with(b"\x7fELF")
        {
            return Ok(code);
        }
        let started = std::time::Instant::now();
        let code = Nvrtc::open()?.compile(self)?;
        tracing::info!("{} compiled in {:.1} s", self.name, started.elapsed().as_secs_f64());
        if let Some(file) = file
            && let Err(error) = store(&file, &code)
        {
            tracing::warn!(%error, file = %file.display(), "compiled kernels cannot be kept; they are compiled at every start");
        }
        Ok(code)
    }
}

fn cache_dir() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set(CACHE_VARIABLE)
        .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("lily/cuda")))
        .or_else(|| set("HOME").map(|d| d.join(".cache/lily/cuda")))
        .or_else(|| set("LOCALAPPDATA").map(|d| d.join("lily/cuda")))
}

/// Writes the file whole or not at all.
fn store(file: &Path, code: &[u8]) -> std::io::Result<()> {
    let dir = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let part = dir.join(format!(".{}.part", std::process::id()));
    fs::write(&part, code)?;
    fs::rename(&part, file).inspect_err(|_| {
        let _ = fs::remove_file(&part);
    })
}

/// NVIDIA's run-time compiler.
struct Nvrtc(Library);

type Handle = *mut c_void;

impl Nvrtc {
    fn open() -> Result<Self> {
        let mut names: Vec<String> = env::var(NVRTC_VARIABLE).into_iter().collect();
        if names.is_empty() {
            for name in
                ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
            {
                names.push(name.into());
            }
            names.push("/usr/local/cuda/lib64/libnvrtc.so".into());
        }
        let mut errors = Vec::new();
        for name in &names {
            // SAFETY: NVIDIA's library has no initialisation that could harm.
            match unsafe { Library::new(name) } {
                Ok(library) => return Ok(Self(library)),
                Err(error) => errors.push(error.to_string()),
            }
        }
        Err(GpuError::NoDevice {
            device: NAME,
            reason: format!(
                "NVIDIA's run-time compiler (NVRTC, part of the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`) is not \
                 found: {}; install it, or name the library in {NVRTC_VARIABLE}",
                errors.first().map_or("", String::as_str)
            ),
        })
    }

    /// Calls a function of the library.
    fn call<F: Copy>(&self, name: &str, invoke: impl FnOnce(F) -> c_int) -> Result<()> {
        let failed = |problem: String| GpuError::Kernels(format!("{name}: {problem}"));
        // SAFETY: `F` is the function's type as the header declares it; see the uses.
        let f = unsafe { self.0.get::<F>(name.as_bytes()) }.map_err(|e| failed(e.to_string()))?;
        match invoke(*f) {
            0 => Ok(()),
            code => Err(failed(format!("error {code}"))),
        }
    }

    fn compile(&self, program: &Program) -> Result<Vec<u8>> {
        let c_string = |s: &str| CString::new(s).map_err(|e| GpuError::Kernels(e.to_string()));
        let (source, name) = (c_string(&program.source)?, c_string(program.name)?);
        let options: Vec<CString> = program.options.iter().map(|o| c_string(o)).collect::<Result<_>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let mut handle: Handle = ptr::null_mut();
        type Create = unsafe extern "C" fn(
            *mut Handle,
            *const c_char,
            *const c_char,
            c_int,
            *const c_void,
            *const c_void,
        ) -> c_int;
        // SAFETY: strings end with zero; no headers.
        self.call("nvrtcCreateProgram", |f: Create| unsafe {
            f(&mut handle, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null())
        })?;
        type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
        // SAFETY: as many options as said.
        let compiled = self.call("nvrtcCompileProgram", |f: Compile| unsafe {
            f(handle, pointers.len() as c_int, pointers.as_ptr())
        });
        let result = match compiled {
            Ok(()) => self.bytes(handle, "nvrtcGetCUBINSize", "nvrtcGetCUBIN"),
            Err(error) => {
                let log =
                    self.bytes(handle, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").unwrap_or_default();
                let log = CStr::from_bytes_until_nul(&log).map(|l| l.to_string_lossy().into_owned());
                let log = log.unwrap_or_default();
                let lines: Vec<&str> = log.lines().take(40).collect();
                Err(GpuError::Kernels(format!(
                    "{} ({}): {error}\n{}",
                    program.name,
                    program.options.join(" "),
                    lines.join("\n")
                )))
            }
        };
        type Destroy = unsafe extern "C" fn(*mut Handle) -> c_int;
        // SAFETY: made above, not used again.
        self.call("nvrtcDestroyProgram", |f: Destroy| unsafe { f(&mut handle) })?;
        result
    }

    /// A result whose size another function tells.
    fn bytes(&self, handle: Handle, size: &str, get: &str) -> Result<Vec<u8>> {
        let mut len = 0usize;
        type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
        // SAFETY: writes one value to a local.
        self.call(size, |f: Size| unsafe { f(handle, &mut len) })?;
        let mut out = vec![0u8; len];
        type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;
        // SAFETY: writes as many bytes as it said.
        self.call(get, |f: Get| unsafe { f(handle, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }
}
