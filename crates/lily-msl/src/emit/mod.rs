//! Kernels as text for other compilers.
//!
//! * [`Unit::soft_source`]: C++17 for the soft device, one thunk a kernel;
//! * [`Unit::cuda_source`]: CUDA C++ for NVRTC, one `extern "C" __global__` a kernel;
//! * [`Unit::strict_source`]: C++ for OpenCL, whose address spaces and conversions are as strict as Metal's.
//!
//! Each is the token stream with a few words changed and a prelude before it; line marks keep the compilers'
//! messages at the `.metal` file.

mod cuda;
mod rewrite;
mod soft;
mod strict;
mod swizzles;

pub use cuda::CudaOptions;
pub use soft::{Site, SoftSource};
pub use strict::STRICT_FLAGS;

#[allow(unused_imports)] // for the links above
use crate::parse::Unit;
use crate::source::Sources;

/// The prelude files, by the name they include each other with.
fn preludes() -> Sources {
    let mut s = Sources::new();
    s.add("soft_abi.h", include_str!("../../prelude/soft_abi.h"));
    s.add("core.hpp", include_str!("../../prelude/core.hpp"));
    s.add("vector.hpp", include_str!("../../prelude/vector.hpp"));
    s.add("math.hpp", include_str!("../../prelude/math.hpp"));
    s.add("matrix.hpp", include_str!("../../prelude/matrix.hpp"));
    s.add("soft.hpp", include_str!("../../prelude/soft.hpp"));
    s.add("cuda.cuh", include_str!("../../prelude/cuda.cuh"));
    s.add("tensor.hpp", include_str!("../../prelude/tensor.hpp"));
    s.add("strict.hpp", include_str!("../../prelude/strict.hpp"));
    s.add("strict_tensor.hpp", include_str!("../../prelude/strict_tensor.hpp"));
    s.add("swizzles.hpp", swizzles::text());
    s
}

/// A prelude with all it includes.
fn prelude(root: &str) -> String {
    preludes().flatten(root).expect("the preludes include only each other")
}
