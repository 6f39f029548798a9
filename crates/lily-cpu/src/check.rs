//! What the kernels take for granted about a model, checked once.

use lily_model::{LayerType, ModelWeights, QuantMatrix, weights::MixerWeights};

use crate::{
    acts::{GROUP, Need},
    error::{CpuError, Result},
    sequence::TAPS,
};

/// Checks shapes and quantisation; returns the activation orders that the matrices need.
pub(crate) fn check(w: &ModelWeights) -> Result<Need> {
    let c = &w.config;
    let multiple = |what: &str, value: usize, of: usize, expected: &'static str| {
        if value == 0 || !value.is_multiple_of(of) {
            return Err(unsupported(what, value, expected));
        }
        Ok(())
    };
    let sizes = [
        ("hidden_size", c.hidden_size),
        ("moe_intermediate_size", c.moe_intermediate_size),
        ("shared_expert_intermediate_size", c.shared_expert_intermediate_size),
        ("num_attention_heads * head_dim", c.num_attention_heads * c.head_dim),
        ("linear_num_value_heads * linear_value_head_dim", c.gdn_value_width()),
    ];
    for (what, value) in sizes {
        multiple(what, value, GROUP, "a multiple of 64")?;
    }
    multiple("head_dim", c.head_dim, 32, "a multiple of 32")?;
    multiple("linear_key_head_dim", c.linear_key_head_dim, 16, "a multiple of 16")?;
    multiple("linear_value_head_dim", c.linear_value_head_dim, 16, "a multiple of 16")?;
    if !c.rotary_dim.is_multiple_of(2) || c.rotary_dim > c.head_dim {
        return Err(unsupported("rotary_dim", c.rotary_dim, "even and at most head_dim"));
    }
    if c.linear_conv_kernel_dim != TAPS && c.count(LayerType::LinearAttention) > 0 {
        return Err(unsupported("linear_conv_kernel_dim", c.linear_conv_kernel_dim, "4"));
    }
    for (what, part, of) in [
        ("num_attention_heads", c.num_key_value_heads, c.num_attention_heads),
        ("linear_num_value_heads", c.linear_num_key_heads, c.linear_num_value_heads),
    ] {
        if part == 0 || !of.is_multiple_of(part) {
            return Err(unsupported(what, of, "a multiple of the number of key heads"));
        }
    }
    if c.num_experts_per_tok == 0 || c.num_experts_per_tok > c.num_experts {
        return Err(unsupported("num_experts_per_tok", c.num_experts_per_tok, "1 to num_experts"));
    }
    if w.layers.len() != c.num_hidden_layers {
        return Err(unsupported("layers", w.layers.len(), "num_hidden_layers"));
    }
    let mut widths = Vec::new();
    for (name, m) in matrices(w) {
        if m.group_size != GROUP {
            return Err(unsupported(&format!("group_size of {name}"), m.group_size, "64"));
        }
        if m.bits != 4 && m.bits != 8 {
            return Err(unsupported(&format!("bits of {name}"), m.bits, "4 or 8"));
        }
        widths.push(m.bits);
    }
    Ok(Need::of_bits(widths))
}

fn unsupported(what: &str, found: usize, expected: &'static str) -> CpuError {
    CpuError::Unsupported { what: what.to_string(), found: found.to_string(), expected }
}

/// All matrices, with names for messages.
fn matrices(w: &ModelWeights) -> Vec<(String, &QuantMatrix)> {
    let mut all = vec![("embed_tokens".to_string(), &w.embed_tokens), ("lm_head".to_string(), &w.lm_head)];
    for (i, layer) in w.layers.iter().enumerate() {
        let mut add = |name: &str, m| all.push((format!("layers.{i}.{name}"), m));
        match &layer.mixer {
            MixerWeights::Attention(a) => {
                add("self_attn.q_proj", &a.q_proj);
                add("self_attn.k_proj", &a.k_proj);
                add("self_attn.v_proj", &a.v_proj);
                add("self_attn.o_proj", &a.o_proj);
            }
            MixerWeights::Gdn(g) => {
                add("linear_attn.in_proj_qkv", &g.in_proj_qkv);
                add("linear_attn.in_proj_z", &g.in_proj_z);
                add("linear_attn.in_proj_b", &g.in_proj_b);
                add("linear_attn.in_proj_a", &g.in_proj_a);
                add("linear_attn.out_proj", &g.out_proj);
            }
        }
        let m = &layer.moe;
        add("mlp.gate", &m.gate);
        add("mlp.switch_mlp.gate_proj", &m.experts_gate);
        add("mlp.switch_mlp.up_proj", &m.experts_up);
        add("mlp.switch_mlp.down_proj", &m.experts_down);
        add("mlp.shared_expert.gate_proj", &m.shared_gate_proj);
        add("mlp.shared_expert.up_proj", &m.shared_up_proj);
        add("mlp.shared_expert.down_proj", &m.shared_down_proj);
        add("mlp.shared_expert_gate", &m.shared_expert_gate);
    }
    all
}

/// A hash (FNV-1a over words) of the sizes and of samples of every matrix. Reading all 19 GB would take seconds;
/// 64 words of each of 600 matrices tell checkpoints and quantisations apart.
pub(crate) fn fingerprint(w: &ModelWeights) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |x: u64| hash = (hash ^ x).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    for (_, m) in matrices(w) {
        [m.experts, m.rows, m.cols, m.bits, m.group_size].iter().for_each(|&x| add(x as u64));
        let sample = |n: usize| (0..64.min(n)).map(move |i| i * n / 64.min(n));
        sample(m.weight.len()).for_each(|i| add(m.weight[i] as u64));
        sample(m.scales.len()).for_each(|i| add(m.scales[i] as u64));
    }
    w.layers.iter().flat_map(|l| &l.input_norm).for_each(|x| add(x.to_bits() as u64));
    hash
}
