//! Which kernel variant and which split runs for which shape and device: pure functions, tested at each edge.

use super::Products;
use crate::device::DeviceFacts;

/// Rows a simdgroup computes in a projection of `rows` output rows: 1, 2, 4 or 8.
///
/// More rows share the loads of activations; fewer give more threadgroups (of 4 simdgroups). Large GPUs have some 40 to
/// 150 cores, each of which wants several threadgroups, so rows are only shared while at least 256 remain.
pub fn rows_per_simdgroup(rows: usize) -> usize {
    match rows {
        32_768.. => 8,
        4_096.. => 4,
        2_048.. => 2,
        _ => 1,
    }
}

/// Rows a simdgroup computes of each of `matrices` experts' matrices: 1, 2 or 4.
pub fn expert_rows(rows: usize, matrices: usize) -> usize {
    match rows * matrices {
        8_192.. => 4,
        2_048.. => 2,
        _ => 1,
    }
}

/// Chunks of fewer tokens run as decode steps: reading the dense weights that often costs less than the tiles of 32
/// tokens, which are mostly empty then.
pub const PREFILL_FROM: usize = 4;

/// The tokens a prefill plan is made for when `tokens` are asked: a power of two from 32, so that few plans serve all
/// chunks.
pub fn chunk_class(tokens: usize) -> usize {
    tokens.next_power_of_two().max(32)
}

/// Most tokens of one prefill chunk on a device. 2,048 are enough that weights are read for many tokens at once, and their
/// activations take half a gigabyte on the 35B model. A large GPU with memory of its own has room for 8,192, whose
/// activations take two: its experts get 256 tokens each, which fill the tiles of its matrix units.
pub fn largest_chunk(unified: bool, memory: Option<u64>) -> usize {
    if !unified && memory.is_some_and(|m| m >= LARGE_MEMORY) { 8192 } else { 2048 }
}

/// Memory from which a GPU counts as large: twice what the 35B model's weights take.
const LARGE_MEMORY: u64 = 40 << 30;

/// Tokens of a tile in prefill's products: 32 or 64. Taller tiles dequantise a weight for more tokens; short chunks
/// need the threadgroups.
pub fn gemm_rows(tokens: usize) -> usize {
    if tokens >= 256 { 64 } else { 32 }
}

/// What enters prefill's products on a device. Tensor cores take 16 bits: kernels made for an architecture give them an
/// input as two halves, others round it. `simdgroup_matrix` multiplies floats as fast as halves on Apple's GPUs up to M4 by
/// all that is published (not measured here), and M1 and M2 only emulate bfloats: floats cost the twofold threadgroup memory
/// and activations, and nothing is rounded.
pub fn products(device: &DeviceFacts) -> Products {
    match device.kind {
        "cuda" if !device.split_products => Products::F16,
        _ => Products::F32,
    }
}

/// Whether tensor operations multiply a prefill chunk's tiles on a device that has them: those take halves, so they are for
/// products that nothing has rounded yet ([`Products::F32`]; the router's stay f32 on every device). Chunks that fill no more
/// than one tile of 32 tokens stay exact: what they cost is mostly the weights' way through memory and dequantisation, which
/// is the same in both forms (by the counters; not measured).
pub fn tensor_tiles(tensor_ops: bool, products: Products, tokens: usize) -> bool {
    tensor_ops && products == Products::F32 && tokens > TENSOR_ABOVE
}

/// Largest chunk whose products stay on `simdgroup_matrix` in any case.
const TENSOR_ABOVE: usize = 32;

/// How a context is split among threadgroups in decode attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Splits {
    /// A threadgroup takes `span` positions; there are up to `count` a KV head.
    Spans {
        /// Positions of a threadgroup.
        span: usize,
        /// Threadgroups a KV head; partial results have room for as many.
        count: usize,
    },
    /// Every position's context is cut into so many equal blocks, whatever it is: one plan for all long contexts, and
    /// none of its threadgroups waits for a longer one.
    Blocks(usize),
}

impl Splits {
    /// Threadgroups a KV head.
    pub fn count(self) -> usize {
        match self {
            Splits::Spans { count, .. } | Splits::Blocks(count) => count,
        }
    }

    /// Positions of a threadgroup when there are `context`.
    fn span_of(self, context: usize) -> usize {
        match self {
            Splits::Spans { span, .. } => span,
            // As split_span in attention_decode.metal.
            Splits::Blocks(count) => (context.saturating_sub(1) / count / 8 + 1) * 8,
        }
    }

    /// Threadgroups a KV head that have work when there are `context` positions.
    pub fn used(self, context: usize) -> usize {
        context.max(1).div_ceil(self.span_of(context))
    }

    /// Most positions that fit.
    pub fn most(self, capacity: usize) -> usize {
        match self {
            Splits::Spans { span, count } => span * count,
            Splits::Blocks(_) => capacity,
        }
    }
}

/// Shortest span: its partial result (one row a query head) must stay small beside the keys and values it stands for.
const SHORTEST_SPAN: usize = 64;
/// Most spans a KV head; with 2 KV heads and 4 simdgroups a span this is 256 simdgroups.
const MOST_SPANS: usize = 32;
/// Contexts from here on are cut into blocks.
const BLOCKS_FROM: usize = 32_768;
/// Blocks a KV head: 512 simdgroups, and partial results below a hundredth of the bytes of a token.
const BLOCKS: usize = 64;

/// Splits for sequences of up to `context` positions. Short contexts are rounded up to a power of two, so that a plan
/// serves until they have doubled.
pub fn attention_splits(context: usize) -> Splits {
    if context >= BLOCKS_FROM {
        return Splits::Blocks(BLOCKS);
    }
    let class = context.max(1).next_power_of_two().max(SHORTEST_SPAN);
    let span = (class / MOST_SPANS).max(SHORTEST_SPAN);
    Splits::Spans { span, count: class / span }
}

/// Logits one threadgroup of the arg-max looks at.
pub const ARGMAX_BLOCK: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_projections() {
        for (rows, want) in
            [(1, 1), (2_047, 1), (2_048, 2), (4_095, 2), (4_096, 4), (32_767, 4), (32_768, 8), (248_320, 8)]
        {
            assert_eq!(rows_per_simdgroup(rows), want, "{rows}");
        }
        for (rows, matrices, want) in
            [(64, 8, 1), (255, 8, 1), (256, 8, 2), (512, 8, 2), (1024, 8, 4), (2048, 1, 2)]
        {
            assert_eq!(expert_rows(rows, matrices), want, "{rows}");
        }
    }

    #[test]
    fn products_of_devices() {
        let on = |kind, split_products| {
            products(&DeviceFacts {
                kind,
                name: String::new(),
                memory: None,
                largest_buffer: 1 << 30,
                unified: kind != "cuda",
                tensor_ops: false,
                split_products,
            })
        };
        assert_eq!(
            ["cuda", "metal", "soft"].map(|k| on(k, false)),
            [Products::F16, Products::F32, Products::F32]
        );
        assert_eq!(on("cuda", true), Products::F32);
    }

    #[test]
    fn tensor_operations_are_for_chunks_of_exact_products() {
        for (tokens, want) in [(1, false), (32, false), (33, true), (64, true), (2048, true)] {
            assert_eq!(tensor_tiles(true, Products::F32, tokens), want, "{tokens}");
            assert!(!tensor_tiles(false, Products::F32, tokens));
        }
        // Rounded inputs are halves in memory; the kernels take floats.
        let rounded = products(&DeviceFacts {
            kind: "cuda",
            name: String::new(),
            memory: None,
            largest_buffer: 1 << 30,
            unified: false,
            tensor_ops: true,
            split_products: false,
        });
        assert!(rounded != Products::F32 && !tensor_tiles(true, rounded, 2048));
    }

    #[test]
    fn chunks_of_devices() {
        assert_eq!(largest_chunk(false, Some(LARGE_MEMORY)), 8192);
        assert_eq!(largest_chunk(false, Some(LARGE_MEMORY - 1)), 2048);
        assert_eq!(largest_chunk(true, Some(512 << 30)), 2048);
        assert_eq!(largest_chunk(false, None), 2048);
    }

    #[test]
    fn tiles_of_chunks() {
        assert_eq!([1, 32, 255, 256, 4096].map(gemm_rows), [32, 32, 32, 64, 64]);
        assert_eq!([1, 32, 33, 64, 65, 2048].map(chunk_class), [32, 32, 64, 64, 128, 2048]);
    }

    #[test]
    fn splits_of_contexts() {
        let s = |span, count| Splits::Spans { span, count };
        for (context, want) in [
            (0, s(64, 1)),
            (1, s(64, 1)),
            (64, s(64, 1)),
            (65, s(64, 2)),
            (2048, s(64, 32)),
            (2049, s(128, 32)),
            (4096, s(128, 32)),
            (4097, s(256, 32)),
            (32_767, s(1024, 32)),
            (32_768, Splits::Blocks(64)),
            (262_144, Splits::Blocks(64)),
        ] {
            assert_eq!(attention_splits(context), want, "{context}");
        }
        for context in (1..5000).chain(32_700..33_800) {
            let s = attention_splits(context);
            assert!(s.most(context) >= context && (1..=s.count()).contains(&s.used(context)), "{context}");
            assert!(s.span_of(context) * s.count() >= context);
        }
    }
}
