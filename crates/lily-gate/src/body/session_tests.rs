//! What a session gives away, and how its stand-ins look.

use super::{
    tests::{gate, inbound, restored, sent, user},
    *,
};

/// What the session `name` gets for a text.
fn in_session(gate: &Gate, name: &str, text: &str, approval: Option<&str>) -> Decision {
    gate.check(Inbound { session: Some(name), approval, ..inbound(&user(text)) })
}

#[test]
fn a_session_gives_away_no_more_than_its_budget() {
    let gate = gate("budget.values = 2\nbudget.action = \"local\"");
    let ask = |session: &str, text: &str| in_session(&gate, session, text, None);
    sent(ask("a", "ann@x.example and ann@x.example"));
    sent(ask("a", "ann@x.example, bob@y.example"));
    // Known values do not count again, and look-alikes of stand-ins are no values.
    sent(ask("a", "bob@y.example and ⟦PERSON_9·zzzz⟧"));
    let Decision::Local(kept) = ask("a", "call 555-010-2345") else { panic!() };
    assert!(kept.reason.contains("3 values masked, at most 2"), "{}", kept.reason);
    assert_eq!(kept.cause, Cause::Policy);
    sent(ask("a", "nothing"));
    sent(ask("b", "call 555-010-2345"));
    let one = "ann@x.example bob@y.example 555-010-2345";
    assert_eq!(ask("c", one).verdict(), Verdict::Local, "one request alone is beyond it");
}

#[test]
fn what_leaves_in_clear_and_bytes_are_bounded_too() {
    let gate = gate(
        "budget.clear = 1\nbudget.kib = 2\nbudget.action = \"refuse\"\n[categories]\nphone = \"allow\"\nemail = \"allow\"",
    );
    let ask = |session: &str, text: &str| in_session(&gate, session, text, None);
    sent(ask("a", "555-010-2345, 555-010-2345"));
    sent(ask("a", "again 555-010-2345"));
    let Decision::Refuse(kept) = ask("a", "ann@x.example") else { panic!() };
    assert!(kept.reason.contains("2 values in clear, at most 1"), "{}", kept.reason);
    sent(ask("b", &"word ".repeat(300)));
    let Decision::Refuse(kept) = ask("b", &"word ".repeat(300)) else { panic!() };
    assert!(kept.reason.contains("4 KiB sent, at most 2"), "{}", kept.reason);
}

#[test]
fn consent_begins_a_new_budget() {
    let gate = gate("budget.values = 1");
    sent(in_session(&gate, "a", "ann@x.example", None));
    let beyond = "bob@y.example";
    let Decision::Ask(consent) = in_session(&gate, "a", beyond, None) else { panic!() };
    assert!(consent.report.reasons[0].contains("disclosure budget"), "{:?}", consent.report.reasons);
    assert_eq!(in_session(&gate, "a", beyond, None).verdict(), Verdict::Ask, "asking spends nothing");
    sent(in_session(&gate, "a", beyond, Some(&consent.approval)));
    sent(in_session(&gate, "a", "ann@x.example, bob@y.example", None));
    sent(in_session(&gate, "a", "555-010-2345", None));
    assert_eq!(in_session(&gate, "a", "4111 1111 1111 1111", None).verdict(), Verdict::Ask);
}

/// A text that holds every tag there is: a de Bruijn sequence.
fn all_tags() -> String {
    const LETTERS: &[u8] = b"bcdfghjkmnpqrstvwxz23456789";
    const LENGTH: usize = 4;
    fn extend(t: usize, p: usize, word: &mut [usize], out: &mut String) {
        if t > LENGTH {
            if LENGTH.is_multiple_of(p) {
                out.extend(word[1..=p].iter().map(|&letter| char::from(LETTERS[letter])));
            }
            return;
        }
        word[t] = word[t - p];
        extend(t + 1, p, word, out);
        for letter in word[t - p] + 1..LETTERS.len() {
            word[t] = letter;
            extend(t + 1, t, word, out);
        }
    }
    let mut text = String::new();
    extend(1, 1, &mut [0; LENGTH + 1], &mut text);
    let start = text[..LENGTH].to_owned();
    text + &start
}

#[test]
fn without_an_unused_tag_the_request_is_given_up() {
    let text = all_tags();
    for _ in 0..100 {
        assert!(text.contains(&crate::vault::random_tag()));
    }
    let gate = gate("");
    let Decision::Refuse(kept) = gate.check(inbound(&user(&text))) else { panic!() };
    assert_eq!(kept.cause, Cause::Aborted);
    assert!(kept.reason.contains("tag"), "{}", kept.reason);
    assert!(gate.vaults().is_empty());
}

/// The masked text of a request with this text in a session that invents names.
fn invented(gate: &Gate, text: &str) -> (GatedBody, String) {
    let request = user(text);
    let inbound = Inbound { session: Some("s"), ..inbound(&request) };
    let body = sent(gate.check(inbound));
    let out: Value = serde_json::from_slice(body.bytes()).unwrap();
    let masked = out["messages"][0]["content"].as_str().unwrap().to_owned();
    (body, masked)
}

#[test]
fn people_may_get_invented_names() {
    let gate = gate("style = \"surrogate\"");
    let text = "Dear Ann Lee, Ann wrote to ann@x.example; ANN LEE said so, xAnn Lee did not.";
    let (body, masked) = invented(&gate, text);
    assert!(!masked.contains("Ann") && !masked.contains("LEE") && masked.contains("⟦EMAIL_1·"), "{masked}");
    let name: Vec<&str> =
        masked.strip_prefix("Dear ").unwrap().split(", ").next().unwrap().split(' ').collect();
    assert!(name.len() == 2 && name.iter().all(|w| w.bytes().all(|b| b.is_ascii_alphabetic())), "{masked}");
    // A name that touches a letter, and another spelling, could not be told when they come back: plain stand-ins.
    assert!(masked.contains("x⟦PERSON_1·") && masked.contains("⟦PERSON_1.2·"), "{masked}");
    assert_eq!(restored(&body, &masked), text);
    // The answer may use the whole name, a part of it, or bend its case, and cut it anywhere.
    let (first, last) = (name[0], name[1]);
    let said =
        format!("{first} {last}'s mail; {first}: yes. {} {last}? {first}son {last}", first.to_uppercase());
    let expected = format!("Ann Lee's mail; Ann: yes. Ann Lee? {first}son Lee");
    assert_eq!(restored(&body, &said), expected);
    for (at, _) in said.char_indices() {
        let mut lane = crate::restore::Lane::text(Arc::clone(body.restore()));
        let out = lane.push(&said[..at]) + &lane.push(&said[at..]) + &lane.finish();
        assert_eq!(out, expected, "cut at {at}");
    }
    // The same in the next turn; and what already looks like an invented name is escaped, and comes back.
    let (body, again) = invented(&gate, &format!("Ann Lee met {first} {last}"));
    assert!(again.starts_with(&format!("{first} {last} met ⟦TEXT_")), "{again}");
    assert_eq!(restored(&body, &again), format!("Ann Lee met {first} {last}"));
}

#[test]
fn invented_names_are_unlike_the_text_and_each_other() {
    let gate = gate("style = \"surrogate\"");
    let mut names = std::collections::HashSet::new();
    for i in 0..200 {
        let text = "from Ann Lee";
        let request = user(text);
        let session = format!("s{i}");
        let body = sent(gate.check(Inbound { session: Some(&session), ..inbound(&request) }));
        let out = String::from_utf8(body.bytes().to_vec()).unwrap();
        assert_eq!(restored(&body, &out).matches("Ann Lee").count(), 1);
        names.insert(out.split("from ").nth(1).unwrap().split('"').next().unwrap().to_owned());
    }
    assert!(names.len() > 150, "{} of 200 differ: another session's name tells nothing", names.len());
    // A scan of answers for everything would hide invented names: plain stand-ins then.
    let scanned = self::gate("style = \"surrogate\"\nresponse_redact = \"all\"");
    assert!(invented(&scanned, "Dear Ann Lee").1.contains("⟦PERSON_1·"));
}
