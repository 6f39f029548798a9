use super::*;

fn run(src: &str) -> String {
    run_with(&Sources::single("a.metal", src), &[])
}

fn run_with(s: &Sources, defines: &[(&str, &str)]) -> String {
    let d: Vec<(String, String)> = defines.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
    match preprocess(s, "a.metal", &d) {
        Ok(p) => spell(&p.tokens),
        Err(e) => format!("error: {e}"),
    }
}

#[test]
fn object_and_function_like_macros() {
    assert_eq!(
        run("#define A 1\n#define F(x, y) (x + y * A)\nF(F(2,3), (4,5)) F A"),
        "( ( 2 + 3 * 1 ) + ( 4 , 5 ) * 1 ) F 1"
    );
    assert_eq!(run("#define N() 7\nN() N"), "7 N");
    assert_eq!(run("#define F(x) x\nF(\n1\n)"), "1");
}

#[test]
fn stringify_paste_and_variadic() {
    assert_eq!(run("#define S(x) #x\nS(a + \"q\" b)"), "\"a + \\\"q\\\" b\"");
    assert_eq!(run("#define C(a, b) a##b\n#define X 1\nC(X, 2) C(k_, f32)"), "X2 k_f32");
    assert_eq!(run("#define V(f, ...) f(__VA_ARGS__)\nV(g, 1, 2) V(h)"), "g ( 1 , 2 ) h ( )");
    assert_eq!(
        run("#define K(n, t) template [[host_name(n \"_\" #t)]]\nK(\"a\", float)"),
        "template [ [ host_name ( \"a\" \"_\" \"float\" ) ] ]"
    );
}

#[test]
fn a_macro_does_not_expand_inside_itself() {
    assert_eq!(run("#define f(x) x + f(x)\nf(f(1))"), "1 + f ( 1 ) + f ( 1 + f ( 1 ) )");
    assert_eq!(run("#define a b\n#define b a\na b"), "a b");
}

#[test]
fn conditions() {
    let s =
        "#if defined(A) && A >= 2\nbig\n#elif defined A\nsmall\n#else\nnone\n#endif\n#ifndef A\nx\n#endif";
    let t = Sources::single("a.metal", s);
    assert_eq!(run_with(&t, &[("A", "3")]), "big");
    assert_eq!(run_with(&t, &[("A", "1")]), "small");
    assert_eq!(run_with(&t, &[]), "none x");
    assert_eq!(run("#if 0\n#if 1\na\n#else\nb\n#endif\n#else\nc\n#endif"), "c");
    assert_eq!(run("#if 0\n#error don't stop here\n#endif\nok"), "ok");
}

#[test]
fn includes_and_pragmas() {
    let mut s = Sources::single(
        "a.metal",
        "#include <metal_stdlib>\n#include \"b.h\"\n#include \"b.h\"\n#pragma unroll(4)\nX",
    );
    s.add("b.h", "#pragma once\n#define X 5\nb");
    assert_eq!(run_with(&s, &[]), "b #pragma unroll ( 4 ) 5");
}

#[test]
fn locations_are_those_of_the_use() {
    let p = preprocess(&Sources::single("a.metal", "#define A x +\\\n y\n\nA"), "a.metal", &[]).unwrap();
    assert!(p.tokens.iter().all(|t| t.loc.line == 4), "{:?}", p.tokens);
}

#[test]
fn errors_name_file_and_line() {
    for (src, line, what) in [
        ("\n#if 1\nx", 2, "#endif"),
        ("#endif", 1, "#endif without"),
        ("\n#include \"no.h\"", 2, "no.h"),
        ("#include <vector>", 1, "not a Metal header"),
        ("#define F(a) a\nF(1", 2, "not closed"),
        ("#define F(a) a\nF(1,2)", 2, "takes 1 arguments, 2 given"),
        ("#if 1/0\n#endif", 1, "zero"),
        ("#error stop", 1, "stop"),
        ("#define A 1\n#define A 2", 2, "defined twice"),
        ("#line 5", 1, "not supported"),
        ("#include \"a.metal\"", 1, "deep"),
    ] {
        let e = run(src);
        assert!(e.starts_with(&format!("error: a.metal:{line}: ")) && e.contains(what), "{src:?} gave {e}");
    }
}

#[test]
fn exploding_macros_are_stopped() {
    let mut s = String::from("#define M0 x x\n");
    for i in 1..40 {
        s.push_str(&format!("#define M{i} M{} M{}\n", i - 1, i - 1));
    }
    s.push_str("M39");
    assert!(run(&s).contains("tokens"), "not stopped");
}
