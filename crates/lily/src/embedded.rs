//! The files of lily-mini inside the binary.

/// Gives the bytes an alignment that lets weights be used where they are, a cache line at a time.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

mod list {
    use super::Aligned;
    include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
}

/// Name under which the embedded model is known.
pub const NAME: &str = "lily-mini";

/// (name, content) of every embedded file.
pub fn files() -> &'static [(&'static str, &'static [u8])] {
    list::FILES
}

/// Notices of the data the model was trained on, by file name.
pub fn notices() -> impl Iterator<Item = (&'static str, &'static str)> {
    let notices = files().iter().filter(|(name, _)| name.starts_with("LICENSE"));
    notices.filter_map(|(name, bytes)| Some((*name, std::str::from_utf8(bytes).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_bytes_are_aligned() {
        assert!(files().len() >= 4);
        for (name, bytes) in files() {
            assert_eq!(bytes.as_ptr() as usize % 64, 0, "{name}");
        }
    }
}
