//! Everything between a request's messages and token ids, and back.
//!
//! * [`tokenizer`]: byte-level BPE ids of a text and the text of ids, from the checkpoint's `tokenizer.json`;
//! * [`messages`]: checking and normalising chat messages before they are rendered;
//! * [`replay`]: earlier turns rendered as the model wrote them;
//! * [`template`]: the checkpoint's chat template, rendered as Jinja2 renders it in Python;
//! * [`model`]: tokenizer and template of one checkpoint together: messages to prompt ids;
//! * [`detokenizer`]: text from a stream of ids, never splitting a character;
//! * [`stop`]: stop strings in a stream of text;
//! * [`reasoning`]: the `<think>` block apart from the answer;
//! * [`tools`]: calls of declared functions in the answer;
//! * [`output`]: the last two together.
//!
//! Generated ids walk through the last ones in that order: [`Detokenizer`] → [`StopMatcher`] → [`OutputParser`].

pub mod detokenizer;
pub mod error;
pub mod messages;
pub mod model;
pub mod output;
pub mod reasoning;
pub mod replay;
pub mod stop;
pub mod template;
pub mod tokenizer;
pub mod tools;

mod python;
mod segment_cache;
mod vocab;

pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use messages::{first_media_part, normalize_messages};
pub use model::TextModel;
pub use output::{OutputEvent, OutputParser, Released};
pub use reasoning::{Piece, ReasoningSplitter, prompt_starts_in_reasoning};
pub use replay::Replay;
pub use stop::{StopMatcher, StopOutcome};
pub use template::{ChatTemplate, RenderRequest};
pub use tokenizer::Tokenizer;
pub use tools::{ToolEvent, ToolScanner, ToolSet};
