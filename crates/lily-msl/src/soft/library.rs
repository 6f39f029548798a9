//! The compiled library and its C interface. All unsafe code of the soft device's host side is here.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::compile::{Compiler, SoftError};
use super::run::{Outcome, RawDispatch, Touched};
use crate::emit::Site;
use crate::manifest::{Access, Manifest};
use crate::parse::Unit;

/// What stopped a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// An access outside every bound buffer and threadgroup variable.
    Bounds,
    /// A write to a buffer bound for reading.
    ReadOnly,
    /// A read of threadgroup memory that nothing was written to.
    Uninitialised,
    /// Two accesses of one byte, one of them a write, with nothing that orders them.
    Race,
    /// A simdgroup operation that not all lanes reach.
    Divergence,
    /// A barrier that not all threads of the threadgroup reach.
    Barrier,
    /// Over 32 KB of threadgroup memory.
    ThreadgroupMemory,
    /// A dispatch that makes no sense.
    Usage,
    /// A tensor operation whose operands or scope do not fit it.
    Tensor,
}

/// A fault, with its place.
#[derive(Debug, Clone, thiserror::Error)]
#[error("kernel {kernel}, {place}{message}{other}")]
pub struct Fault {
    /// What kind.
    pub kind: FaultKind,
    /// Host name of the kernel.
    pub kernel: String,
    /// `file:line: ` of the source where it is known, else empty.
    pub place: String,
    /// Which thread did what.
    pub message: String,
    /// Where the other side of a race or divergence stands.
    pub other: String,
}

/// What a dispatch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Threads run.
    pub threads: u64,
    /// Simdgroup operations computed.
    pub collectives: u64,
    /// Threadgroup barriers opened.
    pub barriers: u64,
    /// Simdgroup operations with lanes missing (a fault in strict mode).
    pub divergent: u64,
    /// Changes from one thread to another.
    pub switches: u64,
    /// Threadgroup memory used, bytes.
    pub threadgroup_bytes: u32,
}

#[repr(C)]
struct CBuffer {
    index: u32,
    writable: u32,
    ptr: *mut c_void,
    len: u64,
    name: *const c_char,
}

#[repr(C)]
struct CValue {
    index: u32,
    size: u32,
    bits: u64,
}

#[repr(C)]
struct CDispatch {
    kernel: u32,
    strict: u32,
    seed: u32,
    n_buffers: u32,
    n_threadgroup: u32,
    n_values: u32,
    grid: [u32; 3],
    group: [u32; 3],
    buffers: *const CBuffer,
    threadgroup: *const [u32; 2],
    values: *const CValue,
}

#[repr(C)]
struct CReport {
    fault: u32,
    site: u32,
    other_site: u32,
    threadgroup_bytes: u32,
    pc: u64,
    other_pc: u64,
    threads: u64,
    collectives: u64,
    barriers: u64,
    divergent: u64,
    switches: u64,
    message: [c_char; 512],
}

type DispatchFn = unsafe extern "C" fn(*const CDispatch, *mut CReport) -> i32;
type TouchedFn = unsafe extern "C" fn(*const c_void, u64, u32, *mut u64, u64) -> u64;

/// The functions of a loaded library; it stays loaded as long as they live.
struct Loaded {
    dispatch: DispatchFn,
    touched: Option<TouchedFn>,
    _library: libloading::Library,
}

/// A unit compiled for the soft device. Dispatches of one library run one after the other.
pub struct SoftLibrary {
    loaded: Mutex<Loaded>,
    /// What the kernels take.
    pub manifest: Manifest,
    /// Whether memory accesses are watched.
    pub checked: bool,
    /// The version of Metal that its unit was read for.
    pub metal_version: u32,
    sites: Vec<Site>,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl std::fmt::Debug for SoftLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftLibrary")
            .field("path", &self.path)
            .field("checked", &self.checked)
            .finish_non_exhaustive()
    }
}

impl SoftLibrary {
    /// Compiles a unit. `checked` watches every memory access, at some 4 times the running time.
    pub fn build(unit: &Unit, compiler: &Compiler, checked: bool) -> Result<SoftLibrary, SoftError> {
        let manifest = unit.manifest()?;
        let source = unit.soft_source();
        let io = |source| SoftError::Io { path: std::env::temp_dir().display().to_string(), source };
        let dir = tempfile::Builder::new().prefix("lily-soft-").tempdir().map_err(io)?;
        let path = compiler.build(&source, &unit.name, checked, dir.path())?;
        let loaded = load(&path, checked)
            .map_err(|source| SoftError::Load { path: path.display().to_string(), source })?;
        Ok(SoftLibrary {
            loaded: Mutex::new(loaded),
            manifest,
            checked,
            metal_version: unit.metal_version,
            sites: source.sites,
            path,
            _dir: dir,
        })
    }

    /// Runs a dispatch on raw memory.
    ///
    /// # Safety
    /// Every argument's pointer is valid for its length for the whole call, for writing where the kernel's
    /// manifest says [`Access::ReadWrite`], and nothing else accesses that memory meanwhile. In an unchecked
    /// library a kernel that leaves its buffers is undefined behaviour.
    pub unsafe fn dispatch_raw(&self, d: &RawDispatch<'_>) -> Result<Outcome, SoftError> {
        let k = self.manifest.kernel(d.kernel)?;
        let kernel = self.manifest.kernels.iter().position(|m| m.name == k.name).unwrap_or_default() as u32;
        d.check(k)?;
        let names: Vec<CString> =
            k.args.iter().map(|a| CString::new(a.name.as_str()).unwrap_or_default()).collect();
        let buffers: Vec<CBuffer> = k
            .args
            .iter()
            .zip(&d.args)
            .zip(&names)
            .map(|((m, a), name)| CBuffer {
                index: m.index,
                writable: (m.access == Access::ReadWrite) as u32,
                ptr: a.ptr.cast(),
                len: a.len as u64,
                name: name.as_ptr(),
            })
            .collect();
        let threadgroup: Vec<[u32; 2]> =
            k.threadgroup_args.iter().zip(d.threadgroup).map(|(t, &bytes)| [t.index, bytes]).collect();
        let mut values = Vec::new();
        for c in &k.function_constants {
            let v = d.constants.iter().find(|v| v.0 == c.index).map(|v| v.1);
            let v = v.ok_or_else(|| SoftError::Usage(format!("function constant {} is not set", c.name)))?;
            let (size, bits) = v.encode(&c.ty).ok_or_else(|| {
                SoftError::Usage(format!(
                    "function constant {}: {v:?} is not a value of type {}",
                    c.name, c.ty
                ))
            })?;
            values.push(CValue { index: c.index, size, bits });
        }
        let c = CDispatch {
            kernel,
            strict: d.strict as u32,
            seed: d.seed,
            n_buffers: buffers.len() as u32,
            n_threadgroup: threadgroup.len() as u32,
            n_values: values.len() as u32,
            grid: d.grid,
            group: d.group,
            buffers: buffers.as_ptr(),
            threadgroup: threadgroup.as_ptr(),
            values: values.as_ptr(),
        };
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: an all-zero report is valid: integers and a byte array.
        let mut report: CReport = unsafe { std::mem::zeroed() };
        // SAFETY: `c` and what it points to live through the call; the layout of both structures is that of
        // soft_rt.cpp; the caller answers for the buffers; the lock makes this the only dispatch in the library.
        let fault = unsafe { (loaded.dispatch)(&c, &mut report) };
        if fault != 0 {
            return Err(self.fault(&k.name, &report));
        }
        let mut touched = Vec::new();
        if let Some(f) = loaded.touched {
            for a in &d.args {
                touched.push(Touched {
                    read: ranges(f, a.ptr, a.len, false),
                    written: ranges(f, a.ptr, a.len, true),
                });
            }
        }
        let stats = Stats {
            threads: report.threads,
            collectives: report.collectives,
            barriers: report.barriers,
            divergent: report.divergent,
            switches: report.switches,
            threadgroup_bytes: report.threadgroup_bytes,
        };
        Ok(Outcome { touched, stats })
    }

    fn fault(&self, kernel: &str, report: &CReport) -> SoftError {
        // SAFETY: the runtime ends the message with a zero inside the array (vsnprintf).
        let message = unsafe { CStr::from_ptr(report.message.as_ptr()) }.to_string_lossy().into_owned();
        let kind = match report.fault {
            1 => FaultKind::Bounds,
            2 => FaultKind::ReadOnly,
            3 => FaultKind::Uninitialised,
            4 => FaultKind::Race,
            5 => FaultKind::Divergence,
            6 => FaultKind::Barrier,
            7 => FaultKind::ThreadgroupMemory,
            9 => FaultKind::Tensor,
            _ => FaultKind::Usage,
        };
        let site = |i: u32| self.sites.get(i as usize).filter(|_| i != 0);
        let place = match site(report.site) {
            Some(s) => format!("{}:{}: {}: ", s.file, s.line, s.name),
            None => self.source_line(report.pc).map(|l| format!("{l}: ")).unwrap_or_default(),
        };
        let other = match site(report.other_site) {
            Some(s) => format!("; the other operation is {} at {}:{}", s.name, s.file, s.line),
            None => self
                .source_line(report.other_pc)
                .map(|l| format!("; the other access is at {l}"))
                .unwrap_or_default(),
        };
        SoftError::Fault(Box::new(Fault { kind, kernel: kernel.to_string(), place, message, other }))
    }

    /// The source line of an address in the library, asked of `addr2line` where it is installed.
    fn source_line(&self, offset: u64) -> Option<String> {
        if offset == 0 {
            return None;
        }
        // The address is where the call returns to; the access is just before.
        let address = format!("{:#x}", offset - 1);
        let out = Command::new("addr2line").args(["-i", "-e"]).arg(&self.path).arg(address).output().ok()?;
        let text = String::from_utf8(out.stdout).ok()?;
        // The innermost line of a kernel source; the prelude's own lines do not help.
        let is_kernel = |l: &&str| {
            let file = l.rsplit_once(':').map_or("", |p| p.0);
            !["hpp", ".h", "cpp", "cuh", "??"].iter().any(|e| file.ends_with(e)) && !file.is_empty()
        };
        let line = text.lines().find(is_kernel)?;
        let (file, number) = line.rsplit_once(':')?;
        let name = file.rsplit_once('/').map_or(file, |p| p.1);
        Some(format!("{name}:{}", number.split_whitespace().next().unwrap_or(number)))
    }
}

fn load(path: &std::path::Path, checked: bool) -> Result<Loaded, libloading::Error> {
    // SAFETY: the library was just built from our runtime; loading it runs no code of others.
    let library = unsafe { libloading::Library::new(path)? };
    // SAFETY: the symbols have these types in soft_rt.cpp, and `Loaded` keeps the library.
    unsafe {
        let dispatch = *library.get::<DispatchFn>(b"lily_dispatch\0")?;
        let touched = if checked { Some(*library.get::<TouchedFn>(b"lily_touched\0")?) } else { None };
        Ok(Loaded { dispatch, touched, _library: library })
    }
}

/// The byte ranges the last dispatch touched in a buffer.
fn ranges(f: TouchedFn, ptr: *mut u8, len: usize, write: bool) -> Vec<std::ops::Range<u64>> {
    // SAFETY: with capacity 0 nothing is written; `ptr` is only compared.
    let n = unsafe { f(ptr as *const c_void, len as u64, write as u32, std::ptr::null_mut(), 0) };
    let mut out = vec![0u64; 2 * n as usize];
    // SAFETY: `out` has room for `n` pairs.
    unsafe { f(ptr as *const c_void, len as u64, write as u32, out.as_mut_ptr(), n) };
    out.chunks_exact(2).map(|p| p[0]..p[1]).collect()
}
