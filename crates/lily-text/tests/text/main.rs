//! The crate's behaviour with lily-mini's tokenizer and template. Expectations in `tests/fixtures/` come from Python's
//! Jinja2, `tokenizers` and `json` (`make_fixtures.py`); nothing outside the repository is needed.

mod chats;
mod files;
mod messages;
mod reasoning;
mod stop;
mod tokens;
mod tools;

use std::{path::PathBuf, sync::LazyLock};

use lily_text::{RenderRequest, TextModel};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// lily-mini, loaded once.
static MINI: LazyLock<TextModel> =
    LazyLock::new(|| TextModel::from_files(mini_file).expect("lily-mini loads"));

/// A file of `models/lily-mini/`.
fn mini_file(name: &str) -> Option<Vec<u8>> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/lily-mini").join(name)).ok()
}

/// A file of `tests/fixtures/`.
fn fixture<T: DeserializeOwned>(name: &str) -> T {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A request written as one object: `messages`, `tools` and template keywords.
fn request(object: &Value) -> RenderRequest {
    let mut kwargs = object.as_object().expect("a request is an object").clone();
    let messages = kwargs.remove("messages").and_then(|m| m.as_array().cloned()).expect("messages");
    let tools = kwargs.remove("tools").and_then(|tools| tools.as_array().cloned());
    RenderRequest { messages, tools, kwargs }
}
