//! Good checkpoints load, and are what their files say.

mod common;

use std::{borrow::Cow, collections::BTreeMap};

use lily_model::{Checkpoint, LayerType, ModelConfig, Quantization, expected_tensors, weights::MixerWeights};

#[test]
fn tiny() {
    let checkpoint = Checkpoint::open(&common::tiny()).unwrap();
    assert_eq!(checkpoint.name(), "tiny");
    let c = checkpoint.config();
    assert_eq!((c.hidden_size, c.num_hidden_layers, c.vocab_size, c.rotary_dim), (128, 4, 1024, 64));
    assert_eq!(c.count(LayerType::FullAttention), 1);
    assert_eq!(checkpoint.valid_vocab(), 1024);
    let g = checkpoint.generation();
    assert_eq!((g.do_sample, g.temperature, g.top_k, g.top_p), (true, 1.0, 20, 0.95));
    assert_eq!(g.eos_token_ids, [1023, 1021]);
    assert!(checkpoint.load_report().is_none());

    let weights = checkpoint.weights().unwrap();
    let report = checkpoint.load_report().unwrap();
    assert_eq!(
        (report.tensors, report.files, report.copied_misaligned, report.skipped_vision),
        (182, 1, 0, 0)
    );
    // `total_size` of the index.
    assert_eq!(report.bytes, 1_919_784);
    assert!(report.scales_checked);
    assert_eq!(weights.layers.len(), 4);
    assert!(matches!(weights.layers[3].mixer, MixerWeights::Attention(_)));
    assert_eq!((weights.layers[0].moe.gate.bits, weights.layers[0].moe.experts_down.bits), (8, 4));
    assert!(weights.embed_tokens.weight.is_borrowed());
    assert!(checkpoint.file("tokenizer.json").is_some());
    assert!(checkpoint.file("../tiny/tokenizer.json").is_none());
    assert!(checkpoint.file("nothing.json").is_none());
    assert_eq!(checkpoint.place(), common::tiny().display().to_string());
}

#[test]
fn a_file_that_cannot_be_read_is_not_a_missing_one() {
    let copy = common::Copy::new();
    copy.remove("chat_template.jinja");
    std::fs::create_dir(copy.path("chat_template.jinja")).unwrap();
    let checkpoint = copy.open().unwrap();
    let error = checkpoint.read_file("chat_template.jinja").unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja") && error.contains("a directory"), "{error}");
    assert!(checkpoint.file("chat_template.jinja").is_none());
    assert!(checkpoint.read_file("nothing.json").unwrap().is_none());
}

#[test]
fn lily_mini() {
    let checkpoint = Checkpoint::open(&common::lily_mini()).unwrap();
    let weights = checkpoint.weights().unwrap();
    let report = checkpoint.load_report().unwrap();
    assert_eq!(report.copied_misaligned, 0);
    assert!(weights.byte_len() < 24_000_000, "{}", weights.byte_len());
    let g = checkpoint.generation();
    assert!(!g.eos_token_ids.is_empty());
    assert!(checkpoint.valid_vocab() <= checkpoint.config().vocab_size);
}

#[test]
fn static_files_equal_a_directory() {
    let files: Vec<(&'static str, &'static [u8])> = ["config.json", "tokenizer.json", "model.safetensors"]
        .map(|name| {
            let bytes = std::fs::read(common::tiny().join(name)).unwrap();
            (name, &*Box::leak(bytes.into_boxed_slice()))
        })
        .to_vec();
    let checkpoint = Checkpoint::from_static(&files).unwrap();
    assert_eq!(checkpoint.name(), "lily-mini");
    assert!(matches!(checkpoint.file("config.json"), Some(Cow::Borrowed(_))));
    let ours = checkpoint.weights().unwrap();
    let theirs = Checkpoint::open(&common::tiny()).unwrap().weights().unwrap();
    for ((name, a), (_, b)) in ours.matrices().zip(theirs.matrices()) {
        assert_eq!(a.weight.as_slice(), b.weight.as_slice(), "{name}");
        assert_eq!(a.scales.as_slice(), b.scales.as_slice(), "{name}");
    }
}

/// A tensor list as `mlx_lm` published it for the large model.
#[derive(serde::Deserialize)]
struct Listed {
    name: String,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
}

#[test]
fn the_published_checkpoint_would_load() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(common::fixtures().join("config.mlx-4bit.json"), dir.path().join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(*checkpoint.config(), ModelConfig::qwen3_6_35b_a3b(40));
    assert_eq!(*checkpoint.quantization(), Quantization::mlx_4bit(40));
    assert_eq!(checkpoint.generation().eos_token_ids, [248_046, 248_044]);

    let list = std::fs::read(common::fixtures().join("mlx4bit_tensors.json")).unwrap();
    let list: Vec<Listed> = serde_json::from_slice(&list).unwrap();
    assert_eq!(list.len(), 2090);
    let mut published: BTreeMap<_, _> = list.into_iter().map(|t| (t.name, (t.dtype, t.shape))).collect();
    let before = published.len();
    published.retain(|name, _| !name.starts_with("vision_tower."));
    assert_eq!(before - published.len(), 333);

    let expected = expected_tensors(checkpoint.config(), checkpoint.quantization());
    assert_eq!(expected.len(), published.len());
    for tensor in &expected {
        let (dtype, shape) =
            published.remove(&tensor.name).unwrap_or_else(|| panic!("{} not published", tensor.name));
        assert!(tensor.dtypes.contains(&dtype), "{}: {dtype:?}", tensor.name);
        assert_eq!(tensor.shapes[0], shape, "{}", tensor.name);
    }
    assert!(published.is_empty(), "not expected: {published:?}");
}
