//! Does this machine's GPU compute what the kernels say? Every kernel against golden vectors, one by one.
//!
//! A case is the plan of a small model with random weights. Its ops run one at a time, each on the *golden* results of
//! those before it, so that an error shows at the kernel that made it; what belongs together (GDN of a chunk) runs together
//! as well. A device's kernels are judged by what they compute with: f32, or halves where the device says so. The golden vectors ([`Golden`]) were computed by
//! the soft device and lie in `golden.safetensors` beside this file; `cargo run --release -p lily-gpu --example
//! make_golden` makes them anew after a kernel, a plan or a case changed. Inputs are not stored: weights, caches and
//! states come from a generator that gives the same numbers on every machine.

mod cases;
mod compare;
mod golden;
mod isolate;
mod speed;

use std::{collections::BTreeMap, fmt, slice, time::Instant};

pub use cases::{Case, cases, tensor_cases};
pub use compare::Difference;
pub use golden::Golden;
pub use speed::{Speed, speeds};

use golden::Place;

use crate::{
    device::{Device, DeviceFacts},
    error::Result,
    kernels,
    plan::Op,
};

/// What became of one kernel in one place.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Host name of the kernel.
    pub kernel: String,
    /// Case and op.
    pub place: String,
    /// Every output against its golden vector.
    pub outputs: Vec<Difference>,
    /// Why it did not run, or could not be compared.
    pub problem: Option<String>,
    /// Seconds from submission to the end, once.
    pub seconds: f64,
    /// Bytes it reads and writes, as the plan declares.
    pub bytes: u64,
}

impl Outcome {
    /// Whether it ran and every output is right.
    pub fn passed(&self) -> bool {
        self.problem.is_none() && !self.outputs.is_empty() && self.outputs.iter().all(Difference::passed)
    }
}

/// All places of one kernel.
#[derive(Debug, Clone, Default)]
pub struct KernelReport {
    /// Places where it ran.
    pub runs: usize,
    /// Largest error as a share of what is allowed; above 1 is wrong.
    pub worst: f64,
    /// Largest error relative to the largest value of the output.
    pub max_error: f64,
    /// What is wrong, place by place.
    pub problems: Vec<String>,
    /// Seconds and bytes of the run that moved the most bytes.
    pub seconds: f64,
    /// See `seconds`.
    pub bytes: u64,
}

impl KernelReport {
    /// Whether it ran and was right everywhere.
    pub fn passed(&self) -> bool {
        self.runs > 0 && self.problems.is_empty()
    }

    fn add(&mut self, o: &Outcome) {
        self.runs += 1;
        for d in &o.outputs {
            self.worst = self.worst.max(d.share());
            self.max_error = self.max_error.max(d.error);
            if !d.passed() {
                self.problems.push(format!("{}: {d}", o.place));
            }
        }
        if let Some(problem) = &o.problem {
            self.problems.push(format!("{}: {problem}", o.place));
        } else if o.outputs.is_empty() {
            self.problems.push(format!("{}: nothing was compared", o.place));
        }
        if o.bytes > self.bytes {
            (self.bytes, self.seconds) = (o.bytes, o.seconds);
        }
    }
}

impl fmt::Display for KernelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.passed() { "ok" } else { "WRONG" };
        write!(
            f,
            "{state:<6} max error {:.1e}, {:>5.1} % of what is allowed",
            self.max_error,
            self.worst * 100.0
        )
    }
}

/// The cases of a device.
fn cases_of(device: &DeviceFacts) -> Result<Vec<Case>> {
    let mut all = cases()?;
    if device.tensor_ops {
        all.append(&mut tensor_cases()?);
    }
    Ok(all)
}

/// Runs every case. The result has an entry for every kernel; one that no case runs has no run and does not pass.
pub fn run(device: &mut dyn Device, golden: &Golden) -> Result<BTreeMap<String, KernelReport>> {
    let manifest = kernels::manifest_with(device.facts().tensor_ops)?;
    let mut reports: BTreeMap<String, KernelReport> =
        manifest.kernels.iter().map(|k| (k.name.clone(), KernelReport::default())).collect();
    for case in cases_of(device.facts())? {
        let mut contents = case.contents.clone();
        for (index, op) in case.plan.ops.iter().enumerate() {
            for op in isolate::variants(op) {
                let outcome = one(device, golden, &case, index, &op, &contents);
                reports.entry(op.kernel.clone()).or_default().add(&outcome);
            }
            if let Some(ops) = isolate::together(&case.plan, index) {
                let outcome = together(device, golden, &case, index, ops, &contents);
                reports.entry(outcome.kernel.clone()).or_default().add(&outcome);
            }
            golden.advance(&case, index, &mut contents)?;
        }
    }
    Ok(reports)
}

/// One op on golden inputs.
fn one(
    device: &mut dyn Device,
    golden: &Golden,
    case: &Case,
    index: usize,
    op: &Op,
    contents: &[Vec<u8>],
) -> Outcome {
    let mut outcome = Outcome {
        kernel: op.kernel.clone(),
        place: format!("{}, {}", case.name, op.label),
        outputs: Vec::new(),
        problem: None,
        seconds: 0.0,
        bytes: op.reads.iter().chain(&op.writes).map(|a| a.bytes).sum(),
    };
    let started = Instant::now();
    match isolate::run(device, &case.plan, slice::from_ref(op), contents) {
        Err(error) => outcome.problem = Some(error.to_string()),
        Ok(results) => {
            outcome.seconds = results.seconds;
            for (arg, got) in op.args.iter().zip(&results.outputs[0]) {
                let Some(got) = got else { continue };
                match golden.compare(case, Place::Alone(index), arg, results.precision, got) {
                    Ok(difference) => outcome.outputs.push(difference),
                    Err(problem) => outcome.problem = Some(problem),
                }
            }
        }
    }
    tracing::debug!("{} ({}): {:.1} ms", op.kernel, outcome.place, started.elapsed().as_secs_f64() * 1e3);
    outcome
}

/// Ops that belong together, the first at `index`, on golden inputs: what none of them passes to a later one is compared.
/// The outcome is the last one's.
fn together(
    device: &mut dyn Device,
    golden: &Golden,
    case: &Case,
    index: usize,
    ops: &[Op],
    contents: &[Vec<u8>],
) -> Outcome {
    let labels: Vec<&str> = ops.iter().map(|op| op.label.as_str()).collect();
    let mut outcome = Outcome {
        kernel: ops.last().map(|op| op.kernel.clone()).unwrap_or_default(),
        place: format!("{}, {} together", case.name, labels.join(", ")),
        outputs: Vec::new(),
        problem: None,
        seconds: 0.0,
        bytes: 0,
    };
    match isolate::run(device, &case.plan, ops, contents) {
        Err(error) => outcome.problem = Some(error.to_string()),
        Ok(results) => {
            for (at, op) in ops.iter().enumerate() {
                for (arg, got) in op.args.iter().zip(&results.outputs[at]) {
                    let Some(got) = got.as_ref().filter(|_| !isolate::passes_on(ops, at, arg)) else {
                        continue;
                    };
                    match golden.compare(case, Place::Together(index + at), arg, results.precision, got) {
                        Ok(difference) => outcome.outputs.push(difference),
                        Err(problem) => outcome.problem = Some(problem),
                    }
                }
            }
        }
    }
    outcome
}

/// Computes golden vectors on a device, which should be the soft one with tensor operations: it runs every case.
pub fn record(device: &mut dyn Device) -> Result<Golden> {
    let mut golden = Golden::default();
    for case in cases_of(device.facts())? {
        let mut contents = case.contents.clone();
        for (index, op) in case.plan.ops.iter().enumerate() {
            let results = isolate::run(device, &case.plan, slice::from_ref(op), &contents)?;
            for (arg, got) in op.args.iter().zip(&results.outputs[0]) {
                if let Some(got) = got {
                    golden.keep(&case, Place::Alone(index), arg, got);
                }
            }
            if let Some(ops) = isolate::together(&case.plan, index) {
                let results = isolate::run(device, &case.plan, ops, &contents)?;
                for (at, op) in ops.iter().enumerate() {
                    for (arg, got) in op.args.iter().zip(&results.outputs[at]) {
                        if let Some(got) = got.as_ref().filter(|_| !isolate::passes_on(ops, at, arg)) {
                            golden.keep(&case, Place::Together(index + at), arg, got);
                        }
                    }
                }
            }
            golden.advance(&case, index, &mut contents)?;
        }
    }
    Ok(golden)
}
