//! Files of the disk tier.
//!
//! A file is two readable lines, a line of check digits, and bytes:
//!
//! ```text
//! LILY-CACHE 1
//! {"what":"checkpoint","identity":"cpu-pages/1 0123456789abcdef","position":1234, ...}
//! <BLAKE3 of the two lines above, 64 hexadecimal digits>
//! <payload>
//! ```
//!
//! `head -n 2 FILE` says what it is. A page's payload is KV of [`PAGE`] positions. A checkpoint's payload is its *index*
//! (digests of its pages, then the tokens after the last whole page), GDN and convolution state, and KV of the positions
//! after the last whole page. The index has a digest of its own, so that a start reads only the beginning of each file.
//! Nothing of a file is used before its digests were checked.

use serde::{Deserialize, Serialize};

use super::{CheckpointKind, chain::Digest};
use crate::backend::PAGE;

/// First line, without its end. The number is the layout's version.
const MAGIC: &str = "LILY-CACHE 1";

/// Longest beginning of a file that is not payload.
pub const MOST_HEADER: usize = 4096;

/// Hexadecimal digits of a whole digest.
const DIGITS: usize = 64;

/// The second line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// What it holds.
    pub what: What,
    /// Backend layout and model: see [`crate::Backend::identity`].
    pub identity: String,
    /// Name of the prefix: a page's own digest, or the digest of a checkpoint's whole prefix.
    pub id: String,
    /// Tokens of the prefix.
    pub position: usize,
    /// Why the checkpoint was taken; `None` for pages.
    pub kind: Option<CheckpointKind>,
    /// [`crate::Snapshot::format`] of the state; empty for pages.
    pub state_format: String,
    /// Bytes of the index, of which the payload's first are; 0 for pages.
    pub index_bytes: usize,
    /// BLAKE3 of the index.
    pub index_digest: String,
    /// Bytes of the state, after the index; 0 for pages.
    pub state_bytes: usize,
    /// Bytes of the payload.
    pub payload_bytes: usize,
    /// BLAKE3 of the payload.
    pub payload_digest: String,
    /// Seconds since 1970.
    pub created: u64,
}

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// KV of a page.
    Page,
    /// A checkpoint.
    Checkpoint,
}

/// Why a file is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Not one of ours, or of another version.
    #[error("it does not begin with {MAGIC:?}")]
    Foreign,
    /// Written for another model or another layout of the backend.
    #[error("it belongs to {found:?}; expected {expected:?}")]
    OtherModel {
        /// Of the file.
        found: String,
        /// Ours.
        expected: String,
    },
    /// Cut short, or changed after it was written.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// It could not be read.
    #[error("it cannot be read: {0}")]
    Io(String),
}

impl FileError {
    /// Whether the file can never be of use again, to whomever.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged(_))
    }
}

/// A checkpoint as its file holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointParts {
    /// State without KV.
    pub state: Vec<u8>,
    /// KV after the last whole page.
    pub tail_kv: Vec<u8>,
}

/// The beginning of a checkpoint's payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPart {
    /// Digests after each whole page.
    pub chain: Vec<Digest>,
    /// Tokens after the last whole page.
    pub tail: Vec<u32>,
}

/// The bytes before a page's KV.
pub fn page_header(identity: &str, id: Digest, position: usize, kv: &[u8], created: u64) -> Vec<u8> {
    render(&Header {
        what: What::Page,
        identity: identity.into(),
        id: id.hex(),
        position,
        kind: None,
        state_format: String::new(),
        index_bytes: 0,
        index_digest: digest(&[]),
        state_bytes: 0,
        payload_bytes: kv.len(),
        payload_digest: digest(&[kv]),
        created,
    })
}

/// What a checkpoint's file begins with: everything before the state.
pub fn checkpoint_header(
    identity: &str,
    kind: CheckpointKind,
    index: &IndexPart,
    (state_format, state): (&str, &[u8]),
    tail_kv: &[u8],
    created: u64,
) -> Vec<u8> {
    let index_bytes = index.to_bytes();
    let position = index.position();
    let mut out = render(&Header {
        what: What::Checkpoint,
        identity: identity.into(),
        id: index.id(Digest::root(identity)).hex(),
        position,
        kind: Some(kind),
        state_format: state_format.into(),
        index_bytes: index_bytes.len(),
        index_digest: digest(&[&index_bytes]),
        state_bytes: state.len(),
        payload_bytes: index_bytes.len() + state.len() + tail_kv.len(),
        payload_digest: digest(&[&index_bytes, state, tail_kv]),
        created,
    });
    out.extend(index_bytes);
    out
}

impl IndexPart {
    /// Tokens of the prefix.
    pub fn position(&self) -> usize {
        self.chain.len() * PAGE + self.tail.len()
    }

    /// Name of the whole prefix.
    pub fn id(&self, root: Digest) -> Digest {
        self.chain.last().copied().unwrap_or(root).extend(&self.tail)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out: Vec<u8> = self.chain.iter().flat_map(|d| d.0).collect();
        out.extend(self.tail.iter().flat_map(|t| t.to_le_bytes()));
        out
    }

    /// Reads the index of a checkpoint whose header was read; `payload` is as much of it as there is.
    pub fn read(header: &Header, payload: &[u8]) -> Result<Self, FileError> {
        let bytes = payload.get(..header.index_bytes).ok_or(FileError::Damaged("its index is cut short"))?;
        if digest(&[bytes]) != header.index_digest {
            return Err(FileError::Damaged("its index does not match its digest"));
        }
        let pages = header.position / PAGE;
        if bytes.len() != 16 * pages + 4 * (header.position % PAGE) {
            return Err(FileError::Damaged("its index does not have its position's length"));
        }
        let (chain, tail) = bytes.split_at(16 * pages);
        Ok(Self {
            chain: chain.as_chunks::<16>().0.iter().map(|d| Digest(*d)).collect(),
            tail: tail.as_chunks::<4>().0.iter().map(|t| u32::from_le_bytes(*t)).collect(),
        })
    }
}

fn render(header: &Header) -> Vec<u8> {
    // A struct of strings and numbers always serialises.
    let json = serde_json::to_string(header).unwrap_or_default();
    let lines = format!("{MAGIC}\n{json}\n");
    let check = digest(&[lines.as_bytes()]);
    format!("{lines}{check}\n").into_bytes()
}

/// Reads the lines at the beginning of a file; returns where the payload begins.
pub fn read_header(bytes: &[u8]) -> Result<(Header, usize), FileError> {
    let rest =
        bytes.strip_prefix(MAGIC.as_bytes()).and_then(|r| r.strip_prefix(b"\n")).ok_or(FileError::Foreign)?;
    let cut = FileError::Damaged("its header is cut short");
    let json = &rest[..rest.iter().take(MOST_HEADER).position(|&b| b == b'\n').ok_or(cut.clone())?];
    let lines = MAGIC.len() + 1 + json.len() + 1;
    let check = bytes.get(lines..lines + DIGITS + 1).ok_or(cut)?;
    if check[..DIGITS] != *digest(&[&bytes[..lines]]).as_bytes() || check[DIGITS] != b'\n' {
        return Err(FileError::Damaged("its header does not match its digest"));
    }
    let header =
        serde_json::from_slice(json).map_err(|_| FileError::Damaged("its header has other fields"))?;
    Ok((header, lines + DIGITS + 1))
}

/// Checks a whole file against what it is expected to be; returns header and payload.
pub fn read_whole<'a>(bytes: &'a [u8], identity: &str, id: Digest) -> Result<(Header, &'a [u8]), FileError> {
    let (header, at) = read_header(bytes)?;
    expect(&header, identity, id)?;
    let payload = &bytes[at..];
    if payload.len() != header.payload_bytes {
        return Err(FileError::Damaged("its payload does not have its length"));
    }
    if digest(&[payload]) != header.payload_digest {
        return Err(FileError::Damaged("its payload does not match its digest"));
    }
    Ok((header, payload))
}

/// That a file is of this model and has the name that its content says.
pub fn expect(header: &Header, identity: &str, id: Digest) -> Result<(), FileError> {
    if header.identity != identity {
        return Err(FileError::OtherModel { found: header.identity.clone(), expected: identity.into() });
    }
    if header.id != id.hex() {
        return Err(FileError::Damaged("its name is another one's"));
    }
    Ok(())
}

/// State and KV of a checkpoint's checked payload.
pub fn split_checkpoint(header: &Header, payload: &[u8]) -> Result<CheckpointParts, FileError> {
    let bad = FileError::Damaged("its parts are longer than its payload");
    let rest = payload.get(header.index_bytes..).ok_or(bad.clone())?;
    let (state, tail_kv) = rest.split_at_checked(header.state_bytes).ok_or(bad)?;
    Ok(CheckpointParts { state: state.to_vec(), tail_kv: tail_kv.to_vec() })
}

fn digest(parts: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDENTITY: &str = "test/1 0123456789abcdef";

    fn sample() -> (Vec<u8>, Digest) {
        let root = Digest::root(IDENTITY);
        let tokens: Vec<u32> = (0..600).collect();
        let index =
            IndexPart { chain: super::super::chain::chain(root, &tokens), tail: tokens[512..].to_vec() };
        assert_eq!(index.position(), 600);
        let mut bytes =
            checkpoint_header(IDENTITY, CheckpointKind::EndOfResponse, &index, ("s/1", b"state"), b"kv", 7);
        bytes.extend(b"statekv");
        (bytes, index.id(root))
    }

    #[test]
    fn what_is_written_is_read() {
        let (bytes, id) = sample();
        let (header, payload) = read_whole(&bytes, IDENTITY, id).unwrap();
        assert_eq!((header.position, header.kind), (600, Some(CheckpointKind::EndOfResponse)));
        let index = IndexPart::read(&header, payload).unwrap();
        assert_eq!(index.id(Digest::root(IDENTITY)), id);
        assert_eq!(index.tail, (512..600).collect::<Vec<u32>>());
        let parts = split_checkpoint(&header, payload).unwrap();
        assert_eq!((&parts.state[..], &parts.tail_kv[..]), (&b"state"[..], &b"kv"[..]));
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("LILY-CACHE 1"));
        assert!(lines.next().unwrap().contains("\"identity\":\"test/1 0123456789abcdef\""));

        let page = [page_header(IDENTITY, id, 256, b"abc", 7), b"abc".to_vec()].concat();
        assert_eq!(read_whole(&page, IDENTITY, id).unwrap().1, b"abc");
        let other = read_whole(&page, "other", id).unwrap_err();
        assert!(matches!(other, FileError::OtherModel { .. }));
        assert!(read_whole(&page, IDENTITY, Digest::root("x")).unwrap_err().is_damage());
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_found() {
        let (bytes, id) = sample();
        for n in 0..bytes.len() {
            assert!(read_whole(&bytes[..n], IDENTITY, id).is_err(), "cut at {n}");
            let mut changed = bytes.clone();
            changed[n] ^= 0x20;
            assert!(read_whole(&changed, IDENTITY, id).is_err(), "changed at {n}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert!(read_whole(&longer, IDENTITY, id).is_err());
    }

    proptest! {
        /// Whatever the bytes, an answer and no panic.
        #[test]
        fn arbitrary_bytes(mut noise in prop::collection::vec(any::<u8>(), 0..400), keep in 0usize..300) {
            let (bytes, id) = sample();
            let mut mixed = bytes[..keep.min(bytes.len())].to_vec();
            mixed.append(&mut noise);
            if let Ok((header, at)) = read_header(&mixed) {
                let _ = IndexPart::read(&header, &mixed[at..]);
                let _ = split_checkpoint(&header, &mixed[at..]);
            }
            prop_assert!(mixed == bytes || read_whole(&mixed, IDENTITY, id).is_err());
        }
    }
}
