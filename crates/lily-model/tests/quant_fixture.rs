//! Dequantisation is bit for bit what MLX computes in f32 (`scale * q`, rounded, `+ bias`, rounded).

mod common;

use lily_model::{QuantMatrix, TensorData, quant::f32_to_bf16};

#[derive(serde::Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    rows: usize,
    cols: usize,
    group_size: usize,
    bits: usize,
    codes: Vec<u32>,
    scales: Vec<f32>,
    biases: Vec<f32>,
    expected: Vec<f32>,
}

/// The BF16 pattern of a value that is a BF16 value.
fn exact_bf16(x: &f32) -> Option<u16> {
    (x.to_bits() & 0xffff == 0).then(|| f32_to_bf16(*x))
}

#[test]
fn bit_exact() {
    let text = std::fs::read(common::fixtures().join("quant_fixture.json")).unwrap();
    let fixture: Fixture = serde_json::from_slice(&text).unwrap();
    let mut through_matrix = 0;
    for case in &fixture.cases {
        let bf16 = |v: &[f32]| v.iter().map(exact_bf16).collect::<Option<Vec<u16>>>();
        let groups = case.cols / case.group_size;
        assert_eq!(case.scales.len(), case.rows * groups, "{}", case.name);
        assert_eq!(case.expected.len(), case.rows * case.cols, "{}", case.name);
        let (Some(scales), Some(biases)) = (bf16(&case.scales), bf16(&case.biases)) else {
            panic!("{}: scales are not BF16 values", case.name);
        };
        let matrix = QuantMatrix {
            experts: 1,
            rows: case.rows,
            cols: case.cols,
            bits: case.bits,
            group_size: case.group_size,
            weight: TensorData::from_slice(&case.codes),
            scales: TensorData::from_slice(&scales),
            biases: TensorData::from_slice(&biases),
        };
        let mut row = vec![0.0; case.cols];
        for (r, expected) in case.expected.chunks(case.cols).enumerate() {
            matrix.dense().dequantize_row(r, &mut row);
            for (i, (a, b)) in row.iter().zip(expected).enumerate() {
                assert_eq!(a.to_bits(), b.to_bits(), "{} [{r}, {i}]: {a} is not {b}", case.name);
            }
        }
        through_matrix += case.expected.len();
    }
    println!("{} cases, {through_matrix} elements", fixture.cases.len());
    assert!(fixture.cases.len() >= 6 && through_matrix > 1000);
}
