//! The published checkpoint's tokenizer and template against reference renderings and ids.
//!
//! Those files are not part of this repository. The test reads the directory named by `LILY_QWEN36_DIR`, which holds
//! * `tokenizer.json` and `tokenizer_config.json`: the checkpoint's, or what `tools/make_qwen36_tokenizer.py` makes;
//! * `chat_template.jinja`: the checkpoint's;
//! * `golden_qwen36.json`: `text_vectors` (`text`, `token_ids`), `chat_vectors` (`name`, `messages`, `kwargs`,
//!   `rendered`, `token_ids`; `tools` is among the `kwargs`) and `error_vectors` (`result`: Python's error).
//!
//! Without the variable the tests say `skipped` and why.

use std::path::PathBuf;

use lily_text::{RenderRequest, TextError, TextModel};
use serde_json::Value;

/// The checkpoint's text side and its reference data, unless the variable is not set.
fn qwen36() -> Option<(TextModel, Value)> {
    let Some(dir) = std::env::var_os("LILY_QWEN36_DIR").map(PathBuf::from) else {
        println!("skipped: LILY_QWEN36_DIR is not set (see the top of crates/lily-text/tests/qwen36.rs)");
        return None;
    };
    let model =
        TextModel::from_files(|name| std::fs::read(dir.join(name)).ok()).expect("the checkpoint loads");
    let golden = std::fs::read(dir.join("golden_qwen36.json")).expect("golden_qwen36.json is readable");
    Some((model, serde_json::from_slice(&golden).expect("golden_qwen36.json is JSON")))
}

fn request(vector: &Value) -> RenderRequest {
    let mut kwargs = vector["kwargs"].as_object().expect("kwargs").clone();
    let tools = kwargs.remove("tools").map(|tools| tools.as_array().expect("tools").clone());
    RenderRequest { messages: vector["messages"].as_array().expect("messages").clone(), tools, kwargs }
}

fn ids(vector: &Value) -> Vec<u32> {
    serde_json::from_value(vector["token_ids"].clone()).expect("token_ids")
}

#[test]
fn texts_have_the_reference_ids() {
    let Some((model, golden)) = qwen36() else { return };
    let vectors = golden["text_vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 11);
    for vector in vectors {
        let text = vector["text"].as_str().unwrap();
        assert_eq!(model.tokenizer.encode(text).unwrap(), ids(vector), "{text:?}");
        assert_eq!(model.tokenizer.decode(&ids(vector), false), text);
    }
    assert_eq!(model.tokenizer.vocab_size(), 248_077);
    assert_eq!(model.tokenizer.token_id("<|audio_pad|>"), Some(248_076));
    println!("{} text vectors equal", vectors.len());
}

#[test]
fn chats_render_as_the_reference() {
    let Some((model, golden)) = qwen36() else { return };
    let vectors = golden["chat_vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 14);
    for vector in vectors {
        let name = vector["name"].as_str().unwrap();
        for normalize in [false, true] {
            let (text, tokens) = model.render_ids(&request(vector), normalize).unwrap();
            assert_eq!(text, vector["rendered"].as_str().unwrap(), "{name}, normalize {normalize}");
            assert_eq!(tokens, ids(vector), "{name}, normalize {normalize}");
        }
    }
    println!("{} chat vectors equal, with and without normalisation", vectors.len());
}

#[test]
fn refusals_are_the_templates_own() {
    let Some((model, golden)) = qwen36() else { return };
    let vectors = golden["error_vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 9);
    for vector in vectors {
        let name = vector["name"].as_str().unwrap();
        let (class, message) = vector["result"].as_str().unwrap().split_once(": ").unwrap();
        match (class, model.render(&request(vector), false)) {
            ("TemplateError", Err(TextError::Template { message: found })) => {
                assert_eq!(found, message, "{name}")
            }
            ("TypeError", Err(TextError::Render { message: found, .. })) => {
                assert!(found.ends_with(message), "{name}: {found}");
            }
            (_, other) => panic!("{name}: expected {class}: {message}, found {other:?}"),
        }
    }
    println!("{} error vectors equal", vectors.len());
}

#[test]
fn later_system_messages_become_system_turns() {
    let Some((model, golden)) = qwen36() else { return };
    let vector = golden["error_vectors"].as_array().unwrap().iter().find(|v| v["name"] == "system_not_first");
    let (text, tokens) = model.render_ids(&request(vector.unwrap()), true).unwrap();
    assert_eq!(text, "<|im_start|>user\na<|im_end|>\n<|im_start|>system\ns<|im_end|>\n");
    assert_eq!(tokens, [248045, 846, 198, 64, 248046, 198, 248045, 8678, 198, 82, 248046, 198]);
}

/// Random chats rendered by Jinja2 with this template, when the directory has them: `chats.json`, a list of
/// `{"request": {"messages", "tools", ...}, "expected"}`, an error being `Class: message`.
#[test]
fn random_chats_render_as_jinja2() {
    let Some((model, _)) = qwen36() else { return };
    let path = PathBuf::from(std::env::var_os("LILY_QWEN36_DIR").unwrap()).join("chats.json");
    let Ok(bytes) = std::fs::read(&path) else {
        println!("skipped: {} does not exist", path.display());
        return;
    };
    let cases: Vec<Value> = serde_json::from_slice(&bytes).expect("chats.json is JSON");
    let (mut renders, mut errors) = (0, 0);
    for case in &cases {
        let mut kwargs = case["request"].as_object().unwrap().clone();
        let messages = kwargs.remove("messages").unwrap().as_array().unwrap().clone();
        let tools = kwargs.remove("tools").and_then(|tools| tools.as_array().cloned());
        let expected = case["expected"].as_str().unwrap();
        match model.render(&RenderRequest { messages, tools, kwargs }, false) {
            Ok(text) => {
                renders += 1;
                assert_eq!(text, expected, "{}", case["request"]);
            }
            Err(TextError::Template { message }) => {
                errors += 1;
                assert_eq!(format!("TemplateError: {message}"), expected, "{}", case["request"]);
            }
            Err(other) => {
                errors += 1;
                assert!(
                    expected.starts_with("TypeError: "),
                    "{other}, expected {expected}: {}",
                    case["request"]
                );
            }
        }
    }
    println!("{renders} renders and {errors} errors equal");
}
