//! The check digits of national numbers by themselves, to compare them with other implementations.

use crate::recognize::{national, secret};

/// The names of all schemes: `us_ssn`, `de_idnr`, ...
pub fn ids() -> impl Iterator<Item = &'static str> {
    national::ids()
}

/// Whether `number` (its digits and letters, upper case) can be a number of `scheme`. None if there is no such scheme.
pub fn holds(scheme: &str, number: &str) -> Option<bool> {
    national::check(scheme, number).map(|check| check != national::Check::Invalid)
}

/// How many kinds of providers' secrets have a rule of their own.
pub fn secret_kinds() -> usize {
    secret::kinds()
}
