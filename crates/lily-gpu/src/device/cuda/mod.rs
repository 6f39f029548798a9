//! NVIDIA GPUs: kernels from `kernels/*.metal` through NVRTC, native ones from `kernels/cuda/*.cu` where there are, a
//! plan as a CUDA graph.
//!
//! A plan becomes one graph, made once and launched every step; what changes from step to step lies in memory (ids,
//! positions, slots), so a graph serves all positions of its class. The kernels follow each other in the order of the
//! plan's levels. On Hopper and later each may start while the one before it ends (programmatic dependent launch): it
//! takes up weights and state, and waits before it reads what the step has made.

mod compile;
mod driver;
mod expand;
mod fill;
mod native;
mod native_batch;
mod native_prefill;
mod profile;
#[cfg(test)]
mod rings;
#[cfg(test)]
mod tests;
mod workspace;

use std::{collections::HashMap, sync::Arc};

use lily_model::Storage;
use lily_msl::manifest::{KernelManifest, Manifest};

pub use compile::{CACHE_VARIABLE, NVRTC_VARIABLE};
pub use driver::Limits;
pub use expand::PackedMatrix;
pub use native::attention_splits;
pub use profile::OpTime;

use super::{DEPTH, Device, DeviceBuffer, DeviceFacts, PlanHandle, Precision, Region, Ticket, regions_of};
use crate::{
    error::{GpuError, Result},
    kernels,
    plan::{
        BoundArg, BoundOp, Op, Plan, WORKSPACE, bind,
        routes::{self, Splits},
    },
};
use driver::{Driver, Event, Function, Graph, Pinned, Shape};
use native::Step;
use workspace::{Need, Workspace};

/// Reads of so many bytes go through page-locked memory: the driver's own way takes several times as long.
const PINNED_FROM: usize = 1 << 16;
/// Bytes of that memory.
const STAGING: usize = 4 << 20;

/// Name of the device.
pub const NAME: &str = "cuda";

/// Which products of several tokens read a weight once for all of them, rather than once for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Together {
    /// Where it was measured to be faster.
    Measured,
    /// All.
    Always,
    /// None.
    Never,
}

impl Together {
    /// Fewest tokens that go together, where `measured` was found to be fastest.
    fn from(self, measured: u32) -> u32 {
        match self {
            Together::Measured => measured,
            Together::Always => 2,
            Together::Never => u32::MAX,
        }
    }
}

/// Which kernels run and how: for comparisons. The default is the fast one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaOptions {
    /// Native kernels where there are.
    pub native: bool,
    /// Kernels start early.
    pub early: bool,
    /// Which products of a step of several sequences read a weight once for all of them.
    pub together: Together,
    /// Attention reads a KV head's keys and values once for all of its query heads.
    pub packed: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self { native: true, early: true, together: Together::Measured, packed: true }
    }
}

/// A kernel with everything it is launched with.
struct Launch {
    function: Function,
    shape: Shape,
    /// The argument structure, and the native kernels' second parameter.
    arguments: Vec<u8>,
    extra: Vec<u8>,
    /// For messages and profiles.
    symbol: String,
    native: bool,
    /// What makes its workspace ready.
    before: Option<Box<Launch>>,
}

struct Prepared {
    plan: Arc<Plan>,
    graph: Graph,
    launches: Vec<Launch>,
    /// The input buffer: address and size.
    input: Option<(u64, usize)>,
}

/// A submission under way: its input bytes must stay until it is done.
struct Running {
    done: Event,
    input: Option<Pinned>,
}

/// The CUDA device.
pub struct CudaDevice {
    driver: Driver,
    limits: Limits,
    facts: DeviceFacts,
    options: CudaOptions,
    manifest: &'static Manifest,
    functions: HashMap<String, Function>,
    native: HashMap<&'static str, Function>,
    memory: HashMap<u64, (u64, u64)>,
    plans: HashMap<u64, Prepared>,
    next: u64,
    submitted: u64,
    running: [Option<Running>; DEPTH],
    /// What large reads pass through.
    staging: Option<Pinned>,
}

impl std::fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDevice")
            .field("facts", &self.facts)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

fn failed(problem: String) -> GpuError {
    GpuError::Device { device: NAME, problem }
}

/// Compiles every kernel for an architecture (90 for 9.0) into the cache; needs NVRTC, but no GPU. Returns the sizes.
pub fn compile_for(arch: u32) -> Result<Vec<(&'static str, usize)>> {
    let mut programs = vec![compile::shared_program(arch)?];
    if arch >= compile::NATIVE_ARCH {
        programs.push(compile::native_program(arch, kernels::manifest()?)?);
    }
    programs.iter().map(|p| Ok((p.name, p.machine_code(false)?.len()))).collect()
}

impl CudaDevice {
    /// The first GPU, with all kernels.
    pub fn new(options: CudaOptions) -> Result<Self> {
        let driver = Driver::open()?;
        let (limits, name) = (driver.limits()?, driver.name()?);
        let manifest = kernels::manifest()?;
        let (free, _) = driver.memory()?;
        let mut device = Self {
            facts: DeviceFacts {
                kind: NAME,
                name,
                memory: Some(free),
                largest_buffer: free,
                unified: false,
                tensor_ops: false,
                split_products: options.native && limits.arch == native_prefill::HOPPER,
            },
            driver,
            limits,
            options,
            manifest,
            functions: HashMap::new(),
            native: HashMap::new(),
            memory: HashMap::new(),
            plans: HashMap::new(),
            next: 0,
            submitted: 0,
            running: [const { None }; DEPTH],
            staging: None,
        };
        device.load_kernels()?;
        Ok(device)
    }

    /// What routes depend on.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    fn load_kernels(&mut self) -> Result<()> {
        let module = self.module(&compile::shared_program(self.limits.arch)?)?;
        for k in &self.manifest.kernels {
            let f = self.driver.function(&module, &k.symbol, &self.limits)?;
            self.functions.insert(k.name.clone(), f);
        }
        if self.limits.arch >= compile::NATIVE_ARCH {
            let module = self.module(&compile::native_program(self.limits.arch, self.manifest)?)?;
            for symbol in native::symbols(self.limits.arch) {
                self.native.insert(symbol, self.driver.function(&module, symbol, &self.limits)?);
            }
            let (symbol, threads) = native_batch::LARGEST;
            if let Some(&f) = self.native.get(symbol) {
                // Where the driver does not know, steps of several sequences run without clusters.
                let count = self.driver.clusters(f, native_batch::CLUSTER, threads, self.limits.shared);
                self.limits.clusters = count.unwrap_or(0);
            }
        }
        Ok(())
    }

    /// Machine code on the device. A cached file that the driver refuses is made anew.
    fn module(&self, program: &compile::Program) -> Result<driver::Module> {
        self.driver
            .load(&program.machine_code(false)?)
            .or_else(|_| self.driver.load(&program.machine_code(true)?))
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Address of part of a buffer.
    fn address(&self, buffer: DeviceBuffer, offset: u64, len: u64) -> Result<u64> {
        match self.memory.get(&buffer.0) {
            Some((start, have)) if offset.checked_add(len).is_some_and(|end| end <= *have) => {
                Ok(start + offset)
            }
            have => {
                let have = have.map(|h| h.1);
                Err(failed(format!(
                    "bytes {offset} to {offset} + {len} of buffer {}, which has {have:?}",
                    buffer.0
                )))
            }
        }
    }

    /// The native kernel for an op.
    fn route(&self, op: &Op) -> Option<(native::Launch, Function)> {
        let launch = native::route(op, &self.limits, &self.options).filter(|_| self.options.native)?;
        let function = *self.native.get(launch.symbol)?;
        Some((launch, function))
    }

    /// The workspace of a plan; not yet anywhere.
    fn workspace_of(&self, plan: &Plan) -> Workspace {
        Workspace::of(plan.ops.iter().filter_map(|op| Need::of(op, self.route(op)?.0.symbol)))
    }

    /// Everything an op is launched with.
    fn launch_of(
        &self,
        op: &Op,
        bound: &BoundOp,
        addresses: &[u64],
        native: bool,
        workspace: Workspace,
    ) -> Result<Launch> {
        let kernel = self
            .manifest
            .kernel(&op.kernel)
            .map_err(|source| GpuError::Bind { op: op.label.clone(), source: Box::new(source) })?;
        let mut arguments = vec![0u8; kernel.cuda_args_bytes as usize];
        let mut aligned = true;
        for (m, arg) in kernel.args.iter().zip(&bound.args) {
            let at = m.cuda_offset as usize;
            match arg {
                BoundArg::Buffer { view, .. } => {
                    let address = addresses[view.buffer.0] + view.offset;
                    // The router's row of logits and single rows are read word by word; only weights must be aligned.
                    aligned &= address.is_multiple_of(16) || !is_weight(&m.name);
                    arguments[at..at + 8].copy_from_slice(&address.to_le_bytes());
                }
                BoundArg::Bytes { bytes, .. } => arguments[at..at + bytes.len()].copy_from_slice(bytes),
            }
        }
        // Threadgroup arguments lie one after the other in the dynamic shared memory.
        let mut shared = 0u32;
        for (t, bytes) in kernel.threadgroup_args.iter().zip(&op.threadgroup) {
            arguments[t.cuda_offset as usize..][..4].copy_from_slice(&shared.to_le_bytes());
            shared += bytes.next_multiple_of(16);
        }
        let early = self.options.early && self.limits.arch >= compile::NATIVE_ARCH;
        let of = |function: Function, n: &native::Launch, arguments: Vec<u8>| Launch {
            function,
            shape: Shape { grid: n.grid, block: [n.threads, 1, 1], shared: n.shared, early },
            arguments,
            extra: bytemuck::cast_slice(&n.extra).to_vec(),
            symbol: n.symbol.to_string(),
            native: true,
            before: None,
        };
        let route = self.route(op).filter(|_| native && aligned);
        let need = route.as_ref().and_then(|(n, _)| Need::of(op, n.symbol));
        let places = need.and_then(|n| n.places(workspace));
        if let Some((n, function)) = route
            && need.is_some() == places.is_some()
        {
            let mut launch = of(function, &n, arguments);
            if let (Some(need), Some(places)) = (need, places) {
                launch.extra.extend_from_slice(bytemuck::bytes_of(&places));
                launch.before = Some(Box::new(self.ready(need, places, kernel, &launch.arguments, of)?));
            }
            return Ok(launch);
        }
        let function = *self
            .functions
            .get(&op.kernel)
            .ok_or_else(|| GpuError::Kernels(format!("kernel {} was not compiled", op.kernel)))?;
        Ok(Launch {
            function,
            shape: Shape { grid: op.grid, block: op.group, shared, early },
            arguments,
            extra: Vec::new(),
            symbol: op.kernel.clone(),
            native: false,
            before: None,
        })
    }

    /// What makes the workspace of a kernel with these arguments ready.
    fn ready(
        &self,
        need: Need,
        places: [u64; 2],
        kernel: &KernelManifest,
        arguments: &[u8],
        launch: impl Fn(Function, &native::Launch, Vec<u8>) -> Launch,
    ) -> Result<Launch> {
        let n = need.launch();
        let function = *self
            .native
            .get(n.symbol)
            .ok_or_else(|| GpuError::Kernels(format!("kernel {} was not compiled", n.symbol)))?;
        let address = |name: &str| {
            let at = kernel.args.iter().find(|a| a.name == name)?.cuda_offset as usize;
            arguments.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
        };
        let (arguments, extra) = need.arguments(arguments, address, places);
        let mut ready = launch(function, &n, arguments);
        ready.extra = extra;
        let step = Step { release_first: 1, unused: 0 };
        ready.extra.extend_from_slice(bytemuck::bytes_of(&step));
        Ok(ready)
    }

    /// A graph of launches, one after the other.
    fn graph<'a>(&self, launches: impl Iterator<Item = &'a Launch>) -> Result<Graph> {
        self.driver.record(|| {
            let all = launches.flat_map(|l| l.before.as_deref().into_iter().chain([l]));
            for (i, l) in all.enumerate() {
                // The first kernel of a graph has none in front of it.
                let shape = Shape { early: l.shape.early && i > 0, ..l.shape };
                let parameters = [l.arguments.as_slice(), l.extra.as_slice()];
                let count = if l.native { 2 } else { 1 };
                // SAFETY: `bind` compared the arguments with the kernel's signature, every buffer is as long as the
                // plan says, and `prepare` resolved them to memory of ours; releasing memory discards no plan, but the
                // trait forbids to submit one whose memory was released.
                unsafe { self.driver.launch(l.function, &shape, &parameters[..count]) }?;
            }
            Ok(())
        })
    }

    /// Waits for the submission in a place.
    fn finish(&mut self, place: usize) -> Result<()> {
        match self.running[place].take() {
            Some(r) => {
                let result = self.driver.wait(&r.done);
                self.running[place] = Some(r);
                result
            }
            None => Ok(()),
        }
    }
}

/// Arguments that native kernels load with bulk copies or sixteen bytes at once.
fn is_weight(name: &str) -> bool {
    !matches!(name, "positions" | "slots" | "ids" | "routed" | "chunk" | "a_log" | "dt_bias")
}

impl Device for CudaDevice {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn free_memory(&self) -> Option<u64> {
        self.driver.memory().ok().map(|m| m.0)
    }

    fn attention_splits(&self, context: usize) -> Splits {
        if self.options.native && self.limits.arch >= compile::NATIVE_ARCH {
            attention_splits(context, self.limits)
        } else {
            routes::attention_splits(context)
        }
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer> {
        let address = self.driver.allocate(what, bytes)?;
        let id = self.fresh();
        self.memory.insert(id, (address, bytes));
        Ok(DeviceBuffer(id))
    }

    fn import(&mut self, _what: &str, _storage: &Arc<Storage>) -> Result<Option<DeviceBuffer>> {
        Ok(None)
    }

    fn release(&mut self, buffer: DeviceBuffer) {
        if let Some((address, _)) = self.memory.remove(&buffer.0) {
            self.driver.free(address);
        }
    }

    fn allocated(&self) -> u64 {
        self.memory.values().map(|m| m.1).sum()
    }

    fn write(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<()> {
        let address = self.address(buffer, offset, bytes.len() as u64)?;
        // SAFETY: the range was checked; that nothing uses it is the trait's condition.
        unsafe { self.driver.write(address, bytes) }
    }

    fn read(&mut self, buffer: DeviceBuffer, offset: u64, out: &mut [u8]) -> Result<()> {
        let address = self.address(buffer, offset, out.len() as u64)?;
        if out.len() < PINNED_FROM {
            // SAFETY: as in `write`.
            return unsafe { self.driver.read(address, out) };
        }
        let mut pinned = match self.staging.take() {
            Some(p) => p,
            None => self.driver.pinned(STAGING)?,
        };
        let mut result = Ok(());
        for (i, part) in out.chunks_mut(STAGING).enumerate() {
            // SAFETY: as in `write`; the part lies in the range that was checked.
            result = unsafe { self.driver.read_pinned(address + (i * STAGING) as u64, &pinned, part.len()) };
            if result.is_err() {
                break;
            }
            part.copy_from_slice(&pinned.bytes()[..part.len()]);
        }
        self.staging = Some(pinned);
        result
    }

    fn copy(&mut self, from: Region, to: Region) -> Result<()> {
        if from.len != to.len {
            return Err(failed(format!("a copy of {} bytes into {}", from.len, to.len)));
        }
        let (a, b) =
            (self.address(from.buffer, from.offset, from.len)?, self.address(to.buffer, to.offset, to.len)?);
        if a < b + to.len && b < a + from.len && from.len > 0 {
            return Err(failed("a copy between parts that overlap".into()));
        }
        // SAFETY: both ranges were checked.
        unsafe { self.driver.copy(a, b, from.len) }
    }

    fn zero(&mut self, region: Region) -> Result<()> {
        let address = self.address(region.buffer, region.offset, region.len)?;
        // SAFETY: the range was checked.
        unsafe { self.driver.fill(address, 0, region.len) }
    }

    fn workspace(&self, plan: &Plan) -> u64 {
        self.workspace_of(plan).places.iter().sum()
    }

    fn prepare(&mut self, plan: Arc<Plan>, regions: &[Option<Region>]) -> Result<PlanHandle> {
        let ops = bind(&plan, self.manifest)?;
        let (regions, input_bytes) = regions_of(NAME, &plan, &ops, regions)?;
        let input = match input_bytes {
            Some(bytes) => Some((self.driver.allocate("inputs", bytes as u64)?, bytes)),
            None => None,
        };
        let prepared = self.prepare_with(plan, &ops, &regions, input);
        match (prepared, input) {
            (Ok(p), _) => {
                let id = self.fresh();
                self.plans.insert(id, p);
                Ok(PlanHandle(id))
            }
            (Err(error), input) => {
                if let Some((address, _)) = input {
                    self.driver.free(address);
                }
                Err(error)
            }
        }
    }

    fn precision(&self, plan: PlanHandle) -> Precision {
        let launches = self.plans.get(&plan.0).map_or(&[][..], |p| p.launches.as_slice());
        launches
            .iter()
            .map(|l| native_prefill::precision(&l.symbol))
            .find(|p| *p == Precision::F16)
            .unwrap_or_default()
    }

    fn discard(&mut self, plan: PlanHandle) {
        if let Some(p) = self.plans.remove(&plan.0) {
            // A graph that runs must not be freed.
            let _ = self.driver.sync(self.driver.main);
            self.driver.destroy(p.graph);
            if let Some((address, _)) = p.input {
                self.driver.free(address);
            }
        }
    }

    fn submit(&mut self, plan: PlanHandle, inputs: &[u8]) -> Result<Ticket> {
        let place = (self.submitted % DEPTH as u64) as usize;
        self.finish(place)?;
        let prepared = self.plans.get(&plan.0).ok_or_else(|| failed("an unknown plan".into()))?;
        let want = prepared.input.map_or(0, |i| i.1);
        if inputs.len() != want {
            return Err(failed(format!("{} bytes of inputs; the plan takes {want}", inputs.len())));
        }
        let mut running = match self.running[place].take() {
            Some(r) => r,
            None => Running { done: self.driver.event()?, input: None },
        };
        if let Some((address, bytes)) = prepared.input {
            let mut pinned = match running.input.take() {
                Some(p) if p.len() >= bytes => p,
                // Larger than asked: places are reused by all plans.
                _ => self.driver.pinned(bytes.next_power_of_two().max(4096))?,
            };
            pinned.bytes()[..bytes].copy_from_slice(inputs);
            // SAFETY: the buffer has this size; the pinned bytes stay as they are until `finish` of this place.
            unsafe { self.driver.write_later(address, &pinned, bytes) }?;
            running.input = Some(pinned);
        }
        let started = self.driver.start(&prepared.graph).and_then(|()| self.driver.mark(&running.done));
        self.running[place] = Some(running);
        started?;
        self.submitted += 1;
        Ok(Ticket(self.submitted))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<()> {
        if ticket.0 > self.submitted {
            return Err(failed(format!("{ticket:?} was never given out")));
        }
        // Older submissions were waited for when their place was taken again.
        if ticket.0 + (DEPTH as u64) <= self.submitted {
            return Ok(());
        }
        self.finish(((ticket.0 - 1) % DEPTH as u64) as usize)
    }
}

impl CudaDevice {
    fn prepare_with(
        &self,
        plan: Arc<Plan>,
        ops: &[BoundOp],
        regions: &[Option<Region>],
        input: Option<(u64, usize)>,
    ) -> Result<Prepared> {
        let addresses: Vec<u64> = plan
            .buffers
            .iter()
            .zip(regions)
            .map(|(spec, region)| match (region, input) {
                (Some(r), _) => self.address(r.buffer, r.offset, spec.bytes),
                (None, Some((address, _))) => Ok(address),
                (None, None) => Err(failed(format!("no memory for buffer {}", spec.name))),
            })
            .collect::<Result<_>>()?;
        let mut workspace = self.workspace_of(&plan);
        if let Some(b) = plan.buffer(WORKSPACE) {
            (workspace.address, workspace.bytes) = (addresses[b.0], plan.spec(b).bytes);
        }
        let mut launches = Vec::with_capacity(plan.ops.len());
        // Level by level: an order in which every op stands behind all that it must wait for.
        let order: Vec<usize> = plan.levels.iter().flatten().copied().collect();
        for (at, &i) in order.iter().enumerate() {
            let native = native::early_reads_hold(&plan, &order, at);
            launches.push(self.launch_of(&plan.ops[i], &ops[i], &addresses, native, workspace)?);
        }
        let symbols: Vec<&str> = launches.iter().map(|l| l.symbol.as_str()).collect();
        for at in native_prefill::misplaced(&plan, &order, &symbols) {
            let i = order[at];
            launches[at] = self.launch_of(&plan.ops[i], &ops[i], &addresses, false, workspace)?;
        }
        let needs: Vec<Option<Need>> = launches
            .iter()
            .zip(&order)
            .map(|(l, &i)| l.before.as_ref().and_then(|_| Need::of(&plan.ops[i], &l.symbol)))
            .collect();
        for at in workspace::held(&plan, &order, &needs) {
            launches[at].before = None;
        }
        for at in 0..launches.len() {
            let free = launches.get(at + 1).is_none_or(|next| !native::reads_two_back(&next.symbol));
            let launch = &mut launches[at];
            if launch.native {
                let step = Step { release_first: u32::from(free), unused: 0 };
                launch.extra.extend_from_slice(bytemuck::bytes_of(&step));
            }
        }
        let graph = self.graph(launches.iter())?;
        Ok(Prepared { plan, graph, launches, input })
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        let _ = self.driver.sync(self.driver.main);
        for (_, p) in self.plans.drain() {
            self.driver.destroy(p.graph);
            if let Some((address, _)) = p.input {
                self.driver.free(address);
            }
        }
        for (_, (address, _)) in self.memory.drain() {
            self.driver.free(address);
        }
    }
}
