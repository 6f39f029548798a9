//! Filled contexts on the disk, so that decode at a long context can be measured again without its prefill.

use std::{
    fs::{self, File},
    io::{BufReader, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use lily_engine::{Snapshot, backend::Backend};
use serde::{Deserialize, Serialize};

/// First line of a file; the state follows.
#[derive(Serialize, Deserialize)]
struct Header {
    position: usize,
    format: String,
    bytes: usize,
    /// The token to decode first.
    next: u32,
}

/// Where contexts of one model are kept.
#[derive(Debug, Clone)]
pub struct Saved {
    dir: PathBuf,
    model: String,
}

impl Saved {
    /// In `dir`, which is made when needed, for the model of this name.
    pub fn new(dir: &Path, model: &str) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        let model = model.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        Ok(Self { dir: dir.to_path_buf(), model })
    }

    fn path(&self, backend: &dyn Backend, tokens: usize) -> PathBuf {
        self.dir.join(format!("{}-{}-{tokens}.lily-context", self.model, backend.name()))
    }

    /// The context of `tokens` tokens and the token that follows; `None` when it was not saved yet.
    pub fn read(&self, backend: &dyn Backend, tokens: usize) -> Result<Option<(Snapshot, u32)>> {
        let path = self.path(backend, tokens);
        let at = || format!("{}: remove it to have it made anew", path.display());
        let mut file = match File::open(&path) {
            Ok(file) => BufReader::new(file),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(at),
        };
        let mut line = Vec::new();
        std::io::BufRead::read_until(&mut file.by_ref().take(4096), b'\n', &mut line).with_context(at)?;
        let header: Header = serde_json::from_slice(&line).with_context(at)?;
        let mut data = Vec::new();
        file.read_to_end(&mut data).with_context(at)?;
        if header.position != tokens || data.len() != header.bytes {
            bail!("{}: {} tokens, {} of {} bytes", at(), header.position, data.len(), header.bytes);
        }
        Ok(Some((Snapshot { position: header.position, format: header.format, data }, header.next)))
    }

    /// Keeps a context.
    pub fn write(&self, backend: &dyn Backend, snapshot: &Snapshot, next: u32) -> Result<()> {
        let path = self.path(backend, snapshot.position);
        let at = || path.display().to_string();
        let (format, bytes) = (snapshot.format.clone(), snapshot.data.len());
        let header = Header { position: snapshot.position, format, bytes, next };
        let partial = path.with_extension("partial");
        let mut file = File::create(&partial).with_context(at)?;
        file.write_all(format!("{}\n", serde_json::to_string(&header)?).as_bytes()).with_context(at)?;
        file.write_all(&snapshot.data).with_context(at)?;
        fs::rename(&partial, &path).with_context(at)
    }
}
