//! Addresses of the world: a chain of parts around a house number.
//!
//! Countries order the parts of an address differently, but all are made of the same ones: a house number, a street with
//! its type before or after its name, parts of the building, settlements and regions with or without a word for their
//! kind, a postcode. The chain begins with the house number and takes in what lies on either side as long as it is such
//! a part; what the parts are worth together decides whether it is an address. The tables say which words of a
//! language are types of streets, of places, of parts; names are capitalised words, or, in scripts without capitals, all
//! words that are not known to be something else.

mod cyrillic;
mod extend;
mod greek_caucasus;
mod latin;
mod latin_far;
mod parts;
mod roles;
mod semitic_iranian;
mod south_asia;
mod south_east_asia;
mod view;

use std::ops::Range;

use super::{announced, cued, hit, tail::Lists};
use crate::{
    Evidence,
    text::{Hit, Scan},
};
use roles::Roles;
use view::{Gap, House, View, Words};

/// At most so many parts on either side of the house number.
const PARTS: usize = 8;

/// The tables.
#[derive(Debug)]
pub(super) struct World {
    words: Words,
}

/// Parts that belong together.
#[derive(Debug, Clone, Copy)]
struct Chain {
    /// Tokens, both included.
    first: usize,
    last: usize,
    /// A street with its type.
    street: bool,
    /// All of its types are ordinary words too.
    weak: bool,
    /// A house number, and whether a word says so.
    house: bool,
    labelled: bool,
    /// A name stands beside the house number.
    named: bool,
    /// It is only capitalised at its start ("Na cvetači 8"): a line with postcode and place must follow.
    loose: bool,
    /// A token of the name, which tells the script.
    name: usize,
    units: usize,
    places: usize,
    code: bool,
    /// A comma or a line end stands between parts.
    broken: bool,
}

impl World {
    pub fn new() -> Self {
        Self { words: Words::new() }
    }

    pub fn scan(&self, scan: &Scan, lists: &Lists, hits: &mut Vec<Hit>) {
        if scan.numeric.is_empty() && scan.text.is_ascii() {
            return;
        }
        let view = View::new(scan, lists, &self.words);
        let mut found: Vec<Range<usize>> = Vec::new();
        let mut done = 0;
        for &i in &scan.numeric {
            if scan.tokens[i].start < done {
                continue;
            }
            if let Some((range, evidence)) = view.around(i, done) {
                done = range.end;
                found.push(range.clone());
                hits.push(hit(range, evidence));
            }
        }
        if !scan.text.is_ascii() {
            view.without_number(&found, hits);
        }
    }
}

impl View<'_, '_> {
    /// The address around the number at token `i`; nothing before byte `done`.
    fn around(&self, i: usize, done: usize) -> Option<(Range<usize>, Evidence)> {
        // Numbers among numbers: most of what has digits.
        let worded = |t: Option<usize>| t.and_then(|t| self.scan.tokens.get(t)).is_some_and(|t| t.has_letter);
        if !(worded(i.checked_sub(1)) || worded(i.checked_sub(2)) || (i + 1..i + 4).any(|t| worded(Some(t))))
        {
            return None;
        }
        let house = self.house(i)?;
        // "רח 1043 38", "Մարտի 8-ի 28": of two numbers the first belongs to the street's name.
        if self.scan.gap(house.last) == " "
            && self.is_short_number(house.last + 1)
            && self.digits(house.last + 1) <= 3
        {
            return None;
        }
        let mut chain = self.core(&house, done)?;
        self.grow_left(&mut chain, done);
        self.grow_right(&mut chain);
        self.judge(chain, house.year_like)
    }

    /// The house number with the street beside it.
    fn core(&self, house: &House, done: usize) -> Option<Chain> {
        let mut chain = Chain {
            first: house.first,
            last: house.last,
            street: false,
            weak: true,
            house: true,
            labelled: false,
            named: false,
            loose: false,
            name: house.first,
            units: 0,
            places: 0,
            code: false,
            broken: false,
        };
        let before = house.first.checked_sub(1).filter(|&k| self.scan.tokens[k].start >= done);
        if let Some(k) = before.filter(|&k| self.gap(k).is_inside()) {
            if self.is(k, Roles::LABEL) {
                chain.first = k;
                chain.labelled = true;
                // "घर नं 5", "House No. 5"
                if k > 0 && self.is(k - 1, Roles::LABEL.with(Roles::UNIT)) && self.gap(k - 1).is_inside() {
                    chain.first = k - 1;
                    chain.units = usize::from(!self.is(k - 1, Roles::LABEL));
                }
            } else if self.is(k, Roles::UNIT) {
                chain = Chain { first: k, house: false, units: 1, ..chain };
            } else if self.is(k, Roles::PLACE_BEFORE) && !self.is(k, Roles::BEFORE) {
                chain = Chain { first: k, house: false, places: 1, ..chain };
            }
        }
        let left = chain.first.checked_sub(1).filter(|&k| self.scan.tokens[k].start >= done);
        let left_gap = left.map_or(Gap::End, |k| self.gap(k));
        if let Some(k) = left.filter(|_| left_gap.is_inside() || left_gap == Gap::Break)
            && let Some(street) = self.street_left(k, done, chain.labelled || left_gap == Gap::Break)
        {
            return Some(Chain {
                first: street.first,
                street: true,
                named: true,
                name: k,
                // Thai writes the number first: "ถนนยาว 5" is a long road and its length.
                weak: street.weak || self.is(k, Roles::JOINED) || self.counts(house, street.first),
                broken: left_gap == Gap::Break,
                ..chain
            });
        }
        let next = house.last + 1;
        let right_gap = self.gap(house.last);
        let right = |street: parts::Street| Chain {
            last: street.last,
            street: true,
            named: true,
            name: next,
            weak: street.weak,
            broken: right_gap == Gap::Break,
            ..chain
        };
        if right_gap.is_inside()
            && let Some(street) = self.street_right(next)
        {
            // "the page 5 street signs" in a script without capitals: a name before the number makes it a count.
            let counted = left.is_some_and(|k| {
                left_gap.is_inside()
                    && self.is(next, Roles::CASELESS)
                    && self.is(k, Roles::CASELESS)
                    && self.is(k, Roles::NAME)
            });
            return Some(Chain { weak: street.weak || counted, ..right(street) });
        }
        let right_first = right_gap == Gap::Blank && self.is_number_first(next) && self.is(next, Roles::NAME);
        if let Some(k) = left.filter(|_| left_gap.is_inside() && !right_first) {
            let limit = if self.is(k, Roles::CASELESS) { 3 } else { 4 };
            if let Some(first) = self.names_left(k, limit, done) {
                return Some(Chain { first, named: true, name: k, ..chain });
            }
        }
        if right_gap == Gap::Break
            && let Some(street) = self.street_right(next)
        {
            return Some(right(street));
        }
        if right_gap == Gap::Blank
            && let Some(last) = self.names_right(next, 4)
        {
            // What follows may be the place and its code: the chain looks at it again.
            let last = self.place_right(next).map_or(last, |_| house.last);
            return Some(Chain { last, named: last > house.last, name: next, ..chain });
        }
        if chain.labelled || chain.units > 0 || chain.places > 0 {
            return Some(chain);
        }
        // "Na cvetači 8": small words after a capitalised one.
        let k = left.filter(|_| left_gap == Gap::Blank)?;
        let small = |t: usize| self.scan.tokens[t].has_letter && !self.scan.tokens[t].has_digit;
        let first = (k.saturating_sub(2)..k)
            .rev()
            .take_while(|&f| small(f + 1) && self.scan.gap(f) == " " && self.scan.tokens[f].start >= done)
            .find(|&f| self.is(f, Roles::NAME))?;
        Some(Chain { first, named: true, loose: true, name: k, ..chain })
    }

    /// "на улице Ленина 5 человек": a noun of the same script follows the number, and the type is written out.
    fn counts(&self, house: &House, street: usize) -> bool {
        let next = house.last + 1;
        self.is_other_script(street)
            && !self.is(street, Roles::CASELESS)
            && self.scan.gap(house.last) == " "
            && self.scan.tokens.get(next).is_some_and(|t| t.has_letter && !t.capital && !t.ascii)
            && !self.is(next, Roles::UNIT.with(Roles::PLACE).with(Roles::STREET))
            && !self.scan.gap(street).starts_with('.')
    }

    /// Takes in the parts after the chain. Names alone stay only if something better follows them.
    fn grow_right(&self, chain: &mut Chain) {
        let mut at = chain.last;
        let mut names = 0;
        let mut broken = false;
        // "ք. Երևան, Աբովյան 5": what goes from the large to the small ends with its line.
        let ends = chain.places > 0 && chain.house || chain.code;
        for _ in 0..PARTS {
            let gap = self.gap(at);
            let t = at + 1;
            if gap == Gap::End || ends && gap == Gap::Line {
                break;
            }
            // Below the postcode stands a country at most.
            let last_line = chain.code && gap == Gap::Line;
            broken |= gap.is_break();
            let named = gap.is_inside() && self.is(at, Roles::NAME);
            // The code first: "LT-01103" is no lot.
            let (last, kind) = if let Some(last) = self.code_right(t, gap, named).filter(|_| !chain.code) {
                chain.code = true;
                (self.after_code(last, gap).unwrap_or(last), 1)
            } else if let Some(last) = self.unit_right(t).filter(|_| names == 0 && !last_line) {
                chain.units += 1;
                (last, 0)
            } else if let Some(last) = self.place_right(t).filter(|_| !last_line) {
                chain.places += 1;
                (last, 0)
            } else if let Some(street) =
                self.street_right(t).filter(|_| !last_line && (gap.is_break() || self.is(t, Roles::BEFORE)))
            {
                chain.weak &= street.weak;
                chain.street = true;
                (street.last, 0)
            } else if let Some(last) = self.number(t).filter(|&last| {
                // "12, 5": the number of the flat, a part of its own.
                names == 0
                    && gap.is_break()
                    && self.gap(last).is_break()
                    && chain.street
                    && self.digits(t) <= 3
            }) {
                (last, 0)
            } else if let Some(last) = self.names_right(t, 4) {
                if chain.code {
                    // Only a country or a region ends the address now.
                    let greeting = last_line && self.scan.gap(last).starts_with(',');
                    let country = !self.is(t, Roles::CASELESS) && self.ends_line(last) && !greeting;
                    if gap.is_break() && country && self.is_short_line(t, last, chain) {
                        chain.last = last;
                    }
                    break;
                }
                // The line below a street that has a line of its own.
                if gap == Gap::Line
                    && self.ends_line(last)
                    && chain.street
                    && names == 0
                    && self.is_short_line(t, last, chain)
                {
                    chain.last = last;
                    chain.broken = true;
                }
                names += 1;
                at = last;
                if names > 3 {
                    break;
                }
                continue;
            } else {
                break;
            };
            names = 0;
            chain.broken |= broken;
            chain.last = last;
            at = last;
            // Two codes are not of one address.
            if kind == 1 && !self.gap(at).is_break() {
                break;
            }
        }
    }

    /// The place's name after its postcode: "1000 Скопје"; on the next line, with its region, if the code has a line of
    /// its own: "194401\nTimbiquí, Cauca".
    fn after_code(&self, code: usize, before: Gap) -> Option<usize> {
        let gap = self.gap(code);
        if before == Gap::Line && gap == Gap::Line && !self.is(code + 1, Roles::CASELESS) {
            let place =
                self.names_right(code + 1, 3).filter(|&p| !self.scan.gap(p).starts_with([':', '=']))?;
            let region = Some(place + 1).filter(|_| self.scan.gap(place) == ", ");
            return region.and_then(|r| self.names_right(r, 3)).or(Some(place));
        }
        if gap != Gap::Blank {
            return None;
        }
        let last = self.names_right(code + 1, 3)?;
        // Without capitals the name ends where the part does.
        let bounded = !self.is(code + 1, Roles::CASELESS)
            || !self.gap(last).is_inside()
            || !self.is_other_script(last + 1);
        bounded.then_some(last)
    }

    /// Nothing but a dot or the like between token `t` and the end of its line.
    fn ends_line(&self, t: usize) -> bool {
        let rest = self.scan.text[self.scan.tokens[t].end..].trim_start_matches(['.', ',', ' ', '"', ')']);
        rest.is_empty() || rest.starts_with(['\n', '\r'])
    }

    /// Words that may be a place's name, of the script of the chain.
    fn is_short_line(&self, first: usize, last: usize, chain: &Chain) -> bool {
        last - first < 3 && self.is_other_script(first) == self.is_other_script(chain.name)
    }

    /// Takes in the parts before the chain; nothing before byte `done`.
    fn grow_left(&self, chain: &mut Chain, done: usize) {
        let mut at = chain.first;
        let mut names = 0;
        let mut broken = false;
        for _ in 0..PARTS {
            let Some(e) = at.checked_sub(1).filter(|&e| self.scan.tokens[e].start >= done) else { break };
            let gap = self.gap(e);
            if gap == Gap::End {
                break;
            }
            broken |= gap.is_break();
            let first = if let Some(first) = self.unit_left(e, done).filter(|_| names == 0) {
                chain.units += 1;
                first
            } else if let Some(first) = self.place_left(e, done) {
                chain.places += 1;
                first
            } else if let Some(street) = self.street_left(e, done, false) {
                chain.weak &= street.weak;
                chain.street = true;
                street.first
            } else if let Some(first) =
                self.code_left(e, gap, done).filter(|_| !chain.code && gap != Gap::Tight)
            {
                chain.code = true;
                first
            } else if let Some(first) = self.names_left(e, 3, done).filter(|_| gap.is_break()) {
                names += 1;
                at = first;
                // "Polje, cesta XV 41\n1000 Ljubljana": the quarter opens the line of a whole address.
                let opens = first == 0 || self.scan.gap(first - 1).ends_with('\n');
                if opens && gap == Gap::Break && chain.code && chain.street && e - first < 2 {
                    chain.first = first;
                }
                if names > 2 {
                    break;
                }
                continue;
            } else {
                break;
            };
            names = 0;
            chain.broken |= broken;
            chain.first = first;
            at = first;
        }
    }

    /// Whether the chain is an address, and how far it goes.
    fn judge(&self, chain: Chain, year_like: bool) -> Option<(Range<usize>, Evidence)> {
        let range = self.range(&chain);
        let cue = announced(self.scan, range.start).or_else(|| self.lives(chain.last).then_some(range.start));
        let numbered = chain.house || chain.units > 0;
        let more = chain.units > 0 || chain.places > 0 || chain.code;
        let named = chain.named && !chain.loose;
        let opens = chain.loose && cue == Some(range.start) && !self.gap(chain.last).is_inside();
        if let Some(start) = cue.filter(|_| numbered && (chain.street || named || more || opens)) {
            return Some((self.announced_start(start, &range)..range.end, Evidence::Cue));
        }
        let other = self.is_other_script(chain.name);
        let sure = !chain.weak && (!year_like || chain.labelled);
        let typed =
            chain.street && numbered && !chain.loose && (sure || more || cued(self.scan, range.start));
        let placed = chain.places >= 2
            && (chain.house && (chain.labelled || named) || chain.units > 0 || chain.code)
            || chain.places > 0
                && chain.house
                && (chain.code || other && named && chain.broken && !year_like);
        // Without any word that says street or place: above or before postcode and city.
        let coded = (other || chain.loose)
            && chain.code
            && chain.broken
            && chain.house
            && (chain.named || chain.labelled)
            && !year_like;
        let framed = other && named && chain.house && !year_like && self.is_framed(&chain);
        // "VI კვარტალი, კორპუსი 2, ბინა 14"
        let parts = chain.units + usize::from(chain.labelled);
        let far = || (chain.first..=chain.last).any(|t| self.is_other_script(t));
        // "বাড়ি ৫, রোড ১২, ...": house and part, and more follows.
        let listed = || chain.labelled && chain.units > 0 && self.gap(chain.last) == Gap::Break;
        let built = chain.broken && parts > 1 && (chain.code || (chain.places > 0 || listed()) && far());
        (typed || placed || coded || framed || built).then_some((range, Evidence::Shape))
    }

    /// "... में रहता हूँ", "... adresinde oturuyorum": the word for living there follows, two small words between at most.
    fn lives(&self, last: usize) -> bool {
        let on = |t: usize| self.gap(t).is_inside() || self.gap(t) == Gap::Break;
        (last..last + 3).take_while(|&t| on(t)).any(|t| self.is(t + 1, Roles::LIVES))
    }

    /// Scripts of countries that write the house number first.
    fn is_number_first(&self, t: usize) -> bool {
        let first = self.scan.tokens.get(t).and_then(|_| self.scan.token(t).chars().next());
        first.is_some_and(|c| matches!(c, '\u{900}'..='\u{eff}' | '\u{1780}'..='\u{17ff}'))
    }

    /// Capitalised words between the cue and the chain are part of the address; without capitals nobody knows.
    fn announced_start(&self, cue: usize, range: &Range<usize>) -> usize {
        let caseless = self.is(self.scan.token_at(cue), Roles::CASELESS);
        if caseless { range.start } else { cue.min(range.start) }
    }

    /// In a sentence of Latin letters, after a word for where or whereto: "see you at הרצל 5".
    fn is_framed(&self, chain: &Chain) -> bool {
        let Some(before) = chain.first.checked_sub(1) else { return false };
        let latin =
            |t: usize| self.scan.tokens.get(t).is_none_or(|n| n.has_letter && !self.is_other_script(t));
        matches!(self.scan.token(before), "at" | "to" | "near" | "opposite" | "from")
            && self.scan.gap(before) == " "
            && (self.gap(chain.last) == Gap::End || latin(chain.last + 1))
    }

    /// The bytes of the chain, with the dot of an abbreviation that ends it.
    fn range(&self, chain: &Chain) -> Range<usize> {
        let last = self.scan.tokens[chain.last];
        let start = self.scan.tokens[chain.first].start;
        let lead = ["№ ", "№", "#", "# "]
            .iter()
            .find(|s| self.scan.text[..start].ends_with(**s))
            .map_or(0, |s| s.len());
        let short = self.scan.token(chain.last).chars().count() <= 4 && !last.has_digit;
        let dot = short
            && self.is(chain.last, Roles::AFTER.with(Roles::PLACE_AFTER))
            && self.scan.text[last.end..].starts_with('.');
        start - lead..last.end + usize::from(dot)
    }

    /// Streets without a house number: beside a place with its kind, a postcode, or after a cue.
    fn without_number(&self, found: &[Range<usize>], hits: &mut Vec<Hit>) {
        let mut done = 0;
        for t in 0..self.len() {
            let token = self.scan.tokens[t];
            if token.start < done || !self.is(t, Roles::STREET) {
                continue;
            }
            let after = found.partition_point(|r| r.end <= token.start);
            if found.get(after).is_some_and(|r| r.start < token.end) {
                continue;
            }
            let done_before = done.max(after.checked_sub(1).map_or(0, |k| found[k].end));
            let left = self.is(t, Roles::AFTER).then(|| self.street_left(t, done_before, false)).flatten();
            let right = || self.is(t, Roles::BEFORE).then(|| self.street_right(t)).flatten();
            let Some(street) = left.or_else(right) else { continue };
            let mut chain = Chain {
                first: street.first,
                last: street.last,
                street: true,
                weak: street.weak,
                house: false,
                labelled: false,
                named: true,
                loose: false,
                name: street.last,
                units: 0,
                places: 0,
                code: false,
                broken: false,
            };
            self.grow_left(&mut chain, done_before);
            self.grow_right(&mut chain);
            let range = self.range(&chain);
            let cue = announced(self.scan, range.start);
            let placed = chain.broken && (chain.places > 0 || chain.code) && !chain.weak;
            if cue.is_some() || placed {
                let evidence = if cue.is_some() { Evidence::Cue } else { Evidence::Shape };
                done = range.end;
                hits.push(hit(range, evidence));
            }
        }
    }
}

#[cfg(test)]
mod tests;
