//! What belongs to an address that was found: floors and flats, quarters, towns, postcodes and regions on either side.
//!
//! Every grammar ends where its own evidence ends. Here an address is known to be there, so that less says that it goes
//! on: a town is a name that stands between commas and at the end of the line or of the sentence, a postcode may have
//! three digits, a flat's number may come before or after its word. Names alone stay only if a line, a sentence or a
//! better part ends them; a sentence's own words never do.
//!
//! Places with their kinds from the hamlet to the province ("xã Hòa Phú, huyện Hòa Vang") are an address by themselves.

use std::ops::Range;

use super::super::tail::Lists;
use super::{
    super::{announced, hit, is_hungarian},
    Gap, PARTS, View, World,
    roles::Roles,
};
use crate::{
    Evidence,
    cues::is_unspaced,
    text::{Hit, Scan},
};

/// English types of streets, which the tables of the world do not hold.
const ENGLISH: &[&str] = &[
    "St",
    "Street",
    "Ave",
    "Avenue",
    "Rd",
    "Road",
    "Dr",
    "Drive",
    "Blvd",
    "Boulevard",
    "Lane",
    "Ext",
    "Extension",
];

/// Small words that go on with the sentence after an address, or lead up to one.
const CONNECTORS: &str = "\
    before|by|since|and|for|on|until|with|avant|depuis|et|pour|dès|jusqu|trước|từ|và|cho|bago|mula|noong|\
    hanggang|sebelum|sejak|dan|untuk|vor|bis|und|seit|antes|desde|y|para|prima|e|fino|до|и|і|пре|од|дейін|és|\
    előtt|og|fyrir|i|pre|od|do|przed|oraz|kadar|və|at|to|in|from|near|à|en|a|chez|sur|vers|tại|ở|đến|về|sa|\
    di|ke|dari|nach|zu|aus|im|u|na|v|w|з|в|у|на|во|с|из|í|á|til";

/// `word` is one of [`CONNECTORS`].
fn connects(word: &str) -> bool {
    word.len() <= 12 && CONNECTORS.split('|').any(|c| c == word)
}

/// What stands between what was found and the next word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    Blank,
    Comma,
    Slash,
    Line,
}

fn between(gap: &str) -> Option<Between> {
    Some(match gap {
        " " | "  " | "\u{a0}" => Between::Blank,
        ", " | "," | "، " | "،" | " - " | " – " | " — " | "; " | "., " | ".," | " , " | " ، " | ",  " => {
            Between::Comma
        }
        "/" | " / " => Between::Slash,
        "\n" | ",\n" | ", \n" | " \n" | "\r\n" | ",\r\n" | "،\n" | ".\n" => Between::Line,
        _ => return None,
    })
}

impl World {
    /// Lengthens the addresses among `hits`, which are sorted and apart from each other.
    pub fn extend(&self, scan: &Scan, lists: &Lists, hits: &mut Vec<Hit>) {
        if hits.is_empty() {
            return;
        }
        let view = View::new(scan, lists, &self.words);
        let mut done = 0;
        for k in 0..hits.len() {
            let limit = hits.get(k + 1).map_or(scan.text.len(), |next| next.range.start);
            if hits[k].subtype.is_none() {
                let start = view.extend_left(&hits[k].range, done);
                let end = view.extend_right(&hits[k].range, limit);
                hits[k].range = start..end;
            }
            done = hits[k].range.end;
        }
        // "1117 Budapest" and "Bartók Béla út 44", or a street and its quarter: they are one.
        hits.dedup_by(|next, last| {
            let gap = &scan.text[last.range.end.min(next.range.start)..next.range.start];
            let streets = last.subtype.is_none() && next.subtype.is_none();
            let one = streets && view.belongs(&last.range, gap, next.range.start);
            if one {
                last.range.end = next.range.end;
                last.evidence = last.evidence.max(next.evidence);
            }
            one
        });
    }

    /// Places with their kinds, the smallest first, without a street.
    pub fn hamlets(&self, scan: &Scan, lists: &Lists, hits: &mut Vec<Hit>) {
        if scan.tokens.len() < 4 {
            return;
        }
        let view = View::new(scan, lists, &self.words);
        let mut done = 0;
        for t in 0..view.len() {
            if t < done || !view.is(t, Roles::SMALL) {
                continue;
            }
            let Some(mut last) = view.place_right(t) else { continue };
            let mut places = 1;
            while places < PARTS && view.gap(last) != Gap::End && view.gap(last) != Gap::Tight {
                // "xã A huyện B": the next kind follows without a comma, too.
                let next = view.is(last + 1, Roles::PLACE_BEFORE).then(|| view.place_right(last + 1));
                let Some(next) = next.flatten() else { break };
                last = next;
                places += 1;
            }
            done = last + 1;
            if places >= 2 {
                hits.push(hit(scan.tokens[t].start..scan.tokens[last].end, Evidence::Shape));
            }
        }
    }
}

impl View<'_, '_> {
    /// What was found from byte `next` on goes on from the address `range`, over `gap`.
    fn belongs(&self, range: &Range<usize>, gap: &str, next: usize) -> bool {
        let first = self.scan.token_at(next);
        let last = self.scan.token_at(range.end).checked_sub(1);
        match between(gap) {
            Some(Between::Comma) => {
                let part = || self.place_right(first).or_else(|| self.unit_after(first));
                self.is_coded_town(range) || part().is_some()
            }
            Some(Between::Blank) => {
                self.is_short_number(first) && last.is_some_and(|at| self.takes_number(at, gap))
            }
            _ => false,
        }
    }

    /// Nothing but a postcode and a town's name.
    fn is_coded_town(&self, range: &Range<usize>) -> bool {
        let code = self.scan.token_at(range.start);
        let town = self.names_right(code + 1, 3);
        (4..=6).contains(&self.digits(code)) && town.is_some_and(|l| self.scan.tokens[l].end == range.end)
    }

    /// Where the address `range` really ends, at most at byte `limit`.
    fn extend_right(&self, range: &Range<usize>, limit: usize) -> usize {
        let mut end = range.end;
        let Some(mut at) = self.scan.token_at(end).checked_sub(1) else { return end };
        // "ქუჩა", "D": cut inside a word of a script without blanks between words.
        if self.scan.tokens[at].end > end || self.scan.token(at).chars().next_back().is_some_and(is_unspaced)
        {
            return end;
        }
        let first = self.scan.token_at(range.start);
        let mut coded = (first..=at).any(|t| (5..=7).contains(&self.digits(t)));
        let mut from = end;
        let mut names = 0;
        for _ in 0..PARTS {
            let t = at + 1;
            let Some(token) = self.scan.tokens.get(t).filter(|n| n.end <= limit) else { break };
            let gap = &self.scan.text[from..token.start];
            let fresh = names == 0;
            // "D: 5", "em. 4.", "ქუჩა 3": the number that was cut off.
            let cut = matches!(gap, " " | ": " | ":" | ". " | ".") && fresh && self.takes_number(at, gap);
            if let Some(last) = self.number(t).filter(|_| cut) {
                at = last;
                let word = self.scan.token(t - 1).to_lowercase();
                end = self.end_of(last, self.is(t - 1, Roles::UNIT) || is_hungarian(&word));
                from = end;
                continue;
            }
            // "გამზირი N37"
            if gap == " " && fresh && self.takes_number(at, gap) && self.is_numero(t) {
                (at, end, from) = (t, token.end, token.end);
                continue;
            }
            let Some(sep) = between(gap) else { break };
            let found = if let Some(last) = self.unit_after(t).filter(|_| fresh) {
                Some(last)
            } else if sep == Between::Blank && fresh && self.is_word_of_number(at, t) {
                // "12 үй"
                Some(t)
            } else if let Some(last) =
                self.dated(at, t).filter(|_| sep == Between::Blank && fresh && at > first)
            {
                Some(last)
            } else if let Some((last, code)) = self.town_with_code(t, sep).filter(|_| !coded) {
                coded |= code;
                Some(last)
            } else if let Some(last) =
                self.place_right(t).filter(|_| sep != Between::Blank || self.is(t, Roles::PLACE_BEFORE))
            {
                Some(last)
            } else if sep == Between::Comma {
                self.street_after(t)
            } else {
                None
            };
            if let Some(last) = found.filter(|&l| self.scan.tokens[l].end <= limit) {
                at = last;
                end = self.end_of(last, false);
                from = end;
                names = 0;
                continue;
            }
            // A name: kept if the line or the sentence ends with it, or if a better part follows.
            let labelled = sep == Between::Blank
                && (first..at).rev().take(4).any(|k| self.is(k, Roles::LABEL.with(Roles::UNIT)))
                && self.scan.tokens[at].has_digit
                && fresh;
            if sep == Between::Blank && !labelled || names > 2 {
                break;
            }
            let Some(last) = self.names_right(t, 3).filter(|&l| self.scan.tokens[l].end <= limit) else {
                break;
            };
            names += 1;
            at = last;
            from = self.scan.tokens[last].end;
            let alone = sep == Between::Line;
            if !alone && !coded && self.ends_name(last) {
                end = from;
            }
        }
        end
    }

    /// The end of token `last` with the dot of an abbreviation, or of a number if `dotted`.
    fn end_of(&self, last: usize, dotted: bool) -> usize {
        let token = self.scan.tokens[last];
        let short = !token.has_digit && self.scan.token(last).chars().count() <= 4;
        let typed = short
            && (self.is(last, Roles::STREET.with(Roles::PLACE).with(Roles::UNIT).with(Roles::LABEL))
                || ENGLISH.contains(&self.scan.token(last)));
        token.end + usize::from((typed || dotted) && self.scan.text[token.end..].starts_with('.'))
    }

    /// A number belongs to token `t`, which ends what was found.
    fn takes_number(&self, t: usize, gap: &str) -> bool {
        let typed = self.is(t, Roles::UNIT.with(Roles::LABEL));
        // "No: 21 D: 8": one letter is a word only with its colon.
        let letter = gap.starts_with(':') && self.scan.token(t).chars().nth(1).is_none();
        let street = self.is(t, Roles::AFTER) && !self.is(t, Roles::WEAK);
        typed || letter || street && (self.is_other_script(t) || self.scan.gap(t).starts_with(". "))
    }

    /// "12 үй": a word for houses or flats after the number at token `at`, at the end of its part.
    fn is_word_of_number(&self, at: usize, t: usize) -> bool {
        self.is_short_number(at)
            && self.is(t, Roles::UNIT.with(Roles::LABEL))
            && (!self.gap(t).is_inside() || self.unit_after(t + 1).is_some())
    }

    /// "N37"
    fn is_numero(&self, t: usize) -> bool {
        let digits = self.scan.token(t).strip_prefix('N').unwrap_or_default();
        (1..=4).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
    }

    /// "Cité 5 Juillet", "حي 20 أوت": the name goes on after its number, which stands beside the type.
    fn dated(&self, at: usize, t: usize) -> Option<usize> {
        let typed = at > 0 && self.is(at - 1, Roles::BEFORE.with(Roles::PLACE_BEFORE));
        let last = self.names_right(t, 2).filter(|_| typed && self.is_short_number(at))?;
        (self.gap(last).is_break() || self.ends_name(last)).then_some(last)
    }

    /// A part of a building from token `t` on: its word and a number, or the number ("3.", "5", "2nd") and its word.
    fn unit_after(&self, t: usize) -> Option<usize> {
        let roman = |t: usize| {
            self.scan.tokens.get(t).is_some_and(|n| n.ascii && n.len() <= 4)
                && self.scan.token(t).bytes().all(|b| matches!(b, b'I' | b'V' | b'X'))
        };
        if self.is_short_number(t) || roman(t) && self.scan.gap(t).starts_with('.') {
            // "2. Stock": a stock of something elsewhere.
            let floor = |t: usize| t < self.len() && matches!(self.scan.token(t), "Stock" | "OG" | "Etage");
            let follows = matches!(self.scan.gap(t), " " | ". " | "." | "-")
                && (self.is(t + 1, Roles::UNIT) || floor(t + 1));
            // "5 пәтер" ends its part; "3. em. 4." goes on with a number.
            let bounded = !self.gap(t + 1).is_inside()
                || self.scan.tokens.get(t + 2).is_some_and(|n| n.has_digit)
                || self.is(t + 2, Roles::UNIT.with(Roles::LABEL));
            return (follows && bounded).then_some(t + 1);
        }
        self.unit_right(t)
    }

    /// A postcode with the town after or before it, from token `t` on, and whether there is a code.
    fn town_with_code(&self, t: usize, sep: Between) -> Option<(usize, bool)> {
        let broken = sep == Between::Comma || sep == Between::Line;
        let after = if broken { Gap::Break } else { Gap::Blank };
        if let Some(code) = self.code_right(t, after, false).filter(|_| broken) {
            let town =
                self.names_right(code + 1, 3).filter(|&l| self.gap(code) == Gap::Blank && self.bounded(l));
            return Some((town.unwrap_or(code), true));
        }
        // "101 Reykjavík"
        if broken && self.digits(t) == 3 && self.gap(t) == Gap::Blank {
            let town = self.names_right(t + 1, 2).filter(|&l| self.ends_name(l) || self.gap(l).is_break());
            return town.map(|town| (town, true));
        }
        if sep == Between::Blank {
            return None;
        }
        // "Bordj Bou Arréridj 34000", "ঢাকা-১২০৫"
        let town = self.names_right(t, 3)?;
        let joined = matches!(self.scan.gap(town), " " | "-" | " - " | " – " | "–");
        let digits = self.digits(town + 1);
        let year = digits == 4 && ["19", "20"].iter().any(|y| self.scan.token(town + 1).starts_with(y));
        let plain = (5..=6).contains(&digits) || digits == 4 && !year && self.ends_name(town + 1);
        (joined && plain).then_some((town + 1, true))
    }

    /// A street that begins with token `t`, and its number.
    fn street_after(&self, t: usize) -> Option<usize> {
        let street = self.street_right(t).filter(|s| !s.weak || self.ends_part(s.last)).map(|s| s.last);
        let english = || {
            let k =
                (t + 1..t + 5).take_while(|&k| self.gap(k - 1) == Gap::Blank && self.is(k - 1, Roles::NAME));
            k.filter(|&k| k < self.len()).find(|&k| ENGLISH.contains(&self.scan.token(k)))
        };
        let last = street.or_else(english)?;
        let number = Some(last + 1).filter(|_| self.gap(last).is_inside()).and_then(|n| self.number(n));
        Some(number.unwrap_or(last))
    }

    /// The name that ends with token `t` has no further word.
    fn bounded(&self, t: usize) -> bool {
        !self.is(t, Roles::CASELESS) || !self.gap(t).is_inside() || self.ends_name(t)
    }

    /// A name ends with token `t`: its line, its sentence, or a small word goes on.
    fn ends_name(&self, t: usize) -> bool {
        self.ends_part(t) || self.gap(t) == Gap::Blank && self.scan.gap(t) == " " && self.is_connector(t + 1)
    }

    /// Token `t` is a small word of sentences; in scripts without capitals, one that no address holds.
    fn is_connector(&self, t: usize) -> bool {
        let stop = self.is(t, Roles::STOP.with(Roles::LIVES));
        stop && (self.is(t, Roles::CASELESS) || self.is(t, Roles::LIVES))
            || self.scan.tokens.get(t).is_some_and(|n| !n.has_digit) && connects(self.scan.token(t))
    }

    /// The line or the sentence ends after token `t`.
    fn ends_part(&self, t: usize) -> bool {
        let Some(token) = self.scan.tokens.get(t) else { return false };
        let rest = self.scan.text[token.end..].trim_start_matches(['"', ')', '»', '”', '’', ']', ' ']);
        if rest.starts_with(['\n', '\r', '।', '۔', '։', '|']) || rest.is_empty() {
            return true;
        }
        let Some(rest) = rest.strip_prefix(['.', '!', ';', '?', '؟', ',']) else { return false };
        // A comma at the end of a line, a full stop anywhere but inside a number or a name.
        let stop = !self.scan.text[token.end..].starts_with(',');
        rest.is_empty() || rest.starts_with(['\n', '\r']) || stop && rest.starts_with(' ')
    }

    /// Where the address `range` really begins, nothing before byte `done`.
    fn extend_left(&self, range: &Range<usize>, done: usize) -> usize {
        let mut start = range.start;
        let mut at = self.scan.token_at(start);
        if at >= self.len() || self.scan.token(at).chars().next().is_some_and(is_unspaced) {
            return start;
        }
        let mut from = start;
        let mut names = 0;
        for _ in 0..PARTS {
            let Some(e) = at.checked_sub(1).filter(|&e| self.scan.tokens[e].start >= done) else { break };
            let Some(sep) = between(&self.scan.text[self.scan.tokens[e].end..from]) else { break };
            let found = if sep == Between::Blank {
                // "bloc B n° 14": the word for what was found by its number.
                let value = self.scan.tokens[at].has_digit || self.scan.token(at).chars().nth(1).is_none();
                let word = Roles::UNIT.with(Roles::LABEL).with(Roles::BEFORE);
                let typed = value && self.is(e, word) && !self.is(e, Roles::STOP.with(Roles::WEAK));
                // "Số 9 ngõ 120"
                let inner = || self.unit_left(e, done).filter(|_| self.is(at, Roles::BEFORE));
                if names == 0 && typed { Some(e) } else { inner() }
            } else {
                self.part_before(e, sep, done)
            };
            if let Some(first) = found {
                at = first;
                start = self.scan.tokens[first].start;
                from = start;
                names = 0;
                continue;
            }
            if sep != Between::Comma || names > 1 {
                break;
            }
            let Some(first) = self.names_left(e, 3, done) else { break };
            names += 1;
            at = first;
            from = self.scan.tokens[first].start;
            if self.opens_address(first, e) {
                start = from;
            }
        }
        start
    }

    /// A part with a word for its kind, or a town with its postcode, that ends with token `e`.
    fn part_before(&self, e: usize, sep: Between, done: usize) -> Option<usize> {
        // "imm. B"
        let lettered = e.checked_sub(1).filter(|&k| {
            self.scan.token(e).chars().nth(1).is_none()
                && self.unit_right(k) == Some(e)
                && self.scan.tokens[k].start >= done
        });
        let typed = lettered
            .or_else(|| self.estate(e, done))
            .or_else(|| self.unit_left(e, done))
            .or_else(|| self.place_left(e, done))
            .or_else(|| self.street_left(e, done, false).filter(|s| !s.weak).map(|s| s.first));
        if typed.is_some() {
            return typed;
        }
        if let Some(first) = self.names_left(e, 3, done) {
            let code = first.checked_sub(1).filter(|&c| self.scan.tokens[c].start >= done)?;
            let near = matches!(self.gap(code), Gap::Blank | Gap::Break);
            let digits = self.digits(code);
            let year = digits == 4 && ["19", "20"].iter().any(|y| self.scan.token(code).starts_with(y));
            let free = code == 0 || self.gap(code - 1) != Gap::Tight && self.digits(code - 1) == 0;
            // A number of four digits with a name is a count unless its line opens with it.
            let opens = digits > 4 || code == 0 || !self.scan.gap(code - 1).ends_with([',', '.']);
            return (near && free && opens && !year && (4..=6).contains(&digits)).then_some(code);
        }
        let alone = sep == Between::Comma && (5..=6).contains(&self.digits(e)) && self.begins_line(e);
        alone.then_some(e)
    }

    /// "Cité des 200 logements", "Résidence les Oliviers": a kind and up to five words, small ones and a number too.
    fn estate(&self, e: usize, done: usize) -> Option<usize> {
        (e.saturating_sub(5)..e)
            .rev()
            .take_while(|&k| self.gap(k).is_inside() && self.scan.tokens[k].start >= done)
            .find(|&k| {
                let token = self.scan.tokens[k];
                token.capital
                    && !self.is_other_script(k)
                    && self.scan.token(k).chars().nth(2).is_some()
                    && self.is(k, Roles::BEFORE.with(Roles::PLACE_BEFORE))
            })
    }

    /// Nothing stands before token `t` on its line, or a colon, a bracket, a quote does.
    fn begins_line(&self, t: usize) -> bool {
        let Some(before) = t.checked_sub(1) else { return true };
        let gap = self.scan.gap(before).trim_end_matches([' ', '"', '«', '“', '(', '*']);
        gap.ends_with(['\n', ':', '|', '：'])
    }

    /// The town from token `first` to `e` begins the address: one word at the start of a line, two after a small word of
    /// the sentence, three after a cue.
    fn opens_address(&self, first: usize, e: usize) -> bool {
        let start = self.scan.tokens[first].start;
        let words = (first..e).filter(|&k| self.gap(k) == Gap::Blank).count();
        let led = || {
            let before = first.checked_sub(1).filter(|&b| self.scan.gap(b) == " ");
            before.is_some_and(|b| {
                self.is_connector(b) || b == 0 && connects(&self.scan.token(b).to_lowercase())
            })
        };
        words < 3 && announced(self.scan, start) == Some(start)
            || words == 0 && self.begins_line(first)
            || words < 2 && led()
    }
}

#[cfg(test)]
mod tests;
