//! `lily tokenize`: text to ids and back.

use std::{
    io::{self, Read},
    path::PathBuf,
};

use anyhow::{Context, Result};
use clap::Args;

use crate::{device, output::print};

/// Turn text on stdin into a JSON list of token ids, or ids into text.
///
/// Special tokens written in the text (such as `<|im_start|>`) become their ids.
#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// Directory with tokenizer.json and tokenizer_config.json, or `lily-mini`.
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Read a JSON list of ids from stdin and print their text, as it is, with no line break added.
    #[arg(long)]
    decode: bool,
}

/// Runs the command.
pub fn run(args: &TokenizeArgs) -> Result<()> {
    let text = device::open_text(&args.dir)?;
    let mut input = String::new();
    io::stdin().read_to_string(&mut input).context("stdin (expected UTF-8 text)")?;
    if args.decode {
        let ids: Vec<u32> =
            serde_json::from_str(&input).context("stdin: expected a JSON list of token ids")?;
        for (i, &id) in ids.iter().enumerate() {
            anyhow::ensure!(
                text.tokenizer.token_bytes(id).is_some(),
                "stdin: index {i} is {id}; the tokenizer has no such token"
            );
        }
        Ok(print(&text.tokenizer.decode(&ids, false))?)
    } else {
        let ids = text.tokenizer.encode(&input)?;
        Ok(print(&format!("{}\n", serde_json::to_string(&ids)?))?)
    }
}
