//! `lily selftest`: does this machine compute what it should?

use std::{env::consts, fmt::Write as _, fs, path::PathBuf, sync::Arc};

use anyhow::{Context, Result, bail};
use clap::Args;
use lily_engine::{Backend, Logits, evaluate};
use lily_gpu::{
    Device as GpuDevice,
    budget::free_memory,
    selftest::{self, Golden, KernelReport, Speed},
};
use lily_model::Checkpoint;
use lily_text::RenderRequest;
use serde_json::{Map, Value, json};

use crate::{
    device::{self, Device},
    output::{self, print},
};

/// Check that this machine's GPU computes what it should.
///
/// Runs every kernel on made-up numbers and compares the results with those of the software GPU, which are inside this
/// program; then lily-mini against the f32 reference. Prints a line a kernel: its largest error, and on a real GPU how
/// fast it moves bytes at the sizes of the 35B model. Ends with an error when something is wrong. The same text goes to a
/// file that can be attached to an issue; nothing is sent anywhere.
#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// Device to check.
    #[arg(long, value_enum, default_value_t = Device::Auto, env = "LILY_DEVICE")]
    device: Device,

    /// The file for the report.
    #[arg(long, value_name = "FILE", default_value = "lily-selftest.txt", env = "LILY_SELFTEST_REPORT")]
    report: PathBuf,

    /// Do not measure speeds.
    #[arg(long)]
    no_speed: bool,

    /// Compute threads of the CPU; 0 = one a core.
    #[arg(long, default_value_t = 0, value_name = "N", env = "LILY_THREADS")]
    threads: usize,
}

/// Held-out sequences that lily-mini is checked on, and tokens of each.
const SEQUENCES: usize = 3;
const TOKENS: usize = 48;
/// Bars for a device whose matrix inputs have 16 bits (design: testing), on the few positions there are: top-1 agreement and
/// mean KL divergence against the f32 reference.
const TOP1: f64 = 0.99;
const KL: f64 = 5e-4;
/// What lily-mini is asked, and most tokens of its answer.
const QUESTION: &str = "define heron";
const ANSWER: usize = 24;

/// What is printed, kept for the file.
#[derive(Default)]
struct Report(String);

impl Report {
    fn line(&mut self, line: &str) -> Result<()> {
        let _ = writeln!(self.0, "{line}");
        Ok(print(&format!("{line}\n"))?)
    }
}

/// Runs the command.
pub fn run(args: &SelftestArgs) -> Result<()> {
    let mut report = Report::default();
    let result = check(args, &mut report);
    match &result {
        Ok(wrong) if wrong.is_empty() => report.line("everything is right")?,
        Ok(wrong) => report.line(&format!("WRONG: {}", wrong.join(", ")))?,
        Err(error) => report.line(&format!("could not be checked: {}", output::error_text(error)))?,
    }
    fs::write(&args.report, &report.0).with_context(|| args.report.display().to_string())?;
    eprintln!("{}: the report, to attach to an issue", args.report.display());
    let wrong = result?;
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("{} of this machine's results are wrong: {}", wrong.len(), wrong.join(", "))
}

/// What is wrong, by name.
fn check(args: &SelftestArgs, report: &mut Report) -> Result<Vec<String>> {
    report.line(&format!("lily {} selftest, {} {}", env!("CARGO_PKG_VERSION"), consts::OS, consts::ARCH))?;
    let mut wrong = Vec::new();
    match device::open_gpu(args.device)? {
        Some(mut gpu) => wrong.append(&mut kernels(args, report, gpu.as_mut())?),
        None => report.line("the device runs no GPU kernels; only the model is checked")?,
    }
    if !model(args, report)? {
        wrong.push("lily-mini".into());
    }
    Ok(wrong)
}

fn facts(report: &mut Report, gpu: &dyn GpuDevice) -> Result<()> {
    let f = gpu.facts();
    let size = |bytes: u64| match usize::try_from(bytes) {
        Ok(bytes) if bytes < usize::MAX => output::size(bytes),
        _ => "no limit".into(),
    };
    let yes = |b: bool| if b { "yes" } else { "no" }.to_string();
    let rows = [
        ("device", format!("{}: {}", f.kind, f.name)),
        ("memory it may use", f.memory.map_or("no limit of its own".into(), size)),
        ("largest buffer", size(f.largest_buffer)),
        ("shares the CPU's memory", yes(f.unified)),
        ("tensor operations", yes(f.tensor_ops)),
        ("free at the moment", free_memory().map_or("unknown".into(), size)),
    ];
    report.line(output::table(&rows).trim_end())
}

/// Every kernel; the names of those that are wrong.
fn kernels(args: &SelftestArgs, report: &mut Report, gpu: &mut dyn GpuDevice) -> Result<Vec<String>> {
    facts(report, gpu)?;
    let results = selftest::run(gpu, &Golden::embedded()?)?;
    // A software GPU says nothing about speed, and takes its time to say it.
    let measured = !args.no_speed && gpu.facts().kind != lily_gpu::device::soft::NAME;
    let speeds = if measured { selftest::speeds(gpu, |_| ())? } else { Vec::new() };
    let width = results.keys().map(String::len).max().unwrap_or(0);
    let mut wrong = Vec::new();
    for (kernel, result) in &results {
        let speed = speeds.iter().find(|s| s.kernel == *kernel);
        report.line(&format!("{kernel:width$}  {result}  {}", speed_text(result, speed)))?;
        for problem in &result.problems {
            report.line(&format!("{:width$}  {problem}", ""))?;
        }
        if !result.passed() {
            wrong.push(kernel.clone());
        }
    }
    report.line(&format!("{} of {} kernels are right", results.len() - wrong.len(), results.len()))?;
    Ok(wrong)
}

fn speed_text(result: &KernelReport, speed: Option<&Speed>) -> String {
    match speed {
        Some(s) => {
            let speed = match s.gflop_per_s() {
                Some(n) => format!("{n:7.0} GFLOP/s"),
                None => format!("{:7.1} GB/s", s.gb_per_s()),
            };
            format!("{speed} ({:.1} us, {})", s.seconds * 1e6, s.label)
        }
        // One dispatch with the way to the device and back: tells a hang from a crawl, not more.
        None => format!("{:7.2} ms, {} runs", result.seconds * 1e3, result.runs),
    }
}

/// lily-mini on the device against the f32 reference.
fn model(args: &SelftestArgs, report: &mut Report) -> Result<bool> {
    let checkpoint = device::open_checkpoint(None)?;
    let weights = Arc::new(checkpoint.weights()?);
    let mut reference = device::backend(Device::Reference, weights.clone(), args.threads, false)?;
    let mut backend = device::backend(args.device, weights, args.threads, false)?;
    let e = evaluate(reference.as_mut(), backend.as_mut(), &sequences(&checkpoint)?, TOKENS, |_| ())?;
    let right = e.top1_agreement >= TOP1 && e.mean_kl <= KL;
    report.line(&format!(
        "lily-mini on {}: {} {} positions, top-1 agreement {:.2} % (at least {:.0}), mean KL {:.1e} (at most {KL:.0e}), \
         largest logit difference {:.1e}",
        e.backend,
        if right { "ok," } else { "WRONG," },
        e.positions,
        e.top1_agreement * 100.0,
        TOP1 * 100.0,
        e.mean_kl,
        e.max_logit_difference
    ))?;
    let (ours, theirs) = (answer(&checkpoint, backend.as_mut())?, answer(&checkpoint, reference.as_mut())?);
    let same = ours == theirs;
    report.line(&format!("{QUESTION}: {}{ours:?}", if same { "ok, " } else { "WRONG, " }))?;
    if !same {
        report.line(&format!("expected {theirs:?}"))?;
    }
    Ok(right && same)
}

/// The beginnings of the first held-out sequences.
fn sequences(checkpoint: &Checkpoint) -> Result<Vec<Vec<u32>>> {
    let bytes = checkpoint.file("heldout.json").context("lily-mini has no heldout.json")?;
    let value: Value = serde_json::from_slice(&bytes).context("heldout.json: not JSON")?;
    let list = value.get("sequences").unwrap_or(&value).clone();
    let all: Vec<Vec<u32>> =
        serde_json::from_value(list).context("heldout.json: expected lists of token ids")?;
    let chosen: Vec<Vec<u32>> = all
        .into_iter()
        .filter(|s| s.len() > 1)
        .take(SEQUENCES)
        .map(|mut s| {
            s.truncate(TOKENS);
            s
        })
        .collect();
    if chosen.is_empty() {
        bail!("heldout.json holds no sequence");
    }
    Ok(chosen)
}

/// The most likely answer to the question.
fn answer(checkpoint: &Checkpoint, backend: &mut dyn Backend) -> Result<String> {
    let text = device::text_of(checkpoint)?;
    let kwargs: Map<String, Value> = [("add_generation_prompt", true), ("enable_thinking", false)]
        .into_iter()
        .map(|(name, value)| (name.to_string(), value.into()))
        .collect();
    let messages = vec![json!({"role": "user", "content": QUESTION})];
    let (_, prompt) = text.render_ids(&RenderRequest { messages, tools: None, kwargs }, true)?;
    let sequence = backend.new_sequence(prompt.len() + ANSWER)?;
    let mut logits = Vec::new();
    let chunks: Vec<&[u32]> = prompt.chunks(backend.max_chunk().max(1)).collect();
    for (i, chunk) in chunks.iter().enumerate() {
        let wanted = if i + 1 == chunks.len() { Logits::Last } else { Logits::None };
        backend.prefill(sequence, chunk, wanted, &mut logits)?;
    }
    let stop = &checkpoint.generation().eos_token_ids;
    let valid = checkpoint.valid_vocab();
    let mut ids = Vec::new();
    while ids.len() < ANSWER {
        let best = logits[..valid.min(logits.len())]
            .iter()
            .enumerate()
            .fold((0, f32::NEG_INFINITY), |best, (i, &x)| if x > best.1 { (i, x) } else { best });
        let id = u32::try_from(best.0).unwrap_or(u32::MAX);
        if stop.contains(&id) {
            break;
        }
        ids.push(id);
        backend.decode(&[(sequence, id)], &mut logits)?;
    }
    backend.free_sequence(sequence);
    Ok(text.tokenizer.decode(&ids, true))
}
