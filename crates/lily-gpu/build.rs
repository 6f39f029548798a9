//! Embeds every kernel source of `kernels/`, so that a new file is compiled in without being listed twice.

use std::{env, fmt::Write as _, fs, path::Path, process::exit};

fn main() {
    let dir = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../../kernels");
    println!("cargo::rerun-if-changed={}", dir.display());
    let mut names: Vec<String> = match fs::read_dir(&dir) {
        Ok(entries) => entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect(),
        Err(error) => fail(&format!("{}: {error}; restore the directory", dir.display())),
    };
    names.retain(|n| n.ends_with(".metal") || n.ends_with(".metal.h"));
    names.sort();
    if !names.iter().any(|n| n == "all.metal") {
        fail(&format!("{} has no all.metal; restore the file", dir.display()));
    }
    let mut code = String::from("pub(super) static FILES: &[(&str, &str)] = &[\n");
    for name in names {
        let path = dir.join(&name);
        println!("cargo::rerun-if-changed={}", path.display());
        let _ = writeln!(code, "    ({name:?}, include_str!({:?})),", path.to_string_lossy());
    }
    code.push_str("];\n");
    let out = Path::new(&env::var("OUT_DIR").unwrap_or_default()).join("kernels.rs");
    if let Err(error) = fs::write(&out, code) {
        fail(&format!("{}: {error}", out.display()));
    }
}

fn fail(message: &str) -> ! {
    eprintln!("{message}");
    exit(1)
}
