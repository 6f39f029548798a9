//! What a recogniser found: where, what kind of thing, and on which evidence.

use std::{borrow::Cow, fmt, ops::Range};

use serde::{Deserialize, Serialize};

/// The kind of private thing a span holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Category {
    /// Payment card number.
    Card,
    /// International bank account number.
    Iban,
    /// Any other account, routing or sort number of a bank.
    BankAccount,
    /// A number a state gave a person or a company: social security, tax, passport, licence.
    NationalId,
    /// Password, key, token, connection string, private key block.
    Secret,
    /// E-mail address.
    Email,
    /// Telephone number.
    Phone,
    /// Web address that leads to a person (user names, tokens in its path or query).
    Url,
    /// Internet address, version 4 or 6.
    Ip,
    /// Hardware address of a network card.
    Mac,
    /// Latitude and longitude.
    Coordinates,
    /// Postal address or its street part.
    Address,
    /// Date of birth.
    BirthDate,
    /// Name of a person.
    Person,
    /// Name of an organisation.
    Org,
    /// A term of the owner's identity dictionary.
    Owner,
    /// Private in another way (layer 2 only).
    Other,
}

impl Category {
    /// All of them, in the order of the documentation.
    pub const ALL: [Category; 17] = [
        Category::Card,
        Category::Iban,
        Category::BankAccount,
        Category::NationalId,
        Category::Secret,
        Category::Email,
        Category::Phone,
        Category::Url,
        Category::Ip,
        Category::Mac,
        Category::Coordinates,
        Category::Address,
        Category::BirthDate,
        Category::Person,
        Category::Org,
        Category::Owner,
        Category::Other,
    ];

    /// The name in policies, placeholders and reports: `bank_account`.
    pub const fn name(self) -> &'static str {
        match self {
            Category::Card => "card",
            Category::Iban => "iban",
            Category::BankAccount => "bank_account",
            Category::NationalId => "national_id",
            Category::Secret => "secret",
            Category::Email => "email",
            Category::Phone => "phone",
            Category::Url => "url",
            Category::Ip => "ip",
            Category::Mac => "mac",
            Category::Coordinates => "coordinates",
            Category::Address => "address",
            Category::BirthDate => "birth_date",
            Category::Person => "person",
            Category::Org => "org",
            Category::Owner => "owner",
            Category::Other => "other",
        }
    }

    /// How much a leak of it costs, for two overlapping spans of different kinds: the larger one names the union.
    pub const fn severity(self) -> u8 {
        match self {
            Category::Secret => 9,
            Category::Card | Category::NationalId => 8,
            Category::Iban | Category::BankAccount => 7,
            Category::Owner => 6,
            Category::Email | Category::Phone | Category::Address | Category::BirthDate => 5,
            Category::Coordinates | Category::Person => 4,
            Category::Url | Category::Ip | Category::Mac => 3,
            Category::Other => 2,
            Category::Org => 1,
        }
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Category {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|c| c.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|c| c.name()).collect();
            format!("unknown category {name:?}; known: {}", known.join(", "))
        })
    }
}

/// Why a span was reported, weakest first, so that `a > b` reads "better evidence".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// A model of layer 2 proposed it.
    Proposed,
    /// It has the shape, and nothing confirms it.
    Shape,
    /// It has the shape, and a word nearby says what it is.
    Cue,
    /// A check digit, a parser or a list confirms it.
    Validated,
}

/// One private stretch of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Bytes of the raw text; both ends lie on character boundaries.
    pub range: Range<usize>,
    /// What it is.
    pub category: Category,
    /// Why it is believed to be.
    pub evidence: Evidence,
    /// Which recogniser found it: `card`, `secret`, `us_ssn`.
    pub recognizer: Cow<'static, str>,
    /// That recogniser's version: it counts up when its rules change.
    pub version: u16,
    /// The kind within the category: a scheme (`us_ssn`) or a secret's provider (`aws_access_key_id`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subtype: Option<Cow<'static, str>>,
}

impl Span {
    /// Whether the two share at least one byte.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.range.start < other.range.end && other.range.start < self.range.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_serialised_form() {
        for category in Category::ALL {
            let json = serde_json::to_value(category).unwrap();
            assert_eq!(json, category.name());
            assert_eq!(category.name().parse::<Category>().unwrap(), category);
        }
        assert!("cards".parse::<Category>().unwrap_err().contains("bank_account"));
    }

    #[test]
    fn evidence_is_ordered() {
        assert!(Evidence::Validated > Evidence::Cue);
        assert!(Evidence::Cue > Evidence::Shape);
        assert!(Evidence::Shape > Evidence::Proposed);
    }
}
