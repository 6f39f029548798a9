//! Snapshots: a sequence's whole state as bytes.

use super::GpuModel;
use crate::error::{GpuError, Result};

/// Marks a snapshot of this backend; the last two bytes are the layout's version.
const MAGIC: &[u8; 8] = b"LILYGP01";
const HEADER: usize = 24;

impl GpuModel {
    /// The whole state as bytes: 8 of magic and version, the model's fingerprint and the position (u64, little endian),
    /// then per layer keys and values head by head (BF16), or convolution inputs and GDN state (f32).
    pub fn snapshot(&mut self, sequence: u64) -> Result<Vec<u8>> {
        let s = *self.get(sequence)?;
        if s.poisoned {
            return Err(GpuError::Poisoned);
        }
        self.idle()?;
        let pieces = self.cache.pieces(s.slot, s.position);
        let len = HEADER + pieces.iter().map(|p| p.len as usize).sum::<usize>();
        let mut out = Vec::new();
        out.try_reserve_exact(len).map_err(|e| GpuError::OutOfMemory {
            asked: len as u64,
            what: "a snapshot of a sequence".into(),
            available: e.to_string(),
        })?;
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.fingerprint.to_le_bytes());
        out.extend_from_slice(&(s.position as u64).to_le_bytes());
        out.resize(len, 0);
        let mut rest = &mut out[HEADER..];
        for p in pieces {
            let (piece, tail) = rest.split_at_mut(p.len as usize);
            self.device.read(p.buffer, p.offset, piece)?;
            rest = tail;
        }
        Ok(out)
    }

    /// Replaces the state by a snapshot's. When the snapshot is refused the sequence is left as it was.
    pub fn restore(&mut self, sequence: u64, bytes: &[u8]) -> Result<()> {
        let s = *self.get(sequence)?;
        let bad = |what, found: String, expected: String| GpuError::BadSnapshot { what, found, expected };
        if bytes.len() < HEADER {
            return Err(bad("its length", format!("{} bytes", bytes.len()), format!("at least {HEADER}")));
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        if &bytes[..8] != MAGIC {
            let found = String::from_utf8_lossy(&bytes[..8]).escape_debug().to_string();
            return Err(bad("its format", found, String::from_utf8_lossy(MAGIC).to_string()));
        }
        if word(8) != self.fingerprint {
            let expected = format!("{:016x}", self.fingerprint);
            return Err(bad("its model", format!("{:016x}", word(8)), expected));
        }
        let position = usize::try_from(word(16)).unwrap_or(usize::MAX);
        if position > s.capacity {
            let expected = format!("at most {}, the sequence's capacity", s.capacity);
            return Err(bad("its position", position.to_string(), expected));
        }
        let pieces = self.cache.pieces(s.slot, position);
        let expected = HEADER + pieces.iter().map(|p| p.len as usize).sum::<usize>();
        if bytes.len() != expected {
            return Err(bad("its length", format!("{} bytes", bytes.len()), expected.to_string()));
        }
        self.idle()?;
        if let Some(s) = self.sequences.get_mut(&sequence) {
            s.poisoned = true; // until everything is written
        }
        let mut rest = &bytes[HEADER..];
        for p in pieces {
            let (piece, tail) = rest.split_at(p.len as usize);
            self.device.write(p.buffer, p.offset, piece)?;
            rest = tail;
        }
        if let Some(s) = self.sequences.get_mut(&sequence) {
            s.position = position;
            s.poisoned = false;
        }
        Ok(())
    }
}
