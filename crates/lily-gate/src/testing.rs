//! What the recognisers' tests share: patterns compiled once, and conflicts resolved as in [`crate::Detector`].

use std::sync::LazyLock;

use crate::{
    Detector, DetectorConfig, Span,
    cues::Cues,
    merge,
    text::{Hit, Scan},
};

static CUES: LazyLock<Cues> = LazyLock::new(|| Cues::new().unwrap());

/// A detector of the default configuration.
pub(crate) static DETECTOR: LazyLock<Detector> =
    LazyLock::new(|| Detector::new(DetectorConfig::default()).unwrap());

/// The spans that one recogniser finds in `text`.
pub(crate) fn spans(text: &str, recognizer: impl Fn(&Scan, &mut Vec<Hit>)) -> Vec<Span> {
    let mut hits = Vec::new();
    recognizer(&Scan::new(text, &CUES), &mut hits);
    merge::resolve(text, hits)
}

/// Their texts.
pub(crate) fn texts(text: &str, recognizer: impl Fn(&Scan, &mut Vec<Hit>)) -> Vec<String> {
    spans(text, recognizer).into_iter().map(|s| text[s.range].to_owned()).collect()
}
