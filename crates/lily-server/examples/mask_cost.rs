//! What token masks cost with a real vocabulary.
//!
//! ```sh
//! cargo run --release -p lily-server --example mask_cost -- DIR [VOCAB]
//! ```
//!
//! DIR holds tokenizer.json and tokenizer_config.json; VOCAB is the number of ids that may be sampled (default: all the
//! tokenizer has). Walks at random through answers each grammar allows and prints, in microseconds: how long the engine
//! would wait for a mask if it asked at once, and how long it waits when a forward pass of 5 ms runs in between.

use std::{
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lily_server::grammar::{Grammar, Grammars, constraint::ConstraintSpec};
use lily_text::{Tokenizer, ToolSet};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;

/// Tokens walked a grammar.
const STEPS: usize = 1500;
/// A decode step of the 35B model on a fast GPU.
const FORWARD: Duration = Duration::from_millis(5);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("usage: mask_cost DIR [VOCAB]")?);
    let read = |name: &str| std::fs::read(dir.join(name));
    let tokenizer = Arc::new(Tokenizer::from_bytes(
        &read("tokenizer.json")?,
        read("tokenizer_config.json").ok().as_deref(),
    )?);
    let vocab = args.next().map_or(Ok(tokenizer.vocab_size()), |n| n.parse())?;
    let stops: Vec<u32> =
        ["<|im_end|>", "<|endoftext|>"].iter().filter_map(|t| tokenizer.token_id(t)).collect();
    let started = Instant::now();
    let grammars = Arc::new(Grammars::new(&tokenizer, vocab, &stops)?);
    println!("vocabulary of {vocab}: trie and slices in {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    println!("grammar | build ms | median | p90 | p99 | worst us | behind 5 ms: median | p99 | worst us");
    for (name, grammar) in grammars_to_try() {
        let started = Instant::now();
        let compiled = grammars.compile(&grammar)?;
        let build = started.elapsed().as_secs_f64() * 1e3;
        let spec = ConstraintSpec { answer: Some(compiled), ..ConstraintSpec::default() };
        let mut at_once = walk(&spec, &grammars, &tokenizer, &stops, STEPS, Duration::ZERO)?;
        let mut behind = walk(&spec, &grammars, &tokenizer, &stops, STEPS / 5, FORWARD)?;
        let p = |list: &mut Vec<f64>, q: f64| {
            list.sort_by(f64::total_cmp);
            list[((list.len() - 1) as f64 * q) as usize]
        };
        println!(
            "{name} | {build:.1} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0}",
            p(&mut at_once, 0.5),
            p(&mut at_once, 0.9),
            p(&mut at_once, 0.99),
            p(&mut at_once, 1.0),
            p(&mut behind, 0.5),
            p(&mut behind, 0.99),
            p(&mut behind, 1.0),
        );
    }
    Ok(())
}

fn grammars_to_try() -> Vec<(&'static str, Grammar)> {
    let schema = json!({
        "type": "object",
        "properties": {
            "id": {"type": "integer"}, "name": {"type": "string"}, "email": {"type": "string", "format": "email"},
            "tags": {"type": "array", "items": {"type": "string"}}, "score": {"type": "number"},
            "address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["street", "city", "zip"], "additionalProperties": false},
            "kind": {"enum": ["bird", "fish", "mammal"]}, "active": {"type": "boolean"},
        },
        "required": ["id", "name", "email", "tags", "score", "address", "kind", "active"],
        "additionalProperties": false,
    });
    let mut tools = ToolSet::default();
    for i in 0..20 {
        let parameters = json!({"type": "object", "required": ["path", "text"], "properties": {
            "path": {"type": "string"}, "text": {"type": "string"}, "count": {"type": "integer"},
            "options": {"type": "object"}, "mode": {"enum": ["a", "b"]}}});
        tools.add(&format!("tool_{i}"), Some(&parameters));
    }
    vec![
        ("JSON schema, 11 fields", Grammar::JsonSchema(schema)),
        ("JSON object", Grammar::JsonObject),
        ("regex, e-mail and text", Grammar::Regex("[a-z]+@[a-z]+\\.(com|org): .{0,200}".into())),
        ("20 tools", Grammar::Calls { tools, many: true }),
    ]
}

/// Times to get each mask, walking at random with `pause` between a token and the question for the next mask.
fn walk(
    spec: &ConstraintSpec,
    grammars: &Arc<Grammars>,
    tokenizer: &Arc<Tokenizer>,
    stops: &[u32],
    steps: usize,
    pause: Duration,
) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let mut rng = StdRng::seed_from_u64(1);
    let mut times = Vec::with_capacity(steps);
    while times.len() < steps {
        let Some(handle) = spec.start(grammars, tokenizer, false)? else {
            return Err("no constraint".into());
        };
        // An answer of at most 300 tokens, then a fresh one.
        for _ in 0..300 {
            thread::sleep(pause);
            let started = Instant::now();
            let allowed: Vec<u32> = handle.with(|c| -> Result<_, lily_engine::ConstraintError> {
                let mask = c.mask()?;
                times.push(started.elapsed().as_secs_f64() * 1e6);
                Ok(mask
                    .map_or_else(Vec::new, |m| (0..m.vocab() as u32).filter(|&id| m.contains(id)).collect()))
            })?;
            let go_on: Vec<u32> = allowed.into_iter().filter(|id| !stops.contains(id)).collect();
            if go_on.is_empty() || times.len() >= steps {
                break;
            }
            handle.with(|c| c.accept(go_on[rng.random_range(0..go_on.len())]))?;
        }
    }
    Ok(times)
}
