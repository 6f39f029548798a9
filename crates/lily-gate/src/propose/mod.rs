//! The two layers as the gate sees them.
//!
//! Layer 1 ([`Recognise`]) is patterns and dictionaries. Layer 2 ([`Proposer`]) is a model that reads the text and names
//! further private values in it. A model that may clear something leaks more than none, and so layer 2 may only add:
//! it names values (which are then searched for, everywhere), or says that the whole message should stay. Whatever
//! goes wrong with it keeps the request on this machine.
//!
//! Every window carries two invented values that the model must name as well. If it does not, it sleeps, or the text has
//! talked it into silence, and the window counts as not looked at.

mod layer2;
mod script;
#[cfg(test)]
mod tests;

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::{Category, Detector, Field, Span, policy::Topic};

pub(crate) use layer2::Looker;
pub use layer2::{Failure, FailureKind};
pub use script::{Fault, ScriptedProposer};

/// Layer 1.
pub trait Recognise: Send + Sync {
    /// The private spans of a field's text: sorted, none overlapping another.
    fn spans(&self, field: &Field) -> Vec<Span>;
    /// The private spans of a text of unknown origin.
    fn spans_in(&self, text: &str) -> Vec<Span>;
}

impl Recognise for Detector {
    fn spans(&self, field: &Field) -> Vec<Span> {
        self.detect_field(field)
    }

    fn spans_in(&self, text: &str) -> Vec<Span> {
        self.detect(text)
    }
}

/// Layer 2.
pub trait Proposer: Send + Sync {
    /// Which model with which instructions; verdicts are remembered by it.
    fn digest(&self) -> String;

    /// Looks at a text of a few thousand characters and answers with a [`Proposal`] as JSON. The gate checks what
    /// comes; a proposer need not.
    ///
    /// # Errors
    /// The model is not there, or took longer than until `deadline`.
    fn propose(&self, text: &str, deadline: Instant) -> Result<String, String>;
}

/// What layer 2 says of one text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// `allow` means "nothing beyond the items".
    pub verdict: ProposedVerdict,
    /// Why the message should stay.
    pub reason: Reason,
    /// Private values, word for word.
    pub items: Vec<Item>,
}

/// Layer 2's opinion of the whole text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProposedVerdict {
    /// Nothing beyond the items.
    Allow,
    /// The items are to be masked.
    Mask,
    /// The message should stay on this machine.
    Local,
}

/// What a message that should stay is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It need not stay.
    None,
    /// See [`Topic::Health`].
    Health,
    /// See [`Topic::Legal`].
    Legal,
    /// See [`Topic::Finance`].
    Finance,
    /// See [`Topic::Belief`].
    Belief,
    /// Something else.
    Other,
}

impl Reason {
    pub(crate) fn topic(self) -> Option<Topic> {
        Some(match self {
            Self::None => return None,
            Self::Health => Topic::Health,
            Self::Legal => Topic::Legal,
            Self::Finance => Topic::Finance,
            Self::Belief => Topic::Belief,
            Self::Other => Topic::Other,
        })
    }
}

/// A private value.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// What it is.
    pub t: ItemType,
    /// The value, as it stands in the text.
    pub v: String,
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Item({:?}, {} bytes)", self.t, self.v.len())
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.v);
    }
}

/// Kinds of values that layer 2 names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemType {
    /// A person's name.
    Person,
    /// A postal address or a part of one.
    Address,
    /// An organisation.
    Org,
    /// A date that says something about a person.
    Date,
    /// A number or code that identifies a person or a thing of theirs.
    Id,
    /// A statement about health.
    Health,
    /// An amount or account.
    Finance,
    /// A legal matter.
    Legal,
    /// A belief or membership.
    Belief,
    /// Anything else private.
    Other,
}

impl ItemType {
    /// The category of its spans.
    pub fn category(self) -> Category {
        match self {
            Self::Person => Category::Person,
            Self::Address => Category::Address,
            Self::Org => Category::Org,
            _ => Category::Other,
        }
    }

    /// The name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Address => "address",
            Self::Org => "org",
            Self::Date => "date",
            Self::Id => "id",
            Self::Health => "health",
            Self::Finance => "finance",
            Self::Legal => "legal",
            Self::Belief => "belief",
            Self::Other => "other",
        }
    }
}
