//! Which kernel variant and which split runs for which shape: pure functions, tested at each edge.

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

/// Tokens of a tile in prefill's products: 32 or 64. Taller tiles dequantise a weight for more tokens; short chunks
/// need the threadgroups.
pub fn gemm_rows(tokens: usize) -> usize {
    if tokens >= 256 { 64 } else { 32 }
}

/// How a context is split among threadgroups in decode attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Splits {
    /// Positions a threadgroup takes.
    pub span: usize,
    /// Threadgroups a KV head; partial results have room for as many.
    pub count: usize,
}

/// Shortest span: its partial result (one row a query head) must stay small beside the keys and values it stands for.
const SHORTEST_SPAN: usize = 64;
/// Most splits a KV head; with 2 KV heads and 4 simdgroups a split this is 256 simdgroups.
const MOST_SPLITS: usize = 32;

/// Splits for sequences of up to `context` positions. The context is rounded up to a power of two, so that a plan
/// serves until it has doubled.
pub fn attention_splits(context: usize) -> Splits {
    let class = context.max(1).next_power_of_two().max(SHORTEST_SPAN);
    let span = (class / MOST_SPLITS).max(SHORTEST_SPAN);
    Splits { span, count: class / span }
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
    fn tiles_of_chunks() {
        assert_eq!([1, 32, 255, 256, 4096].map(gemm_rows), [32, 32, 32, 64, 64]);
    }

    #[test]
    fn splits_of_contexts() {
        let s = |span, count| Splits { span, count };
        for (context, want) in [
            (0, s(64, 1)),
            (1, s(64, 1)),
            (64, s(64, 1)),
            (65, s(64, 2)),
            (2048, s(64, 32)),
            (2049, s(128, 32)),
            (4096, s(128, 32)),
            (4097, s(256, 32)),
            (262_144, s(8192, 32)),
        ] {
            assert_eq!(attention_splits(context), want, "{context}");
        }
        for context in 1..5000 {
            let s = attention_splits(context);
            assert!(s.span * s.count >= context);
        }
    }
}
