use super::*;
use crate::diag::Rule;

fn parse(src: &str) -> Unit {
    Unit::parse(&Sources::single("k.metal", src), "k.metal", &ParseOptions::default()).unwrap()
}

fn fails(src: &str) -> Diagnostics {
    Unit::parse(&Sources::single("k.metal", src), "k.metal", &ParseOptions::default()).unwrap_err()
}

#[test]
fn kernels_parameters_and_attributes() {
    let u = parse(
        "#include <metal_stdlib>\nusing namespace metal;\nstruct P { uint n; float eps; };\n\
         kernel void f(device const float4* x [[buffer(0)]], device vec<half, 4>* y [[ buffer(2) ]],\n\
           constant P& p [[buffer(1)]], threadgroup float* sh [[threadgroup(0)]],\n\
           uint3 gid [[thread_position_in_grid]], ushort lane [[thread_index_in_simdgroup]]) { y[0] = half4(x[0]); }",
    );
    let k = u.kernel("f").unwrap();
    let f = &u.functions[k.function];
    let kinds: Vec<ArgKind> = f.params.iter().map(|p| p.kind.unwrap()).collect();
    assert_eq!(
        kinds,
        [
            ArgKind::Buffer(0),
            ArgKind::Buffer(2),
            ArgKind::Buffer(1),
            ArgKind::Threadgroup(0),
            ArgKind::Builtin(Builtin::ThreadPositionInGrid),
            ArgKind::Builtin(Builtin::ThreadIndexInSimdgroup)
        ]
    );
    assert_eq!(f.params[0].ty.base, "float4");
    assert!(f.params[0].ty.is_const && f.params[0].ty.pointer);
    assert_eq!(f.params[1].ty.base, "vec<half, 4>");
    assert!(!f.params[1].ty.is_const);
    assert!(f.params[2].ty.reference && f.params[2].ty.is_const);
    assert_eq!(f.params[2].name, "p");
    assert_eq!(u.structs[0].members.len(), 2);
}

#[test]
fn instantiations_with_joined_names_and_both_forms() {
    let u = parse(
        "template <typename T, int N = 4>\n[[kernel]] void g(device T* y [[buffer(0)]]) { y[0] = T(N); }\n\
         #define I(name, t, n) template [[host_name(\"g_\" name \"_\" #n)]] [[kernel]] decltype(g<t, n>) g<t, n>;\n\
         I(\"f32\", float, 8)\n\
         template [[host_name(\"g\" \"_\" \"h\")]] kernel void g<half>(device half*);",
    );
    let names: Vec<(&str, Vec<String>)> =
        u.kernels.iter().map(|k| (&*k.name, k.template_args.clone())).collect();
    assert_eq!(
        names,
        [("g_f32_8", vec!["float".into(), "8".into()]), ("g_h", vec!["half".into(), "4".to_string()])]
    );
    let k = &u.kernels[0];
    assert_eq!(u.kernel_env(k).bound_value("N"), Some(8));
}

#[test]
fn constants_enums_and_layouts() {
    let u = parse(
        "enum Mode : ushort { A, B = 5, C };\nconstant constexpr int TILE = 4 * (C + 2);\n\
         struct Q { half s; uchar q[TILE]; float3 v; packed_float3 p; };\n\
         constant bool FAST [[function_constant(3)]];\nconstant float table[4] = {1, 2, 3, 4};\n\
         typedef uint4 codes;\nusing Row = vec<bfloat, 4>;\n\
         kernel void k(constant Q& q [[buffer(0)]]) { threadgroup codes a[TILE][1 * 2], b; threadgroup Row c[3]; threadgroup float* p = 0; }",
    );
    let env = ConstEnv::new(&u);
    let f = &u.functions[0];
    let q = u.layout(f.params[0].ty.range.clone(), &env).unwrap();
    assert_eq!((q.size, q.align), (80, 16));
    let offsets: Vec<u32> = q.fields.iter().map(|f| f.offset).collect();
    assert_eq!(offsets, [0, 2, 48, 64]);
    assert_eq!(u.function_constants[0].index, 3);
    let names: Vec<&str> = f.tg_vars.iter().map(|v| &*v.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(u.tg_size(f, &env).unwrap(), 32 * 2 * 16 + 16 + 32);
}

#[test]
fn members_operators_namespaces_and_templates() {
    let u = parse(
        "namespace a { namespace b { inline float f(float x, thread float& y) { return x; } } }\n\
         template <typename T, short N> struct S { T v[N]; float operator[](int i) const { return v[i]; }\n\
           static constexpr constant int K = 3; S operator+(S o) { return o; } void operator()(int a) {} };\n\
         template <int N> inline float pick(float4 v) { return v[N]; }\n\
         float fwd(int n = 3);",
    );
    let names: Vec<&str> = u.functions.iter().map(|f| &*f.name).collect();
    assert_eq!(names, ["f", "operator[]", "operator+", "operator()", "pick", "fwd"]);
    assert_eq!(u.functions[0].scope, ["a", "b"]);
    assert!(u.functions[1].is_member && u.structs[0].is_template);
    assert_eq!(u.functions[0].params[1].ty.space.as_deref(), Some("thread"));
    assert!(u.functions[5].params[0].has_default && u.functions[5].body.is_none());
}

#[test]
fn wrong_signatures_are_named() {
    let cases = [
        ("kernel void k(device float* y) {}", "no binding attribute"),
        (
            "kernel void k(device float* y [[buffer(0)]], device float* z [[buffer(0)]]) {}",
            "index of an earlier",
        ),
        ("kernel void k(device float* y [[buffer(x)]]) {}", "needs a number"),
        ("kernel void k(float* y [[buffer(0)]]) {}", "device or constant"),
        ("kernel void k(float y [[thread_position_in_grid]]) {}", "has type float"),
        ("kernel void k(uint2 y [[thread_index_in_simdgroup]]) {}", "has type uint2"),
        ("kernel void k(uint y [[vertex_id]]) {}", "not known"),
        ("kernel void k(device float* y [[buffer(31)]]) {}", "buffer 31"),
        (
            "template <typename T> kernel void k() {}\ntemplate [[host_name(\"x\")]] kernel void k<float, 2>();",
            "2 template arguments",
        ),
        ("template [[host_name(\"x\")]] kernel void k<float>();", "not a kernel"),
        (
            "template <typename T> kernel void k() {}\ntemplate [[host_name(x)]] kernel void k<float>();",
            "string literals",
        ),
        ("kernel void k() {}\nkernel void k() {}", "two kernels"),
        ("kernel void k( {}", "is never closed"),
        ("kernel void k) {}", "closes nothing"),
    ];
    for (src, what) in cases {
        let e = fails(src).to_string();
        assert!(e.contains(what), "{src}\n gave {e}");
    }
}

#[test]
fn over_31_buffers() {
    let params: Vec<String> = (0..32).map(|i| format!("device float* b{i} [[buffer({i})]]")).collect();
    let e = fails(&format!("\nkernel void k({}) {{}}", params.join(", ")));
    assert!(e.has(Rule::Buffers, 2), "{e}");
    assert!(e.to_string().contains("32 buffers"), "{e}");
}
