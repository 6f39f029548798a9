//! The KV cache of one attention layer of one sequence, bf16, in blocks of [`POSITIONS`] that are allocated as the
//! sequence grows.
//!
//! Keys of a KV head are stored for 16 positions at a time, `[position / 16][dim / 2][16][2]`: sixteen scores grow in
//! the lanes of one vector with nothing to add up at the end. Values are `[position][dim]`.

use crate::{buf::Buf, error::Result};

/// Positions of a block.
pub const POSITIONS: usize = 256;
/// Positions that share a vector of scores.
pub const LANES: usize = 16;

/// Rounds to the nearest bf16, ties to even. NaN stays NaN.
#[inline(always)]
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return ((bits >> 16) | 0x40) as u16;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Keys and values of one attention layer.
#[derive(Debug)]
pub(crate) struct KvCache {
    kv_heads: usize,
    head_dim: usize,
    blocks: Vec<Block>,
}

#[derive(Debug)]
struct Block {
    /// `[kv_head][POSITIONS / 16][dim / 2][16][2]`.
    k: Buf<u16>,
    /// `[kv_head][POSITIONS][dim]`.
    v: Buf<u16>,
}

/// The part of a block that belongs to one KV head, for appending.
pub(crate) struct HeadBlockMut<'a> {
    /// First position of the block.
    pub(crate) first: usize,
    pub(crate) kv_head: usize,
    k: &'a mut [u16],
    v: &'a mut [u16],
}

impl HeadBlockMut<'_> {
    /// Stores the key and the value of `position`.
    pub(crate) fn put(&mut self, position: usize, key: &[f32], value: &[f32]) {
        let dim = key.len();
        let p = position - self.first;
        let group = &mut self.k[p / LANES * LANES * dim..][..LANES * dim];
        for (pair, x) in key.chunks_exact(2).enumerate() {
            let at = pair * 2 * LANES + p % LANES * 2;
            group[at] = to_bf16(x[0]);
            group[at + 1] = to_bf16(x[1]);
        }
        for (v, &x) in self.v[p * dim..(p + 1) * dim].iter_mut().zip(value) {
            *v = to_bf16(x);
        }
    }
}

impl KvCache {
    pub(crate) fn new(kv_heads: usize, head_dim: usize) -> Self {
        Self { kv_heads, head_dim, blocks: Vec::new() }
    }

    /// Makes room for `positions` in all. On an error nothing is lost.
    pub(crate) fn grow(&mut self, positions: usize) -> Result<()> {
        let n = self.kv_heads * POSITIONS * self.head_dim;
        while self.blocks.len() * POSITIONS < positions {
            let block = Block { k: Buf::new(n, "the KV cache")?, v: Buf::new(n, "the KV cache")? };
            self.blocks.push(block);
        }
        Ok(())
    }

    pub(crate) fn byte_len(&self) -> usize {
        self.blocks.iter().map(|b| b.k.byte_len() + b.v.byte_len()).sum()
    }

    /// The (block, KV head) parts that hold any of `positions`, for appending.
    pub(crate) fn heads_mut(&mut self, positions: std::ops::Range<usize>) -> Vec<HeadBlockMut<'_>> {
        let n = POSITIONS * self.head_dim;
        let (first, last) = (positions.start / POSITIONS, (positions.end - 1) / POSITIONS);
        let mut out = Vec::with_capacity((last - first + 1) * self.kv_heads);
        for (i, block) in self.blocks[first..=last].iter_mut().enumerate() {
            let heads = block.k.chunks_exact_mut(n).zip(block.v.chunks_exact_mut(n));
            for (kv_head, (k, v)) in heads.enumerate() {
                out.push(HeadBlockMut { first: (first + i) * POSITIONS, kv_head, k, v });
            }
        }
        out
    }

    /// Keys of the 16 positions from `position` (a multiple of 16) on: `[dim / 2][16][2]`.
    #[inline]
    pub(crate) fn keys(&self, kv_head: usize, position: usize) -> &[u16] {
        let at = (kv_head * POSITIONS + position % POSITIONS) * self.head_dim;
        &self.blocks[position / POSITIONS].k[at..at + LANES * self.head_dim]
    }

    /// Values from `position` to the end of its block: `[..][dim]`.
    #[inline]
    pub(crate) fn values(&self, kv_head: usize, position: usize) -> &[u16] {
        let at = (kv_head * POSITIONS + position % POSITIONS) * self.head_dim;
        &self.blocks[position / POSITIONS].v[at..(kv_head + 1) * POSITIONS * self.head_dim]
    }

    /// Bytes that [`KvCache::write`] writes for `positions`.
    pub(crate) fn snapshot_len(kv_heads: usize, head_dim: usize, positions: usize) -> usize {
        kv_heads * (positions.next_multiple_of(LANES) + positions) * head_dim * 2
    }

    /// Appends the first `positions` to `out`, block after block.
    pub(crate) fn write(&self, positions: usize, out: &mut Vec<u8>) {
        for i in 0..positions.div_ceil(POSITIONS) {
            self.write_block(i, positions.saturating_sub(i * POSITIONS).min(POSITIONS), out);
        }
    }

    /// Appends the first `n` positions of a block to `out`: per KV head, keys (whole groups of 16), then values.
    pub(crate) fn write_block(&self, block: usize, n: usize, out: &mut Vec<u8>) {
        let block = &self.blocks[block];
        for h in 0..self.kv_heads {
            let at = h * POSITIONS * self.head_dim;
            let keys = n.next_multiple_of(LANES) * self.head_dim;
            out.extend_from_slice(bytemuck::cast_slice(&block.k[at..at + keys]));
            out.extend_from_slice(bytemuck::cast_slice(&block.v[at..at + n * self.head_dim]));
        }
    }

    /// Reads what [`KvCache::write`] wrote; `bytes` has exactly the right length and the cache has room.
    pub(crate) fn read(&mut self, positions: usize, mut bytes: &[u8]) {
        for i in 0..positions.div_ceil(POSITIONS) {
            let n = positions.saturating_sub(i * POSITIONS).min(POSITIONS);
            let (block, rest) = bytes.split_at(Self::snapshot_len(self.kv_heads, self.head_dim, n));
            self.read_block(i, n, block);
            bytes = rest;
        }
    }

    /// Reads what [`KvCache::write_block`] wrote; `bytes` has exactly the right length.
    pub(crate) fn read_block(&mut self, block: usize, n: usize, mut bytes: &[u8]) {
        let mut take = |to: &mut [u16]| {
            let (head, tail) = bytes.split_at(to.len() * 2);
            bytemuck::cast_slice_mut::<u16, u8>(to).copy_from_slice(head);
            bytes = tail;
        };
        let block = &mut self.blocks[block];
        for h in 0..self.kv_heads {
            let at = h * POSITIONS * self.head_dim;
            let keys = n.next_multiple_of(LANES) * self.head_dim;
            take(&mut block.k[at..at + keys]);
            take(&mut block.v[at..at + n * self.head_dim]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_like_half() {
        for bits in (0..=u32::MAX).step_by(65_521) {
            let x = f32::from_bits(bits);
            let want = half::bf16::from_f32(x);
            if x.is_nan() {
                assert!(half::bf16::from_bits(to_bf16(x)).is_nan());
            } else {
                assert_eq!(to_bf16(x), want.to_bits(), "{x}");
            }
        }
    }

    #[test]
    fn what_is_put_is_found() {
        let (heads, dim) = (2, 32);
        let mut kv = KvCache::new(heads, dim);
        kv.grow(300).unwrap();
        let value = |h: usize, p: usize, d: usize| ((h * 1000 + p * 3 + d) % 251) as f32;
        for mut part in kv.heads_mut(250..300) {
            for p in 250..300 {
                if p / POSITIONS * POSITIONS == part.first {
                    let row: Vec<f32> = (0..dim).map(|d| value(part.kv_head, p, d)).collect();
                    part.put(p, &row, &row);
                }
            }
        }
        let mut bytes = Vec::new();
        kv.write(300, &mut bytes);
        assert_eq!(bytes.len(), KvCache::snapshot_len(heads, dim, 300));
        let mut copy = KvCache::new(heads, dim);
        copy.grow(300).unwrap();
        copy.read(300, &bytes);
        for h in 0..heads {
            for p in 250..300 {
                let keys = copy.keys(h, p / LANES * LANES);
                let values = copy.values(h, p);
                for d in 0..dim {
                    let want = to_bf16(value(h, p, d));
                    assert_eq!(keys[d / 2 * 2 * LANES + p % LANES * 2 + d % 2], want);
                    assert_eq!(values[d], want);
                }
            }
        }
    }
}
