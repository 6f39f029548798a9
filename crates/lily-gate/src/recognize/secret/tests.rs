use super::*;
use crate::testing::spans;

fn found(text: &str) -> Vec<(String, String)> {
    static ALL: std::sync::LazyLock<Secrets> = std::sync::LazyLock::new(|| Secrets::new().unwrap());
    spans(text, |s, h| ALL.scan(s, h))
        .into_iter()
        .map(|s| (text[s.range].to_owned(), s.subtype.unwrap().into_owned()))
        .collect()
}

fn holds(text: &str, secret: &str) {
    let got = found(text);
    assert!(got.iter().any(|(s, _)| s.contains(secret)), "{secret:?} in {text:?}: {got:?}");
}

/// A body of the shape from a fixed sequence, without words.
fn sample(notation: &str, seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % n
    };
    let mut out = String::new();
    for item in notation.split(' ') {
        if let Some(literal) = item.strip_prefix('\'') {
            out.push_str(literal.trim_end_matches('\''));
            continue;
        }
        let set: &[u8] = match &item[..1] {
            "d" => b"0123456789",
            "h" | "H" => b"0123456789abcdef",
            "l" => b"0123456789abcdefghijklmnopqrstuvwxyz",
            "u" => b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
            _ => b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
        };
        let count: usize = item[1..].split('-').next().unwrap().parse().unwrap();
        (0..count).for_each(|_| out.push(set[next(set.len())] as char));
    }
    out
}

#[test]
fn every_shape_is_found_where_secrets_stand() {
    for (i, (kind, prefix, body)) in table::SHAPES.iter().enumerate() {
        for seed in 0..4 {
            let secret = format!("{prefix}{}", sample(body, i as u64 * 7 + seed + 1));
            for text in [
                format!("key = \"{secret}\""),
                format!("use {secret} now"),
                format!("X={secret}\n"),
                format!("see {secret}."),
            ] {
                let got = found(&text);
                assert!(got.iter().any(|(s, _)| s.contains(&secret)), "{kind}: {text:?}: {got:?}");
            }
        }
    }
}

#[test]
fn every_provider_is_found_by_its_name() {
    for (i, (kind, names, values)) in table::PROVIDERS.iter().enumerate() {
        let name = names.split('|').next().unwrap();
        for value in values.replace("'|'", "\u{1}").split('|') {
            let secret = sample(&value.replace('\u{1}', "'|'"), i as u64 + 11);
            for text in [
                format!("{name}_api_key = \"{secret}\""),
                format!("{}_TOKEN={secret}\n", name.to_uppercase()),
                format!("\"{name}Secret\": \"{secret}\""),
            ] {
                let got = found(&text);
                assert!(got.iter().any(|(s, _)| s.contains(&secret)), "{kind}: {text:?}: {got:?}");
            }
        }
    }
}

#[test]
fn at_least_a_hundred_kinds() {
    assert!(kinds() >= 200, "{}", kinds());
}

#[test]
fn blocks() {
    let pem =
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq5g3k\nabcdef==\n-----END RSA PRIVATE KEY-----";
    assert_eq!(found(&format!("x\n{pem}\ny"))[0].0, pem);
    holds(
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU\nand then text",
        "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU",
    );
    let jwt = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U";
    assert_eq!(found(&format!("t {jwt}, "))[0], (jwt.to_owned(), "jwt".to_owned()));
    holds("postgres://ann:Tr0ub4dor&3@db.example.org:5432/x", "Tr0ub4dor&3");
    holds("Authorization: Bearer 9f86d081884c7d659a2feaa0c55ad015", "9f86d081884c7d659a2feaa0c55ad015");
    holds("curl -u ann:Tr0ub4dor3 https://x", "Tr0ub4dor3");
    holds("machine x.org login ann password Tr0ub4dor3", "Tr0ub4dor3");
    for text in [
        "postgres://user:password@localhost/db",
        "http://${USER}:${PASS}@host/",
        "Authorization: Bearer <token>",
        "redis://:@host",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    ] {
        assert!(found(text).is_empty(), "{text}: {:?}", found(text));
    }
}

#[test]
fn tokens_that_stand_alone() {
    // Put together here, so that scanners of this repository do not take them for real ones.
    let bot = ["MTk4NjIyNDgzNDcxOTI1MjQ4", "Cl2FMQ", "ZnCjm1XVW7vRze4b7Cq4se7kKWs"].join(".");
    let telegram = format!("110201543:AA{}", "HdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1");
    let mailchimp = format!("{}-us12", "9f86d081884c7d659a2feaa0c55ad015");
    for secret in [&bot, &telegram, &mailchimp] {
        for text in [format!("log: {secret} now"), format!("x={secret}\n"), format!("see {secret}.")] {
            holds(&text, secret);
        }
    }
    // Longer numbers, other lengths, names of modules.
    for text in [
        format!("4110201543{telegram}"),
        format!("{telegram}x"),
        "Module_of_something_long1.with_a.name_that_goes_on_and_on_and_on1".to_owned(),
        format!("{mailchimp}3x"),
    ] {
        assert!(found(&text).is_empty(), "{text}: {:?}", found(&text));
    }
}

#[test]
fn assignments() {
    for (text, secret) in [
        ("password = \"Tr0ub4dor&3\"", "Tr0ub4dor&3"),
        ("DB_PASSWORD=s3cr3tPass!\n", "s3cr3tPass!"),
        ("export API_KEY=9f86d081884c7d659a2f", "9f86d081884c7d659a2f"),
        ("\"client_secret\": \"q3Zk9fP0aB7xLm2N\"", "q3Zk9fP0aB7xLm2N"),
        ("<password>Tr0ub4dor3</password>", "Tr0ub4dor3"),
        ("mysql --password=Tr0ub4dor3 -h x", "Tr0ub4dor3"),
        ("my password is Tr0ub4dor3.", "Tr0ub4dor3"),
        ("Passwort: Sommer2024!", "Sommer2024!"),
        ("Server=x;User Id=a;Password=Tr0ub4dor3;", "Tr0ub4dor3"),
        ("https://x.org/?token=9f86d081884c7d659a2f&x=1", "9f86d081884c7d659a2f"),
        ("Your verification code is 493021", "493021"),
        ("PIN: 4821", "4821"),
        ("{\\\"apiKey\\\": \\\"9f86d081884c7d659a2f\\\"}", "9f86d081884c7d659a2f"),
        ("wachtwoord: Zomer2024!", "Zomer2024!"),
        ("密码：Tr0ub4dor3", "Tr0ub4dor3"),
        (
            "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;",
            "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
        ),
    ] {
        holds(text, secret);
    }
}

#[test]
fn code_and_forms() {
    for text in [
        "let token = tokens.next().unwrap();",
        "password: String,",
        "fn login(password: &str, token: Option<Token>)",
        "api_key = os.environ[\"API_KEY\"]",
        "\"password\": \"Enter your password\"",
        "token_type: \"bearer\"",
        "password = get_password_from_user()",
        "secret = \"your-secret-here-1234\"",
        "if token == TokenKind::Ident2 {",
        "PASSWORD=${DB_PASSWORD}",
        "passwordField.text = \"\"",
        "tokenizer = \"bpe-base-v2\"",
        "max_tokens: 4096",
        "the secret is to begin",
        "secret_name: my-app-secret-v2",
        "keyboard: \"qwerty\"",
        "pinned: 1234",
        "spinning = 4000",
        "sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "AKIAIOSFODNN7EXAMPLE",
    ] {
        assert!(found(text).is_empty(), "{text}: {:?}", found(text));
    }
}
