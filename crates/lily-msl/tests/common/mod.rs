//! Shared by the tests that compile kernels; not every one uses all of it.
#![allow(dead_code)]

use lily_msl::soft::{Compiler, SoftLibrary};
use lily_msl::{ParseOptions, Sources, Unit};

/// Parses a source; panics with the findings.
pub fn unit(name: &str, text: &str, headers: &[(&str, &str)]) -> Unit {
    let mut s = Sources::single(name, text);
    for (n, t) in headers {
        s.add(*n, *t);
    }
    Unit::parse(&s, name, &ParseOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// The compiler, or `None` after saying that the test is skipped.
pub fn compiler() -> Option<Compiler> {
    match Compiler::find() {
        Ok(c) => Some(c),
        Err(e) => {
            println!("skipped: no C++ compiler ({e})");
            None
        }
    }
}

/// Builds a checked library.
pub fn checked(u: &Unit, c: &Compiler) -> SoftLibrary {
    SoftLibrary::build(u, c, true).unwrap_or_else(|e| panic!("{e}"))
}

/// A deterministic stream of values between -1 and 1.
pub struct Random(pub u64);

impl Random {
    pub fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    pub fn unit(&mut self) -> f32 {
        (self.word() & 0xffffff) as f32 / 8388608.0 - 1.0
    }
}
