//! Damaged sources give findings or strange code, never a panic or a hang.

mod common;

use common::Random;
use lily_msl::emit::CudaOptions;
use lily_msl::{ParseOptions, Sources, Unit};

fn front_end(text: &str) -> bool {
    let mut s = Sources::single("k.metal", text);
    s.add("quant.h", include_str!("kernels/quant.h"));
    let _ = s.flatten("k.metal");
    let Ok(u) = Unit::parse(&s, "k.metal", &ParseOptions::default()) else { return false };
    let _ = u.lint();
    let _ = u.manifest();
    let _ = u.soft_source();
    let _ = u.strict_source();
    let _ = u.cuda_source(&CudaOptions::default());
    true
}

#[test]
fn mutated_sources_do_not_panic() {
    let mut r = Random(99);
    let sources = [
        include_str!("kernels/basic.metal"),
        include_str!("kernels/faults.metal"),
        include_str!("kernels/strict.metal"),
    ];
    const PIECES: [&str; 24] = [
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "[[",
        "]]",
        "<",
        ">",
        ";",
        ",",
        "template ",
        "kernel ",
        "#if ",
        "#endif\n",
        "#define A(x) x##x\n",
        "struct ",
        "threadgroup ",
        "constant ",
        "\"",
        "'",
        "operator",
        "::",
    ];
    let mut parsed = 0;
    for i in 0..1500 {
        let mut t: Vec<u8> = sources[i % 3].bytes().collect();
        for _ in 0..1 + r.word() % 3 {
            let at = r.word() as usize % t.len();
            match r.word() % 4 {
                0 => {
                    let n = (1 + r.word() as usize % 40).min(t.len() - at);
                    t.drain(at..at + n);
                }
                1 => {
                    let p = PIECES[r.word() as usize % PIECES.len()];
                    t.splice(at..at, p.bytes());
                }
                2 => {
                    let n = (1 + r.word() as usize % 200).min(t.len() - at);
                    let copy: Vec<u8> = t[at..at + n].to_vec();
                    let to = r.word() as usize % t.len();
                    t.splice(to..to, copy);
                }
                _ => t.truncate(at.max(1)),
            }
        }
        parsed += front_end(&String::from_utf8_lossy(&t)) as u32;
    }
    assert!(parsed > 50, "only {parsed} mutants were worth translating");
}

#[test]
fn pathological_sources_end_quickly() {
    let deep = |open: &str, close: &str| {
        format!("kernel void k() {{ int a = {}1{}; }}", open.repeat(20000), close.repeat(20000))
    };
    for text in [
        deep("(", ")"),
        deep("{", "}"),
        "{".repeat(50000) + &"}".repeat(50000),
        "namespace a { ".repeat(3000) + &"}".repeat(3000),
        "kernel void k() {".to_string() + &"if (a) ".repeat(20000) + ";}",
        "template <typename T> ".repeat(200000) + "void f();",
        "#if ".to_string() + &"(".repeat(20000),
        "constant int a = b;\nconstant int b = a;\nkernel void k() { threadgroup float x[a]; }".into(),
        "using A = B;\nusing B = A;\nkernel void k(constant A& a [[buffer(0)]]) {}".into(),
        "struct S { S s; };\nkernel void k(constant S& a [[buffer(0)]]) {}".into(),
        "enum E { A = B, B = A, C };\nkernel void k() { threadgroup float x[C]; }".into(),
        "kernel void k() { threadgroup float x[4294967295][4294967295]; }".into(),
        "kernel void k(constant uint& a [[buffer(99999999999999999999)]]) {}".into(),
        "a".repeat(100000),
        "a<".repeat(3000),
        "f(".repeat(3000) + &")".repeat(3000),
        String::new(),
        "\u{0}\u{1}".into(),
    ] {
        let start = std::time::Instant::now();
        front_end(&text);
        let head: String = text.chars().take(40).collect();
        assert!(start.elapsed().as_secs() < 10, "{head}... took {:?}", start.elapsed());
    }
}
