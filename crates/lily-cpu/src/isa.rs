//! Instruction sets and which of them this machine has.

use crate::error::{CpuError, Result};

/// A set of kernels. Every set computes the same integer products; only the order of f32 sums differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust: the tested definition of every kernel. Runs anywhere.
    Scalar,
    /// x86-64 AVX2 and FMA (Haswell, Zen and later).
    Avx2,
    /// x86-64 AVX-512 F/BW/VL with VNNI (Ice Lake, Zen 4 and later).
    Avx512Vnni,
    /// arm64 with the dot-product extension (Armv8.2 DotProd: Apple M1, Cortex-A76 and later).
    Neon,
}

impl Isa {
    /// All, fastest first.
    pub const ALL: [Isa; 4] = [Isa::Avx512Vnni, Isa::Avx2, Isa::Neon, Isa::Scalar];

    /// The name used by `LILY_CPU_ISA` and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512Vnni => "avx512",
            Isa::Neon => "neon",
        }
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                    && Isa::Avx2.is_available()
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// The sets this machine can run, fastest first.
    pub fn available() -> Vec<Isa> {
        Self::ALL.into_iter().filter(|i| i.is_available()).collect()
    }

    /// The set to use: `wanted`, else what the environment variable `LILY_CPU_ISA` names, else the fastest.
    pub fn choose(wanted: Option<Isa>) -> Result<Isa> {
        let bad = |found: &str| CpuError::BadIsa {
            found: found.to_string(),
            available: Self::available().iter().map(|i| i.name()).collect::<Vec<_>>().join(", "),
        };
        let wanted = match (wanted, std::env::var("LILY_CPU_ISA")) {
            (Some(isa), _) => isa,
            (None, Ok(name)) if !name.is_empty() && name != "auto" => {
                Self::ALL.into_iter().find(|i| i.name() == name).ok_or_else(|| bad(&name))?
            }
            _ => return Ok(Self::available()[0]),
        };
        if wanted.is_available() { Ok(wanted) } else { Err(bad(wanted.name())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_is_always_there_and_last() {
        assert_eq!(Isa::available().last(), Some(&Isa::Scalar));
        assert_eq!(Isa::choose(Some(Isa::Scalar)).unwrap(), Isa::Scalar);
    }

    #[test]
    fn missing_set_is_named_with_what_is_there() {
        let missing = if cfg!(target_arch = "x86_64") { Isa::Neon } else { Isa::Avx2 };
        let text = Isa::choose(Some(missing)).unwrap_err().to_string();
        assert!(text.contains(missing.name()) && text.contains("scalar"), "{text}");
    }
}
