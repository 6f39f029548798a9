use crate::diag::{Diagnostics, Rule};
use crate::parse::{ParseOptions, Unit};
use crate::source::Sources;

fn lint(src: &str) -> Result<(), Diagnostics> {
    let u = Unit::parse(&Sources::single("k.metal", src), "k.metal", &ParseOptions::default()).unwrap();
    u.lint()
}

/// The only finding is of this rule on this line.
fn only(src: &str, rule: Rule, line: u32) {
    match lint(src) {
        Ok(()) => panic!("nothing found in:\n{src}"),
        Err(d) => assert!(d.0.len() == 1 && d.has(rule, line), "expected {rule:?} on line {line}, got:\n{d}"),
    }
}

fn clean(src: &str) {
    if let Err(d) = lint(src) {
        panic!("unexpected:\n{d}\nin:\n{src}");
    }
}

const LANE: &str = "uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]], uint tg [[threadgroup_position_in_grid]]";

fn kernel(body: &str) -> String {
    format!(
        "kernel void k(device float* y [[buffer(0)]], constant uint& n [[buffer(1)]], threadgroup float* sh [[threadgroup(0)]], {LANE}) {{\n{body}\n}}"
    )
}

#[test]
fn forbidden_words() {
    only("\nkernel void k() {\n  goto end;\n}", Rule::Goto, 3);
    only("float f(float x) { return x; }\nfloat g(float x) { double d = x; return d; }", Rule::Double, 2);
    only("kernel void k(device atomic_ulong* y [[buffer(0)]]) { }", Rule::Atomic64, 1);
    only("kernel void k(device atomic<ulong>* y [[buffer(0)]]) { }", Rule::Atomic64, 1);
    only("void f() {\n try { } \n ; }", Rule::NotMetal, 2);
    only("void f(std::size_t n) { }", Rule::NotMetal, 1);
    clean("// double goto\nkernel void k(device atomic<uint>* y [[buffer(0)]]) { }");
}

#[test]
fn pointers_need_an_address_space() {
    only("float f(\n const float* p) { return p[0]; }", Rule::AddressSpace, 2);
    only("struct P { uint n; };\nvoid f(P& p) { }", Rule::AddressSpace, 2);
    only("template <typename T>\nvoid f(thread T& a, T* b) { }", Rule::AddressSpace, 2);
    only(&kernel("float* p = 0;"), Rule::AddressSpace, 2);
    only(&kernel("y[0] = *(float*)sh;"), Rule::AddressSpace, 2);
    only(&kernel("auto& r = y[0];"), Rule::AddressSpace, 2);
    only("void f(device float** p) { }", Rule::AddressSpace, 1);
    only("void f(vec<float, 4>& p) { }", Rule::AddressSpace, 1);
    only("using R = float&;", Rule::AddressSpace, 1);
    clean(
        "void f(device float* thread* p, const device half& r, device const vec<float, 4>* v, thread const float (&a)[4]) { }",
    );
    clean(&kernel(
        "uint a = n * lane & 3; float z = float(a) * sh[0]; device const uint4* q = (device const uint4*)y; uint m = sizeof(float) * n; bool b = a && m;",
    ));
    clean("template <int N> float f(float x) { return N * x; }");
}

#[test]
fn recursion() {
    only("int f(int n) { return n < 2 ? 1 :\n n * f(n - 1); }", Rule::Recursion, 2);
    only(
        "int g(int n);\nint f(int n) { return g(n); }\nint g(int n) { return f(n - 1); }",
        Rule::Recursion,
        2,
    );
    clean("template <int N> int f(int x) { return N == 0 ? x : f<N - 1>(x); }");
    only("template <int N> int f(int x) { return N == 0 ? x : f<N>(x); }", Rule::Recursion, 1);
    clean(
        "float f(float a) { return a; }\nfloat f(float a, float b) { return f(a) + f(b); }\nstruct S { float f(float x) { return x; } };",
    );
}

#[test]
fn threadgroup_memory() {
    only("\nkernel void k() { threadgroup float a[8192]; threadgroup uint b; }", Rule::ThreadgroupMemory, 2);
    only(
        "template <int N> kernel void k() { threadgroup float a[N]; }\ntemplate [[host_name(\"a\")]] kernel void k<8192>();\ntemplate [[host_name(\"b\")]] kernel void k<8193>();",
        Rule::ThreadgroupMemory,
        3,
    );
    only("inline void f() {\n threadgroup float a[4]; }", Rule::ThreadgroupMemory, 2);
    only(&kernel("if (n > 1) {\nthreadgroup float a[4];\n}"), Rule::ThreadgroupMemory, 3);
    only(&kernel("threadgroup float a[n];"), Rule::ThreadgroupMemory, 2);
    clean("kernel void k() { threadgroup float a[8192]; threadgroup float* p = a; }");
}

#[test]
fn lane_returning_before_a_collective() {
    only(&kernel("if (lane > 3)\n return;\nfloat s = simd_sum(1.0f); y[tg] = s;"), Rule::LaneReturn, 3);
    only(
        &kernel(
            "uint i = tg * 32 + lane;\nif (i >= n) { return; }\nsh[lane] = 1.0f;\nsimdgroup_barrier(mem_flags::mem_threadgroup);",
        ),
        Rule::LaneReturn,
        3,
    );
    only(
        &kernel("if (sg > 0) return;\nthreadgroup_barrier(mem_flags::mem_threadgroup);"),
        Rule::LaneReturn,
        2,
    );
    clean(&kernel(
        "uint row = tg * 4 + sg;\nif (row >= n) return;\nfloat s = simd_sum(1.0f); if (lane == 0) y[row] = s;",
    ));
    clean(&kernel("if (tg >= n) return;\nthreadgroup_barrier(mem_flags::mem_threadgroup);"));
    clean(&kernel("float s = simd_sum(1.0f);\nif (lane > 0) return; y[tg] = s;"));
}

#[test]
fn collectives_in_divergent_flow() {
    only(&kernel("if (lane < 3) {\n y[0] = simd_sum(1.0f);\n}"), Rule::Divergence, 3);
    only(&kernel("for (uint i = lane; i < n; i += 32)\n y[i] = simd_max(float(i));"), Rule::Divergence, 3);
    only(&kernel("if (sg == 0) {\n threadgroup_barrier(mem_flags::mem_none);\n}"), Rule::Divergence, 3);
    only(
        &kernel("for (uint i = 0; i < n; i++) {\n if (sh[lane] > 0.0f) continue;\n y[i] = simd_sum(1.0f); }"),
        Rule::Divergence,
        4,
    );
    only(
        &format!(
            "inline float total(float x) {{ return simd_sum(x); }}\n{}",
            kernel("float v = sh[lane];\nif (v > 0.0f)\n y[0] = total(v);")
        ),
        Rule::Divergence,
        5,
    );
    // A reduced value is the same in every lane; a helper called with lane values diverges inside.
    clean(&kernel("float m = simd_max(sh[lane]);\nif (m > 0.0f) y[tg] = simd_sum(m);"));
    only(
        &format!(
            "inline void h(uint i) {{\n if (i > 2) simdgroup_barrier(mem_flags::mem_none); }}\n{}",
            kernel("h(lane);")
        ),
        Rule::Divergence,
        2,
    );
    clean(&format!(
        "inline void h(uint i) {{ if (i > 2) simdgroup_barrier(mem_flags::mem_none); }}\n{}",
        kernel("h(sg);")
    ));
    clean(&kernel(
        "for (uint k = 0; k < n; k += 32) { sh[lane] = y[k + lane]; threadgroup_barrier(mem_flags::mem_threadgroup); }",
    ));
    // Names are scoped: the second i is another variable.
    clean(&kernel(
        "for (uint i = lane; i < n; i += 32) sh[i] = 0.0f;\nfor (uint i = 0; i < n; i++) y[i] = simd_sum(float(lane));",
    ));
    clean(&kernel(
        "uint b = n; do { b--; threadgroup_barrier(mem_flags::mem_none); } while (b > 0);\nswitch (n) { case 1: threadgroup_barrier(mem_flags::mem_none); break; default: break; }",
    ));
}
