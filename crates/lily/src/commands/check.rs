//! `lily check`: is a checkpoint whole, what is it, what does it need.

use std::{path::PathBuf, time::Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lily_model::{Checkpoint, LayerType};
use lily_text::{RenderRequest, TextModel};
use serde_json::json;

use crate::{
    device, embedded, load,
    output::{grouped, print, size, table},
};

/// Validate a checkpoint and print what it is and what it needs.
///
/// Every tensor's name, type, shape and bit width is checked, and that scales, biases and norms are finite; packed
/// weights are mapped, not read. The chat template must render a greeting.
/// Exits 1 with the reason when something is wrong.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Checkpoint directory, or `lily-mini` for the model inside this program.
    #[arg(value_name = "MODEL", env = "LILY_MODEL")]
    model: Option<PathBuf>,

    /// Context the memory table is for. Default: 32768, or the model's own limit when that is smaller.
    #[arg(long, value_name = "TOKENS", env = "LILY_CONTEXT")]
    context: Option<usize>,

    /// Also print the notices of the data that lily-mini was trained on.
    #[arg(long)]
    notices: bool,
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<()> {
    let started = Instant::now();
    let checkpoint = device::open_checkpoint(args.model.as_deref())?;
    let context = load::context(args.context, checkpoint.config())?;
    let text = device::text_of(&checkpoint)?;
    check_template(&text).with_context(|| checkpoint.place())?;
    let weights = checkpoint.weights()?;
    checkpoint.check_values(&weights)?;
    let seconds = started.elapsed().as_secs_f64();

    let mut out = format!("{}: a whole checkpoint (checked in {seconds:.2} s)\n\n", checkpoint.name());
    out += &facts(&checkpoint, &text);
    out += &format!("\nmemory on the CPU, one sequence of {} tokens\n", grouped(context));
    out += &load::memory_text(&load::memory(&checkpoint, context), context);
    if args.notices {
        for (name, notice) in embedded::notices() {
            out += &format!("\n{name} (lily-mini)\n\n{notice}\n");
        }
    }
    Ok(print(&out)?)
}

/// The chat template must be able to render the simplest chat: what is wrong with it shows only then.
fn check_template(text: &TextModel) -> Result<()> {
    if text.template.is_none() {
        return Ok(());
    }
    let mut request =
        RenderRequest { messages: vec![json!({"role": "user", "content": "hello"})], ..Default::default() };
    request.kwargs.insert("add_generation_prompt".into(), true.into());
    let (_, ids) = text.render_ids(&request, true).context("the chat template cannot render a greeting")?;
    ensure!(!ids.is_empty(), "the chat template renders a greeting as nothing; restore chat_template.jinja");
    Ok(())
}

fn facts(checkpoint: &Checkpoint, text: &TextModel) -> String {
    let c = checkpoint.config();
    let g = checkpoint.generation();
    let mut rows = vec![
        ("architecture", "qwen3_5_moe".to_string()),
        (
            "layers",
            format!(
                "{} ({} Gated DeltaNet, {} full attention), hidden {}",
                c.num_hidden_layers,
                c.count(LayerType::LinearAttention),
                c.count(LayerType::FullAttention),
                grouped(c.hidden_size)
            ),
        ),
        (
            "attention",
            format!(
                "{} query heads, {} key/value heads, {} wide, {} rotated (base {})",
                c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.rotary_dim, c.rope_theta
            ),
        ),
        (
            "Gated DeltaNet",
            format!(
                "{} key heads of {}, {} value heads of {}, convolution {}",
                c.linear_num_key_heads,
                c.linear_key_head_dim,
                c.linear_num_value_heads,
                c.linear_value_head_dim,
                c.linear_conv_kernel_dim
            ),
        ),
        (
            "experts",
            format!(
                "{}, {} a token, {} wide; shared expert {} wide",
                c.num_experts,
                c.num_experts_per_tok,
                c.moe_intermediate_size,
                c.shared_expert_intermediate_size
            ),
        ),
        ("vocabulary", format!("{} rows, {} used", grouped(c.vocab_size), grouped(checkpoint.valid_vocab()))),
        ("longest context", format!("{} tokens", grouped(c.max_position_embeddings))),
        (
            "end of turn",
            match g.eos_token_ids.as_slice() {
                [] => "no token: answers end only at a limit of tokens".to_string(),
                ids => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
            },
        ),
        (
            "sampling",
            if g.do_sample {
                format!(
                    "temperature {}, top_p {}, top_k {}, min_p {}",
                    g.temperature, g.top_p, g.top_k, g.min_p
                )
            } else {
                "greedy".to_string()
            },
        ),
        ("chat template", if text.template.is_some() { "yes" } else { "none: chat is not possible" }.into()),
    ];
    if let Some(report) = checkpoint.load_report() {
        rows.push((
            "tensors",
            format!(
                "{} in {} file(s), {}; {} copied for alignment; {} of the vision tower skipped",
                grouped(report.tensors),
                report.files,
                size(report.bytes),
                report.copied_misaligned,
                grouped(report.skipped_vision)
            ),
        ));
        rows.push(("values", "every norm, scale and bias is finite".into()));
    }
    table(&rows)
}
