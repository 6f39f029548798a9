//! Makes the golden vectors of the self test anew, on the checked soft device: after a kernel, a plan or a case changed.
//!
//! `cargo run --release -p lily-gpu --example make_golden`

use std::{env, fs, path::Path, process::ExitCode};

use lily_gpu::{
    device::soft::{SoftDevice, SoftOptions},
    error::Result,
    selftest,
};

fn main() -> ExitCode {
    match make() {
        Ok(file) => {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/selftest/golden.safetensors");
            println!("{}: {} bytes", path.display(), file.len());
            match fs::write(&path, file) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("{}: {error}", path.display());
                    ExitCode::FAILURE
                }
            }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn make() -> Result<Vec<u8>> {
    let seed = env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let mut device = SoftDevice::with_tensor_ops(SoftOptions { checked: true, seed })?;
    selftest::record(&mut device)?.to_file()
}
