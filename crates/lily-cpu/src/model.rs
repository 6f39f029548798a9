//! The model: weights, the machine, activations, and the order of the steps.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use lily_model::{ModelConfig, ModelWeights, weights::MixerWeights};

use crate::{
    acts::{Acts, Need},
    buf::Buf,
    check,
    error::{CpuError, Result},
    isa::Isa,
    kernels::Kernels,
    ops::{
        Machine, Span,
        attention::{self, AttentionInputs},
        embed::embed,
        gdn::{self, GdnInputs, GdnPlan},
        linear::{Gemm, gemm, gemv_add, gemv_all},
        moe::{self, ManyScratch, MoeScratch},
        norm::{norm_all, norm_one, quantize_all, quantize_one},
    },
    options::{CpuOptions, LogitsWanted},
    pool::Pool,
    sequence::Sequence,
    worker::Worker,
};

/// Most tokens of a call: activations of this many tokens are held.
const MAX_CHUNK: usize = 512;

/// Says whether the call in progress should be given up.
pub type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

/// A model on the CPU.
pub struct CpuModel {
    weights: Arc<ModelWeights>,
    config: Arc<ModelConfig>,
    fingerprint: u64,
    machine: Machine,
    /// One a GDN layer, `None` for attention layers.
    plans: Vec<Option<GdnPlan>>,
    rope_frequencies: Vec<f64>,
    interrupt: Option<Interrupt>,
    s: Scratch,
}

/// Activations of up to [`MAX_CHUNK`] tokens.
struct Scratch {
    /// Residual stream, `[tokens][hidden]`.
    x: Buf<f32>,
    /// The normed input of a mixer or of the experts.
    acts: Acts,
    /// The mixer's output, f32 and quantised.
    mixed: Buf<f32>,
    mixed_acts: Acts,
    /// Projections of a mixer: GDN qkv, z, b, a, or attention q, k, v.
    wide: Buf<f32>,
    z: Buf<f32>,
    b: Buf<f32>,
    a: Buf<f32>,
    /// The convolution's input of a single token: swapped into the sequence instead of copied.
    conv_row: Buf<f32>,
    rope: Buf<f32>,
    partial: Buf<f32>,
    logits: Buf<f32>,
    shared_gate: Buf<f32>,
    shared: Buf<f32>,
    hidden: Buf<f32>,
    many: ManyScratch,
}

impl CpuModel {
    /// Prepares `weights` for computing: checks that the kernels cover its shapes, starts the threads and allocates
    /// scratch. The weights themselves stay where they are.
    pub fn new(weights: Arc<ModelWeights>, options: CpuOptions) -> Result<Self> {
        let need = check::check(&weights)?;
        let isa = Isa::choose(options.isa)?;
        let config = Arc::new(weights.config.clone());
        let c = &*config;
        let threads = options.threads();
        let pool = Pool::new(threads)?;
        let workers = (0..threads).map(|_| Worker::new(c, need)).collect::<Result<_>>()?;
        let plan = |l: &lily_model::weights::LayerWeights| match &l.mixer {
            MixerWeights::Gdn(w) => GdnPlan::new(c, w).map(Some),
            MixerWeights::Attention(_) => Ok(None),
        };
        let plans = weights.layers.iter().map(plan).collect::<Result<_>>()?;
        tracing::debug!(isa = isa.name(), threads, "CPU backend ready");
        Ok(Self {
            s: Scratch::new(c, need)?,
            machine: Machine { k: Kernels::of(isa), pool, workers, step: 0 },
            fingerprint: check::fingerprint(&weights),
            plans,
            rope_frequencies: attention::rope_frequencies(&config),
            interrupt: None,
            config,
            weights,
        })
    }

    /// The model's sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The weights.
    pub fn weights(&self) -> &Arc<ModelWeights> {
        &self.weights
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.machine.k.isa()
    }

    /// Compute threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.machine.pool.threads()
    }

    /// Most tokens one [`CpuModel::prefill`] takes, and most sequences one [`CpuModel::decode`] takes.
    pub fn max_chunk(&self) -> usize {
        MAX_CHUNK
    }

    /// Bytes of activations and per-thread scratch.
    pub fn scratch_bytes(&self) -> usize {
        self.s.byte_len() + self.machine.workers.iter().map(Worker::byte_len).sum::<usize>()
    }

    /// Names the weights: snapshots of other weights are refused.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// An empty sequence of up to `capacity` tokens. Its GDN state is allocated now, its KV cache as it grows.
    pub fn new_sequence(&self, capacity: usize) -> Result<Sequence> {
        Sequence::new(&self.config, self.isa(), self.fingerprint, capacity)
    }

    /// A prefill of several tokens asks `interrupt` before every layer, and ends with [`CpuError::Interrupted`] when it
    /// says so, its sequence as it was before the call: a chunk of a big model takes seconds, a layer a fraction of one.
    pub fn set_interrupt(&mut self, interrupt: Option<Interrupt>) {
        self.interrupt = interrupt;
    }

    /// Appends `tokens` (1 to [`CpuModel::max_chunk`]) to `seq` and replaces `out` by the logits asked for.
    ///
    /// When this fails after it began to compute, the sequence is unusable until something is restored into it.
    pub fn prefill(
        &mut self,
        seq: &mut Sequence,
        tokens: &[u32],
        logits: LogitsWanted,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        self.check_call(tokens.len(), tokens.iter().copied())?;
        seq.prepare(self.fingerprint, tokens.len())?;
        // 63 MiB for the 35B model, copied in some ten milliseconds, before a chunk that takes seconds.
        let saved = (self.interrupt.is_some() && tokens.len() > 1).then(|| seq.save_state());
        let span = Span { row: 0, n: tokens.len(), position: seq.position, sequence: seq };
        let result = self.forward(&mut [span], tokens, logits, out);
        if let (Err(CpuError::Interrupted), Some(saved)) = (&result, saved) {
            seq.put_state_back(&saved);
        }
        result
    }

    /// Appends one token to each of several different sequences and replaces `out` by their logits,
    /// `[batch.len(), vocab]`.
    ///
    /// When this fails after it began to compute, the sequences are unusable until something is restored into them.
    pub fn decode(&mut self, batch: &mut [(&mut Sequence, u32)], out: &mut Vec<f32>) -> Result<()> {
        self.check_call(batch.len(), batch.iter().map(|b| b.1))?;
        for (seq, _) in batch.iter_mut() {
            seq.prepare(self.fingerprint, 1)?;
        }
        let tokens: Vec<u32> = batch.iter().map(|b| b.1).collect();
        let span = |(row, (seq, _)): (usize, &'_ mut (&mut Sequence, u32))| {
            // A reborrow that lives as long as the batch's borrow.
            (row, seq.position)
        };
        let at: Vec<(usize, usize)> = batch.iter_mut().enumerate().map(span).collect();
        let mut spans: Vec<Span<'_>> = batch
            .iter_mut()
            .zip(at)
            .map(|((seq, _), (row, position))| Span { row, n: 1, position, sequence: seq })
            .collect();
        self.forward(&mut spans, &tokens, LogitsWanted::All, out)
    }

    fn check_call(&self, n: usize, tokens: impl Iterator<Item = u32>) -> Result<()> {
        if n == 0 || n > MAX_CHUNK {
            return Err(CpuError::BadChunk { found: n, most: MAX_CHUNK });
        }
        let vocab = self.config.vocab_size;
        for id in tokens {
            if id as usize >= vocab {
                return Err(CpuError::BadToken { id, vocab });
            }
        }
        Ok(())
    }

    /// Runs all layers over the spans' tokens, then the head; moves the sequences on.
    fn forward(
        &mut self,
        spans: &mut [Span<'_>],
        tokens: &[u32],
        logits: LogitsWanted,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        spans.iter_mut().for_each(|s| s.sequence.poisoned = true);
        let n = tokens.len();
        attention::rope(&mut self.machine, &self.rope_frequencies, spans, &mut self.s.rope)?;
        embed(&mut self.machine, &self.weights.embed_tokens, tokens, &mut self.s.x)?;
        for layer in 0..self.weights.layers.len() {
            if n == 1 {
                self.layer_one(layer, spans)?;
            } else {
                if self.interrupt.as_ref().is_some_and(|asked| asked()) {
                    return Err(CpuError::Interrupted);
                }
                self.layer_many(layer, spans, n)?;
            }
        }
        self.check_finite(spans)?;
        self.head(spans, n, logits, out)?;
        for span in spans {
            span.sequence.position += span.n;
            span.sequence.poisoned = false;
        }
        Ok(())
    }

    fn check_finite(&self, spans: &[Span<'_>]) -> Result<()> {
        let width = self.config.hidden_size;
        for span in spans {
            for t in 0..span.n {
                if !self.machine.k.all_finite(&self.s.x[(span.row + t) * width..][..width]) {
                    return Err(CpuError::NonFinite { position: span.position + t });
                }
            }
        }
        Ok(())
    }

    /// One layer, one token.
    fn layer_one(&mut self, layer: usize, spans: &mut [Span<'_>]) -> Result<()> {
        let (c, m, s) = (&*self.config, &mut self.machine, &mut self.s);
        let w = &self.weights.layers[layer];
        let (k, eps) = (m.k, c.rms_norm_eps);
        let x = &mut s.x[..c.hidden_size];
        let norm = |x: &[f32], worker: &mut Worker| {
            norm_one(k, x, &w.input_norm, eps, &mut worker.row, &mut worker.acts);
        };
        let out_proj = match (&w.mixer, &self.plans[layer]) {
            (MixerWeights::Gdn(g), Some(plan)) => {
                let (vw, heads) = (c.gdn_value_width(), c.linear_num_value_heads);
                let ms = [&g.in_proj_qkv, &g.in_proj_z, &g.in_proj_b, &g.in_proj_a];
                let mut outs: [&mut [f32]; 4] =
                    [&mut s.conv_row, &mut s.z[..vw], &mut s.b[..heads], &mut s.a[..heads]];
                gemv_all(m, &ms, &mut outs, |w| norm(x, w))?;
                let inputs = GdnInputs { qkv: &s.conv_row, z: &s.z, b: &s.b, a: &s.a };
                gdn::mix(m, c, plan, layer, spans, inputs, &mut s.mixed[..vw])?;
                let state = gdn::gdn_state(&mut spans[0].sequence.layers[layer]);
                std::mem::swap(&mut state.conv[spans[0].position % crate::sequence::TAPS], &mut s.conv_row);
                &g.out_proj
            }
            (MixerWeights::Attention(a), _) => {
                let (qw, kw) = (a.q_proj.rows, a.k_proj.rows);
                let (k_out, v_out) = s.z[..2 * kw].split_at_mut(kw);
                let ms = [&a.q_proj, &a.k_proj, &a.v_proj];
                let mut outs: [&mut [f32]; 3] = [&mut s.wide[..qw], &mut *k_out, &mut *v_out];
                gemv_all(m, &ms, &mut outs, |w| norm(x, w))?;
                let inputs = AttentionInputs { q: &s.wide, k: k_out, v: v_out, rope: &s.rope };
                attention::append(m, c, a, layer, spans, inputs)?;
                let mixed = &mut s.mixed[..qw / 2];
                attention::attend(m, c, a, layer, spans, inputs, &mut s.partial, mixed)?;
                &a.o_proj
            }
            (MixerWeights::Gdn(_), None) => unreachable!("every GDN layer has a plan"),
        };
        let mixed = &s.mixed[..out_proj.cols];
        gemv_add(m, out_proj, x, |w| quantize_one(k, mixed, &mut w.acts))?;
        let scratch = MoeScratch {
            logits: &mut s.logits,
            shared_gate: &mut s.shared_gate,
            shared: &mut s.shared,
            hidden: &mut s.hidden,
        };
        moe::one(m, &w.moe, &w.post_attention_norm, eps, c.num_experts_per_tok, scratch, x)
    }

    /// One layer, several tokens.
    fn layer_many(&mut self, layer: usize, spans: &mut [Span<'_>], n: usize) -> Result<()> {
        let (c, m, s) = (&*self.config, &mut self.machine, &mut self.s);
        let w = &self.weights.layers[layer];
        let eps = c.rms_norm_eps;
        let job = |matrix, out| Gemm { matrix, out, add: false };
        norm_all(m, &s.x, n, &w.input_norm, eps, &mut s.acts)?;
        let out_proj = match (&w.mixer, &self.plans[layer]) {
            (MixerWeights::Gdn(g), Some(plan)) => {
                let mut jobs = [
                    job(&g.in_proj_qkv, &mut s.wide[..]),
                    job(&g.in_proj_z, &mut s.z[..]),
                    job(&g.in_proj_b, &mut s.b[..]),
                    job(&g.in_proj_a, &mut s.a[..]),
                ];
                gemm(m, &mut jobs, &s.acts)?;
                let inputs = GdnInputs { qkv: &s.wide, z: &s.z, b: &s.b, a: &s.a };
                gdn::mix(m, c, plan, layer, spans, inputs, &mut s.mixed)?;
                gdn::keep_inputs(layer, spans, &s.wide, c.conv_channels());
                &g.out_proj
            }
            (MixerWeights::Attention(a), _) => {
                let (k_out, v_out) = s.z[..2 * n * a.k_proj.rows].split_at_mut(n * a.k_proj.rows);
                let mut jobs = [
                    job(&a.q_proj, &mut s.wide[..]),
                    job(&a.k_proj, &mut *k_out),
                    job(&a.v_proj, &mut *v_out),
                ];
                gemm(m, &mut jobs, &s.acts)?;
                let inputs = AttentionInputs { q: &s.wide, k: k_out, v: v_out, rope: &s.rope };
                attention::append(m, c, a, layer, spans, inputs)?;
                attention::attend(m, c, a, layer, spans, inputs, &mut s.partial, &mut s.mixed)?;
                &a.o_proj
            }
            (MixerWeights::Gdn(_), None) => unreachable!("every GDN layer has a plan"),
        };
        quantize_all(m, &s.mixed, n, out_proj.cols, &mut s.mixed_acts)?;
        gemm(m, &mut [Gemm { matrix: out_proj, out: &mut s.x, add: true }], &s.mixed_acts)?;
        norm_all(m, &s.x, n, &w.post_attention_norm, eps, &mut s.acts)?;
        moe::many(
            m,
            &w.moe,
            c.num_experts_per_tok,
            &mut s.logits,
            &mut s.shared_gate,
            &s.acts,
            &mut s.many,
            &mut s.x,
        )
    }

    /// Final norm and output projection.
    fn head(&mut self, spans: &[Span<'_>], n: usize, logits: LogitsWanted, out: &mut Vec<f32>) -> Result<()> {
        let (c, m, s) = (&*self.config, &mut self.machine, &mut self.s);
        let (k, vocab, eps) = (m.k, c.vocab_size, c.rms_norm_eps);
        let (gain, head) = (&self.weights.final_norm, &self.weights.lm_head);
        let rows = match logits {
            LogitsWanted::None => 0,
            LogitsWanted::Last => 1,
            LogitsWanted::All => n,
        };
        let more = (rows * vocab).saturating_sub(out.len());
        let asked = rows * vocab * 4;
        out.try_reserve_exact(more).map_err(|_| CpuError::OutOfMemory { asked, what: "logits" })?;
        out.resize(rows * vocab, 0.0);
        if rows == 0 {
            return Ok(());
        }
        let bad = AtomicBool::new(false);
        if rows == 1 {
            let x = &s.x[(n - 1) * c.hidden_size..n * c.hidden_size];
            gemv_all(m, &[head], &mut [&mut out[..]], |w| {
                norm_one(k, x, gain, eps, &mut w.row, &mut w.acts);
            })?;
        } else {
            norm_all(m, &s.x, n, gain, eps, &mut s.acts)?;
            gemm(m, &mut [Gemm { matrix: head, out, add: false }], &s.acts)?;
        }
        let mut pieces: Vec<&[f32]> = out.chunks(1 << 14).collect();
        m.pool.run_items(
            &mut m.workers,
            &mut pieces,
            |_| {},
            |_, _, piece| {
                if !k.all_finite(piece) {
                    bad.store(true, Ordering::Relaxed);
                }
            },
        )?;
        if bad.into_inner() {
            let row = out.chunks(vocab).position(|row| !k.all_finite(row)).unwrap_or(0) + n - rows;
            let span = spans.iter().find(|s| (s.row..s.row + s.n).contains(&row)).unwrap_or(&spans[0]);
            return Err(CpuError::NonFinite { position: span.position + row - span.row });
        }
        Ok(())
    }
}

impl std::fmt::Debug for CpuModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuModel")
            .field("isa", &self.isa().name())
            .field("threads", &self.threads())
            .field("layers", &self.config.num_hidden_layers)
            .finish_non_exhaustive()
    }
}

impl Scratch {
    fn new(c: &ModelConfig, need: Need) -> Result<Self> {
        let n = MAX_CHUNK;
        let what = "activations";
        let q_width = c.num_attention_heads * c.head_dim;
        let kv_width = c.num_key_value_heads * c.head_dim;
        let mixed = q_width.max(c.gdn_value_width());
        Ok(Self {
            x: Buf::new(n * c.hidden_size, what)?,
            acts: Acts::new(n, c.hidden_size, need)?,
            mixed: Buf::new(n * mixed, what)?,
            mixed_acts: Acts::new(n, mixed, need)?,
            wide: Buf::new(n * c.conv_channels().max(2 * q_width), what)?,
            z: Buf::new(n * c.gdn_value_width().max(2 * kv_width), what)?,
            b: Buf::new(n * c.linear_num_value_heads, what)?,
            a: Buf::new(n * c.linear_num_value_heads, what)?,
            conv_row: Buf::new(c.conv_channels(), what)?,
            rope: Buf::new(n * c.rotary_dim, what)?,
            partial: Buf::new(attention::partial_len(c), what)?,
            logits: Buf::new(n * c.num_experts, what)?,
            shared_gate: Buf::new(n, what)?,
            shared: Buf::new(2 * c.shared_expert_intermediate_size, what)?,
            hidden: Buf::new(c.num_experts_per_tok * c.moe_intermediate_size, what)?,
            many: ManyScratch::new(c, n, need)?,
        })
    }

    fn byte_len(&self) -> usize {
        let floats = [
            &self.x,
            &self.mixed,
            &self.wide,
            &self.z,
            &self.b,
            &self.a,
            &self.conv_row,
            &self.rope,
            &self.partial,
            &self.logits,
            &self.shared_gate,
            &self.shared,
            &self.hidden,
        ];
        floats.iter().map(|b| b.byte_len()).sum::<usize>()
            + self.acts.byte_len()
            + self.mixed_acts.byte_len()
            + self.many.byte_len()
    }
}
