//! The recognisers of layer 1, one family a module. Each reads a [`Scan`] and reports [`Hit`]s; none looks at what
//! another found, and none takes more than linear time.

pub(crate) mod address;
pub(crate) mod bank;
pub(crate) mod birth;
pub(crate) mod card;
pub(crate) mod email;
pub(crate) mod national;
pub(crate) mod network;
pub(crate) mod owner;
pub(crate) mod person;
pub(crate) mod phone;
pub(crate) mod place;
pub(crate) mod secret;
pub(crate) mod url;

use crate::text::Scan;

/// A number written in groups: where it lies and its digits.
#[derive(Debug, Clone)]
pub(crate) struct Grouped {
    pub start: usize,
    pub end: usize,
    /// The digits of all groups together.
    pub digits: String,
    /// How many digits each group has.
    pub sizes: Vec<usize>,
    /// What separates the groups: one character, the same everywhere; none for a single group.
    pub separator: Option<char>,
    /// How many runs of digits it takes.
    pub runs: usize,
}

impl Grouped {
    /// The number that the first `runs` groups make. Other separators than blanks belong to one number, so it is
    /// only cut at blanks.
    pub fn first_groups(&self, scan: &Scan, first: usize, runs: usize) -> Option<Grouped> {
        let cut = runs == self.runs || (runs < self.runs && matches!(self.separator, Some(' ')));
        let last = scan.digits.get(first + runs.checked_sub(1)?).filter(|_| cut)?;
        Some(Grouped {
            start: self.start,
            end: last.end,
            digits: self.digits[..self.sizes[..runs].iter().sum()].to_owned(),
            sizes: self.sizes[..runs].to_vec(),
            separator: self.separator.filter(|_| runs > 1),
            runs,
        })
    }
}

/// The number that starts with digit run `first` and goes on over one equal separator (blank, `-` or `.`), at most
/// `max` digits. A number of more digits, or more groups than fit, gives none: it is no whole number of this kind.
pub(crate) fn grouped(scan: &Scan, first: usize, max: usize) -> Option<Grouped> {
    let run = scan.digits.get(first)?;
    let mut number = Grouped {
        start: run.start,
        end: run.end,
        digits: scan.str(run.clone()).to_owned(),
        sizes: vec![run.len()],
        separator: None,
        runs: 1,
    };
    if number.digits.len() > max {
        return None;
    }
    while let Some(next) = scan.digits.get(first + number.runs) {
        let mut between = scan.str(number.end..next.start).chars();
        let (Some(separator), None) = (between.next(), between.next()) else { break };
        if !matches!(separator, ' ' | '-' | '.') || number.separator.is_some_and(|s| s != separator) {
            break;
        }
        if number.digits.len() + next.len() > max {
            // Blanks may stand between two numbers; the other separators belong to one.
            if separator == ' ' {
                break;
            }
            return None;
        }
        number.separator = Some(separator);
        number.digits.push_str(scan.str(next.clone()));
        number.sizes.push(next.len());
        number.end = next.end;
        number.runs += 1;
    }
    Some(number)
}
