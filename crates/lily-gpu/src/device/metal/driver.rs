//! The calls of Metal that the host needs, as a trait: on a Mac they are Metal's own, in tests the software GPU answers.

use std::ptr::NonNull;

use crate::error::Result;

/// What a device says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverFacts {
    /// Its name, such as `Apple M3 Max`.
    pub name: String,
    /// Bytes that may be resident together (`recommendedMaxWorkingSetSize`).
    pub working_set: u64,
    /// Most bytes of one buffer (`maxBufferLength`).
    pub largest_buffer: u64,
    /// Bytes of a page: memory that is wrapped starts and ends at one.
    pub page: u64,
    /// Whether it shares the CPU's memory.
    pub unified: bool,
    /// Whether it runs tensor operations (Metal 4 on a GPU that has matrix units of its own).
    pub tensor_ops: bool,
}

/// What the device's compiler made of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineFacts {
    /// Most threads of a threadgroup: fewer when a kernel needs many registers.
    pub most_threads: u32,
    /// Threads of a simdgroup.
    pub simd_width: u32,
    /// Bytes of threadgroup memory that it declares itself.
    pub threadgroup_bytes: u32,
}

/// Takes a step's commands. Bindings stay until they are replaced, also from one dispatch to the next.
pub trait Encoder {
    /// See [`Driver::Buffer`].
    type Buffer;
    /// See [`Driver::Pipeline`].
    type Pipeline;

    /// The kernel of the dispatches that follow.
    fn pipeline(&mut self, pipeline: &Self::Pipeline);
    /// Binds a buffer from a byte offset on.
    fn buffer(&mut self, index: u32, buffer: &Self::Buffer, offset: u64);
    /// Moves the offset of the buffer bound at an index.
    fn offset(&mut self, index: u32, offset: u64);
    /// Binds a copy of a few bytes, at most 4,096.
    fn bytes(&mut self, index: u32, bytes: &[u8]);
    /// Size of a threadgroup argument: a multiple of 16 bytes.
    fn threadgroup(&mut self, index: u32, bytes: u32);
    /// Runs threadgroups of threads. Dispatches without a barrier between them run in any order or together.
    fn dispatch(&mut self, grid: [u32; 3], group: [u32; 3]);
    /// Everything after it sees what everything before it wrote to buffers.
    fn barrier(&mut self);
}

/// A GPU. Steps run one after the other, in the order in which they are started.
pub trait Driver: Send {
    /// Memory that host and device see.
    type Buffer: Send;
    /// A compiled kernel.
    type Pipeline: Clone + Send;
    /// Takes the commands of one step.
    type Encoder: Encoder<Buffer = Self::Buffer, Pipeline = Self::Pipeline>;
    /// A step under way.
    type Running: Send;

    /// Facts.
    fn facts(&self) -> &DriverFacts;

    /// A compiled kernel by host name.
    fn pipeline(&mut self, kernel: &str) -> Result<(Self::Pipeline, PipelineFacts)>;

    /// Called when every kernel has been asked for: what was compiled may be kept for the next start.
    fn pipelines_made(&mut self) {}

    /// New memory, all zeros, at a multiple of 256 bytes. Steps that use it wait for each other where they must.
    fn allocate(&mut self, what: &str, bytes: u64) -> Result<Self::Buffer>;

    /// Makes memory of the process visible to the device, which only reads it. `None` where the device refuses.
    ///
    /// # Safety
    /// `start` and `bytes` are multiples of the page; the pages are mapped, and nobody writes them, until the buffer is
    /// dropped and no step uses it any more.
    unsafe fn wrap(&mut self, what: &str, start: NonNull<u8>, bytes: u64) -> Option<Self::Buffer>;

    /// Where the host finds a buffer's bytes.
    fn contents(&self, buffer: &Self::Buffer) -> NonNull<u8>;

    /// Adds a buffer to a residency set, or takes it out. Sets are numbered from 0 and made when first named.
    fn resident(&mut self, set: usize, buffer: &Self::Buffer, resident: bool) -> Result<()>;

    /// Encodes a step and starts it. Its buffers must live until it has been waited for.
    fn start(&mut self, label: &str, encode: &mut dyn FnMut(&mut Self::Encoder)) -> Result<Self::Running>;

    /// Returns when a step is done; an error when it failed on the device.
    fn wait(&mut self, running: Self::Running) -> Result<()>;
}

/// Version of the shading language that the kernels are compiled as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Metal 3.2 (macOS 15).
    V3_2,
    /// Metal 4 (macOS 26): tensor operations.
    V4_0,
}

impl Language {
    /// Its number.
    pub fn name(self) -> &'static str {
        match self {
            Language::V3_2 => "3.2",
            Language::V4_0 => "4.0",
        }
    }
}

/// Metal 4 only where the device has tensor operations and a kernel asks for them.
pub fn language(tensor_ops: bool, source: &str) -> Language {
    match tensor_ops && source.contains("tensor_ops") {
        true => Language::V4_0,
        false => Language::V3_2,
    }
}

/// Whether a device runs tensor operations on matrix units of its own: those of the Apple10 family (M5), from macOS 26 on.
/// Earlier GPUs with Metal 4 would emulate them on their ordinary lanes.
pub fn tensor_ops(system: (i64, i64), metal4: bool, apple10: bool) -> bool {
    system.0 >= 26 && metal4 && apple10
}

/// Why a machine cannot be used: the system's version (major, minor), and whether the GPU is of the Apple7 family or
/// later (M1). `None` when it can.
pub fn refusal(system: (i64, i64), apple7: bool) -> Option<String> {
    if system.0 < 15 {
        let (major, minor) = system;
        return Some(format!("macOS {major}.{minor} is too old; version 15 is needed, or use --device cpu"));
    }
    (!apple7).then(|| "an Apple silicon GPU (M1 or later) is needed; use --device cpu".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metal_4_needs_device_and_kernel() {
        assert_eq!(language(true, "mpp::tensor_ops::matmul2d"), Language::V4_0);
        assert_eq!(language(false, "mpp::tensor_ops::matmul2d"), Language::V3_2);
        assert_eq!(language(true, "simdgroup_matrix"), Language::V3_2);
    }

    #[test]
    fn tensor_ops_at_their_edges() {
        assert!(tensor_ops((26, 0), true, true));
        assert!(
            !tensor_ops((15, 6), true, true)
                && !tensor_ops((26, 0), false, true)
                && !tensor_ops((26, 0), true, false)
        );
    }

    #[test]
    fn machines_that_are_too_old_are_refused() {
        assert_eq!(refusal((15, 0), true), None);
        assert_eq!(refusal((26, 1), true), None);
        assert!(refusal((14, 7), true).is_some_and(|r| r.contains("14.7")));
        assert!(refusal((15, 0), false).is_some_and(|r| r.contains("M1")));
    }
}
