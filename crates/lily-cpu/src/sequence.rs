//! A sequence: everything the model remembers of one text.

use std::sync::Arc;

use lily_model::{LayerType, ModelConfig};

use crate::{
    buf::Buf,
    error::{CpuError, Result},
    isa::Isa,
    kernels::{GdnUpdates, Kernels, LATE},
    kv::KvCache,
};

/// Marks a snapshot of this backend; the last two bytes are the layout's version.
const MAGIC: &[u8; 8] = b"LILYCP01";
pub(crate) const HEADER: usize = 24;
/// Taps of the convolution; the state keeps as many rows, of which the oldest is overwritten.
pub(crate) const TAPS: usize = 4;

/// KV cache, GDN state and convolution tails of one text, up to [`Sequence::position`].
///
/// Made by [`crate::CpuModel::new_sequence`]; only usable with that model (or another of the same weights).
#[derive(Debug)]
pub struct Sequence {
    pub(crate) config: Arc<ModelConfig>,
    pub(crate) capacity: usize,
    pub(crate) position: usize,
    pub(crate) fingerprint: u64,
    /// A call failed half-way.
    pub(crate) poisoned: bool,
    isa: Isa,
    pub(crate) layers: Vec<LayerState>,
}

/// What one layer remembers.
#[derive(Debug)]
pub(crate) enum LayerState {
    Attention(KvCache),
    Gdn(Box<GdnState>),
}

#[derive(Debug)]
pub(crate) struct GdnState {
    /// `[value_head][value_dim / 16][key_dim][16]`, f32: lanes are value rows. Without the updates in `late`.
    pub(crate) state: Buf<f32>,
    pub(crate) late: Late,
    /// Inputs of the convolution: position `p` is in row `p % 4`, `[channels]`. Before the start: zeros.
    pub(crate) conv: [Buf<f32>; TAPS],
}

/// Updates by the last decoded tokens that the state of a GDN layer does not have yet: the state is
/// `decay state + sum_i factor_i update_i key_i^T` over the first `n` of them. A step of decoding then only reads the
/// state; every [`LATE`]th one writes it.
#[derive(Debug)]
pub(crate) struct Late {
    /// Tokens whose updates are here.
    pub(crate) n: usize,
    /// `[value_head][LATE][key_dim]`.
    pub(crate) keys: Buf<f32>,
    /// `[value_head][LATE][value_dim]`.
    pub(crate) updates: Buf<f32>,
    /// `[value_head][LATE + 1]`: the factors of the updates, then the state's decay.
    pub(crate) factors: Buf<f32>,
}

impl Late {
    fn new(c: &ModelConfig) -> Result<Self> {
        let (n, what) = (c.linear_num_value_heads * LATE, "updates of the GDN state");
        Ok(Self {
            n: 0,
            keys: Buf::new(n * c.linear_key_head_dim, what)?,
            updates: Buf::new(n * c.linear_value_head_dim, what)?,
            factors: Buf::new(c.linear_num_value_heads * (LATE + 1), what)?,
        })
    }

    fn byte_len(&self) -> usize {
        self.keys.byte_len() + self.updates.byte_len() + self.factors.byte_len()
    }
}

/// Applies `n` updates that wait to the state of one value head.
pub(crate) fn flush_head(
    k: &Kernels,
    state: &mut [f32],
    key_dim: usize,
    n: usize,
    keys: &[f32],
    updates: &[f32],
    factors: &[f32],
) {
    if n == 0 {
        return;
    }
    let stride = updates.len() / LATE;
    for (rows, state) in state.chunks_exact_mut(key_dim * 16).enumerate() {
        let updates = &updates[rows * 16..];
        k.gdn_flush(
            state,
            &GdnUpdates { keys, updates, stride, factors: &factors[..n], decay: factors[LATE] },
        );
    }
}

impl GdnState {
    /// Makes `state` whole.
    fn flush(&mut self, k: &Kernels, c: &ModelConfig) {
        let (dk, dv) = (c.linear_key_head_dim, c.linear_value_head_dim);
        let late = &self.late;
        for (head, state) in self.state.chunks_exact_mut(dk * dv).enumerate() {
            let keys = &late.keys[head * LATE * dk..][..LATE * dk];
            let updates = &late.updates[head * LATE * dv..][..LATE * dv];
            let factors = &late.factors[head * (LATE + 1)..][..LATE + 1];
            flush_head(k, state, dk, late.n, keys, updates, factors);
        }
        self.late.n = 0;
    }
}

impl Sequence {
    pub(crate) fn new(
        config: &Arc<ModelConfig>,
        isa: Isa,
        fingerprint: u64,
        capacity: usize,
    ) -> Result<Self> {
        let c = config;
        let mut layers = Vec::with_capacity(c.num_hidden_layers);
        for kind in &c.layer_types {
            layers.push(match kind {
                LayerType::FullAttention => {
                    LayerState::Attention(KvCache::new(c.num_key_value_heads, c.head_dim))
                }
                LayerType::LinearAttention => {
                    let n = c.gdn_value_width() * c.linear_key_head_dim;
                    let row = || Buf::new(c.conv_channels(), "the convolution state");
                    LayerState::Gdn(Box::new(GdnState {
                        state: Buf::new(n, "the GDN state")?,
                        late: Late::new(c)?,
                        conv: [row()?, row()?, row()?, row()?],
                    }))
                }
            });
        }
        Ok(Self { config: config.clone(), capacity, position: 0, fingerprint, poisoned: false, isa, layers })
    }

    /// Tokens it has seen.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Most tokens it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of the KV cache as allocated so far.
    pub fn kv_bytes(&self) -> usize {
        let kv = |l: &LayerState| if let LayerState::Attention(kv) = l { kv.byte_len() } else { 0 };
        self.layers.iter().map(kv).sum()
    }

    /// Bytes of GDN and convolution state; they do not grow.
    pub fn state_bytes(&self) -> usize {
        let state = |l: &LayerState| match l {
            LayerState::Gdn(g) => {
                g.state.byte_len() + g.late.byte_len() + g.conv.iter().map(Buf::byte_len).sum::<usize>()
            }
            LayerState::Attention(_) => 0,
        };
        self.layers.iter().map(state).sum()
    }

    /// Applies the updates of GDN states that wait.
    pub(crate) fn flush(&mut self) {
        let k = Kernels::of(self.isa);
        for layer in &mut self.layers {
            if let LayerState::Gdn(g) = layer {
                g.flush(k, &self.config);
            }
        }
    }

    /// A copy of what a call changes besides the KV cache, whose rows beyond [`Sequence::position`] do not count.
    pub(crate) fn save_state(&mut self) -> Vec<f32> {
        self.flush();
        let mut saved = Vec::with_capacity(self.state_bytes() / size_of::<f32>());
        for layer in &self.layers {
            if let LayerState::Gdn(g) = layer {
                std::iter::once(&g.state).chain(&g.conv).for_each(|b| saved.extend_from_slice(b));
            }
        }
        saved
    }

    /// Puts back what [`Sequence::save_state`] copied at the same position.
    pub(crate) fn put_state_back(&mut self, mut saved: &[f32]) {
        for layer in &mut self.layers {
            if let LayerState::Gdn(g) = layer {
                g.late.n = 0;
                for buf in std::iter::once(&mut g.state).chain(&mut g.conv) {
                    let (mine, rest) = saved.split_at(buf.len());
                    buf.copy_from_slice(mine);
                    saved = rest;
                }
            }
        }
        self.poisoned = false;
    }

    /// Whether `n` more tokens may be appended: not after a failure, not beyond the capacity. Grows the KV caches.
    pub(crate) fn prepare(&mut self, fingerprint: u64, n: usize) -> Result<()> {
        if self.fingerprint != fingerprint {
            return Err(CpuError::OtherModel { found: self.fingerprint, expected: fingerprint });
        }
        if self.poisoned {
            return Err(CpuError::Poisoned);
        }
        if n > self.capacity - self.position {
            return Err(CpuError::Full { position: self.position, capacity: self.capacity, asked: n });
        }
        self.grow(self.position + n)
    }

    pub(crate) fn grow(&mut self, positions: usize) -> Result<()> {
        for layer in &mut self.layers {
            if let LayerState::Attention(kv) = layer {
                kv.grow(positions)?;
            }
        }
        Ok(())
    }

    fn snapshot_len(&self, position: usize) -> usize {
        let c = &self.config;
        let layer = |l: &LayerState| match l {
            LayerState::Attention(_) => KvCache::snapshot_len(c.num_key_value_heads, c.head_dim, position),
            LayerState::Gdn(g) => (g.state.len() + g.conv.iter().map(|r| r.len()).sum::<usize>()) * 4,
        };
        HEADER + self.layers.iter().map(layer).sum::<usize>()
    }

    /// The whole state as bytes: 8 of magic and version, the model's fingerprint and the position (u64, little
    /// endian), then per layer KV (bf16) or GDN state and convolution rows (f32). For this machine's byte order.
    pub fn snapshot(&mut self) -> Result<Vec<u8>> {
        if self.poisoned {
            return Err(CpuError::Poisoned);
        }
        self.flush();
        let len = self.snapshot_len(self.position);
        let mut out = Vec::new();
        out.try_reserve_exact(len)
            .map_err(|_| CpuError::OutOfMemory { asked: len, what: "a snapshot of a sequence" })?;
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.fingerprint.to_le_bytes());
        out.extend_from_slice(&(self.position as u64).to_le_bytes());
        for layer in &self.layers {
            match layer {
                LayerState::Attention(kv) => kv.write(self.position, &mut out),
                LayerState::Gdn(g) => {
                    out.extend_from_slice(bytemuck::cast_slice(&g.state));
                    for row in &g.conv {
                        out.extend_from_slice(bytemuck::cast_slice(row));
                    }
                }
            }
        }
        debug_assert_eq!(out.len(), len);
        Ok(out)
    }

    /// Replaces the state by a snapshot's. When the snapshot is refused the sequence is left as it was.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<()> {
        let bad = |what, found: String, expected: String| CpuError::BadSnapshot { what, found, expected };
        if bytes.len() < HEADER {
            return Err(bad("its length", format!("{} bytes", bytes.len()), format!("at least {HEADER}")));
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if &bytes[..8] != MAGIC {
            let found = String::from_utf8_lossy(&bytes[..8]).escape_debug().to_string();
            return Err(bad("its format", found, String::from_utf8_lossy(MAGIC).to_string()));
        }
        if word(8) != self.fingerprint {
            let expected = format!("{:016x}", self.fingerprint);
            return Err(bad("its model", format!("{:016x}", word(8)), expected));
        }
        let position = usize::try_from(word(16)).unwrap_or(usize::MAX);
        if position > self.capacity {
            let expected = format!("at most {}, the sequence's capacity", self.capacity);
            return Err(bad("its position", position.to_string(), expected));
        }
        let expected = self.snapshot_len(position);
        if bytes.len() != expected {
            return Err(bad("its length", format!("{} bytes", bytes.len()), expected.to_string()));
        }
        self.grow(position)?;
        let c = &self.config;
        let mut rest = &bytes[HEADER..];
        let mut take = |n: usize| {
            let (head, tail) = rest.split_at(n);
            rest = tail;
            head
        };
        for layer in &mut self.layers {
            match layer {
                LayerState::Attention(kv) => {
                    kv.read(
                        position,
                        take(KvCache::snapshot_len(c.num_key_value_heads, c.head_dim, position)),
                    );
                }
                LayerState::Gdn(g) => {
                    g.late.n = 0;
                    for to in std::iter::once(&mut g.state).chain(&mut g.conv) {
                        let from = take(to.len() * 4);
                        bytemuck::cast_slice_mut::<f32, u8>(to).copy_from_slice(from);
                    }
                }
            }
        }
        self.position = position;
        self.poisoned = false;
        Ok(())
    }
}
