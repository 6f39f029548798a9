//! `lily audit`: what left this machine.

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use lily_hybrid::audit::{LOG_FILE, find, receipt, verify};
use serde_json::Value;

use crate::{gate_setup::AuditDir, output::print};

/// Show and check the log of everything that left this machine.
///
/// `lily serve --cloud` writes it, before the first byte of a request leaves.
#[derive(Debug, Args)]
pub struct AuditArgs {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    directory: AuditDir,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the bytes of a request, exactly as they left.
    Show {
        /// Its id (`x-lily-audit` of the answer).
        #[arg(value_name = "ID")]
        id: String,
        /// The whole line of the log instead: spans, hashes, times.
        #[arg(long)]
        record: bool,
    },
    /// Check that no line was changed, removed or moved.
    ///
    /// A chain written by the machine's own user proves order and wholeness, not honesty.
    Verify,
    /// Print a receipt for people: what was sent where, what was masked, under which consent, and what came back.
    Receipt {
        /// Its id.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// List the requests, newest last.
    List,
}

/// Runs the command.
pub fn run(args: &AuditArgs) -> Result<()> {
    let directory = args.directory.path()?;
    let log = directory.join(LOG_FILE);
    anyhow::ensure!(
        log.exists(),
        "{} does not exist: no server with --cloud has run with this directory; --audit-dir names another",
        log.display()
    );
    match &args.command {
        Command::Show { id, record } => {
            let (line, _) = find(&directory, id)?;
            if *record {
                return Ok(print(&format!("{}\n", serde_json::to_string_pretty(&line)?))?);
            }
            let body = line["body"].as_str();
            let body =
                body.ok_or_else(|| anyhow::anyhow!("{id} is not a request: it has no body; see --record"))?;
            Ok(print(body)?)
        }
        Command::Verify => {
            let found = verify(&directory)?;
            let key = if found.keyed {
                "and written by this installation"
            } else {
                "(the installation's key is not there)"
            };
            let torn =
                if found.torn > 0 { format!("; {} were cut by a crash", found.torn) } else { String::new() };
            Ok(print(&format!(
                "{}: {} lines are whole, in order {key}; {} requests{torn}\n",
                log.display(),
                found.lines,
                found.requests
            ))?)
        }
        Command::Receipt { id } => {
            let (line, about) = find(&directory, id)?;
            Ok(print(&receipt(&line, &about))?)
        }
        Command::List => {
            let text = std::fs::read_to_string(&log).with_context(|| log.display().to_string())?;
            let mut out = String::new();
            for line in text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok()) {
                if line["kind"] == "request" {
                    let word = |key: &str| line[key].as_str().unwrap_or("-").to_owned();
                    let bytes = line["body"].as_str().map_or(0, str::len);
                    out += &format!(
                        "{}  {}  {:>8} bytes  {}  {}\n",
                        word("id"),
                        word("time"),
                        bytes,
                        word("verdict"),
                        word("destination")
                    );
                }
            }
            Ok(print(&out)?)
        }
    }
}
