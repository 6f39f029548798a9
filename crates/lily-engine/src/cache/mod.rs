//! The prefix cache: states of prompts and answers, so that what is sent again is not computed again.
//!
//! GDN state cannot be cut back, so a checkpoint is only of use at its own position: it is taken where later prompts are
//! likely to part from this one ([`CheckpointKind`]), and restored when a prompt begins with its tokens. KV is shared by
//! pages between checkpoints that begin alike.
//!
//! * `chain`: names of prefixes;
//! * `index`: which prefix has a checkpoint, and which checkpoint is worth its bytes;
//! * `prefix`: [`PrefixCache`], taking and restoring;
//! * `file`, `disk`: the tier that survives a restart;
//! * `figures`: what it does, counted.

mod chain;
mod disk;
mod figures;
mod file;
mod index;
mod prefix;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use disk::DiskError;
pub use figures::{CacheFigures, CacheOutcome};
pub use index::EntryId;
pub use prefix::{Found, PrefixCache, SHORTEST};

/// Where in a text a checkpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointKind {
    /// After the system message and the tools: other conversations with the same ones go on from here.
    SystemEnd,
    /// Before the opener of the answer. Templates render the last answer differently once it is history (Qwen's drop its
    /// `<think>` block), so the next prompt parts from this one after here.
    BeforeOpener,
    /// After the last token of an answer that was computed.
    EndOfResponse,
    /// After an earlier turn of a prompt.
    TurnClosure,
    /// At a multiple of the stride of a long prompt.
    Stride,
    /// Where a request was given up.
    Interrupted,
}

impl CheckpointKind {
    /// All kinds, in order.
    pub const ALL: [Self; 6] = [
        Self::SystemEnd,
        Self::BeforeOpener,
        Self::EndOfResponse,
        Self::TurnClosure,
        Self::Stride,
        Self::Interrupted,
    ];

    /// As in metrics and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::SystemEnd => "system_end",
            Self::BeforeOpener => "before_opener",
            Self::EndOfResponse => "end_of_response",
            Self::TurnClosure => "turn_closure",
            Self::Stride => "stride",
            Self::Interrupted => "interrupted",
        }
    }

    /// How likely it is of use again, beside the others: what all conversations share most, what an edit or a retry
    /// needs least.
    fn weight(self) -> f64 {
        match self {
            Self::SystemEnd => 4.0,
            Self::BeforeOpener | Self::EndOfResponse => 1.0,
            Self::TurnClosure | Self::Stride => 0.5,
            Self::Interrupted => 0.25,
        }
    }
}

/// A place in a prompt where a checkpoint is of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// Tokens before it.
    pub position: usize,
    /// What it is.
    pub kind: CheckpointKind,
}

/// What the cache may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheOptions {
    /// Most bytes in memory; 0: no cache at all.
    pub ram: usize,
    /// Directory of the tier that survives a restart; `None`: there is none. Files hold what was said, as numbers.
    pub dir: Option<PathBuf>,
    /// Most bytes of files.
    pub disk: u64,
}

impl Default for CacheOptions {
    /// 2 GiB of memory, no files. A state of Qwen3.6-35B-A3B takes 63 MiB and 20 KiB a token.
    fn default() -> Self {
        Self { ram: 2 << 30, dir: None, disk: 8 << 30 }
    }
}
