//! A request on its way through the gate: its fields, and fields that the gate does not know.

use std::cmp::Reverse;

use serde_json::{Map, Value, json};

use crate::{Field, FieldPart, Refusal, RefusalKind, fields, policy::UnknownFields, replace};

/// Most unknown top-level fields that are carried along or dropped.
const MOST_UNKNOWN: usize = 32;
/// Where unknown fields travel through the walk: as metadata, which may have any shape.
const CARRIER: &str = "metadata";

/// A request with all its fields read.
pub(super) struct Prepared {
    request: Value,
    pub fields: Vec<Field>,
    /// Unknown fields that do not leave.
    pub dropped: Vec<String>,
    /// Whether unknown fields travel in the metadata.
    carried: bool,
    /// Places of keys that are private values, deepest first.
    hidden: Vec<String>,
}

impl Prepared {
    /// Reads the fields of `request`, with its model replaced.
    pub(super) fn new(request: &Value, model: &str, unknown: UnknownFields) -> Result<Self, Refusal> {
        let mut request = request.clone();
        if let Some(members) = request.as_object_mut() {
            members.insert("model".into(), model.into());
        }
        let mut dropped = Vec::new();
        let mut extras = Map::new();
        let found = loop {
            match fields(&request) {
                Ok(found) => break found,
                Err(refusal) => {
                    let name = top_level(&refusal).filter(|_| unknown != UnknownFields::Refuse);
                    let taken = dropped.len() + extras.len() < MOST_UNKNOWN;
                    let value = name.as_deref().and_then(|n| request.as_object_mut()?.shift_remove(n));
                    match (name, value) {
                        (Some(name), Some(_)) if taken && unknown == UnknownFields::Drop => {
                            dropped.push(name)
                        }
                        (Some(name), Some(value)) if taken => {
                            extras.insert(name, value);
                        }
                        _ => return Err(refusal),
                    }
                }
            }
        };
        if extras.is_empty() {
            return Ok(Self { request, fields: found, dropped, carried: false, hidden: Vec::new() });
        }
        let metadata = request.get(CARRIER).cloned().unwrap_or(Value::Null);
        request[CARRIER] = json!({"m": metadata, "x": extras});
        let found = fields(&request)?;
        Ok(Self { request, fields: found, dropped, carried: true, hidden: Vec::new() })
    }

    /// The request with the fields' new texts.
    pub(super) fn finish(&self, edited: &[Field]) -> Result<Value, Refusal> {
        let mut out = replace(&self.request, edited)?;
        if self.carried
            && let Some(members) = out.as_object_mut()
        {
            let mut carrier = members.shift_remove(CARRIER).unwrap_or_default();
            let metadata = carrier["m"].take();
            if !metadata.is_null() {
                members.insert(CARRIER.into(), metadata);
            }
            if let Value::Object(extras) = carrier["x"].take() {
                members.extend(extras);
            }
        }
        Ok(out)
    }

    /// Notes which keys are private values, so that no report tells them: those for which `is_private` says so.
    pub(super) fn hide_keys(&mut self, is_private: impl Fn(usize) -> bool) {
        let keys = self.fields.iter().enumerate().filter(|(_, f)| f.part == FieldPart::Key);
        let hidden: Vec<String> = keys.filter(|(i, _)| is_private(*i)).map(|(_, f)| f.path.clone()).collect();
        self.hidden.extend(hidden);
        self.hidden.sort_by_key(|path| Reverse(path.len()));
        self.hidden.dedup();
    }

    /// A field's place in the request as it was sent; `*` for keys that are private values.
    pub(super) fn shown_path(&self, path: &str) -> String {
        let mut shown = path.to_owned();
        for hidden in &self.hidden {
            let below = shown
                .strip_prefix(hidden.as_str())
                .is_some_and(|r| r.is_empty() || r.starts_with(['/', '#']));
            if let Some(at) = hidden.rfind('/').filter(|_| below) {
                shown.replace_range(at + 1..hidden.len(), "*");
            }
        }
        if !self.carried {
            return shown;
        }
        if let Some(rest) = shown.strip_prefix("/metadata/x/") {
            return format!("/{rest}");
        }
        shown.replacen("/metadata/m", "/metadata", 1)
    }
}

/// The name of the top-level field that `refusal` does not know.
fn top_level(refusal: &Refusal) -> Option<String> {
    if refusal.kind != RefusalKind::Unknown {
        return None;
    }
    let name = refusal.path.strip_prefix('/')?;
    (!name.contains('/')).then(|| name.replace("~2", "#").replace("~1", "/").replace("~0", "~"))
}
