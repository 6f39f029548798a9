//! The arguments of a tool call: a JSON text that arrives in pieces, cut anywhere, escapes included.

use super::{Escape, REDACTED, RestoreMap, Restores, Stage, Unit};

/// Where in the text we are.
enum State {
    /// Nothing but blanks so far.
    Start,
    /// Not an object or array: one plain text.
    Plain,
    /// Between strings.
    Outside,
    /// In a string.
    Inside,
    /// After a backslash; what was read of the escape.
    Escape(String),
    /// After the first half of a surrogate pair: its number and spelling, and what was read of the second.
    Half(u32, String, String),
}

/// An open object or array.
struct Open {
    object: bool,
    /// The next string is a key.
    key: bool,
}

pub(super) struct JsonLane {
    restores: Restores,
    state: State,
    stack: Vec<Open>,
    /// A number or word outside strings, so far.
    scalar: String,
    /// The string now read is a key.
    in_key: bool,
    /// The key of the top-level member now read.
    top: String,
    /// Whether strings of that member get originals back.
    restore: bool,
}

impl JsonLane {
    pub(super) fn new(restores: Restores) -> Self {
        Self {
            restores,
            state: State::Start,
            stack: Vec::new(),
            scalar: String::new(),
            in_key: false,
            top: String::new(),
            restore: false,
        }
    }

    pub(super) fn push(&mut self, map: &RestoreMap, stage: &mut Stage, c: char, out: &mut String) {
        match std::mem::replace(&mut self.state, State::Outside) {
            State::Start if c.is_whitespace() => {
                out.push(c);
                self.state = State::Start;
            }
            State::Start if !matches!(c, '{' | '[' | '"') => {
                // No name says which argument this is.
                self.restore = (self.restores)("");
                stage.push(map, Unit::plain(c), Escape::None, self.restore, out);
                self.state = State::Plain;
            }
            State::Plain => {
                stage.push(map, Unit::plain(c), Escape::None, self.restore, out);
                self.state = State::Plain;
            }
            State::Start | State::Outside => self.outside(map, stage, c, out),
            State::Inside => self.inside(map, stage, c, out),
            State::Escape(read) => self.escape(map, stage, read, c, out),
            State::Half(high, raw, read) => self.half(map, stage, (high, raw, read), c, out),
        }
    }

    pub(super) fn finish(&mut self, map: &RestoreMap, stage: &mut Stage, out: &mut String) {
        match std::mem::replace(&mut self.state, State::Outside) {
            State::Plain => stage.flush(map, Escape::None, self.restore, out),
            State::Inside => stage.flush(map, Escape::Json, self.restore, out),
            // An escape that was cut off stays as it came.
            State::Escape(read) => {
                stage.flush(map, Escape::Json, self.restore, out);
                out.push('\\');
                out.push_str(&read);
            }
            State::Half(_, raw, read) => {
                stage.flush(map, Escape::Json, self.restore, out);
                out.push_str(&raw);
                out.push_str(&read);
            }
            State::Start | State::Outside => self.end_scalar(map, stage, out),
        }
    }

    fn outside(&mut self, map: &RestoreMap, stage: &mut Stage, c: char, out: &mut String) {
        if !matches!(c, '"' | '{' | '}' | '[' | ']' | ',' | ':') && !c.is_whitespace() {
            self.scalar.push(c);
            return;
        }
        self.end_scalar(map, stage, out);
        out.push(c);
        match c {
            '"' => {
                self.in_key = self.stack.last().is_some_and(|o| o.object && o.key);
                if self.in_key && self.stack.len() == 1 {
                    self.top.clear();
                }
                // A key is restored where every argument is.
                self.restore = if self.in_key { (self.restores)("") } else { (self.restores)(&self.top) };
                self.state = State::Inside;
            }
            '{' => self.stack.push(Open { object: true, key: true }),
            '[' => self.stack.push(Open { object: false, key: false }),
            '}' | ']' => {
                self.stack.pop();
            }
            ',' | ':' => {
                if let Some(open) = self.stack.last_mut() {
                    open.key = open.object && c == ',';
                }
            }
            _ => {}
        }
    }

    fn end_scalar(&mut self, map: &RestoreMap, stage: &mut Stage, out: &mut String) {
        if self.scalar.is_empty() {
            return;
        }
        if stage.hides(map, &self.scalar) {
            out.push('"');
            out.push_str(REDACTED);
            out.push('"');
        } else {
            out.push_str(&self.scalar);
        }
        self.scalar.clear();
    }

    fn inside(&mut self, map: &RestoreMap, stage: &mut Stage, c: char, out: &mut String) {
        match c {
            '"' => {
                stage.flush(map, Escape::Json, self.restore, out);
                out.push('"');
                self.state = State::Outside;
            }
            '\\' => self.state = State::Escape(String::new()),
            c => self.unit(map, stage, Unit::plain(c), out),
        }
    }

    /// One decoded character.
    fn unit(&mut self, map: &RestoreMap, stage: &mut Stage, unit: Unit, out: &mut String) {
        if self.in_key && self.stack.len() == 1 {
            self.top.push(unit.c);
        }
        stage.push(map, unit, Escape::Json, self.restore, out);
        self.state = State::Inside;
    }

    fn escape(&mut self, map: &RestoreMap, stage: &mut Stage, mut read: String, c: char, out: &mut String) {
        read.push(c);
        let unit = |c: char, read: &str| Unit { c, raw: Some(format!("\\{read}").into()) };
        if !read.starts_with('u') {
            let decoded = match c {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                c => c,
            };
            return self.unit(map, stage, unit(decoded, &read), out);
        }
        let digits = &read[1..];
        if !digits.chars().all(|d| d.is_ascii_hexdigit()) {
            // No escape at all: what came is kept, and `c` may even end the string.
            read.pop();
            self.unit(map, stage, unit('\u{fffd}', &read), out);
            return self.push(map, stage, c, out);
        }
        if digits.len() < 4 {
            self.state = State::Escape(read);
            return;
        }
        let code = u32::from_str_radix(digits, 16).unwrap_or(0xfffd);
        match code {
            0xd800..=0xdbff => self.state = State::Half(code, format!("\\{read}"), String::new()),
            code => {
                let decoded = char::from_u32(code).unwrap_or('\u{fffd}');
                self.unit(map, stage, unit(decoded, &read), out);
            }
        }
    }

    /// Reads the second half of a surrogate pair, `\uDC00` to `\uDFFF`. Anything else leaves the first half alone.
    fn half(
        &mut self,
        map: &RestoreMap,
        stage: &mut Stage,
        (high, raw, mut read): (u32, String, String),
        c: char,
        out: &mut String,
    ) {
        let fits = match read.len() {
            0 => c == '\\',
            1 => c == 'u',
            _ => c.is_ascii_hexdigit(),
        };
        if fits {
            read.push(c);
            if read.len() < 6 {
                self.state = State::Half(high, raw, read);
                return;
            }
            let low = u32::from_str_radix(&read[2..], 16).unwrap_or(0);
            if (0xdc00..=0xdfff).contains(&low) {
                let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                let decoded = char::from_u32(code).unwrap_or('\u{fffd}');
                return self.unit(map, stage, Unit { c: decoded, raw: Some((raw + &read).into()) }, out);
            }
        } else {
            read.push(c);
        }
        // The half by itself, and the characters after it again.
        self.unit(map, stage, Unit { c: '\u{fffd}', raw: Some(raw.into()) }, out);
        for c in read.chars() {
            self.push(map, stage, c, out);
        }
    }
}
