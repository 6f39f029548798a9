//! Results as lines, JSON, CSV and a plot.

use std::{fmt, fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use lily_engine::MemoryFigures;
use plotters::prelude::*;
use serde::Serialize;

use super::{cost::DecodeBytes, measure::Measured};

/// The machine's limits.
#[derive(Debug, Clone, Serialize)]
pub struct Floor {
    /// Threads used.
    pub threads: usize,
    /// Read bandwidth, GB/s.
    pub read_gbps: f64,
    /// 8-bit dot product peak, 10^9 operations a second.
    pub int8_gops: Option<f64>,
    /// BF16 dot product peak, GFLOP/s.
    pub bf16_gflops: Option<f64>,
    /// F32 fused multiply-add peak, GFLOP/s.
    pub f32_gflops: Option<f64>,
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peak = |p: Option<f64>| p.map_or("none".to_string(), |p| format!("{p:.0}"));
        write!(
            f,
            "floor: {} threads read {:.1} GB/s; peak int8 {} GOP/s, bf16 {} GFLOP/s, f32 {} GFLOP/s",
            self.threads,
            self.read_gbps,
            peak(self.int8_gops),
            peak(self.bf16_gflops),
            peak(self.f32_gflops)
        )
    }
}

/// One measurement.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Row {
    /// A prompt of `tokens` tokens.
    Prefill {
        /// Prompt length.
        tokens: usize,
        /// Median tokens a second.
        tok_s: f64,
        /// Slowest and fastest repeat.
        range: [f64; 2],
        /// Operations counted over time, GFLOP/s.
        gflops: f64,
        /// Of the 8-bit peak, where there is one, else of the f32 peak.
        share_of_peak: Option<f64>,
    },
    /// Steps after a prompt of `context` tokens.
    Decode {
        /// Prompt length.
        context: usize,
        /// Sequences decoded together.
        batch: usize,
        /// Median tokens a second, all sequences together.
        tok_s: f64,
        /// Slowest and fastest repeat.
        range: [f64; 2],
        /// Median milliseconds a step.
        ms: f64,
        /// Bytes that had to move over time, GB/s (batch 1 only: experts shared by a batch are not counted).
        gbps: Option<f64>,
        /// Of the read bandwidth.
        share_of_floor: Option<f64>,
        /// Those bytes.
        bytes: DecodeBytes,
    },
}

/// Everything one `lily bench` run found.
#[derive(Debug, Serialize)]
pub struct Report {
    model: String,
    device: String,
    version: &'static str,
    threads: usize,
    batch: usize,
    /// The processor's limits, measured in this run where it is what computes.
    pub floor: Option<Floor>,
    results: Vec<Row>,
    /// Bytes in use at the end.
    pub memory: Memory,
}

/// [`MemoryFigures`] and the process's peak, in bytes.
#[derive(Debug, Default, Serialize)]
pub struct Memory {
    weights: usize,
    kv: usize,
    state: usize,
    scratch: usize,
    /// Peak resident set of the process, where the system tells.
    peak_rss: Option<usize>,
}

impl From<MemoryFigures> for Memory {
    fn from(m: MemoryFigures) -> Self {
        Self { weights: m.weights, kv: m.kv, state: m.state, scratch: m.scratch, peak_rss: peak_rss() }
    }
}

/// `VmHWM` of Linux, in bytes.
fn peak_rss() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kib| kib * 1024)
}

fn median_and_range(mut rates: Vec<f64>) -> (f64, [f64; 2]) {
    rates.sort_by(f64::total_cmp);
    let n = rates.len();
    let median = if n % 2 == 1 { rates[n / 2] } else { (rates[n / 2 - 1] + rates[n / 2]) / 2.0 };
    (median, [rates[0], rates[n - 1]])
}

impl Report {
    /// An empty report.
    pub fn new(model: &str, device: &str, threads: usize, batch: usize, floor: Option<Floor>) -> Self {
        Self {
            model: model.to_string(),
            device: device.to_string(),
            version: env!("CARGO_PKG_VERSION"),
            threads,
            batch,
            floor,
            results: Vec::new(),
            memory: Memory::default(),
        }
    }

    /// Adds and prints the prefill figure, if anything was computed.
    pub fn add_prefill(&mut self, tokens: usize, times: &[Duration], operations: f64) {
        if times.is_empty() {
            return;
        }
        let rates = times.iter().map(|t| tokens as f64 / t.as_secs_f64()).collect();
        let (tok_s, range) = median_and_range(rates);
        let gflops = operations / (tokens as f64 / tok_s) / 1e9;
        let peak = self.floor.as_ref().and_then(|f| f.int8_gops.or(f.f32_gflops));
        let share_of_peak = peak.map(|p| gflops / p);
        println!(
            "prefill {tokens:>7}  {tok_s:>9.1} tok/s  {gflops:>8.1} GFLOP/s{}",
            share_of_peak.map_or(String::new(), |s| format!("  {:.1} % of the multiply-add peak", 100.0 * s))
        );
        self.results.push(Row::Prefill { tokens, tok_s, range, gflops, share_of_peak });
    }

    /// Adds and prints the decode figure of `runs`.
    pub fn add_decode(&mut self, context: usize, runs: &[Measured], bytes: &DecodeBytes) {
        let batch = self.batch;
        let rates = runs.iter().map(|r| (batch * r.steps) as f64 / r.decode.as_secs_f64()).collect();
        let (tok_s, range) = median_and_range(rates);
        let ms = 1e3 * batch as f64 / tok_s;
        let gbps = (batch == 1).then(|| bytes.total() as f64 * tok_s / 1e9);
        let share_of_floor = gbps.zip(self.floor.as_ref()).map(|(g, floor)| g / floor.read_gbps);
        println!(
            "decode  {context:>7}  {tok_s:>9.2} tok/s  {ms:>8.2} ms/step{}{}",
            gbps.map_or(String::new(), |g| format!("  {g:.1} GB/s")),
            share_of_floor.map_or(String::new(), |s| format!(", {:.1} % of the floor", 100.0 * s))
        );
        self.results.push(Row::Decode {
            context,
            batch,
            tok_s,
            range,
            ms,
            gbps,
            share_of_floor,
            bytes: *bytes,
        });
    }

    /// One line of memory figures.
    pub fn memory_line(&self) -> String {
        let mib = |b: usize| b as f64 / (1 << 20) as f64;
        let m = &self.memory;
        let peak = m.peak_rss.map_or(String::new(), |p| format!("; peak resident {:.0} MiB", mib(p)));
        format!("memory: weights {:.0} MiB, scratch {:.0} MiB{peak}", mib(m.weights), mib(m.scratch))
    }

    /// Writes the files that were asked for.
    pub fn write(&self, json: Option<&Path>, csv: Option<&Path>, svg: Option<&Path>) -> Result<()> {
        if let Some(path) = json {
            let text = serde_json::to_string_pretty(self)? + "\n";
            fs::write(path, text).with_context(|| format!("--json {}", path.display()))?;
        }
        if let Some(path) = csv {
            fs::write(path, self.csv()).with_context(|| format!("--csv {}", path.display()))?;
        }
        if let Some(path) = svg {
            self.plot(path).with_context(|| format!("--svg {}", path.display()))?;
        }
        Ok(())
    }

    fn csv(&self) -> String {
        let mut out = String::from("kind,tokens,batch,tok_s,slowest,fastest,gflops,gbps,share\n");
        let number = |v: Option<f64>| v.map_or(String::new(), |v| format!("{v:.4}"));
        for row in &self.results {
            out += &match row {
                Row::Prefill { tokens, tok_s, range, gflops, share_of_peak } => format!(
                    "prefill,{tokens},1,{tok_s:.3},{:.3},{:.3},{gflops:.2},,{}\n",
                    range[0],
                    range[1],
                    number(*share_of_peak)
                ),
                Row::Decode { context, batch, tok_s, range, gbps, share_of_floor, .. } => format!(
                    "decode,{context},{batch},{tok_s:.3},{:.3},{:.3},,{},{}\n",
                    range[0],
                    range[1],
                    number(*gbps),
                    number(*share_of_floor)
                ),
            };
        }
        out
    }

    /// Tokens a second over prompt length, both axes logarithmic.
    fn plot(&self, path: &Path) -> Result<()> {
        let mut prefill: Vec<(f64, f64)> = Vec::new();
        let mut decode: Vec<(f64, f64)> = Vec::new();
        for row in &self.results {
            match row {
                Row::Prefill { tokens, tok_s, .. } => prefill.push((*tokens as f64, *tok_s)),
                Row::Decode { context, tok_s, .. } => decode.push((*context as f64, *tok_s)),
            }
        }
        let all = || prefill.iter().chain(&decode);
        let bound =
            |f: fn(&(f64, f64)) -> f64, pick: fn(f64, f64) -> f64, start| all().map(f).fold(start, pick);
        let x = bound(|p| p.0, f64::min, f64::MAX) / 1.3..bound(|p| p.0, f64::max, 0.0) * 1.3;
        let y = bound(|p| p.1, f64::min, f64::MAX) / 1.5..bound(|p| p.1, f64::max, 0.0) * 1.5;

        let root = SVGBackend::new(path, (860, 520)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(format!("{} on {}", self.model, self.device), ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(x.log_scale(), y.log_scale())?;
        chart.configure_mesh().x_desc("prompt tokens").y_desc("tokens a second").draw()?;
        for (name, points, colour) in [("prefill", prefill, BLUE), ("decode", decode, RED)] {
            chart
                .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
            chart.draw_series(points.iter().map(|&p| Circle::new(p, 4, colour.filled())))?;
        }
        chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
        root.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median_and_range(vec![3.0, 1.0, 2.0]), (2.0, [1.0, 3.0]));
        assert_eq!(median_and_range(vec![4.0, 1.0]), (2.5, [1.0, 4.0]));
    }
}
