//! Finding stand-ins in a stream of characters.
//!
//! A stand-in is `NAME`, a separator and the session's tag, in brackets: `⟦PERSON_3·k7qp⟧` or `[[PERSON_3_k7qp]]`.
//! Models copy such things with small faults, so that case, kind of bracket, missing brackets and the shape of the dot
//! do not matter; the tag must be there. Matching is leftmost-longest and waits for as many characters as the decision
//! needs, so that it does not depend on how a stream was cut.

use std::collections::VecDeque;

use super::{Escape, RestoreMap, Unit};

/// Folds what models mix up.
fn fold(c: char) -> char {
    match c {
        '•' | '‧' | '・' | '⋅' | '∙' => '·',
        '〚' | '【' | '〖' | '⟪' => '⟦',
        '〛' | '】' | '〗' | '⟫' => '⟧',
        c => c.to_ascii_lowercase(),
    }
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// What the held characters are.
enum Step {
    /// They begin nothing: one character is free.
    Free,
    /// More characters are needed.
    Wait,
    /// `length` characters are the stand-in with this index.
    Found { length: usize, index: usize },
}

pub(super) struct Matcher {
    held: VecDeque<Unit>,
    /// The character before the held ones.
    before: Option<char>,
    /// The last folded characters that were let through, to count tags.
    passed: String,
    pub restored: u64,
    pub unrestored: u64,
    pub cut: u64,
}

impl Matcher {
    pub(super) fn new() -> Self {
        Self {
            held: VecDeque::new(),
            before: None,
            passed: String::new(),
            restored: 0,
            unrestored: 0,
            cut: 0,
        }
    }

    pub(super) fn push(
        &mut self,
        map: &RestoreMap,
        unit: Unit,
        escape: Escape,
        restore: bool,
        out: &mut String,
    ) {
        self.held.push_back(unit);
        self.advance(map, escape, restore, false, out);
    }

    /// Ends a run of text; the next one begins afresh.
    pub(super) fn flush(&mut self, map: &RestoreMap, escape: Escape, restore: bool, out: &mut String) {
        // What still waits has a bracket and a name's beginning, and is no stand-in by now: its end is missing.
        let begun = match self.held.front().map(|u| fold(u.c)) {
            Some('⟦') => self.held.len() >= 2,
            Some('[') => self.held.len() >= 3,
            _ => false,
        };
        let whole = begun && matches!(self.step(map, true), Step::Found { .. });
        self.cut += u64::from(begun && !whole);
        self.advance(map, escape, restore, true, out);
        self.before = None;
        self.passed.clear();
    }

    fn advance(&mut self, map: &RestoreMap, escape: Escape, restore: bool, last: bool, out: &mut String) {
        while !self.held.is_empty() {
            let step = if restore { self.step(map, last) } else { Step::Free };
            match step {
                Step::Wait => return,
                Step::Free => {
                    if let Some(unit) = self.held.pop_front() {
                        unit.write(out);
                        self.before = Some(unit.c);
                        self.count_tag(&map.tag, unit.c);
                    }
                }
                Step::Found { length, index } => {
                    let end = self.held.drain(..length).next_back().map(|u| u.c);
                    self.before = end;
                    self.passed.clear();
                    self.restored += 1;
                    let value = &map.fulls[index].1;
                    match escape {
                        Escape::None => out.push_str(value),
                        Escape::Json => escape_json(value, out),
                    }
                }
            }
        }
    }

    fn step(&self, map: &RestoreMap, last: bool) -> Step {
        let at = |i: usize| self.held.get(i).map(|u| fold(u.c));
        let waiting = if last { Step::Free } else { Step::Wait };
        let mut i = match (at(0), at(1)) {
            (Some('⟦'), _) => 1,
            (Some('['), Some('[')) => 2,
            // Alone it may still become `[[`.
            (Some('['), None) => return waiting,
            (Some(c), _) if c.is_alphabetic() && !self.before.is_some_and(in_word) => 0,
            _ => return Step::Free,
        };
        // The range of names that agree with the characters so far.
        let (mut low, mut high) = (0, map.fulls.len());
        let mut length = 0;
        // The two longest names that are there, with the characters they take: an invented name begins with its first name.
        let (mut longest, mut shorter) = (None, None);
        loop {
            if low < high && map.fulls[low].0.len() == length {
                shorter = longest.replace((i, low));
                low += 1;
            }
            if low == high {
                break;
            }
            let Some(c) = at(i) else {
                if last {
                    break;
                }
                return waiting;
            };
            let names = &map.fulls[low..high];
            // All names of the range share the first `length` bytes, and so a border of characters lies there.
            let rank = |full: &str| full[length..].chars().next();
            let new_low = low + names.partition_point(|(f, _)| rank(f) < Some(c));
            let new_high = low + names.partition_point(|(f, _)| rank(f) <= Some(c));
            (low, high) = (new_low, new_high);
            length += c.len_utf8();
            i += 1;
        }
        let ends = |(i, _): &(usize, usize)| !at(*i).is_some_and(in_word);
        let Some((i, index)) = longest.filter(ends).or(shorter.filter(ends)) else { return Step::Free };
        match (at(i), at(i + 1)) {
            (Some('⟧'), _) => Step::Found { length: i + 1, index },
            (Some(']'), Some(']')) => Step::Found { length: i + 2, index },
            (Some(']'), None) | (None, _) if !last => Step::Wait,
            _ => Step::Found { length: i, index },
        }
    }

    /// Counts `·tag` and `_tag` in what is let through.
    fn count_tag(&mut self, tag: &str, c: char) {
        self.passed.push(fold(c));
        let most = tag.len() + 2;
        while self.passed.chars().count() > most {
            self.passed.remove(0);
        }
        if self.passed.strip_suffix(tag).is_some_and(|rest| rest.ends_with(['·', '_'])) {
            self.unrestored += 1;
        }
    }
}

/// Writes `value` as the inside of a JSON string.
fn escape_json(value: &str, out: &mut String) {
    // Strings always serialise; the quotes around them are not wanted.
    if let Ok(quoted) = serde_json::to_string(value) {
        let quoted = zeroize::Zeroizing::new(quoted);
        out.push_str(&quoted[1..quoted.len() - 1]);
    }
}
