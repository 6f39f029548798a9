//! Reading and validating a checkpoint directory.
//!
//! [`Checkpoint::open`] reads the small files; [`Checkpoint::weights`] maps the weight files, checks every tensor and
//! hands out views. Nothing is copied but small vectors (and tensors whose place in the file is not aligned), so the
//! weight files must not be changed while the weights are in use: a truncated file ends the process.

mod header;
mod load;
mod read_ahead;
mod shards;
mod source;

use std::{
    borrow::Cow,
    path::Path,
    sync::{Arc, OnceLock},
};

use serde_json::Value;

use crate::{
    ModelConfig, ModelError, ModelWeights, Storage,
    config::{GenerationDefaults, Quantization, parse, tokenizer::TokenizerFacts},
    error::RESTORE_CONFIG,
    json::{self, Field},
};
use shards::Shards;
use source::Source;

/// A checkpoint whose small files are read and validated.
#[derive(Debug)]
pub struct Checkpoint {
    source: Source,
    name: String,
    config: ModelConfig,
    quantization: Quantization,
    generation: GenerationDefaults,
    valid_vocab: usize,
    report: OnceLock<LoadReport>,
    files: OnceLock<Vec<Arc<Storage>>>,
}

/// What loading the weights came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadReport {
    /// Tensors of the language model.
    pub tensors: usize,
    /// Their bytes in the files.
    pub bytes: usize,
    /// Weight files.
    pub files: usize,
    /// Matrix tensors that had to be copied because their place in the file is not aligned.
    pub copied_misaligned: usize,
    /// Tensors of the vision tower that were passed over.
    pub skipped_vision: usize,
    /// Whether every scale and bias was checked to be finite; see [`ModelWeights::check_finite`].
    pub scales_checked: bool,
}

/// The content of the small file `name` (everything but weights) in `dir`, for those who need no checkpoint around it.
/// `None` when there is no such file; pipes, devices and files too large for memory are errors.
pub fn read_file_in(dir: &Path, name: &str) -> Result<Option<Vec<u8>>, ModelError> {
    let file = Source::Directory(dir.to_path_buf()).read(name)?;
    Ok(file.map(Cow::into_owned))
}

/// Whether a tensor or module belongs to the vision tower, which is not loaded.
pub(crate) fn is_vision(name: &str) -> bool {
    name.starts_with("vision_tower.") || name.starts_with("model.visual.")
}

impl Checkpoint {
    /// Opens the checkpoint in directory `dir`: reads `config.json`, and `generation_config.json`,
    /// `tokenizer_config.json` and `tokenizer.json` where they exist. The weights are not needed until
    /// [`weights`](Self::weights).
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        let meta = std::fs::metadata(dir)
            .map_err(|source| ModelError::Io { file: dir.display().to_string(), source })?;
        if !meta.is_dir() {
            return Err(ModelError::BadFile {
                path: dir.display().to_string(),
                found: "a file".into(),
                expected: "a checkpoint directory with config.json".into(),
                advice: "give the directory, not a file in it",
            });
        }
        // `.` and `..` have no name of their own.
        let full = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
        let name = full.file_name().map_or("model".into(), |n| n.to_string_lossy().into_owned());
        Self::read(Source::Directory(dir.to_path_buf()), name)
    }

    /// Opens the checkpoint whose files, by name, are inside the executable. Weights are used in place when the
    /// bytes are aligned to 4.
    pub fn from_static(files: &[(&'static str, &'static [u8])]) -> Result<Self, ModelError> {
        Self::read(Source::Static(files.to_vec()), "lily-mini".into())
    }

    fn read(source: Source, name: String) -> Result<Self, ModelError> {
        let json = |file: &str| -> Result<Option<(String, Value)>, ModelError> {
            let path = source.path(file);
            let Some(bytes) = source.read(file)? else { return Ok(None) };
            Ok(Some((path.clone(), json::parse(&path, &bytes, RESTORE_CONFIG)?)))
        };
        let Some((path, value)) = json("config.json")? else {
            return Err(ModelError::MissingFile {
                dir: source.place(),
                file: "config.json".into(),
                advice: "give a checkpoint directory, or restore the file".into(),
            });
        };
        let root = Field::root(&path, &value);
        let config = parse::model_config(&root)?;
        let quantization = Quantization::from_config(&root)?;

        let mut tokenizer = TokenizerFacts::default();
        if let Some(bytes) = source.read("tokenizer.json")? {
            tokenizer = TokenizerFacts::from_tokenizer_json(&source.path("tokenizer.json"), &bytes)?;
        }
        let mut eos = None;
        if let Some((path, value)) = &json("tokenizer_config.json")? {
            let field = Field::root(path, value);
            tokenizer.add_tokenizer_config(&field)?;
            eos = tokenizer.eos_token_id(&field)?;
        }
        let valid_vocab = tokenizer.valid_vocab(&source.path("tokenizer.json"), config.vocab_size)?;

        let generation = json("generation_config.json")?;
        let generation = generation.as_ref().map(|(path, value)| Field::root(path, value));
        let generation = GenerationDefaults::new(&root, generation.as_ref(), eos, config.vocab_size)?;
        Ok(Self {
            source,
            name,
            config,
            quantization,
            generation,
            valid_vocab,
            report: OnceLock::new(),
            files: OnceLock::new(),
        })
    }

    /// The directory's name; `lily-mini` for the built-in model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sizes and constants.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Bit widths.
    pub fn quantization(&self) -> &Quantization {
        &self.quantization
    }

    /// Sampling defaults and end-of-sequence ids.
    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
    }

    /// One more than the tokenizer's highest id. Rows of `lm_head` from here on are padding and must never be
    /// sampled. `vocab_size` when there is no tokenizer.
    pub fn valid_vocab(&self) -> usize {
        self.valid_vocab
    }

    /// The directory as given; for the built-in model, words that say so.
    pub fn place(&self) -> String {
        self.source.place()
    }

    /// The content of another file of the checkpoint, such as `tokenizer.json`. `name` is a plain file name;
    /// `None` when there is no such file. One that is there and cannot be read is an error.
    pub fn read_file(&self, name: &str) -> Result<Option<Cow<'_, [u8]>>, ModelError> {
        if name.contains(['/', '\\', '\0']) || name == ".." {
            return Ok(None);
        }
        self.source.read(name)
    }

    /// [`read_file`](Self::read_file) for files that one can do without: those that cannot be read are logged, and
    /// `None`.
    pub fn file(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        self.read_file(name).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read a file of the checkpoint");
            None
        })
    }

    /// Maps the weight files, checks every tensor's name, dtype, shape and bit width, and hands out the weights.
    pub fn weights(&self) -> Result<ModelWeights, ModelError> {
        let shards = Shards::open(&self.source)?;
        let (weights, report) = load::load(&self.source.place(), &self.config, &self.quantization, &shards)?;
        tracing::debug!(?report, "weights loaded");
        let _ = self.report.set(report);
        let _ = self.files.set(shards.files.iter().map(|f| f.storage.clone()).collect());
        Ok(weights)
    }

    /// Reads the mapped weight files from the disk, front to back, so that a first prompt need not fetch its pages in
    /// the order it uses them. `progress(done, total)` in bytes, every 32 MiB; returns the bytes read. 0 before
    /// [`weights`](Self::weights) was called, and for the built-in model.
    pub fn read_ahead(&self, mut progress: impl FnMut(usize, usize)) -> usize {
        read_ahead::read_ahead(self.files.get().map_or(&[], Vec::as_slice), &mut progress)
    }

    /// Checks that every scale and bias is finite, where [`weights`](Self::weights) left that out because there are
    /// too many of them to read at every start.
    pub fn check_values(&self, weights: &ModelWeights) -> Result<(), ModelError> {
        if self.report.get().is_some_and(|r| r.scales_checked) {
            Ok(())
        } else {
            weights.check_finite(&self.place())
        }
    }

    /// What the first successful [`weights`](Self::weights) came to.
    pub fn load_report(&self) -> Option<&LoadReport> {
        self.report.get()
    }
}
