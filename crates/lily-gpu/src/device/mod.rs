//! What a device must be able to do. A plan is prepared once and submitted every step.

#[cfg(not(target_os = "macos"))]
pub mod cuda;
pub mod metal;
pub mod soft;

use std::sync::Arc;

use lily_model::Storage;

use crate::{
    error::{GpuError, Result},
    plan::{
        BoundArg, BoundOp, BufferKind, Plan,
        routes::{self, Splits},
    },
};

/// Memory on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceBuffer(pub u64);

/// Part of a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    /// The buffer.
    pub buffer: DeviceBuffer,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A prepared plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlanHandle(pub u64);

/// What kernels compute with where their arguments are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// f32, or more than 15 bits of it.
    #[default]
    F32,
    /// Halves in some products.
    F16,
}

/// A submission. Later ones have larger numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// What is known about a device before anything runs on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Kind: `soft`, `metal`, `cuda`.
    pub kind: &'static str,
    /// Its own name, such as `Apple M3 Max`.
    pub name: String,
    /// Bytes that may be allocated and mapped together before it gets slow or fails; `None`: only the machine's memory
    /// limits it.
    pub memory: Option<u64>,
    /// Most bytes of one buffer.
    pub largest_buffer: u64,
    /// Whether host and device share one memory, so that weights are used where the file is mapped.
    pub unified: bool,
    /// Whether there are matrix units that take tensors in memory.
    pub tensor_ops: bool,
    /// Whether the device's own kernels multiply a chunk's f32 rows on 16-bit matrix units without rounding them.
    pub split_products: bool,
}

/// Runs plans.
///
/// Submissions run in order, each after everything before it. Buffers may be read, written or released by the host only
/// when no submission that uses them is running; [`Device::wait`] says when that is.
pub trait Device: Send {
    /// Facts.
    fn facts(&self) -> &DeviceFacts;

    /// Bytes that the machine can still hand out, where it is known.
    fn free_memory(&self) -> Option<u64> {
        None
    }

    /// How decode attention over up to `context` positions is split among threadgroups.
    fn attention_splits(&self, context: usize) -> Splits {
        routes::attention_splits(context)
    }

    /// New memory with any content, aligned to 256 bytes. `what` is for messages and tools.
    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer>;

    /// Makes a whole storage readable where it is, without a copy. `None` where the device cannot, for example because
    /// the storage is not at the start of a page.
    fn import(&mut self, what: &str, storage: &Arc<Storage>) -> Result<Option<DeviceBuffer>>;

    /// Frees memory. Unknown buffers are ignored.
    fn release(&mut self, buffer: DeviceBuffer);

    /// Bytes allocated, without imported ones.
    fn allocated(&self) -> u64;

    /// Copies to the device.
    fn write(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Copies from the device.
    fn read(&mut self, buffer: DeviceBuffer, offset: u64, out: &mut [u8]) -> Result<()>;

    /// Copies between buffers, or between parts of one that do not overlap; the lengths are equal.
    fn copy(&mut self, from: Region, to: Region) -> Result<()>;

    /// Fills with zeros.
    fn zero(&mut self, region: Region) -> Result<()>;

    /// Bytes of scratch memory that the device's kernels want for a plan besides its buffers: whoever prepares the plan gives
    /// them ([`Plan::with_workspace`]), or slower kernels run that do without.
    fn workspace(&self, _plan: &Plan) -> u64 {
        0
    }

    /// Binds a plan to memory: `regions[i]` is the plan's buffer `i`, at least as long. The plan's input buffer, if it
    /// has one, is the device's own: `None` stands in its place.
    fn prepare(&mut self, plan: Arc<Plan>, regions: &[Option<Region>]) -> Result<PlanHandle>;

    /// What the least exact of a plan's kernels computes with: the kernels that run here, which need not be those that the
    /// plan names.
    fn precision(&self, _plan: PlanHandle) -> Precision {
        Precision::F32
    }

    /// Forgets a plan. Unknown handles are ignored.
    fn discard(&mut self, plan: PlanHandle);

    /// Starts a plan with the content of its input buffer. Up to [`DEPTH`] submissions may be running; one more waits.
    fn submit(&mut self, plan: PlanHandle, inputs: &[u8]) -> Result<Ticket>;

    /// Returns when the submission and all before it are done.
    fn wait(&mut self, ticket: Ticket) -> Result<()>;
}

/// Submissions that may be under way: the next step is committed before the current one is read.
pub const DEPTH: usize = 2;

/// A plan's memory as given to [`Device::prepare`], checked: there is enough of it, aligned as the kernels need, and none
/// for the input buffer, whose size comes back beside it.
pub(crate) fn regions_of(
    device: &'static str,
    plan: &Plan,
    ops: &[BoundOp],
    given: &[Option<Region>],
) -> Result<(Vec<Option<Region>>, Option<usize>)> {
    let failed = |problem: String| GpuError::Device { device, problem: format!("{}: {problem}", plan.name) };
    let mut all = Vec::with_capacity(plan.buffers.len());
    let mut input = None;
    for (i, spec) in plan.buffers.iter().enumerate() {
        let region = given.get(i).copied().flatten();
        match region {
            None if spec.kind == BufferKind::Input && input.is_none() => input = Some(spec.bytes as usize),
            None => return Err(failed(format!("no memory for buffer {}", spec.name))),
            Some(r) if r.len < spec.bytes => {
                return Err(failed(format!("buffer {} has {} bytes, not {}", spec.name, r.len, spec.bytes)));
            }
            Some(_) => {}
        }
        all.push(region);
    }
    for op in ops {
        for arg in &op.args {
            let BoundArg::Buffer { view, align, .. } = arg else { continue };
            let offset = all[view.buffer.0].map_or(0, |r| r.offset) + view.offset;
            if !offset.is_multiple_of(*align as u64) {
                let name = &plan.spec(view.buffer).name;
                let label = &plan.ops[op.op].label;
                return Err(failed(format!(
                    "op {label}: {name} lies at {offset}, not at a multiple of {align}"
                )));
            }
        }
    }
    Ok((all, input))
}
