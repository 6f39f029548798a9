//! JSON that comes from a checkpoint: parsed strictly (a repeated key is an error, where `serde_json` would keep
//! the last), and read through [`Field`], which knows its own path so that every error can name it.
//!
//! Nesting is bounded by `serde_json`'s recursion limit of 128; memory by [`MAX_TEXT`].

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{ModelError, RESTORE_CONFIG};

/// Longest text that is parsed; parsed JSON can take ten times its text. The large model's longest has 300 KB.
pub(crate) const MAX_TEXT: usize = 16 << 20;
/// Most characters of a file's content that are repeated in an error.
const SHOWN: usize = 160;

/// Parses `bytes`, naming `file` in errors.
pub(crate) fn parse(file: &str, bytes: &[u8], advice: &'static str) -> Result<Value, ModelError> {
    let error = |reason: String| ModelError::Json { file: file.into(), reason: clip(&reason), advice };
    if bytes.len() > MAX_TEXT {
        return Err(error(format!("{} bytes, of which at most {MAX_TEXT} are accepted", bytes.len())));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| error(format!("not UTF-8: {e}")))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut de = serde_json::Deserializer::from_str(text);
    let value = Strict.deserialize(&mut de).map_err(|e| error(e.to_string()))?;
    de.end().map_err(|e| error(e.to_string()))?;
    Ok(value)
}

/// A [`Value`] in which no object has a key twice.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.into()))
    }
    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Strict)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("key {key:?} occurs twice")));
            }
            let value = map.next_value_seed(Strict)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// A value that knows where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Field<'a> {
    file: &'a str,
    path: String,
    value: Option<&'a Value>,
}

impl<'a> Field<'a> {
    /// The whole of `file`.
    pub(crate) fn root(file: &'a str, value: &'a Value) -> Self {
        Self { file, path: String::new(), value: Some(value) }
    }

    /// The member `key`; missing when this is not an object or has no such key. `null` counts as missing.
    pub(crate) fn get(&self, key: &str) -> Field<'a> {
        let value = self.value.and_then(|v| v.get(key)).filter(|v| !v.is_null());
        let path = if self.path.is_empty() { key.to_string() } else { format!("{}.{key}", self.path) };
        Field { file: self.file, path, value }
    }

    /// Whether there is a value other than `null`.
    pub(crate) fn is_present(&self) -> bool {
        self.value.is_some_and(|v| !v.is_null())
    }

    /// The value itself.
    pub(crate) fn value(&self) -> Option<&'a Value> {
        self.value
    }

    /// An error about this field.
    pub(crate) fn error(&self, expected: impl Into<String>) -> ModelError {
        self.error_with(expected, RESTORE_CONFIG)
    }

    /// An error about this field, with its own advice.
    pub(crate) fn error_with(&self, expected: impl Into<String>, advice: &'static str) -> ModelError {
        ModelError::Field {
            file: self.file.into(),
            field: if self.path.is_empty() { "the file's content".into() } else { self.path.clone() },
            found: self.value.map_or_else(|| "missing".into(), |v| clip(&v.to_string())),
            expected: expected.into(),
            advice,
        }
    }

    /// The members of an object.
    pub(crate) fn object(&self) -> Result<&'a Map<String, Value>, ModelError> {
        self.value.and_then(Value::as_object).ok_or_else(|| self.error("an object"))
    }

    /// An integer in `low..=high`. Floats are refused, also `2048.0`.
    pub(crate) fn integer(&self, low: usize, high: usize) -> Result<usize, ModelError> {
        let n = self.value.and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        n.filter(|n| (low..=high).contains(n)).ok_or_else(|| {
            self.error(match high {
                usize::MAX => format!("an integer of at least {low}"),
                _ if low == high => low.to_string(),
                _ => format!("an integer from {low} to {high}"),
            })
        })
    }

    /// A finite number in `low..=high`.
    pub(crate) fn number(&self, low: f64, high: f64) -> Result<f64, ModelError> {
        let x = self.value.and_then(Value::as_f64);
        x.filter(|x| (low..=high).contains(x))
            .ok_or_else(|| self.error(format!("a number from {low} to {high}")))
    }

    /// A boolean; `default` when missing.
    pub(crate) fn boolean_or(&self, default: bool) -> Result<bool, ModelError> {
        match self.value {
            None => Ok(default),
            Some(v) => v.as_bool().ok_or_else(|| self.error("true or false")),
        }
    }

    /// A string.
    pub(crate) fn string(&self) -> Result<&'a str, ModelError> {
        self.value.and_then(Value::as_str).ok_or_else(|| self.error("a string"))
    }

    /// The items of an array, each knowing its index.
    pub(crate) fn items(&self) -> Result<Vec<Field<'a>>, ModelError> {
        let items = self.value.and_then(Value::as_array).ok_or_else(|| self.error("an array"))?;
        Ok(items
            .iter()
            .enumerate()
            .map(|(i, v)| Field { file: self.file, path: format!("{}[{i}]", self.path), value: Some(v) })
            .collect())
    }
}

/// `text` as an error may show it: cut, and without control characters, so that a hostile file can neither make an
/// endless message nor speak to the terminal.
pub(crate) fn clip(text: &str) -> String {
    let visible = |text: &str| text.replace(char::is_control, "\u{fffd}");
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}… ({} bytes)", visible(&text[..end]), text.len()),
        None => visible(text),
    }
}
