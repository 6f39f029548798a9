//! The other commands of the real binary.

mod common;

use std::{
    fs,
    io::Read,
    path::Path,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use common::{lily, run_with_input, stderr, stdout, tiny};
use serde_json::{Value, json};

fn run(args: &[&str]) -> Output {
    lily().args(args).output().unwrap()
}

fn ok(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

/// Exit code and error line of a command that must fail.
fn fails(args: &[&str]) -> (i32, String) {
    let output = run(args);
    let error = stderr(&output);
    assert!(!error.contains("panicked") && !error.contains("stack backtrace"), "{args:?}: {error}");
    (output.status.code().unwrap(), error)
}

#[test]
fn the_first_token_comes_within_a_second() {
    // The first run may have to read the binary from the disk.
    ok(&["run", "define heron", "--max-tokens", "1"]);
    // The best of three: other programs use this machine too.
    let time = (0..3).map(|_| start_to_first_token()).min().unwrap();
    println!("start to first token: {time:?}");
    // Builds without optimisation are not what the bar is about.
    if !cfg!(debug_assertions) {
        assert!(time.as_secs_f64() < 1.0, "{time:?}");
    }
}

fn start_to_first_token() -> Duration {
    let started = Instant::now();
    let mut child = lily().args(["run", "define heron"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut answer = child.stdout.take().unwrap();
    let mut first = [0; 1];
    answer.read_exact(&mut first).unwrap();
    let time = started.elapsed();
    let mut rest = String::new();
    answer.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(rest.contains("bird"), "{rest}");
    time
}

#[test]
fn run_answers_words_and_pipes() {
    let answer = ok(&["run", "define", "heron"]);
    assert!(answer.contains("bird") && answer.ends_with('\n'), "{answer:?}");
    let piped = run_with_input(lily().arg("run"), "define heron\n");
    assert_eq!(stdout(&piped), answer);
    let joined = run_with_input(lily().args(["run", "define", "-"]), "heron\n");
    assert_eq!(stdout(&joined), answer);
    assert_eq!(
        stdout(&lily().env("LILY_MODEL", "lily-mini").args(["run", "define heron"]).output().unwrap()),
        answer
    );

    let thinking = run(&["run", "define heron", "--thinking", "on", "--stats"]);
    assert!(stdout(&thinking).contains("bird") && !stdout(&thinking).contains("think"), "{thinking:?}");
    assert!(stderr(&thinking).contains("tok/s"), "{}", stderr(&thinking));
    assert!(stderr(&thinking).lines().count() > 1, "the reasoning is on stderr: {}", stderr(&thinking));

    let cut = run(&["run", "define heron", "--max-tokens", "2"]);
    assert!(stderr(&cut).contains("--max-tokens"), "a cut answer says so: {}", stderr(&cut));
}

#[test]
fn usage_errors_are_2_and_failures_1() {
    for args in [
        &["frobnicate"][..],
        &["run", "--no-such-flag"],
        &["serve", "--port", "70000"],
        &["run", "x", "--device", "abacus"],
        &["eval", "--text", "a", "--tokens", "b"],
        &["run", "x", "--log", "lily=loud"],
        &["run", "x", "--max-tokens", "0"],
        &["run", "x", "--seed", "-1"],
    ] {
        assert_eq!(fails(args).0, 2, "{args:?}");
    }
    let (code, error) = fails(&["run", "x", "--context", "0"]);
    assert_eq!(code, 1);
    assert!(error.contains("--context"), "{error}");
    let (code, error) = fails(&["run", "define heron", "--max-tokens", "100000"]);
    assert_eq!(code, 1);
    assert!(error.contains("32768") && error.contains("100000"), "{error}");
    let (code, error) = fails(&["run", "x", "--temperature", "-1"]);
    assert_eq!((code, error.contains("temperature is -1")), (1, true), "{error}");
    let (code, error) = fails(&["run", "x", "--threads", "100000000"]);
    assert_eq!((code, error.contains("--threads is 100000000; expected at most")), (1, true), "{error}");
    for (flag, value) in [("--contexts", "99999999"), ("--batch", "100000000"), ("--repeats", "0")] {
        let (code, error) = fails(&["bench", flag, value]);
        assert!(code == 1 && error.contains(value), "{flag}: {error}");
    }
    let (code, error) = fails(&["check", "/no/such/directory"]);
    assert_eq!((code, error.matches("os error").count()), (1, 1), "{error}");
    let output = run_with_input(lily().arg("run"), "  \n");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("the prompt is empty"));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
}

#[test]
#[cfg(unix)]
fn a_closed_pipe_is_quiet() {
    let mut child =
        lily().args(["run", "define heron"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn chat_over_a_pipe_keeps_the_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chat.json");
    let script = format!(
        "/help\ndefine heron\n/stats\nuse it in a sentence\n/save {}\n/think\ndefine heron\n/nothing\n/reset\n/system be kind\n/quit\nnever said\n",
        file.display()
    );
    let output = run_with_input(lily().arg("chat"), &script);
    let (out, error) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{error}");
    for part in ["/nothink", "bird", "tok/s", "4 messages", "thinking is on", "not a command", "be kind"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(!error.trim().is_empty(), "the reasoning is on stderr");
    let saved: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let roles: Vec<&str> =
        saved["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
}

#[test]
fn check_prints_facts_and_refuses_broken_checkpoints() {
    let facts = ok(&["check", "lily-mini"]);
    for part in ["qwen3_5_moe", "8,192", "KV cache", "GDN state", "0 copied", "chat template"] {
        assert!(facts.contains(part), "{part}: {facts}");
    }
    assert!(ok(&["check", tiny().to_str().unwrap(), "--context", "1024"]).contains("1,024 tokens"));

    type Damage = fn(&Path);
    let damage: [(&str, Damage, &str); 10] = [
        ("no config", |d| fs::remove_file(d.join("config.json")).unwrap(), "config.json"),
        ("config is not JSON", |d| fs::write(d.join("config.json"), "{").unwrap(), "config.json"),
        ("another architecture", |d| edit(d, "\"qwen3_5_moe\"", "\"llama\""), "llama"),
        ("other sizes", |d| edit(d, "\"hidden_size\": 128", "\"hidden_size\": 256"), "embed_tokens"),
        ("weights cut short", cut_weights, "model.safetensors"),
        (
            "a template that fails",
            |d| fs::write(d.join("chat_template.jinja"), "{{ 1 // 0 }}").unwrap(),
            "greeting",
        ),
        (
            "a template of nothing",
            |d| fs::write(d.join("chat_template.jinja"), "").unwrap(),
            "chat_template.jinja",
        ),
        (
            "a directory for a template",
            |d| {
                fs::remove_file(d.join("chat_template.jinja")).unwrap();
                fs::create_dir(d.join("chat_template.jinja")).unwrap();
            },
            "found a directory",
        ),
        (
            "a tokenizer of another kind",
            |d| fs::write(d.join("tokenizer.json"), "{}").unwrap(),
            "tokenizer.json",
        ),
        ("no weights", |d| fs::remove_file(d.join("model.safetensors")).unwrap(), "model.safetensors"),
    ];
    for (name, damage, part) in damage {
        let dir = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(tiny()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
        }
        damage(dir.path());
        let (code, error) = fails(&["check", dir.path().to_str().unwrap()]);
        assert_eq!(code, 1, "{name}: {error}");
        assert!(error.contains(part) && error.starts_with("error: "), "{name}: {error}");
    }
    let (code, error) = fails(&["check", "/no/such/directory"]);
    assert!(code == 1 && error.contains("/no/such/directory"), "{error}");
}

fn edit(dir: &Path, from: &str, to: &str) {
    let path = dir.join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from} is not in the fixture's config.json");
    fs::write(path, text.replace(from, to)).unwrap();
}

fn cut_weights(dir: &Path) {
    let path = dir.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 1000]).unwrap();
}

#[test]
fn tokenize_goes_there_and_back() {
    let text = "<|im_start|>user\nA heron, 42 naïve 🐦 birds.<|im_end|>\n";
    let ids = stdout(&run_with_input(lily().args(["tokenize", "lily-mini"]), text));
    let list: Vec<u32> = serde_json::from_str(&ids).unwrap();
    assert!(list.len() > 10 && list.len() < text.len());
    assert_eq!(stdout(&run_with_input(lily().args(["tokenize", "lily-mini", "--decode"]), &ids)), text);
    for bad in ["[1, -2]", "[99999999]", "heron"] {
        let output = run_with_input(lily().args(["tokenize", "lily-mini", "--decode"]), bad);
        assert_eq!(output.status.code(), Some(1), "{bad}");
        assert!(stderr(&output).contains("stdin"), "{}", stderr(&output));
    }
}

fn render(dir: &Path, request: &Value, flags: &[&str]) -> Value {
    let file = dir.join("request.json");
    fs::write(&file, request.to_string()).unwrap();
    let mut args = vec!["render", "lily-mini", "--request", file.to_str().unwrap()];
    args.extend(flags);
    serde_json::from_str(&ok(&args)).unwrap()
}

#[test]
fn render_prints_text_and_ids_or_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let request = json!({
        "messages": [{"role": "user", "content": "hi"}],
        "add_generation_prompt": true, "enable_thinking": false,
    });
    let out = render(dir.path(), &request, &[]);
    let expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(out["text"], expected);
    let ids = stdout(&run_with_input(lily().args(["tokenize", "lily-mini"]), expected));
    assert_eq!(out["ids"], serde_json::from_str::<Value>(&ids).unwrap());

    let developer = json!({"messages": [
        {"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]});
    assert!(
        render(dir.path(), &developer, &[])["text"]
            .as_str()
            .unwrap()
            .starts_with("<|im_start|>system\nbe brief")
    );
    assert!(
        render(dir.path(), &developer, &["--raw"])["error"].is_string(),
        "the template knows no developer"
    );
    assert_eq!(render(dir.path(), &json!({"messages": []}), &["--raw"])["error"], "No messages provided.");

    let tools = json!({"messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f"}}]});
    assert!(render(dir.path(), &tools, &[])["text"].as_str().unwrap().contains("<tools>"));
    let (code, error) = fails(&["render", "lily-mini", "--request", "/no/such/file"]);
    assert!(code == 1 && error.contains("/no/such/file"), "{error}");
}

#[test]
fn logits_agree_with_the_golden_file() {
    let dir = tempfile::tempdir().unwrap();
    let golden: Value =
        serde_json::from_slice(&fs::read(tiny().parent().unwrap().join("tiny_golden.json")).unwrap())
            .unwrap();
    let short = &golden["prompts"]["short"];
    let greedy: Vec<i64> = serde_json::from_value(golden["short"]["greedy"].clone()).unwrap();
    let (ids, out) = (dir.path().join("ids.json"), dir.path().join("out.safetensors"));
    fs::write(&ids, short.to_string()).unwrap();
    for (device, bar) in [("reference", 2e-4), ("cpu", 0.05)] {
        ok(&[
            "logits",
            tiny().to_str().unwrap(),
            "--tokens",
            ids.to_str().unwrap(),
            "--device",
            device,
            "--out",
            out.to_str().unwrap(),
            "--decode",
            "8",
        ]);
        let ours = fs::read(&out).unwrap();
        let ours = safetensors::SafeTensors::deserialize(&ours).unwrap();
        let theirs = fs::read(tiny().parent().unwrap().join("tiny_golden.safetensors")).unwrap();
        let theirs = safetensors::SafeTensors::deserialize(&theirs).unwrap();
        let (a, b) = (ours.tensor("logits").unwrap(), theirs.tensor("short.prefill_logits").unwrap());
        assert_eq!(a.shape(), b.shape());
        let worst = floats(a.data()).zip(floats(b.data())).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{device}: largest difference {worst:e}");
        assert!(worst <= bar, "{device}: {worst}");
        let (a, b) = (ours.tensor("decode_logits").unwrap(), theirs.tensor("short.decode_logits").unwrap());
        assert_eq!(a.shape(), [7, 1024]);
        let worst = floats(a.data()).zip(floats(b.data())).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= bar, "{device}: {worst} after decoding");
        let decoded: Vec<i64> = ours
            .tensor("decode_ids")
            .unwrap()
            .data()
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(decoded, greedy[..8], "{device}");
    }
    fs::write(&ids, "[5000]").unwrap();
    let (code, error) = fails(&[
        "logits",
        tiny().to_str().unwrap(),
        "--tokens",
        ids.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ]);
    assert!(code == 1 && error.contains("5000") && error.contains("1024"), "{error}");
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()))
}

#[test]
fn eval_measures_text_and_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let (text, json) = (dir.path().join("text.txt"), dir.path().join("result.json"));
    fs::write(&text, "A heron is a bird with long legs. ".repeat(8)).unwrap();
    let printed = ok(&[
        "eval",
        "lily-mini",
        "--text",
        text.to_str().unwrap(),
        "--window",
        "32",
        "--device",
        "cpu",
        "--json",
        json.to_str().unwrap(),
    ]);
    assert!(printed.contains("top-1 agreement"), "{printed}");
    let result: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert!(result["positions"].as_u64().unwrap() > 50, "{result}");
    assert!(result["top1_agreement"].as_f64().unwrap() > 0.97, "{result}");
    assert!(result["mean_kl"].as_f64().unwrap() < 1e-3, "{result}");

    let tokens = dir.path().join("tokens.json");
    for good in ["[1, 2, 3]", "[[1, 2], [3, 4, 5]]", r#"{"sequences": [[1, 2, 3]]}"#] {
        fs::write(&tokens, good).unwrap();
        ok(&["eval", tiny().to_str().unwrap(), "--tokens", tokens.to_str().unwrap()]);
    }
    for (bad, part) in [
        ("[]", "no token sequences"),
        ("{}", "sequences"),
        ("[1, \"a\"]", "token ids"),
        ("[9999, 1]", "9999"),
    ] {
        fs::write(&tokens, bad).unwrap();
        let (code, error) = fails(&["eval", tiny().to_str().unwrap(), "--tokens", tokens.to_str().unwrap()]);
        assert!(code == 1 && error.contains(part), "{bad}: {error}");
    }
}
