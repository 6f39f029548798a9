//! That there is one way out: no crate but this one has an HTTP client, and here only `egress.rs` uses it.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Crates that can open a connection to another machine.
const CLIENTS: &[&str] = &[
    "reqwest",
    "ureq",
    "curl",
    "isahc",
    "surf",
    "attohttpc",
    "minreq",
    "awc",
    "hyper-rustls",
    "hyper-tls",
    "async-openai",
    "hf-hub",
    "tungstenite",
    "tokio-tungstenite",
    "native-tls",
    "openssl",
    "quinn",
    "ssh2",
    "lettre",
    "http-req",
    "h2",
    "tonic",
    "rustls",
    "tokio-rustls",
    "opentelemetry-otlp",
    "sentry",
];

/// Names of a table's dependencies in a manifest.
fn dependencies(manifest: &toml::Table, table: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut add = |table: Option<&toml::Value>| {
        for (name, value) in table.and_then(toml::Value::as_table).into_iter().flatten() {
            let package = value.get("package").and_then(toml::Value::as_str);
            names.push(package.unwrap_or(name).to_owned());
        }
    };
    add(manifest.get(table));
    for target in manifest.get("target").and_then(toml::Value::as_table).into_iter().flatten() {
        add(target.1.get(table));
    }
    names
}

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_other_crate_has_an_http_client() {
    let mut crates = 0;
    for entry in fs::read_dir(workspace().join("crates")).unwrap().map(Result::unwrap) {
        let Ok(text) = fs::read_to_string(entry.path().join("Cargo.toml")) else { continue };
        let manifest: toml::Table = text.parse().unwrap();
        let name = entry.file_name().into_string().unwrap();
        crates += 1;
        // Tests may talk to the server; what is built may not.
        for table in ["dependencies", "build-dependencies"] {
            for dependency in dependencies(&manifest, table) {
                // `lily pull` downloads checkpoints with it; what it may not do is checked below.
                let allowed = matches!(name.as_str(), "lily-hybrid" | "lily")
                    && matches!(dependency.as_str(), "reqwest" | "rustls");
                assert!(
                    allowed || !CLIENTS.contains(&dependency.as_str()),
                    "{name} depends on {dependency}: whatever leaves this machine goes through lily-hybrid's egress"
                );
            }
        }
    }
    assert!(crates >= 8, "only {crates} crates were looked at");
    let root: toml::Table = fs::read_to_string(workspace().join("Cargo.toml")).unwrap().parse().unwrap();
    let shared = root["workspace"]["dependencies"].as_table().unwrap();
    for name in ["hyper", "hyper-util"] {
        let features = format!("{:?}", shared[name].get("features"));
        assert!(!features.contains("client"), "{name} is a server here: {features}");
    }
}

#[test]
fn no_other_file_opens_connections() {
    let mut files = Vec::new();
    for entry in fs::read_dir(workspace().join("crates")).unwrap().map(Result::unwrap) {
        let source = entry.path().join("src");
        if source.is_dir() {
            rust_files(&source, &mut files);
        }
    }
    assert!(files.len() > 100, "only {} files were looked at", files.len());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        // Test modules may; they are not built in.
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let own = |name: &str| file.ends_with(format!("lily-hybrid/src/{name}"));
        if file.parent().is_some_and(|p| p.ends_with("lily/src/pull")) {
            // Downloads: requests without a body.
            for word in [
                ".post(",
                ".put(",
                ".patch(",
                ".request(",
                ".body(",
                ".json(&",
                ".form(",
                ".multipart(",
                "Method::",
            ] {
                assert!(!text.contains(word), "{} uses {word}: a download sends nothing", file.display());
            }
            continue;
        }
        for (word, allowed) in [
            ("reqwest::Client", own("egress.rs")),
            ("Client::builder", own("egress.rs")),
            ("TcpStream::connect", false),
            ("TcpSocket", false),
            ("UdpSocket", false),
            ("UnixStream::connect", false),
            (".connect(", false),
        ] {
            assert!(allowed || !text.contains(word), "{} uses {word}", file.display());
        }
        if text.contains("reqwest") {
            let parts = ["egress.rs", "cloud.rs", "config.rs"];
            assert!(parts.iter().any(|p| own(p)), "{} names reqwest", file.display());
        }
    }
}

/// What can be sent is made by the gate alone: its fields are private, and nothing but `Gate::check` builds one.
#[test]
fn gated_bodies_are_made_in_one_place() {
    let mut files = Vec::new();
    for entry in fs::read_dir(workspace().join("crates")).unwrap().map(Result::unwrap) {
        let source = entry.path().join("src");
        if source.is_dir() {
            rust_files(&source, &mut files);
        }
    }
    let mut made = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        made.extend(text.match_indices("GatedBody {").filter_map(|(at, _)| {
            let before = text[..at].trim_end();
            let is_type = before.ends_with("struct") || before.ends_with("impl") || before.ends_with("->");
            (!is_type).then(|| file.display().to_string())
        }));
    }
    assert_eq!(made.len(), 1, "{made:?}");
    assert!(made[0].ends_with("lily-gate/src/body/mod.rs"), "{made:?}");
    let gate = fs::read_to_string(workspace().join("crates/lily-gate/src/body/mod.rs")).unwrap();
    let body = gate.split("pub struct GatedBody {").nth(1).unwrap().split('}').next().unwrap();
    assert!(!body.contains("pub "), "{body}");
}

/// The table of PRIVACY.md names a test for every way to fail; each of them is there.
#[test]
fn every_way_to_fail_has_its_tests() {
    let text = fs::read_to_string(workspace().join("PRIVACY.md")).unwrap();
    let table = text.split("| event | result | tests |").nth(1).unwrap();
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= 9, "{} rows", rows.len());
    for row in rows {
        let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{row}");
        for name in names {
            let (file, test) = name.split_once("::").unwrap_or_else(|| panic!("{name}: expected FILE::TEST"));
            let path = workspace().join("crates").join(file);
            let source = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let function = format!("fn {test}()");
            let at = source.find(&function).unwrap_or_else(|| panic!("{file} has no {test}"));
            assert!(
                source[..at].trim_end().rsplit('\n').take(2).any(|l| l.contains("test")),
                "{name} is no test"
            );
        }
    }
}
