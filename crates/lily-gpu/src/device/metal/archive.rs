//! Where compiled kernels are kept: one file for each text of the kernels, device and version of the system.

use std::path::{Path, PathBuf};

/// The user's cache directory: `~/Library/Caches/lily`; `None` without a home.
pub fn user_directory() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|h| !h.is_empty())?;
    Some(Path::new(&home).join("Library/Caches/lily"))
}

/// The archive's file name: its content depends on all of these.
pub fn file_name(source: &str, language: &str, device: &str, system: &str) -> String {
    let mut hash = Hash::new();
    for part in [source, language, device, system, env!("CARGO_PKG_VERSION")] {
        hash.add(part.as_bytes());
        hash.add(&[0]);
    }
    format!("kernels-{:016x}.metalarchive", hash.0)
}

/// Whether a file of the directory is an archive that another version made and nobody needs any more.
pub fn is_stale(name: &str, current: &str) -> bool {
    name != current && name.starts_with("kernels-") && name.ends_with(".metalarchive")
}

/// FNV-1a, 64 bits: tells versions apart, protects nothing.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = (self.0 ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_makes_another_file() {
        let base = file_name("kernel", "3.2", "Apple M1", "15.0");
        assert_eq!(base, file_name("kernel", "3.2", "Apple M1", "15.0"));
        for other in [
            file_name("kerneL", "3.2", "Apple M1", "15.0"),
            file_name("kernel", "4.0", "Apple M1", "15.0"),
            file_name("kernel", "3.2", "Apple M2", "15.0"),
            file_name("kernel", "3.2", "Apple M1", "15.1"),
            file_name("kernel3.2", "", "Apple M1", "15.0"),
        ] {
            assert_ne!(base, other);
            assert!(is_stale(&other, &base));
        }
        assert!(!is_stale(&base, &base) && !is_stale("notes.txt", &base));
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        let mut h = Hash::new();
        h.add(b"foobar");
        assert_eq!(h.0, 0x8594_4171_f739_67e8); // test vector of the algorithm's authors
    }
}
