//! Sets of bytes.

use std::ops::Range;

/// Disjoint byte ranges in order; neighbours that touch are one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range<u64>>,
}

impl RangeSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        // Those that end before the new one starts stay; those that touch it are swallowed.
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let last = self.ranges.partition_point(|r| r.start <= range.end);
        let (mut start, mut end) = (range.start, range.end);
        if first < last {
            start = start.min(self.ranges[first].start);
            end = end.max(self.ranges[last - 1].end);
        }
        self.ranges.splice(first..last, std::iter::once(start..end));
    }

    /// The first part of `range` that is not in the set.
    pub fn first_missing(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let mut at = range.start;
        let from = self.ranges.partition_point(|r| r.end <= at);
        for r in &self.ranges[from..] {
            if at >= range.end {
                break;
            }
            if r.start > at {
                return Some(at..r.start.min(range.end));
            }
            at = r.end;
        }
        (at < range.end).then_some(at..range.end)
    }

    /// The first part of `range` that is in the set.
    pub fn first_common(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let i = self.ranges.partition_point(|r| r.end <= range.start);
        let r = self.ranges.get(i).filter(|r| r.start < range.end)?;
        Some(r.start.max(range.start)..r.end.min(range.end))
    }

    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|r| r.end - r.start).sum()
    }

    /// The ranges.
    pub fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.ranges.iter()
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(iter: I) -> Self {
        let mut set = RangeSet::new();
        iter.into_iter().for_each(|r| set.insert(r));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a set of single bytes.
    #[test]
    fn like_a_set_of_bytes() {
        let mut seed = 7u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..300 {
            let (mut set, mut bytes) = (RangeSet::new(), [false; 64]);
            for _ in 0..next(12) {
                let start = next(60);
                let end = start + next(9);
                set.insert(start..end);
                (start..end.min(64)).for_each(|i| bytes[i as usize] = true);
            }
            let kept: Vec<_> = set.iter().cloned().collect();
            assert!(kept.windows(2).all(|w| w[0].end < w[1].start), "{kept:?}");
            let inside = |i: u64| kept.iter().any(|r| r.contains(&i));
            (0..64).for_each(|i| assert_eq!(inside(i), bytes[i as usize], "{kept:?} at {i}"));
            let start = next(50);
            let range = start..start + 1 + next(13);
            let missing = range.clone().find(|&i| !inside(i));
            assert_eq!(set.first_missing(&range).map(|r| r.start), missing);
            if let Some(r) = set.first_missing(&range) {
                assert!(r.clone().all(|i| !inside(i)) && r.end <= range.end && !r.is_empty());
            }
            let common = range.clone().find(|&i| inside(i));
            assert_eq!(set.first_common(&range).map(|r| r.start), common);
            assert_eq!(set.bytes(), (0..80).filter(|&i| inside(i)).count() as u64);
        }
    }
}
