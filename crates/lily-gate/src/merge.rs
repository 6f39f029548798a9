//! One list of spans out of many hits.
//!
//! Of two hits of the same kind that overlap, the better stands: validated before longer before cue before shape.
//! Of two of different kinds, the union is masked as the stricter one, unless a validated span contains one that is
//! not. Hits inside a placeholder of the vault
//! (`[[PERSON_3_k7]]`) are none.

use std::{cmp::Reverse, ops::Range};

use crate::{Evidence, Span, text::Hit};

/// The spans of `text`, sorted and apart.
pub(crate) fn resolve(text: &str, mut hits: Vec<Hit>) -> Vec<Span> {
    let placeholders = placeholders(text);
    hits.retain(|hit| {
        !hit.range.is_empty()
            && !placeholders
                .iter()
                .any(|p| p.start <= hit.range.start && hit.range.end <= p.end + ".first".len())
    });
    // Same kind first: the best of each overlapping group.
    hits.sort_by_key(|hit| {
        let validated = hit.evidence == Evidence::Validated;
        (hit.category, Reverse((validated, hit.range.len(), hit.evidence)), hit.range.start)
    });
    let mut kept: Vec<Hit> = Vec::with_capacity(hits.len());
    let mut rest = hits.into_iter().peekable();
    while let Some(first) = rest.peek() {
        let category = first.category;
        let mut taken = std::collections::BTreeMap::<usize, usize>::new();
        while let Some(hit) = rest.next_if(|h| h.category == category) {
            let before = taken.range(..hit.range.end).next_back();
            if before.is_none_or(|(_, end)| *end <= hit.range.start) {
                taken.insert(hit.range.start, hit.range.end);
                kept.push(hit);
            }
        }
    }
    // Different kinds: unions.
    kept.sort_by_key(|hit| (hit.range.start, Reverse(hit.range.end)));
    let mut spans: Vec<Span> = Vec::with_capacity(kept.len());
    for hit in kept {
        match spans.last_mut() {
            Some(last) if hit.range.start < last.range.end => {
                let end = last.range.end.max(hit.range.end);
                let contained = hit.range.end <= last.range.end;
                let settled =
                    contained && last.evidence == Evidence::Validated && hit.evidence != Evidence::Validated;
                let stricter = !settled
                    && (hit.category.severity(), hit.evidence, hit.range.len())
                        > (last.category.severity(), last.evidence, last.range.len());
                if stricter {
                    *last = span(last.range.start..end, hit);
                } else {
                    last.range.end = end;
                }
            }
            _ => {
                let range = hit.range.clone();
                spans.push(span(range, hit));
            }
        }
    }
    spans
}

fn span(range: Range<usize>, hit: Hit) -> Span {
    Span {
        range,
        category: hit.category,
        evidence: hit.evidence,
        recognizer: hit.recognizer.into(),
        version: hit.version,
        subtype: hit.subtype.map(Into::into),
    }
}

/// The vault's tokens in a text, in either style.
fn placeholders(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (open, close, joint) in [("⟦", "⟧", '·'), ("[[", "]]", '_')] {
        for (start, _) in text.match_indices(open) {
            let inner = &text[start + open.len()..];
            let Some(length) =
                inner.char_indices().take(64).map(|(i, _)| i).find(|i| inner[*i..].starts_with(close))
            else {
                continue;
            };
            if is_placeholder(&inner[..length], joint) {
                found.push(start..start + open.len() + length + close.len());
            }
        }
    }
    found
}

/// `PERSON_3·k7`: capitals, a number, the session's two to four letters or digits.
fn is_placeholder(inner: &str, joint: char) -> bool {
    let Some((name, tag)) = inner.rsplit_once(joint) else { return false };
    let Some((kind, number)) = name.rsplit_once('_') else { return false };
    (2..=4).contains(&tag.len())
        && tag.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        && !kind.is_empty()
        && kind.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
        && (1..=10).contains(&number.len())
        && number.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Category;

    fn hit(range: Range<usize>, category: Category, evidence: Evidence) -> Hit {
        Hit { range, category, evidence, recognizer: "t", version: 1, subtype: None }
    }

    #[test]
    fn conflicts() {
        use Category::{Card, Email, Phone, Secret, Url};
        use Evidence::{Cue, Shape, Validated};
        let text = "x".repeat(40);
        let resolve = |hits: Vec<Hit>| {
            resolve(&text, hits).into_iter().map(|s| (s.range, s.category, s.evidence)).collect::<Vec<_>>()
        };
        // The same kind: validated wins over longer, longer over cue.
        assert_eq!(
            resolve(vec![hit(0..9, Card, Cue), hit(2..6, Card, Validated)]),
            [(2..6, Card, Validated)]
        );
        assert_eq!(resolve(vec![hit(0..4, Phone, Cue), hit(0..9, Phone, Shape)]), [(0..9, Phone, Shape)]);
        // Different kinds: the union, named by the stricter.
        assert_eq!(
            resolve(vec![hit(0..9, Url, Shape), hit(3..7, Email, Validated)]),
            [(0..9, Email, Validated)]
        );
        assert_eq!(resolve(vec![hit(0..6, Phone, Shape), hit(4..9, Secret, Cue)]), [(0..9, Secret, Cue)]);
        assert_eq!(resolve(vec![hit(0..3, Phone, Shape), hit(3..9, Phone, Shape)]).len(), 2);
        // A chain of overlaps is one span.
        let chain =
            (0..10).map(|i| hit(i * 3..i * 3 + 5, if i % 2 == 0 { Phone } else { Url }, Shape)).collect();
        assert_eq!(resolve(chain), [(0..32, Phone, Shape)]);
    }

    #[test]
    fn tokens_of_the_vault() {
        assert_eq!(
            placeholders("a [[PERSON_3_k7]] ⟦BANK_ACCOUNT_12·a1b2⟧ [[x]] [[PERSON_3]] [[1_2_3]]").len(),
            2
        );
    }
}
