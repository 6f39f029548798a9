//! The audit log: exactly what left, written and on the disk before the first byte leaves.
//!
//! One JSON object a line. Each line carries the hash of the line before it, its own hash, and a MAC of that under this
//! installation's key:
//!
//! ```text
//! {"seq":7,"id":"aud_...","time":"...","prev":"<hash of 6>","kind":"request", ... ,"hash":"<sha256>","mac":"<hmac>"}
//! ```
//!
//! The hash covers every byte of the line before `,"hash":`. The chain proves that lines are whole, in order, and that
//! none in the middle is missing. It does not prove honesty: whoever owns the machine owns the key as well.
//!
//! Values that were masked are not in it: a request's body is what left, and spans carry an HMAC of theirs.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use lily_gate::hash;
use serde::Serialize;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

mod receipt;
mod record;
#[cfg(test)]
mod tests;

pub use receipt::{Verification, find, receipt, verify};
pub use record::{Outcome, RequestRecord, ResponseRecord};

/// The log's name in its directory.
pub const LOG_FILE: &str = "egress.jsonl";
/// The key's name in its directory.
pub const KEY_FILE: &str = "install.key";
/// `prev` of the first line.
const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Why the log cannot be used. Nothing leaves then.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The system says no.
    #[error("audit log {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Another process writes it.
    #[error("audit log {0}: another process has it open; end that one, or use another directory")]
    Locked(PathBuf),
    /// A file that is not what it should be.
    #[error("{path}: {reason}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What was found, what is expected.
        reason: String,
    },
    /// An earlier line could not be taken back.
    #[error("audit log {0}: an earlier write failed half-way; start the server anew")]
    Broken(PathBuf),
}

/// Where lines go. A file; something that fails, in tests.
pub trait Sink: Send {
    /// Appends `line` whole and has it on the disk, or takes back what it wrote.
    ///
    /// # Errors
    /// Nothing of the line is there; or, with `Err` of kind [`io::ErrorKind::InvalidData`], a part of it may be.
    fn append(&mut self, line: &[u8]) -> io::Result<()>;
}

struct FileSink {
    file: File,
}

impl Sink for FileSink {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let before = self.file.metadata()?.len();
        let written = self.file.write_all(line).and_then(|()| self.file.sync_data());
        written.map_err(|error| match self.file.set_len(before).and_then(|()| self.file.sync_data()) {
            Ok(()) => error,
            Err(_) => io::Error::new(io::ErrorKind::InvalidData, error),
        })
    }
}

struct Chain {
    sink: Box<dyn Sink>,
    seq: u64,
    prev: String,
    broken: bool,
}

/// The log, open for writing. Cheap to clone.
#[derive(Clone)]
pub struct AuditLog {
    chain: Arc<Mutex<Chain>>,
    path: PathBuf,
    key: Arc<Zeroizing<[u8; 32]>>,
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditLog").field("path", &self.path).finish_non_exhaustive()
    }
}

impl AuditLog {
    /// Opens the log of `directory`, which is made if it is not there (for this user only), and continues its chain.
    ///
    /// # Errors
    /// The directory, log or key cannot be read or written; the log's last line is not one of a chain.
    pub fn open(directory: &Path) -> Result<Self, AuditError> {
        make_private_directory(directory)?;
        let key = install_key(directory)?;
        let path = directory.join(LOG_FILE);
        let io = |source| AuditError::Io { path: path.clone(), source };
        #[cfg(unix)]
        let new = !path.exists();
        let mut file =
            private(OpenOptions::new().read(true).append(true).create(true)).open(&path).map_err(io)?;
        file.try_lock().map_err(|e| match e {
            std::fs::TryLockError::WouldBlock => AuditError::Locked(path.clone()),
            std::fs::TryLockError::Error(source) => AuditError::Io { path: path.clone(), source },
        })?;
        restrict(&file).map_err(io)?;
        // The name must be on the disk too.
        #[cfg(unix)]
        if new {
            File::open(directory).and_then(|d| d.sync_all()).map_err(io)?;
        }
        let tail = Tail::read(&mut file).map_err(io)?;
        let (seq, prev) = match &tail.last {
            None => (0, NOTHING.to_owned()),
            Some(line) => {
                let content = |reason: &str| AuditError::Content {
                    path: path.clone(),
                    reason: format!("its last line {reason}; `lily audit verify` says more"),
                };
                let (prefix, hash, _) = split(line).ok_or_else(|| content("has no hash"))?;
                let seq = serde_json::from_str::<Value>(line).ok().and_then(|v| v["seq"].as_u64());
                if hash::hex(&hash::sha256(prefix.as_bytes())) != hash {
                    return Err(content("does not match its hash"));
                }
                (seq.ok_or_else(|| content("has no seq"))? + 1, hash.to_owned())
            }
        };
        let chain = Chain { sink: Box::new(FileSink { file }), seq, prev, broken: false };
        let log = Self { chain: Arc::new(Mutex::new(chain)), path, key };
        if tail.torn > 0 {
            log.recover(tail.torn)?;
        }
        Ok(log)
    }

    /// A log that writes somewhere else, from the beginning of a chain.
    pub fn with_sink(sink: Box<dyn Sink>, key: [u8; 32]) -> Self {
        let chain = Chain { sink, seq: 0, prev: NOTHING.to_owned(), broken: false };
        Self {
            chain: Arc::new(Mutex::new(chain)),
            path: "(memory)".into(),
            key: Arc::new(Zeroizing::new(key)),
        }
    }

    /// This installation's key.
    pub fn key(&self) -> &[u8; 32] {
        &self.key
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what is about to leave, and answers its id once it is on the disk.
    ///
    /// # Errors
    /// It is not there: nothing may leave.
    pub fn request(&self, record: &RequestRecord) -> Result<String, AuditError> {
        self.append("request", record)
    }

    /// Writes what became of a request.
    ///
    /// # Errors
    /// It could not be written.
    pub fn response(&self, record: &ResponseRecord) -> Result<String, AuditError> {
        self.append("response", record)
    }

    /// Ends a line that a crash cut, and says so.
    fn recover(&self, torn: u64) -> Result<(), AuditError> {
        let mut chain = self.chain.lock().unwrap_or_else(PoisonError::into_inner);
        chain.sink.append(b"\n").map_err(|source| AuditError::Io { path: self.path.clone(), source })?;
        drop(chain);
        self.append("recovery", &serde_json::json!({ "torn_bytes": torn })).map(|_| ())
    }

    fn append(&self, kind: &str, record: &impl Serialize) -> Result<String, AuditError> {
        let id = format!("aud_{}", hash::hex(&rand::random::<[u8; 12]>()));
        let io = |source| AuditError::Io { path: self.path.clone(), source };
        let mut chain = self.chain.lock().unwrap_or_else(PoisonError::into_inner);
        if chain.broken {
            return Err(AuditError::Broken(self.path.clone()));
        }
        let mut line = Map::new();
        line.insert("seq".into(), chain.seq.into());
        line.insert("id".into(), id.clone().into());
        line.insert("time".into(), humantime::format_rfc3339_millis(SystemTime::now()).to_string().into());
        line.insert("prev".into(), chain.prev.clone().into());
        line.insert("kind".into(), kind.into());
        match serde_json::to_value(record).map_err(|e| io(e.into()))? {
            Value::Object(fields) => line.extend(fields),
            other => {
                line.insert("value".into(), other);
            }
        }
        let mut text = serde_json::to_string(&line).map_err(|e| io(e.into()))?;
        text.pop();
        let digest = hash::sha256(text.as_bytes());
        let hex = hash::hex(&digest);
        let mac = hash::hex(&hash::hmac(&self.key, &[&digest]));
        text += &format!(",\"hash\":\"{hex}\",\"mac\":\"{mac}\"}}\n");
        if let Err(error) = chain.sink.append(text.as_bytes()) {
            // A part of a line may be in the file: no line may follow it until the file is opened anew.
            chain.broken = error.kind() == io::ErrorKind::InvalidData;
            return Err(io(error));
        }
        chain.seq += 1;
        chain.prev = hex;
        Ok(id)
    }
}

/// Splits a line into what its hash covers, the hash, and the MAC.
fn split(line: &str) -> Option<(&str, &str, &str)> {
    let rest = line.strip_suffix("\"}")?;
    let (rest, mac) = rest.rsplit_once(",\"mac\":\"")?;
    let (prefix, hash) = rest.strip_suffix('"')?.rsplit_once(",\"hash\":\"")?;
    let hex = |s: &str| s.len() == 64 && s.bytes().all(|b| b.is_ascii_hexdigit());
    (hex(hash) && hex(mac)).then_some((prefix, hash, mac))
}

/// The end of a log.
#[derive(Default)]
struct Tail {
    /// The last line that is whole and one of a chain.
    last: Option<String>,
    /// Bytes after the last line break.
    torn: u64,
}

impl Tail {
    fn read(file: &mut File) -> io::Result<Self> {
        let mut tail = Self::default();
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                return Ok(tail);
            }
            if line.last() != Some(&b'\n') {
                tail.torn = line.len() as u64;
                return Ok(tail);
            }
            line.pop();
            // A line that an earlier crash cut is passed over here, and told by `verify`.
            match std::str::from_utf8(&line) {
                Ok(text) if split(text).is_some() => tail.last = Some(text.to_owned()),
                _ => {}
            }
        }
    }
}

/// The key of the installation that `directory` belongs to; made at the first use.
fn install_key(directory: &Path) -> Result<Arc<Zeroizing<[u8; 32]>>, AuditError> {
    let path = directory.join(KEY_FILE);
    let io = |source| AuditError::Io { path: path.clone(), source };
    let mut key = Zeroizing::new([0; 32]);
    match File::open(&path) {
        Ok(file) => {
            restrict(&file).map_err(io)?;
            let mut bytes = Zeroizing::new(Vec::new());
            file.take(64).read_to_end(&mut bytes).map_err(io)?;
            if bytes.len() != key.len() {
                let reason = format!("holds {} bytes; expected a key of 32", bytes.len());
                return Err(AuditError::Content { path, reason });
            }
            key.copy_from_slice(&bytes);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            *key = rand::random();
            let mut file =
                private(OpenOptions::new().write(true).create_new(true)).open(&path).map_err(io)?;
            file.write_all(&key[..]).and_then(|()| file.sync_all()).map_err(io)?;
        }
        Err(source) => return Err(io(source)),
    }
    Ok(Arc::new(key))
}

fn make_private_directory(directory: &Path) -> Result<(), AuditError> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory).map_err(|source| AuditError::Io { path: directory.to_owned(), source })
}

/// Files that only their owner may read.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Takes others' rights from a file that was there before.
fn restrict(file: &File) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let rights = file.metadata()?.permissions();
        if rights.mode() & 0o077 != 0 {
            file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        }
    }
    #[cfg(not(unix))]
    let _ = file;
    Ok(())
}
