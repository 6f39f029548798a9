//! Forms in which two spellings of a value are the same.

use unicode_normalization::{UnicodeNormalization, char::is_combining_mark};

/// Characters that show nothing.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{202a}'..='\u{202e}')
}

/// One character's folded form: compatibility-decomposed, without marks, in lower case.
fn fold_char(c: char) -> impl Iterator<Item = char> {
    let visible = (!is_invisible(c)).then_some(c);
    visible.into_iter().flat_map(|c| c.nfkd()).filter(|c| !is_combining_mark(*c)).flat_map(char::to_lowercase)
}

/// Which characters a form keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// All, runs of blanks as one.
    Words,
    /// Letters and digits only: numbers are written with every kind of separator.
    Solid,
}

impl Form {
    /// The form in which `value` is looked for.
    pub(super) fn of(value: &str) -> Self {
        let digits = value.chars().filter(|c| c.is_numeric()).count();
        let letters = value.chars().filter(|c| c.is_alphabetic()).count();
        if digits >= 6 && digits >= letters { Self::Solid } else { Self::Words }
    }
}

/// A folded text that knows where in the raw text each of its characters came from.
#[derive(Debug, Default)]
pub(super) struct Folded {
    pub text: String,
    /// For each character: its offset in `text`, and the raw character's bytes.
    places: Vec<(usize, usize, usize)>,
}

impl Folded {
    pub(super) fn new(raw: &str, form: Form) -> Self {
        let mut folded = Self::default();
        for (at, c) in raw.char_indices() {
            for f in fold_char(c) {
                let keep = match form {
                    Form::Solid => f.is_alphanumeric(),
                    Form::Words if f.is_whitespace() => !folded.text.ends_with(' '),
                    Form::Words => true,
                };
                if keep {
                    folded.places.push((folded.text.len(), at, at + c.len_utf8()));
                    folded.text.push(if f.is_whitespace() { ' ' } else { f });
                }
            }
        }
        folded
    }

    /// The raw bytes behind `start..end` of the folded text; none if it cuts what one raw character folds to ("🄐" is
    /// "(a)": its bracket alone is no mention of anything).
    pub(super) fn raw(&self, start: usize, end: usize) -> Option<(usize, usize)> {
        let first = self.places.partition_point(|p| p.0 < start);
        let last = self.places.partition_point(|p| p.0 < end).checked_sub(1)?;
        let raw = |place: usize| self.places.get(place).map(|p| p.1);
        let cut = first > 0 && raw(first - 1) == raw(first) || raw(last) == raw(last + 1);
        let (first, last) = (self.places.get(first)?, self.places.get(last)?);
        (first.1 < last.2 && !cut).then_some((first.1, last.2))
    }
}

/// The form that two spellings of one value share.
pub(crate) fn key_form(value: &str) -> String {
    folded_value(value, Form::of(value))
}

/// A value to look for, in `form`, without blanks around it.
pub(super) fn folded_value(value: &str, form: Form) -> String {
    Folded::new(value, form).text.trim().to_owned()
}
