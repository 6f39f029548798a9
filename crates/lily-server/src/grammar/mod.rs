//! Structured output: JSON schemas, regular expressions, choices and tool calls as constraints on the next token.
//!
//! `llguidance` follows the grammar; this module gives it the model's vocabulary, turns requests into grammars
//! ([`Grammar`]), and joins a grammar with the model's thinking ([`constraint`]): thinking is free, the grammar begins
//! where the answer does.
//!
//! A mask over 248,320 tokens takes some microseconds, at times milliseconds. Each constrained generation therefore has
//! a thread that computes the next mask while the model's forward pass runs (`worker`).

pub mod constraint;
mod tools;
mod worker;

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use lily_engine::TokenMask;
use lily_text::{Tokenizer, ToolSet};
use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    earley::SlicedBiasComputer,
    toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv},
};
use serde_json::{Map, Value, json};

/// Largest schema, regular expression or grammar, in bytes of its text.
const MAX_BYTES: usize = 512 << 10;
const CLOSE_THINK: &[u8] = b"</think>";

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that the schema accepts.
    JsonSchema(Value),
    /// Text that the regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in `llguidance`'s variant of Lark.
    Lark(String),
    /// Calls of these functions and nothing else; `many`: one or more of them.
    Calls {
        /// The functions.
        tools: ToolSet,
        /// More than one call.
        many: bool,
    },
    /// JSON that the schema accepts, or calls.
    JsonOrCalls {
        /// The answer's schema.
        schema: Value,
        /// The functions.
        tools: ToolSet,
        /// More than one call.
        many: bool,
    },
    /// What follows `<tool_call>`, up to and with `</tool_call>`.
    RestOfCall(ToolSet),
}

/// Why a grammar cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GrammarError(pub String);

/// A compiled grammar, from which each generation gets a copy.
#[derive(Clone)]
pub struct Compiled {
    matcher: Arc<Mutex<Matcher>>,
    /// What it describes is JSON.
    is_json: bool,
}

impl Compiled {
    fn matcher(&self) -> Matcher {
        self.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }
}

/// Time spent on masks, all generations together.
#[derive(Debug, Default)]
pub struct MaskTimes {
    count: AtomicU64,
    total_us: AtomicU64,
    worst_us: AtomicU64,
    waited_us: AtomicU64,
}

impl MaskTimes {
    fn computed(&self, us: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.total_us.fetch_add(us, Ordering::Relaxed);
        self.worst_us.fetch_max(us, Ordering::Relaxed);
    }

    fn waited(&self, us: u64) {
        self.waited_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Masks computed, microseconds they took together, the longest one, and how long the engine waited for them.
    pub fn figures(&self) -> [u64; 4] {
        [&self.count, &self.total_us, &self.worst_us, &self.waited_us].map(|a| a.load(Ordering::Relaxed))
    }
}

/// A model's vocabulary, ready to compile grammars against.
pub struct Grammars {
    factory: ParserFactory,
    vocab: usize,
    stop_tokens: Vec<u32>,
    /// Id of `</think>`, if the vocabulary has it.
    close_think: Option<u32>,
    /// Id of the blank line between reasoning and answer.
    blank_line: Option<u32>,
    line_break: Option<u32>,
    open_call: Option<u32>,
    /// For every number of bytes of `</think>` already written: ids of tokens that would complete it and begin the
    /// answer in the same token.
    glued: Vec<Vec<u32>>,
    closers: Closers,
    times: Arc<MaskTimes>,
}

impl Grammars {
    /// Builds the token trie. `vocab`: ids below it may be sampled; `stop_tokens` end a turn.
    pub fn new(tokenizer: &Arc<Tokenizer>, vocab: usize, stop_tokens: &[u32]) -> Result<Self, GrammarError> {
        let stop_tokens: Vec<u32> = stop_tokens.iter().copied().filter(|&id| (id as usize) < vocab).collect();
        if stop_tokens.is_empty() {
            return Err(GrammarError("the model has no stop token, so no grammar can end".to_string()));
        }
        // Added tokens are marked, so that free text can never become one.
        let words: Vec<Vec<u8>> = (0..vocab as u32)
            .map(|id| {
                let bytes = tokenizer.token_bytes(id).unwrap_or_default();
                if tokenizer.is_added(id) {
                    [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat()
                } else {
                    bytes
                }
            })
            .collect();
        let glued = glued(&words);
        let closers = Closers::new(&words, &stop_tokens);
        let info = TokRxInfo::new(vocab as u32, stop_tokens[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&stop_tokens);
        let env: TokEnv = Arc::new(Vocabulary { trie, tokenizer: tokenizer.clone() });
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|e| GrammarError(format!("the vocabulary cannot be used for grammars: {e}")))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        let single = |text: &str| match tokenizer.encode(text).ok()?.as_slice() {
            &[id] if (id as usize) < vocab => Some(id),
            _ => None,
        };
        Ok(Self {
            factory,
            vocab,
            stop_tokens,
            close_think: single("</think>"),
            blank_line: single("\n\n"),
            line_break: single("\n"),
            open_call: single("<tool_call>"),
            glued,
            closers,
            times: Arc::default(),
        })
    }

    /// Time spent on masks so far.
    pub fn times(&self) -> &Arc<MaskTimes> {
        &self.times
    }

    /// Compiles a grammar; the error says what in it is not supported.
    pub fn compile(&self, grammar: &Grammar) -> Result<Compiled, GrammarError> {
        // In calls a quote ends nothing.
        let is_json = matches!(grammar, Grammar::JsonObject | Grammar::JsonSchema(_));
        let grammar = match grammar {
            Grammar::JsonObject => TopLevelGrammar::from_json_schema(compact(&json!({"type": "object"}))),
            Grammar::JsonSchema(schema) => {
                check_size(&schema.to_string())?;
                TopLevelGrammar::from_json_schema(compact(schema))
            }
            Grammar::Regex(regex) => {
                check_size(regex)?;
                TopLevelGrammar::from_regex(regex)
            }
            Grammar::Lark(lark) => {
                check_size(lark)?;
                TopLevelGrammar::from_lark(lark.clone())
            }
            Grammar::Choice(choices) => TopLevelGrammar::from_lark(choice(choices)?),
            Grammar::Calls { tools, many } => TopLevelGrammar::from_lark(tools::calls(tools, *many)?),
            Grammar::JsonOrCalls { schema, tools, many } => {
                check_size(&schema.to_string())?;
                TopLevelGrammar::from_lark(tools::json_or_calls(&compact(schema), tools, *many)?)
            }
            Grammar::RestOfCall(tools) => TopLevelGrammar::from_lark(tools::rest_of_call(tools)?),
        };
        let parser =
            self.factory.create_parser(grammar).map_err(|e| GrammarError(first_line(&e.to_string())))?;
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            None => Ok(Compiled { matcher: Arc::new(Mutex::new(matcher)), is_json }),
            Some(error) => Err(GrammarError(first_line(&error))),
        }
    }
}

fn check_size(text: &str) -> Result<(), GrammarError> {
    if text.len() <= MAX_BYTES {
        return Ok(());
    }
    Err(GrammarError(format!("{} bytes; at most {MAX_BYTES} are allowed", text.len())))
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_string()
}

/// A schema whose output is on one line: endless blanks between values would be legal JSON too. `\u` escapes are left out,
/// since strings hold any character as it is, unless the schema names a character that JSON has no other form for.
fn compact(schema: &Value) -> Value {
    let escapes = if names_controls(schema) { "nrbtf\"\\u" } else { "nrbtf\"\\" };
    let mut schema = match schema {
        Value::Object(fields) => fields.clone(),
        Value::Bool(false) => Map::from_iter([("enum".to_string(), json!([]))]),
        _ => Map::new(),
    };
    schema.insert(
        "x-guidance".to_string(),
        json!({
            "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
            "json_allowed_escapes": escapes,
        }),
    );
    Value::Object(schema)
}

/// Whether a schema names a control character without a short escape, in a value, a key, or as what looks like an escape
/// of a pattern.
fn names_controls(schema: &Value) -> bool {
    let control = |c: char| c.is_ascii_control() && !"\n\r\t\u{8}\u{c}".contains(c);
    let named = |text: &str| {
        text.contains(control) || ["\\x", "\\u", "\\c", "\\0"].iter().any(|escape| text.contains(escape))
    };
    match schema {
        Value::String(text) => named(text),
        Value::Array(list) => list.iter().any(names_controls),
        Value::Object(fields) => fields.iter().any(|(key, value)| named(key) || names_controls(value)),
        _ => false,
    }
}

fn choice(choices: &[String]) -> Result<String, GrammarError> {
    if choices.is_empty() {
        return Err(GrammarError("a choice needs at least one text".to_string()));
    }
    let quoted: Vec<String> = choices.iter().map(|c| tools::literal(c)).collect();
    let grammar = format!("start: {}\n", quoted.join(" | "));
    check_size(&grammar)?;
    Ok(grammar)
}

/// Tokens that bring JSON nearer to its end, for answers that come near their token limit.
struct Closers {
    /// The turn's end.
    stop: TokenMask,
    /// Tokens that begin with `}` or `]`, and those that begin with a comma.
    brackets: TokenMask,
    commas: TokenMask,
    /// The quote alone, and a letter alone: where both may come, a string is being written.
    quote: Option<u32>,
    quotes: TokenMask,
    letter: Option<u32>,
}

impl Closers {
    fn new(words: &[Vec<u8>], stop_tokens: &[u32]) -> Self {
        let all = |test: &dyn Fn(&[u8]) -> bool| {
            let mut mask = TokenMask::none(words.len());
            let ids = words.iter().enumerate().filter(|(_, word)| test(word));
            ids.for_each(|(id, _)| mask.insert(id as u32));
            mask
        };
        let exactly = |text: &[u8]| words.iter().position(|word| word == text).map(|id| id as u32);
        let mut stop = TokenMask::none(words.len());
        stop_tokens.iter().for_each(|&id| stop.insert(id));
        let quote = exactly(b"\"");
        let mut quotes = TokenMask::none(words.len());
        quote.into_iter().for_each(|id| quotes.insert(id));
        Self {
            stop,
            quote,
            quotes,
            brackets: all(&|word| matches!(word.first(), Some(b'}' | b']'))),
            commas: all(&|word| word.first() == Some(&b',')),
            letter: exactly(b"Q"),
        }
    }

    /// Narrows a mask to what ends the answer soonest, as far as that can be told from the mask.
    fn narrow(&self, mask: &mut TokenMask) {
        let allowed = |id: Option<u32>| id.is_some_and(|id| mask.contains(id));
        if allowed(self.quote) && allowed(self.letter) {
            *mask = self.quotes.clone();
            return;
        }
        if allowed(self.letter) {
            // Free text that may not end yet.
            return;
        }
        for nearer in [&self.stop, &self.brackets, &self.commas, &self.quotes] {
            let narrowed = mask.and(nearer);
            if !narrowed.is_empty() {
                *mask = narrowed;
                return;
            }
        }
    }
}

/// See [`Grammars::glued`].
fn glued(words: &[Vec<u8>]) -> Vec<Vec<u32>> {
    let begins_answer = |rest: &[u8]| !rest.trim_ascii().is_empty();
    (0..CLOSE_THINK.len())
        .map(|done| {
            let missing = &CLOSE_THINK[done..];
            let glues = |word: &[u8]| match done {
                // The whole tag anywhere inside the token.
                0 => word
                    .windows(missing.len())
                    .position(|w| w == missing)
                    .is_some_and(|at| begins_answer(&word[at + missing.len()..])),
                _ => word.strip_prefix(missing).is_some_and(begins_answer),
            };
            let ids = words.iter().enumerate().filter(|(_, word)| glues(word));
            ids.map(|(id, _)| id as u32).collect()
        })
        .collect()
}

/// The trie with the model's own tokenizer.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            // The tokenizer normalises; what a grammar forces must stay byte for byte.
            match self.tokenizer.encode_ordinary(text) {
                Ok(ids) if self.tokenizer.decode(&ids, false) == text => ids,
                _ => self.trie.greedy_tokenize(text.as_bytes()),
            }
        })
    }
}

#[cfg(test)]
mod tests;
