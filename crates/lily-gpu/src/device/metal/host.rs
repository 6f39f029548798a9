//! The device: memory, plans, and steps under way.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    ptr::NonNull,
    sync::Arc,
};

use lily_model::Storage;

use super::{
    Driver, NAME, PipelineFacts,
    encode::{self, Argument, Dispatch, Place, Step},
    memory::{Residency, window_of, windows, wrappable},
};
use crate::{
    device::{DEPTH, Device, DeviceBuffer, DeviceFacts, PlanHandle, Region, Ticket},
    error::{GpuError, Result},
    kernels,
    plan::{BoundArg, BufferKind, Plan, bind},
};

/// Threads of a simdgroup, as the kernels take for granted.
const SIMD_WIDTH: u32 = 32;
/// Threadgroup memory of every Apple GPU.
const MOST_THREADGROUP_BYTES: u32 = 32 << 10;

enum Memory<B> {
    /// Made by the driver.
    Own { buffer: B, bytes: u64, set: usize },
    /// Windows over memory of the process, with their sets; the buffers go before the storage.
    Imported { windows: Vec<Range<u64>>, buffers: Vec<(B, usize)>, storage: Arc<Storage> },
}

/// Where a plan's inputs lie: one part for each step that may be under way.
struct Input {
    buffer: DeviceBuffer,
    len: u64,
    stride: u64,
    next: usize,
}

struct Prepared<P> {
    step: Step<P>,
    /// Levels of each of its command buffers.
    parts: Vec<Range<usize>>,
    input: Option<Input>,
}

struct UnderWay<R> {
    ticket: u64,
    /// Its command buffers, in order.
    running: Vec<R>,
    memory: Vec<u64>,
}

/// Steps that failed, from one to another, and why.
struct Failure {
    from: u64,
    to: u64,
    problem: String,
}

/// A GPU behind a [`Driver`].
pub struct MetalDevice<D: Driver> {
    facts: DeviceFacts,
    page: u64,
    under_way: VecDeque<UnderWay<D::Running>>,
    failure: Option<Failure>,
    submitted: u64,
    plans: HashMap<u64, Prepared<D::Pipeline>>,
    pipelines: HashMap<String, (D::Pipeline, PipelineFacts)>,
    memory: HashMap<u64, Memory<D::Buffer>>,
    residency: Residency,
    next: u64,
    most_groups: u64,
    // Last: buffers and pipelines are dropped before what made them.
    driver: D,
}

impl<D: Driver> std::fmt::Debug for MetalDevice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetalDevice").field("facts", &self.facts).finish_non_exhaustive()
    }
}

fn failed(problem: String) -> GpuError {
    GpuError::Device { device: NAME, problem }
}

impl<D: Driver> MetalDevice<D> {
    /// Makes a device and every kernel, so that one that the device's compiler refuses shows at once.
    pub fn new(mut driver: D) -> Result<Self> {
        let d = driver.facts().clone();
        let mut pipelines = HashMap::new();
        for kernel in &kernels::manifest_with(d.tensor_ops)?.kernels {
            let (pipeline, facts) = driver.pipeline(&kernel.name)?;
            if facts.simd_width != SIMD_WIDTH {
                let width = facts.simd_width;
                return Err(failed(format!("{} has simdgroups of {width}; the kernels need 32", d.name)));
            }
            pipelines.insert(kernel.name.clone(), (pipeline, facts));
        }
        driver.pipelines_made();
        Ok(Self {
            facts: DeviceFacts {
                kind: NAME,
                name: d.name,
                memory: Some(d.working_set),
                largest_buffer: d.largest_buffer,
                unified: d.unified,
                tensor_ops: d.tensor_ops,
                split_products: false,
            },
            page: d.page,
            under_way: VecDeque::new(),
            failure: None,
            submitted: 0,
            plans: HashMap::new(),
            pipelines,
            memory: HashMap::new(),
            residency: Residency::default(),
            next: 0,
            most_groups: encode::MOST_GROUPS,
            driver,
        })
    }

    /// Another limit than [`encode::MOST_GROUPS`] for plans prepared from now on.
    pub fn set_most_groups(&mut self, most: u64) {
        self.most_groups = most;
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Bytes of a buffer that the host may touch: (first, number).
    fn bytes(&self, buffer: DeviceBuffer, offset: u64, len: u64, write: bool) -> Result<NonNull<u8>> {
        let inside = |have: u64| offset.checked_add(len).is_some_and(|end| end <= have);
        let at = match self.memory.get(&buffer.0) {
            Some(Memory::Own { buffer: b, bytes, .. }) if inside(*bytes) => self.driver.contents(b),
            Some(Memory::Imported { .. }) if write => {
                return Err(failed("an imported buffer cannot be written".into()));
            }
            Some(Memory::Imported { storage, .. }) if inside(storage.bytes().len() as u64) => {
                NonNull::from(storage.bytes()).cast()
            }
            found => {
                let have = found.map(|m| match m {
                    Memory::Own { bytes, .. } => *bytes,
                    Memory::Imported { storage, .. } => storage.bytes().len() as u64,
                });
                let at = buffer.0;
                return Err(failed(format!(
                    "bytes {offset} to {offset} + {len} of buffer {at}, which has {have:?}"
                )));
            }
        };
        // SAFETY: the offset is inside the buffer.
        Ok(unsafe { at.add(offset as usize) })
    }

    /// Waits for every step that uses a buffer, so that the host may change or drop it.
    fn idle(&mut self, buffer: DeviceBuffer) -> Result<()> {
        match self.under_way.iter().filter(|s| s.memory.contains(&buffer.0)).map(|s| s.ticket).max() {
            Some(ticket) => self.wait(Ticket(ticket)),
            None => Ok(()),
        }
    }

    /// Waits for the oldest step.
    fn finish_oldest(&mut self) {
        let Some(step) = self.under_way.pop_front() else { return };
        // All of them, also behind one that failed.
        let mut results: Vec<Result<()>> = step.running.into_iter().map(|r| self.driver.wait(r)).collect();
        if let Some(Err(error)) = results.iter().position(Result::is_err).map(|i| results.swap_remove(i)) {
            let problem = match error {
                GpuError::Device { problem, .. } => problem,
                other => other.to_string(),
            };
            tracing::error!("step {} failed: {problem}", step.ticket);
            // What was started after it computed on what it left.
            let from = self.failure.as_ref().filter(|f| f.to >= step.ticket).map_or(step.ticket, |f| f.from);
            self.failure = Some(Failure { from, to: self.submitted, problem });
        }
    }

    fn failed_at(&self, ticket: u64) -> Result<()> {
        match self.failure.as_ref().filter(|f| (f.from..=f.to).contains(&ticket)) {
            Some(f) => Err(failed(f.problem.clone())),
            None => Ok(()),
        }
    }

    /// Where bytes of a region lie.
    fn place(&self, region: Region, offset: u64, len: u64) -> Result<(Place, u64)> {
        let start = region.offset + offset;
        let range = start..start + len;
        let memory = region.buffer.0;
        match self.memory.get(&memory) {
            Some(Memory::Own { bytes, .. }) if range.end <= *bytes => {
                Ok((Place { memory, window: 0 }, start))
            }
            Some(Memory::Imported { windows, .. }) => match window_of(windows, &range) {
                Some(window) => Ok((Place { memory, window }, start - windows[window].start)),
                None => {
                    let most = self.facts.largest_buffer;
                    Err(failed(format!(
                        "a tensor of {len} bytes lies in no window of the mapped file (a buffer has at most {most} bytes)"
                    )))
                }
            },
            _ => Err(failed(format!("bytes {start} to {start} + {len} of buffer {memory} do not exist"))),
        }
    }

    /// Every op of a plan as a dispatch.
    fn step(&self, plan: &Plan, regions: &[Option<Region>]) -> Result<Step<D::Pipeline>> {
        let ops = bind(plan, kernels::manifest_with(self.facts.tensor_ops)?)?;
        let mut step = Step {
            name: plan.name.clone(),
            pipelines: Vec::new(),
            buffers: Vec::new(),
            levels: Vec::with_capacity(plan.levels.len()),
        };
        let mut numbers: HashMap<String, usize> = HashMap::new();
        let mut places: HashMap<Place, usize> = HashMap::new();
        let mut dispatches: Vec<Option<Dispatch>> = Vec::with_capacity(ops.len());
        for (op, bound) in plan.ops.iter().zip(&ops) {
            let wrong = |problem| GpuError::Plan { op: op.label.clone(), kernel: op.kernel.clone(), problem };
            if let Some(problem) = encode::problem(bound) {
                return Err(wrong(problem));
            }
            let (pipeline, facts) =
                self.pipelines.get(&op.kernel).ok_or_else(|| wrong("not compiled".into()))?;
            check_limits(facts, op.group, &bound.threadgroup).map_err(wrong)?;
            let number = *numbers.entry(op.kernel.clone()).or_insert_with(|| {
                step.pipelines.push(pipeline.clone());
                step.pipelines.len() - 1
            });
            let mut args = Vec::with_capacity(bound.args.len());
            for arg in &bound.args {
                args.push(match arg {
                    BoundArg::Bytes { index, bytes } => (*index, Argument::Bytes(bytes.clone())),
                    BoundArg::Buffer { index, view, writes, align } => match regions.get(view.buffer.0).copied().flatten() {
                        None => (*index, Argument::Input { offset: view.offset }),
                        Some(region) => {
                            let imported = matches!(self.memory.get(&region.buffer.0), Some(Memory::Imported { .. }));
                            if *writes && imported {
                                return Err(wrong(format!("argument {index} would write an imported buffer")));
                            }
                            let (place, offset) = self.place(region, view.offset, view.len)?;
                            if !offset.is_multiple_of((*align).max(1) as u64) {
                                return Err(wrong(format!(
                                    "argument {index} is at byte {offset} of its buffer; it needs a multiple of {align}"
                                )));
                            }
                            let buffer = *places.entry(place).or_insert_with(|| {
                                step.buffers.push(place);
                                step.buffers.len() - 1
                            });
                            (*index, Argument::Buffer { buffer, offset })
                        }
                    },
                });
            }
            dispatches.push(Some(Dispatch {
                pipeline: number,
                args,
                threadgroup: bound.threadgroup.clone(),
                grid: op.grid,
                group: op.group,
            }));
        }
        for level in &plan.levels {
            let mut list = Vec::with_capacity(level.len());
            for &op in level {
                let dispatch = dispatches.get_mut(op).and_then(Option::take);
                list.push(
                    dispatch
                        .ok_or_else(|| failed(format!("{}: op {op} is in no or two levels", plan.name)))?,
                );
            }
            step.levels.push(list);
        }
        match dispatches.iter().position(Option::is_some) {
            Some(op) => Err(failed(format!("{}: op {op} is in no level", plan.name))),
            None => Ok(step),
        }
    }

    fn make_resident(&mut self, buffer: &D::Buffer) -> Result<usize> {
        let set = self.residency.add();
        match self.driver.resident(set, buffer, true) {
            Ok(()) => Ok(set),
            Err(error) => {
                self.residency.remove(set);
                Err(error)
            }
        }
    }

    fn evict(&mut self, buffer: &D::Buffer, set: usize) {
        self.residency.remove(set);
        if let Err(error) = self.driver.resident(set, buffer, false) {
            tracing::warn!("a buffer stays in residency set {set}: {error}");
        }
    }
}

/// A dispatch against what the device's compiler allows.
fn check_limits(
    facts: &PipelineFacts,
    group: [u32; 3],
    threadgroup: &[(u32, u32)],
) -> std::result::Result<(), String> {
    let threads = group.iter().map(|&n| n as u64).product::<u64>();
    if threads > facts.most_threads as u64 {
        let most = facts.most_threads;
        return Err(format!("a threadgroup of {threads}; this device's compiler allows {most} (registers)"));
    }
    let asked: u32 = threadgroup.iter().map(|t| t.1.next_multiple_of(16)).sum();
    let bytes = asked.saturating_add(facts.threadgroup_bytes);
    if bytes > MOST_THREADGROUP_BYTES {
        return Err(format!("{bytes} bytes of threadgroup memory; this device has {MOST_THREADGROUP_BYTES}"));
    }
    Ok(())
}

impl<D: Driver> Device for MetalDevice<D> {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer> {
        if bytes > self.facts.largest_buffer {
            return Err(GpuError::OutOfMemory {
                asked: bytes,
                what: what.to_string(),
                available: format!(
                    "a buffer of {} has at most {}",
                    self.facts.name, self.facts.largest_buffer
                ),
            });
        }
        let buffer = self.driver.allocate(what, bytes.max(1))?;
        let set = self.make_resident(&buffer)?;
        let id = self.fresh();
        self.memory.insert(id, Memory::Own { buffer, bytes, set });
        Ok(DeviceBuffer(id))
    }

    fn import(&mut self, what: &str, storage: &Arc<Storage>) -> Result<Option<DeviceBuffer>> {
        let bytes = storage.bytes();
        let whole_pages = matches!(**storage, Storage::Mapped(_) | Storage::Anonymous(_));
        let start = bytes.as_ptr() as usize;
        let Some(len) = wrappable(start, bytes.len() as u64, self.page, whole_pages) else {
            tracing::info!("{what}: not at the start of a page, so it is copied");
            return Ok(None);
        };
        let windows = windows(len, self.facts.largest_buffer, self.page);
        let mut buffers = Vec::with_capacity(windows.len());
        for w in &windows {
            // SAFETY: the window is inside the mapping, whose address is not null.
            let at = unsafe { NonNull::new_unchecked(bytes.as_ptr().add(w.start as usize).cast_mut()) };
            // SAFETY: start and length are whole pages: `wrappable` and `windows` see to it. The storage is read-only
            // and is kept, and steps are waited for before the memory's entry is dropped.
            let Some(buffer) = (unsafe { self.driver.wrap(what, at, w.end - w.start) }) else {
                tracing::info!("{what}: {} does not map it, so it is copied", self.facts.name);
                buffers.into_iter().for_each(|(b, set)| self.evict(&b, set));
                return Ok(None);
            };
            let set = self.make_resident(&buffer)?;
            buffers.push((buffer, set));
        }
        if windows.is_empty() {
            return Ok(None);
        }
        let id = self.fresh();
        self.memory.insert(id, Memory::Imported { windows, buffers, storage: storage.clone() });
        Ok(Some(DeviceBuffer(id)))
    }

    fn release(&mut self, buffer: DeviceBuffer) {
        if let Err(error) = self.idle(buffer) {
            tracing::debug!("released after a failure: {error}");
        }
        match self.memory.remove(&buffer.0) {
            Some(Memory::Own { buffer, set, .. }) => self.evict(&buffer, set),
            Some(Memory::Imported { buffers, .. }) => {
                buffers.into_iter().for_each(|(b, set)| self.evict(&b, set))
            }
            None => {}
        }
    }

    fn allocated(&self) -> u64 {
        let own = |m: &Memory<D::Buffer>| if let Memory::Own { bytes, .. } = m { *bytes } else { 0 };
        self.memory.values().map(own).sum()
    }

    fn write(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<()> {
        let to = self.bytes(buffer, offset, bytes.len() as u64, true)?;
        self.idle(buffer)?;
        // SAFETY: `to` has room for the bytes, no step uses the buffer, and nothing of ours points into it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn read(&mut self, buffer: DeviceBuffer, offset: u64, out: &mut [u8]) -> Result<()> {
        let from = self.bytes(buffer, offset, out.len() as u64, false)?;
        // Not waited for: the next step may be writing other bytes of the buffer, such as the other row of the token
        // slots. What the caller reads is his to have waited for.
        // SAFETY: `from` has the bytes, which do not overlap `out`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn copy(&mut self, from: Region, to: Region) -> Result<()> {
        if from.len != to.len {
            return Err(failed(format!("a copy of {} bytes into {}", from.len, to.len)));
        }
        let a = self.bytes(from.buffer, from.offset, from.len, false)?;
        let b = self.bytes(to.buffer, to.offset, to.len, true)?;
        self.idle(from.buffer)?;
        self.idle(to.buffer)?;
        // SAFETY: both are inside their buffers, and no step uses them.
        unsafe { std::ptr::copy(a.as_ptr(), b.as_ptr(), from.len as usize) };
        Ok(())
    }

    fn zero(&mut self, region: Region) -> Result<()> {
        let to = self.bytes(region.buffer, region.offset, region.len, true)?;
        self.idle(region.buffer)?;
        // SAFETY: the region is inside its buffer, and no step uses it.
        unsafe { to.as_ptr().write_bytes(0, region.len as usize) };
        Ok(())
    }

    fn prepare(&mut self, plan: Arc<Plan>, regions: &[Option<Region>]) -> Result<PlanHandle> {
        let mut input: Option<u64> = None;
        for (i, spec) in plan.buffers.iter().enumerate() {
            match regions.get(i).copied().flatten() {
                Some(r) if r.len < spec.bytes => {
                    let (name, need) = (&spec.name, spec.bytes);
                    return Err(failed(format!(
                        "{}: buffer {name} has {} bytes, not {need}",
                        plan.name, r.len
                    )));
                }
                Some(_) => {}
                None if spec.kind == BufferKind::Input && input.is_none() => input = Some(spec.bytes),
                None => return Err(failed(format!("{}: no memory for buffer {}", plan.name, spec.name))),
            }
        }
        let step = self.step(&plan, regions)?;
        let input = match input {
            None => None,
            Some(len) => {
                let stride = len.next_multiple_of(256);
                let buffer = self.allocate("inputs", stride * DEPTH as u64)?;
                Some(Input { buffer, len, stride, next: 0 })
            }
        };
        let id = self.fresh();
        let parts = encode::parts(&step, self.most_groups);
        self.plans.insert(id, Prepared { step, parts, input });
        Ok(PlanHandle(id))
    }

    fn discard(&mut self, plan: PlanHandle) {
        if let Some(input) = self.plans.remove(&plan.0).and_then(|p| p.input) {
            self.release(input.buffer);
        }
    }

    fn submit(&mut self, plan: PlanHandle, inputs: &[u8]) -> Result<Ticket> {
        while self.under_way.len() >= DEPTH {
            self.finish_oldest();
        }
        let prepared = self.plans.get_mut(&plan.0).ok_or_else(|| failed("an unknown plan".into()))?;
        let want = prepared.input.as_ref().map_or(0, |i| i.len);
        if inputs.len() as u64 != want {
            return Err(failed(format!("{} bytes of inputs; the plan takes {want}", inputs.len())));
        }
        let mut memory: Vec<u64> = prepared.step.buffers.iter().map(|p| p.memory).collect();
        // At most DEPTH - 1 steps are under way, so the part that was used DEPTH steps ago is free.
        let part = prepared.input.as_mut().map(|i| {
            let part = (i.buffer, i.next as u64 * i.stride);
            i.next = (i.next + 1) % DEPTH;
            part
        });
        if let Some((buffer, offset)) = part {
            memory.push(buffer.0);
            let to = self.bytes(buffer, offset, want, true)?;
            // SAFETY: the part has room for the inputs, and no step under way reads it.
            unsafe { std::ptr::copy_nonoverlapping(inputs.as_ptr(), to.as_ptr(), inputs.len()) };
        }
        memory.sort_unstable();
        memory.dedup();

        let (all, Prepared { step, parts, .. }) = (&self.memory, &self.plans[&plan.0]);
        let buffer = |p: &Place| match all.get(&p.memory) {
            Some(Memory::Own { buffer, .. }) => Ok(buffer),
            Some(Memory::Imported { buffers, .. }) => Ok(&buffers[p.window].0),
            None => Err(failed(format!("{}: a buffer was released", step.name))),
        };
        let buffers: Vec<&D::Buffer> = step.buffers.iter().map(buffer).collect::<Result<_>>()?;
        let input = match part {
            Some((b, offset)) => Some((buffer(&Place { memory: b.0, window: 0 })?, offset)),
            None => None,
        };
        // Command buffers of one queue run in order, and Metal tracks what a later one reads of an earlier one's writes.
        let mut running = Vec::with_capacity(parts.len());
        for part in parts {
            let encode = &mut |e: &mut D::Encoder| encode::encode(e, step, part.clone(), &buffers, input);
            match self.driver.start(&step.name, encode) {
                Ok(r) => running.push(r),
                Err(error) => {
                    // What was started reads and writes memory that the caller may now change.
                    running.into_iter().for_each(|r| drop(self.driver.wait(r)));
                    return Err(error);
                }
            }
        }
        self.submitted += 1;
        self.under_way.push_back(UnderWay { ticket: self.submitted, running, memory });
        Ok(Ticket(self.submitted))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        if ticket.0 > self.submitted {
            return Err(failed(format!("{ticket:?} was never given out")));
        }
        while self.under_way.front().is_some_and(|s| s.ticket <= ticket.0) {
            self.finish_oldest();
        }
        self.failed_at(ticket.0)
    }
}

impl<D: Driver> Drop for MetalDevice<D> {
    fn drop(&mut self) {
        // Steps must not outlive what they read.
        while !self.under_way.is_empty() {
            self.finish_oldest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_at_their_edges() {
        let facts = PipelineFacts { most_threads: 512, simd_width: 32, threadgroup_bytes: 1024 };
        assert_eq!(check_limits(&facts, [512, 1, 1], &[(0, 31 << 10)]), Ok(()));
        assert!(check_limits(&facts, [513, 1, 1], &[]).unwrap_err().contains("513"));
        assert!(check_limits(&facts, [256, 2, 2], &[]).unwrap_err().contains("1024"));
        let over = check_limits(&facts, [32, 1, 1], &[(0, (31 << 10) + 1)]);
        assert!(over.unwrap_err().contains(&((32 << 10) + 16).to_string()));
    }
}
