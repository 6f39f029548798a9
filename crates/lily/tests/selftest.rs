//! `lily selftest` on the software GPU and on the CPU.

mod common;

use std::fs;

use common::{lily, stderr, stdout};

#[test]
fn every_kernel_and_the_model_pass_and_the_report_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.txt");
    let output = lily().args(["selftest", "--device", "soft", "--report"]).arg(&report).output().unwrap();
    let text = fs::read_to_string(&report).unwrap();
    if !output.status.success() && text.contains("no C++ compiler") {
        println!("skipped: no C++ compiler");
        return;
    }
    assert!(output.status.success(), "{}\n{text}", stderr(&output));
    assert_eq!(stdout(&output), text);
    for part in
        ["device", "soft: kernels compiled for the CPU", "lily-mini on soft: ok, ", "everything is right"]
    {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    // A line a kernel, with its error.
    for kernel in ["embed", "gdn_step", "attention_split_8", "project_norm_4", "moe_down_1", "argmax_final"] {
        let line = text.lines().find(|l| l.split_whitespace().next() == Some(kernel)).expect(kernel);
        assert!(line.contains("ok ") && line.contains("max error"), "{line}");
    }
    assert!(!text.contains("WRONG"), "{text}");
}

#[test]
fn a_device_without_kernels_is_checked_with_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.txt");
    let output = lily().args(["selftest", "--device", "cpu", "--report"]).arg(&report).output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success(), "{}\n{text}", stderr(&output));
    assert!(text.contains("lily-mini on cpu: ok, ") && text.contains("runs no GPU kernels"), "{text}");
    assert!(text.contains("define heron: ok, ") && text.contains("bird"), "{text}");
}

#[test]
fn a_device_that_is_not_there_fails_and_is_reported() {
    if cfg!(target_os = "macos") {
        println!("skipped: this machine may have a Metal device");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.txt");
    let output = lily().args(["selftest", "--device", "metal", "--report"]).arg(&report).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--device cpu"), "{}", stderr(&output));
    let text = fs::read_to_string(&report).unwrap();
    assert!(text.contains("could not be checked: device metal"), "{text}");
    // A report that cannot be written is an error too.
    let output = lily().args(["selftest", "--device", "metal", "--report"]).arg(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&dir.path().display().to_string()), "{}", stderr(&output));
}
