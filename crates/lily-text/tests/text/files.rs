//! Loading a checkpoint's text files, good and bad.

use std::time::{Duration, Instant};

use lily_text::{RenderRequest, TextModel, Tokenizer};
use serde_json::{Value, json};

use crate::{MINI, mini_file};

fn tokenizer_json() -> Value {
    serde_json::from_slice(&mini_file("tokenizer.json").unwrap()).unwrap()
}

fn load(tokenizer: &Value, config: Option<&Value>) -> Result<Tokenizer, String> {
    let config = config.map(|c| c.to_string().into_bytes());
    Tokenizer::from_bytes(tokenizer.to_string().as_bytes(), config.as_deref()).map_err(|e| e.to_string())
}

/// Processor time of this thread, so that other programs' share of the machine doesn't count; where the system does not
/// tell (Linux does), the time on the clock.
fn thread_time(began: Instant) -> Duration {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|s| Some(Duration::from_nanos(s.split_whitespace().next()?.parse().ok()?)))
        .unwrap_or_else(|| began.elapsed())
}

#[test]
fn lily_mini_loads_quickly() {
    let began = Instant::now();
    let times: Vec<Duration> = (0..20)
        .map(|_| {
            let before = thread_time(began);
            TextModel::from_files(mini_file).unwrap();
            thread_time(began) - before
        })
        .collect();
    let best = times.iter().min().unwrap();
    println!("lily-mini's tokenizer and template load in {times:.1?}");
    // The bar is for optimised builds; an idle core takes 20 ms.
    assert!(cfg!(debug_assertions) || *best < Duration::from_millis(50), "{times:?}");
}

#[test]
fn config_adds_the_tokens_the_tokenizer_lacks() {
    let size = MINI.tokenizer.vocab_size() as u32;
    let token = |content: &str, special: bool| json!({"content": content, "special": special});
    let config = json!({"added_tokens_decoder": {
        size.to_string(): token("<|audio|>", true),
        (size + 3).to_string(): token("<tts>", false),
        (size - 1).to_string(): {"content": "</think>", "special": true},
    }});
    let tokenizer = load(&tokenizer_json(), Some(&config)).unwrap();
    assert_eq!(tokenizer.encode("<|audio|><tts>").unwrap(), [size, size + 3]);
    assert_eq!(tokenizer.vocab_size() as u32, size + 4);
    assert!(tokenizer.is_special(size) && !tokenizer.is_special(size + 3));
    assert_eq!(tokenizer.token_bytes(size + 1), None);
    assert_eq!(tokenizer.decode(&[size, size + 3], true), "<tts>");
}

#[test]
fn tokens_matched_in_normalised_text_or_with_blanks_work() {
    let size = MINI.tokenizer.vocab_size() as u32;
    let config = json!({"added_tokens_decoder": {
        size.to_string(): {"content": "<é>", "normalized": true, "special": false},
        (size + 1).to_string(): {"content": "<m>", "lstrip": true, "special": true},
    }});
    let tokenizer = load(&tokenizer_json(), Some(&config)).unwrap();
    let a = MINI.tokenizer.encode("a").unwrap()[0];
    assert_eq!(
        tokenizer.encode("a<e\u{301}>a  <m>a<|im_end|>").unwrap(),
        [a, size, a, size + 1, a, MINI.tokenizer.token_id("<|im_end|>").unwrap()]
    );
    assert_eq!(tokenizer.encode_ordinary("<m>").unwrap(), MINI.tokenizer.encode("<m>").unwrap());

    let gap = json!({"added_tokens_decoder": {(size + 9).to_string(): {"content": "<m>", "lstrip": true}}});
    let error = load(&tokenizer_json(), Some(&gap)).unwrap_err();
    assert!(error.contains("\"<m>\"") && error.contains(&(size + 9).to_string()), "{error}");
}

#[test]
fn bad_tokenizers_are_refused_with_the_reason() {
    let whole = mini_file("tokenizer.json").unwrap();
    for bytes in [&b""[..], b"{", b"[]", b"{}", b"\xff\xfe", &whole[..whole.len() / 2]] {
        let error = Tokenizer::from_bytes(bytes, None).unwrap_err().to_string();
        assert!(error.starts_with("tokenizer.json: not a tokenizer"), "{error}");
    }
    let edited = |edit: &dyn Fn(&mut Value)| {
        let mut json = tokenizer_json();
        edit(&mut json);
        load(&json, None).unwrap_err()
    };
    let cases: Vec<(&str, String)> = vec![
        ("decoder.type", edited(&|t| t["decoder"] = Value::Null)),
        (
            "model.type",
            edited(&|t| t["model"] = json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"})),
        ),
        (
            "normalizer.type` is \"Precompiled\"",
            edited(&|t| t["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        ),
        (
            "normalizer.type` is \"Replace\"",
            edited(&|t| {
                t["normalizer"] = json!({"type": "Replace", "pattern": {"String": "e"}, "content": "ee"})
            }),
        ),
        ("model.dropout` is 0.5", edited(&|t| t["model"]["dropout"] = json!(0.5))),
        ("4294967295", edited(&|t| t["added_tokens"][0]["id"] = json!(u32::MAX))),
        ("is given to two", edited(&|t| t["added_tokens"][0]["id"] = json!(8190))),
        ("has two ids", edited(&|t| t["added_tokens"][0]["content"] = json!("<think>"))),
        ("has no text", edited(&|t| t["added_tokens"][0]["content"] = json!(""))),
        ("id 5 is given to two tokens", edited(&|t| t["added_tokens"][0]["id"] = json!(5))),
        ("`never` out of vocabulary", edited(&|t| t["model"]["merges"][0] = json!(["never", "there"]))),
        ("not a tokenizer", edited(&|t| t["model"]["vocab"]["x"] = json!(-1))),
        (
            "not a tokenizer",
            edited(&|t| t["pre_tokenizer"]["pretokenizers"][0]["pattern"] = json!({"Regex": "(("})),
        ),
    ];
    for (part, error) in cases {
        assert!(error.starts_with("tokenizer.json: ") && error.contains(part), "{part}: {error}");
    }
    let bad_key = json!({"added_tokens_decoder": {"x": {"content": "<x>"}}});
    let error = load(&tokenizer_json(), Some(&bad_key)).unwrap_err();
    assert!(error.starts_with("tokenizer_config.json: ") && error.contains("\"x\""), "{error}");
    let error = Tokenizer::from_bytes(&whole, Some(b"{")).unwrap_err().to_string();
    assert!(error.starts_with("tokenizer_config.json: "), "{error}");
}

/// lily-mini with other files in place of its own; `None` takes a file away.
fn with_files(changes: &[(&str, Option<&str>)]) -> Result<TextModel, String> {
    let get = |name: &str| match changes.iter().find(|(changed, _)| *changed == name) {
        Some((_, content)) => content.map(|c| c.as_bytes().to_vec()),
        None => mini_file(name),
    };
    TextModel::from_files(get).map_err(|e| e.to_string())
}

fn hello(model: &TextModel) -> Result<String, String> {
    let messages = vec![json!({"role": "user", "content": "hello"})];
    model.render(&RenderRequest { messages, ..Default::default() }, true).map_err(|e| e.to_string())
}

#[test]
fn the_template_may_be_in_the_config() {
    let template = "{{ eos_token }}{{ messages[0].content }}";
    let eos = json!({"content": "<|im_end|>"});
    for config in [
        json!({"eos_token": eos, "chat_template": template}),
        json!({"eos_token": "<|im_end|>", "chat_template": [{"name": "x", "template": "no"}, {"name": "default", "template": template}]}),
        json!({"eos_token": eos, "chat_template": [{"name": "only", "template": template}]}),
    ] {
        let config = config.to_string();
        let files = [("chat_template.jinja", None), ("tokenizer_config.json", Some(config.as_str()))];
        assert_eq!(hello(&with_files(&files).unwrap()).unwrap(), "<|im_end|>hello", "{config}");
    }
    // The file wins.
    let config = json!({"chat_template": "no"}).to_string();
    let model = with_files(&[("tokenizer_config.json", Some(&config))]).unwrap();
    assert!(hello(&model).unwrap().contains("<|im_start|>user\nhello"));
}

#[test]
fn missing_and_broken_files_are_named() {
    let error = |changes: &[(&str, Option<&str>)]| with_files(changes).unwrap_err();
    assert!(error(&[("tokenizer.json", None)]).starts_with("tokenizer.json: not found"));
    assert!(error(&[("chat_template.jinja", Some("{% if"))]).starts_with("chat_template.jinja: line 1: "));
    for config in ["{\"chat_template\": 3}", "{\"chat_template\": []}", "{\"chat_template\": [{}, {}]}"] {
        let error = error(&[("chat_template.jinja", None), ("tokenizer_config.json", Some(config))]);
        assert!(error.starts_with("tokenizer_config.json: `chat_template` is"), "{config}: {error}");
    }
    let bytes = |name: &str| if name == "chat_template.jinja" { Some(vec![0xff]) } else { mini_file(name) };
    let error = TextModel::from_files(bytes).unwrap_err().to_string();
    assert!(error.starts_with("chat_template.jinja: not UTF-8"), "{error}");

    let model = with_files(&[("chat_template.jinja", None), ("tokenizer_config.json", None)]).unwrap();
    assert!(model.template.is_none());
    assert!(hello(&model).unwrap_err().starts_with("chat_template.jinja: not found"));
}

#[test]
fn system_turns_need_a_template_of_turns() {
    let model =
        with_files(&[("chat_template.jinja", Some("{% for m in messages %}[{{ m.content }}]{% endfor %}"))]);
    let messages = vec![json!({"role": "user", "content": "a"}), json!({"role": "system", "content": "s"})];
    let error = model.unwrap().render(&RenderRequest { messages, ..Default::default() }, true).unwrap_err();
    assert!(error.to_string().contains("put system messages first"), "{error}");
}
