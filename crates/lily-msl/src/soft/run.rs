//! Dispatches: what is passed, and what comes back.

use std::ops::Range;

use super::compile::SoftError;
use super::library::{SoftLibrary, Stats};
use crate::manifest::{Access, Binding, KernelManifest};

/// The value of a function constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// `bool`.
    Bool(bool),
    /// Any integer type.
    Int(i64),
    /// `float`.
    Float(f32),
}

impl Value {
    /// Size and bits as a value of a Metal type; `None` where it does not fit.
    pub(super) fn encode(self, ty: &str) -> Option<(u32, u64)> {
        let int = |v: i64, size: u32, signed: bool| {
            let bits = size * 8;
            let fits = if signed {
                v >= -(1i64 << (bits - 1)) && v < 1i64 << (bits - 1)
            } else {
                v >= 0 && (bits == 64 || v < 1i64 << bits)
            };
            fits.then_some((size, v as u64 & (u64::MAX >> (64 - bits))))
        };
        match (self, ty) {
            (Value::Bool(b), "bool") => Some((1, b as u64)),
            (Value::Int(v), "char" | "int8_t") => int(v, 1, true),
            (Value::Int(v), "uchar" | "uint8_t") => int(v, 1, false),
            (Value::Int(v), "short" | "int16_t") => int(v, 2, true),
            (Value::Int(v), "ushort" | "uint16_t") => int(v, 2, false),
            (Value::Int(v), "int" | "int32_t") => int(v, 4, true),
            (Value::Int(v), "uint" | "uint32_t") => int(v, 4, false),
            (Value::Float(v), "float") => Some((4, v.to_bits() as u64)),
            _ => None,
        }
    }
}

/// A safe argument.
#[derive(Debug)]
pub enum Arg<'a> {
    /// A buffer the kernel only reads.
    Read(&'a [u8]),
    /// A buffer the kernel may write.
    Write(&'a mut [u8]),
    /// Inline bytes.
    Bytes(&'a [u8]),
}

/// An argument as pointer and length; what it is for is in the manifest.
#[derive(Debug, Clone, Copy)]
pub struct RawArg<'a> {
    /// The parameter's name in the kernel: checked, so that an argument in a wrong place is an error.
    pub name: &'a str,
    /// How the caller treats it: checked too.
    pub access: Access,
    /// First byte.
    pub ptr: *mut u8,
    /// Bytes.
    pub len: usize,
}

/// A dispatch on raw memory; see [`SoftLibrary::dispatch_raw`].
#[derive(Debug, Clone)]
pub struct RawDispatch<'a> {
    /// Host name.
    pub kernel: &'a str,
    /// Threadgroups.
    pub grid: [u32; 3],
    /// Threads of a threadgroup.
    pub group: [u32; 3],
    /// Arguments, in order of index.
    pub args: Vec<RawArg<'a>>,
    /// Bytes of every threadgroup argument, in order of index.
    pub threadgroup: &'a [u32],
    /// Function constants: index and value.
    pub constants: &'a [(u32, Value)],
    /// Order of execution: 0 natural, else shuffled.
    pub seed: u32,
    /// Whether a collective or barrier that some threads miss is a fault.
    pub strict: bool,
}

impl RawDispatch<'_> {
    pub(super) fn check(&self, k: &KernelManifest) -> Result<(), SoftError> {
        let bindings: Vec<Binding<'_>> = self
            .args
            .iter()
            .enumerate()
            .map(|(i, a)| Binding {
                name: a.name,
                access: a.access,
                element: k.args.get(i).map_or("", |m| &m.element),
                bytes: (a.access == Access::Bytes).then_some(a.len),
            })
            .collect();
        k.check(&bindings)?;
        let set: Vec<u32> = self.constants.iter().map(|c| c.0).collect();
        k.check_dispatch(self.group, self.threadgroup, &set)?;
        for (a, m) in self.args.iter().zip(&k.args) {
            let align = m.layout.as_ref().map_or(1, |l| l.align) as usize;
            if !(a.ptr as usize).is_multiple_of(align) {
                return Err(SoftError::Usage(format!(
                    "kernel {}, argument {}: the memory is not aligned to {align} bytes, as {} needs",
                    k.name, a.name, m.element
                )));
            }
        }
        Ok(())
    }
}

/// A dispatch on slices.
#[derive(Debug)]
pub struct Dispatch<'a> {
    /// Host name.
    pub kernel: &'a str,
    /// Threadgroups.
    pub grid: [u32; 3],
    /// Threads of a threadgroup.
    pub group: [u32; 3],
    /// Arguments by parameter name, in order of index.
    pub args: Vec<(&'a str, Arg<'a>)>,
    /// Bytes of every threadgroup argument, in order of index.
    pub threadgroup: &'a [u32],
    /// Function constants: index and value.
    pub constants: &'a [(u32, Value)],
    /// Order of execution: 0 natural, else shuffled.
    pub seed: u32,
}

/// The bytes of an argument that a dispatch touched: disjoint ranges in order, from the argument's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// Bytes read.
    pub read: Vec<Range<u64>>,
    /// Bytes written.
    pub written: Vec<Range<u64>>,
}

impl Touched {
    /// Number of distinct bytes read.
    pub fn bytes_read(&self) -> u64 {
        self.read.iter().map(|r| r.end - r.start).sum()
    }

    /// Number of distinct bytes written.
    pub fn bytes_written(&self) -> u64 {
        self.written.iter().map(|r| r.end - r.start).sum()
    }
}

/// A dispatch that ended without a fault.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// For every argument, what was touched; empty for a library that is not checked.
    pub touched: Vec<Touched>,
    /// What was done.
    pub stats: Stats,
}

impl SoftLibrary {
    /// Runs a dispatch in strict mode on slices. Only a checked library can promise that a kernel keeps to them,
    /// so any other is refused.
    pub fn dispatch(&self, d: Dispatch<'_>) -> Result<Outcome, SoftError> {
        if !self.checked {
            return Err(SoftError::Usage(
                "a dispatch on slices needs a checked library; use dispatch_raw".into(),
            ));
        }
        let args = d.args.into_iter().map(|(name, a)| match a {
            Arg::Read(s) => RawArg { name, access: Access::Read, ptr: s.as_ptr().cast_mut(), len: s.len() },
            Arg::Bytes(s) => RawArg { name, access: Access::Bytes, ptr: s.as_ptr().cast_mut(), len: s.len() },
            Arg::Write(s) => RawArg { name, access: Access::ReadWrite, ptr: s.as_mut_ptr(), len: s.len() },
        });
        let raw = RawDispatch {
            kernel: d.kernel,
            grid: d.grid,
            group: d.group,
            args: args.collect(),
            threadgroup: d.threadgroup,
            constants: d.constants,
            seed: d.seed,
            strict: true,
        };
        // SAFETY: the slices are borrowed through the call; access kinds are compared with the manifest, so only
        // `Write` arguments are written; the checked library stops a kernel before it leaves them.
        unsafe { self.dispatch_raw(&raw) }
    }
}
