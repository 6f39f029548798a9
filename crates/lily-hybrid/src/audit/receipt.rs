//! Reading a log: checking its chain, finding a line, and a receipt for people.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use lily_gate::hash;
use serde_json::Value;

use super::{AuditError, KEY_FILE, LOG_FILE, NOTHING, split};

/// What a check of the chain found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verification {
    /// Lines that are whole and in order.
    pub lines: u64,
    /// Of them, requests that left (or were about to).
    pub requests: u64,
    /// Lines that a crash cut, each followed by a line that says so.
    pub torn: u64,
    /// Whether the MACs were checked too: the key was there.
    pub keyed: bool,
}

/// Checks every line of the log in `directory`.
///
/// # Errors
/// The first line that is not what it should be, with its number.
pub fn verify(directory: &Path) -> Result<Verification, AuditError> {
    let path = directory.join(LOG_FILE);
    let key: Option<[u8; 32]> =
        std::fs::read(directory.join(KEY_FILE)).ok().and_then(|bytes| bytes.try_into().ok());
    let mut found = Verification { keyed: key.is_some(), ..Verification::default() };
    let mut prev = NOTHING.to_owned();
    let mut torn_before = false;
    let mut number = 0u64;
    each_line(&path, |bytes| {
        number += 1;
        let wrong = |reason: String| AuditError::Content {
            path: path.clone(),
            reason: format!("line {number} {reason}"),
        };
        let Some((text, (prefix, digest, mac))) =
            std::str::from_utf8(bytes).ok().and_then(|text| Some((text, split(text)?)))
        else {
            if torn_before {
                return Err(wrong("and the one before it are no lines of a log".into()));
            }
            torn_before = true;
            return Ok(true);
        };
        let line: Value = serde_json::from_str(text).map_err(|e| wrong(format!("is no JSON: {e}")))?;
        let computed = hash::sha256(prefix.as_bytes());
        if hash::hex(&computed) != digest {
            return Err(wrong("was changed: it does not match its hash".into()));
        }
        if let Some(key) = &key
            && hash::hex(&hash::hmac(key, &[&computed])) != mac
        {
            return Err(wrong("was not written by this installation: its MAC is wrong".into()));
        }
        if line["prev"] != prev.as_str() || line["seq"].as_u64() != Some(found.lines) {
            return Err(wrong(
                "does not follow the line before it: lines are missing or out of order".into(),
            ));
        }
        if line["kind"] == "request" {
            let body = line["body"].as_str().unwrap_or_default();
            if line["sha256"] != hash::hex(&hash::sha256(body.as_bytes())).as_str() {
                return Err(wrong("holds a body that does not match its SHA-256".into()));
            }
            found.requests += 1;
        }
        if torn_before {
            if line["kind"] != "recovery" {
                return Err(wrong("follows a broken line and does not say why".into()));
            }
            found.torn += 1;
            torn_before = false;
        }
        found.lines += 1;
        prev = digest.to_owned();
        Ok(true)
    })?;
    if torn_before {
        let reason = format!("line {number} is cut; the server that writes next will say so in the log");
        return Err(AuditError::Content { path, reason });
    }
    Ok(found)
}

/// The line with this id, and the lines about it.
///
/// # Errors
/// The log cannot be read, or has no such id.
pub fn find(directory: &Path, id: &str) -> Result<(Value, Vec<Value>), AuditError> {
    let path = directory.join(LOG_FILE);
    let (mut request, mut about) = (None, Vec::new());
    each_line(&path, |bytes| {
        if let Ok(line) = serde_json::from_slice::<Value>(bytes) {
            if line["id"] == id {
                request = Some(line);
            } else if line["request"] == id {
                about.push(line);
            }
        }
        Ok(true)
    })?;
    match request {
        Some(request) => Ok((request, about)),
        None => Err(AuditError::Content { path, reason: format!("holds no line with the id {id:?}") }),
    }
}

fn each_line(path: &Path, mut see: impl FnMut(&[u8]) -> Result<bool, AuditError>) -> Result<(), AuditError> {
    let io = |source| AuditError::Io { path: path.to_owned(), source };
    let mut reader = BufReader::new(File::open(path).map_err(io)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(io)? == 0 {
            return Ok(());
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if !see(&line)? {
            return Ok(());
        }
    }
}

/// A request's line for people: who sent what where, what was masked, under which consent, and what came back.
pub fn receipt(request: &Value, about: &[Value]) -> String {
    let text = |key: &str| request[key].as_str().unwrap_or("-").to_owned();
    let body: Value = request["body"].as_str().and_then(|b| serde_json::from_str(b).ok()).unwrap_or_default();
    let messages = body["messages"].as_array().map_or(0, Vec::len);
    let mut out = format!(
        "Receipt {}\n  Time           {}\n  Device         this installation (line {} of its log)\n  \
         Local sources  {messages} messages of the client\n  Sent           {} bytes to {} (SHA-256 {}), attempt {}\n",
        text("id"),
        text("time"),
        request["seq"],
        request["body"].as_str().map_or(0, str::len),
        text("destination"),
        text("sha256"),
        request["attempt"],
    );
    let spans = request["spans"].as_array().cloned().unwrap_or_default();
    let masked: Vec<&Value> = spans.iter().filter(|s| s["verdict"] != "allow").collect();
    out += &format!("  Masked         {} of {} private values found", masked.len(), spans.len());
    out += &format!(", {} further mentions; layer 2: {}\n", request["swept"], text("layer2"));
    for span in masked {
        out += &format!(
            "                 {} {} characters -> {} ({}, {} v{}, {})\n",
            span["category"].as_str().unwrap_or("-"),
            span["length"],
            span["token"].as_str().unwrap_or("-"),
            span["verdict"].as_str().unwrap_or("-"),
            span["recognizer"].as_str().unwrap_or("-"),
            span["version"],
            span["evidence"].as_str().unwrap_or("-"),
        );
    }
    out += &format!("  Approval       {}\n", request["approval"].as_str().unwrap_or("none needed"));
    match about.last() {
        None => out += "  Result         not known: the log says nothing more about it\n",
        Some(answer) => {
            out += &format!(
                "  Result         {}, status {}, {} bytes, {} stand-ins restored, {} not, {} values hidden\n",
                answer["outcome"].as_str().unwrap_or("-"),
                answer["status"],
                answer["bytes"],
                answer["restored"],
                answer["unrestored"],
                answer["redacted"],
            );
        }
    }
    out
}
