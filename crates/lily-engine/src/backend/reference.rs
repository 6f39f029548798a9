//! The f32 reference model as a [`Backend`]: what other backends are evaluated against, and what `--device
//! reference` runs.

use std::{collections::HashMap, sync::Arc};

use lily_model::{
    LayerType, ModelConfig, ModelWeights,
    reference::{LayerState, ReferenceModel, ReferenceState},
};

use super::{Backend, BackendError, Logits, MemoryFigures, SequenceId, Snapshot};

/// Name and layout version of snapshots: fingerprint and position as u64, then each layer's f32 values in the order
/// keys, values (attention) or state, convolution (GDN); all little-endian.
const FORMAT: &str = "reference/1";

/// Bytes before the layers' values.
const HEADER: usize = 16;

/// The reference model computes a token at a time, so a chunk only bounds how long a cancelled request runs on.
const MAX_CHUNK: usize = 64;

/// [`ReferenceModel`] as a backend named `reference`.
#[derive(Debug)]
pub struct ReferenceBackend {
    model: ReferenceModel,
    fingerprint: u64,
    sequences: HashMap<SequenceId, Sequence>,
    next: u64,
}

#[derive(Debug)]
struct Sequence {
    state: ReferenceState,
    capacity: usize,
}

impl ReferenceBackend {
    /// The reference model with these weights.
    pub fn new(weights: Arc<ModelWeights>) -> Self {
        let fingerprint = fingerprint(&weights);
        Self { model: ReferenceModel::new(weights), fingerprint, sequences: HashMap::new(), next: 0 }
    }

    fn get(&self, id: SequenceId) -> Result<&Sequence, BackendError> {
        self.sequences.get(&id).ok_or(BackendError::UnknownSequence(id))
    }

    /// The model, and the state of a sequence that is checked to have room for `tokens`, all in the vocabulary.
    fn for_append(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
    ) -> Result<(&ReferenceModel, &mut ReferenceState), BackendError> {
        let vocab = self.config().vocab_size;
        let Sequence { state, capacity } =
            self.sequences.get_mut(&id).ok_or(BackendError::UnknownSequence(id))?;
        if let Some(&id) = tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(BackendError::BadToken { id, vocab });
        }
        if tokens.len() > capacity.saturating_sub(state.position) {
            let (position, capacity) = (state.position, *capacity);
            return Err(BackendError::Full { position, capacity, asked: tokens.len() });
        }
        Ok((&self.model, state))
    }
}

impl Backend for ReferenceBackend {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn config(&self) -> &ModelConfig {
        &self.model.weights().config
    }

    fn max_chunk(&self) -> usize {
        MAX_CHUNK
    }

    fn new_sequence(&mut self, capacity: usize) -> Result<SequenceId, BackendError> {
        self.next += 1;
        let id = SequenceId(self.next);
        self.sequences.insert(id, Sequence { state: self.model.new_state(), capacity });
        Ok(id)
    }

    fn free_sequence(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }

    fn position(&self, sequence: SequenceId) -> Result<usize, BackendError> {
        Ok(self.get(sequence)?.state.position)
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        logits: Logits,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        if tokens.is_empty() || tokens.len() > MAX_CHUNK {
            return Err(BackendError::BadChunk { found: tokens.len(), most: MAX_CHUNK });
        }
        let (vocab, hidden) = (self.config().vocab_size, self.config().hidden_size);
        let (model, state) = self.for_append(sequence, tokens)?;
        let start = state.position;
        out.clear();
        // A row of `width` values per position, the first of them `first`.
        let check =
            |values: &[f32], width: usize, first: usize| match values.iter().position(|x| !x.is_finite()) {
                Some(at) => Err(BackendError::NonFinite { position: first + at / width }),
                None => Ok(()),
            };
        match logits {
            Logits::None => check(&model.hidden(state, tokens, None), hidden, start),
            Logits::Last => {
                *out = model.forward_last(state, tokens);
                check(out, vocab, start + tokens.len() - 1)
            }
            Logits::All => {
                *out = model.forward(state, tokens, None);
                check(out, vocab, start)
            }
        }
    }

    fn decode(&mut self, batch: &[(SequenceId, u32)], out: &mut Vec<f32>) -> Result<(), BackendError> {
        for (i, &(id, token)) in batch.iter().enumerate() {
            self.for_append(id, &[token])?;
            if batch[..i].iter().any(|b| b.0 == id) {
                return Err(BackendError::Device(format!("{id:?} occurs twice in a decode batch")));
            }
        }
        out.clear();
        for &(id, token) in batch {
            let (model, state) = self.for_append(id, &[token])?;
            let row = model.forward_last(state, &[token]);
            if row.iter().any(|x| !x.is_finite()) {
                return Err(BackendError::NonFinite { position: state.position - 1 });
            }
            out.extend(row);
        }
        Ok(())
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot, BackendError> {
        let state = &self.get(sequence)?.state;
        let values: usize = state.layers.iter().flat_map(parts).map(|(_, v)| v.len()).sum();
        let mut data = Vec::with_capacity(HEADER + 4 * values);
        data.extend(self.fingerprint.to_le_bytes());
        data.extend((state.position as u64).to_le_bytes());
        for (_, values) in state.layers.iter().flat_map(parts) {
            data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        }
        Ok(Snapshot { position: state.position, format: FORMAT.into(), data })
    }

    fn restore(&mut self, sequence: SequenceId, snapshot: &Snapshot) -> Result<(), BackendError> {
        let capacity = self.get(sequence)?.capacity;
        if snapshot.position > capacity {
            return Err(BackendError::Full { position: 0, capacity, asked: snapshot.position });
        }
        let state = read_snapshot(self.config(), self.fingerprint, snapshot)?;
        self.sequences.insert(sequence, Sequence { state, capacity });
        Ok(())
    }

    fn memory(&self) -> MemoryFigures {
        let bytes = |wanted: Kind| -> usize {
            let layers = self.sequences.values().flat_map(|s| &s.state.layers);
            layers.flat_map(parts).filter(|(kind, _)| *kind == wanted).map(|(_, v)| 4 * v.len()).sum()
        };
        MemoryFigures {
            weights: self.model.weights().byte_len(),
            kv: bytes(Kind::Kv),
            state: bytes(Kind::State),
            scratch: 0,
        }
    }
}

/// What a part of a layer's state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kv,
    State,
}

/// The two arrays of a layer's state, in the order of snapshots.
fn parts(layer: &LayerState) -> [(Kind, &Vec<f32>); 2] {
    match layer {
        LayerState::Attention(a) => [(Kind::Kv, &a.keys), (Kind::Kv, &a.values)],
        LayerState::Gdn(g) => [(Kind::State, &g.state), (Kind::State, &g.conv)],
    }
}

/// [`parts`] to write to.
fn parts_mut(layer: &mut LayerState) -> [&mut Vec<f32>; 2] {
    match layer {
        LayerState::Attention(a) => [&mut a.keys, &mut a.values],
        LayerState::Gdn(g) => [&mut g.state, &mut g.conv],
    }
}

/// The state in a snapshot, after checking that it is whole and of this model.
fn read_snapshot(
    config: &ModelConfig,
    fingerprint: u64,
    snapshot: &Snapshot,
) -> Result<ReferenceState, BackendError> {
    let bad = |found: String, expected: String| BackendError::BadSnapshot { found, expected };
    if snapshot.format != FORMAT {
        return Err(bad(snapshot.format.clone(), FORMAT.into()));
    }
    let mut words = snapshot.data.chunks_exact(8).map(|w| {
        let mut word = [0; 8];
        word.copy_from_slice(w);
        u64::from_le_bytes(word)
    });
    let (Some(model), Some(position)) = (words.next(), words.next()) else {
        return Err(bad(format!("{FORMAT}, {} bytes", snapshot.data.len()), format!("{FORMAT}, more bytes")));
    };
    if model != fingerprint {
        return Err(bad(
            format!("{FORMAT}, model {model:016x}"),
            format!("{FORMAT}, model {fingerprint:016x}"),
        ));
    }
    if position != snapshot.position as u64 {
        return Err(bad(
            format!("{FORMAT}, position {position}"),
            format!("{FORMAT}, position {}", snapshot.position),
        ));
    }
    // The position is the caller's (it fits a sequence), so these sizes are bounded by what it could allocate.
    let kv = snapshot.position.saturating_mul(config.num_key_value_heads * config.head_dim);
    let mut state = ReferenceState::new(config);
    let values = config.count(LayerType::FullAttention).saturating_mul(kv).saturating_mul(2)
        + state.layers.iter().flat_map(parts).map(|(_, v)| v.len()).sum::<usize>();
    let expected = values.saturating_mul(4).saturating_add(HEADER);
    if snapshot.data.len() != expected {
        return Err(bad(
            format!("{FORMAT}, {} bytes", snapshot.data.len()),
            format!("{FORMAT}, {expected} bytes"),
        ));
    }
    let mut rest = snapshot.data[HEADER..].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
    state.position = snapshot.position;
    for layer in &mut state.layers {
        let n = matches!(layer, LayerState::Attention(_)).then_some(kv);
        for values in parts_mut(layer) {
            let n = n.unwrap_or(values.len());
            values.clear();
            values.extend(rest.by_ref().take(n));
        }
    }
    Ok(state)
}

/// Tells models apart: FNV-1a over the sizes, the layers' norms and the first scales of `lm_head`, which no two
/// trained models share.
fn fingerprint(weights: &ModelWeights) -> u64 {
    let config = format!("{:?}", weights.config);
    let norms = weights.layers.iter().flat_map(|l| l.input_norm.iter().chain(&l.post_attention_norm));
    let vectors = norms.chain(&weights.final_norm).flat_map(|x| x.to_le_bytes());
    let head = weights.lm_head.scales.iter().take(4096).flat_map(|x| x.to_le_bytes());
    config.bytes().chain(vectors).chain(head).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
