//! Outputs against golden vectors.

use std::fmt;

use crate::device::Precision;

/// Number format of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    F32,
    Bf16,
    F16,
    /// Integers, and everything unknown: compared bit by bit, four bytes at a time.
    Words,
}

impl Format {
    /// Of an element type of the kernels: `float4`, `bfloat`, `uint`.
    pub(super) fn of(element: &str) -> Self {
        match element.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "float" => Format::F32,
            "bfloat" => Format::Bf16,
            "half" => Format::F16,
            _ => Format::Words,
        }
    }

    /// Bytes of an element.
    pub(super) fn bytes(self) -> usize {
        match self {
            Format::F32 | Format::Words => 4,
            Format::Bf16 | Format::F16 => 2,
        }
    }

    /// Largest error, relative to the largest value of the output. In f32 a sum of some hundred products in another order
    /// and functions that differ in their last bits stay a factor of ten below; a result rounded to 16 bits may be one
    /// rounding off, and so may one that is f32 but was computed from values of 16 bits.
    fn allowed(self, precision: Precision) -> f64 {
        match (self, precision) {
            (Format::F32, Precision::F32) => 2e-5,
            (Format::Bf16, _) => 1.0 / 128.0,
            (Format::F16, _) | (Format::F32, Precision::F16) => 1.0 / 1024.0,
            (Format::Words, _) => 0.0,
        }
    }

    fn values(self, bytes: &[u8]) -> Vec<f64> {
        let one = |b: &[u8]| match self {
            Format::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64,
            Format::Words => u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64,
            Format::Bf16 => f32::from_bits((u16::from_le_bytes([b[0], b[1]]) as u32) << 16) as f64,
            Format::F16 => half::f16::from_le_bytes([b[0], b[1]]).to_f64(),
        };
        bytes.chunks_exact(self.bytes()).map(one).collect()
    }
}

/// An output beside its golden vector.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The argument.
    pub output: String,
    /// Values compared.
    pub values: usize,
    /// Largest error relative to the largest golden value; infinite where a value is not a number or not compared.
    pub error: f64,
    /// Largest error allowed.
    pub allowed: f64,
    /// Where the largest error is: index among the values compared, value found, value expected.
    pub at: (usize, f64, f64),
}

impl Difference {
    pub(super) fn new(output: &str, format: Format, precision: Precision, got: &[u8], want: &[u8]) -> Self {
        let allowed = format.allowed(precision);
        let (got, want) = (format.values(got), format.values(want));
        let mut d = Difference {
            output: output.to_string(),
            values: want.len(),
            error: 0.0,
            allowed,
            at: (0, 0.0, 0.0),
        };
        if got.len() != want.len() || want.is_empty() {
            d.error = f64::INFINITY;
            d.at = (got.len().min(want.len()), got.len() as f64, want.len() as f64);
            return d;
        }
        let largest = want.iter().filter(|w| w.is_finite()).fold(0f64, |m, w| m.max(w.abs()));
        for (i, (&g, &w)) in got.iter().zip(&want).enumerate() {
            let error = match (g == w || (g.is_nan() && w.is_nan()), g.is_finite() && w.is_finite()) {
                (true, _) => 0.0,
                (false, true) if largest > 0.0 => (g - w).abs() / largest,
                _ => f64::INFINITY,
            };
            if error > d.error {
                (d.error, d.at) = (error, (i, g, w));
            }
        }
        d
    }

    /// The error as a share of what is allowed.
    pub fn share(&self) -> f64 {
        match (self.error == 0.0, self.allowed > 0.0) {
            (true, _) => 0.0,
            (false, true) => self.error / self.allowed,
            (false, false) => f64::INFINITY,
        }
    }

    /// Whether the error is allowed.
    pub fn passed(&self) -> bool {
        self.error <= self.allowed
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (i, got, want) = self.at;
        write!(
            f,
            "{} is off by {:.1e} (allowed {:.1e}): value {i} of {} is {got}, expected {want}",
            self.output, self.error, self.allowed, self.values
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn compare(got: &[f32], want: &[f32]) -> Difference {
        Difference::new("y", Format::F32, Precision::F32, &floats(got), &floats(want))
    }

    #[test]
    fn errors_are_relative_to_the_largest_value() {
        assert!(compare(&[1.0, 100.0], &[1.001, 100.0]).passed());
        let d = compare(&[1.0, 100.0], &[1.01, 100.0]);
        assert!(!d.passed() && d.at.0 == 0 && (d.error - 1e-4).abs() < 1e-6, "{d}");
        assert!(compare(&[0.0, -0.0], &[0.0, 0.0]).passed());
        assert!(!compare(&[1e-9, 0.0], &[0.0, 0.0]).passed());
    }

    #[test]
    fn what_is_no_number_is_wrong_unless_expected() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert!(!compare(&[nan, 1.0], &[1.0, 1.0]).passed());
        assert!(!compare(&[1.0, 1.0], &[nan, 1.0]).passed());
        assert!(!compare(&[inf, 1.0], &[-inf, 1.0]).passed());
        assert!(compare(&[nan, -inf, 1.0], &[nan, -inf, 1.0]).passed());
        assert!(!compare(&[1.0], &[1.0, 1.0]).passed() && !compare(&[], &[]).passed());
    }

    /// What was computed from halves may be off by a rounding of theirs; that alone is not enough for more.
    #[test]
    fn precision_of_the_kernel() {
        let d = |precision, got: f32| {
            Difference::new("y", Format::F32, precision, &floats(&[got, -2.0]), &floats(&[1.0, -2.0]))
        };
        assert!(d(Precision::F32, 1.00003).passed() && !d(Precision::F32, 1.001).passed());
        assert!(d(Precision::F16, 1.001).passed() && !d(Precision::F16, 1.004).passed());
        assert!(!d(Precision::F16, f32::NAN).passed());
    }

    #[test]
    fn formats() {
        assert_eq!(Format::of("float4"), Format::F32);
        assert_eq!(Format::of("bfloat"), Format::Bf16);
        assert_eq!(Format::of("half4"), Format::F16);
        assert_eq!(Format::of("uint2"), Format::Words);
        let bf16 = |bits: u16| bits.to_le_bytes().to_vec();
        let d = |a, b| Difference::new("y", Format::Bf16, Precision::F32, &bf16(a), &bf16(b));
        assert!(d(0x3f80, 0x3f81).passed() && !d(0x3f80, 0x3f82).passed()); // 1, one and two steps above
        let words = |a: u32, b: u32| {
            Difference::new("y", Format::Words, Precision::F16, &a.to_le_bytes(), &b.to_le_bytes())
        };
        assert!(words(7, 7).passed() && !words(7, 8).passed());
        assert_eq!(words(7, 8).share(), f64::INFINITY);
    }
}
