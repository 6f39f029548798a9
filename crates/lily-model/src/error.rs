//! Errors of reading a checkpoint. Each names the file, tensor or field, what was found, what was expected and
//! what to do.

/// Why a checkpoint could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be read.
    #[error("{file}: {source}")]
    Io {
        /// Path as given.
        file: String,
        /// The system's reason.
        source: std::io::Error,
    },
}
