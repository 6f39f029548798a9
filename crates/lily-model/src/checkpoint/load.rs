//! From located tensors to [`ModelWeights`]: nothing missing, nothing left over, everything of the right kind.

use super::{
    LoadReport, is_vision,
    shards::{Located, Shard, Shards},
};
use crate::{
    ModelConfig, ModelWeights, QuantMatrix, TensorData,
    config::{GROUP_SIZE, Quantization},
    error::{CONVERT_AGAIN, DOWNLOAD_AGAIN, ModelError},
    json,
    layout::{ExpectedTensor, GROUPS, MatrixShape, TensorSource, VectorKind, assemble, expected_tensors},
    quant::bf16_to_f32,
    weights::check_finite_bf16,
};

/// Below this many bytes of scales and biases, loading checks that each is finite. The large model has 1.2 GB of
/// them, and reading them all would double the time of a cold start: there `lily check` does it, through
/// [`ModelWeights::check_finite`].
const CHECK_SCALES_BELOW: usize = 64 << 20;

/// Checks `shards` against the configuration and puts the tensors in their places.
pub(crate) fn load(
    place: &str,
    config: &ModelConfig,
    quantization: &Quantization,
    shards: &Shards,
) -> Result<(ModelWeights, LoadReport), ModelError> {
    let expected = expected_tensors(config, quantization);
    check_names(place, &expected, shards)?;
    for tensor in &expected {
        check_kind(tensor, quantization, shards)?;
    }
    let scale_bytes: usize =
        expected.iter().filter(|t| t.dtypes == GROUPS).map(ExpectedTensor::byte_len).sum();
    let mut report = LoadReport {
        tensors: expected.len(),
        bytes: 0,
        files: shards.files.len(),
        copied_misaligned: 0,
        skipped_vision: shards.tensors.keys().filter(|n| is_vision(n)).count(),
        scales_checked: scale_bytes <= CHECK_SCALES_BELOW,
    };
    let weights = assemble(config, &mut Loader { quantization, shards, report: &mut report })?;
    Ok((weights, report))
}

/// Nothing missing, nothing left over.
fn check_names(place: &str, expected: &[ExpectedTensor], shards: &Shards) -> Result<(), ModelError> {
    let missing: Vec<_> = expected.iter().filter(|t| !shards.tensors.contains_key(&t.name)).collect();
    let known: std::collections::HashSet<_> = expected.iter().map(|t| t.name.as_str()).collect();
    let mut left_over: Vec<_> =
        shards.tensors.keys().filter(|n| !known.contains(n.as_str()) && !is_vision(n)).collect();
    left_over.sort();

    let more = |n: usize| if n > 1 { format!(" (and {} more)", n - 1) } else { String::new() };
    if let Some(first) = missing.first() {
        let also = left_over.first().map_or(String::new(), |n| format!("; found instead: {}", json::clip(n)));
        return Err(ModelError::Tensor {
            file: place.into(),
            tensor: first.name.clone(),
            problem: format!("is missing{}{also}", more(missing.len())),
            advice: CONVERT_AGAIN,
        });
    }
    if let Some(first) = left_over.first() {
        let what = if first.split('.').any(|part| part == "mtp") {
            "belongs to a multi-token-prediction head, which the MLX checkpoints of this architecture do not have"
        } else {
            "is not a tensor of this model"
        };
        return Err(ModelError::Tensor {
            file: shards.files[shards.tensors[*first].shard].path.clone(),
            tensor: json::clip(first),
            problem: format!("{what}{}", more(left_over.len())),
            advice: CONVERT_AGAIN,
        });
    }
    Ok(())
}

/// Dtype and shape of one tensor.
fn check_kind(expected: &ExpectedTensor, q: &Quantization, shards: &Shards) -> Result<(), ModelError> {
    let Located { shard, entry } = &shards.tensors[&expected.name];
    let error = |problem| ModelError::Tensor {
        file: shards.files[*shard].path.clone(),
        tensor: entry.name.clone(),
        problem,
        advice: CONVERT_AGAIN,
    };
    if !expected.dtypes.contains(&entry.dtype) {
        let names: Vec<_> = expected.dtypes.iter().map(|d| format!("{d:?}")).collect();
        return Err(error(format!("dtype is {:?}; expected {}", entry.dtype, names.join(" or "))));
    }
    if !expected.shapes.contains(&entry.shape) {
        let shapes: Vec<_> = expected.shapes.iter().map(|s| format!("{s:?}")).collect();
        let packed =
            expected.name.strip_suffix(".weight").filter(|_| expected.dtypes[0] == safetensors::Dtype::U32);
        let why = packed.map_or(String::new(), |module| {
            let bits = q.bits_of(module);
            format!(" ({bits} bits by config.json's quantization block, so {} elements a word)", 32 / bits)
        });
        return Err(error(format!("shape is {:?}; expected {}{why}", entry.shape, shapes.join(" or "))));
    }
    Ok(())
}

struct Loader<'a> {
    quantization: &'a Quantization,
    shards: &'a Shards,
    report: &'a mut LoadReport,
}

impl<'a> Loader<'a> {
    fn find(&self, name: &str) -> (&'a Shard, &'a Located) {
        let located = &self.shards.tensors[name];
        (&self.shards.files[located.shard], located)
    }

    /// A view of a whole tensor. Range and size were checked with the header, shape and dtype by [`check_kind`].
    fn view<T: bytemuck::Pod>(&mut self, name: &str) -> Result<TensorData<T>, ModelError> {
        let (shard, Located { entry, .. }) = self.find(name);
        let bytes = entry.end - entry.start;
        let data = TensorData::new(&shard.storage, entry.start, bytes / size_of::<T>());
        let data = data.ok_or_else(|| tensor_error(shard, name, "its data lies outside the file".into()))?;
        self.report.bytes += bytes;
        self.report.copied_misaligned += usize::from(!data.is_borrowed());
        Ok(data)
    }

    /// Scales or biases.
    fn groups(&mut self, name: &str) -> Result<TensorData<u16>, ModelError> {
        let values = self.view(name)?;
        if self.report.scales_checked {
            let shard = self.find(name).0;
            check_finite_bf16(&shard.path, name, &values)?;
        }
        Ok(values)
    }
}

impl TensorSource for Loader<'_> {
    fn matrix(&mut self, module: &str, shape: MatrixShape) -> Result<QuantMatrix, ModelError> {
        Ok(QuantMatrix {
            experts: shape.experts.unwrap_or(1),
            rows: shape.rows,
            cols: shape.cols,
            bits: self.quantization.bits_of(module),
            group_size: GROUP_SIZE,
            weight: self.view(&format!("{module}.weight"))?,
            scales: self.groups(&format!("{module}.scales"))?,
            biases: self.groups(&format!("{module}.biases"))?,
        })
    }

    fn vector(&mut self, name: &str, _: VectorKind, _: usize) -> Result<Vec<f32>, ModelError> {
        let (shard, Located { entry, .. }) = self.find(name);
        let bytes = &shard.storage.bytes()[entry.start..entry.end];
        self.report.bytes += bytes.len();
        let values: Vec<f32> = match entry.dtype {
            safetensors::Dtype::F32 => {
                bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
            }
            _ => bytes.as_chunks::<2>().0.iter().map(|b| bf16_to_f32(u16::from_le_bytes(*b))).collect(),
        };
        match values.iter().position(|x| !x.is_finite()) {
            Some(i) => Err(tensor_error(
                shard,
                name,
                format!("element {i} is {}; expected a finite number", values[i]),
            )),
            None => Ok(values),
        }
    }
}

fn tensor_error(shard: &Shard, name: &str, problem: String) -> ModelError {
    ModelError::Tensor { file: shard.path.clone(), tensor: name.into(), problem, advice: DOWNLOAD_AGAIN }
}
