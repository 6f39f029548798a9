//! Names of token prefixes: a chain of digests, one a page.

use std::fmt;

use crate::backend::PAGE;

/// The first 16 bytes of a BLAKE3 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 16]);

impl Digest {
    /// Of no tokens, on a backend of this identity: prefixes of different models never have the same name.
    pub fn root(identity: &str) -> Self {
        Self::of(&[b"lily prefix 1\n", identity.as_bytes()])
    }

    /// Of this prefix with `tokens` after it.
    pub fn extend(self, tokens: &[u32]) -> Self {
        let mut bytes = [0u8; 4 * PAGE];
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0);
        for part in tokens.chunks(PAGE) {
            for (to, token) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(part) {
                *to = token.to_le_bytes();
            }
            hasher.update(&bytes[..4 * part.len()]);
        }
        Self::truncated(hasher.finalize())
    }

    /// Of several byte strings, joined.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        Self::truncated(hasher.finalize())
    }

    fn truncated(hash: blake3::Hash) -> Self {
        let mut out = [0; 16];
        out.copy_from_slice(&hash.as_bytes()[..16]);
        Self(out)
    }

    /// 32 hexadecimal digits.
    pub fn hex(self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// What [`Digest::hex`] wrote.
    pub fn from_hex(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != 32 {
            return None;
        }
        let digit = |b: u8| match b {
            b'0'..=b'9' => Some(b - b'0'),
            b'a'..=b'f' => Some(b - b'a' + 10),
            _ => None,
        };
        let mut out = [0; 16];
        for (to, pair) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *to = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(out))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

/// The digests after every whole page of `tokens`.
pub fn chain(root: Digest, tokens: &[u32]) -> Vec<Digest> {
    let mut at = root;
    tokens
        .chunks_exact(PAGE)
        .map(|page| {
            at = at.extend(page);
            at
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_depend_on_everything_before() {
        let tokens: Vec<u32> = (0..1000).collect();
        let (a, b) = (Digest::root("a"), Digest::root("b"));
        let whole = chain(a, &tokens);
        assert_eq!(whole.len(), 3);
        assert_eq!(whole[..2], chain(a, &tokens[..600])[..]);
        assert!(chain(b, &tokens).iter().all(|d| !whole.contains(d)));
        let mut other = tokens.clone();
        other[3] += 1;
        assert!(chain(a, &other).iter().all(|d| !whole.contains(d)));
    }

    #[test]
    fn hex_and_back() {
        let d = Digest::root("x");
        assert_eq!(Digest::from_hex(&d.hex()), Some(d));
        for bad in ["", "0", &"g".repeat(32), &"A".repeat(32), &"é".repeat(16)] {
            assert_eq!(Digest::from_hex(bad), None);
        }
    }
}
