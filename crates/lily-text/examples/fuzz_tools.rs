//! Random mutations of the tool-call corpus, for as long as asked, on stable Rust:
//!
//! ```sh
//! cargo run --release -p lily-text --example fuzz_tools -- 60
//! ```
//!
//! Checks that nothing panics, that the scanner's text, markup and calls joined are its input byte for byte, that chunks
//! do not matter, and that arguments are JSON objects. `fuzz/` has the same as a coverage-guided target.

use std::{
    env, fs,
    path::Path,
    time::{Duration, Instant},
};

use lily_text::{OutputEvent, OutputParser, ToolEvent, ToolScanner, ToolSet};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Map, Value};

/// Pieces that mutations insert.
#[rustfmt::skip]
const PIECES: &[&str] = &[
    "<tool_call>", "</tool_call>", "<function=weather>", "<function=now>", "<function name=\"weather\">", "<function=fly>",
    "</function>", "<parameter=city>", "<parameter=days>", "<parameter name='x'>", "</parameter>", "<think>", "</think>",
    "\n", "\r\n", " ", "{", "}", "{\"name\": \"now\", \"arguments\": {}}", "\"", "\\", "<", "</", ">", "=", "é", "🦉",
    "\u{0}", "3", "True", "null",
];

fn main() {
    let number =
        |at: usize, default: u64| env::args().nth(at).and_then(|s| s.parse().ok()).unwrap_or(default);
    let (seconds, seed) = (number(1, 10), number(2, 1));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tool_corpus.json");
    let corpus: Value = serde_json::from_slice(&fs::read(&path).expect("the corpus")).expect("JSON");
    let tools = ToolSet::from_definitions(corpus["tools"].as_array().expect("tools")).expect("tools");
    let shapes = corpus["shapes"].as_array().expect("shapes");
    let seeds: Vec<&str> = shapes.iter().filter_map(|s| s["input"].as_str()).collect();
    let mut rng = StdRng::seed_from_u64(seed);
    let (started, mut runs, mut bytes, mut calls) = (Instant::now(), 0u64, 0usize, 0usize);
    while started.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..200 {
            let text = mutated(&mut rng, &seeds);
            calls += check(&mut rng, &tools, &text);
            runs += 1;
            bytes += text.len();
        }
    }
    let took = started.elapsed().as_secs_f64();
    println!("{runs} texts, {bytes} bytes, {calls} calls in {took:.0} s: nothing lost");
}

/// A shape with a few things inserted, removed, doubled or swapped in from another.
fn mutated(rng: &mut StdRng, seeds: &[&str]) -> String {
    let pick = |rng: &mut StdRng, most: usize| -> Vec<char> {
        seeds.choose(rng).copied().unwrap_or_default().chars().take(most).collect()
    };
    let mut text = pick(rng, 2000);
    for _ in 0..rng.random_range(0..6) {
        let at = rng.random_range(0..=text.len());
        let end = (at + rng.random_range(0..40)).min(text.len());
        match rng.random_range(0..5) {
            0 => drop(text.drain(at..end)),
            1 => {
                let piece = PIECES.choose(rng).copied().unwrap_or_default();
                drop(text.splice(at..at, piece.chars()));
            }
            2 => {
                let again: Vec<char> = text[at..end].to_vec();
                let to = rng.random_range(0..=text.len());
                drop(text.splice(to..to, again));
            }
            3 => {
                let other = pick(rng, 300);
                let from = rng.random_range(0..=other.len());
                drop(text.splice(at..end, other[from..].iter().copied()));
            }
            _ => text.truncate(at),
        }
    }
    text.into_iter().collect()
}

/// Checks one text; returns how many calls were in it.
fn check(rng: &mut StdRng, tools: &ToolSet, text: &str) -> usize {
    let (cut, whole, thinking) = (rng.random(), rng.random(), rng.random());
    let sizes: Vec<usize> = (0..4).map(|_| rng.random_range(1..9)).collect();
    let scan = |sizes: &[usize]| {
        let new = if whole { ToolScanner::whole_calls } else { ToolScanner::new };
        let mut scanner = new(tools.clone());
        let mut events: Vec<ToolEvent> =
            chunks(text, sizes).into_iter().flat_map(|c| scanner.push(c)).collect();
        events.extend(scanner.finish(cut));
        summary(&events)
    };
    let (conserved, found) = scan(&[usize::MAX]);
    assert_eq!(conserved, text, "bytes are conserved");
    assert_eq!(scan(&sizes), (conserved, found), "chunks of {sizes:?} of {text:?}");

    let mut parser = OutputParser::new(Some(tools.clone()), thinking);
    let mut events: Vec<OutputEvent> =
        chunks(text, &sizes).into_iter().flat_map(|c| parser.push(c)).collect();
    events.extend(parser.finish(cut));
    for event in &events {
        if let OutputEvent::CallEnd { arguments, .. } = event {
            let object: Result<Map<String, Value>, _> = serde_json::from_str(arguments);
            assert!(object.is_ok(), "{arguments:?} of {text:?}");
        }
    }
    parser.calls()
}

fn chunks<'a>(text: &'a str, sizes: &[usize]) -> Vec<&'a str> {
    let (mut out, mut rest, mut sizes) = (Vec::new(), text, sizes.iter().cycle());
    while !rest.is_empty() {
        let mut end = sizes.next().copied().unwrap_or(1).min(rest.len());
        while !rest.is_char_boundary(end) {
            end += 1;
        }
        out.push(&rest[..end]);
        rest = &rest[end..];
    }
    out
}

/// The input as the events give it back, and what they say: text, and calls with their arguments.
fn summary(events: &[ToolEvent]) -> (String, Vec<String>) {
    let (mut input, mut said): (String, Vec<String>) = (String::new(), Vec::new());
    for event in events {
        match event {
            ToolEvent::Text(text) => {
                input.push_str(text);
                match said.last_mut() {
                    Some(last) if last.starts_with("text ") => last.push_str(text),
                    _ => said.push(format!("text {text}")),
                }
            }
            ToolEvent::Markup(text) => input.push_str(text),
            ToolEvent::Start { name, .. } => said.push(format!("start {name}")),
            ToolEvent::Arguments { .. } => {}
            ToolEvent::End { raw, arguments, .. } => {
                input.push_str(raw);
                said.push(format!("end {arguments}"));
            }
            ToolEvent::Broken { index } => said.push(format!("broken {index}")),
        }
    }
    (input, said)
}
