//! What some native kernels of prefill want beside a plan's buffers: scratch memory of their own, and a kernel that makes it
//! ready right before them.

use super::{
    native::{Launch, scalar},
    native_prefill::bytes,
};
use crate::plan::{ArgValue, Op, Plan, View};

/// What a kernel wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// An input's rows, f32, each value as two halves, and the sums of 64 columns and factors (split.cu).
    Rows {
        /// The input.
        view: View,
        /// Its name in the kernel's arguments.
        name: &'static str,
        /// Rows it has room for.
        rows: u32,
        /// Values of a row, a multiple of 512.
        cols: u32,
        /// Whether they have a place of their own, since more than one kernel takes them: the experts' inputs.
        kept: bool,
    },
    /// A sequence's keys and values as halves (attention_hopper.cu).
    Cache {
        /// Positions there is room for.
        capacity: u32,
        /// KV heads, of 256 values a position.
        kv_heads: u32,
    },
}

/// The memory: a place that kernels take in turn, and one for rows that are kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct Workspace {
    /// Where it starts.
    pub address: u64,
    /// Bytes that there are.
    pub bytes: u64,
    /// Bytes of the two places.
    pub places: [u64; 2],
}

impl Workspace {
    /// As large as the needs of a plan's kernels; not yet anywhere.
    pub fn of(needs: impl Iterator<Item = Need>) -> Self {
        let mut places = [0; 2];
        for need in needs {
            let place: &mut u64 = &mut places[usize::from(need.kept())];
            *place = need.bytes().next_multiple_of(256).max(*place);
        }
        Self { places, ..Self::default() }
    }
}

/// Rows that lie together, `SPLIT_ROWS` of split.cu, and values a thread block of hopper_split_rows takes.
const SPLIT_BLOCK: u64 = 128;
const SPLIT_VALUES: u32 = 4096;
/// Positions a block of hopper_attention_halves takes.
const HALVES_POSITIONS: u32 = 64;

impl Need {
    /// What a native kernel wants for an op.
    pub fn of(op: &Op, symbol: &str) -> Option<Self> {
        let (name, cols) = match symbol {
            "hopper_attention_prefill" => {
                return Some(Need::Cache {
                    capacity: scalar(op, "capacity")?,
                    kv_heads: scalar(op, "kv_heads")?,
                });
            }
            s if s.starts_with("hopper_gemm_") => ("x", scalar(op, "cols")?),
            s if s.starts_with("hopper_experts_down_") => ("h", scalar(op, "width")?),
            s if s.starts_with("hopper_experts_gate_up_") => ("x", scalar(op, "hidden")?),
            "hopper_shared_gate_up" => ("x", scalar(op, "hidden")?),
            _ => return None,
        };
        let view = op.args.iter().find(|a| a.name == name).and_then(|a| match a.value {
            ArgValue::Buffer { view, .. } => Some(view),
            ArgValue::Inline(_) => None,
        })?;
        let rows = u32::try_from(bytes(op, name)? / (u64::from(cols) * 4)).ok()?;
        Some(Need::Rows { view, name, rows, cols, kept: symbol.contains("gate_up") })
    }

    fn kept(&self) -> bool {
        matches!(self, Need::Rows { kept: true, .. })
    }

    /// Bytes of the two parts.
    fn parts(self) -> [u64; 2] {
        match self {
            Need::Rows { rows, cols, .. } => {
                // Blocks of 128 rows; of 512 columns of one, 8 KiB of sums and factors.
                let values = u64::from(rows).next_multiple_of(SPLIT_BLOCK) * u64::from(cols);
                [values * 4, values / 8]
            }
            Need::Cache { capacity, kv_heads } => [u64::from(capacity) * u64::from(kv_heads) * 512; 2],
        }
    }

    /// Bytes in all.
    pub fn bytes(self) -> u64 {
        self.parts().iter().sum()
    }

    /// Where the two parts lie in the workspace; `None` where it is too small.
    pub fn places(self, workspace: Workspace) -> Option<[u64; 2]> {
        let (from, end) = match self.kept() {
            true => (workspace.places[0], workspace.bytes),
            false => (0, workspace.places[0].min(workspace.bytes)),
        };
        let first = workspace.address + from;
        (from + self.bytes() <= end).then_some([first, first + self.parts()[0]])
    }

    /// The kernel that makes it ready.
    pub fn launch(self) -> Launch {
        let (symbol, grid, threads) = match self {
            Need::Rows { rows, cols, .. } => {
                ("hopper_split_rows", [rows.div_ceil((SPLIT_VALUES / cols).max(1)).max(1), 1, 1], 256)
            }
            Need::Cache { capacity, kv_heads } => {
                ("hopper_attention_halves", [capacity.div_ceil(HALVES_POSITIONS), kv_heads, 1], 256)
            }
        };
        Launch { symbol, grid, threads, shared: 0, extra: vec![] }
    }

    /// That kernel's arguments, and the first bytes of its second parameter: from the arguments of the kernel that wants it,
    /// and the addresses among them.
    pub fn arguments(
        self,
        arguments: &[u8],
        address: impl Fn(&str) -> Option<u64>,
        places: [u64; 2],
    ) -> (Vec<u8>, Vec<u8>) {
        match self {
            Need::Rows { name, rows, cols, .. } => {
                // `SplitArgs` of split.cu; without a chunk all rows.
                let words = [address(name).unwrap_or(0), places[0], places[1], address("chunk").unwrap_or(0)];
                let mut out = bytemuck::cast_slice(&words).to_vec();
                out.extend_from_slice(bytemuck::cast_slice(&[rows, cols]));
                (out, Vec::new())
            }
            Need::Cache { .. } => (arguments.to_vec(), bytemuck::cast_slice(&places).to_vec()),
        }
    }
}

/// Kernels that find kept rows as they want them: the one before that wanted such wanted the same, and nothing has written the
/// input since. `needs[at]`: of the op that runs at place `at` of the order.
pub fn held(plan: &Plan, order: &[usize], needs: &[Option<Need>]) -> Vec<usize> {
    let mut now: Option<Need> = None;
    let mut out = Vec::new();
    for (at, need) in needs.iter().enumerate() {
        if need.is_some_and(|n| n.kept()) {
            if *need == now {
                out.push(at);
            }
            now = *need;
        }
        let spoiled = |view: &View| plan.ops[order[at]].writes.iter().any(|w| w.touches(view));
        if matches!(&now, Some(Need::Rows { view, .. }) if spoiled(view)) {
            now = None;
        }
    }
    out
}
