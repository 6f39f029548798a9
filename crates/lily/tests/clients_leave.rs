//! What happens when clients leave, do not read, or are too many, and when the server is told to stop.
//!
//! These tests measure times, so they run one after the other.

mod common;

use std::{
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use common::{Server, abandoned, endless};
use serde_json::json;

/// Held by the one test that runs.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_dropped_client_frees_the_engine() {
    let _turn = turn();
    let server = Server::start(&["--parallel", "1"]);
    let long = json!({"max_tokens": 20_000, "logit_bias": endless()});

    // While tokens flow.
    let mut times = Vec::new();
    for _ in 0..5 {
        let mut events = server.stream(long.clone());
        assert!(events.by_ref().take(4).count() == 4);
        drop(events);
        times.push(server.wait_for_load((0, 0), Duration::from_millis(100)));
        // The next request does not wait.
        let (_, body) = server.chat(json!({"max_tokens": 1}));
        let queued = body["timings"]["queued_ms"].as_f64().unwrap();
        assert!(queued < 100.0, "queued for {queued} ms");
    }
    println!("engine free after a dropped stream: {times:?}");

    // While it waits in the queue, and while it runs, without streaming.
    let running = server.stream(long.clone());
    let waiting = abandoned(&server, &long);
    server.wait_for_load((1, 1), Duration::from_secs(5));
    drop(waiting);
    let time = server.wait_for_load((0, 1), Duration::from_millis(100));
    println!("queue free after a dropped waiting request: {time:?}");
    drop(running);
    server.wait_for_load((0, 0), Duration::from_millis(100));
    let request = abandoned(&server, &long);
    server.wait_for_load((0, 1), Duration::from_secs(5));
    drop(request);
    let time = server.wait_for_load((0, 0), Duration::from_millis(100));
    println!("engine free after a dropped plain request: {time:?}");
}

#[test]
fn a_client_dropped_during_prefill_frees_the_engine() {
    let _turn = turn();
    let server = Server::start(&[]);
    let prompt = "heron ".repeat(15_000);
    let messages = json!([{"role": "user", "content": prompt}]);
    let request = abandoned(&server, &json!({"messages": messages, "max_tokens": 8}));
    server.wait_for_load((0, 1), Duration::from_secs(20));
    drop(request);
    let time = server.wait_for_load((0, 0), Duration::from_secs(1));
    println!("engine free after a request dropped in prefill: {time:?}");
}

#[test]
fn a_client_that_does_not_read_does_not_hold_the_engine_up() {
    let _turn = turn();
    let server = Server::start(&[]);
    // Some megabytes of events: more than the sockets' buffers hold.
    let fields = json!({"max_tokens": 1500, "logit_bias": endless(), "logprobs": true, "top_logprobs": 20, "stream": true});
    let lazy = abandoned(&server, &fields);
    server.wait_for_load((0, 1), Duration::from_secs(5));
    let time = server.wait_for_load((0, 0), Duration::from_secs(60));
    println!("1,500 tokens for a client that does not read: {time:?}");
    assert_eq!(server.choice(json!({}))["finish_reason"], "stop");
    drop(lazy);
}

#[test]
fn a_full_queue_is_429() {
    let _turn = turn();
    let server = Server::start(&["--queue", "1", "--parallel", "1"]);
    let long = json!({"max_tokens": 20_000, "logit_bias": endless()});
    let running = server.stream(long.clone());
    let waiting = abandoned(&server, &long);
    server.wait_for_load((1, 1), Duration::from_secs(5));
    let (status, body) = server.chat(json!({}));
    assert_eq!((status, body["error"]["code"].as_str()), (429, Some("queue_full")), "{body}");
    let raw = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    assert_eq!(server.raw(raw.as_bytes()).0, 429);
    drop((running, waiting));
    server.wait_for_load((0, 0), Duration::from_secs(1));
    assert_eq!(server.chat(json!({})).0, 200);
}

#[test]
#[cfg(unix)]
fn shutdown_lets_answers_end() {
    let _turn = turn();
    let mut server = Server::start(&[]);
    let fields = json!({"max_tokens": 40, "logit_bias": endless()});
    let mut events = server.stream(fields);
    assert!(events.next().is_some());
    let signalled = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
    assert!(signalled.success());
    let chunks = events.chunks();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length", "the answer was completed");
    assert_eq!(wait(&mut server, Duration::from_secs(5)), Some(0));

    // A second signal does not wait for a long answer.
    let mut server = Server::start(&[]);
    let mut events = server.stream(json!({"max_tokens": 20_000, "logit_bias": endless()}));
    assert!(events.next().is_some());
    for _ in 0..2 {
        Command::new("kill").args(["-INT", &server.child.id().to_string()]).status().unwrap();
        thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(wait(&mut server, Duration::from_secs(2)), Some(130));
}

/// The exit code, once the process has ended.
fn wait(server: &mut Server, most: Duration) -> Option<i32> {
    let started = Instant::now();
    loop {
        if let Some(status) = server.child.try_wait().unwrap() {
            return status.code();
        }
        assert!(started.elapsed() < most, "still running after {most:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
