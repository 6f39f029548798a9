//! Web addresses and paths that lead to a person: users' pages, tokens and mail addresses in the query, home
//! directories. Other addresses are public.

use std::ops::Range;

use crate::{
    Category, Evidence,
    text::{Hit, Scan},
};

const VERSION: u16 = 1;

/// Longest address that is looked at.
const MAX_URL: usize = 2048;

/// Sites whose first path segment (after the given one, if any) is a person.
const PROFILES: &[(&str, &str)] = &[
    ("linkedin.com", "in"),
    ("facebook.com", ""),
    ("fb.com", ""),
    ("instagram.com", ""),
    ("twitter.com", ""),
    ("x.com", ""),
    ("tiktok.com", ""),
    ("t.me", ""),
    ("wa.me", ""),
    ("vk.com", ""),
    ("github.com", ""),
    ("gitlab.com", ""),
    ("medium.com", ""),
    ("reddit.com", "user"),
    ("reddit.com", "u"),
    ("youtube.com", "@"),
    ("youtube.com", "user"),
    ("xing.com", "profile"),
    ("pinterest.com", ""),
    ("flickr.com", "people"),
    ("steamcommunity.com", "id"),
    ("venmo.com", ""),
    ("paypal.me", ""),
    ("calendly.com", ""),
    ("orcid.org", ""),
    ("snapchat.com", "add"),
    ("threads.net", ""),
    ("mastodon.social", ""),
    ("weibo.com", "u"),
];

/// First segments of such sites that are pages of the site.
const SITE_PAGES: &[&str] = &[
    "about",
    "help",
    "login",
    "signup",
    "search",
    "explore",
    "features",
    "pricing",
    "topics",
    "privacy",
    "terms",
    "settings",
    "home",
    "share",
    "sharer",
    "sharer.php",
    "intent",
    "hashtag",
    "watch",
    "p",
    "orgs",
    "sponsors",
    "marketplace",
    "security",
    "events",
    "groups",
    "pages",
    "jobs",
    "company",
    "legal",
    "policies",
    "i",
    "s",
    "tag",
    "tags",
    "dialog",
    "plugins",
];

/// Parameters of a query that name a person.
const PERSONAL_KEYS: &[&str] = &[
    "email",
    "e-mail",
    "mail",
    "user",
    "username",
    "user_id",
    "userid",
    "uid",
    "login",
    "name",
    "firstname",
    "lastname",
    "first_name",
    "last_name",
    "fullname",
    "phone",
    "tel",
    "mobile",
    "address",
    "addr",
    "account",
    "customer",
    "customer_id",
    "dob",
    "ssn",
    "patient",
    "member",
];

/// Directories below which the next segment is a login.
const HOMES: &[&str] = &["/home/", "/Users/", "\\Users\\", "/export/home/", "\\Documents and Settings\\"];

/// Logins that are nobody's.
const SHARED_LOGINS: &[&str] = &[
    "user",
    "users",
    "username",
    "runner",
    "ubuntu",
    "root",
    "admin",
    "app",
    "appuser",
    "node",
    "public",
    "shared",
    "default",
    "guest",
    "vagrant",
    "travis",
    "circleci",
    "jovyan",
    "ec2-user",
    "pi",
    "git",
    "docker",
    "build",
    "builder",
    "ci",
    "jenkins",
    "you",
    "me",
    "name",
    "yourname",
    "your_name",
    "your-name",
    "all users",
    "linuxbrew",
    "test",
    "dev",
    "user1",
    "username1",
    "foo",
    "bar",
    "xxx",
    "home",
    "someone",
    "somebody",
    "myuser",
    "youruser",
    "yourusername",
    "your_username",
    "<user>",
];

/// Reports personal web addresses and the logins in home directories.
pub(crate) fn scan(scan: &Scan, hits: &mut Vec<Hit>) {
    let (mut end, mut nested) = (0, 0);
    for (at, _) in scan.text.match_indices("://") {
        // Addresses in addresses: a few are looked at, endless ones would not be linear.
        nested = if at < end { nested + 1 } else { 0 };
        if nested <= 4 {
            end = end_of(scan.text, at + 3);
            hits.extend(address(scan, at, end));
        }
    }
    for (host, place) in PROFILES.iter().filter(|(host, _)| !host.starts_with("x.")) {
        bare(scan, host, place, hits);
    }
    for home in HOMES {
        for (at, _) in scan.text.match_indices(home) {
            hits.extend(login(scan, at + home.len()));
        }
    }
}

fn hit(range: Range<usize>, evidence: Evidence, subtype: &'static str) -> Hit {
    Hit {
        range,
        category: Category::Url,
        evidence,
        recognizer: "url",
        version: VERSION,
        subtype: Some(subtype),
    }
}

fn in_url(c: char) -> bool {
    !c.is_whitespace()
        && !c.is_control()
        && !matches!(c, '<' | '>' | '"' | '`' | '{' | '}' | '|' | '\\' | '^' | '[' | ']')
}

/// The end of the address that goes on at `start`, without the punctuation of the sentence around it.
fn end_of(text: &str, start: usize) -> usize {
    let length: usize =
        text[start..].chars().take(MAX_URL).take_while(|c| in_url(*c)).map(char::len_utf8).sum();
    let address = &text[start..start + length];
    let mut trimmed = address.trim_end_matches(['.', ',', ';', ':', '!', '?', '\'', '*', '_']);
    if trimmed.ends_with(')') && !trimmed.contains('(') {
        trimmed = trimmed.trim_end_matches(')');
    }
    start + trimmed.len()
}

/// The address around the `://` at `at`, if it leads to a person.
fn address(scan: &Scan, at: usize, end: usize) -> Option<Hit> {
    let scheme: usize = scan.text[..at]
        .bytes()
        .rev()
        .take(16)
        .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
        .count();
    let start = at - scheme;
    if scheme < 2 || end == at + 3 {
        return None;
    }
    let rest = &scan.text[at + 3..end];
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit('@').next()?.to_ascii_lowercase();
    let subtype = personal(&host, path)?;
    Some(hit(start..end, Evidence::Shape, subtype))
}

/// What makes `host` and `path` (with query) personal.
fn personal(host: &str, path: &str) -> Option<&'static str> {
    let host = host.split(':').next().unwrap_or(host).trim_start_matches("www.");
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let segments: Vec<&str> = path.split(['/', '#']).filter(|s| !s.is_empty()).collect();
    for (site, place) in PROFILES {
        let here = host == *site || host.strip_suffix(site).is_some_and(|sub| sub.ends_with('.'));
        if here && profile(&segments, place) {
            return Some("profile");
        }
    }
    let first = segments.first().copied().unwrap_or_default();
    if first.starts_with('~') && first.len() > 2 {
        return Some("home_page");
    }
    if segments.len() >= 2
        && matches!(
            first,
            "u" | "user" | "users" | "profile" | "profiles" | "people" | "member" | "members" | "author"
        )
        && is_person(segments[1])
    {
        return Some("profile");
    }
    let named = query.split(['&', ';']).filter_map(|pair| pair.split_once('=')).any(|(key, value)| {
        value.len() >= 3
            && PERSONAL_KEYS.contains(&key.to_ascii_lowercase().as_str())
            && !is_placeholder(value)
    });
    named.then_some("query")
}

fn is_placeholder(value: &str) -> bool {
    value.contains(['$', '{', '%', '<']) && !value.contains("%40")
}

fn is_person(segment: &str) -> bool {
    let name = segment.trim_start_matches('@');
    name.len() >= 2
        && !SITE_PAGES.contains(&name.to_ascii_lowercase().as_str())
        && !SHARED_LOGINS.contains(&name.to_ascii_lowercase().as_str())
        && !name.starts_with([':', '{', '<', '$', '*'])
}

/// The segments name a person of a site whose users live below `place`. Repositories and articles lie deeper.
fn profile(segments: &[&str], place: &str) -> bool {
    match place {
        "" => segments.len() == 1 && is_person(segments[0]),
        "@" => segments.first().is_some_and(|s| s.starts_with('@') && s.len() > 2),
        place => segments.len() >= 2 && segments[0] == place && is_person(segments[1]),
    }
}

/// `linkedin.com/in/ann` without a scheme.
fn bare(scan: &Scan, host: &str, place: &str, hits: &mut Vec<Hit>) {
    for (at, _) in scan.text.match_indices(host) {
        let start = if scan.text[..at].ends_with("www.") { at - 4 } else { at };
        let fresh = !scan
            .char_before(start)
            .is_some_and(|c| c.is_alphanumeric() || matches!(c, '/' | '.' | '-' | '@' | '_'));
        let path = at + host.len();
        if !fresh || !scan.text[path..].starts_with('/') {
            continue;
        }
        let end = end_of(scan.text, path);
        let segments: Vec<&str> =
            scan.text[path..end].split(['/', '?', '#']).filter(|s| !s.is_empty()).collect();
        if profile(&segments, place) {
            hits.push(hit(start..end, Evidence::Shape, "profile"));
        }
    }
}

/// The login after `/home/`.
fn login(scan: &Scan, start: usize) -> Option<Hit> {
    let length: usize = scan.text[start..]
        .chars()
        .take(40)
        .take_while(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-'))
        .map(char::len_utf8)
        .sum();
    let name = scan.text[start..start + length].trim_end_matches(['.', '-', '_']);
    let person = name.len() >= 2
        && name.chars().any(char::is_alphabetic)
        && !SHARED_LOGINS.contains(&name.to_ascii_lowercase().as_str());
    person.then(|| hit(start..start + name.len(), Evidence::Cue, "login"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::texts;

    fn found(text: &str) -> Vec<String> {
        texts(text, scan)
    }

    #[test]
    fn personal_addresses() {
        assert_eq!(
            found("see https://www.linkedin.com/in/ann-lee-123/."),
            ["https://www.linkedin.com/in/ann-lee-123/"]
        );
        assert_eq!(found("(linkedin.com/in/annlee)"), ["linkedin.com/in/annlee"]);
        assert_eq!(found("https://x.com/annlee"), ["https://x.com/annlee"]);
        assert_eq!(found("http://uni.example/~annlee/cv.html"), ["http://uni.example/~annlee/cv.html"]);
        assert_eq!(
            found("https://a.example/u?email=ann%40x.org&p=1"),
            ["https://a.example/u?email=ann%40x.org&p=1"]
        );
        assert_eq!(
            found("https://shop.example/users/annlee/orders"),
            ["https://shop.example/users/annlee/orders"]
        );
        assert_eq!(found("in /home/annlee/notes.txt"), ["annlee"]);
        assert_eq!(found("C:\\Users\\Ann Lee\\x"), ["Ann"]);
    }

    #[test]
    fn public_addresses() {
        for text in [
            "https://example.org/",
            "https://github.com/rust-lang/rust",
            "https://github.com/features",
            "https://en.wikipedia.org/wiki/Paris",
            "https://docs.example/a?page=2",
            "https://a.example/u?email={email}",
            "/home/user/x",
            "/home/runner/work",
        ] {
            assert!(found(text).is_empty(), "{text}: {:?}", found(text));
        }
    }
}
