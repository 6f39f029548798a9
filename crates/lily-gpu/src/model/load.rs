//! Weights on a device: in place where the device can read the mapped file and the kernels' alignment allows it,
//! copied where not.

use std::{collections::HashMap, fmt, sync::Arc};

use lily_model::{
    ModelWeights, QuantMatrix, Storage, TensorData,
    quant::{bf16_to_f32, f32_to_bf16},
    weights::MixerWeights,
};

use crate::{
    device::{Device, DeviceBuffer, Region},
    error::Result,
};

/// Alignment of packed codes: kernels load 16 bytes at once.
const CODES_ALIGN: usize = 16;
/// Alignment of scales and biases: kernels load up to four BF16 at once.
const GROUPS_ALIGN: usize = 8;
/// Copied tensors share buffers of this size: few allocations to keep resident.
const ARENA: u64 = 256 << 20;

/// What became of the weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Bytes used in place.
    pub mapped: u64,
    /// Bytes copied: small vectors, and tensors that lie on an address the kernels cannot use.
    pub copied: u64,
    /// Matrices of which a part had to be copied.
    pub copied_tensors: usize,
    /// Vectors that were not exact in BF16 and were rounded.
    pub rounded_vectors: usize,
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        write!(f, "weights: {:.1} MiB in place, {:.1} MiB copied", mib(self.mapped), mib(self.copied))?;
        if self.copied_tensors > 0 {
            write!(f, " ({} tensors not aligned as the kernels need)", self.copied_tensors)?;
        }
        if self.rounded_vectors > 0 {
            write!(f, "; {} vectors rounded to BF16", self.rounded_vectors)?;
        }
        Ok(())
    }
}

/// Where every tensor lies, by the name that plans use.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) regions: HashMap<String, Region>,
    pub(super) report: LoadReport,
}

/// A tensor to be placed.
enum Source<'a> {
    /// In a storage that the device may be able to use.
    Stored { storage: &'a Arc<Storage>, offset: usize, bytes: &'a [u8], align: usize },
    /// Made here.
    Made(Vec<u8>),
}

/// Every tensor's bytes, by the name that plans use.
pub(crate) fn tensors(w: &ModelWeights) -> HashMap<String, Vec<u8>> {
    let mut sources: Vec<(String, Source<'_>)> = Vec::new();
    for (module, m) in w.matrices() {
        matrix(&mut sources, &module, m);
    }
    vectors(w, &mut sources, &mut LoadReport::default());
    sources.into_iter().map(|(name, source)| (name, source.bytes().to_vec())).collect()
}

pub(super) fn load(device: &mut dyn Device, w: &ModelWeights) -> Result<Weights> {
    let mut report = LoadReport::default();
    let mut sources: Vec<(String, Source<'_>)> = Vec::new();
    for (module, m) in w.matrices() {
        matrix(&mut sources, &module, m);
    }
    vectors(w, &mut sources, &mut report);

    let mut regions = HashMap::new();
    let mut imported: HashMap<*const Storage, Option<DeviceBuffer>> = HashMap::new();
    let mut copies: Vec<(String, Source<'_>)> = Vec::new();
    for (name, source) in sources {
        if let Source::Stored { storage, offset, bytes, align } = &source {
            let aligned = (bytes.as_ptr() as usize).is_multiple_of(*align);
            let buffer = match (aligned, imported.get(&Arc::as_ptr(storage))) {
                (false, _) => None,
                (true, Some(buffer)) => *buffer,
                (true, None) => {
                    let buffer = device.import("weights", storage)?;
                    imported.insert(Arc::as_ptr(storage), buffer);
                    buffer
                }
            };
            if let Some(buffer) = buffer {
                report.mapped += bytes.len() as u64;
                regions.insert(name, Region { buffer, offset: *offset as u64, len: bytes.len() as u64 });
                continue;
            }
            report.copied_tensors += usize::from(!aligned);
        }
        copies.push((name, source));
    }
    copy(device, copies, &mut regions, &mut report)?;
    Ok(Weights { regions, report })
}

/// Copies tensors into shared buffers.
fn copy(
    device: &mut dyn Device,
    copies: Vec<(String, Source<'_>)>,
    regions: &mut HashMap<String, Region>,
    report: &mut LoadReport,
) -> Result<()> {
    let mut rest = copies.as_slice();
    while !rest.is_empty() {
        let mut size = 0;
        let mut places: Vec<u64> = Vec::new();
        for (_, source) in rest {
            let end = size + (source.bytes().len() as u64).next_multiple_of(256);
            if !places.is_empty() && end > ARENA.min(device.facts().largest_buffer) {
                break;
            }
            places.push(size);
            size = end;
        }
        let buffer = device.allocate("weights", size)?;
        for ((name, source), &offset) in rest.iter().zip(&places) {
            let bytes = source.bytes();
            device.write(buffer, offset, bytes)?;
            report.copied += bytes.len() as u64;
            regions.insert(name.clone(), Region { buffer, offset, len: bytes.len() as u64 });
        }
        rest = &rest[places.len()..];
    }
    Ok(())
}

impl Source<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Source::Stored { bytes, .. } => bytes,
            Source::Made(bytes) => bytes,
        }
    }
}

fn stored<T: bytemuck::Pod>(t: &TensorData<T>, align: usize) -> Source<'_> {
    let bytes = bytemuck::cast_slice(t.as_slice());
    Source::Stored { storage: t.storage(), offset: t.byte_offset(), bytes, align }
}

fn matrix<'a>(out: &mut Vec<(String, Source<'a>)>, module: &str, m: &'a QuantMatrix) {
    out.push((format!("{module}.weight"), stored(&m.weight, CODES_ALIGN)));
    out.push((format!("{module}.scales"), stored(&m.scales, GROUPS_ALIGN)));
    out.push((format!("{module}.biases"), stored(&m.biases, GROUPS_ALIGN)));
}

fn vectors(w: &ModelWeights, out: &mut Vec<(String, Source<'_>)>, report: &mut LoadReport) {
    let mut bf16 = |name: String, values: &[f32]| {
        let narrow: Vec<u16> = values.iter().map(|&v| f32_to_bf16(v)).collect();
        let exact = values.iter().zip(&narrow).all(|(v, &n)| bf16_to_f32(n).to_bits() == v.to_bits());
        report.rounded_vectors += usize::from(!exact);
        (name, Source::Made(bytemuck::cast_slice(&narrow).to_vec()))
    };
    for (i, layer) in w.layers.iter().enumerate() {
        let at = |name: &str| format!("model.layers.{i}.{name}");
        out.push(bf16(at("input_layernorm.weight"), &layer.input_norm));
        out.push(bf16(at("post_attention_layernorm.weight"), &layer.post_attention_norm));
        match &layer.mixer {
            MixerWeights::Attention(a) => {
                out.push(bf16(at("self_attn.q_norm.weight"), &a.q_norm));
                out.push(bf16(at("self_attn.k_norm.weight"), &a.k_norm));
            }
            MixerWeights::Gdn(g) => {
                out.push(bf16(at("linear_attn.conv1d.weight"), &g.conv1d));
                out.push(bf16(at("linear_attn.norm.weight"), &g.norm));
                for (name, values) in [("A_log", &g.a_log), ("dt_bias", &g.dt_bias)] {
                    let bytes = bytemuck::cast_slice(values).to_vec();
                    out.push((at(&format!("linear_attn.{name}")), Source::Made(bytes)));
                }
            }
        }
    }
    out.push(bf16("model.norm.weight".into(), &w.final_norm));
    if w.config.rotary_dim > 0 {
        let rates = rotary_rates(w.config.rope_theta, w.config.rotary_dim);
        out.push(("rotary_rates".into(), Source::Made(bytemuck::cast_slice(&rates).to_vec())));
    }
}

/// The turns that a position makes, for each of `dim / 2` rotations, as 64-bit binary fractions, high word first:
/// `theta^(-2i / dim) / 2 pi` (arXiv:2104.09864).
pub(crate) fn rotary_rates(theta: f64, dim: usize) -> Vec<[u32; 2]> {
    (0..dim / 2)
        .map(|i| {
            let turns = theta.powf(-2.0 * i as f64 / dim as f64) / std::f64::consts::TAU;
            let fraction = (turns.fract() * 2f64.powi(64)) as u64;
            [(fraction >> 32) as u32, fraction as u32]
        })
        .collect()
}
