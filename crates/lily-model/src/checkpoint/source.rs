//! Where a checkpoint's files come from: a directory, or the executable.

use std::{
    borrow::Cow,
    fs::{self, File},
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{Storage, error::ModelError};

/// Largest file that is read into memory whole (everything but weights). The large model's `tokenizer.json` has
/// 20 MB.
const MAX_SMALL_FILE: u64 = 256 << 20;

/// A checkpoint's files.
#[derive(Debug)]
pub(crate) enum Source {
    /// A directory.
    Directory(PathBuf),
    /// Files by name.
    Static(Vec<(&'static str, &'static [u8])>),
}

impl Source {
    /// `file` as it is shown in errors.
    pub(crate) fn path(&self, file: &str) -> String {
        match self {
            Source::Directory(dir) => dir.join(file).display().to_string(),
            Source::Static(_) => format!("{} (built in)", file),
        }
    }

    /// The directory as it is shown in errors.
    pub(crate) fn place(&self) -> String {
        match self {
            Source::Directory(dir) => dir.display().to_string(),
            Source::Static(_) => "the built-in model".into(),
        }
    }

    /// Whether there is something called `file`.
    pub(crate) fn has(&self, file: &str) -> bool {
        match self {
            Source::Directory(dir) => dir.join(file).exists(),
            Source::Static(files) => files.iter().any(|f| f.0 == file),
        }
    }

    /// The content of a small file; `None` when there is none of that name.
    pub(crate) fn read(&self, file: &str) -> Result<Option<Cow<'static, [u8]>>, ModelError> {
        match self {
            Source::Static(files) => Ok(files.iter().find(|f| f.0 == file).map(|f| Cow::Borrowed(f.1))),
            Source::Directory(dir) => read_small(&dir.join(file)).map(|b| b.map(Cow::Owned)),
        }
    }

    /// A weight file, mapped.
    pub(crate) fn map(&self, file: &str) -> Result<Arc<Storage>, ModelError> {
        let missing = || ModelError::MissingFile {
            dir: self.place(),
            file: file.into(),
            advice: "download the missing file; a checkpoint is complete only with all its weight files"
                .into(),
        };
        match self {
            Source::Static(files) => {
                let (_, bytes) = files.iter().find(|f| f.0 == file).ok_or_else(missing)?;
                Ok(Arc::new(Storage::Static(bytes)))
            }
            Source::Directory(dir) => map_file(&dir.join(file))?.ok_or_else(missing).map(Arc::new),
        }
    }

    /// Names of the files that end in `.safetensors`, sorted.
    pub(crate) fn weight_files(&self) -> Result<Vec<String>, ModelError> {
        let mut names = Vec::new();
        match self {
            Source::Static(files) => names.extend(files.iter().map(|f| f.0.to_string())),
            Source::Directory(dir) => {
                let io = |source| ModelError::Io { file: dir.display().to_string(), source };
                for entry in fs::read_dir(dir).map_err(io)? {
                    names.extend(entry.map_err(io)?.file_name().into_string());
                }
            }
        }
        names.retain(|n| n.ends_with(".safetensors"));
        names.sort();
        Ok(names)
    }
}

/// Size of the regular file at `path`; `None` when nothing is there. Looking before opening keeps a pipe or a
/// device from blocking the open.
fn file_size(path: &Path) -> Result<Option<u64>, ModelError> {
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ModelError::Io { file: path.display().to_string(), source }),
    };
    if !meta.is_file() {
        return Err(ModelError::BadFile {
            path: path.display().to_string(),
            found: if meta.is_dir() { "a directory".into() } else { "not a regular file".into() },
            expected: "a file".into(),
            advice: "put the checkpoint's file there",
        });
    }
    Ok(Some(meta.len()))
}

fn read_small(path: &Path) -> Result<Option<Vec<u8>>, ModelError> {
    let Some(size) = file_size(path)? else { return Ok(None) };
    let too_large = |found: u64| ModelError::BadFile {
        path: path.display().to_string(),
        found: format!("{found} bytes"),
        expected: format!("at most {MAX_SMALL_FILE}"),
        advice: "check that this is the checkpoint's file and not something else under its name",
    };
    if size > MAX_SMALL_FILE {
        return Err(too_large(size));
    }
    let io = |source| ModelError::Io { file: path.display().to_string(), source };
    let mut bytes = Vec::new();
    // A file may grow between the look and the read.
    File::open(path).map_err(io)?.take(MAX_SMALL_FILE + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_SMALL_FILE {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(Some(bytes))
}

fn map_file(path: &Path) -> Result<Option<Storage>, ModelError> {
    match file_size(path)? {
        None => return Ok(None),
        // An empty mapping is an error on some systems; the header check reports an empty file.
        Some(0) => return Ok(Some(Storage::Owned(Vec::new()))),
        Some(_) => {}
    }
    let io = |source| ModelError::Io { file: path.display().to_string(), source };
    let file = File::open(path).map_err(io)?;
    // SAFETY: the mapping is private and read-only, and only read through `Storage::bytes`. As with every
    // program that maps its weights, someone who truncates the file while it is in use ends the process; the
    // documentation of `Checkpoint` says so.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
    Ok(Some(Storage::Mapped(map)))
}
