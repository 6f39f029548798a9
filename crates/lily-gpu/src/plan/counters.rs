//! What a plan costs, on any hardware: dispatches, levels, and bytes against the least that the model must move.

use std::fmt;

use lily_model::{ModelConfig, Quantization, memory_table};

use super::{BufferKind, Plan};

/// Bytes read and written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Distinct bytes read, op by op.
    pub read: u64,
    /// Distinct bytes written, op by op.
    pub written: u64,
}

impl Traffic {
    /// Both.
    pub fn total(&self) -> u64 {
        self.read + self.written
    }
}

/// Counters of a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Kernel launches.
    pub dispatches: usize,
    /// Levels: a barrier stands between two of them.
    pub levels: usize,
    /// Weights and constants.
    pub weights: Traffic,
    /// Keys and values.
    pub kv: Traffic,
    /// GDN state and convolution inputs.
    pub state: Traffic,
    /// Activations and everything else.
    pub activations: Traffic,
}

impl Counters {
    /// Counts a plan.
    pub fn of(plan: &Plan) -> Self {
        let mut c = Counters { dispatches: plan.ops.len(), levels: plan.levels.len(), ..Default::default() };
        for op in &plan.ops {
            for a in &op.reads {
                c.traffic(plan.spec(a.buffer).kind).read += a.bytes;
            }
            for a in &op.writes {
                c.traffic(plan.spec(a.buffer).kind).written += a.bytes;
            }
        }
        c
    }

    fn traffic(&mut self, kind: BufferKind) -> &mut Traffic {
        match kind {
            BufferKind::Weight | BufferKind::Constant => &mut self.weights,
            BufferKind::Kv => &mut self.kv,
            BufferKind::State => &mut self.state,
            BufferKind::Input | BufferKind::TokenSlots | BufferKind::Scratch => &mut self.activations,
        }
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.weights.total() + self.kv.total() + self.state.total() + self.activations.total()
    }
}

/// The least that a decoded token of one sequence must move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// Every dense matrix, the chosen experts, one row of the embedding, the vectors.
    pub weights: u64,
    /// Keys and values of the whole context read (BF16), the new token's written with them.
    pub kv: u64,
    /// GDN state and convolution inputs, read and written (f32).
    pub state: u64,
}

impl Floor {
    /// Of a decode step that makes position `context - 1`.
    pub fn decode(config: &ModelConfig, quantization: &Quantization, context: usize) -> Self {
        let table = memory_table(config, quantization, context, 2);
        Self {
            weights: table.weights_per_token as u64,
            kv: table.kv as u64,
            state: 2 * config.state_bytes() as u64,
        }
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.weights + self.kv + self.state
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        writeln!(f, "dispatches   {:>10}", self.dispatches)?;
        writeln!(f, "levels       {:>10}", self.levels)?;
        writeln!(f, "             {:>10} {:>12}", "MB read", "MB written")?;
        for (name, t) in [
            ("weights", self.weights),
            ("KV", self.kv),
            ("state", self.state),
            ("activations", self.activations),
        ] {
            writeln!(f, "{name:<12} {:>10.3} {:>12.3}", mb(t.read), mb(t.written))?;
        }
        write!(f, "together     {:>10.3} MB", mb(self.bytes()))
    }
}
