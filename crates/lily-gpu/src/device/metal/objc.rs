//! Metal itself, through objc2-metal. What is decided is decided elsewhere; here are the calls.

use std::{
    ffi::c_void,
    path::{Path, PathBuf},
    ptr::NonNull,
};

use objc2::{
    rc::{Retained, autoreleasepool},
    runtime::ProtocolObject,
};
use objc2_foundation::{NSArray, NSError, NSProcessInfo, NSString, NSURL};
use objc2_metal::{
    MTLAllocation, MTLBarrierScope, MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLBinding, MTLBindingType,
    MTLBuffer, MTLBufferBinding, MTLCommandBuffer, MTLCommandBufferDescriptor, MTLCommandBufferErrorOption,
    MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue, MTLCompileOptions, MTLComputeCommandEncoder,
    MTLComputePipelineDescriptor, MTLComputePipelineReflection, MTLComputePipelineState,
    MTLCreateSystemDefaultDevice, MTLDevice, MTLDispatchType, MTLGPUFamily, MTLLanguageVersion, MTLLibrary,
    MTLMathFloatingPointFunctions, MTLMathMode, MTLPipelineOption, MTLResidencySet,
    MTLResidencySetDescriptor, MTLResource, MTLResourceOptions, MTLSize,
};

use super::{
    Driver, DriverFacts, Encoder, MetalOptions, NAME, PipelineFacts, archive,
    driver::{Language, language, refusal, tensor_ops},
    reflect::{Reflected, difference},
};
use crate::{
    error::{GpuError, Result},
    kernels,
};

// MTLCreateSystemDefaultDevice returns nothing in a program that is not linked with it.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

/// A Metal object.
#[repr(transparent)]
pub struct Object<T: ?Sized>(Retained<ProtocolObject<T>>);

// SAFETY: devices, queues, libraries, pipelines, buffers, archives and residency sets may be used from every thread, and
// command buffers from one thread at a time, which is what an owner that is only moved sees to.
unsafe impl<T: ?Sized> Send for Object<T> {}

impl<T: ?Sized> Clone for Object<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The driver.
pub struct ObjcDriver {
    facts: DriverFacts,
    /// Sets of this queue, by number.
    sets: Vec<Object<dyn MTLResidencySet>>,
    kept: Kept,
    library: Object<dyn MTLLibrary>,
    queue: Object<dyn MTLCommandQueue>,
    device: Object<dyn MTLDevice>,
}

/// Compiled kernels on disk.
struct Kept {
    /// The archive's file; `None`: nothing is kept.
    file: Option<PathBuf>,
    /// Its content, as found at the start.
    found: Option<Object<dyn MTLBinaryArchive>>,
    /// What it should hold.
    wanted: Vec<Descriptor>,
    /// Whether something was missing.
    missed: bool,
}

struct Descriptor(Retained<MTLComputePipelineDescriptor>);

// SAFETY: a descriptor is a plain object that its one owner moves between threads.
unsafe impl Send for Descriptor {}

type State = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

fn failed(problem: impl Into<String>) -> GpuError {
    GpuError::Device { device: NAME, problem: problem.into() }
}

fn text(error: &NSError) -> String {
    format!("{} ({} {})", error.localizedDescription(), error.domain(), error.code())
}

/// The kernels as one library.
fn compile(
    device: &ProtocolObject<dyn MTLDevice>,
    source: &str,
    language: Language,
) -> std::result::Result<Retained<ProtocolObject<dyn MTLLibrary>>, Retained<NSError>> {
    let options = MTLCompileOptions::new();
    options.setMathMode(MTLMathMode::Safe);
    // Otherwise sin, cos, exp and log are the fast ones whatever the mode: sin and cos are off by up to 2^-13 then.
    options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
    options.setLanguageVersion(match language {
        Language::V3_2 => MTLLanguageVersion::Version3_2,
        Language::V4_0 => MTLLanguageVersion::Version4_0,
    });
    device.newLibraryWithSource_options_error(&NSString::from_str(source), Some(&options))
}

impl ObjcDriver {
    /// Whether there is a device that [`ObjcDriver::open`] takes.
    pub fn available() -> bool {
        autoreleasepool(|_| {
            MTLCreateSystemDefaultDevice()
                .is_some_and(|d| refusal(system_version(), d.supportsFamily(MTLGPUFamily::Apple7)).is_none())
        })
    }

    /// The system's default device.
    pub fn open(options: &MetalOptions) -> Result<Self> {
        autoreleasepool(|_| Self::open_in_pool(options))
    }

    fn open_in_pool(options: &MetalOptions) -> Result<Self> {
        let none = |reason: String| GpuError::NoDevice { device: NAME, reason };
        let device = MTLCreateSystemDefaultDevice()
            .ok_or_else(|| none("this Mac offers no Metal device; use --device cpu".into()))?;
        let name = device.name().to_string();
        let version = system_version();
        if let Some(reason) = refusal(version, device.supportsFamily(MTLGPUFamily::Apple7)) {
            return Err(none(format!("{name}: {reason}")));
        }
        let mut facts = DriverFacts {
            name,
            working_set: device.recommendedMaxWorkingSetSize(),
            largest_buffer: device.maxBufferLength() as u64,
            page: page_size(),
            unified: device.hasUnifiedMemory(),
            tensor_ops: tensor_ops(
                version,
                device.supportsFamily(MTLGPUFamily::Metal4),
                device.supportsFamily(MTLGPUFamily::Apple10),
            ),
        };
        let source = kernels::flat()?;
        let mut language = language(facts.tensor_ops, &source);
        let mut library = compile(&device, &source, language);
        if let (Err(error), Language::V4_0) = (&library, language) {
            tracing::warn!("kernels for tensor operations: {}; those without are used", text(error));
            facts.tensor_ops = false;
            language = Language::V3_2;
            library = compile(&device, &source, language);
        }
        let library = library.map_err(|e| GpuError::Kernels(text(&e)))?;
        let queue = device.newCommandQueue().ok_or_else(|| failed("no command queue could be made"))?;

        let system = NSProcessInfo::processInfo().operatingSystemVersionString().to_string();
        let file = options
            .archive_dir
            .as_ref()
            .map(|dir| dir.join(archive::file_name(&source, &options_of(language), &facts.name, &system)));
        let found = file.as_deref().filter(|f| f.is_file()).and_then(|f| open_archive(&device, f));
        let kept = Kept { file, found, wanted: Vec::new(), missed: false };
        Ok(Self {
            facts,
            sets: Vec::new(),
            kept,
            library: Object(library),
            queue: Object(queue),
            device: Object(device),
        })
    }

    /// The pipeline of a descriptor, from the archive or compiled.
    fn make(
        &mut self,
        descriptor: &MTLComputePipelineDescriptor,
    ) -> std::result::Result<(State, Option<Retained<MTLComputePipelineReflection>>), Retained<NSError>> {
        let info = MTLPipelineOption::BindingInfo | MTLPipelineOption::BufferTypeInfo;
        let mut reflection = None;
        if let Some(archive) = &self.kept.found {
            descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*archive.0])));
            let from_archive = self.device.0.newComputePipelineStateWithDescriptor_options_reflection_error(
                descriptor,
                info | MTLPipelineOption::FailOnBinaryArchiveMiss,
                Some(&mut reflection),
            );
            descriptor.setBinaryArchives(None);
            if let Ok(state) = from_archive {
                return Ok((state, reflection));
            }
        }
        self.kept.missed = true;
        let state = self.device.0.newComputePipelineStateWithDescriptor_options_reflection_error(
            descriptor,
            info,
            Some(&mut reflection),
        )?;
        Ok((state, reflection))
    }

    /// Writes what was compiled for the next start.
    fn write_archive(&self, file: &Path) -> std::result::Result<(), String> {
        let archive = self
            .device
            .0
            .newBinaryArchiveWithDescriptor_error(&MTLBinaryArchiveDescriptor::new())
            .map_err(|e| text(&e))?;
        for descriptor in &self.kept.wanted {
            archive.addComputePipelineFunctionsWithDescriptor_error(&descriptor.0).map_err(|e| text(&e))?;
        }
        let (Some(dir), Some(name)) = (file.parent(), file.file_name().and_then(|n| n.to_str())) else {
            return Err("not a file's path".into());
        };
        std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
        // A reader must never find half a file.
        let draft = dir.join(format!("{name}.{}", std::process::id()));
        let path = draft.to_str().ok_or("the path is not UTF-8")?;
        archive
            .serializeToURL_error(&NSURL::fileURLWithPath(&NSString::from_str(path)))
            .map_err(|e| text(&e))?;
        std::fs::rename(&draft, file).map_err(|e| e.to_string())?;
        for entry in std::fs::read_dir(dir).map_err(|e| e.to_string())?.flatten() {
            if entry.file_name().to_str().is_some_and(|n| archive::is_stale(n, name)) {
                // Another version may still use it; then it stays until the next time.
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// How the kernels are compiled, for the archive's name.
fn options_of(language: Language) -> String {
    format!("{}, safe, precise functions", language.name())
}

fn open_archive(device: &ProtocolObject<dyn MTLDevice>, file: &Path) -> Option<Object<dyn MTLBinaryArchive>> {
    let descriptor = MTLBinaryArchiveDescriptor::new();
    descriptor.setUrl(Some(&NSURL::fileURLWithPath(&NSString::from_str(file.to_str()?))));
    match device.newBinaryArchiveWithDescriptor_error(&descriptor) {
        Ok(archive) => Some(Object(archive)),
        Err(error) => {
            tracing::warn!("{}: {}; the kernels are compiled anew", file.display(), text(&error));
            None
        }
    }
}

/// (major, minor) of macOS.
fn system_version() -> (i64, i64) {
    let v = NSProcessInfo::processInfo().operatingSystemVersion();
    (v.majorVersion as i64, v.minorVersion as i64)
}

fn page_size() -> u64 {
    // SAFETY: a call without pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // 16 KiB on every Apple GPU; a wrong answer must not let unaligned memory through.
    u64::try_from(page).ok().filter(|p| p.is_power_of_two()).unwrap_or(16 << 10)
}

/// What the compiler says about a kernel's buffers.
fn reflected(reflection: &MTLComputePipelineReflection) -> Vec<Reflected> {
    let bindings = reflection.bindings();
    bindings
        .iter()
        .filter(|b| b.r#type() == MTLBindingType::Buffer && b.isUsed() && b.isArgument())
        .map(|b| {
            // SAFETY: a binding of type Buffer is an MTLBufferBinding (Metal's documentation of MTLBinding).
            let buffer: Retained<ProtocolObject<dyn MTLBufferBinding>> =
                unsafe { Retained::cast_unchecked(b) };
            Reflected {
                name: buffer.name().to_string(),
                index: buffer.index() as u32,
                bytes: buffer.bufferDataSize() as u32,
                align: buffer.bufferAlignment() as u32,
            }
        })
        .collect()
}

/// Takes a step's commands.
pub struct ObjcEncoder(Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>);

fn size(n: [u32; 3]) -> MTLSize {
    MTLSize { width: n[0] as usize, height: n[1] as usize, depth: n[2] as usize }
}

impl Encoder for ObjcEncoder {
    type Buffer = Object<dyn MTLBuffer>;
    type Pipeline = Object<dyn MTLComputePipelineState>;

    fn pipeline(&mut self, pipeline: &Self::Pipeline) {
        self.0.setComputePipelineState(&pipeline.0);
    }

    fn buffer(&mut self, index: u32, buffer: &Self::Buffer, offset: u64) {
        // SAFETY: index and offset come from a plan that was checked against the kernel and the buffer's size.
        unsafe { self.0.setBuffer_offset_atIndex(Some(&buffer.0), offset as usize, index as usize) };
    }

    fn offset(&mut self, index: u32, offset: u64) {
        // SAFETY: as in `buffer`; a buffer is bound at the index.
        unsafe { self.0.setBufferOffset_atIndex(offset as usize, index as usize) };
    }

    fn bytes(&mut self, index: u32, bytes: &[u8]) {
        // SAFETY: Metal copies the bytes during the call.
        unsafe {
            self.0.setBytes_length_atIndex(NonNull::from(bytes).cast::<c_void>(), bytes.len(), index as usize)
        };
    }

    fn threadgroup(&mut self, index: u32, bytes: u32) {
        // SAFETY: a multiple of 16, and together with the kernel's own at most 32 KiB: checked when the plan was prepared.
        unsafe { self.0.setThreadgroupMemoryLength_atIndex(bytes as usize, index as usize) };
    }

    fn dispatch(&mut self, grid: [u32; 3], group: [u32; 3]) {
        self.0.dispatchThreadgroups_threadsPerThreadgroup(size(grid), size(group));
    }

    fn barrier(&mut self) {
        self.0.memoryBarrierWithScope(MTLBarrierScope::Buffers);
    }
}

impl Driver for ObjcDriver {
    type Buffer = Object<dyn MTLBuffer>;
    type Pipeline = Object<dyn MTLComputePipelineState>;
    type Encoder = ObjcEncoder;
    type Running = Object<dyn MTLCommandBuffer>;

    fn facts(&self) -> &DriverFacts {
        &self.facts
    }

    fn pipeline(&mut self, kernel: &str) -> Result<(Self::Pipeline, PipelineFacts)> {
        autoreleasepool(|_| {
            let name = NSString::from_str(kernel);
            let function = self
                .library
                .0
                .newFunctionWithName(&name)
                .ok_or_else(|| GpuError::Kernels(format!("Metal's compiler made no kernel {kernel}")))?;
            let descriptor = MTLComputePipelineDescriptor::new();
            descriptor.setLabel(Some(&name));
            descriptor.setComputeFunction(Some(&function));
            let (state, reflection) =
                self.make(&descriptor).map_err(|e| GpuError::Kernels(format!("{kernel}: {}", text(&e))))?;
            if let Some(reflection) = reflection {
                let ours = kernels::manifest_with(self.facts.tensor_ops)?;
                let ours = ours.kernel(kernel).map_err(|e| GpuError::Kernels(e.to_string()))?;
                if let Some(d) = difference(ours, &reflected(&reflection)) {
                    return Err(GpuError::Kernels(format!("{kernel}: {d}")));
                }
            }
            self.kept.wanted.push(Descriptor(descriptor));
            let facts = PipelineFacts {
                most_threads: state.maxTotalThreadsPerThreadgroup() as u32,
                simd_width: state.threadExecutionWidth() as u32,
                threadgroup_bytes: state.staticThreadgroupMemoryLength() as u32,
            };
            Ok((Object(state), facts))
        })
    }

    fn pipelines_made(&mut self) {
        let wanted = std::mem::take(&mut self.kept.missed);
        if let Some(file) = self.kept.file.take().filter(|_| wanted)
            && let Err(problem) = autoreleasepool(|_| self.write_archive(&file))
        {
            tracing::warn!("{}: {problem}; the kernels will be compiled again next time", file.display());
        }
        self.kept.wanted.clear();
        self.kept.found = None;
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<Self::Buffer> {
        autoreleasepool(|_| {
            // Tracked: Metal makes a step wait for an earlier one that writes what it reads. Inside a step the barriers do.
            let options = MTLResourceOptions::StorageModeShared;
            let buffer =
                self.device.0.newBufferWithLength_options(bytes as usize, options).ok_or_else(|| {
                    GpuError::OutOfMemory {
                        asked: bytes,
                        what: what.to_string(),
                        available: format!("{} refused the buffer", self.facts.name),
                    }
                })?;
            buffer.setLabel(Some(&NSString::from_str(what)));
            Ok(Object(buffer))
        })
    }

    unsafe fn wrap(&mut self, what: &str, start: NonNull<u8>, bytes: u64) -> Option<Self::Buffer> {
        autoreleasepool(|_| {
            // Never written, so nothing has to be tracked.
            let options =
                MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
            // SAFETY: the caller promises whole mapped pages that stay; without a deallocator Metal does not free them.
            let buffer = unsafe {
                self.device.0.newBufferWithBytesNoCopy_length_options_deallocator(
                    start.cast::<c_void>(),
                    bytes as usize,
                    options,
                    None,
                )
            }?;
            buffer.setLabel(Some(&NSString::from_str(what)));
            Some(Object(buffer))
        })
    }

    fn contents(&self, buffer: &Self::Buffer) -> NonNull<u8> {
        buffer.0.contents().cast()
    }

    fn resident(&mut self, set: usize, buffer: &Self::Buffer, resident: bool) -> Result<()> {
        autoreleasepool(|_| {
            while self.sets.len() <= set {
                let made =
                    self.device.0.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new());
                let made = made.map_err(|e| failed(format!("no residency set: {}", text(&e))))?;
                self.queue.0.addResidencySet(&made);
                self.sets.push(Object(made));
            }
            let set = &self.sets[set].0;
            let allocation: &ProtocolObject<dyn MTLAllocation> = ProtocolObject::from_ref(&*buffer.0);
            if resident {
                set.addAllocation(allocation);
                set.commit();
                set.requestResidency();
            } else {
                set.removeAllocation(allocation);
                set.commit();
            }
            Ok(())
        })
    }

    fn start(&mut self, label: &str, encode: &mut dyn FnMut(&mut Self::Encoder)) -> Result<Self::Running> {
        autoreleasepool(|_| {
            let descriptor = MTLCommandBufferDescriptor::new();
            // What a step uses is kept by the device until it has been waited for.
            descriptor.setRetainedReferences(false);
            descriptor.setErrorOptions(MTLCommandBufferErrorOption::EncoderExecutionStatus);
            let commands = self
                .queue
                .0
                .commandBufferWithDescriptor(&descriptor)
                .ok_or_else(|| failed("no command buffer could be made"))?;
            commands.setLabel(Some(&NSString::from_str(label)));
            let encoder = commands
                .computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
                .ok_or_else(|| failed("no compute encoder could be made"))?;
            let mut encoder = ObjcEncoder(encoder);
            encode(&mut encoder);
            encoder.0.endEncoding();
            commands.commit();
            Ok(Object(commands))
        })
    }

    fn wait(&mut self, running: Self::Running) -> Result<()> {
        autoreleasepool(|_| {
            let commands = running.0;
            commands.waitUntilCompleted();
            let label = commands.label().map(|l| l.to_string()).unwrap_or_default();
            if commands.status() == MTLCommandBufferStatus::Completed {
                let seconds = commands.GPUEndTime() - commands.GPUStartTime();
                tracing::trace!("{label}: {:.3} ms on the GPU", seconds * 1e3);
                return Ok(());
            }
            let why = commands.error().map_or_else(|| format!("{:?}", commands.status()), |e| text(&e));
            Err(failed(format!("step `{label}`: {why}")))
        })
    }
}
