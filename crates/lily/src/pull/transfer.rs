//! Bringing files of a listing into a directory.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use reqwest::StatusCode;

use super::hub::{Hub, Listing, RemoteFile};

/// Attempts for one file that bring nothing new before it is given up.
const ATTEMPTS: u32 = 6;

/// Told how many bytes of a file are there, its own and those found from before.
pub trait Progress {
    /// `bytes` more of the file are read or checked.
    fn advance(&mut self, bytes: u64);
    /// What was counted of the file is void: it begins anew.
    fn restart(&mut self, bytes: u64);
    /// Something to tell.
    fn say(&mut self, text: &str);
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// It was there, and right.
    Present,
    /// Downloaded, all or the rest of it.
    Downloaded,
}

/// Why an attempt ended.
enum Broken {
    /// The connection: goes on from where it is.
    Connection(anyhow::Error),
    /// Nothing to be done by trying again.
    Final(anyhow::Error),
}

/// Makes `dir/NAME` the verified content of `file`.
pub async fn fetch(
    hub: &Hub,
    listing: &Listing,
    file: &RemoteFile,
    dir: &Path,
    progress: &mut dyn Progress,
) -> Result<Transfer> {
    let (path, part) = (dir.join(&file.name), dir.join(format!("{}.part", file.name)));
    if size_of(&path)? == Some(file.size) {
        if hash_of(&path, file, progress)? == file.hash.text() {
            return Ok(Transfer::Present);
        }
        progress.restart(file.size);
        progress.say(&format!("{}: not what {} holds; downloading it anew", file.name, listing.repo));
    }
    let mut failures = 0;
    loop {
        let before = size_of(&part)?.unwrap_or(0);
        match attempt(hub, listing, file, &part, progress).await {
            Ok(()) => break,
            Err(Broken::Final(error)) => return Err(error),
            Err(Broken::Connection(error)) => {
                failures = if size_of(&part)?.unwrap_or(0) > before { 1 } else { failures + 1 };
                if failures >= ATTEMPTS {
                    return Err(
                        error.context(format!("{}: given up; run the command again to go on", file.name))
                    );
                }
                progress.say(&format!("{}: {error:#}; trying again", file.name));
                tokio::time::sleep(Duration::from_millis(250 << failures)).await;
            }
        }
    }
    fs::rename(&part, &path).with_context(|| path.display().to_string())?;
    // The name itself is on the disk only when its directory is.
    if let Ok(dir) = File::open(dir) {
        let _ = dir.sync_all();
    }
    Ok(Transfer::Downloaded)
}

/// One connection: appends to `part` until the file is complete and verified.
async fn attempt(
    hub: &Hub,
    listing: &Listing,
    file: &RemoteFile,
    part: &PathBuf,
    progress: &mut dyn Progress,
) -> Result<(), Broken> {
    let at = || part.display().to_string();
    let disk = |e: std::io::Error| Broken::Final(anyhow::Error::new(e).context(at()));
    let mut hash = file.hash.start(file.size);
    let mut have = 0;
    match size_of(part).map_err(Broken::Final)? {
        Some(size) if size > file.size => fs::remove_file(part).map_err(disk)?,
        Some(_) => have = hash.update_from(part, |n| progress.advance(n)).map_err(Broken::Final)?,
        None => {}
    }
    let give_back = |progress: &mut dyn Progress, have| progress.restart(have);
    if have < file.size || file.size == 0 {
        let mut response = match hub.open(listing, file, have).await {
            Ok(response) => response,
            Err(error) => {
                give_back(progress, have);
                return Err(Broken::Connection(error));
            }
        };
        match response.status() {
            StatusCode::PARTIAL_CONTENT if have > 0 && starts_at(&response, have) => {}
            // A server without ranges sends everything again.
            StatusCode::OK => {
                give_back(progress, have);
                (have, hash) = (0, file.hash.start(file.size));
            }
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                give_back(progress, have);
                return Err(Broken::Connection(anyhow::anyhow!("the hub says {status}")));
            }
            status => return Err(Broken::Final(anyhow::anyhow!("{}: the hub says {status}", file.name))),
        }
        let mut out = OpenOptions::new().create(true).append(true).open(part).map_err(disk)?;
        out.set_len(have).map_err(disk)?;
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(error) => {
                    give_back(progress, have);
                    return Err(Broken::Connection(error.into()));
                }
            };
            if have + chunk.len() as u64 > file.size {
                drop(out);
                fs::remove_file(part).map_err(disk)?;
                let error =
                    anyhow::anyhow!("{}: longer than the {} bytes that were announced", file.name, file.size);
                return Err(Broken::Final(error));
            }
            out.write_all(&chunk).map_err(disk)?;
            hash.update(&chunk);
            have += chunk.len() as u64;
            progress.advance(chunk.len() as u64);
        }
        out.sync_all().map_err(disk)?;
    }
    if have < file.size {
        give_back(progress, have);
        return Err(Broken::Connection(anyhow::anyhow!("cut after {have} of {} bytes", file.size)));
    }
    let found = hash.finish();
    if found != file.hash.text() {
        fs::remove_file(part).map_err(disk)?;
        return Err(Broken::Final(anyhow::anyhow!(
            "{}: the hash is {found}, expected {}; what was downloaded is removed, run the command again",
            file.name,
            file.hash.text()
        )));
    }
    Ok(())
}

/// Whether a partial answer begins at byte `from`.
fn starts_at(response: &reqwest::Response, from: u64) -> bool {
    let range = response.headers().get("content-range").and_then(|v| v.to_str().ok());
    range.is_some_and(|r| r.trim().strip_prefix("bytes ").is_some_and(|r| r.starts_with(&format!("{from}-"))))
}

fn size_of(path: &Path) -> Result<Option<u64>> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() => Ok(Some(meta.len())),
        Ok(_) => bail!("{}: not a file; move it out of the way", path.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

fn hash_of(path: &Path, file: &RemoteFile, progress: &mut dyn Progress) -> Result<String> {
    let mut hash = file.hash.start(file.size);
    hash.update_from(path, |n| progress.advance(n))?;
    Ok(hash.finish())
}
