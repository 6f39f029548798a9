//! `lily chat`: a conversation in the terminal.

use std::{
    fs,
    io::{self, IsTerminal},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result};
use clap::Args;
use lily_engine::{CancelFlag, Stats};
use lily_server::Finish;
use rustyline::{DefaultEditor, error::ReadlineError};
use serde_json::{Value, json};

use crate::{
    answer::{self, AnswerArgs},
    load::{self, Loaded, Thinking},
    output::{error_text, print},
};

const HELP: &str = "\
/think           think before answering
/nothink         answer at once
/system [TEXT]   set the system message (without TEXT: remove it) and start over
/reset           forget the conversation
/save FILE       write the conversation as JSON
/stats           counts and speeds of the last answer
/help            this list
/quit            leave (also Ctrl-D)
Ctrl-C stops an answer. A line that ends with \\ goes on in the next.
";

/// Talk to the model. Type /help for the commands.
///
/// When stdin is not a terminal, every line is a message and the answers go to stdout.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// Checkpoint directory, or `lily-mini` for the model inside this program.
    ///
    /// The directory holds config.json, tokenizer.json, chat_template.jinja and one or several safetensors files.
    #[arg(value_name = "MODEL", env = "LILY_MODEL")]
    model: Option<PathBuf>,

    /// System message.
    #[arg(long, value_name = "TEXT", env = "LILY_SYSTEM")]
    system: Option<String>,

    /// Think before answering; /think and /nothink change it.
    #[arg(long, value_enum, default_value_t = Thinking::Auto, env = "LILY_THINKING")]
    thinking: Thinking,

    #[command(flatten)]
    answer: AnswerArgs,

    #[command(flatten)]
    device: load::RunArgs,
}

/// Runs the command.
pub fn run(args: ChatArgs) -> Result<()> {
    let loaded = load::load(args.model, &args.device, &load::Serving::one())?;
    let interrupt = Interrupt::listen()?;
    let mut chat = Chat {
        thinking: loaded.thinking(args.thinking),
        system: args.system,
        turns: Vec::new(),
        last: None,
        answer: args.answer,
        loaded,
        interrupt,
    };
    let mut input = Input::new(&chat.loaded.name)?;
    while let Some(line) = input.line()? {
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => break,
            command if command.starts_with('/') => print(&chat.command(command))?,
            message => chat.message(message)?,
        }
    }
    Ok(())
}

struct Chat {
    loaded: Loaded,
    answer: AnswerArgs,
    thinking: Option<bool>,
    system: Option<String>,
    /// User and assistant messages in turn.
    turns: Vec<Value>,
    last: Option<Stats>,
    interrupt: Interrupt,
}

impl Chat {
    /// Says `text` to the model and prints the answer. What goes wrong with one message is said, and the
    /// conversation stays as it was.
    fn message(&mut self, text: &str) -> Result<()> {
        let mut messages: Vec<Value> = Vec::new();
        messages.extend(self.system.as_ref().map(|s| json!({"role": "system", "content": s})));
        messages.extend(self.turns.iter().cloned());
        let user = json!({"role": "user", "content": text});
        messages.push(user.clone());

        let options = self.answer.options(self.loaded.engine.default_sampling());
        let cancel = self.interrupt.arm();
        let result = answer::answer(&self.loaded.engine, messages, self.thinking, options, cancel);
        self.interrupt.disarm();
        match result {
            Ok((answer, outcome)) => {
                if let Some(remark) = answer::remark(&outcome.finish) {
                    eprintln!("({remark})");
                }
                self.last = Some(outcome.stats);
                let nothing = answer.content.is_empty() && outcome.finish == Finish::Cancelled;
                if !nothing {
                    self.turns.push(user);
                    let mut message = json!({"role": "assistant", "content": answer.content});
                    if !answer.reasoning.is_empty() {
                        message["reasoning_content"] = answer.reasoning.into();
                    }
                    self.turns.push(message);
                }
                Ok(())
            }
            Err(error) if error.downcast_ref::<io::Error>().is_some() => Err(error),
            Err(error) => {
                eprintln!("error: {}", error_text(&error));
                if !self.turns.is_empty() {
                    eprintln!("(/reset forgets the conversation)");
                }
                Ok(())
            }
        }
    }

    /// Does what a line that begins with `/` says, and returns what to print.
    fn command(&mut self, line: &str) -> String {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match name {
            "/help" => HELP.to_string(),
            "/think" => {
                self.thinking = Some(true);
                "thinking is on\n".to_string()
            }
            "/nothink" => {
                self.thinking = Some(false);
                "thinking is off\n".to_string()
            }
            "/system" => {
                self.turns.clear();
                self.system = (!rest.is_empty()).then(|| rest.to_string());
                match &self.system {
                    Some(text) => format!("system message: {text}\n"),
                    None => "no system message\n".to_string(),
                }
            }
            "/reset" => {
                self.turns.clear();
                "the conversation is forgotten\n".to_string()
            }
            "/save" if rest.is_empty() => "give a file name: /save FILE\n".to_string(),
            "/save" => match self.save(rest) {
                Ok(()) => format!("{} messages are in {rest}\n", self.turns.len()),
                Err(error) => error_text(&error) + "\n",
            },
            "/stats" => match &self.last {
                Some(stats) => answer::stats_line(stats) + "\n",
                None => "there is no answer yet\n".to_string(),
            },
            other => format!("{other} is not a command; /help lists them\n"),
        }
    }

    fn save(&self, path: &str) -> Result<()> {
        let system = self.system.as_ref().map(|s| json!({"role": "system", "content": s}));
        let messages: Vec<&Value> = system.iter().chain(&self.turns).collect();
        let text = serde_json::to_string_pretty(&json!({"messages": messages}))?;
        fs::write(path, text + "\n").with_context(|| path.to_string())
    }
}

/// Lines from an editor with history, or from a pipe.
enum Input {
    Editor(Box<DefaultEditor>),
    Pipe(io::Lines<io::StdinLock<'static>>),
}

impl Input {
    fn new(model: &str) -> Result<Self> {
        if io::stdin().is_terminal() {
            print(&format!("{model}: type a message, /help for commands, Ctrl-D to leave\n"))?;
            Ok(Self::Editor(Box::new(DefaultEditor::new()?)))
        } else {
            Ok(Self::Pipe(io::stdin().lines()))
        }
    }

    /// The next message or command; `None` at the end.
    fn line(&mut self) -> Result<Option<String>> {
        let mut text = String::new();
        while let Some(line) = self.one(text.is_empty())? {
            match line.strip_suffix('\\') {
                Some(part) => {
                    text.push_str(part);
                    text.push('\n');
                }
                None => return Ok(Some(text + &line)),
            }
        }
        Ok((!text.is_empty()).then_some(text))
    }

    fn one(&mut self, first: bool) -> Result<Option<String>> {
        match self {
            Self::Pipe(lines) => Ok(lines.next().transpose().context("stdin")?),
            Self::Editor(editor) => loop {
                match editor.readline(if first { "> " } else { ". " }) {
                    Ok(line) => {
                        if !line.trim().is_empty() {
                            editor.add_history_entry(&line)?;
                        }
                        return Ok(Some(line));
                    }
                    // Ctrl-C at the prompt drops what was typed.
                    Err(ReadlineError::Interrupted) => print("(Ctrl-D leaves)\n")?,
                    Err(ReadlineError::Eof) => return Ok(None),
                    // A paste of something else than text must not end the conversation.
                    Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                        eprintln!("(what was typed is not UTF-8 text; it is dropped)");
                    }
                    Err(error) => return Err(error.into()),
                }
            },
        }
    }
}

/// Ctrl-C: stops the answer that is being written; without one, ends the program (the editor handles it itself).
#[derive(Clone)]
struct Interrupt(Arc<Mutex<Option<CancelFlag>>>);

impl Interrupt {
    fn listen() -> Result<Self> {
        let this = Self(Arc::default());
        let listener = this.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("lily-interrupt".into()).spawn(move || {
            runtime.block_on(async {
                while tokio::signal::ctrl_c().await.is_ok() {
                    match &*listener.lock() {
                        Some(cancel) => cancel.cancel(),
                        None => std::process::exit(130),
                    }
                }
            });
        })?;
        Ok(this)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<CancelFlag>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A flag that Ctrl-C sets from now on.
    fn arm(&self) -> CancelFlag {
        let cancel = CancelFlag::new();
        *self.lock() = Some(cancel.clone());
        cancel
    }

    fn disarm(&self) {
        *self.lock() = None;
    }
}
