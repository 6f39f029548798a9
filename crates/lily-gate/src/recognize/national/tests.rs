use std::sync::LazyLock;

use super::*;
use crate::testing::spans;

fn found(text: &str) -> Vec<(String, Evidence, String)> {
    static ALL: LazyLock<National> = LazyLock::new(|| National::new(&[]));
    spans(text, |s, h| ALL.scan(s, h))
        .into_iter()
        .map(|s| (text[s.range].to_owned(), s.evidence, s.subtype.unwrap().into_owned()))
        .collect()
}

/// Published or computed examples that hold.
const EXAMPLES: &[(&str, &str)] = &[
    ("ar_cuit", "20-05536168-2"),
    ("be_nn", "85.07.30-033.28"),
    ("br_cnpj", "16.727.230/0001-97"),
    ("br_cpf", "390.533.447-05"),
    ("ca_sin", "123-456-782"),
    ("ch_ahv", "756.9217.0769.85"),
    ("cl_rut", "12.531.909-2"),
    ("cn_ric", "360426199101010071"),
    ("cz_rc", "710319/2745"),
    ("de_idnr", "36 574 261 809"),
    ("de_svnr", "65170839J003"),
    ("es_dni", "54362315K"),
    ("es_nie", "X2482300W"),
    ("fi_hetu", "131052-308T"),
    ("fr_nir", "2 95 10 99 126 111 93"),
    ("hk_hkid", "A123456(3)"),
    ("in_pan", "ACUPA7085R"),
    ("it_cf", "RCCMNL83S18D969H"),
    ("kr_rrn", "971013-9019902"),
    ("my_nric", "770305-02-1234"),
    ("no_fnr", "151086 95088"),
    ("pk_cnic", "54302-1234567-1"),
    ("pl_nip", "856-734-62-15"),
    ("ru_snils", "112-233-445 95"),
    ("se_pnr", "880320-0016"),
    ("sg_nric", "S1234567D"),
    ("th_pin", "1-2345-45678-78-1"),
    ("us_itin", "912-90-3456"),
    ("us_ssn", "536-90-4399"),
    ("uy_ci", "1.234.567-2"),
];

#[test]
fn examples_are_found_without_a_cue() {
    for (scheme, number) in EXAMPLES {
        let compact: String = number.chars().filter(char::is_ascii_alphanumeric).collect();
        let verdict = check(scheme, &compact);
        if verdict == Some(Check::Invalid) {
            panic!("{scheme} {number}: check says {verdict:?}");
        }
        let text = format!("It is {number}, I think.");
        let hits = found(&text);
        assert_eq!(hits.first().map(|h| h.0.as_str()), Some(*number), "{scheme}: {hits:?}");
    }
}

#[test]
fn weak_numbers_need_a_cue() {
    for number in ["111222333", "12345678911", "046454286", "9434765919", "1234567890"] {
        assert!(found(&format!("We counted {number} of them.")).is_empty(), "{number}: {:?}", found(number));
    }
    assert_eq!(found("BSN: 111222333")[0].1, Evidence::Validated);
    assert_eq!(found("My SSN is 536904399.")[0].0, "536904399");
    assert_eq!(found("ssn=536904399")[0].1, Evidence::Cue);
    assert_eq!(found("NHS number 943 476 5919")[0].1, Evidence::Validated);
    assert_eq!(found("SIN 123 456 782")[0].1, Evidence::Validated);
    assert_eq!(found("Aadhaar 2341 2341 2346")[0].1, Evidence::Validated);
    assert_eq!(found("PESEL 44051401359")[0].1, Evidence::Validated);
}

#[test]
fn parts_of_longer_numbers_are_none() {
    for text in ["x-536-90-4399", "536-90-4399-1", "1.536-90-4399", "v756.9217.0769.85.1"] {
        let hits = found(text);
        assert!(hits.is_empty(), "{text}: {hits:?}");
    }
}

#[test]
fn documents_by_cue() {
    assert_eq!(found("passport number: 533380006")[0].2, "passport");
    assert_eq!(found("Passport No. C01X00T47")[0].0, "C01X00T47");
    assert_eq!(found("driver's license D123-4567-8901")[0].0, "D123-4567-8901");
    assert!(found("passport to happiness in 1999").is_empty());
}

#[test]
fn checks_take_any_text() {
    for id in ids() {
        for text in
            ["", "1", "é", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "000000000", "12345678é01", "999999999999999999"]
        {
            check(id, text);
        }
    }
}

#[test]
fn schemes_are_told_apart_by_country() {
    let only = National::new(&["de".to_owned()]);
    let hits = spans("536-90-4399 and 36 574 261 809", |s, h| only.scan(s, h));
    assert_eq!(hits.len(), 1);
    assert_eq!(hits[0].subtype.as_deref(), Some("de_idnr"));
}
