//! The software GPU as a device: it runs a plan's levels in order and the ops of a level in a shuffled order, and
//! holds every op to what it declared.
//!
//! A *checked* device watches which bytes every op reads and writes, and fails when
//! * they leave the ranges the op declared: levels are derived from those, so a dependency would be missing;
//! * two ops of a level touch the same byte and one of them writes it;
//! * scratch is read that nothing wrote in this submission.
//!
//! Scratch is NaN at the start of every submission, so that the last shows in an unchecked device too.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use lily_model::Storage;
use lily_msl::{
    manifest::Access,
    soft::{Compiler, Outcome, RawArg, RawDispatch, SoftError, SoftLibrary},
};

use super::{Device, DeviceBuffer, DeviceFacts, PlanHandle, Region, Ticket, regions_of};
use crate::{
    error::{GpuError, Result},
    kernels,
    plan::{ArgValue, BoundArg, BoundOp, BufferKind, Op, Plan, RangeSet, bind},
};

/// Name of the device.
pub const NAME: &str = "soft";

/// How the device runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoftOptions {
    /// Watch every access, at some 4 times the running time.
    pub checked: bool,
    /// Order of everything that has no order: 0 as written, any other number shuffled.
    pub seed: u32,
}

impl Default for SoftOptions {
    fn default() -> Self {
        Self { checked: false, seed: 1 }
    }
}

/// 256-byte aligned memory.
#[repr(C, align(256))]
#[derive(Clone, Copy)]
struct Line([u8; LINE]);
const LINE: usize = 256;

enum Memory {
    Own(Vec<Line>, u64),
    Imported(Arc<Storage>),
}

impl Memory {
    fn len(&self) -> u64 {
        match self {
            Memory::Own(_, len) => *len,
            Memory::Imported(s) => s.bytes().len() as u64,
        }
    }

    /// First byte. What is imported must never be written.
    fn pointer(&mut self) -> *mut u8 {
        match self {
            Memory::Own(lines, _) => lines.as_mut_ptr().cast(),
            Memory::Imported(s) => s.bytes().as_ptr().cast_mut(),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            // SAFETY: the lines are initialised bytes without padding, and `len` is at most their number.
            Memory::Own(lines, len) => unsafe {
                std::slice::from_raw_parts(lines.as_ptr().cast(), *len as usize)
            },
            Memory::Imported(s) => s.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Memory::Own(lines, len) => {
                let start = lines.as_mut_ptr().cast();
                // SAFETY: as in `bytes`; the borrow is exclusive.
                Some(unsafe { std::slice::from_raw_parts_mut(start, *len as usize) })
            }
            Memory::Imported(_) => None,
        }
    }
}

struct Prepared {
    plan: Arc<Plan>,
    ops: Vec<BoundOp>,
    regions: Vec<Region>,
    /// The input buffer, made by `prepare`.
    input: Option<Region>,
}

/// The soft device.
pub struct SoftDevice {
    library: Arc<SoftLibrary>,
    options: SoftOptions,
    facts: DeviceFacts,
    memory: HashMap<u64, Memory>,
    plans: HashMap<u64, Prepared>,
    next: u64,
    submitted: u64,
    traffic: Arc<Mutex<Vec<OpTraffic>>>,
}

/// Distinct bytes an op touched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpTraffic {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

impl std::fmt::Debug for SoftDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftDevice").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The kernels compiled by the system's C++ compiler; once for each kind a process.
pub fn library(checked: bool) -> Result<Arc<SoftLibrary>> {
    library_with(checked, false)
}

/// The same, with or without the kernels that need tensor operations.
pub fn library_with(checked: bool, tensor_ops: bool) -> Result<Arc<SoftLibrary>> {
    static LIBRARIES: [OnceLock<std::result::Result<Arc<SoftLibrary>, String>>; 4] =
        [const { OnceLock::new() }; 4];
    let made = LIBRARIES[usize::from(checked) + 2 * usize::from(tensor_ops)].get_or_init(|| {
        let build = || -> std::result::Result<SoftLibrary, SoftError> {
            let compiler = Compiler::find()?;
            let unit = kernels::unit_with(tensor_ops).map_err(|e| SoftError::Usage(e.to_string()))?;
            SoftLibrary::build(&unit, &compiler, checked)
        };
        build().map(Arc::new).map_err(|e| e.to_string())
    });
    made.clone().map_err(|reason| GpuError::NoDevice { device: NAME, reason })
}

impl SoftDevice {
    /// Compiles the kernels, unless this process has, and makes a device.
    pub fn new(options: SoftOptions) -> Result<Self> {
        Ok(Self::with_library(library(options.checked)?, options))
    }

    /// The same with tensor operations, as a Mac with an M5 has them.
    pub fn with_tensor_ops(options: SoftOptions) -> Result<Self> {
        Ok(Self::with_library(library_with(options.checked, true)?, options))
    }

    /// A device with a library of kernels; `options.checked` must be what the library is. It has tensor operations where the
    /// library is one for Metal 4.
    pub fn with_library(library: Arc<SoftLibrary>, options: SoftOptions) -> Self {
        let tensor_ops = library.metal_version >= 400;
        Self {
            library,
            options,
            facts: DeviceFacts {
                kind: NAME,
                name: "kernels compiled for the CPU".into(),
                memory: None,
                largest_buffer: u64::MAX,
                unified: true,
                tensor_ops,
                split_products: false,
            },
            memory: HashMap::new(),
            plans: HashMap::new(),
            next: 0,
            submitted: 0,
            traffic: Arc::default(),
        }
    }

    /// What each op of the last submission touched, in the plan's order; filled by a checked device.
    pub fn traffic(&self) -> Arc<Mutex<Vec<OpTraffic>>> {
        self.traffic.clone()
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn region(&self, buffer: DeviceBuffer, offset: u64, len: u64) -> Result<Range<usize>> {
        let have = self.memory.get(&buffer.0).map(Memory::len);
        match have {
            Some(have) if offset.checked_add(len).is_some_and(|end| end <= have) => {
                Ok(offset as usize..(offset + len) as usize)
            }
            _ => Err(failed(format!(
                "bytes {offset} to {offset} + {len} of buffer {}, which has {have:?}",
                buffer.0
            ))),
        }
    }

    fn writable(&mut self, buffer: DeviceBuffer, offset: u64, len: u64) -> Result<&mut [u8]> {
        let range = self.region(buffer, offset, len)?;
        let bytes = self.memory.get_mut(&buffer.0).and_then(Memory::bytes_mut);
        bytes.map(|b| &mut b[range]).ok_or_else(|| failed("an imported buffer cannot be written".into()))
    }

    /// Runs one op.
    fn run(&mut self, prepared: &Prepared, index: usize, seed: u32) -> Result<Outcome> {
        let op = &prepared.plan.ops[index];
        let mut args: Vec<RawArg<'_>> = Vec::with_capacity(op.args.len());
        for (arg, bound) in op.args.iter().zip(&prepared.ops[index].args) {
            args.push(match bound {
                BoundArg::Buffer { view, writes, .. } => {
                    let region = prepared.regions[view.buffer.0];
                    let range = self.region(region.buffer, region.offset + view.offset, view.len)?;
                    let memory = self.memory.get_mut(&region.buffer.0);
                    let memory = memory.ok_or_else(|| failed("a buffer was released".into()))?;
                    if *writes && matches!(memory, Memory::Imported(_)) {
                        return Err(failed(format!("{} would write an imported buffer", op.label)));
                    }
                    RawArg {
                        name: arg.name,
                        access: if *writes { Access::ReadWrite } else { Access::Read },
                        ptr: memory.pointer().wrapping_add(range.start),
                        len: range.len(),
                    }
                }
                BoundArg::Bytes { bytes, .. } => RawArg {
                    name: arg.name,
                    access: Access::Bytes,
                    ptr: bytes.as_ptr().cast_mut(),
                    len: bytes.len(),
                },
            });
        }
        let dispatch = RawDispatch {
            kernel: &op.kernel,
            grid: op.grid,
            group: op.group,
            args,
            threadgroup: &op.threadgroup,
            constants: &[],
            seed,
            strict: true,
        };
        // SAFETY: every pointer is valid for its length: `region` checked the range, and `self.memory` keeps the
        // buffers while this exclusive borrow lasts. What the kernel may write is memory of our own. In a checked
        // library a kernel is stopped before it leaves its arguments; an unchecked one runs only kernels that the
        // checked one has run in tests.
        unsafe { self.library.dispatch_raw(&dispatch) }
            .map_err(|e| GpuError::Fault { op: op.label.clone(), source: Box::new(e) })
    }
}

fn failed(problem: String) -> GpuError {
    GpuError::Device { device: NAME, problem }
}

/// What the ops of a submission have touched.
#[derive(Default)]
struct Watch {
    /// Bytes of scratch written so far, by plan buffer.
    written: HashMap<usize, RangeSet>,
    /// Of the level that runs: for each plan buffer, who read and who wrote what.
    level: BTreeMap<usize, Vec<(usize, RangeSet, RangeSet)>>,
}

fn hazard(op: &Op, argument: &str, problem: String) -> GpuError {
    GpuError::Hazard {
        op: op.label.clone(),
        kernel: op.kernel.clone(),
        argument: argument.to_string(),
        problem,
    }
}

impl Watch {
    /// Compares what an op touched with what it declared, and with the ops beside it.
    fn check(&mut self, plan: &Plan, index: usize, outcome: &Outcome) -> Result<OpTraffic> {
        let op = &plan.ops[index];
        let mut touched_by_op: BTreeMap<usize, (RangeSet, RangeSet)> = BTreeMap::new();
        for (arg, touched) in op.args.iter().zip(&outcome.touched) {
            let ArgValue::Buffer { view, .. } = arg.value else { continue };
            let id = view.buffer.0;
            let spec = plan.spec(view.buffer);
            let shifted = |list: &[Range<u64>]| -> RangeSet {
                list.iter().map(|r| r.start + view.offset..r.end + view.offset).collect()
            };
            let (read, wrote) = (shifted(&touched.read), shifted(&touched.written));
            for (set, declared, what) in [(&read, &op.reads, "read"), (&wrote, &op.writes, "written")] {
                let allowed: RangeSet =
                    declared.iter().filter(|a| a.buffer == view.buffer).map(|a| a.start..a.end).collect();
                if let Some(r) = set.iter().find_map(|r| allowed.first_missing(r)) {
                    let (start, end, name) = (r.start, r.end, &spec.name);
                    return Err(hazard(
                        op,
                        arg.name,
                        format!("bytes {start} to {end} of {name} are {what}, but not declared as {what}"),
                    ));
                }
            }
            if spec.kind == BufferKind::Scratch {
                // What the op wrote itself it may read.
                let mut known = self.written.get(&id).cloned().unwrap_or_default();
                wrote.iter().for_each(|r| known.insert(r.clone()));
                if let Some(r) = read.iter().find_map(|r| known.first_missing(r)) {
                    let (start, end, name) = (r.start, r.end, &spec.name);
                    return Err(hazard(
                        op,
                        arg.name,
                        format!("bytes {start} to {end} of {name} are read before anything wrote them"),
                    ));
                }
            }
            let all = touched_by_op.entry(id).or_default();
            read.iter().for_each(|r| all.0.insert(r.clone()));
            wrote.iter().for_each(|r| all.1.insert(r.clone()));
            let others = self.level.entry(id).or_default();
            for (other, other_read, other_wrote) in others.iter().filter(|o| o.0 != index) {
                let common = wrote
                    .iter()
                    .find_map(|r| other_wrote.first_common(r).or_else(|| other_read.first_common(r)))
                    .or_else(|| read.iter().find_map(|r| other_wrote.first_common(r)));
                if let Some(r) = common {
                    let other = &plan.ops[*other].label;
                    return Err(hazard(
                        op,
                        arg.name,
                        format!(
                            "bytes {} to {} of {} are touched by op {other} of the same level too, and one of the \
                             two writes them",
                            r.start, r.end, spec.name
                        ),
                    ));
                }
            }
            others.push((index, read, wrote));
        }
        Ok(OpTraffic {
            read: touched_by_op.values().map(|t| t.0.bytes()).sum(),
            written: touched_by_op.values().map(|t| t.1.bytes()).sum(),
        })
    }

    /// The level is done: what it wrote is there for the next.
    fn end_level(&mut self) {
        for (id, list) in std::mem::take(&mut self.level) {
            let written = self.written.entry(id).or_default();
            list.iter().flat_map(|(_, _, wrote)| wrote.iter()).for_each(|r| written.insert(r.clone()));
        }
    }
}

/// A small generator for shuffling (splitmix64).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Device for SoftDevice {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer> {
        let lines = bytes.div_ceil(LINE as u64) as usize;
        let mut memory = Vec::new();
        memory.try_reserve_exact(lines).map_err(|e| GpuError::OutOfMemory {
            asked: bytes,
            what: what.to_string(),
            available: e.to_string(),
        })?;
        // NaN: nothing may rely on what new memory holds.
        memory.resize(lines, Line([0xff; LINE]));
        let id = self.fresh();
        self.memory.insert(id, Memory::Own(memory, bytes));
        Ok(DeviceBuffer(id))
    }

    fn import(&mut self, _what: &str, storage: &Arc<Storage>) -> Result<Option<DeviceBuffer>> {
        let id = self.fresh();
        self.memory.insert(id, Memory::Imported(storage.clone()));
        Ok(Some(DeviceBuffer(id)))
    }

    fn release(&mut self, buffer: DeviceBuffer) {
        self.memory.remove(&buffer.0);
    }

    fn allocated(&self) -> u64 {
        self.memory.values().filter(|m| matches!(m, Memory::Own(..))).map(Memory::len).sum()
    }

    fn write(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<()> {
        self.writable(buffer, offset, bytes.len() as u64)?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, buffer: DeviceBuffer, offset: u64, out: &mut [u8]) -> Result<()> {
        let range = self.region(buffer, offset, out.len() as u64)?;
        if let Some(memory) = self.memory.get(&buffer.0) {
            out.copy_from_slice(&memory.bytes()[range]);
        }
        Ok(())
    }

    fn copy(&mut self, from: Region, to: Region) -> Result<()> {
        let mut bytes = vec![0; from.len as usize];
        self.read(from.buffer, from.offset, &mut bytes)?;
        if from.len != to.len {
            return Err(failed(format!("a copy of {} bytes into {}", from.len, to.len)));
        }
        self.write(to.buffer, to.offset, &bytes)
    }

    fn zero(&mut self, region: Region) -> Result<()> {
        self.writable(region.buffer, region.offset, region.len)?.fill(0);
        Ok(())
    }

    fn prepare(&mut self, plan: Arc<Plan>, regions: &[Option<Region>]) -> Result<PlanHandle> {
        let ops = bind(&plan, &self.library.manifest)?;
        let (given, input) = regions_of(NAME, &plan, &ops, regions)?;
        let input = match input {
            Some(bytes) => {
                let buffer = self.allocate("inputs", bytes as u64)?;
                Some(Region { buffer, offset: 0, len: bytes as u64 })
            }
            None => None,
        };
        let regions: Vec<Region> = given.into_iter().filter_map(|r| r.or(input)).collect();
        let id = self.fresh();
        self.plans.insert(id, Prepared { plan, ops, regions, input });
        Ok(PlanHandle(id))
    }

    fn discard(&mut self, plan: PlanHandle) {
        if let Some(p) = self.plans.remove(&plan.0)
            && let Some(input) = p.input
        {
            self.release(input.buffer);
        }
    }

    fn submit(&mut self, plan: PlanHandle, inputs: &[u8]) -> Result<Ticket> {
        let prepared = self.plans.remove(&plan.0).ok_or_else(|| failed("an unknown plan".into()))?;
        let result = self.run_plan(&prepared, inputs);
        self.plans.insert(plan.0, prepared);
        result?;
        self.submitted += 1;
        Ok(Ticket(self.submitted))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        match ticket.0 <= self.submitted {
            true => Ok(()),
            false => Err(failed(format!("{ticket:?} was never given out"))),
        }
    }
}

impl SoftDevice {
    fn run_plan(&mut self, prepared: &Prepared, inputs: &[u8]) -> Result<()> {
        match prepared.input {
            Some(r) if r.len == inputs.len() as u64 => self.write(r.buffer, r.offset, inputs)?,
            None if inputs.is_empty() => {}
            _ => {
                let want = prepared.input.map_or(0, |r| r.len);
                return Err(failed(format!("{} bytes of inputs; the plan takes {want}", inputs.len())));
            }
        }
        for (spec, region) in prepared.plan.buffers.iter().zip(&prepared.regions) {
            if spec.kind == BufferKind::Scratch {
                self.writable(region.buffer, region.offset, spec.bytes)?.fill(0xff);
            }
        }
        let mut watch = Watch::default();
        let mut traffic = vec![OpTraffic::default(); prepared.plan.ops.len()];
        let mut random = mix(((self.options.seed as u64) << 32) ^ self.submitted);
        for level in &prepared.plan.levels {
            let mut order = level.clone();
            if self.options.seed != 0 {
                // Fisher-Yates.
                for i in (1..order.len()).rev() {
                    random = mix(random);
                    order.swap(i, (random % (i as u64 + 1)) as usize);
                }
            }
            for index in order {
                random = mix(random);
                let seed = if self.options.seed == 0 { 0 } else { (random as u32).max(1) };
                let outcome = self.run(prepared, index, seed)?;
                if self.options.checked {
                    traffic[index] = watch.check(&prepared.plan, index, &outcome)?;
                }
            }
            watch.end_level();
        }
        *self.traffic.lock().unwrap_or_else(PoisonError::into_inner) = traffic;
        Ok(())
    }
}
