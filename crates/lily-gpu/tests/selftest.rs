//! The self test on the soft device: the kernels pass it, and a device that computes something else does not.

use std::{collections::BTreeMap, sync::Arc};

use lily_gpu::{
    Device, GpuError,
    device::soft::{self, SoftDevice, SoftOptions},
    kernels,
    selftest::{self, Golden, KernelReport},
};
use lily_msl::{
    ParseOptions, Sources, Unit,
    soft::{Compiler, SoftLibrary},
};

fn device(checked: bool, seed: u32) -> Option<SoftDevice> {
    made(SoftDevice::new(SoftOptions { checked, seed }))
}

fn tensor_device(seed: u32) -> Option<SoftDevice> {
    made(SoftDevice::with_tensor_ops(SoftOptions { checked: false, seed }))
}

fn made(device: Result<SoftDevice, GpuError>) -> Option<SoftDevice> {
    match device {
        Ok(device) => Some(device),
        Err(e) if e.to_string().contains("no C++ compiler") => {
            println!("skipped: no C++ compiler");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn wrong(reports: &BTreeMap<String, KernelReport>) -> Vec<&str> {
    reports.iter().filter(|(_, r)| !r.passed()).map(|(name, _)| name.as_str()).collect()
}

#[test]
fn every_kernel_passes_in_two_schedules_and_watched() {
    let golden = Golden::embedded().unwrap();
    for (checked, seed) in [(false, 1), (false, 77), (true, 5)] {
        let Some(mut device) = device(checked, seed) else { return };
        let reports = selftest::run(&mut device, &golden).unwrap();
        let all: Vec<&String> = reports.values().flat_map(|r| &r.problems).collect();
        assert!(wrong(&reports).is_empty(), "{:?}: {all:#?}", wrong(&reports));
        assert_eq!(reports.len(), kernels::manifest().unwrap().kernels.len());
        for (name, r) in &reports {
            assert!(r.runs > 0 && r.bytes > 0 && r.worst <= 0.5, "{name}: {r}");
        }
        assert_eq!(device.allocated(), 0);
    }
}

/// A device with tensor operations runs the kernels that need them too.
#[test]
fn tensor_operations_pass_and_their_faults_are_named() {
    let golden = Golden::embedded().unwrap();
    let Some(mut device) = tensor_device(3) else { return };
    let reports = selftest::run(&mut device, &golden).unwrap();
    assert!(wrong(&reports).is_empty(), "{:?}", wrong(&reports));
    let tensor: Vec<&str> = reports.keys().filter(|k| k.contains("_tensor")).map(String::as_str).collect();
    assert_eq!((reports.len(), tensor.len()), (kernels::manifest_with(true).unwrap().kernels.len(), 7));
    assert!(tensor.iter().all(|k| reports[*k].runs > 1 && reports[*k].worst <= 0.5), "{reports:#?}");
    // Sums that start at one instead of nothing.
    let library = changed_as(400, "tensor.metal", "sums[i] = 0.0f", "sums[i] = 1.0f");
    let mut device = SoftDevice::with_library(library, SoftOptions { checked: false, seed: 0 });
    assert_eq!(wrong(&selftest::run(&mut device, &golden).unwrap()), tensor);
}

/// The kernels with some text replaced.
fn changed(file: &str, from: &str, to: &str) -> Arc<SoftLibrary> {
    changed_as(ParseOptions::default().metal_version, file, from, to)
}

fn changed_as(metal_version: u32, file: &str, from: &str, to: &str) -> Arc<SoftLibrary> {
    let mut sources = Sources::new();
    for (name, text) in kernels::files() {
        let new = if *name == file { text.replace(from, to) } else { text.to_string() };
        assert!(*name != file || new != *text, "{file} has no {from:?}");
        sources.add(*name, new);
    }
    let options = ParseOptions { metal_version, ..ParseOptions::default() };
    let unit = Unit::parse(&sources, kernels::ROOT, &options).unwrap();
    Arc::new(SoftLibrary::build(&unit, &Compiler::find().unwrap(), false).unwrap())
}

#[test]
fn wrong_kernels_are_named() {
    if soft::library(false).is_err() && device(false, 0).is_none() {
        return;
    }
    let golden = Golden::embedded().unwrap();
    let run = |library| {
        let options = SoftOptions { checked: false, seed: 0 };
        selftest::run(&mut SoftDevice::with_library(library, options), &golden).unwrap()
    };
    // A gate that is not applied, in both kernels that have it.
    let reports = run(changed("attention_decode.metal", "value / sum * sigmoid(gate)", "value / sum * gate"));
    assert_eq!(wrong(&reports), ["attention_blocks_combine", "attention_combine"]);
    // Ties and maxima: the smallest instead of the largest.
    let reports = run(changed("sample.metal", "return a > b ||", "return a < b ||"));
    assert!(wrong(&reports).contains(&"argmax_blocks"), "{:?}", wrong(&reports));
    assert!(!wrong(&reports).contains(&"embed"));
    // An activation of too few bits shows in every kernel that has it, and in no other.
    let reports = run(changed(
        "common.metal.h",
        "inline float silu(float x) { return x / (1.0f + exp(-x)); }",
        "inline float silu(float x) { return float(bfloat(x / (1.0f + exp(-x)))); }",
    ));
    let named = wrong(&reports);
    for kernel in ["gdn_step", "moe_gate_up_1", "moe_gate_up_4", "moe_down_2"] {
        assert!(named.contains(&kernel), "{kernel} in {named:?}");
    }
    assert!(!named.iter().any(|k| k.starts_with("attention") || k.starts_with("project")), "{named:?}");
}

#[test]
fn spoilt_or_missing_vectors_are_wrong() {
    let Some(mut device) = device(false, 0) else { return };
    let mut golden = Golden::embedded().unwrap();
    let key = golden.keys().find(|k| k.contains("gdn_step/y")).unwrap().to_string();
    golden.get_mut(&key).unwrap()[3] ^= 0x40; // the exponent
    let reports = selftest::run(&mut device, &golden).unwrap();
    assert!(wrong(&reports).contains(&"gdn_step"), "{:?}", wrong(&reports));
    let problem = &reports["gdn_step"].problems[0];
    assert!(problem.contains("y is off by"), "{problem}");
    // Without them nothing passes, and the message says what to do.
    let error = selftest::run(&mut device, &Golden::default()).unwrap_err().to_string();
    assert!(error.contains("make_golden"), "{error}");
}

/// The file in the repository is what the soft device computes today: a kernel that changed its results on purpose needs
/// new vectors.
#[test]
fn the_vectors_are_those_of_these_kernels() {
    let Some(mut device) = tensor_device(0) else { return };
    let (made, kept) = (selftest::record(&mut device).unwrap(), Golden::embedded().unwrap());
    let keys = |g: &Golden| g.keys().map(str::to_string).collect::<Vec<_>>();
    assert_eq!(keys(&made), keys(&kept));
    assert!(made.len() > 60, "{}", made.len());
}
