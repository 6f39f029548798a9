//! The Privacy Gate and the models behind it, from flags and files.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use clap::Args;
use lily_gate::{
    Detector, DetectorConfig, OwnerTerm,
    body::{Gate, GateConfig},
    policy::{Layer2, Policy},
    propose::Proposer,
};
use lily_hybrid::{AuditLog, Cloud, CloudConfig};
use lily_server::{CloudMode, EngineProposer, TextEngine};

/// Flags of `lily serve` for models in the cloud.
#[derive(Debug, Args)]
pub struct CloudArgs {
    /// Models in the cloud (TOML), which clients ask for as `cloud/NAME`. Without it, nothing can leave.
    ///
    /// [upstreams.NAME] with url, model and api_key_env. Everything that leaves passes the Privacy Gate and is written to
    /// the audit log first.
    #[arg(long, value_name = "FILE", env = "LILY_CLOUD")]
    cloud: Option<PathBuf>,

    /// The Privacy Gate's policy (TOML). Without it, the strictest one.
    ///
    /// `layer2 = "model"` in it lets the model that is served look for what patterns cannot find, `layer2 = "off"` sends
    /// with patterns alone; without either nothing is sent.
    #[arg(long, value_name = "FILE", env = "LILY_GATE_POLICY")]
    gate_policy: Option<PathBuf>,

    #[command(flatten)]
    audit: AuditDir,

    /// Take this machine for a cloud, and plain HTTP to it. For tests only.
    #[arg(long, hide = true, env = "LILY_CLOUD_ALLOW_LOOPBACK", value_parser = clap::builder::BoolishValueParser::new())]
    cloud_allow_loopback: bool,
}

/// Where the audit log is.
#[derive(Debug, Args)]
pub struct AuditDir {
    /// Directory of the audit log. Default: lily/audit in the user's state directory.
    #[arg(long, global = true, value_name = "DIR", env = "LILY_AUDIT_DIR")]
    audit_dir: Option<PathBuf>,
}

impl AuditDir {
    /// The directory.
    pub fn path(&self) -> Result<PathBuf> {
        if let Some(directory) = &self.audit_dir {
            return Ok(directory.clone());
        }
        let state = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let state = state.or_else(|| home().map(|home| Path::new(&home).join(".local/state")));
        let state = state.context("--audit-dir is not given and the home directory is not known")?;
        Ok(state.join("lily/audit"))
    }
}

impl CloudArgs {
    /// The gate and the models, or nothing at all: no client, no log, no gate. `engine` runs the model `name`, which is
    /// layer 2 if the policy says so.
    pub fn build(&self, engine: &TextEngine, name: &str) -> Result<Option<CloudMode>> {
        let Some(file) = &self.cloud else {
            let Some(policy) = &self.gate_policy else { return Ok(None) };
            let gate = self::gate(read_policy(policy)?, engine, name, rand::random())?;
            return Ok(Some(CloudMode::gate_only(Arc::new(gate))));
        };
        let named = || format!("--cloud {}", file.display());
        let text = fs::read_to_string(file).with_context(named)?;
        let config = CloudConfig::parse(&text, self.cloud_allow_loopback).with_context(named)?;
        let audit = AuditLog::open(&self.audit.path()?)?;
        let policy = self.gate_policy.as_deref().map_or_else(|| Ok(Policy::default()), read_policy);
        // Without a gate nothing leaves, and models of this machine work.
        let gate = match policy.and_then(|policy| gate(policy, engine, name, *audit.key())) {
            Ok(gate) => Arc::new(gate),
            Err(error) => {
                let reason = format!("{error:#}");
                tracing::error!("cloud models are listed but refuse every request: {reason}");
                return Ok(Some(CloudMode::closed(config.upstreams.keys().cloned().collect(), reason)));
            }
        };
        if let Err((_, reason)) = gate.ready() {
            tracing::warn!("cloud models are listed but refuse every request: {reason}");
        }
        let variable = |name: &str| env::var(name).ok();
        let cloud =
            Cloud::new(&config, gate, audit, variable, self.cloud_allow_loopback).with_context(named)?;
        Ok(Some(CloudMode::new(Arc::new(cloud))))
    }
}

/// Reads a policy file.
pub fn read_policy(file: &Path) -> Result<Policy> {
    let text = fs::read_to_string(file).with_context(|| format!("policy {}", file.display()))?;
    Policy::parse(&text, home().as_deref()).with_context(|| file.display().to_string())
}

/// The gate of a server. `engine` runs the model `name`, which is layer 2 if the policy says so.
fn gate(policy: Policy, engine: &TextEngine, name: &str, install_key: [u8; 32]) -> Result<Gate> {
    let model = policy.layer2 == Layer2::Model;
    let proposer = model.then(|| Arc::new(EngineProposer::new(engine.clone(), name)) as Arc<dyn Proposer>);
    Ok(Gate::new(GateConfig { recogniser: layer1(&policy)?, proposer, policy, install_key }))
}

/// A gate that looks with layer 1 alone, for commands that send nothing.
pub fn gate_for_looking(mut policy: Policy) -> Result<Gate> {
    policy.layer2 = Layer2::Off;
    let recogniser = layer1(&policy)?;
    Ok(Gate::new(GateConfig { recogniser, proposer: None, policy, install_key: rand::random() }))
}

/// The recognisers, with the owner's terms.
fn layer1(policy: &Policy) -> Result<Arc<Detector>> {
    let mut owner = identity();
    owner.extend(policy.owner.iter().map(|term| OwnerTerm { text: term.clone(), kind: "term".into() }));
    let config = DetectorConfig { owner, allow: policy.allow.clone(), ..DetectorConfig::default() };
    Ok(Arc::new(Detector::new(config).context("the Privacy Gate's recognisers")?))
}

fn home() -> Option<String> {
    let home = env::var("HOME").or_else(|_| env::var("USERPROFILE")).ok()?;
    (home.len() > 1).then_some(home)
}

/// Names of accounts that say nothing about anybody.
const NOBODY: &[&str] = &[
    "root",
    "admin",
    "administrator",
    "user",
    "ubuntu",
    "debian",
    "ec2-user",
    "runner",
    "vagrant",
    "docker",
    "guest",
    "pi",
    "home",
    "localhost",
    "nobody",
    "app",
    "test",
    "me",
    "dev",
];

/// What this machine knows of its owner: login, home directory, host, git's name and address.
fn identity() -> Vec<OwnerTerm> {
    let mut terms: Vec<(&'static str, String)> = Vec::new();
    let login = env::var("USER").or_else(|_| env::var("USERNAME")).unwrap_or_default();
    terms.push(("login", login));
    if let Some(home) = home() {
        for (key, value) in git_identity(&Path::new(&home).join(".gitconfig")) {
            terms.push((key, value));
        }
        if home.matches(['/', '\\']).count() > 1 {
            terms.push(("home", home));
        }
    }
    if let Ok(host) = fs::read_to_string("/etc/hostname") {
        // Containers have random names of hex digits.
        if !host.trim().chars().all(|c| c.is_ascii_hexdigit()) {
            terms.push(("host", host));
        }
    }
    terms
        .into_iter()
        .map(|(kind, text)| (kind, text.trim().to_owned()))
        .filter(|(_, text)| text.chars().count() >= 3 && !NOBODY.contains(&text.to_lowercase().as_str()))
        .map(|(kind, text)| OwnerTerm { text, kind: kind.into() })
        .collect()
}

/// `user.name` and `user.email` of a git configuration.
fn git_identity(file: &Path) -> Vec<(&'static str, String)> {
    let Ok(text) = fs::read_to_string(file) else { return Vec::new() };
    let mut in_user = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            in_user = line.eq_ignore_ascii_case("[user]");
        } else if let Some((key, value)) = line.split_once('=').filter(|_| in_user) {
            let value = value.trim().trim_matches('"').to_owned();
            match key.trim().to_ascii_lowercase().as_str() {
                "name" => found.push(("name", value)),
                "email" => found.push(("email", value)),
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_says_who_one_is() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        fs::write(
            &file,
            "[core]\n  name = no\n[user]\n\tname = \"Ann Lee\"\n\temail = ann@x.example\n[alias]\nname = x\n",
        )
        .unwrap();
        assert_eq!(
            git_identity(&file),
            [("name", "Ann Lee".to_owned()), ("email", "ann@x.example".to_owned())]
        );
        assert!(git_identity(&directory.path().join("none")).is_empty());
    }
}
