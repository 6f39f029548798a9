//! Passwords and keys given to a name: assignments of code, lines of `.env`, JSON, XML and YAML members,
//! command-line flags, query parameters, and the same in prose ("my password is ...").

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use super::{blocks::is_variable, entropy, hit, shapes::Body, table::PROVIDERS};
use crate::{
    Evidence,
    text::{Hit, Scan, line_before},
};

/// What a name promises of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Chosen by a person: short, any characters.
    Password,
    /// Generated: long and random.
    Key,
    /// Digits: PIN, one-time code.
    Pin,
    /// A provider's variable: index into [`PROVIDERS`].
    Provider(usize),
}

/// Names, separated by `|`; found in any case and inside longer names.
const NAMES: &[(Kind, &str)] = &[
    (
        Kind::Password,
        "password|passwd|passphrase|pwd|passcode|passwort|kennwort|mot de passe|motdepasse|contraseña|contrasena|contrasenya|senha|\
         wachtwoord|hasło|haslo|пароль|密码|密碼|口令|パスワード|비밀번호|كلمة المرور|كلمة السر|parola|şifre|sifre|lösenord|adgangskode|\
         passord|salasana|heslo|jelszó|mật khẩu|kata sandi|รหัสผ่าน|κωδικός|पासवर्ड|סיסמה|db_pass|dbpass|mysql_pass|userpass|user_pass|smtp_pass|\
         login credentials",
    ),
    (
        Kind::Key,
        "api_key|apikey|api-key|api key|secret_key|secret-key|secretkey|secret key|access_key|access-key|accesskey|access key|\
         access_token|accesstoken|access-token|access token|auth_token|authtoken|auth-token|auth token|refresh_token|refreshtoken|\
         refresh token|client_secret|clientsecret|client-secret|client secret|private_key|privatekey|private-key|private key|secret|\
         token|credential|encryption_key|encryption key|encryptionkey|signing_key|signing key|master_key|masterkey|account_key|accountkey|\
         sharedaccesskey|shared_access_key|consumer_key|consumer_secret|app_key|appkey|auth_key|authkey|auth-key|app_secret|session_key|sessionkey|webhook_secret|\
         service_key|deploy_key|license_key|license key|licence key|bearer|api_secret|storage_key|sas_token|jwt|recovery key|backup code|\
         recovery code|seed phrase|ssh_key|hmac_key|salt|nonce_secret|cookie_secret|database_url",
    ),
    (
        Kind::Pin,
        "pin|pin code|pin number|otp|one-time password|one-time code|one time password|verification code|security code|access code|\
         confirmation code|2fa code|passcode is|geheimzahl|code pin|código pin|código de verificación|codice pin|pincode|пин-код|код подтверждения|验证码|認証コード|인증번호",
    ),
];

/// How a longer name goes on when its value is no secret: `token_type`, `passwordField`, `secret_name`.
const HARMLESS_ENDINGS: &[&str] = &[
    "id",
    "name",
    "type",
    "url",
    "uri",
    "path",
    "file",
    "filename",
    "field",
    "length",
    "len",
    "size",
    "count",
    "index",
    "idx",
    "hint",
    "label",
    "placeholder",
    "endpoint",
    "header",
    "expiry",
    "expires",
    "expiration",
    "ttl",
    "policy",
    "regex",
    "pattern",
    "rule",
    "reset",
    "resetted",
    "input",
    "prompt",
    "manager",
    "provider",
    "store",
    "storage",
    "env",
    "var",
    "key",
    "list",
    "tree",
    "stream",
    "kind",
    "class",
    "hash",
    "error",
    "err",
    "msg",
    "message",
    "text",
    "title",
    "confirmation",
    "confirm",
    "again",
    "repeat",
    "strength",
    "required",
    "enabled",
    "protected",
    "version",
    "format",
    "encoding",
    "alg",
    "algorithm",
    "usage",
    "scope",
    "scopes",
    "set",
    "map",
    "dir",
    "ref",
    "arn",
    "location",
    "sentiment",
    "izer",
    "ize",
    "ized",
    "izing",
    "s",
    "ed",
    "ary",
    "ion",
    "less",
    "ly",
    "source",
    "role",
    "user",
    "prefix",
    "suffix",
    "model",
    "bucket",
    "budget",
    "limit",
    "limits",
    "cost",
    "price",
    "rate",
    "per",
    "max",
    "min",
    "num",
    "number",
    "mode",
    "state",
    "status",
    "value",
];

/// Names and what they promise, compiled.
#[derive(Debug)]
pub(super) struct Assign {
    names: AhoCorasick,
    kinds: Vec<Kind>,
    /// Values of each provider.
    bodies: Vec<Vec<Body>>,
}

impl Assign {
    pub fn new() -> Result<Self, String> {
        let mut phrases = Vec::new();
        let mut kinds = Vec::new();
        let providers = PROVIDERS.iter().enumerate().map(|(i, (_, names, _))| (Kind::Provider(i), *names));
        for (kind, names) in NAMES.iter().copied().chain(providers) {
            for name in names.split('|') {
                phrases.push(name.to_owned());
                kinds.push(kind);
                if !name.is_ascii() {
                    let mut chars = name.chars();
                    phrases
                        .push(chars.next().into_iter().flat_map(char::to_uppercase).chain(chars).collect());
                    kinds.push(kind);
                }
            }
        }
        let bodies = PROVIDERS
            .iter()
            // A body may hold the separator itself as a literal.
            .map(|(_, _, values)| {
                values
                    .replace("'|'", "\u{1}")
                    .split('|')
                    .map(|v| Body::parse(&v.replace('\u{1}', "'|'")))
                    .collect()
            })
            .collect::<Result<_, _>>()?;
        let names = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .ascii_case_insensitive(true)
            .build(&phrases)
            .map_err(|e| e.to_string())?;
        Ok(Self { names, kinds, bodies })
    }

    pub fn scan(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        let mut done = 0;
        for found in self.names.find_iter(scan.text) {
            if found.start() < done {
                continue;
            }
            let kind = self.kinds[found.pattern().as_usize()];
            let Some(value) = Value::after(scan.text, found.range()) else { continue };
            let end = value.range.end;
            if let Some((range, subtype)) = self.judge(scan.text, kind, &value) {
                done = end;
                hits.push(hit(range, Evidence::Cue, subtype));
            }
        }
    }

    fn judge(&self, text: &str, kind: Kind, value: &Value) -> Option<(Range<usize>, &'static str)> {
        let raw = &text[value.range.clone()];
        let range = value.range.clone();
        match kind {
            Kind::Provider(i) => {
                let bytes = raw.as_bytes();
                let shaped = self.bodies[i].iter().any(|body| body.matches(bytes) == Some(bytes.len()));
                let digits = raw.bytes().filter(u8::is_ascii_digit).count();
                // Words and plain numbers fit many shapes: a secret's name must stand by them.
                let named = ["key", "token", "secret", "pass", "auth", "api", "cred", "sid", "client"]
                    .iter()
                    .any(|n| value.name.contains(n));
                let random = (digits >= 1 || is_mixed(raw) || raw.len() >= 20)
                    && entropy::shannon(raw) >= if digits >= 1 { 2.2 } else { 3.2 }
                    && !entropy::is_placeholder(raw)
                    && !entropy::is_wordy(raw);
                let mixed = raw.bytes().any(|b| b.is_ascii_alphabetic());
                let generated = self.is_generated(raw, value) && named;
                ((shaped && random && (mixed || named) && raw.len() >= 14) || generated)
                    .then_some((range, PROVIDERS[i].0))
            }
            Kind::Key => self.is_generated(raw, value).then_some((range, "generic_key")),
            Kind::Password => is_password(raw, value).then_some((range, "password")),
            Kind::Pin => {
                let digits =
                    raw.len() >= 4 && raw.len() <= 10 && raw.bytes().all(|b| b.is_ascii_digit() || b == b'-');
                (digits && value.close && !matches!(value.operator, Operator::Code)).then_some((range, "pin"))
            }
        }
    }

    fn is_generated(&self, raw: &str, value: &Value) -> bool {
        if raw.len() < 10 || raw.len() > 2000 || is_variable(raw) || is_reference(raw) {
            return false;
        }
        let token = raw.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=_-.~%:!@#$^&*".contains(&b));
        let digits = raw.bytes().filter(u8::is_ascii_digit).count();
        let letters = raw.bytes().filter(u8::is_ascii_alphabetic).count();
        let entropy = entropy::shannon(raw);
        let enough = digits >= 2 || (raw.len() >= 20 && is_mixed(raw));
        if !token || !enough || letters < 2 || entropy::is_wordy(raw) {
            return false;
        }
        match value.operator {
            // Bare words of code: types, calls, versions.
            Operator::Code if !value.quoted => {
                raw.len() >= 20 && digits >= 4 && entropy >= 3.4 && !raw.contains(['.', ':', '&', '*', '!'])
            }
            _ if raw.len() < 16 => entropy >= 3.0 && digits >= 2,
            _ => entropy >= 3.0,
        }
    }
}

/// Small letters and capitals in turn at many places, as generated text has them and words have not.
fn is_mixed(raw: &str) -> bool {
    let changes =
        raw.as_bytes().windows(2).filter(|w| w[0].is_ascii_lowercase() != w[1].is_ascii_lowercase()).count();
    changes * 3 >= raw.len() && entropy::shannon(raw) >= 3.5
}

/// How a name and its value are tied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    /// `name = value`, `name: value` somewhere in a line.
    Code,
    /// `NAME=value` at the start of a line, `name: value` of YAML, a query or a connection string.
    Config,
    /// `--name value`, `<name>value</name>`.
    Markup,
    /// "the name is value".
    Prose,
}

/// A value and what ties it to its name.
#[derive(Debug)]
struct Value {
    range: Range<usize>,
    quoted: bool,
    operator: Operator,
    /// The whole name, lower case.
    name: String,
    /// Nothing but the operator stands between.
    close: bool,
}

fn is_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')
}

impl Value {
    /// The value that is given to the name around `keyword`.
    fn after(text: &str, keyword: Range<usize>) -> Option<Value> {
        let bytes = text.as_bytes();
        let start = keyword.start
            - bytes[..keyword.start]
                .iter()
                .rev()
                .take(50)
                .take_while(|b| is_name(**b) || **b == b'.')
                .count();
        // A letter of another alphabet right before: a word of which this is a part.
        if text[..start]
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() && !c.is_ascii() && !crate::cues::is_unspaced(c))
        {
            return None;
        }
        let rest = bytes[keyword.end..].iter().take(40).take_while(|b| is_name(**b)).count();
        let end = keyword.end + rest;
        let ending = text[keyword.end..end].to_ascii_lowercase();
        // "pin" and the like must be words.
        let whole = &text[keyword.clone()];
        if whole.len() <= 4
            && whole.is_ascii()
            && (start < keyword.start
                && bytes[keyword.start - 1].is_ascii_alphabetic()
                && !is_hump(text, keyword.start)
                || rest > 0 && bytes[keyword.end].is_ascii_lowercase())
        {
            return None;
        }
        let last = ending.rsplit(['_', '-']).next().unwrap_or_default();
        let harmless = |word: &str| HARMLESS_ENDINGS.contains(&word);
        let secretive = ["key", "token", "secret", "pass", "auth", "pwd"].iter().any(|s| ending.contains(s));
        if !ending.is_empty()
            && !secretive
            && (harmless(last) || harmless(ending.trim_start_matches(['_', '-'])))
        {
            return None;
        }
        let name = text[start..end].to_ascii_lowercase();
        let mut at = end;
        let skip = |at: &mut usize, set: &[u8], limit: usize| {
            let count = bytes[*at..].iter().take(limit).take_while(|b| set.contains(b)).count();
            *at += count;
            count
        };
        // `]` of an index, the closing quote of a key.
        skip(&mut at, b"\\\"'`]*", 4);
        let blanks = skip(&mut at, b" \t", 12);
        let (operator, quoted_needed) = operator(text, start, end, &mut at, blanks)?;
        skip(&mut at, b" \t", 12);
        // YAML blocks and wrapped lines: one line end.
        if operator != Operator::Prose && bytes.get(at) == Some(&b'\n') && operator != Operator::Config {
            at += 1;
            skip(&mut at, b" \t", 24);
        }
        // Raw strings and byte strings: b"...", r#"..."#.
        let from = at;
        if bytes.get(at).is_some_and(|b| matches!(b, b'b' | b'r' | b'f' | b'u' | b'L' | b'@'))
            && bytes.get(at + 1).is_some_and(|b| matches!(b, b'"' | b'\''))
        {
            at += 1;
        }
        let escaped = skip(&mut at, b"\\", 2);
        let quote = bytes.get(at).copied().filter(|b| matches!(b, b'"' | b'\'' | b'`'));
        let (range, quoted) = match quote {
            Some(quote) => {
                let inside = at + 1;
                let length =
                    bytes[inside..].iter().take(2048).take_while(|b| **b != quote && **b != b'\n').count();
                if bytes.get(inside + length) != Some(&quote) {
                    return None;
                }
                let mut end = inside + length;
                if escaped > 0 && end > inside && bytes[end - 1] == b'\\' {
                    end -= 1;
                }
                (inside..end, true)
            }
            None if quoted_needed => return None,
            None => {
                let stop = |b: &u8| {
                    let config = operator == Operator::Config;
                    b.is_ascii_whitespace()
                        || b"\"'`,;)]}<>\\".contains(b)
                        || (*b == b'&' && config)
                        || (*b == b'|' && !config)
                };
                let length = bytes[from..].iter().take(2048).take_while(|b| !stop(b)).count();
                let mut end = from + length;
                while end > from
                    && matches!(bytes[end - 1], b'.' | b'!' | b'?' | b':')
                    && operator == Operator::Prose
                {
                    end -= 1;
                }
                (from..end, false)
            }
        };
        if range.is_empty() || !text.is_char_boundary(range.start) || !text.is_char_boundary(range.end) {
            return None;
        }
        let close = range.start <= end + 8;
        Some(Value { range, quoted, operator, name, close })
    }
}

/// A capital after a small letter: `userPin`.
fn is_hump(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    bytes[at].is_ascii_uppercase() && bytes[at - 1].is_ascii_lowercase()
}

/// The operator at `at`, which is moved behind it, and whether only a quoted value may follow.
fn operator(text: &str, start: usize, end: usize, at: &mut usize, blanks: usize) -> Option<(Operator, bool)> {
    let rest = &text[*at..];
    let line = line_before(text, start);
    let name = &text[start..end];
    let opens = line.trim_matches([' ', '\t', '-', '"', '\'', '#', '>']).is_empty()
        || matches!(line.trim(), "export" | "set" | "ENV" | "ARG" | "- name:" | "setx");
    // A flag: `--password hunter2`, `-p=...`.
    if name.starts_with("--") {
        if rest.starts_with('=') {
            *at += 1;
        } else if blanks == 0 {
            return None;
        }
        return Some((Operator::Markup, false));
    }
    // `<add key="Password" value="...">`
    if let Some(after) = rest.strip_prefix("value=").filter(|_| blanks > 0) {
        *at = text.len() - after.len();
        return Some((Operator::Markup, true));
    }
    for sign in [":=", "=>", "==", "!=", "->", "::", "||", "?=", "=", "：", ":", ">", ",", "("] {
        if !rest.starts_with(sign) {
            continue;
        }
        match sign {
            "!=" | "::" | "->" => return None,
            "==" | "," | "(" | "||" | "=>" => {
                *at += sign.len();
                return Some((Operator::Code, true));
            }
            ">" => {
                // An XML element with this name, and text in it.
                if !text[..start].ends_with('<') {
                    return None;
                }
                *at += 1;
                return Some((Operator::Markup, false));
            }
            "=" => {
                *at += 1;
                let query = text[..start].ends_with(['?', '&', ';']) || line.trim_end().ends_with(';');
                let tight = !text[*at..].starts_with(' ');
                let config =
                    query || (opens && tight) || (tight && name.bytes().all(|b| !b.is_ascii_lowercase()));
                return Some((if config { Operator::Config } else { Operator::Code }, false));
            }
            _ => {
                *at += sign.len();
                let spaced = text[*at..].starts_with([' ', '\n']) || sign == "：" || sign == ":=";
                // `let token: Type` and `fn f(password: &str)` are code; "Password: x" and YAML are not.
                let code = line.contains(['(', '{', '<'])
                    || ["let ", "pub ", "const ", "static ", "var ", "fn "]
                        .iter()
                        .any(|k| line.trim_start().starts_with(k));
                let kind = if opens && spaced && !code {
                    Operator::Config
                } else if spaced && !code {
                    Operator::Prose
                } else {
                    Operator::Code
                };
                return Some((kind, false));
            }
        }
    }
    // "my password is ...", "le mot de passe est ...", "пароль — ...".
    for word in [
        "is now ",
        "is set to ",
        "is: ",
        "is ",
        "was ",
        "ist ",
        "lautet ",
        "est ",
        "es ",
        "è ",
        "é ",
        "to ",
        "— ",
        "- ",
        "– ",
        "は",
        "是",
        "为",
        "는 ",
        "은 ",
        "jest ",
        "är ",
        "er ",
        "on ",
    ] {
        if (blanks > 0 || !word.is_ascii())
            && let Some(after) = rest.strip_prefix(word)
        {
            *at = text.len() - after.len();
            return Some((Operator::Prose, false));
        }
    }
    None
}

/// Dotted names, paths, calls, file names and addresses: no secret.
fn is_reference(raw: &str) -> bool {
    let dotted = raw.split('.').count() >= 2
        && raw.split('.').all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_'));
    dotted
        || raw.contains("://")
        || raw.contains("::")
        || raw.starts_with(['/', '.', '~'])
        || raw.ends_with(['(', ':'])
        || raw.contains("()")
        || raw.contains('(')
        || is_identifier(raw)
        || is_numeric(raw)
}

/// Words joined by `_`, `-` or humps, with at most two digits in all: names of code.
fn is_identifier(raw: &str) -> bool {
    let words: Vec<&str> = raw.split(['_', '-', '.', ':', '/', ' ']).filter(|w| !w.is_empty()).collect();
    words.len() >= 2
        && words.iter().all(|w| {
            let digits = w.bytes().filter(u8::is_ascii_digit).count();
            w.bytes().all(|b| b.is_ascii_alphanumeric())
                && (digits == w.len() && w.len() <= 4
                    || digits <= 2 && (w.len() <= 3 || entropy::is_wordy(w)))
        })
}

/// Dates, versions, numbers with units.
fn is_numeric(raw: &str) -> bool {
    raw.bytes().all(|b| b.is_ascii_digit() || b".-_:,+TZ".contains(&b))
}

/// A password chosen by a person: six characters or more, not a word of code or of a form.
fn is_password(raw: &str, value: &Value) -> bool {
    let length = raw.chars().count();
    if !(4..=128).contains(&length) || is_variable(raw) || raw.contains("://") || raw.contains('\n') {
        return false;
    }
    let digits = raw.bytes().filter(u8::is_ascii_digit).count();
    let lower = raw.bytes().any(|b| b.is_ascii_lowercase());
    let upper = raw.bytes().any(|b| b.is_ascii_uppercase());
    let letters = lower || upper || raw.chars().any(|c| c.is_alphabetic() && !c.is_ascii());
    let marks = raw.bytes().filter(|b| b"!@#$%^&*?+=~".contains(b)).count();
    let blanks = raw.bytes().filter(|b| *b == b' ').count();
    if blanks > 0 || !letters || is_reference(raw) && digits < 3 {
        return false;
    }
    let inner_capital =
        raw.as_bytes().windows(2).any(|w| w[0].is_ascii_lowercase() && w[1].is_ascii_uppercase());
    match value.operator {
        // Without quotes, code gives names and calls.
        Operator::Code if !value.quoted => {
            length >= 8
                && digits >= 2
                && marks >= 1
                && lower
                && upper
                && !raw.contains(['.', ':', '&', '*', '='])
        }
        Operator::Code => {
            length >= 6
                && ((digits >= 1 && (marks >= 1 || length >= 8 && (digits >= 2 || upper)))
                    || (marks >= 1 && inner_capital))
                && !entropy::is_wordy(raw)
        }
        Operator::Prose => length >= 6 && (digits >= 1 || marks >= 1) && !is_numeric(raw),
        Operator::Config | Operator::Markup => {
            length >= 5
                && (digits >= 1 || marks >= 1 || (inner_capital && !entropy::is_wordy(raw)))
                && !raw.ends_with(['(', '{', '['])
        }
    }
}
