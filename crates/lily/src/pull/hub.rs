//! What a hub holds of a repository at a revision.

use anyhow::{Context, Result, bail};
use reqwest::{Client, StatusCode};
use serde::Deserialize;

use super::hash::Expected;

/// Files that make up a checkpoint, by their endings; everything else of a repository is left there.
const WANTED: [&str; 5] = [".safetensors", ".json", ".jinja", ".txt", ".md"];

/// A hub that speaks Hugging Face's protocol.
#[derive(Debug, Clone)]
pub struct Hub {
    client: Client,
    endpoint: String,
    token: Option<String>,
}

/// A repository at one commit.
#[derive(Debug, Clone)]
pub struct Listing {
    /// `owner/name`.
    pub repo: String,
    /// The commit.
    pub commit: String,
    /// Licence as the repository states it.
    pub license: Option<String>,
    /// Files to download.
    pub files: Vec<RemoteFile>,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Plain file name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// What its content must hash to.
    pub hash: Expected,
}

#[derive(Deserialize)]
struct ModelInfo {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
    #[serde(rename = "cardData", default)]
    card: Card,
}

#[derive(Deserialize, Default)]
struct Card {
    #[serde(default)]
    license: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Hub {
    /// The hub at `endpoint` (`https://...`); `token` for repositories that need one.
    pub fn new(endpoint: &str, token: Option<String>) -> Result<Self> {
        let endpoint = endpoint.trim_end_matches('/').to_string();
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            bail!("--endpoint is {endpoint:?}; expected an address that begins with https://");
        }
        // No overall limit: a file takes as long as it takes. A connection that says nothing is given up.
        let client = Client::builder()
            .user_agent(concat!("lily/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(std::time::Duration::from_secs(20))
            .read_timeout(std::time::Duration::from_secs(60))
            .build()
            .context("cannot start the HTTP client")?;
        Ok(Self { client, endpoint, token })
    }

    fn get(&self, url: &str) -> reqwest::RequestBuilder {
        let request = self.client.get(url);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// What `repo` (`owner/name`) holds at `revision` (branch, tag or commit).
    pub async fn list(&self, repo: &str, revision: &str) -> Result<Listing> {
        let plain =
            |s: &str| !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        if repo.split('/').count() != 2 || !repo.split('/').all(plain) {
            bail!("the repository is {repo:?}; expected OWNER/NAME");
        }
        if !plain(revision) {
            bail!("--revision is {revision:?}; expected a branch, a tag or a commit");
        }
        let url = format!("{}/api/models/{repo}/revision/{revision}?blobs=true", self.endpoint);
        let response = self.get(&url).send().await.with_context(|| format!("{url}: no answer"))?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => bail!("{repo} has no revision {revision} on {} (404)", self.endpoint),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                bail!("{repo} does not exist or needs a token; set HF_TOKEN ({})", response.status())
            }
            status => bail!("{url}: {status}"),
        }
        let info: ModelInfo =
            response.json().await.with_context(|| format!("{url}: not a repository's description"))?;
        if !plain(&info.sha) {
            bail!("{url}: the commit is {:?}", info.sha);
        }
        let files = info.siblings.into_iter().filter(|s| wanted(&s.rfilename));
        let files = files.map(|s| s.file().with_context(|| url.clone())).collect::<Result<Vec<_>>>()?;
        if !files.iter().any(|f| f.name.ends_with(".safetensors")) {
            bail!("{repo} at {} has no .safetensors files; is it a checkpoint in MLX's layout?", info.sha);
        }
        Ok(Listing { repo: repo.to_string(), commit: info.sha, license: info.card.license, files })
    }

    /// Asks for `file` of a listing, from byte `from` on.
    pub async fn open(&self, listing: &Listing, file: &RemoteFile, from: u64) -> Result<reqwest::Response> {
        let url = format!("{}/{}/resolve/{}/{}", self.endpoint, listing.repo, listing.commit, file.name);
        let mut request = self.get(&url);
        if from > 0 {
            request = request.header("Range", format!("bytes={from}-"));
        }
        let response = request.send().await.with_context(|| format!("{}: no answer", file.name))?;
        Ok(response)
    }
}

/// Files of the checkpoint lie in the repository's root. A name with a path in it never reaches the file system.
fn wanted(name: &str) -> bool {
    let plain =
        name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) && !name.starts_with('.');
    plain && (WANTED.iter().any(|e| name.ends_with(e)) || name.starts_with("LICENSE"))
}

impl Sibling {
    fn file(self) -> Result<RemoteFile> {
        let hex = |s: &str, len| s.len() == len && s.bytes().all(|b| b.is_ascii_hexdigit());
        let (size, hash) = match (self.lfs, self.blob_id, self.size) {
            (Some(lfs), _, _) if hex(&lfs.sha256, 64) => {
                (lfs.size, Expected::Sha256(lfs.sha256.to_lowercase()))
            }
            (None, Some(blob), Some(size)) if hex(&blob, 40) => {
                (size, Expected::GitBlob(blob.to_lowercase()))
            }
            _ => bail!("{}: the hub gives no size and hash to verify it by", self.rfilename),
        };
        Ok(RemoteFile { name: self.rfilename, size, hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_of_checkpoints() {
        for name in [
            "model-00001-of-00004.safetensors",
            "config.json",
            "chat_template.jinja",
            "merges.txt",
            "LICENSE",
            "README.md",
        ] {
            assert!(wanted(name), "{name}");
        }
        for name in [
            "../config.json",
            "a/config.json",
            "..\\x.json",
            ".json",
            "/etc/passwd.txt",
            "weights.bin",
            "x.py",
            "a b.json",
            "",
        ] {
            assert!(!wanted(name), "{name}");
        }
    }
}
