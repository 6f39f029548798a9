//! The words of one text with their roles, what stands between them, and the numbers.

use std::{cell::Cell, collections::HashMap};

use super::{
    super::{parse::is_measure, tail::Lists},
    roles::{Roles, TABLES},
};
use crate::{cues::is_unspaced, text::Scan};

/// All tables, hashed.
#[derive(Debug)]
pub(super) struct Words {
    roles: HashMap<&'static str, Roles>,
    /// Types that open the word that names the place, of scripts without blanks.
    joined: Vec<(&'static str, Roles)>,
}

impl Words {
    pub fn new() -> Self {
        let mut roles: HashMap<&'static str, Roles> = HashMap::new();
        let mut joined = Vec::new();
        for (row, words) in TABLES.iter().copied().flatten() {
            for word in words.split('|') {
                if row.any(Roles::JOINED) {
                    joined.push((word, *row));
                } else {
                    let all = roles.entry(word).or_default();
                    // A word that is a plain type in one language is not weak because of another.
                    let weak = all.is_none() || all.any(Roles::WEAK);
                    *all = all.with(*row);
                    if row.any(Roles::STREET) && !(weak && row.any(Roles::WEAK)) {
                        *all = all.without(Roles::WEAK);
                    }
                }
            }
        }
        joined.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        Self { roles, joined }
    }

    fn of(&self, text: &str) -> Roles {
        let first = text.chars().next().unwrap_or(' ');
        if opens_joined(first) {
            let found =
                self.joined.iter().find(|(word, _)| text.len() > word.len() && text.starts_with(word));
            return self.roles.get(text).copied().or(found.map(|(_, r)| *r)).unwrap_or_default();
        }
        if !first.is_alphabetic() || !is_semitic(first) {
            let lower = text.to_lowercase();
            return self.roles.get(lower.as_str()).copied().unwrap_or_default();
        }
        if let Some(found) = self.roles.get(text) {
            return *found;
        }
        // "ברחוב", "بشارع", "والشارع": a preposition or an article, and the word.
        let mut rest = text;
        for _ in 0..3 {
            let Some(c) = rest.chars().next().filter(|c| "בלמשהווبولفكلا".contains(*c)) else {
                break;
            };
            rest = &rest[c.len_utf8()..];
            if rest.chars().count() < 3 {
                break;
            }
            if let Some(found) = self.roles.get(rest).filter(|r| r.any(Roles::STREET.with(Roles::PLACE))) {
                return found.without(Roles::STOP);
            }
        }
        Roles::NONE
    }
}

/// What stands between two words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gap {
    /// Nothing, a dash, an apostrophe.
    Tight,
    /// Blanks, or the dot of an abbreviation.
    Blank,
    /// A comma or the like: the next part of the address.
    Break,
    /// A line end.
    Line,
    /// The address ends here.
    End,
}

impl Gap {
    pub fn is_inside(self) -> bool {
        matches!(self, Self::Tight | Self::Blank)
    }

    pub fn is_break(self) -> bool {
        matches!(self, Self::Break | Self::Line)
    }
}

/// A house number.
#[derive(Debug, Clone, Copy)]
pub(super) struct House {
    pub first: usize,
    pub last: usize,
    pub year_like: bool,
}

/// One text.
#[derive(Debug)]
pub(super) struct View<'s, 't> {
    pub scan: &'s Scan<'t>,
    pub lists: &'s Lists,
    words: &'s Words,
    /// Roles that were looked up.
    known: Vec<Cell<Option<Roles>>>,
}

impl<'s, 't> View<'s, 't> {
    pub fn new(scan: &'s Scan<'t>, lists: &'s Lists, words: &'s Words) -> Self {
        Self { scan, lists, words, known: vec![Cell::new(None); scan.tokens.len()] }
    }

    pub fn len(&self) -> usize {
        self.scan.tokens.len()
    }

    /// The roles of token `t`; none beyond the text.
    pub fn roles(&self, t: usize) -> Roles {
        let Some(cell) = self.known.get(t) else { return Roles::NONE };
        if let Some(roles) = cell.get() {
            return roles;
        }
        let roles = self.look_up(t);
        cell.set(Some(roles));
        roles
    }

    pub fn is(&self, t: usize, roles: Roles) -> bool {
        self.roles(t).any(roles)
    }

    fn look_up(&self, t: usize) -> Roles {
        let token = self.scan.tokens[t];
        let text = self.scan.token(t);
        if !token.has_letter || token.has_digit || token.len() > 96 {
            return Roles::NONE;
        }
        let mut roles = self.words.of(text);
        let first = text.chars().next().unwrap_or(' ');
        let caseless = is_caseless(first);
        let dotted = self.scan.gap(t).starts_with(['.', '°', 'º']);
        if !caseless && text.chars().nth(2).is_none() {
            // One or two letters are an abbreviation, with its dot, or stand before a number ("RT 3", "кв 5").
            let two = text.chars().nth(1).is_some();
            let counted = (two || !token.capital) && self.scan.tokens.get(t + 1).is_some_and(|n| n.has_digit);
            if !dotted {
                roles = roles.without(Roles::STREET.with(Roles::PLACE_AFTER));
            }
            // "xã Hòa Phú", "ấp Bình": whole words of Vietnamese.
            let whole = two
                && !token.ascii
                && roles.any(Roles::SMALL)
                && self.scan.gap(t) == " "
                && self.scan.tokens.get(t + 1).is_some_and(|n| n.capital);
            if !(dotted || counted && two || whole) {
                roles = roles.without(Roles::PLACE_BEFORE);
            }
            if !dotted && !counted {
                roles = roles.without(Roles::LABEL.with(Roles::UNIT).with(Roles::CODE));
            }
        }
        if caseless && !is_unspaced_east(first) {
            roles = roles.with(Roles::CASELESS);
            if !roles.any(Roles::STOP) {
                roles = roles.with(Roles::NAME);
            }
        } else if token.is_name_like()
            && !roles.any(Roles::STOP)
            && (is_month(text) || !self.lists.is_no_place(&text.to_lowercase()))
        {
            roles = roles.with(Roles::NAME);
        }
        if text.bytes().all(|b| matches!(b, b'I' | b'V' | b'X' | b'L')) && t > 0 {
            // "cesta XV": a street by its number.
            let typed = self.words.of(self.scan.token(t - 1)).any(Roles::STREET);
            roles = if typed { roles.with(Roles::NAME) } else { roles };
        }
        if token.ascii && self.lists.is_particle(text) {
            roles = roles.with(Roles::PARTICLE);
        }
        roles
    }

    /// What follows token `t`.
    pub fn gap(&self, t: usize) -> Gap {
        if t + 1 >= self.len() {
            return Gap::End;
        }
        let whole = self.scan.gap(t);
        // "улица Ленина, № 5", "Calle 10 # 5".
        let signs = ["№ ", "№", "# ", "#", "nº ", "n° ", "N° "];
        let gap =
            signs.iter().find_map(|sign| whole.strip_suffix(sign)).filter(|g| !g.is_empty()).unwrap_or(whole);
        match gap {
            "" | "-" | "–" | "'" | "’" | "ʼ" | "ʻ" | "`" | "״" | "׳" | "\"" | "/" | "\u{200c}"
            | "\u{200d}" => Gap::Tight,
            " " | "  " | "\u{a0}" | " \"" | "\" " | " «" | "» " | "” " | " “" | "' " | "’ " | "׳ " | "ʼ " => {
                Gap::Blank
            }
            ". " | "." | ".: " | ".-" if self.is_abbreviation(t) => Gap::Blank,
            "° " | "º " | "°" | "º" if self.scan.token(t).eq_ignore_ascii_case("n") => Gap::Blank,
            // "Ulica 1. maja 5"
            ". " if matches!(self.digits(t), 1 | 2) && self.is_small(t + 1) => Gap::Blank,
            // "AKAD.H.ƏLİYEV"
            "." if self.scan.tokens[t].len() <= 8
                && self.scan.tokens[t].capital
                && self.is(t + 1, Roles::NAME) =>
            {
                Gap::Blank
            }
            ": " | ":" | " : "
                if self.is(t, Roles::LABEL.with(Roles::UNIT).with(Roles::CODE).with(Roles::SMALL))
                    || self.is(t, Roles::PLACE_BEFORE) && self.is(t, Roles::CASELESS) =>
            {
                Gap::Blank
            }
            ", " | "," | "، " | "،" | " - " | " – " | " — " | "; " | " , " | ",  " | "·" | " / " | " | "
            | "., " | ".," | "” , " | "\", " | "», " | "-  " | " ، " => Gap::Break,
            "\n" | ",\n" | ", \n" | " \n" | "\r\n" | ",\r\n" | "،\n" | "\\n" | ",\\n" | " ,\n" => Gap::Line,
            ".\n" if self.is_abbreviation(t) => Gap::Line,
            _ => Gap::End,
        }
    }

    fn is_small(&self, t: usize) -> bool {
        self.scan.token(t).chars().next().is_some_and(char::is_lowercase)
    }

    fn is_abbreviation(&self, t: usize) -> bool {
        let token = self.scan.tokens[t];
        !token.has_digit
            && (!self.roles(t).without(Roles::NAME.with(Roles::CASELESS).with(Roles::STOP)).is_none()
                || self.scan.token(t).chars().nth(2).is_none())
    }

    /// How many digits token `t` is made of, of any script; 0 if it is no plain number.
    pub fn digits(&self, t: usize) -> usize {
        let Some(token) = self.scan.tokens.get(t) else { return 0 };
        if !token.has_digit || token.has_letter {
            return 0;
        }
        if token.ascii { token.len() } else { self.scan.token(t).chars().count() }
    }

    /// Token `t` is a short number, maybe with a letter: "5", "12a", "৫৬/ক" in its parts.
    pub fn is_short_number(&self, t: usize) -> bool {
        let Some(token) = self.scan.tokens.get(t) else { return false };
        let text = self.scan.token(t);
        let digits = text.chars().take_while(|c| c.is_numeric()).count();
        token.has_digit && (1..=5).contains(&digits) && text.chars().count() <= digits + 1
    }

    /// Where the number that starts at token `t` ends: "12", "12a", "12/3", "12-14", "12 bis", "12 а".
    pub fn number(&self, t: usize) -> Option<usize> {
        if !self.is_short_number(t) {
            return None;
        }
        let mut last = t;
        while last + 1 < self.len() && last < t + 3 {
            let next = last + 1;
            let word = self.scan.token(next);
            let single = word.chars().nth(1).is_none();
            let joined = match self.scan.gap(last) {
                "-" | "/" | "–" | "\\" => self.is_short_number(next) || single,
                " " => {
                    single
                        && self.scan.tokens[next].has_letter
                        && !self.scan.gap(next).starts_with(['.', '\'', '’', ' '])
                        || matches!(word, "bis" | "ter" | "quater")
                }
                " / " => self.is_short_number(next),
                _ => false,
            };
            if !joined {
                break;
            }
            last = next;
        }
        Some(last)
    }

    /// The house number at token `i`: no price, no time, no date, no decimal number, no part of a code.
    pub fn house(&self, i: usize) -> Option<House> {
        let last = self.number(i)?;
        let range = self.scan.tokens[i].start..self.scan.tokens[last].end;
        let before = self.scan.char_before(range.start);
        let tied = |c: char| {
            matches!(
                c,
                '$' | '€'
                    | '£'
                    | '@'
                    | '%'
                    | '_'
                    | '+'
                    | '<'
                    | '='
                    | '{'
                    | '['
                    | '\\'
                    | '₹'
                    | '₪'
                    | '¥'
                    | '*'
                    | '&'
            )
        };
        if before.is_some_and(|c| tied(c) || c.is_alphanumeric() && !is_unspaced(c)) {
            return None;
        }
        let mut rest = self.scan.text[range.end..].chars();
        let after = rest.next();
        let digit_follows = rest.next().is_some_and(char::is_numeric);
        if after.is_some_and(|c| tied(c) || matches!(c, '°' | '}' | ']' | '∶' | '>'))
            || matches!(after, Some('.' | ',' | ':' | '٫' | '٬' | '/' | '-')) && digit_follows
        {
            return None;
        }
        if self.scan.gap(last) == " " && last + 1 < self.len() && is_measure(self.scan.token(last + 1)) {
            return None;
        }
        // "2-га", "10-րդ": an ordinal number.
        if self.scan.gap(last) == "-" && self.scan.tokens.get(last + 1).is_some_and(|t| t.has_letter) {
            return None;
        }
        // "10:30", "1.5", "2020-01-05": what ties it to a number before.
        if i > 0
            && self.scan.tokens[i - 1].has_digit
            && matches!(self.scan.gap(i - 1), "." | ":" | "," | "-" | "/" | "–" | "٫" | "٬")
        {
            return None;
        }
        let year = |t: usize| {
            let text = self.scan.token(t);
            self.digits(t) == 4 && (text.starts_with("19") || text.starts_with("20"))
        };
        if last > i && (year(i) || year(last)) {
            return None;
        }
        Some(House { first: i, last, year_like: year(i) })
    }

    /// The script of token `t` writes capitals, and it is not Latin.
    pub fn is_other_script(&self, t: usize) -> bool {
        let first = self.scan.tokens.get(t).and_then(|_| self.scan.token(t).chars().next());
        first.is_some_and(|c| c.is_alphabetic() && c > '\u{24f}' && !('\u{1e00}'..='\u{1eff}').contains(&c))
    }
}

/// Streets are named after dates: "28 May prospekti".
fn is_month(text: &str) -> bool {
    let months = ["january", "march", "may", "june", "july", "september", "october", "november"];
    text.is_ascii() && months.iter().any(|m| m.eq_ignore_ascii_case(text))
}

/// Scripts whose words have no capitals; Georgian's exist and are not used in names.
pub(super) fn is_caseless(c: char) -> bool {
    c.is_alphabetic() && (!c.is_lowercase() && !c.is_uppercase() || ('\u{10d0}'..='\u{10ff}').contains(&c))
}

/// Chinese, Japanese and Korean have a grammar of their own.
fn is_unspaced_east(c: char) -> bool {
    c >= '\u{1100}' && is_unspaced(c)
}

/// Thai, Lao and Khmer.
fn opens_joined(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1780}'..='\u{17ff}')
}

/// Hebrew and Arabic letters.
fn is_semitic(c: char) -> bool {
    matches!(c, '\u{590}'..='\u{6ff}' | '\u{750}'..='\u{77f}')
}
