//! The driver's functions as far as they are needed, with errors instead of codes. The library is looked up at run time.

use std::{
    ffi::{CStr, CString, c_void},
    ptr,
};

use cudarc::driver::sys as cu;

use super::NAME;
use crate::error::{GpuError, Result};

/// A GPU's limits that routes depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Compute capability: 90 for 9.0.
    pub arch: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory a block can have.
    pub shared: u32,
    /// Clusters of eight blocks, each with a multiprocessor to itself, that run at once. Fewer than an eighth of the
    /// multiprocessors: those of a cluster are neighbours. 0 where there are none, or before kernels are loaded.
    pub clusters: u32,
}

/// A device with its context, and two streams: one for steps, one for copies to and from the host.
pub struct Driver {
    context: cu::CUcontext,
    device: cu::CUdevice,
    /// Steps.
    pub main: Stream,
    /// Host copies.
    pub io: Stream,
}

// SAFETY: the driver's handles belong to the process; every method makes the context current on its thread first.
unsafe impl Send for Driver {}

/// A stream.
#[derive(Debug, Clone, Copy)]
pub struct Stream(cu::CUstream);
// SAFETY: as for `Driver`.
unsafe impl Send for Stream {}

/// A kernel of a loaded module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function(cu::CUfunction);
// SAFETY: as for `Driver`.
unsafe impl Send for Function {}

/// An instantiated graph.
#[derive(Debug)]
pub struct Graph(cu::CUgraphExec);
// SAFETY: as for `Driver`.
unsafe impl Send for Graph {}

/// A point in a stream.
#[derive(Debug)]
pub struct Event(cu::CUevent);
// SAFETY: as for `Driver`.
unsafe impl Send for Event {}

/// Page-locked host memory.
#[derive(Debug)]
pub struct Pinned {
    start: *mut u8,
    len: usize,
}
// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

/// What a launch needs besides its arguments.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Whether it may start before the kernel in front of it is complete.
    pub early: bool,
}

/// The driver's message.
fn text(code: cu::CUresult) -> String {
    let mut message: *const std::ffi::c_char = ptr::null();
    // SAFETY: the driver writes a pointer to a static string, or leaves null.
    unsafe { cu::cuGetErrorString(code, &mut message) };
    if message.is_null() {
        return format!("{code:?}");
    }
    // SAFETY: see above.
    let message = unsafe { CStr::from_ptr(message) };
    format!("{} ({code:?})", message.to_string_lossy())
}

fn check(what: &str, code: cu::CUresult) -> Result<()> {
    match code {
        cu::CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(GpuError::Device { device: NAME, problem: format!("{what}: {}", text(code)) }),
    }
}

fn none(reason: impl Into<String>) -> GpuError {
    GpuError::NoDevice { device: NAME, reason: reason.into() }
}

impl Driver {
    /// The first GPU.
    pub fn open() -> Result<Self> {
        // SAFETY: looks for the library only.
        if !unsafe { cu::is_culib_present() } {
            return Err(none(
                "the NVIDIA driver (libcuda) is not installed; install it, or use --device cpu",
            ));
        }
        // SAFETY: no arguments but a flag that must be 0.
        let code = unsafe { cu::cuInit(0) };
        if code != cu::CUresult::CUDA_SUCCESS {
            return Err(none(format!("the NVIDIA driver does not start: {}; see nvidia-smi", text(code))));
        }
        let (mut count, mut device, mut context) = (0, 0, ptr::null_mut());
        // SAFETY: each call writes one value to a local.
        unsafe {
            check("counting GPUs", cu::cuDeviceGetCount(&mut count))?;
            if count == 0 {
                return Err(none("no NVIDIA GPU is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES"));
            }
            check("opening the GPU", cu::cuDeviceGet(&mut device, 0))?;
            check("opening the GPU", cu::cuDevicePrimaryCtxRetain(&mut context, device))?;
            check("opening the GPU", cu::cuCtxSetCurrent(context))?;
        }
        let stream = || -> Result<Stream> {
            let mut s = ptr::null_mut();
            // SAFETY: writes one handle to a local; 1 is CU_STREAM_NON_BLOCKING.
            check("making a stream", unsafe { cu::cuStreamCreate(&mut s, 1) })?;
            Ok(Stream(s))
        };
        Ok(Self { context, device, main: stream()?, io: stream()? })
    }

    /// Makes the context current on this thread.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained as long as the process lives.
        check("entering the context", unsafe { cu::cuCtxSetCurrent(self.context) })
    }

    fn attribute(&self, attribute: cu::CUdevice_attribute) -> Result<u32> {
        let mut value = 0;
        // SAFETY: writes one value to a local.
        check("asking the GPU", unsafe { cu::cuDeviceGetAttribute(&mut value, attribute, self.device) })?;
        Ok(value as u32)
    }

    /// What routes depend on.
    pub fn limits(&self) -> Result<Limits> {
        use cu::CUdevice_attribute as A;
        Ok(Limits {
            arch: self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? * 10
                + self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            multiprocessors: self.attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared: self.attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            clusters: 0,
        })
    }

    /// The GPU's name.
    pub fn name(&self) -> Result<String> {
        let mut name = [0 as std::ffi::c_char; 256];
        // SAFETY: writes at most 256 bytes, with a final zero.
        check("asking the GPU", unsafe { cu::cuDeviceGetName(name.as_mut_ptr(), 256, self.device) })?;
        // SAFETY: see above.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// (free, all) bytes of the GPU's memory.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.enter()?;
        let (mut free, mut all) = (0, 0);
        // SAFETY: writes two values to locals.
        check("asking for memory", unsafe { cu::cuMemGetInfo_v2(&mut free, &mut all) })?;
        Ok((free as u64, all as u64))
    }

    /// New memory; its address.
    pub fn allocate(&self, what: &str, bytes: u64) -> Result<u64> {
        self.enter()?;
        let mut address = 0;
        // SAFETY: writes one address to a local.
        let code = unsafe { cu::cuMemAlloc_v2(&mut address, bytes.max(1) as usize) };
        if code == cu::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (free, all) = self.memory()?;
            return Err(GpuError::OutOfMemory {
                asked: bytes,
                what: what.to_string(),
                available: format!("{free} of {all} bytes of the GPU's memory are free"),
            });
        }
        check("allocating", code)?;
        Ok(address)
    }

    /// Frees memory from [`Driver::allocate`].
    pub fn free(&self, address: u64) {
        if self.enter().is_ok() {
            // SAFETY: the address came from `allocate`, and the caller forgets it. The driver waits for what uses it.
            unsafe { cu::cuMemFree_v2(address) };
        }
    }

    /// Copies to the device and waits.
    ///
    /// # Safety
    /// `to` must have room, and nothing that runs may use it.
    pub unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.enter()?;
        // SAFETY: the source is a slice; the destination is the caller's promise; `sync` ends the borrow.
        check("copying to the GPU", unsafe {
            cu::cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), self.io.0)
        })?;
        self.sync(self.io)
    }

    /// Copies from the device and waits for the copy alone.
    ///
    /// # Safety
    /// `from` must have as many bytes, and nothing that runs may write them.
    pub unsafe fn read(&self, from: u64, out: &mut [u8]) -> Result<()> {
        self.enter()?;
        // SAFETY: the destination is a slice; the source is the caller's promise; `sync` ends the borrow.
        check("copying from the GPU", unsafe {
            cu::cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), from, out.len(), self.io.0)
        })?;
        self.sync(self.io)
    }

    /// Copies from the device to the start of page-locked memory and waits for the copy alone.
    ///
    /// # Safety
    /// `from` must have as many bytes, and nothing that runs may write them.
    pub unsafe fn read_pinned(&self, from: u64, to: &Pinned, len: usize) -> Result<()> {
        self.enter()?;
        debug_assert!(len <= to.len);
        // SAFETY: the destination is owned and as long; the source is the caller's promise; `sync` ends the copy.
        check("copying from the GPU", unsafe {
            cu::cuMemcpyDtoHAsync_v2(to.start.cast(), from, len, self.io.0)
        })?;
        self.sync(self.io)
    }

    /// Copies page-locked bytes to the device, in the order of the main stream.
    ///
    /// # Safety
    /// `to` must have room; `from` must not be written until the copy is done.
    pub unsafe fn write_later(&self, to: u64, from: &Pinned, len: usize) -> Result<()> {
        self.enter()?;
        debug_assert!(len <= from.len);
        // SAFETY: the caller's promise.
        check("copying to the GPU", unsafe {
            cu::cuMemcpyHtoDAsync_v2(to, from.start.cast::<c_void>().cast_const(), len, self.main.0)
        })
    }

    /// Copies on the device, and waits.
    ///
    /// # Safety
    /// Both must have so many bytes, not overlapping.
    pub unsafe fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<()> {
        self.enter()?;
        // SAFETY: the caller's promise.
        check("copying on the GPU", unsafe {
            cu::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.main.0)
        })?;
        self.sync(self.main)
    }

    /// Fills with one byte, and waits.
    ///
    /// # Safety
    /// There must be so many bytes.
    pub unsafe fn fill(&self, at: u64, byte: u8, bytes: u64) -> Result<()> {
        self.enter()?;
        // SAFETY: the caller's promise.
        check("filling", unsafe { cu::cuMemsetD8Async(at, byte, bytes as usize, self.main.0) })?;
        self.sync(self.main)
    }

    /// Waits for everything in a stream.
    pub fn sync(&self, stream: Stream) -> Result<()> {
        self.enter()?;
        // SAFETY: a stream of ours.
        check("a kernel failed", unsafe { cu::cuStreamSynchronize(stream.0) })
    }

    /// Page-locked memory.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned> {
        self.enter()?;
        let mut start = ptr::null_mut();
        // SAFETY: writes one pointer to a local.
        check("allocating host memory", unsafe { cu::cuMemHostAlloc(&mut start, bytes.max(1), 0) })?;
        Ok(Pinned { start: start.cast(), len: bytes.max(1) })
    }

    /// Loads machine code.
    pub fn load(&self, code: &[u8]) -> Result<Module> {
        self.enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: the image is whole: it comes from the compiler, or from a file that was written whole.
        check("loading kernels", unsafe { cu::cuModuleLoadData(&mut module, code.as_ptr().cast()) })?;
        Ok(Module(module))
    }

    /// A kernel by symbol, allowed to use all shared memory.
    pub fn function(&self, module: &Module, symbol: &str, limits: &Limits) -> Result<Function> {
        use cu::CUfunction_attribute as A;
        self.enter()?;
        let name = CString::new(symbol).unwrap_or_default();
        let mut f = ptr::null_mut();
        // SAFETY: writes one handle to a local.
        check(symbol, unsafe { cu::cuModuleGetFunction(&mut f, module.0, name.as_ptr()) })?;
        let f = Function(f);
        let fixed = self.function_attribute(f, A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let dynamic = limits.shared.saturating_sub(fixed) as i32;
        // All kernels ask for the same division between cache and shared memory: a multiprocessor can only change it
        // when it is empty, and then no kernel could start before the one in front of it has ended.
        for (attribute, value) in [
            (A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic),
            (A::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100),
        ] {
            // SAFETY: a function of ours.
            check(symbol, unsafe { cu::cuFuncSetAttribute(f.0, attribute, value) })?;
        }
        Ok(f)
    }

    fn function_attribute(&self, f: Function, a: cu::CUfunction_attribute) -> Result<u32> {
        let mut value = 0;
        // SAFETY: writes one value to a local.
        check("asking a kernel", unsafe { cu::cuFuncGetAttribute(&mut value, a, f.0) })?;
        Ok(value as u32)
    }

    /// (registers a thread, bytes of local memory a thread, static shared memory) of a kernel.
    pub fn resources(&self, f: Function) -> Result<[u32; 3]> {
        use cu::CUfunction_attribute as A;
        Ok([
            self.function_attribute(f, A::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            self.function_attribute(f, A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            self.function_attribute(f, A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        ])
    }

    /// How many clusters of `cluster` blocks of a kernel run at once.
    pub fn clusters(&self, f: Function, cluster: u32, threads: u32, shared: u32) -> Result<u32> {
        let mut value = cu::CUlaunchAttributeValue { pad: [0; 64] };
        value.clusterDim = cu::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 };
        let mut attribute = cu::CUlaunchAttribute {
            id: cu::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value,
        };
        let config = cu::CUlaunchConfig {
            gridDimX: cluster,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: self.main.0,
            attrs: &mut attribute,
            numAttrs: 1,
        };
        let mut count = 0;
        // SAFETY: a function of ours; the structures live until the call returns, which writes one value to a local.
        check("asking a kernel", unsafe { cu::cuOccupancyMaxActiveClusters(&mut count, f.0, &config) })?;
        Ok(count.max(0) as u32)
    }

    /// Launches on the main stream; while a graph is recorded this adds to it.
    ///
    /// # Safety
    /// The parameters must be what the kernel takes, and name memory that it may use.
    pub unsafe fn launch(&self, f: Function, shape: &Shape, parameters: &[&[u8]]) -> Result<()> {
        let mut pointers: Vec<*mut c_void> =
            parameters.iter().map(|p| p.as_ptr().cast_mut().cast()).collect();
        let mut value = cu::CUlaunchAttributeValue { pad: [0; 64] };
        value.programmaticStreamSerializationAllowed = 1;
        let mut attribute = cu::CUlaunchAttribute {
            id: cu::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value,
        };
        let config = cu::CUlaunchConfig {
            gridDimX: shape.grid[0],
            gridDimY: shape.grid[1],
            gridDimZ: shape.grid[2],
            blockDimX: shape.block[0],
            blockDimY: shape.block[1],
            blockDimZ: shape.block[2],
            sharedMemBytes: shape.shared,
            hStream: self.main.0,
            attrs: &mut attribute,
            numAttrs: u32::from(shape.early),
        };
        // SAFETY: the structures live until the call returns; the rest is the caller's promise.
        check("launching", unsafe {
            cu::cuLaunchKernelEx(&config, f.0, pointers.as_mut_ptr(), ptr::null_mut())
        })
    }

    /// Records what `body` launches as a graph.
    pub fn record(&self, body: impl FnOnce() -> Result<()>) -> Result<Graph> {
        self.enter()?;
        let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a stream of ours.
        check("recording", unsafe { cu::cuStreamBeginCapture_v2(self.main.0, mode) })?;
        let launched = body();
        let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: writes one handle to a local. Ends the recording also when `body` failed.
        let ended = unsafe { cu::cuStreamEndCapture(self.main.0, &mut graph) };
        launched?;
        check("recording", ended)?;
        // SAFETY: the graph was just made; it is not needed once it is instantiated.
        let made = unsafe { cu::cuGraphInstantiateWithFlags(&mut exec, graph, 0) };
        // SAFETY: see above.
        unsafe { cu::cuGraphDestroy(graph) };
        check("making a graph", made)?;
        Ok(Graph(exec))
    }

    /// Starts a graph on the main stream.
    pub fn start(&self, graph: &Graph) -> Result<()> {
        self.enter()?;
        // SAFETY: the graph is alive; what its kernels use was promised to `launch`.
        check("starting a graph", unsafe { cu::cuGraphLaunch(graph.0, self.main.0) })
    }

    /// Frees a graph that does not run.
    pub fn destroy(&self, graph: Graph) {
        if self.enter().is_ok() {
            // SAFETY: the caller gives it up.
            unsafe { cu::cuGraphExecDestroy(graph.0) };
        }
    }

    /// A new event.
    pub fn event(&self) -> Result<Event> {
        self.enter()?;
        let mut e = ptr::null_mut();
        // SAFETY: writes one handle to a local.
        check("making an event", unsafe { cu::cuEventCreate(&mut e, 0) })?;
        Ok(Event(e))
    }

    /// Puts the event behind everything in the main stream.
    pub fn mark(&self, e: &Event) -> Result<()> {
        self.enter()?;
        // SAFETY: both are ours.
        check("recording an event", unsafe { cu::cuEventRecord(e.0, self.main.0) })
    }

    /// Returns when the event has happened.
    pub fn wait(&self, e: &Event) -> Result<()> {
        self.enter()?;
        // SAFETY: ours.
        check("a kernel failed", unsafe { cu::cuEventSynchronize(e.0) })
    }

    /// Milliseconds between two events that have happened.
    pub fn elapsed(&self, from: &Event, to: &Event) -> Result<f32> {
        let mut ms = 0.0;
        // SAFETY: writes one value to a local.
        check("timing", unsafe { cu::cuEventElapsedTime(&mut ms, from.0, to.0) })?;
        Ok(ms)
    }
}

/// Loaded machine code. It stays until the process ends, as the kernels do.
#[derive(Debug)]
pub struct Module(cu::CUmodule);
// SAFETY: as for `Driver`.
unsafe impl Send for Module {}

impl Pinned {
    /// Their number.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this length and owned.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}
