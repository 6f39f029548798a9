//! The strict form is refused exactly where Metal refuses, and accepted elsewhere.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use common::{unit, unit4};
use lily_msl::{Unit, emit::STRICT_FLAGS};

/// The lines of `name` on which clang finds an error, or `None` without clang-19.
fn errors(name: &str, text: &str, headers: &[(&str, &str)]) -> Option<(BTreeSet<u32>, String)> {
    errors_of(name, || unit(name, text, headers))
}

fn errors_of(name: &str, unit: impl Fn() -> Unit) -> Option<(BTreeSet<u32>, String)> {
    if !Command::new("clang-19").arg("--version").output().is_ok_and(|o| o.status.success()) {
        println!("skipped: no clang-19");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k.clcpp");
    std::fs::write(&path, unit().strict_source()).unwrap();
    let out = Command::new("clang-19")
        .args(["-x", "clcpp", "-fsyntax-only", "-ferror-limit=0"])
        .args(STRICT_FLAGS)
        .arg(&path)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&out.stderr).into_owned();
    let at = |l: &str| -> Option<u32> {
        let rest = l.strip_prefix(&format!("{name}:"))?;
        let (line, rest) = rest.split_once(':')?;
        rest.contains(" error: ").then(|| line.parse().ok())?
    };
    let lines: BTreeSet<u32> = log.lines().filter_map(at).collect();
    assert_eq!(lines.is_empty(), out.status.success(), "{log}");
    Some((lines, log))
}

#[test]
fn every_seeded_type_error_is_found_and_nothing_else() {
    let text = include_str!("kernels/strict.metal");
    let Some((lines, log)) = errors("strict.metal", text, &[]) else { return };
    let bad = text.lines().enumerate().filter(|(_, l)| l.contains("// BAD")).map(|(i, _)| i as u32 + 1);
    assert_eq!(lines, bad.collect(), "{log}");
}

#[test]
fn every_seeded_type_error_of_tensor_operations_is_found_and_nothing_else() {
    let text = include_str!("kernels/strict_tensor.metal");
    let name = "strict_tensor.metal";
    let Some((lines, log)) = errors_of(name, || unit4(name, text, &[])) else { return };
    let bad = text.lines().enumerate().filter(|(_, l)| l.contains("// BAD")).map(|(i, _)| i as u32 + 1);
    assert_eq!(lines, bad.collect(), "{log}");
    // What is wrong inside an operation shows at the operation.
    for (from, to, said) in [
        ("threadgroup half,", "threadgroup int,", "no operation takes and gives these types"),
        ("descriptor(32, 64,", "descriptor(40, 40,", "a multiple of 16"),
    ] {
        assert!(text.contains(from));
        let (_, log) = errors_of(name, || unit4(name, &text.replacen(from, to, 1), &[])).unwrap();
        assert!(log.contains(said), "{log}");
    }
}

#[test]
fn correct_kernels_are_accepted() {
    let quant = [("quant.h", include_str!("kernels/quant.h"))];
    for (name, text) in [
        ("basic.metal", include_str!("kernels/basic.metal")),
        ("faults.metal", include_str!("kernels/faults.metal")),
    ] {
        let Some((lines, log)) = errors(name, text, &quant) else { return };
        assert!(lines.is_empty(), "{log}");
    }
}
