//! Wrong and hostile configuration files: each gives an error that names the file, the field and the value.

mod common;

use std::{fs, path::Path};

use common::{Copy, Hostile, assert_all_fail};
use lily_model::Checkpoint;
use serde_json::json;

const CONFIG: &str = "config.json";

/// Sets a field of `text_config`.
fn text(copy: &Copy, field: &str, value: serde_json::Value) {
    copy.config(&format!("/text_config/{field}"), value);
}

/// Sets a field of both quantization blocks.
fn quantization(copy: &Copy, field: &str, value: serde_json::Value) {
    copy.config(&format!("/quantization/{field}"), value.clone());
    copy.config(&format!("/quantization_config/{field}"), value);
}

#[test]
fn sizes() {
    let cases: &[Hostile] = &[
        ("no config", |c| c.remove(CONFIG), &[CONFIG, "missing"]),
        ("config not JSON", |c| c.write(CONFIG, "hidden_size: 128"), &[CONFIG, "JSON"]),
        ("config empty", |c| c.write(CONFIG, ""), &[CONFIG, "JSON"]),
        ("config a nested bomb", |c| c.write(CONFIG, "[".repeat(1 << 20)), &[CONFIG, "recursion limit"]),
        ("config of 17 MB", |c| c.write(CONFIG, " ".repeat(17 << 20)), &[CONFIG, "17825792 bytes"]),
        ("config a list", |c| c.write(CONFIG, "[]"), &[CONFIG, "model_type", "missing"]),
        (
            "a field twice",
            |c| {
                let twice = fs::read_to_string(c.path(CONFIG)).unwrap();
                c.write(CONFIG, twice.replacen("\"head_dim\"", "\"hidden_size\": 64, \"head_dim\"", 1));
            },
            &[CONFIG, "hidden_size", "twice"],
        ),
        (
            "text after the end",
            |c| {
                let bytes = fs::read(c.path(CONFIG)).unwrap();
                c.write(CONFIG, [bytes, b"{}".to_vec()].concat());
            },
            &[CONFIG, "trailing"],
        ),
        (
            "another architecture",
            |c| c.config("/model_type", json!("llama")),
            &[CONFIG, "model_type", "llama", "qwen3_5_moe"],
        ),
        (
            "another text model",
            |c| text(c, "model_type", json!("qwen3_5")),
            &["text_config.model_type", "qwen3_5"],
        ),
        ("no text_config", |c| c.config("/text_config", json!(null)), &[CONFIG, "text_config", "missing"]),
        (
            "negative size",
            |c| text(c, "hidden_size", json!(-128)),
            &[CONFIG, "text_config.hidden_size", "-128"],
        ),
        (
            "float size",
            |c| text(c, "hidden_size", json!(128.0)),
            &["text_config.hidden_size", "128.0", "integer"],
        ),
        ("size as text", |c| text(c, "hidden_size", json!("128")), &["text_config.hidden_size", "\"128\""]),
        (
            "huge size",
            |c| text(c, "hidden_size", json!(1u64 << 62)),
            &["text_config.hidden_size", "4611686018427387904"],
        ),
        (
            "size of no whole groups",
            |c| text(c, "hidden_size", json!(100)),
            &["text_config.hidden_size", "multiple of 64"],
        ),
        ("no layers", |c| text(c, "num_hidden_layers", json!(0)), &["num_hidden_layers", "0"]),
        (
            "a million layers",
            |c| text(c, "num_hidden_layers", json!(1_000_000)),
            &["num_hidden_layers", "1000000"],
        ),
        (
            "too few layer types",
            |c| text(c, "layer_types", json!(["full_attention"])),
            &["layer_types", "4 entries", "not 1"],
        ),
        (
            "an unknown layer type",
            |c| c.config("/text_config/layer_types/2", json!("mamba")),
            &["layer_types[2]", "mamba"],
        ),
        (
            "no head count",
            |c| text(c, "num_attention_heads", json!(null)),
            &["num_attention_heads", "missing"],
        ),
        (
            "KV heads that do not divide",
            |c| text(c, "num_key_value_heads", json!(3)),
            &["num_key_value_heads", "divisor", "4"],
        ),
        (
            "key heads that do not divide",
            |c| text(c, "linear_num_key_heads", json!(3)),
            &["linear_num_key_heads", "divisor"],
        ),
        ("no key heads", |c| text(c, "linear_num_key_heads", json!(0)), &["linear_num_key_heads", "0"]),
        (
            "more experts a token than there are",
            |c| text(c, "num_experts_per_tok", json!(17)),
            &["num_experts_per_tok", "17", "16"],
        ),
        ("no experts", |c| text(c, "num_experts", json!(0)), &["num_experts", "0"]),
        (
            "another convolution",
            |c| text(c, "linear_conv_kernel_dim", json!(3)),
            &["linear_conv_kernel_dim", "3", "4"],
        ),
        (
            "vocabulary without end",
            |c| text(c, "vocab_size", json!(u64::MAX)),
            &["vocab_size", "18446744073709551615"],
        ),
        ("epsilon zero", |c| text(c, "rms_norm_eps", json!(0)), &["rms_norm_eps", "0"]),
        ("context zero", |c| text(c, "max_position_embeddings", json!(0)), &["max_position_embeddings"]),
        (
            "a model of other sizes",
            |c| text(c, "moe_intermediate_size", json!(128)),
            &["switch_mlp", "[16, 64, 16]", "[16, 128, 16]"],
        ),
    ];
    assert_all_fail(cases);
}

#[test]
fn features() {
    let cases: &[Hostile] = &[
        ("another activation", |c| text(c, "hidden_act", json!("gelu")), &["hidden_act", "gelu", "silu"]),
        (
            "no output gate",
            |c| text(c, "attn_output_gate", json!(false)),
            &["attn_output_gate", "false", "true"],
        ),
        ("attention bias", |c| text(c, "attention_bias", json!(true)), &["attention_bias", "true"]),
        ("tied head", |c| c.config("/tie_word_embeddings", json!(true)), &["tie_word_embeddings", "true"]),
        ("flag as a number", |c| text(c, "attention_bias", json!(1)), &["attention_bias", "true or false"]),
        (
            "router not renormalised",
            |c| text(c, "norm_topk_prob", json!(false)),
            &["norm_topk_prob", "false"],
        ),
        ("sliding window", |c| text(c, "use_sliding_window", json!(true)), &["use_sliding_window"]),
        ("dense layers", |c| text(c, "mlp_only_layers", json!([0])), &["mlp_only_layers", "[0]"]),
        ("sparse steps", |c| text(c, "decoder_sparse_step", json!(2)), &["decoder_sparse_step", "2"]),
        (
            "stretched positions",
            |c| c.config("/text_config/rope_parameters/rope_type", json!("yarn")),
            &["rope_parameters.rope_type", "yarn", "default"],
        ),
        (
            "stretched positions, old style",
            |c| text(c, "rope_scaling", json!({"type": "linear", "factor": 2})),
            &["rope_scaling.type", "linear"],
        ),
        (
            "no rotary base",
            |c| c.config("/text_config/rope_parameters/rope_theta", json!(null)),
            &["rope_parameters.rope_theta", "missing"],
        ),
        ("two rotary bases", |c| text(c, "rope_theta", json!(10_000)), &["rope_theta", "10000", "10000000"]),
        (
            "a rotary part of no dims",
            |c| {
                c.config("/text_config/rope_parameters/partial_rotary_factor", json!(0.001));
                text(c, "partial_rotary_factor", json!(0.001));
            },
            &["partial_rotary_factor", "0.001", "even"],
        ),
    ];
    assert_all_fail(cases);
}

#[test]
fn quantisation() {
    let gate = "language_model.model.layers.0.mlp.gate";
    assert!(Copy::new().open().unwrap().quantization().overrides.contains_key(gate));
    let cases: &[Hostile] = &[
        (
            "not quantised",
            |c| {
                c.json(CONFIG, |c| {
                    c.as_object_mut().unwrap().retain(|k, _| !k.starts_with("quantization"));
                })
            },
            &[CONFIG, "quantization", "missing", "4-bit"],
        ),
        (
            "group size 0",
            |c| quantization(c, "group_size", json!(0)),
            &["quantization.group_size", "0", "64"],
        ),
        (
            "group size 32",
            |c| quantization(c, "group_size", json!(32)),
            &["quantization.group_size", "32", "64"],
        ),
        ("3 bits", |c| quantization(c, "bits", json!(3)), &["quantization.bits", "3", "4 or 8"]),
        ("no bits", |c| quantization(c, "bits", json!(null)), &["quantization.bits", "missing"]),
        (
            "another mode",
            |c| quantization(c, "mode", json!("mxfp4")),
            &["quantization.mode", "mxfp4", "affine"],
        ),
        (
            "two blocks that differ",
            |c| c.config("/quantization_config/bits", json!(8)),
            &["quantization_config", "same"],
        ),
        (
            "an override of 6 bits",
            |c| {
                quantization(
                    c,
                    "language_model.model.layers.0.mlp.gate",
                    json!({"group_size": 64, "bits": 6}),
                );
            },
            &["layers.0.mlp.gate.bits", "6"],
        ),
        (
            "an override of group size 128",
            |c| {
                quantization(c, "language_model.lm_head", json!({"group_size": 128, "bits": 4}));
            },
            &["lm_head.group_size", "128"],
        ),
        (
            "an unquantised module",
            |c| quantization(c, "language_model.lm_head", json!(false)),
            &["lm_head", "false"],
        ),
    ];
    assert_all_fail(cases);
}

#[test]
fn generation_and_tokenizer() {
    const GENERATION: &str = "generation_config.json";
    const TOKENIZER: &str = "tokenizer.json";
    const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
    let cases: &[Hostile] = &[
        (
            "temperature below 0",
            |c| c.json(GENERATION, |g| g["temperature"] = json!(-1)),
            &[GENERATION, "temperature", "-1"],
        ),
        ("top_p above 1", |c| c.json(GENERATION, |g| g["top_p"] = json!(95)), &[GENERATION, "top_p", "95"]),
        ("top_p 0", |c| c.json(GENERATION, |g| g["top_p"] = json!(0)), &[GENERATION, "top_p", "is 0"]),
        (
            "repetition penalty beyond the sampler's",
            |c| c.json(GENERATION, |g| g["repetition_penalty"] = json!(0.001)),
            &[GENERATION, "repetition_penalty", "0.001"],
        ),
        (
            "top_k as a float",
            |c| c.json(GENERATION, |g| g["top_k"] = json!(20.5)),
            &[GENERATION, "top_k", "20.5"],
        ),
        (
            "repetition penalty 0",
            |c| c.json(GENERATION, |g| g["repetition_penalty"] = json!(0)),
            &["repetition_penalty"],
        ),
        (
            "an end id outside the vocabulary",
            |c| c.json(GENERATION, |g| g["eos_token_id"] = json!([1024])),
            &[GENERATION, "eos_token_id[0]", "1024"],
        ),
        (
            "an end id that is text",
            |c| c.config("/eos_token_id", json!("<|im_end|>")),
            &[CONFIG, "eos_token_id", "im_end"],
        ),
        ("generation config a list", |c| c.write(GENERATION, "[1]"), &[GENERATION, "an object"]),
        ("generation config not JSON", |c| c.write(GENERATION, "{"), &[GENERATION, "JSON"]),
        (
            "tokenizer cut short",
            |c| {
                let bytes = fs::read(c.path(TOKENIZER)).unwrap();
                c.write(TOKENIZER, &bytes[..bytes.len() / 2]);
            },
            &[TOKENIZER, "JSON"],
        ),
        (
            "tokenizer with ids as text",
            |c| c.json(TOKENIZER, |t| t["model"]["vocab"]["a"] = json!("1")),
            &[TOKENIZER],
        ),
        (
            "tokenizer of another model",
            |c| c.json(TOKENIZER, |t| t["model"]["vocab"]["zz"] = json!(5000)),
            &[TOKENIZER, "5000", "1024"],
        ),
        (
            "an end token nobody knows",
            |c| c.json(TOKENIZER_CONFIG, |t| t["eos_token"] = json!("<eos>")),
            &[TOKENIZER_CONFIG, "eos_token", "<eos>"],
        ),
        (
            "added tokens with wrong ids",
            |c| {
                c.json(TOKENIZER_CONFIG, |t| {
                    t["added_tokens_decoder"] = json!({"-1": {"content": "x"}});
                })
            },
            &[TOKENIZER_CONFIG, "added_tokens_decoder.-1"],
        ),
    ];
    assert_all_fail(cases);
}

#[test]
fn paths() {
    let missing = Checkpoint::open(Path::new("/no/such/checkpoint")).unwrap_err().to_string();
    assert!(missing.contains("/no/such/checkpoint") && missing.contains("check that"), "{missing}");
    let file = Checkpoint::open(&common::tiny().join(CONFIG)).unwrap_err().to_string();
    assert!(file.contains("config.json") && file.contains("give the directory"), "{file}");
    let nothing = Checkpoint::from_static(&[]).unwrap_err().to_string();
    assert!(nothing.contains("config.json is missing"), "{nothing}");
}
