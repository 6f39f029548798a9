//! What follows a street: the part of the building, the city, the state, the postcode, the country.

use std::{collections::HashSet, ops::Range};

use super::words::{NOT_PLACES, PARTICLES, STATES, UNITS};
use crate::{Evidence, text::Scan};

/// How far an address goes on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tail {
    pub end: usize,
    /// A postcode stands in it.
    pub postcode: bool,
    /// A unit stands in it.
    pub unit: bool,
    /// A line end or a comma comes before the postcode.
    pub broken: bool,
}

/// The word lists, hashed.
#[derive(Debug)]
pub(super) struct Lists {
    units: HashSet<&'static str>,
    states: HashSet<&'static str>,
    particles: HashSet<&'static str>,
    not_places: HashSet<&'static str>,
}

/// What stands between the parts.
fn is_break(gap: &str) -> bool {
    matches!(
        gap,
        ", " | "\n"
            | ",\n"
            | " \n"
            | " - "
            | " / "
            | "，"
            | ", \n"
            | "\r\n"
            | ",\r\n"
            | "\\n"
            | ",\\n"
            | " | "
            | "; "
            | "\n\n"
            | " – "
            | "، "
            | ". "
            | ".\n"
    )
}

impl Lists {
    pub fn new() -> Self {
        let set = |words: &'static str| words.split('|').collect::<HashSet<_>>();
        Self {
            units: set(UNITS),
            states: set(STATES),
            particles: set(PARTICLES),
            not_places: set(NOT_PLACES),
        }
    }

    /// A small word inside a name.
    pub fn is_particle(&self, word: &str) -> bool {
        self.particles.contains(word)
    }

    /// Token `t` begins a part of a building: "Apt. 277", "Suite 209".
    pub fn opens_unit(&self, scan: &Scan, t: usize) -> bool {
        let word = scan.token(t).to_lowercase();
        let value = scan.tokens.get(t + 1);
        word.len() >= 3
            && self.units.contains(word.as_str())
            && matches!(scan.gap(t), " " | ". " | "." | " #" | ". #" | ": ")
            && value.is_some_and(|v| v.has_digit && v.len() <= 5)
    }

    /// No word of a place's name.
    pub fn is_no_place(&self, word: &str) -> bool {
        self.not_places.contains(word)
    }

    /// The longest tail from byte `end` on. It only goes on to a city that has a postcode or a state.
    pub fn tail(&self, scan: &Scan, end: usize) -> Tail {
        let mut tail = Tail { end, postcode: false, unit: false, broken: false };
        for _ in 0..4 {
            match self.unit(scan, tail.end) {
                Some(end) => {
                    tail.end = end;
                    tail.unit = true;
                }
                None => break,
            }
        }
        // Parts, of which the last that holds a postcode, a state or a country ends the address.
        let mut at = tail.end;
        let mut broken = false;
        for piece in 0..6 {
            let t = scan.token_at(at);
            let Some(token) = scan.tokens.get(t) else { break };
            let gap = &scan.text[at..token.start];
            let inside = matches!(gap, " " | " (" | "(" | "-" | "  ");
            if !(is_break(gap) || inside) || gap == "\n\n" && piece > 0 {
                break;
            }
            broken |= is_break(gap);
            if let Some(end) = self.placed_postcode(scan, t, piece > 0 && broken, tail.postcode && piece == 0)
            {
                at = self.city(scan, t, end).unwrap_or(end);
                tail = Tail { end: at, postcode: true, broken, ..tail };
                continue;
            }
            if let Some(end) = self.state(scan, t, gap, tail.postcode, piece > 0) {
                at = end;
                if piece > 0 {
                    tail.end = at;
                }
                continue;
            }
            if tail.postcode && !is_break(gap) {
                break;
            }
            let Some(city) = self.words(scan, t) else { break };
            let name = &scan.text[token.start..city];
            at = city;
            if tail.postcode {
                // After the postcode only a country or a region ends the address.
                let ends = !scan.text[city..].starts_with(|c: char| c.is_alphanumeric());
                if ends && (is_country(name) || is_region(name) || gap == ", " && line_ends(scan, city)) {
                    tail.end = city;
                }
                break;
            }
            if piece > 0 && is_region(name) {
                tail.end = city;
            }
        }
        tail
    }

    /// The postcode at token `t`. Four digits are one beside a city only.
    fn placed_postcode(&self, scan: &Scan, t: usize, after_city: bool, again: bool) -> Option<usize> {
        let token = scan.tokens[t];
        let end = self.postcode(scan, t).filter(|_| !again)?;
        let year = token.is_number() && token.len() == 4 && end == token.end;
        let next = scan.tokens.get(scan.token_at(end));
        let city = next.is_some_and(|n| n.is_name_like() && scan.text[end..n.start] == *" ");
        // A line of its own, the city below it.
        let alone = scan.char_before(token.start) == Some('\n')
            && next.is_some_and(|n| n.is_name_like() && scan.text[end..n.start] == *"\n");
        (!year || city || alone || after_city).then_some(end)
    }

    /// The end of a state's or province's code at token `t`: "IL", "(MI)", "/ SP".
    fn state(&self, scan: &Scan, t: usize, gap: &str, coded: bool, after_city: bool) -> Option<usize> {
        let word = scan.token(t);
        let capitals = word.bytes().all(|b| b.is_ascii_uppercase());
        let bracketed = gap.ends_with('(') && matches!(word.len(), 2 | 3) && capitals;
        let joined = coded && word.len() == 2 && capitals && matches!(gap, " / " | " - " | "-" | " " | "/");
        // "MICH 04781"
        let short = after_city && (2..=5).contains(&word.len()) && capitals && {
            let next = scan.tokens.get(t + 1);
            next.is_some_and(|n| n.is_number() && (4..=6).contains(&n.len())) && scan.gap(t) == " "
        };
        if !(self.states.contains(word) || bracketed || joined || short) {
            return None;
        }
        let close = bracketed && scan.text[scan.tokens[t].end..].starts_with(')');
        Some(scan.tokens[t].end + usize::from(close))
    }

    /// The end of a unit such as ", Apt. 3", " #12", ", 3rd Floor" from byte `at` on.
    fn unit(&self, scan: &Scan, at: usize) -> Option<usize> {
        let t = scan.token_at(at);
        let token = scan.tokens.get(t)?;
        let gap = &scan.text[at..token.start];
        let hash = matches!(gap, " #" | ", #" | ",#" | "\n#" | "#");
        if hash && token.has_digit && token.len() <= 6 {
            return Some(token.end);
        }
        if !(is_break(gap) || matches!(gap, " " | "  " | "," | ". " | ", # " | " , ")) {
            return None;
        }
        let word = scan.token(t).to_lowercase();
        // "3rd Floor", "2º A", "2. OG", "Flat 23t".
        let ordinal = token.has_digit
            && ["st", "nd", "rd", "th", "º", "ª", "er", "e"].iter().any(|o| word.ends_with(o));
        if ordinal {
            let next = scan.tokens.get(t + 1)?;
            let follows = matches!(
                scan.token(t + 1).to_lowercase().as_str(),
                "floor" | "fl" | "étage" | "piso" | "andar" | "piano" | "og" | "stock"
            );
            return (follows && scan.gap(t) == " ").then_some(next.end);
        }
        // "Calle Laureano 569 823": the number inside, before the line ends.
        if gap == " " && token.is_number() && token.len() <= 4 && line_ends(scan, token.end) {
            return Some(token.end);
        }
        if !self.units.contains(word.as_str()) || token.has_digit {
            return None;
        }
        let value = scan.tokens.get(t + 1)?;
        let between =
            matches!(scan.gap(t), " " | ". " | "." | " #" | ": " | " n. " | ". #" | "" | ".: " | "-");
        let short = value.len() <= 5 && (value.has_digit || (value.len() == 1 && value.capital));
        (between && short).then(|| {
            // "Apt. 3-B", "стр. 2/5"
            let more = scan.tokens.get(t + 2).filter(|n| {
                matches!(scan.gap(t + 1), "-" | "/") && n.len() <= 3 && (n.has_digit || n.capital)
            });
            more.map_or(value.end, |n| n.end)
        })
    }

    /// The end of a city's name after the postcode at token `code`, which ends at `end`: on the same line, or on the
    /// next if the postcode has a line of its own.
    fn city(&self, scan: &Scan, code: usize, end: usize) -> Option<usize> {
        let t = scan.token_at(end);
        let gap = &scan.text[end..scan.tokens.get(t)?.start];
        let alone = scan.char_before(scan.tokens[code].start) == Some('\n') && gap == "\n";
        if !(matches!(gap, " " | ", " | "  ") || alone) {
            return None;
        }
        let city = self.words(scan, t)?;
        if !alone || line_ends(scan, city) {
            return Some(city);
        }
        // "730661\nRoncesvalles, Tolima": the region after the city.
        let region = scan.token_at(city);
        let comma = scan.tokens.get(region).is_some_and(|r| scan.text[city..r.start] == *", ");
        let end = comma.then(|| self.words(scan, region)).flatten()?;
        line_ends(scan, end).then_some(end)
    }

    /// The end of up to five capitalised words from token `t` on.
    fn words(&self, scan: &Scan, t: usize) -> Option<usize> {
        let mut end = None;
        for k in t..scan.tokens.len().min(t + 6) {
            let token = scan.tokens[k];
            let word = scan.token(k).to_lowercase();
            let caseless = !token.has_digit && super::is_caseless(scan.token(k));
            if token.is_name_like() && !self.not_places.contains(word.as_str()) || caseless {
                end = Some(token.end);
            } else if !(end.is_some()
                && (self.particles.contains(word.as_str())
                    || token.has_digit && token.has_letter && token.len() <= 4))
            {
                break;
            }
            if !matches!(scan.gap(k), " " | "-" | "'" | "’" | ". " | "/") {
                break;
            }
            // A state's code belongs to the next part.
            if scan.tokens.get(k + 1).is_some_and(|n| n.len() <= 3) && self.states.contains(scan.token(k + 1))
            {
                break;
            }
        }
        end
    }

    /// The end of the postcode at token `t`.
    fn postcode(&self, scan: &Scan, t: usize) -> Option<usize> {
        let token = scan.tokens[t];
        if !token.ascii {
            return None;
        }
        let text = scan.token(t);
        let next = scan.tokens.get(t + 1).filter(|n| n.ascii);
        let after = |gap: &str| next.filter(|_| scan.gap(t) == gap).map(|n| (*n, scan.token(t + 1)));
        let clean = |end: usize| {
            let mut rest = scan.text[end..].chars();
            let tie = rest.next();
            tie.is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '_' | '/' | '%'))
                && !(matches!(tie, Some('-' | '.' | ',')) && rest.next().is_some_and(|c| c.is_ascii_digit()))
        };
        let digits = token.is_number();
        let len = token.len();
        // Two parts: 12345-6789, 12345-678, 12-345, 1234-567, 123-4567, 123 45, 1234 AB, SW1A 1AA, K1A 0B1.
        if let Some((n, second)) = after("-").or_else(|| after(" ")) {
            let dash = scan.gap(t) == "-";
            let fits = match (len, second.len()) {
                (5, 4) | (5, 3) | (2, 3) | (4, 3) | (3, 4) if dash => digits && n.is_number(),
                (3, 2) if !dash => digits && n.is_number(),
                (4, 2) if !dash => {
                    digits
                        && second.bytes().all(|b| b.is_ascii_uppercase())
                        && !matches!(second, "SA" | "SD" | "SS")
                }
                (1..=3, 4..=5) if dash => text.bytes().all(|b| b.is_ascii_uppercase()) && n.is_number(),
                (2..=4, 3) if !dash => is_uk(text, second) || is_canadian(text, second),
                (3, 4) if !dash => is_eircode(text, second),
                (3, 3) if dash => is_canadian(text, second),
                _ => false,
            };
            if fits && clean(n.end) {
                return Some(n.end);
            }
        }
        let stated = digits && matches!(len, 7 | 8) && scan.text[..token.start].ends_with(['\n', ' ']);
        let single = (digits && (4..=6).contains(&len))
            || (stated && self.before_state(scan, t))
            || (len == 6
                && text[..4].bytes().all(|b| b.is_ascii_digit())
                && text[4..].bytes().all(|b| b.is_ascii_uppercase()))
            || (token.ascii
                && matches!(len, 5..=7)
                && text.is_char_boundary(len - 3)
                && is_uk(&text[..len - 3], &text[len - 3..]))
            || (len == 7 && is_eircode(&text[..3], &text[3..]))
            || (len == 6 && token.ascii && is_canadian(&text[..3], &text[3..]))
            || (digits && len == 7 && scan.text[..token.start].ends_with('〒'));
        (single && clean(token.end)).then_some(token.end)
    }

    /// Seven or eight digits are a postcode before a city and its state ("35737758 Sousa / PR") or at a line's end
    /// after a region.
    fn before_state(&self, scan: &Scan, t: usize) -> bool {
        let after = self.words(scan, t + 1).filter(|_| scan.gap(t) == " ");
        let coded = after.is_some_and(|city| {
            let state = scan.token_at(city);
            scan.tokens.get(state).is_some_and(|s| {
                s.len() == 2 && matches!(&scan.text[city..s.start], " / " | " - " | "/" | "-")
            })
        });
        coded || (t > 0 && scan.gap(t - 1) == ", " && line_ends(scan, scan.tokens[t].end))
    }

    /// "Springfield, IL 62704": a city with state and postcode, without a street. Token `i` is the postcode.
    pub fn city_line(&self, scan: &Scan, i: usize) -> Option<(Range<usize>, Evidence)> {
        let token = scan.tokens[i];
        let state = i.checked_sub(1)?;
        let coded =
            token.is_number() && token.len() == 5 || self.postcode(scan, i).is_some() && !token.is_number();
        if !coded
            || scan.gap(state) != " "
            || !self.states.contains(scan.token(state))
            || !scan.is_bounded(&token.range())
        {
            return None;
        }
        let end = self.postcode(scan, i)?;
        let city = state.checked_sub(1)?;
        if !matches!(scan.gap(city), ", " | " ") {
            return None;
        }
        let mut start = None;
        for k in (city.saturating_sub(2)..=city).rev() {
            let t = scan.tokens[k];
            if !t.is_name_like()
                || self.not_places.contains(scan.token(k).to_lowercase().as_str())
                || (k < city && !matches!(scan.gap(k), " " | ". " | "-"))
            {
                break;
            }
            start = Some(t.start);
        }
        start.map(|start| (start..end, Evidence::Shape))
    }

    /// "г. Москва, ул. Ленина, 5" and "1051 Budapest, Kossuth utca 5": the start of the postcode or city on the same
    /// line before the street at token `k`.
    pub fn lead(&self, scan: &Scan, k: usize, done: usize) -> Option<usize> {
        let city = k.checked_sub(1)?;
        if scan.gap(city) != ", " || !scan.tokens[city].is_name_like() || scan.tokens[city].start < done {
            return None;
        }
        let mut first = city;
        while first > 0
            && matches!(scan.gap(first - 1), " " | "-")
            && scan.tokens[first - 1].is_name_like()
            && city - first < 3
            && scan.tokens[first - 1].start >= done
        {
            first -= 1;
        }
        let marker = first.checked_sub(1)?;
        let word = scan.token(marker);
        let marked = matches!(
            word,
            "г" | "город"
                | "м"
                | "с"
                | "п"
                | "д"
                | "пос"
                | "село"
                | "к"
                | "клх"
                | "ст"
                | "х"
                | "деревня"
        ) && matches!(scan.gap(marker), ". " | " " | ".");
        let coded = scan.tokens[marker].is_number()
            && (4..=6).contains(&scan.tokens[marker].len())
            && matches!(scan.gap(marker), " " | ", ");
        if scan.tokens[marker].start < done {
            return None;
        }
        // "123456, г. Москва"
        let before = marker
            .checked_sub(1)
            .filter(|&c| scan.gap(c) == ", " && scan.tokens[c].is_number() && scan.tokens[c].len() == 6);
        match (marked, before) {
            (true, Some(code)) => Some(scan.tokens[code].start),
            (true, None) => Some(scan.tokens[marker].start),
            (false, _) => coded.then(|| scan.tokens[marker].start),
        }
    }
}

/// Nothing but punctuation up to the end of the line.
fn line_ends(scan: &Scan, at: usize) -> bool {
    let rest = scan.text[at..].trim_start_matches(['.', ',', ';', ' ', '!', '?', ')', '"']);
    rest.is_empty() || rest.starts_with(['\n', '\r'])
}

/// "Región de Antofagasta", "Province of ...".
fn is_region(name: &str) -> bool {
    let first = name.split(' ').next().unwrap_or_default().to_lowercase();
    let last = name.rsplit(' ').next().unwrap_or_default().to_lowercase();
    let known = [
        "región",
        "region",
        "provincia",
        "province",
        "estado",
        "departamento",
        "kanton",
        "canton",
        "область",
        "край",
    ];
    known.contains(&first.as_str())
        || matches!(last.as_str(), "county" | "province" | "region" | "область" | "край")
}

/// "SW1A" "1AA".
pub(super) fn is_uk(outward: &str, inward: &str) -> bool {
    let out = outward.as_bytes();
    let letters = out.iter().take_while(|b| b.is_ascii_uppercase()).count();
    let inward = inward.as_bytes();
    (1..=2).contains(&letters)
        && (2..=4).contains(&out.len())
        && out.get(letters).is_some_and(u8::is_ascii_digit)
        && out[letters + 1..].iter().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase())
        && out.len() - letters <= 2
        && inward.len() == 3
        && inward[0].is_ascii_digit()
        && inward[1..].iter().all(u8::is_ascii_uppercase)
}

/// "K1A" "0B1".
fn is_canadian(first: &str, second: &str) -> bool {
    let letter_digit = |text: &str, pattern: [bool; 3]| {
        text.len() == 3
            && text
                .bytes()
                .zip(pattern)
                .all(|(b, letter)| if letter { b.is_ascii_uppercase() } else { b.is_ascii_digit() })
    };
    letter_digit(first, [true, false, true]) && letter_digit(second, [false, true, false])
}

/// "D04" "X4C7": Ireland's, of the letters that An Post uses.
fn is_eircode(routing: &str, unique: &str) -> bool {
    let letter = |b: u8| b"ACDEFHKNPRTVWXY".contains(&b);
    let head = routing.as_bytes();
    let routed = letter(head[0]) && head[1].is_ascii_digit() && head[2].is_ascii_digit() || routing == "D6W";
    routed
        && unique.len() == 4
        && unique.bytes().all(|b| b.is_ascii_digit() || letter(b))
        && unique.bytes().any(|b| b.is_ascii_digit())
}

/// Countries as they stand under an address.
fn is_country(name: &str) -> bool {
    matches!(
        name.to_lowercase().as_str(),
        "usa"
            | "united states"
            | "united states of america"
            | "uk"
            | "united kingdom"
            | "england"
            | "scotland"
            | "wales"
            | "ireland"
            | "canada"
            | "australia"
            | "new zealand"
            | "germany"
            | "deutschland"
            | "austria"
            | "österreich"
            | "switzerland"
            | "schweiz"
            | "france"
            | "belgium"
            | "belgië"
            | "belgique"
            | "netherlands"
            | "nederland"
            | "the netherlands"
            | "spain"
            | "españa"
            | "italy"
            | "italia"
            | "portugal"
            | "brazil"
            | "brasil"
            | "mexico"
            | "méxico"
            | "argentina"
            | "chile"
            | "colombia"
            | "peru"
            | "poland"
            | "polska"
            | "czech republic"
            | "česká republika"
            | "czechia"
            | "slovakia"
            | "slovensko"
            | "hungary"
            | "magyarország"
            | "romania"
            | "românia"
            | "bulgaria"
            | "greece"
            | "turkey"
            | "türkiye"
            | "sweden"
            | "sverige"
            | "norway"
            | "norge"
            | "denmark"
            | "danmark"
            | "finland"
            | "suomi"
            | "iceland"
            | "russia"
            | "россия"
            | "ukraine"
            | "україна"
            | "india"
            | "china"
            | "japan"
            | "south korea"
            | "korea"
            | "indonesia"
            | "malaysia"
            | "singapore"
            | "thailand"
            | "vietnam"
            | "philippines"
            | "israel"
            | "egypt"
            | "south africa"
            | "nigeria"
            | "kenya"
            | "croatia"
            | "hrvatska"
            | "serbia"
            | "slovenia"
            | "slovenija"
            | "estonia"
            | "latvia"
            | "lithuania"
            | "luxembourg"
            | "uae"
            | "united arab emirates"
            | "saudi arabia"
    )
}
