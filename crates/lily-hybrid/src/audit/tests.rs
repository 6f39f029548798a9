use serde_json::json;

use super::*;

fn request(body: &Value) -> impl Serialize {
    let text = body.to_string();
    json!({"route": "cloud", "body": text, "sha256": hash::hex(&hash::sha256(text.as_bytes())), "destination": "https://x",
           "spans": [{"category": "email", "length": 13, "token": "⟦EMAIL_1·k7qp⟧", "verdict": "mask", "recognizer": "email",
                      "version": 1, "evidence": "validated"}], "attempt": 1, "swept": 0, "layer2": "off"})
}

fn filled(directory: &Path, lines: usize) -> Vec<String> {
    let log = AuditLog::open(directory).unwrap();
    (0..lines).map(|i| log.append("request", &request(&json!({"messages": [i, "é\"\n"]}))).unwrap()).collect()
}

fn edit(directory: &Path, change: impl FnOnce(Vec<String>) -> Vec<String>) {
    let path = directory.join(LOG_FILE);
    let lines = std::fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    let lines = change(lines);
    std::fs::write(&path, lines.iter().map(|l| format!("{l}\n")).collect::<String>()).unwrap();
}

#[test]
fn a_log_is_a_chain_over_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("new/audit");
    let first = filled(&home, 3);
    let second = filled(&home, 2);
    let found = verify(&home).unwrap();
    assert_eq!(found, Verification { lines: 5, requests: 5, torn: 0, keyed: true });
    let (line, about) = find(&home, &second[1]).unwrap();
    assert_eq!((line["seq"].as_u64(), about.len()), (Some(4), 0));
    assert_eq!(line["body"], "{\"messages\":[1,\"é\\\"\\n\"]}");
    assert!(find(&home, "aud_00").is_err());
    assert_ne!(first[0], second[0]);
    #[cfg(unix)]
    for name in [LOG_FILE, KEY_FILE] {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(home.join(name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
    }
}

#[cfg(unix)]
#[test]
fn rights_of_others_are_taken_away() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 1);
    for name in [LOG_FILE, KEY_FILE] {
        std::fs::set_permissions(directory.path().join(name), std::fs::Permissions::from_mode(0o644))
            .unwrap();
    }
    filled(directory.path(), 1);
    for name in [LOG_FILE, KEY_FILE] {
        let mode = std::fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn every_change_shows() {
    type Change = fn(Vec<String>) -> Vec<String>;
    let changes: &[(&str, Change, &str)] = &[
        (
            "a word",
            |mut l| {
                l[1] = l[1].replacen("messages", "massages", 1);
                l
            },
            "line 2 was changed",
        ),
        (
            "a line taken out",
            |mut l| {
                l.remove(1);
                l
            },
            "line 2 does not follow",
        ),
        (
            "two lines swapped",
            |mut l| {
                l.swap(1, 2);
                l
            },
            "line 2 does not follow",
        ),
        (
            "the first line taken out",
            |mut l| {
                l.remove(0);
                l
            },
            "line 1 does not follow",
        ),
        (
            "a line doubled",
            |mut l| {
                let one = l[1].clone();
                l.insert(1, one);
                l
            },
            "line 3 does not follow",
        ),
        (
            "a line of nonsense",
            |mut l| {
                l.insert(1, "x".into());
                l
            },
            "line 3 follows a broken line",
        ),
        (
            "nonsense at the end",
            |mut l| {
                l.push("x".into());
                l
            },
            "line 5 is cut",
        ),
        (
            "a hash made anew without the key",
            |mut l| {
                let changed = l[3].replacen("cloud", "local", 1);
                let (prefix, _, mac) = split(&changed).unwrap();
                let hash = hash::hex(&hash::sha256(prefix.as_bytes()));
                l[3] = format!("{prefix},\"hash\":\"{hash}\",\"mac\":\"{mac}\"}}");
                l
            },
            "line 4 was not written by this installation",
        ),
    ];
    for (what, change, expected) in changes {
        let directory = tempfile::tempdir().unwrap();
        filled(directory.path(), 4);
        edit(directory.path(), change);
        let error = verify(directory.path()).expect_err(what).to_string();
        assert!(error.contains(expected), "{what}: {error}");
    }
}

#[test]
fn a_crash_in_the_middle_of_a_line_is_told() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 3);
    let path = directory.path().join(LOG_FILE);
    let whole = std::fs::read(&path).unwrap();
    let third = whole.len() - 100;
    std::fs::write(&path, &whole[..third]).unwrap();
    assert!(verify(directory.path()).unwrap_err().to_string().contains("is cut"));
    filled(directory.path(), 1);
    let found = verify(directory.path()).unwrap();
    // Two whole lines, the one that says what happened, and the new one.
    assert_eq!((found.lines, found.torn), (4, 1));
    filled(directory.path(), 1);
    assert_eq!(verify(directory.path()).unwrap().lines, 5);
}

#[test]
fn two_writers_are_one_too_many() {
    let directory = tempfile::tempdir().unwrap();
    let _first = AuditLog::open(directory.path()).unwrap();
    assert!(matches!(AuditLog::open(directory.path()), Err(AuditError::Locked(_))));
}

#[test]
fn a_log_that_does_not_fit_is_not_continued() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 2);
    edit(directory.path(), |mut l| {
        l[1] = l[1].replacen("messages", "massages", 1);
        l
    });
    assert!(matches!(AuditLog::open(directory.path()), Err(AuditError::Content { .. })));
    std::fs::write(directory.path().join(KEY_FILE), b"short").unwrap();
    assert!(matches!(AuditLog::open(directory.path()), Err(AuditError::Content { .. })));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_leaves_the_chain_whole() {
    // The system's own full disk.
    let full = FileSink { file: OpenOptions::new().append(true).open("/dev/full").unwrap() };
    let log = AuditLog::with_sink(Box::new(full), [1; 32]);
    assert!(log.append("request", &request(&json!({}))).is_err());

    // A disk that is full for a while, and takes a part of a line: the part is taken back.
    struct Flaky(FileSink, u32);
    impl Sink for Flaky {
        fn append(&mut self, line: &[u8]) -> io::Result<()> {
            self.1 += 1;
            if self.1 == 2 {
                let before = self.0.file.metadata()?.len();
                self.0.file.write_all(&line[..20])?;
                self.0.file.set_len(before)?;
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.append(line)
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(LOG_FILE);
    let file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let log = AuditLog::with_sink(Box::new(Flaky(FileSink { file }, 0)), [1; 32]);
    let appended: Vec<bool> = (0..3).map(|_| log.append("request", &request(&json!({}))).is_ok()).collect();
    assert_eq!(appended, [true, false, true]);
    assert_eq!(verify(directory.path()).unwrap().lines, 2);

    // A part that cannot be taken back: nothing is written after it.
    struct Torn(u32);
    impl Sink for Torn {
        fn append(&mut self, _: &[u8]) -> io::Result<()> {
            self.0 += 1;
            if self.0 == 1 { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) }
        }
    }
    let log = AuditLog::with_sink(Box::new(Torn(0)), [1; 32]);
    assert!(log.append("request", &json!({})).is_err());
    assert!(matches!(log.append("request", &json!({})), Err(AuditError::Broken(_))));
}

#[test]
fn a_receipt_says_what_left_and_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let log = AuditLog::open(directory.path()).unwrap();
    let id = log.append("request", &request(&json!({"messages": [1, 2]}))).unwrap();
    let answer = ResponseRecord {
        request: id.clone(),
        outcome: Outcome::Complete,
        status: Some(200),
        bytes: 77,
        restored: 2,
        unrestored: 1,
        redacted: 0,
    };
    log.response(&answer).unwrap();
    let (line, about) = find(directory.path(), &id).unwrap();
    let text = receipt(&line, &about);
    for part in [
        "Device",
        "Local sources  2 messages",
        "Sent           18 bytes to https://x",
        "Masked         1 of 1",
        "email 13 characters -> ⟦EMAIL_1·k7qp⟧",
        "Approval       none",
        "complete, status 200, 77 bytes, 2 stand-ins",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(receipt(&line, &[]).contains("not known"));
}
