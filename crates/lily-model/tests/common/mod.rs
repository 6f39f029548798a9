//! What several tests need: the fixtures, and a copy of the small checkpoint that can be changed and damaged.
#![allow(dead_code)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use lily_model::{Checkpoint, ModelError, ModelWeights};
use serde_json::{Map, Value, json};

/// The fixtures of this crate.
pub fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures"))
}

/// The small random checkpoint.
pub fn tiny() -> PathBuf {
    fixtures().join("tiny")
}

/// The default model.
pub fn lily_mini() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lily-mini"))
}

/// A tensor of a safetensors file.
#[derive(Debug, Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

/// A safetensors file taken apart so that it can be put together wrongly.
#[derive(Debug, Clone)]
pub struct Parts {
    pub header: Map<String, Value>,
    pub data: Vec<u8>,
}

impl Parts {
    pub fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        Self { header, data: bytes[8 + length..].to_vec() }
    }

    /// The bytes with any text as header.
    pub fn with_header(&self, header: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header, &self.data].concat()
    }

    /// The bytes; `align` pads the header to a multiple of 8.
    pub fn bytes(&self, align: bool) -> Vec<u8> {
        let mut header = serde_json::to_vec(&self.header).unwrap();
        while align != header.len().is_multiple_of(8) {
            header.push(b' ');
        }
        self.with_header(&header)
    }

    pub fn tensors(&self) -> Vec<Tensor> {
        let tensor = |(name, v): (&String, &Value)| {
            let at = |i: usize| v["data_offsets"][i].as_u64().unwrap() as usize;
            Tensor {
                name: name.clone(),
                dtype: v["dtype"].as_str().unwrap().into(),
                shape: serde_json::from_value(v["shape"].clone()).unwrap(),
                data: self.data[at(0)..at(1)].to_vec(),
            }
        };
        self.header.iter().filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
    }

    pub fn from_tensors(tensors: &[Tensor]) -> Self {
        let (mut header, mut data) = (Map::new(), Vec::new());
        for t in tensors {
            let end = data.len() + t.data.len();
            let entry = json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [data.len(), end]});
            header.insert(t.name.clone(), entry);
            data.extend(&t.data);
        }
        Self { header, data }
    }
}

/// A copy of `tiny` in a directory of its own.
pub struct Copy {
    dir: tempfile::TempDir,
}

impl Copy {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(tiny()).unwrap() {
            let path = entry.unwrap().path();
            fs::write(dir.path().join(path.file_name().unwrap()), fs::read(&path).unwrap()).unwrap();
        }
        Self { dir }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(file), bytes).unwrap();
    }

    pub fn remove(&self, file: &str) {
        fs::remove_file(self.path(file)).unwrap();
    }

    /// Changes a JSON file.
    pub fn json(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let mut value = serde_json::from_slice(&fs::read(self.path(file)).unwrap()).unwrap();
        change(&mut value);
        self.write(file, serde_json::to_vec(&value).unwrap());
    }

    /// Sets the value at a JSON pointer of `config.json`, adding the last member if need be.
    pub fn config(&self, pointer: &str, value: Value) {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        self.json("config.json", |c| match c.pointer_mut(pointer) {
            Some(old) => *old = value,
            None => c.pointer_mut(parent).unwrap()[key] = value,
        });
    }

    pub fn parts(&self) -> Parts {
        Parts::read(&self.path("model.safetensors"))
    }

    /// Writes `model.safetensors` and takes the index away.
    pub fn single(&self, bytes: impl AsRef<[u8]>) {
        self.write("model.safetensors", bytes);
        let _ = fs::remove_file(self.path("model.safetensors.index.json"));
    }

    /// Changes the header entry of one tensor.
    pub fn entry(&self, tensor: &str, key: &str, value: Value) {
        let mut parts = self.parts();
        parts.header[tensor][key] = value;
        self.single(parts.bytes(true));
    }

    /// Changes the list of tensors.
    pub fn tensors(&self, change: impl FnOnce(&mut Vec<Tensor>)) {
        let mut tensors = self.parts().tensors();
        change(&mut tensors);
        self.single(Parts::from_tensors(&tensors).bytes(true));
    }

    /// Changes one tensor.
    pub fn tensor(&self, name: &str, change: impl FnOnce(&mut Tensor)) {
        self.tensors(|all| change(all.iter_mut().find(|t| t.name == name).unwrap()));
    }

    /// Cuts the weights into two shards with an index, the first holding `in_first` of the tensors.
    pub fn shard(&self, in_first: usize) {
        let tensors = self.parts().tensors();
        self.remove("model.safetensors");
        let mut map = Map::new();
        for (file, part) in SHARDS.iter().zip([&tensors[..in_first], &tensors[in_first..]]) {
            self.write(file, Parts::from_tensors(part).bytes(true));
            map.extend(part.iter().map(|t| (t.name.clone(), json!(file))));
        }
        self.write(INDEX, json!({"metadata": {}, "weight_map": map}).to_string());
    }

    pub fn open(&self) -> Result<Checkpoint, ModelError> {
        Checkpoint::open(self.dir())
    }

    pub fn load(&self) -> Result<ModelWeights, ModelError> {
        self.open()?.weights()
    }
}

pub const INDEX: &str = "model.safetensors.index.json";
pub const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// A way to damage the checkpoint, and what the error must name.
pub type Hostile = (&'static str, fn(&Copy), &'static [&'static str]);

/// Each case must fail to load with an error that contains all that is asked, says what to do, and is of readable
/// length.
pub fn assert_all_fail(cases: &[Hostile]) {
    let mut wrong = Vec::new();
    for (name, damage, wanted) in cases {
        let copy = Copy::new();
        copy.load().expect("undamaged");
        damage(&copy);
        let message = match copy.load() {
            Ok(_) => "loaded".to_string(),
            Err(error) => error.to_string(),
        };
        println!("{name}:\n    {}", message.replace(&copy.dir().display().to_string(), "DIR"));
        let missing: Vec<_> = wanted.iter().filter(|w| !message.contains(**w)).collect();
        if !missing.is_empty() || !message.contains("; ") || message.len() > 800 {
            wrong.push(format!("{name}: {missing:?} not in: {message}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
