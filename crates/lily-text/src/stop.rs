//! Stop strings in a stream of text.

/// Finds the first stop string to be complete, at any chunking of the text, and never lets part of one out.
///
/// The match is the one a reader of single characters would stop at: the stop string that ends first, of several that
/// end together the longest. Each stop string is followed by its Knuth-Morris-Pratt automaton, so the cost is one step
/// a byte and string, however the text or the strings repeat themselves.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Text not let out yet: the longest end of the text that begins a stop string.
    held: String,
    stopped: Option<String>,
}

/// What a push lets out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text before any stop string, possibly empty.
    pub text: String,
    /// The stop string found, now or before; nothing comes after it.
    pub stopped: Option<String>,
}

#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    /// `fallback[n]`: length of the longest proper border of the first `n + 1` bytes.
    fallback: Vec<usize>,
    /// Bytes of the pattern matched so far.
    matched: usize,
}

impl StopMatcher {
    /// A matcher for these strings; empty ones are ignored.
    pub fn new(stops: Vec<String>) -> Self {
        let patterns = stops.into_iter().filter(|s| !s.is_empty()).map(Pattern::new).collect();
        Self { patterns, held: String::new(), stopped: None }
    }

    /// Takes the next piece of text. After a stop string was found, nothing more comes out.
    pub fn push(&mut self, text: &str) -> StopOutcome {
        if self.stopped.is_some() {
            return StopOutcome { text: String::new(), stopped: self.stopped.clone() };
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (i, byte) in text.bytes().enumerate() {
            let mut found: Option<&Pattern> = None;
            for pattern in &mut self.patterns {
                if pattern.step(byte) && found.is_none_or(|f| f.text.len() < pattern.text.len()) {
                    found = Some(pattern);
                }
            }
            if let Some(pattern) = found {
                let start = before + i + 1 - pattern.text.len();
                self.stopped = Some(pattern.text.clone());
                self.held.truncate(start);
                let text = std::mem::take(&mut self.held);
                return StopOutcome { text, stopped: self.stopped.clone() };
            }
        }
        // A stop string that has begun starts at a character's first byte, so this never splits one.
        let begun = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - begun);
        StopOutcome { text: std::mem::replace(&mut self.held, kept), stopped: None }
    }

    /// The end of the text: what was held back, since no stop string was completed.
    pub fn finish(&mut self) -> String {
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
        std::mem::take(&mut self.held)
    }
}

impl Pattern {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len()];
        let mut border = 0;
        for i in 1..bytes.len() {
            while border > 0 && bytes[i] != bytes[border] {
                border = fallback[border - 1];
            }
            if bytes[i] == bytes[border] {
                border += 1;
            }
            fallback[i] = border;
        }
        Self { text, fallback, matched: 0 }
    }

    /// Whether `byte` completes the pattern.
    fn step(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        if bytes[self.matched] == byte {
            self.matched += 1;
        }
        if self.matched < bytes.len() {
            return false;
        }
        self.matched = self.fallback[self.matched - 1];
        true
    }
}
