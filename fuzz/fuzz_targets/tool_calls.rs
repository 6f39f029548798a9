//! Any text: nothing panics, bytes are conserved, chunks do not matter.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lily_text::{ToolEvent, ToolScanner, ToolSet};
use serde_json::json;

fn scan(tools: &ToolSet, text: &str, size: usize, cut: bool) -> (String, usize) {
    let mut scanner = ToolScanner::new(tools.clone());
    let (mut events, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let mut end = size.min(rest.len());
        while !rest.is_char_boundary(end) {
            end += 1;
        }
        events.extend(scanner.push(&rest[..end]));
        rest = &rest[end..];
    }
    events.extend(scanner.finish(cut));
    let back = events.iter().map(|event| match event {
        ToolEvent::Text(text) | ToolEvent::Markup(text) | ToolEvent::End { raw: text, .. } => text.as_str(),
        _ => "",
    });
    (back.collect(), scanner.calls())
}

fuzz_target!(|input: (String, u8, bool)| {
    let (text, size, cut) = input;
    let tools = ToolSet::from_definitions(&[
        json!({"name": "weather", "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}),
        json!({"name": "now"}),
    ])
    .unwrap();
    let whole = scan(&tools, &text, usize::MAX, cut);
    assert_eq!(whole.0, text);
    assert_eq!(scan(&tools, &text, usize::from(size).max(1), cut), whole);
});
