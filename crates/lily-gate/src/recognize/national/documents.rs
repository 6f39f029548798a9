//! Passports and driving licences: their numbers follow no world-wide rule, so the cue decides.

use super::VERSION;
use crate::{
    Category, Evidence,
    cues::Cue,
    text::{Hit, Scan},
};

/// Words that may stand between the cue and the number.
const FILLERS: &[&str] = &[
    "number", "no", "nr", "num", "numero", "número", "numéro", "is", "was", "ist", "est", "es", "id", "my",
    "the", "card",
];

/// Letters and digits with at least four digits, after "passport" or "driver's license".
pub(super) fn scan(scan: &Scan, hits: &mut Vec<Hit>) {
    for (cue, range) in &scan.cues {
        let (subtype, lengths) = match cue {
            Cue::Passport => ("passport", 6..=10),
            Cue::Licence => ("driving_licence", 5..=20),
            _ => continue,
        };
        let first = scan.token_at(range.end);
        let mut skipped = 0;
        for i in first..scan.tokens.len().min(first + 5) {
            let token = scan.tokens[i];
            if token.start > range.end + 32 || scan.text[range.end..token.start].contains('\n') {
                break;
            }
            if !token.has_digit {
                if FILLERS.contains(&scan.token(i).to_lowercase().as_str()) || skipped == 0 {
                    skipped += 1;
                    continue;
                }
                break;
            }
            // A number may be written in groups: "S123-456-78-910-0", "12 AB 34567".
            let mut last = i;
            while last + 1 < scan.tokens.len()
                && matches!(scan.gap(last), "-" | " ")
                && scan.tokens[last + 1].has_digit
                && scan.tokens[last + 1].end - token.start <= 24
            {
                last += 1;
            }
            let found = token.start..scan.tokens[last].end;
            let text = scan.str(found.clone());
            let digits = text.bytes().filter(u8::is_ascii_digit).count();
            let length = text.bytes().filter(u8::is_ascii_alphanumeric).count();
            if digits >= 4 && lengths.contains(&length) && scan.is_bounded(&found) {
                hits.push(Hit {
                    range: found,
                    category: Category::NationalId,
                    evidence: Evidence::Cue,
                    recognizer: "national_id",
                    version: VERSION,
                    subtype: Some(subtype),
                });
            }
            break;
        }
    }
}
