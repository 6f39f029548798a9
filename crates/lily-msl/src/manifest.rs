//! What the host must know to call a kernel: its arguments in order, what each is for, its memory and group size.
//! The host states what it is about to bind; [`KernelManifest::check`] compares, once, at start.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::diag::{Diagnostics, Finding, Rule};
use crate::lint::MAX_THREADGROUP_BYTES;
use crate::parse::{ArgKind, ConstEnv, Field, Kernel, Layout, Param, TypeRef, Unit};

/// All kernels of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The root file.
    pub source: String,
    /// Kernels in order of appearance.
    pub kernels: Vec<KernelManifest>,
}

impl Manifest {
    /// A kernel by host name.
    pub fn kernel(&self, name: &str) -> Result<&KernelManifest, BindError> {
        self.kernels
            .iter()
            .find(|k| k.name == name)
            .ok_or_else(|| BindError::NoKernel { source_file: self.source.clone(), kernel: name.to_string() })
    }
}

/// One kernel, as the host sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelManifest {
    /// Host name.
    pub name: String,
    /// Name of the CUDA entry point.
    pub symbol: String,
    /// The function, with its template arguments.
    pub function: String,
    /// Where it is defined, `file:line`.
    pub defined_at: String,
    /// Buffers and inline bytes, in order of index.
    pub args: Vec<ArgManifest>,
    /// Threadgroup memory whose size the host sets, in order of index.
    pub threadgroup_args: Vec<ThreadgroupArg>,
    /// Bytes of threadgroup memory the kernel declares itself.
    pub threadgroup_bytes: u32,
    /// Threads of a threadgroup: the value of `[[max_total_threads_per_threadgroup(n)]]`. Where it is written, a
    /// dispatch has exactly that many.
    pub threads_per_threadgroup: Option<u32>,
    /// The function constants it uses.
    pub function_constants: Vec<ConstantManifest>,
    /// Bytes of the CUDA argument structure.
    pub cuda_args_bytes: u32,
}

/// How an argument is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// A buffer that is only read (`device const T*`, `constant T*`).
    Read,
    /// A buffer that may be read and written (`device T*`).
    ReadWrite,
    /// A few bytes passed with the dispatch (`constant T&`).
    Bytes,
}

/// An argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgManifest {
    /// The parameter's name.
    pub name: String,
    /// `[[buffer(index)]]`.
    pub index: u32,
    /// What it is for.
    pub access: Access,
    /// The element's type, template arguments resolved.
    pub element: String,
    /// The element's layout, where it is known.
    pub layout: Option<Layout>,
    /// Bytes from the start of the CUDA argument structure.
    pub cuda_offset: u32,
}

impl ArgManifest {
    /// The layout of inline bytes; `None` for a buffer.
    pub fn inline_bytes(&self) -> Option<&Layout> {
        self.layout.as_ref().filter(|_| self.access == Access::Bytes)
    }

    /// A member of an inline structure.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.layout.as_ref()?.fields.iter().find(|f| f.name == name)
    }
}

/// Threadgroup memory whose size the host sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadgroupArg {
    /// The parameter's name.
    pub name: String,
    /// `[[threadgroup(index)]]`.
    pub index: u32,
    /// The element's type.
    pub element: String,
    /// Bytes from the start of the CUDA argument structure to its offset (u32) in shared memory.
    pub cuda_offset: u32,
}

/// A function constant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConstantManifest {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: String,
    /// The number the host sets it by.
    pub index: u32,
}

/// What the host is about to bind as one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding<'a> {
    /// The parameter it is meant for.
    pub name: &'a str,
    /// How the host treats it: a buffer it may share with other readers must be [`Access::Read`].
    pub access: Access,
    /// The element type in the host's view.
    pub element: &'a str,
    /// Bytes, where fixed: compared with the layout of inline bytes.
    pub bytes: Option<usize>,
}

/// A host that does not fit a kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages print
pub enum BindError {
    #[error("{source_file} has no kernel {kernel:?}; check its host_name instantiations")]
    NoKernel { source_file: String, kernel: String },
    #[error("kernel {kernel}: {given} arguments bound, {expected} expected ({list})")]
    Count { kernel: String, given: usize, expected: usize, list: String },
    #[error(
        "kernel {kernel}, argument {position}: `{given}` is bound where `{expected}` stands; bind in order of index"
    )]
    Order { kernel: String, position: usize, given: String, expected: String },
    #[error("kernel {kernel}, argument {name}: bound as {given:?}, but the kernel declares {expected:?}")]
    Access { kernel: String, name: String, given: Access, expected: Access },
    #[error(
        "kernel {kernel}, argument {name}: bound as {given} elements, but the kernel declares {expected}"
    )]
    Element { kernel: String, name: String, given: String, expected: String },
    #[error("kernel {kernel}, argument {name}: {given} bytes, but {element} has {expected}")]
    Bytes { kernel: String, name: String, given: usize, element: String, expected: u32 },
    #[error("kernel {kernel}: a threadgroup of {given} threads; the kernel is written for {expected}")]
    Threads { kernel: String, given: u64, expected: u32 },
    #[error("kernel {kernel}: {given} sizes of threadgroup memory given, {expected} expected")]
    ThreadgroupCount { kernel: String, given: usize, expected: usize },
    #[error("kernel {kernel}: {bytes} bytes of threadgroup memory; the limit is {limit}")]
    ThreadgroupBytes { kernel: String, bytes: u64, limit: u32 },
    #[error("kernel {kernel}: function constant {name} (index {index}) is not set")]
    Constant { kernel: String, name: String, index: u32 },
}

impl KernelManifest {
    /// Compares what the host binds, in order of index, with what the kernel takes.
    pub fn check(&self, bindings: &[Binding<'_>]) -> Result<(), BindError> {
        let kernel = || self.name.clone();
        if bindings.len() != self.args.len() {
            let list: Vec<&str> = self.args.iter().map(|a| a.name.as_str()).collect();
            return Err(BindError::Count {
                kernel: kernel(),
                given: bindings.len(),
                expected: self.args.len(),
                list: list.join(", "),
            });
        }
        for (position, (b, a)) in bindings.iter().zip(&self.args).enumerate() {
            let name = || a.name.clone();
            if b.name != a.name {
                return Err(BindError::Order {
                    kernel: kernel(),
                    position,
                    given: b.name.to_string(),
                    expected: name(),
                });
            }
            if b.access != a.access {
                return Err(BindError::Access {
                    kernel: kernel(),
                    name: name(),
                    given: b.access,
                    expected: a.access,
                });
            }
            if b.element != a.element {
                return Err(BindError::Element {
                    kernel: kernel(),
                    name: name(),
                    given: b.element.to_string(),
                    expected: a.element.clone(),
                });
            }
            if let (Some(given), Some(l)) = (b.bytes, a.inline_bytes())
                && given != l.size as usize
            {
                return Err(BindError::Bytes {
                    kernel: kernel(),
                    name: name(),
                    given,
                    element: a.element.clone(),
                    expected: l.size,
                });
            }
        }
        Ok(())
    }

    /// Compares a dispatch's group size, the sizes of its threadgroup arguments (in order of index, bytes) and the
    /// function constants that are set with what the kernel needs.
    pub fn check_dispatch(
        &self,
        group: [u32; 3],
        threadgroup: &[u32],
        constants: &[u32],
    ) -> Result<(), BindError> {
        let kernel = || self.name.clone();
        let threads = group.iter().map(|&n| n as u64).product::<u64>();
        if let Some(expected) = self.threads_per_threadgroup
            && threads != expected as u64
        {
            return Err(BindError::Threads { kernel: kernel(), given: threads, expected });
        }
        if threadgroup.len() != self.threadgroup_args.len() {
            return Err(BindError::ThreadgroupCount {
                kernel: kernel(),
                given: threadgroup.len(),
                expected: self.threadgroup_args.len(),
            });
        }
        let padded = |&n: &u32| (n as u64).next_multiple_of(16);
        let bytes = self.threadgroup_bytes as u64 + threadgroup.iter().map(padded).sum::<u64>();
        if bytes > MAX_THREADGROUP_BYTES as u64 {
            return Err(BindError::ThreadgroupBytes {
                kernel: kernel(),
                bytes,
                limit: MAX_THREADGROUP_BYTES,
            });
        }
        match self.function_constants.iter().find(|c| !constants.contains(&c.index)) {
            Some(c) => Err(BindError::Constant { kernel: kernel(), name: c.name.clone(), index: c.index }),
            None => Ok(()),
        }
    }
}

impl Unit {
    /// The manifest of every kernel.
    pub fn manifest(&self) -> Result<Manifest, Diagnostics> {
        let mut kernels = Vec::new();
        let mut findings = Vec::new();
        for k in &self.kernels {
            match self.kernel_manifest(k) {
                Ok(m) => kernels.push(m),
                Err(e) => findings.extend(e),
            }
        }
        if findings.is_empty() {
            Ok(Manifest { source: self.name.clone(), kernels })
        } else {
            Err(self.diagnostics(findings))
        }
    }

    pub(crate) fn kernel_manifest(&self, k: &Kernel) -> Result<KernelManifest, Vec<Finding>> {
        let f = &self.functions[k.function];
        let env = self.kernel_env(k);
        let mut findings = Vec::new();
        let mut args: Vec<(ArgManifest, &Param)> = Vec::new();
        let mut threadgroup_args = Vec::new();
        for p in &f.params {
            match p.kind {
                Some(ArgKind::Buffer(index)) => {
                    let access = match (p.ty.space.as_deref(), p.ty.reference, p.ty.is_const) {
                        (Some("constant"), true, _) => Access::Bytes,
                        (_, _, true) => Access::Read,
                        _ => Access::ReadWrite,
                    };
                    let element = self.type_name(&p.ty, &env);
                    let layout = self.layout(p.ty.range.clone(), &env);
                    if access == Access::Bytes && layout.is_none() {
                        findings.push(Finding::new(
                            p.loc,
                            Rule::Signature,
                            format!("the size of {element}, type of `{}`, is not known; use scalars, vectors and plain structures", p.name),
                        ));
                    }
                    args.push((
                        ArgManifest { name: p.name.clone(), index, access, element, layout, cuda_offset: 0 },
                        p,
                    ));
                }
                Some(ArgKind::Threadgroup(index)) => threadgroup_args.push(ThreadgroupArg {
                    name: p.name.clone(),
                    index,
                    element: self.type_name(&p.ty, &env),
                    cuda_offset: 0,
                }),
                _ => {}
            }
        }
        args.sort_by_key(|a| a.0.index);
        threadgroup_args.sort_by_key(|t| t.index);
        let mut args: Vec<ArgManifest> = args.into_iter().map(|a| a.0).collect();
        // The C++ layout of the argument structure, which ends with an unsigned.
        let (mut offset, mut align) = (0u32, 8u32);
        for a in &mut args {
            let (size, al) = a.inline_bytes().map_or((8, 8), |l| (l.size, l.align));
            offset = offset.next_multiple_of(al);
            a.cuda_offset = offset;
            offset += size;
            align = align.max(al);
        }
        for t in &mut threadgroup_args {
            offset = offset.next_multiple_of(4);
            t.cuda_offset = offset;
            offset += 4;
        }
        let has_wide = args.iter().any(|a| a.inline_bytes().is_none_or(|l| l.align >= 8));
        if !has_wide {
            align = args.iter().filter_map(|a| a.inline_bytes()).map(|l| l.align).fold(4, u32::max);
        }
        let cuda_args_bytes = (offset.next_multiple_of(4) + 4).next_multiple_of(align);
        let threads_per_threadgroup = match f.max_threads.clone().map(|r| env.eval(r)) {
            None => None,
            Some(Ok(n @ 1..=1024)) => Some(n as u32),
            Some(Ok(n)) => {
                findings.push(Finding::new(
                    f.loc,
                    Rule::Signature,
                    format!("kernel {}: {n} threads; 1 to 1024 are possible", k.name),
                ));
                None
            }
            Some(Err(e)) => {
                findings.push(Finding::new(
                    f.loc,
                    Rule::Signature,
                    format!("kernel {}: max_total_threads_per_threadgroup: {e}", k.name),
                ));
                None
            }
        };
        let threadgroup_bytes = self.tg_size(f, &env).unwrap_or_else(|e| {
            findings.push(e);
            0
        });
        let used = self.used_names(k.function);
        let function_constants = self
            .function_constants
            .iter()
            .filter(|c| used.contains(c.name.as_str()))
            .map(|c| ConstantManifest { name: c.name.clone(), ty: c.ty.clone(), index: c.index })
            .collect();
        if !findings.is_empty() {
            return Err(findings);
        }
        let arguments = if k.template_args.is_empty() {
            String::new()
        } else {
            format!("<{}>", k.template_args.join(", "))
        };
        Ok(KernelManifest {
            symbol: format!("lily_{}", k.name.replace(|c: char| !c.is_ascii_alphanumeric(), "_")),
            name: k.name.clone(),
            function: format!("{}{arguments}", f.name),
            defined_at: format!("{}:{}", self.files[f.loc.file as usize], f.loc.line),
            args,
            threadgroup_args,
            threadgroup_bytes,
            threads_per_threadgroup,
            function_constants,
            cuda_args_bytes,
        })
    }

    /// A type's name with template arguments and aliases resolved; `vec<half, 4>` is `half4`.
    fn type_name(&self, ty: &TypeRef, env: &ConstEnv<'_>) -> String {
        self.resolve_name(ty.range.clone(), env, 0).unwrap_or_else(|| ty.base.clone())
    }

    fn resolve_name(&self, range: Range<usize>, env: &ConstEnv<'_>, depth: u32) -> Option<String> {
        let toks: Vec<usize> = range
            .clone()
            .filter(|&i| !["metal", "::", "const", "typename"].iter().any(|w| self.tokens[i].is(w)))
            .collect();
        let first = *toks.first()?;
        let name = &*self.tokens[first].text;
        if depth > 16 {
            return None;
        }
        if toks.len() == 1 {
            if let Some(r) = env.type_argument(name) {
                return self.resolve_name(r, &ConstEnv::new(self), depth + 1);
            }
            let alias = self.aliases.iter().find(|a| a.name == name).and_then(|a| a.target.clone());
            return match alias {
                Some(r) => self.resolve_name(r, env, depth + 1),
                None => Some(name.to_string()),
            };
        }
        if matches!(name, "vec" | "packed_vec") && self.tokens[toks[1]].is("<") {
            let inner = toks[1] + 1..*toks.last()?;
            let parts = crate::parse::scan::split_commas(&self.tokens, &self.brackets, inner);
            let [element, count] = parts.as_slice() else { return None };
            let element = self.resolve_name(element.clone(), env, depth + 1)?;
            let n = env.eval(count.clone()).ok()?;
            let packed = if name == "vec" { "" } else { "packed_" };
            return Some(format!("{packed}{element}{n}"));
        }
        None
    }
}
