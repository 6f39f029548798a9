//! The header of a safetensors file, checked completely before any tensor is touched.
//!
//! Layout: 8 bytes little-endian header length `n`, `n` bytes of JSON
//! `{name: {dtype, shape, data_offsets: [begin, end]}, "__metadata__": {text: text}}`, then the data, which
//! the tensors must cover without gap or overlap. The `safetensors` crate's own reader checks most of this too, but
//! keeps the last of two equal names, and its errors do not say which tensor is wrong.

use safetensors::Dtype;
use serde_json::Value;

use crate::{
    error::{DOWNLOAD_AGAIN, ModelError},
    json::{self, Field},
};

/// Longest header.
const MAX_HEADER: usize = json::MAX_TEXT;
/// Most dimensions of a tensor.
const MAX_RANK: usize = 8;
/// The member that is not a tensor.
const METADATA: &str = "__metadata__";

/// A tensor of a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// First byte, counted from the start of the file.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// Reads the header of `bytes`, the whole of `file`. Entries are in the order of their data.
pub(crate) fn read(file: &str, bytes: &[u8]) -> Result<Vec<Entry>, ModelError> {
    let bad = |problem: String| ModelError::Header { file: file.into(), problem, advice: DOWNLOAD_AGAIN };
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        let n = bytes.len();
        return Err(bad(format!(
            "the file has {n} bytes; a safetensors file begins with an 8-byte header length"
        )));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER as u64 {
        return Err(bad(format!("header length is {length} bytes; expected at most {MAX_HEADER}")));
    }
    let length = length as usize;
    let Some(header) = rest.get(..length) else {
        let n = rest.len();
        return Err(bad(format!(
            "header length is {length} bytes, but only {n} follow: the file is truncated"
        )));
    };
    let parsed = json::parse(&format!("{file} (header)"), header, DOWNLOAD_AGAIN)?;
    let Value::Object(members) = &parsed else {
        return Err(bad("the header is not a JSON object".into()));
    };

    let data_len = rest.len() - length;
    let mut entries = Vec::new();
    for name in members.keys().filter(|n| *n != METADATA) {
        let root = Field::root(file, &parsed);
        let mut entry = entry(file, name, &root.get(name)).map_err(|e| in_tensor(file, name, e))?;
        if entry.end > data_len {
            return Err(tensor_error(
                file,
                name,
                format!(
                    "data_offsets end at byte {} of the data, but the file holds {data_len}: it is truncated, or the \
                     offset is wrong",
                    entry.end
                ),
            ));
        }
        entry.start += 8 + length;
        entry.end += 8 + length;
        entries.push(entry);
    }
    check_cover(file, &mut entries, 8 + length, bytes.len())?;
    Ok(entries)
}

/// One member of the header; offsets are still relative to the data.
fn entry(file: &str, name: &str, field: &Field) -> Result<Entry, ModelError> {
    let members = field.object()?;
    if let Some(extra) = members.keys().find(|k| !["dtype", "shape", "data_offsets"].contains(&k.as_str())) {
        return Err(field.get(extra).error_with("only dtype, shape and data_offsets", DOWNLOAD_AGAIN));
    }
    let dtype = field.get("dtype");
    let dtype: Dtype = serde_json::from_value(Value::String(dtype.string()?.into()))
        .map_err(|_| dtype.error_with("a safetensors dtype such as \"BF16\"", DOWNLOAD_AGAIN))?;
    let integers = |f: Field| -> Result<Vec<usize>, ModelError> {
        f.items()?.iter().map(|i| i.integer(0, usize::MAX)).collect()
    };
    let shape = integers(field.get("shape"))?;
    let offsets = integers(field.get("data_offsets"))?;
    let fail = |problem: String| Err(tensor_error(file, name, problem));

    if shape.len() > MAX_RANK {
        return fail(format!("shape has {} dimensions; expected at most {MAX_RANK}", shape.len()));
    }
    let &[start, end] = offsets.as_slice() else {
        return fail(format!("data_offsets has {} numbers; expected begin and end", offsets.len()));
    };
    if start > end {
        return fail(format!("data_offsets begin at {start}, after their end at {end}"));
    }
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let Some(bits) = elements.and_then(|n| n.checked_mul(dtype.bitsize())) else {
        return fail(format!("shape {shape:?} has more elements than memory can address"));
    };
    if bits % 8 != 0 || bits / 8 != end - start {
        return fail(format!(
            "dtype {dtype:?} and shape {shape:?} make {} bytes, but data_offsets [{start}, {end}] hold {}",
            bits / 8,
            end - start
        ));
    }
    Ok(Entry { name: name.into(), dtype, shape, start, end })
}

/// Sorts by place and checks that the tensors cover the data exactly.
fn check_cover(file: &str, entries: &mut [Entry], start: usize, end: usize) -> Result<(), ModelError> {
    entries.sort_by_key(|e| (e.start, e.end));
    let mut at = start;
    let mut before = "";
    for e in entries.iter() {
        if e.start < at {
            return Err(tensor_error(file, &e.name, format!("its data overlaps that of tensor {before}")));
        }
        if e.start > at {
            return Err(tensor_error(
                file,
                &e.name,
                format!("{} bytes before its data belong to no tensor", e.start - at),
            ));
        }
        (at, before) = (e.end, &e.name);
    }
    if at != end {
        return Err(ModelError::Header {
            file: file.into(),
            problem: format!("{} bytes at the end of the file belong to no tensor", end - at),
            advice: DOWNLOAD_AGAIN,
        });
    }
    Ok(())
}

fn tensor_error(file: &str, tensor: &str, problem: String) -> ModelError {
    ModelError::Tensor { file: file.into(), tensor: json::clip(tensor), problem, advice: DOWNLOAD_AGAIN }
}

/// Names the tensor in an error about one of its fields.
fn in_tensor(file: &str, tensor: &str, error: ModelError) -> ModelError {
    match error {
        ModelError::Field { field, found, expected, .. } => {
            let field = field.strip_prefix(tensor).map(|f| f.trim_start_matches('.')).unwrap_or(&field);
            let field = if field.is_empty() { "its entry" } else { field };
            tensor_error(file, tensor, format!("{field} is {found}; expected {expected}"))
        }
        other => other,
    }
}
