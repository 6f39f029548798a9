//! What each compute thread owns: scratch that no other thread touches.

use lily_model::ModelConfig;

use crate::{
    acts::{Acts, GROUP, Need, TILE},
    buf::Buf,
    error::Result,
    kernels::{BLOCK, Unpacked},
};

/// Rows of a dense projection that a thread takes at a time: their tiles of activations are fetched once.
pub(crate) const BLOCKS: usize = 4;
/// Groups that are unpacked together: 32 rows of 8 groups are 16 KiB, so that the first-level cache holds them and a
/// tile of activations.
pub(crate) const CHUNK: usize = 8;
/// Most tokens of an expert that are computed together: their activations stay in the second-level cache.
pub(crate) const PANEL: usize = 16 * TILE;
/// Tokens that the GDN convolves before it runs the recurrence over them.
pub(crate) const GDN_TOKENS: usize = 64;
/// Positions whose scores are computed together.
pub(crate) const ATTEND: usize = 64;
/// Tokens whose attention is computed together in prefill.
pub(crate) const QUERY_TOKENS: usize = 12;

/// Scratch of one compute thread.
#[derive(Debug)]
pub(crate) struct Worker {
    /// One normed or mixed vector.
    pub(crate) row: Buf<f32>,
    /// The input of a decode step, quantised by every thread for itself: cheaper than waiting for one that does.
    pub(crate) acts: Acts,
    /// Hidden vectors of the routed experts of one token, then of the shared one.
    pub(crate) hidden: Vec<Acts>,
    /// (expert, weight) of one token.
    pub(crate) route: Vec<(usize, f32)>,
    /// Which step `acts` and `route` were last made for: a thread may have missed the dispatch that made them.
    pub(crate) acts_of: u64,
    pub(crate) route_of: u64,
    /// [`CHUNK`] groups of [`BLOCK`] rows.
    pub(crate) unpacked: Unpacked,
    /// Products of [`BLOCK`] rows with up to [`PANEL`] tokens, twice.
    pub(crate) products: [Buf<f32>; 2],
    /// Activations of the tokens of one expert.
    pub(crate) panel: Acts,
    /// `[PANEL][expert width]`.
    pub(crate) panel_hidden: Buf<f32>,
    pub(crate) gdn: GdnScratch,
    pub(crate) attention: AttentionScratch,
}

/// One head, [`GDN_TOKENS`] tokens.
#[derive(Debug)]
pub(crate) struct GdnScratch {
    pub(crate) q: Buf<f32>,
    pub(crate) k: Buf<f32>,
    pub(crate) v: Buf<f32>,
    pub(crate) o: Buf<f32>,
    pub(crate) g: [f32; GDN_TOKENS],
    pub(crate) beta: [f32; GDN_TOKENS],
    pub(crate) kq: [f32; GDN_TOKENS],
}

/// All query rows of one KV head for [`QUERY_TOKENS`] tokens.
#[derive(Debug)]
pub(crate) struct AttentionScratch {
    /// `[rows][dim]`, normed, rotated, scaled.
    pub(crate) q: Buf<f32>,
    /// `[rows][ATTEND]`.
    pub(crate) scores: Buf<f32>,
    /// `[rows][dim]`, paired order.
    pub(crate) acc: Buf<f32>,
    /// Largest score so far, a row.
    pub(crate) max: Vec<f32>,
    /// Sum of exponentials so far, a row.
    pub(crate) sum: Vec<f32>,
}

impl Worker {
    pub(crate) fn new(c: &ModelConfig, need: Need) -> Result<Self> {
        let attention_width = c.num_attention_heads * c.head_dim;
        let widest = c.hidden_size.max(c.gdn_value_width()).max(attention_width);
        let hidden = c.moe_intermediate_size.max(c.shared_expert_intermediate_size);
        let what = "a compute thread's scratch";
        let (dk, dv) = (c.linear_key_head_dim, c.linear_value_head_dim);
        let rows = QUERY_TOKENS * c.num_attention_heads / c.num_key_value_heads;
        let mut vectors = Vec::new();
        for _ in 0..=c.num_experts_per_tok {
            vectors.push(Acts::new(1, hidden, need)?);
        }
        Ok(Self {
            row: Buf::new(widest.max(2 * hidden), what)?,
            acts: Acts::new(1, widest, need)?,
            hidden: vectors,
            route: Vec::with_capacity(c.num_experts_per_tok),
            acts_of: 0,
            route_of: 0,
            unpacked: Unpacked::new(CHUNK * GROUP)?,
            products: [Buf::new(PANEL * BLOCK, what)?, Buf::new(PANEL * BLOCK, what)?],
            panel: Acts::new(PANEL, c.hidden_size, need)?,
            panel_hidden: Buf::new(PANEL * hidden, what)?,
            gdn: GdnScratch {
                q: Buf::new(GDN_TOKENS * dk, what)?,
                k: Buf::new(GDN_TOKENS * dk, what)?,
                v: Buf::new(GDN_TOKENS * dv, what)?,
                o: Buf::new(GDN_TOKENS * dv, what)?,
                g: [0.0; GDN_TOKENS],
                beta: [0.0; GDN_TOKENS],
                kq: [0.0; GDN_TOKENS],
            },
            attention: AttentionScratch {
                q: Buf::new(rows * c.head_dim, what)?,
                scores: Buf::new(rows * ATTEND, what)?,
                acc: Buf::new(rows * c.head_dim, what)?,
                max: vec![0.0; rows],
                sum: vec![0.0; rows],
            },
        })
    }

    /// Bytes held.
    pub(crate) fn byte_len(&self) -> usize {
        let g = &self.gdn;
        let a = &self.attention;
        self.row.byte_len()
            + self.acts.byte_len()
            + self.hidden.iter().map(Acts::byte_len).sum::<usize>()
            + self.unpacked.byte_len()
            + self.products.iter().map(Buf::byte_len).sum::<usize>()
            + self.panel.byte_len()
            + self.panel_hidden.byte_len()
            + [&g.q, &g.k, &g.v, &g.o, &a.q, &a.scores, &a.acc].iter().map(|b| b.byte_len()).sum::<usize>()
    }
}
