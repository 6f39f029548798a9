//! Lists the files of `models/lily-mini` that go into the binary.
//!
//! The list is made from the directory, so that a retrained model is embedded by replacing files, and checked: a
//! model without one of the needed files does not build.

use std::{env, fmt::Write as _, fs, path::Path, process::exit};

/// Files without which the model cannot run.
const NEEDED: &[&str] = &["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"];

/// Further files that belong to it: sampling defaults, held-out data of `lily eval`.
const OPTIONAL: &[&str] =
    &["generation_config.json", "tokenizer_config.json", "model.safetensors.index.json", "heldout.json"];

fn main() {
    let model = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../../models/lily-mini");
    println!("cargo::rerun-if-changed={}", model.display());
    let mut names: Vec<String> = match fs::read_dir(&model) {
        Ok(entries) => {
            entries.flatten().filter_map(|e| e.file_name().into_string().ok()).filter(|n| wanted(n)).collect()
        }
        Err(error) => fail(&format!("{}: {error}; restore the directory", model.display())),
    };
    names.sort();
    if let Some(missing) = NEEDED.iter().find(|n| !names.iter().any(|have| have == *n)) {
        fail(&format!("{} has no {missing}; restore the file", model.display()));
    }

    // Weights are used in place, as 32-bit words: the bytes must be aligned.
    let mut code = String::from("pub(super) static FILES: &[(&str, &[u8])] = &[\n");
    for name in names {
        let path = model.join(&name);
        println!("cargo::rerun-if-changed={}", path.display());
        let path = path.to_string_lossy().into_owned();
        let _ = writeln!(
            code,
            "    ({name:?}, {{ static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!({path:?})); &FILE.0 }}),"
        );
    }
    code.push_str("];\n");
    let out = Path::new(&env::var("OUT_DIR").unwrap_or_default()).join("embedded.rs");
    if let Err(error) = fs::write(&out, code) {
        fail(&format!("{}: {error}", out.display()));
    }
}

fn wanted(name: &str) -> bool {
    // Notices of the training data go wherever the model goes.
    NEEDED.contains(&name) || OPTIONAL.contains(&name) || name.starts_with("LICENSE")
}

fn fail(message: &str) -> ! {
    eprintln!("{message}");
    exit(1)
}
