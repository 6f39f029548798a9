//! Models in the cloud, as a TOML file lists them.
//!
//! ```toml
//! [upstreams.gpt]                        # clients ask for the model `cloud/gpt`
//! url = "https://api.example.com/v1"     # without /chat/completions
//! model = "gpt-large"                    # the provider's name for it
//! api_key_env = "EXAMPLE_API_KEY"        # the variable that holds the key; keys are never in the file
//! timeout_s = 120                        # longest silence
//! retries = 1                            # further tries with the same bytes
//! [upstreams.gpt.headers]                # further headers, if the provider needs them
//! x-organization = "acme"
//! ```

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use reqwest::Url;
use serde::Deserialize;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML, or a field that does not exist.
    #[error("{0}")]
    Syntax(String),
    /// A value that cannot be.
    #[error("upstreams.{name}.{field}: {reason}")]
    Value {
        /// Which upstream.
        name: String,
        /// Which field.
        field: &'static str,
        /// What was found, what is expected.
        reason: String,
    },
}

/// The file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloudConfig {
    /// Upstreams by the name that clients use.
    pub upstreams: BTreeMap<String, Upstream>,
}

/// One model in the cloud.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upstream {
    /// Base address; `/chat/completions` is added.
    pub url: String,
    /// The provider's name for the model.
    pub model: String,
    /// Environment variable with the key.
    pub api_key_env: Option<String>,
    /// Longest silence of the provider, seconds.
    #[serde(default = "default_timeout")]
    pub timeout_s: u64,
    /// Further tries after a failure that came before any answer.
    #[serde(default = "default_retries")]
    pub retries: u32,
    /// Further headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

fn default_timeout() -> u64 {
    120
}

fn default_retries() -> u32 {
    1
}

/// Headers that a configuration must not set: they are the client's own or would change where bytes go.
const RESERVED: &[&str] = &[
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "cookie",
    "authorization",
    "content-type",
    "accept",
    "accept-encoding",
    "user-agent",
    "proxy-authorization",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "forwarded",
    "x-forwarded-for",
];

impl CloudConfig {
    /// Reads and checks a configuration. `allow_loopback` is for tests: it admits this machine, and plain HTTP to it.
    ///
    /// # Errors
    /// Anything that is not understood or not safe.
    pub fn parse(text: &str, allow_loopback: bool) -> Result<Self, ConfigError> {
        let config: Self =
            toml::from_str(text).map_err(|e| ConfigError::Syntax(e.to_string().trim_end().to_owned()))?;
        for (name, upstream) in &config.upstreams {
            upstream.check(name, allow_loopback)?;
        }
        Ok(config)
    }
}

impl Upstream {
    /// Checks everything; see [`CloudConfig::parse`].
    pub(crate) fn check(&self, name: &str, allow_loopback: bool) -> Result<(), ConfigError> {
        let error = |field, reason: String| ConfigError::Value { name: name.to_owned(), field, reason };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(plain) {
            return Err(error("name", format!("{name:?}; expected letters, digits and `- _ .`")));
        }
        self.endpoint(allow_loopback).map_err(|reason| error("url", reason))?;
        let in_name = |c: char| c.is_ascii_alphanumeric() || "_.:/-".contains(c);
        if self.model.is_empty() || !self.model.chars().all(in_name) {
            return Err(error(
                "model",
                format!("{:?}; expected letters, digits and `_ . : / -`", self.model),
            ));
        }
        if !(1..=3600).contains(&self.timeout_s) {
            return Err(error("timeout_s", format!("{}; expected 1 to 3600", self.timeout_s)));
        }
        if self.retries > 5 {
            return Err(error("retries", format!("{}; expected 0 to 5", self.retries)));
        }
        for header in self.headers.keys() {
            if RESERVED.contains(&header.to_ascii_lowercase().as_str()) {
                return Err(error("headers", format!("{header:?} cannot be set; keys go into api_key_env")));
            }
        }
        Ok(())
    }

    /// The address that requests go to.
    pub(crate) fn endpoint(&self, allow_loopback: bool) -> Result<Url, String> {
        let mut url: Url = self.url.parse().map_err(|e| format!("{:?} is no address: {e}", self.url))?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let here = names_this_machine(&host);
        if here && !allow_loopback {
            return Err(format!("{host} is this machine, which is no cloud; give the provider's address"));
        }
        match url.scheme() {
            "https" => {}
            "http" if here => {}
            other => return Err(format!("the scheme is {other}; expected https")),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("it holds a name or a password; keys go into api_key_env".into());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("it has a query or a fragment; expected an address such as https://host/v1".into());
        }
        let path = format!("{}/chat/completions", url.path().trim_end_matches('/'));
        url.set_path(&path);
        Ok(url)
    }

    /// Longest silence.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s)
    }
}

/// Whether a host is this machine by its name alone. What a name resolves to is looked at when it is resolved.
fn names_this_machine(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(&host);
    host == "localhost" || host.ends_with(".localhost") || bare.parse().is_ok_and(|ip| is_this_machine(&ip))
}

/// Whether an address is this machine's, or no address of anybody's.
pub(crate) fn is_this_machine(ip: &IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || ip.is_unspecified() || ip.is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(url: &str) -> String {
        format!("[upstreams.a]\nurl = {url:?}\nmodel = \"m\"")
    }

    #[test]
    fn addresses_of_this_machine_are_no_cloud() {
        for bad in [
            "http://localhost:1/v1",
            "https://localhost/v1",
            "https://LOCALHOST./v1",
            "https://a.localhost/v1",
            "https://127.0.0.1/v1",
            "https://127.8.9.1/v1",
            "https://[::1]/v1",
            "https://[::ffff:127.0.0.1]/v1",
            "https://0.0.0.0/v1",
            "https://2130706433/v1",
            "https://0x7f.1/v1",
            "http://api.example.com/v1",
            "ftp://a.example/v1",
            "https://user:pw@api.example.com/v1",
            "https://api.example.com/v1?key=1",
            "no address",
        ] {
            assert!(CloudConfig::parse(&url(bad), false).is_err(), "{bad}");
        }
        let config = CloudConfig::parse(&url("https://api.example.com/v1/"), false).unwrap();
        let endpoint = config.upstreams["a"].endpoint(false).unwrap();
        assert_eq!(endpoint.as_str(), "https://api.example.com/v1/chat/completions");
        assert!(CloudConfig::parse(&url("http://127.0.0.1:9/v1"), true).is_ok());
        assert!(
            CloudConfig::parse(&url("http://api.example.com/v1"), true).is_err(),
            "never plain to elsewhere"
        );
    }

    #[test]
    fn mistakes_are_named() {
        let base = url("https://api.example.com/v1");
        for (more, word) in [
            ("timeout_s = 0", "timeout_s"),
            ("retries = 9", "retries"),
            ("api_key = \"sk-1\"", "api_key"),
            ("headers = {Authorization = \"x\"}", "headers"),
        ] {
            let error = CloudConfig::parse(&format!("{base}\n{more}"), false).unwrap_err().to_string();
            assert!(error.contains(word), "{more}: {error}");
        }
        let error = CloudConfig::parse(&base.replace("upstreams.a", "upstreams.\"a b\""), false).unwrap_err();
        assert!(error.to_string().contains("a b"), "{error}");
    }
}
