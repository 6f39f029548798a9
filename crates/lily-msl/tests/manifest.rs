//! What the host learns of a kernel, and which hosts are refused.

mod common;

use common::unit;
use lily_msl::emit::CudaOptions;
use lily_msl::manifest::{Access, BindError, Binding, Manifest};

fn manifest() -> Manifest {
    let u = unit(
        "basic.metal",
        include_str!("kernels/basic.metal"),
        &[("quant.h", include_str!("kernels/quant.h"))],
    );
    u.lint().unwrap_or_else(|e| panic!("{e}"));
    u.manifest().unwrap_or_else(|e| panic!("{e}"))
}

fn bindings() -> Vec<Binding<'static>> {
    let b = |name, access, element, bytes| Binding { name, access, element, bytes };
    vec![
        b("w", Access::Read, "uint4", None),
        b("scales", Access::Read, "bfloat", None),
        b("biases", Access::Read, "bfloat", None),
        b("x", Access::Read, "float", None),
        b("y", Access::ReadWrite, "float", None),
        b("shape", Access::Bytes, "GemvShape", Some(8)),
    ]
}

#[test]
fn a_kernels_manifest() {
    let m = manifest();
    let names: Vec<&str> = m.kernels.iter().map(|k| &*k.name).collect();
    assert_eq!(
        names,
        ["gemv4_bf16", "gemv4_f16", "rmsnorm", "gemm_bf16", "histogram", "collectives", "vectors"]
    );
    let k = m.kernel("gemv4_bf16").unwrap();
    assert_eq!((k.function.as_str(), k.symbol.as_str()), ("gemv4<bfloat>", "lily_gemv4_bf16"));
    assert_eq!(k.threads_per_threadgroup, Some(64));
    assert_eq!(k.function_constants.len(), 1);
    assert_eq!((k.function_constants[0].name.as_str(), k.function_constants[0].index), ("ROWS", 0));
    let shape = k.args[5].inline_bytes().unwrap();
    assert_eq!((shape.size, k.args[5].field("k").unwrap().offset), (8, 4));
    let offsets: Vec<u32> = k.args.iter().map(|a| a.cuda_offset).collect();
    assert_eq!((offsets, k.cuda_args_bytes), (vec![0, 8, 16, 24, 32, 40], 56));

    let g = m.kernel("gemm_bf16").unwrap();
    assert_eq!(g.threadgroup_args[0].element, "bfloat");
    // uint3 is 16 bytes wide and aligned so: three pointers, padding, the value, an offset, the end mark.
    assert_eq!((g.args[3].cuda_offset, g.threadgroup_args[0].cuda_offset, g.cuda_args_bytes), (32, 48, 64));
    assert_eq!(m.kernel("rmsnorm").unwrap().threadgroup_bytes, 128);
    assert!(m.kernel("rmsnorm").unwrap().function_constants.is_empty());

    // It survives being written and read.
    let text = serde_json::to_string(&m).unwrap();
    assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), m);
}

#[test]
fn bindings_are_compared() {
    let m = manifest();
    let k = m.kernel("gemv4_bf16").unwrap();
    let good = bindings();
    assert_eq!(k.check(&good), Ok(()));

    assert!(matches!(k.check(&good[..5]), Err(BindError::Count { given: 5, expected: 6, .. })));
    let mut b = bindings();
    b.swap(1, 2);
    let e = k.check(&b).unwrap_err();
    assert!(matches!(e, BindError::Order { position: 1, .. }), "{e}");
    assert!(e.to_string().contains("`biases` is bound where `scales` stands"), "{e}");
    let mut b = bindings();
    b[4].access = Access::Read;
    assert!(matches!(k.check(&b), Err(BindError::Access { .. })));
    let mut b = bindings();
    b[3].element = "bfloat";
    assert!(
        k.check(&b)
            .unwrap_err()
            .to_string()
            .contains("bound as bfloat elements, but the kernel declares float")
    );
    let mut b = bindings();
    b[5].bytes = Some(12);
    assert!(matches!(k.check(&b), Err(BindError::Bytes { given: 12, expected: 8, .. })));
    assert!(matches!(m.kernel("gemv"), Err(BindError::NoKernel { .. })));
}

#[test]
fn dispatches_are_compared() {
    let m = manifest();
    let k = m.kernel("gemv4_bf16").unwrap();
    assert_eq!(k.check_dispatch([64, 1, 1], &[], &[0]), Ok(()));
    assert!(matches!(
        k.check_dispatch([32, 1, 1], &[], &[0]),
        Err(BindError::Threads { given: 32, expected: 64, .. })
    ));
    assert!(matches!(k.check_dispatch([64, 1, 1], &[], &[]), Err(BindError::Constant { index: 0, .. })));
    assert!(matches!(k.check_dispatch([64, 1, 1], &[16], &[0]), Err(BindError::ThreadgroupCount { .. })));
    let g = m.kernel("gemm_bf16").unwrap();
    assert_eq!(g.check_dispatch([128, 1, 1], &[32768], &[]), Ok(()));
    assert!(matches!(g.check_dispatch([128, 1, 1], &[32769], &[]), Err(BindError::ThreadgroupBytes { .. })));
    let r = m.kernel("rmsnorm").unwrap();
    assert_eq!(r.check_dispatch([1024, 1, 1], &[], &[]), Ok(()));
}

#[test]
fn what_a_manifest_cannot_know_is_an_error() {
    let u = unit("k.metal", "struct S;\nkernel void k(constant S& s [[buffer(0)]]) {}", &[]);
    assert!(u.manifest().unwrap_err().to_string().contains("size of S"));
    let u = unit(
        "k.metal",
        "template <int N> [[kernel, max_total_threads_per_threadgroup(N * 32)]] void k() {}\n\
         template [[host_name(\"a\")]] [[kernel]] decltype(k<40>) k<40>;",
        &[],
    );
    let e = u.manifest().unwrap_err();
    assert!(e.to_string().contains("1280 threads"), "{e}");
}

#[test]
fn cuda_text_has_one_entry_a_kernel_and_constants_inside() {
    let u = unit(
        "basic.metal",
        include_str!("kernels/basic.metal"),
        &[("quant.h", include_str!("kernels/quant.h"))],
    );
    let options = CudaOptions { kernels: vec!["gemv4_bf16".into()], constants: vec![(0, "4".into())] };
    let text = u.cuda_source(&options).unwrap();
    assert_eq!(text.matches("extern \"C\" __global__").count(), 1);
    assert!(text.contains("constexpr uint ROWS = uint(4);"));
    assert!(text.contains(
        "__launch_bounds__(64) void lily_gemv4_bf16(const __grid_constant__ lily_gemv4_bf16_args a)"
    ));
    assert!(!text.contains("[["));
    assert!(u.cuda_source(&CudaOptions { kernels: vec!["no".into()], constants: vec![] }).is_err());
}
