//! What leaves the machine, and the proof of it.
//!
//! * [`config`]: which models in the cloud there are, and where;
//! * [`egress`]: the only HTTP client of the workspace; it takes nothing but a [`lily_gate::body::GatedBody`];
//! * [`audit`]: the log that is written, and on the disk, before the first byte leaves;
//! * [`cloud`]: one request to a model in the cloud, its answer restored while it streams;
//! * [`event`]: what such an answer consists of.

pub mod audit;
pub mod cloud;
pub mod config;
pub mod egress;
pub mod event;
mod lanes;
mod sse;

pub use audit::{AuditError, AuditLog};
pub use cloud::{Answer, Cloud, CloudError};
pub use config::{CloudConfig, ConfigError, Upstream};
pub use event::{CloudEvent, Ending, Usage};
