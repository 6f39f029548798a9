//! Grammars with lily-mini's vocabulary.

use std::path::PathBuf;

use lily_engine::ConstraintHandle;
use lily_text::TextModel;

use super::{constraint::ConstraintSpec, *};

fn mini() -> TextModel {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-mini");
    TextModel::from_files(|name| std::fs::read(dir.join(name)).ok()).expect("lily-mini loads")
}

struct Setting {
    tokenizer: Arc<Tokenizer>,
    grammars: Arc<Grammars>,
    stop: u32,
}

fn setting() -> Setting {
    let tokenizer = mini().tokenizer;
    let stop = tokenizer.token_id("<|im_end|>").unwrap();
    let grammars = Grammars::new(&tokenizer, tokenizer.vocab_size(), &[stop]).unwrap();
    Setting { tokenizer, grammars: Arc::new(grammars), stop }
}

impl Setting {
    /// Feeds a text, token by token; `Err`: the text before the first token that is not allowed.
    fn follow(&self, handle: &ConstraintHandle, text: &str) -> Result<(), String> {
        let ids = self.tokenizer.encode(text).unwrap();
        self.follow_ids(handle, &ids)
    }

    fn follow_ids(&self, handle: &ConstraintHandle, ids: &[u32]) -> Result<(), String> {
        for (i, &id) in ids.iter().enumerate() {
            let allowed = handle.with(|c| c.mask().unwrap().is_none_or(|mask| mask.contains(id)));
            if !allowed {
                return Err(self.tokenizer.decode(&ids[..i], false));
            }
            handle.with(|c| c.accept(id)).unwrap();
        }
        Ok(())
    }

    fn may_stop(&self, handle: &ConstraintHandle) -> bool {
        handle.with(|c| c.mask().unwrap().is_none_or(|mask| mask.contains(self.stop)))
    }

    fn start(&self, grammar: &Grammar, thinking: bool) -> ConstraintHandle {
        let spec =
            ConstraintSpec { answer: Some(self.grammars.compile(grammar).unwrap()), ..Default::default() };
        spec.start(&self.grammars, &self.tokenizer, thinking).unwrap().unwrap()
    }

    /// Whether the grammar takes the whole text.
    fn takes(&self, grammar: &Grammar, text: &str) -> bool {
        let handle = self.start(grammar, false);
        self.follow(&handle, text).is_ok() && self.may_stop(&handle)
    }
}

fn tools() -> ToolSet {
    let mut tools = ToolSet::default();
    tools.add("weather", Some(&json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
            "place": {"$ref": "#/$defs/Place"},
        },
        "required": ["city"],
        "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": false}},
    })));
    tools.add("now", None);
    tools
}

#[test]
fn json_regex_choice_and_lark() {
    let s = setting();
    let schema = Grammar::JsonSchema(json!({
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"], "additionalProperties": false,
    }));
    assert!(s.takes(&schema, "{\"a\": 12, \"b\": \"x\"}"));
    for bad in [
        "{\"a\": 12}",
        "{\"a\": 1.5, \"b\": \"x\"}",
        "{\"a\": 1, \"b\": \"z\"}",
        "12",
        "{\"a\": 1, \"b\": \"x\"} ",
    ] {
        assert!(!s.takes(&schema, bad), "{bad}");
    }
    assert!(s.takes(&Grammar::JsonObject, "{\"any\": [1, \"é\", null]}"));
    assert!(!s.takes(&Grammar::JsonObject, "[1]"));
    assert!(s.takes(&Grammar::Regex("[a-c]+!".into()), "abcabc!"));
    assert!(!s.takes(&Grammar::Regex("[a-c]+!".into()), "abd!"));
    let choice = Grammar::Choice(vec!["a \"bird\"".into(), "a fish".into()]);
    assert!(s.takes(&choice, "a \"bird\"") && s.takes(&choice, "a fish") && !s.takes(&choice, "a"));
    assert!(s.takes(&Grammar::Lark("start: \"x\" /[0-9]{2}/".into()), "x42"));
}

#[test]
fn control_characters_of_a_schema_are_escaped() {
    let s = setting();
    for schema in [
        json!({"const": "a\u{0}b"}),
        json!({"enum": ["a\u{0}b"]}),
        json!({"type": "string", "pattern": "^a\\x00b$"}),
    ] {
        let grammar = Grammar::JsonSchema(schema);
        assert!(s.takes(&grammar, "\"a\\u0000b\""), "{grammar:?}");
        for bad in ["\"ab\"", "\"a\u{0}b\"", "\"a\\u0001b\""] {
            assert!(!s.takes(&grammar, bad), "{grammar:?} {bad:?}");
        }
    }
    let plain = Grammar::JsonSchema(json!({"type": "string"}));
    assert!(s.takes(&plain, "\"ab\\n\"") && !s.takes(&plain, "\"\\u0041\""));
}

#[test]
fn tool_calls_as_the_template_teaches_them() {
    let s = setting();
    let one = Grammar::Calls { tools: tools(), many: false };
    let many = Grammar::Calls { tools: tools(), many: true };
    let call = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
                <parameter=place>\n{\"x\": 1.5}\n</parameter>\n</function>\n</tool_call>";
    let now = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    for good in [call, now] {
        assert!(s.takes(&one, good), "{good}");
    }
    assert!(s.takes(&many, &format!("{call}\n{now}")));
    assert!(!s.takes(&one, &format!("{call}\n{now}")));
    for bad in [
        "Paris",
        "<tool_call>\n<function=fly>\n</function>\n</tool_call>",
        "<tool_call>\n<function=weather>\n</function>\n</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\nmany\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=unit>\nK\n</parameter>\n</function>\n</tool_call>",
    ] {
        assert!(!s.takes(&many, bad), "{bad}");
    }
    // Values may be of several lines and hold markup.
    let code = call.replace("Paris", "a <b>\n\n  </c>\nd");
    assert!(s.takes(&one, &code));
    let either = Grammar::JsonOrCalls { schema: json!({"type": "object"}), tools: tools(), many: true };
    assert!(s.takes(&either, "{\"a\": 1}") && s.takes(&either, now) && !s.takes(&either, "so"));
}

#[test]
fn thinking_is_free_and_the_answer_is_not() {
    let s = setting();
    let handle = s.start(&Grammar::Choice(vec!["yes".into()]), true);
    s.follow(&handle, "any { text <b> </thin at all").unwrap();
    assert!(!s.may_stop(&handle), "an answer must come");
    s.follow(&handle, "\n</think>\n\n").unwrap();
    assert!(s.follow(&handle, "no").is_err());
    let handle = s.start(&Grammar::Choice(vec!["yes".into()]), true);
    s.follow(&handle, "so</think>\n\nyes").unwrap();
    assert!(s.may_stop(&handle));
    assert!(s.follow(&handle, "!").is_err());
    // The tag in ordinary tokens counts as well, as it does for the reader.
    let handle = s.start(&Grammar::Choice(vec!["yes".into()]), true);
    let tag = s.tokenizer.encode_ordinary("so</think>").unwrap();
    assert!(tag.len() > 2);
    s.follow_ids(&handle, &tag).unwrap();
    s.follow(&handle, "\n\nyes").unwrap();
    assert!(s.may_stop(&handle));
}

#[test]
fn a_thinking_budget_closes_the_block() {
    let s = setting();
    let spec = ConstraintSpec { thinking_budget: Some(4), ..Default::default() };
    let handle = spec.start(&s.grammars, &s.tokenizer, true).unwrap().unwrap();
    let words = s.tokenizer.encode("one two three four five six seven").unwrap();
    s.follow_ids(&handle, &words[..4]).unwrap();
    assert!(s.follow_ids(&handle, &words[4..5]).is_err());
    s.follow(&handle, "\n</think>\n\nanything at all").unwrap();
    assert!(s.may_stop(&handle));
    // No thinking, nothing to constrain.
    assert!(spec.start(&s.grammars, &s.tokenizer, false).unwrap().is_none());
}

#[test]
fn calls_the_model_begins_keep_to_their_schema() {
    let s = setting();
    let calls = Some(s.grammars.compile(&Grammar::RestOfCall(tools())).unwrap());
    let spec = ConstraintSpec { calls, ..Default::default() };
    let handle = spec.start(&s.grammars, &s.tokenizer, false).unwrap().unwrap();
    s.follow(&handle, "Let me look.\n\n").unwrap();
    let call =
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>";
    s.follow(&handle, call).unwrap();
    s.follow(&handle, "\n").unwrap();
    s.follow(&handle, call).unwrap();
    assert!(s.may_stop(&handle));
    assert!(s.follow(&handle, "\n<tool_call>\n<function=fly>").is_err());
}

#[test]
fn what_cannot_be_a_grammar_is_said() {
    let s = setting();
    for (grammar, word) in [
        (Grammar::JsonSchema(json!({"type": "array", "uniqueItems": true})), "uniqueItems"),
        (Grammar::JsonSchema(json!({"not": {"type": "string"}})), "not"),
        (Grammar::JsonSchema(json!({"type": "tree"})), "tree"),
        (Grammar::JsonSchema(json!({"$ref": "http://example.org/x"})), "example.org"),
        (Grammar::Regex("(".into()), ""),
        (Grammar::Regex("(?=a)b".into()), ""),
        (Grammar::Lark("start: nothing".into()), "nothing"),
        (Grammar::Choice(vec![]), "at least one"),
        (Grammar::JsonSchema(json!({"enum": [], "description": "x".repeat(MAX_BYTES)})), "bytes"),
        (Grammar::Calls { tools: ToolSet::default(), many: true }, "at least one tool"),
    ] {
        match s.grammars.compile(&grammar) {
            Err(error) => assert!(error.0.contains(word) && !error.0.is_empty(), "{grammar:?}: {error}"),
            Ok(_) => panic!("{grammar:?} was compiled"),
        }
    }
}

#[test]
fn answers_in_json_end_before_their_limit() {
    let s = setting();
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "string"}, "b": {"type": "array", "items": {"type": "string"}}, "c": {"type": "object"}},
        "required": ["a", "b", "c"]});
    for (schema, max_tokens) in
        [(schema, 120), (json!({"type": "object"}), 80), (json!({"type": "array"}), 60)]
    {
        let answer = Some(s.grammars.compile(&Grammar::JsonSchema(schema.clone())).unwrap());
        let spec = ConstraintSpec { answer, max_tokens: Some(max_tokens), ..Default::default() };
        let handle = spec.start(&s.grammars, &s.tokenizer, false).unwrap().unwrap();
        // Writes what lengthens the answer most: anything but quotes and brackets, where it may.
        let mut ids = Vec::new();
        while ids.len() < max_tokens {
            let allowed = handle.with(|c| c.mask().unwrap().cloned()).unwrap();
            if allowed.contains(s.stop) && allowed.len() == 1 {
                break;
            }
            let dull = |id: &u32| {
                let text = s.tokenizer.decode(&[*id], false);
                text.chars().any(|c| "\"{}[],".contains(c)) || *id == s.stop
            };
            let every = || (0..allowed.vocab() as u32).filter(|&id| allowed.contains(id));
            let id = every().find(|id| !dull(id)).or_else(|| every().find(|&id| id != s.stop)).unwrap();
            handle.with(|c| c.accept(id)).unwrap();
            ids.push(id);
        }
        let text = s.tokenizer.decode(&ids, false);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(ids.len() > max_tokens / 2 && value.is_object() == (schema["type"] == "object"), "{text}");
    }
}
