//! What the lines of the log say.

use lily_gate::{
    body::{GatedBody, Report},
    hash,
};
use serde::Serialize;

/// A request that is about to leave.
#[derive(Debug, Serialize)]
pub struct RequestRecord<'a> {
    /// `cloud`.
    pub route: &'a str,
    /// The name that the client used.
    pub upstream: &'a str,
    /// Where it goes.
    pub destination: &'a str,
    /// Names of the headers that go with it.
    pub headers: Vec<String>,
    /// 1, and higher for the same bytes again.
    pub attempt: u32,
    /// SHA-256 of the body.
    pub sha256: String,
    /// The body, to the byte.
    pub body: &'a str,
    /// The consent under which it leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<&'a str>,
    /// What was found and done.
    #[serde(flatten)]
    pub report: &'a Report,
}

impl<'a> RequestRecord<'a> {
    /// The record of a body that goes to `destination`.
    ///
    /// # Errors
    /// The body is no UTF-8, which JSON always is.
    pub fn new(
        body: &'a GatedBody,
        upstream: &'a str,
        destination: &'a str,
        headers: Vec<String>,
        attempt: u32,
    ) -> Result<Self, std::str::Utf8Error> {
        Ok(Self {
            route: "cloud",
            upstream,
            destination,
            headers,
            attempt,
            sha256: hash::hex(body.sha256()),
            body: std::str::from_utf8(body.bytes())?,
            approval: body.approval(),
            report: body.report(),
        })
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The whole answer came.
    Complete,
    /// The provider refused or failed.
    Refused,
    /// The answer stopped in the middle, or was none.
    Cut,
    /// The client went away.
    Cancelled,
    /// Nothing was reached.
    Unreachable,
}

/// What became of a request.
#[derive(Debug, Serialize)]
pub struct ResponseRecord {
    /// The id of the request's line.
    pub request: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The provider's status; none when nothing came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Bytes of the answer's body.
    pub bytes: u64,
    /// Stand-ins that got their originals back.
    pub restored: u64,
    /// Stand-ins that did not.
    pub unrestored: u64,
    /// Values hidden in the answer.
    pub redacted: u64,
}
