//! What this machine can do at most: read bandwidth and multiply-add peaks, measured.
//!
//! Every speed figure is printed beside these. Decode is bound by [`read_bandwidth`], prefill by [`int8_peak`] (the
//! 8-bit dot product) or [`bf16_peak`]; a multiply and an add count as two operations.

use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// Bytes per second that `threads` threads read together from a buffer of `bytes` bytes (larger than all caches),
/// best of `passes`.
pub fn read_bandwidth(threads: usize, bytes: usize, passes: usize) -> f64 {
    // Values are not constant, so that pages are real.
    let words: Vec<u64> = (0..(bytes / 8).max(threads.max(1) * 64) as u64).collect();
    read_bandwidth_of(threads, &words, passes)
}

/// As [`read_bandwidth`], from memory that the caller keeps for repeated measurements.
pub fn read_bandwidth_of(threads: usize, words: &[u64], passes: usize) -> f64 {
    let threads = threads.max(1);
    // Whole cache lines for each thread.
    let part = words.len() / threads / 64 * 64;
    let barrier = Barrier::new(threads);
    let spans: Vec<Vec<(Instant, Instant)>> = thread::scope(|s| {
        let handles: Vec<_> = (0..threads)
            .map(|t| {
                let (barrier, words) = (&barrier, &words[t * part..(t + 1) * part]);
                s.spawn(move || {
                    (0..passes)
                        .map(|_| {
                            barrier.wait();
                            let start = Instant::now();
                            black_box(sum(words));
                            (start, Instant::now())
                        })
                        .collect()
                })
            })
            .collect();
        handles.into_iter().map(|h| h.join().expect("a bandwidth thread only sums")).collect()
    });
    (0..passes)
        .map(|p| {
            let start = spans.iter().map(|s| s[p].0).min().unwrap_or_else(Instant::now);
            let end = spans.iter().map(|s| s[p].1).max().unwrap_or(start);
            (part * threads * 8) as f64 / (end - start).as_secs_f64().max(1e-9)
        })
        .fold(0.0, f64::max)
}

/// 8-bit multiply-add operations per second of `threads` threads (AVX-512 VNNI `vpdpbusd`), or `None` without it.
pub fn int8_peak(threads: usize) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512f") {
        // SAFETY: the features were just detected.
        return Some(peak(threads, x86::OPS_INT8, |n| unsafe { x86::int8_chain(n) }));
    }
    let _ = threads;
    None
}

/// BF16 multiply-add operations per second of `threads` threads (AVX-512 `vdpbf16ps`), or `None` without it.
pub fn bf16_peak(threads: usize) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512f") {
        // SAFETY: the features were just detected.
        return Some(peak(threads, x86::OPS_BF16, |n| unsafe { x86::bf16_chain(n) }));
    }
    let _ = threads;
    None
}

/// F32 multiply-add operations per second of `threads` threads (AVX-512 or AVX2 FMA), or `None` without them.
pub fn f32_peak(threads: usize) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature was just detected.
        return Some(peak(threads, x86::OPS_F32, |n| unsafe { x86::f32_chain(n) }));
    }
    let _ = threads;
    None
}

/// Sum with enough independent accumulators that the loads, not the adds, are the limit.
fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature was just detected.
        return unsafe { x86::sum(words) };
    }
    let mut lanes = [0u64; 16];
    for chunk in words.chunks_exact(16) {
        for (l, w) in lanes.iter_mut().zip(chunk) {
            *l = l.wrapping_add(*w);
        }
    }
    lanes.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Operations per second of `chain(iterations)` run on all threads for about 100 ms, best of three.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn peak(threads: usize, ops_per_iteration: f64, chain: impl Fn(usize) -> f32 + Sync) -> f64 {
    let threads = threads.max(1);
    let iterations = 20_000_000;
    (0..3)
        .map(|_| {
            let barrier = Barrier::new(threads);
            let times: Vec<Duration> = thread::scope(|s| {
                let handles: Vec<_> = (0..threads)
                    .map(|_| {
                        let (barrier, chain) = (&barrier, &chain);
                        s.spawn(move || {
                            barrier.wait();
                            let start = Instant::now();
                            black_box(chain(black_box(iterations)));
                            start.elapsed()
                        })
                    })
                    .collect();
                handles.into_iter().map(|h| h.join().expect("a peak thread only multiplies")).collect()
            });
            let slowest = times.into_iter().max().unwrap_or_default().as_secs_f64().max(1e-9);
            threads as f64 * iterations as f64 * ops_per_iteration / slowest
        })
        .fold(0.0, f64::max)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// Independent accumulators: twice latency (4 to 5 cycles) times two issue ports.
    const CHAINS: usize = 16;
    pub const OPS_INT8: f64 = (CHAINS * 64 * 2) as f64;
    pub const OPS_BF16: f64 = (CHAINS * 32 * 2) as f64;
    pub const OPS_F32: f64 = (CHAINS * 16 * 2) as f64;

    #[target_feature(enable = "avx512f")]
    pub fn sum(words: &[u64]) -> u64 {
        let mut acc = [_mm512_setzero_si512(); 8];
        for chunk in words.chunks_exact(64) {
            for (i, a) in acc.iter_mut().enumerate() {
                // SAFETY: the chunk has 64 words; i < 8 reads words 8 i to 8 i + 7.
                let v = unsafe { _mm512_loadu_si512(chunk.as_ptr().add(8 * i).cast()) };
                *a = _mm512_add_epi64(*a, v);
            }
        }
        acc.iter().fold(0u64, |s, a| s.wrapping_add(_mm512_reduce_add_epi64(*a) as u64))
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn int8_chain(iterations: usize) -> f32 {
        let (a, b) = (_mm512_set1_epi8(3), _mm512_set1_epi8(-2));
        let mut acc = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..iterations {
            for x in &mut acc {
                *x = _mm512_dpbusd_epi32(*x, a, b);
            }
        }
        acc.iter().fold(0, |s: i32, x| s.wrapping_add(_mm512_reduce_add_epi32(*x))) as f32
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub fn bf16_chain(iterations: usize) -> f32 {
        let one = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5), _mm512_set1_ps(0.25));
        let mut acc = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..iterations {
            for x in &mut acc {
                *x = _mm512_dpbf16_ps(*x, one, one);
            }
        }
        acc.iter().fold(0.0, |s, x| s + _mm512_reduce_add_ps(*x))
    }

    #[target_feature(enable = "avx512f")]
    pub fn f32_chain(iterations: usize) -> f32 {
        let (a, b) = (_mm512_set1_ps(0.5), _mm512_set1_ps(0.25));
        let mut acc = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..iterations {
            for x in &mut acc {
                *x = _mm512_fmadd_ps(*x, a, b);
            }
        }
        acc.iter().fold(0.0, |s, x| s + _mm512_reduce_add_ps(*x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_reads_every_word() {
        let words: Vec<u64> = (0..6400).collect();
        assert_eq!(sum(&words), 6399 * 6400 / 2);
    }

    #[test]
    fn bandwidth_is_positive_and_finite() {
        let b = read_bandwidth(2, 1 << 22, 2);
        assert!(b.is_finite() && b > 1e8, "{b}");
    }
}
