//! Whether a value looks random: Shannon entropy, and a list of what documentation writes instead of a secret.

/// Bits per character of `text`, by its own character frequencies.
pub(super) fn shannon(text: &str) -> f64 {
    let mut counts = [0u32; 256];
    text.bytes().for_each(|b| counts[usize::from(b)] += 1);
    let total = text.len() as f64;
    counts.iter().filter(|c| **c > 0).map(|c| f64::from(*c) / total).map(|p| -p * p.log2()).sum()
}

/// What stands where a secret would, in examples and templates.
const PLACEHOLDERS: &[&str] = &[
    "example",
    "sample",
    "placeholder",
    "changeme",
    "change_me",
    "change-me",
    "your",
    "xxxx",
    "****",
    "....",
    "____",
    "<",
    ">",
    "${",
    "{{",
    "}}",
    "%(",
    "$(",
    "redacted",
    "hidden",
    "dummy",
    "foobar",
    "todo",
    "insert",
    "replace",
    "secret_here",
    "enter",
    "my_",
    "my-",
    "abcdefgh",
    "12345678",
    "00000000",
    "11111111",
    "deadbeef",
    "undefined",
    "null",
    "none",
    "true",
    "false",
    "process.env",
    "os.environ",
    "getenv",
    "env.",
    "config.",
    "settings.",
    "self.",
    "this.",
    "secrets.",
    "vault:",
    "test-",
    "fake",
    "mock",
    "notreal",
    "not-real",
    "lorem",
    "hunter2hunter2",
    "p@ssw0rd-here",
    "...",
    "…",
];

/// Whether `value` is an example, a variable or a placeholder and no secret.
pub(super) fn is_placeholder(value: &str) -> bool {
    let lower = value.to_ascii_lowercase();
    if PLACEHOLDERS.iter().any(|p| lower.contains(p))
        || value.starts_with(['$', '%', '@', '#'])
            && value[1..].bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
    {
        return true;
    }
    // One character over and over, or very few.
    let mut kinds: Vec<u8> = value.bytes().collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.len() <= 2 || (value.len() >= 16 && kinds.len() <= 4)
}

/// For each letter, the letters that often follow it in English words and the names of code: about a third of all
/// pairs, and nineteen in twenty of those that words have.
const FOLLOWERS: [&str; 26] = [
    "bcdgiklmnprstuvwy",
    "aeilorsuy",
    "aehikloqrstuy",
    "adegiorsuy",
    "acdefgilmnopqrstuvwxy",
    "aefilortu",
    "aeghilnorstu",
    "aeiortuy",
    "abcdefgklmnoprstvz",
    "aeosu",
    "aeinsy",
    "adefiklmopstuvy",
    "abeimopsuy",
    "acdefgiknostuvy",
    "abcdfgiklmnoprstuvw",
    "aehiloprstu",
    "u",
    "acdefgiklmnoprstuvy",
    "acehiklmopqstuwy",
    "acehilmorstuwy",
    "abcdegilmnprst",
    "aeio",
    "aehinors",
    "aceipt",
    "aceilmopst",
    "aeio",
];

/// Whether the letters of `value` follow one another as in words, and there are few digits: names of code and prose,
/// not generated text. Pairs over a hump (`getToken`) do not count.
pub(super) fn is_wordy(value: &str) -> bool {
    let letters = value.bytes().filter(u8::is_ascii_alphabetic).count();
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    if letters * 10 < value.len() * 7 || digits * 6 > value.len() {
        return false;
    }
    let (mut pairs, mut common) = (0, 0);
    for pair in value.as_bytes().windows(2) {
        let hump = pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase();
        if hump || !pair.iter().all(u8::is_ascii_alphabetic) {
            continue;
        }
        pairs += 1;
        let first = usize::from(pair[0].to_ascii_lowercase() - b'a');
        common += usize::from(FOLLOWERS[first].as_bytes().contains(&pair[1].to_ascii_lowercase()));
    }
    pairs >= 3 && common * 4 >= pairs * 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_and_not() {
        for value in
            ["9f86d081884c7d659a2feaa0c55ad015", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzQ9kLmNo3T", "q3Zk9fP0aB7x"]
        {
            assert!(shannon(value) > 3.0 && !is_placeholder(value) && !is_wordy(value), "{value}");
        }
        for value in [
            "get_password_from_user",
            "your-api-key-1234",
            "AKIAIOSFODNN7EXAMPLE",
            "aaaaaaaaaaaaaaaa1",
            "xxxxxxxxxxxxxxx1",
            "${TOKEN1}",
        ] {
            assert!(is_placeholder(value) || is_wordy(value), "{value}");
        }
        assert!(is_wordy("authentication_token_provider"));
        assert!(!is_wordy("xkqjzvbnwrt"));
    }
}
