//! The golden vectors: what the soft device computed.

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::{
    cases::{Case, fill},
    compare::{Difference, Format},
};
use crate::{
    device::Precision,
    error::{GpuError, Result},
    plan::{Arg, ArgValue, View},
};

/// Outputs up to this many bytes are kept whole, and later ops run on them. Of larger ones (GDN state, caches) values here
/// and there are kept, and later ops run on numbers from the generator.
const WHOLE: usize = 24 << 10;
/// Values kept of larger ones.
const SAMPLES: usize = 768;

static FILE: &[u8] = include_bytes!("golden.safetensors");

/// Golden vectors by case, op and argument.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Golden {
    vectors: BTreeMap<String, Vec<u8>>,
}

fn key(case: &Case, index: usize, arg: &str) -> String {
    format!("{}/{index}.{}/{arg}", case.name, case.plan.ops[index].kernel)
}

/// An op of a case, by itself or among those that belong together with it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Alone(usize),
    Together(usize),
}

impl Place {
    fn key(self, case: &Case, arg: &str) -> String {
        match self {
            Place::Alone(index) => key(case, index, arg),
            Place::Together(index) => format!("{} (together)", key(case, index, arg)),
        }
    }
}

/// The kept values of an output, which need not be whole.
fn kept(bytes: &[u8], format: Format) -> Vec<u8> {
    if bytes.len() <= WHOLE {
        return bytes.to_vec();
    }
    let n = bytes.len() / format.bytes();
    // The golden ratio's multiples: evenly spread, in step with no row length.
    let at = |i: usize| ((i as f64 + 0.5) * 0.618_033_988_749_894_9).fract() * n as f64;
    (0..SAMPLES).flat_map(|i| &bytes[at(i) as usize * format.bytes()..][..format.bytes()]).copied().collect()
}

fn bad(problem: impl Into<String>) -> GpuError {
    let problem = problem.into();
    GpuError::Kernels(format!(
        "golden vectors: {problem}; make them anew: cargo run --release -p lily-gpu --example make_golden"
    ))
}

impl Golden {
    /// Those inside this program.
    pub fn embedded() -> Result<Self> {
        let file = SafeTensors::deserialize(FILE).map_err(|e| bad(e.to_string()))?;
        Ok(Self { vectors: file.iter().map(|(name, t)| (name.to_string(), t.data().to_vec())).collect() })
    }

    /// As a safetensors file.
    pub fn to_file(&self) -> Result<Vec<u8>> {
        let views: Vec<(&str, TensorView<'_>)> = self
            .vectors
            .iter()
            .map(|(name, v)| Ok((name.as_str(), TensorView::new(Dtype::U8, vec![v.len()], v)?)))
            .collect::<std::result::Result<_, safetensors::SafeTensorError>>()
            .map_err(|e| bad(e.to_string()))?;
        safetensors::serialize(views, None).map_err(|e| bad(e.to_string()))
    }

    /// Vectors kept.
    pub fn len(&self) -> usize {
        self.vectors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.vectors.is_empty()
    }

    /// A vector, to look at or to spoil in a test.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Vec<u8>> {
        self.vectors.get_mut(key)
    }

    /// The keys of all vectors: `case/op.kernel/argument`.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.vectors.keys().map(String::as_str)
    }

    pub(super) fn keep(&mut self, case: &Case, place: Place, arg: &Arg, got: &[u8]) {
        self.vectors.insert(place.key(case, arg.name), kept(got, Format::of(arg.element)));
    }

    pub(super) fn compare(
        &self,
        case: &Case,
        place: Place,
        arg: &Arg,
        precision: Precision,
        got: &[u8],
    ) -> std::result::Result<Difference, String> {
        let key = place.key(case, arg.name);
        let want = self.vectors.get(&key).ok_or_else(|| bad(format!("no vector {key}")).to_string())?;
        let format = Format::of(arg.element);
        Ok(Difference::new(arg.name, format, precision, &kept(got, format), want))
    }

    /// What the buffers hold after an op: its golden outputs.
    pub(super) fn advance(&self, case: &Case, index: usize, contents: &mut [Vec<u8>]) -> Result<()> {
        for arg in &case.plan.ops[index].args {
            let ArgValue::Buffer { view, writes: true } = arg.value else { continue };
            let View { buffer, offset, len } = view;
            let part = &mut contents[buffer.0][offset as usize..(offset + len) as usize];
            if part.len() > WHOLE {
                let format = Format::of(arg.element);
                if format == Format::Words {
                    return Err(bad(format!("{} has integers and is too large to be kept whole", arg.name)));
                }
                part.copy_from_slice(&fill(format, part.len(), buffer.0 as u64 + 1000));
                continue;
            }
            let key = key(case, index, arg.name);
            let vector = self.vectors.get(&key).ok_or_else(|| bad(format!("no vector {key}")))?;
            if vector.len() != part.len() {
                return Err(bad(format!("{key} has {} bytes, not {}", vector.len(), part.len())));
            }
            part.copy_from_slice(vector);
        }
        Ok(())
    }
}
