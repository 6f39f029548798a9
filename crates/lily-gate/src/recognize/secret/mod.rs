//! Secrets: keys and tokens by their providers' shapes, private key blocks, JSON web tokens, passwords in
//! assignments, URLs, headers and command lines.

mod assign;
mod blocks;
mod entropy;
mod shapes;
mod table;

use std::ops::Range;

use crate::{
    Category, Evidence,
    text::{Hit, Scan},
};

const VERSION: u16 = 1;

/// All secret recognisers, compiled.
#[derive(Debug)]
pub(crate) struct Secrets {
    shapes: shapes::Shapes,
    assign: assign::Assign,
    blocks: blocks::Blocks,
}

impl Secrets {
    pub fn new() -> Result<Self, String> {
        Ok(Self {
            shapes: shapes::Shapes::new()?,
            assign: assign::Assign::new()?,
            blocks: blocks::Blocks::new()?,
        })
    }

    pub fn scan(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        self.shapes.scan(scan, hits);
        self.blocks.scan(scan, hits);
        self.assign.scan(scan, hits);
    }
}

/// How many kinds of provider secrets have a shape of their own.
pub(crate) fn kinds() -> usize {
    let mut ids: Vec<&str> = table::SHAPES.iter().map(|s| s.0).collect();
    ids.extend(table::PROVIDERS.iter().map(|p| p.0));
    ids.extend(table::INNER.iter().map(|i| i.0));
    ids.sort_unstable();
    ids.dedup();
    ids.len()
}

fn hit(range: Range<usize>, evidence: Evidence, subtype: &'static str) -> Hit {
    Hit {
        range,
        category: Category::Secret,
        evidence,
        recognizer: "secret",
        version: VERSION,
        subtype: Some(subtype),
    }
}

#[cfg(test)]
mod tests;
