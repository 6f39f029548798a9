//! Post boxes, military addresses and lone postcodes of a telling shape.

use regex::Regex;

use super::{VERSION, tail::Lists};
use crate::{
    Category, Evidence,
    text::{Hit, Scan},
};

/// The patterns, compiled.
#[derive(Debug)]
pub(super) struct Boxes {
    boxes: Regex,
}

impl Boxes {
    pub fn new() -> Result<Self, regex::Error> {
        let boxes = [
            // "P.O. Box 123", "PO Box 123", "Postfach 12 34 56", "BP 123", "Apartado 12", "Casella postale 12"
            r"(?i:p\.?\s?o\.?\s?box|post office box|postfach|postbus|apartado(?: postal| de correos)?|casella postale|caixa postal|boîte postale|postboks|postbox|skrytka pocztowa|а/я|п/я)[ \t]{0,2}(?:#|no\.?|nr\.?)?[ \t]{0,2}[0-9]{1,6}(?: [0-9]{2,3}){0,2}",
            r"(?-u:\b)B\.?P\.? [0-9]{2,5}(?-u:\b)",
            // "PSC 1234, Box 5678", "Unit 1234 Box 5678", "USNS Smith", "FPO AP 12345"
            r"(?:PSC|CMR|Unit|UNIT) [0-9]{2,6},? (?:Box|BOX) [0-9]{1,5}",
            r"(?-u:\b)(?:USNS|USNV|USS|USCGC) [A-Z][A-Za-z]{2,20}(?-u:\b)",
            r"(?-u:\b)(?:FPO|APO|DPO) (?:AA|AE|AP) [0-9]{5}(?:-[0-9]{4})?(?-u:\b)",
        ]
        .join("|");
        Ok(Self { boxes: Regex::new(&boxes)? })
    }

    pub fn scan(&self, scan: &Scan, lists: &Lists, hits: &mut Vec<Hit>) {
        for found in self.boxes.find_iter(scan.text) {
            if !scan.is_bounded(&found.range()) {
                continue;
            }
            let mut end = lists.tail(scan, found.end()).end;
            // "USS Smith" and "PSC 12, Box 3" go on to "FPO AP 12345" on the next line.
            let rest = scan.text[end..].trim_start_matches([',', ' ', '\n', '\r']);
            let military = rest.starts_with("FPO ") || rest.starts_with("APO ") || rest.starts_with("DPO ");
            if military && scan.text.len() - rest.len() - end <= 3 {
                let start = scan.text.len() - rest.len();
                if let Some(next) = self.boxes.find_at(scan.text, start).filter(|n| n.start() == start) {
                    end = next.end();
                }
            } else if found.as_str().starts_with("US") {
                // A ship is an address only with its post office.
                continue;
            }
            hits.push(hit(found.start()..end));
        }
        postcodes(scan, hits);
    }
}

/// British postcodes: no other code looks so ("SW1A 1AA").
fn postcodes(scan: &Scan, hits: &mut Vec<Hit>) {
    for &i in &scan.numeric {
        let Some(inward) = scan.tokens.get(i + 1) else { continue };
        if scan.gap(i) != " " || inward.len() != 3 || !scan.tokens[i].ascii || !inward.ascii {
            continue;
        }
        let range = scan.tokens[i].start..inward.end;
        let outward = scan.token(i);
        if outward.len() >= 2 && super::tail::is_uk(outward, scan.token(i + 1)) && scan.is_isolated(&range) {
            hits.push(hit(range));
        }
    }
}

fn hit(range: std::ops::Range<usize>) -> Hit {
    Hit {
        range,
        category: Category::Address,
        evidence: Evidence::Shape,
        recognizer: "address",
        version: VERSION,
        subtype: Some("post"),
    }
}
