//! What a model will take of a device's memory, looked at before anything is allocated.

use std::{collections::HashMap, fmt};

use lily_model::{MemoryTable, ModelWeights};

use crate::{
    device::{Device, DeviceFacts},
    error::{GpuError, Result},
    plan::{
        BufferKind, DecodeShape, ModelShape, Plan, PrefillHead, PrefillShape, decode_plan, prefill_plan,
        routes::{chunk_class, largest_chunk},
    },
};

/// Bytes of the activations of one sequence of `context` tokens: what the plans of its largest chunk and of a step share, with
/// the device's own workspace. More sequences at once take little more.
pub fn activations(weights: &ModelWeights, device: &dyn Device, context: usize) -> u64 {
    let (facts, model) = (device.facts(), ModelShape::on(weights, device.facts()));
    let tokens = chunk_class(largest_chunk(facts.unified, facts.memory).min(context));
    let capacity = context.next_multiple_of(8);
    let chunk = PrefillShape { tokens, slots: 1, capacity, context, head: PrefillHead::Last };
    let step = DecodeShape {
        splits: device.attention_splits(context),
        ..DecodeShape::single(context, model.config.vocab_size)
    };
    let mut largest: HashMap<String, u64> = HashMap::new();
    for plan in [prefill_plan(&model, &chunk), decode_plan(&model, &step)] {
        let workspace = device.workspace(&plan);
        let Plan { buffers, .. } = plan.with_workspace(workspace);
        for b in
            buffers.into_iter().filter(|b| matches!(b.kind, BufferKind::Scratch | BufferKind::TokenSlots))
        {
            let have = largest.entry(b.name).or_default();
            *have = b.bytes.max(*have);
        }
    }
    largest.values().sum()
}

/// Bytes needed beside bytes there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Weights: mapped ones count, for a device keeps them resident.
    pub weights: u64,
    /// Keys and values of one sequence of the asked length.
    pub kv: u64,
    /// GDN state and convolution inputs of one sequence.
    pub state: u64,
    /// Activations: [`activations`].
    pub scratch: u64,
    /// What the device may use (`recommendedMaxWorkingSetSize`); `None`: no limit of its own.
    pub limit: Option<u64>,
    /// What the system has free at the moment, where it says so.
    pub free: Option<u64>,
}

impl MemoryBudget {
    /// For one sequence as long as the table says, whose activations take `scratch` bytes.
    pub fn new(table: &MemoryTable, scratch: u64, facts: &DeviceFacts, free: Option<u64>) -> Self {
        Self {
            weights: table.weights as u64,
            kv: table.kv as u64,
            state: table.state as u64,
            scratch,
            limit: facts.memory,
            free,
        }
    }

    /// Everything.
    pub fn needed(&self) -> u64 {
        self.weights + self.kv + self.state + self.scratch
    }

    /// Whether more is needed than is free: it can run, but other programs, or cached files, must give way first.
    pub fn is_tight(&self) -> bool {
        self.free.is_some_and(|free| self.needed() > free)
    }

    /// An error when the device's limit is exceeded, unless `ignore` says to try.
    pub fn check(&self, device: &str, ignore: bool) -> Result<()> {
        let needed = self.needed();
        match self.limit.filter(|&limit| needed > limit && !ignore) {
            None => Ok(()),
            Some(limit) => Err(GpuError::OutOfMemory {
                asked: needed,
                what: format!(
                    "weights ({}), keys and values ({}), state ({}) and activations ({})",
                    mib(self.weights),
                    mib(self.kv),
                    mib(self.state),
                    mib(self.scratch)
                ),
                available: format!(
                    "{device} recommends at most {}; --ignore-memory-check tries all the same",
                    mib(limit)
                ),
            }),
        }
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

impl fmt::Display for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} needed: weights {}, KV {}, state {}, activations {}",
            mib(self.needed()),
            mib(self.weights),
            mib(self.kv),
            mib(self.state),
            mib(self.scratch)
        )?;
        if let Some(limit) = self.limit {
            write!(f, "; the device recommends at most {}", mib(limit))?;
        }
        if let Some(free) = self.free {
            write!(f, "; {} are free", mib(free))?;
        }
        Ok(())
    }
}

/// Bytes that the system can give without writing anything out: free memory and cached files. `None` where it does not
/// say.
pub fn free_memory() -> Option<u64> {
    #[cfg(target_os = "linux")]
    return available_of(&std::fs::read_to_string("/proc/meminfo").ok()?);
    #[cfg(target_os = "macos")]
    return macos::free_memory();
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    None
}

/// `MemAvailable` of /proc/meminfo.
#[cfg(any(target_os = "linux", test))]
fn available_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(target_os = "macos")]
mod macos {
    /// Free, inactive and purgeable pages: what `vm_stat` shows.
    pub(super) fn free_memory() -> Option<u64> {
        // SAFETY: all zeros is a value of a structure of integers.
        let mut info: libc::vm_statistics64 = unsafe { std::mem::zeroed() };
        let mut count = libc::HOST_VM_INFO64_COUNT;
        // SAFETY: `info` has room for `count` integers, as the flavor asks. The deprecation names another crate for the same
        // function.
        #[allow(deprecated)]
        let result = unsafe {
            libc::host_statistics64(
                libc::mach_host_self(),
                libc::HOST_VM_INFO64,
                (&raw mut info).cast::<libc::integer_t>(),
                &mut count,
            )
        };
        // SAFETY: a call without pointers.
        let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        let (free, inactive, purgeable) = (info.free_count, info.inactive_count, info.purgeable_count);
        (result == libc::KERN_SUCCESS).then(|| (free as u64 + inactive as u64 + purgeable as u64) * page)
    }
}

#[cfg(test)]
mod tests {
    use lily_model::{ModelConfig, Quantization, memory_table};

    use super::*;

    fn facts(memory: Option<u64>) -> DeviceFacts {
        DeviceFacts {
            kind: "metal",
            name: "Apple M1".into(),
            memory,
            largest_buffer: 1 << 34,
            unified: true,
            tensor_ops: false,
            split_products: false,
        }
    }

    fn budget(context: usize, limit: Option<u64>, free: Option<u64>) -> MemoryBudget {
        let table = memory_table(&ModelConfig::qwen3_6_35b_a3b(40), &Quantization::mlx_4bit(40), context, 2);
        MemoryBudget::new(&table, 1 << 26, &facts(limit), free)
    }

    #[test]
    fn the_limit_at_its_edge() {
        let needed = budget(4096, None, None).needed();
        assert!((19..21).contains(&(needed >> 30).max(19)) && needed > 19_500_000_000, "{needed}");
        assert!(budget(4096, Some(needed), None).check("d", false).is_ok());
        let error = budget(4096, Some(needed - 1), None).check("Apple M1", false).unwrap_err().to_string();
        assert!(error.contains("Apple M1") && error.contains("--ignore-memory-check"), "{error}");
        assert!(error.contains("keys and values (80.0 MiB)"), "{error}");
        assert!(budget(4096, Some(1), None).check("d", true).is_ok());
        // The context counts.
        assert!(budget(262_144, Some(needed), None).check("d", false).is_err());
    }

    #[test]
    fn what_is_free_is_said_and_decides_nothing() {
        let b = budget(4096, Some(1 << 40), Some(8 << 30));
        assert!(b.is_tight() && b.check("d", false).is_ok());
        assert!(b.to_string().ends_with("8192.0 MiB are free"), "{b}");
        assert!(!budget(4096, None, None).is_tight() && !budget(4096, None, Some(1 << 40)).is_tight());
    }

    #[test]
    fn this_machine_says_what_is_free() {
        assert_eq!(available_of("MemTotal: 9 kB\nMemAvailable:   12 kB\n"), Some(12 << 10));
        assert_eq!(available_of("MemTotal: 9 kB\n"), None);
        assert_eq!(available_of("MemAvailable: many kB\n"), None);
        if cfg!(any(target_os = "linux", target_os = "macos")) {
            assert!(free_memory().is_some_and(|b| b > 1 << 20));
        }
    }
}
