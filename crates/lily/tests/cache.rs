//! The prefix cache of the real server: conversations, restarts, and being killed while it writes.

mod common;

use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use common::Server;
use serde_json::{Value, json};

fn start(dir: &Path) -> Server {
    Server::start(&["--cache-dir", dir.to_str().unwrap()])
}

/// A system message of some hundred tokens.
fn system() -> Value {
    json!({"role": "system", "content": "You are a dictionary that answers in one sentence. ".repeat(30)})
}

fn asked(server: &Server, messages: &[Value]) -> (Value, u64, u64) {
    let (status, body) = server.chat(json!({"messages": messages, "temperature": 0, "max_tokens": 30}));
    assert_eq!(status, 200, "{body}");
    let usage = &body["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (body["choices"][0]["message"].clone(), usage["prompt_tokens"].as_u64().unwrap(), cached)
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// Ends a server in good order and waits for it.
#[cfg(unix)]
fn end(mut server: Server) {
    let sent = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let until = Instant::now() + Duration::from_secs(60);
    let status = loop {
        match server.child.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(Instant::now() < until, "the server does not end"),
        }
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(0));
}

/// Thinking is off, so that earlier answers are rendered without the block that they were written with: every turn
/// goes on from where the last question ended.
#[test]
#[cfg(unix)]
fn a_conversation_and_a_fork_before_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let server = start(&cache);
    let mut messages = vec![system()];
    let mut question_ends = 0;
    let mut turns = Vec::new();
    for word in ["heron", "lute", "atoll", "castle"] {
        messages.push(user(&format!("define {word}")));
        let (answer, prompt, cached) = asked(&server, &messages);
        println!("{word}: {cached} of {prompt} cached");
        assert!(cached >= question_ends, "{cached} of {question_ends}");
        turns.push((messages.clone(), answer.clone(), prompt));
        question_ends = prompt - 7;
        messages.push(answer);
    }
    let fork = [system(), user("define whale")];
    let (whale, prompt, cached) = asked(&server, &fork);
    println!("a fork: {cached} of {prompt} cached");
    assert!(prompt - cached < 20, "the system message is shared: {cached} of {prompt}");
    end(server);
    assert!(fs::read_dir(&cache).unwrap().count() > 5);

    let server = start(&cache);
    for (messages, answer, prompt) in &turns {
        let (again, _, cached) = asked(&server, messages);
        println!("after a restart: {cached} of {prompt} cached");
        assert!(prompt - cached <= 8, "{cached} of {prompt}");
        assert_eq!(again, *answer, "the same answer");
    }
    assert_eq!(asked(&server, &fork).0, whale);
    // A second server must not use the same directory.
    let mut other = common::lily();
    let output =
        other.args(["serve", "--port", "0", "--cache-dir", cache.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = common::stderr(&output);
    assert!(text.contains("--cache-dir") && text.contains("another process"), "{text}");
}

/// Killed in the middle of writing, several times: what is used afterwards is right.
#[test]
fn killed_while_it_writes() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["heron", "lute", "atoll", "castle", "river", "whale", "piano", "winter"];
    let conversation = |word: &str| vec![system(), user(&format!("define {word}"))];
    let right: Vec<Value> = {
        let server = Server::start(&["--cache-ram", "0"]);
        words.iter().map(|w| asked(&server, &conversation(w)).0).collect()
    };
    let mut hits = 0;
    for round in 0..8u64 {
        let mut server = start(dir.path());
        for i in 0..3 {
            let i = (round as usize * 3 + i) % words.len();
            let (answer, _, cached) = asked(&server, &conversation(words[i]));
            assert_eq!(answer, right[i], "round {round}, {}", words[i]);
            hits += u64::from(cached > 200);
        }
        thread::sleep(Duration::from_millis(round * 7 % 25));
        server.child.kill().unwrap();
        server.child.wait().unwrap();
    }
    println!("{hits} hits");
    assert!(hits > 12, "{hits}");
}

#[test]
fn without_a_cache_every_prompt_is_computed() {
    let server = Server::start(&["--cache-ram", "0"]);
    for _ in 0..2 {
        assert_eq!(asked(&server, &[system(), user("define heron")]).2, 0);
    }
}
