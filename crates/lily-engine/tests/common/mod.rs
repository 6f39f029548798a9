//! A backend without a model, for tests of the engine alone, and a collector of events.
#![allow(dead_code, reason = "each test file uses a part")]

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use lily_engine::{
    Backend, BackendError, CancelFlag, Chosen, Draw, Engine, EngineError, Event, FinishReason,
    GenerateRequest, Interrupt, Logits, MemoryFigures, PAGE, SamplingParams, SequenceId, Snapshot, Stats,
};
use lily_model::{LayerType, ModelConfig};

/// What the scripted backend was asked, and how it is to misbehave.
#[derive(Debug, Default)]
pub struct Log {
    pub prefills: Vec<usize>,
    pub decodes: usize,
    /// Sequences of each decode call.
    pub batches: Vec<usize>,
    /// Steps of each run of steps.
    pub runs: Vec<usize>,
    pub live: usize,
    pub dropped: bool,
    /// Time spent inside the backend.
    pub busy: Duration,
}

/// Steps of a scripted chunk between which the interrupt is asked.
const LAYERS: u32 = 10;

/// Trouble for a token that the backend meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    Panic,
    Error,
    NaN,
}

/// A backend whose logits are a hash of all tokens seen, so that any mistake in a timeline shows.
pub struct Scripted {
    pub config: ModelConfig,
    pub delay: Duration,
    /// Time a token of a chunk takes.
    pub token_delay: Duration,
    pub max_chunk: usize,
    /// Most sequences whose tokens it chooses itself.
    pub most_drawn: usize,
    /// Meeting this token causes the trouble.
    pub trouble: Option<(u32, Trouble)>,
    pub panic_in_free: bool,
    /// Refuse to restore.
    pub forget_snapshots: bool,
    /// Compute the logits once and return copies, to cost as little as possible.
    pub constant: Option<Vec<f32>>,
    pub interrupt: Option<Interrupt>,
    pub identity: String,
    /// Bytes of a state.
    pub state_bytes: usize,
    pub log: Arc<Mutex<Log>>,
    sequences: HashMap<SequenceId, (Vec<u32>, usize)>,
    next: u64,
}

pub fn config(vocab: usize) -> ModelConfig {
    let mut config = ModelConfig::qwen3_6_35b_a3b(4);
    config.vocab_size = vocab;
    config.layer_types = vec![LayerType::LinearAttention; 4];
    config
}

impl Scripted {
    pub fn new(vocab: usize) -> Self {
        Self {
            config: config(vocab),
            delay: Duration::ZERO,
            token_delay: Duration::ZERO,
            max_chunk: 1 << 20,
            most_drawn: 0,
            trouble: None,
            panic_in_free: false,
            forget_snapshots: false,
            constant: None,
            interrupt: None,
            identity: "scripted-pages/1 test".into(),
            state_bytes: 64,
            log: Arc::default(),
            sequences: HashMap::new(),
            next: 0,
        }
    }

    pub fn slow(vocab: usize, delay_ms: u64) -> Self {
        let mut backend = Self::new(vocab);
        backend.delay = Duration::from_millis(delay_ms);
        backend
    }

    fn append(&mut self, id: SequenceId, tokens: &[u32]) -> Result<(), BackendError> {
        let (seen, capacity) = self.sequences.get_mut(&id).ok_or(BackendError::UnknownSequence(id))?;
        if seen.len() + tokens.len() > *capacity {
            return Err(BackendError::Full {
                position: seen.len(),
                capacity: *capacity,
                asked: tokens.len(),
            });
        }
        seen.extend_from_slice(tokens);
        let Some((token, trouble)) = self.trouble else { return Ok(()) };
        match trouble {
            _ if !tokens.contains(&token) => Ok(()),
            Trouble::Panic => panic!("scripted panic at token {token}"),
            Trouble::Error => Err(BackendError::Device("scripted error".into())),
            Trouble::NaN => Ok(()),
        }
    }

    /// The device's choice after a step: the largest logit, or one of the valid ids by seed and position.
    fn chosen(&self, id: SequenceId, draw: Draw, valid: usize) -> Result<u32, BackendError> {
        let mut row = Vec::new();
        self.row(id, &mut row);
        let position = self.sequences[&id].0.len() - 1;
        if row.iter().any(|x| !x.is_finite()) {
            return Err(BackendError::NonFinite { position });
        }
        if draw.temperature == 0.0 {
            return Ok(lily_engine::argmax(&row[..valid]).unwrap() as u32);
        }
        let x = (draw.seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (position as u64) << 7;
        Ok((x.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 33) as u32 % valid as u32)
    }

    fn row(&self, id: SequenceId, out: &mut Vec<f32>) {
        let start = out.len();
        match &self.constant {
            Some(row) => out.extend_from_slice(row),
            None => out.extend(logits(&self.sequences[&id].0, self.config.vocab_size)),
        }
        if let Some((token, Trouble::NaN)) = self.trouble
            && self.sequences[&id].0.last() == Some(&token)
        {
            out[start] = f32::NAN;
        }
    }
}

fn hash(tokens: &[u32]) -> u64 {
    tokens.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, &t| {
        (h ^ t as u64).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
    })
}

/// The scripted model's logits after `tokens`.
pub fn logits(tokens: &[u32], vocab: usize) -> impl Iterator<Item = f32> {
    let hash = hash(tokens);
    (0..vocab as u64).map(move |i| {
        let x = (hash ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (x >> 40) as f32 / (1 << 20) as f32
    })
}

/// The scripted model's greedy continuation.
pub fn expected(prompt: &[u32], n: usize, vocab: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        let best =
            logits(&tokens, vocab).enumerate().fold((0, f32::MIN), |b, x| if x.1 > b.1 { x } else { b });
        tokens.push(best.0 as u32);
    }
    tokens.split_off(prompt.len())
}

impl Backend for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }
    fn config(&self) -> &ModelConfig {
        &self.config
    }
    fn max_chunk(&self) -> usize {
        self.max_chunk
    }
    fn new_sequence(&mut self, capacity: usize) -> Result<SequenceId, BackendError> {
        self.next += 1;
        self.sequences.insert(SequenceId(self.next), (Vec::new(), capacity));
        self.log.lock().unwrap().live += 1;
        Ok(SequenceId(self.next))
    }
    fn free_sequence(&mut self, sequence: SequenceId) {
        assert!(!self.panic_in_free, "scripted panic in free_sequence");
        if self.sequences.remove(&sequence).is_some() {
            self.log.lock().unwrap().live -= 1;
        }
    }
    fn position(&self, sequence: SequenceId) -> Result<usize, BackendError> {
        self.sequences.get(&sequence).map(|s| s.0.len()).ok_or(BackendError::UnknownSequence(sequence))
    }
    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        logits: Logits,
        out: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let started = Instant::now();
        assert!(!tokens.is_empty() && tokens.len() <= self.max_chunk);
        self.log.lock().unwrap().prefills.push(tokens.len());
        // A chunk's "layers": the interrupt is asked before each.
        for _ in 0..LAYERS {
            if self.interrupt.as_ref().is_some_and(|asked| asked()) {
                return Err(BackendError::Interrupted);
            }
            thread::sleep((self.delay + self.token_delay * tokens.len() as u32) / LAYERS);
        }
        out.clear();
        self.append(sequence, tokens)?;
        match logits {
            Logits::None => {}
            Logits::Last => self.row(sequence, out),
            Logits::All => unreachable!("the engine does not ask for all logits"),
        }
        self.log.lock().unwrap().busy += started.elapsed();
        Ok(())
    }
    fn set_interrupt(&mut self, interrupt: Option<Interrupt>) {
        self.interrupt = interrupt;
    }
    fn decode(&mut self, batch: &[(SequenceId, u32)], out: &mut Vec<f32>) -> Result<(), BackendError> {
        let started = Instant::now();
        {
            let mut log = self.log.lock().unwrap();
            log.decodes += 1;
            log.batches.push(batch.len());
        }
        thread::sleep(self.delay);
        out.clear();
        for &(sequence, token) in batch {
            self.append(sequence, &[token])?;
            self.row(sequence, out);
        }
        self.log.lock().unwrap().busy += started.elapsed();
        Ok(())
    }
    fn most_drawn(&self) -> usize {
        self.most_drawn
    }
    /// Always a step ahead, as a device is.
    fn decode_run(
        &mut self,
        batch: &[(SequenceId, u32)],
        draws: &[Option<Draw>],
        steps: usize,
        valid: usize,
        each: &mut dyn FnMut(Chosen<'_>) -> bool,
    ) -> Result<(), BackendError> {
        assert!(batch.len() <= self.most_drawn && draws.len() == batch.len() && steps > 0);
        assert!(steps == 1 || !draws.contains(&None));
        let mut tokens: Vec<u32> = batch.iter().map(|row| row.1).collect();
        let mut before: Option<Vec<u32>> = None;
        self.log.lock().unwrap().runs.push(0);
        for _ in 0..steps {
            {
                let mut log = self.log.lock().unwrap();
                log.decodes += 1;
                log.batches.push(batch.len());
                *log.runs.last_mut().unwrap() += 1;
            }
            thread::sleep(self.delay);
            let mut logits = Vec::new();
            for (i, &(sequence, _)) in batch.iter().enumerate() {
                self.append(sequence, &[tokens[i]])?;
                tokens[i] = match draws[i] {
                    Some(draw) => self.chosen(sequence, draw, valid)?,
                    None => {
                        self.row(sequence, &mut logits);
                        u32::MAX
                    }
                };
            }
            if steps == 1 {
                each(Chosen { ids: &tokens, logits: &logits });
                return Ok(());
            }
            if let Some(ids) = before.replace(tokens.clone())
                && !each(Chosen { ids: &ids, logits: &[] })
            {
                break;
            }
        }
        each(Chosen { ids: &before.unwrap(), logits: &[] });
        Ok(())
    }
    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot, BackendError> {
        let tokens = &self.sequences.get(&sequence).ok_or(BackendError::UnknownSequence(sequence))?.0;
        let data = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        Ok(Snapshot { position: tokens.len(), format: "scripted/1".into(), data })
    }
    fn restore(&mut self, sequence: SequenceId, snapshot: &Snapshot) -> Result<(), BackendError> {
        if self.forget_snapshots {
            return Err(BackendError::BadSnapshot { found: "forgotten".into(), expected: "none".into() });
        }
        let tokens = &mut self.sequences.get_mut(&sequence).ok_or(BackendError::UnknownSequence(sequence))?.0;
        *tokens = snapshot.data.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        Ok(())
    }
    fn identity(&self) -> Option<String> {
        Some(self.identity.clone())
    }
    /// A hash of all tokens, in as many bytes as a state is to have.
    fn snapshot_state(&mut self, sequence: SequenceId) -> Result<Snapshot, BackendError> {
        let tokens = &self.sequences.get(&sequence).ok_or(BackendError::UnknownSequence(sequence))?.0;
        let mut data = hash(tokens).to_le_bytes().to_vec();
        data.resize(self.state_bytes.max(8), 0x5a);
        Ok(Snapshot { position: tokens.len(), format: "scripted-pages/1".into(), data })
    }
    /// The tokens of the page, each sixteen times.
    fn read_page(&mut self, sequence: SequenceId, page: usize) -> Result<Vec<u8>, BackendError> {
        let tokens = &self.sequences.get(&sequence).ok_or(BackendError::UnknownSequence(sequence))?.0;
        let rows = (page * PAGE).min(tokens.len())..((page + 1) * PAGE).min(tokens.len());
        Ok(tokens[rows].iter().flat_map(|t| [t.to_le_bytes(); 16].concat()).collect())
    }
    fn restore_pages(
        &mut self,
        sequence: SequenceId,
        state: &Snapshot,
        pages: &[&[u8]],
    ) -> Result<(), BackendError> {
        let bad =
            |found: &str| Err(BackendError::BadSnapshot { found: found.into(), expected: "another".into() });
        if self.forget_snapshots {
            return bad("forgotten");
        }
        assert_eq!(pages.len(), state.position.div_ceil(PAGE));
        let seen: Vec<u32> = pages
            .iter()
            .flat_map(|p| {
                p.as_chunks::<64>().0.iter().map(|row| u32::from_le_bytes(row[..4].try_into().unwrap()))
            })
            .collect();
        if seen.len() != state.position || hash(&seen).to_le_bytes() != state.data[..8] {
            return bad("pages and state of different texts");
        }
        let entry = self.sequences.get_mut(&sequence).ok_or(BackendError::UnknownSequence(sequence))?;
        assert!(seen.len() <= entry.1, "restored beyond the sequence's capacity");
        entry.0 = seen;
        Ok(())
    }
    fn memory(&self) -> MemoryFigures {
        MemoryFigures { kv: self.sequences.values().map(|s| s.0.len()).sum(), ..Default::default() }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.log.lock().unwrap().dropped = true;
    }
}

/// A greedy request.
pub fn ask(prompt: &[u32], max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        prompt: prompt.to_vec(),
        sampling: SamplingParams::default(),
        max_tokens: Some(max_tokens),
        stop_tokens: Vec::new(),
        logprobs: None,
        deadline: None,
        marks: Vec::new(),
        constraint: None,
    }
}

/// A submitted request.
pub struct Running {
    pub cancel: CancelFlag,
    pub events: Receiver<Event>,
    /// Set: the sink returns `false` from now on.
    pub refuse: Arc<AtomicBool>,
}

/// How a generation went.
#[derive(Debug)]
pub struct Done {
    pub tokens: Vec<u32>,
    pub prefills: Vec<(usize, usize)>,
    pub end: Result<(FinishReason, Stats), EngineError>,
}

/// Longest wait for an event; only reached when a test fails.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn submit(engine: &Engine, request: GenerateRequest) -> Result<Running, EngineError> {
    let (sender, events) = channel();
    let cancel = CancelFlag::new();
    let refuse = Arc::new(AtomicBool::new(false));
    let sink = {
        let refuse = refuse.clone();
        Box::new(move |event| {
            let _ = sender.send(event);
            !refuse.load(Ordering::Acquire)
        })
    };
    engine.submit(request, cancel.clone(), sink)?;
    Ok(Running { cancel, events, refuse })
}

impl Running {
    pub fn next(&self) -> Event {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    /// Waits for the `n`-th token from now.
    pub fn wait_token(&self, n: usize) {
        let mut left = n;
        while left > 0 {
            match self.next() {
                Event::Token { .. } => left -= 1,
                Event::Prefill { .. } => {}
                other => panic!("ended early: {other:?}"),
            }
        }
    }

    /// Waits until `done` prompt tokens are processed.
    pub fn wait_prefill(&self, done: usize) {
        loop {
            match self.next() {
                Event::Prefill { done: d, .. } if d >= done => return,
                Event::Prefill { .. } => {}
                other => panic!("no prefill: {other:?}"),
            }
        }
    }

    /// Collects the rest; checks that the events come in the documented order and that one end is the last event.
    pub fn finish(self) -> Done {
        let (mut tokens, mut prefills) = (Vec::new(), Vec::new());
        let end = loop {
            match self.next() {
                Event::Prefill { done, total } => {
                    assert!(tokens.is_empty(), "a Prefill after a Token");
                    prefills.push((done, total));
                }
                Event::Token { id, .. } => tokens.push(id),
                Event::Finished { reason, stats } => break Ok((reason, stats)),
                Event::Failed(error) => break Err(error),
            }
        };
        // The sink is dropped after the end; nothing may come between.
        assert!(self.events.recv_timeout(PATIENCE).is_err(), "an event after the end");
        Done { tokens, prefills, end }
    }
}

pub fn generate(engine: &Engine, request: GenerateRequest) -> Done {
    submit(engine, request).expect("accepted").finish()
}
