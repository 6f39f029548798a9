//! The model of `lily-gpu`, on whatever device, as a [`Backend`].

use lily_gpu::{GpuError, GpuModel, LogitsWanted};
use lily_model::ModelConfig;

use super::{Backend, BackendError, Chosen, Draw, Logits, MemoryFigures, SequenceId, Snapshot};

/// Version of the layout of snapshots, behind the device's name; `lily-gpu` writes and checks what is inside.
const VERSION: u32 = 1;

/// [`GpuModel`] as a backend named after its device.
#[derive(Debug)]
pub struct GpuBackend {
    model: GpuModel,
}

impl GpuBackend {
    /// A loaded model.
    pub fn new(model: GpuModel) -> Self {
        Self { model }
    }

    /// The model, for figures that the trait does not have.
    pub fn model(&self) -> &GpuModel {
        &self.model
    }

    /// Which backend and layout wrote a snapshot: `metal/1`.
    fn format(&self) -> String {
        format!("{}/{VERSION}", self.model.device().facts().kind)
    }
}

fn convert(error: GpuError, capacity: usize) -> BackendError {
    // A snapshot that lily-gpu refuses has the right format by name.
    const FORMAT: &str = "gpu";
    match error {
        GpuError::UnknownSequence(id) => BackendError::UnknownSequence(SequenceId(id)),
        GpuError::BadToken { id, vocab } => BackendError::BadToken { id, vocab },
        GpuError::BadChunk { found, most } => BackendError::BadChunk { found, most },
        GpuError::Full { position, capacity, asked } => BackendError::Full { position, capacity, asked },
        GpuError::NonFinite { position } => BackendError::NonFinite { position },
        GpuError::OutOfMemory { asked, .. } => {
            BackendError::OutOfMemory { asked: asked.try_into().unwrap_or(usize::MAX), capacity }
        }
        GpuError::BadSnapshot { what, found, expected } => BackendError::BadSnapshot {
            found: format!("{FORMAT}, {what} {found}"),
            expected: format!("{FORMAT}, {what} {expected}"),
        },
        other => BackendError::Device(other.to_string()),
    }
}

/// A batch in which no sequence occurs twice.
fn different(batch: &[(SequenceId, u32)]) -> Result<Vec<(u64, u32)>, BackendError> {
    for (i, &(id, _)) in batch.iter().enumerate() {
        if batch[..i].iter().any(|b| b.0 == id) {
            return Err(BackendError::Device(format!("{id:?} occurs twice in a decode batch")));
        }
    }
    Ok(batch.iter().map(|&(s, t)| (s.0, t)).collect())
}

impl Backend for GpuBackend {
    fn name(&self) -> &'static str {
        self.model.device().facts().kind
    }

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn max_chunk(&self) -> usize {
        self.model.max_chunk()
    }

    fn usual_chunk(&self) -> usize {
        let most = self.max_chunk();
        // A GPU with memory of its own wants many tokens an expert; 8,192 take an H200 a sixth of a second.
        if self.model.device().facts().unified { most.min(512) } else { most }
    }

    fn new_sequence(&mut self, capacity: usize) -> Result<SequenceId, BackendError> {
        self.model.new_sequence(capacity).map(SequenceId).map_err(|e| convert(e, capacity))
    }

    fn free_sequence(&mut self, sequence: SequenceId) {
        self.model.free_sequence(sequence.0);
    }

    fn position(&self, sequence: SequenceId) -> Result<usize, BackendError> {
        self.model.position(sequence.0).map_err(|e| convert(e, 0))
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        logits: Logits,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let wanted = match logits {
            Logits::None => LogitsWanted::None,
            Logits::Last => LogitsWanted::Last,
            Logits::All => LogitsWanted::All,
        };
        self.model.prefill(sequence.0, tokens, wanted, out).map_err(|e| convert(e, 0))
    }

    fn decode(&mut self, batch: &[(SequenceId, u32)], out: &mut Vec<f32>) -> Result<(), BackendError> {
        self.model.decode(&different(batch)?, out).map_err(|e| convert(e, 0))
    }

    fn most_drawn(&self) -> usize {
        self.model.most_drawn()
    }

    fn decode_run(
        &mut self,
        batch: &[(SequenceId, u32)],
        draws: &[Option<Draw>],
        steps: usize,
        valid: usize,
        each: &mut dyn FnMut(Chosen<'_>) -> bool,
    ) -> Result<(), BackendError> {
        self.model.decode_run(&different(batch)?, draws, steps, valid, each).map_err(|e| convert(e, 0))
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot, BackendError> {
        let position = self.position(sequence)?;
        let data = self.model.snapshot(sequence.0).map_err(|e| convert(e, 0))?;
        Ok(Snapshot { position, format: self.format(), data })
    }

    fn restore(&mut self, sequence: SequenceId, snapshot: &Snapshot) -> Result<(), BackendError> {
        let bad = |found: String, expected: String| BackendError::BadSnapshot { found, expected };
        let format = self.format();
        if snapshot.format != format {
            return Err(bad(snapshot.format.clone(), format));
        }
        self.model.restore(sequence.0, &snapshot.data).map_err(|e| convert(e, 0))?;
        let found = self.position(sequence)?;
        if found != snapshot.position {
            let expected = format!("{format}, position {}", snapshot.position);
            return Err(bad(format!("{format}, position {found}"), expected));
        }
        Ok(())
    }

    fn identity(&self) -> Option<String> {
        Some(format!("{} {:016x}", self.format(), self.model.fingerprint()))
    }

    fn memory(&self) -> MemoryFigures {
        let m = self.model.memory();
        let size = |bytes: u64| bytes.try_into().unwrap_or(usize::MAX);
        MemoryFigures {
            weights: size(m.weights),
            kv: size(m.kv),
            state: size(m.state),
            scratch: size(m.scratch),
        }
    }
}
