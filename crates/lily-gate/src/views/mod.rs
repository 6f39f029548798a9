//! Every string of a chat request, and the way back.
//!
//! The gate does not search the request's bytes: it walks the typed request, so that an escape (`\u0040`), a split
//! over parts or an argument inside a string of JSON hides nothing. What the walk does not know, it refuses: a new
//! field could carry anything.
//!
//! [`fields`] and [`replace`] are the same walk, once to read and once to write, so nothing can be seen by one and
//! missed by the other. What leaves must be `replace`'s result even when no text changed: it writes tool-call
//! arguments anew, which drops what a JSON parser drops (the first of two equal keys, for instance).

mod any;
mod chat;

use serde_json::Value;

/// Deepest nesting of objects and arrays, arguments inside strings included.
pub const MAX_DEPTH: usize = 64;

/// Who wrote a text, or what it is for: policies differ by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldRole {
    /// A system or developer message.
    System,
    /// A user message.
    User,
    /// An answer of the model, refusals included.
    Assistant,
    /// The reasoning that led to an answer.
    Reasoning,
    /// An argument of a tool call, or a key of one.
    ToolArgument,
    /// What a tool returned.
    ToolResult,
    /// A tool's or an answer format's description and schema.
    Schema,
    /// A participant's name (`messages[].name`).
    Name,
    /// `user`, `metadata` and the like.
    Metadata,
    /// Stop strings, predictions, template arguments and other parameters.
    Parameter,
    /// A model's, tool's or call's name: forwarded as it is, so a private value in it refuses the request.
    Identifier,
}

/// Which part of a JSON member the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldPart {
    /// A string value.
    Value,
    /// The member's own name.
    Key,
    /// A number of [`MIN_NUMBER_DIGITS`] digits or more; replaced, it becomes a string.
    Number,
}

/// Shorter numbers are no field: no recogniser takes fewer digits without words around them.
pub const MIN_NUMBER_DIGITS: usize = 6;

/// One string of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// JSON pointer into the request. `#` starts a pointer into the JSON document that the string there holds
    /// (`/messages/1/tool_calls/0/function/arguments#/city`); a `#` of a key is written `~2`.
    pub path: String,
    /// Value, key or number.
    pub part: FieldPart,
    /// The text, decoded.
    pub text: String,
    /// Who wrote it or what it is for.
    pub role: FieldRole,
    /// The tool that it goes to or came from.
    pub tool: Option<String>,
    /// The nearest key of a value inside arguments, metadata or a schema: the cue in `{"password": "..."}`.
    pub key: Option<String>,
}

/// Why a request may not leave at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// A field, part, role or type that the walk does not know.
    Unknown,
    /// A known field with a value of the wrong type or shape.
    Malformed,
    /// Nested deeper than [`MAX_DEPTH`].
    TooDeep,
    /// It cannot be read (image, audio, file, base64 data): it may be answered on this machine.
    KeepLocal,
    /// An edit that cannot be written back.
    Edit,
}

/// A request that may not leave, and the place that says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", if path.is_empty() { "request" } else { path })]
pub struct Refusal {
    /// What kind of refusal.
    pub kind: RefusalKind,
    /// JSON pointer of the place; empty for the whole request.
    pub path: String,
    /// What was found, what is expected.
    pub reason: String,
}

impl Refusal {
    pub(crate) fn new(kind: RefusalKind, path: &str, reason: impl Into<String>) -> Self {
        Self { kind, path: path.to_owned(), reason: reason.into() }
    }
}

/// All strings of an OpenAI chat request, in the request's order.
///
/// # Errors
/// The first thing that may not leave or is not known.
pub fn fields(request: &Value) -> Result<Vec<Field>, Refusal> {
    let mut found = Vec::new();
    let mut copy = request.clone();
    chat::walk(&mut copy, &mut |field| {
        found.push(field);
        Ok(None)
    })?;
    Ok(found)
}

/// The request with the texts of `edited`, which is [`fields`]' answer with changed `text`s (none left out, none
/// moved). Fields that only this server understands (`privacy`) are dropped.
///
/// # Errors
/// What [`fields`] refuses; an `edited` that is not of this request; an edit of an identifier; two keys of an
/// object that became equal.
pub fn replace(request: &Value, edited: &[Field]) -> Result<Value, Refusal> {
    let mut copy = request.clone();
    let mut next = edited.iter();
    chat::walk(&mut copy, &mut |field| {
        let foreign = |path: &str| {
            Refusal::new(RefusalKind::Edit, path, "the edited fields are not those of this request")
        };
        let edit = next.next().ok_or_else(|| foreign(&field.path))?;
        if edit.path != field.path || edit.part != field.part {
            return Err(foreign(&field.path));
        }
        if edit.text == field.text {
            return Ok(None);
        }
        if field.role == FieldRole::Identifier {
            let reason = "holds a private value, and a name or id cannot be masked; rename it";
            return Err(Refusal::new(RefusalKind::Edit, &field.path, reason));
        }
        Ok(Some(edit.text.clone()))
    })?;
    if next.next().is_some() {
        return Err(Refusal::new(RefusalKind::Edit, "", "the edited fields are not those of this request"));
    }
    if let Some(object) = copy.as_object_mut() {
        for name in chat::LOCAL_ONLY {
            object.shift_remove(*name);
        }
    }
    Ok(copy)
}

#[cfg(test)]
mod tests;
