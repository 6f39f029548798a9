//! Decoding with the ids staying on the device: the sampler of a step writes the slot that the next step's embedding
//! reads, and the next step is committed before the host looks at the current one.

use super::{GpuModel, MAX_BATCH};
use crate::{
    device::Ticket,
    error::{GpuError, Result},
    plan::{Draw, Head, Ids, decode::token_slot_offset},
};

/// What a step has chosen.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'a> {
    /// An id a sequence; of no meaning where the host is to choose.
    pub ids: &'a [u32],
    /// Logits of the sequences whose tokens the host chooses, in order, `[those, vocab]`.
    pub logits: &'a [f32],
}

impl GpuModel {
    /// Most sequences of a [`decode_run`](Self::decode_run).
    pub fn most_drawn(&self) -> usize {
        MAX_BATCH
    }

    /// Appends the batch's tokens and then what the device chooses, for up to `steps` steps. `each` gets what a step has
    /// chosen, an id a sequence, and says whether another step is wanted. The next step is under way by then: after
    /// `false` it is finished, and `each` called for it too. So the sequences grow by a token for each call of `each`,
    /// and the ids of the last call are not appended. Ids from `valid` on are never chosen. A sequence without a draw
    /// gives its logits instead; then there can be one step only.
    pub fn decode_run(
        &mut self,
        batch: &[(u64, u32)],
        draws: &[Option<Draw>],
        steps: usize,
        valid: usize,
        each: &mut dyn FnMut(Chosen<'_>) -> bool,
    ) -> Result<()> {
        self.check_batch(batch)?;
        let vocab = self.config().vocab_size;
        if batch.len() > MAX_BATCH || draws.len() != batch.len() {
            return Err(GpuError::BadChunk { found: batch.len().max(draws.len()), most: MAX_BATCH });
        }
        let by_host: Vec<usize> = (0..draws.len()).filter(|&i| draws[i].is_none()).collect();
        if steps > 1 && !by_host.is_empty() {
            return Err(GpuError::BadChunk { found: steps, most: 1 });
        }
        if valid == 0 || valid > vocab {
            return Err(GpuError::BadToken { id: valid as u32, vocab });
        }
        for &(sequence, _) in batch {
            let s = self.get(sequence)?;
            if steps > s.capacity - s.position {
                return Err(GpuError::Full { position: s.position, capacity: s.capacity, asked: steps });
            }
        }
        let draws: Vec<Draw> = draws.iter().map(|d| d.unwrap_or(Draw::GREEDY)).collect();
        let greedy = draws.iter().all(|d| d.temperature == 0.0);
        let mut running: Option<(Ticket, usize)> = None;
        for step in 0..steps {
            let slot = step % 2;
            let ids = if step == 0 { Ids::Input } else { Ids::Slot(1 - slot) };
            let ticket = if greedy {
                self.submit(batch, ids, Head::Greedy { slot, valid }, &[])?
            } else {
                self.submit(batch, ids, Head::Drawn { slot, valid }, &draws)?
            };
            if let Some((before, slot)) = running.replace((ticket, slot)) {
                let ids = self.take_ids(batch, before, slot, 1)?;
                if !each(Chosen { ids: &ids, logits: &[] }) {
                    break;
                }
            }
        }
        if let Some((ticket, slot)) = running {
            let ids = self.take_ids(batch, ticket, slot, 0)?;
            let mut logits = vec![0f32; by_host.len() * vocab];
            for (row, &i) in logits.chunks_exact_mut(vocab).zip(&by_host) {
                let offset = (i * vocab * size_of::<f32>()) as u64;
                self.read_scratch("logits", offset, bytemuck::cast_slice_mut(row))?;
            }
            self.healthy(batch);
            each(Chosen { ids: &ids, logits: &logits });
        }
        Ok(())
    }

    /// The ids of a step, behind which `ahead` more are under way.
    fn take_ids(
        &mut self,
        batch: &[(u64, u32)],
        ticket: Ticket,
        slot: usize,
        ahead: usize,
    ) -> Result<Vec<u32>> {
        self.device.wait(ticket)?;
        let mut ids = vec![0u32; batch.len()];
        let offset = token_slot_offset(batch.len(), slot) as u64;
        self.read_scratch("token_slots", offset, bytemuck::cast_slice_mut(&mut ids))?;
        // Logits that are not finite have no largest value.
        match ids.iter().position(|&id| id as usize >= self.config().vocab_size) {
            Some(i) => Err(GpuError::NonFinite { position: self.get(batch[i].0)?.position - 1 - ahead }),
            None => Ok(ids),
        }
    }
}
