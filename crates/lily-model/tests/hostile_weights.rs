//! Damaged and hostile weight files and indexes: each gives an error that names the file and the tensor.

mod common;

use std::fs;

use common::{Copy, Hostile, INDEX, Parts, SHARDS, Tensor, assert_all_fail};
use serde_json::{Value, json};

const WEIGHTS: &str = "model.safetensors";
const HEAD: &str = "language_model.lm_head.weight";
const SCALES: &str = "language_model.lm_head.scales";
const NORM: &str = "language_model.model.norm.weight";
const GATE: &str = "language_model.model.layers.0.mlp.gate.weight";
const A_LOG: &str = "language_model.model.layers.0.linear_attn.A_log";

/// Replaces the first 8 bytes.
fn header_length(copy: &Copy, length: u64) {
    let mut bytes = copy.parts().bytes(true);
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    copy.single(bytes);
}

fn header(copy: &Copy, text: impl AsRef<[u8]>) {
    copy.single(copy.parts().with_header(text.as_ref()));
}

/// Offsets of one tensor.
fn offsets(copy: &Copy, tensor: &str, change: impl FnOnce(u64, u64) -> Value) {
    let parts = copy.parts();
    let at = |i: usize| parts.header[tensor]["data_offsets"][i].as_u64().unwrap();
    copy.entry(tensor, "data_offsets", change(at(0), at(1)));
}

fn index(copy: &Copy, change: impl FnOnce(&mut Value)) {
    copy.json(INDEX, |i| change(&mut i["weight_map"]));
}

#[test]
fn headers() {
    let cases: &[Hostile] = &[
        ("empty file", |c| c.single([]), &[WEIGHTS, "0 bytes"]),
        ("seven bytes", |c| c.single([0; 7]), &[WEIGHTS, "7 bytes"]),
        ("header length of all ones", |c| header_length(c, u64::MAX), &[WEIGHTS, "18446744073709551615"]),
        ("header length of 1 GiB", |c| header_length(c, 1 << 30), &[WEIGHTS, "1073741824"]),
        ("header longer than the file", |c| header_length(c, 8 << 20), &[WEIGHTS, "truncated"]),
        ("header shorter than it is", |c| header_length(c, 100), &[WEIGHTS, "JSON"]),
        ("header of no bytes", |c| header_length(c, 0), &[WEIGHTS, "JSON"]),
        ("header not UTF-8", |c| header(c, b"{\"a\xff\": 1}"), &[WEIGHTS, "UTF-8"]),
        ("header not JSON", |c| header(c, "{'a': 1}"), &[WEIGHTS, "JSON"]),
        ("header a list", |c| header(c, "[]"), &[WEIGHTS, "not a JSON object"]),
        ("nested bomb", |c| header(c, "[".repeat(1 << 20)), &[WEIGHTS, "recursion limit"]),
        (
            "nested bomb in an entry",
            |c| header(c, format!("{{\"a\":{}", "{\"a\":".repeat(1 << 20))),
            &[WEIGHTS, "recursion"],
        ),
        (
            "tensor twice in the header",
            |c| {
                let text = serde_json::to_string(&c.parts().header).unwrap();
                let entry = c.parts().header[NORM].to_string();
                header(c, format!("{},\"{NORM}\":{entry}}}", text.strip_suffix('}').unwrap()));
            },
            &[WEIGHTS, NORM, "twice"],
        ),
        (
            "entry is a number",
            |c| {
                let mut parts = c.parts();
                parts.header[NORM] = json!(5);
                c.single(parts.bytes(true));
            },
            &[WEIGHTS, NORM, "5", "an object"],
        ),
        (
            "entry with an unknown member",
            |c| c.entry(NORM, "compression", json!("zip")),
            &[NORM, "compression", "zip"],
        ),
        ("entry without dtype", |c| c.entry(NORM, "dtype", Value::Null), &[NORM, "dtype", "missing"]),
        ("unknown dtype", |c| c.entry(NORM, "dtype", json!("Q4_K")), &[WEIGHTS, NORM, "Q4_K"]),
        ("negative size", |c| c.entry(NORM, "shape", json!([-128])), &[WEIGHTS, NORM, "shape", "-128"]),
        ("float size", |c| c.entry(NORM, "shape", json!([128.0])), &[WEIGHTS, NORM, "shape", "128.0"]),
        (
            "size beyond 64 bits",
            |c| {
                let mut parts = c.parts();
                parts.header[NORM]["shape"] = json!(["@"]);
                let text =
                    serde_json::to_string(&parts.header).unwrap().replace("\"@\"", "99999999999999999999999");
                c.single(parts.with_header(text.as_bytes()));
            },
            &[WEIGHTS, NORM, "shape"],
        ),
        (
            "shape overflow",
            |c| c.entry(NORM, "shape", json!([1u64 << 40, 1u64 << 40])),
            &[WEIGHTS, NORM, "more elements"],
        ),
        (
            "shape of nine dimensions",
            |c| c.entry(NORM, "shape", json!([128, 1, 1, 1, 1, 1, 1, 1, 1])),
            &[NORM, "9 dimensions"],
        ),
        ("shape is a string", |c| c.entry(NORM, "shape", json!("128")), &[NORM, "shape", "an array"]),
        (
            "shape and size disagree",
            |c| c.entry(NORM, "shape", json!([129])),
            &[WEIGHTS, NORM, "258 bytes", "256"],
        ),
    ];
    assert_all_fail(cases);
}

#[test]
fn places() {
    let cases: &[Hostile] = &[
        (
            "offsets descending",
            |c| offsets(c, NORM, |a, b| json!([b, a])),
            &[WEIGHTS, NORM, "after their end"],
        ),
        (
            "offsets beyond the file",
            |c| offsets(c, NORM, |a, b| json!([a + (1 << 40), b + (1u64 << 40)])),
            &[NORM, "truncated"],
        ),
        (
            "offsets at the end of 64 bits",
            |c| offsets(c, NORM, |_, _| json!([u64::MAX - 256, u64::MAX])),
            &[WEIGHTS, NORM],
        ),
        ("offsets negative", |c| offsets(c, NORM, |_, b| json!([-256, b])), &[NORM, "data_offsets", "-256"]),
        ("offsets of three numbers", |c| offsets(c, NORM, |a, b| json!([a, b, b])), &[NORM, "3 numbers"]),
        (
            "overlap",
            |c| offsets(c, SCALES, |a, b| json!([a - 2, b - 2])),
            &[WEIGHTS, SCALES, "overlaps that of tensor language_model.lm_head.biases"],
        ),
        (
            "hole",
            |c| {
                let mut parts = c.parts();
                parts.header.remove(NORM);
                c.single(parts.bytes(true));
            },
            &[WEIGHTS, "256 bytes before", "no tensor"],
        ),
        (
            "bytes after the last tensor",
            |c| {
                c.single([c.parts().bytes(true), vec![0; 5]].concat());
            },
            &[WEIGHTS, "5 bytes at the end"],
        ),
        (
            "truncated by a byte",
            |c| {
                let mut bytes = c.parts().bytes(true);
                bytes.pop();
                c.single(bytes);
            },
            &[WEIGHTS, "tensor language_model", "truncated"],
        ),
        (
            "truncated in the middle",
            |c| {
                let mut bytes = c.parts().bytes(true);
                bytes.truncate(bytes.len() / 2);
                c.single(bytes);
            },
            &[WEIGHTS, "truncated"],
        ),
    ];
    assert_all_fail(cases);
}

#[test]
fn tensors() {
    let cases: &[Hostile] = &[
        ("missing tensor", |c| c.tensors(|all| all.retain(|t| t.name != GATE)), &[GATE, "missing"]),
        (
            "unquantised layout",
            |c| {
                c.tensors(|all| {
                    all.iter_mut().for_each(|t| {
                        t.name = t.name.replace("language_model.model.", "model.language_model.")
                    });
                })
            },
            &["embed_tokens", "missing", "and 178 more", "found instead: model.language_model"],
        ),
        ("no tensors", |c| header(c, "{}"), &[WEIGHTS, "no tensor"]),
        (
            "left-over tensor",
            |c| {
                c.tensors(|all| {
                    all.push(Tensor {
                        name: "lora.a".into(),
                        dtype: "F32".into(),
                        shape: vec![1],
                        data: vec![0; 4],
                    });
                })
            },
            &[WEIGHTS, "lora.a", "not a tensor of this model"],
        ),
        (
            "left-over tensor that speaks to the terminal",
            |c| {
                c.tensors(|all| {
                    let name = format!("\u{1b}[2Jlora{}", "a".repeat(1 << 20));
                    all.push(Tensor { name, dtype: "F32".into(), shape: vec![1], data: vec![0; 4] });
                })
            },
            &[WEIGHTS, "\u{fffd}[2Jlora", "(1048584 bytes)", "not a tensor of this model"],
        ),
        (
            "layer too many",
            |c| {
                c.tensors(|all| {
                    let mut extra =
                        all.iter().find(|t| t.name.contains("layers.0.input_layernorm")).unwrap().clone();
                    extra.name = extra.name.replace("layers.0", "layers.4");
                    all.push(extra);
                })
            },
            &[WEIGHTS, "layers.4.input_layernorm.weight"],
        ),
        (
            "multi-token-prediction head",
            |c| {
                c.tensors(|all| {
                    let name = "language_model.mtp.fc.weight".into();
                    all.push(Tensor { name, dtype: "U32".into(), shape: vec![1], data: vec![0; 4] });
                })
            },
            &[WEIGHTS, "language_model.mtp.fc.weight", "multi-token-prediction"],
        ),
        ("scales in F16", |c| c.entry(SCALES, "dtype", json!("F16")), &[WEIGHTS, SCALES, "F16", "BF16"]),
        ("packed as I32", |c| c.entry(HEAD, "dtype", json!("I32")), &[WEIGHTS, HEAD, "I32", "U32"]),
        ("norm in F16", |c| c.entry(NORM, "dtype", json!("F16")), &[NORM, "F16", "BF16 or F32"]),
        (
            "transposed",
            |c| c.entry(HEAD, "shape", json!([16, 1024])),
            &[WEIGHTS, HEAD, "[16, 1024]", "[1024, 16]"],
        ),
        (
            "convolution of the wrong width",
            |c| {
                c.entry(
                    "language_model.model.layers.0.linear_attn.conv1d.weight",
                    "shape",
                    json!([2048, 2, 1]),
                );
            },
            &["conv1d", "[2048, 2, 1]", "[1024, 4, 1] or [1024, 1, 4]"],
        ),
        (
            "norm with a dimension too many",
            |c| c.entry(NORM, "shape", json!([1, 128])),
            &[NORM, "[1, 128]", "[128]"],
        ),
        (
            "router packed at 8 bits, configured at 4",
            |c| {
                c.json("config.json", |c| {
                    for block in ["quantization", "quantization_config"] {
                        c[block].as_object_mut().unwrap().remove("language_model.model.layers.0.mlp.gate");
                    }
                })
            },
            &[GATE, "[16, 32]", "[16, 16]", "4 bits"],
        ),
        (
            "all configured at 8 bits",
            |c| {
                c.json("config.json", |c| {
                    c["quantization"]["bits"] = json!(8);
                    c["quantization_config"]["bits"] = json!(8);
                })
            },
            &["embed_tokens.weight", "[1024, 16]", "[1024, 32]", "8 bits"],
        ),
        (
            "NaN in a norm",
            |c| c.tensor(NORM, |t| t.data[10..12].copy_from_slice(&[0xc0, 0x7f])),
            &[WEIGHTS, NORM, "element 5", "NaN"],
        ),
        (
            "infinite A_log",
            |c| {
                c.tensor(A_LOG, |t| {
                    t.data[12..16].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
                })
            },
            &[WEIGHTS, A_LOG, "element 3", "-inf"],
        ),
        (
            "infinite scale",
            |c| c.tensor(SCALES, |t| t.data[6..8].copy_from_slice(&[0x80, 0x7f])),
            &[WEIGHTS, SCALES, "element 3", "0x7f80"],
        ),
        (
            "NaN bias of an expert",
            |c| {
                let name = "language_model.model.layers.3.mlp.switch_mlp.down_proj.biases";
                c.tensor(name, |t| t.data[0..2].copy_from_slice(&[0xff, 0xff]));
            },
            &[WEIGHTS, "layers.3.mlp.switch_mlp.down_proj.biases", "element 0", "0xffff"],
        ),
    ];
    assert_all_fail(cases);
}

#[test]
fn files_and_shards() {
    let cases: &[Hostile] = &[
        (
            "no weights",
            |c| {
                c.remove(WEIGHTS);
                c.remove(INDEX);
            },
            &[WEIGHTS, "missing", "download"],
        ),
        (
            "shards without an index",
            |c| {
                c.shard(50);
                c.remove(INDEX);
            },
            &[SHARDS[0], SHARDS[1], INDEX],
        ),
        (
            "a directory under the weights' name",
            |c| {
                c.remove(WEIGHTS);
                fs::create_dir(c.path(WEIGHTS)).unwrap();
            },
            &[WEIGHTS, "a directory"],
        ),
        (
            "an index that is a directory",
            |c| {
                c.remove(INDEX);
                fs::create_dir(c.path(INDEX)).unwrap();
            },
            &[INDEX, "a directory"],
        ),
        (
            "a shard that climbs out",
            |c| index(c, |m| m[NORM] = json!("../model.safetensors")),
            &[INDEX, NORM, "../model.safetensors"],
        ),
        (
            "an absolute shard",
            |c| index(c, |m| m[NORM] = json!("/etc/passwd.safetensors")),
            &[INDEX, NORM, "/etc/passwd"],
        ),
        (
            "a shard behind a backslash",
            |c| index(c, |m| m[NORM] = json!("..\\m.safetensors")),
            &[INDEX, NORM, "plain name"],
        ),
        (
            "a shard that is no weight file",
            |c| index(c, |m| m[NORM] = json!("config.json")),
            &[INDEX, NORM, "config.json"],
        ),
        ("a shard that is a number", |c| index(c, |m| m[NORM] = json!(7)), &[INDEX, NORM, "7", "a string"]),
        (
            "a missing shard",
            |c| {
                c.shard(50);
                c.remove(SHARDS[1]);
            },
            &[SHARDS[1], "missing"],
        ),
        (
            "an empty shard",
            |c| {
                c.shard(50);
                c.write(SHARDS[1], []);
            },
            &[SHARDS[1], "0 bytes"],
        ),
        (
            "a truncated shard",
            |c| {
                c.shard(50);
                let bytes = fs::read(c.path(SHARDS[1])).unwrap();
                c.write(SHARDS[1], &bytes[..bytes.len() - 100]);
            },
            &[SHARDS[1], "tensor language_model", "truncated"],
        ),
        (
            "a tensor in two shards",
            |c| {
                c.shard(50);
                let mut tensors = Parts::read(&c.path(SHARDS[1])).tensors();
                tensors.push(Parts::read(&c.path(SHARDS[0])).tensors()[0].clone());
                c.write(SHARDS[1], Parts::from_tensors(&tensors).bytes(true));
            },
            &[SHARDS[0], SHARDS[1], "tensor language_model", "is also in"],
        ),
        (
            "a tensor in another shard than listed",
            |c| {
                c.shard(50);
                let name = Parts::read(&c.path(SHARDS[0])).tensors()[0].name.clone();
                index(c, |m| m[name] = json!(SHARDS[1]));
            },
            &[INDEX, SHARDS[0], SHARDS[1], "but it is in"],
        ),
        (
            "a listed tensor that is nowhere",
            |c| index(c, |m| m["lost.weight"] = json!(WEIGHTS)),
            &[INDEX, "lost.weight", "does not hold it"],
        ),
        (
            "a tensor the index does not list",
            |c| {
                index(c, |m| {
                    m.as_object_mut().unwrap().remove(NORM);
                })
            },
            &[INDEX, NORM, "does not list"],
        ),
        (
            "a tensor twice in the index",
            |c| {
                let text = fs::read_to_string(c.path(INDEX)).unwrap();
                let twice = format!("\"weight_map\": {{\"{NORM}\": \"{WEIGHTS}\",");
                c.write(INDEX, text.replacen("\"weight_map\": {", &twice, 1));
            },
            &[INDEX, NORM, "twice"],
        ),
        (
            "a stale shard",
            |c| c.write("model-00007-of-00009.safetensors", [0; 16]),
            &["model-00007-of-00009.safetensors", "does not list"],
        ),
        ("an index without a map", |c| c.write(INDEX, "{}"), &[INDEX, "weight_map", "missing"]),
        (
            "an index with an empty map",
            |c| c.write(INDEX, "{\"weight_map\": {}}"),
            &[INDEX, "weight_map", "at least one"],
        ),
        ("an index that is a list", |c| c.write(INDEX, "[]"), &[INDEX, "weight_map"]),
        ("an index that is not JSON", |c| c.write(INDEX, [0xff, 0xfe]), &[INDEX, "UTF-8"]),
    ];
    assert_all_fail(cases);
}
