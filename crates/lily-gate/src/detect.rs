//! Layer 1: recognisers that need no model, run over one text in all its readings.

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, MatchKind};

use crate::{
    Field, Span,
    cues::Cues,
    merge,
    normalize::{base64_texts, views},
    recognize::{
        address::Address, bank, birth::Birth, card, email, national::National, network, owner::Owner,
        person::Person, phone, place::Place, secret::Secrets, url,
    },
    text::{Hit, Scan},
};

/// One term of the owner's identity dictionary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerTerm {
    /// The text as its owner writes it; found whatever its case, in the usual spellings, with its endings.
    pub text: String,
    /// What it is: `login`, `name`, `host`, `home`, `email`, `phone`, `address`, `term`. Telephone numbers are found
    /// in every grouping.
    pub kind: Cow<'static, str>,
}

/// What a [`Detector`] is built from.
#[derive(Debug, Clone, Default)]
pub struct DetectorConfig {
    /// The owner's identity dictionary.
    pub owner: Vec<OwnerTerm>,
    /// Terms that are no secret: a span of evidence below [`crate::Evidence::Validated`] that is one of them is
    /// dropped. Case does not matter.
    pub allow: Vec<String>,
    /// Countries (ISO 3166, lower case: `us`, `de`) whose national numbers are looked for; empty: all.
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
    cues: Cues,
    national: National,
    place: Place,
    birth: Birth,
    person: Person,
    address: Address,
    secrets: Secrets,
    owner: Owner,
    allow: Option<AhoCorasick>,
}

/// Longest key that is put before a field's text as its cue.
const MAX_KEY: usize = 64;

impl Detector {
    /// Compiles every pattern.
    ///
    /// # Errors
    /// A pattern that does not compile, an owner or allowed term that is empty.
    pub fn new(config: DetectorConfig) -> Result<Self, DetectorError> {
        let pattern = |recognizer| move |reason: String| DetectorError::Pattern { recognizer, reason };
        let owner = Owner::new(&config.owner).map_err(|(term, reason)| DetectorError::Term {
            list: "owner term",
            term,
            reason,
        })?;
        Ok(Self {
            cues: Cues::new().map_err(pattern("cues"))?,
            national: National::new(&config.locales),
            place: Place::new().map_err(|e| e.to_string()).map_err(pattern("coordinates"))?,
            birth: Birth::new().map_err(|e| e.to_string()).map_err(pattern("birth_date"))?,
            person: Person::new().map_err(pattern("person"))?,
            address: Address::new().map_err(pattern("address"))?,
            secrets: Secrets::new().map_err(pattern("secret"))?,
            owner,
            allow: allow(&config.allow)?,
        })
    }

    /// The private spans of `text`: sorted by start, none overlapping another, all on character boundaries.
    pub fn detect(&self, text: &str) -> Vec<Span> {
        let mut hits = self.read(text);
        for view in views(text) {
            for mut hit in self.read(&view.text) {
                hit.range = view.to_raw(&hit.range);
                hits.push(hit);
            }
        }
        for (range, inner) in base64_texts(text) {
            // What is private inside makes the whole run private: it cannot be cut.
            let worst = self.read(&inner).into_iter().max_by_key(|h| (h.category.severity(), h.evidence));
            hits.extend(worst.map(|hit| Hit { range, ..hit }));
        }
        let mut spans = merge::resolve(text, hits);
        if let Some(allow) = &self.allow {
            spans.retain(|span| {
                span.evidence == crate::Evidence::Validated || !is_whole(allow, &text[span.range.clone()])
            });
        }
        spans
    }

    /// [`Detector::detect`] with the field's key as context: in `{"password": "..."}` the key is the cue.
    pub fn detect_field(&self, field: &Field) -> Vec<Span> {
        let Some(key) = field.key.as_deref().filter(|key| key.len() <= MAX_KEY && !key.is_empty()) else {
            return self.detect(&field.text);
        };
        let lead = key.len() + 2;
        let spans = self.detect(&format!("{key}: {}", field.text));
        let shifted = spans.into_iter().filter(|s| s.range.end > lead).map(|mut span| {
            span.range = span.range.start.max(lead) - lead..span.range.end - lead;
            span
        });
        shifted.collect()
    }

    /// One reading of a text.
    fn read(&self, text: &str) -> Vec<Hit> {
        let scan = Scan::new(text, &self.cues);
        let mut hits = Vec::new();
        email::scan(&scan, &mut hits);
        card::scan(&scan, &mut hits);
        bank::scan(&scan, &mut hits);
        self.national.scan(&scan, &mut hits);
        phone::scan(&scan, &mut hits);
        network::scan(&scan, &mut hits);
        url::scan(&scan, &mut hits);
        self.place.scan(&scan, &mut hits);
        self.birth.scan(&scan, &mut hits);
        self.person.scan(&scan, &mut hits);
        self.address.scan(&scan, &mut hits);
        self.secrets.scan(&scan, &mut hits);
        self.owner.scan(&scan, &mut hits);
        hits
    }
}

fn allow(terms: &[String]) -> Result<Option<AhoCorasick>, DetectorError> {
    let error = |term: &str, reason: String| DetectorError::Term {
        list: "allowed term",
        term: term.to_owned(),
        reason,
    };
    if let Some(term) = terms.iter().find(|t| t.trim().is_empty()) {
        return Err(error(term, "is empty; remove it".to_owned()));
    }
    if terms.is_empty() {
        return Ok(None);
    }
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .ascii_case_insensitive(true)
        .build(terms.iter().map(|t| t.trim()))
        .map(Some)
        .map_err(|e| error("", e.to_string()))
}

fn is_whole(allow: &AhoCorasick, text: &str) -> bool {
    let text = text.trim();
    allow.find(text).is_some_and(|m| m.start() == 0 && m.end() == text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Category, Evidence, FieldPart, FieldRole};

    fn detector() -> &'static Detector {
        &crate::testing::DETECTOR
    }

    fn found(text: &str) -> Vec<(String, Category)> {
        detector().detect(text).into_iter().map(|s| (text[s.range].to_owned(), s.category)).collect()
    }

    #[test]
    fn spans_are_sorted_and_apart() {
        let text = "Dear Ann Lee, mail ann.lee@example.org or call +1 555 123 4567; card 4111 1111 1111 1111, \
                    IBAN GB82 WEST 1234 5698 7654 32, 12 Elm Street, Springfield, IL 62704. DOB: 1990-01-31.";
        let spans = detector().detect(text);
        let categories: Vec<Category> = spans.iter().map(|s| s.category).collect();
        assert_eq!(
            categories,
            [
                Category::Person,
                Category::Email,
                Category::Phone,
                Category::Card,
                Category::Iban,
                Category::Address,
                Category::BirthDate
            ]
        );
        assert!(spans.windows(2).all(|w| w[0].range.end <= w[1].range.start));
    }

    #[test]
    fn disguised_values_are_found_where_they_stand() {
        assert_eq!(found("ann%40example.org here"), [("ann%40example.org".to_owned(), Category::Email)]);
        assert_eq!(found("４１１１ １１１１ １１１１ １１１１")[0].1, Category::Card);
        assert_eq!(found("x 4111\u{200b}1111\u{200b}1111\u{200b}1111 y")[0].1, Category::Card);
        let hidden = found("data dXNlcjogYW5uQGV4YW1wbGUub3Jn end");
        assert_eq!(hidden, [("dXNlcjogYW5uQGV4YW1wbGUub3Jn".to_owned(), Category::Email)]);
    }

    #[test]
    fn a_key_is_a_cue() {
        let field = |key: &str, text: &str| Field {
            path: "/a".to_owned(),
            part: FieldPart::Value,
            text: text.to_owned(),
            role: FieldRole::ToolArgument,
            tool: None,
            key: Some(key.to_owned()),
        };
        let detector = detector();
        let spans = detector.detect_field(&field("password", "Tr0ub4dor3"));
        assert_eq!((spans[0].range.clone(), spans[0].category), (0..10, Category::Secret));
        let spans = detector.detect_field(&field("ssn", "536904399"));
        assert_eq!((spans[0].range.clone(), spans[0].category), (0..9, Category::NationalId));
        assert!(detector.detect_field(&field("city", "Paris")).is_empty());
    }

    #[test]
    fn allowed_terms_never_clear_what_is_validated() {
        let config = DetectorConfig {
            allow: vec!["Ann Lee".to_owned(), "4111111111111111".to_owned()],
            ..DetectorConfig::default()
        };
        let detector = Detector::new(config).unwrap();
        assert!(detector.detect("Dear Ann Lee,\n").is_empty());
        assert_eq!(detector.detect("4111111111111111")[0].evidence, Evidence::Validated);
        assert!(
            Detector::new(DetectorConfig { allow: vec![" ".to_owned()], ..DetectorConfig::default() })
                .is_err()
        );
    }

    #[test]
    fn placeholders_are_not_private() {
        for text in [
            "⟦PERSON_3·k7⟧",
            "[[PHONE_12_ab3f]]",
            "mail [[EMAIL_1_k7]] or ⟦PHONE_4155551234·k7⟧",
            "Dear [[PERSON_3_k7]].first,",
        ] {
            assert!(found(text).is_empty(), "{text}: {:?}", found(text));
        }
    }

    #[test]
    fn odd_input() {
        for text in [
            "",
            "\0",
            "\u{feff}",
            "@",
            "://",
            "+",
            "-----BEGIN PRIVATE KEY-----",
            "eyJ",
            "\u{301}\u{301}",
            "%",
            "&#x;",
            "\\u",
        ] {
            detector().detect(text);
        }
    }
}
