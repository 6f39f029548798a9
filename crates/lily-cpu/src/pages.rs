//! A sequence's state in parts that several checkpoints can share: the KV cache in pages, and what cannot be shared.
//!
//! KV rows of a prefix are the same whatever follows them, so two checkpoints of one conversation, or two conversations
//! that begin alike, hold the pages they have in common once. GDN state and convolution rows exist at one position
//! only.

use crate::{
    Sequence,
    buf::Buf,
    error::{CpuError, Result},
    kv::{KvCache, POSITIONS},
    sequence::{HEADER, LayerState},
};

/// Positions of a KV page: a block of the cache, so that pages begin and end where memory does.
pub const PAGE: usize = POSITIONS;

/// Marks the part of a sequence's state that is not KV; the last two bytes are the layout's version.
const MAGIC: &[u8; 8] = b"LILYCS01";

impl Sequence {
    /// GDN and convolution state as bytes: 8 of magic and version, the model's fingerprint and the position (u64, little
    /// endian), then per GDN layer state and convolution rows (f32). For this machine's byte order.
    pub fn snapshot_state(&mut self) -> Result<Vec<u8>> {
        if self.poisoned {
            return Err(CpuError::Poisoned);
        }
        self.flush();
        let mut out = reserve(self.state_len())?;
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.fingerprint.to_le_bytes());
        out.extend_from_slice(&(self.position as u64).to_le_bytes());
        for layer in &self.layers {
            if let LayerState::Gdn(g) = layer {
                for part in std::iter::once(&g.state).chain(&g.conv) {
                    out.extend_from_slice(bytemuck::cast_slice(part));
                }
            }
        }
        Ok(out)
    }

    /// The KV rows of page `page` that the sequence has, of all attention layers one after the other; empty when it has
    /// none.
    pub fn read_page(&self, page: usize) -> Result<Vec<u8>> {
        if self.poisoned {
            return Err(CpuError::Poisoned);
        }
        let n = rows(self.position, page);
        let mut out = reserve(self.page_len(n))?;
        for layer in &self.layers {
            if let LayerState::Attention(kv) = layer
                && n > 0
            {
                kv.write_block(page, n, &mut out);
            }
        }
        Ok(out)
    }

    /// Replaces the state by what [`Sequence::snapshot_state`] and [`Sequence::read_page`] (for every page of the
    /// position) gave. When it is refused the sequence is left as it was.
    pub fn restore_pages(&mut self, state: &[u8], pages: &[&[u8]]) -> Result<()> {
        let bad = |what, found: String, expected: String| CpuError::BadSnapshot { what, found, expected };
        let expected = self.state_len();
        if state.len() != expected {
            return Err(bad("its length", format!("{} bytes", state.len()), expected.to_string()));
        }
        if &state[..8] != MAGIC {
            let found = String::from_utf8_lossy(&state[..8]).escape_debug().to_string();
            return Err(bad("its format", found, String::from_utf8_lossy(MAGIC).to_string()));
        }
        let word = |at: usize| u64::from_le_bytes(state[at..at + 8].try_into().expect("eight bytes"));
        if word(8) != self.fingerprint {
            let expected = format!("{:016x}", self.fingerprint);
            return Err(bad("its model", format!("{:016x}", word(8)), expected));
        }
        let position = usize::try_from(word(16)).unwrap_or(usize::MAX);
        if position > self.capacity {
            let expected = format!("at most {}, the sequence's capacity", self.capacity);
            return Err(bad("its position", position.to_string(), expected));
        }
        let count = position.div_ceil(PAGE);
        if pages.len() != count {
            return Err(bad("its number of pages", pages.len().to_string(), count.to_string()));
        }
        for (i, page) in pages.iter().enumerate() {
            let expected = self.page_len(rows(position, i));
            if page.len() != expected {
                return Err(bad("a page's length", format!("{} bytes", page.len()), expected.to_string()));
            }
        }
        self.grow(position)?;
        let (heads, dim) = (self.config.num_key_value_heads, self.config.head_dim);
        let mut rest = &state[HEADER..];
        let mut attention = 0;
        for layer in &mut self.layers {
            match layer {
                LayerState::Gdn(g) => {
                    g.late.n = 0;
                    for to in std::iter::once(&mut g.state).chain(&mut g.conv) {
                        let (from, tail) = rest.split_at(to.len() * size_of::<f32>());
                        copy(to, from);
                        rest = tail;
                    }
                }
                LayerState::Attention(kv) => {
                    for (i, page) in pages.iter().enumerate() {
                        let n = rows(position, i);
                        let len = KvCache::snapshot_len(heads, dim, n);
                        kv.read_block(i, n, &page[attention * len..(attention + 1) * len]);
                    }
                    attention += 1;
                }
            }
        }
        self.position = position;
        self.poisoned = false;
        Ok(())
    }

    /// Bytes of [`Sequence::snapshot_state`].
    fn state_len(&self) -> usize {
        let values = |l: &LayerState| match l {
            LayerState::Gdn(g) => std::iter::once(&g.state).chain(&g.conv).map(|b| b.len()).sum(),
            LayerState::Attention(_) => 0,
        };
        HEADER + size_of::<f32>() * self.layers.iter().map(values).sum::<usize>()
    }

    /// Bytes of a page of `n` positions.
    fn page_len(&self, n: usize) -> usize {
        let layers = self.layers.iter().filter(|l| matches!(l, LayerState::Attention(_))).count();
        layers * KvCache::snapshot_len(self.config.num_key_value_heads, self.config.head_dim, n)
    }
}

/// Positions of page `page` that a sequence at `position` has.
fn rows(position: usize, page: usize) -> usize {
    position.saturating_sub(page.saturating_mul(PAGE)).min(PAGE)
}

fn copy(to: &mut Buf<f32>, from: &[u8]) {
    bytemuck::cast_slice_mut::<f32, u8>(to).copy_from_slice(from);
}

fn reserve(len: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    out.try_reserve_exact(len)
        .map_err(|_| CpuError::OutOfMemory { asked: len, what: "a snapshot of a sequence" })?;
    Ok(out)
}
