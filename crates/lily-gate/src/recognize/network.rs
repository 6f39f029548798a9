//! Internet addresses and hardware addresses. Loopback, private and link-local networks are the same in every
//! house, so they name nobody; a version with four parts is no address.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    ops::Range,
};

use crate::{
    Category, Evidence,
    cues::Cue,
    text::{Hit, Scan},
};

const VERSION: u16 = 1;

/// Reports internet and hardware addresses.
pub(crate) fn scan(scan: &Scan, hits: &mut Vec<Hit>) {
    v4(scan, hits);
    colons(scan, hits);
    dashed_mac(scan, hits);
}

fn hit(range: Range<usize>, category: Category, subtype: &'static str) -> Hit {
    let recognizer = if category == Category::Ip { "ip" } else { "mac" };
    Hit {
        range,
        category,
        evidence: Evidence::Validated,
        recognizer,
        version: VERSION,
        subtype: Some(subtype),
    }
}

/// Four runs of digits with dots between them.
fn v4(scan: &Scan, hits: &mut Vec<Hit>) {
    let mut i = 0;
    while i + 3 < scan.digits.len() {
        let range = scan.digits[i].start..scan.digits[i + 3].end;
        let dotted = (i..i + 3).all(|k| scan.str(scan.digits[k].end..scan.digits[k + 1].start) == ".");
        if !dotted {
            i += 1;
            continue;
        }
        let more = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
        let goes_on = {
            let mut rest = scan.text[range.end..].chars();
            match rest.next() {
                Some('.' | '-') => rest.next().is_some_and(char::is_alphanumeric),
                c => c.is_some_and(|c| c.is_alphanumeric() || c == '_'),
            }
        };
        if !goes_on
            && !more(scan.char_before(range.start))
            && let Ok(address) = scan.str(range.clone()).parse::<Ipv4Addr>()
            && is_public_v4(address)
            && !scan.cue_before(range.start, 16, |c| c == Cue::Version)
            && !is_mask(address)
        {
            hits.push(hit(range, Category::Ip, "v4"));
        }
        i += 4;
    }
}

/// Documentation networks count: an example is rarely told from the real thing.
fn is_public_v4(address: Ipv4Addr) -> bool {
    !(address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_unspecified()
        || address.is_broadcast())
}

/// Network masks such as 255.255.240.0.
fn is_mask(address: Ipv4Addr) -> bool {
    let bits = u32::from(address);
    address.octets()[0] == 255 && bits.leading_ones() + bits.trailing_zeros() >= 32
}

/// Runs of hexadecimal digits and colons: IPv6, and MAC with colons.
fn colons(scan: &Scan, hits: &mut Vec<Hit>) {
    let bytes = scan.text.as_bytes();
    let in_run = |b: u8| b.is_ascii_hexdigit() || b == b':';
    let mut done = 0;
    for (colon, _) in scan.text.match_indices(':') {
        if colon < done {
            continue;
        }
        let mut start = colon;
        // A group has at most four digits.
        while start > done && colon - start < 5 && bytes[start - 1].is_ascii_hexdigit() {
            start -= 1;
        }
        let mut end = colon + 1;
        while end < bytes.len() && in_run(bytes[end]) {
            end += 1;
        }
        done = end;
        if end - start < 3
            || !scan.text[start..end].contains("::") && scan.text[start..end].matches(':').count() < 5
        {
            continue;
        }
        // An IPv4 address may be the tail.
        let mut tail = end;
        while tail < bytes.len() && tail - end < 16 && (bytes[tail].is_ascii_digit() || bytes[tail] == b'.') {
            tail += 1;
        }
        let bounded = |range: &Range<usize>| {
            let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':'));
            !word(scan.char_before(range.start)) && !word(scan.char_after(range.end))
        };
        for end in [tail, end, end.saturating_sub(1)] {
            let range = start..end;
            let text = scan.str(range.clone()).trim_end_matches('.');
            let range = start..start + text.len();
            if !bounded(&range) && !text.is_empty() && !scan.text[range.end..].starts_with(':') {
                continue;
            }
            if let Ok(address) = text.parse::<Ipv6Addr>() {
                if is_public_v6(address) && looks_like_v6(text) {
                    hits.push(hit(range, Category::Ip, "v6"));
                }
                break;
            }
            if is_mac(text, ':') {
                hits.push(hit(range, Category::Mac, "mac"));
                break;
            }
        }
    }
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let first = address.segments()[0];
    let unique_local = first & 0xfe00 == 0xfc00;
    let link_local = first & 0xffc0 == 0xfe80;
    match address.to_ipv4_mapped() {
        Some(v4) => is_public_v4(v4),
        None => !(address.is_loopback() || address.is_unspecified() || unique_local || link_local),
    }
}

/// Code has `std::fmt`-like paths and `a::b`: an address has two groups of digits beside a `::`, or eight groups.
fn looks_like_v6(text: &str) -> bool {
    let groups: Vec<&str> = text.split(':').filter(|g| !g.is_empty()).collect();
    let digits = text.bytes().any(|b| b.is_ascii_digit());
    digits && (groups.len() >= 3 || groups.iter().any(|g| g.len() >= 3) && text.len() >= 6)
}

/// Six pairs of hexadecimal digits, not all alike.
fn is_mac(text: &str, separator: char) -> bool {
    let pairs: Vec<&str> = text.split(separator).collect();
    pairs.len() == 6
        && pairs.iter().all(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()))
        && pairs.iter().any(|p| !p.eq_ignore_ascii_case(pairs[0]))
}

/// MAC with dashes, and Cisco's three groups with dots beside a cue.
fn dashed_mac(scan: &Scan, hits: &mut Vec<Hit>) {
    let mut done = 0;
    for first in 0..scan.tokens.len() {
        if first < done || !scan.tokens[first].ascii {
            continue;
        }
        let (count, separator) = match scan.tokens[first].len() {
            2 => (6, "-"),
            4 => (3, "."),
            _ => continue,
        };
        let last = first + count - 1;
        if last >= scan.tokens.len() || !(first..last).all(|i| scan.gap(i) == separator) {
            continue;
        }
        let range = scan.tokens[first].start..scan.tokens[last].end;
        let text = scan.str(range.clone());
        let hex = text.bytes().all(|b| b.is_ascii_hexdigit() || b == separator.as_bytes()[0]);
        let shaped = match count {
            6 => {
                is_mac(text, '-')
                    && scan.is_bounded(&range)
                    && scan.char_before(range.start) != Some('-')
                    && scan.char_after(range.end) != Some('-')
                    && (text.bytes().any(|b| b.is_ascii_alphabetic())
                        || scan.is_cued(&range, |c| c == Cue::Mac))
            }
            _ => hex && text.len() == 14 && scan.is_cued(&range, |c| c == Cue::Mac),
        };
        if shaped {
            hits.push(hit(range, Category::Mac, "mac"));
            done = last + 1;
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
            "203.0.113.7",
            "8.8.8.8",
            "2001:db8::8a2e:370:7334",
            "2001:0db8:85a3:0000:0000:8a2e:0370:7334",
            "2a02:1234::1",
            "::ffff:203.0.113.7",
            "00:1B:44:11:3A:B7",
            "00-1b-44-11-3a-b7",
        ] {
            for text in [
                format!("from {address}."),
                format!("[{address}]:80"),
                format!("ip={address},"),
                format!("{address}/32"),
            ] {
                assert_eq!(found(&text), [address], "{text}");
            }
        }
        assert_eq!(found("http://203.0.113.7:8080/x"), ["203.0.113.7"]);
        assert_eq!(found("MAC address 001b.4411.3ab7"), ["001b.4411.3ab7"]);
    }

    #[test]
    fn no_addresses() {
        for text in [
            "127.0.0.1",
            "192.168.1.20",
            "10.0.0.1",
            "version 1.2.3.4",
            "v1.2.3.4",
            "1.2.3.4.5",
            "1.2.3.4-beta",
            "300.1.2.3",
            "255.255.255.0",
            "::1",
            "fe80::1",
            "std::fmt::Debug",
            "a::b",
            "12:34:56",
            "ff:ff:ff:ff:ff:ff",
            "00:00:00:00:00:00",
            "add::dead",
            "2024-01-31 10:11:12",
        ] {
            assert!(found(text).is_empty(), "{text}: {:?}", found(text));
        }
    }
}
