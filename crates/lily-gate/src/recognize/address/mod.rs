//! Street addresses: a number, a street word of the language and a name, in that language's order; then the unit, the
//! city and the postcode that follow.
//!
//! | order | languages | example |
//! | --- | --- | --- |
//! | number, name, type | English | `12 Elm Street, Apt. 3` |
//! | number, type, name | French | `12, rue de la Paix` |
//! | type, name, number | Romance, Slavic, Greek, Indonesian, Semitic | `Via Roma 12`, `ул. Ленина, д. 5` |
//! | name and type in one word, number | German, Dutch, Nordic | `Hauptstraße 12` |
//! | name, type, number | Hungarian, Turkish, Finnish, German | `Kossuth utca 5.` |
//! | large to small | Chinese, Japanese, Korean | `东京都千代田区丸の内1-2-3` |
//! | any name and number | all, beside a cue or above a line of postcode and city | `Dlouhá 123` |
//! | a chain of parts in any order ([`world`]) | all others, scripts without capitals too | `ք. Երևան, 0010, Աբովյան 12, բն. 5` |

mod asian;
mod boxes;
mod parse;
mod tail;
mod words;
mod world;

use std::{collections::HashSet, ops::Range};

use crate::{
    Category, Evidence,
    cues::Cue,
    text::{Hit, Scan},
};
use parse::{House, house, name_words};

const VERSION: u16 = 1;

/// The word lists, hashed, and the patterns of East Asia.
#[derive(Debug)]
pub(crate) struct Address {
    suffixes: HashSet<&'static str>,
    ambiguous: HashSet<&'static str>,
    middle: HashSet<&'static str>,
    prefixes: HashSet<&'static str>,
    weak: HashSet<&'static str>,
    trailing: HashSet<&'static str>,
    compounds: Vec<&'static str>,
    lists: tail::Lists,
    asian: asian::Asian,
    boxes: boxes::Boxes,
    world: world::World,
}

impl Address {
    pub fn new() -> Result<Self, String> {
        let set = |words: &'static str| words.split('|').collect::<HashSet<_>>();
        Ok(Self {
            suffixes: set(words::SUFFIXES),
            ambiguous: set(words::AMBIGUOUS_SUFFIXES),
            middle: set(words::MIDDLE_TYPES),
            prefixes: set(words::PREFIXES),
            weak: set(words::WEAK_PREFIXES),
            trailing: set(words::TRAILING_TYPES),
            compounds: words::COMPOUNDS.split('|').collect(),
            lists: tail::Lists::new(),
            asian: asian::Asian::new().map_err(|e| e.to_string())?,
            boxes: boxes::Boxes::new().map_err(|e| e.to_string())?,
            world: world::World::new(),
        })
    }

    pub fn scan(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        let mut own = Vec::new();
        self.find(scan, &mut own);
        // What one grammar sees of an address and what another sees of it are one address.
        let mut own = union(own);
        self.world.extend(scan, &self.lists, &mut own);
        hits.append(&mut own);
    }

    fn find(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        let mut done = 0;
        for &i in &scan.numeric {
            if scan.tokens[i].start < done {
                continue;
            }
            let found = self.street(scan, i, done).or_else(|| self.lists.city_line(scan, i));
            if let Some((range, evidence)) = found {
                // A number may end one address and stand in the next one: never look back.
                done = range.end;
                hits.push(hit(range, evidence));
            }
        }
        self.numberless(scan, hits);
        self.unnumbered(scan, hits);
        self.boxes.scan(scan, &self.lists, hits);
        self.world.scan(scan, &self.lists, hits);
        self.world.hamlets(scan, &self.lists, hits);
        if scan.unspaced {
            self.asian.scan(scan, hits);
        }
    }

    /// The address around the house number at token `i`; nothing before byte `done`.
    fn street(&self, scan: &Scan, i: usize, done: usize) -> Option<(Range<usize>, Evidence)> {
        // Numbers among numbers: most of what has digits.
        let worded = |t: &crate::text::Token| t.has_letter;
        if !(scan.tokens.get(i + 1).is_some_and(worded)
            || i > 0 && worded(&scan.tokens[i - 1])
            || i > 1 && worded(&scan.tokens[i - 2]))
        {
            return None;
        }
        let house = house(scan, i)?;
        // "Calle 10 # 39-6": the number of the street.
        if matches!(scan.gap(house.next - 1), " # " | " #")
            && scan.tokens.get(house.next).is_some_and(|t| t.has_digit)
        {
            return None;
        }
        let orders = [
            self.number_first(scan, &house),
            self.number_last(scan, &house, done),
            self.compound(scan, &house, done),
            self.unnamed(scan, &house, done),
        ];
        let (range, evidence) =
            orders.into_iter().flatten().max_by_key(|(range, evidence)| (range.len(), *evidence))?;
        (range.start >= done).then_some((range, evidence))
    }

    /// English and French orders.
    fn number_first(&self, scan: &Scan, house: &House) -> Option<(Range<usize>, Evidence)> {
        if house.next >= scan.tokens.len()
            || !matches!(scan.gap(house.next - 1), " " | ", " | "  ")
            || !house.opens
        {
            return None;
        }
        let first = house.next;
        let word = scan.token(first).to_lowercase();
        if self.middle.contains(word.as_str()) {
            let from = if scan.gap(first).starts_with(". ") || scan.gap(first).starts_with(' ') {
                first + 1
            } else {
                return None;
            };
            let name = name_words(&self.lists, scan, from, 7, true)?;
            let end = scan.tokens[name.last].end;
            return Some((house.start..self.lists.tail(scan, end).end, Evidence::Shape));
        }
        if scan.gap(house.next - 1) == ", " {
            return None;
        }
        // The furthest street word among the next few capitalised words.
        let mut best = None;
        let mut capitals = 0;
        for k in first..scan.tokens.len().min(first + 6) {
            let token = scan.tokens[k];
            let text = scan.token(k);
            let word = text.to_lowercase();
            let sure = self.suffixes.contains(word.as_str());
            let maybe = self.ambiguous.contains(word.as_str());
            if (sure || maybe) && capitals > 0 {
                let end = token.end
                    + usize::from(scan.gap(k).starts_with('.') && text.len() <= 4 && !ends_sentence(scan, k));
                let after = self.lists.tail(scan, end);
                let directed = parse::direction(scan, k).unwrap_or(end);
                let tail = if after.end == end { self.lists.tail(scan, directed) } else { after };
                let plausible = match (sure, token.capital) {
                    (true, true) => {
                        !matches!(
                            word.as_str(),
                            "way" | "st" | "dr" | "gate" | "rise" | "walk" | "row" | "place"
                        ) || capitals < 4
                    }
                    (true, false) => {
                        word.len() > 3
                            && !matches!(
                                word.as_str(),
                                "gate" | "rise" | "walk" | "loop" | "row" | "way" | "pike"
                            )
                            || tail.postcode
                    }
                    (false, true) => !house.year_like || tail.postcode || tail.unit,
                    (false, false) => tail.postcode,
                };
                if plausible {
                    best = Some(tail.end.max(directed));
                }
            }
            let ordinal = token.has_digit && ["st", "nd", "rd", "th"].iter().any(|o| word.ends_with(o));
            let particle = self.lists.is_particle(&word) && capitals > 0;
            if token.is_name_like() || ordinal || (!token.has_digit && is_caseless(text)) {
                capitals += 1;
            } else if !particle {
                break;
            }
            if !matches!(scan.gap(k), " " | "-" | ". " | "'" | "’" | "  ") {
                break;
            }
        }
        best.map(|end| (house.start..end, Evidence::Shape))
    }

    /// "Via Roma 12", "ul. Długa 3", "Kossuth utca 5.".
    fn number_last(&self, scan: &Scan, house: &House, done: usize) -> Option<(Range<usize>, Evidence)> {
        let before = house.label.unwrap_or(house.first);
        let last = before.checked_sub(1)?;
        if !parse::joins_number(scan.gap(last)) {
            return None;
        }
        // Back over the words of the name to the type, at most seven.
        let mut names = 0;
        for k in (last.saturating_sub(7)..=last).rev() {
            let token = scan.tokens[k];
            if token.start < done {
                break;
            }
            let text = scan.token(k);
            let word = text.to_lowercase();
            let gap = scan.gap(k);
            if names > 0 && self.prefixes.contains(word.as_str()) && (token.capital || is_lower_type(text)) {
                let tail = self.lists.tail(scan, house.end);
                let weak = self.weak.contains(word.as_str()) || (word == "via" && !token.capital);
                if (!weak || tail.postcode || cued(scan, token.start))
                    && matches!(gap, " " | ". " | "." | "-" | "'" | "/ ")
                {
                    let start = self.lists.lead(scan, k, done).unwrap_or(token.start);
                    return Some((start..tail.end, Evidence::Shape));
                }
            }
            let named = k > 0 && matches!(scan.gap(k - 1), " " | "-" | ". " | "." | "'" | "’");
            if k == last && self.trailing.contains(word.as_str()) && named && text.len() > 1 {
                // The name stands before the type.
                let start = parse::names_before(&self.lists, scan, k, 4, done)?;
                let short = word.chars().count() <= 2;
                // "Kossuth utca 8.": the dot makes it an ordinal number.
                let dotted = is_hungarian(&word) && scan.text[house.end..].starts_with('.');
                let tail = self.lists.tail(scan, house.end + usize::from(dotted));
                let lead = self.lists.lead(scan, scan.token_at(start), done);
                if !short || tail.postcode || lead.is_some() || cued(scan, start) {
                    let start = lead.unwrap_or(start);
                    return Some((start..tail.end, Evidence::Shape));
                }
            }
            let particle = self.lists.is_particle(&word);
            let name = token.is_name_like()
                || (token.has_digit && token.len() <= 4)
                || !text.is_ascii() && !scan.tokens[k].capital && is_caseless(text);
            if !(name || particle)
                || (k < last && !matches!(gap, " " | "-" | ". " | "." | "'" | "’" | "\"" | " \"" | "\" "))
            {
                break;
            }
            names += usize::from(name);
        }
        None
    }

    /// "Hauptstraße 12", "Karl-Marx-Str. 5", "Prinses Beatrixlaan 3".
    fn compound(&self, scan: &Scan, house: &House, done: usize) -> Option<(Range<usize>, Evidence)> {
        let last = house.label.unwrap_or(house.first).checked_sub(1)?;
        if !parse::joins_number(scan.gap(last)) || scan.tokens[last].start < done {
            return None;
        }
        let word = scan.token(last).to_lowercase();
        let token = scan.tokens[last];
        let joined = last > 0 && scan.gap(last - 1) == "-" && scan.tokens[last - 1].is_name_like();
        let fits = |ending: &&&str| {
            word.strip_suffix(**ending)
                .is_some_and(|stem| stem.chars().count() >= 3 || (stem.is_empty() && joined))
        };
        let ending = self.compounds.iter().filter(fits).max_by_key(|ending| ending.len())?;
        if !(token.capital || joined) || token.has_digit {
            return None;
        }
        let tail = self.lists.tail(scan, house.end);
        // "-hof", "-ring", "-tie" end other words too.
        let sure = ending.chars().count() >= 4
            && !matches!(
                *ending,
                "ring"
                    | "markt"
                    | "winkel"
                    | "baan"
                    | "gate"
                    | "tori"
                    | "alle"
                    | "plan"
                    | "stig"
                    | "boulevard"
            )
            || matches!(*ending, "weg" | "str" | "vej" | "väg" | "iela" | "katu" | "pfad");
        if !sure && !tail.postcode && !cued(scan, token.start) {
            return None;
        }
        let start = parse::compound_start(&self.lists, scan, last, done);
        Some((start..tail.end, Evidence::Shape))
    }

    /// No street word: beside a cue, or above a line of postcode and city.
    fn unnamed(&self, scan: &Scan, house: &House, done: usize) -> Option<(Range<usize>, Evidence)> {
        let tail = self.lists.tail(scan, house.end);
        // Name, then number: "Dlouhá 123\n110 00 Praha".
        let last = house.label.unwrap_or(house.first).checked_sub(1);
        if let Some(last) = last
            && parse::joins_number(scan.gap(last))
            && let Some(start) = parse::names_before(&self.lists, scan, last + 1, 4, done)
        {
            let announced = announced(scan, start);
            if announced.is_some() || (tail.postcode && tail.broken) {
                let evidence = if announced.is_some() { Evidence::Cue } else { Evidence::Shape };
                return Some((announced.unwrap_or(start)..tail.end, evidence));
            }
        }
        // Number, then name: "12 Foo Bar\nSmithtown SW1 2AB".
        let name = house.opens.then(|| name_words(&self.lists, scan, house.next, 5, false)).flatten()?;
        if !matches!(scan.gap(house.next - 1), " " | "\n") {
            return None;
        }
        // "12\nUser: ...": the next line is a field of its own.
        if scan.gap(house.next - 1) == "\n" && scan.gap(name.last).starts_with([':', '=']) {
            return None;
        }
        let tail = self.lists.tail(scan, scan.tokens[name.last].end);
        let announced = announced(scan, house.start);
        let placed = tail.postcode && tail.broken && !house.year_like && scan.gap(house.next - 1) != "\n";
        let evidence = if announced.is_some() { Evidence::Cue } else { Evidence::Shape };
        (announced.is_some() || placed).then(|| (announced.unwrap_or(house.start)..tail.end, evidence))
    }

    /// "Rua Cláudio Brito, S/N".
    fn numberless(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        let marks = scan.text.match_indices("S/N").chain(scan.text.match_indices("s/n"));
        for (at, _) in marks {
            let i = scan.token_at(at);
            let house = scan.tokens.get(i).filter(|t| t.start == at).and_then(|_| parse::no_number(scan, i));
            if let Some((range, evidence)) = house.and_then(|house| self.number_last(scan, &house, 0)) {
                hits.push(hit(range, evidence));
            }
        }
    }

    /// "Adresse : rue Hernandez\n15895 Valette": a street without a number, right after a cue.
    fn unnumbered(&self, scan: &Scan, hits: &mut Vec<Hit>) {
        for (_, cue) in scan.cues.iter().filter(|(cue, _)| *cue == Cue::Address) {
            let first = scan.token_at(cue.end);
            // "au", "in der" may stand between.
            for k in first..scan.tokens.len().min(first + 3) {
                let word = scan.token(k).to_lowercase();
                let typed = self.middle.contains(word.as_str()) || self.prefixes.contains(word.as_str());
                if typed && !self.weak.contains(word.as_str()) && scan.tokens[k].start <= cue.end + 16 {
                    if matches!(scan.gap(k), " " | ". " | ".")
                        && let Some(name) = name_words(&self.lists, scan, k + 1, 6, true)
                    {
                        let end = self.lists.tail(scan, scan.tokens[name.last].end).end;
                        hits.push(hit(scan.tokens[k].start..end, Evidence::Cue));
                    }
                    break;
                }
                if !self.lists.is_particle(&word)
                    && !matches!(
                        word.as_str(),
                        "is" | "ist" | "est" | "es" | "at" | "a" | "à" | "suivante" | "przy"
                    )
                {
                    break;
                }
            }
        }
    }
}

/// Hits that overlap become one.
fn union(mut hits: Vec<Hit>) -> Vec<Hit> {
    hits.sort_by_key(|hit| hit.range.start);
    let mut all: Vec<Hit> = Vec::with_capacity(hits.len());
    for next in hits {
        match all.last_mut() {
            Some(last) if next.range.start < last.range.end => {
                last.range.end = last.range.end.max(next.range.end);
                last.evidence = last.evidence.max(next.evidence);
            }
            _ => all.push(next),
        }
    }
    all
}

/// Where an address that a cue announces starts: with the first word after the cue, at most 14 characters before
/// `start`.
fn announced(scan: &Scan, start: usize) -> Option<usize> {
    let end = scan.cues.partition_point(|(_, r)| r.end <= start);
    let (_, cue) = scan.cues[..end].iter().rev().take(4).find(|(cue, _)| *cue == Cue::Address)?;
    let first = scan.tokens.get(scan.token_at(cue.end))?.start;
    let gap = &scan.text[cue.end..first.min(start)];
    let near = start <= cue.end + 56
        && scan.text[cue.end..start].chars().count() <= 14
        && !gap.contains("\n\n")
        && !scan.text[cue.end..start].contains(". ");
    // Lower-case words between the two are no part of it.
    let named = first <= start && !scan.text[first..start].chars().next().is_some_and(char::is_lowercase);
    near.then_some(if named { first } else { start })
}

/// A cue of addresses shortly before.
fn cued(scan: &Scan, at: usize) -> bool {
    scan.cue_before(at, 24, |c| c == Cue::Address)
}

/// Street words that are written small: "ul.", "ул.", "rue", "calle", "via".
fn is_lower_type(word: &str) -> bool {
    matches!(
        word,
        "ul" | "al"
            | "os"
            | "pl"
            | "ул"
            | "пр"
            | "пер"
            | "просп"
            | "бул"
            | "наб"
            | "ш"
            | "пл"
            | "алл"
            | "улица"
            | "проспект"
            | "переулок"
            | "бульвар"
            | "набережная"
            | "шоссе"
            | "площадь"
            | "аллея"
            | "вул"
            | "вулиця"
            | "проезд"
            | "via"
            | "calle"
            | "rua"
            | "rue"
            | "avenida"
            | "str"
            | "jl"
            | "đường"
            | "phố"
            | "ulica"
            | "nám"
            | "náměstí"
            | "οδός"
            | "bd"
            | "aleja"
    ) || is_caseless(word)
}

/// Types of streets whose house numbers are ordinals.
fn is_hungarian(word: &str) -> bool {
    matches!(
        word,
        "utca"
            | "u"
            | "út"
            | "útja"
            | "tér"
            | "tere"
            | "körút"
            | "krt"
            | "köz"
            | "sétány"
            | "fasor"
            | "sor"
            | "rakpart"
            | "lejtő"
            | "dűlő"
            | "sugárút"
    )
}

/// Scripts without capital letters.
fn is_caseless(word: &str) -> bool {
    word.chars().any(char::is_alphabetic) && !word.chars().any(|c| c.is_lowercase() || c.is_uppercase())
}

/// The dot after token `k` ends a sentence: a capitalised word and no house part follows, or nothing.
fn ends_sentence(scan: &Scan, k: usize) -> bool {
    let gap = scan.gap(k);
    k + 1 >= scan.tokens.len() && gap.trim() == "." && scan.text.len() == scan.tokens[k].end + gap.len()
}

fn hit(range: Range<usize>, evidence: Evidence) -> Hit {
    Hit {
        range,
        category: Category::Address,
        evidence,
        recognizer: "address",
        version: VERSION,
        subtype: None,
    }
}

#[cfg(test)]
mod tests;
