//! The model on a device: sequences, chunks, batches, snapshots.

mod cache;
mod check;
mod load;
mod run;
mod snapshot;
mod step;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use lily_model::{ModelConfig, ModelWeights};

pub use load::LoadReport;
pub(crate) use load::{rotary_rates, tensors};
pub use run::Chosen;

use crate::{
    device::{Device, DeviceBuffer, PlanHandle, Ticket},
    error::{GpuError, Result},
    plan::{DecodeShape, ModelShape, PrefillShape, routes::largest_chunk},
};
use cache::Cache;
use load::Weights;

/// Most tokens whose logits are computed at once: the 35B model's take a megabyte each.
const LOGITS_CHUNK: usize = 64;
/// Most sequences of one step; larger batches take several.
const MAX_BATCH: usize = 32;

/// How the model is set up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuOptions {
    /// Start and grow without looking at the device's memory.
    pub ignore_memory_check: bool,
}

/// Which logits a prefill returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsWanted {
    /// None.
    None,
    /// Of the last token, `[vocab]`.
    Last,
    /// Of every token, `[tokens, vocab]`.
    All,
}

/// A sequence's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sequence {
    slot: usize,
    position: usize,
    capacity: usize,
    /// A call failed half-way.
    poisoned: bool,
}

/// Bytes in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Weights, in place or copied.
    pub weights: u64,
    /// Keys and values of the sequences there are.
    pub kv: u64,
    /// GDN state and convolution inputs of the sequences there are.
    pub state: u64,
    /// Activations.
    pub scratch: u64,
}

/// What a plan was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PlanKey {
    Decode(DecodeShape),
    Prefill(PrefillShape),
}

/// A loaded model.
pub struct GpuModel {
    device: Box<dyn Device>,
    shape: ModelShape,
    /// What was mapped must stay mapped.
    _weights: Arc<ModelWeights>,
    tensors: Weights,
    fingerprint: u64,
    cache: Cache,
    sequences: BTreeMap<u64, Sequence>,
    next: u64,
    plans: HashMap<PlanKey, PlanHandle>,
    /// Memory that steps share, by name, with its size.
    scratch: HashMap<String, (DeviceBuffer, u64)>,
    /// The last submission, until it was waited for.
    last: Option<Ticket>,
    options: GpuOptions,
}

impl std::fmt::Debug for GpuModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuModel").field("device", self.device.facts()).finish_non_exhaustive()
    }
}

impl GpuModel {
    /// Places the weights on a device.
    pub fn new(weights: Arc<ModelWeights>, mut device: Box<dyn Device>, options: GpuOptions) -> Result<Self> {
        check::check(&weights)?;
        if let Some(memory) = device.facts().memory.filter(|_| !options.ignore_memory_check) {
            let asked = weights.byte_len() as u64;
            if asked > memory {
                return Err(GpuError::OutOfMemory {
                    asked,
                    what: "weights".into(),
                    available: available(memory, device.facts().name.as_str()),
                });
            }
        }
        let tensors = load::load(device.as_mut(), &weights)?;
        tracing::info!("{}: {}", device.facts().name, tensors.report);
        Ok(Self {
            cache: Cache::new(&weights.config),
            shape: ModelShape::on(&weights, device.facts()),
            fingerprint: check::fingerprint(&weights),
            _weights: weights,
            tensors,
            device,
            sequences: BTreeMap::new(),
            next: 0,
            plans: HashMap::new(),
            scratch: HashMap::new(),
            last: None,
            options,
        })
    }

    /// The model's sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.shape.config
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        self.device.as_ref()
    }

    /// Tells models apart: snapshots of one fit no other. Of the sizes, and of samples of every matrix.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// What became of the weights.
    pub fn load_report(&self) -> &LoadReport {
        &self.tensors.report
    }

    /// Most tokens of one [`prefill`](Self::prefill).
    pub fn max_chunk(&self) -> usize {
        let facts = self.device.facts();
        largest_chunk(facts.unified, facts.memory)
    }

    /// An empty sequence that can grow to `capacity` tokens.
    pub fn new_sequence(&mut self, capacity: usize) -> Result<u64> {
        let used: Vec<usize> = self.sequences.values().map(|s| s.slot).collect();
        let slot = (0..).find(|s| !used.contains(s)).unwrap_or(used.len());
        let (slots, positions) = self.cache.fit(slot + 1, capacity);
        if (slots, positions) != (self.cache.slots, self.cache.capacity) {
            self.grow(slots, positions)?;
        }
        self.cache.zero(self.device.as_mut(), slot)?;
        self.next += 1;
        self.sequences.insert(self.next, Sequence { slot, position: 0, capacity, poisoned: false });
        Ok(self.next)
    }

    /// Larger caches; plans name the old ones, so they go.
    fn grow(&mut self, slots: usize, capacity: usize) -> Result<()> {
        let asked = self.cache.kv_bytes(slots, capacity) + self.cache.gdn_bytes(slots);
        self.idle()?;
        self.check_memory(asked, &format!("{slots} sequences of {capacity} tokens"))?;
        let live: Vec<(usize, usize)> = self.sequences.values().map(|s| (s.slot, s.position)).collect();
        self.cache.grow(self.device.as_mut(), slots, capacity, &live)?;
        self.discard_plans();
        Ok(())
    }

    fn discard_plans(&mut self) {
        for (_, plan) in self.plans.drain() {
            self.device.discard(plan);
        }
    }

    /// Whether `asked` more bytes fit beside what there is.
    fn check_memory(&self, asked: u64, what: &str) -> Result<()> {
        let facts = self.device.facts();
        let Some(memory) = facts.memory.filter(|_| !self.options.ignore_memory_check) else { return Ok(()) };
        let used = self.tensors.report.mapped + self.device.allocated();
        if let Some(free) = self.device.free_memory().filter(|&free| asked > free) {
            return Err(GpuError::OutOfMemory {
                asked,
                what: what.to_string(),
                available: format!(
                    "the machine has {free} bytes free; --ignore-memory-check tries all the same"
                ),
            });
        }
        if used + asked <= memory {
            return Ok(());
        }
        Err(GpuError::OutOfMemory {
            asked,
            what: what.to_string(),
            available: format!("{used} bytes are in use, and {}", available(memory, &facts.name)),
        })
    }

    /// Frees a sequence. Unknown ones are ignored.
    pub fn free_sequence(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
    }

    fn get(&self, sequence: u64) -> Result<&Sequence> {
        self.sequences.get(&sequence).ok_or(GpuError::UnknownSequence(sequence))
    }

    /// Tokens the sequence has seen.
    pub fn position(&self, sequence: u64) -> Result<usize> {
        Ok(self.get(sequence)?.position)
    }

    /// Bytes in use.
    pub fn memory(&self) -> MemoryUse {
        MemoryUse {
            weights: self.tensors.report.mapped + self.tensors.report.copied,
            kv: self.cache.kv_bytes(self.sequences.len(), self.cache.capacity),
            state: self.cache.gdn_bytes(self.sequences.len()),
            scratch: self.scratch.values().map(|s| s.1).sum(),
        }
    }
}

fn available(memory: u64, device: &str) -> String {
    format!("{device} has {memory} bytes for this; --ignore-memory-check tries all the same")
}
