//! Checks of the schemes of countries L to Z, each from its authority's published rule.

use super::{
    Check,
    checks_a_k::{exactly, rule},
};
use crate::checks::{digits, is_date, is_short_date, luhn, modulo, two, weighted};

/// Sri Lankan identity card of the old kind: year, day of the year, serial, V or X.
pub(super) fn lk_nic(number: &str) -> Check {
    let possible = number.get(..9).and_then(digits).is_some_and(|d| {
        let day = (d[2] * 100 + two(&d, 3)) % 500;
        number.len() == 10 && matches!(number.as_bytes()[9], b'V' | b'X') && (1..=366).contains(&day)
    });
    Check::possible_if(possible)
}

/// Latvian personal code: date and check digit; since 2017 it starts with 32 and has neither.
pub(super) fn lv_pk(number: &str) -> Check {
    let Some(d) = exactly(number, 11) else { return Check::Invalid };
    if two(&d, 0) == 32 {
        return Check::Possible;
    }
    let check = (1 + weighted(&d, &[10, 5, 8, 4, 2, 1, 6, 3, 7, 9])) % 11 % 10;
    Check::valid_if(is_short_date(two(&d, 4), two(&d, 2), two(&d, 0)) && check == d[10])
}

/// Mexican CURP: names, date, sex, state, consonants, homonym digit, check digit.
pub(super) fn mx_curp(number: &str) -> Check {
    let bytes = number.as_bytes();
    let shaped = bytes.len() == 18
        && bytes[..4].iter().chain(&bytes[10..16]).all(u8::is_ascii_uppercase)
        && bytes[4..10].iter().all(u8::is_ascii_digit)
        && bytes[17].is_ascii_digit()
        && matches!(bytes[10], b'H' | b'M');
    if !shaped {
        return Check::Invalid;
    }
    // The alphabet has Ñ between N and O, so letters from O on count one more.
    let value = |b: u8| match b {
        b'0'..=b'9' => u32::from(b - b'0'),
        b'A'..=b'N' => u32::from(b - b'A') + 10,
        _ => u32::from(b.saturating_sub(b'A')) + 11,
    };
    let sum: u32 = bytes[..17].iter().zip((2..=18).rev()).map(|(b, w)| value(*b) * w).sum();
    let date = digits(&number[4..10]).is_some_and(|d| is_short_date(two(&d, 0), two(&d, 2), two(&d, 4)));
    Check::valid_if(date && (10 - sum % 10) % 10 == u32::from(bytes[17] - b'0'))
}

/// Mexican RFC: letters, date, three characters, the last a check.
pub(super) fn mx_rfc(number: &str) -> Check {
    let letters = match number.len() {
        12 => 3,
        13 => 4,
        _ => return Check::Invalid,
    };
    let bytes = number.as_bytes();
    if !bytes[..letters].iter().all(u8::is_ascii_uppercase) {
        return Check::Invalid;
    }
    let date = number
        .get(letters..letters + 6)
        .and_then(digits)
        .is_some_and(|d| is_short_date(two(&d, 0), two(&d, 2), two(&d, 4)));
    if !date {
        return Check::Invalid;
    }
    // Alphabet of the tax office: digits, A-N, &, O-Z, blank, Ñ.
    const ALPHABET: &[u8] = b"0123456789ABCDEFGHIJKLMN&OPQRSTUVWXYZ ";
    let padded = format!("{:>12}", &number[..number.len() - 1]);
    let value = |b: u8| ALPHABET.iter().position(|a| *a == b).unwrap_or(0) as u32;
    let sum: u32 = padded.bytes().zip((2..=13).rev()).map(|(b, w)| value(b) * w).sum();
    let expected = ALPHABET[((11 - sum % 11) % 11) as usize];
    if bytes[bytes.len() - 1] == expected { Check::Valid } else { Check::Possible }
}

/// Malaysian identity card: date and place of birth.
pub(super) fn my_nric(number: &str) -> Check {
    let possible = exactly(number, 12).is_some_and(|d| {
        let place = two(&d, 6);
        is_short_date(two(&d, 0), two(&d, 2), two(&d, 4))
            && place != 0
            && !matches!(place, 17..=20 | 69 | 70 | 73 | 80 | 81 | 94..=97)
    });
    Check::possible_if(possible)
}

/// Eleven digits that Nigeria gives without a rule.
pub(super) fn ng_nin(number: &str) -> Check {
    Check::possible_if(exactly(number, 11).is_some_and(|d| d[0] != 0))
}

/// Dutch BSN: the elevens test with -1 for the last digit.
pub(super) fn nl_bsn(number: &str) -> Check {
    rule(number, 9, |d| {
        let sum = weighted(d, &[9, 8, 7, 6, 5, 4, 3, 2]);
        sum % 11 == d[8] && sum != 0
    })
}

/// Norwegian birth number and D-number: date and two check digits.
pub(super) fn no_fnr(number: &str) -> Check {
    rule(number, 11, |d| {
        // D-numbers add 40 to the day, others to the month.
        let (day, month) = (two(d, 0) % 40, two(d, 2) % 40);
        let first = (11 - weighted(d, &[3, 7, 6, 1, 8, 9, 4, 5, 2]) % 11) % 11;
        let second = (11 - weighted(d, &[5, 4, 3, 2, 7, 6, 5, 4, 3, 2]) % 11) % 11;
        is_short_date(two(d, 4), month, day) && first == d[9] && second == d[10]
    })
}

/// New Zealand's tax number.
pub(super) fn nz_ird(number: &str) -> Check {
    let padded = format!("{number:0>9}");
    rule(&padded, 9, |d| {
        let check = |weights| (11 - weighted(&d[..8], weights) % 11) % 11;
        let first = check(&[3, 2, 7, 6, 5, 4, 3, 2]);
        let expected = if first == 10 { check(&[7, 4, 3, 2, 5, 2, 7, 6]) } else { first };
        let value = number.parse().unwrap_or(0u32);
        (10_000_001..150_000_000).contains(&value) && expected == d[8]
    })
}

/// Peruvian RUC.
pub(super) fn pe_ruc(number: &str) -> Check {
    rule(number, 11, |d| {
        let check = (11 - weighted(d, &[5, 4, 3, 2, 7, 6, 5, 4, 3, 2]) % 11) % 10;
        matches!(two(d, 0), 10 | 15 | 16 | 17 | 20) && check == d[10]
    })
}

/// Pakistani CNIC: province first; the last digit is the sex.
pub(super) fn pk_cnic(number: &str) -> Check {
    Check::possible_if(exactly(number, 13).is_some_and(|d| (1..=7).contains(&d[0]) && d[12] != 0))
}

/// Polish NIP (tax).
pub(super) fn pl_nip(number: &str) -> Check {
    rule(number, 10, |d| weighted(d, &[6, 5, 7, 2, 3, 4, 5, 6, 7]) % 11 == d[9])
}

/// Polish PESEL: months carry the century.
pub(super) fn pl_pesel(number: &str) -> Check {
    rule(number, 11, |d| {
        let (year, month) = match two(d, 2) {
            m @ 1..=12 => (1900, m),
            m @ 21..=32 => (2000, m - 20),
            m @ 41..=52 => (2100, m - 40),
            m @ 61..=72 => (2200, m - 60),
            m @ 81..=92 => (1800, m - 80),
            _ => return false,
        };
        is_date(year + two(d, 0), month, two(d, 4))
            && (10 - weighted(d, &[1, 3, 7, 9, 1, 3, 7, 9, 1, 3]) % 10) % 10 == d[10]
    })
}

/// Portuguese tax number.
pub(super) fn pt_nif(number: &str) -> Check {
    rule(number, 9, |d| {
        let check = (11 - weighted(d, &[9, 8, 7, 6, 5, 4, 3, 2]) % 11) % 11 % 10;
        d[0] != 0 && check == d[8]
    })
}

/// Portuguese citizen card: nine digits, two characters of the version, check digit (Luhn over base 36).
pub(super) fn pt_cc(number: &str) -> Check {
    let bytes = number.as_bytes();
    let shaped = bytes.len() == 12
        && bytes[..9].iter().all(u8::is_ascii_digit)
        && bytes[9..11].iter().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
        && bytes[11].is_ascii_digit();
    let value = |b: u8| (b as char).to_digit(36).unwrap_or(0);
    let sum: u32 = bytes
        .iter()
        .rev()
        .enumerate()
        .map(|(i, b)| match (i % 2, value(*b)) {
            (0, v) => v,
            (_, v) if 2 * v > 9 => 2 * v - 9,
            (_, v) => 2 * v,
        })
        .sum();
    Check::valid_if(shaped && sum.is_multiple_of(10))
}

/// Romanian CNP: sex and century, date, county, serial, check digit.
pub(super) fn ro_cnp(number: &str) -> Check {
    rule(number, 13, |d| {
        let century = match d[0] {
            3 | 4 => 1800,
            5 | 6 => 2000,
            1 | 2 | 7..=9 => 1900,
            _ => return false,
        };
        let rest = weighted(d, &[2, 7, 9, 1, 4, 6, 3, 5, 8, 2, 7, 9]) % 11;
        let check = if rest == 10 { 1 } else { rest };
        let county = two(d, 7);
        is_date(century + two(d, 1), two(d, 3), two(d, 5))
            && matches!(county, 1..=48 | 51 | 52 | 70 | 80..=83)
            && check == d[12]
    })
}

/// Number of the former Yugoslavia (JMBG, EMŠO): date with three digits of the year, region, serial, check digit.
pub(super) fn rs_jmbg(number: &str) -> Check {
    rule(number, 13, |d| {
        let short = d[4] * 100 + two(d, 5);
        let year = if short < 800 { 2000 + short } else { 1000 + short };
        let rest = weighted(d, &[7, 6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2]) % 11;
        let check = (11 - rest) % 11;
        is_date(year, two(d, 2), two(d, 0)) && check % 10 == d[12]
    })
}

/// Russian INN of persons (12 digits, two check digits) and companies (10, one).
pub(super) fn ru_inn(number: &str) -> Check {
    let check = |d: &[u32], weights: &[u32]| weighted(d, weights) % 11 % 10;
    let valid = digits(number).is_some_and(|d| match d.len() {
        10 => check(&d, &[2, 4, 10, 3, 5, 9, 4, 6, 8]) == d[9],
        12 => {
            check(&d, &[7, 2, 4, 10, 3, 5, 9, 4, 6, 8]) == d[10]
                && check(&d, &[3, 7, 2, 4, 10, 3, 5, 9, 4, 6, 8]) == d[11]
        }
        _ => false,
    });
    Check::valid_if(valid && number.bytes().any(|b| b != b'0'))
}

/// Russian internal passport: series and number, no rule.
pub(super) fn ru_passport(number: &str) -> Check {
    Check::possible_if(exactly(number, 10).is_some_and(|d| two(&d, 0) != 0))
}

/// Russian SNILS: nine digits and their weighted sum modulo 101.
pub(super) fn ru_snils(number: &str) -> Check {
    rule(number, 11, |d| {
        let sum = weighted(d, &[9, 8, 7, 6, 5, 4, 3, 2, 1]);
        sum % 101 % 100 == two(d, 9) && sum != 0
    })
}

/// Saudi identity number: 1 for citizens, 2 for residents, Luhn.
pub(super) fn sa_id(number: &str) -> Check {
    Check::valid_if(number.len() == 10 && number.starts_with(['1', '2']) && luhn(number))
}

/// Swedish personal number: date (day + 60 for co-ordination numbers), Luhn over the last ten digits.
pub(super) fn se_pnr(number: &str) -> Check {
    let Some(short) = number.len().checked_sub(10).and_then(|at| number.get(at..)) else {
        return Check::Invalid;
    };
    rule(short, 10, |d| {
        let century = matches!(number.get(..number.len() - 10), Some("" | "18" | "19" | "20"));
        century && is_short_date(two(d, 0), two(d, 2), two(d, 4) % 60) && luhn(short)
    })
}

/// Singapore's NRIC and FIN: letter, seven digits, check letter.
pub(super) fn sg_nric(number: &str) -> Check {
    let bytes = number.as_bytes();
    let Some(d) = number.get(1..8).and_then(digits).filter(|_| bytes.len() == 9) else {
        return Check::Invalid;
    };
    let sum = weighted(&d, &[2, 7, 6, 5, 4, 3, 2]);
    let (offset, letters): (u32, &[u8; 11]) = match bytes[0] {
        b'S' => (0, b"JZIHGFEDCBA"),
        b'T' => (4, b"JZIHGFEDCBA"),
        b'F' => (0, b"XWUTRQPNMLK"),
        b'G' => (4, b"XWUTRQPNMLK"),
        b'M' => (3, b"XWUTRQPNJLK"),
        _ => return Check::Invalid,
    };
    Check::valid_if(letters[((sum + offset) % 11) as usize] == bytes[8])
}

/// Thai identity number.
pub(super) fn th_pin(number: &str) -> Check {
    rule(number, 13, |d| {
        let sum = weighted(d, &[13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2]);
        !matches!(d[0], 0 | 9) && (11 - sum % 11) % 10 == d[12]
    })
}

/// Turkish identity number: two check digits.
pub(super) fn tr_tckn(number: &str) -> Check {
    rule(number, 11, |d| {
        let odd: u32 = d[..9].iter().step_by(2).sum();
        let even: u32 = d[1..8].iter().step_by(2).sum();
        let first = (odd * 7 + 90 - even) % 10;
        d[0] != 0 && first == d[9] && d[..10].iter().sum::<u32>() % 10 == d[10]
    })
}

/// Taiwanese identity number: letter of the place, sex, serial, check digit.
pub(super) fn tw_id(number: &str) -> Check {
    const PLACES: &[u8; 26] = b"ABCDEFGHJKLMNPQRSTUVXYWZIO";
    let bytes = number.as_bytes();
    let Some(d) = number.get(1..).and_then(|n| exactly(n, 9)) else { return Check::Invalid };
    let Some(place) = PLACES.iter().position(|p| *p == bytes[0]) else { return Check::Invalid };
    let place = place as u32 + 10;
    let sum = place / 10 + place % 10 * 9 + weighted(&d, &[8, 7, 6, 5, 4, 3, 2, 1, 1]);
    Check::valid_if(matches!(d[0], 1 | 2 | 8 | 9) && sum.is_multiple_of(10))
}

/// Ukrainian tax number of persons.
pub(super) fn ua_rnokpp(number: &str) -> Check {
    rule(number, 10, |d| {
        // The first weight is -1, which is 10 modulo 11.
        weighted(d, &[10, 5, 7, 9, 4, 6, 10, 5, 7]) % 11 % 10 == d[9]
    })
}

/// US employer number: a prefix that a campus of the tax office uses.
pub(super) fn us_ein(number: &str) -> Check {
    Check::possible_if(exactly(number, 9).is_some_and(
        |d| !matches!(two(&d, 0), 0 | 7..=9 | 17..=19 | 28 | 29 | 49 | 69 | 70 | 78 | 79 | 89 | 96 | 97),
    ))
}

/// US individual taxpayer number: 9, then a group from 50 to 65, 70 to 88, 90 to 92 or 94 to 99.
pub(super) fn us_itin(number: &str) -> Check {
    let possible = exactly(number, 9)
        .is_some_and(|d| d[0] == 9 && matches!(two(&d, 3), 50..=65 | 70..=88 | 90..=92 | 94..=99));
    Check::possible_if(possible)
}

/// US Medicare beneficiary: eleven characters with digits and letters at fixed places (no S, L, O, I, B, Z).
pub(super) fn us_mbi(number: &str) -> Check {
    const PLAN: &[u8; 11] = b"caxnaxnaann";
    let letter = |b: u8| b.is_ascii_uppercase() && !b"SLOIBZ".contains(&b);
    let possible = number.len() == 11
        && number.bytes().zip(PLAN).all(|(b, plan)| match plan {
            b'c' => (b'1'..=b'9').contains(&b),
            b'n' => b.is_ascii_digit(),
            b'a' => letter(b),
            _ => letter(b) || b.is_ascii_digit(),
        });
    Check::possible_if(possible)
}

/// US social security: no area 000, 666 or 900 and up, no group 00, no serial 0000.
pub(super) fn us_ssn(number: &str) -> Check {
    let possible = exactly(number, 9).is_some_and(|d| {
        let area = d[0] * 100 + two(&d, 1);
        !matches!(area, 0 | 666 | 900..) && two(&d, 3) != 0 && two(&d, 5) * 100 + two(&d, 7) != 0
    });
    Check::possible_if(possible)
}

/// Uruguayan identity card.
pub(super) fn uy_ci(number: &str) -> Check {
    rule(number, 8, |d| (10 - weighted(d, &[2, 9, 8, 7, 6, 3, 4]) % 10) % 10 == d[7])
}

/// Venezuelan RIF: a letter with a weight, eight digits, check digit.
pub(super) fn ve_rif(number: &str) -> Check {
    let kind = match number.as_bytes().first() {
        Some(b'V') => 4,
        Some(b'E') => 8,
        Some(b'J') => 12,
        Some(b'P') => 16,
        Some(b'G') => 20,
        _ => return Check::Invalid,
    };
    let valid = number.get(1..).and_then(|n| exactly(n, 9)).is_some_and(|d| {
        let sum = kind + weighted(&d, &[3, 2, 7, 6, 5, 4, 3, 2]);
        [0, 0, 9, 8, 7, 6, 5, 4, 3, 2, 1][(sum % 11) as usize] == d[8]
    });
    Check::valid_if(valid)
}

/// Vietnamese citizen card: province, century and sex.
pub(super) fn vn_cccd(number: &str) -> Check {
    Check::possible_if(exactly(number, 12).is_some_and(|d| d[0] == 0 && d[3] <= 9))
}

/// South African identity number: date, citizenship, Luhn.
pub(super) fn za_id(number: &str) -> Check {
    rule(number, 13, |d| is_short_date(two(d, 0), two(d, 2), two(d, 4)) && d[10] <= 1 && luhn(number))
}

/// CLABE of Mexico is an account, but written beside national numbers: three weights in turn.
pub(super) fn mx_clabe(number: &str) -> Check {
    rule(number, 18, |d| {
        let sum: u32 = d[..17].iter().zip([3, 7, 1].iter().cycle()).map(|(d, w)| d * w % 10).sum();
        (10 - sum % 10) % 10 == d[17] && modulo(number, 1_000_000_007).is_some_and(|m| m != 0)
    })
}
