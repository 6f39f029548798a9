//! Printing: sizes, tables, and streams that may be closed by their reader.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
};

/// `bytes` with a unit, in powers of 1024.
pub fn size(bytes: usize) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A number with a comma every three digits.
pub fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Two columns, the first as wide as its widest entry.
pub fn table(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, value) in rows {
        let _ = writeln!(out, "  {name:<width$}  {value}");
    }
    out
}

/// Writes to stdout at once. A closed pipe is an error that `main` ends quietly on.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| io::Error::new(e.kind(), format!("stdout: {e}")))
}

/// An error and its causes in one line. Many errors tell their cause in their own words already; it is not told twice.
pub fn error_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// An answer as it is shown: the answer on stdout, the reasoning, dimmed, on stderr, so that a pipe gets only the
/// answer.
pub struct AnswerPrinter {
    colour: bool,
    in_reasoning: bool,
    /// The last character printed on stdout was a line break, or there was none.
    at_line_start: bool,
}

impl AnswerPrinter {
    /// A printer for one answer.
    pub fn new() -> Self {
        Self { colour: io::stderr().is_terminal(), in_reasoning: false, at_line_start: true }
    }

    /// More reasoning.
    pub fn reasoning(&mut self, text: &str) -> io::Result<()> {
        let mut err = io::stderr().lock();
        if !self.in_reasoning && self.colour {
            err.write_all(b"\x1b[2m")?;
        }
        self.in_reasoning = true;
        err.write_all(text.as_bytes())?;
        err.flush()
    }

    /// More of the answer.
    pub fn content(&mut self, text: &str) -> io::Result<()> {
        self.end_reasoning()?;
        self.at_line_start = text.ends_with('\n');
        print(text)
    }

    /// The answer is over: ends the line.
    pub fn finish(&mut self) -> io::Result<()> {
        self.end_reasoning()?;
        if self.at_line_start { Ok(()) } else { print("\n") }
    }

    fn end_reasoning(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.in_reasoning) {
            let end: &[u8] = if self.colour { b"\x1b[0m\n\n" } else { b"\n\n" };
            io::stderr().lock().write_all(end)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let cause = || io::Error::other("no room");
        let error = anyhow::Error::from(cause()).context("the file: no room").context("writing");
        assert_eq!(error_text(&error), "writing: the file: no room");
        assert_eq!(error_text(&anyhow::Error::from(cause()).context("the file")), "the file: no room");
    }

    #[test]
    fn sizes_and_numbers() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(20 << 30), "20.0 GiB");
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(248_320), "248,320");
        assert_eq!(table(&[("a", "1".into()), ("long", "2".into())]), "  a     1\n  long  2\n");
    }
}
