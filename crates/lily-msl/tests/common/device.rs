//! Running the kernels of `kernels/` on the checked soft device.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::bf16;
use lily_msl::soft::{Arg, Dispatch, Outcome, SoftLibrary};

use super::{Random, checked, compiler, unit};

/// Two schedules: the natural one and a shuffled one.
pub const SEEDS: [u32; 2] = [0, 31];
/// Epsilon of every RMSNorm.
pub const EPS: f32 = 1e-6;

/// Lints and builds a source, which may include the common header and those given; `None` without a compiler.
pub fn kernel_library(name: &str, text: &str, headers: &[(&str, &str)]) -> Option<SoftLibrary> {
    let mut all = vec![("common.metal.h", include_str!("../../../../kernels/common.metal.h"))];
    all.extend(headers);
    let u = unit(name, text, &all);
    u.lint().unwrap_or_else(|e| panic!("{e}"));
    compiler().map(|c| checked(&u, &c))
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
    let d = Dispatch { kernel, grid, group: [threads, 1, 1], args, threadgroup, constants: &[], seed };
    lib.dispatch(d).unwrap_or_else(|e| panic!("{e}"))
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
