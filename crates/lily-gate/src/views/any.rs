//! The walk over JSON of any shape: arguments, schemas, metadata.

use serde_json::{Map, Value};

use super::{Field, FieldPart, FieldRole, MAX_DEPTH, MIN_NUMBER_DIGITS, Refusal, RefusalKind};

/// Sees each field; answers the text to put in its place, if any.
pub(super) type Visit<'a> = &'a mut dyn FnMut(Field) -> Result<Option<String>, Refusal>;

/// What the fields below a place have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub role: FieldRole,
    pub tool: Option<&'a str>,
}

/// `parent/key`, escaped as RFC 6901 says and `#` as `~2`.
pub(super) fn child(parent: &str, key: &str) -> String {
    let mut path = String::with_capacity(parent.len() + key.len() + 1);
    path.push_str(parent);
    path.push('/');
    for c in key.chars() {
        match c {
            '~' => path.push_str("~0"),
            '/' => path.push_str("~1"),
            '#' => path.push_str("~2"),
            c => path.push(c),
        }
    }
    path
}

/// One string, a value of the known field `path`.
pub(super) fn string(value: &mut Value, path: &str, context: Context, visit: Visit) -> Result<(), Refusal> {
    keyed(value, path, context, None, visit)
}

fn keyed(
    value: &mut Value,
    path: &str,
    context: Context,
    key: Option<&str>,
    visit: Visit,
) -> Result<(), Refusal> {
    let Value::String(text) = value else {
        let reason = format!("expected a string, found {}", kind_of(value));
        return Err(Refusal::new(RefusalKind::Malformed, path, reason));
    };
    if let Some(what) = unreadable(text) {
        return Err(Refusal::new(RefusalKind::KeepLocal, path, what));
    }
    let field = field(path, FieldPart::Value, text.clone(), context, key);
    if let Some(new) = visit(field)? {
        *text = new;
    }
    Ok(())
}

fn field(path: &str, part: FieldPart, text: String, context: Context, key: Option<&str>) -> Field {
    Field {
        path: path.to_owned(),
        part,
        text,
        role: context.role,
        tool: context.tool.map(str::to_owned),
        key: key.map(str::to_owned),
    }
}

/// Every string, key and long number below `value`.
pub(super) fn any(
    value: &mut Value,
    path: &str,
    depth: usize,
    context: Context,
    key: Option<&str>,
    visit: Visit,
) -> Result<(), Refusal> {
    if depth > MAX_DEPTH {
        let reason = format!("nested deeper than {MAX_DEPTH}; flatten it");
        return Err(Refusal::new(RefusalKind::TooDeep, path, reason));
    }
    match value {
        Value::Null | Value::Bool(_) => Ok(()),
        Value::Number(number) => {
            let text = number.to_string();
            if text.bytes().filter(u8::is_ascii_digit).count() >= MIN_NUMBER_DIGITS {
                let field = field(path, FieldPart::Number, text, context, key);
                if let Some(new) = visit(field)? {
                    *value = Value::String(new);
                }
            }
            Ok(())
        }
        Value::String(_) => keyed(value, path, context, key, visit),
        Value::Array(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                any(item, &child(path, &i.to_string()), depth + 1, context, key, visit)?;
            }
            Ok(())
        }
        Value::Object(map) => object(map, path, depth, context, visit),
    }
}

fn object(
    map: &mut Map<String, Value>,
    path: &str,
    depth: usize,
    context: Context,
    visit: Visit,
) -> Result<(), Refusal> {
    let mut renamed = Map::with_capacity(map.len());
    for (key, mut value) in std::mem::take(map) {
        let place = child(path, &key);
        let new = visit(field(&place, FieldPart::Key, key.clone(), context, None))?;
        any(&mut value, &place, depth + 1, context, Some(&key), visit)?;
        if renamed.insert(new.unwrap_or(key), value).is_some() {
            let reason = "two keys of this object became equal when they were masked";
            return Err(Refusal::new(RefusalKind::Edit, path, reason));
        }
    }
    *map = renamed;
    Ok(())
}

/// A string that holds JSON (tool-call arguments): its values and keys are the fields. What is no JSON object or
/// array is one text.
pub(super) fn embedded(
    value: &mut Value,
    path: &str,
    depth: usize,
    context: Context,
    visit: Visit,
) -> Result<(), Refusal> {
    let parsed = value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    match parsed {
        Some(mut inner @ (Value::Object(_) | Value::Array(_))) => {
            any(&mut inner, &format!("{path}#"), depth + 1, context, None, visit)?;
            *value = Value::String(inner.to_string());
            Ok(())
        }
        _ => string(value, path, context, visit),
    }
}

pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Shortest run of base64 that counts as data and not as a key or a hash.
const MIN_BLOB: usize = 512;

/// Why `text` holds data that no recogniser can read.
fn unreadable(text: &str) -> Option<&'static str> {
    if text.contains(";base64,") {
        return Some("holds a base64 data URL, which the gate cannot read");
    }
    if text.len() < MIN_BLOB {
        return None;
    }
    let is_base64 = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'-' | b'_' | b'=');
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let skipped = rest.iter().position(is_base64).unwrap_or(rest.len());
        rest = &rest[skipped..];
        // Encoders wrap lines at 64 or 76: a single line break does not end a run.
        let (mut end, mut count) = (0, 0);
        while end < rest.len() {
            if is_base64(&rest[end]) {
                count += 1;
            } else if !matches!(rest[end], b'\n' | b'\r') {
                break;
            }
            end += 1;
        }
        if count >= MIN_BLOB && looks_encoded(&rest[..end]) {
            return Some("holds a long run of base64 data, which the gate cannot read");
        }
        rest = &rest[end..];
    }
    None
}

/// Base64 of binary data: lines of equal length or none, all three kinds of characters, and bytes that are no text
/// once decoded. Lists of words or paths fail one of these.
fn looks_encoded(run: &[u8]) -> bool {
    let lines: Vec<&[u8]> =
        run.split(|b| matches!(b, b'\n' | b'\r')).filter(|line| !line.is_empty()).collect();
    let Some((last, whole)) = lines.split_last() else { return false };
    let width = whole.first().unwrap_or(last).len();
    if whole.iter().any(|line| line.len() != width) || (whole.is_empty() && width < MIN_BLOB) {
        return false;
    }
    let joined: Vec<u8> = lines.concat();
    let share = |f: fn(&u8) -> bool| joined.iter().filter(|b| f(b)).count() * 100 / joined.len();
    let mixed = share(u8::is_ascii_lowercase) >= 10
        && share(u8::is_ascii_uppercase) >= 10
        && share(u8::is_ascii_digit) >= 3;
    mixed && crate::normalize::decode_base64(&joined).is_none_or(|bytes| std::str::from_utf8(&bytes).is_err())
}
