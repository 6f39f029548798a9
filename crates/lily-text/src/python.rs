//! Python's own text forms, which chat templates were written against: `str.strip`, `repr(float)`, `json.dumps`.

use std::fmt::Write;

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, ValueKind},
};

/// What `str.isspace` says of a character: Unicode white space and the four ASCII separators U+001C to U+001F.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `repr(float)`: shortest digits that read back, an exponent below 1e-4 and from 1e16 on.
pub(crate) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    // Rust's `{:e}` has the same shortest digits: "-1.25e-7".
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Options of `json.dumps` that Hugging Face's `tojson` filter passes on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonStyle {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

impl JsonStyle {
    /// From the filter's keyword arguments `ensure_ascii`, `indent`, `separators`, `sort_keys`.
    pub(crate) fn from_kwargs(kwargs: &Kwargs) -> Result<Self, Error> {
        let indent = match kwargs.get::<Option<Value>>("indent")? {
            None => None,
            Some(v) if v.is_none() => None,
            Some(v) if v.as_str().is_some() => v.as_str().map(str::to_string),
            Some(v) => {
                let width = usize::try_from(v).unwrap_or(0);
                if width > 64 {
                    return Err(Error::new(ErrorKind::InvalidOperation, "tojson: indent is more than 64"));
                }
                Some(" ".repeat(width))
            }
        };
        let separators: Option<(String, String)> = match kwargs.get::<Option<Value>>("separators")? {
            None => None,
            Some(v) if v.is_none() => None,
            Some(v) => {
                let parts: Vec<String> = v.try_iter()?.map(|part| part.to_string()).collect();
                let [item, key]: [String; 2] = parts.try_into().map_err(|_| {
                    Error::new(ErrorKind::InvalidOperation, "tojson: separators must be (item, key)")
                })?;
                Some((item, key))
            }
        };
        let style = Self {
            ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
            sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
            // json.dumps drops the blank after the comma when it breaks lines.
            item_separator: if indent.is_some() { "," } else { ", " }.to_string(),
            key_separator: ": ".to_string(),
            indent,
        };
        kwargs.assert_all_used()?;
        Ok(match separators {
            Some((item_separator, key_separator)) => Self { item_separator, key_separator, ..style },
            None => style,
        })
    }
}

/// `json.dumps(value)` in the given style. Key order is kept; what JSON cannot hold is an error, as in Python.
/// Work is charged to the template's fuel: a template can make a small value that is endless when written out.
pub(crate) fn json_dumps(state: &State, value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut writer = JsonWriter { state, style, out: String::new() };
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// Deeper values are refused instead of overflowing the stack; `serde_json` reads at most 128 levels anyway.
const MAX_DEPTH: usize = 200;

struct JsonWriter<'a, 'env> {
    state: &'a State<'a, 'env>,
    style: &'a JsonStyle,
    out: String,
}

impl JsonWriter<'_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: the value is nested too deep"));
        }
        self.state.consume_fuel(1)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let mut count = 0;
                for item in value.try_iter()? {
                    self.separate(count, depth);
                    self.value(&item, depth + 1)?;
                    count += 1;
                }
                self.close(']', count, depth);
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    self.state.consume_fuel(1)?;
                    let member = value.get_item(&key)?;
                    pairs.push((json_key(&key)?, member));
                }
                if self.style.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.out.push('{');
                for (i, (key, member)) in pairs.iter().enumerate() {
                    self.separate(i, depth);
                    self.string(key)?;
                    self.out.push_str(&self.style.key_separator);
                    self.value(member, depth + 1)?;
                }
                self.close('}', pairs.len(), depth);
            }
            kind => {
                let message = format!("Object of type {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    /// What stands before member `i` of a list or object at `depth`.
    fn separate(&mut self, i: usize, depth: usize) {
        if i > 0 {
            self.out.push_str(&self.style.item_separator);
        }
        self.line_break(depth + 1);
    }

    fn close(&mut self, bracket: char, count: usize, depth: usize) {
        if count > 0 {
            self.line_break(depth);
        }
        self.out.push(bracket);
    }

    fn line_break(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel(text.len() as u64 / 64)?;
        write_string(text, self.style.ensure_ascii, &mut self.out);
        Ok(())
    }
}

/// Integers in full, floats by `repr`; the names Python's `json` gives to values JSON has no words for.
fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let float = f64::try_from(value.clone())?;
    Ok(match float_repr(float).as_str() {
        "nan" => "NaN".to_string(),
        "inf" => "Infinity".to_string(),
        "-inf" => "-Infinity".to_string(),
        repr => repr.to_string(),
    })
}

/// A mapping key as `json.dumps` writes it.
fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
        ValueKind::Number => number(key),
        ValueKind::Bool => Ok(key.is_true().to_string()),
        ValueKind::None => Ok("null".to_string()),
        kind => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("keys must be str, int, float, bool or None, not {kind}"),
        )),
    }
}

fn write_string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && !(' '..='~').contains(&c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Left: what CPython 3.11 prints for `repr` of the number on the right.
    #[test]
    fn float_repr_is_pythons() {
        for (expected, value) in [
            ("0.0", 0.0),
            ("-0.0", -0.0),
            ("1.0", 1.0),
            ("0.1", 0.1),
            ("0.0001", 1e-4),
            ("1e-05", 1e-5),
            ("1.5e-07", 1.5e-7),
            ("123456789.125", 123_456_789.125),
            ("1e+16", 1e16),
            ("1.2345678901234568e+16", 12_345_678_901_234_567.0),
            ("-1e+22", -1e22),
            ("1.7976931348623157e+308", f64::MAX),
            ("5e-324", 5e-324),
            ("2.2250738585072014e-308", f64::MIN_POSITIVE),
            ("0.30000000000000004", 0.1 + 0.2),
            ("inf", f64::INFINITY),
            ("nan", f64::NAN),
        ] {
            assert_eq!(float_repr(value), expected);
        }
    }

    #[test]
    fn spaces_are_pythons() {
        let spaces: String = (0..=0x10_FFFF).filter_map(char::from_u32).filter(|&c| is_space(c)).collect();
        let expected = "\t\n\u{b}\u{c}\r\u{1c}\u{1d}\u{1e}\u{1f} \u{85}\u{a0}\u{1680}\u{2000}\u{2001}\u{2002}\
                        \u{2003}\u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}\u{2028}\u{2029}\u{202f}\
                        \u{205f}\u{3000}";
        assert_eq!(spaces, expected);
    }
}
