//! Steps: plans made when a shape is first seen, inputs, logits.

use std::sync::Arc;

use super::{GpuModel, LOGITS_CHUNK, LogitsWanted, MAX_BATCH, PlanKey};
use crate::{
    device::{PlanHandle, Region, Ticket},
    error::{GpuError, Result},
    plan::{
        BufferKind, BufferSpec, DecodeShape, Draw, Head, Ids, Plan, PrefillHead, PrefillShape,
        decode::InputLayout,
        decode_plan,
        prefill::PrefillInputs,
        prefill_plan,
        routes::{PREFILL_FROM, chunk_class},
    },
};

impl GpuModel {
    /// Appends `tokens` (1 to [`max_chunk`](Self::max_chunk)) and replaces `out` by the logits asked for.
    pub fn prefill(
        &mut self,
        sequence: u64,
        tokens: &[u32],
        wanted: LogitsWanted,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let most = self.max_chunk();
        if tokens.is_empty() || tokens.len() > most {
            return Err(GpuError::BadChunk { found: tokens.len(), most });
        }
        self.check_append(sequence, tokens)?;
        out.clear();
        let from = self.get(sequence)?.position;
        let last = from + tokens.len() - 1;
        if tokens.len() < PREFILL_FROM {
            self.prefill_by_steps(sequence, tokens, wanted, out)?;
        } else {
            self.prefill_chunk(sequence, tokens, wanted, out)?;
        }
        let vocab = self.config().vocab_size;
        match wanted {
            LogitsWanted::None => {}
            LogitsWanted::Last => check_finite(out, |_| last)?,
            LogitsWanted::All => check_finite(out, |i| from + i / vocab)?,
        }
        self.healthy(&[(sequence, 0)]);
        Ok(())
    }

    fn prefill_by_steps(
        &mut self,
        sequence: u64,
        tokens: &[u32],
        wanted: LogitsWanted,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        for (i, &token) in tokens.iter().enumerate() {
            let last = i + 1 == tokens.len();
            let head = match wanted {
                LogitsWanted::All => Head::Logits,
                LogitsWanted::Last if last => Head::Logits,
                _ => Head::None,
            };
            let ticket = self.submit(&[(sequence, token)], Ids::Input, head, &[])?;
            if last || head == Head::Logits {
                self.device.wait(ticket)?;
            }
            if head == Head::Logits {
                self.read_logits(1, out)?;
            }
        }
        if wanted == LogitsWanted::None { self.check_residual(sequence, 0) } else { Ok(()) }
    }

    fn prefill_chunk(
        &mut self,
        sequence: u64,
        tokens: &[u32],
        wanted: LogitsWanted,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let (most, head) = match wanted {
            LogitsWanted::None => (self.max_chunk(), PrefillHead::None),
            LogitsWanted::Last => (self.max_chunk(), PrefillHead::Last),
            LogitsWanted::All => (LOGITS_CHUNK, PrefillHead::All),
        };
        for part in tokens.chunks(most) {
            let s = *self.get(sequence)?;
            let shape = PrefillShape {
                tokens: chunk_class(part.len()),
                slots: self.cache.slots,
                capacity: self.cache.capacity,
                context: self.cache.capacity,
                head,
            };
            let plan = self.plan(PlanKey::Prefill(shape))?;
            let inputs = PrefillInputs::new(shape.tokens).encode(part, s.position as u32, s.slot as u32);
            if let Some(s) = self.sequences.get_mut(&sequence) {
                s.position += part.len();
                s.poisoned = true;
            }
            let ticket = self.device.submit(plan, &inputs)?;
            self.last = Some(ticket);
            self.device.wait(ticket)?;
            match head {
                PrefillHead::None => self.check_residual(sequence, part.len() - 1)?,
                PrefillHead::Last => self.read_logits(1, out)?,
                PrefillHead::All => self.read_logits(part.len(), out)?,
            }
        }
        Ok(())
    }

    /// Appends one token to each of several different sequences and replaces `out` by their logits,
    /// `[batch.len(), vocab]`.
    pub fn decode(&mut self, batch: &[(u64, u32)], out: &mut Vec<f32>) -> Result<()> {
        self.check_batch(batch)?;
        out.clear();
        for part in batch.chunks(MAX_BATCH) {
            let ticket = self.submit(part, Ids::Input, Head::Logits, &[])?;
            self.device.wait(ticket)?;
            self.read_logits(part.len(), out)?;
        }
        let vocab = self.config().vocab_size;
        let positions: Vec<usize> =
            batch.iter().map(|b| self.get(b.0).map(|s| s.position - 1)).collect::<Result<_>>()?;
        check_finite(out, |i| positions[i / vocab])?;
        self.healthy(batch);
        Ok(())
    }

    /// Whether a batch may run: known and different sequences, known tokens, room.
    pub(super) fn check_batch(&self, batch: &[(u64, u32)]) -> Result<()> {
        let twice = batch.iter().enumerate().any(|(i, b)| batch[..i].iter().any(|a| a.0 == b.0));
        if batch.is_empty() || twice {
            return Err(GpuError::BadChunk { found: batch.len(), most: self.sequences.len() });
        }
        batch.iter().try_for_each(|&(sequence, token)| self.check_append(sequence, &[token]))
    }

    fn check_append(&self, sequence: u64, tokens: &[u32]) -> Result<()> {
        let s = self.get(sequence)?;
        let vocab = self.config().vocab_size;
        if s.poisoned {
            return Err(GpuError::Poisoned);
        }
        if let Some(&id) = tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(GpuError::BadToken { id, vocab });
        }
        if tokens.len() > s.capacity - s.position {
            return Err(GpuError::Full { position: s.position, capacity: s.capacity, asked: tokens.len() });
        }
        Ok(())
    }

    /// Starts a step; the sequences have moved on and count as poisoned until [`GpuModel::healthy`] says otherwise.
    /// With ids from the token slots the batch's tokens are ignored. `draws`: for [`Head::Drawn`] alone.
    pub(super) fn submit(
        &mut self,
        batch: &[(u64, u32)],
        ids: Ids,
        head: Head,
        draws: &[Draw],
    ) -> Result<Ticket> {
        let mut positions = Vec::with_capacity(batch.len());
        let mut slots = Vec::with_capacity(batch.len());
        for &(sequence, _) in batch {
            let s = self.get(sequence)?;
            positions.push(s.position as u32);
            slots.push(s.slot as u32);
        }
        let plan = self.plan(PlanKey::Decode(self.step_shape(&positions, ids, head)))?;
        let tokens: Vec<u32> = batch.iter().map(|b| b.1).collect();
        let layout = InputLayout::ending(batch.len(), head);
        let mut inputs = layout.encode(&tokens, &positions, &slots);
        layout.encode_draws(draws, &mut inputs);
        for &(sequence, _) in batch {
            if let Some(s) = self.sequences.get_mut(&sequence) {
                s.position += 1;
                s.poisoned = true;
            }
        }
        let ticket = self.device.submit(plan, &inputs)?;
        self.last = Some(ticket);
        Ok(ticket)
    }

    /// The shape of a step that makes these positions.
    pub(super) fn step_shape(&self, positions: &[u32], ids: Ids, head: Head) -> DecodeShape {
        let longest = positions.iter().copied().max().unwrap_or(0) as usize + 1;
        let splits = self.device.attention_splits(longest);
        DecodeShape {
            tokens: positions.len(),
            slots: self.cache.slots,
            capacity: self.cache.capacity,
            splits,
            // The class, not the position: one plan serves until the context has doubled.
            context: splits.most(self.cache.capacity),
            ids,
            head,
        }
    }

    /// Returns when nothing runs.
    pub(super) fn idle(&mut self) -> Result<()> {
        match self.last.take() {
            Some(ticket) => self.device.wait(ticket),
            None => Ok(()),
        }
    }

    /// The step is over and its results are good.
    pub(super) fn healthy(&mut self, batch: &[(u64, u32)]) {
        for (sequence, _) in batch {
            if let Some(s) = self.sequences.get_mut(sequence) {
                s.poisoned = false;
            }
        }
    }

    /// The prepared plan of a shape.
    fn plan(&mut self, key: PlanKey) -> Result<PlanHandle> {
        if let Some(&handle) = self.plans.get(&key) {
            return Ok(handle);
        }
        let handle = self.prepare(match key {
            PlanKey::Decode(shape) => decode_plan(&self.shape, &shape),
            PlanKey::Prefill(shape) => prefill_plan(&self.shape, &shape),
        })?;
        self.plans.insert(key, handle);
        Ok(handle)
    }

    /// Memory for a plan, and the plan bound to it.
    pub(super) fn prepare(&mut self, plan: Plan) -> Result<PlanHandle> {
        let workspace = self.device.workspace(&plan);
        let plan = plan.with_workspace(workspace);
        // What the plan needs may replace memory that a running step uses.
        self.idle()?;
        self.make_room(&plan)?;
        let regions: Vec<Option<Region>> =
            plan.buffers.iter().map(|b| self.region(b)).collect::<Result<_>>()?;
        self.device.prepare(Arc::new(plan), &regions)
    }

    /// Scratch as large as the plan needs.
    fn make_room(&mut self, plan: &Plan) -> Result<()> {
        let shared = |b: &&BufferSpec| matches!(b.kind, BufferKind::Scratch | BufferKind::TokenSlots);
        let short = |b: &&BufferSpec| self.scratch.get(&b.name).is_none_or(|have| have.1 < b.bytes);
        let needed: Vec<(String, u64)> =
            plan.buffers.iter().filter(shared).filter(short).map(|b| (b.name.clone(), b.bytes)).collect();
        self.check_memory(needed.iter().map(|n| n.1).sum(), "activations")?;
        for (name, bytes) in needed {
            let buffer = self.device.allocate(&name, bytes)?;
            if let Some((old, _)) = self.scratch.insert(name, (buffer, bytes)) {
                // Plans made before name the old one.
                self.discard_plans();
                self.device.release(old);
            }
        }
        Ok(())
    }

    /// The memory of a plan's buffer; `None` for the input, which is the device's.
    fn region(&self, b: &BufferSpec) -> Result<Option<Region>> {
        let found = match b.kind {
            BufferKind::Input => return Ok(None),
            BufferKind::Weight | BufferKind::Constant => self.tensors.regions.get(&b.name).copied(),
            BufferKind::Kv | BufferKind::State => self.cache.region(&b.name),
            BufferKind::Scratch | BufferKind::TokenSlots => {
                self.scratch.get(&b.name).map(|&(buffer, len)| Region { buffer, offset: 0, len })
            }
        };
        match found {
            Some(region) => Ok(Some(region)),
            None => Err(GpuError::Unsupported {
                what: format!("tensor {}", b.name),
                found: "missing".into(),
                expected: "a tensor of the model",
            }),
        }
    }

    /// Appends the logits of the last step.
    fn read_logits(&mut self, tokens: usize, out: &mut Vec<f32>) -> Result<()> {
        let vocab = self.config().vocab_size;
        let from = out.len();
        out.resize(from + tokens * vocab, 0.0);
        self.read_scratch("logits", 0, bytemuck::cast_slice_mut(&mut out[from..]))
    }

    pub(super) fn read_scratch(&mut self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        match self.scratch.get(name) {
            Some(&(buffer, _)) => self.device.read(buffer, offset, out),
            None => Err(GpuError::Device {
                device: self.device.facts().kind,
                problem: format!("no step has made {name}"),
            }),
        }
    }

    /// After a chunk without logits: a residual stream whose last row is not finite says that something went wrong.
    fn check_residual(&mut self, sequence: u64, row: usize) -> Result<()> {
        let position = self.get(sequence)?.position - 1;
        let mut residual = vec![0f32; self.config().hidden_size];
        let offset = (row * residual.len() * size_of::<f32>()) as u64;
        self.read_scratch("residual", offset, bytemuck::cast_slice_mut(&mut residual))?;
        check_finite(&residual, |_| position)
    }
}

fn check_finite(values: &[f32], position: impl Fn(usize) -> usize) -> Result<()> {
    // Without a way out in the middle this takes vector instructions; a row of logits has 248,320 values.
    if values.iter().fold(true, |fine, v| fine & v.is_finite()) {
        return Ok(());
    }
    match values.iter().position(|v| !v.is_finite()) {
        Some(i) => Err(GpuError::NonFinite { position: position(i) }),
        None => Ok(()),
    }
}
