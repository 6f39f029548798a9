//! Activations as integers, prepared once and shared by every row and every expert that reads them.
//!
//! Each 64-element group of a vector (the group of the weights' scales) gets its own step `scale = max|x| / 32639`
//! and becomes 16-bit integers `x ~ scale * (256 * hi + lo)`, with `hi` and `lo` signed bytes. With a weight group
//! `w = s * q + b` (`q` unsigned, 4 or 8 bits) a dot product is
//!
//! ```text
//! sum_j w_j x_j = s * scale * (256 * (q . hi) + q . lo) + b * sum        sum = scale * sum_j (256 * hi_j + lo_j)
//! ```
//!
//! two byte dot products, which `vpdpbusd`, `maddubs` and `sdot` do directly, at a precision of 15 bits. `sum` is of
//! the rounded values, not of `x`: then a rounding error is multiplied by `w`, not by the three times larger `s * q`.
//!
//! # Layout
//! Tokens come in tiles of up to [`TILE`]; two groups are a *pair*, and a pair of one token is four lines of 64 bytes.
//! A tile of `T` tokens is `[pair][line 0..4][token 0..T][64]`, so the address of any byte in a tile is a constant
//! plus a multiple of the pair, and a tile of one token is contiguous for the matrix-vector kernels. Within a pair:
//!
//! * [`Order::Nibble`], for 4-bit weights, whose bytes hold (even, odd) elements in (low, high) halves:
//!   lines are `hi` of even, `hi` of odd, `lo` of even, `lo` of odd elements; bytes 0..32 of the first group,
//!   32..64 of the second;
//! * [`Order::Byte`], for 8-bit weights: `hi` of the first group, `hi` of the second, `lo`, `lo`, in natural order.
//!
//! Scales and sums of a tile are `[group][token]`, groups padded with zeros to a multiple of 16.

use crate::{buf::Buf, error::Result, kernels::Kernels};

/// Elements that share a scale.
pub const GROUP: usize = 64;
/// Elements of two groups.
pub const PAIR: usize = 2 * GROUP;
/// Most tokens of a tile: 2 row vectors x 12 tokens of accumulators, 2 of weights and a broadcast fit 32 registers.
pub const TILE: usize = 12;
/// So few tokens are tiles of one each, for the matrix-vector kernels: unpacking the rows for a product with a tile costs
/// as much as the products of one token and a half, and a tile of 2 or 3 tokens leaves the kernel waiting for its own sums.
pub const SINGLY: usize = 3;
/// Bytes of a pair of one token.
pub const PAIR_BYTES: usize = 256;

/// Order of the elements inside a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// For 4-bit weights.
    Nibble,
    /// For 8-bit weights.
    Byte,
}

impl Order {
    /// The order that weights of `bits` bits read.
    pub fn of_bits(bits: usize) -> Self {
        if bits == 4 { Order::Nibble } else { Order::Byte }
    }
}

/// Which orders the readers of a vector need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// Some reader has 4-bit weights.
    pub nibble: bool,
    /// Some reader has 8-bit weights.
    pub byte: bool,
}

impl Need {
    /// What matrices with these widths need.
    pub fn of_bits(bits: impl IntoIterator<Item = usize>) -> Self {
        let mut need = Need::default();
        for b in bits {
            match Order::of_bits(b) {
                Order::Nibble => need.nibble = true,
                Order::Byte => need.byte = true,
            }
        }
        need
    }
}

/// How `n` tokens are split into tiles: up to [`SINGLY`] one by one; more into as few as possible, of nearly equal size,
/// larger ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiles {
    /// Tokens.
    pub n: usize,
    /// Tiles.
    pub count: usize,
    base: usize,
    extra: usize,
}

impl Tiles {
    /// The split of `n` tokens.
    pub fn new(n: usize) -> Self {
        let count = if n <= SINGLY { n } else { n.div_ceil(TILE) };
        Self { n, count, base: n.checked_div(count).unwrap_or(0), extra: n.checked_rem(count).unwrap_or(0) }
    }

    /// Whether every tile is one token.
    #[inline]
    pub fn singly(&self) -> bool {
        self.count == self.n
    }

    /// First token of tile `i`.
    #[inline]
    pub fn start(&self, i: usize) -> usize {
        i * self.base + i.min(self.extra)
    }

    /// Tokens of tile `i`.
    #[inline]
    pub fn size(&self, i: usize) -> usize {
        self.base + usize::from(i < self.extra)
    }

    /// The tile of token `t` and its place there.
    #[inline]
    pub fn locate(&self, t: usize) -> (usize, usize) {
        let big = self.extra * (self.base + 1);
        if t < big {
            (t / (self.base + 1), t % (self.base + 1))
        } else {
            (self.extra + (t - big) / self.base, (t - big) % self.base)
        }
    }
}

/// Quantised activations of up to a fixed number of tokens. `cols` and the number of tokens are set by
/// [`Acts::reset`]; buffers are reused.
#[derive(Debug)]
pub struct Acts {
    cols: usize,
    tiles: Tiles,
    nibble: Buf<u8>,
    byte: Buf<u8>,
    scale: Buf<f32>,
    sum: Buf<f32>,
}

fn pairs(cols: usize) -> usize {
    cols.div_ceil(PAIR)
}

fn padded_groups(cols: usize) -> usize {
    (cols / GROUP).next_multiple_of(16)
}

impl Acts {
    /// Room for `tokens` vectors of `cols` elements in the orders of `need`.
    pub fn new(tokens: usize, cols: usize, need: Need) -> Result<Self> {
        let bytes = tokens * pairs(cols) * PAIR_BYTES;
        let what = "quantised activations";
        Ok(Self {
            cols,
            tiles: Tiles::new(0),
            nibble: Buf::new(if need.nibble { bytes } else { 0 }, what)?,
            byte: Buf::new(if need.byte { bytes } else { 0 }, what)?,
            scale: Buf::new(tokens * padded_groups(cols), what)?,
            sum: Buf::new(tokens * padded_groups(cols), what)?,
        })
    }

    /// Bytes held.
    pub fn byte_len(&self) -> usize {
        self.nibble.byte_len() + self.byte.byte_len() + self.scale.byte_len() + self.sum.byte_len()
    }

    /// Makes it hold `tokens` vectors of `cols` elements, contents unspecified.
    pub fn reset(&mut self, tokens: usize, cols: usize) {
        assert!(cols.is_multiple_of(GROUP));
        let bytes = tokens * pairs(cols) * PAIR_BYTES;
        assert!(
            (self.nibble.is_empty() || bytes <= self.nibble.len())
                && (self.byte.is_empty() || bytes <= self.byte.len())
                && tokens * padded_groups(cols) <= self.scale.len(),
            "{tokens} x {cols} activations do not fit"
        );
        self.cols = cols;
        self.tiles = Tiles::new(tokens);
    }

    /// Elements of a vector.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The split into tiles.
    pub fn tiles(&self) -> Tiles {
        self.tiles
    }

    /// The tiles, for writing.
    pub fn tiles_mut(&mut self) -> Vec<TileMut<'_>> {
        self.parts_mut(&[self.tiles.n]).pop().expect("one part")
    }

    /// Consecutive parts with `counts` tokens, each with tiles of its own, for writing.
    pub fn parts_mut(&mut self, counts: &[usize]) -> Vec<Vec<TileMut<'_>>> {
        let (pairs, groups) = (pairs(self.cols), padded_groups(self.cols));
        let mut nibble = &mut self.nibble[..];
        let mut byte = &mut self.byte[..];
        let (mut scale, mut sum) = (&mut self.scale[..], &mut self.sum[..]);
        let mut parts = Vec::with_capacity(counts.len());
        for &n in counts {
            let tiles = Tiles::new(n);
            let mut out = Vec::with_capacity(tiles.count);
            for i in 0..tiles.count {
                let t = tiles.size(i);
                out.push(TileMut {
                    token0: tiles.start(i),
                    tokens: t,
                    pair0: 0,
                    pairs,
                    cols: self.cols,
                    nibble: take(&mut nibble, t * pairs * PAIR_BYTES),
                    byte: take(&mut byte, t * pairs * PAIR_BYTES),
                    scale: take(&mut scale, t * groups),
                    sum: take(&mut sum, t * groups),
                });
            }
            parts.push(out);
        }
        parts
    }

    /// The part of `n` tokens that starts after `base` tokens of earlier parts.
    pub fn part(&self, base: usize, n: usize) -> Part<'_> {
        Part { acts: self, base, tiles: Tiles::new(n) }
    }

    /// The only tile, for writing: of one vector, or of more than [`SINGLY`] up to [`TILE`].
    pub fn only_tile_mut(&mut self) -> TileMut<'_> {
        assert_eq!(self.tiles.count, 1);
        let tokens = self.tiles.n;
        let (pairs, groups) = (pairs(self.cols), padded_groups(self.cols));
        let bytes = tokens * pairs * PAIR_BYTES;
        let has = |b: &Buf<u8>| if b.is_empty() { 0 } else { bytes };
        let (nb, bb) = (has(&self.nibble), has(&self.byte));
        TileMut {
            token0: 0,
            tokens,
            pair0: 0,
            pairs,
            cols: self.cols,
            nibble: &mut self.nibble[..nb],
            byte: &mut self.byte[..bb],
            scale: &mut self.scale[..tokens * groups],
            sum: &mut self.sum[..tokens * groups],
        }
    }

    /// Tile `i` in `order`.
    #[inline]
    pub fn tile(&self, i: usize, order: Order) -> Tile<'_> {
        self.tile_at(self.tiles.start(i), self.tiles.size(i), order)
    }

    #[inline]
    fn tile_at(&self, start: usize, tokens: usize, order: Order) -> Tile<'_> {
        let (pairs, groups) = (pairs(self.cols), padded_groups(self.cols));
        let lines = match order {
            Order::Nibble => &self.nibble,
            Order::Byte => &self.byte,
        };
        Tile {
            tokens,
            cols: self.cols,
            lines: &lines[start * pairs * PAIR_BYTES..][..tokens * pairs * PAIR_BYTES],
            scale: &self.scale[start * groups..][..tokens * groups],
            sum: &self.sum[start * groups..][..tokens * groups],
        }
    }

    /// Copies vector `from` of `src` (same `cols`) to vector `to` of `self`, in the orders both have.
    pub fn copy_from(&mut self, to: usize, src: &Acts, from: usize) {
        debug_assert_eq!(self.cols, src.cols);
        let (pairs, groups) = (pairs(self.cols), padded_groups(self.cols));
        let (ti, t) = self.tiles.locate(to);
        let (si, s) = src.tiles.locate(from);
        let (tn, sn) = (self.tiles.size(ti), src.tiles.size(si));
        let (t0, s0) = (self.tiles.start(ti), src.tiles.start(si));
        for (dst, src) in [(&mut self.nibble, &src.nibble), (&mut self.byte, &src.byte)] {
            if dst.is_empty() || src.is_empty() {
                continue;
            }
            let dst = &mut dst[t0 * pairs * PAIR_BYTES..][..tn * pairs * PAIR_BYTES];
            let src = &src[s0 * pairs * PAIR_BYTES..][..sn * pairs * PAIR_BYTES];
            for (d, line) in dst.chunks_exact_mut(64 * tn).zip(src.chunks_exact(64 * sn)) {
                // A fixed-size array becomes one vector move.
                let line: [u8; 64] = line[s * 64..s * 64 + 64].try_into().expect("64 bytes");
                d[t * 64..t * 64 + 64].copy_from_slice(&line);
            }
        }
        for (dst, src) in [(&mut self.scale, &src.scale), (&mut self.sum, &src.sum)] {
            let dst = &mut dst[t0 * groups..][..tn * groups];
            let src = &src[s0 * groups..][..sn * groups];
            for g in 0..groups {
                dst[g * tn + t] = src[g * sn + s];
            }
        }
    }
}

/// Some tokens of an [`Acts`], with tiles of their own.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    acts: &'a Acts,
    base: usize,
    /// The split into tiles.
    pub tiles: Tiles,
}

impl<'a> Part<'a> {
    /// Tile `i` in `order`.
    #[inline]
    pub fn tile(&self, i: usize, order: Order) -> Tile<'a> {
        self.acts.tile_at(self.base + self.tiles.start(i), self.tiles.size(i), order)
    }
}

fn take<'a, T>(from: &mut &'a mut [T], n: usize) -> &'a mut [T] {
    if from.is_empty() {
        return &mut [];
    }
    let (head, tail) = std::mem::take(from).split_at_mut(n);
    *from = tail;
    head
}

/// A tile for reading by a kernel.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a> {
    /// Tokens.
    pub tokens: usize,
    /// Elements of a vector.
    pub cols: usize,
    /// `[pair][4][token][64]`.
    pub lines: &'a [u8],
    /// `[group][token]`.
    pub scale: &'a [f32],
    /// `[group][token]`.
    pub sum: &'a [f32],
}

/// A tile, or some neighbouring pairs of it, for writing.
#[derive(Debug)]
pub struct TileMut<'a> {
    /// First token of the tile.
    pub token0: usize,
    /// Tokens.
    pub tokens: usize,
    /// First pair.
    pub pair0: usize,
    pairs: usize,
    cols: usize,
    nibble: &'a mut [u8],
    byte: &'a mut [u8],
    scale: &'a mut [f32],
    sum: &'a mut [f32],
}

impl<'a> TileMut<'a> {
    /// Cuts the tile into parts of `pairs` pairs each.
    pub fn split_pairs(self, pairs: usize) -> Vec<TileMut<'a>> {
        let t = self.tokens;
        let (mut nibble, mut byte, mut scale, mut sum) = (self.nibble, self.byte, self.scale, self.sum);
        (0..self.pairs)
            .step_by(pairs)
            .map(|p| {
                let last = p + pairs >= self.pairs;
                let n = pairs.min(self.pairs - p);
                let groups = if last { scale.len() } else { 2 * n * t };
                TileMut {
                    token0: self.token0,
                    tokens: t,
                    pair0: self.pair0 + p,
                    pairs: n,
                    cols: (self.cols - p * PAIR).min(n * PAIR),
                    nibble: take(&mut nibble, n * t * PAIR_BYTES),
                    byte: take(&mut byte, n * t * PAIR_BYTES),
                    scale: take(&mut scale, groups),
                    sum: take(&mut sum, groups),
                }
            })
            .collect()
    }

    /// Elements of this part of a vector.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Quantises `x` (all of this part's elements of token `t` of the tile).
    pub fn quantize(&mut self, k: &Kernels, t: usize, x: &[f32]) {
        assert_eq!(x.len(), self.cols);
        self.quantize_at(k, t, 0, x);
        self.pad(t);
    }

    /// Quantises `x` as the elements from `col` on (a multiple of 64) of token `t`. The caller writes every
    /// group, and calls [`TileMut::pad`] for each token.
    pub fn quantize_at(&mut self, k: &Kernels, t: usize, col: usize, x: &[f32]) {
        let tn = self.tokens;
        assert!(t < tn && col.is_multiple_of(GROUP) && col + x.len() <= self.cols);
        for (i, x) in x.chunks_exact(GROUP).enumerate() {
            let g = col / GROUP + i;
            let at = (g / 2 * 4 * tn + t) * 64;
            let (scale, sum) = k.quantize_group(
                x.try_into().expect("one group"),
                self.nibble.get_mut(at..).unwrap_or_default(),
                self.byte.get_mut(at..).unwrap_or_default(),
                64 * tn,
                g % 2,
            );
            self.scale[g * tn + t] = scale;
            self.sum[g * tn + t] = sum;
        }
    }

    /// Zeroes what follows the last group of token `t`: the other half of an odd pair, and padding groups.
    pub fn pad(&mut self, t: usize) {
        let tn = self.tokens;
        let groups = self.cols / GROUP;
        if groups % 2 == 1 {
            let at = groups / 2 * 4 * tn + t;
            for line in 0..4 {
                let at = (at + line * tn) * 64;
                if let Some(l) = self.nibble.get_mut(at..at + 64) {
                    l[32..].fill(0);
                }
                if let Some(l) = self.byte.get_mut(at..at + 64).filter(|_| line % 2 == 1) {
                    l.fill(0);
                }
            }
        }
        for g in groups..self.scale.len() / tn {
            self.scale[g * tn + t] = 0.0;
            self.sum[g * tn + t] = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_all_tokens() {
        for n in 0..200 {
            let tiles = Tiles::new(n);
            let mut t = 0;
            for i in 0..tiles.count {
                assert_eq!(tiles.start(i), t);
                assert!((1..=TILE).contains(&tiles.size(i)));
                assert_eq!(tiles.size(i) == 1, n <= SINGLY);
                for j in 0..tiles.size(i) {
                    assert_eq!(tiles.locate(t + j), (i, j));
                }
                t += tiles.size(i);
            }
            assert_eq!(t, n);
        }
    }
}
