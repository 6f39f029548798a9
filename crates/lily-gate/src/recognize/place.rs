//! Latitude and longitude: with hemispheres or a cue, in a `geo:` address or a map's link.

use std::ops::Range;

use regex::Regex;

use crate::{
    Category, Evidence,
    cues::Cue,
    text::{Hit, Scan},
};

const VERSION: u16 = 1;

/// The patterns, compiled.
#[derive(Debug)]
pub(crate) struct Place {
    /// Degrees, maybe minutes and seconds, and a hemisphere, twice.
    degrees: Regex,
    /// Two decimal numbers.
    pair: Regex,
    /// One decimal number.
    single: Regex,
}

impl Place {
    pub fn new() -> Result<Self, regex::Error> {
        let part = r#"[0-9]{1,3}(?:\.[0-9]{1,8})? ?[°º˚]? ?(?:[0-9]{1,2}(?:\.[0-9]{1,6})? ?['′’] ?)?(?:[0-9]{1,2}(?:\.[0-9]{1,6})? ?(?:["″”]|'') ?)?"#;
        Ok(Self {
            degrees: Regex::new(&format!("{part}[NSns][,;]?[ \\t\\n]{{0,2}}{part}[EWOewo]"))?,
            pair: Regex::new(r"-?[0-9]{1,2}\.[0-9]{3,15}[°]? ?[,;]?[ \t\n]{0,2}-?[0-9]{1,3}\.[0-9]{3,15}")?,
            single: Regex::new(r"^-?[0-9]{1,3}\.[0-9]{3,15}")?,
        })
    }

    pub fn scan(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        // Most texts have no sign of degrees and no number with three decimals: the patterns need not look at them.
        let cued = scan.cues.iter().any(|(cue, _)| *cue == Cue::Coordinates);
        let decimal = scan
            .digits
            .iter()
            .any(|d| d.len() >= 3 && d.start > 0 && scan.text.as_bytes()[d.start - 1] == b'.');
        if cued || ['°', 'º', '˚', '′'].iter().any(|sign| scan.text.contains(*sign)) {
            self.degrees(scan, hits);
        }
        if !decimal {
            return;
        }
        for found in self.pair.find_iter(scan.text) {
            let range = found.range();
            if let Some(evidence) = self.judge(scan, &range) {
                hits.push(hit(range, evidence));
            }
        }
        self.named(scan, hits);
    }

    fn degrees(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        for found in self.degrees.find_iter(scan.text) {
            let text = found.as_str();
            let marked = text.contains(['°', 'º', '˚', '′', '″']) || text.matches('.').count() >= 2;
            if marked && scan.is_bounded(&found.range()) {
                hits.push(hit(found.range(), Evidence::Shape));
            }
        }
    }

    fn judge(&self, scan: &Scan, range: &Range<usize>) -> Option<Evidence> {
        let text = scan.str(range.clone());
        let mut numbers =
            text.split(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-'))).filter(|n| !n.is_empty());
        let (latitude, longitude) = (numbers.next()?, numbers.next()?);
        let in_range = |n: &str, limit: f64| n.parse::<f64>().is_ok_and(|v| v.abs() <= limit);
        if !in_range(latitude, 90.0) || !in_range(longitude, 180.0) || !scan.is_bounded(range) {
            return None;
        }
        let before = &scan.text[..range.start];
        let after = &scan.text[range.end..];
        if after.starts_with(['.', '%']) && after[1..].starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let linked = ["geo:", "/@", "q=", "ll=", "query=", "loc:", "center=", "destination="]
            .iter()
            .any(|p| before.ends_with(p));
        if linked || scan.is_cued(range, |c| c == Cue::Coordinates) {
            return Some(Evidence::Cue);
        }
        // One of a longer list of numbers.
        let goes_on = after.starts_with([',', ';', ' '])
            && after
                .trim_start_matches([',', ';', ' '])
                .starts_with(|c: char| c.is_ascii_digit() || c == '-');
        if goes_on || before.trim_end().ends_with([',', ';']) {
            return None;
        }
        // Both with the precision of a GPS receiver, and a separator between them.
        let decimals = |n: &str| n.split_once('.').map_or(0, |(_, d)| d.len());
        let precise =
            (4..=8).contains(&decimals(latitude)) && decimals(latitude).abs_diff(decimals(longitude)) <= 1;
        let in_parens = before.ends_with('(') && after.starts_with(')');
        (precise && in_parens && text.contains(',') && latitude.parse::<f64>().is_ok_and(|v| v.abs() > 1.0))
            .then_some(Evidence::Shape)
    }

    /// "latitude: 48.8566", `"lng": 2.3522`.
    fn named(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        for (_, cue) in scan.cues.iter().filter(|(c, _)| *c == Cue::Coordinates) {
            let rest = &scan.text[cue.end..];
            let start = cue.end + (rest.len() - rest.trim_start_matches([' ', ':', '=', '"', '\'']).len());
            if let Some(found) = self.single.find(&scan.text[start..]) {
                let range = start..start + found.end();
                if scan.is_bounded(&range) && start <= cue.end + 6 {
                    hits.push(hit(range, Evidence::Cue));
                }
            }
        }
    }
}

fn hit(range: Range<usize>, evidence: Evidence) -> Hit {
    Hit {
        range,
        category: Category::Coordinates,
        evidence,
        recognizer: "coordinates",
        version: VERSION,
        subtype: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::texts;

    fn found(text: &str) -> Vec<String> {
        static ALL: std::sync::LazyLock<Place> = std::sync::LazyLock::new(|| Place::new().unwrap());
        texts(text, |s, h| ALL.scan(s, h))
    }

    #[test]
    fn places() {
        assert_eq!(found("at 40°26′46″N 79°58′56″W now"), ["40°26′46″N 79°58′56″W"]);
        assert_eq!(found("48.8566° N, 2.3522° E"), ["48.8566° N, 2.3522° E"]);
        assert_eq!(found("GPS 48.856613, 2.352222"), ["48.856613, 2.352222"]);
        assert_eq!(found("geo:48.8566,2.3522"), ["48.8566,2.3522"]);
        assert_eq!(found("we met (48.8566, 2.3522)"), ["48.8566, 2.3522"]);
        assert_eq!(found("\"lat\": 48.8566, \"lng\": 2.3522"), ["48.8566", "2.3522"]);
        assert!(found("weights 0.1234, 0.5678, 0.9012").is_empty());
        assert!(found("from 12.345 to 23.456").is_empty());
        assert!(found("99.1234, 200.1234").is_empty());
    }
}
