//! Normalisations.

/// RMSNorm (Zhang, Sennrich 2019, arXiv:1910.07467) of each row of `x`, `[n, width]`, `width` being the gain's
/// length: `y = x / sqrt(mean(x^2) + eps) * gain`. Gains of MLX checkpoints already hold the `1 +` of the
/// original model.
pub(super) fn rms_norm(x: &[f32], gain: &[f32], eps: f32) -> Vec<f32> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(gain.len()) {
        let scale = (1.0 / (sum_of_squares(row) / row.len() as f64 + eps as f64).sqrt()) as f32;
        y.extend(row.iter().zip(gain).map(|(x, g)| x * scale * g));
    }
    y
}

/// L2 norm with epsilon inside the root, in place: `x / sqrt(sum(x^2) + eps)`.
pub(super) fn l2_norm(x: &mut [f32], eps: f32) {
    let scale = (1.0 / (sum_of_squares(x) + eps as f64).sqrt()) as f32;
    for x in x {
        *x *= scale;
    }
}

fn sum_of_squares(x: &[f32]) -> f64 {
    x.iter().map(|&x| x as f64 * x as f64).sum()
}

/// Softmax over `x`, in place; the largest value is subtracted first.
pub(super) fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0f64;
    for x in x.iter_mut() {
        *x = (*x - max).exp();
        sum += *x as f64;
    }
    let scale = (1.0 / sum) as f32;
    for x in x {
        *x *= scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rms_norm_by_hand() {
        let y = rms_norm(&[3.0, 4.0, 0.0, 0.0], &[1.0, 2.0, 3.0, 4.0], 0.0);
        // mean of squares 25/4, so the scale is 2/5
        assert_eq!(y, [1.2, 3.2, 0.0, 0.0]);
    }

    #[test]
    fn l2_norm_by_hand() {
        let mut x = [3.0, 4.0];
        l2_norm(&mut x, 0.0);
        assert_eq!(x, [0.6, 0.8]);
        let mut zero = [0.0; 4];
        l2_norm(&mut zero, 1e-6);
        assert_eq!(zero, [0.0; 4]);
    }

    #[test]
    fn softmax_of_large_values() {
        let mut x = [1000.0, 1000.0, -1000.0];
        softmax(&mut x);
        assert_eq!(x, [0.5, 0.5, 0.0]);
    }
}
