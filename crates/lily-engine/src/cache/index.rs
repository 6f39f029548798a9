//! Which prefixes have a checkpoint, and where its parts are.
//!
//! A node is a prefix of whole pages, found by its digest; it holds the KV of its last page, once for all checkpoints
//! below it. A checkpoint hangs on the node of its last whole page, with the tokens after it. Looking a prompt up is one
//! digest a page and a comparison of at most a page of tokens for each checkpoint on the way.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use super::{CheckpointKind, chain::Digest, file::IndexPart};
use crate::backend::{PAGE, Snapshot};

/// Names a checkpoint within an index. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(u64);

/// What a checkpoint keeps for itself.
#[derive(Debug)]
pub struct EntryData {
    /// State without KV.
    pub state: Snapshot,
    /// KV after the last whole page.
    pub tail_kv: Vec<u8>,
}

impl EntryData {
    fn bytes(&self) -> usize {
        self.state.data.len() + self.tail_kv.len()
    }
}

/// KV of a page.
pub type Page = Arc<Vec<u8>>;

/// A checkpoint's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDisk {
    /// None.
    No,
    /// Being written; bytes reserved for it.
    Pending(usize),
    /// Of this many bytes.
    Yes(usize),
}

impl OnDisk {
    fn bytes(self) -> usize {
        match self {
            Self::No => 0,
            Self::Pending(n) | Self::Yes(n) => n,
        }
    }
}

/// A checkpoint.
#[derive(Debug)]
pub struct Entry {
    pub kind: CheckpointKind,
    pub index: IndexPart,
    /// In memory.
    pub data: Option<Arc<EntryData>>,
    pub disk: OnDisk,
    /// Being read from its file.
    pub loading: bool,
    last_used: u64,
    uses: u32,
}

impl Entry {
    /// Tokens of its prefix.
    pub fn position(&self) -> usize {
        self.index.position()
    }

    /// Bytes in memory, but for its pages.
    fn own_bytes(&self) -> usize {
        OVERHEAD
            + self.index.chain.len() * 16
            + self.index.tail.len() * 4
            + self.data.as_ref().map_or(0, |d| d.bytes())
    }
}

/// Bytes counted for an entry or a node beside its contents.
const OVERHEAD: usize = 256;

/// The prefix of a number of whole pages.
#[derive(Debug, Default)]
struct Node {
    /// KV of the last page.
    kv: Option<Page>,
    /// Its file's bytes, 0: there is none.
    disk: usize,
    /// Checkpoints in memory at or below it.
    ram_refs: usize,
    /// Checkpoints on disk at or below it.
    disk_refs: usize,
    entries: Vec<EntryId>,
}

/// What a prompt has in common with the checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// The deepest checkpoint that is a proper prefix.
    pub best: Option<(EntryId, usize)>,
    /// Tokens known to be in common with some checkpoint's prefix (at least).
    pub common: usize,
    /// A checkpoint deeper than `best` was there once and was evicted.
    pub evicted: bool,
}

/// Nodes of evicted checkpoints that are remembered, to tell why a prompt is not found.
const GHOSTS: usize = 4096;

/// The index. Bytes in memory and on disk are kept up to date.
#[derive(Debug)]
pub struct Index {
    root: Digest,
    nodes: HashMap<Digest, Node>,
    entries: HashMap<EntryId, Entry>,
    next: u64,
    /// Counts uses.
    clock: u64,
    ram: usize,
    disk: usize,
    ghosts: HashSet<Digest>,
    ghost_order: VecDeque<Digest>,
}

/// Where a checkpoint's value is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// Memory.
    Ram,
    /// Files.
    Disk,
}

impl Index {
    pub fn new(root: Digest) -> Self {
        Self {
            root,
            nodes: HashMap::new(),
            entries: HashMap::new(),
            next: 0,
            clock: 0,
            ram: 0,
            disk: 0,
            ghosts: HashSet::new(),
            ghost_order: VecDeque::new(),
        }
    }

    pub fn root(&self) -> Digest {
        self.root
    }

    /// Bytes in memory: states, KV, and what finds them.
    pub fn ram_bytes(&self) -> usize {
        self.ram
    }

    /// Bytes of files, those being written included.
    pub fn disk_bytes(&self) -> usize {
        self.disk
    }

    /// Checkpoints in memory, and on disk.
    pub fn counts(&self) -> (usize, usize) {
        let ram = self.entries.values().filter(|e| e.data.is_some()).count();
        let disk = self.entries.values().filter(|e| matches!(e.disk, OnDisk::Yes(_))).count();
        (ram, disk)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn get(&self, id: EntryId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub fn get_mut(&mut self, id: EntryId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    /// Looks a prompt up.
    pub fn find(&self, prompt: &[u32]) -> Match {
        let mut found = Match { best: None, common: 0, evicted: false };
        let mut at = self.root;
        let mut rest = prompt;
        loop {
            let depth = prompt.len() - rest.len();
            if let Some(node) = self.nodes.get(&at) {
                found.common = found.common.max(depth);
                for &id in &node.entries {
                    let tail = &self.entries[&id].index.tail;
                    let same = tail.iter().zip(rest).take_while(|(a, b)| a == b).count();
                    found.common = found.common.max(depth + same);
                    let position = depth + tail.len();
                    let deeper = found.best.is_none_or(|(_, p)| position > p);
                    if same == tail.len() && position < prompt.len() && deeper {
                        found.best = Some((id, position));
                        found.evicted = false;
                    }
                }
            }
            if self.ghosts.contains(&at) && depth > found.best.map_or(0, |b| b.1) {
                found.evicted = true;
            }
            let Some((page, after)) = rest.split_at_checked(PAGE) else { return found };
            at = at.extend(page);
            rest = after;
        }
    }

    /// The checkpoint of exactly this prefix.
    pub fn exact(&self, index: &IndexPart) -> Option<EntryId> {
        let node = self.nodes.get(&self.node_of(index))?;
        node.entries.iter().copied().find(|id| self.entries[id].index.tail == index.tail)
    }

    /// Notes that a checkpoint was of use.
    pub fn touch(&mut self, id: EntryId) {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.last_used = self.clock;
            entry.uses = entry.uses.saturating_add(1);
        }
    }

    /// Adds a checkpoint that is neither in memory nor on disk yet; see [`put`](Index::put), [`set_disk`](Index::set_disk),
    /// [`tidy`](Index::tidy).
    pub fn add(&mut self, kind: CheckpointKind, index: IndexPart) -> EntryId {
        self.next += 1;
        self.clock += 1;
        let id = EntryId(self.next);
        let node = self.node_of(&index);
        self.nodes.entry(node).or_default().entries.push(id);
        let entry = Entry {
            kind,
            index,
            data: None,
            disk: OnDisk::No,
            loading: false,
            last_used: self.clock,
            uses: 0,
        };
        self.ram += entry.own_bytes();
        self.entries.insert(id, entry);
        id
    }

    fn node_of(&self, index: &IndexPart) -> Digest {
        index.chain.last().copied().unwrap_or(self.root)
    }

    /// The whole pages of a checkpoint whose KV is not in memory: (number, digest).
    pub fn missing_pages(&self, id: EntryId) -> Vec<(usize, Digest)> {
        let Some(entry) = self.entries.get(&id) else { return Vec::new() };
        let missing = |d: &Digest| self.nodes.get(d).is_none_or(|n| n.kv.is_none());
        entry.index.chain.iter().copied().enumerate().filter(|(_, d)| missing(d)).collect()
    }

    /// Puts a checkpoint's own data into memory and holds its pages there; those that are missing must be
    /// [put](Index::put_page) next.
    pub fn put(&mut self, id: EntryId, data: EntryData) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.data.is_some() {
            return;
        }
        self.ram += data.bytes();
        entry.data = Some(Arc::new(data));
        for digest in &entry.index.chain {
            self.nodes.entry(*digest).or_default().ram_refs += 1;
        }
    }

    /// Puts a page's KV into memory, if a checkpoint there needs it.
    pub fn put_page(&mut self, digest: Digest, kv: Page) {
        if let Some(node) = self.nodes.get_mut(&digest)
            && node.kv.is_none()
            && node.ram_refs > 0
        {
            self.ram += kv.len() + OVERHEAD;
            node.kv = Some(kv);
        }
    }

    /// A checkpoint's own data and its whole pages, when all of it is in memory.
    pub fn parts(&self, id: EntryId) -> Option<(Arc<EntryData>, Vec<Page>)> {
        let entry = self.entries.get(&id)?;
        let data = entry.data.clone()?;
        let pages = entry.index.chain.iter().map(|d| self.nodes.get(d)?.kv.clone()).collect::<Option<_>>()?;
        Some((data, pages))
    }

    /// Takes a checkpoint out of memory.
    pub fn drop_data(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(data) = entry.data.take() else { return };
        self.ram -= data.bytes();
        for digest in &entry.index.chain {
            if let Some(node) = self.nodes.get_mut(digest) {
                node.ram_refs -= 1;
                if node.ram_refs == 0
                    && let Some(kv) = node.kv.take()
                {
                    self.ram -= kv.len() + OVERHEAD;
                }
            }
        }
    }

    /// Says where a checkpoint's file is. Returns the pages whose files no checkpoint on disk needs any more.
    pub fn set_disk(&mut self, id: EntryId, disk: OnDisk) -> Vec<Digest> {
        let Some(entry) = self.entries.get_mut(&id) else { return Vec::new() };
        let before = std::mem::replace(&mut entry.disk, disk);
        self.disk = self.disk + disk.bytes() - before.bytes();
        let mut useless = Vec::new();
        match (before == OnDisk::No, disk == OnDisk::No) {
            (true, false) => {
                for digest in &entry.index.chain {
                    self.nodes.entry(*digest).or_default().disk_refs += 1;
                }
            }
            (false, true) => {
                for digest in &entry.index.chain {
                    if let Some(node) = self.nodes.get_mut(digest) {
                        node.disk_refs -= 1;
                        if node.disk_refs == 0 && node.disk > 0 {
                            self.disk -= std::mem::take(&mut node.disk);
                            useless.push(*digest);
                        }
                    }
                }
            }
            _ => {}
        }
        useless
    }

    /// Says that a page has a file of `bytes`.
    pub fn set_page_disk(&mut self, digest: Digest, bytes: usize) {
        let node = self.nodes.entry(digest).or_default();
        self.disk = self.disk + bytes - std::mem::replace(&mut node.disk, bytes);
    }

    /// Whether a page has a file, or gets one.
    pub fn page_on_disk(&self, digest: Digest) -> bool {
        self.nodes.get(&digest).is_some_and(|n| n.disk > 0)
    }

    /// Forgets a checkpoint that is neither in memory nor on disk.
    pub fn tidy(&mut self, id: EntryId) {
        if self.entries.get(&id).is_none_or(|e| e.data.is_some() || e.disk != OnDisk::No) {
            return;
        }
        let Some(entry) = self.entries.remove(&id) else { return };
        self.ram -= entry.own_bytes();
        let node = self.node_of(&entry.index);
        if let Some(node) = self.nodes.get_mut(&node) {
            node.entries.retain(|e| *e != id);
        }
        if node != self.root && self.ghosts.insert(node) {
            self.ghost_order.push_back(node);
            if self.ghost_order.len() > GHOSTS
                && let Some(old) = self.ghost_order.pop_front()
            {
                self.ghosts.remove(&old);
            }
        }
        for digest in entry.index.chain.iter().chain([&node]) {
            let useless = |n: &Node| {
                n.entries.is_empty() && n.ram_refs == 0 && n.disk_refs == 0 && n.disk == 0 && n.kv.is_none()
            };
            if self.nodes.get(digest).is_some_and(useless) {
                self.nodes.remove(digest);
            }
        }
    }

    /// Checkpoints of a tier, those first that are least worth their bytes.
    ///
    /// Worth: the tokens that would have to be computed again, from the next checkpoint before it in the same tier on,
    /// times how often and how recently it was of use, over the bytes that go with it (pages that others need stay).
    pub fn by_worth(&self, tier: Tier) -> Vec<EntryId> {
        let here = |e: &Entry| match tier {
            Tier::Ram => e.data.is_some(),
            Tier::Disk => matches!(e.disk, OnDisk::Yes(_)),
        };
        let mut all: Vec<(f64, EntryId)> = self
            .entries
            .iter()
            .filter(|(_, e)| here(e))
            .map(|(&id, e)| {
                let gain = (e.position() - self.before(e, &here)) as f64;
                let age = (self.clock - e.last_used) as f64;
                let bytes = self.bytes_freed(e, tier) as f64;
                (gain * f64::from(1 + e.uses) * e.kind.weight() / ((1.0 + age) * bytes), id)
            })
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// Position of the next checkpoint before `entry` on its own prefix, 0 where there is none.
    fn before(&self, entry: &Entry, here: &impl Fn(&Entry) -> bool) -> usize {
        let chain = &entry.index.chain;
        for pages in (0..=chain.len()).rev() {
            let digest = if pages == 0 { self.root } else { chain[pages - 1] };
            let Some(node) = self.nodes.get(&digest) else { continue };
            let shorter = |e: &&Entry| {
                let tail = &e.index.tail;
                // Above the last node, what follows the node is known by digests only; the next digest in the chain
                // says nothing about tails, so any checkpoint there counts as a predecessor: the error is below a page.
                here(e)
                    && (pages < chain.len()
                        || (tail.len() < entry.index.tail.len() && entry.index.tail.starts_with(tail)))
            };
            let best =
                node.entries.iter().map(|id| &self.entries[id]).filter(shorter).map(Entry::position).max();
            if let Some(position) = best {
                return position.min(entry.position());
            }
        }
        0
    }

    /// Bytes that dropping a checkpoint frees.
    fn bytes_freed(&self, entry: &Entry, tier: Tier) -> usize {
        let own = match tier {
            Tier::Ram => entry.data.as_ref().map_or(0, |d| d.bytes()),
            Tier::Disk => entry.disk.bytes(),
        };
        // Counts of use only fall along the chain.
        let pages = entry.index.chain.iter().rev().map_while(|d| {
            let node = self.nodes.get(d)?;
            match tier {
                Tier::Ram => (node.ram_refs == 1).then(|| node.kv.as_ref().map_or(0, |kv| kv.len())),
                Tier::Disk => (node.disk_refs == 1).then_some(node.disk),
            }
        });
        own + pages.sum::<usize>() + 1
    }

    /// All checkpoints.
    pub fn ids(&self) -> Vec<EntryId> {
        let mut ids: Vec<_> = self.entries.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Counts everything again and compares; for tests.
    #[cfg(test)]
    pub fn check(&self) {
        let mut ram = self.entries.values().map(Entry::own_bytes).sum::<usize>();
        let mut disk = self.entries.values().map(|e| e.disk.bytes()).sum::<usize>();
        for node in self.nodes.values() {
            ram += node.kv.as_ref().map_or(0, |kv| kv.len() + OVERHEAD);
            disk += node.disk;
            assert!(node.kv.is_none() || node.ram_refs > 0, "KV that no checkpoint needs");
        }
        assert_eq!((ram, disk), (self.ram, self.disk));
        let refs = |d: &Digest, here: &dyn Fn(&Entry) -> bool| {
            self.entries.values().filter(|e| here(e) && e.index.chain.contains(d)).count()
        };
        for (digest, node) in &self.nodes {
            assert_eq!(node.ram_refs, refs(digest, &|e| e.data.is_some()));
            assert_eq!(node.disk_refs, refs(digest, &|e| e.disk != OnDisk::No));
        }
        if self.entries.is_empty() {
            assert!(self.nodes.values().all(|n| n.entries.is_empty()));
            assert_eq!(self.ram, 0);
        }
    }
}

#[cfg(test)]
mod tests;
