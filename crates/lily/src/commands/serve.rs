//! `lily serve`: the HTTP API.

use std::{net::IpAddr, path::PathBuf, process, time::Instant};

use anyhow::{Context, Result};
use clap::Args;
use lily_engine::CacheOptions;
use lily_server::{Server, ServerConfig};

use crate::{
    gate_setup::CloudArgs,
    load::{self, Loaded, Serving, Thinking},
    output::{grouped, print},
};

/// Serve OpenAI's and Anthropic's HTTP APIs.
///
/// POST /v1/chat/completions, /v1/responses, /v1/completions, /v1/messages and helpers; GET /openapi.json lists all.
/// Listens on this machine only unless told otherwise. Ctrl-C lets answers that have begun end; a second one exits at once.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Checkpoint directory, or `lily-mini` for the model inside this program.
    ///
    /// The directory holds config.json, tokenizer.json, chat_template.jinja and one or several safetensors files.
    #[arg(value_name = "MODEL", env = "LILY_MODEL")]
    model: Option<PathBuf>,

    /// Address to listen on.
    ///
    /// Addresses that other machines can reach need --api-key (or --insecure).
    #[arg(long, default_value = "127.0.0.1", value_name = "IP", env = "LILY_HOST")]
    host: IpAddr,

    /// Port to listen on; 0 takes a free one, which is printed.
    #[arg(long, default_value_t = 8080, value_name = "PORT", env = "LILY_PORT")]
    port: u16,

    /// Key that every request must carry, as `Authorization: Bearer KEY` or `x-api-key: KEY`.
    ///
    /// Prefer the environment variable: command lines can be seen by other users of the machine.
    #[arg(long, value_name = "KEY", env = "LILY_API_KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// Allow other machines to use the server without a key.
    #[arg(long, env = "LILY_INSECURE", value_parser = clap::builder::BoolishValueParser::new())]
    insecure: bool,

    /// A host name by which the server may be called, beside localhost and IP addresses. May be repeated.
    ///
    /// Other names are refused, since a web page could make its own name point here.
    #[arg(long, value_name = "NAME", value_delimiter = ',', env = "LILY_ALLOW_HOST")]
    allow_host: Vec<String>,

    /// Model id that clients ask for. Default: the checkpoint directory's name.
    #[arg(long, value_name = "ID", env = "LILY_MODEL_ID")]
    model_id: Option<String>,

    /// A further model id that is accepted; `*` accepts any. May be repeated.
    #[arg(long, value_name = "ID", value_delimiter = ',', env = "LILY_ALIAS")]
    alias: Vec<String>,

    /// Thinking for requests that do not say.
    #[arg(long, value_enum, default_value_t = Thinking::Auto, env = "LILY_THINKING")]
    thinking: Thinking,

    /// Most requests that may wait while others run; more are refused with 429.
    #[arg(long, default_value_t = 64, value_name = "N", env = "LILY_QUEUE")]
    queue: usize,

    /// Most requests that run at once, each with a KV cache of its own.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512), env = "LILY_PARALLEL")]
    parallel: u16,

    /// Memory for the prefix cache, in MiB; 0 = no prefix cache.
    ///
    /// It holds the states of earlier prompts and answers, so that a conversation that is sent again is not computed
    /// again. One state of Qwen3.6-35B-A3B takes 63 MiB, and 20 KiB a token that no other state shares.
    #[arg(long, default_value_t = 2048, value_name = "MIB", env = "LILY_CACHE_RAM")]
    cache_ram: u32,

    /// Directory in which the prefix cache survives a restart. Default: memory only.
    ///
    /// Its files hold what was said, as numbers; they are readable by this user only. One server at a time may use a
    /// directory.
    #[arg(long, value_name = "DIR", env = "LILY_CACHE_DIR")]
    cache_dir: Option<PathBuf>,

    /// Most bytes of files in --cache-dir, in MiB.
    #[arg(long, default_value_t = 8192, value_name = "MIB", env = "LILY_CACHE_DISK")]
    cache_disk: u32,

    /// Largest request body, in MiB.
    #[arg(long, default_value_t = 16, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..=1024), env = "LILY_BODY_LIMIT")]
    body_limit: u16,

    #[command(flatten)]
    cloud: CloudArgs,

    #[command(flatten)]
    device: load::RunArgs,
}

/// Runs the command.
pub fn run(args: ServeArgs) -> Result<()> {
    let started = Instant::now();
    let serving = Serving {
        queue: args.queue,
        parallel: usize::from(args.parallel),
        cache: CacheOptions {
            ram: usize::try_from(u64::from(args.cache_ram) << 20).unwrap_or(usize::MAX),
            dir: args.cache_dir,
            disk: u64::from(args.cache_disk) << 20,
        },
    };
    let loaded = load::load(args.model, &args.device, &serving)?;
    let config = ServerConfig {
        address: (args.host, args.port).into(),
        api_key: args.api_key,
        insecure: args.insecure,
        allowed_hosts: args.allow_host,
        body_limit: usize::from(args.body_limit) << 20,
        aliases: args.alias,
        thinking: loaded.thinking(args.thinking),
        cloud: args.cloud.build(&loaded.engine, &loaded.name)?,
        ..ServerConfig::new(args.model_id.unwrap_or_else(|| loaded.name.clone()))
    };
    // Connections need little; the cores belong to the model.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("the network runtime could not be started")?;
    runtime.block_on(async {
        let model_id = config.model_id.clone();
        let needs_key = config.api_key.is_some();
        let server = Server::bind(loaded.engine.clone(), config).await?;
        let shutdown = signal()?;
        print(&banner(&loaded, &model_id, needs_key, &server, started))?;
        server.run(shutdown).await;
        Ok(())
    })
}

fn banner(loaded: &Loaded, model_id: &str, needs_key: bool, server: &Server, started: Instant) -> String {
    let engine = loaded.engine.engine();
    let context = engine.options().context_limit;
    let key = if needs_key { " -H \"Authorization: Bearer $LILY_API_KEY\"" } else { "" };
    let address = server.address();
    format!(
        "{} ({}) on {}, context {} tokens, ready after {:.2} s\n{}\
         listening on http://{address}\n\n  \
         curl -N http://{address}/v1/chat/completions{key} -H \"Content-Type: application/json\" \\\n    \
         -d '{{\"model\": \"{model_id}\", \"stream\": true, \"messages\": [{{\"role\": \"user\", \"content\": \"define heron\"}}]}}'\n\n",
        loaded.name,
        loaded.place,
        engine.backend_name(),
        grouped(context),
        started.elapsed().as_secs_f64(),
        load::memory_text(&loaded.memory, context),
    )
}

/// Ready at the first Ctrl-C or SIGTERM; exits the process at the second.
fn signal() -> Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut next = async move || {
        #[cfg(unix)]
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
    };
    Ok(async move {
        next().await;
        eprintln!("shutting down; answers that have begun may end (once more: exit at once)");
        tokio::spawn(async move {
            next().await;
            process::exit(130);
        });
    })
}
