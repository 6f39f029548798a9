//! Greedy decoding with the ids staying on the device: the sampler of a step writes the slot that the next step's
//! embedding reads, and the next step is committed before the host looks at the current one.

use super::{GpuModel, MAX_BATCH};
use crate::{
    device::Ticket,
    error::{GpuError, Result},
    plan::{Head, Ids, decode::token_slot_offset},
};

impl GpuModel {
    /// Appends the batch's tokens and then the ids of the largest logits, `steps` in all; returns what was chosen, step by
    /// step. Ids from `valid` on are never chosen. The last step's ids are not appended.
    pub fn decode_greedy(
        &mut self,
        batch: &[(u64, u32)],
        steps: usize,
        valid: usize,
    ) -> Result<Vec<Vec<u32>>> {
        self.check_batch(batch)?;
        let vocab = self.config().vocab_size;
        if batch.len() > MAX_BATCH {
            return Err(GpuError::BadChunk { found: batch.len(), most: MAX_BATCH });
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
        let mut chosen = Vec::with_capacity(steps);
        let mut running: Option<(Ticket, usize)> = None;
        for step in 0..steps {
            let slot = step % 2;
            let ids = if step == 0 { Ids::Input } else { Ids::Slot(1 - slot) };
            let ticket = self.submit(batch, ids, Head::Greedy { slot, valid })?;
            if let Some((before, slot)) = running.replace((ticket, slot)) {
                chosen.push(self.take_ids(batch, before, slot)?);
            }
        }
        if let Some((ticket, slot)) = running {
            chosen.push(self.take_ids(batch, ticket, slot)?);
        }
        self.healthy(batch);
        Ok(chosen)
    }

    fn take_ids(&mut self, batch: &[(u64, u32)], ticket: Ticket, slot: usize) -> Result<Vec<u32>> {
        self.device.wait(ticket)?;
        let mut both = vec![0u32; token_slot_offset(batch.len(), 2) / 4];
        self.read_scratch("token_slots", 0, bytemuck::cast_slice_mut(&mut both))?;
        let ids = both[token_slot_offset(batch.len(), slot) / 4..][..batch.len()].to_vec();
        // A row of NaN has no largest value.
        match ids.iter().position(|&id| id as usize >= self.config().vocab_size) {
            Some(i) => Err(GpuError::NonFinite { position: self.get(batch[i].0)?.position - 1 }),
            None => Ok(ids),
        }
    }
}
