//! Files of checkpoints and pages, and the thread that reads and writes them.
//!
//! A file comes into being under another name, is written to the disk, and is then renamed, so that under its own name it
//! is whole or not there; a process may be killed at any moment. Files are never changed. Pages are written before the
//! checkpoint that needs them, and removed after it.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread::{self, JoinHandle},
    time::SystemTime,
};

use super::{
    CheckpointKind,
    chain::Digest,
    file::{self, FileError, IndexPart, MOST_HEADER, What},
    index::{EntryData, EntryId, Page},
};
use crate::backend::{PAGE, Snapshot};

/// Counted for a file beside its payload.
pub const FILE_OVERHEAD: usize = 1024;
/// End of the names of files that are being written.
const PART: &str = ".part";
/// Held while a process uses the directory.
const LOCK: &str = "lock";

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The directory cannot be made, read or written.
    #[error("the cache directory {dir} cannot be used: {source}; choose another with --cache-dir")]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Another process has it.
    #[error("the cache directory {0} is used by another process; choose another with --cache-dir")]
    Busy(PathBuf),
    /// What the backend computes is of no use to another process.
    #[error("the {0} backend's states cannot be kept in files; leave out --cache-dir")]
    Backend(&'static str),
}

/// Something to do.
enum Job {
    Write(WriteJob),
    Delete(Vec<String>),
    Read { id: EntryId, checkpoint: Digest, pages: Vec<(usize, Digest)> },
}

/// A checkpoint to be written.
pub struct WriteJob {
    pub id: EntryId,
    pub kind: CheckpointKind,
    pub index: IndexPart,
    pub data: Arc<EntryData>,
    /// Pages that have no file yet: (tokens up to their end, digest, KV).
    pub pages: Vec<(usize, Digest, Page)>,
}

impl WriteJob {
    fn bytes(&self) -> usize {
        let pages: usize = self.pages.iter().map(|p| p.2.len()).sum();
        pages + self.data.state.data.len() + self.data.tail_kv.len()
    }
}

/// What was read of a checkpoint.
pub struct Loaded {
    pub data: EntryData,
    pub pages: Vec<(Digest, Page)>,
}

/// What was done.
pub enum Answer {
    /// The checkpoint's file has so many bytes.
    Written { id: EntryId, bytes: usize },
    /// It has none, nor have these pages.
    NotWritten { id: EntryId, pages: Vec<Digest>, error: io::Error },
    /// It was read, or could not be: the file's name and why.
    Read { id: EntryId, result: Result<Loaded, (String, FileError)> },
}

/// A checkpoint found at the start.
#[derive(Debug)]
pub struct FoundCheckpoint {
    pub kind: CheckpointKind,
    pub index: IndexPart,
    pub bytes: usize,
    modified: SystemTime,
}

/// What a directory held at the start.
#[derive(Debug, Default)]
pub struct Scan {
    /// Bytes of each page's file.
    pub pages: HashMap<Digest, usize>,
    /// Oldest first; all their pages are there.
    pub checkpoints: Vec<FoundCheckpoint>,
    /// Files written for other models, oldest first: name and bytes.
    pub others: Vec<(String, usize)>,
    /// Files that are not used and were left alone.
    pub ignored: usize,
}

/// The thread has ended before its time.
pub struct Ended;

/// The thread, and the way to it.
pub struct Disk {
    jobs: Option<Sender<Job>>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
    /// Bytes that wait to be written.
    waiting: Arc<AtomicUsize>,
    /// Held until the thread has ended.
    _lock: File,
}

impl Disk {
    /// Makes the directory if need be, takes its lock, reads what it holds and starts the thread, which calls `wake`
    /// after every answer.
    pub fn open(
        dir: &Path,
        identity: &str,
        wake: impl Fn() + Send + 'static,
    ) -> Result<(Self, Scan), DiskError> {
        let failed = |source| DiskError::Io { dir: dir.to_path_buf(), source };
        make_private_dir(dir).map_err(failed)?;
        let lock = private_file(&dir.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DiskError::Busy(dir.to_path_buf())),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let scan = scan(dir, identity).map_err(failed)?;
        let (jobs, todo) = channel();
        let (done, answers) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let worker =
            Worker { dir: dir.to_path_buf(), identity: identity.to_string(), waiting: waiting.clone(), done };
        let thread = thread::Builder::new()
            .name("lily-cache".into())
            .spawn(move || worker.run(&todo, &wake))
            .map_err(failed)?;
        Ok((Self { jobs: Some(jobs), answers, thread: Some(thread), waiting, _lock: lock }, scan))
    }

    /// Bytes that wait to be written.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Has a checkpoint written.
    pub fn write(&self, job: WriteJob) {
        self.waiting.fetch_add(job.bytes(), Ordering::Relaxed);
        self.send(Job::Write(job));
    }

    /// Has files removed.
    pub fn delete(&self, names: Vec<String>) {
        if !names.is_empty() {
            self.send(Job::Delete(names));
        }
    }

    /// Has a checkpoint read, with those of its pages that are not in memory.
    pub fn read(&self, id: EntryId, checkpoint: Digest, pages: Vec<(usize, Digest)>) {
        self.send(Job::Read { id, checkpoint, pages });
    }

    /// The next thing done, if there is one; an error when the thread has ended, and nothing will ever be done again.
    pub fn answer(&self) -> Result<Option<Answer>, Ended> {
        match self.answers.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Ended),
        }
    }

    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs
            && jobs.send(job).is_err()
        {
            tracing::error!("the cache's file thread has ended");
        }
    }
}

impl Drop for Disk {
    /// Waits until everything asked for is done.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the cache's file thread panicked");
        }
    }
}

struct Worker {
    dir: PathBuf,
    identity: String,
    waiting: Arc<AtomicUsize>,
    done: Sender<Answer>,
}

impl Worker {
    fn run(self, todo: &Receiver<Job>, wake: &dyn Fn()) {
        while let Ok(job) = todo.recv() {
            let answer = match job {
                Job::Write(job) => {
                    let bytes = job.bytes();
                    let answer = self.write(&job);
                    // What the job held is freed before it no longer counts.
                    drop(job);
                    self.waiting.fetch_sub(bytes, Ordering::Relaxed);
                    Some(answer)
                }
                Job::Delete(names) => {
                    for name in names {
                        self.delete(&name);
                    }
                    None
                }
                Job::Read { id, checkpoint, pages } => {
                    Some(Answer::Read { id, result: self.read(checkpoint, &pages) })
                }
            };
            if let Some(answer) = answer {
                // Nobody listens any more at the end.
                let _ = self.done.send(answer);
                wake();
            }
        }
    }

    fn write(&self, job: &WriteJob) -> Answer {
        let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        for (i, (position, digest, kv)) in job.pages.iter().enumerate() {
            let head = file::page_header(&self.identity, *digest, *position, kv, created);
            if let Err(error) = write_file(&self.dir, &page_name(*digest), &[&head, kv]) {
                let pages = job.pages[i..].iter().map(|p| p.1).collect();
                return Answer::NotWritten { id: job.id, pages, error };
            }
        }
        let state = &job.data.state;
        let (format, tail_kv) = (&state.format, &job.data.tail_kv);
        let head = file::checkpoint_header(
            &self.identity,
            job.kind,
            &job.index,
            (format, &state.data),
            tail_kv,
            created,
        );
        let name = checkpoint_name(job.index.id(Digest::root(&self.identity)));
        let written =
            write_file(&self.dir, &name, &[&head, &state.data, tail_kv]).and_then(|()| sync_dir(&self.dir));
        match written {
            Ok(()) => Answer::Written { id: job.id, bytes: head.len() + state.data.len() + tail_kv.len() },
            Err(error) => Answer::NotWritten { id: job.id, pages: Vec::new(), error },
        }
    }

    fn delete(&self, name: &str) {
        match fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(file = name, %error, "a file of the prefix cache could not be removed");
            }
            _ => {}
        }
    }

    fn read(&self, checkpoint: Digest, pages: &[(usize, Digest)]) -> Result<Loaded, (String, FileError)> {
        let name = checkpoint_name(checkpoint);
        let of = |name: &str, e: FileError| (name.to_string(), e);
        let bytes = self.whole(&name)?;
        let (header, payload) =
            file::read_whole(&bytes, &self.identity, checkpoint).map_err(|e| of(&name, e))?;
        let parts = file::split_checkpoint(&header, payload).map_err(|e| of(&name, e))?;
        let state = Snapshot { position: header.position, format: header.state_format, data: parts.state };
        drop(bytes);
        let mut out = Vec::with_capacity(pages.len());
        for &(number, digest) in pages {
            let name = page_name(digest);
            let bytes = self.whole(&name)?;
            let (header, payload) =
                file::read_whole(&bytes, &self.identity, digest).map_err(|e| of(&name, e))?;
            if header.what != What::Page || header.position != (number + 1) * PAGE {
                return Err(of(&name, FileError::Damaged("it is not the page that its name says")));
            }
            out.push((digest, Arc::new(payload.to_vec())));
        }
        // Says that it was of use, for the order after a restart.
        if let Ok(file) = File::options().append(true).open(self.dir.join(&name)) {
            let _ = file.set_modified(SystemTime::now());
        }
        Ok(Loaded { data: EntryData { state, tail_kv: parts.tail_kv }, pages: out })
    }

    fn whole(&self, name: &str) -> Result<Vec<u8>, (String, FileError)> {
        fs::read(self.dir.join(name)).map_err(|e| (name.to_string(), FileError::Io(e.to_string())))
    }
}

/// Name of a checkpoint's file.
pub fn checkpoint_name(id: Digest) -> String {
    format!("checkpoint-{}.lily", id.hex())
}

/// Name of a page's file.
pub fn page_name(id: Digest) -> String {
    format!("page-{}.lily", id.hex())
}

/// The page whose file has this name.
pub fn page_of_name(name: &str) -> Option<Digest> {
    parse_name(name).filter(|(what, _)| *what == What::Page).map(|(_, id)| id)
}

fn parse_name(name: &str) -> Option<(What, Digest)> {
    let rest = name.strip_suffix(".lily")?;
    let (what, hex) = match rest.strip_prefix("page-") {
        Some(hex) => (What::Page, hex),
        None => (What::Checkpoint, rest.strip_prefix("checkpoint-")?),
    };
    Some((what, Digest::from_hex(hex)?))
}

fn write_file(dir: &Path, name: &str, parts: &[&[u8]]) -> io::Result<()> {
    let temporary = dir.join(format!("{name}{PART}"));
    let written = (|| {
        let mut file = private_file(&temporary)?;
        file.set_len(0)?;
        for part in parts {
            file.write_all(part)?;
        }
        file.sync_data()?;
        fs::rename(&temporary, dir.join(name))
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Renames last through a crash of the system only once the directory is written.
fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

/// Opens a file for writing that others may not read.
fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn make_private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Reads the beginnings of all files. What was never finished, or is damaged, and has one of our names is removed.
fn scan(dir: &Path, identity: &str) -> io::Result<Scan> {
    let mut scan = Scan::default();
    let mut others = Vec::new();
    let mut names: Vec<_> = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    names.sort_by_key(fs::DirEntry::file_name);
    for entry in names {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == LOCK {
            continue;
        }
        let path = entry.path();
        if let Some(ours) = name.strip_suffix(PART).and_then(parse_name) {
            tracing::info!(file = name, what = ?ours.0, "prefix cache: a file that was never finished is removed");
            let _ = fs::remove_file(&path);
            continue;
        }
        let Some((what, id)) = parse_name(&name) else {
            tracing::info!(file = name, "prefix cache: a file that is not the cache's is ignored");
            scan.ignored += 1;
            continue;
        };
        match look_at(&path, what, id, identity) {
            Ok((Content::Page, bytes, _)) => {
                scan.pages.insert(id, bytes);
            }
            Ok((Content::Checkpoint(kind, index), bytes, modified)) => {
                scan.checkpoints.push(FoundCheckpoint { kind, index, bytes, modified });
            }
            Err(FileError::OtherModel { found, .. }) => {
                tracing::info!(
                    file = name,
                    model = found,
                    "prefix cache: a file of another model is ignored"
                );
                let meta = entry.metadata()?;
                others.push((meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), name, meta.len() as usize));
            }
            Err(error) if error.is_damage() => {
                tracing::warn!(file = name, %error, "prefix cache: a file is removed");
                let _ = fs::remove_file(&path);
            }
            Err(error) => {
                tracing::warn!(file = name, %error, "prefix cache: a file is ignored");
                scan.ignored += 1;
            }
        }
    }
    others.sort();
    scan.others = others.into_iter().map(|(_, name, bytes)| (name, bytes)).collect();
    let root = Digest::root(identity);
    let pages = &scan.pages;
    scan.checkpoints.retain(|c| {
        let whole = c.index.chain.iter().all(|d| pages.contains_key(d));
        if !whole {
            let file = checkpoint_name(c.index.id(root));
            tracing::warn!(file, "prefix cache: a checkpoint without all its pages is removed");
            let _ = fs::remove_file(dir.join(file));
        }
        whole
    });
    scan.checkpoints.sort_by_key(|c| c.modified);
    Ok(scan)
}

enum Content {
    Page,
    Checkpoint(CheckpointKind, IndexPart),
}

/// Checks the beginning of a file and its length: content, bytes, time of change.
fn look_at(
    path: &Path,
    what: What,
    id: Digest,
    identity: &str,
) -> Result<(Content, usize, SystemTime), FileError> {
    let failed = |e: io::Error| FileError::Io(e.to_string());
    let mut file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(FileError::Io("it is not a file".into()));
    }
    let len = meta.len() as usize;
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(MOST_HEADER as u64).read_to_end(&mut bytes).map_err(failed)?;
    let (header, at) = file::read_header(&bytes)?;
    file::expect(&header, identity, id)?;
    if header.what != what {
        return Err(FileError::Damaged("its name says that it is something else"));
    }
    if at.checked_add(header.payload_bytes) != Some(len) {
        return Err(FileError::Damaged("its payload does not have its length"));
    }
    let content = match what {
        What::Page => Content::Page,
        What::Checkpoint => {
            let missing = (at + header.index_bytes.min(len)).saturating_sub(bytes.len());
            file.take(missing as u64).read_to_end(&mut bytes).map_err(failed)?;
            let index = IndexPart::read(&header, &bytes[at..])?;
            if index.id(Digest::root(identity)) != id {
                return Err(FileError::Damaged("its tokens are another one's"));
            }
            let kind = header.kind.ok_or(FileError::Damaged("it does not say what kind it is"))?;
            Content::Checkpoint(kind, index)
        }
    };
    Ok((content, len, meta.modified().unwrap_or(SystemTime::UNIX_EPOCH)))
}
