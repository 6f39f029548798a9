//! What the kernels take for granted about a model, checked once.

use lily_model::{LayerType, ModelWeights};

use crate::error::{GpuError, Result};

/// Experts a kernel can route to, and the most it can choose (common.metal.h).
const MOST_EXPERTS: usize = 256;
const MOST_CHOSEN: usize = 16;

/// Checks shapes and quantisation.
pub(super) fn check(w: &ModelWeights) -> Result<()> {
    let c = &w.config;
    let is = |what: &str, found: usize, fine: bool, expected: &'static str| match fine {
        true => Ok(()),
        false => Err(GpuError::Unsupported { what: what.to_string(), found: found.to_string(), expected }),
    };
    let sizes = [
        ("hidden_size", c.hidden_size),
        ("moe_intermediate_size", c.moe_intermediate_size),
        ("shared_expert_intermediate_size", c.shared_expert_intermediate_size),
    ];
    for (what, n) in sizes {
        is(what, n, n > 0 && n.is_multiple_of(64), "a multiple of 64")?;
    }
    if c.count(LayerType::FullAttention) > 0 {
        is("head_dim", c.head_dim, c.head_dim == 256, "256")?;
        is("rotary_dim", c.rotary_dim, c.rotary_dim == 64, "64")?;
        let (heads, kv) = (c.num_attention_heads, c.num_key_value_heads);
        let fits = kv > 0 && heads.is_multiple_of(kv) && [1, 2, 4, 8].contains(&(heads / kv));
        is("num_attention_heads", heads, fits, "1, 2, 4 or 8 times num_key_value_heads")?;
    }
    if c.count(LayerType::LinearAttention) > 0 {
        is("linear_key_head_dim", c.linear_key_head_dim, c.linear_key_head_dim == 128, "128")?;
        is("linear_value_head_dim", c.linear_value_head_dim, c.linear_value_head_dim == 128, "128")?;
        is("linear_conv_kernel_dim", c.linear_conv_kernel_dim, c.linear_conv_kernel_dim == 4, "4")?;
        let (values, keys) = (c.linear_num_value_heads, c.linear_num_key_heads);
        let fits = keys > 0 && values > 0 && values.is_multiple_of(keys);
        is("linear_num_value_heads", values, fits, "a multiple of linear_num_key_heads")?;
    }
    is("num_experts", c.num_experts, (1..=MOST_EXPERTS).contains(&c.num_experts), "1 to 256")?;
    let chosen = c.num_experts_per_tok;
    is(
        "num_experts_per_tok",
        chosen,
        (1..=MOST_CHOSEN.min(c.num_experts)).contains(&chosen),
        "1 to 16, and at most num_experts",
    )?;
    is("layers", w.layers.len(), w.layers.len() == c.num_hidden_layers, "num_hidden_layers")?;
    for (name, m) in w.matrices() {
        is(&format!("group_size of {name}"), m.group_size, m.group_size == 64, "64")?;
        // Tables and experts are read by kernels that know 4 bits only.
        let four_only = name.contains(".switch_mlp.")
            || name.ends_with("shared_expert.down_proj")
            || name.ends_with("embed_tokens");
        let fits = m.bits == 4 || (m.bits == 8 && !four_only);
        let expected = if four_only { "4" } else { "4 or 8" };
        is(&format!("bits of {name}"), m.bits, fits, expected)?;
    }
    Ok(())
}

/// A hash (FNV-1a over words) of the sizes and of samples of every matrix: tells checkpoints and quantisations apart
/// without reading all of them.
pub(super) fn fingerprint(w: &ModelWeights) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |x: u64| hash = (hash ^ x).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    for (_, m) in w.matrices() {
        [m.experts, m.rows, m.cols, m.bits, m.group_size].iter().for_each(|&x| add(x as u64));
        let sample = |n: usize| (0..64.min(n)).map(move |i| i * n / 64.min(n));
        sample(m.weight.len()).for_each(|i| add(m.weight[i] as u64));
        sample(m.scales.len()).for_each(|i| add(m.scales[i] as u64));
    }
    w.layers.iter().flat_map(|l| &l.input_norm).for_each(|x| add(x.to_bits() as u64));
    hash
}
