//! Running the kernels of `kernels/` on the checked soft device.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::{bf16, f16};
use lily_msl::manifest::Access;
use lily_msl::soft::{Arg, Dispatch, Outcome, RawArg, RawDispatch, SoftLibrary};

use super::{Random, checked, compiler, coverage, unit};

/// Two schedules: the natural one and a shuffled one.
pub const SEEDS: [u32; 2] = [0, 31];
/// Epsilon of every RMSNorm.
pub const EPS: f32 = 1e-6;

/// Every source of `kernels/`.
pub const KERNELS: [(&str, &str); 16] = [
    ("all.metal", include_str!("../../../../kernels/all.metal")),
    ("attention.metal.h", include_str!("../../../../kernels/attention.metal.h")),
    ("attention_decode.metal", include_str!("../../../../kernels/attention_decode.metal")),
    ("attention_prefill.metal", include_str!("../../../../kernels/attention_prefill.metal")),
    ("common.metal.h", include_str!("../../../../kernels/common.metal.h")),
    ("gdn_decode.metal", include_str!("../../../../kernels/gdn_decode.metal")),
    ("gdn_prefill.metal", include_str!("../../../../kernels/gdn_prefill.metal")),
    ("gemm.metal", include_str!("../../../../kernels/gemm.metal")),
    ("gemm.metal.h", include_str!("../../../../kernels/gemm.metal.h")),
    ("gemv.metal", include_str!("../../../../kernels/gemv.metal")),
    ("moe_decode.metal", include_str!("../../../../kernels/moe_decode.metal")),
    ("moe_prefill.metal", include_str!("../../../../kernels/moe_prefill.metal")),
    ("rows_prefill.metal", include_str!("../../../../kernels/rows_prefill.metal")),
    ("sample.metal", include_str!("../../../../kernels/sample.metal")),
    ("shapes.metal.h", include_str!("../../../../kernels/shapes.metal.h")),
    ("tensor.metal", include_str!("../../../../kernels/tensor.metal")),
];

/// The text of one of [`KERNELS`].
pub fn kernel_text(name: &str) -> &'static str {
    KERNELS.iter().find(|k| k.0 == name).unwrap_or_else(|| panic!("no kernel source {name}")).1
}

/// Lints and builds one of [`KERNELS`]; `None` without a compiler.
pub fn kernel_file(name: &str) -> Option<SoftLibrary> {
    kernel_library(name, kernel_text(name))
}

/// Lints and builds a source, which may include any of [`KERNELS`]; `None` without a compiler.
pub fn kernel_library(name: &str, text: &str) -> Option<SoftLibrary> {
    let u = unit(name, text, &KERNELS);
    u.lint().unwrap_or_else(|e| panic!("{e}"));
    compiler().map(|c| checked(&u, &c))
}

/// A `PrefillChunk`: position of the first token, tokens, slot.
pub fn chunk(position: usize, tokens: usize, slot: usize) -> [u32; 3] {
    [position as u32, tokens as u32, slot as u32]
}

pub fn run(
    lib: &SoftLibrary,
    kernel: &str,
    grid: [u32; 3],
    threads: u32,
    seed: u32,
    args: Vec<(&str, Arg<'_>)>,
) -> Outcome {
    run_with(lib, kernel, grid, threads, &[], seed, args)
}

/// Threadgroup memory for the activations of `cols` columns.
pub fn staged(cols: usize) -> u32 {
    128 * (cols as u32 / 32 + 1)
}

pub fn run_with(
    lib: &SoftLibrary,
    kernel: &str,
    grid: [u32; 3],
    threads: u32,
    threadgroup: &[u32],
    seed: u32,
    args: Vec<(&str, Arg<'_>)>,
) -> Outcome {
    let group = [threads, 1, 1];
    if lib.checked {
        coverage::record(kernel, seed);
        let d = Dispatch { kernel, grid, group, args, threadgroup, constants: &[], seed };
        return lib.dispatch(d).unwrap_or_else(|e| panic!("{e}"));
    }
    let args = args.into_iter().map(|(name, a)| match a {
        Arg::Read(s) => RawArg { name, access: Access::Read, ptr: s.as_ptr().cast_mut(), len: s.len() },
        Arg::Bytes(s) => RawArg { name, access: Access::Bytes, ptr: s.as_ptr().cast_mut(), len: s.len() },
        Arg::Write(s) => RawArg { name, access: Access::ReadWrite, ptr: s.as_mut_ptr(), len: s.len() },
    });
    let args = args.collect();
    let d = RawDispatch { kernel, grid, group, args, threadgroup, constants: &[], seed, strict: true };
    // SAFETY: the slices are borrowed through the call, and only `Write` arguments are written. That the kernels keep to
    // arguments of these sizes is what the same tests show on a checked library, with fewer tokens.
    unsafe { lib.dispatch_raw(&d) }.unwrap_or_else(|e| panic!("{e}"))
}

pub fn read<T: Pod>(v: &[T]) -> Arg<'_> {
    Arg::Read(cast_slice(v))
}

pub fn write<T: Pod>(v: &mut [T]) -> Arg<'_> {
    Arg::Write(cast_slice_mut(v))
}

pub fn floats(r: &mut Random, n: usize) -> Vec<f32> {
    (0..n).map(|_| r.unit()).collect()
}

pub fn bfloats(r: &mut Random, n: usize, scale: f32, offset: f32) -> Vec<bf16> {
    (0..n).map(|_| bf16::from_f32(offset + scale * r.unit())).collect()
}

pub fn halves(r: &mut Random, n: usize, scale: f32, offset: f32) -> Vec<f16> {
    (0..n).map(|_| f16::from_f32(offset + scale * r.unit())).collect()
}

/// Halves as floats.
pub fn widen(x: &[f16]) -> Vec<f32> {
    x.iter().map(|h| h.to_f32()).collect()
}
