//! Where a step's time goes: graphs of the plan's kernels of one kind, timed.

use std::sync::Arc;

use super::{CudaDevice, driver::Graph, failed};
use crate::{device::PlanHandle, error::Result, plan::Plan};

/// The launches of one kind in a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct OpTime {
    /// What they compute: the op's label without its layer.
    pub what: String,
    /// The kernel that runs.
    pub kernel: String,
    /// Launches a step.
    pub launches: usize,
    /// Bytes they must move, as the plan counts them.
    pub bytes: u64,
    /// Milliseconds a step when only they run, one after the other: median.
    pub ms: f64,
    /// Registers a thread, bytes of local memory a thread, static shared memory.
    pub resources: [u32; 3],
}

/// Label without the layer: `layers.3.gdn.in` is `gdn.in`.
fn kind(label: &str) -> &str {
    let rest = label.strip_prefix("layers.").and_then(|r| r.split_once('.'));
    rest.map_or(label, |r| r.1)
}

impl CudaDevice {
    /// The plan of a handle.
    pub fn plan(&self, handle: PlanHandle) -> Option<Arc<Plan>> {
        self.plans.get(&handle.0).map(|p| p.plan.clone())
    }

    /// Symbols of the kernels that run for each op, in the plan's order of levels.
    pub fn kernels_of(&self, handle: PlanHandle) -> Vec<String> {
        self.plans
            .get(&handle.0)
            .map(|p| p.launches.iter().map(|l| l.symbol.clone()).collect())
            .unwrap_or_default()
    }

    /// Times the plan's graph as it is: milliseconds a step, one of `repeats` each. The input buffer keeps what it had.
    pub fn time_plan(&mut self, handle: PlanHandle, repeats: usize) -> Result<Vec<f64>> {
        let p = self.plans.get(&handle.0).ok_or_else(|| failed("an unknown plan".into()))?;
        self.time(&p.graph, repeats)
    }

    /// Times every kind of op of a plan alone, over all layers, so that weights come from memory as they do in a step.
    pub fn time_ops(&mut self, handle: PlanHandle, repeats: usize) -> Result<Vec<OpTime>> {
        let p = self.plans.get(&handle.0).ok_or_else(|| failed("an unknown plan".into()))?;
        let order: Vec<usize> = p.plan.levels.iter().flatten().copied().collect();
        let mut kinds: Vec<String> = Vec::new();
        for &i in &order {
            let k = kind(&p.plan.ops[i].label).to_string();
            if !kinds.contains(&k) {
                kinds.push(k);
            }
        }
        let mut out = Vec::new();
        for what in kinds {
            let of_kind: Vec<(usize, usize)> = order
                .iter()
                .enumerate()
                .filter(|(_, i)| kind(&p.plan.ops[**i].label) == what)
                .map(|(at, &i)| (at, i))
                .collect();
            let graph = self.graph(of_kind.iter().map(|&(at, _)| &p.launches[at]))?;
            let times = self.time(&graph, repeats);
            self.driver.destroy(graph);
            let first = &p.launches[of_kind[0].0];
            let bytes = |i: usize| {
                let op = &p.plan.ops[i];
                op.reads.iter().chain(&op.writes).map(|a| a.bytes).sum::<u64>()
            };
            out.push(OpTime {
                kernel: first.symbol.clone(),
                launches: of_kind.len(),
                bytes: of_kind.iter().map(|&(_, i)| bytes(i)).sum(),
                ms: median(&mut times?),
                resources: self.driver.resources(first.function)?,
                what,
            });
        }
        Ok(out)
    }

    fn time(&self, graph: &Graph, repeats: usize) -> Result<Vec<f64>> {
        let (from, to) = (self.driver.event()?, self.driver.event()?);
        for _ in 0..3 {
            self.driver.start(graph)?;
        }
        self.driver.sync(self.driver.main)?;
        (0..repeats)
            .map(|_| {
                self.driver.mark(&from)?;
                self.driver.start(graph)?;
                self.driver.mark(&to)?;
                self.driver.wait(&to)?;
                Ok(self.driver.elapsed(&from, &to)? as f64)
            })
            .collect()
    }
}

/// The middle of some times.
pub(crate) fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    #[test]
    fn kinds() {
        assert_eq!(super::kind("layers.13.gdn.in"), "gdn.in");
        assert_eq!(super::kind("lm_head"), "lm_head");
    }
}
