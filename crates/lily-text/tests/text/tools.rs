//! The tool-call corpus at several chunk sizes, and what holds for any text.

use lily_text::{OutputEvent, OutputParser, ToolEvent, ToolScanner, ToolSet};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::fixture;

#[derive(Deserialize)]
struct Corpus {
    tools: Vec<Value>,
    shapes: Vec<Shape>,
}

#[derive(Deserialize)]
struct Shape {
    name: String,
    input: String,
    thinking: bool,
    cut: bool,
    reasoning: String,
    content: String,
    calls: Vec<Call>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Call {
    name: String,
    arguments: Value,
}

fn corpus() -> (ToolSet, Vec<Shape>) {
    let corpus: Corpus = fixture("tool_corpus.json");
    (ToolSet::from_definitions(&corpus.tools).unwrap(), corpus.shapes)
}

/// `text` in chunks of `size` bytes, or the next character's end.
fn chunks(text: &str, size: usize) -> Vec<&str> {
    let (mut out, mut start) = (Vec::new(), 0);
    while start < text.len() {
        let mut end = (start.saturating_add(size)).min(text.len());
        while !text.is_char_boundary(end) {
            end += 1;
        }
        out.push(&text[start..end]);
        start = end;
    }
    out
}

/// What a client that joins the pieces has in the end.
#[derive(Debug, Default, PartialEq)]
struct Joined {
    reasoning: String,
    content: String,
    calls: Vec<Call>,
    raw: Vec<String>,
}

fn run(tools: &ToolSet, text: &str, size: usize, thinking: bool, cut: bool) -> Joined {
    let mut parser = OutputParser::new(Some(tools.clone()), thinking);
    let mut events: Vec<OutputEvent> = chunks(text, size).into_iter().flat_map(|c| parser.push(c)).collect();
    events.extend(parser.finish(cut));
    let mut joined = Joined::default();
    // The call that is open: index, name, arguments so far.
    let mut open: Option<(usize, String, String)> = None;
    let mut begun = 0;
    for event in events {
        match event {
            OutputEvent::Reasoning(text) => joined.reasoning += &text,
            OutputEvent::Content(text) => joined.content += &text,
            OutputEvent::CallStart { index, name } => {
                assert!(open.is_none(), "a call begins inside another");
                assert_eq!(index, begun, "indices count up");
                begun += 1;
                open = Some((index, name, String::new()));
            }
            OutputEvent::CallArguments { index, json } => {
                let open = open.as_mut().expect("arguments belong to an open call");
                assert_eq!(open.0, index);
                assert!(!json.is_empty());
                open.2 += &json;
            }
            OutputEvent::CallEnd { index, arguments, raw } => {
                let (open, name, pieces) = open.take().expect("an end belongs to an open call");
                assert_eq!((open, &pieces), (index, &arguments), "the pieces are the arguments");
                let arguments: Value = serde_json::from_str(&arguments).expect("arguments are JSON");
                assert!(arguments.is_object());
                joined.calls.push(Call { name, arguments });
                joined.raw.push(raw);
            }
            OutputEvent::CallBroken { index } => {
                assert_eq!(open.take().expect("a broken call was open").0, index);
            }
        }
    }
    assert!(open.is_none(), "every call ends or is broken");
    assert_eq!(parser.calls(), joined.calls.len());
    joined
}

#[test]
fn the_corpus_at_every_chunk_size() {
    let (tools, shapes) = corpus();
    assert!(shapes.len() >= 150, "{}", shapes.len());
    let mut wrong = Vec::new();
    for shape in &shapes {
        for size in [1, 2, 3, 7, usize::MAX] {
            let got = run(&tools, &shape.input, size, shape.thinking, shape.cut);
            let right = got.reasoning == shape.reasoning
                && got.content == shape.content
                && got.calls == shape.calls
                && got.raw.iter().all(|raw| shape.input.contains(raw.as_str()));
            if !right {
                wrong.push(format!(
                    "{} (chunks of {size})\n  input     {:?}\n  got       {got:?}\n  expected  {:?} {:?} {:?}",
                    shape.name, shape.input, shape.reasoning, shape.content, shape.calls
                ));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} shapes:\n{}", wrong.len(), shapes.len(), wrong.join("\n"));
}

/// All events of a scanner, and that their text is the input.
fn scan(tools: &ToolSet, text: &str, cuts: &[usize], cut: bool, whole: bool) -> Vec<ToolEvent> {
    let mut scanner =
        if whole { ToolScanner::whole_calls(tools.clone()) } else { ToolScanner::new(tools.clone()) };
    let (mut events, mut start, mut cuts) = (Vec::new(), 0, cuts.iter().cycle());
    while start < text.len() {
        let mut end = (start + cuts.next().copied().unwrap_or(1)).min(text.len());
        while !text.is_char_boundary(end) {
            end += 1;
        }
        events.extend(scanner.push(&text[start..end]));
        start = end;
    }
    events.extend(scanner.finish(cut));
    let conserved: String = events
        .iter()
        .map(|event| match event {
            ToolEvent::Text(text) | ToolEvent::Markup(text) | ToolEvent::End { raw: text, .. } => {
                text.as_str()
            }
            _ => "",
        })
        .collect();
    assert_eq!(conserved, text, "bytes are conserved");
    events
}

/// Neighbouring pieces of a kind joined.
fn merged(events: Vec<ToolEvent>) -> Vec<ToolEvent> {
    let mut out: Vec<ToolEvent> = Vec::new();
    for event in events {
        match (out.last_mut(), event) {
            (Some(ToolEvent::Text(a)), ToolEvent::Text(b))
            | (Some(ToolEvent::Markup(a)), ToolEvent::Markup(b)) => a.push_str(&b),
            (Some(ToolEvent::Arguments { json: a, .. }), ToolEvent::Arguments { json: b, .. }) => {
                a.push_str(&b)
            }
            (_, event) => out.push(event),
        }
    }
    out
}

#[test]
fn the_corpus_conserves_bytes() {
    let (tools, shapes) = corpus();
    for shape in shapes {
        for whole in [false, true] {
            let expected = merged(scan(&tools, &shape.input, &[usize::MAX / 2], shape.cut, whole));
            for size in [1, 2, 3, 7] {
                assert_eq!(
                    merged(scan(&tools, &shape.input, &[size], shape.cut, whole)),
                    expected,
                    "{}",
                    shape.name
                );
            }
        }
    }
}

#[test]
fn arguments_come_as_they_are_written() {
    let (tools, _) = corpus();
    let mut scanner = ToolScanner::new(tools);
    let mut said = |text: &str| {
        let events = scanner.push(text).into_iter();
        events
            .map(|event| match event {
                ToolEvent::Text(text) => format!("text {text}"),
                ToolEvent::Start { name, .. } => format!("start {name}"),
                ToolEvent::Arguments { json, .. } => json,
                other => format!("{other:?}"),
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(said("Writing it."), ["text Writing it."]);
    assert!(said("\n\n<tool_call>\n<function=write_file>\n").is_empty(), "a body must follow");
    assert_eq!(said("<parameter=path>\n"), ["start write_file", "{\"path\":\""]);
    assert_eq!(said("src/\"a"), ["src/\\\"a"]);
    assert_eq!(said(".rs\n"), [".rs"], "the line break may be the format's");
    assert_eq!(said("</parameter>\n<parameter=content>"), ["\"", ",\"content\":\""]);
    assert_eq!(said("\nfn main() {\n"), ["fn main() {"]);
    assert_eq!(said("}\n</par"), ["\\n}"]);
    assert!(said("ameter>\n</function>\n</tool_call>").is_empty(), "perhaps all of it is in the file");
    let end = scanner.finish(false);
    let expected = "{\"path\":\"src/\\\"a.rs\",\"content\":\"fn main() {\\n}\"}";
    let whole = |e: &ToolEvent| matches!(e, ToolEvent::End { arguments, .. } if arguments == expected);
    assert!(end.iter().any(whole), "{end:?}");
}

#[test]
fn long_output_takes_linear_time() {
    let (tools, _) = corpus();
    let started = std::time::Instant::now();
    for unit in [
        "<tool_call>\n<function=weather>\n",
        "<tool_call>\n<function=weather>\n<parameter=city>\n",
        "</parameter>\n</function>\n</tool_call>\n",
        "<tool_call>\n<function=weather>\n<parameter=city>\nx\n</parameter>\n</function>\n</tool_call>\nand ",
        "<function=weather>",
        "<tool_call>{\"name\":",
        "<",
        "\n",
        "\n<parameter=city>\n",
        "}",
        "{",
    ] {
        let text = unit.repeat(200_000 / unit.len());
        for head in ["", "<tool_call>\n<function=weather>\n<parameter=city>\n", "<tool_call>{\"name\":\""] {
            scan(&tools, &format!("{head}{text}"), &[4], true, false);
        }
    }
    let took = started.elapsed();
    assert!(took.as_secs() < 60, "33 texts of 200 kB in chunks of 4 bytes took {took:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Pieces of the format in any order: nothing is lost, and chunks do not matter.
    #[test]
    fn any_text_is_conserved_at_any_chunking(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "<tool_call>", "</tool_call>", "<function=weather>", "<function=now>", "<function=fly>", "</function>",
                "<parameter=city>", "<parameter=days>", "<parameter=x>", "</parameter>", "\n", "\n\n", " ", "a", "é",
                "3", "<", "</", "<function name=\"now\">", "{", "}", "{\"name\": \"now\"}", "\"", "\r\n", "<think>",
                "<tool_call>\n<function=weather>\n<parameter=city>\n", "\n</parameter>\n</function>\n</tool_call>",
            ]),
            0..18,
        ),
        cuts in prop::collection::vec(1usize..9, 1..6),
        cut in any::<bool>(),
        whole in any::<bool>(),
        thinking in any::<bool>(),
    ) {
        let tools = corpus_tools();
        let text = parts.concat();
        let expected = merged(scan(tools, &text, &[usize::MAX / 2], cut, whole));
        prop_assert_eq!(merged(scan(tools, &text, &cuts, cut, whole)), expected);
        let joined = run(tools, &text, usize::MAX, thinking, cut);
        prop_assert_eq!(run(tools, &text, cuts[0], thinking, cut), joined);
    }
}

fn corpus_tools() -> &'static ToolSet {
    static TOOLS: std::sync::LazyLock<ToolSet> = std::sync::LazyLock::new(|| corpus().0);
    &TOOLS
}

#[test]
fn definitions_in_every_apis_form() {
    let tools = [
        json!({"type": "function", "function": {"name": "a", "parameters": {"properties": {"n": {"type": "integer"}}}}}),
        json!({"type": "function", "name": "b", "parameters": {}}),
        json!({"name": "c", "input_schema": {"type": "object"}}),
    ];
    let set = ToolSet::from_definitions(&tools).unwrap();
    assert_eq!(set.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b", "c"]);
    let error = ToolSet::from_definitions(&[json!({"type": "function"})]).unwrap_err();
    assert!(error.contains("tools[0]") && error.contains("name"), "{error}");
    assert!(ToolSet::from_definitions(&[json!({"name": "a"}), json!({"name": "a"})]).is_err());
}
