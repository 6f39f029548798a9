//! Passes over a row of logits: arg-max, the `k` largest, log-sum-exp. All handle 248,320 entries in tens of
//! microseconds (log-sum-exp: about a millisecond), because a decode step waits for them.

/// Lanes that the compiler keeps in vector registers.
const LANES: usize = 16;

/// Entries between two looks at the running maximum.
const BLOCK: usize = 1024;

/// Largest of `values` (`-inf` when empty), and whether all are finite.
fn max_and_finite(values: &[f32]) -> (f32, bool) {
    let mut max = [f32::NEG_INFINITY; LANES];
    // Stays 0 while values are finite: infinity times 0 is NaN, and NaN spreads.
    let mut zero = [0.0f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let x = chunk[lane];
            // Not f32::max, which must handle NaN: this form is one MAXPS.
            max[lane] = if x > max[lane] { x } else { max[lane] };
            zero[lane] += x * 0.0;
        }
    }
    let mut best = f32::NEG_INFINITY;
    for m in max.into_iter().chain(rest.iter().copied()) {
        best = if m > best { m } else { best };
    }
    (best, zero.iter().all(|&z| z == 0.0) && rest.iter().all(|x| x.is_finite()))
}

/// Whether every value is finite.
pub fn all_finite(values: &[f32]) -> bool {
    max_and_finite(values).1
}

/// Index of the largest value, the lowest one on ties. `None` when a value is not finite or there are none.
pub fn argmax(values: &[f32]) -> Option<usize> {
    let mut best = f32::NEG_INFINITY;
    let mut best_block = None;
    for (b, block) in values.chunks(BLOCK).enumerate() {
        let (max, finite) = max_and_finite(block);
        if !finite {
            return None;
        }
        if max > best {
            best = max;
            best_block = Some(b * BLOCK);
        }
    }
    let start = best_block?;
    values[start..].iter().position(|&x| x == best).map(|i| start + i)
}

/// Sorts a finite logit by rank: larger logits have smaller keys, and of equal ones (0 and -0 are) the lower id has.
/// One integer to compare, since selecting from a whole vocabulary is all comparisons.
pub fn rank((id, logit): (u32, f32)) -> u64 {
    // IEEE 754 bits order like sign-magnitude integers; adding 0 makes -0 into 0.
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    (u64::from(!ascending) << 32) | u64::from(id)
}

/// Replaces `out` by the `k` highest-ranked (id, value) of finite `values`, best first ([`rank`]).
///
/// Holds at most `2k` candidates: a block whose maximum does not exceed the k-th best seen so far is skipped, since
/// its entries have higher ids than all candidates and so lose ties too.
pub fn top_k(values: &[f32], k: usize, out: &mut Vec<(u32, f32)>) {
    out.clear();
    let k = k.min(values.len());
    if k == 0 {
        return;
    }
    let room = (2 * k).max(64);
    let mut threshold = f32::NEG_INFINITY;
    for (b, block) in values.chunks(4 * LANES).enumerate() {
        if max_and_finite(block).0 <= threshold {
            continue;
        }
        for (i, &x) in block.iter().enumerate() {
            if x > threshold {
                out.push(((b * 4 * LANES + i) as u32, x));
                if out.len() == room {
                    out.select_nth_unstable_by_key(k - 1, |x| rank(*x));
                    out.truncate(k);
                    threshold = out[k - 1].1;
                }
            }
        }
    }
    if out.len() > k {
        out.select_nth_unstable_by_key(k - 1, |x| rank(*x));
        out.truncate(k);
    }
    out.sort_unstable_by_key(|x| rank(*x));
}

/// `ln(sum(exp(x)))` in f64. `values` must be finite and not empty.
pub fn log_sum_exp(values: &[f32]) -> f64 {
    let max = max_and_finite(values).0 as f64;
    let sum: f64 = values.iter().map(|&x| (x as f64 - max).exp()).sum();
    max + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn argmax_is_the_first_largest(values in prop::collection::vec(-5i32..5, 1..3000)) {
            let values: Vec<f32> = values.into_iter().map(|v| v as f32 * 0.5).collect();
            let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let want = values.iter().position(|&v| v == max);
            prop_assert_eq!(argmax(&values), want);
        }

        #[test]
        fn top_k_equals_a_full_sort(
            values in prop::collection::vec(prop_oneof![(-20i32..20).prop_map(|v| v as f32), -1e30f32..1e30], 1..700),
            k in 0usize..800,
        ) {
            let mut want: Vec<(u32, f32)> = values.iter().enumerate().map(|(i, &v)| (i as u32, v)).collect();
            want.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
            want.truncate(k);
            let mut got = vec![(9, 9.0)];
            top_k(&values, k, &mut got);
            prop_assert_eq!(got, want);
        }

        #[test]
        fn a_value_that_is_not_finite_is_found_anywhere(
            n in 1usize..3000, at in 0usize..3000, bad in 0usize..3,
        ) {
            let mut values = vec![1.0f32; n];
            prop_assert!(all_finite(&values));
            values[at % n] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][bad];
            prop_assert!(!all_finite(&values));
            prop_assert_eq!(argmax(&values), None);
        }
    }

    #[test]
    fn rank_orders_by_logit_then_id() {
        let ordered = [
            (5, f32::MAX),
            (0, 2.0),
            (3, 2.0),
            (1, 1e-40),
            (1, -0.0),
            (2, 0.0),
            (9, -0.0),
            (0, -1.5),
            (7, f32::MIN),
        ];
        assert!(ordered.windows(2).all(|w| rank(w[0]) < rank(w[1])));
    }

    #[test]
    fn log_sum_exp_of_extremes() {
        assert!((log_sum_exp(&[0.0, 0.0]) - 2f64.ln()).abs() < 1e-15);
        assert!((log_sum_exp(&[3e38, -3e38]) - 3e38f32 as f64).abs() < 1.0);
        assert!((log_sum_exp(&[-1000.0; 8]) - (8f64.ln() - 1000.0)).abs() < 1e-12);
        assert_eq!(argmax(&[]), None);
    }
}
