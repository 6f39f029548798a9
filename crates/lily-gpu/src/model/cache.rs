//! What sequences remember, on the device: keys and values, GDN state, convolution inputs. Every sequence has a slot
//! in buffers that all share, so that one dispatch serves a batch. The buffers grow by being replaced.

use lily_model::{LayerType, ModelConfig};

use crate::{
    device::{Device, DeviceBuffer, Region},
    error::{GpuError, Result},
};

/// Capacities are multiples of this many positions.
const CAPACITY_STEP: usize = 64;

/// What a layer remembers of one sequence.
#[derive(Debug, Clone, Copy)]
enum Layer {
    /// `[slots, kv_heads, capacity, 256]` BF16, twice.
    Kv { keys: DeviceBuffer, values: DeviceBuffer },
    /// `[slots, 4, channels]` f32 and `[slots, value_heads, 128, 128]` f32.
    Gdn { ring: DeviceBuffer, state: DeviceBuffer },
}

/// The buffers of all sequences.
#[derive(Debug)]
pub(super) struct Cache {
    config: ModelConfig,
    pub(super) slots: usize,
    pub(super) capacity: usize,
    layers: Vec<Layer>,
}

/// A contiguous part of what a sequence remembers.
pub(super) type Piece = Region;

impl Cache {
    pub(super) fn new(config: &ModelConfig) -> Self {
        Self { config: config.clone(), slots: 0, capacity: 0, layers: Vec::new() }
    }

    /// Bytes of a cached row of one KV head.
    fn row(&self) -> u64 {
        self.config.head_dim as u64 * 2
    }

    fn ring_bytes(&self) -> u64 {
        (self.config.linear_conv_kernel_dim * self.config.conv_channels() * 4) as u64
    }

    fn state_bytes(&self) -> u64 {
        (self.config.gdn_value_width() * self.config.linear_key_head_dim * 4) as u64
    }

    /// Bytes of keys and values of so many slots and positions.
    pub(super) fn kv_bytes(&self, slots: usize, capacity: usize) -> u64 {
        (self.config.kv_bytes_per_token(2) * capacity * slots) as u64
    }

    /// Bytes of GDN state and convolution inputs of so many slots.
    pub(super) fn gdn_bytes(&self, slots: usize) -> u64 {
        let layers = self.config.count(LayerType::LinearAttention) as u64;
        layers * (self.ring_bytes() + self.state_bytes()) * slots as u64
    }

    /// The sizes that hold at least `slots` sequences of `capacity` positions.
    pub(super) fn fit(&self, slots: usize, capacity: usize) -> (usize, usize) {
        let slots = if slots > self.slots { slots.next_power_of_two() } else { self.slots };
        (slots, self.capacity.max(capacity.next_multiple_of(CAPACITY_STEP)))
    }

    /// Makes room for `slots` sequences of `capacity` positions, as [`Cache::fit`] gave them. `live`: slots in use, and the
    /// positions they hold. On an error everything is as before.
    pub(super) fn grow(
        &mut self,
        device: &mut dyn Device,
        slots: usize,
        capacity: usize,
        live: &[(usize, usize)],
    ) -> Result<()> {
        let kv_heads = self.config.num_key_value_heads as u64;
        // Kernels index with 32 bits.
        let elements = slots as u64 * kv_heads * capacity as u64 * self.config.head_dim as u64;
        let states = slots as u64 * self.state_bytes() / 4;
        if elements.max(states) > u32::MAX as u64 {
            return Err(GpuError::OutOfMemory {
                asked: self.kv_bytes(slots, capacity) + self.gdn_bytes(slots),
                what: format!("{slots} sequences of {capacity} tokens"),
                available: "2^32 elements a layer can be addressed".into(),
            });
        }
        let new = Cache { config: self.config.clone(), slots, capacity, layers: Vec::new() };
        let layers = new.allocate(device)?;
        let new = Cache { layers, ..new };
        let copied = live.iter().try_for_each(|&(slot, position)| {
            let pairs = self.pieces(slot, position).into_iter().zip(new.pieces(slot, position));
            pairs.into_iter().try_for_each(|(from, to)| device.copy(from, to))
        });
        let (unused, result) = match copied {
            Ok(()) => (std::mem::replace(self, new), Ok(())),
            Err(e) => (new, Err(e)),
        };
        unused.layers.iter().flat_map(|l| l.buffers()).for_each(|b| device.release(b));
        result
    }

    /// Buffers for all layers, or none.
    fn allocate(&self, device: &mut dyn Device) -> Result<Vec<Layer>> {
        let slots = self.slots as u64;
        let kv = slots * self.config.num_key_value_heads as u64 * self.capacity as u64 * self.row();
        let mut made = Vec::new();
        for (i, kind) in self.config.layer_types.iter().enumerate() {
            let sizes = match kind {
                LayerType::FullAttention => [("keys", kv), ("values", kv)],
                LayerType::LinearAttention => {
                    [("ring", slots * self.ring_bytes()), ("state", slots * self.state_bytes())]
                }
            };
            for (name, bytes) in sizes {
                match device.allocate(&format!("layers.{i}.{name}"), bytes) {
                    Ok(buffer) => made.push(buffer),
                    Err(error) => {
                        made.into_iter().for_each(|b| device.release(b));
                        return Err(error);
                    }
                }
            }
        }
        let pairs = made.chunks_exact(2).zip(&self.config.layer_types);
        Ok(pairs
            .map(|(b, kind)| match kind {
                LayerType::FullAttention => Layer::Kv { keys: b[0], values: b[1] },
                LayerType::LinearAttention => Layer::Gdn { ring: b[0], state: b[1] },
            })
            .collect())
    }

    /// The contiguous parts of what a slot remembers of `position` positions, in the order of snapshots: layer by layer,
    /// keys then values head by head, or ring then state.
    pub(super) fn pieces(&self, slot: usize, position: usize) -> Vec<Piece> {
        self.layers.iter().flat_map(|&l| self.layer_pieces(l, slot, position)).collect()
    }

    fn layer_pieces(&self, layer: Layer, slot: usize, position: usize) -> Vec<Piece> {
        let slot = slot as u64;
        match layer {
            Layer::Kv { keys, values } => {
                let heads = self.config.num_key_value_heads as u64;
                let len = position as u64 * self.row();
                let piece = |buffer, head| Region {
                    buffer,
                    offset: (slot * heads + head) * self.capacity as u64 * self.row(),
                    len,
                };
                [keys, values]
                    .iter()
                    .flat_map(|&b| (0..heads).map(move |h| (b, h)))
                    .map(|(b, h)| piece(b, h))
                    .collect()
            }
            Layer::Gdn { ring, state } => [(ring, self.ring_bytes()), (state, self.state_bytes())]
                .map(|(buffer, len)| Region { buffer, offset: slot * len, len })
                .to_vec(),
        }
    }

    /// What a new sequence must find zero: the convolution's inputs and the state.
    pub(super) fn zero(&self, device: &mut dyn Device, slot: usize) -> Result<()> {
        for &layer in self.layers.iter().filter(|l| matches!(l, Layer::Gdn { .. })) {
            for piece in self.layer_pieces(layer, slot, 0) {
                device.zero(piece)?;
            }
        }
        Ok(())
    }

    /// The memory of a plan's buffer `layers.N.keys` and its kin.
    pub(super) fn region(&self, name: &str) -> Option<Region> {
        let (layer, part) = name.strip_prefix("layers.")?.split_once('.')?;
        let layer = *self.layers.get(layer.parse::<usize>().ok()?)?;
        let kv = (self.slots * self.config.num_key_value_heads * self.capacity) as u64 * self.row();
        let slots = self.slots as u64;
        let (buffer, len) = match (layer, part) {
            (Layer::Kv { keys, .. }, "keys") => (keys, kv),
            (Layer::Kv { values, .. }, "values") => (values, kv),
            (Layer::Gdn { ring, .. }, "ring") => (ring, slots * self.ring_bytes()),
            (Layer::Gdn { state, .. }, "state") => (state, slots * self.state_bytes()),
            _ => return None,
        };
        Some(Region { buffer, offset: 0, len })
    }
}

impl Layer {
    fn buffers(self) -> [DeviceBuffer; 2] {
        match self {
            Layer::Kv { keys, values } => [keys, values],
            Layer::Gdn { ring, state } => [ring, state],
        }
    }
}
