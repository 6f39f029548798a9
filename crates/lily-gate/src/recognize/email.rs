//! E-mail addresses (RFC 5321's common form, letters of all scripts), also written "ann [at] example [dot] org".

use std::ops::Range;

use crate::{
    Category, Evidence,
    text::{Hit, Scan},
};

const VERSION: u16 = 1;

/// Longest local part and domain that are looked at (RFC 5321, section 4.5.3.1).
const MAX_LOCAL: usize = 64;
const MAX_DOMAIN: usize = 255;

/// Files at two resolutions ("icon@2x.png") are no addresses.
const FILE_ENDINGS: &[&str] =
    &["png", "jpg", "jpeg", "gif", "svg", "webp", "js", "css", "scss", "ts", "jsx", "tsx"];

/// Names of services in addresses that name nobody: `git@github.com:owner/repository`.
const SERVICE_USERS: &[&str] = &["git", "hg", "svn"];

/// Reports e-mail addresses.
pub(crate) fn scan(scan: &Scan, hits: &mut Vec<Hit>) {
    let mut done = 0;
    for (at, _) in scan.text.match_indices('@') {
        if at < done {
            continue;
        }
        let Some(range) = plain(scan, at) else { continue };
        done = range.end;
        hits.push(hit(range, Evidence::Validated));
    }
    spelled(scan, hits);
}

fn hit(range: Range<usize>, evidence: Evidence) -> Hit {
    Hit { range, category: Category::Email, evidence, recognizer: "email", version: VERSION, subtype: None }
}

fn is_local(c: char) -> bool {
    c.is_alphanumeric()
        || matches!(
            c,
            '.' | '_'
                | '%'
                | '+'
                | '-'
                | '\''
                | '!'
                | '#'
                | '$'
                | '&'
                | '*'
                | '='
                | '?'
                | '^'
                | '`'
                | '{'
                | '|'
                | '}'
                | '~'
        )
}

/// Around the `@` at `at`.
fn plain(scan: &Scan, at: usize) -> Option<Range<usize>> {
    let before = &scan.text[..at];
    let local: usize = if before.ends_with('"') {
        quoted(before)?
    } else {
        before.chars().rev().take(MAX_LOCAL + 1).take_while(|c| is_local(*c)).map(char::len_utf8).sum()
    };
    let mut start = at - local;
    if !before.ends_with('"') {
        // `key=ann@x.org`, `a|ann@x.org`: from the last such sign on.
        if let Some(sign) =
            scan.text[start..at].rfind(['=', '|', '{', '}', '&', '?', '`', '*', '$', '#', '!', '^'])
        {
            start += sign + 1;
        }
        // Marks that open a quotation are not part of the address.
        start += scan.text[start..at].len()
            - scan.text[start..at]
                .trim_start_matches(|c: char| !c.is_alphanumeric() && c != '_' && c != '+')
                .len();
        // An apostrophe belongs to names such as o'brien, elsewhere it closes a quotation.
        if let Some(sign) = scan.text[start..at].rfind('\'').filter(|sign| *sign > 2) {
            start += sign + 1;
        }
    }
    if start >= at || scan.text[start..at].ends_with('.') {
        return None;
    }
    let (end, labels) = domain(scan, at + 1)?;
    let user = &scan.text[start..at];
    let is_service = SERVICE_USERS.contains(&user) && scan.text[end..].starts_with([':', '/']);
    (labels >= 2 && !is_service).then_some(start..end)
}

/// Length of a quoted local part that ends here.
fn quoted(before: &str) -> Option<usize> {
    let inner = before.strip_suffix('"')?;
    let length = inner
        .chars()
        .rev()
        .take(MAX_LOCAL)
        .take_while(|c| *c != '"' && *c != '\n')
        .map(char::len_utf8)
        .sum::<usize>();
    inner[..inner.len() - length].ends_with('"').then_some(length + 2)
}

/// The end of the domain that starts at `start`, and how many labels it has. `[192.0.2.1]` counts as two.
fn domain(scan: &Scan, start: usize) -> Option<(usize, usize)> {
    let text = &scan.text[start..];
    if let Some(rest) = text.strip_prefix('[') {
        let end = rest.bytes().take(48).position(|b| b == b']')?;
        let literal = rest[..end].strip_prefix("IPv6:").unwrap_or(&rest[..end]);
        return literal.parse::<std::net::IpAddr>().is_ok().then_some((start + end + 2, 2));
    }
    let length: usize = text
        .chars()
        .take(MAX_DOMAIN)
        .take_while(|c| c.is_alphanumeric() || matches!(c, '.' | '-'))
        .map(char::len_utf8)
        .sum();
    let mut host = text[..length].trim_end_matches(['.', '-']);
    if let Some(twice) = host.find("..") {
        host = &host[..twice];
    }
    let mut labels: Vec<&str> = host.split('.').collect();
    let is_top = |l: &str| (l.len() >= 2 && l.chars().all(char::is_alphabetic)) || l.starts_with("xn--");
    // "write to ann@example.org.a) first": what cannot end a domain begins what comes after it.
    while labels.len() > 2 && !labels.last().is_some_and(|l| is_top(l)) {
        let tail = labels.pop()?.len() + 1;
        host = &host[..host.len() - tail];
    }
    let last = labels.last()?;
    let named = is_top(last);
    let fits = labels.iter().all(|l| !l.is_empty() && l.len() <= 63 && !l.starts_with('-'));
    let is_file = labels.len() == 2 && FILE_ENDINGS.contains(&last.to_ascii_lowercase().as_str());
    (named && fits && !is_file).then_some((start + host.len(), labels.len()))
}

/// "ann [at] example [dot] org", "ann(at)example.org".
fn spelled(scan: &Scan, hits: &mut Vec<Hit>) {
    const AT: [&str; 6] = ["[at]", "(at)", "{at}", "<at>", "[AT]", "(AT)"];
    const DOT: [&str; 5] = ["[dot]", "(dot)", "{dot}", "[DOT]", "(DOT)"];
    for open in ['[', '(', '{', '<'] {
        for (at, _) in scan.text.match_indices(open) {
            let Some(sign) = AT.iter().find(|sign| scan.text[at..].starts_with(**sign)) else { continue };
            let before = scan.text[..at].trim_end_matches(' ');
            let local: usize =
                before.chars().rev().take(MAX_LOCAL).take_while(|c| is_local(*c)).map(char::len_utf8).sum();
            let after = at + sign.len();
            let mut end =
                after + (scan.text[after..].len() - scan.text[after..].trim_start_matches(' ').len());
            let mut labels = 0;
            loop {
                let label: usize = scan.text[end..]
                    .chars()
                    .take(63)
                    .take_while(|c| c.is_alphanumeric() || *c == '-')
                    .map(char::len_utf8)
                    .sum();
                if label == 0 {
                    break;
                }
                labels += 1;
                end += label;
                let rest = scan.text[end..].trim_start_matches(' ');
                let dot = DOT.iter().find(|d| rest.starts_with(**d)).map(|d| d.len()).or_else(|| {
                    (scan.text[end..].starts_with('.')
                        && scan.text[end + 1..].starts_with(char::is_alphanumeric))
                    .then_some(1)
                });
                let Some(dot) = dot else { break };
                let rest = &rest[dot..];
                end = scan.text.len() - rest.trim_start_matches(' ').len();
            }
            if local > 0 && labels >= 2 {
                hits.push(hit(before.len() - local..end, Evidence::Shape));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::texts;

    fn found(text: &str) -> Vec<String> {
        texts(text, scan)
    }

    #[test]
    fn addresses() {
        for address in [
            "ann@example.org",
            "ann.lee+news@mail.example.co.uk",
            "o'brien@example.ie",
            "x_1@a-b.example",
            "jörg@müller.de",
            "用户@例子.公司",
            "\"ann lee\"@example.org",
            "ann@[192.0.2.1]",
            "ANN@EXAMPLE.INVALID",
            "a@b.co",
        ] {
            for (open, close) in
                [("", ""), ("<", ">"), ("(", ")"), ("mail ", "."), ("mailto:", ","), ("'", "'"), ("e=", ";")]
            {
                let text = format!("{open}{address}{close} x");
                assert_eq!(found(&text), [address], "{text}");
            }
        }
    }

    #[test]
    fn no_addresses() {
        for text in [
            "icon@2x.png",
            "@decorator",
            "a@b",
            "lodash@4.17.21",
            "git@github.com:a/b",
            "x @ y.org",
            "@",
            "user@.org",
        ] {
            assert!(found(text).is_empty(), "{text}: {:?}", found(text));
        }
    }

    #[test]
    fn spelled_out() {
        assert_eq!(found("to ann [at] example [dot] org."), ["ann [at] example [dot] org"]);
        assert_eq!(found("ann(at)example.co.uk, please"), ["ann(at)example.co.uk"]);
        assert!(found("meet (at) noon").is_empty());
    }
}
