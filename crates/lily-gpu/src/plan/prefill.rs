//! The plan of a prefill chunk: several tokens of one sequence.
//!
//! Weights are dequantised inside the matrix tiles, experts are chosen and sorted by kernels: nothing of a chunk is
//! known to the host before it ends, and no expanded weight reaches memory. The residual stream, the router and the GDN
//! state stay in f32; what enters a matrix unit is f32 or f16 ([`Products`]).
//!
//! One plan serves every chunk up to the size its grids were made for; how many tokens there are stands in the input.

use lily_model::LayerType;

use super::{
    BufferKind, MatrixInfo, ModelShape, Plan, PlanBuilder, Products, Scalar, View,
    build::Share,
    decode::{embed_shape, project, project_shape, with_matrices},
    routes,
};

const F32: usize = size_of::<f32>();
const BF16: usize = 2;
const F16: usize = 2;
const U32: usize = size_of::<u32>();
/// Bytes of `PrefillChunk` (shapes.metal.h): position, tokens, slot.
const CHUNK_BYTES: usize = 3 * U32;
/// Weight rows of a tile (gemm.metal.h), and of the experts' joint gate and up tiles.
const TILE_COLS: usize = 64;
const GATE_UP_COLS: usize = 32;
/// Pairs of token and expert in a block (moe_prefill.metal).
const EXPERT_ROWS: usize = 32;
/// Tokens of a GDN step, and floats of a step's factors of one head (gdn_prefill.metal).
const GDN_TOKENS: usize = 32;
const GDN_FACTORS: usize = 2 * GDN_TOKENS * GDN_TOKENS + 2 * 4 * 64;
/// Of those, what gdn_scan reads: the 8 x 8 blocks on and below the diagonal of the two triangular matrices.
const GDN_FACTORS_READ: usize = 2 * 10 * 64 + 2 * 4 * 64;
/// Query rows of an attention tile, and positions of a threadgroup that makes halves of keys and values
/// (attention_prefill.metal).
const ATTENTION_ROWS: usize = 32;
const HALVES_POSITIONS: usize = 64;

/// What a chunk ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrefillHead {
    /// Nothing.
    None,
    /// Logits of the last token.
    Last,
    /// Logits of every token.
    All,
}

/// Everything besides the model that a prefill plan depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefillShape {
    /// Most tokens of a chunk, a multiple of 32.
    pub tokens: usize,
    /// Sequences the caches have room for.
    pub slots: usize,
    /// Positions a sequence's cache has room for, a multiple of 8.
    pub capacity: usize,
    /// Positions behind the chunk's last token, for counting bytes; what runs does not depend on it.
    pub context: usize,
    /// What the chunk ends with.
    pub head: PrefillHead,
}

/// Where a chunk's inputs lie: ids, then position, tokens and slot, u32 each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillInputs {
    /// Bytes of the ids.
    ids: usize,
}

impl PrefillInputs {
    /// For chunks of up to `tokens`.
    pub fn new(tokens: usize) -> Self {
        Self { ids: (tokens * U32).next_multiple_of(16) }
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> usize {
        self.ids + CHUNK_BYTES
    }

    /// The buffer's content. Rows past the last token compute id 0 and are not used.
    pub fn encode(&self, ids: &[u32], position: u32, slot: u32) -> Vec<u8> {
        let mut out = vec![0u8; self.bytes()];
        out[..ids.len() * U32].copy_from_slice(bytemuck::cast_slice(ids));
        out[self.ids..].copy_from_slice(bytemuck::cast_slice(&[position, ids.len() as u32, slot]));
        out
    }
}

/// The plan of a chunk.
pub fn prefill_plan(model: &ModelShape, shape: &PrefillShape) -> Plan {
    let mut p = Prefill::new(model, *shape);
    p.embed();
    for (i, kind) in model.config.layer_types.iter().enumerate() {
        match kind {
            LayerType::LinearAttention => p.gdn(i),
            LayerType::FullAttention => p.attention(i),
        }
        p.experts(i);
    }
    p.head();
    let head = match shape.head {
        PrefillHead::None => "no logits",
        PrefillHead::Last => "logits of the last",
        PrefillHead::All => "logits of all",
    };
    p.b.finish(format!("prefill of up to {} tokens, {head}", shape.tokens))
}

/// What a product takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    /// A chunk's rows, as [`ModelShape::products`] says.
    Chunk,
    /// f32 that nothing rounds: the router's.
    Exact,
}

struct Prefill<'a> {
    b: PlanBuilder,
    m: &'a ModelShape,
    s: PrefillShape,
    ids: View,
    chunk: View,
    residual: View,
    /// Normed rows, as the products take them.
    normed: View,
    /// A mixer's result, as the products take it.
    mixed: View,
}

impl<'a> Prefill<'a> {
    fn new(m: &'a ModelShape, s: PrefillShape) -> Self {
        let c = &m.config;
        let mut b = PlanBuilder::new();
        let inputs = PrefillInputs::new(s.tokens);
        let all = b.buffer("inputs", inputs.bytes(), BufferKind::Input);
        let ids = View { offset: 0, len: (s.tokens * U32) as u64, ..all };
        let chunk = View { offset: inputs.ids as u64, len: CHUNK_BYTES as u64, ..all };
        let attention = c.num_attention_heads * c.head_dim;
        let wide = c.gdn_value_width().max(attention);
        let residual = b.buffer("residual", s.tokens * c.hidden_size * F32, BufferKind::Scratch);
        let normed =
            b.buffer("prefill_normed", s.tokens * c.hidden_size * m.products.bytes(), BufferKind::Scratch);
        let mixed = b.buffer("prefill_mixed", s.tokens * wide * m.products.bytes(), BufferKind::Scratch);
        Self { b, m, s, ids, chunk, residual, normed, mixed }
    }

    fn scratch(&mut self, name: &str, bytes: usize) -> View {
        self.b.buffer(name, bytes, BufferKind::Scratch)
    }

    fn vector(&mut self, name: String, n: usize) -> View {
        self.b.buffer(name, BF16 * n, BufferKind::Weight)
    }

    fn eps(&self) -> (&'static str, Scalar) {
        ("eps", Scalar::F32(self.m.config.rms_norm_eps))
    }

    /// Whether tensor operations multiply the tiles.
    fn tensor_tiles(&self) -> bool {
        routes::tensor_tiles(self.m.tensor_ops, self.m.products, self.s.tokens)
    }

    /// Bytes of what enters a product.
    fn input_bytes(&self) -> usize {
        self.m.products.bytes()
    }

    fn part(view: View, bytes: usize) -> View {
        View { len: bytes as u64, ..view }
    }

    fn embed(&mut self) {
        let c = &self.m.config;
        let (tokens, hidden) = (self.s.tokens, c.hidden_size);
        let views = self.b.matrix(&self.m.dense("model.embed_tokens", c.vocab_size, hidden));
        self.b
            .op("embed", "embed")
            .read_all("ids", "uint", self.ids)
            .matrix(["w", "scales", "biases"], views, Share::Of(tokens, c.vocab_size))
            .write("y", "float4", self.residual, tokens * hidden * F32)
            .inline("shape", "EmbedShape", embed_shape(hidden, c.vocab_size))
            .run([(hidden / 32).div_ceil(32), tokens, 1], 32);
    }

    fn rows_shape(&self) -> Vec<(&'static str, Scalar)> {
        vec![("cols", Scalar::U32(self.m.config.hidden_size as u32)), self.eps()]
    }

    /// `normed = rmsnorm(residual)`.
    fn norm(&mut self, label: String, gain: String) {
        let hidden = self.m.config.hidden_size;
        let (gain, shape) = (self.vector(gain, hidden), self.rows_shape());
        let (kernel, element) = match self.m.products {
            Products::F16 => ("norm_rows", "half4"),
            Products::F32 => ("norm_rows_float", "float4"),
        };
        let bytes = self.s.tokens * hidden * self.input_bytes();
        self.b
            .op(label, kernel)
            .read_all("residual", "float4", self.residual)
            .read_all("gain", "bfloat4", gain)
            .write("y", element, self.normed, bytes)
            .read_all("chunk", "PrefillChunk", self.chunk)
            .inline("shape", "RowsShape", shape)
            .run([self.s.tokens, 1, 1], 128);
    }

    /// `y = x W^T`, or `y += x W^T`: up to four matrices with one input, their outputs side by side.
    fn gemm(&mut self, label: String, input: Input, x: View, y: View, matrices: &[MatrixInfo], add: bool) {
        let (tokens, cols) = (self.s.tokens, matrices[0].cols);
        let (input, tensor) = match input {
            Input::Chunk => (self.m.products, self.tensor_tiles()),
            Input::Exact => (Products::F32, false),
        };
        let stride: usize = matrices.iter().map(|m| m.rows).sum();
        let tile = routes::gemm_rows(tokens);
        let kernel = match (input, add) {
            (Products::F16, false) => "gemm_",
            (Products::F16, true) => "gemm_add_",
            (Products::F32, false) => "gemm_float_",
            (Products::F32, true) => "gemm_float_add_",
        };
        let kernel = match (tensor, add) {
            (true, false) => "gemm_tensor_",
            (true, true) => "gemm_tensor_add_",
            (false, _) => kernel,
        };
        let blocks = matrices.iter().map(|m| m.rows.div_ceil(TILE_COLS)).sum();
        let views: Vec<[View; 3]> = matrices.iter().map(|m| self.b.matrix(m)).collect();
        let all = tokens * stride * F32;
        let (x, y) = (Self::part(x, tokens * cols * input.bytes()), Self::part(y, all));
        let mut op = self.b.op(label, format!("{kernel}{tile}")).read_all("x", input.element(), x);
        op = if add { op.update("y", "float", y, all, all) } else { op.write("y", "float", y, all) };
        op = op.read_all("chunk", "PrefillChunk", self.chunk).inline(
            "shape",
            "ProjectShape",
            project_shape(matrices, self.m.config.rms_norm_eps),
        );
        op = with_matrices(op, &views);
        op.run([blocks, tokens.div_ceil(tile), 1], 128);
    }

    fn gdn(&mut self, layer: usize) {
        let c = &self.m.config;
        let (t, slots, hidden) = (self.s.tokens, self.s.slots, c.hidden_size);
        let at = |name: &str| format!("model.layers.{layer}.linear_attn.{name}");
        let label = |name: &str| format!("layers.{layer}.gdn.{name}");
        let (channels, width, heads) = (c.conv_channels(), c.gdn_value_width(), c.linear_num_value_heads);
        let (key_heads, dim, taps) =
            (c.linear_num_key_heads, c.linear_value_head_dim, c.linear_conv_kernel_dim);
        let stride = channels + width + 2 * heads;
        let steps = t.div_ceil(GDN_TOKENS);
        let rows = steps * GDN_TOKENS;
        self.norm(label("norm"), format!("model.layers.{layer}.input_layernorm.weight"));
        let projected = self.scratch("gdn_projected", t * stride * F32);
        let inputs = [
            self.m.dense(at("in_proj_qkv"), channels, hidden),
            self.m.dense(at("in_proj_z"), width, hidden),
            self.m.dense(at("in_proj_b"), heads, hidden),
            self.m.dense(at("in_proj_a"), heads, hidden),
        ];
        self.gemm(label("in"), Input::Chunk, self.normed, projected, &inputs, false);

        let conv = self.vector(at("conv1d.weight"), channels * taps);
        let ring =
            self.b.buffer(format!("layers.{layer}.ring"), slots * taps * channels * F32, BufferKind::State);
        let u = self.scratch("gdn_u", rows * channels * F32);
        let shape = vec![
            ("key_heads", Scalar::U32(key_heads as u32)),
            ("value_heads", Scalar::U32(heads as u32)),
            ("stride", Scalar::U32(stride as u32)),
            self.eps(),
        ];
        self.b
            .op(label("convolve"), "gdn_convolve")
            .read("projected", "float", projected, t * channels * F32)
            .read_all("conv_weight", "bfloat4", conv)
            .read("ring", "float", ring, (taps - 1) * channels * F32)
            .write("u", "float4", u, rows * channels * F32)
            .read_all("chunk", "PrefillChunk", self.chunk)
            .inline("shape", "GdnShape", shape.clone())
            .run([2 * key_heads + heads, steps, 1], 128);

        let a_log = self.b.buffer(at("A_log"), heads * F32, BufferKind::Weight);
        let dt_bias = self.b.buffer(at("dt_bias"), heads * F32, BufferKind::Weight);
        let factors = self.scratch("gdn_factors", steps * heads * GDN_FACTORS * F32);
        let keys_and_queries = rows * 2 * key_heads * c.linear_key_head_dim * F32;
        self.b
            .op(label("factors"), "gdn_factors")
            .read("projected", "float", projected, (t * 2 * heads + taps.min(t) * channels) * F32)
            .read("u", "float", u, keys_and_queries)
            .read_all("a_log", "float", a_log)
            .read_all("dt_bias", "float", dt_bias)
            .write("ring", "float", ring, taps.min(t) * channels * F32)
            .write("factors", "float", factors, steps * heads * GDN_FACTORS * F32)
            .read_all("chunk", "PrefillChunk", self.chunk)
            .inline("shape", "GdnShape", shape.clone())
            .run([steps, heads, 1], 128);

        let row = width * c.linear_key_head_dim * F32;
        let state = self.b.buffer(format!("layers.{layer}.state"), slots * row, BufferKind::State);
        let o = self.scratch("gdn_o", rows * width * F32);
        self.b
            .op(label("scan"), "gdn_scan")
            .read_all("u", "float", u)
            .read("factors", "float", factors, steps * heads * GDN_FACTORS_READ * F32)
            .update("state", "float", state, row, row)
            .write("o", "float", o, rows * width * F32)
            .read_all("chunk", "PrefillChunk", self.chunk)
            .inline("shape", "GdnShape", shape.clone())
            .run([dim / 64, heads, 1], 128);

        let gain = self.vector(at("norm.weight"), dim);
        let bytes = t * width * self.input_bytes();
        let y = Self::part(self.mixed, bytes);
        let (kernel, element) = match self.m.products {
            Products::F16 => ("gdn_gate", "half4"),
            Products::F32 => ("gdn_gate_float", "float4"),
        };
        self.b
            .op(label("gate"), kernel)
            .read("projected", "float", projected, t * width * F32)
            .read("o", "float4", o, t * width * F32)
            .read_all("gain", "bfloat4", gain)
            .write("y", element, y, bytes)
            .read_all("chunk", "PrefillChunk", self.chunk)
            .inline("shape", "GdnShape", shape)
            .run([heads, t.div_ceil(4), 1], 128);
        let out = [self.m.dense(at("out_proj"), hidden, width)];
        self.gemm(label("out"), Input::Chunk, self.mixed, self.residual, &out, true);
    }

    fn attention(&mut self, layer: usize) {
        let c = &self.m.config;
        let (t, hidden, dim) = (self.s.tokens, c.hidden_size, c.head_dim);
        let (heads, kv_heads) = (c.num_attention_heads, c.num_key_value_heads);
        let at = |name: &str| format!("model.layers.{layer}.self_attn.{name}");
        let label = |name: &str| format!("layers.{layer}.attention.{name}");
        self.norm(label("norm"), format!("model.layers.{layer}.input_layernorm.weight"));
        let stride = 2 * (heads + kv_heads) * dim;
        let projected = self.scratch("attention_projected", t * stride * F32);
        let inputs = [
            self.m.dense(at("q_proj"), 2 * heads * dim, hidden),
            self.m.dense(at("k_proj"), kv_heads * dim, hidden),
            self.m.dense(at("v_proj"), kv_heads * dim, hidden),
        ];
        self.gemm(label("qkv"), Input::Chunk, self.normed, projected, &inputs, false);

        let (q_gain, k_gain) = (self.vector(at("q_norm.weight"), dim), self.vector(at("k_norm.weight"), dim));
        let rates = self.b.buffer("rotary_rates", c.rotary_dim / 2 * 8, BufferKind::Constant);
        // Halves whatever the products take: attention_prefill.metal says why.
        let queries = self.scratch("prefill_queries", t * heads * dim * F16);
        let row = kv_heads * dim * BF16;
        let cache = self.s.slots * self.s.capacity * row;
        let keys = self.b.buffer(format!("layers.{layer}.keys"), cache, BufferKind::Kv);
        let values = self.b.buffer(format!("layers.{layer}.values"), cache, BufferKind::Kv);
        let shape = vec![
            ("heads", Scalar::U32(heads as u32)),
            ("kv_heads", Scalar::U32(kv_heads as u32)),
            ("capacity", Scalar::U32(self.s.capacity as u32)),
            // Spans and splits are decode's.
            ("span", Scalar::U32(0)),
            ("splits", Scalar::U32(0)),
            ("stride", Scalar::U32(stride as u32)),
            self.eps(),
        ];
        let gates = t * heads * dim * F32;
        let padding = (self.s.context.next_multiple_of(8) - self.s.context) * row;
        self.b
            .op(label("prepare"), "attention_prepare")
            .read("projected", "float", projected, t * stride * F32 - gates)
            .read_all("q_gain", "bfloat", q_gain)
            .read_all("k_gain", "bfloat", k_gain)
            .read_all("rates", "uint2", rates)
            .read_all("chunk", "PrefillChunk", self.chunk)
            .write("queries", "half", queries, t * heads * dim * F16)
            .write("keys", "bfloat", keys, t * row)
            .write("values", "bfloat", values, t * row + padding)
            .inline("shape", "AttentionShape", shape.clone())
            .run([heads + 2 * kv_heads, (t + 7).div_ceil(4), 1], 128);

        let group = heads / kv_heads;
        let bytes = t * heads * dim * self.input_bytes();
        let y = Self::part(self.mixed, bytes);
        // Positions are taken in steps of 8.
        let seen = self.s.context.next_multiple_of(8).min(self.s.capacity) * row;
        let (flash, cached, keys, values) = match self.m.products {
            Products::F32 => ("attention_prefill_float_", "bfloat", keys, values),
            Products::F16 => {
                let bytes = self.s.capacity * kv_heads * dim * F16;
                let (half_keys, half_values) =
                    (self.scratch("half_keys", bytes), self.scratch("half_values", bytes));
                self.b
                    .op(label("halves"), "attention_halves")
                    .read("keys", "bfloat4", keys, seen)
                    .read("values", "bfloat4", values, seen)
                    .write("half_keys", "half4", half_keys, seen)
                    .write("half_values", "half4", half_values, seen)
                    .read_all("chunk", "PrefillChunk", self.chunk)
                    .inline("shape", "AttentionShape", shape.clone())
                    .run([self.s.capacity.div_ceil(HALVES_POSITIONS), kv_heads, 1], 128);
                ("attention_prefill_", "half", half_keys, half_values)
            }
        };
        self.b
            .op(label("flash"), format!("{flash}{group}"))
            .read_all("queries", "half", queries)
            .read("keys", cached, keys, seen)
            .read("values", cached, values, seen)
            .read("projected", "float", projected, gates)
            .write("y", self.m.products.element(), y, bytes)
            .read_all("chunk", "PrefillChunk", self.chunk)
            .inline("shape", "AttentionShape", shape)
            .run([(t * group).div_ceil(ATTENTION_ROWS), kv_heads, 1], 128);
        let out = [self.m.dense(at("o_proj"), hidden, heads * dim)];
        self.gemm(label("out"), Input::Chunk, self.mixed, self.residual, &out, true);
    }

    /// The norm before the experts. Returns the rows for the router, which are never rounded.
    fn norm_for_router(&mut self, label: String, gain: String) -> View {
        if self.m.products == Products::F32 {
            self.norm(label, gain);
            return self.normed;
        }
        let (t, hidden) = (self.s.tokens, self.m.config.hidden_size);
        let (gain, shape) = (self.vector(gain, hidden), self.rows_shape());
        let exact = self.scratch("prefill_exact", t * hidden * F32);
        self.b
            .op(label, "norm_rows_exact")
            .read_all("residual", "float4", self.residual)
            .read_all("gain", "bfloat4", gain)
            .write("y", "half4", self.normed, t * hidden * F16)
            .write("exact", "float4", exact, t * hidden * F32)
            .read_all("chunk", "PrefillChunk", self.chunk)
            .inline("shape", "RowsShape", shape)
            .run([t, 1, 1], 128);
        exact
    }

    fn experts(&mut self, layer: usize) {
        let c = &self.m.config;
        let (t, hidden) = (self.s.tokens, c.hidden_size);
        let (experts, chosen) = (c.num_experts, c.num_experts_per_tok);
        let (width, shared) = (c.moe_intermediate_size, c.shared_expert_intermediate_size);
        let at = |name: &str| format!("model.layers.{layer}.mlp.{name}");
        let label = |name: &str| format!("layers.{layer}.experts.{name}");
        let gain = format!("model.layers.{layer}.post_attention_layernorm.weight");
        let exact = self.norm_for_router(label("norm"), gain);

        let stride = experts + 1;
        let logits = self.scratch("router_logits", t * stride * F32);
        let gates =
            [self.m.dense(at("gate"), experts, hidden), self.m.dense(at("shared_expert_gate"), 1, hidden)];
        self.gemm(label("router"), Input::Exact, exact, logits, &gates, false);

        let shape = vec![
            ("hidden", Scalar::U32(hidden as u32)),
            ("experts", Scalar::U32(experts as u32)),
            ("chosen", Scalar::U32(chosen as u32)),
            ("width", Scalar::U32(width as u32)),
            ("shared_width", Scalar::U32(shared as u32)),
            ("stride", Scalar::U32(stride as u32)),
            self.eps(),
        ];
        let pairs_n = t * chosen;
        let capacity = pairs_n.div_ceil(EXPERT_ROWS) + experts;
        let ids = self.scratch("expert_ids", pairs_n * U32);
        let scores = self.scratch("expert_scores", pairs_n * F32);
        let pairs = self.scratch("expert_pairs", pairs_n * U32);
        let starts = self.scratch("expert_starts", (experts + 1) * U32);
        let blocks = self.scratch("expert_blocks", capacity * 4 * U32);
        self.b
            .op(label("route"), "moe_route")
            .read("logits", "float", logits, t * experts * F32)
            .write("ids", "uint", ids, pairs_n * U32)
            .write("scores", "float", scores, pairs_n * F32)
            .read_all("chunk", "PrefillChunk", self.chunk)
            .inline("shape", "MoeShape", shape.clone())
            .run([t.div_ceil(4), 1, 1], 128);
        self.b
            .op(label("sort"), "moe_sort")
            .read_all("ids", "uint", ids)
            .write("pairs", "uint", pairs, pairs_n * U32)
            .write("starts", "uint", starts, (experts + 1) * U32)
            .read_all("chunk", "PrefillChunk", self.chunk)
            .inline("shape", "MoeShape", shape.clone())
            .run([experts, 1, 1], 128);
        self.b
            .op(label("blocks"), "moe_blocks")
            .read_all("starts", "uint", starts)
            .write("blocks", "uint4", blocks, capacity * 4 * U32)
            .inline("shape", "MoeShape", shape.clone())
            .inline("capacity", "uint", vec![("", Scalar::U32(capacity as u32))])
            .run([1, 1, 1], 256);

        let used = Share::Of(pairs_n, experts);
        let (gate_up, shared_gate_up, down_kernel) = match self.m.products {
            Products::F16 => ("experts_gate_up", "shared_gate_up", "experts_down"),
            Products::F32 => ("experts_gate_up_float", "shared_gate_up_float", "experts_down_float"),
        };
        let (gate_up, shared_gate_up, down_kernel) = match self.tensor_tiles() {
            true => ("experts_gate_up_tensor", "shared_gate_up_tensor", "experts_down_tensor"),
            false => (gate_up, shared_gate_up, down_kernel),
        };
        let (element, h_bytes) = (self.m.products.element(), pairs_n * width * self.input_bytes());
        let h = self.scratch("expert_h", h_bytes);
        let gate = self.b.matrix(&self.m.stack(at("switch_mlp.gate_proj"), experts, width, hidden));
        let up = self.b.matrix(&self.m.stack(at("switch_mlp.up_proj"), experts, width, hidden));
        self.b
            .op(label("gate_up"), gate_up)
            .read_all("x", element, self.normed)
            .read_all("scores", "float", scores)
            .read_all("pairs", "uint", pairs)
            .read_all("blocks", "uint4", blocks)
            .matrix(["gate_w", "gate_s", "gate_b"], gate, used)
            .matrix(["up_w", "up_s", "up_b"], up, used)
            .write("h", element, h, h_bytes)
            .inline("shape", "MoeShape", shape.clone())
            .run([width.div_ceil(GATE_UP_COLS), capacity, 1], 128);

        let shared_bytes = t * shared * self.input_bytes();
        let shared_h = self.scratch("shared_h", shared_bytes);
        let gate = self.b.matrix(&self.m.dense(at("shared_expert.gate_proj"), shared, hidden));
        let up = self.b.matrix(&self.m.dense(at("shared_expert.up_proj"), shared, hidden));
        self.b
            .op(label("shared_gate_up"), shared_gate_up)
            .read_all("x", element, self.normed)
            .read("logits", "float", logits, t * F32)
            .read_all("chunk", "PrefillChunk", self.chunk)
            .matrix(["gate_w", "gate_s", "gate_b"], gate, Share::All)
            .matrix(["up_w", "up_s", "up_b"], up, Share::All)
            .write("h", element, shared_h, shared_bytes)
            .inline("shape", "MoeShape", shape.clone())
            .run([shared.div_ceil(GATE_UP_COLS), t.div_ceil(EXPERT_ROWS), 1], 128);

        let y = self.scratch("expert_y", pairs_n * hidden * F32);
        let down = self.b.matrix(&self.m.stack(at("switch_mlp.down_proj"), experts, hidden, width));
        self.b
            .op(label("down"), down_kernel)
            .read_all("h", element, h)
            .read_all("pairs", "uint", pairs)
            .read_all("blocks", "uint4", blocks)
            .matrix(["down_w", "down_s", "down_b"], down, used)
            .write("y", "float", y, pairs_n * hidden * F32)
            .inline("shape", "MoeShape", shape.clone())
            .run([hidden.div_ceil(TILE_COLS), capacity, 1], 128);

        let shared_down = [self.m.dense(at("shared_expert.down_proj"), hidden, shared)];
        self.gemm(label("shared_down"), Input::Chunk, shared_h, self.residual, &shared_down, true);
        let residual = t * hidden * F32;
        self.b
            .op(label("combine"), "experts_combine")
            .read_all("y", "float4", y)
            .update("residual", "float4", self.residual, residual, residual)
            .read_all("chunk", "PrefillChunk", self.chunk)
            .inline("shape", "MoeShape", shape)
            .run([(hidden / 4).div_ceil(128), t, 1], 128);
    }

    /// Logits as decode computes them, from f32 rows.
    fn head(&mut self) {
        let c = &self.m.config;
        let (vocab, hidden) = (c.vocab_size, c.hidden_size);
        let (x, tokens) = match self.s.head {
            PrefillHead::None => return,
            PrefillHead::All => (self.residual, self.s.tokens),
            PrefillHead::Last => {
                let row = self.scratch("last_row", hidden * F32);
                let shape = self.rows_shape();
                self.b
                    .op("last_row", "last_row")
                    .read("residual", "float4", self.residual, hidden * F32)
                    .write("y", "float4", row, hidden * F32)
                    .read_all("chunk", "PrefillChunk", self.chunk)
                    .inline("shape", "RowsShape", shape)
                    .run([(hidden / 4).div_ceil(32), 1, 1], 32);
                (row, 1)
            }
        };
        let logits = self.scratch("logits", tokens * vocab * F32);
        let gain = self.vector("model.norm.weight".into(), hidden);
        let lm_head = [self.m.dense("lm_head", vocab, hidden)];
        let eps = c.rms_norm_eps;
        project(&mut self.b, "lm_head".into(), (x, tokens), Some(gain), logits, &lm_head, eps);
    }
}
