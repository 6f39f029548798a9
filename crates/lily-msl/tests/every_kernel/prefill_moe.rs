//! The mixture of experts of a chunk on the checked soft device: routing, grouped products, combination, in two
//! schedules. References are f64 over what the matrix unit takes, and plain sorting.

use std::sync::OnceLock;

use crate::common::coverage::{Sizes, Sizes::*, at};
use crate::common::device::*;
use crate::common::*;
use bytemuck::{Pod, cast_slice};
use half::f16;
use lily_msl::soft::{Arg, SoftLibrary};

fn library() -> Option<&'static SoftLibrary> {
    static LIB: OnceLock<Option<SoftLibrary>> = OnceLock::new();
    LIB.get_or_init(|| kernel_file("moe_prefill.metal")).as_ref()
}

/// What the products take.
pub trait Element: Pod {
    /// End of the kernels' names.
    const NAME: &str;
    const NAN: Self;
    /// Tolerance of a result of this type.
    const ROUNDING: f64;

    fn of(x: f32) -> Self;
    fn value(self) -> f32;
    /// The kernels.
    fn library() -> Option<&'static SoftLibrary> {
        library()
    }
    /// `W x` of some rows, with weights as this type has them.
    fn dots(q: &Quant, rows: std::ops::Range<usize>, x: &[f64]) -> Vec<f64>;
}

impl Element for f16 {
    const NAME: &str = "";
    const NAN: Self = f16::NAN;
    const ROUNDING: f64 = 2.0 / 4096.0;

    fn of(x: f32) -> Self {
        f16::from_f32(x)
    }

    fn value(self) -> f32 {
        self.to_f32()
    }

    fn dots(q: &Quant, rows: std::ops::Range<usize>, x: &[f64]) -> Vec<f64> {
        q.rounded_dots(rows, x)
    }
}

impl Element for f32 {
    const NAME: &str = "_float";
    const NAN: Self = f32::NAN;
    const ROUNDING: f64 = 1e-5;

    fn of(x: f32) -> Self {
        x
    }

    fn value(self) -> f32 {
        self
    }

    fn dots(q: &Quant, rows: std::ops::Range<usize>, x: &[f64]) -> Vec<f64> {
        rows.map(|r| q.row_dot(r, x)).collect()
    }
}

fn elements<T: Element>(r: &mut Random, n: usize, offset: f32) -> Vec<T> {
    (0..n).map(|_| T::of(offset + r.unit())).collect()
}

fn values<T: Element>(x: &[T]) -> Vec<f32> {
    x.iter().map(|v| v.value()).collect()
}

#[derive(Clone, Copy)]
struct Shape {
    sizes: Sizes,
    hidden: usize,
    experts: usize,
    chosen: usize,
    width: usize,
    shared_width: usize,
    tokens: usize,
}

impl Shape {
    fn stride(&self) -> usize {
        self.experts + 4
    }

    fn pairs(&self) -> usize {
        self.tokens * self.chosen
    }

    /// The bound on blocks, and some more.
    fn blocks(&self) -> usize {
        self.pairs() / 32 + self.experts + 3
    }

    fn words(&self) -> [u32; 7] {
        let w = [self.hidden, self.experts, self.chosen, self.width, self.shared_width, self.stride()];
        let mut out = [EPS.to_bits(); 7];
        w.iter().zip(&mut out).for_each(|(&w, o)| *o = w as u32);
        out
    }
}

const TINY: Shape =
    Shape { sizes: Tiny, hidden: 128, experts: 16, chosen: 4, width: 64, shared_width: 128, tokens: 37 };
const MINI: Shape =
    Shape { sizes: Mini, hidden: 256, experts: 64, chosen: 8, width: 64, shared_width: 128, tokens: 23 };
// The 35B model's routing over narrow experts, and one token for each of few.
const MANY: Shape =
    Shape { sizes: Large, hidden: 64, experts: 256, chosen: 8, width: 64, shared_width: 64, tokens: 21 };
const FEW: Shape =
    Shape { sizes: Ragged, hidden: 192, experts: 4, chosen: 2, width: 128, shared_width: 64, tokens: 70 };

/// What routing must give.
struct Routed {
    ids: Vec<u32>,
    scores: Vec<f64>,
    pairs: Vec<u32>,
    starts: Vec<u32>,
    blocks: Vec<[u32; 4]>,
}

fn reference_routing(s: &Shape, logits: &[f32]) -> Routed {
    let (mut ids, mut scores) = (Vec::new(), Vec::new());
    for t in 0..s.tokens {
        let row = &logits[t * s.stride()..][..s.experts];
        let mut order: Vec<usize> = (0..s.experts).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        order.truncate(s.chosen);
        let e: Vec<f64> = order.iter().map(|&i| (row[i] as f64 - row[order[0]] as f64).exp()).collect();
        ids.extend(order.iter().map(|&i| i as u32));
        scores.extend(e.iter().map(|v| v / e.iter().sum::<f64>()));
    }
    let mut pairs: Vec<u32> = (0..ids.len() as u32).collect();
    pairs.sort_by_key(|&p| ids[p as usize]);
    let starts: Vec<u32> =
        (0..=s.experts as u32).map(|e| ids.iter().filter(|&&i| i < e).count() as u32).collect();
    let mut blocks = Vec::new();
    for e in 0..s.experts {
        let (start, end) = (starts[e], starts[e + 1]);
        for first in (start..end).step_by(32) {
            blocks.push([e as u32, first, 32.min(end - first), 0]);
        }
    }
    blocks.resize(s.blocks(), [0; 4]);
    Routed { ids, scores, pairs, starts, blocks }
}

/// Logits with ties, and a crowd at one expert so that it has several blocks.
fn logits(r: &mut Random, s: &Shape) -> Vec<f32> {
    let mut l: Vec<f32> = floats(r, s.tokens * s.stride()).iter().map(|x| 2.0 * x).collect();
    for t in 0..s.tokens {
        let row = &mut l[t * s.stride()..];
        row[3] = 1.9;
        row[1] = 1.9;
        if t % 16 != 0 {
            row[s.experts - 1] = 2.5;
        }
    }
    l
}

fn route(lib: &SoftLibrary, s: &Shape, logits: &[f32], seed: u32) -> (Vec<f32>, Routed) {
    let chunk = chunk(5, s.tokens, 0);
    let words = s.words();
    let mut ids = vec![u32::MAX; s.pairs()];
    let mut scores = vec![f32::NAN; s.pairs()];
    let a = vec![
        ("logits", read(logits)),
        ("ids", write(&mut ids)),
        ("scores", write(&mut scores)),
        ("chunk", read(&chunk)),
        ("shape", Arg::Bytes(cast_slice(&words))),
    ];
    run(lib, "moe_route", [s.tokens.div_ceil(4) as u32 + 1, 1, 1], 128, seed, a);
    let mut pairs = vec![u32::MAX; s.pairs()];
    let mut starts = vec![u32::MAX; s.experts + 1];
    let b = vec![
        ("ids", read(&ids)),
        ("pairs", write(&mut pairs)),
        ("starts", write(&mut starts)),
        ("chunk", read(&chunk)),
        ("shape", Arg::Bytes(cast_slice(&words))),
    ];
    run(lib, "moe_sort", [s.experts as u32, 1, 1], 128, seed, b);
    let mut blocks = vec![[u32::MAX; 4]; s.blocks()];
    let capacity = [s.blocks() as u32];
    let c = vec![
        ("starts", read(&starts)),
        ("blocks", write(&mut blocks)),
        ("shape", Arg::Bytes(cast_slice(&words))),
        ("capacity", Arg::Bytes(cast_slice(&capacity))),
    ];
    run(lib, "moe_blocks", [1, 1, 1], 256, seed, c);
    (scores.clone(), Routed { ids, scores: wide(&scores), pairs, starts, blocks })
}

pub fn routing_on_the_gpu_is_a_stable_sort() {
    let Some(lib) = library() else { return };
    for s in [TINY, MINI, MANY, FEW, Shape { tokens: 1, ..MANY }, Shape { chosen: 1, ..TINY }] {
        at(&[s.sizes, Ragged]);
        let logits = logits(&mut Random(s.experts as u64), &s);
        let want = reference_routing(&s, &logits);
        for seed in SEEDS {
            let (scores, got) = route(lib, &s, &logits, seed);
            assert_eq!(got.ids, want.ids);
            close("scores", &scores, &want.scores, 1e-6);
            assert_eq!(got.pairs, want.pairs);
            assert_eq!(got.starts, want.starts);
            assert_eq!(got.blocks, want.blocks);
        }
    }
    // 70 tokens, and an expert that all but a few choose: several blocks.
    let logits = logits(&mut Random(4), &FEW);
    let crowded = reference_routing(&FEW, &logits).blocks.iter().filter(|b| b[0] == 3 && b[2] > 0).count();
    assert_eq!(crowded, 3);
}

pub fn experts_and_shared_expert() {
    experts::<f16>();
    experts::<f32>();
}

pub fn experts<T: Element>() {
    let Some(lib) = T::library() else { return };
    for s in [TINY, MINI, MANY, FEW] {
        at(&[s.sizes, Ragged]);
        let mut r = Random(s.hidden as u64);
        let logits = logits(&mut r, &s);
        let x: Vec<T> = elements(&mut r, s.tokens * s.hidden, 0.1);
        let residual0 = floats(&mut r, s.tokens * s.hidden);
        let gate = Quant::random(&mut r, s.experts * s.width, s.hidden, 4);
        let up = Quant::random(&mut r, s.experts * s.width, s.hidden, 4);
        let down = Quant::random(&mut r, s.experts * s.hidden, s.width, 4);
        let shared_gate = Quant::random(&mut r, s.shared_width, s.hidden, 4);
        let shared_up = Quant::random(&mut r, s.shared_width, s.hidden, 4);
        let want = reference_routing(&s, &logits);
        let swiglu = |g: &Quant, u: &Quant, first: usize, width: usize, x: &[f64]| -> Vec<f64> {
            let rows = first..first + width;
            let ups = T::dots(u, rows.clone(), x);
            T::dots(g, rows, x).iter().zip(ups).map(|(&g, u)| silu(g) * u).collect()
        };
        let input = |t: usize| wide(&values(&x[t * s.hidden..(t + 1) * s.hidden]));
        let mut want_h = Vec::new();
        for &p in &want.pairs {
            let (e, p) = (want.ids[p as usize] as usize, p as usize);
            let h = swiglu(&gate, &up, e * s.width, s.width, &input(p / s.chosen));
            want_h.extend(h.iter().map(|h| h * want.scores[p]));
        }
        let mut want_shared = Vec::new();
        for t in 0..s.tokens {
            let open = sigmoid(logits[t * s.stride() + s.experts] as f64);
            let h = swiglu(&shared_gate, &shared_up, 0, s.shared_width, &input(t));
            want_shared.extend(h.iter().map(|h| h * open));
        }
        let words = s.words();
        let chunk = chunk(5, s.tokens, 0);
        for seed in SEEDS {
            let (scores, routed) = route(lib, &s, &logits, seed);
            let mut h = vec![T::NAN; s.pairs() * s.width];
            let a = vec![
                ("x", read(&x)),
                ("scores", read(&scores)),
                ("pairs", read(&routed.pairs)),
                ("blocks", read(&routed.blocks)),
                ("gate_w", read(&gate.codes)),
                ("gate_s", read(&gate.scales)),
                ("gate_b", read(&gate.biases)),
                ("up_w", read(&up.codes)),
                ("up_s", read(&up.scales)),
                ("up_b", read(&up.biases)),
                ("h", write(&mut h)),
                ("shape", Arg::Bytes(cast_slice(&words))),
            ];
            let grid = [s.width.div_ceil(32) as u32, s.blocks() as u32, 1];
            let o = run(lib, &format!("experts_gate_up{}", T::NAME), grid, 128, seed, a);
            close(&format!("h of {}", s.hidden), &values(&h), &want_h, T::ROUNDING);
            // The weights of the experts that some token chose are read, and no others.
            let used = want.starts.windows(2).filter(|w| w[0] < w[1]).count();
            assert_eq!(o.touched[4].bytes_read(), (used * s.width * s.hidden / 2) as u64);

            let mut y = vec![f32::NAN; s.pairs() * s.hidden];
            let b = vec![
                ("h", read(&h)),
                ("pairs", read(&routed.pairs)),
                ("blocks", read(&routed.blocks)),
                ("down_w", read(&down.codes)),
                ("down_s", read(&down.scales)),
                ("down_b", read(&down.biases)),
                ("y", write(&mut y)),
                ("shape", Arg::Bytes(cast_slice(&words))),
            ];
            let grid = [s.hidden.div_ceil(64) as u32, s.blocks() as u32, 1];
            run(lib, &format!("experts_down{}", T::NAME), grid, 128, seed, b);
            let mut want_y = vec![f64::NAN; y.len()];
            for (i, &p) in want.pairs.iter().enumerate() {
                let e = want.ids[p as usize] as usize;
                let rows = e * s.hidden..(e + 1) * s.hidden;
                let out = T::dots(&down, rows, &wide(&values(&h[i * s.width..(i + 1) * s.width])));
                want_y[p as usize * s.hidden..][..s.hidden].copy_from_slice(&out);
            }
            close(&format!("y of {}", s.hidden), &y, &want_y, 8e-6);

            let mut residual = residual0.clone();
            let c = vec![
                ("y", read(&y)),
                ("residual", write(&mut residual)),
                ("chunk", read(&chunk)),
                ("shape", Arg::Bytes(cast_slice(&words))),
            ];
            let grid = [s.hidden.div_ceil(512) as u32, s.tokens as u32 + 1, 1];
            run(lib, "experts_combine", grid, 128, seed, c);
            for (t, row) in residual.chunks(s.hidden).enumerate() {
                for (i, &got) in row.iter().enumerate() {
                    let sum = (0..s.chosen).fold(0f32, |a, c| a + y[(t * s.chosen + c) * s.hidden + i]);
                    assert_eq!(got, residual0[t * s.hidden + i] + sum);
                }
            }

            let mut h = vec![T::NAN; s.tokens * s.shared_width];
            let d = vec![
                ("x", read(&x)),
                ("logits", read(&logits)),
                ("chunk", read(&chunk)),
                ("gate_w", read(&shared_gate.codes)),
                ("gate_s", read(&shared_gate.scales)),
                ("gate_b", read(&shared_gate.biases)),
                ("up_w", read(&shared_up.codes)),
                ("up_s", read(&shared_up.scales)),
                ("up_b", read(&shared_up.biases)),
                ("h", write(&mut h)),
                ("shape", Arg::Bytes(cast_slice(&words))),
            ];
            let grid = [s.shared_width.div_ceil(32) as u32, s.tokens.div_ceil(32) as u32 + 1, 1];
            run(lib, &format!("shared_gate_up{}", T::NAME), grid, 128, seed, d);
            close(&format!("shared h of {}", s.hidden), &values(&h), &want_shared, T::ROUNDING);
        }
    }
}

/// The 35B model's widths: two column tiles of each product for two experts.
pub fn experts_of_full_width() {
    full_width::<f16>();
    full_width::<f32>();
}

pub fn full_width<T: Element>() {
    let Some(lib) = T::library() else { return };
    at(&[Large]);
    let s =
        Shape { sizes: Large, hidden: 2048, experts: 2, chosen: 1, width: 512, shared_width: 64, tokens: 9 };
    let mut r = Random(35);
    let x: Vec<T> = elements(&mut r, s.tokens * s.hidden, 0.1);
    let gate = Quant::random(&mut r, s.experts * s.width, s.hidden, 4);
    let up = Quant::random(&mut r, s.experts * s.width, s.hidden, 4);
    let down = Quant::random(&mut r, s.experts * s.hidden, s.width, 4);
    let (logits, words) = (logits(&mut r, &s), s.words());
    let want = reference_routing(&s, &logits);
    for seed in SEEDS {
        let (scores, routed) = route(lib, &s, &logits, seed);
        let mut h: Vec<T> = elements(&mut r, s.pairs() * s.width, 0.0);
        let h0 = h.clone();
        let a = vec![
            ("x", read(&x)),
            ("scores", read(&scores)),
            ("pairs", read(&routed.pairs)),
            ("blocks", read(&routed.blocks)),
            ("gate_w", read(&gate.codes)),
            ("gate_s", read(&gate.scales)),
            ("gate_b", read(&gate.biases)),
            ("up_w", read(&up.codes)),
            ("up_s", read(&up.scales)),
            ("up_b", read(&up.biases)),
            ("h", write(&mut h)),
            ("shape", Arg::Bytes(cast_slice(&words))),
        ];
        run(lib, &format!("experts_gate_up{}", T::NAME), [2, s.blocks() as u32, 1], 128, seed, a);
        let mut y = vec![f32::NAN; s.pairs() * s.hidden];
        let b = vec![
            ("h", read(&h)),
            ("pairs", read(&routed.pairs)),
            ("blocks", read(&routed.blocks)),
            ("down_w", read(&down.codes)),
            ("down_s", read(&down.scales)),
            ("down_b", read(&down.biases)),
            ("y", write(&mut y)),
            ("shape", Arg::Bytes(cast_slice(&words))),
        ];
        run(lib, &format!("experts_down{}", T::NAME), [2, s.blocks() as u32, 1], 128, seed, b);
        for (i, &p) in want.pairs.iter().enumerate() {
            let (p, e) = (p as usize, want.ids[p as usize] as usize);
            let input = wide(&values(&x[p * s.hidden..(p + 1) * s.hidden]));
            let rows = e * s.width..e * s.width + 64;
            let ups = T::dots(&up, rows.clone(), &input);
            let gates = T::dots(&gate, rows, &input);
            let want_h: Vec<f64> =
                gates.iter().zip(ups).map(|(&g, u)| silu(g) * u * want.scores[p]).collect();
            let mine = &h[i * s.width..(i + 1) * s.width];
            close("h", &values(&mine[..64]), &want_h, T::ROUNDING);
            assert_eq!(values(&mine[64..]), values(&h0[i * s.width + 64..(i + 1) * s.width]));
            let want_y = T::dots(&down, e * s.hidden..e * s.hidden + 128, &wide(&values(mine)));
            close("y", &y[p * s.hidden..][..128], &want_y, 8e-6);
        }
    }
}
