use proptest::prelude::*;

use super::*;
use crate::constraint::Constraint;

fn sampler(params: SamplingParams, vocab: usize) -> Sampler {
    Sampler::new(params, &[], vocab, None)
}

fn hot() -> SamplingParams {
    SamplingParams { temperature: 1.0, ..Default::default() }
}

/// Softmax with temperature, in f64.
fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let w: Vec<f64> = logits.iter().map(|&l| ((l as f64 - max) / temperature).exp()).collect();
    let sum: f64 = w.iter().sum();
    w.into_iter().map(|x| x / sum).collect()
}

fn logits() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        prop::collection::vec(-12.0f32..12.0, 1..900),
        // Many ties.
        prop::collection::vec((-3i32..3).prop_map(|v| v as f32), 1..300),
        // Nearly flat: the set of top-p is large.
        prop::collection::vec(-0.1f32..0.1, 500..900),
    ]
}

proptest! {
    #[test]
    fn top_p_reaches_its_mass_and_is_minimal(row in logits(), p in 0.01f32..0.9999, t in 0.2f32..3.0) {
        let mut s = sampler(SamplingParams { temperature: t, top_p: p, ..hot() }, row.len());
        let mut kept = s.distribution(&row).unwrap().to_vec();
        kept.sort_by_key(|c| select::rank((c.id, c.logit)));
        let probs = softmax(&row, t as f64);
        let mass = |c: &[Candidate]| c.iter().map(|c| probs[c.id as usize]).sum::<f64>();
        prop_assert!(!kept.is_empty());
        prop_assert!(mass(&kept) >= p as f64 - 1e-12, "mass {} < {p}", mass(&kept));
        prop_assert!(mass(&kept[..kept.len() - 1]) < p as f64 + 1e-12);
        // Nothing outside outranks the last one kept.
        let last = kept[kept.len() - 1];
        let outranking = (0..row.len() as u32)
            .filter(|&id| select::rank((id, row[id as usize])) <= select::rank((last.id, last.logit))).count();
        prop_assert_eq!(outranking, kept.len());
    }

    #[test]
    fn top_k_then_top_p_then_min_p(row in logits(), k in 1usize..40, p in 0.3f32..1.0, m in 0.0f32..0.5) {
        let params = SamplingParams { top_k: k, top_p: p, min_p: m, ..hot() };
        let mut kept = sampler(params, row.len()).distribution(&row).unwrap().to_vec();
        kept.sort_by_key(|c| select::rank((c.id, c.logit)));
        // The definition, step by step.
        let mut want: Vec<(u32, f32)> = row.iter().enumerate().map(|(i, &l)| (i as u32, l)).collect();
        want.sort_by_key(|x| select::rank(*x));
        want.truncate(k);
        let w: Vec<f64> = want.iter().map(|x| ((x.1 - want[0].1) as f64).exp()).collect();
        let total: f64 = w.iter().sum();
        let (mut mass, mut n) = (0.0, 0);
        while n < want.len() && (n == 0 || mass < p as f64 * total) {
            mass += w[n];
            n += 1;
        }
        let n = w[..n].iter().take_while(|&&x| x >= m as f64).count();
        let ids: Vec<u32> = kept.iter().map(|c| c.id).collect();
        // f32 differences of logits in this definition may move a boundary by one token.
        prop_assert!(ids.len().abs_diff(n) <= 1);
        prop_assert!(ids.iter().zip(&want).all(|(a, b)| *a == b.0));
    }

    #[test]
    fn min_p_alone(row in logits(), m in 0.001f32..1.0) {
        let kept = sampler(SamplingParams { min_p: m, ..hot() }, row.len()).distribution(&row).unwrap().to_vec();
        let probs = softmax(&row, 1.0);
        let best = probs.iter().copied().fold(0.0, f64::max);
        for (id, p) in probs.iter().enumerate() {
            let is_kept = kept.iter().any(|c| c.id == id as u32);
            prop_assert!(is_kept == (*p >= m as f64 * best) || (p - m as f64 * best).abs() < 1e-12);
        }
    }

    #[test]
    fn greedy_is_the_lowest_arg_max(row in logits()) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let want = row.iter().position(|&x| x == max).unwrap() as u32;
        prop_assert_eq!(sampler(SamplingParams::default(), row.len()).sample(&row).unwrap().id, want);
    }

    #[test]
    fn unused_rows_are_never_chosen(seed: u64, t in prop_oneof![Just(0.0f32), 0.1f32..5.0], k in 0usize..9) {
        let mut row = vec![0.0f32; 40];
        row[30..].fill(50.0);
        let params = SamplingParams { temperature: t, top_k: k, seed, ..hot() };
        let mut s = Sampler::new(params, &[], 30, Some(5));
        for _ in 0..20 {
            let got = s.sample(&row).unwrap();
            prop_assert!(got.id < 30);
            prop_assert!(got.logprobs.unwrap().top.iter().all(|&(id, _)| id < 30));
        }
    }

    #[test]
    fn values_that_are_not_finite_are_an_error_everywhere(
        n in 1usize..200, at: prop::sample::Index, bad in 0usize..3, valid: prop::sample::Index,
        t in prop_oneof![Just(0.0f32), Just(1.0)], k in 0usize..3, p in prop_oneof![Just(1.0f32), Just(0.5)],
        bias: bool,
    ) {
        let mut row = vec![0.5f32; n];
        row[at.index(n)] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][bad];
        let params = SamplingParams {
            temperature: t, top_k: k, top_p: p,
            logit_bias: if bias { vec![(at.index(n) as u32, 1.0)] } else { vec![] },
            ..hot()
        };
        let mut s = Sampler::new(params, &[], valid.index(n) + 1, Some(3));
        prop_assert_eq!(s.sample(&row), Err(SampleError::NonFinite));
    }
}

/// Chi-square of `draws` draws against `expected` probabilities.
fn chi_square(s: &mut Sampler, row: &[f32], expected: &[f64], draws: usize) -> f64 {
    let mut counts = vec![0usize; row.len()];
    for _ in 0..draws {
        counts[s.sample(row).unwrap().id as usize] += 1;
    }
    counts
        .iter()
        .zip(expected)
        .map(|(&c, &p)| {
            let e = p * draws as f64;
            if p == 0.0 {
                assert_eq!(c, 0, "a token of probability 0 was drawn")
            };
            if p == 0.0 { 0.0 } else { (c as f64 - e).powi(2) / e }
        })
        .sum()
}

#[test]
fn draws_follow_the_distribution() {
    let row = [1.0f32, 2.0, 0.5, -1.0, 2.0, 0.0, 1.5, -0.5];
    // Whole vocabulary at temperature 0.7; 7 degrees of freedom: 24.3 is p = 0.999.
    let params = SamplingParams { temperature: 0.7, seed: 42, ..hot() };
    let x = chi_square(&mut sampler(params, 8), &row, &softmax(&row, 0.7), 100_000);
    assert!(x < 24.3, "chi-square {x}");

    // top-k 4 keeps 1, 4, 6, 0; 3 degrees of freedom: 16.3.
    let kept = |ids: &[usize]| {
        let p = softmax(&row, 1.0);
        let sum: f64 = ids.iter().map(|&i| p[i]).sum();
        (0..8).map(|i| if ids.contains(&i) { p[i] / sum } else { 0.0 }).collect::<Vec<_>>()
    };
    let params = SamplingParams { top_k: 4, seed: 1, ..hot() };
    let x = chi_square(&mut sampler(params, 8), &row, &kept(&[0, 1, 4, 6]), 100_000);
    assert!(x < 16.3, "chi-square {x}");

    // top-p 0.6: 0.286 + 0.286 + 0.173 >= 0.6; 2 degrees of freedom: 13.8.
    let params = SamplingParams { top_p: 0.6, seed: 2, ..hot() };
    let x = chi_square(&mut sampler(params, 8), &row, &kept(&[1, 4, 6]), 100_000);
    assert!(x < 13.8, "chi-square {x}");

    // A repetition penalty changes the row between draws, so min-p alone: keeps 1, 4, 6, 0 at 0.3.
    let params = SamplingParams { min_p: 0.3, seed: 3, ..hot() };
    let x = chi_square(&mut sampler(params, 8), &row, &kept(&[0, 1, 4, 6]), 100_000);
    assert!(x < 16.3, "chi-square {x}");
}

#[test]
fn the_same_seed_gives_the_same_tokens() {
    let row: Vec<f32> = (0..500).map(|i| ((i * 37) % 101) as f32 / 30.0).collect();
    let tokens = |seed| {
        let mut s = sampler(SamplingParams { top_p: 0.95, seed, ..hot() }, 500);
        (0..50).map(|_| s.sample(&row).unwrap().id).collect::<Vec<_>>()
    };
    assert_eq!(tokens(1), tokens(1));
    assert_ne!(tokens(1), tokens(2));
}

#[test]
fn bias_bans_and_forces() {
    let row: Vec<f32> = (0..64).map(|i| (i % 13) as f32).collect();
    for temperature in [0.0, 1.0] {
        let params = SamplingParams { temperature, logit_bias: vec![(12, -100.0), (25, -100.0)], ..hot() };
        let mut s = sampler(params, 64);
        assert!((0..2000).all(|_| ![12, 25].contains(&s.sample(&row).unwrap().id)));
        let params = SamplingParams { temperature, logit_bias: vec![(3, 100.0)], ..hot() };
        let mut s = sampler(params, 64);
        assert!((0..2000).all(|_| s.sample(&row).unwrap().id == 3));
    }
}

#[test]
fn penalties_act_on_what_was_generated() {
    // Greedy with a frequency penalty walks down the logits: 3, then 2.5 beats 3 - 1, ...
    let params = SamplingParams { frequency_penalty: 1.0, ..Default::default() };
    let mut s = sampler(params, 3);
    let ids: Vec<u32> = (0..5).map(|_| s.sample(&[3.0, 2.5, -9.0]).unwrap().id).collect();
    assert_eq!(ids, [0, 1, 0, 1, 0]);
    // Presence counts once.
    let params = SamplingParams { presence_penalty: 1.0, ..Default::default() };
    let mut s = sampler(params, 3);
    let ids: Vec<u32> = (0..5).map(|_| s.sample(&[3.0, 2.5, -9.0]).unwrap().id).collect();
    assert_eq!(ids, [0, 1, 0, 0, 0]);
    // Repetition looks at the prompt, presence and frequency do not.
    let params = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
    assert_eq!(Sampler::new(params, &[0], 3, None).sample(&[3.0, 2.5, -9.0]).unwrap().id, 1);
    let params = SamplingParams { presence_penalty: 2.0, frequency_penalty: 2.0, ..Default::default() };
    assert_eq!(Sampler::new(params, &[0], 3, None).sample(&[3.0, 2.5, -9.0]).unwrap().id, 0);
}

#[test]
fn logprobs_are_of_the_raw_distribution() {
    let row = [1.0f32, 3.0, 3.0, 0.0, 7.0];
    let params =
        SamplingParams { temperature: 2.0, top_k: 1, logit_bias: vec![(3, 100.0)], ..Default::default() };
    // Id 4 is an unused row: in the normaliser, not in the list.
    let got = Sampler::new(params, &[], 4, Some(3)).sample(&row).unwrap();
    assert_eq!(got.id, 3);
    let p = softmax(&row, 1.0);
    let lp = got.logprobs.unwrap();
    assert!((lp.logprob as f64 - p[3].ln()).abs() < 1e-6);
    assert_eq!(lp.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2, 0]);
    assert!(lp.top.iter().all(|&(id, l)| (l as f64 - p[id as usize].ln()).abs() < 1e-6));
    // None of the rivals asked for: the token's own log-probability alone.
    let got = Sampler::new(SamplingParams::default(), &[], 4, Some(0)).sample(&row).unwrap();
    assert!(got.logprobs.unwrap().top.is_empty());
}

#[test]
fn extreme_temperatures_and_short_rows() {
    let row = [f32::MAX, 0.0, f32::MIN, 1.0];
    for temperature in [f32::MIN_POSITIVE, 1e-45, 1e-3, 100.0] {
        for (top_k, top_p) in [(0, 1.0), (2, 1.0), (0, 0.5), (3, 1e-6)] {
            let params = SamplingParams { temperature, top_k, top_p, ..hot() };
            assert_eq!(sampler(params, 4).sample(&row).unwrap().id, 0);
        }
    }
    let short = sampler(hot(), 5).sample(&row);
    assert_eq!(short, Err(SampleError::Shape { found: 4, expected: 5 }));
    assert_eq!(sampler(hot(), 0).sample(&[]), Err(SampleError::Shape { found: 0, expected: 1 }));
}

/// Allows each id of a list in turn.
struct InTurn {
    order: Vec<u32>,
    at: usize,
    mask: TokenMask,
}

impl Constraint for InTurn {
    fn mask(&mut self) -> Result<Option<&TokenMask>, ConstraintError> {
        self.mask = TokenMask::none(5);
        let id = *self.order.get(self.at).ok_or_else(|| ConstraintError("over".to_string()))?;
        self.mask.insert(id);
        Ok(Some(&self.mask))
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        assert_eq!(id, self.order[self.at]);
        self.at += 1;
        Ok(())
    }
}

#[test]
fn only_tokens_in_the_mask_are_chosen() {
    let row = [5.0f32, 4.0, 3.0, 2.0, 1.0];
    let mut mask = TokenMask::none(5);
    mask.insert(2);
    mask.insert(4);
    for (temperature, top_k, top_p, min_p) in
        [(0.0, 0, 1.0, 0.0), (1.5, 0, 1.0, 0.0), (1.5, 3, 1.0, 0.0), (1.5, 0, 0.2, 0.0), (100.0, 4, 0.9, 0.5)]
    {
        let penalties = SamplingParams { logit_bias: vec![(0, 100.0)], presence_penalty: 1.0, ..hot() };
        for params in [hot(), penalties] {
            let params = SamplingParams { temperature, top_k, top_p, min_p, ..params };
            let mut s = sampler(params, 5);
            let mut seen = [0; 5];
            for _ in 0..500 {
                seen[s.sample_masked(&row, Some(&mask)).unwrap().id as usize] += 1;
            }
            assert_eq!(seen[2] + seen[4], 500, "{seen:?}");
            assert!(seen[2] > 0);
            // At temperature 1.5 the odds are e^(4/3) to 1.
            assert!(temperature != 1.5 || top_p < 1.0 || seen[4] > 20, "{seen:?}");
        }
    }
    // What top-k left of what is not allowed has no part in the draw, however little is allowed.
    let mut s = sampler(SamplingParams { top_k: 4, ..hot() }, 5);
    let only = TokenMask::from_words(&[1 << 4], 5);
    assert!((0..100).all(|_| s.sample_masked(&row, Some(&only)).unwrap().id == 4));
    for temperature in [0.0, 1.0] {
        let mut s = sampler(SamplingParams { temperature, ..hot() }, 5);
        let nothing = s.sample_masked(&row, Some(&TokenMask::none(5)));
        assert!(matches!(nothing, Err(SampleError::Constraint(_))), "{nothing:?}");
    }
}

#[test]
fn a_constraint_hears_what_was_chosen_and_may_fail() {
    let row = [5.0f32, 4.0, 3.0, 2.0, 1.0];
    let handle = ConstraintHandle::new(InTurn { order: vec![3, 1, 4], at: 0, mask: TokenMask::none(5) });
    let mut s = Sampler::new(hot(), &[], 5, Some(2));
    let ids: Vec<u32> = (0..3)
        .map(|_| {
            let sampled = s.sample_within(&row, Some(&handle)).unwrap();
            // Log-probabilities are of the model, not of the mask.
            assert_eq!(sampled.logprobs.unwrap().top[0].0, 0);
            sampled.id
        })
        .collect();
    assert_eq!(ids, [3, 1, 4]);
    assert_eq!(
        s.sample_within(&row, Some(&handle)),
        Err(SampleError::Constraint(ConstraintError("over".to_string())))
    );
}
