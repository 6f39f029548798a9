//! `lily pull`: a checkpoint from a model hub.

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lily_model::Checkpoint;

use crate::{
    output,
    pull::{Hub, Progress, Transfer, fetch},
};

/// Download a checkpoint: resumes where it broke off, verifies every file.
///
/// Files go to DIR, by default the data directory's `models/NAME`. They are verified against the sizes and hashes that
/// the hub lists, and the checkpoint is then checked tensor by tensor. Run the command again after an interruption: it
/// goes on where it was, and files that are there and right are not downloaded again.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// Repository on the hub.
    #[arg(
        value_name = "OWNER/NAME",
        default_value = "mlx-community/Qwen3.6-35B-A3B-4bit",
        env = "LILY_PULL_REPO"
    )]
    repo: String,

    /// Branch, tag or commit. The commit it stands for is printed; give that one to get the same files again.
    #[arg(long, value_name = "REVISION", default_value = "main", env = "LILY_PULL_REVISION")]
    revision: String,

    /// Where to put the checkpoint.
    #[arg(long, value_name = "DIR", env = "LILY_PULL_TO")]
    to: Option<PathBuf>,

    /// The hub.
    #[arg(long, value_name = "URL", default_value = "https://huggingface.co", env = "HF_ENDPOINT")]
    endpoint: String,

    /// List the files and their sizes, and stop.
    #[arg(long, env = "LILY_PULL_DRY_RUN")]
    dry_run: bool,
}

/// Runs the command.
pub fn run(args: &PullArgs) -> Result<()> {
    // Fails only when a provider is installed already, which then serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(pull(args))
}

async fn pull(args: &PullArgs) -> Result<()> {
    let hub = Hub::new(&args.endpoint, env::var("HF_TOKEN").ok().filter(|t| !t.is_empty()))?;
    let listing = hub.list(&args.repo, &args.revision).await?;
    let total: u64 = listing.files.iter().map(|f| f.size).sum();
    let dir = match &args.to {
        Some(dir) => dir.clone(),
        None => data_dir()?.join("models").join(listing.repo.rsplit('/').next().unwrap_or_default()),
    };
    output::print(&output::table(&[
        ("repository", listing.repo.clone()),
        ("commit", listing.commit.clone()),
        ("licence", listing.license.clone().unwrap_or_else(|| "not stated; see the repository".into())),
        ("files", format!("{}, {}", listing.files.len(), output::size(total as usize))),
        ("to", dir.display().to_string()),
    ]))?;
    if args.dry_run {
        let rows: Vec<_> =
            listing.files.iter().map(|f| (f.name.as_str(), output::size(f.size as usize))).collect();
        return Ok(output::print(&output::table(&rows))?);
    }
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;

    let mut bar = Bar::new(total);
    for file in &listing.files {
        bar.0.set_message(file.name.clone());
        if fetch(&hub, &listing, file, &dir, &mut bar).await? == Transfer::Present {
            tracing::info!(file = file.name, "there already");
        }
    }
    bar.0.finish_and_clear();

    let checkpoint = Checkpoint::open(&dir)?;
    checkpoint.weights()?;
    let tensors = checkpoint.load_report().map_or(0, |r| r.tensors);
    let quoted = dir.display();
    Ok(output::print(&format!(
        "verified: {} files, {tensors} tensors\n\n  lily chat {quoted}\n",
        listing.files.len()
    ))?)
}

/// Where programs of this user keep their data.
fn data_dir() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
    Ok(base.context("HOME is not set; say where with --to DIR")?.join("lily"))
}

/// One bar for all files, on stderr when that is a terminal.
struct Bar(ProgressBar);

impl Bar {
    fn new(total: u64) -> Self {
        let style = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left  {wide_msg}";
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::new(total).with_style(style))
    }
}

impl Progress for Bar {
    fn advance(&mut self, bytes: u64) {
        self.0.inc(bytes);
    }

    fn restart(&mut self, bytes: u64) {
        self.0.set_position(self.0.position().saturating_sub(bytes));
    }

    fn say(&mut self, text: &str) {
        // Above the bar on a terminal, a plain line elsewhere.
        self.0.suspend(|| eprintln!("{text}"));
    }
}
