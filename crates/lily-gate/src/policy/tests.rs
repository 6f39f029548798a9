use super::*;
use crate::FieldPart;

fn field(text: &str, role: FieldRole, tool: Option<&str>) -> Field {
    Field {
        path: "/x".into(),
        part: FieldPart::Value,
        text: text.into(),
        role,
        tool: tool.map(Into::into),
        key: None,
    }
}

fn user(text: &str) -> Field {
    field(text, FieldRole::User, None)
}

#[test]
fn every_default_is_the_safe_one() {
    for policy in [Policy::default(), Policy::parse("", None).unwrap()] {
        assert_eq!(policy.layer2, Layer2::Required);
        assert_eq!(policy.layer2_failure, OnFailure::Local);
        assert_eq!(policy.unknown_fields, UnknownFields::Refuse);
        assert_eq!(policy.response_redact, ResponseRedact::Secrets);
        assert_eq!(policy.on_unreachable, OnUnreachable::Error);
        assert_eq!(policy.budget.action, Action::Ask);
        assert_eq!(policy.sink("anything"), Sink::Network);
        for category in Category::ALL {
            let expected = match category {
                Category::Card | Category::NationalId | Category::Secret => Action::Strip,
                _ => Action::Mask,
            };
            assert_eq!(policy.category(category), expected, "{category}");
        }
        assert_eq!(policy.topic(Topic::Health), Action::Local);
        assert_eq!(policy.digest(), Policy::default().digest());
    }
}

#[test]
fn the_documented_example_reads() {
    let example: String = include_str!("../policy.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! "))
        .skip_while(|line| !line.starts_with("```toml"))
        .skip(1)
        .take_while(|line| !line.starts_with("```"))
        .map(|line| format!("{line}\n"))
        .collect();
    let policy = Policy::parse(&example, Some("/home/ann")).unwrap();
    assert_eq!(policy.tools["read_file"].result, Some(Action::Local));
    assert_ne!(policy.digest(), Policy::default().digest());
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    for (text, word) in [
        ("layer_2 = \"off\"", "layer_2"),
        ("layer2 = \"maybe\"", "maybe"),
        ("[budget]\nvalue = 1", "value"),
        ("[budget]\naction = \"mask\"", "budget.action"),
        ("[categories]\ncards = \"mask\"", "cards"),
        ("[categories]\ncard = \"hide\"", "hide"),
        ("[topics]\nsports = \"local\"", "sports"),
        ("[tools.x]\nsinks = \"local\"", "sinks"),
        ("[[paths]]\nglob = \"a[\"\naction = \"local\"", "a["),
        ("[[paths]]\nglob = \" \"\naction = \"local\"", "empty"),
        ("[[paths]]\nglob = \"a\"", "action"),
        ("[[patterns]]\nname = \"n\"\nregex = \"(\"\ncategory = \"other\"", "\"n\""),
        ("[[patterns]]\nname = \"n\"\nregex = \"x*\"\ncategory = \"other\"", "empty text"),
        ("layer2_timeout_ms = 0", "layer2_timeout_ms"),
        ("session_minutes = 99999999", "session_minutes"),
        ("layer2 = ", "layer2"),
        ("\u{0}", "policy"),
    ] {
        let error = Policy::parse(text, None).unwrap_err().to_string();
        assert!(error.contains(word), "{text:?}: {error}");
    }
}

#[test]
fn tools_have_their_own_actions_and_sinks() {
    let policy = Policy::parse(
        "[categories]\nphone = \"ask\"\n[tools.read]\nsink = \"local\"\nresult = \"local\"\n[tools.read.categories]\nphone = \
         \"allow\"\n[tools.mail]\nrestore = [\"to\"]",
        None,
    )
    .unwrap();
    let result = field("x", FieldRole::ToolResult, Some("read"));
    assert_eq!(policy.span(Category::Phone, &result), Action::Allow);
    assert_eq!(policy.span(Category::Phone, &user("x")), Action::Ask);
    assert_eq!(policy.span(Category::Email, &result), Action::Mask);
    assert_eq!(policy.field(&result).unwrap().0, Action::Local);
    assert!(policy.field(&field("x", FieldRole::ToolArgument, Some("read"))).is_none());
    assert!(policy.restores("read", "anything"));
    assert!(
        policy.restores("mail", "to") && !policy.restores("mail", "body") && !policy.restores("web", "to")
    );
}

#[test]
fn paths_are_found_in_any_text() {
    let text = "[[paths]]\nglob = \"~/Documents/tax/**\"\naction = \"local\"\n[[paths]]\nglob = \
                \"/srv/*.db\"\naction = \"refuse\"\n[[paths]]\nglob = \"**/.ssh/**\"\naction = \"ask\"";
    let policy = Policy::parse(text, Some("/home/ann")).unwrap();
    let action = |text: &str| policy.field(&user(text)).map(|(action, _)| action);
    for mention in [
        "look at ~/Documents/tax/2024.pdf please",
        "~/Documents/tax/a/b.txt",
        "/home/ann/Documents/tax/2024.pdf",
        "'/home/ann/Documents/tax/x y.pdf'",
        "/home/ann/Documents/tax/my file.pdf",
        "file:///home/ann/Documents/tax/2024.pdf",
        "(/home/ann/Downloads/../Documents/tax/2024.pdf)",
        "/HOME/ann/documents/TAX/2024.pdf",
        "read ~/Documents/tax.",
        "ls ~/Documents/tax/",
        "~\\Documents\\tax\\2024.pdf",
    ] {
        assert_eq!(action(mention), Some(Action::Local), "{mention}");
    }
    assert_eq!(
        action("dump /srv/users.db and ~/Documents/tax/a"),
        Some(Action::Refuse),
        "the strictest counts"
    );
    assert_eq!(action("cat /home/bob/.ssh/id_ed25519"), Some(Action::Ask));
    for other in
        ["~/Documents/taxes.txt", "/srv/deep/users.db", "no path at all", "and/or", "https://x.example/tax"]
    {
        assert_eq!(action(other), None, "{other}");
    }
}
