//! Secrets with a syntax of their own: private key blocks, JSON web tokens, users in URLs, HTTP authorisation,
//! credentials of command lines.

use std::ops::Range;

use aho_corasick::AhoCorasick;
use regex::Regex;

use super::{entropy, hit};
use crate::{
    Evidence, normalize,
    text::{Hit, Scan},
};

/// The patterns, compiled.
#[derive(Debug)]
pub(super) struct Blocks {
    begin: Regex,
    token: Regex,
    /// The shape of a JSON web token whose header cannot be read.
    shape: Regex,
    login: Regex,
    /// The words that [`Blocks::header`] starts with.
    header_words: AhoCorasick,
    header: Regex,
    user: Regex,
    netrc: Regex,
    /// A bot of Discord: its id in base64, the time, a signature.
    bot: Regex,
}

/// Passwords of examples: a URL with one of these is documentation.
const EXAMPLE_PASSWORDS: &[&str] = &[
    "password",
    "passwd",
    "pass",
    "pwd",
    "pw",
    "secret",
    "user",
    "username",
    "admin",
    "root",
    "test",
    "token",
    "apikey",
    "api_key",
    "key",
    "postgres",
    "mysql",
    "guest",
    "example",
    "foo",
    "bar",
    "baz",
    "qux",
    "x",
    "xx",
    "xxx",
    "xxxx",
    "x-oauth-basic",
    "x-access-token",
    "pa55",
    "p",
    "mypassword",
    "mypass",
    "mysecret",
    "yourpassword",
    "your_password",
    "your-password",
    "pass1",
    "p4ss",
    "pass123",
    "word",
    "passw0rd",
    "letmein",
    "wordpass",
    "pwd123",
    "123",
    "1234",
    "12345",
    "123456",
    "abc",
    "abc123",
    "hunter2",
    "changeme",
    "redis",
    "mongo",
    "dev",
    "password123",
    "secret123",
    "w0rd",
    "default",
    "service",
    "bot",
    "me",
    "you",
    "a",
    "b",
    "c",
    "p%40ss",
];

impl Blocks {
    pub fn new() -> Result<Self, String> {
        let pattern = |p: &str| Regex::new(p).map_err(|e| e.to_string());
        Ok(Self {
            begin: pattern(
                r"-----BEGIN[ A-Z0-9_-]{0,60}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-[0-9]:",
            )?,
            token: pattern(r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*){0,3}")?,
            shape: pattern(
                r"ey[A-Za-z0-9_-]{15,}\.ey[A-Za-z0-9/\\_-]{15,}\.(?:[A-Za-z0-9/\\_-]{10,}={0,2})?",
            )?,
            login: pattern(
                r"[A-Za-z][A-Za-z0-9+.-]+://([^\s/?#@:'\x22<>]*:([^\s/?#@'\x22<>]+))@[A-Za-z0-9\[_.$%-]",
            )?,
            header_words: AhoCorasick::builder()
                .ascii_case_insensitive(true)
                .build([
                    "authorization",
                    "api-key",
                    "apikey",
                    "auth-token",
                    "access-token",
                    "cookie",
                    "bearer ",
                    "basic ",
                ])
                .map_err(|e| e.to_string())?,
            header: pattern(
                r#"(?i-u)\b(?:authorization|proxy-authorization|x-api-key|x-auth-token|api-key|apikey|x-access-token|cookie|set-cookie)["']?\s{0,3}[:=,]\s{0,3}["'`]{0,1}(?:(?:bearer|basic|token|bot|digest|apikey|key)\s{1,3})?([A-Za-z0-9+/=_.~%:-]+)|\b(?:bearer|Basic)\s{1,2}([A-Za-z0-9+/=_.~-]+)"#,
            )?,
            user: pattern(
                r#"\bcurl\b[^\n]*?\s(?:-u|--user)[ =]{0,3}(?:"([^"\n]+)"|'([^'\n]+)'|([^\s"'$]+))"#,
            )?,
            netrc: pattern(r"(?-u:\b)machine\s+\S+\s+login\s+\S+\s+password\s+(\S+)")?,
            bot: pattern(r"(?-u)\b[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}\b")?,
        })
    }

    pub fn scan(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        let text = scan.text;
        if text.contains("PRIVATE KEY") || text.contains("PuTTY-User-Key-File") {
            for found in self.begin.find_iter(text) {
                hits.push(hit(
                    found.start()..block_end(text, found.range()),
                    Evidence::Validated,
                    "private_key",
                ));
            }
        }
        if text.contains("eyJ") {
            for found in self.token.find_iter(text) {
                let end = found.start() + found.as_str().trim_end_matches('.').len();
                if is_token(&text[found.start()..end]) {
                    hits.push(hit(found.start()..end, Evidence::Validated, "jwt"));
                }
            }
        }
        if text.contains(".ey") {
            for found in self.shape.find_iter(text) {
                let value = found.as_str();
                if value.bytes().filter(u8::is_ascii_digit).count() >= 4 && entropy::shannon(value) >= 3.5 {
                    hits.push(hit(found.range(), Evidence::Shape, "jwt"));
                }
            }
        }
        if text.contains("://") {
            for captures in self.login.captures_iter(text) {
                let (Some(login), Some(password)) = (captures.get(1), captures.get(2)) else { continue };
                let value = password.as_str();
                let known = EXAMPLE_PASSWORDS.contains(&value.to_ascii_lowercase().as_str());
                if !known && !is_variable(value) {
                    hits.push(hit(login.range(), Evidence::Validated, "url_login"));
                }
            }
        }
        if self.header_words.is_match(text) {
            self.headers(text, hits);
        }
        if text.contains("curl") {
            for captures in self.user.captures_iter(text) {
                let Some(login) = captures.iter().skip(1).flatten().next() else { continue };
                let value = login.as_str().split_once(':').map_or("", |(_, password)| password);
                if value.len() >= 3
                    && !EXAMPLE_PASSWORDS.contains(&value.to_ascii_lowercase().as_str())
                    && !is_variable(value)
                {
                    hits.push(hit(login.range(), Evidence::Cue, "curl_login"));
                }
            }
        }
        for found in self.bot.find_iter(text) {
            let value = found.as_str();
            let mixed =
                value.bytes().any(|b| b.is_ascii_digit()) && value.bytes().any(|b| b.is_ascii_lowercase());
            if mixed && entropy::shannon(value) >= 4.0 && !entropy::is_wordy(value) {
                hits.push(hit(found.range(), Evidence::Shape, "discord_bot_token"));
            }
        }
        if text.contains("machine") && text.contains("password") {
            for found in self.netrc.captures_iter(text).filter_map(|c| c.get(1)) {
                if !is_variable(found.as_str()) {
                    hits.push(hit(found.range(), Evidence::Cue, "netrc"));
                }
            }
        }
    }

    fn headers(&self, text: &str, hits: &mut Vec<Hit>) {
        for captures in self.header.captures_iter(text) {
            let Some(value) = captures.get(1).or_else(|| captures.get(2)) else { continue };
            let token = value.as_str().trim_end_matches(['.', ',', ';']);
            let digits = token.bytes().filter(u8::is_ascii_digit).count();
            let long = token.len() >= if captures.get(2).is_some() { 16 } else { 12 };
            let random = long && digits >= 2 && !entropy::is_wordy(token) || basic(token);
            let cookie = captures.get(0).is_some_and(|m| m.as_str().to_ascii_lowercase().contains("cookie"));
            if random && !cookie && entropy::shannon(token) >= 2.8 && !is_variable(token) {
                hits.push(hit(value.start()..value.start() + token.len(), Evidence::Cue, "authorization"));
            }
        }
    }
}

/// Base64 of `user:password`.
fn basic(token: &str) -> bool {
    token.len() >= 8
        && normalize::decode_base64(token.as_bytes())
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .is_some_and(|t| t.contains(':') && !t.contains(char::is_control))
}

/// A template's or script's variable, or an example.
pub(super) fn is_variable(value: &str) -> bool {
    value.starts_with(['$', '{', '<', '%', '[', '(', '*', '#', '@'])
        || value.contains("${")
        || value.contains("{{")
        || value.contains("...")
        || value.contains('…')
        || value.contains("***")
        || entropy::is_placeholder(value)
}

/// The end of a key block: its END line, or the last line of base64.
fn block_end(text: &str, begin: Range<usize>) -> usize {
    let rest = &text[begin.end..];
    // Keys are at most some kilobytes; a block without an end is taken as far as it looks like one.
    let mut limit = rest.len().min(20_000);
    while !rest.is_char_boundary(limit) {
        limit -= 1;
    }
    if let Some(end) = rest[..limit].find("-----END")
        && !rest[..end].contains("-----BEGIN")
    {
        let line = rest[end..].find("KEY").map_or(8, |k| k + 3);
        let tail = &rest[end + line..];
        let close = tail.find("-----").filter(|at| *at <= 7).map_or(0, |at| at + 5);
        return begin.end + end + line + close;
    }
    let mut end = 0;
    for line in rest[..limit].split_inclusive(['\n', ' ']) {
        let piece = line.trim().trim_end_matches("\\n");
        let body =
            piece.is_empty() || piece.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=:,-\\.".contains(&b));
        let long = piece.len() >= 16 || piece.is_empty() || piece.ends_with(':') || piece.ends_with('=');
        if !body || !long {
            break;
        }
        end += line.len();
    }
    begin.end + rest[..end].trim_end().len()
}

/// A JSON web token: its first part is a JSON object that names an algorithm or a type.
fn is_token(text: &str) -> bool {
    let Some(head) = text.split('.').next() else { return false };
    normalize::decode_base64(head.as_bytes())
        .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
        .is_some_and(|json| ["alg", "typ", "enc", "kid", "cty"].iter().any(|key| json.get(key).is_some()))
}
