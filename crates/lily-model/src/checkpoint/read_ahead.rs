//! Reading the mapped weights from the disk in file order, before they are needed.
//!
//! A cold model's first prompt touches its pages in the order of the layers and experts that it happens to use: small
//! reads all over the files. Reading front to back instead runs at the speed of the disk, and what follows finds every
//! page in memory.

use std::sync::Arc;

use crate::Storage;

/// Bytes asked for at once, and between two reports of progress.
const WINDOW: usize = 32 << 20;
/// The smallest page of any supported system, in bytes.
const PAGE: usize = 4096;

/// Reads every mapped file of `files` once, front to back. `progress(done, total)` in bytes; returns the bytes read.
/// Files that are not mapped (those inside the executable) are left alone.
pub(super) fn read_ahead(files: &[Arc<Storage>], progress: &mut dyn FnMut(usize, usize)) -> usize {
    let maps: Vec<_> = files
        .iter()
        .filter_map(|f| match &**f {
            Storage::Mapped(map) => Some(map),
            _ => None,
        })
        .collect();
    let total = maps.iter().map(|m| m.len()).sum();
    let mut done = 0;
    for map in maps {
        for start in (0..map.len()).step_by(WINDOW) {
            // The window after this one is read by the system while this one is touched.
            advise(map, start, 2 * WINDOW);
            let window = &map[start..(start + WINDOW).min(map.len())];
            let sum = window.iter().step_by(PAGE).fold(0u8, |sum, byte| sum ^ byte);
            std::hint::black_box(sum);
            done += window.len();
            progress(done, total);
        }
    }
    done
}

/// Tells the system what comes next. Only a hint: a system that refuses reads the pages when they are touched.
fn advise(map: &memmap2::Mmap, start: usize, len: usize) {
    #[cfg(unix)]
    if let Err(error) = map.advise_range(memmap2::Advice::WillNeed, start, len.min(map.len() - start)) {
        tracing::debug!(%error, "no read-ahead");
    }
    #[cfg(not(unix))]
    let _ = (map, start, len);
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn reads_mapped_files_whole_and_reports() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; WINDOW + 5]).unwrap();
        // SAFETY: nobody else has the temporary file.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        let files = [Arc::new(Storage::Static(b"inside the program")), Arc::new(Storage::Mapped(map))];
        let mut seen = Vec::new();
        assert_eq!(read_ahead(&files, &mut |done, total| seen.push((done, total))), WINDOW + 5);
        assert_eq!(seen, [(WINDOW, WINDOW + 5), (WINDOW + 5, WINDOW + 5)]);
        assert_eq!(read_ahead(&files[..1], &mut |_, _| unreachable!()), 0);
    }
}
