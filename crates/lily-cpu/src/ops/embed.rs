//! The embedding: dequantised rows of the table.

use lily_model::{QuantMatrix, QuantRows, quant::bf16_to_f32};

use super::Machine;
use crate::{acts::GROUP, error::Result, pool::grid};

/// Writes the vectors of `tokens` to `x`, `[tokens][hidden]`.
pub(crate) fn embed(m: &mut Machine, table: &QuantMatrix, tokens: &[u32], x: &mut [f32]) -> Result<()> {
    let rows = table.dense();
    let width = table.cols;
    if tokens.len() == 1 {
        row(&rows, tokens[0] as usize, &mut x[..width]);
        return Ok(());
    }
    let ranges: Vec<_> = (0..tokens.len()).map(|t| t..t + 1).collect();
    let mut items = grid(&mut x[..tokens.len() * width], width, &ranges, width);
    m.pool.run_items(
        &mut m.workers,
        &mut items,
        |_| {},
        |_, t, out| {
            row(&rows, tokens[t] as usize, out.row_mut(0));
        },
    )
}

/// Row `r` as f32.
fn row(m: &QuantRows<'_>, r: usize, out: &mut [f32]) {
    let groups = m.cols / GROUP;
    let words = GROUP * m.bits / 32;
    for (i, out) in out.chunks_exact_mut(GROUP).enumerate() {
        let g = r * groups + i;
        let (scale, bias) = (bf16_to_f32(m.scales[g]), bf16_to_f32(m.biases[g]));
        let per_word = 32 / m.bits;
        let mask = (1u32 << m.bits) - 1;
        for (word, out) in m.weight[g * words..(g + 1) * words].iter().zip(out.chunks_exact_mut(per_word)) {
            for (j, o) in out.iter_mut().enumerate() {
                *o = scale * (word >> (m.bits * j) & mask) as f32 + bias;
            }
        }
    }
}
