//! Ids of text segments seen before. An agent resends its whole history with every request, so almost every segment
//! between special tokens was tokenized a moment ago.

use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;

/// Shorter segments are cheaper to tokenize than worth an entry.
const MIN_SEGMENT_BYTES: usize = 24;
/// Bookkeeping of one entry: list links, hash slot, two allocations.
const ENTRY_OVERHEAD: usize = 128;

/// A least-recently-used map from a segment's exact text to its ids, bounded by bytes.
#[derive(Debug)]
pub(crate) struct SegmentCache {
    capacity: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    map: LruCache<Box<str>, Arc<[u32]>>,
    bytes: usize,
}

impl SegmentCache {
    /// A cache of at most `capacity` bytes; 0 caches nothing.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, inner: Mutex::new(Inner { map: LruCache::unbounded(), bytes: 0 }) }
    }

    /// The segment's ids, when they are known.
    pub(crate) fn get(&self, segment: &str) -> Option<Arc<[u32]>> {
        if segment.len() < MIN_SEGMENT_BYTES {
            return None;
        }
        self.lock().map.get(segment).cloned()
    }

    /// Remembers the segment's ids, forgetting the least recently used ones for room.
    pub(crate) fn put(&self, segment: &str, ids: &[u32]) {
        let cost = Self::cost(segment, ids);
        if segment.len() < MIN_SEGMENT_BYTES || cost > self.capacity {
            return;
        }
        let mut inner = self.lock();
        if inner.map.push(segment.into(), ids.into()).is_none() {
            inner.bytes += cost;
        }
        while inner.bytes > self.capacity {
            let Some((old, ids)) = inner.map.pop_lru() else { break };
            inner.bytes -= Self::cost(&old, &ids);
        }
    }

    fn cost(segment: &str, ids: &[u32]) -> usize {
        segment.len() + size_of_val(ids) + ENTRY_OVERHEAD
    }

    /// A panic elsewhere cannot leave the map half changed, so a poisoned lock is still good.
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes counted, and entries.
    #[cfg(test)]
    pub(crate) fn usage(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.bytes, inner.map.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_within_its_bytes_and_drops_the_oldest() {
        let cache = SegmentCache::new(1000);
        let segment = |i: usize| format!("a segment of some length, number {i}");
        for i in 0..20 {
            cache.put(&segment(i), &[i as u32; 4]);
            assert!(cache.get(&segment(0)).is_some(), "entry 0 is used at every step and must stay");
        }
        let (bytes, entries) = cache.usage();
        assert!(bytes <= 1000 && entries >= 4, "{bytes} bytes, {entries} entries");
        assert!(cache.get(&segment(1)).is_none());
        assert_eq!(&*cache.get(&segment(19)).unwrap(), &[19; 4]);
    }

    #[test]
    fn the_same_segment_counts_once() {
        let cache = SegmentCache::new(10_000);
        for _ in 0..5 {
            cache.put("the very same segment of text", &[1, 2, 3]);
        }
        assert_eq!(cache.usage(), (29 + 12 + ENTRY_OVERHEAD, 1));
    }

    #[test]
    fn too_long_and_too_short_segments_are_not_kept() {
        let cache = SegmentCache::new(300);
        cache.put("short", &[1]);
        cache.put(&"long ".repeat(100), &[1; 200]);
        assert_eq!(cache.usage(), (0, 0));
    }
}
