//! Reading a large checkpoint's weights before its first prompt, with a progress bar.

use indicatif::{ProgressBar, ProgressStyle};
use lily_model::Checkpoint;

/// Reads the weight files from the disk into memory when they fit there. Fast when they are there already.
///
/// Where they do not fit, every page read here would push out another one, so nothing is read.
pub fn read_weights(checkpoint: &Checkpoint) {
    let Some(bytes) = checkpoint.load_report().map(|r| r.bytes) else { return };
    if available_memory().is_some_and(|available| bytes > available) {
        tracing::info!(bytes, "the weights do not fit into free memory; reading them as they are used");
        return;
    }
    let style = "reading the weights {bar:30} {bytes}/{total_bytes} {bytes_per_sec}";
    // Shown on a terminal only, and gone when done.
    let bar = ProgressBar::new(bytes as u64)
        .with_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
    checkpoint.read_ahead(|done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
}

/// Bytes that can be used without swapping, pages of files that can be dropped included; `None` where the system does
/// not say.
fn available_memory() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? << 10)
}
