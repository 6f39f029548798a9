//! Every kernel of `kernels/` on the checked soft device in strict mode against references in f64, and a test that fails
//! where one of the manifest's kernels was not run at the sizes of the 35B model (some rows where whole matrices would
//! take long), of lily-mini and of the tiny model, with ragged edges, in two schedules each.

#[path = "../common/mod.rs"]
mod common;

mod decode;
mod decode_attention;
mod draw;
mod prefill_attention;
mod prefill_gdn;
mod prefill_gemm;
mod prefill_moe;
mod tensor;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use common::{
    compiler,
    coverage::{Sizes, missing},
    device::KERNELS,
};

/// Runs a test's body once in this process, whoever asks first.
fn once(name: &'static str, body: fn()) {
    static DONE: Mutex<BTreeMap<&str, Arc<OnceLock<()>>>> = Mutex::new(BTreeMap::new());
    let cell = DONE.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default().clone();
    cell.get_or_init(body);
}

macro_rules! kernel_tests {
    ($($module:ident: $($test:ident)+;)+) => {
        $($(
            #[test]
            fn $test() {
                once(stringify!($test), $module::$test);
            }
        )+)+

        #[test]
        fn every_kernel_is_covered() {
            $($(once(stringify!($test), $module::$test);)+)+
            covered();
        }
    };
}

kernel_tests! {
    decode: project_with_norm_and_with_addition embedding_rows gdn_steps mixture_of_experts argmax_of_logits;
    decode_attention: rotation_is_exact_at_any_position attention_over_splits attention_over_fixed_blocks;
    draw: sets_and_noise_are_exact temperature_zero_is_the_argmax_and_what_is_not_finite_is_said
        draws_follow_the_distribution the_large_vocabulary;
    prefill_attention: causal_behind_a_prefix;
    prefill_gdn: chunks_continue_each_other every_decay_from_none_to_all;
    prefill_gemm: products ranges_of_halves router_logits_are_not_rounded rows_are_normed;
    prefill_moe: routing_on_the_gpu_is_a_stable_sort experts_and_shared_expert experts_of_full_width;
    tensor: products_of_halves ends_of_the_range experts_of_halves;
}

/// The sizes at which a kernel must have run: all, but a number of query heads a KV head is that of one model.
fn needed(kernel: &str) -> Vec<Sizes> {
    use Sizes::*;
    if !kernel.starts_with("attention_") || kernel.ends_with("combine") || kernel.contains("prepare") {
        return vec![Large, Mini, Tiny, Ragged];
    }
    match kernel.rsplit_once('_').map(|k| k.1) {
        Some("8") => vec![Large, Ragged],
        Some("4") => vec![Mini, Ragged],
        Some("2") => vec![Tiny, Ragged],
        _ => vec![Ragged],
    }
}

fn covered() {
    if compiler().is_none() {
        return;
    }
    let mut s = lily_msl::Sources::new();
    for (name, text) in KERNELS {
        s.add(name, text);
    }
    // Metal 4 has all kernels of Metal 3, and those that need tensors.
    let metal4 = lily_msl::ParseOptions { metal_version: 400, ..Default::default() };
    let unit = lily_msl::Unit::parse(&s, "all.metal", &metal4).unwrap_or_else(|e| panic!("{e}"));
    let manifest = unit.manifest().unwrap_or_else(|e| panic!("{e}"));
    let gaps: Vec<String> =
        manifest.kernels.iter().flat_map(|k| missing(&k.name, &needed(&k.name))).collect();
    assert!(gaps.is_empty(), "{} of {} kernels: {gaps:#?}", gaps.len(), manifest.kernels.len());
    assert!(!missing("no_such_kernel", &[Sizes::Large]).is_empty());
    println!("{} kernels are covered", manifest.kernels.len());
}
