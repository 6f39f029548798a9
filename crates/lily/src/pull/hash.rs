//! The two hashes by which hubs name a file's content.

use std::{fs::File, io::Read, path::Path};

use anyhow::{Context, Result};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The hash a file must have, in lower-case hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// SHA-256 of the content.
    Sha256(String),
    /// SHA-1 of `blob SIZE\0` and the content: git's name for it.
    GitBlob(String),
}

impl Expected {
    /// A hash in the making, for a file of `size` bytes.
    pub fn start(&self, size: u64) -> Running {
        match self {
            Self::Sha256(_) => Running::Sha256(Sha256::new()),
            Self::GitBlob(_) => {
                let mut hash = Sha1::new();
                hash.update(format!("blob {size}\0"));
                Running::GitBlob(hash)
            }
        }
    }

    /// The hash as text.
    pub fn text(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitBlob(hex) => hex,
        }
    }
}

/// A hash in the making.
#[derive(Debug, Clone)]
pub enum Running {
    /// Of the content.
    Sha256(Sha256),
    /// Git's.
    GitBlob(Sha1),
}

impl Running {
    /// Takes more of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
        }
    }

    /// The hash in lower-case hexadecimal.
    pub fn finish(self) -> String {
        let bytes = match self {
            Self::Sha256(hash) => hash.finalize().to_vec(),
            Self::GitBlob(hash) => hash.finalize().to_vec(),
        };
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Takes the content of a file; returns its size.
    pub fn update_from(&mut self, path: &Path, mut seen: impl FnMut(u64)) -> Result<u64> {
        let at = || path.display().to_string();
        let mut file = File::open(path).with_context(at)?;
        let (mut buffer, mut size) = (vec![0; 1 << 20], 0);
        loop {
            let n = file.read(&mut buffer).with_context(at)?;
            if n == 0 {
                return Ok(size);
            }
            self.update(&buffer[..n]);
            size += n as u64;
            seen(n as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        let hash = |expected: Expected, text: &str| {
            let mut running = expected.start(text.len() as u64);
            running.update(text.as_bytes());
            running.finish()
        };
        // `printf abc | sha256sum`, and `printf 'hello\n' | git hash-object --stdin`.
        assert_eq!(
            hash(Expected::Sha256(String::new()), "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            hash(Expected::GitBlob(String::new()), "hello\n"),
            "ce013625030ba8dba906f756967f9e9ca394464a"
        );
    }
}
