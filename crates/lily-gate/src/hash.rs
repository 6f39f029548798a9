//! SHA-256 and HMAC-SHA-256, and hex.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// SHA-256.
pub fn sha256(data: &[u8]) -> [u8; 32] {
    Sha256::digest(data).into()
}

/// HMAC-SHA-256 of several parts; each part's length is hashed before it, so that `("ab", "c")` and `("a", "bc")`
/// differ.
pub fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    // A shorter key than a block is padded with zeros (RFC 2104).
    let mut block = Zeroizing::new([0; 64]);
    block[..key.len()].copy_from_slice(key);
    let mut mac = <Hmac<Sha256> as KeyInit>::new(&(*block).into());
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|b| [b >> 4, b & 15]).map(|d| char::from(DIGITS[usize::from(d)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(hex(&sha256(b"abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let key = [0x0b; 32];
        assert_ne!(hmac(&key, &[b"ab", b"c"]), hmac(&key, &[b"a", b"bc"]));
        assert_eq!(hmac(&key, &[b"ab"]), hmac(&key, &[b"ab"]));
        assert_ne!(hmac(&key, &[b"ab"]), hmac(&[0; 32], &[b"ab"]));
    }
}
