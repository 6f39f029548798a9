//! Check digits and dates inside numbers. All take ASCII digits (letters where said) and answer whether the number
//! holds; none panics on other input.

/// The values of ASCII digits; other characters give none.
pub(crate) fn digits(text: &str) -> Option<Vec<u32>> {
    text.bytes().map(|b| b.is_ascii_digit().then(|| u32::from(b - b'0'))).collect()
}

/// ISO/IEC 7812-1 annex B, the last digit being the check digit.
pub(crate) fn luhn(text: &str) -> bool {
    let Some(digits) = digits(text) else { return false };
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(i, &d)| match (i % 2, d) {
            (0, d) => d,
            (_, d) if d > 4 => 2 * d - 9,
            (_, d) => 2 * d,
        })
        .sum();
    !digits.is_empty() && sum.is_multiple_of(10)
}

/// Remainder of a decimal number of any length.
pub(crate) fn modulo(text: &str, modulus: u64) -> Option<u64> {
    digits(text).map(|all| all.iter().fold(0, |r, &d| (r * 10 + u64::from(d)) % modulus))
}

/// ISO/IEC 7064 MOD 97-10 over digits and letters (A = 10), as IBANs use it once rearranged.
pub(crate) fn mod97_is_one(text: impl Iterator<Item = u8>) -> bool {
    let mut remainder = 0u32;
    for b in text {
        remainder = match b {
            b'0'..=b'9' => remainder * 10 + u32::from(b - b'0'),
            b'A'..=b'Z' => remainder * 100 + u32::from(b - b'A') + 10,
            b'a'..=b'z' => remainder * 100 + u32::from(b - b'a') + 10,
            _ => return false,
        } % 97;
    }
    remainder == 1
}

/// Sum of digits times weights; digits beyond the weights do not count.
pub(crate) fn weighted(digits: &[u32], weights: &[u32]) -> u32 {
    digits.iter().zip(weights).map(|(d, w)| d * w).sum()
}

/// ISO/IEC 7064 MOD 11,10 (German tax numbers, Croatian OIB).
pub(crate) fn mod11_10(text: &str) -> bool {
    let Some(digits) = digits(text) else { return false };
    let Some((last, body)) = digits.split_last() else { return false };
    let product = body.iter().fold(10, |p, d| {
        let sum = (p + d) % 10;
        (if sum == 0 { 10 } else { sum }) * 2 % 11
    });
    (11 - product) % 10 == *last
}

/// Verhoeff's dihedral check (Aadhaar).
pub(crate) fn verhoeff(text: &str) -> bool {
    const PERMUTATION: [usize; 10] = [1, 5, 7, 6, 2, 8, 3, 0, 9, 4];
    let Some(digits) = digits(text) else { return false };
    // The dihedral group of ten elements: 0..5 rotations, 5..10 reflections.
    let multiply = |a: usize, b: usize| match (a < 5, b < 5) {
        (true, true) => (a + b) % 5,
        (true, false) => 5 + (a + b - 5) % 5,
        (false, true) => 5 + (a - 5 + 5 - b) % 5,
        (false, false) => (a + 5 - b) % 5,
    };
    let permuted = |digit: u32, times: usize| (0..times % 8).fold(digit as usize, |d, _| PERMUTATION[d]);
    let check = digits.iter().rev().enumerate().fold(0, |c, (i, &d)| multiply(c, permuted(d, i)));
    !digits.is_empty() && check == 0
}

/// A date of the calendar, of any year of four digits.
pub(crate) fn is_date(year: u32, month: u32, day: u32) -> bool {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let last = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=last).contains(&day)
}

/// Two digits of a year could be of this or the last century: a date in one of them is enough.
pub(crate) fn is_short_date(year: u32, month: u32, day: u32) -> bool {
    is_date(1900 + year, month, day) || is_date(2000 + year, month, day)
}

/// The number that two digits make.
pub(crate) fn two(digits: &[u32], at: usize) -> u32 {
    match (digits.get(at), digits.get(at + 1)) {
        (Some(a), Some(b)) => a * 10 + b,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_examples() {
        assert!(luhn("79927398713") && !luhn("79927398710") && !luhn("") && !luhn("12a"));
        assert!(mod97_is_one("WEST12345698765432GB82".bytes()));
        assert!(!mod97_is_one("WEST12345698765432GB28".bytes()));
        assert!(verhoeff("2363") && !verhoeff("2364"));
        assert!(mod11_10("36554266806") && !mod11_10("36554266805"));
        assert_eq!(
            modulo("123456789012345678901234567890", 97),
            Some((123456789012345678901234567890u128 % 97) as u64)
        );
        assert!(
            is_date(2000, 2, 29) && !is_date(1900, 2, 29) && !is_date(2001, 4, 31) && !is_date(2001, 13, 1)
        );
    }

    #[test]
    fn every_single_wrong_digit_is_noticed() {
        for (number, check) in [
            ("4111111111111111", luhn as fn(&str) -> bool),
            ("234123412346", verhoeff),
            ("36554266806", mod11_10),
        ] {
            assert!(check(number), "{number}");
            for i in 0..number.len() {
                for digit in b'0'..=b'9' {
                    let mut wrong = number.as_bytes().to_vec();
                    if wrong[i] != digit {
                        wrong[i] = digit;
                        assert!(!check(std::str::from_utf8(&wrong).unwrap()));
                    }
                }
            }
        }
    }
}
