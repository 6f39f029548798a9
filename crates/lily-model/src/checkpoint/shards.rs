//! The weight files of a checkpoint: one `model.safetensors`, or shards listed by an index.

use std::{
    collections::{BTreeSet, HashMap, hash_map},
    sync::Arc,
};

use super::{header, source::Source};
use crate::{
    Storage,
    error::{ModelError, RESTORE_CONFIG},
    json::{self, Field},
};

/// Name of a checkpoint's only weight file.
const SINGLE: &str = "model.safetensors";
/// Name of the list of shards.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// A mapped weight file.
#[derive(Debug)]
pub(crate) struct Shard {
    /// Path as shown in errors.
    pub path: String,
    pub storage: Arc<Storage>,
}

/// Where a tensor is.
#[derive(Debug)]
pub(crate) struct Located {
    /// Index into [`Shards::files`].
    pub shard: usize,
    pub entry: header::Entry,
}

/// All weight files, and all tensors by name.
#[derive(Debug)]
pub(crate) struct Shards {
    pub files: Vec<Shard>,
    pub tensors: HashMap<String, Located>,
}

impl Shards {
    /// Maps every weight file, reads every header, and checks them against the index if there is one.
    pub(crate) fn open(source: &Source) -> Result<Self, ModelError> {
        let index = match source.read(INDEX)? {
            Some(bytes) => Some(Index::parse(&source.path(INDEX), &bytes)?),
            None => None,
        };
        let names = match &index {
            Some(index) => index.files.iter().cloned().collect(),
            None if source.has(SINGLE) => vec![SINGLE.to_string()],
            None => return Err(no_weights(source)?),
        };
        // `mlx_lm` would load every file that looks like a shard, so a stale one is not to be passed over.
        let extra = |f: &String| f.starts_with("model") && !names.contains(f);
        if let Some(file) = source.weight_files()?.into_iter().find(extra) {
            return Err(ModelError::BadFile {
                path: source.path(&file),
                found: "a weight file that the checkpoint does not list".into(),
                expected: names.join(", "),
                advice: "remove it if it belongs to another checkpoint, or restore model.safetensors.index.json",
            });
        }

        let mut shards = Shards { files: Vec::new(), tensors: HashMap::new() };
        for name in &names {
            shards.add(source, name)?;
        }
        if let Some(index) = &index {
            index.check(source, &names, &shards)?;
        }
        Ok(shards)
    }

    fn add(&mut self, source: &Source, name: &str) -> Result<(), ModelError> {
        let (path, storage) = (source.path(name), source.map(name)?);
        let shard = self.files.len();
        for entry in header::read(&path, storage.bytes())? {
            match self.tensors.entry(entry.name.clone()) {
                hash_map::Entry::Vacant(v) => {
                    v.insert(Located { shard, entry });
                }
                hash_map::Entry::Occupied(o) => {
                    return Err(ModelError::Tensor {
                        file: path,
                        tensor: json::clip(&entry.name),
                        problem: format!("is also in {}", self.files[o.get().shard].path),
                        advice: "keep the shards of one checkpoint only",
                    });
                }
            }
        }
        self.files.push(Shard { path, storage });
        Ok(())
    }
}

fn no_weights(source: &Source) -> Result<ModelError, ModelError> {
    let others = source.weight_files()?;
    let advice = if others.is_empty() {
        format!("a checkpoint has {SINGLE}, or shards with {INDEX}; check the path, or download the weights")
    } else {
        format!("found {} but no {INDEX}; download the index too", others.join(", "))
    };
    Ok(ModelError::MissingFile { dir: source.place(), file: SINGLE.into(), advice })
}

/// `model.safetensors.index.json`: which shard holds which tensor.
struct Index {
    path: String,
    map: HashMap<String, String>,
    files: BTreeSet<String>,
}

impl Index {
    fn parse(path: &str, bytes: &[u8]) -> Result<Self, ModelError> {
        let value = json::parse(path, bytes, RESTORE_CONFIG)?;
        let weight_map = Field::root(path, &value).get("weight_map");
        let mut map = HashMap::new();
        let mut files = BTreeSet::new();
        for tensor in weight_map.object()?.keys() {
            let field = weight_map.get(tensor);
            let file = field.string()?;
            // The name comes from the checkpoint: it must not lead out of its directory.
            let plain = !file.is_empty() && !file.contains(['/', '\\', ':', '\0']) && !file.starts_with('.');
            if !plain || !file.ends_with(".safetensors") {
                return Err(field.error("the plain name of a .safetensors file beside the index"));
            }
            files.insert(file.to_string());
            map.insert(tensor.clone(), file.to_string());
        }
        if files.is_empty() {
            return Err(weight_map.error("at least one tensor"));
        }
        Ok(Self { path: path.into(), map, files })
    }

    /// Index and shards must say the same.
    fn check(&self, source: &Source, names: &[String], shards: &Shards) -> Result<(), ModelError> {
        let error = |tensor: &str, problem| ModelError::Tensor {
            file: self.path.clone(),
            tensor: json::clip(tensor),
            problem,
            advice: "restore the index and the shards of the same checkpoint",
        };
        let mut listed: Vec<_> = self.map.iter().collect();
        listed.sort();
        for (tensor, file) in listed {
            match shards.tensors.get(tensor) {
                None => {
                    return Err(error(
                        tensor,
                        format!("listed in {file}, but {} does not hold it", source.path(file)),
                    ));
                }
                Some(at) if names[at.shard] != *file => {
                    return Err(error(tensor, format!("listed in {file}, but it is in {}", names[at.shard])));
                }
                Some(_) => {}
            }
        }
        match shards.tensors.keys().filter(|t| !self.map.contains_key(*t)).min() {
            Some(tensor) => {
                let file = &shards.files[shards.tensors[tensor].shard].path;
                Err(error(tensor, format!("is in {file}, but the index does not list it")))
            }
            None => Ok(()),
        }
    }
}
