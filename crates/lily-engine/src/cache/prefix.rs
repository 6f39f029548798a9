//! [`PrefixCache`]: taking checkpoints, finding and restoring them, within its bytes.

use std::sync::Arc;

use super::{
    CacheFigures, CacheOptions, CacheOutcome, CheckpointKind,
    chain::{self, Digest},
    disk::{self, Answer, Disk, DiskError, Ended, FILE_OVERHEAD, Scan, WriteJob},
    file::IndexPart,
    index::{EntryData, EntryId, Index, OnDisk, Tier},
};
use crate::backend::{Backend, BackendError, PAGE, SequenceId};

/// Shortest checkpoint: computing fewer tokens costs less than keeping them.
pub const SHORTEST: usize = 32;

/// A full tier is emptied to this share, so that not every checkpoint makes it look for the least worth.
const ROOM: f64 = 0.95;

/// Bytes that may wait to be written, as a part of the memory limit. More is not written: memory would grow.
const WAITING_SHARE: usize = 4;

/// Failed writes in a row after which no more are tried.
const MOST_FAILURES: usize = 3;

/// What a prompt finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A checkpoint in memory.
    Ready(EntryId),
    /// A checkpoint that is being read: ask again when [`PrefixCache::poll`] says that something was.
    Loading,
    /// Nothing.
    Nothing(CacheOutcome),
}

/// Checkpoints in memory and on disk. Owned by the engine thread.
pub struct PrefixCache {
    index: Index,
    ram_limit: usize,
    disk: Option<Tiered>,
    figures: CacheFigures,
}

/// The disk tier.
struct Tiered {
    disk: Disk,
    limit: usize,
    /// Files of other models: name and bytes, the oldest first.
    others: std::collections::VecDeque<(String, usize)>,
    others_bytes: usize,
    failures: usize,
}

impl PrefixCache {
    /// An empty cache, or what a directory holds for this backend. `wake` is called, on another thread, when
    /// [`poll`](PrefixCache::poll) has something to do.
    pub fn open(
        options: &CacheOptions,
        backend: &dyn Backend,
        wake: impl Fn() + Send + 'static,
    ) -> Result<Self, DiskError> {
        let identity = backend.identity();
        let name = identity.clone().unwrap_or_else(|| format!("{} in this process", backend.name()));
        let mut cache = Self {
            index: Index::new(Digest::root(&name)),
            ram_limit: options.ram,
            disk: None,
            figures: CacheFigures { ram_limit: options.ram as u64, ..Default::default() },
        };
        if let Some(dir) = options.dir.as_deref().filter(|_| options.ram > 0) {
            let identity = identity.ok_or(DiskError::Backend(backend.name()))?;
            let (disk, scan) = Disk::open(dir, &identity, wake)?;
            cache.figures.disk_limit = options.disk;
            let limit = usize::try_from(options.disk).unwrap_or(usize::MAX);
            cache.adopt(disk, limit, scan);
            let (_, checkpoints) = cache.index.counts();
            let bytes = cache.disk_bytes();
            tracing::info!(dir = %dir.display(), checkpoints, bytes, "prefix cache: files found");
        }
        Ok(cache)
    }

    /// No cache at all.
    pub fn disabled() -> Self {
        Self {
            index: Index::new(Digest::root("")),
            ram_limit: 0,
            disk: None,
            figures: CacheFigures::default(),
        }
    }

    fn adopt(&mut self, disk: Disk, limit: usize, scan: Scan) {
        let mut used = 0;
        for found in scan.checkpoints {
            for digest in &found.index.chain {
                let bytes = scan.pages[digest];
                self.index.set_page_disk(*digest, bytes);
            }
            let id = self.index.add(found.kind, found.index);
            self.index.set_disk(id, OnDisk::Yes(found.bytes));
            used += 1;
        }
        tracing::debug!(
            checkpoints = used,
            pages = scan.pages.len(),
            ignored = scan.ignored,
            "prefix cache: index"
        );
        let useless = scan.pages.keys().filter(|d| !self.index.page_on_disk(**d));
        disk.delete(useless.map(|d| disk::page_name(*d)).collect());
        let others_bytes = scan.others.iter().map(|o| o.1).sum();
        self.disk = Some(Tiered { disk, limit, others: scan.others.into(), others_bytes, failures: 0 });
        self.make_room_on_disk(0, None);
    }

    /// Whether anything is ever kept.
    pub fn is_enabled(&self) -> bool {
        self.ram_limit > 0
    }

    /// The best checkpoint for `tokens`, of which at least the last is to be computed.
    pub fn find(&mut self, tokens: &[u32]) -> Found {
        if !self.is_enabled() {
            return Found::Nothing(CacheOutcome::Disabled);
        }
        let found = self.index.find(tokens);
        let Some((id, position)) = found.best else {
            return Found::Nothing(if self.index.is_empty() {
                CacheOutcome::Empty
            } else if found.evicted {
                CacheOutcome::Evicted
            } else if found.common >= SHORTEST {
                CacheOutcome::Diverged
            } else {
                CacheOutcome::New
            });
        };
        tracing::debug!(position, common = found.common, evicted = found.evicted, "prefix cache: found");
        let missing = self.index.missing_pages(id);
        let root = self.index.root();
        let Some(entry) = self.index.get_mut(id) else { return Found::Nothing(CacheOutcome::New) };
        if entry.data.is_some() {
            return Found::Ready(id);
        }
        if !entry.loading {
            entry.loading = true;
            let name = entry.index.id(root);
            if let Some(tier) = &self.disk {
                tier.disk.read(id, name, missing);
            }
        }
        Found::Loading
    }

    /// Where the checkpoint that [`find`](PrefixCache::find) would give is.
    pub fn position_of(&self, id: EntryId) -> usize {
        self.index.get(id).map_or(0, |e| e.position())
    }

    /// Puts a checkpoint's state into an unused sequence; returns its position and kind. When that fails the checkpoint
    /// is forgotten.
    pub fn restore(
        &mut self,
        backend: &mut dyn Backend,
        sequence: SequenceId,
        id: EntryId,
    ) -> Result<(usize, CheckpointKind), BackendError> {
        let lost = || BackendError::Device("a checkpoint is not in memory any more".into());
        let (data, pages) = self.index.parts(id).ok_or_else(lost)?;
        let entry = self.index.get(id).ok_or_else(lost)?;
        let (position, kind, has_tail) = (entry.position(), entry.kind, !entry.index.tail.is_empty());
        let mut parts: Vec<&[u8]> = pages.iter().map(|p| p.as_slice()).collect();
        parts.extend(has_tail.then_some(data.tail_kv.as_slice()));
        match backend.restore_pages(sequence, &data.state, &parts) {
            Ok(()) => {
                self.index.touch(id);
                Ok((position, kind))
            }
            Err(error) => {
                self.remove(id);
                Err(error)
            }
        }
    }

    /// Counts a prompt.
    pub fn count(&mut self, outcome: CacheOutcome, cached: usize, prompt: usize) {
        self.figures.count(outcome, cached, prompt);
    }

    /// Keeps the state of a sequence that has seen `tokens`, when it is worth it; says whether there is a checkpoint of
    /// these tokens now. A failure costs nothing but the checkpoint.
    pub fn save(
        &mut self,
        backend: &mut dyn Backend,
        sequence: SequenceId,
        tokens: &[u32],
        kind: CheckpointKind,
    ) -> bool {
        if !self.is_enabled() || tokens.len() < SHORTEST {
            return false;
        }
        let chain = chain::chain(self.index.root(), tokens);
        let index = IndexPart { tail: tokens[chain.len() * PAGE..].to_vec(), chain };
        let id = match self.index.exact(&index) {
            Some(id) => {
                let entry = self.index.get_mut(id).expect("it was just found");
                // The kind it is most useful as.
                entry.kind = entry.kind.min(kind);
                self.index.touch(id);
                if self.index.get(id).is_some_and(|e| e.data.is_some()) {
                    return true;
                }
                id
            }
            None => self.index.add(kind, index),
        };
        match self.take(backend, sequence, id) {
            Ok(true) => {
                *self.figures.taken.entry(kind.name()).or_default() += 1;
                self.write(id, false);
                true
            }
            Ok(false) => {
                tracing::debug!(
                    position = tokens.len(),
                    "prefix cache: a checkpoint is larger than the memory limit"
                );
                self.drop_data(id);
                false
            }
            Err(error) => {
                tracing::warn!(%error, "prefix cache: no checkpoint could be taken");
                self.drop_data(id);
                false
            }
        }
    }

    /// Copies a sequence's state into memory. `false`: it does not fit.
    fn take(
        &mut self,
        backend: &mut dyn Backend,
        sequence: SequenceId,
        id: EntryId,
    ) -> Result<bool, BackendError> {
        let state = backend.snapshot_state(sequence)?;
        let entry = self.index.get(id).expect("the caller has it");
        let (pages, has_tail) = (entry.index.chain.len(), !entry.index.tail.is_empty());
        if state.position != entry.position() {
            let (found, expected) = (state.position, entry.position());
            return Err(BackendError::Device(format!("a state is at position {found}; expected {expected}")));
        }
        let tail_kv = if has_tail { backend.read_page(sequence, pages)? } else { Vec::new() };
        let own = state.data.len() + tail_kv.len();
        if own > self.ram_limit {
            return Ok(false);
        }
        self.make_room(own, Some(id));
        self.index.put(id, EntryData { state, tail_kv });
        let missing = self.index.missing_pages(id);
        let mut page_bytes = 0;
        for (i, (number, digest)) in missing.iter().enumerate() {
            let kv = backend.read_page(sequence, *number)?;
            if i == 0 {
                // All pages have the same length. The room is made before they are there.
                page_bytes = kv.len() + 256;
                if !self.make_room(page_bytes * missing.len(), Some(id)) {
                    return Ok(false);
                }
            }
            self.index.put_page(*digest, Arc::new(kv));
        }
        tracing::trace!(own, pages = missing.len(), page_bytes, "prefix cache: taken");
        Ok(true)
    }

    /// Makes room for `bytes` in memory; never at the cost of `keep`.
    fn make_room(&mut self, bytes: usize, keep: Option<EntryId>) -> bool {
        if self.index.ram_bytes() + bytes <= self.ram_limit {
            return true;
        }
        let goal = (self.ram_limit as f64 * ROOM) as usize;
        for id in self.index.by_worth(Tier::Ram) {
            if self.index.ram_bytes() + bytes <= goal {
                break;
            }
            if Some(id) != keep {
                self.drop_data(id);
                self.figures.ram_evictions += 1;
            }
        }
        self.index.ram_bytes() + bytes <= self.ram_limit
    }

    fn drop_data(&mut self, id: EntryId) {
        self.index.drop_data(id);
        self.index.tidy(id);
    }

    /// Forgets a checkpoint in both tiers.
    fn remove(&mut self, id: EntryId) {
        self.drop_file(id);
        self.drop_data(id);
    }

    fn drop_file(&mut self, id: EntryId) {
        let root = self.index.root();
        let Some(entry) = self.index.get(id) else { return };
        if entry.disk == OnDisk::No {
            return;
        }
        let name = disk::checkpoint_name(entry.index.id(root));
        let pages = self.index.set_disk(id, OnDisk::No);
        if let Some(tier) = &self.disk {
            let mut names = vec![name];
            names.extend(pages.into_iter().map(disk::page_name));
            tier.disk.delete(names);
        }
    }

    fn disk_bytes(&self) -> usize {
        self.index.disk_bytes() + self.disk.as_ref().map_or(0, |t| t.others_bytes)
    }

    fn make_room_on_disk(&mut self, bytes: usize, keep: Option<EntryId>) -> bool {
        let Some(limit) = self.disk.as_ref().map(|t| t.limit) else { return false };
        if self.disk_bytes() + bytes <= limit {
            return true;
        }
        let goal = (limit as f64 * ROOM) as usize;
        while self.disk_bytes() + bytes > goal
            && let Some(tier) = &mut self.disk
            && let Some((name, bytes)) = tier.others.pop_front()
        {
            tier.others_bytes -= bytes;
            tier.disk.delete(vec![name]);
        }
        for id in self.index.by_worth(Tier::Disk) {
            if self.disk_bytes() + bytes <= goal {
                break;
            }
            if Some(id) != keep {
                self.drop_file(id);
                self.index.tidy(id);
                self.figures.disk_evictions += 1;
            }
        }
        self.disk_bytes() + bytes <= limit
    }

    /// Has a checkpoint that is in memory written. `patient`: however much waits already.
    fn write(&mut self, id: EntryId, patient: bool) {
        let most = self.ram_limit / WAITING_SHARE;
        let Some(tier) = &self.disk else { return };
        let Some((data, pages)) = self.index.parts(id) else { return };
        let Some(entry) = self.index.get(id) else { return };
        if entry.disk != OnDisk::No {
            return;
        }
        let (kind, index) = (entry.kind, entry.index.clone());
        if tier.failures >= MOST_FAILURES || (!patient && tier.disk.waiting_bytes() > most) {
            self.figures.disk_skipped += 1;
            return;
        }
        let own = FILE_OVERHEAD
            + index.chain.len() * 16
            + index.tail.len() * 4
            + data.state.data.len()
            + data.tail_kv.len();
        // Pending from now on: its pages are not removed to make room.
        let useless = self.index.set_disk(id, OnDisk::Pending(own));
        debug_assert!(useless.is_empty());
        let new: Vec<usize> =
            (0..pages.len()).filter(|&i| !self.index.page_on_disk(index.chain[i])).collect();
        let bytes: usize = new.iter().map(|&i| pages[i].len() + FILE_OVERHEAD).sum();
        if !self.make_room_on_disk(bytes, Some(id)) {
            self.figures.disk_skipped += 1;
            self.drop_file(id);
            return;
        }
        let mut with_pages = Vec::with_capacity(new.len());
        for i in new {
            self.index.set_page_disk(index.chain[i], pages[i].len() + FILE_OVERHEAD);
            with_pages.push(((i + 1) * PAGE, index.chain[i], pages[i].clone()));
        }
        if let Some(tier) = &self.disk {
            tier.disk.write(WriteJob { id, kind, index, data, pages: with_pages });
        }
    }

    /// Takes in what the file thread did. `true`: a checkpoint that was being read is there now, or never will be.
    pub fn poll(&mut self) -> bool {
        let mut read = false;
        while let Some(tier) = &self.disk {
            match tier.disk.answer() {
                Ok(None) => break,
                Ok(Some(Answer::Written { id, bytes })) => self.written(id, bytes),
                Ok(Some(Answer::NotWritten { id, pages, error })) => self.not_written(id, &pages, &error),
                Ok(Some(Answer::Read { id, result })) => {
                    read = true;
                    self.loaded(id, result);
                }
                Err(Ended) => {
                    read = true;
                    self.give_up_files();
                }
            }
        }
        read
    }

    /// Goes on without files: nobody reads or writes them any more.
    fn give_up_files(&mut self) {
        tracing::error!("prefix cache: the thread for its files has ended; it goes on in memory only");
        self.disk = None;
        for id in self.index.ids() {
            if let Some(entry) = self.index.get_mut(id) {
                entry.loading = false;
            }
            self.drop_file(id);
            self.index.tidy(id);
        }
    }

    fn written(&mut self, id: EntryId, bytes: usize) {
        if let Some(tier) = &mut self.disk {
            tier.failures = 0;
        }
        self.figures.disk_writes += 1;
        // Not when it was forgotten meanwhile: its removal is on its way.
        if self.index.get(id).is_some_and(|e| matches!(e.disk, OnDisk::Pending(_))) {
            self.index.set_disk(id, OnDisk::Yes(bytes));
        }
    }

    fn not_written(&mut self, id: EntryId, pages: &[Digest], error: &std::io::Error) {
        tracing::warn!(%error, "prefix cache: a checkpoint could not be written");
        self.figures.disk_errors += 1;
        if let Some(tier) = &mut self.disk {
            tier.failures += 1;
            if tier.failures == MOST_FAILURES {
                tracing::error!(
                    "prefix cache: nothing more is written, after {MOST_FAILURES} failures in a row"
                );
            }
        }
        self.forget_files(pages, id);
    }

    /// Removes the files of a checkpoint, and of all that need one of these pages, which are not there or no good.
    fn forget_files(&mut self, pages: &[Digest], id: EntryId) {
        for other in self.index.ids() {
            let needs = |e: &super::index::Entry| {
                e.disk != OnDisk::No && (other == id || e.index.chain.iter().any(|d| pages.contains(d)))
            };
            if self.index.get(other).is_some_and(needs) {
                self.drop_file(other);
                self.index.tidy(other);
            }
        }
    }

    fn loaded(&mut self, id: EntryId, result: Result<disk::Loaded, (String, super::file::FileError)>) {
        let Some(entry) = self.index.get_mut(id) else { return };
        entry.loading = false;
        let loaded = match result {
            Ok(loaded) if loaded.data.state.position == entry.position() => loaded,
            Ok(_) => return self.unreadable(id, "a checkpoint", "it is at another position"),
            Err((file, error)) => {
                let pages: Vec<Digest> = disk::page_of_name(&file).into_iter().collect();
                self.unreadable(id, &file, &error.to_string());
                return self.forget_files(&pages, id);
            }
        };
        let pages: usize = loaded.pages.iter().map(|p| p.1.len() + 256).sum();
        let own = loaded.data.state.data.len() + loaded.data.tail_kv.len();
        let fits = own + pages <= self.ram_limit && {
            // What it shares with others in memory must stay: held before room is made.
            self.index.put(id, loaded.data);
            self.make_room(pages, Some(id))
        };
        if !fits {
            return self.unreadable(id, "a checkpoint", "it is larger than the memory limit");
        }
        for (digest, kv) in loaded.pages {
            self.index.put_page(digest, kv);
        }
        // Pages that were in memory when it was asked for may have left it meanwhile: then it is read again.
        if self.index.parts(id).is_none() {
            self.index.drop_data(id);
        }
    }

    fn unreadable(&mut self, id: EntryId, file: &str, why: &str) {
        tracing::warn!(file, why, "prefix cache: a checkpoint is not used");
        self.figures.disk_errors += 1;
        self.remove(id);
    }

    /// Counts and sizes.
    pub fn figures(&self) -> CacheFigures {
        let (ram, disk) = self.index.counts();
        CacheFigures {
            ram_bytes: self.index.ram_bytes() as u64,
            ram_checkpoints: ram as u64,
            disk_bytes: self.disk_bytes() as u64,
            disk_checkpoints: disk as u64,
            ..self.figures.clone()
        }
    }

    /// Writes what is not written yet, the most worth first, and waits for it.
    pub fn close(mut self) {
        if self.disk.is_some() {
            self.poll();
            for id in self.index.by_worth(Tier::Ram).into_iter().rev() {
                self.write(id, true);
            }
        }
    }
}
