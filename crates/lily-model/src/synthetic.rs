//! Random weights of given sizes, made in memory: speed can be measured on the real shapes with nothing downloaded.
//!
//! Packed elements are random bits. Scales are such that a matrix keeps the size of a vector (elements with standard
//! deviation `1 / sqrt(cols)`), so activations stay in the range of a real model, nothing overflows, and the router
//! spreads tokens over all experts. The same configuration and seed make the same weights on every machine.

use std::{sync::Arc, thread};

use crate::{
    ModelConfig, ModelWeights, QuantMatrix, Storage, TensorData,
    config::{GROUP_SIZE, Quantization},
    error::ModelError,
    layout::{MatrixShape, TensorSource, VectorKind, assemble},
    quant::{bf16_to_f32, f32_to_bf16},
};

/// Bytes that one thread fills at a time, each with a generator of its own, so that the result does not depend on
/// the number of threads.
const BLOCK: usize = 1 << 20;

/// Smallest tensor for which pages of their own are asked for.
const OWN_PAGES: usize = 1 << 21;

/// Weights for `config` in the precision of the published checkpoint (4 bits, 8 for routers and shared-expert gates).
///
/// Each tensor is allocated once and filled in place by all threads; 40 layers of the large model take 19.5 GB.
pub fn synthetic_weights(config: &ModelConfig, seed: u64) -> ModelWeights {
    let mut maker = Maker {
        quantization: Quantization::mlx_4bit(config.num_hidden_layers),
        rng: SplitMix64(seed),
        threads: thread::available_parallelism().map_or(1, |n| n.get()),
    };
    assemble(config, &mut maker).expect("making random weights cannot fail")
}

/// The SplitMix64 generator (Steele, Lea, Flood 2014): statistically good, one multiply-xorshift chain a word.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `low..high`.
    fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }
}

struct Maker {
    quantization: Quantization,
    rng: SplitMix64,
    threads: usize,
}

impl TensorSource for Maker {
    fn matrix(&mut self, module: &str, shape: MatrixShape) -> Result<QuantMatrix, ModelError> {
        let bits = self.quantization.bits_of(module);
        let experts = shape.experts.unwrap_or(1);
        let elements = experts * shape.rows * shape.cols;
        let groups = elements / GROUP_SIZE;
        // Uniform integers 0..=top have standard deviation about (top + 1) / sqrt(12) and mean top / 2.
        let top = ((1 << bits) - 1) as f32;
        let scale = 12f32.sqrt() / (top + 1.0) / (shape.cols as f32).sqrt();
        // 16 scales within 12 % of each other; scales and biases choose by the same random numbers.
        let scales: [f32; 16] = std::array::from_fn(|i| scale * (0.88 + 0.015 * i as f32));
        let (weight_seed, group_seed) = (self.rng.next(), self.rng.next());
        Ok(QuantMatrix {
            experts,
            rows: shape.rows,
            cols: shape.cols,
            bits,
            group_size: GROUP_SIZE,
            weight: self.tensor(elements * bits / 32, weight_seed, |rng, out| {
                out.iter_mut().for_each(|word| *word = rng.next());
            }),
            scales: self.tensor(groups, group_seed, choose(scales.map(f32_to_bf16))),
            biases: self.tensor(groups, group_seed, choose(scales.map(|s| f32_to_bf16(-s * top / 2.0)))),
        })
    }

    fn vector(&mut self, _: &str, kind: VectorKind, n: usize) -> Result<Vec<f32>, ModelError> {
        // Ranges of trained models of the family.
        let (low, high) = match kind {
            VectorKind::Norm => (0.9, 1.1),
            VectorKind::ALog => (0.0, 16f32.ln()),
            VectorKind::DtBias => (-6.0, -2.0),
            VectorKind::Conv { .. } => (-0.5, 0.5),
        };
        // Checkpoints store norms and convolutions as BF16: values that are exact in it are the same on every backend.
        let exact = matches!(kind, VectorKind::Norm | VectorKind::Conv { .. });
        let round = |v: f32| if exact { bf16_to_f32(f32_to_bf16(v)) } else { v };
        Ok((0..n).map(|_| round(self.rng.uniform(low, high))).collect())
    }
}

/// Fills words with random picks of 16 values, four to a word.
fn choose(table: [u16; 16]) -> impl Fn(&mut SplitMix64, &mut [u64]) + Sync {
    move |rng, out| {
        for words in out.chunks_mut(4) {
            let mut nibbles = rng.next();
            for word in words {
                *word = 0;
                for lane in 0..4 {
                    *word |= (table[(nibbles & 15) as usize] as u64) << (16 * lane);
                    nibbles >>= 4;
                }
            }
        }
    }
}

impl Maker {
    /// A tensor of `len` elements, filled block by block.
    fn tensor<T: bytemuck::Pod>(
        &self,
        len: usize,
        seed: u64,
        fill: impl Fn(&mut SplitMix64, &mut [u64]) + Sync,
    ) -> TensorData<T> {
        let words = (len * size_of::<T>()).div_ceil(8);
        let fill = |out: &mut [u64]| fill_blocks(out, seed, self.threads, &fill);
        let storage = match own_pages(words * 8) {
            Some(mut pages) => {
                fill(&mut bytemuck::cast_slice_mut(&mut pages)[..words]);
                pages.make_read_only().map(Storage::Anonymous).expect("pages can be made read-only")
            }
            None => {
                let mut owned = vec![0; words];
                fill(&mut owned);
                Storage::Owned(owned)
            }
        };
        TensorData::new(&Arc::new(storage), 0, len).expect("the storage was made for this length")
    }
}

/// Fresh zeroed pages for a large tensor, huge ones if the system gives them: with 4 KiB pages, 19.5 GB of weights
/// are 4.8 million page-table entries. `None` for small tensors, or when the system has none.
fn own_pages(bytes: usize) -> Option<memmap2::MmapMut> {
    if bytes < OWN_PAGES {
        return None;
    }
    // A multiple of 8, so that the pages can be seen as words.
    let pages = memmap2::MmapMut::map_anon(bytes.next_multiple_of(8)).ok()?;
    #[cfg(target_os = "linux")]
    if let Err(error) = pages.advise(memmap2::Advice::HugePage) {
        tracing::debug!(%error, "no huge pages");
    }
    Some(pages)
}

fn fill_blocks(
    out: &mut [u64],
    seed: u64,
    threads: usize,
    fill: &(impl Fn(&mut SplitMix64, &mut [u64]) + Sync),
) {
    let blocks: Vec<_> = out.chunks_mut(BLOCK / 8).enumerate().collect();
    let work = |(i, block): (usize, &mut [u64])| {
        let start = SplitMix64(seed.wrapping_add(i as u64)).next();
        fill(&mut SplitMix64(start), block);
    };
    if blocks.len() == 1 {
        return blocks.into_iter().for_each(work);
    }
    let blocks = std::sync::Mutex::new(blocks.into_iter());
    let next = || blocks.lock().expect("filling does not panic").next();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(block) = next() {
                    work(block);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{reference::ReferenceModel, weights::MixerWeights};

    fn small() -> ModelConfig {
        ModelConfig {
            hidden_size: 256,
            vocab_size: 8192,
            num_experts: 64,
            moe_intermediate_size: 512,
            ..ModelConfig::qwen3_6_35b_a3b(4)
        }
    }

    #[test]
    fn same_seed_same_weights() {
        let (a, b, c) =
            (synthetic_weights(&small(), 1), synthetic_weights(&small(), 1), synthetic_weights(&small(), 2));
        let mut large = 0;
        for (((name, a), (_, b)), (_, c)) in a.matrices().zip(b.matrices()).zip(c.matrices()) {
            large += usize::from(a.weight.len() * 4 >= OWN_PAGES);
            assert!(a.weight[..] == b.weight[..] && a.scales[..] == b.scales[..], "{name}");
            assert!(a.weight[..] != c.weight[..], "{name}");
            assert_eq!(a.weight.len(), a.experts * a.rows * a.cols * a.bits / 32, "{name}");
            assert_eq!(a.scales.len(), a.biases.len(), "{name}");
        }
        assert!(large > 0, "no tensor was large enough for pages of its own");
        a.check_finite("synthetic").unwrap();
    }

    #[test]
    fn matrices_are_centred_and_keep_the_size_of_a_vector() {
        let weights = synthetic_weights(&small(), 3);
        for (name, m) in weights.matrices().filter(|(_, m)| m.rows >= 64) {
            let mut row = vec![0.0; m.cols];
            let (mut sum, mut squares) = (0.0f64, 0.0f64);
            for r in 0..64 {
                m.expert(m.experts - 1).dequantize_row(r, &mut row);
                sum += row.iter().map(|&w| w as f64).sum::<f64>();
                squares += row.iter().map(|&w| (w * w) as f64).sum::<f64>();
            }
            let n = (64 * m.cols) as f64;
            let deviation = (squares / n * m.cols as f64).sqrt();
            assert!((0.9..1.1).contains(&deviation), "{name}: {deviation}");
            assert!((sum / n).abs() * (m.cols as f64).sqrt() < 0.05, "{name}");
        }
    }

    /// What checkpoints store as BF16 is exact in it, so that backends that keep it so compute with the same numbers.
    #[test]
    fn norms_and_convolutions_are_exact_in_bf16() {
        let weights = synthetic_weights(&small(), 6);
        let mut vectors: Vec<&[f32]> = vec![&weights.final_norm];
        for layer in &weights.layers {
            vectors.extend([&layer.input_norm[..], &layer.post_attention_norm[..]]);
            match &layer.mixer {
                MixerWeights::Attention(a) => vectors.extend([&a.q_norm[..], &a.k_norm[..]]),
                MixerWeights::Gdn(g) => vectors.extend([&g.conv1d[..], &g.norm[..]]),
            }
        }
        assert_eq!(vectors.len(), 1 + 4 * weights.layers.len());
        for v in vectors {
            assert!(v.iter().all(|x| bf16_to_f32(f32_to_bf16(*x)).to_bits() == x.to_bits()));
            assert!(v.iter().any(|x| *x != v[0]), "all alike");
        }
    }

    #[test]
    fn activations_stay_sane() {
        let model = ReferenceModel::new(Arc::new(synthetic_weights(&small(), 4)));
        let logits = model.forward(&mut model.new_state(), &[1, 5000, 70, 70, 8191], None);
        let size = (logits.iter().map(|l| l * l).sum::<f32>() / logits.len() as f32).sqrt();
        assert!((0.5..2.0).contains(&size), "logits have size {size}");
    }
}
