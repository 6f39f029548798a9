//! Checkpoints that differ from the fixture in ways that must not matter.

mod common;

use common::{Copy, Parts, SHARDS, Tensor};
use lily_model::{Checkpoint, GenerationDefaults, ModelConfig, ModelWeights, weights::MixerWeights};
use serde_json::json;

const A_LOG: &str = "language_model.model.layers.0.linear_attn.A_log";
const CONV: &str = "language_model.model.layers.0.linear_attn.conv1d.weight";
const NORM: &str = "language_model.model.norm.weight";

/// Everything that is kept, as text to compare.
fn assert_same(a: &ModelWeights, b: &ModelWeights) {
    assert_eq!(a.config, b.config);
    assert_eq!(a.final_norm, b.final_norm);
    for ((name, a), (_, b)) in a.matrices().zip(b.matrices()) {
        assert!(
            a.weight[..] == b.weight[..] && a.scales[..] == b.scales[..] && a.biases[..] == b.biases[..],
            "{name}"
        );
    }
    for (a, b) in a.layers.iter().zip(&b.layers) {
        assert_eq!(a.input_norm, b.input_norm);
        match (&a.mixer, &b.mixer) {
            (MixerWeights::Gdn(a), MixerWeights::Gdn(b)) => {
                assert_eq!((&a.conv1d, &a.a_log, &a.dt_bias), (&b.conv1d, &b.a_log, &b.dt_bias));
            }
            (MixerWeights::Attention(a), MixerWeights::Attention(b)) => assert_eq!(a.q_norm, b.q_norm),
            _ => panic!("layer types differ"),
        }
    }
}

fn original() -> ModelWeights {
    Checkpoint::open(&common::tiny()).unwrap().weights().unwrap()
}

#[test]
fn shards() {
    let copy = Copy::new();
    copy.shard(100);
    let checkpoint = copy.open().unwrap();
    assert_same(&checkpoint.weights().unwrap(), &original());
    assert_eq!(checkpoint.load_report().unwrap().files, SHARDS.len());
}

#[test]
fn misaligned_data_is_copied_and_counted() {
    let copy = Copy::new();
    copy.single(copy.parts().bytes(false));
    let checkpoint = copy.open().unwrap();
    assert_same(&checkpoint.weights().unwrap(), &original());
    assert!(checkpoint.load_report().unwrap().copied_misaligned > 0);
}

#[test]
fn convolution_in_pytorch_layout() {
    let copy = Copy::new();
    copy.entry(CONV, "shape", json!([1024, 1, 4]));
    assert_same(&copy.load().unwrap(), &original());
}

#[test]
fn vectors_in_either_precision() {
    let copy = Copy::new();
    let widen = |t: &mut Tensor| {
        let wide = t.data.as_chunks::<2>().0.iter().flat_map(|b| [0, 0, b[0], b[1]]).collect();
        (t.dtype, t.data) = ("F32".into(), wide);
    };
    copy.tensor(NORM, widen);
    copy.tensor(CONV, widen);
    assert_same(&copy.load().unwrap(), &original());

    copy.tensor(A_LOG, |t| {
        let narrow = t.data.as_chunks::<4>().0.iter().flat_map(|b| [b[2], b[3]]).collect();
        (t.dtype, t.data) = ("BF16".into(), narrow);
    });
    let (weights, wide) = (copy.load().unwrap(), original());
    let (MixerWeights::Gdn(narrow), MixerWeights::Gdn(wide)) =
        (&weights.layers[0].mixer, &wide.layers[0].mixer)
    else {
        panic!("layer 0 is Gated DeltaNet");
    };
    for (a, b) in narrow.a_log.iter().zip(&wide.a_log) {
        assert!((a - b).abs() <= b.abs() / 128.0);
    }
}

#[test]
fn vision_towers_are_skipped() {
    for name in ["vision_tower.blocks.0.attn.qkv.weight", "model.visual.pos_embed.weight"] {
        let copy = Copy::new();
        let vision =
            Tensor { name: name.into(), dtype: "F16".into(), shape: vec![2, 3], data: vec![0xff; 12] };
        copy.tensors(|all| all.push(vision));
        let checkpoint = copy.open().unwrap();
        assert_same(&checkpoint.weights().unwrap(), &original());
        assert_eq!(checkpoint.load_report().unwrap().skipped_vision, 1);
    }
}

#[test]
fn flat_text_config() {
    let copy = Copy::new();
    copy.json("config.json", |c| {
        let mut text = c["text_config"].take();
        text["quantization"] = c["quantization"].take();
        text["rope_theta"] = text["rope_parameters"]["rope_theta"].take();
        text["partial_rotary_factor"] = json!(0.25);
        text.as_object_mut().unwrap().remove("layer_types");
        *c = text;
    });
    assert_same(&copy.load().unwrap(), &original());
}

#[test]
fn quantization_config_alone() {
    let copy = Copy::new();
    copy.json("config.json", |c| drop(c["quantization"].take()));
    assert_same(&copy.load().unwrap(), &original());
}

#[test]
fn an_eight_bit_module_by_override() {
    let copy = Copy::new();
    let module = "language_model.lm_head";
    copy.config(&format!("/quantization/{module}"), json!({"group_size": 64, "bits": 8}));
    copy.json("config.json", |c| drop(c["quantization_config"].take()));
    copy.tensor(&format!("{module}.weight"), |t| {
        t.data = t.data.iter().flat_map(|b| [b & 15, b >> 4]).collect();
        t.shape[1] *= 2;
    });
    let (weights, four) = (copy.load().unwrap(), original());
    assert_eq!(weights.lm_head.bits, 8);
    let (mut a, mut b) = (vec![0.0; 128], vec![0.0; 128]);
    weights.lm_head.dense().dequantize_row(77, &mut a);
    four.lm_head.dense().dequantize_row(77, &mut b);
    assert_eq!(a, b);
}

#[test]
fn weights_are_not_needed_to_open() {
    let copy = Copy::new();
    copy.remove("model.safetensors");
    copy.remove(common::INDEX);
    let checkpoint = copy.open().unwrap();
    assert_eq!(checkpoint.config().vocab_size, 1024);
    assert!(checkpoint.weights().is_err());
}

fn generation(value: serde_json::Value) -> GenerationDefaults {
    let copy = Copy::new();
    copy.write("generation_config.json", value.to_string());
    copy.open().unwrap().generation().clone()
}

#[test]
fn generation_defaults() {
    let from_config = vec![1023, 1021];
    let off = GenerationDefaults { eos_token_ids: from_config.clone(), ..Default::default() };
    assert_eq!(generation(json!({})), off);
    // `do_sample: false` means greedy, whatever the temperature.
    assert_eq!(generation(json!({"do_sample": false, "temperature": 0.7})).temperature, 0.0);
    assert!(generation(json!({"temperature": 0.7})).do_sample);
    assert_eq!(generation(json!({"do_sample": true})).temperature, 1.0);
    assert!(!generation(json!({"do_sample": true, "temperature": 0})).do_sample);
    let all = generation(json!({
        "do_sample": true, "temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "repetition_penalty": 1.5,
        "eos_token_id": 5,
    }));
    assert_eq!((all.top_k, all.top_p, all.min_p, all.repetition_penalty), (7, 0.5, 0.25, 1.5));
    // Its own ids come first, the others follow.
    assert_eq!(all.eos_token_ids, [5, 1023, 1021]);
}

#[test]
fn the_tokenizers_eos_token_counts() {
    let copy = Copy::new();
    copy.remove("generation_config.json");
    copy.json("config.json", |c| {
        drop(c["eos_token_id"].take());
        drop(c["text_config"]["eos_token_id"].take());
    });
    assert_eq!(copy.open().unwrap().generation().eos_token_ids, [1023]);
    copy.json("tokenizer_config.json", |c| {
        c["eos_token"] = json!({"content": "<|im_start|>", "special": true})
    });
    assert_eq!(copy.open().unwrap().generation().eos_token_ids, [1022]);
}

#[test]
fn unused_rows_are_known() {
    let copy = Copy::new();
    copy.json("tokenizer.json", |t| drop(t["added_tokens"].as_array_mut().unwrap().pop()));
    copy.json("tokenizer_config.json", |c| c["eos_token"] = json!("<|im_start|>"));
    assert_eq!(copy.open().unwrap().valid_vocab(), 1023);
    // Tokens that only `tokenizer_config.json` knows.
    copy.json("tokenizer_config.json", |c| c["added_tokens_decoder"] = json!({"1023": {"content": "<x>"}}));
    assert_eq!(copy.open().unwrap().valid_vocab(), 1024);
    copy.remove("tokenizer.json");
    copy.remove("tokenizer_config.json");
    assert_eq!(copy.open().unwrap().valid_vocab(), 1024);
}

#[test]
fn a_rewritten_file_is_the_same_file() {
    let copy = Copy::new();
    let parts = Parts::from_tensors(&copy.parts().tensors());
    copy.single(parts.bytes(true));
    assert_same(&copy.load().unwrap(), &original());
    assert_eq!(ModelConfig { ..original().config }, *copy.open().unwrap().config());
}
