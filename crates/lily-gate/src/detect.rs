//! Layer 1: recognisers that need no model, run over one text.

use std::borrow::Cow;

use regex::Regex;

use crate::{Category, Evidence, Field, Span};

/// One term of the owner's identity dictionary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerTerm {
    /// The text as its owner writes it; found whatever its case.
    pub text: String,
    /// What it is: `login`, `name`, `host`, `home`, `email`, `address`, `term`.
    pub kind: Cow<'static, str>,
}

/// What a [`Detector`] is built from.
#[derive(Debug, Clone, Default)]
pub struct DetectorConfig {
    /// The owner's identity dictionary.
    pub owner: Vec<OwnerTerm>,
    /// Terms that are no secret; they suppress spans of evidence below [`Evidence::Validated`].
    pub allow: Vec<String>,
    /// Locales whose address and number formats are looked for (`en`, `de`, ...); empty: all.
    pub locales: Vec<String>,
}

/// Why a [`Detector`] could not be built. The gate stays shut then.
#[derive(Debug, thiserror::Error)]
pub enum DetectorError {
    /// A pattern of ours does not compile.
    #[error("recogniser {recognizer:?}: its pattern does not compile: {reason}")]
    Pattern {
        /// The recogniser's id.
        recognizer: &'static str,
        /// What the regex compiler says.
        reason: String,
    },
    /// A term of the configuration cannot be used.
    #[error("{list} {term:?}: {reason}")]
    Term {
        /// `owner term` or `allowed term`.
        list: &'static str,
        /// The term.
        term: String,
        /// What is wrong and what to do.
        reason: String,
    },
}

/// All recognisers of layer 1, compiled once; cheap to share between threads.
#[derive(Debug)]
pub struct Detector {
    email: Regex,
}

impl Detector {
    /// Compiles every pattern.
    ///
    /// # Errors
    /// A pattern that does not compile, an owner or allowed term that is empty.
    pub fn new(_config: DetectorConfig) -> Result<Self, DetectorError> {
        let email = Regex::new(r"(?i)\b[a-z0-9._%+-]+@[a-z0-9-]+(?:\.[a-z0-9-]+)+\b")
            .map_err(|e| DetectorError::Pattern { recognizer: "email", reason: e.to_string() })?;
        Ok(Self { email })
    }

    /// The private spans of `text`: sorted by start, none overlapping another.
    pub fn detect(&self, text: &str) -> Vec<Span> {
        self.email
            .find_iter(text)
            .map(|m| Span {
                range: m.range(),
                category: Category::Email,
                evidence: Evidence::Validated,
                recognizer: "email".into(),
                version: 1,
                subtype: None,
            })
            .collect()
    }

    /// [`Detector::detect`] with the field's key as context: in `{"password": "..."}` the key is the cue.
    pub fn detect_field(&self, field: &Field) -> Vec<Span> {
        self.detect(&field.text)
    }
}
