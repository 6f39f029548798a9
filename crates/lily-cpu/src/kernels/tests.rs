//! The f32 kernels of every instruction set against their definitions in f64.

use super::{GdnLate, GdnTokens, GdnUpdates, Kernels, LATE};
use crate::{isa::Isa, kv::to_bf16};
use lily_model::quant::bf16_to_f32;

struct Random(u64);

impl Random {
    /// Uniform in -1..1.
    fn unit(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    fn vector(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

fn each_isa(mut f: impl FnMut(&'static Kernels, &mut Random)) {
    for isa in Isa::available() {
        f(Kernels::of(isa), &mut Random(0x2545_f491_4f6c_dd1d));
    }
}

#[track_caller]
fn close(k: &Kernels, got: f32, want: f64, scale: f64) {
    let error = (got as f64 - want).abs();
    assert!(error <= 2e-6 * scale.max(1e-30), "{}: {got} for {want}", k.isa().name());
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[test]
fn sums_and_products() {
    each_isa(|k, rng| {
        for n in [16, 48, 64, 256, 2048] {
            let (x, y) = (rng.vector(n), rng.vector(n));
            let exact = |f: &dyn Fn(usize) -> f64| (0..n).map(f).sum::<f64>();
            close(k, k.sum_squares(&x), exact(&|i| (x[i] as f64).powi(2)), n as f64);
            close(k, k.dot(&x, &y), exact(&|i| x[i] as f64 * y[i] as f64), n as f64);
            assert_eq!(k.max(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let mut out = vec![0.0; n];
            k.scale_gain(&x, 1.5, &y, &mut out);
            for i in 0..n {
                close(k, out[i], x[i] as f64 * 1.5 * y[i] as f64, 1.0);
            }
            k.scale(&mut out, -2.0);
            close(k, out[n - 1], x[n - 1] as f64 * -3.0 * y[n - 1] as f64, 1.0);
        }
        for n in [1, 15, 16, 17, 32, 100] {
            let (x, y) = (rng.vector(n), rng.vector(n));
            let mut out = y.clone();
            k.axpy(0.75, &x, &mut out);
            for i in 0..n {
                close(k, out[i], y[i] as f64 + 0.75 * x[i] as f64, 1.0);
            }
        }
    });
}

#[test]
fn activations() {
    each_isa(|k, rng| {
        for n in [16, 32, 33, 128] {
            let gate: Vec<f32> = rng.vector(n).iter().map(|x| 30.0 * x).collect();
            let up = rng.vector(n);
            let mut out = vec![0.0; n];
            k.swiglu(&gate, &up, &mut out);
            for i in 0..n {
                close(k, out[i], silu(gate[i] as f64) * up[i] as f64, gate[i].abs() as f64);
            }
            if n % 16 > 0 {
                continue;
            }
            let mut x = up.clone();
            k.gate_sigmoid(&mut x, &gate);
            for i in 0..n {
                close(k, x[i], up[i] as f64 / (1.0 + (-gate[i] as f64).exp()), 1.0);
            }
            let gain = rng.vector(n);
            let mut x = up.clone();
            k.gated_gain(&mut x, 0.5, &gain, &gate);
            for i in 0..n {
                let want = up[i] as f64 * 0.5 * gain[i] as f64 * silu(gate[i] as f64);
                close(k, x[i], want, gate[i].abs() as f64);
            }
            let mut x: Vec<f32> = rng.vector(n).iter().map(|x| 40.0 * x).collect();
            let before = x.clone();
            let sum = k.exp_sub(&mut x, 40.0);
            let want: Vec<f64> = before.iter().map(|&x| ((x - 40.0) as f64).exp()).collect();
            close(k, sum, want.iter().sum(), want.iter().sum());
            for i in 0..n {
                close(k, x[i], want[i], want[i] + 1e-30);
            }
        }
    });
}

#[test]
fn convolution() {
    each_isa(|k, rng| {
        let (channels, at, n) = (96, 32, 48);
        let w = rng.vector(4 * channels);
        let taps: Vec<Vec<f32>> = (0..4).map(|_| rng.vector(n)).collect();
        let mut out = vec![0.0; n];
        k.conv_silu([&taps[0], &taps[1], &taps[2], &taps[3]], &w[at..], channels, &mut out);
        for i in 0..n {
            let sum: f64 = (0..4).map(|t| w[t * channels + at + i] as f64 * taps[t][i] as f64).sum();
            close(k, out[i], silu(sum), 1.0);
        }
    });
}

#[test]
fn gated_delta_rule() {
    each_isa(|k, rng| {
        for (n, dk, stride) in [(1, 128, 16), (2, 128, 128), (7, 64, 32), (64, 16, 16)] {
            let unit = |v: Vec<f32>| {
                let norm = v.iter().map(|x| x * x).sum::<f32>().sqrt();
                v.iter().map(|x| x / norm).collect::<Vec<_>>()
            };
            let q: Vec<f32> = (0..n).flat_map(|_| unit(rng.vector(dk))).collect();
            let key: Vec<f32> = (0..n).flat_map(|_| unit(rng.vector(dk))).collect();
            let v = rng.vector(n * stride);
            let g: Vec<f32> = (0..n).map(|_| 0.9 + 0.1 * rng.unit()).collect();
            let beta: Vec<f32> = (0..n).map(|_| 0.5 + 0.5 * rng.unit()).collect();
            let kq: Vec<f32> = (0..n).map(|t| k.dot(&key[t * dk..][..dk], &q[t * dk..][..dk])).collect();
            let mut state = rng.vector(dk * 16);
            let mut want: Vec<f64> = state.iter().map(|&x| x as f64).collect();
            let mut out = vec![0.0; n * stride];
            let tokens = GdnTokens {
                key_dim: dk,
                q: &q,
                k: &key,
                v: &v,
                v_stride: stride,
                g: &g,
                beta: &beta,
                kq: &kq,
                ahead: std::ptr::null(),
            };
            k.gdn(&mut state, &tokens, &mut out);
            for t in 0..n {
                for row in 0..16 {
                    let s = |want: &[f64], j: usize| want[j * 16 + row];
                    (0..dk).for_each(|j| want[j * 16 + row] *= g[t] as f64);
                    let sk: f64 = (0..dk).map(|j| s(&want, j) * key[t * dk + j] as f64).sum();
                    let d = beta[t] as f64 * (v[t * stride + row] as f64 - sk);
                    (0..dk).for_each(|j| want[j * 16 + row] += d * key[t * dk + j] as f64);
                    let o: f64 = (0..dk).map(|j| s(&want, j) * q[t * dk + j] as f64).sum();
                    close(k, out[t * stride + row], o, 4.0);
                }
            }
            for (got, want) in state.iter().zip(&want) {
                close(k, *got, *want, 2.0);
            }
        }
    });
}

#[test]
fn gated_delta_rule_with_updates_that_wait() {
    each_isa(|k, rng| {
        for (dk, stride, tokens) in [(128, 16, 21), (64, 48, 2 * LATE), (16, 32, 5)] {
            let mut state = rng.vector(dk * 16);
            let mut want: Vec<f64> = state.iter().map(|&x| x as f64).collect();
            let (mut keys, mut updates) = (vec![0.0; LATE * dk], vec![0.0; LATE * stride]);
            let (mut factors, mut decay) = (Vec::<f32>::new(), 1.0f32);
            for t in 0..tokens {
                let unit = |v: Vec<f32>| {
                    let norm = v.iter().map(|x| x * x).sum::<f32>().sqrt();
                    v.iter().map(|x| x / norm).collect::<Vec<_>>()
                };
                let (q, key, v) = (unit(rng.vector(dk)), unit(rng.vector(dk)), rng.vector(16));
                let (g, beta) = (0.9 + 0.1 * rng.unit(), 0.5 + 0.5 * rng.unit());
                let n = factors.len();
                let along = |x: &[f32]| -> Vec<f32> {
                    (0..n).map(|i| factors[i] * k.dot(&keys[i * dk..(i + 1) * dk], x)).collect()
                };
                let (along_k, along_q) = (along(&key), along(&q));
                let mut out = [0.0; 16];
                let (old, new) = updates.split_at_mut(n * stride);
                let x = GdnLate {
                    q: &q,
                    k: &key,
                    v: &v,
                    g,
                    beta,
                    kq: k.dot(&key, &q),
                    decay,
                    updates: old,
                    stride,
                    along_k: &along_k,
                    along_q: &along_q,
                    ahead: std::ptr::null(),
                };
                k.gdn_late(&state, &x, new, &mut out);
                keys[n * dk..(n + 1) * dk].copy_from_slice(&key);
                factors.iter_mut().for_each(|f| *f *= g);
                factors.push(1.0);
                decay *= g;
                for row in 0..16 {
                    let sum = |want: &[f64], x: &[f32]| -> f64 {
                        (0..dk).map(|j| want[j * 16 + row] * x[j] as f64).sum()
                    };
                    (0..dk).for_each(|j| want[j * 16 + row] *= g as f64);
                    let d = beta as f64 * (v[row] as f64 - sum(&want, &key));
                    (0..dk).for_each(|j| want[j * 16 + row] += d * key[j] as f64);
                    close(k, out[row], sum(&want, &q), 4.0);
                }
                // Whole blocks of updates, and what is left at the end.
                if factors.len() == LATE || t + 1 == tokens {
                    let late =
                        GdnUpdates { keys: &keys, updates: &updates, stride, factors: &factors, decay };
                    k.gdn_flush(&mut state, &late);
                    (factors, decay) = (Vec::new(), 1.0);
                    for (got, want) in state.iter().zip(&want) {
                        close(k, *got, *want, 2.0);
                    }
                }
            }
        }
    });
}

#[test]
fn attention_scores_and_values() {
    each_isa(|k, rng| {
        for (rows, dim) in [(1, 32), (2, 64), (3, 256), (7, 128), (8, 256), (13, 64)] {
            let (q, stride) = (rng.vector(rows * dim), 40);
            let keys: Vec<u16> = rng.vector(16 * dim).into_iter().map(to_bf16).collect();
            let mut out = vec![0.0; rows * stride];
            k.scores(rows, &q, dim, &keys, &mut out, stride, &keys);
            for r in 0..rows {
                for p in 0..16 {
                    let key = |d: usize| bf16_to_f32(keys[d / 2 * 32 + p * 2 + d % 2]) as f64;
                    let want = (0..dim).map(|d| q[r * dim + d] as f64 * key(d)).sum();
                    close(k, out[r * stride + p], want, dim as f64);
                }
            }
            let n = 23;
            let weights = rng.vector(rows * stride);
            let values: Vec<u16> = rng.vector(n * dim).into_iter().map(to_bf16).collect();
            let start = rng.vector(rows * dim);
            let mut acc = start.clone();
            k.weighted_values(rows, &weights, stride, n, &values, dim, &mut acc, &values);
            for r in 0..rows {
                for d in 0..dim {
                    // Paired order: even dims of each 32, then odd ones.
                    let at = r * dim + d / 32 * 32 + d % 2 * 16 + d % 32 / 2;
                    let sum: f64 = (0..n)
                        .map(|i| weights[r * stride + i] as f64 * bf16_to_f32(values[i * dim + d]) as f64)
                        .sum();
                    close(k, acc[at], start[at] as f64 + sum, n as f64);
                }
            }
        }
    });
}

#[test]
fn finite_or_not() {
    each_isa(|k, rng| {
        for n in [1, 15, 16, 17, 64, 100] {
            let mut x = rng.vector(n);
            x[0] = f32::MAX;
            assert!(k.all_finite(&x));
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, n / 2, n - 1] {
                    let mut y = x.clone();
                    y[at] = bad;
                    assert!(!k.all_finite(&y), "{} {bad} at {at} of {n}", k.isa().name());
                }
            }
        }
    });
}
