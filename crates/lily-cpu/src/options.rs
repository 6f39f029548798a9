//! How a model is run.

use crate::isa::Isa;

/// Options of [`crate::CpuModel::new`].
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuOptions {
    /// Compute threads, the calling one included; 0 = one a physical core that the process may use (two threads on one
    /// core share its arithmetic units and its path to memory, and both are full).
    pub threads: usize,
    /// Instruction set; `None` = what the environment variable `LILY_CPU_ISA` (`scalar`, `avx2`, `avx512`, `neon`)
    /// names, else the fastest that this machine has.
    pub isa: Option<Isa>,
}

impl CpuOptions {
    pub(crate) fn threads(&self) -> usize {
        match self.threads {
            0 => {
                let available = std::thread::available_parallelism().map_or(1, |n| n.get());
                physical_cores().map_or(available, |n| n.min(available)).max(1)
            }
            n => n,
        }
    }
}

/// Physical cores that this process may run on, as Linux tells it; `None` elsewhere.
fn physical_cores() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = std::collections::BTreeSet::new();
    for cpu in cpu_list(allowed.trim())? {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        cores.insert(cpu_list(std::fs::read_to_string(path).ok()?.trim())?.into_iter().min()?);
    }
    Some(cores.len())
}

/// The numbers of a list such as `0-3,8,10-11`.
fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last.checked_sub(first)? > 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(cpu_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cpu_list("5"), Some(vec![5]));
        for bad in ["", "a", "3-1", "0-", "0-99999999"] {
            assert_eq!(cpu_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_default_is_at_least_one_and_at_most_what_is_available() {
        let n = CpuOptions::default().threads();
        assert!(n >= 1 && n <= std::thread::available_parallelism().unwrap().get());
        assert_eq!(CpuOptions { threads: 3, isa: None }.threads(), 3);
    }
}

/// Which logits a prefill returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsWanted {
    /// None: an inner chunk of a longer prompt.
    None,
    /// Of the last position, `[vocab]`.
    Last,
    /// Of every position of the chunk, `[tokens, vocab]`.
    All,
}
