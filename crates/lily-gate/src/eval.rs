//! Scores of a detector against texts with known private spans.
//!
//! A label of the test set that the gate does not mask by rule (places, titles, ages) is neither counted as missed
//! when it is left nor as wrong when it is masked. Lengths are in characters (Unicode scalar values), as the test
//! sets count them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A private stretch of a document: characters, and what the test set calls it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gold {
    /// First character.
    #[serde(alias = "start_position")]
    pub start: usize,
    /// The character after the last.
    #[serde(alias = "end_position")]
    pub end: usize,
    /// The set's own label: `CREDIT_CARD`, `phone`.
    #[serde(alias = "entity_type", alias = "type")]
    pub label: String,
}

/// A text with its private stretches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// The text.
    #[serde(alias = "full_text")]
    pub text: String,
    /// What is private in it; none for a text without.
    #[serde(default)]
    pub spans: Vec<Gold>,
    /// Its language, if the set says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lang: Option<String>,
}

/// What a detector reported: characters and its own label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// First character.
    pub start: usize,
    /// The character after the last.
    pub end: usize,
    /// The detector's label.
    pub label: String,
}

/// The gate's category for a test set's label; none if the set means something that the gate leaves alone.
pub fn category(label: &str) -> Option<&'static str> {
    let label = label.to_ascii_lowercase().replace([' ', '-'], "_");
    Some(match label.as_str() {
        "card" | "credit_card" | "credit_card_number" | "creditcard" | "credit_debit_card" => "card",
        "iban" | "iban_code" => "iban",
        "bank_account"
        | "us_bank_number"
        | "account_number"
        | "accountnumber"
        | "bban"
        | "crypto"
        | "swift"
        | "bic"
        | "swift_bic"
        | "bank_routing_number"
        | "wallet" => "bank_account",
        "national_id"
        | "us_ssn"
        | "ssn"
        | "us_itin"
        | "us_passport"
        | "us_driver_license"
        | "uk_nhs"
        | "uk_nino"
        | "passport"
        | "driver_license"
        | "tax_id"
        | "id_card"
        | "es_nif"
        | "it_fiscal_code"
        | "in_pan"
        | "in_aadhaar"
        | "sg_nric_fin"
        | "au_tfn"
        | "au_medicare"
        | "pl_pesel"
        | "fi_personal_identity_code"
        | "es_nie"
        | "it_driver_license"
        | "national_identification" => "national_id",
        "secret" | "password" | "api_key" | "token" | "pin" => "secret",
        "email" | "email_address" | "e_mail" => "email",
        "phone" | "phone_number" | "telephone" | "phonenumber" => "phone",
        "url" | "profile_url" => "url",
        "ip" | "ip_address" | "ipv4" | "ipv6" => "ip",
        "mac" | "mac_address" => "mac",
        "coordinates" | "coordinate" | "gps" | "latitude_longitude" => "coordinates",
        "address" | "street_address" | "street" | "private_address" => "address",
        "birth_date" | "date_of_birth" | "dob" | "birthday" => "birth_date",
        "person" | "name" | "private_person" | "full_name" => "person",
        "owner" => "owner",
        _ => return None,
    })
}

/// Counts of one label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Spans in the set.
    pub support: usize,
    /// Spans of which every character was found, under any label.
    pub covered: usize,
    /// Spans of which at least one character was found.
    pub touched: usize,
    /// Spans fully covered by spans of the same category.
    pub typed: usize,
}

/// Scores of one detector on one set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Documents in all.
    pub documents: usize,
    /// Documents without a private span of a category that the gate masks.
    pub clean_documents: usize,
    /// Of those, how many got a span outside gold of any kind.
    pub clean_flagged: usize,
    /// Documents of which a character of a category's gold was left.
    pub leaking: usize,
    /// Characters of all texts.
    pub characters: usize,
    /// Characters of gold, of the gate's categories.
    pub gold: usize,
    /// Of these, found.
    pub gold_found: usize,
    /// Characters found, those in gold of other labels left out.
    pub found: usize,
    /// Of these, in gold.
    pub found_right: usize,
    /// Spans found, those in gold of other labels left out.
    pub spans: usize,
    /// Of these, at least half in gold.
    pub spans_right: usize,
    /// By the set's label.
    pub rows: BTreeMap<String, Row>,
    /// Wrong spans by the detector's label.
    pub wrong: BTreeMap<String, usize>,
    /// Spans found by the detector's label.
    pub reported: BTreeMap<String, usize>,
}

/// A wrong or missed span, to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Miss {
    /// Index of the document.
    pub document: usize,
    /// `missed` or `wrong`.
    pub kind: &'static str,
    /// The set's label or the detector's.
    pub label: String,
    /// The stretch.
    pub text: String,
}

impl Scores {
    /// Adds one document; what was missed or wrong goes to `misses`.
    pub fn add(&mut self, index: usize, document: &Document, found: &[Found], misses: &mut Vec<Miss>) {
        let characters: Vec<char> = document.text.chars().collect();
        let count = characters.len();
        let clip = |start: usize, end: usize| start.min(count)..end.min(count);
        let mut is_gold = vec![false; count];
        let mut is_other = vec![false; count];
        let mut by_category: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
        let mut is_found = vec![false; count];
        for gold in &document.spans {
            let marks = if category(&gold.label).is_some() { &mut is_gold } else { &mut is_other };
            marks[clip(gold.start, gold.end)].fill(true);
        }
        for span in found {
            is_found[clip(span.start, span.end)].fill(true);
            let own = by_category
                .entry(category(&span.label).unwrap_or("other"))
                .or_insert_with(|| vec![false; count]);
            own[clip(span.start, span.end)].fill(true);
        }
        self.documents += 1;
        self.characters += count;
        let in_scope = document.spans.iter().any(|g| category(&g.label).is_some());
        let mut leaks = false;
        for gold in &document.spans {
            let range = clip(gold.start, gold.end);
            let row = self.rows.entry(gold.label.clone()).or_default();
            row.support += 1;
            // Blanks and line ends inside tell nothing.
            let seen =
                |marks: &[bool]| range.clone().filter(|&i| !characters[i].is_whitespace()).all(|i| marks[i]);
            let covered = seen(&is_found);
            row.covered += usize::from(covered);
            row.touched += usize::from(is_found[range.clone()].contains(&true));
            let Some(category) = category(&gold.label) else { continue };
            row.typed += usize::from(by_category.get(category).is_some_and(|own| seen(own)));
            if !covered {
                leaks = true;
                let text = characters[range.clone()].iter().collect();
                misses.push(Miss { document: index, kind: "missed", label: gold.label.clone(), text });
            }
        }
        let mut flagged = false;
        for span in found {
            let range = clip(span.start, span.end);
            *self.reported.entry(span.label.clone()).or_default() += 1;
            let right = range.clone().filter(|&i| is_gold[i]).count();
            let other = range.clone().filter(|&i| is_other[i] && !is_gold[i]).count();
            if other > right {
                continue;
            }
            self.spans += 1;
            if right * 2 >= range.len() {
                self.spans_right += 1;
            } else {
                flagged = true;
                *self.wrong.entry(span.label.clone()).or_default() += 1;
                let text = characters[range].iter().collect();
                misses.push(Miss { document: index, kind: "wrong", label: span.label.clone(), text });
            }
        }
        self.leaking += usize::from(leaks);
        self.clean_documents += usize::from(!in_scope);
        self.clean_flagged += usize::from(!in_scope && flagged);
        self.gold += is_gold.iter().filter(|g| **g).count();
        self.gold_found += (0..count).filter(|&i| is_gold[i] && is_found[i]).count();
        self.found += (0..count).filter(|&i| is_found[i] && (is_gold[i] || !is_other[i])).count();
        self.found_right += (0..count).filter(|&i| is_found[i] && is_gold[i]).count();
    }

    /// Share of found characters that are gold.
    pub fn precision(&self) -> f64 {
        ratio(self.found_right, self.found)
    }

    /// Share of gold characters that were found.
    pub fn recall(&self) -> f64 {
        ratio(self.gold_found, self.gold)
    }

    /// Share of found spans that are gold, at least by half.
    pub fn span_precision(&self) -> f64 {
        ratio(self.spans_right, self.spans)
    }
}

/// `part / whole`; one if there is nothing.
pub fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

/// Spans of bytes as characters.
pub fn in_characters(text: &str, spans: &[crate::Span]) -> Vec<Found> {
    let mut found = Vec::with_capacity(spans.len());
    let (mut byte, mut character) = (0, 0);
    // Spans are sorted and apart: one pass over the text.
    for span in spans {
        character += text[byte..span.range.start].chars().count();
        let start = character;
        character += text[span.range.clone()].chars().count();
        byte = span.range.end;
        found.push(Found { start, end: character, label: span.category.name().to_owned() });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gold(start: usize, end: usize, label: &str) -> Gold {
        Gold { start, end, label: label.to_owned() }
    }

    fn found(start: usize, end: usize, label: &str) -> Found {
        Found { start, end, label: label.to_owned() }
    }

    #[test]
    fn counts() {
        let document = Document {
            text: "Ünn at 12 Elm, in Rome, 555".to_owned(),
            spans: vec![
                gold(0, 3, "PERSON"),
                gold(7, 13, "STREET_ADDRESS"),
                gold(18, 22, "GPE"),
                gold(24, 27, "PHONE_NUMBER"),
            ],
            lang: None,
        };
        let mut scores = Scores::default();
        let mut misses = Vec::new();
        let spans =
            [found(7, 13, "address"), found(18, 22, "person"), found(24, 26, "phone"), found(4, 6, "secret")];
        scores.add(0, &document, &spans, &mut misses);
        assert_eq!(scores.rows["STREET_ADDRESS"], Row { support: 1, covered: 1, touched: 1, typed: 1 });
        assert_eq!(scores.rows["PHONE_NUMBER"], Row { support: 1, covered: 0, touched: 1, typed: 0 });
        assert_eq!(scores.rows["PERSON"].touched, 0);
        assert_eq!((scores.gold, scores.gold_found), (12, 8));
        // The span over the city is not charged, the one over "at" is.
        assert_eq!((scores.found, scores.found_right), (10, 8));
        assert_eq!((scores.spans, scores.spans_right), (3, 2));
        assert_eq!(scores.leaking, 1);
        assert_eq!(misses.len(), 3);
    }

    #[test]
    fn both_formats_are_read() {
        let presidio = r#"{"full_text": "a", "spans": [{"entity_type": "PERSON", "entity_value": "a", "start_position": 0, "end_position": 1}], "masked": "x"}"#;
        let plain = r#"{"text": "a", "spans": [{"start": 0, "end": 1, "label": "PERSON"}]}"#;
        let a: Document = serde_json::from_str(presidio).unwrap();
        let b: Document = serde_json::from_str(plain).unwrap();
        assert_eq!(a, b);
    }

    #[test]
    fn bytes_become_characters() {
        let text = "é ann@x.org ü b@y.org";
        let spans = crate::testing::DETECTOR.detect(text);
        let found = in_characters(text, &spans);
        assert_eq!(found.iter().map(|f| (f.start, f.end)).collect::<Vec<_>>(), [(2, 11), (14, 21)]);
    }
}
