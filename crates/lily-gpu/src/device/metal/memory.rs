//! Memory of the process as Metal buffers: pages, windows over files larger than a buffer may be, residency sets.

use std::ops::Range;

/// How windows over one mapping overlap, so that a tensor that starts near the end of one lies whole in the next: more
/// than the largest tensor (508 MB: the 35B model's output projection in 8 bits).
const OVERLAP: u64 = 1 << 30;

/// The part of a mapping of `bytes` from address `start` that can be wrapped: `None` unless it starts at a page. Where the
/// mapping was made by the system in whole pages (`whole_pages`) its last page belongs to it entirely; any other memory
/// must end at a page itself.
pub fn wrappable(start: usize, bytes: u64, page: u64, whole_pages: bool) -> Option<u64> {
    let aligned = page > 0 && (start as u64).is_multiple_of(page) && bytes > 0;
    let end = bytes.checked_next_multiple_of(page.max(1))?;
    (aligned && (whole_pages || end == bytes)).then_some(end)
}

/// Ranges of at most `most` bytes that cover `bytes`, at multiples of the page, neighbours overlapping by 1 GiB or half
/// a buffer. One when everything fits.
pub fn windows(bytes: u64, most: u64, page: u64) -> Vec<Range<u64>> {
    if bytes <= most {
        return std::iter::once(0..bytes).collect();
    }
    let most = most / page * page;
    let stride = (most - OVERLAP.min(most / 2)) / page * page;
    if stride == 0 {
        return Vec::new();
    }
    let mut out = Vec::new();
    let mut start = 0;
    loop {
        let end = (start + most).min(bytes);
        out.push(start..end);
        if end == bytes {
            return out;
        }
        start += stride;
    }
}

/// The first window that holds a range.
pub fn window_of(windows: &[Range<u64>], range: &Range<u64>) -> Option<usize> {
    windows.iter().position(|w| w.start <= range.start && range.end <= w.end)
}

/// Most buffers of a residency set, and most sets of a queue.
pub const SET_BUFFERS: usize = 32;
/// See [`SET_BUFFERS`].
pub const SETS: usize = 32;

/// Which residency set a buffer goes to: the first that has room; when none has, the one with the fewest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Residency {
    sets: Vec<usize>,
}

impl Residency {
    /// Takes a place; returns the set.
    pub fn add(&mut self) -> usize {
        let room = self.sets.iter().position(|&n| n < SET_BUFFERS);
        let set = match room {
            Some(set) => set,
            None if self.sets.len() < SETS => {
                self.sets.push(0);
                self.sets.len() - 1
            }
            None => (0..SETS).min_by_key(|&i| self.sets[i]).unwrap_or(0),
        };
        self.sets[set] += 1;
        set
    }

    /// Gives a place back.
    pub fn remove(&mut self, set: usize) {
        if let Some(n) = self.sets.get_mut(set) {
            *n = n.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 16 << 10;

    #[test]
    fn only_whole_pages_are_wrapped() {
        assert_eq!(wrappable(0x4000, 100, PAGE, true), Some(PAGE));
        assert_eq!(wrappable(0x4000, PAGE + 1, PAGE, true), Some(2 * PAGE));
        assert_eq!(wrappable(0x4000, PAGE, PAGE, false), Some(PAGE));
        assert_eq!(wrappable(0x4000, PAGE - 1, PAGE, false), None); // the rest of the page is somebody else's
        assert_eq!(wrappable(0x5000, PAGE, PAGE, true), None); // a page of other machines
        assert_eq!(wrappable(0x4000, 0, PAGE, true), None);
        assert_eq!(wrappable(0x4000, u64::MAX, PAGE, true), None);
        assert_eq!(wrappable(0x4000, 1, 0, true), None);
    }

    #[test]
    fn one_window_where_everything_fits() {
        assert_eq!(windows(5 << 30, 5 << 30, PAGE), vec![0..5 << 30]);
        assert_eq!(windows(1, PAGE, PAGE), vec![0..1]);
    }

    #[test]
    fn windows_cover_everything_and_every_tensor_lies_in_one() {
        for (bytes, most) in [((9 << 30) + 5, 4 << 30), (20 << 30, (3 << 30) + 17), (10 * PAGE + 3, 4 * PAGE)]
        {
            let w = windows(bytes, most, PAGE);
            assert!(w.len() > 1 && w[0].start == 0 && w.last().is_some_and(|l| l.end == bytes));
            let overlap = OVERLAP.min(most / PAGE * PAGE / 2);
            for pair in w.windows(2) {
                assert!(pair[1].start > pair[0].start && pair[0].end - pair[1].start >= overlap);
            }
            for r in &w {
                assert!(r.start.is_multiple_of(PAGE) && r.end - r.start <= most);
            }
            // Ranges at every seam, one byte shorter and one longer than the overlap.
            for pair in w.windows(2) {
                for start in [pair[1].start - 1, pair[1].start, pair[0].end - 1] {
                    let end = (start + overlap).min(bytes);
                    let found = window_of(&w, &(start..end));
                    assert!(found.is_some(), "{start}..{end} in {w:?}");
                }
            }
            assert_eq!(window_of(&w, &(0..bytes)), None);
        }
        assert!(windows(100, PAGE - 1, PAGE).len() == 1 && windows(PAGE * 3, PAGE, PAGE).is_empty());
    }

    #[test]
    fn sets_hold_32_buffers_and_places_are_used_again() {
        let mut r = Residency::default();
        let first: Vec<usize> = (0..SET_BUFFERS * SETS).map(|_| r.add()).collect();
        assert!((0..SETS).all(|s| first.iter().filter(|&&x| x == s).count() == SET_BUFFERS));
        assert!(first.is_sorted());
        r.remove(7);
        assert_eq!(r.add(), 7);
        assert_eq!(r.add(), 0); // all full: the emptiest
        assert_eq!(r.add(), 1);
        r.remove(99);
    }
}
