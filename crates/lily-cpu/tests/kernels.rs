//! Every integer kernel of every instruction set against its f64 definition, on random inputs and ragged shapes.

use lily_cpu::{
    Isa,
    acts::{Acts, Need, Order, SINGLY, TILE},
    kernels::{BLOCK, Kernels, RowsRef, Unpacked},
};
use lily_model::{QuantMatrix, TensorData, quant::bf16_to_f32};

const BOTH: Need = Need { nibble: true, byte: true };

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32 * 2.0 - 1.0
    }
}

fn matrix(rng: &mut Random, rows: usize, cols: usize, bits: usize) -> QuantMatrix {
    let words: Vec<u32> = (0..rows * cols * bits / 32).map(|_| rng.next() as u32).collect();
    let bf16 = |x: f32| (x.to_bits() >> 16) as u16;
    let n = rows * cols / 64;
    let scales: Vec<u16> = (0..n).map(|_| bf16(0.01 + 0.005 * rng.unit())).collect();
    let middle = ((1 << bits) - 1) as f32 / 2.0;
    let biases: Vec<u16> =
        scales.iter().map(|&s| bf16(-middle * bf16_to_f32(s) * (1.0 + 0.1 * rng.unit()))).collect();
    QuantMatrix {
        experts: 1,
        rows,
        cols,
        bits,
        group_size: 64,
        weight: TensorData::from_slice(&words),
        scales: TensorData::from_slice(&scales),
        biases: TensorData::from_slice(&biases),
    }
}

/// Vectors with outliers, zero groups and small groups.
fn vectors(rng: &mut Random, n: usize, cols: usize) -> Vec<Vec<f32>> {
    (0..n)
        .map(|_| {
            (0..cols / 64)
                .flat_map(|g| {
                    let size = match (g + rng.next() as usize) % 5 {
                        0 => 0.0,
                        1 => 30.0,
                        2 => 1e-3,
                        _ => 1.0,
                    };
                    (0..64).map(|_| size * rng.unit()).collect::<Vec<_>>()
                })
                .collect()
        })
        .collect()
}

fn quantize(k: &Kernels, xs: &[Vec<f32>]) -> Acts {
    let cols = xs[0].len();
    // Dirty the buffers first: padding must be written.
    let mut acts = Acts::new(xs.len().max(TILE), cols + 128, BOTH).unwrap();
    for (n, width) in [(TILE, cols + 128), (xs.len(), cols)] {
        acts.reset(n, width);
        for mut tile in acts.tiles_mut() {
            for t in 0..tile.tokens {
                let row = if n == xs.len() && width == cols {
                    xs[tile.token0 + t].clone()
                } else {
                    vec![7.0; width]
                };
                tile.quantize(k, t, &row);
            }
        }
    }
    acts
}

/// `row . x` in f64 and the sum of magnitudes, which bounds what rounding can do.
fn exact(m: &QuantMatrix, r: usize, x: &[f32]) -> (f64, f64) {
    let mut row = vec![0.0; m.cols];
    m.dense().dequantize_row(r, &mut row);
    let dot = row.iter().zip(x).map(|(&w, &x)| w as f64 * x as f64).sum();
    // Rounding of a group's activations is relative to its largest one.
    let mut bound = 0.0;
    for (w, x) in row.chunks(64).zip(x.chunks(64)) {
        let amax = x.iter().fold(0.0f32, |a, b| a.max(b.abs())) as f64;
        bound += w.iter().map(|w| w.abs() as f64).sum::<f64>() * amax;
    }
    (dot, bound)
}

fn check(name: &str, m: &QuantMatrix, r: usize, x: &[f32], got: f32) {
    let (want, bound) = exact(m, r, x);
    let error = (got as f64 - want).abs();
    // Half a step of 1/32639 an element, and f32 sums.
    assert!(error <= bound * 2.5e-5 + 1e-30, "{name} row {r}: {got} for {want}, bound {bound}");
}

#[test]
fn gemv_and_tiles_agree_with_the_definition() {
    let mut rng = Random(0x1234_5678_9abc_def1);
    for isa in Isa::available() {
        let k = Kernels::of(isa);
        for bits in [4, 8] {
            for cols in [64, 128, 192, 256, 320, 512, 960, 1024, 1088, 2048, 2112, 4096] {
                for rows in [1, 3, 7, 16, 17, 31, 32] {
                    let m = matrix(&mut rng, rows, cols, bits);
                    let dense = m.dense();
                    let refs = RowsRef::new(&dense, 0, rows);
                    let n = 1 + rng.next() as usize % 30;
                    let xs = vectors(&mut rng, n, cols);
                    let name = format!("{} {bits} bits {rows}x{cols} {n} tokens", isa.name());

                    let one = quantize(k, &xs[..1]);
                    let mut out = vec![f32::NAN; rows];
                    k.gemv(&refs, &one.tile(0, Order::of_bits(bits)), &mut out);
                    for (r, &y) in out.iter().enumerate() {
                        check(&format!("gemv {name}"), &m, r, &xs[0], y);
                    }

                    let acts = quantize(k, &xs);
                    let mut unpacked = Unpacked::new(cols).unwrap();
                    k.unpack(&refs, &mut unpacked);
                    let mut out = vec![0.0; TILE * BLOCK];
                    for i in 0..acts.tiles().count {
                        let tile = acts.tile(i, Order::of_bits(bits));
                        out.fill(0.0);
                        if cols == 1088 {
                            // In two parts, of which the second is odd.
                            k.unpack(&refs.columns(0, 6), &mut unpacked);
                            k.tile(&unpacked, &tile, 0, None, &mut out);
                            k.unpack(&refs.columns(6, 11), &mut unpacked);
                            k.tile(&unpacked, &tile, 6, None, &mut out);
                        } else {
                            k.tile(&unpacked, &tile, 0, None, &mut out);
                        }
                        for t in 0..tile.tokens {
                            for r in 0..rows {
                                let x = &xs[acts.tiles().start(i) + t];
                                check(&format!("tile {name}"), &m, r, x, out[t * BLOCK + r]);
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_tile_size() {
    let mut rng = Random(99);
    for isa in Isa::available() {
        let k = Kernels::of(isa);
        for bits in [4, 8] {
            let m = matrix(&mut rng, BLOCK, 320, bits);
            let mut unpacked = Unpacked::new(320).unwrap();
            k.unpack(&RowsRef::new(&m.dense(), 0, BLOCK), &mut unpacked);
            // 2 and 3 tokens are tiles of one each.
            for n in [1].into_iter().chain(SINGLY + 1..=TILE) {
                let xs = vectors(&mut rng, n, 320);
                let acts = quantize(k, &xs);
                assert_eq!(acts.tiles().count, 1);
                let mut out = vec![0.0; TILE * BLOCK];
                k.tile(&unpacked, &acts.tile(0, Order::of_bits(bits)), 0, None, &mut out);
                for (t, x) in xs.iter().enumerate() {
                    for r in 0..BLOCK {
                        check(&format!("{} tile of {n}", isa.name()), &m, r, x, out[t * BLOCK + r]);
                    }
                }
            }
        }
    }
}

#[test]
fn quantised_bytes_are_the_same_everywhere() {
    let mut rng = Random(5);
    let xs = vectors(&mut rng, 29, 448);
    let want = quantize(Kernels::of(Isa::Scalar), &xs);
    for isa in Isa::available() {
        let got = quantize(Kernels::of(isa), &xs);
        for i in 0..want.tiles().count {
            for order in [Order::Nibble, Order::Byte] {
                let (a, b) = (got.tile(i, order), want.tile(i, order));
                assert_eq!(a.lines, b.lines, "{} {order:?}", isa.name());
                assert_eq!((a.scale, a.sum), (b.scale, b.sum), "{}", isa.name());
            }
        }
    }
}

#[test]
fn copied_vectors_are_the_same() {
    let mut rng = Random(17);
    let k = Kernels::of(Isa::Scalar);
    let xs = vectors(&mut rng, 40, 320);
    let src = quantize(k, &xs);
    let pick = [3usize, 39, 0, 17, 17, 5, 22, 8, 9, 10, 11, 12, 13, 14];
    let mut copy = Acts::new(pick.len(), 320, BOTH).unwrap();
    copy.reset(pick.len(), 320);
    for (to, &from) in pick.iter().enumerate() {
        copy.copy_from(to, &src, from);
    }
    let want = quantize(k, &pick.map(|i| xs[i].clone()));
    for i in 0..want.tiles().count {
        for order in [Order::Nibble, Order::Byte] {
            assert_eq!(copy.tile(i, order).lines, want.tile(i, order).lines);
            assert_eq!(copy.tile(i, order).scale, want.tile(i, order).scale);
            assert_eq!(copy.tile(i, order).sum, want.tile(i, order).sum);
        }
    }
}

#[test]
fn values_that_are_not_finite_show_in_every_product() {
    let mut rng = Random(3);
    let m = matrix(&mut rng, 4, 256, 4);
    for isa in Isa::available() {
        let k = Kernels::of(isa);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut xs = vectors(&mut rng, 1, 256);
            xs[0][100] = bad;
            let acts = quantize(k, &xs);
            let mut out = vec![0.0; 4];
            k.gemv(&RowsRef::new(&m.dense(), 0, 4), &acts.tile(0, Order::Nibble), &mut out);
            assert!(out.iter().all(|x| !x.is_finite()), "{} {bad}: {out:?}", isa.name());
        }
    }
}
