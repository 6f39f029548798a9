//! Any file as a checkpoint's weights: an error that names what is wrong, never a panic.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use lily_model::Checkpoint;

const CONFIG: &[u8] = include_bytes!("../../models/lily-mini/config.json");

fuzz_target!(|weights: &[u8]| {
    let dir = std::env::temp_dir().join(format!("lily-fuzz-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("config.json"), CONFIG).unwrap();
    fs::write(dir.join("model.safetensors"), weights).unwrap();
    if let Ok(checkpoint) = Checkpoint::open(&dir) {
        let _ = checkpoint.weights();
    }
});
