//! The `lily` command.

mod answer;
mod audit;
mod bench;
mod cold_start;
mod commands;
mod device;
mod embedded;
mod gate;
mod gate_eval;
mod gate_setup;
mod load;
mod output;
mod pull;

use std::{io, process::ExitCode};

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// A local inference engine for Qwen3.6-35B-A3B.
///
/// Any checkpoint of the same architecture runs (MLX layout, 4 bits). Without one, the commands use lily-mini, a
/// small English dictionary that chats, which is inside this program.
#[derive(Debug, Parser)]
#[command(
    name = "lily",
    version,
    after_help = "Examples:\n  \
        lily run \"define heron\"              one answer\n  \
        lily chat                            talk\n  \
        lily serve --port 8080               an OpenAI-compatible API\n  \
        lily pull                            download Qwen3.6-35B-A3B\n  \
        lily serve ~/models/Qwen3.6-35B-A3B  with another model\n  \
        lily check ~/models/Qwen3.6-35B-A3B  is a checkpoint whole? what does it need?\n  \
        lily selftest                        does this machine's GPU compute what it should?\n\n\
        Every flag can also be set by an environment variable, shown in each command's --help."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// What to log to stderr: error, warn, info, debug, trace, or a filter such as `lily_engine=debug`.
    #[arg(long, global = true, default_value = "warn", value_name = "FILTER", env = "LILY_LOG")]
    log: String,
}

/// Each command's own arguments say what it does.
#[derive(Debug, Subcommand)]
enum Command {
    Serve(commands::serve::ServeArgs),
    Chat(commands::chat::ChatArgs),
    Run(commands::run::RunArgs),
    Pull(commands::pull::PullArgs),
    Check(commands::check::CheckArgs),
    Eval(commands::eval::EvalArgs),
    Bench(bench::BenchArgs),
    Selftest(commands::selftest::SelftestArgs),
    Logits(commands::logits::LogitsArgs),
    Render(commands::render::RenderArgs),
    Tokenize(commands::tokenize::TokenizeArgs),
    Gate(gate::GateArgs),
    Audit(audit::AuditArgs),
    Parse(commands::parse::ParseArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = start_log(&cli.log) {
        eprintln!("error: --log {:?}: {error}", cli.log);
        return ExitCode::from(2);
    }
    let result = match cli.command {
        Command::Serve(args) => commands::serve::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Pull(args) => commands::pull::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Eval(args) => commands::eval::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Selftest(args) => commands::selftest::run(&args),
        Command::Logits(args) => commands::logits::run(&args),
        Command::Render(args) => commands::render::run(&args),
        Command::Tokenize(args) => commands::tokenize::run(&args),
        Command::Gate(args) => gate::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Parse(args) => commands::parse::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough (`lily ... | head`).
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", output::error_text(&error));
            ExitCode::FAILURE
        }
    }
}

fn start_log(filter: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let filter: EnvFilter = filter.parse()?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).try_init()
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
