//! Random content for a plan's buffers: speed can be measured at the real shapes, and devices compared on the same bytes,
//! with nothing downloaded. The numbers are a function of the buffer's name and the place in it, so that a device may
//! make them itself.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use lily_model::quant::f32_to_bf16;

use crate::plan::{BufferKind, BufferSpec, ModelShape, Plan};

/// What a buffer is filled with.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Given bytes; zeros behind them.
    Bytes(Vec<u8>),
    /// Random bits.
    Words {
        /// Of the generator.
        seed: u64,
    },
    /// 16-bit values picked from a table.
    Picks {
        /// Of the generator.
        seed: u64,
        /// The values.
        table: [u16; 16],
    },
    /// Uniform f32.
    Floats {
        /// Of the generator.
        seed: u64,
        /// Smallest.
        low: f32,
        /// Largest.
        high: f32,
    },
    /// Uniform BF16.
    Bfloats {
        /// Of the generator.
        seed: u64,
        /// Smallest.
        low: f32,
        /// Largest.
        high: f32,
    },
}

/// SplitMix64 (Steele, Lea, Flood 2014) at a place of its sequence.
fn random_at(seed: u64, i: u64) -> u64 {
    let mut z = seed.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn uniform(seed: u64, i: u64, low: f32, high: f32) -> f32 {
    low + (high - low) * ((random_at(seed, i) >> 40) as f32 * (1.0 / 16_777_216.0))
}

impl Content {
    /// Fills memory on the host.
    pub fn fill(&self, out: &mut [u8]) {
        match self {
            Content::Bytes(bytes) => {
                let n = bytes.len().min(out.len());
                out[..n].copy_from_slice(&bytes[..n]);
                out[n..].fill(0);
            }
            Content::Words { seed } => each::<8>(out, |i| random_at(*seed, i).to_le_bytes()),
            Content::Picks { seed, table } => each::<2>(out, |i| {
                table[(random_at(*seed, i / 16) >> (i % 16 * 4) & 15) as usize].to_le_bytes()
            }),
            Content::Floats { seed, low, high } => {
                each::<4>(out, |i| uniform(*seed, i, *low, *high).to_le_bytes())
            }
            Content::Bfloats { seed, low, high } => {
                each::<2>(out, |i| f32_to_bf16(uniform(*seed, i, *low, *high)).to_le_bytes());
            }
        }
    }
}

fn each<const N: usize>(out: &mut [u8], value: impl Fn(u64) -> [u8; N]) {
    for (i, chunk) in out.chunks_mut(N).enumerate() {
        let n = chunk.len();
        chunk.copy_from_slice(&value(i as u64)[..n]);
    }
}

/// Content for the buffers of a model's plans. Weights keep the size of a vector: elements have standard deviation
/// `1 / sqrt(cols)`, so that activations stay in the range of a real model and the router spreads over all experts.
#[derive(Debug)]
pub struct SyntheticModel<'a> {
    model: &'a ModelShape,
    sizes: HashMap<String, u64>,
    seed: u64,
}

impl<'a> SyntheticModel<'a> {
    /// For the buffers of `plan`; other plans of the model have the same weights.
    pub fn new(model: &'a ModelShape, plan: &Plan, seed: u64) -> Self {
        let sizes = plan.buffers.iter().map(|b| (b.name.clone(), b.bytes)).collect();
        Self { model, sizes, seed }
    }

    fn seed_of(&self, name: &str) -> u64 {
        // The default hasher has fixed keys; the numbers only have to agree within one build.
        let mut h = DefaultHasher::new();
        (self.seed, name).hash(&mut h);
        h.finish()
    }

    /// Input width of a matrix.
    fn cols(&self, module: &str) -> usize {
        let c = &self.model.config;
        match module.rsplit('.').next().unwrap_or_default() {
            "down_proj" if module.contains("shared_expert") => c.shared_expert_intermediate_size,
            "down_proj" => c.moe_intermediate_size,
            "out_proj" => c.gdn_value_width(),
            "o_proj" => c.num_attention_heads * c.head_dim,
            _ => c.hidden_size,
        }
    }

    /// Scales of a matrix, or the biases that centre its codes.
    fn groups(&self, module: &str, biases: bool) -> Content {
        let size = |part: &str| self.sizes.get(&format!("{module}.{part}")).copied().unwrap_or(0);
        // Bits of an element: bytes of the codes over elements, which are 64 for each 2-byte scale.
        let bits = if size("scales") == 0 { 4 } else { size("weight") / 4 / size("scales") };
        let top = ((1u32 << bits.clamp(1, 8)) - 1) as f32;
        let scale = 12f32.sqrt() / (top + 1.0) / (self.cols(module) as f32).sqrt();
        let factor = if biases { -top / 2.0 } else { 1.0 };
        let table = std::array::from_fn(|i| f32_to_bf16(scale * (0.88 + 0.015 * i as f32) * factor));
        // Scale and bias of a group are picked by the same random bits.
        Content::Picks { seed: self.seed_of(module), table }
    }

    /// Content of a buffer.
    pub fn content(&self, spec: &BufferSpec) -> Content {
        let name = spec.name.as_str();
        let seed = self.seed_of(name);
        match spec.kind {
            BufferKind::Constant => Content::Bytes(self.rotary_rates()),
            BufferKind::Kv => Content::Bfloats { seed, low: -1.0, high: 1.0 },
            BufferKind::State => Content::Floats { seed, low: -0.1, high: 0.1 },
            BufferKind::Scratch => Content::Floats { seed, low: -1.0, high: 1.0 },
            BufferKind::Input | BufferKind::TokenSlots => Content::Bytes(Vec::new()),
            BufferKind::Weight => match name.rsplit_once('.') {
                Some((module, "scales")) => self.groups(module, false),
                Some((module, "biases")) => self.groups(module, true),
                _ if name.ends_with("A_log") => Content::Floats { seed, low: 0.0, high: 16f32.ln() },
                _ if name.ends_with("dt_bias") => Content::Floats { seed, low: -6.0, high: -2.0 },
                _ if name.ends_with("conv1d.weight") => Content::Bfloats { seed, low: -0.5, high: 0.5 },
                Some((module, "weight")) if self.sizes.contains_key(&format!("{module}.scales")) => {
                    Content::Words { seed }
                }
                _ => Content::Bfloats { seed, low: 0.9, high: 1.1 },
            },
        }
    }

    fn rotary_rates(&self) -> Vec<u8> {
        let c = &self.model.config;
        let rates = crate::model::rotary_rates(c.rope_theta, c.rotary_dim);
        bytemuck::cast_slice(&rates).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_of_scales_and_biases_agree() {
        let pick = |values: [u16; 16]| {
            let mut out = vec![0u8; 64];
            Content::Picks { seed: 5, table: values }.fill(&mut out);
            out.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect::<Vec<_>>()
        };
        let (a, b) = (pick(std::array::from_fn(|i| i as u16)), pick(std::array::from_fn(|i| 100 + i as u16)));
        assert!(a.iter().zip(&b).all(|(a, b)| a + 100 == *b));
        assert!(a.iter().any(|&v| v != a[0]));
    }

    #[test]
    fn floats_stay_in_range_and_differ() {
        let mut out = vec![0u8; 4000];
        Content::Floats { seed: 1, low: -2.0, high: 3.0 }.fill(&mut out);
        let v: Vec<f32> = out.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        assert!(v.iter().all(|x| (-2.0..=3.0).contains(x)));
        let mean = v.iter().sum::<f32>() / v.len() as f32;
        assert!((mean - 0.5).abs() < 0.2, "{mean}");
    }
}
