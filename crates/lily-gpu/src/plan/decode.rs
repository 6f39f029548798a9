//! The plan of a decode step: one token of each of several sequences.
//!
//! A GDN layer is six dispatches: {input projections, norm folded in} {convolution, gates, state step, gated norm}
//! {output projection, residual} {router and shared expert's projections, norm folded in} {choice of experts, their gate
//! and up} {their down, shared down, residual}. An attention layer has {q, k, v} {norms, rotation, cache write, split
//! attention} {combine, gate} in place of the first two. Around them: embedding, output projection, arg-max.

use lily_model::LayerType;

use super::{
    BufferKind, MatrixInfo, ModelShape, OpBuilder, Plan, PlanBuilder, Scalar, View,
    build::Share,
    routes::{self, ARGMAX_BLOCK, Splits},
    shape::staged_bytes,
};

/// Simdgroups of a threadgroup in gemv.metal and moe_decode.metal.
const SIMDGROUPS: usize = 4;
const F32: usize = size_of::<f32>();
const U32: usize = size_of::<u32>();

/// Where the token ids come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ids {
    /// The host, with the submission.
    Input,
    /// A row (0 or 1) of the token slots, where an earlier step's sampler left them.
    Slot(usize),
}

/// What a step ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Head {
    /// Nothing: the token is one of a prompt.
    None,
    /// Logits.
    Logits,
    /// Logits, and the ids of the largest into a row (0 or 1) of the token slots.
    Greedy {
        /// The row.
        slot: usize,
        /// Ids below this may be chosen.
        valid: usize,
    },
    /// The same with ids drawn as the [`Draw`]s of the submission say.
    Drawn {
        /// The row.
        slot: usize,
        /// Ids below this may be chosen.
        valid: usize,
    },
}

/// How the device chooses a sequence's next token: `DrawParams` of sample.metal, applied in the order
/// temperature, top-k, top-p, min-p.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// 0: the most likely token; otherwise at least [`Draw::COLDEST`].
    pub temperature: f32,
    /// Keep the smallest set whose probability reaches this; 1: all.
    pub top_p: f32,
    /// Drop tokens less likely than this times the most likely one; 0: none.
    pub min_p: f32,
    /// Keep so many of the most likely; 0: all.
    pub top_k: u32,
    /// A token drawn depends on this, its position, the logits and the limits alone.
    pub seed: u64,
}

impl Draw {
    /// The most likely token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, min_p: 0.0, top_k: 0, seed: 0 };

    /// Least temperature above 0: logits divided by less may be beyond f32.
    pub const COLDEST: f32 = 1e-3;

    /// Bytes on the device.
    const BYTES: usize = 24;

    fn encode(&self) -> [u8; Self::BYTES] {
        let words = [
            self.temperature.to_bits(),
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.top_k,
            self.seed as u32,
            (self.seed >> 32) as u32,
        ];
        bytemuck::cast(words)
    }
}

/// Everything besides the model that a decode plan depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DecodeShape {
    /// Tokens, each of another sequence.
    pub tokens: usize,
    /// Sequences the caches have room for.
    pub slots: usize,
    /// Positions a sequence's cache has room for.
    pub capacity: usize,
    /// How attention is split; the sequences' positions must be below its `most`.
    pub splits: Splits,
    /// Positions of a sequence after the step, for counting bytes; what runs does not depend on it.
    pub context: usize,
    /// Where ids come from.
    pub ids: Ids,
    /// What the step ends with.
    pub head: Head,
}

impl DecodeShape {
    /// One token at `context` positions of a cache of just that size, with greedy choice.
    pub fn single(context: usize, vocab: usize) -> Self {
        Self {
            tokens: 1,
            slots: 1,
            capacity: context,
            splits: routes::attention_splits(context),
            context,
            ids: Ids::Slot(0),
            head: Head::Greedy { slot: 1, valid: vocab },
        }
    }
}

/// Where a step's inputs lie in the input buffer: ids, positions and slots, u32 each, and how tokens are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputLayout {
    /// Bytes of one of the three lists; they follow each other.
    pub list: usize,
    /// Bytes of the draws behind them; 0 where nothing is drawn.
    pub draws: usize,
}

impl InputLayout {
    /// For a batch of `tokens`.
    pub fn new(tokens: usize) -> Self {
        Self { list: (tokens * U32).next_multiple_of(16), draws: 0 }
    }

    /// For a batch whose step ends with `head`.
    pub fn ending(tokens: usize, head: Head) -> Self {
        let draws = if matches!(head, Head::Drawn { .. }) { tokens * Draw::BYTES } else { 0 };
        Self { draws, ..Self::new(tokens) }
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> usize {
        3 * self.list + self.draws
    }

    /// The buffer's content; the draws are to follow ([`encode_draws`](Self::encode_draws)).
    pub fn encode(&self, ids: &[u32], positions: &[u32], slots: &[u32]) -> Vec<u8> {
        let mut out = vec![0u8; self.bytes()];
        for (i, list) in [ids, positions, slots].into_iter().enumerate() {
            let bytes: &[u8] = bytemuck::cast_slice(list);
            out[i * self.list..][..bytes.len()].copy_from_slice(bytes);
        }
        out
    }

    /// Writes the draws into the buffer's content.
    pub fn encode_draws(&self, draws: &[Draw], out: &mut [u8]) {
        for (to, draw) in out[3 * self.list..].chunks_exact_mut(Draw::BYTES).zip(draws) {
            to.copy_from_slice(&draw.encode());
        }
    }
}

/// Bytes of the token slots: two rows.
pub fn token_slot_bytes(tokens: usize) -> usize {
    2 * (tokens * U32).next_multiple_of(16)
}

/// The row of the token slots.
pub fn token_slot_offset(tokens: usize, slot: usize) -> usize {
    slot * (tokens * U32).next_multiple_of(16)
}

/// The plan of a decode step.
pub fn decode_plan(model: &ModelShape, shape: &DecodeShape) -> Plan {
    let mut d = Decode::new(model, *shape);
    d.embed();
    let (mut gdn, mut attention) = (0, 0);
    for (i, kind) in model.config.layer_types.iter().enumerate() {
        match kind {
            LayerType::LinearAttention => {
                d.gdn(i);
                gdn += 1;
            }
            LayerType::FullAttention => {
                d.attention(i);
                attention += 1;
            }
        }
        d.experts(i);
    }
    debug_assert_eq!(gdn + attention, model.config.num_hidden_layers);
    d.head();
    let head = match shape.head {
        Head::None => "no logits",
        Head::Logits => "logits",
        Head::Greedy { .. } => "greedy",
        Head::Drawn { .. } => "drawn",
    };
    d.b.finish(format!("decode of {} tokens, {head}", shape.tokens))
}

struct Decode<'a> {
    b: PlanBuilder,
    m: &'a ModelShape,
    s: DecodeShape,
    ids: View,
    positions: View,
    slots: View,
    draws: View,
    residual: View,
    mixed: View,
    routed: View,
    hidden: View,
}

impl<'a> Decode<'a> {
    fn new(m: &'a ModelShape, s: DecodeShape) -> Self {
        let c = &m.config;
        let mut b = PlanBuilder::new();
        let layout = InputLayout::ending(s.tokens, s.head);
        let inputs = b.buffer("inputs", layout.bytes(), BufferKind::Input);
        let list =
            |i: usize| View { offset: (i * layout.list) as u64, len: (s.tokens * U32) as u64, ..inputs };
        let (mut ids, positions, slots) = (list(0), list(1), list(2));
        let draws = View { offset: 3 * layout.list as u64, len: layout.draws as u64, ..inputs };
        if let Ids::Slot(row) = s.ids {
            ids = token_slots(&mut b, s.tokens, row);
        }
        let mut scratch =
            |name: &str, floats: usize| b.buffer(name, s.tokens * floats * F32, BufferKind::Scratch);
        let attention = c.num_attention_heads * c.head_dim;
        let residual = scratch("residual", c.hidden_size);
        let mixed = scratch("mixed", c.gdn_value_width().max(attention));
        let routed = scratch("routed", c.num_experts + 1 + 2 * c.shared_expert_intermediate_size);
        let hidden = scratch("experts", c.num_experts_per_tok * c.moe_intermediate_size);
        Self { b, m, s, ids, positions, slots, draws, residual, mixed, routed, hidden }
    }

    /// `floats` values a token of a view that may be larger.
    fn part(&self, view: View, floats: usize) -> View {
        View { len: (self.s.tokens * floats * F32) as u64, ..view }
    }

    /// A vector of BF16.
    fn vector(&mut self, name: String, n: usize) -> View {
        self.b.buffer(name, 2 * n, BufferKind::Weight)
    }

    fn eps(&self) -> (&'static str, Scalar) {
        ("eps", Scalar::F32(self.m.config.rms_norm_eps))
    }

    fn embed(&mut self) {
        let c = &self.m.config;
        let (tokens, hidden) = (self.s.tokens, c.hidden_size);
        let table = self.m.dense("model.embed_tokens", c.vocab_size, hidden);
        let views = self.b.matrix(&table);
        self.b
            .op("embed", "embed")
            .read_all("ids", "uint", self.ids)
            .matrix(["w", "scales", "biases"], views, Share::Of(tokens, c.vocab_size))
            .write("y", "float4", self.residual, tokens * hidden * F32)
            .inline("shape", "EmbedShape", embed_shape(hidden, c.vocab_size))
            .run([(hidden / 32).div_ceil(32), tokens, 1], 32);
    }

    /// See [`project`].
    fn project(&mut self, label: String, x: View, gain: Option<View>, y: View, matrices: &[MatrixInfo]) {
        let eps = self.m.config.rms_norm_eps;
        project(&mut self.b, label, (x, self.s.tokens), gain, y, matrices, eps);
    }

    fn gdn(&mut self, layer: usize) {
        let c = &self.m.config;
        let (t, slots, hidden) = (self.s.tokens, self.s.slots, c.hidden_size);
        let at = |name: &str| format!("model.layers.{layer}.linear_attn.{name}");
        let (channels, width, heads) = (c.conv_channels(), c.gdn_value_width(), c.linear_num_value_heads);
        let state_row = width * c.linear_key_head_dim;
        let inputs = [
            self.m.dense(at("in_proj_qkv"), channels, hidden),
            self.m.dense(at("in_proj_z"), width, hidden),
            self.m.dense(at("in_proj_b"), heads, hidden),
            self.m.dense(at("in_proj_a"), heads, hidden),
        ];
        let stride = channels + width + 2 * heads;
        let projected = self.b.buffer("gdn_projected", t * stride * F32, BufferKind::Scratch);
        let gain = self.vector(format!("model.layers.{layer}.input_layernorm.weight"), hidden);
        self.project(format!("layers.{layer}.gdn.in"), self.residual, Some(gain), projected, &inputs);

        let conv = self.vector(at("conv1d.weight"), channels * c.linear_conv_kernel_dim);
        let a_log = self.b.buffer(at("A_log"), heads * F32, BufferKind::Weight);
        let dt_bias = self.b.buffer(at("dt_bias"), heads * F32, BufferKind::Weight);
        let norm = self.vector(at("norm.weight"), c.linear_value_head_dim);
        let taps = c.linear_conv_kernel_dim;
        let ring =
            self.b.buffer(format!("layers.{layer}.ring"), slots * taps * channels * F32, BufferKind::State);
        let state =
            self.b.buffer(format!("layers.{layer}.state"), slots * state_row * F32, BufferKind::State);
        let y = self.part(self.mixed, width);
        let eps = self.eps();
        self.b
            .op(format!("layers.{layer}.gdn.step"), "gdn_step")
            .read_all("projected", "float", projected)
            .read_all("conv_weight", "bfloat4", conv)
            .read_all("a_log", "float", a_log)
            .read_all("dt_bias", "float", dt_bias)
            .read_all("gain", "bfloat4", norm)
            .read_all("positions", "uint", self.positions)
            .read_all("slots", "uint", self.slots)
            .update("ring", "float", ring, t * (taps - 1) * channels * F32, t * channels * F32)
            .update("state", "float4", state, t * state_row * F32, t * state_row * F32)
            .write("y", "float4", y, t * width * F32)
            .inline(
                "shape",
                "GdnShape",
                vec![
                    ("key_heads", Scalar::U32(c.linear_num_key_heads as u32)),
                    ("value_heads", Scalar::U32(heads as u32)),
                    ("stride", Scalar::U32(stride as u32)),
                    eps,
                ],
            )
            .run([heads, t, 1], 512);

        let out = [self.m.dense(at("out_proj"), hidden, width)];
        self.project(format!("layers.{layer}.gdn.out"), self.mixed, None, self.residual, &out);
    }

    fn attention(&mut self, layer: usize) {
        let c = &self.m.config;
        let (t, hidden, dim) = (self.s.tokens, c.hidden_size, c.head_dim);
        let (heads, kv_heads) = (c.num_attention_heads, c.num_key_value_heads);
        let at = |name: &str| format!("model.layers.{layer}.self_attn.{name}");
        let inputs = [
            self.m.dense(at("q_proj"), 2 * heads * dim, hidden),
            self.m.dense(at("k_proj"), kv_heads * dim, hidden),
            self.m.dense(at("v_proj"), kv_heads * dim, hidden),
        ];
        let stride = 2 * (heads + kv_heads) * dim;
        let projected = self.b.buffer("attention_projected", t * stride * F32, BufferKind::Scratch);
        let gain = self.vector(format!("model.layers.{layer}.input_layernorm.weight"), hidden);
        self.project(format!("layers.{layer}.attention.qkv"), self.residual, Some(gain), projected, &inputs);

        let splits = self.s.splits;
        let (span, count) = match splits {
            Splits::Spans { span, count } => (span, count),
            Splits::Blocks(count) => (0, count),
        };
        let blocks = matches!(splits, Splits::Blocks(_));
        let (q_gain, k_gain) = (self.vector(at("q_norm.weight"), dim), self.vector(at("k_norm.weight"), dim));
        let rates = self.b.buffer("rotary_rates", c.rotary_dim / 2 * 8, BufferKind::Constant);
        let row = kv_heads * dim * 2;
        let cache = self.s.slots * self.s.capacity * row;
        let keys = self.b.buffer(format!("layers.{layer}.keys"), cache, BufferKind::Kv);
        let values = self.b.buffer(format!("layers.{layer}.values"), cache, BufferKind::Kv);
        let partial = self.b.buffer("attention_partial", t * heads * count * dim * F32, BufferKind::Scratch);
        let weights = self.b.buffer("attention_softmax", t * heads * count * 2 * F32, BufferKind::Scratch);
        let used = t * splits.used(self.s.context) * heads;
        let cached = t * self.s.context.saturating_sub(1) * row;
        let shape = vec![
            ("heads", Scalar::U32(heads as u32)),
            ("kv_heads", Scalar::U32(kv_heads as u32)),
            ("capacity", Scalar::U32(self.s.capacity as u32)),
            ("span", Scalar::U32(span as u32)),
            ("splits", Scalar::U32(count as u32)),
            ("stride", Scalar::U32(stride as u32)),
            self.eps(),
        ];
        let gates = t * heads * dim * F32;
        self.b
            .op(
                format!("layers.{layer}.attention.split"),
                format!("attention_{}_{}", if blocks { "blocks" } else { "split" }, heads / kv_heads),
            )
            .read("projected", "float", projected, t * stride * F32 - gates)
            .read_all("q_gain", "bfloat", q_gain)
            .read_all("k_gain", "bfloat", k_gain)
            .read_all("rates", "uint2", rates)
            .read_all("positions", "uint", self.positions)
            .read_all("slots", "uint", self.slots)
            .update("keys", "bfloat", keys, cached, t * row)
            .update("values", "bfloat", values, cached, t * row)
            .write("partial", "float", partial, used * dim * F32)
            .write("weights", "float", weights, used * 2 * F32)
            .inline("shape", "AttentionShape", shape.clone())
            .run([count, kv_heads, t], (SIMDGROUPS * 32) as u32);

        let y = self.part(self.mixed, heads * dim);
        self.b
            .op(
                format!("layers.{layer}.attention.combine"),
                if blocks { "attention_blocks_combine" } else { "attention_combine" },
            )
            .read("projected", "float", projected, gates)
            .read_all("positions", "uint", self.positions)
            .read("partial", if blocks { "float4" } else { "float" }, partial, used * dim * F32)
            .read("weights", "float2", weights, used * 2 * F32)
            .write("y", "float", y, gates)
            .inline("shape", "AttentionShape", shape)
            .run([heads, t, 1], dim as u32);

        let out = [self.m.dense(at("o_proj"), hidden, heads * dim)];
        self.project(format!("layers.{layer}.attention.out"), self.mixed, None, self.residual, &out);
    }

    fn experts(&mut self, layer: usize) {
        let c = &self.m.config;
        let (t, hidden) = (self.s.tokens, c.hidden_size);
        let (experts, chosen) = (c.num_experts, c.num_experts_per_tok);
        let (width, shared) = (c.moe_intermediate_size, c.shared_expert_intermediate_size);
        let at = |name: &str| format!("model.layers.{layer}.mlp.{name}");
        let inputs = [
            self.m.dense(at("gate"), experts, hidden),
            self.m.dense(at("shared_expert_gate"), 1, hidden),
            self.m.dense(at("shared_expert.gate_proj"), shared, hidden),
            self.m.dense(at("shared_expert.up_proj"), shared, hidden),
        ];
        let gain = self.vector(format!("model.layers.{layer}.post_attention_layernorm.weight"), hidden);
        self.project(format!("layers.{layer}.router"), self.residual, Some(gain), self.routed, &inputs);

        let stride = experts + 1 + 2 * shared;
        let shape = vec![
            ("hidden", Scalar::U32(hidden as u32)),
            ("experts", Scalar::U32(experts as u32)),
            ("chosen", Scalar::U32(chosen as u32)),
            ("width", Scalar::U32(width as u32)),
            ("shared_width", Scalar::U32(shared as u32)),
            ("stride", Scalar::U32(stride as u32)),
            self.eps(),
        ];
        // Tokens of a batch may choose other experts: so many at most.
        let used = Share::Of(t * chosen, experts);
        let gate = self.m.stack(at("switch_mlp.gate_proj"), experts, width, hidden);
        let up = self.m.stack(at("switch_mlp.up_proj"), experts, width, hidden);
        let (gate_views, up_views) = (self.b.matrix(&gate), self.b.matrix(&up));
        let rows = routes::expert_rows(width, chosen);
        self.b
            .op(format!("layers.{layer}.experts.gate_up"), format!("moe_gate_up_{rows}"))
            .read_all("residual", "float4", self.residual)
            .read_all("gain", "bfloat4", gain)
            .read("routed", "float", self.routed, t * experts * F32)
            .matrix(["gate_w", "gate_s", "gate_b"], gate_views, used)
            .matrix(["up_w", "up_s", "up_b"], up_views, used)
            .write("h", "float", self.hidden, t * chosen * width * F32)
            .inline("shape", "MoeShape", shape.clone())
            .threadgroup(staged_bytes(hidden))
            .run([width.div_ceil(rows * SIMDGROUPS), chosen, t], (SIMDGROUPS * 32) as u32);

        let down = self.m.stack(at("switch_mlp.down_proj"), experts, hidden, width);
        let shared_down = self.m.dense(at("shared_expert.down_proj"), hidden, shared);
        let (down_views, shared_views) = (self.b.matrix(&down), self.b.matrix(&shared_down));
        let rows = routes::expert_rows(hidden, 1);
        self.b
            .op(format!("layers.{layer}.experts.down"), format!("moe_down_{rows}"))
            .read_all("routed", "float", self.routed)
            .read_all("h", "float4", self.hidden)
            .matrix(["down_w", "down_s", "down_b"], down_views, used)
            .matrix(["shared_w", "shared_s", "shared_b"], shared_views, Share::All)
            .update("residual", "float", self.residual, t * hidden * F32, t * hidden * F32)
            .inline("shape", "MoeShape", shape)
            .threadgroup(staged_bytes(chosen * width + shared))
            .run([hidden.div_ceil(rows * SIMDGROUPS), 1, t], (SIMDGROUPS * 32) as u32);
    }

    fn head(&mut self) {
        if self.s.head == Head::None {
            return;
        }
        let c = &self.m.config;
        let (t, vocab, hidden) = (self.s.tokens, c.vocab_size, c.hidden_size);
        let logits = self.b.buffer("logits", t * vocab * F32, BufferKind::Scratch);
        let gain = self.vector("model.norm.weight".into(), hidden);
        let lm_head = [self.m.dense("lm_head", vocab, hidden)];
        self.project("lm_head".into(), self.residual, Some(gain), logits, &lm_head);
        let (Head::Greedy { slot, valid } | Head::Drawn { slot, valid }) = self.s.head else { return };

        let blocks = valid.div_ceil(ARGMAX_BLOCK);
        let best_logits = self.b.buffer("best_logits", t * blocks * F32, BufferKind::Scratch);
        let best_ids = self.b.buffer("best_ids", t * blocks * U32, BufferKind::Scratch);
        let shape = vec![
            ("vocab", Scalar::U32(vocab as u32)),
            ("valid", Scalar::U32(valid as u32)),
            ("block", Scalar::U32(ARGMAX_BLOCK as u32)),
            ("blocks", Scalar::U32(blocks as u32)),
        ];
        self.b
            .op("argmax.blocks", "argmax_blocks")
            .read("logits", "float", logits, t * valid * F32)
            .write("best_logits", "float", best_logits, t * blocks * F32)
            .write("best_ids", "uint", best_ids, t * blocks * U32)
            .inline("shape", "ArgmaxShape", shape.clone())
            .run([blocks, t, 1], 256);
        let ids = token_slots(&mut self.b, t, slot);
        if matches!(self.s.head, Head::Drawn { .. }) {
            self.b
                .op("draw", "draw")
                .read("logits", "float", logits, t * valid * F32)
                .read_all("best_logits", "float", best_logits)
                .read_all("best_ids", "uint", best_ids)
                .read_all("params", "DrawParams", self.draws)
                .read_all("positions", "uint", self.positions)
                .write("ids", "uint", ids, t * U32)
                .inline("shape", "ArgmaxShape", shape)
                .run([1, t, 1], 512);
            return;
        }
        self.b
            .op("argmax.final", "argmax_final")
            .read_all("best_logits", "float", best_logits)
            .read_all("best_ids", "uint", best_ids)
            .write("ids", "uint", ids, t * U32)
            .inline("shape", "ArgmaxShape", shape)
            .run([1, t, 1], 256);
    }
}

/// Up to four matrices with one input, their outputs side by side: `y = W rmsnorm(x)` with a gain, else `y += W x`.
/// `x` is the input and its number of rows.
pub(super) fn project(
    b: &mut PlanBuilder,
    label: String,
    (x, tokens): (View, usize),
    gain: Option<View>,
    y: View,
    matrices: &[MatrixInfo],
    eps: f32,
) {
    let cols = matrices[0].cols;
    let stride: usize = matrices.iter().map(|m| m.rows).sum();
    let rows = routes::rows_per_simdgroup(stride);
    let blocks = matrices.iter().map(|m| m.rows.div_ceil(rows * SIMDGROUPS)).sum();
    let views: Vec<[View; 3]> = matrices.iter().map(|m| b.matrix(m)).collect();
    let part = |view: View, floats: usize| View { len: (tokens * floats * F32) as u64, ..view };
    let (x, y, all) = (part(x, cols), part(y, stride), tokens * stride * F32);
    let kernel = if gain.is_some() { "project_norm" } else { "project_add" };
    let mut op = b.op(label, format!("{kernel}_{rows}")).read_all("x", "float4", x);
    // Without a norm the gain is not read; any vector stands for it.
    op = match gain {
        Some(gain) => op.read_all("gain", "bfloat4", gain).write("y", "float", y, all),
        None => op.read("gain", "bfloat4", views[0][1], 0).update("y", "float", y, all, all),
    };
    op = op.inline("shape", "ProjectShape", project_shape(matrices, eps));
    op = with_matrices(op, &views);
    op.threadgroup(matrices[0].staged_bytes()).run([blocks, tokens, 1], (SIMDGROUPS * 32) as u32);
}

/// The structure of the embedding.
pub(super) fn embed_shape(cols: usize, rows: usize) -> Vec<(&'static str, Scalar)> {
    vec![("cols", Scalar::U32(cols as u32)), ("rows", Scalar::U32(rows as u32))]
}

/// The structure that projections of decode and prefill share.
pub(super) fn project_shape(matrices: &[MatrixInfo], eps: f32) -> Vec<(&'static str, Scalar)> {
    let four = |f: fn(&MatrixInfo) -> usize| {
        Scalar::U32x4(std::array::from_fn(|i| matrices.get(i).map_or(0, f) as u32))
    };
    vec![
        ("cols", Scalar::U32(matrices[0].cols as u32)),
        ("matrices", Scalar::U32(matrices.len() as u32)),
        ("rows", four(|m| m.rows)),
        ("bits", four(|m| m.bits)),
        ("stride", Scalar::U32(matrices.iter().map(|m| m.rows).sum::<usize>() as u32)),
        ("eps", Scalar::F32(eps)),
    ]
}

/// The twelve matrix arguments of a projection; an absent matrix is bound to the first and not read.
pub(super) fn with_matrices<'a>(mut op: OpBuilder<'a>, views: &[[View; 3]]) -> OpBuilder<'a> {
    const NAMES: [[&str; 3]; 4] =
        [["w0", "s0", "b0"], ["w1", "s1", "b1"], ["w2", "s2", "b2"], ["w3", "s3", "b3"]];
    for (i, names) in NAMES.into_iter().enumerate() {
        op = match views.get(i) {
            Some(v) => op.matrix(names, *v, Share::All),
            None => op.matrix(names, views[0], Share::None),
        };
    }
    op
}

/// A row of the token slots.
fn token_slots(b: &mut PlanBuilder, tokens: usize, row: usize) -> View {
    let whole = b.buffer("token_slots", token_slot_bytes(tokens), BufferKind::TokenSlots);
    View { offset: token_slot_offset(tokens, row) as u64, len: (tokens * U32) as u64, ..whole }
}
