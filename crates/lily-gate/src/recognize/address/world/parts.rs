//! The parts of an address, each read from its first word on or from its last word back: names, streets, places, parts
//! of a building, postcodes. Indices are of tokens; every range includes its last one.

use super::{roles::Roles, view::Gap, view::View};

/// A street with its type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Street {
    pub first: usize,
    pub last: usize,
    /// Its type is an ordinary word too.
    pub weak: bool,
}

impl View<'_, '_> {
    /// Token `t` begins another part, so that a name ends before it.
    fn opens_part(&self, t: usize) -> bool {
        self.is(t, Roles::BEFORE.with(Roles::PLACE_BEFORE))
            || self.is(t, Roles::UNIT.with(Roles::LABEL).with(Roles::CODE))
                && self.scan.tokens.get(t + 1).is_some_and(|n| n.has_digit)
    }

    /// "40-річчя", "2-րդ", "1. maja": a small word tied to what stands before.
    fn is_tied(&self, t: usize) -> bool {
        let Some(before) = t.checked_sub(1).filter(|_| self.scan.tokens[t].has_letter) else { return false };
        let gap = self.scan.gap(before);
        let small = !self.scan.tokens[t].capital;
        gap == "-"
            || gap == ". " && matches!(self.digits(before), 1 | 2)
            || small && matches!(gap, "'" | "’" | "ʼ") && self.scan.tokens[before].has_letter
    }

    /// The last of up to `limit` words of a name from token `t` on.
    pub fn names_right(&self, t: usize, limit: usize) -> Option<usize> {
        let mut last = None;
        let mut words = 0;
        for k in t..self.len().min(t + 3 * limit) {
            let roles = self.roles(k);
            words += usize::from(k == t || self.gap(k - 1) == Gap::Blank);
            let opens = last.is_some() && self.opens_part(k) && !roles.any(Roles::AFTER);
            let other = k > t && self.is_other_script(k) != self.is_other_script(t);
            if words > limit || roles.any(Roles::STOP.with(Roles::LIVES)) || opens || other {
                break;
            }
            if roles.any(Roles::NAME) || last.is_some() && self.is_tied(k) {
                last = Some(k);
            } else if !(last.is_some() && roles.any(Roles::PARTICLE)) {
                break;
            }
            if !self.gap(k).is_inside() {
                break;
            }
        }
        last
    }

    /// The first of up to `limit` words of a name that ends with token `e`; nothing before byte `done`.
    pub fn names_left(&self, e: usize, limit: usize, done: usize) -> Option<usize> {
        let mut first = None;
        let mut words = 1;
        for k in (e.saturating_sub(3 * limit)..=e).rev() {
            let token = self.scan.tokens[k];
            words += usize::from(k < e && self.gap(k) == Gap::Blank);
            if words > limit || token.start < done || k < e && !self.gap(k).is_inside() {
                break;
            }
            let roles = self.roles(k);
            if roles.any(Roles::STOP) {
                break;
            }
            // A script of its own: an English word does not belong to a Hebrew name.
            // "ვაჟა-ფშაველას VI კვარტალი": a number.
            let roman = |k: usize| self.scan.token(k).bytes().all(|b| matches!(b, b'I' | b'V' | b'X'));
            if first.is_some_and(|f| self.is_other_script(f) != self.is_other_script(k) && !roman(f))
                && token.has_letter
            {
                break;
            }
            let numbered =
                (1..=4).contains(&self.digits(k)) && (first.is_some() || k < e && self.is_tied(k + 1));
            if roles.any(Roles::NAME) || numbered && first.is_some() {
                // "8 Марта": the number belongs to the name.
                first = Some(k);
            } else if !(first.is_some() && roles.any(Roles::PARTICLE) || numbered || self.is_tied(k)) {
                break;
            }
        }
        first
    }

    /// A street that begins with token `t`: "шоссе Энтузиастов", "Nizami küçəsi".
    pub fn street_right(&self, t: usize) -> Option<Street> {
        let roles = self.roles(t);
        let weak = roles.any(Roles::WEAK);
        if roles.any(Roles::BEFORE) && roles.any(Roles::JOINED) {
            return Some(Street { first: t, last: t, weak });
        }
        if roles.any(Roles::BEFORE) && self.gap(t).is_inside() {
            // "улица 8 Марта", "شارع 20 أغسطس"
            let from = t + 1 + usize::from(self.is_short_number(t + 1) && self.gap(t + 1).is_inside());
            if let Some(last) = self.names_right(from, 5) {
                return Some(Street { first: t, last, weak });
            }
        }
        let mut names = 0;
        let mut best = None;
        for k in t..self.len().min(t + 6) {
            let roles = self.roles(k);
            if roles.any(Roles::STOP) {
                break;
            }
            if names > 0 && roles.any(Roles::AFTER) {
                best = Some(Street { first: t, last: k, weak: roles.any(Roles::WEAK) });
            } else if names > 0 && self.opens_part(k) {
                break;
            }
            if roles.any(Roles::NAME) || names > 0 && self.is_tied(k) || self.is_ordinal(k) {
                names += 1;
            } else if !roles.any(Roles::PARTICLE.with(Roles::AFTER)) {
                break;
            }
            if !self.gap(k).is_inside() {
                break;
            }
        }
        best
    }

    /// "5th", "2nd": the number of a street.
    fn is_ordinal(&self, k: usize) -> bool {
        let token = self.scan.tokens[k];
        token.ascii
            && token.has_digit
            && token.has_letter
            && ["st", "nd", "rd", "th"].iter().any(|o| self.scan.token(k).ends_with(o))
    }

    /// A street that ends with token `e`; nothing before byte `done`. With `lax` its name may end in small words ("площа
    /// Трьох вокзалів, буд. 5").
    pub fn street_left(&self, e: usize, done: usize, lax: bool) -> Option<Street> {
        let roles = self.roles(e);
        if roles.any(Roles::BEFORE) && roles.any(Roles::JOINED) {
            return (self.scan.tokens[e].start >= done).then_some(Street {
                first: e,
                last: e,
                weak: roles.any(Roles::WEAK),
            });
        }
        if roles.any(Roles::AFTER) && e > 0 && self.gap(e - 1).is_inside() {
            let limit = if roles.any(Roles::CASELESS) { 3 } else { 4 };
            if let Some(first) = self.names_left(e - 1, limit, done) {
                // "провулок Байкал тупик"
                let typed = first.checked_sub(1).filter(|&k| {
                    self.gap(k).is_inside() && self.is(k, Roles::BEFORE) && self.scan.tokens[k].start >= done
                });
                let first = typed.unwrap_or(first);
                return Some(Street { first, last: e, weak: roles.any(Roles::WEAK) });
            }
        }
        // "Қабанбай батыр даңғылы": a small word of the name, where the type only ever follows.
        if roles.any(Roles::AFTER)
            && !roles.any(Roles::BEFORE.with(Roles::WEAK).with(Roles::CASELESS))
            && self.is_other_script(e)
            && let Some(small) = e.checked_sub(1)
            && small > 0
            && self.gap(small) == Gap::Blank
            && self.gap(small - 1) == Gap::Blank
            && !self.scan.tokens[small].has_digit
            && !self.is(small, Roles::STOP.with(Roles::PARTICLE))
            && let Some(first) = self.names_left(small - 1, 2, done)
        {
            return Some(Street { first, last: e, weak: false });
        }
        let mut names = 0;
        let mut small = 0;
        for k in (e.saturating_sub(6)..=e).rev() {
            let token = self.scan.tokens[k];
            if token.start < done || k < e && !self.gap(k).is_inside() {
                break;
            }
            let roles = self.roles(k);
            // "רח 1043 38": the street has a number for a name.
            let numbered = k + 1 == e && self.is_short_number(e) && !roles.any(Roles::WEAK);
            if (names > 0 || numbered) && roles.any(Roles::BEFORE) {
                // "узвіз Лінія 25-та"
                let outer = k.checked_sub(1).filter(|&o| {
                    self.is(o, Roles::BEFORE) && self.gap(o).is_inside() && self.scan.tokens[o].start >= done
                });
                return Some(Street { first: outer.unwrap_or(k), last: e, weak: roles.any(Roles::WEAK) });
            }
            if k == e && self.is_short_number(e) {
                continue;
            }
            if roles.any(Roles::STOP) {
                break;
            }
            let name = roles.any(Roles::NAME) || self.is_tied(k) || self.is_short_number(k) && k < e;
            small += usize::from(!name && !roles.any(Roles::PARTICLE));
            // "Булевар краља Александра 73"
            let may_be_small = lax && small <= 2 || names > 0 && small <= 1 && self.is_other_script(e);
            if small > 0 && !(may_be_small && token.has_letter && !token.has_digit) {
                break;
            }
            names += usize::from(name);
        }
        None
    }

    /// A settlement or region that begins with token `t`: "с. Веселе", "Babək rayonu", "Quận 1".
    pub fn place_right(&self, t: usize) -> Option<usize> {
        let roles = self.roles(t);
        if roles.any(Roles::PLACE_BEFORE) {
            if roles.any(Roles::JOINED) {
                return Some(t);
            }
            if self.gap(t).is_inside() {
                // "thành phố Huế", "thị trấn Sa Pa": the kind is two words.
                let double = self.gap(t + 1).is_inside() && self.is_second_word(t + 1);
                if let Some(last) = self.names_right(t + 1 + usize::from(double), 3) {
                    return Some(last);
                }
                if (1..=3).contains(&self.digits(t + 1)) {
                    return Some(t + 1);
                }
            }
        }
        for k in t..self.len().min(t + 4) {
            let roles = self.roles(k);
            if k > t && roles.any(Roles::PLACE_AFTER) {
                return Some(k);
            }
            if roles.any(Roles::STOP)
                || !(roles.any(Roles::NAME) || self.is_tied(k))
                || !self.gap(k).is_inside()
            {
                break;
            }
        }
        None
    }

    /// The second word of a Vietnamese kind of place.
    fn is_second_word(&self, t: usize) -> bool {
        self.scan.tokens.get(t).is_some() && matches!(self.scan.token(t), "phố" | "xã" | "trấn" | "phường")
    }

    /// A settlement or region that ends with token `e`; nothing before byte `done`.
    pub fn place_left(&self, e: usize, done: usize) -> Option<usize> {
        let roles = self.roles(e);
        let start = |k: usize| (self.scan.tokens[k].start >= done).then_some(k);
        if roles.any(Roles::PLACE_BEFORE) && roles.any(Roles::JOINED) {
            return start(e);
        }
        if roles.any(Roles::PLACE_AFTER)
            && e > 0
            && self.gap(e - 1).is_inside()
            && let Some(first) = self.names_left(e - 1, 3, done)
        {
            return Some(first);
        }
        for k in (e.saturating_sub(3)..=e).rev() {
            if k < e && !self.gap(k).is_inside() {
                break;
            }
            let roles = self.roles(k);
            if k < e && roles.any(Roles::PLACE_BEFORE) && !roles.any(Roles::JOINED) {
                return start(k);
            }
            let counted = k == e && (1..=3).contains(&self.digits(k));
            if roles.any(Roles::STOP) || !(roles.any(Roles::NAME) || self.is_tied(k) || counted) {
                break;
            }
        }
        None
    }

    /// A part of a building, or a labelled house, that begins with token `t`: "кв. 5", "No: 3", "5-mərtəbə".
    pub fn unit_right(&self, t: usize) -> Option<usize> {
        let what = Roles::UNIT.with(Roles::LABEL);
        if self.is_short_number(t) {
            let follows = self.gap(t).is_inside() && self.is(t + 1, Roles::UNIT);
            return follows.then_some(t + 1);
        }
        if !self.is(t, what) || !self.gap(t).is_inside() {
            return None;
        }
        // "फ्लैट नं 5", "House No. 12"
        let value = t + 1 + usize::from(self.is(t + 1, Roles::LABEL) && self.gap(t + 1).is_inside());
        if let Some(last) = self.number(value) {
            return Some(last);
        }
        let token = self.scan.tokens.get(value)?;
        let letter = self.scan.token(value).chars().nth(1).is_none() && token.has_letter;
        let set_off = self.gap(value) != Gap::Blank;
        (letter && set_off && (token.capital || self.is(t, Roles::CASELESS))).then_some(value)
    }

    /// A part of a building that ends with token `e`; nothing before byte `done`.
    pub fn unit_left(&self, e: usize, done: usize) -> Option<usize> {
        if self.is(e, Roles::UNIT) && e > 0 && self.is_short_number(e - 1) && self.gap(e - 1).is_inside() {
            return (self.scan.tokens[e - 1].start >= done).then_some(e - 1);
        }
        if !self.is_short_number(e) {
            return None;
        }
        (e.saturating_sub(4)..e)
            .rev()
            .take_while(|&k| self.gap(k).is_inside() && self.scan.tokens[k].start >= done)
            .find(|&k| self.unit_right(k).is_some_and(|last| last >= e) && !self.is_short_number(k))
            .map(
                |k| {
                    if k > 0 && self.is(k - 1, Roles::UNIT) && self.gap(k - 1).is_inside() {
                        k - 1
                    } else {
                        k
                    }
                },
            )
            .filter(|&k| self.scan.tokens[k].start >= done)
    }

    /// A postcode that begins with token `t`. `after` says what stands before it, `named` that a place's name does, in
    /// the same part.
    pub fn code_right(&self, t: usize, after: Gap, named: bool) -> Option<usize> {
        let token = *self.scan.tokens.get(t)?;
        if self.is(t, Roles::CODE) {
            // "ПИН 110001", "کد پستی 12345": up to three words, then the number.
            for k in t + 1..(t + 4).min(self.len()) {
                if !self.gap(k - 1).is_inside() {
                    return None;
                }
                if (3..=10).contains(&self.digits(k)) {
                    let more = self.digits(k + 1);
                    let split = self.gap(k).is_inside() && (2..=5).contains(&more) && self.scan.gap(k) != "/";
                    return Some(k + usize::from(split));
                }
                if !self.is(k, Roles::CODE) {
                    return None;
                }
            }
            return None;
        }
        let text = self.scan.token(t);
        let clean = |last: usize| {
            let mut rest = self.scan.text[self.scan.tokens[last].end..].chars();
            let tie = rest.next();
            !(tie.is_some_and(|c| matches!(c, '%' | '_' | '€' | '$' | '°'))
                || matches!(tie, Some('.' | ',' | '-' | ':' | '/'))
                    && rest.next().is_some_and(char::is_numeric))
        };
        // "AZ1000", "LV-1010", "SI-1000"
        let letters = text.bytes().take_while(u8::is_ascii_uppercase).count();
        if token.ascii && (1..=3).contains(&letters) {
            let digits = text.len() - letters;
            let plain = text[letters..].bytes().all(|b| b.is_ascii_digit());
            if letters == 2 && (4..=5).contains(&digits) && plain && clean(t) {
                return Some(t);
            }
            let tied = self.scan.gap(t) == "-" || letters == 3 && self.scan.gap(t) == " ";
            if digits == 0 && tied && (4..=6).contains(&self.digits(t + 1)) && clean(t + 1) {
                return Some(t + 1);
            }
        }
        let digits = self.digits(t);
        let opens = after.is_break() || named;
        // "600 001", "114 55"
        if digits == 3
            && opens
            && self.scan.gap(t) == " "
            && matches!(self.digits(t + 1), 2 | 3)
            && clean(t + 1)
        {
            return Some(t + 1);
        }
        if digits == 5 && self.scan.gap(t) == "-" && matches!(self.digits(t + 1), 4 | 5) && clean(t + 1) {
            return Some(t + 1);
        }
        if !clean(t) {
            return None;
        }
        let followed = self.gap(t) == Gap::Blank && self.is(t + 1, Roles::NAME);
        let alone = after.is_break() && (self.gap(t).is_break() || self.gap(t) == Gap::End);
        let year = digits == 4 && ["19", "20"].iter().any(|y| text.starts_with(y));
        match digits {
            5..=7 => opens.then_some(t),
            4 => (named || after.is_break() && followed || alone && !year).then_some(t),
            _ => None,
        }
    }

    /// A postcode that ends with token `e`, at the end of its part; `after` says what follows.
    pub fn code_left(&self, e: usize, after: Gap, done: usize) -> Option<usize> {
        let digits = self.digits(e);
        let text = self.scan.token(e);
        let first = if e > 0 && digits == 3 && self.digits(e - 1) == 3 && self.scan.gap(e - 1) == " " {
            e - 1
        } else {
            e
        };
        // "ք. Սևան, 1924, Խանզադյան 50": between a place and a street it is no year.
        let placed = || {
            after == Gap::Break
                && e > 0
                && self.gap(e - 1) == Gap::Break
                && self.place_left(e - 1, done).is_some()
        };
        let year = digits == 4 && ["19", "20"].iter().any(|y| text.starts_with(y)) && !placed();
        let prefixed = self.scan.tokens[e].ascii
            && text.len() >= 6
            && text[..2].bytes().all(|b| b.is_ascii_uppercase())
            && text[2..].bytes().all(|b| b.is_ascii_digit());
        let fits = (4..=7).contains(&digits) && !year || first < e || prefixed;
        (fits && self.scan.tokens[first].start >= done).then_some(first)
    }
}
