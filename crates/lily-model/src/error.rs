//! Errors of reading a checkpoint. Each names the file, tensor or field, what was found, what was expected and
//! what to do.

/// What to do about a damaged weight file.
pub(crate) const DOWNLOAD_AGAIN: &str = "download the file again or restore it from a good copy";
/// What to do about a checkpoint in another layout.
pub(crate) const CONVERT_AGAIN: &str =
    "use an MLX 4-bit checkpoint of this architecture (group size 64), as `mlx_lm.convert -q` writes it";
/// What to do about a configuration that does not fit.
pub(crate) const RESTORE_CONFIG: &str = "restore the file that came with the checkpoint";

/// Why a checkpoint could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be read.
    #[error("{file}: {source}; check that the file exists and can be read")]
    Io {
        /// Path as given.
        file: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file the checkpoint must have is not there.
    #[error("{dir}: {file} is missing; {advice}")]
    MissingFile {
        /// The checkpoint's directory or name.
        dir: String,
        /// The file's name.
        file: String,
        /// What to do.
        advice: String,
    },
    /// A path that is not what it must be: a directory, an empty file, a file that is too large.
    #[error("{path}: found {found}, expected {expected}; {advice}")]
    BadFile {
        /// Path as given.
        path: String,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
        /// What to do.
        advice: &'static str,
    },
    /// A JSON file, or the JSON header of a safetensors file, cannot be parsed.
    #[error("{file}: not valid JSON: {reason}; {advice}")]
    Json {
        /// Path as given.
        file: String,
        /// What the parser says, with line and column.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
    /// A field of a JSON file has a wrong or unsupported value.
    #[error("{file}: {field} is {found}; expected {expected}; {advice}")]
    Field {
        /// Path as given.
        file: String,
        /// Path of the field inside the file, for example `text_config.hidden_size`.
        field: String,
        /// The value found, or `missing`.
        found: String,
        /// What is supported.
        expected: String,
        /// What to do.
        advice: &'static str,
    },
    /// The structure of a safetensors file is damaged.
    #[error("{file}: {problem}; {advice}")]
    Header {
        /// Path as given.
        file: String,
        /// What was found and expected.
        problem: String,
        /// What to do.
        advice: &'static str,
    },
    /// A tensor is missing, left over, duplicated, or has a wrong dtype, shape, place or value.
    #[error("{file}: tensor {tensor}: {problem}; {advice}")]
    Tensor {
        /// Path of the file as given.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// What was found and expected.
        problem: String,
        /// What to do.
        advice: &'static str,
    },
}
