//! The software GPU behind the calls of Metal: as unkind as a real one may be. A step runs as late as it can, when it is
//! waited for; dispatches with no barrier between them run in a shuffled order; a buffer that was dropped, was never made
//! resident or is not bound ends the test.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ptr::NonNull,
    sync::{Arc, Mutex, Weak},
};

use lily_gpu::{
    GpuError,
    device::metal::{Driver, DriverFacts, Encoder, PipelineFacts},
    error::Result,
};
use lily_msl::{
    manifest::Access,
    soft::{RawArg, RawDispatch, SoftLibrary},
};

#[repr(C, align(256))]
#[derive(Clone, Copy)]
struct Line([u8; 256]);

/// Memory that a step can reach.
pub struct Block {
    id: u64,
    start: NonNull<u8>,
    len: usize,
    _own: Vec<Line>,
}

// SAFETY: the memory is the block's own or a read-only mapping that the device keeps; the tests use it from one thread.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// What a test looks at and sets while a device owns the driver.
#[derive(Debug, Default)]
pub struct Log {
    /// Steps started and done.
    pub started: u64,
    pub done: u64,
    /// Barriers and dispatches of the last step.
    pub barriers: usize,
    pub dispatches: usize,
    /// Set of every resident buffer.
    pub resident: HashMap<u64, usize>,
    /// The steps that fail.
    pub fail: Vec<u64>,
    /// Buffers that wrap memory of the process.
    pub wrapped: Vec<(u64, u64)>,
}

#[derive(Clone)]
enum Item {
    Buffer(Weak<Block>, u64),
    Bytes(Vec<u8>),
}

struct Recorded {
    kernel: String,
    args: BTreeMap<u32, Item>,
    threadgroup: BTreeMap<u32, u32>,
    grid: [u32; 3],
    group: [u32; 3],
}

#[derive(Default)]
pub struct SoftEncoder {
    kernel: String,
    args: BTreeMap<u32, Item>,
    threadgroup: BTreeMap<u32, u32>,
    segments: Vec<Vec<Recorded>>,
}

impl Encoder for SoftEncoder {
    type Buffer = Arc<Block>;
    type Pipeline = String;

    fn pipeline(&mut self, pipeline: &String) {
        self.kernel.clone_from(pipeline);
    }

    fn buffer(&mut self, index: u32, buffer: &Arc<Block>, offset: u64) {
        self.args.insert(index, Item::Buffer(Arc::downgrade(buffer), offset));
    }

    fn offset(&mut self, index: u32, to: u64) {
        match self.args.get_mut(&index) {
            Some(Item::Buffer(_, offset)) => *offset = to,
            _ => panic!("no buffer at index {index}"),
        }
    }

    fn bytes(&mut self, index: u32, bytes: &[u8]) {
        assert!(!bytes.is_empty() && bytes.len() <= 4096);
        self.args.insert(index, Item::Bytes(bytes.to_vec()));
    }

    fn threadgroup(&mut self, index: u32, bytes: u32) {
        assert!(bytes > 0 && bytes.is_multiple_of(16));
        self.threadgroup.insert(index, bytes);
    }

    fn dispatch(&mut self, grid: [u32; 3], group: [u32; 3]) {
        let recorded = Recorded {
            kernel: self.kernel.clone(),
            args: self.args.clone(),
            threadgroup: self.threadgroup.clone(),
            grid,
            group,
        };
        match self.segments.last_mut() {
            Some(s) => s.push(recorded),
            None => self.segments.push(vec![recorded]),
        }
    }

    fn barrier(&mut self) {
        self.segments.push(Vec::new());
    }
}

pub struct SoftDriver {
    pub facts: DriverFacts,
    pub most_threads: u32,
    library: Arc<SoftLibrary>,
    random: u64,
    waiting: VecDeque<(u64, Vec<Vec<Recorded>>)>,
    next: u64,
    log: Arc<Mutex<Log>>,
}

impl SoftDriver {
    pub fn new(library: Arc<SoftLibrary>, seed: u64) -> (Self, Arc<Mutex<Log>>) {
        let facts = DriverFacts {
            name: "soft driver".into(),
            working_set: 1 << 30,
            largest_buffer: 1 << 28,
            page: 4096,
            unified: true,
            tensor_ops: false,
        };
        let log = Arc::new(Mutex::new(Log::default()));
        let driver = Self {
            facts,
            most_threads: 1024,
            library,
            random: seed,
            waiting: VecDeque::new(),
            next: 0,
            log: log.clone(),
        };
        (driver, log)
    }

    /// What it writes down.
    pub fn log(&self) -> Arc<Mutex<Log>> {
        self.log.clone()
    }

    fn random(&mut self, n: usize) -> usize {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % n
    }

    fn block(&mut self, start: NonNull<u8>, len: u64, own: Vec<Line>) -> Arc<Block> {
        self.next += 1;
        Arc::new(Block { id: self.next, start, len: len as usize, _own: own })
    }

    fn run(&mut self, d: &Recorded) -> std::result::Result<(), String> {
        let library = self.library.clone();
        let kernel = library.manifest.kernel(&d.kernel).map_err(|e| e.to_string())?;
        // Buffers stay until the dispatch is over.
        let mut alive = Vec::new();
        let mut args = Vec::new();
        for m in &kernel.args {
            let item = d.args.get(&m.index).ok_or(format!("{}: nothing bound as {}", d.kernel, m.name))?;
            let (ptr, len) = match item {
                Item::Bytes(bytes) => (bytes.as_ptr().cast_mut(), bytes.len()),
                Item::Buffer(block, offset) => {
                    let block =
                        block.upgrade().ok_or(format!("{}: the buffer of {} is gone", d.kernel, m.name))?;
                    if !self.log.lock().unwrap().resident.contains_key(&block.id) {
                        return Err(format!("{}: the buffer of {} is not resident", d.kernel, m.name));
                    }
                    let left = block.len.checked_sub(*offset as usize).ok_or("an offset behind the end")?;
                    let at = block.start.as_ptr().wrapping_add(*offset as usize);
                    alive.push(block);
                    (at, left)
                }
            };
            args.push(RawArg { name: &m.name, access: m.access, ptr, len: inline_len(m.access, len, m) });
        }
        let threadgroup: Vec<u32> = kernel
            .threadgroup_args
            .iter()
            .map(|t| {
                d.threadgroup.get(&t.index).copied().ok_or(format!("{}: no size of {}", d.kernel, t.name))
            })
            .collect::<std::result::Result<_, _>>()?;
        let seed = 1 + self.random(1 << 20) as u32;
        let dispatch = RawDispatch {
            kernel: &d.kernel,
            grid: d.grid,
            group: d.group,
            args,
            threadgroup: &threadgroup,
            constants: &[],
            seed,
            strict: true,
        };
        // SAFETY: every pointer is valid for its length while `alive` and the step live; what the kernels write was made
        // by `allocate`. The library is one whose kernels the checked one has run in tests.
        unsafe { library.dispatch_raw(&dispatch) }.map(|_| ()).map_err(|e| e.to_string())
    }
}

/// Inline bytes are exactly the structure.
fn inline_len(access: Access, len: usize, m: &lily_msl::manifest::ArgManifest) -> usize {
    match access {
        Access::Bytes => m.layout.as_ref().map_or(len, |l| l.size as usize).min(len),
        _ => len,
    }
}

impl Driver for SoftDriver {
    type Buffer = Arc<Block>;
    type Pipeline = String;
    type Encoder = SoftEncoder;
    type Running = u64;

    fn facts(&self) -> &DriverFacts {
        &self.facts
    }

    fn pipeline(&mut self, kernel: &str) -> Result<(String, PipelineFacts)> {
        let m = self.library.manifest.kernel(kernel).map_err(|e| GpuError::Kernels(e.to_string()))?;
        let facts = PipelineFacts {
            most_threads: self.most_threads,
            simd_width: 32,
            threadgroup_bytes: m.threadgroup_bytes,
        };
        Ok((kernel.to_string(), facts))
    }

    fn allocate(&mut self, _what: &str, bytes: u64) -> Result<Arc<Block>> {
        let mut own = vec![Line([0; 256]); bytes.div_ceil(256) as usize];
        let start = NonNull::new(own.as_mut_ptr().cast()).expect("a vector has an address");
        Ok(self.block(start, bytes, own))
    }

    unsafe fn wrap(&mut self, _what: &str, start: NonNull<u8>, bytes: u64) -> Option<Arc<Block>> {
        assert!(
            (start.as_ptr() as u64).is_multiple_of(self.facts.page) && bytes.is_multiple_of(self.facts.page)
        );
        assert!(bytes <= self.facts.largest_buffer);
        self.log.lock().unwrap().wrapped.push((start.as_ptr() as u64, bytes));
        Some(self.block(start, bytes, Vec::new()))
    }

    fn contents(&self, buffer: &Arc<Block>) -> NonNull<u8> {
        buffer.start
    }

    fn resident(&mut self, set: usize, buffer: &Arc<Block>, resident: bool) -> Result<()> {
        let mut log = self.log.lock().unwrap();
        match resident {
            true => assert_eq!(log.resident.insert(buffer.id, set), None),
            false => assert_eq!(log.resident.remove(&buffer.id), Some(set)),
        }
        Ok(())
    }

    fn start(&mut self, _label: &str, encode: &mut dyn FnMut(&mut SoftEncoder)) -> Result<u64> {
        let mut encoder = SoftEncoder::default();
        encode(&mut encoder);
        let mut log = self.log.lock().unwrap();
        log.started += 1;
        log.barriers = encoder.segments.len() - 1;
        log.dispatches = encoder.segments.iter().map(Vec::len).sum();
        self.waiting.push_back((log.started, encoder.segments));
        Ok(log.started)
    }

    fn wait(&mut self, running: u64) -> Result<()> {
        while self.waiting.front().is_some_and(|w| w.0 <= running) {
            let Some((step, segments)) = self.waiting.pop_front() else { break };
            let fails = self.log.lock().unwrap().fail.contains(&step);
            for mut segment in segments {
                for i in (1..segment.len()).rev() {
                    let j = self.random(i + 1);
                    segment.swap(i, j);
                }
                for d in segment.iter().take(if fails { 0 } else { usize::MAX }) {
                    self.run(d).unwrap_or_else(|e| panic!("step {step}: {e}"));
                }
            }
            self.log.lock().unwrap().done = step;
            if fails {
                return Err(GpuError::Device {
                    device: "metal",
                    problem: format!("step {step} was made to fail"),
                });
            }
        }
        Ok(())
    }
}
