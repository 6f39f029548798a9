//! `lily pull` against a hub on this machine that cuts connections, sends other bytes, and lists bad names.

mod common;

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use common::{lily, stderr, stdout, tiny};
use serde_json::{Value, json};
use sha1::Digest as _;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one repository, `owner/tiny`.
struct Hub {
    endpoint: String,
    /// Requests for files, and bytes of their bodies.
    requests: Arc<AtomicUsize>,
    sent: Arc<AtomicUsize>,
}

/// How the hub misbehaves.
#[derive(Clone, Default)]
struct Faults {
    /// Bytes after which a connection for a file is cut.
    cut_after: Option<usize>,
    /// Answers with the whole file whatever range is asked for.
    no_ranges: bool,
    /// One byte of this file is another.
    corrupt: Option<&'static str>,
    /// Entries to list besides.
    extra: Vec<Value>,
}

impl Hub {
    fn start(faults: Faults) -> Self {
        let files: HashMap<String, Vec<u8>> = fs::read_dir(tiny())
            .unwrap()
            .map(|e| e.unwrap())
            .map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap()))
            .collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (requests, sent) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let hub = Self { endpoint, requests: requests.clone(), sent: sent.clone() };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &files, &faults, &requests, &sent);
            }
        });
        hub
    }

    fn pull(&self, to: &Path, more: &[&str]) -> Output {
        let mut command = lily();
        command.env_remove("HF_TOKEN").env_remove("HF_ENDPOINT");
        command.args(["pull", "owner/tiny", "--endpoint", &self.endpoint, "--to"]).arg(to).args(more);
        command.output().unwrap()
    }
}

fn listing(files: &HashMap<String, Vec<u8>>, extra: &[Value]) -> Value {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let mut siblings: Vec<Value> = files
        .iter()
        .map(|(name, bytes)| {
            let mut git = sha1::Sha1::new();
            git.update(format!("blob {}\0", bytes.len()));
            git.update(bytes);
            let mut entry = json!({"rfilename": name, "size": bytes.len(), "blobId": hex(&git.finalize())});
            if name.ends_with(".safetensors") {
                entry["lfs"] = json!({"sha256": hex(&sha2::Sha256::digest(bytes)), "size": bytes.len()});
            }
            entry
        })
        .collect();
    siblings.extend_from_slice(extra);
    json!({"sha": COMMIT, "cardData": {"license": "apache-2.0"}, "siblings": siblings})
}

fn answer(
    mut stream: TcpStream,
    files: &HashMap<String, Vec<u8>>,
    faults: &Faults,
    requests: &AtomicUsize,
    sent: &AtomicUsize,
) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_string();
    let headers: Vec<String> = lines.take_while(|l| !l.is_empty()).collect();
    let head = |status: &str, length: usize, more: &str| {
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{more}Connection: close\r\n\r\n")
    };
    if path == "/api/models/owner/tiny/revision/main?blobs=true" {
        let body = listing(files, &faults.extra).to_string();
        let _ = stream
            .write_all((head("200 OK", body.len(), "Content-Type: application/json\r\n") + &body).as_bytes());
        return;
    }
    let name = path.strip_prefix(&format!("/owner/tiny/resolve/{COMMIT}/"));
    let Some((name, bytes)) = name.and_then(|n| files.get_key_value(n)) else {
        let _ = stream.write_all(head("404 Not Found", 0, "").as_bytes());
        return;
    };
    requests.fetch_add(1, Ordering::SeqCst);
    let mut bytes = bytes.clone();
    if faults.corrupt == Some(name.as_str()) {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }
    let range =
        headers.iter().find_map(|h| h.to_lowercase().strip_prefix("range: bytes=").map(str::to_string));
    let from: usize = match range {
        Some(range) if !faults.no_ranges => range.trim_end_matches('-').parse().unwrap(),
        _ => 0,
    };
    let body = &bytes[from..];
    let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
    let more = match from {
        0 => String::new(),
        _ => format!("Content-Range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len()),
    };
    let _ = stream.write_all(head(status, body.len(), &more).as_bytes());
    let part = &body[..faults.cut_after.unwrap_or(usize::MAX).min(body.len())];
    sent.fetch_add(part.len(), Ordering::SeqCst);
    let _ = stream.write_all(part);
}

fn same_files(dir: &Path) {
    for entry in fs::read_dir(tiny()).unwrap().flatten() {
        let copy = fs::read(dir.join(entry.file_name())).unwrap();
        assert!(copy == fs::read(entry.path()).unwrap(), "{:?}", entry.file_name());
    }
    let parts: Vec<PathBuf> = fs::read_dir(dir).unwrap().flatten().map(|e| e.path()).collect();
    assert!(parts.iter().all(|p| p.extension().is_none_or(|e| e != "part")), "{parts:?}");
}

#[test]
fn downloads_verifies_and_does_not_do_it_twice() {
    let (hub, dir) = (Hub::start(Faults::default()), tempfile::tempdir().unwrap());
    let to = dir.path().join("new/model");
    let output = hub.pull(&to, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stdout(&output);
    for expected in ["owner/tiny", COMMIT, "apache-2.0", "verified: "] {
        assert!(said.contains(expected), "{expected} is not in {said}");
    }
    same_files(&to);

    let requests = hub.requests.load(Ordering::SeqCst);
    assert!(hub.pull(&to, &[]).status.success());
    assert_eq!(hub.requests.load(Ordering::SeqCst), requests, "files that are there are not asked for");

    // A file that changed on the disk is seen and replaced.
    fs::write(to.join("config.json"), fs::read(to.join("config.json")).unwrap().to_ascii_uppercase())
        .unwrap();
    let output = hub.pull(&to, &[]);
    assert!(output.status.success() && stderr(&output).contains("config.json"), "{}", stderr(&output));
    same_files(&to);
}

#[test]
fn goes_on_after_cuts() {
    let whole: usize =
        fs::read_dir(tiny()).unwrap().map(|e| e.unwrap().metadata().unwrap().len() as usize).sum();
    let largest = fs::metadata(tiny().join("model.safetensors")).unwrap().len() as usize;
    let hub = Hub::start(Faults { cut_after: Some(largest / 3 + 1), ..Faults::default() });
    let dir = tempfile::tempdir().unwrap();
    let output = hub.pull(dir.path(), &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("trying again"), "{}", stderr(&output));
    same_files(dir.path());
    assert_eq!(hub.sent.load(Ordering::SeqCst), whole, "no byte is downloaded twice");

    // The same from a part that a program before left, and with a server that knows no ranges.
    for no_ranges in [false, true] {
        let hub = Hub::start(Faults { no_ranges, ..Faults::default() });
        let dir = tempfile::tempdir().unwrap();
        let weights = fs::read(tiny().join("model.safetensors")).unwrap();
        fs::write(dir.path().join("model.safetensors.part"), &weights[..1000]).unwrap();
        assert!(hub.pull(dir.path(), &[]).status.success());
        same_files(dir.path());
        assert_eq!(hub.sent.load(Ordering::SeqCst), whole - if no_ranges { 0 } else { 1000 });
    }
}

#[test]
fn wrong_bytes_never_take_a_files_name() {
    for name in ["model.safetensors", "config.json"] {
        let (hub, dir) =
            (Hub::start(Faults { corrupt: Some(name), ..Faults::default() }), tempfile::tempdir().unwrap());
        let output = hub.pull(dir.path(), &[]);
        assert!(!output.status.success());
        let said = stderr(&output);
        assert!(said.contains(name) && said.contains("hash"), "{said}");
        assert!(!dir.path().join(name).exists() && !dir.path().join(format!("{name}.part")).exists());
    }
}

#[test]
fn bad_listings_and_arguments_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let escape = json!({"rfilename": "../escape.json", "size": 2, "blobId": "0".repeat(40)});
    let hub = Hub::start(Faults { extra: vec![escape], ..Faults::default() });
    let to = dir.path().join("model");
    assert!(hub.pull(&to, &[]).status.success());
    assert!(!dir.path().join("escape.json").exists());

    let unverifiable = json!({"rfilename": "extra.json", "size": 2});
    let hub = Hub::start(Faults { extra: vec![unverifiable], ..Faults::default() });
    let output = hub.pull(&to, &[]);
    assert!(!output.status.success() && stderr(&output).contains("extra.json"), "{}", stderr(&output));

    for (arguments, said) in [
        (&["pull", "no-owner"][..], "OWNER/NAME"),
        (&["pull", "a/../b"], "OWNER/NAME"),
        (&["pull", "a/b", "--revision", "../x"], "--revision"),
        (&["pull", "a/b", "--endpoint", "ftp://x"], "--endpoint"),
    ] {
        let output = lily().env_remove("HF_ENDPOINT").args(arguments).output().unwrap();
        assert!(
            !output.status.success() && stderr(&output).contains(said),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }

    let missing = lily()
        .env_remove("HF_TOKEN")
        .args(["pull", "owner/other", "--endpoint", &hub.endpoint, "--to"])
        .arg(&to)
        .output()
        .unwrap();
    assert!(!missing.status.success() && stderr(&missing).contains("404"), "{}", stderr(&missing));
}

#[test]
fn a_dry_run_lists_and_downloads_nothing() {
    let (hub, dir) = (Hub::start(Faults::default()), tempfile::tempdir().unwrap());
    let output = hub.pull(&dir.path().join("model"), &["--dry-run"]);
    assert!(output.status.success() && stdout(&output).contains("model.safetensors"), "{}", stderr(&output));
    assert!(!dir.path().join("model").exists());
    assert_eq!(hub.requests.load(Ordering::SeqCst), 0);
}
