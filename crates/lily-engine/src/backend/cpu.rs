//! The CPU model of `lily-cpu` as a [`Backend`].

use std::{collections::HashMap, sync::Arc};

use lily_cpu::{CpuError, CpuModel, CpuOptions, LogitsWanted};
use lily_model::{ModelConfig, ModelWeights};

use super::{Backend, BackendError, Interrupt, Logits, MemoryFigures, SequenceId, Snapshot};

/// Name and layout version of snapshots; `lily-cpu` writes and checks what is inside.
const FORMAT: &str = "cpu/1";

/// Name and layout version of states without KV, and of pages.
const PAGED: &str = "cpu-pages/1";

/// [`CpuModel`] as a backend named `cpu`.
#[derive(Debug)]
pub struct CpuBackend {
    model: CpuModel,
    weight_bytes: usize,
    sequences: HashMap<SequenceId, Sequence>,
    next: u64,
}

#[derive(Debug)]
struct Sequence {
    inner: lily_cpu::Sequence,
    capacity: usize,
}

impl CpuBackend {
    /// The CPU model with these weights, on threads of its own.
    pub fn new(weights: Arc<ModelWeights>, options: CpuOptions) -> Result<Self, CpuError> {
        let weight_bytes = weights.byte_len();
        Ok(Self { model: CpuModel::new(weights, options)?, weight_bytes, sequences: HashMap::new(), next: 0 })
    }

    /// The model, for figures that the trait does not have.
    pub fn model(&self) -> &CpuModel {
        &self.model
    }

    fn get(&self, id: SequenceId) -> Result<&Sequence, BackendError> {
        self.sequences.get(&id).ok_or(BackendError::UnknownSequence(id))
    }

    fn get_mut(&mut self, id: SequenceId) -> Result<&mut Sequence, BackendError> {
        self.sequences.get_mut(&id).ok_or(BackendError::UnknownSequence(id))
    }
}

/// `capacity`: of the sequence the error is about, 0 where there is none.
fn convert(error: CpuError, capacity: usize) -> BackendError {
    match error {
        CpuError::BadToken { id, vocab } => BackendError::BadToken { id, vocab },
        CpuError::BadChunk { found, most } => BackendError::BadChunk { found, most },
        CpuError::Full { position, capacity, asked } => BackendError::Full { position, capacity, asked },
        CpuError::Interrupted => BackendError::Interrupted,
        CpuError::NonFinite { position } => BackendError::NonFinite { position },
        CpuError::OutOfMemory { asked, .. } => BackendError::OutOfMemory { asked, capacity },
        CpuError::BadSnapshot { what, found, expected } => BackendError::BadSnapshot {
            found: format!("{FORMAT}, {what} {found}"),
            expected: format!("{FORMAT}, {what} {expected}"),
        },
        other => BackendError::Device(other.to_string()),
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn max_chunk(&self) -> usize {
        self.model.max_chunk()
    }

    fn new_sequence(&mut self, capacity: usize) -> Result<SequenceId, BackendError> {
        let inner = self.model.new_sequence(capacity).map_err(|e| convert(e, capacity))?;
        self.next += 1;
        let id = SequenceId(self.next);
        self.sequences.insert(id, Sequence { inner, capacity });
        Ok(id)
    }

    fn free_sequence(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }

    fn position(&self, sequence: SequenceId) -> Result<usize, BackendError> {
        Ok(self.get(sequence)?.inner.position())
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        logits: Logits,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let Sequence { inner, capacity } =
            self.sequences.get_mut(&sequence).ok_or(BackendError::UnknownSequence(sequence))?;
        let wanted = match logits {
            Logits::None => LogitsWanted::None,
            Logits::Last => LogitsWanted::Last,
            Logits::All => LogitsWanted::All,
        };
        self.model.prefill(inner, tokens, wanted, out).map_err(|e| convert(e, *capacity))
    }

    fn set_interrupt(&mut self, interrupt: Option<Interrupt>) {
        self.model.set_interrupt(interrupt);
    }

    fn decode(&mut self, batch: &[(SequenceId, u32)], out: &mut Vec<f32>) -> Result<(), BackendError> {
        for (i, &(id, _)) in batch.iter().enumerate() {
            self.get(id)?;
            if batch[..i].iter().any(|b| b.0 == id) {
                return Err(BackendError::Device(format!("{id:?} occurs twice in a decode batch")));
            }
        }
        let index = |id: &SequenceId| batch.iter().position(|b| b.0 == *id);
        let mut found: Vec<_> =
            self.sequences.iter_mut().filter_map(|(id, s)| index(id).map(|i| (i, &mut s.inner))).collect();
        found.sort_unstable_by_key(|(i, _)| *i);
        let mut rows: Vec<_> = found.into_iter().map(|(i, s)| (s, batch[i].1)).collect();
        self.model.decode(&mut rows, out).map_err(|e| convert(e, 0))
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot, BackendError> {
        let Sequence { inner, capacity } = self.get_mut(sequence)?;
        let data = inner.snapshot().map_err(|e| convert(e, *capacity))?;
        Ok(Snapshot { position: inner.position(), format: FORMAT.into(), data })
    }

    fn restore(&mut self, sequence: SequenceId, snapshot: &Snapshot) -> Result<(), BackendError> {
        let Sequence { inner, capacity } = self.get_mut(sequence)?;
        let bad = |found: String, expected: String| BackendError::BadSnapshot { found, expected };
        if snapshot.format != FORMAT {
            return Err(bad(snapshot.format.clone(), FORMAT.into()));
        }
        if snapshot.position > *capacity {
            return Err(BackendError::Full { position: 0, capacity: *capacity, asked: snapshot.position });
        }
        inner.restore(&snapshot.data).map_err(|e| convert(e, *capacity))?;
        if inner.position() != snapshot.position {
            let (found, expected) = (inner.position(), snapshot.position);
            return Err(bad(format!("{FORMAT}, position {found}"), format!("{FORMAT}, position {expected}")));
        }
        Ok(())
    }

    fn identity(&self) -> Option<String> {
        Some(format!("{PAGED} {:016x}", self.model.fingerprint()))
    }

    fn snapshot_state(&mut self, sequence: SequenceId) -> Result<Snapshot, BackendError> {
        let Sequence { inner, capacity } = self.get_mut(sequence)?;
        let data = inner.snapshot_state().map_err(|e| convert(e, *capacity))?;
        Ok(Snapshot { position: inner.position(), format: PAGED.into(), data })
    }

    fn read_page(&mut self, sequence: SequenceId, page: usize) -> Result<Vec<u8>, BackendError> {
        let Sequence { inner, capacity } = self.get(sequence)?;
        inner.read_page(page).map_err(|e| convert(e, *capacity))
    }

    fn restore_pages(
        &mut self,
        sequence: SequenceId,
        state: &Snapshot,
        pages: &[&[u8]],
    ) -> Result<(), BackendError> {
        let Sequence { inner, capacity } = self.get_mut(sequence)?;
        let bad = |found: String, expected: String| BackendError::BadSnapshot { found, expected };
        if state.format != PAGED {
            return Err(bad(state.format.clone(), PAGED.into()));
        }
        if state.position > *capacity {
            return Err(BackendError::Full { position: 0, capacity: *capacity, asked: state.position });
        }
        inner.restore_pages(&state.data, pages).map_err(|e| convert(e, *capacity))?;
        if inner.position() != state.position {
            let (found, expected) = (inner.position(), state.position);
            return Err(bad(format!("{PAGED}, position {found}"), format!("{PAGED}, position {expected}")));
        }
        Ok(())
    }

    fn memory(&self) -> MemoryFigures {
        let sequences = || self.sequences.values().map(|s| &s.inner);
        MemoryFigures {
            weights: self.weight_bytes,
            kv: sequences().map(lily_cpu::Sequence::kv_bytes).sum(),
            state: sequences().map(lily_cpu::Sequence::state_bytes).sum(),
            scratch: self.model.scratch_bytes(),
        }
    }
}
