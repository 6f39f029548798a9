//! The f32 reference model as a [`Backend`]: what other backends are evaluated against, and what `--device
//! reference` runs.

use std::{collections::HashMap, sync::Arc};

use lily_model::{
    LayerType, ModelConfig, ModelWeights,
    reference::{LayerState, ReferenceModel, ReferenceState},
};

use super::{Backend, BackendError, Logits, MemoryFigures, PAGE, SequenceId, Snapshot};

/// Name and layout version of snapshots: fingerprint and position as u64, then each layer's f32 values in the order
/// keys, values (attention) or state, convolution (GDN); all little-endian.
const FORMAT: &str = "reference/1";

/// Name and layout version of states without KV: the same with the GDN layers' values only. A page holds the keys, then
/// the values of its positions, of one attention layer after the other.
const PAGED: &str = "reference-pages/1";

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
        let mut data = header(self.fingerprint, state.position);
        data.reserve_exact(4 * values);
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

    fn identity(&self) -> Option<String> {
        Some(format!("{PAGED} {:016x}", self.fingerprint))
    }

    fn snapshot_state(&mut self, sequence: SequenceId) -> Result<Snapshot, BackendError> {
        let state = &self.get(sequence)?.state;
        let mut data = header(self.fingerprint, state.position);
        for values in of_kind(state, Kind::State) {
            data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        }
        Ok(Snapshot { position: state.position, format: PAGED.into(), data })
    }

    fn read_page(&mut self, sequence: SequenceId, page: usize) -> Result<Vec<u8>, BackendError> {
        let state = &self.get(sequence)?.state;
        let row = self.config().num_key_value_heads * self.config().head_dim;
        let rows = page_rows(state.position, page);
        let values = of_kind(state, Kind::Kv).flat_map(|v| &v[rows.start * row..rows.end * row]);
        Ok(values.flat_map(|x| x.to_le_bytes()).collect())
    }

    fn restore_pages(
        &mut self,
        sequence: SequenceId,
        state: &Snapshot,
        pages: &[&[u8]],
    ) -> Result<(), BackendError> {
        let capacity = self.get(sequence)?.capacity;
        if state.position > capacity {
            return Err(BackendError::Full { position: 0, capacity, asked: state.position });
        }
        let state = read_pages(self.config(), self.fingerprint, state, pages)?;
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
    check_header(fingerprint, snapshot, FORMAT)?;
    // The position is the caller's (it fits a sequence), so these sizes are bounded by what it could allocate.
    let kv = snapshot.position.saturating_mul(config.num_key_value_heads * config.head_dim);
    let mut state = ReferenceState::new(config);
    let values = config.count(LayerType::FullAttention).saturating_mul(kv).saturating_mul(2)
        + of_kind(&state, Kind::State).map(Vec::len).sum::<usize>();
    check_length(snapshot, FORMAT, values)?;
    let mut rest = floats(&snapshot.data[HEADER..]);
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

/// The state in a snapshot without KV and the pages of its position, checked likewise.
fn read_pages(
    config: &ModelConfig,
    fingerprint: u64,
    snapshot: &Snapshot,
    pages: &[&[u8]],
) -> Result<ReferenceState, BackendError> {
    check_header(fingerprint, snapshot, PAGED)?;
    let mut state = ReferenceState::new(config);
    check_length(snapshot, PAGED, of_kind(&state, Kind::State).map(Vec::len).sum())?;
    let bad = |found: String, expected: String| BackendError::BadSnapshot { found, expected };
    let count = snapshot.position.div_ceil(PAGE);
    if pages.len() != count {
        return Err(bad(format!("{PAGED}, {} pages", pages.len()), format!("{PAGED}, {count} pages")));
    }
    let row = config.num_key_value_heads * config.head_dim;
    let arrays = 2 * config.count(LayerType::FullAttention);
    for (i, page) in pages.iter().enumerate() {
        let expected = 4 * arrays * row * page_rows(snapshot.position, i).len();
        if page.len() != expected {
            let found = format!("{PAGED}, a page of {} bytes", page.len());
            return Err(bad(found, format!("{PAGED}, a page of {expected} bytes")));
        }
    }
    let mut rest = floats(&snapshot.data[HEADER..]);
    state.position = snapshot.position;
    let mut array = 0;
    for layer in &mut state.layers {
        let is_kv = matches!(layer, LayerState::Attention(_));
        for values in parts_mut(layer) {
            if !is_kv {
                values.iter_mut().zip(rest.by_ref()).for_each(|(to, from)| *to = from);
                continue;
            }
            for page in pages {
                let n = page.len() / arrays;
                values.extend(floats(&page[array * n..(array + 1) * n]));
            }
            array += 1;
        }
    }
    Ok(state)
}

/// Positions of page `page` that a sequence at `position` has.
fn page_rows(position: usize, page: usize) -> std::ops::Range<usize> {
    let start = page.saturating_mul(PAGE).min(position);
    start..position.min(start + PAGE)
}

/// The arrays of one kind, layer by layer.
fn of_kind(state: &ReferenceState, wanted: Kind) -> impl Iterator<Item = &Vec<f32>> {
    state.layers.iter().flat_map(parts).filter(move |(kind, _)| *kind == wanted).map(|(_, v)| v)
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))
}

fn header(fingerprint: u64, position: usize) -> Vec<u8> {
    [fingerprint.to_le_bytes(), (position as u64).to_le_bytes()].concat()
}

/// That the snapshot is of this format and model and says its own position.
fn check_header(fingerprint: u64, snapshot: &Snapshot, format: &str) -> Result<(), BackendError> {
    let bad = |found: String, expected: String| BackendError::BadSnapshot { found, expected };
    if snapshot.format != format {
        return Err(bad(snapshot.format.clone(), format.into()));
    }
    let mut words = snapshot.data.chunks_exact(8).map(|w| {
        let mut word = [0; 8];
        word.copy_from_slice(w);
        u64::from_le_bytes(word)
    });
    let (Some(model), Some(position)) = (words.next(), words.next()) else {
        return Err(bad(format!("{format}, {} bytes", snapshot.data.len()), format!("{format}, more bytes")));
    };
    if model != fingerprint {
        return Err(bad(
            format!("{format}, model {model:016x}"),
            format!("{format}, model {fingerprint:016x}"),
        ));
    }
    if position != snapshot.position as u64 {
        return Err(bad(
            format!("{format}, position {position}"),
            format!("{format}, position {}", snapshot.position),
        ));
    }
    Ok(())
}

/// That the snapshot holds `values` floats.
fn check_length(snapshot: &Snapshot, format: &str, values: usize) -> Result<(), BackendError> {
    let expected = values.saturating_mul(4).saturating_add(HEADER);
    if snapshot.data.len() == expected {
        return Ok(());
    }
    Err(BackendError::BadSnapshot {
        found: format!("{format}, {} bytes", snapshot.data.len()),
        expected: format!("{format}, {expected} bytes"),
    })
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
