//! Small pieces of JSON as text, so that what the model wrote (numbers above all) is not rewritten on its way.

use serde_json::Value;

/// The inside of a JSON string: `text` escaped, without quotes. Escaping pieces one by one gives the same as escaping
/// them together.
pub(crate) fn escaped(text: &str) -> String {
    let quoted = quoted(text);
    quoted[1..quoted.len() - 1].to_string()
}

/// `text` as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Valid JSON without the blanks outside of strings; everything else as it was written.
pub(crate) fn minified(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let (mut in_string, mut after_backslash) = (false, false);
    for c in json.chars() {
        if in_string {
            if after_backslash {
                after_backslash = false;
            } else if c == '\\' {
                after_backslash = true;
            } else if c == '"' {
                in_string = false;
            }
        } else if c.is_ascii_whitespace() {
            continue;
        } else if c == '"' {
            in_string = true;
        }
        out.push(c);
    }
    out
}

/// The search for the brace that closes a JSON object, in text that grows.
#[derive(Debug, Default)]
pub(crate) struct JsonEnd {
    searched: usize,
    depth: usize,
    in_string: bool,
    after_backslash: bool,
}

impl JsonEnd {
    /// Searches on in the object's text so far; its length when it is whole.
    pub(crate) fn step(&mut self, text: &str) -> Option<usize> {
        for &byte in &text.as_bytes()[self.searched.min(text.len())..] {
            self.searched += 1;
            if self.in_string {
                match byte {
                    _ if self.after_backslash => self.after_backslash = false,
                    b'\\' => self.after_backslash = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.searched);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minified_json_keeps_strings_and_numbers() {
        let text = "{ \"a b\" : [ 1.50 ,\n 123456789012345678901 ], \"c\\\" \": \" x \\\\\" }";
        assert_eq!(minified(text), "{\"a b\":[1.50,123456789012345678901],\"c\\\" \":\" x \\\\\"}");
    }

    #[test]
    fn pieces_escape_as_the_whole_does() {
        let text = "a\"b\\\n\u{1}é<>&\u{2028}";
        let pieces: String = text.chars().map(|c| escaped(&c.to_string())).collect();
        assert_eq!(pieces, escaped(text));
        assert_eq!(serde_json::from_str::<String>(&quoted(text)).unwrap(), text);
    }
}
