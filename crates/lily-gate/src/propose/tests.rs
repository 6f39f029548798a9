use std::{sync::Arc, time::Duration};

use super::{layer2::Looker, *};

fn look(proposer: ScriptedProposer, text: &str) -> Result<Vec<String>, FailureKind> {
    let looker = Looker::new(Arc::new(proposer));
    let found = looker.look(text, "policy", 8, Duration::from_millis(300)).map_err(|f| f.kind)?;
    Ok(found.items.iter().map(|item| item.v.clone()).collect())
}

#[test]
fn values_are_found_and_planted_ones_are_not_told() {
    let script = || ScriptedProposer::new(&[(ItemType::Person, "Ann Lee"), (ItemType::Org, "Acme")]);
    assert_eq!(look(script(), "Ann Lee works here").unwrap(), ["Ann Lee"]);
    assert!(look(script(), "nothing").unwrap().is_empty());
    assert!(
        look(ScriptedProposer::failing(Fault::Unavailable), " \n ").unwrap().is_empty(),
        "blank: nothing to ask"
    );
    let long = format!("{} Ann Lee {}", "word ".repeat(4000), "word ".repeat(4000));
    assert!(look(script(), &long).unwrap().contains(&"Ann Lee".to_owned()));
}

#[test]
fn every_fault_is_told_apart_and_none_says_allow() {
    for (fault, kind) in [
        (Fault::Unavailable, FailureKind::Unavailable),
        (Fault::Panic, FailureKind::Unavailable),
        (Fault::Slow(Duration::from_secs(2)), FailureKind::Timeout),
        (Fault::Garbage, FailureKind::Invalid),
        (Fault::Truncated, FailureKind::Invalid),
        (Fault::Invented, FailureKind::Invalid),
        (Fault::TooMany, FailureKind::TooMany),
        (Fault::Asleep, FailureKind::CanaryMissed),
    ] {
        assert_eq!(look(ScriptedProposer::failing(fault), "some text").unwrap_err(), kind, "{fault:?}");
    }
}

#[test]
fn proposals_of_another_shape_are_refused() {
    for wrong in [
        r#"{"verdict":"allow","reason":"none","items":[],"note":"x"}"#,
        r#"{"verdict":"clear","reason":"none","items":[]}"#,
        r#"{"verdict":"allow","reason":"none","items":[{"t":"person","v":"a","sure":1}]}"#,
        r#"{"verdict":"allow","items":[]}"#,
        "[]",
    ] {
        assert!(serde_json::from_str::<Proposal>(wrong).is_err(), "{wrong}");
    }
}
