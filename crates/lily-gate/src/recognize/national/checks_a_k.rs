//! Checks of the schemes of countries A to K, each from its authority's published rule.

use super::Check;
use crate::checks::{digits, is_date, is_short_date, luhn, mod11_10, modulo, two, verhoeff, weighted};

/// The digits, if there are exactly `count`.
pub(super) fn exactly(number: &str, count: usize) -> Option<Vec<u32>> {
    digits(number).filter(|d| d.len() == count)
}

/// Valid if `number` has `count` digits and they satisfy `rule`.
pub(super) fn rule(number: &str, count: usize, rule: impl Fn(&[u32]) -> bool) -> Check {
    Check::valid_if(exactly(number, count).is_some_and(|d| rule(&d)))
}

/// Emirates ID: 784, year of birth, seven digits, Luhn.
pub(super) fn ae_eid(number: &str) -> Check {
    Check::valid_if(number.len() == 15 && number.starts_with("784") && luhn(number))
}

/// Argentina's CUIT and CUIL.
pub(super) fn ar_cuit(number: &str) -> Check {
    rule(number, 11, |d| {
        const KINDS: [u32; 11] = [20, 23, 24, 27, 30, 33, 34, 50, 51, 55, 25];
        let sum = weighted(d, &[5, 4, 3, 2, 7, 6, 5, 4, 3, 2]);
        // Check values of 10 and 11 are written 9 and 0.
        let check = [0, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1][(sum % 11) as usize];
        KINDS.contains(&two(d, 0)) && check == d[10]
    })
}

/// Austrian social insurance: three digits, check digit, date of birth.
pub(super) fn at_svnr(number: &str) -> Check {
    rule(number, 10, |d| {
        let sum = weighted(d, &[3, 7, 9, 0, 5, 8, 4, 2, 1, 6]);
        d[0] != 0 && sum % 11 == d[3]
    })
}

/// Australian tax file number.
pub(super) fn au_tfn(number: &str) -> Check {
    let valid = digits(number).is_some_and(|d| {
        matches!(d.len(), 8 | 9) && weighted(&d, &[1, 4, 3, 7, 5, 8, 6, 9, 10]).is_multiple_of(11)
    });
    Check::valid_if(valid)
}

/// Australian Medicare card, with or without the person's digit.
pub(super) fn au_medicare(number: &str) -> Check {
    let valid = digits(number).is_some_and(|d| {
        matches!(d.len(), 10 | 11)
            && (2..=6).contains(&d[0])
            && weighted(&d, &[1, 3, 7, 9, 1, 3, 7, 9]) % 10 == d[8]
    });
    Check::valid_if(valid)
}

/// Belgian national register: date, counter, 97 minus the rest (a 2 before it for those born since 2000).
pub(super) fn be_nn(number: &str) -> Check {
    rule(number, 11, |d| {
        let check = u64::from(two(d, 9));
        let holds = |n: &str| modulo(n, 97).is_some_and(|m| 97 - m == check);
        let body = &number[..9];
        // Unknown dates have months or days of zero.
        let month = two(d, 2);
        let date = is_short_date(two(d, 0), month, two(d, 4)) || (month == 0 && two(d, 4) <= 31);
        date && (holds(body) || holds(&format!("2{body}")))
    })
}

/// Bulgarian EGN: months carry the century.
pub(super) fn bg_egn(number: &str) -> Check {
    rule(number, 10, |d| {
        let (year, month, day) = (two(d, 0), two(d, 2), two(d, 4));
        let date = match month {
            1..=12 => is_date(1900 + year, month, day),
            21..=32 => is_date(1800 + year, month - 20, day),
            41..=52 => is_date(2000 + year, month - 40, day),
            _ => false,
        };
        date && weighted(d, &[2, 4, 8, 5, 10, 9, 7, 3, 6]) % 11 % 10 == d[9]
    })
}

/// A check digit of the kind Brazil uses: 11 minus the sum, at most 9.
fn br_digit(d: &[u32], weights: &[u32]) -> u32 {
    let check = 11 - weighted(d, weights) % 11;
    if check > 9 { 0 } else { check }
}

/// Brazilian CPF (persons).
pub(super) fn br_cpf(number: &str) -> Check {
    rule(number, 11, |d| {
        d.iter().any(|x| *x != d[0])
            && br_digit(d, &[10, 9, 8, 7, 6, 5, 4, 3, 2]) == d[9]
            && br_digit(d, &[11, 10, 9, 8, 7, 6, 5, 4, 3, 2]) == d[10]
    })
}

/// Brazilian CNPJ (companies).
pub(super) fn br_cnpj(number: &str) -> Check {
    rule(number, 14, |d| {
        d.iter().any(|x| *x != 0)
            && br_digit(d, &[5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2]) == d[12]
            && br_digit(d, &[6, 5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2]) == d[13]
    })
}

/// Canadian social insurance: Luhn; no number starts with 0 or 8.
pub(super) fn ca_sin(number: &str) -> Check {
    Check::valid_if(number.len() == 9 && !number.starts_with(['0', '8']) && luhn(number))
}

/// Swiss AHV number: EAN-13 that starts with 756.
pub(super) fn ch_ahv(number: &str) -> Check {
    rule(number, 13, |d| {
        let sum = weighted(d, &[1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1]);
        number.starts_with("756") && sum.is_multiple_of(10)
    })
}

/// Chilean RUT: modulus 11 with K for ten.
pub(super) fn cl_rut(number: &str) -> Check {
    let Some((body, check)) = number.split_at_checked(number.len().saturating_sub(1)) else {
        return Check::Invalid;
    };
    let valid = digits(body).is_some_and(|d| {
        let sum: u32 = d.iter().rev().zip([2, 3, 4, 5, 6, 7].iter().cycle()).map(|(d, w)| d * w).sum();
        let expected = match 11 - sum % 11 {
            11 => '0',
            10 => 'K',
            n => char::from_digit(n, 10).unwrap_or('?'),
        };
        matches!(d.len(), 7 | 8) && check.chars().eq([expected])
    });
    Check::valid_if(valid)
}

/// Chinese resident identity card: region, date, ISO 7064 MOD 11-2 (X for ten).
pub(super) fn cn_ric(number: &str) -> Check {
    let Some(body) = number.get(..17).filter(|_| number.len() == 18) else { return Check::Invalid };
    let valid = digits(body).is_some_and(|d| {
        let year = two(&d, 6) * 100 + two(&d, 8);
        let sum = weighted(&d, &[7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2]);
        let expected = b"10X98765432"[(sum % 11) as usize];
        (11..=91).contains(&two(&d, 0))
            && (1850..2100).contains(&year)
            && is_date(year, two(&d, 10), two(&d, 12))
            && number.as_bytes()[17] == expected
    });
    Check::valid_if(valid)
}

/// Colombian NIT.
pub(super) fn co_nit(number: &str) -> Check {
    let valid = digits(number).is_some_and(|d| {
        let Some((check, body)) = d.split_last() else { return false };
        let weights = [3, 7, 13, 17, 19, 23, 29, 37, 41, 43, 47, 53, 59, 67, 71];
        let sum: u32 = body.iter().rev().zip(weights).map(|(d, w)| d * w).sum();
        (8..=16).contains(&d.len()) && [0, 1, 9, 8, 7, 6, 5, 4, 3, 2, 1][(sum % 11) as usize] == *check
    });
    Check::valid_if(valid)
}

/// Czech and Slovak birth number: date (month + 50 for women, + 20 when a day ran out of numbers), modulus 11.
pub(super) fn cz_rc(number: &str) -> Check {
    let Some(d) = digits(number) else { return Check::Invalid };
    let mut month = two(&d, 2);
    if month > 50 {
        month -= 50;
    }
    if month > 20 {
        month -= 20;
    }
    let date = |year| is_date(year, month, two(&d, 4));
    match d.len() {
        // Nine digits until 1953, without a check.
        9 => Check::possible_if(two(&d, 0) <= 53 && date(1900 + two(&d, 0))),
        10 => {
            let first = modulo(&number[..9], 11).unwrap_or(0) % 10;
            Check::valid_if((date(1900 + two(&d, 0)) || date(2000 + two(&d, 0))) && first == u64::from(d[9]))
        }
        _ => Check::Invalid,
    }
}

/// German tax identification: of the first ten digits one occurs twice or three times; ISO 7064 MOD 11,10.
pub(super) fn de_idnr(number: &str) -> Check {
    rule(number, 11, |d| {
        let mut counts = [0; 10];
        d[..10].iter().for_each(|x| counts[*x as usize] += 1);
        let repeated: Vec<_> = counts.iter().filter(|c| **c > 1).collect();
        d[0] != 0 && matches!(repeated[..], [2 | 3]) && mod11_10(number)
    })
}

/// German social insurance: area, date, letter of the birth name, serial, check digit.
pub(super) fn de_svnr(number: &str) -> Check {
    let bytes = number.as_bytes();
    if bytes.len() != 12 || !bytes[8].is_ascii_uppercase() {
        return Check::Invalid;
    }
    let letter = u32::from(bytes[8] - b'A') + 1;
    let expanded = format!("{}{:02}{}", &number[..8], letter, &number[9..]);
    let valid = exactly(&expanded, 13).is_some_and(|d| {
        let weights = [2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1];
        let sum: u32 = d.iter().zip(weights).map(|(d, w)| d * w).map(|p| p / 10 + p % 10).sum();
        (1..=12).contains(&(two(&d, 4) % 20)) && (1..=31).contains(&(two(&d, 2) % 50)) && sum % 10 == d[12]
    });
    Check::valid_if(valid)
}

/// Danish CPR: since 2007 without a check digit, so the date is all.
pub(super) fn dk_cpr(number: &str) -> Check {
    Check::possible_if(exactly(number, 10).is_some_and(|d| is_short_date(two(&d, 4), two(&d, 2), two(&d, 0))))
}

/// Dominican identity card: Luhn.
pub(super) fn do_cedula(number: &str) -> Check {
    Check::valid_if(number.len() == 11 && luhn(number))
}

/// Ecuadorian identity card: province, Luhn-like digit.
pub(super) fn ec_ci(number: &str) -> Check {
    rule(number, 10, |d| {
        ((1..=24).contains(&two(d, 0)) || matches!(two(d, 0), 30 | 50)) && d[2] <= 6 && luhn(number)
    })
}

/// Estonian and Lithuanian personal code: century and sex, date, serial, check digit in two rounds.
pub(super) fn ee_ik(number: &str) -> Check {
    rule(number, 11, |d| {
        let century = match d[0] {
            1 | 2 => 1800,
            3 | 4 => 1900,
            5 | 6 => 2000,
            7 | 8 => 2100,
            _ => return false,
        };
        let first = weighted(d, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 1]) % 11;
        let second = weighted(d, &[3, 4, 5, 6, 7, 8, 9, 1, 2, 3]) % 11;
        let check = if first < 10 { first } else { second % 10 };
        is_date(century + two(d, 1), two(d, 3), two(d, 5)) && check == d[10]
    })
}

/// Egyptian national number: century, date, governorate.
pub(super) fn eg_nid(number: &str) -> Check {
    let possible = exactly(number, 14).is_some_and(|d| {
        let century = match d[0] {
            2 => 1900,
            3 => 2000,
            _ => return false,
        };
        is_date(century + two(&d, 1), two(&d, 3), two(&d, 5))
    });
    Check::possible_if(possible)
}

/// The letter that Spain puts after a number.
fn es_letter(number: u64) -> u8 {
    b"TRWAGMYFPDXBNJZSQVHLCKE"[(number % 23) as usize]
}

/// Spanish DNI: eight digits and their letter.
pub(super) fn es_dni(number: &str) -> Check {
    let valid = number.len() == 9
        && number.get(..8).and_then(|n| modulo(n, 23)).is_some_and(|n| es_letter(n) == number.as_bytes()[8]);
    Check::valid_if(valid)
}

/// Spanish NIE: X, Y or Z stand for 0, 1, 2.
pub(super) fn es_nie(number: &str) -> Check {
    let first = match number.as_bytes().first() {
        Some(b'X') => '0',
        Some(b'Y') => '1',
        Some(b'Z') => '2',
        _ => return Check::Invalid,
    };
    number.get(1..).map_or(Check::Invalid, |rest| es_dni(&format!("{first}{rest}")))
}

/// Finnish personal code: date, century sign (in the text, not here), serial, character by modulus 31.
pub(super) fn fi_hetu(number: &str) -> Check {
    // A letter as the century sign is part of the compact form: drop it.
    let stripped = match number.len() {
        11 => format!("{}{}", number.get(..6).unwrap_or_default(), number.get(7..).unwrap_or_default()),
        _ => number.to_owned(),
    };
    let Some(body) = stripped.get(..9).filter(|_| stripped.len() == 10) else { return Check::Invalid };
    let valid = digits(body).is_some_and(|d| {
        let alphabet = b"0123456789ABCDEFHJKLMNPRSTUVWXY";
        is_short_date(two(&d, 4), two(&d, 2), two(&d, 0))
            && modulo(body, 31).is_some_and(|m| alphabet[m as usize] == stripped.as_bytes()[9])
    });
    Check::valid_if(valid)
}

/// French social security: sex, year, month, place (2A and 2B for Corsica), serial, key of modulus 97.
pub(super) fn fr_nir(number: &str) -> Check {
    let Some(body) = number.get(..13).filter(|_| number.len() == 15) else { return Check::Invalid };
    let body = body.replacen("2A", "19", 1).replacen("2B", "18", 1);
    let valid = digits(&body).zip(digits(&number[13..])).is_some_and(|(d, key)| {
        let month = two(&d, 3);
        matches!(d[0], 1..=4 | 7 | 8)
            && (matches!(month, 1..=12 | 20 | 30..=42) || month >= 50)
            && modulo(&body, 97).is_some_and(|m| 97 - m == u64::from(two(&key, 0)))
    });
    Check::valid_if(valid)
}

/// French tax number: the last three digits are the first ten modulo 511.
pub(super) fn fr_nif(number: &str) -> Check {
    rule(number, 13, |d| {
        d[0] <= 3
            && modulo(&number[..10], 511)
                .zip(number[10..].parse().ok())
                .is_some_and(|(m, k): (u64, u64)| m == k)
    })
}

/// NHS number: modulus 11.
pub(super) fn gb_nhs(number: &str) -> Check {
    rule(number, 10, |d| {
        weighted(d, &[10, 9, 8, 7, 6, 5, 4, 3, 2, 1]).is_multiple_of(11) && number != "0000000000"
    })
}

/// National insurance number: letters that HMRC gives out.
pub(super) fn gb_nino(number: &str) -> Check {
    let bytes = number.as_bytes();
    let possible = bytes.len() == 9
        && bytes[..2].iter().all(|b| b.is_ascii_uppercase() && !b"DFIQUV".contains(b))
        && bytes[1] != b'O'
        && ![&b"BG"[..], b"GB", b"NK", b"KN", b"TN", b"NT", b"ZZ"].contains(&&bytes[..2])
        && bytes[2..8].iter().all(u8::is_ascii_digit)
        && (b'A'..=b'D').contains(&bytes[8]);
    Check::possible_if(possible)
}

/// UK unique taxpayer reference.
pub(super) fn gb_utr(number: &str) -> Check {
    rule(number, 10, |d| {
        let sum = weighted(&d[1..], &[6, 7, 8, 9, 10, 5, 4, 3, 2]);
        b"21987654321"[(sum % 11) as usize] == number.as_bytes()[0]
    })
}

/// Greek AMKA: date and Luhn.
pub(super) fn gr_amka(number: &str) -> Check {
    rule(number, 11, |d| is_short_date(two(d, 4), two(d, 2), two(d, 0)) && luhn(number))
}

/// Greek tax number.
pub(super) fn gr_afm(number: &str) -> Check {
    rule(number, 9, |d| {
        let sum: u32 = d[..8].iter().fold(0, |s, x| s * 2 + x) * 2;
        sum % 11 % 10 == d[8] && sum != 0
    })
}

/// Hong Kong identity card: one or two letters, six digits, a check character.
pub(super) fn hk_hkid(number: &str) -> Check {
    let bytes = number.as_bytes();
    let padded = match bytes.len() {
        8 => format!(" {number}"),
        9 => number.to_owned(),
        _ => return Check::Invalid,
    };
    let value = |b: u8| match b {
        b' ' => 36,
        b'A'..=b'Z' => u32::from(b - b'A') + 10,
        b => u32::from(b.wrapping_sub(b'0')),
    };
    let bytes = padded.as_bytes();
    let shaped = bytes[1].is_ascii_uppercase() && bytes[2..8].iter().all(u8::is_ascii_digit);
    let sum: u32 = bytes.iter().zip([9, 8, 7, 6, 5, 4, 3, 2, 1]).map(|(b, w)| value(*b) * w).sum();
    Check::valid_if(shaped && sum.is_multiple_of(11))
}

/// Croatian OIB.
pub(super) fn hr_oib(number: &str) -> Check {
    Check::valid_if(number.len() == 11 && mod11_10(number))
}

/// Hungarian social insurance (TAJ).
pub(super) fn hu_taj(number: &str) -> Check {
    rule(number, 9, |d| weighted(d, &[3, 7, 3, 7, 3, 7, 3, 7]) % 10 == d[8])
}

/// Indonesian NIK: province, date (day + 40 for women).
pub(super) fn id_nik(number: &str) -> Check {
    let possible = exactly(number, 16).is_some_and(|d| {
        (11..=94).contains(&two(&d, 0)) && is_short_date(two(&d, 10), two(&d, 8), two(&d, 6) % 40)
    });
    Check::possible_if(possible)
}

/// Irish PPS number: seven digits and a letter of modulus 23, since 2013 with a second letter.
pub(super) fn ie_pps(number: &str) -> Check {
    let Some(body) = number.get(..7) else { return Check::Invalid };
    let letters = &number.as_bytes()[7..];
    let valid = digits(body).is_some_and(|d| {
        let mut sum = weighted(&d, &[8, 7, 6, 5, 4, 3, 2]);
        match letters {
            [_] | [_, b'W' | b'T' | b'X'] => {}
            [_, second] if second.is_ascii_uppercase() => sum += 9 * u32::from(second - b'A' + 1),
            _ => return false,
        }
        b"WABCDEFGHIJKLMNOPQRSTUV"[(sum % 23) as usize] == letters[0]
    });
    Check::valid_if(valid)
}

/// Israeli identity number: Luhn over nine digits.
pub(super) fn il_id(number: &str) -> Check {
    Check::valid_if((8..=9).contains(&number.len()) && luhn(number))
}

/// Aadhaar: Verhoeff; it does not start with 0 or 1 and is no palindrome.
pub(super) fn in_aadhaar(number: &str) -> Check {
    let palindrome = number.bytes().rev().eq(number.bytes());
    Check::valid_if(number.len() == 12 && !number.starts_with(['0', '1']) && !palindrome && verhoeff(number))
}

/// Indian PAN: the fourth letter says who holds it.
pub(super) fn in_pan(number: &str) -> Check {
    let bytes = number.as_bytes();
    let possible = bytes.len() == 10
        && bytes[..5].iter().all(u8::is_ascii_uppercase)
        && b"ABCFGHJKLPT".contains(&bytes[3])
        && bytes[5..9].iter().all(u8::is_ascii_digit)
        && &bytes[5..9] != b"0000"
        && bytes[9].is_ascii_uppercase();
    Check::possible_if(possible)
}

/// Icelandic kennitala: date and a digit of modulus 11.
pub(super) fn is_kennitala(number: &str) -> Check {
    rule(number, 10, |d| {
        // Companies add 40 to the day.
        let day = two(d, 0) % 40;
        is_short_date(two(d, 4), two(d, 2), day)
            && matches!(d[9], 0 | 8 | 9)
            && weighted(d, &[3, 2, 7, 6, 5, 4, 3, 2, 1]).is_multiple_of(11)
    })
}

/// Italian codice fiscale: names, date, place, check letter.
pub(super) fn it_cf(number: &str) -> Check {
    const ODD: [u32; 26] =
        [1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23];
    let bytes = number.as_bytes();
    if bytes.len() != 16 || !bytes.iter().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase()) {
        return Check::Invalid;
    }
    let index = |b: u8| if b.is_ascii_digit() { usize::from(b - b'0') } else { usize::from(b - b'A') };
    let sum: u32 = bytes[..15]
        .iter()
        .enumerate()
        .map(|(i, b)| if i % 2 == 0 { ODD[index(*b)] } else { index(*b) as u32 })
        .sum();
    let day = digits(&number[9..11]).map_or(0, |d| two(&d, 0)) % 40;
    let valid = b"ABCDEHLMPRST".contains(&bytes[8])
        && (1..=31).contains(&day)
        && bytes[15] == b'A' + (sum % 26) as u8;
    Check::valid_if(valid)
}

/// Japanese individual number.
pub(super) fn jp_mynumber(number: &str) -> Check {
    rule(number, 12, |d| {
        let rest = weighted(d, &[6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2]) % 11;
        d[11] == if rest <= 1 { 0 } else { 11 - rest }
    })
}

/// Korean resident registration number. Those given out since October 2020 have no check digit.
pub(super) fn kr_rrn(number: &str) -> Check {
    let Some(d) = exactly(number, 13) else { return Check::Invalid };
    let century = match d[6] {
        1 | 2 | 5 | 6 => 1900,
        3 | 4 | 7 | 8 => 2000,
        _ => 1800,
    };
    if !is_date(century + two(&d, 0), two(&d, 2), two(&d, 4)) {
        return Check::Invalid;
    }
    let sum = weighted(&d, &[2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5]);
    if (11 - sum % 11) % 10 == d[12] { Check::Valid } else { Check::Possible }
}

/// Kazakh IIN: date, century and sex, check digit in two rounds.
pub(super) fn kz_iin(number: &str) -> Check {
    rule(number, 12, |d| {
        let first = weighted(d, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]) % 11;
        let second = weighted(d, &[3, 4, 5, 6, 7, 8, 9, 10, 11, 1, 2]) % 11;
        let check = if first < 10 { first } else { second };
        is_short_date(two(d, 0), two(d, 2), two(d, 4)) && check == d[11]
    })
}
