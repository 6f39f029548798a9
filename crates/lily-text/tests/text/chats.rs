//! The template engine and lily-mini's template against Jinja2.

use std::time::{Duration, Instant};

use lily_text::{ChatTemplate, RenderRequest, TextError};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{MINI, fixture, request};

#[derive(Deserialize)]
struct Chats {
    chats: Vec<Chat>,
    errors: Vec<Refusal>,
    random: Vec<RandomChat>,
}

#[derive(Deserialize)]
struct Chat {
    name: String,
    request: Value,
    text: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Refusal {
    name: String,
    request: Value,
    error: String,
}

#[derive(Deserialize)]
struct RandomChat {
    request: Value,
    text: Option<String>,
    error: Option<String>,
}

/// A failed rendering has Python's error: the template's own words, or a type error.
fn assert_python_error(found: &TextError, python: &str, case: &str) {
    match (found, python.split_once(": ").expect("Class: message")) {
        (TextError::Template { message }, ("TemplateError", expected)) => {
            assert_eq!(message, expected, "{case}")
        }
        (TextError::Render { .. }, ("TypeError", _)) => {}
        _ => panic!("{case}: found {found:?}, expected {python}"),
    }
}

#[test]
fn named_chats_equal_jinja2_and_tokenizers() {
    let fixture: Chats = fixture("chats.json");
    assert!(fixture.chats.len() >= 14);
    for chat in fixture.chats {
        let (text, ids) = MINI.render_ids(&request(&chat.request), false).unwrap();
        assert_eq!(text, chat.text, "{}", chat.name);
        assert_eq!(
            ids, chat.ids,
            "{}; after a new tokenizer.json run tests/fixtures/make_fixtures.py",
            chat.name
        );
    }
}

#[test]
fn normalisation_changes_no_chat_that_is_normal() {
    for chat in fixture::<Chats>("chats.json").chats {
        assert_eq!(MINI.render(&request(&chat.request), true).unwrap(), chat.text, "{}", chat.name);
    }
}

#[test]
fn refusals_equal_jinja2() {
    let fixture: Chats = fixture("chats.json");
    assert!(fixture.errors.len() >= 9);
    for refusal in fixture.errors {
        let error = MINI.render(&request(&refusal.request), false).unwrap_err();
        assert_python_error(&error, &refusal.error, &refusal.name);
    }
}

#[test]
fn random_chats_equal_jinja2() {
    let (mut renders, mut errors) = (0, 0);
    for chat in fixture::<Chats>("chats.json").random {
        let case = chat.request.to_string();
        match (MINI.render(&request(&chat.request), false), chat.text, chat.error) {
            (Ok(text), Some(expected), _) => {
                assert_eq!(text, expected, "{case}");
                renders += 1;
            }
            (Err(error), None, Some(expected)) => {
                assert_python_error(&error, &expected, &case);
                errors += 1;
            }
            (found, text, error) => panic!("{case}: {found:?}, expected {text:?} or {error:?}"),
        }
    }
    assert!(renders >= 100 && errors >= 50, "{renders} renders, {errors} errors");
}

/// What the model was trained on is what the template renders: these texts come from the training data's own renderer.
#[test]
fn training_data_equals_the_template() {
    #[derive(Deserialize)]
    struct Training {
        name: String,
        request: Value,
        text: String,
    }
    let cases: Vec<Training> = fixture("training_renders.json");
    assert!(cases.len() >= 3);
    for case in cases {
        assert_eq!(MINI.render(&request(&case.request), true).unwrap(), case.text, "{}", case.name);
    }
}

#[test]
fn python_forms_equal_jinja2() {
    #[derive(Deserialize)]
    struct Form {
        template: String,
        x: Value,
        text: String,
    }
    for form in fixture::<Vec<Form>>("python_forms.json") {
        let template = ChatTemplate::new(&form.template).unwrap();
        let kwargs = [("x".to_string(), form.x.clone())].into_iter().collect();
        let text = template.render(&RenderRequest { kwargs, ..Default::default() }).unwrap();
        assert_eq!(text, form.text, "{} with {}", form.template, form.x);
    }
}

fn render(source: &str) -> Result<String, TextError> {
    let messages = vec![json!({"role": "user", "content": "x"})];
    ChatTemplate::new(source)?.render(&RenderRequest { messages, ..Default::default() })
}

#[test]
fn raised_text_is_kept_from_inside_macros_and_loops() {
    let source = "{% macro m(x) %}{{ raise_exception('No: ' ~ x ~ \"\\n \") }}{% endmacro %}\
                  {% for message in messages %}{{ m(message.role)|trim }}{% endfor %}";
    match render(source) {
        Err(TextError::Template { message }) => assert_eq!(message, "No: user\n "),
        other => panic!("{other:?}"),
    }
}

#[test]
fn broken_templates_name_file_and_line() {
    let error = ChatTemplate::new("a\n{% if x %}\n{{ x }").unwrap_err().to_string();
    assert!(error.starts_with("chat_template.jinja: line 3: "), "{error}");
    let error = render("\n{{ messages[0].role.nothing.more }}").unwrap_err().to_string();
    assert!(error.starts_with("chat template failed at line 2: "), "{error}");
}

#[test]
fn hostile_templates_end_in_an_error() {
    let began = Instant::now();
    for source in [
        "{% set n = namespace(x=[1]) %}{% for a in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson }}",
        "{% set n = namespace(x={}) %}{% for a in range(90) %}{% set n.x = {1: n.x, 2: n.x} %}{% endfor %}{{ n.x|tojson }}",
        "{% set n = namespace(x=[1]) %}{% for a in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|trim }}",
        "{% for a in range(100000) %}{{ ('y' * 10000000)|tojson }}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ b }}{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set n = namespace(x='xx') %}{% for a in range(99999) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{{ 'x' * 9223372036854775807 }}",
        "{{ ('x' * 100000000)|replace('x', 'y' * 100000) }}",
        "{{ [1] * 9223372036854775807 }}",
        "{{ 1 / 0 }}",
        "{{ 1 // 0 }}{{ -9223372036854775808 // -1 }}",
        "{{ messages|tojson(indent=99999999999) }}",
        "{{ messages.no_such_method() }}",
    ] {
        match render(source) {
            Err(TextError::Render { message, .. }) => println!("{:.1?} {source}: {message}", began.elapsed()),
            other => panic!("{source}: {:.200?}", format!("{other:?}")),
        }
    }
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[test]
fn deep_values_are_refused_not_overflowed() {
    let mut deep = json!(1);
    for _ in 0..5_000 {
        deep = json!([deep]);
    }
    let kwargs = [("x".to_string(), deep)].into_iter().collect();
    let template = ChatTemplate::new("{{ x|tojson }}").unwrap();
    let result = template.render(&RenderRequest { kwargs, ..Default::default() });
    assert!(matches!(result, Err(TextError::Render { .. })), "{result:?}");
}

#[test]
fn reserved_keywords_are_refused() {
    for name in ["messages", "tools"] {
        let kwargs = [(name.to_string(), json!([]))].into_iter().collect();
        let messages = vec![json!({"role": "user", "content": "x"})];
        let error = MINI.render(&RenderRequest { messages, tools: None, kwargs }, true).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{name}: found a template keyword")), "{error}");
    }
}

#[test]
fn long_chats_render_quickly() {
    let turn = |i: usize| match i % 4 {
        0 => json!({"role": "user", "content": format!("question {i} {}", "word ".repeat(100))}),
        1 => json!({"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "lookup", "arguments": {"word": format!("w{i}"), "n": i}}}]}),
        2 => json!({"role": "tool", "content": "found ".repeat(100)}),
        _ => json!({"role": "assistant", "content": "answer ".repeat(100), "reasoning_content": "why"}),
    };
    let messages: Vec<Value> = (0..4_000).map(turn).collect();
    let began = Instant::now();
    let text = MINI.render(&RenderRequest { messages, ..Default::default() }, true).unwrap();
    println!("4,000 messages, {} bytes: {:.1?}", text.len(), began.elapsed());
    assert!(text.len() > 1_500_000);
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_template_says_which_keywords_it_reads() {
    let template = MINI.template.as_ref().unwrap();
    for keyword in ["enable_thinking", "preserve_thinking", "add_vision_id", "add_generation_prompt", "tools"]
    {
        assert!(template.reads(keyword), "{keyword}");
    }
    // A misspelling, functions, a variable the template sets itself, one of a loop, one given to all templates.
    for other in ["enable_thinkin", "raise_exception", "namespace", "ns", "message", "loop", "eos_token", ""]
    {
        assert!(!template.reads(other), "{other}");
    }
}

/// A turn that ended in calls is rendered as the model wrote it, with its reasoning while the template shows that.
#[test]
fn turns_are_replayed_byte_for_byte() {
    use lily_text::Replay;

    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{\"n\": 1}"}});
    let mut messages = vec![
        json!({"role": "system", "content": "be brief"}),
        json!({"role": "system", "content": "and kind"}),
        json!({"role": "user", "content": "q"}),
        json!({"role": "assistant", "content": null, "tool_calls": [call("1")]}),
        json!({"role": "tool", "tool_call_id": "1", "content": "r"}),
    ];
    let kwargs = json!({"add_generation_prompt": true});
    let request = |messages: &[Value]| RenderRequest {
        messages: messages.to_vec(),
        tools: None,
        kwargs: kwargs.as_object().unwrap().clone(),
    };
    let written = "hm \n </think>\n\n\n<tool_call>\n<function=f>\n<parameter=n>1</parameter></function>\n</tool_call>\n";
    let replay = Replay { message: 3, opener: "<think>\n".into(), written: written.into() };
    let prompt = MINI.render_ids(&request(&messages[..3]), true).unwrap().0;
    let (text, ids) = MINI.render_ids_replaying(&request(&messages), std::slice::from_ref(&replay)).unwrap();
    assert!(text.starts_with(&format!("{prompt}{written}<|im_end|>\n")), "{text}");
    assert_eq!(ids, MINI.tokenizer.encode(&text).unwrap());

    // After the next question the template shows no reasoning: only the calls are the model's.
    messages.push(json!({"role": "assistant", "content": "a"}));
    messages.push(json!({"role": "user", "content": "next"}));
    let (text, _) = MINI.render_ids_replaying(&request(&messages), std::slice::from_ref(&replay)).unwrap();
    let short = "<|im_start|>assistant\n<tool_call>\n<function=f>\n<parameter=n>1</parameter></function>\n</tool_call><|im_end|>\n";
    assert!(text.contains(short) && !text.contains("hm"), "{text}");
    // What would be refused is refused, replayed or not.
    messages[3]["tool_calls"][0]["function"]["arguments"] = json!("not JSON");
    assert!(MINI.render_ids_replaying(&request(&messages), &[replay]).is_err());
}
