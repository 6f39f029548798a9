//! What the cache does, counted.

use std::collections::BTreeMap;

use serde::Serialize;

use super::CheckpointKind;

/// How a prompt's state was had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CacheOutcome {
    /// The cache is off.
    #[default]
    Disabled,
    /// From a checkpoint in memory.
    HitRam(CheckpointKind),
    /// From a checkpoint that was read from its file.
    HitDisk(CheckpointKind),
    /// Nothing is cached.
    Empty,
    /// No checkpoint begins like this prompt.
    New,
    /// Some begin like it, and go on differently before their position.
    Diverged,
    /// There was one, and its place was needed.
    Evicted,
    /// There is one, and it could not be restored.
    RestoreFailed,
    /// There is one on disk, and its file is damaged or gone.
    Damaged,
}

impl CacheOutcome {
    /// Its code in logs and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::Disabled => "miss_disabled",
            Self::HitRam(_) => "hit_ram",
            Self::HitDisk(_) => "hit_disk",
            Self::Empty => "miss_empty",
            Self::New => "miss_new",
            Self::Diverged => "miss_diverged",
            Self::Evicted => "miss_evicted",
            Self::RestoreFailed => "miss_restore_failed",
            Self::Damaged => "miss_damaged",
        }
    }

    /// The kind of checkpoint that was used.
    pub fn kind(self) -> Option<CheckpointKind> {
        match self {
            Self::HitRam(kind) | Self::HitDisk(kind) => Some(kind),
            _ => None,
        }
    }
}

/// Counts since the start, and sizes now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CacheFigures {
    /// Prompts by what was found for them: code, and the kind of checkpoint of a hit (else empty).
    #[serde(serialize_with = "by_name")]
    pub lookups: BTreeMap<(&'static str, &'static str), u64>,
    /// Prompt tokens whose state was restored.
    pub cached_tokens: u64,
    /// Prompt tokens that were to be computed.
    pub new_tokens: u64,
    /// Bytes in memory.
    pub ram_bytes: u64,
    /// Most of them.
    pub ram_limit: u64,
    /// Checkpoints in memory.
    pub ram_checkpoints: u64,
    /// Checkpoints that left memory for others.
    pub ram_evictions: u64,
    /// Bytes of files.
    pub disk_bytes: u64,
    /// Most of them.
    pub disk_limit: u64,
    /// Checkpoints on disk.
    pub disk_checkpoints: u64,
    /// Checkpoints whose files left for others.
    pub disk_evictions: u64,
    /// Checkpoints written.
    pub disk_writes: u64,
    /// Checkpoints not written, since the disk was too slow or too full.
    pub disk_skipped: u64,
    /// Writes and reads that failed.
    pub disk_errors: u64,
    /// Checkpoints taken, by kind.
    pub taken: BTreeMap<&'static str, u64>,
}

impl CacheFigures {
    pub(super) fn count(&mut self, outcome: CacheOutcome, cached: usize, prompt: usize) {
        let kind = outcome.kind().map_or("", CheckpointKind::name);
        *self.lookups.entry((outcome.code(), kind)).or_default() += 1;
        self.cached_tokens += cached as u64;
        self.new_tokens += (prompt - cached) as u64;
    }

    /// Prompts with this code.
    pub fn of(&self, code: &str) -> u64 {
        self.lookups.iter().filter(|((c, _), _)| *c == code).map(|(_, n)| n).sum()
    }
}

fn by_name<S: serde::Serializer>(
    lookups: &BTreeMap<(&'static str, &'static str), u64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let name = |(code, kind): &(&str, &str)| {
        if kind.is_empty() { code.to_string() } else { format!("{code}:{kind}") }
    };
    serializer.collect_map(lookups.iter().map(|(key, n)| (name(key), n)))
}
