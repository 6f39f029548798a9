//! Sampling defaults and end-of-sequence ids, from `generation_config.json`, `config.json` and
//! `tokenizer_config.json`.

use serde_json::Value;

use super::parse::text_config;
use crate::{error::ModelError, json::Field};

/// How the checkpoint's makers want tokens to be chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationDefaults {
    /// Whether to sample at all. When the file does not say, a file that gives a temperature above 0 means yes.
    pub do_sample: bool,
    /// 0 when `do_sample` is false; 1 when sampling and not given.
    pub temperature: f32,
    /// 0 = all tokens.
    pub top_k: usize,
    /// 1 = all tokens.
    pub top_p: f32,
    /// 0 = all tokens.
    pub min_p: f32,
    /// 1 = off.
    pub repetition_penalty: f32,
    /// Ids that end a generation: those of `generation_config.json`, then of `config.json`, then the
    /// `eos_token` of `tokenizer_config.json`; each once.
    pub eos_token_ids: Vec<u32>,
}

impl Default for GenerationDefaults {
    fn default() -> Self {
        Self {
            do_sample: false,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            eos_token_ids: Vec::new(),
        }
    }
}

impl GenerationDefaults {
    /// From `config.json`, `generation_config.json` if there is one, and the id of the tokenizer's `eos_token`.
    pub(crate) fn new(
        config: &Field,
        generation: Option<&Field>,
        tokenizer_eos: Option<u32>,
        vocab_size: usize,
    ) -> Result<Self, ModelError> {
        let mut d = generation.map_or_else(|| Ok(Self::default()), Self::sampling)?;
        if let Some(g) = generation {
            d.add_eos(&g.get("eos_token_id"), vocab_size)?;
        }
        d.add_eos(&config.get("eos_token_id"), vocab_size)?;
        d.add_eos(&text_config(config)?.get("eos_token_id"), vocab_size)?;
        d.eos_token_ids.extend(tokenizer_eos.filter(|id| !d.eos_token_ids.contains(id)));
        Ok(d)
    }

    fn sampling(g: &Field) -> Result<Self, ModelError> {
        g.object()?;
        let number = |key: &str, low, high, default: f64| {
            let field = g.get(key);
            if field.is_present() { field.number(low, high) } else { Ok(default) }
        };
        let temperature = number("temperature", 0.0, 100.0, 1.0)? as f32;
        let given = g.get("temperature").is_present() && temperature > 0.0;
        let do_sample = g.get("do_sample").boolean_or(given)? && temperature > 0.0;
        let top_k = g.get("top_k");
        Ok(Self {
            do_sample,
            temperature: if do_sample { temperature } else { 0.0 },
            top_k: if top_k.is_present() { top_k.integer(0, 1 << 31)? } else { 0 },
            // What the sampler takes; anything else would load and then fail every request.
            top_p: number("top_p", 1e-6, 1.0, 1.0)? as f32,
            min_p: number("min_p", 0.0, 1.0, 0.0)? as f32,
            repetition_penalty: number("repetition_penalty", 0.01, 100.0, 1.0)? as f32,
            eos_token_ids: Vec::new(),
        })
    }

    /// Adds an id or a list of ids.
    fn add_eos(&mut self, field: &Field, vocab_size: usize) -> Result<(), ModelError> {
        let one = std::slice::from_ref(field);
        let fields = match field.value() {
            None => return Ok(()),
            Some(Value::Array(_)) => field.items()?,
            Some(_) => one.to_vec(),
        };
        for item in fields {
            let id = item.integer(0, vocab_size - 1)? as u32;
            if !self.eos_token_ids.contains(&id) {
                self.eos_token_ids.push(id);
            }
        }
        Ok(())
    }
}
