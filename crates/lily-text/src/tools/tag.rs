//! The tags of the call format, in the forms models write them.

use std::ops::ControlFlow;

/// Longest tag; what is longer is text. Function and parameter names are at most some 128 bytes.
const MAX_TAG: usize = 320;

/// A tag of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag<'a> {
    /// `<tool_call>`
    CallOpen,
    /// `</tool_call>`
    CallClose,
    /// `<function=NAME>`, `<function="NAME">`, `<function name="NAME">`; with a slash before the bracket it is closed
    /// at once.
    FunctionOpen {
        /// The name, without quotes and blanks.
        name: &'a str,
        /// `<function=NAME/>`
        closed: bool,
    },
    /// `</function>`
    FunctionClose,
    /// `<parameter=KEY>`, `<parameter="KEY">`, `<parameter name="KEY">`
    ParameterOpen {
        /// The key.
        name: &'a str,
    },
    /// `</parameter>`
    ParameterClose,
}

/// What stands at a `<`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look<'a> {
    /// A whole tag of this many bytes.
    Tag(Tag<'a>, usize),
    /// What may become a tag when more text comes.
    Partial,
    /// Something else.
    Other,
}

/// What `text` begins with.
pub(crate) fn look(text: &str) -> Look<'_> {
    match parse(text) {
        ControlFlow::Break(look) => look,
        ControlFlow::Continue(()) if text.len() < MAX_TAG => Look::Partial,
        ControlFlow::Continue(()) => Look::Other,
    }
}

/// `Continue`: the text ended within a tag.
fn parse(text: &str) -> ControlFlow<Look<'_>> {
    const OTHER: ControlFlow<Look<'_>> = ControlFlow::Break(Look::Other);
    let Some(rest) = text.strip_prefix('<') else {
        return if text.is_empty() { ControlFlow::Continue(()) } else { OTHER };
    };
    let (closing, rest) = match rest.strip_prefix('/') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let Some((word, rest)) =
        ["tool_call", "function", "parameter"].iter().find_map(|w| Some((*w, rest.strip_prefix(w)?)))
    else {
        let begun = ["tool_call", "function", "parameter"].iter().any(|w| w.starts_with(rest));
        return if begun { ControlFlow::Continue(()) } else { OTHER };
    };
    let at = |rest: &str| text.len() - rest.len();
    let trimmed = rest.trim_ascii_start();
    if closing || word == "tool_call" {
        let tag = match (closing, word) {
            (true, "tool_call") => Tag::CallClose,
            (true, "function") => Tag::FunctionClose,
            (true, _) => Tag::ParameterClose,
            (false, _) => Tag::CallOpen,
        };
        return match trimmed.as_bytes().first() {
            None => ControlFlow::Continue(()),
            Some(b'>') => ControlFlow::Break(Look::Tag(tag, at(&trimmed[1..]))),
            Some(_) => OTHER,
        };
    }
    // `=NAME`, or ` name=NAME`.
    let value = match trimmed.strip_prefix('=') {
        Some(value) => value,
        None if trimmed.len() == rest.len() && !trimmed.is_empty() => return OTHER,
        None => {
            let Some(after) = trimmed.strip_prefix("name") else {
                return if "name".starts_with(trimmed) { ControlFlow::Continue(()) } else { OTHER };
            };
            let after = after.trim_ascii_start();
            match after.strip_prefix('=') {
                Some(value) => value,
                None if after.is_empty() => return ControlFlow::Continue(()),
                None => return OTHER,
            }
        }
    };
    let value = value.trim_ascii_start();
    let (name, rest) = match value.as_bytes().first() {
        None => return ControlFlow::Continue(()),
        Some(&quote @ (b'"' | b'\'')) => {
            let Some((name, rest)) = value[1..].split_once(quote as char) else {
                // Blanks at its ends are not the name's, also those that are its end so far.
                let begun = value[1..].trim_ascii();
                return if begun.is_empty() || is_name(begun) { ControlFlow::Continue(()) } else { OTHER };
            };
            (name.trim_ascii(), rest)
        }
        Some(_) => {
            let end = value.find(|c: char| c == '>' || c.is_ascii_whitespace()).unwrap_or(value.len());
            (&value[..end], &value[end..])
        }
    };
    // Further attributes after the name say nothing here.
    let (closed, name) = match name.strip_suffix('/') {
        Some(inner) if rest.starts_with('>') => (true, inner),
        _ => (false, name),
    };
    if !is_name(name) {
        return if name.is_empty() && rest.is_empty() { ControlFlow::Continue(()) } else { OTHER };
    }
    let Some(end) = rest.find('>') else {
        return if rest.contains('<') { OTHER } else { ControlFlow::Continue(()) };
    };
    if rest[..end].contains('<') {
        return OTHER;
    }
    let closed = closed || rest[..end].ends_with('/');
    let tag = match word {
        "function" => Tag::FunctionOpen { name, closed },
        _ if closed => return OTHER,
        _ => Tag::ParameterOpen { name },
    };
    let len = at(&rest[end + 1..]);
    ControlFlow::Break(if len > MAX_TAG { Look::Other } else { Look::Tag(tag, len) })
}

/// Names have no markup and no line breaks in them.
fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(['<', '>', '\n', '"', '\''])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_each_tag() {
        let function = |name, closed| Tag::FunctionOpen { name, closed };
        let parameter = |name| Tag::ParameterOpen { name };
        for (text, tag) in [
            ("<tool_call>", Tag::CallOpen),
            ("<tool_call >", Tag::CallOpen),
            ("</tool_call>", Tag::CallClose),
            ("</function>", Tag::FunctionClose),
            ("</parameter >", Tag::ParameterClose),
            ("<function=f>", function("f", false)),
            ("<function=a.b/c:d-e>", function("a.b/c:d-e", false)),
            ("<function = f >", function("f", false)),
            ("<function=\"f\">", function("f", false)),
            ("<function='f'>", function("f", false)),
            ("<function name=\"f\">", function("f", false)),
            ("<function name=f>", function("f", false)),
            ("<function=\"\r\nf g\n\">", function("f g", false)),
            ("<function\nname = 'f' id=\"3\">", function("f", false)),
            ("<function=f/>", function("f", true)),
            ("<function name=\"f\" />", function("f", true)),
            ("<parameter=k>", parameter("k")),
            ("<parameter name=\"a key\">", parameter("a key")),
            ("<parameter=k\n>", parameter("k")),
        ] {
            assert_eq!(look(text), Look::Tag(tag, text.len()), "{text}");
            let more = format!("{text}\n<x>");
            assert_eq!(look(&more), Look::Tag(tag, text.len()), "{more}");
            for end in 0..text.len() {
                assert_eq!(look(&text[..end]), Look::Partial, "{:?}", &text[..end]);
            }
        }
    }

    #[test]
    fn what_is_not_a_tag() {
        for text in [
            "x",
            "<x",
            "<tool_calls>",
            "<tool_call=f>",
            "<function>",
            "<functions=f>",
            "<function=>",
            "<function=<b>>",
            "<function=a<b>",
            "<function title=\"f\">",
            "<parameter>",
            "<parameter=k/>",
            "<parameters>",
            "</functional>",
            "</parameter x>",
            "<parameter=\"a\nb\">",
            "<PARAMETER=k>",
        ] {
            assert_eq!(look(text), Look::Other, "{text}");
        }
        assert_eq!(look(&format!("<function={}", "a".repeat(400))), Look::Other);
        assert_eq!(look(&format!("<function={}>", "a".repeat(400))), Look::Other);
    }
}
