use std::{sync::Mutex, time::Duration};

use serde_json::json;

use super::*;
use crate::{
    Category, Evidence,
    policy::Style,
    propose::{Fault, ItemType, Reason, ScriptedProposer},
    restore::Lane,
};

/// Finds the listed words; fails where a text says so.
struct Words(Vec<(&'static str, Category)>);

impl Recognise for Words {
    fn spans(&self, field: &Field) -> Vec<Span> {
        assert!(!field.text.contains("PANIC"), "on purpose");
        self.spans_in(&field.text)
    }

    fn spans_in(&self, text: &str) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for (word, category) in &self.0 {
            spans.extend(text.match_indices(word).map(|(at, _)| Span {
                range: at..at + word.len(),
                category: *category,
                evidence: Evidence::Validated,
                recognizer: "words".into(),
                version: 3,
                subtype: None,
            }));
        }
        if text.contains("BADRANGE") {
            spans.push(Span { range: 0..text.len() + 1, ..spans.first().cloned().unwrap() });
        }
        spans.sort_by_key(|s| s.range.start);
        spans
    }
}

fn words() -> Arc<dyn Recognise> {
    Arc::new(Words(vec![
        ("ann@x.example", Category::Email),
        ("bob@y.example", Category::Email),
        ("Ann Lee", Category::Person),
        ("sk-live-12345678", Category::Secret),
        ("4111 1111 1111 1111", Category::Card),
        ("555-010-2345", Category::Phone),
        ("BADRANGE", Category::Other),
    ]))
}

pub(super) fn gate_with(policy: &str, proposer: Option<ScriptedProposer>) -> Gate {
    Gate::new(GateConfig {
        recogniser: words(),
        proposer: proposer.map(|p| Arc::new(p) as Arc<dyn Proposer>),
        policy: Policy::parse(policy, Some("/home/ann")).unwrap(),
        install_key: [9; 32],
    })
}

pub(super) fn gate(policy: &str) -> Gate {
    gate_with(&format!("layer2 = \"off\"\n{policy}"), None)
}

pub(super) fn inbound(request: &Value) -> Inbound<'_> {
    Inbound {
        request,
        model: "big",
        client: "me",
        session: None,
        approval: None,
        style: None,
        dry_run: false,
    }
}

pub(super) fn user(text: &str) -> Value {
    json!({"model": "cloud/x", "messages": [{"role": "user", "content": text}]})
}

pub(super) fn sent(decision: Decision) -> GatedBody {
    match decision {
        Decision::Send(body) => *body,
        other => panic!("not sent: {other:?}"),
    }
}

fn body_of(gate: &Gate, request: &Value) -> Value {
    serde_json::from_slice(sent(gate.check(inbound(request))).bytes()).unwrap()
}

fn content(gate: &Gate, text: &str) -> String {
    body_of(gate, &user(text))["messages"][0]["content"].as_str().unwrap().to_owned()
}

pub(super) fn restored(body: &GatedBody, text: &str) -> String {
    let mut lane = Lane::text(Arc::clone(body.restore()));
    lane.push(text) + &lane.finish()
}

#[test]
fn values_are_masked_everywhere_and_come_back() {
    let gate = gate("[categories]\ncard = \"mask\"");
    let request = json!({
        "model": "cloud/x",
        "user": "ann@x.example",
        "privacy": {"session": "s"},
        "messages": [
            {"role": "system", "content": "You help Ann Lee."},
            {"role": "user", "content": [{"type": "text", "text": "I am ANN LEE; mail ann@x.example or bob@y.example."}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function":
                {"name": "mail", "arguments": "{\"to\":\"ann@x.example\",\"Ann Lee\":\"\\u0061nn@x.example\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "Lee paid with 4111 1111 1111 1111 (4111-1111-1111-1111)"}
        ],
        "tools": [{"type": "function", "function": {"name": "mail", "description": "writes to ann@x.example", "parameters": {}}}]
    });
    let body = sent(gate.check(inbound(&request)));
    let text = std::str::from_utf8(body.bytes()).unwrap();
    for private in ["Ann", "ANN", "Lee", "x.example", "y.example", "4111", "\"privacy\"", "cloud/x"] {
        assert!(!text.contains(private), "{private} in {text}");
    }
    let out: Value = serde_json::from_str(text).unwrap();
    assert_eq!(out["model"], "big");
    assert_eq!(out["messages"][2]["tool_calls"][0]["function"]["name"], "mail");
    let shown = restored(&body, text);
    for original in [
        "You help Ann Lee.",
        "I am ANN LEE; mail ann@x.example or bob@y.example.",
        "Lee paid with 4111 1111 1111 1111 (4111-1111-1111-1111)",
    ] {
        assert!(shown.contains(original), "{original} in {shown}");
    }
    assert_eq!(*body.sha256(), hash::sha256(body.bytes()));
    let report = body.report();
    assert_eq!(report.verdict, Verdict::Mask);
    assert_eq!(report.swept, 3, "ANN LEE, Lee, and the card's other spelling: {report:?}");
    assert!(report.spans.iter().all(|s| s.token.as_deref().is_some_and(|t| t.starts_with('⟦'))));
    let json = serde_json::to_string(report).unwrap();
    assert!(!json.contains("x.example") && !json.contains("Lee"), "reports hold no values: {json}");
}

#[test]
fn a_request_without_private_values_leaves_as_it_is() {
    let request = json!({"model": "cloud/x", "temperature": 0.25, "messages": [{"role": "user", "content": "What is a heron? ⟦x"}]});
    let gate = gate("");
    let body = sent(gate.check(inbound(&request)));
    let mut expected = request.clone();
    expected["model"] = "big".into();
    assert_eq!(body.bytes(), expected.to_string().as_bytes());
    assert_eq!(body.report().verdict, Verdict::Allow);
}

#[test]
fn stand_ins_are_stable_over_turns_and_apart_between_sessions() {
    let gate = gate("");
    let first = content(&gate, "mail ann@x.example");
    let mut turns = user("mail ann@x.example");
    turns["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": "To bob@y.example as well?"}),
        json!({"role": "user", "content": "yes, and ann@x.example"}),
    ]);
    let later = body_of(&gate, &turns);
    assert_eq!(later["messages"][0]["content"], first.as_str(), "the provider's prefix cache keeps working");
    let other = content(&gate, "please mail ann@x.example");
    assert_ne!(first.rsplit('·').next(), other.rsplit('·').next(), "another conversation has another tag");
    let named = |client: &str, session: &str| {
        let request = user("mail ann@x.example");
        let inbound = Inbound { client, session: Some(session), ..inbound(&request) };
        String::from_utf8(sent(gate.check(inbound)).bytes().to_vec()).unwrap()
    };
    assert_eq!(named("me", "s1"), named("me", "s1"));
    assert_ne!(named("me", "s1"), named("me", "s2"));
    assert_ne!(named("me", "s1"), named("you", "s1"), "two clients never share a session");
}

#[test]
fn only_stand_ins_that_left_come_back() {
    let gate = gate("");
    let session = Some("s");
    let (one, two) = (user("mail ann@x.example"), user("mail bob@y.example"));
    let a = sent(gate.check(Inbound { session, ..inbound(&one) }));
    let b = sent(gate.check(Inbound { session, ..inbound(&two) }));
    let of_a = std::str::from_utf8(a.bytes()).unwrap();
    assert!(restored(&a, of_a).contains("ann@x.example"));
    assert!(!restored(&b, of_a).contains("ann@x.example"), "the same session, but another request");
}

#[test]
fn concurrent_sessions_have_disjoint_vaults() {
    let gate = Arc::new(gate(""));
    let all = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..8)
        .map(|t| {
            let (gate, all) = (Arc::clone(&gate), Arc::clone(&all));
            std::thread::spawn(move || {
                for i in 0..50 {
                    let request =
                        user(if i % 2 == 0 { "ann@x.example" } else { "bob@y.example and Ann Lee" });
                    let session = format!("{t}-{i}");
                    let body = sent(gate.check(Inbound { session: Some(&session), ..inbound(&request) }));
                    all.lock().unwrap().push((i % 2, body));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let all = all.lock().unwrap();
    for (i, (_, a)) in all.iter().enumerate() {
        let text = std::str::from_utf8(a.bytes()).unwrap();
        for (j, (_, b)) in all.iter().enumerate().skip(i % 7).step_by(7) {
            let back = restored(b, text);
            assert_eq!(back != text, i == j, "request {i} restored by {j}");
        }
    }
}

#[test]
fn secrets_never_come_back() {
    let gate = gate("");
    let body = sent(gate.check(inbound(&user("key sk-live-12345678 and again: SK-LIVE-12345678"))));
    let text = std::str::from_utf8(body.bytes()).unwrap();
    assert!(text.contains("SECRET_1") && !text.to_lowercase().contains("sk-live"), "{text}");
    assert_eq!(restored(&body, text), text);
    assert_eq!(body.report().spans[0].verdict, SpanVerdict::Strip);
    // Once stripped, always stripped, even where a tool's rule would only mask it.
    let gate = self::gate("[tools.t.categories]\nsecret = \"mask\"");
    let mut request = user("sk-live-12345678");
    request["messages"].as_array_mut().unwrap().insert(
        0,
        json!({"role": "assistant", "tool_calls": [{"id": "c", "type": "function",
        "function": {"name": "t", "arguments": "{\"k\":\"sk-live-12345678\"}"}}]}),
    );
    let body = sent(gate.check(inbound(&request)));
    let text = std::str::from_utf8(body.bytes()).unwrap();
    assert_eq!(restored(&body, text), text);
}

#[test]
fn look_alikes_are_escaped_and_come_back() {
    for style in ["unicode", "ascii"] {
        let gate = gate(&format!("style = \"{style}\""));
        let said = "⟦PERSON_1·abcd⟧ [[EMAIL_1_k7qp]] [[1, 2]] ⟦⟧ ann@x.example [[[EMAIL_3]]]";
        let request = user(said);
        let body = sent(gate.check(inbound(&request)));
        let out: Value = serde_json::from_slice(body.bytes()).unwrap();
        let masked = out["messages"][0]["content"].as_str().unwrap();
        assert!(
            !masked.contains("abcd") && !masked.contains("EMAIL_3") && masked.contains("[[1, 2]]"),
            "{masked}"
        );
        assert_eq!(restored(&body, masked), said);
        // The very stand-ins of the session, sent back by a client or planted in a document: text like any other.
        let mut turns = request.clone();
        turns["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": masked}));
        let body = sent(gate.check(inbound(&turns)));
        let out: Value = serde_json::from_slice(body.bytes()).unwrap();
        let again = out["messages"][1]["content"].as_str().unwrap();
        assert_eq!(restored(&body, again), masked, "they come back as they were, not as originals");
    }
    // A stripped value's stand-in, which answers keep, may go out again as it is.
    let gate = gate("");
    let mut turns = user("sk-live-12345678");
    let masked = content(&gate, "sk-live-12345678");
    turns["messages"]
        .as_array_mut()
        .unwrap()
        .push(json!({"role": "assistant", "content": format!("Your {masked} works")}));
    assert_eq!(body_of(&gate, &turns)["messages"][1]["content"], format!("Your {masked} works"));
}

#[test]
fn overlapping_values_are_masked_whole() {
    let gate = gate_with(
        "allow = [\"Acme\"]",
        Some(ScriptedProposer::new(&[(ItemType::Address, "example road, Ann"), (ItemType::Org, "Acme")])),
    );
    let said = "bob@y.example road, Ann Lee of Acme";
    let request = user(said);
    let body = sent(gate.check(inbound(&request)));
    let text = std::str::from_utf8(body.bytes()).unwrap();
    assert!(!text.contains("road") && !text.contains("Lee") && !text.contains("bob"), "{text}");
    assert!(text.contains(" of Acme"), "an allowed term that layer 2 named");
    assert!(restored(&body, text).contains(said));
}

#[test]
fn layer_two_adds_and_topics_keep() {
    let mut script = ScriptedProposer::new(&[(ItemType::Person, "Zed"), (ItemType::Health, "has gout")]);
    script.topics.push(("therapy".into(), Reason::Health));
    let gate = gate_with("", Some(script));
    let out = content(&gate, "Zed has gout; Zed said so. ann@x.example");
    assert!(!out.contains("Zed") && !out.contains("gout") && !out.contains("ann@"), "{out}");
    let kept = gate.check(inbound(&user("my therapy")));
    assert_eq!(kept.verdict(), Verdict::Local);
    let Decision::Local(kept) = kept else { panic!() };
    assert!(kept.reason.contains("health"), "{}", kept.reason);
    assert_eq!(kept.report.layer2, "looked");
}

#[test]
fn without_layer_two_nothing_leaves_unless_the_policy_says_so() {
    let request = user("hello");
    let Decision::Refuse(kept) = gate_with("", None).check(inbound(&request)) else { panic!() };
    assert_eq!(kept.cause, Cause::NoLayer2);
    assert!(kept.reason.contains("layer2 = \"off\""), "{}", kept.reason);
    let Decision::Refuse(kept) = gate_with("layer2 = \"model\"", None).check(inbound(&request)) else {
        panic!()
    };
    assert_eq!(kept.cause, Cause::NoLayer2);
    let looked = gate_with("layer2 = \"model\"", Some(ScriptedProposer::new(&[])));
    assert_eq!(sent(looked.check(inbound(&request))).report().layer2, "looked");
    assert_eq!(sent(gate("").check(inbound(&request))).report().layer2, "off");
}

#[test]
fn a_layer_two_that_fails_keeps_the_request() {
    for fault in [
        Fault::Unavailable,
        Fault::Slow(Duration::from_millis(400)),
        Fault::Panic,
        Fault::Garbage,
        Fault::Truncated,
        Fault::Invented,
        Fault::TooMany,
        Fault::Asleep,
    ] {
        for (failure, verdict) in [("local", Verdict::Local), ("refuse", Verdict::Refuse)] {
            let policy = format!("layer2_timeout_ms = 200\nlayer2_failure = \"{failure}\"");
            let gate = gate_with(&policy, Some(ScriptedProposer::failing(fault)));
            let decision = gate.check(inbound(&user("hello ann@x.example")));
            assert_eq!(decision.verdict(), verdict, "{fault:?}");
            let (Decision::Local(kept) | Decision::Refuse(kept)) = decision else { panic!() };
            assert_eq!((kept.cause, kept.report.layer2), (Cause::Layer2, "failed"));
        }
    }
}

#[test]
fn a_recogniser_that_fails_shuts_the_gate() {
    for text in ["PANIC", "BADRANGE"] {
        let gate = gate("");
        assert!(gate.ready().is_ok());
        for said in [text, "harmless"] {
            let Decision::Refuse(kept) = gate.check(inbound(&user(said))) else { panic!() };
            assert_eq!(kept.cause, Cause::Broken, "{said}");
        }
        assert_eq!(gate.ready().unwrap_err().0, Cause::Broken);
    }
}

#[test]
fn what_the_gate_does_not_know_is_refused_dropped_or_masked() {
    let request = json!({"model": "cloud/x", "messages": [], "session_note": "for ann@x.example", "trace": {"Ann Lee": 1}, "metadata": {"a": "b"}});
    let Decision::Refuse(kept) = gate("").check(inbound(&request)) else { panic!() };
    assert_eq!((kept.cause, kept.path.as_deref()), (Cause::Request, Some("/session_note")));
    let dropped = sent(gate("unknown_fields = \"drop\"").check(inbound(&request)));
    assert_eq!(dropped.report().dropped_fields, ["session_note", "trace"]);
    assert_eq!(dropped.bytes(), br#"{"model":"big","messages":[],"metadata":{"a":"b"}}"#);
    let masked = sent(gate("unknown_fields = \"mask\"").check(inbound(&request)));
    let text = std::str::from_utf8(masked.bytes()).unwrap();
    let out: Value = serde_json::from_str(text).unwrap();
    assert!(!text.contains("ann@") && !text.contains("Ann Lee"), "{text}");
    assert_eq!(out["metadata"], json!({"a": "b"}));
    assert!(out["session_note"].as_str().unwrap().starts_with("for ⟦EMAIL_1·"));
    assert_eq!(masked.report().spans[0].path, "/session_note");
    assert_eq!(restored(&masked, text).matches("ann@x.example").count(), 1);
    // Deeper down, the unknown is refused whatever the policy says.
    let deep = json!({"messages": [{"role": "user", "content": "x", "mood": "y"}]});
    assert_eq!(gate("unknown_fields = \"mask\"").check(inbound(&deep)).verdict(), Verdict::Refuse);
    // A client's own metadata of the carrier's shape comes through unchanged.
    let shaped = json!({"messages": [], "metadata": {"m": 1, "x": {"model": "evil"}}});
    let out = body_of(&gate("unknown_fields = \"mask\""), &shaped);
    assert_eq!((&out["metadata"], &out["model"]), (&shaped["metadata"], &json!("big")));
}

#[test]
fn what_cannot_be_read_stays() {
    let image = json!([{"type": "image_url", "image_url": {"url": "https://x"}}]);
    let request = json!({"messages": [{"role": "user", "content": image}]});
    let Decision::Local(kept) = gate("").check(inbound(&request)) else { panic!() };
    assert_eq!(kept.cause, Cause::Unreadable);
    let nested = (0..80).fold(json!(1), |v, _| json!([v]));
    let Decision::Refuse(kept) = gate("").check(inbound(&json!({"messages": [], "metadata": nested}))) else {
        panic!()
    };
    assert_eq!(kept.cause, Cause::Request);
}

#[test]
fn policies_keep_and_refuse() {
    for (policy, text, verdict) in [
        ("[categories]\ncard = \"local\"", "4111 1111 1111 1111", Verdict::Local),
        (
            "[categories]\ncard = \"refuse\"\nemail = \"local\"",
            "ann@x.example 4111 1111 1111 1111",
            Verdict::Refuse,
        ),
        ("[categories]\nemail = \"allow\"", "ann@x.example", Verdict::Allow),
        ("[[paths]]\nglob = \"~/tax/**\"\naction = \"local\"", "read ~/tax/2024.pdf", Verdict::Local),
    ] {
        assert_eq!(gate(policy).check(inbound(&user(text))).verdict(), verdict, "{policy}");
    }
    let gate = gate("[tools.read]\nresult = \"local\"");
    let request = json!({"messages": [
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "anything"}]});
    assert_eq!(gate.check(inbound(&request)).verdict(), Verdict::Local);
}

#[test]
fn the_owners_patterns_are_found_in_requests_and_answers() {
    let gate = gate(
        "response_redact = \"all\"\n[[patterns]]\nname = \"employee\"\nregex = '\\bE-\\d{6}\\b'\ncategory = \"other\"",
    );
    let request = user("E-123456 writes to ann@x.example");
    let body = sent(gate.check(inbound(&request)));
    let span = &body.report().spans[0];
    assert_eq!((span.recognizer.as_str(), span.subtype.as_deref()), ("policy_pattern", Some("employee")));
    let text = std::str::from_utf8(body.bytes()).unwrap();
    assert!(!text.contains("123456"), "{text}");
    assert_eq!(restored(&body, "⟦VALUE_1 and E-654321 and E-123456"), "⟦VALUE_1 and [redacted] and E-123456");
}

#[test]
fn names_and_ids_that_hold_values_are_refused() {
    let request = json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "sk-live-12345678", "type": "function",
        "function": {"name": "f", "arguments": "{}"}}]}]});
    let Decision::Refuse(kept) = gate("").check(inbound(&request)) else { panic!() };
    assert!(kept.reason.contains("rename"), "{}", kept.reason);
}

#[test]
fn consent_is_for_one_request_once() {
    let gate = gate("[categories]\nphone = \"ask\"");
    let request = user("call 555-010-2345");
    let approval = || match gate.check(inbound(&request)) {
        Decision::Ask(consent) => consent.approval,
        other => panic!("{other:?}"),
    };
    let with = |request: &Value, approval: &str| {
        gate.check(Inbound { approval: Some(approval), ..inbound(request) })
    };
    let refused =
        |decision: Decision| matches!(decision, Decision::Refuse(kept) if kept.cause == Cause::Approval);

    let id = approval();
    let body = sent(with(&request, &id));
    let text = std::str::from_utf8(body.bytes()).unwrap();
    assert!(
        !text.contains("555") && restored(&body, text).contains("555-010-2345"),
        "masked, with consent too"
    );
    assert_eq!(body.approval(), Some(id.as_str()));
    assert!(refused(with(&request, &id)), "used up");

    let id = approval();
    assert!(refused(with(&user("call 555-010-2345 now"), &id)), "another body");
    assert!(refused(with(&request, &id)), "and used up by that");
    assert!(refused(with(&request, "apr_00")), "never issued");
    let id = approval();
    assert!(
        refused(gate.check(Inbound { approval: Some(&id), client: "you", ..inbound(&request) })),
        "another client"
    );
    let id = approval();
    assert!(refused(with(&user("nothing private"), &id)), "not even with a request that needs none");
    // The field that carries the consent is not part of what was consented to.
    let id = approval();
    let mut carried = request.clone();
    carried["privacy"] = json!({"approval": id});
    sent(with(&carried, &id));
    // A stricter finding than `ask` is not overruled by consent.
    let strict = self::gate("[categories]\nphone = \"ask\"\ncard = \"local\"");
    let both = user("555-010-2345 4111 1111 1111 1111");
    assert_eq!(strict.check(Inbound { approval: Some("apr_1"), ..inbound(&both) }).verdict(), Verdict::Local);
}

#[test]
fn a_dry_run_leaves_no_trace() {
    let gate = gate("[categories]\nphone = \"ask\"");
    let request = user("ann@x.example");
    let body = sent(gate.check(Inbound { dry_run: true, ..inbound(&request) }));
    assert!(!std::str::from_utf8(body.bytes()).unwrap().contains("ann@"));
    assert!(gate.vaults().is_empty());
    let request = user("555-010-2345");
    let Decision::Ask(consent) = gate.check(Inbound { dry_run: true, ..inbound(&request) }) else { panic!() };
    assert!(consent.approval.is_empty());
}

#[test]
fn the_ascii_form() {
    let policy = Policy::parse("layer2 = \"off\"\nstyle = \"ascii\"", None).unwrap();
    assert_eq!(policy.style, Style::Ascii);
    let masked = content(&gate("style = \"ascii\""), "ann@x.example");
    assert!(masked.starts_with("[[EMAIL_1_") && masked.is_ascii(), "{masked}");
    // A client may ask for the other form, in the middle of a session too; either comes back.
    let gate = gate("");
    for style in [None, Some(Style::Ascii), Some(Style::Unicode)] {
        let request = user("ann@x.example");
        let body = sent(gate.check(Inbound { style, session: Some("a"), ..inbound(&request) }));
        let text = String::from_utf8(body.bytes().to_vec()).unwrap();
        assert_eq!(text.contains("[[EMAIL_1_"), style == Some(Style::Ascii), "{text}");
        assert!(restored(&body, &text).contains("ann@x.example"), "{text}");
    }
}
