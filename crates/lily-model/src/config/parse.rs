//! `config.json` to [`ModelConfig`]: every value checked, everything the engine does not do refused by name.

use super::{LayerType, ModelConfig, quantization::GROUP_SIZE};
use crate::{
    error::{CONVERT_AGAIN, ModelError},
    json::Field,
};

/// The multimodal wrapper, with the text model under `text_config`.
const WRAPPED: &str = "qwen3_5_moe";
/// The text model alone.
const FLAT: &str = "qwen3_5_moe_text";

/// The part of `config.json` that describes the text model.
pub(crate) fn text_config<'a>(root: &Field<'a>) -> Result<Field<'a>, ModelError> {
    let model_type = root.get("model_type");
    match model_type.string()? {
        WRAPPED => {
            let text = root.get("text_config");
            text.object()?;
            let inner = text.get("model_type");
            if inner.is_present() && inner.string()? != FLAT {
                return Err(inner.error(format!("{FLAT:?}")));
            }
            Ok(text)
        }
        FLAT => Ok(root.clone()),
        _ => Err(model_type.error_with(
            format!("{WRAPPED:?} or {FLAT:?}"),
            "Lily runs this one architecture; give it a Qwen3.6-35B-A3B checkpoint or one of the same kind",
        )),
    }
}

/// Reads and checks the sizes. Upper bounds keep every product of sizes far from overflow and every allocation
/// that follows from the configuration alone small.
pub(crate) fn model_config(root: &Field) -> Result<ModelConfig, ModelError> {
    let text = text_config(root)?;
    refuse_unsupported(root, &text)?;

    let layers = text.get("num_hidden_layers").integer(1, 1024)?;
    let head_dim = text.get("head_dim").integer(2, 1024)?;
    let config = ModelConfig {
        hidden_size: text.get("hidden_size").integer(GROUP_SIZE, 1 << 16)?,
        num_hidden_layers: layers,
        layer_types: layer_types(&text, layers)?,
        vocab_size: text.get("vocab_size").integer(2, 1 << 21)?,
        rms_norm_eps: text.get("rms_norm_eps").number(1e-12, 1e-1)? as f32,
        max_position_embeddings: text.get("max_position_embeddings").integer(1, 1 << 24)?,
        num_attention_heads: text.get("num_attention_heads").integer(1, 1024)?,
        num_key_value_heads: text.get("num_key_value_heads").integer(1, 1024)?,
        head_dim,
        rotary_dim: rotary_dim(&text, head_dim)?,
        rope_theta: rope_value(&text, "rope_theta", 1.0, 1e12)?,
        linear_num_key_heads: text.get("linear_num_key_heads").integer(1, 1024)?,
        linear_num_value_heads: text.get("linear_num_value_heads").integer(1, 1024)?,
        linear_key_head_dim: text.get("linear_key_head_dim").integer(1, 1024)?,
        linear_value_head_dim: text.get("linear_value_head_dim").integer(1, 1024)?,
        linear_conv_kernel_dim: text.get("linear_conv_kernel_dim").integer(4, 4)?,
        num_experts: text.get("num_experts").integer(1, 4096)?,
        num_experts_per_tok: text.get("num_experts_per_tok").integer(1, 256)?,
        moe_intermediate_size: text.get("moe_intermediate_size").integer(GROUP_SIZE, 1 << 16)?,
        shared_expert_intermediate_size: text
            .get("shared_expert_intermediate_size")
            .integer(GROUP_SIZE, 1 << 16)?,
    };
    check_divisibility(&text, &config)?;
    Ok(config)
}

/// Features of neighbouring architectures that change the result and are not implemented.
fn refuse_unsupported(root: &Field, text: &Field) -> Result<(), ModelError> {
    let act = text.get("hidden_act");
    if act.string()? != "silu" {
        return Err(act.error_with("\"silu\"", CONVERT_AGAIN));
    }
    // (field, value it must have, value when absent)
    let flags = [
        (text.get("attn_output_gate"), true, true),
        (text.get("attention_bias"), false, false),
        (text.get("norm_topk_prob"), true, true),
        (text.get("use_sliding_window"), false, false),
        (text.get("tie_word_embeddings"), false, false),
        (root.get("tie_word_embeddings"), false, false),
    ];
    for (field, wanted, absent) in flags {
        if field.boolean_or(absent)? != wanted {
            return Err(field.error_with(wanted.to_string(), CONVERT_AGAIN));
        }
    }
    let dense = text.get("mlp_only_layers");
    if dense.is_present() && !dense.items()?.is_empty() {
        return Err(dense.error_with("an empty array: every layer is a mixture of experts", CONVERT_AGAIN));
    }
    let step = text.get("decoder_sparse_step");
    if step.is_present() {
        step.integer(1, 1)?;
    }
    let scaling = text.get("rope_scaling");
    if scaling.is_present() {
        rope_type(&scaling)?;
    }
    rope_type(&text.get("rope_parameters"))
}

/// Rotary variants that stretch positions are not implemented. Both spellings of the field are in use.
fn rope_type(block: &Field) -> Result<(), ModelError> {
    for key in ["rope_type", "type"] {
        let field = block.get(key);
        if field.is_present() && field.string()? != "default" {
            return Err(field.error_with("\"default\"", CONVERT_AGAIN));
        }
    }
    Ok(())
}

/// A rotary parameter: in `rope_parameters`, or beside it in older files. When both are there they must agree.
fn rope_value(text: &Field, key: &str, low: f64, high: f64) -> Result<f64, ModelError> {
    let (inner, outer) = (text.get("rope_parameters").get(key), text.get(key));
    if !inner.is_present() && outer.is_present() {
        return outer.number(low, high);
    }
    let value = inner.number(low, high)?;
    if outer.is_present() && outer.number(low, high)? != value {
        return Err(outer.error(format!("the value of rope_parameters.{key}, {value}")));
    }
    Ok(value)
}

fn rotary_dim(text: &Field, head_dim: usize) -> Result<usize, ModelError> {
    let key = "partial_rotary_factor";
    let factor = rope_value(text, key, 0.0, 1.0)?;
    let dim = (head_dim as f64 * factor) as usize;
    if dim == 0 || !dim.is_multiple_of(2) {
        return Err(text.get("rope_parameters").get(key).error(format!(
            "a factor that makes an even number of at least 2 of the {head_dim} dims of a head"
        )));
    }
    Ok(dim)
}

fn layer_types(text: &Field, layers: usize) -> Result<Vec<LayerType>, ModelError> {
    let field = text.get("layer_types");
    if !field.is_present() {
        let interval = text.get("full_attention_interval").integer(1, 1024)?;
        let full = |i: usize| (i + 1).is_multiple_of(interval);
        let kind = |i| if full(i) { LayerType::FullAttention } else { LayerType::LinearAttention };
        return Ok((0..layers).map(kind).collect());
    }
    let items = field.items()?;
    if items.len() != layers {
        return Err(
            field.error(format!("{layers} entries, one a layer (num_hidden_layers), not {}", items.len()))
        );
    }
    let kind = |item: &Field| match item.string()? {
        "linear_attention" => Ok(LayerType::LinearAttention),
        "full_attention" => Ok(LayerType::FullAttention),
        _ => Err(item.error("\"linear_attention\" or \"full_attention\"")),
    };
    items.iter().map(kind).collect()
}

fn check_divisibility(text: &Field, c: &ModelConfig) -> Result<(), ModelError> {
    if !c.num_attention_heads.is_multiple_of(c.num_key_value_heads) {
        let field = text.get("num_key_value_heads");
        return Err(field.error(format!("a divisor of num_attention_heads, {}", c.num_attention_heads)));
    }
    if !c.linear_num_value_heads.is_multiple_of(c.linear_num_key_heads) {
        let field = text.get("linear_num_key_heads");
        return Err(field.error(format!("a divisor of linear_num_value_heads, {}", c.linear_num_value_heads)));
    }
    if c.num_experts_per_tok > c.num_experts {
        let field = text.get("num_experts_per_tok");
        return Err(field.error(format!("at most num_experts, {}", c.num_experts)));
    }
    // Input widths of quantised matrices are cut into groups.
    let widths = [
        ("hidden_size", c.hidden_size, "hidden_size"),
        ("head_dim", c.num_attention_heads * c.head_dim, "num_attention_heads * head_dim"),
        ("linear_value_head_dim", c.gdn_value_width(), "linear_num_value_heads * linear_value_head_dim"),
        ("moe_intermediate_size", c.moe_intermediate_size, "moe_intermediate_size"),
        (
            "shared_expert_intermediate_size",
            c.shared_expert_intermediate_size,
            "shared_expert_intermediate_size",
        ),
    ];
    for (key, width, what) in widths {
        if !width.is_multiple_of(GROUP_SIZE) {
            return Err(text
                .get(key)
                .error(format!("{what} (now {width}) to be a multiple of {GROUP_SIZE}")));
        }
    }
    Ok(())
}
