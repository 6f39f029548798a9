use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn vault() -> Vault {
    Vault::new("k7qp".into(), Style::Unicode)
}

#[test]
fn one_value_has_one_stand_in_and_two_have_two() {
    let mut vault = vault();
    let ann = vault.token("PERSON", "Ann Lee", true).name;
    assert_eq!(ann, "PERSON_1");
    assert_eq!(vault.token("PERSON", "Bob Ray", true).name, "PERSON_2");
    assert_eq!(vault.token("PERSON", "Ann Lee", true).name, ann);
    assert_eq!(vault.token("EMAIL", "ann@x.example", true).name, "EMAIL_1");
    // The same in another spelling, each restored to itself.
    let loud = vault.token("PERSON", "ANN  LEE", true);
    assert_eq!(loud.name, "PERSON_1.2");
    assert_eq!(loud.value.unwrap().as_str(), "ANN  LEE");
    assert_eq!(vault.token("PHONE", "555-010-2345", true).name, "PHONE_1");
    assert_eq!(vault.token("PHONE", "555 010 2345", true).name, "PHONE_1.2");
    assert_eq!(vault.part(0, true).unwrap().name, "PERSON_1.first");
    assert_eq!(vault.part(0, false).unwrap().value.unwrap().as_str(), "Lee");
    assert_eq!(vault.render(&ann), "⟦PERSON_1·k7qp⟧");
    assert_eq!(Vault::new("k7qp".into(), Style::Ascii).render(&ann), "[[PERSON_1_k7qp]]");
}

#[test]
fn stripped_values_are_not_kept() {
    let mut vault = vault();
    let kept = vault.token("SECRET", "hunter2hunter2", true);
    assert!(kept.value.is_some());
    let gone = vault.token("SECRET", "hunter2hunter2", false);
    assert_eq!((gone.name.as_str(), gone.value.is_none()), ("SECRET_1", true));
    assert_eq!(vault.known("hunter2hunter2"), Some(false));
    assert!(vault.entries.iter().all(|e| e.spellings.is_empty()), "what was kept is gone");
    assert!(vault.token("SECRET", "hunter2hunter2", true).value.is_none(), "and stays gone");
    assert!(vault.needles().is_empty());
    assert!(vault.is_stripped_token("⟦SECRET_1·k7qp⟧") && !vault.is_stripped_token("⟦SECRET_2·k7qp⟧"));
    assert!(!format!("{vault:?}").contains("hunter2"));
}

fn swept(value: &str, text: &str) -> Vec<String> {
    let sweeper = Sweeper::new(vec![Needle::value(value, "VALUE", true)]).unwrap();
    let mut hits: Vec<_> = sweeper.hits(text).into_iter().map(|h| text[h.start..h.end].to_owned()).collect();
    hits.sort();
    hits
}

#[test]
fn the_sweep_finds_other_spellings() {
    for (value, text, found) in [
        ("Ann Lee", "ann lee, ANN\u{a0} LEE and A\u{200b}nn Lee", 3),
        ("Müller-Straße", "mu\u{308}ller-straße, MULLER-STRASSE", 1),
        ("555-010-2345", "call 555 010 2345 or (555) 010.2345 or 5550102345", 3),
        ("4111111111111111", "4111-1111-1111-1111", 1),
        ("ann@x.example", "<ANN@X.EXAMPLE>", 1),
        ("王小明", "我叫王小明。", 1),
        ("Lee", "Lee's", 1),
        ("ann", "Anna, annual; ann", 1),
        ("mark", "the market of Mark", 1),
        ("correcthorsebattery", "xcorrecthorsebatteryx", 1),
        ("5550102345", "99555010234599", 0),
        ("5550102345", "555 apples and 0102345", 0),
        ("Ann Lee", "Ann and Lee", 0),
        (")'", "🄐'", 0),
        ("(a", "🄐", 0),
        ("(a)", "🄐", 1),
    ] {
        assert_eq!(swept(value, text).len(), found, "{value} in {text}: {:?}", swept(value, text));
    }
    let mut vault = vault();
    vault.token("PERSON", "Will Carter", true);
    let sweeper = Sweeper::new(vault.needles()).unwrap();
    let text = "Will said that he will come for Carter.";
    let hits: Vec<_> = sweeper.hits(text).iter().map(|h| h.start).collect();
    assert_eq!(hits, [0, 32], "names that are words count in their spelling only");
}

proptest! {
    #[test]
    fn offsets_of_the_sweep_are_borders_of_characters(text in ".{0,60}", value in ".{2,12}", at in 0usize..60) {
        let mut text = text;
        let mut at = at.min(text.len());
        while !text.is_char_boundary(at) { at -= 1; }
        text.insert_str(at, &format!(" {value} "));
        let sweeper = Sweeper::new(vec![Needle::value(&value, "VALUE", true)]).unwrap();
        for hit in sweeper.hits(&text) {
            prop_assert!(text.get(hit.start..hit.end).is_some_and(|t| !t.is_empty()));
            prop_assert_eq!(key_form(&text[hit.start..hit.end]), key_form(&value));
        }
    }
}

fn store_with(tags: &[&str], store: &VaultStore, session: u8, now: Instant) -> Result<String, StoreError> {
    let mut tags = tags.iter().map(|t| (*t).to_owned());
    let draw = || tags.next().unwrap_or_else(|| "last".into());
    let vault = store.session_at(
        [session; 32],
        Style::Unicode,
        Duration::from_secs(60),
        |t| t == "used",
        draw,
        now,
    )?;
    let tag = vault.lock().unwrap().tag().to_owned();
    Ok(tag)
}

#[test]
fn sessions_never_share_a_tag_and_end() {
    let (store, now) = (VaultStore::default(), Instant::now());
    assert_eq!(store_with(&["used", "aaaa"], &store, 1, now).unwrap(), "aaaa", "not one that the text holds");
    assert_eq!(store_with(&["aaaa", "bbbb"], &store, 2, now).unwrap(), "bbbb", "not another session's");
    assert_eq!(store_with(&["cccc"], &store, 1, now).unwrap(), "aaaa", "the session goes on");
    let later = now + Duration::from_secs(61);
    assert_eq!(store_with(&["dddd"], &store, 1, later).unwrap(), "dddd", "it lapsed");
    assert_eq!(store.len(), 1);
    // A collision that cannot be avoided gives the request up.
    let mut draw = || "dddd".to_owned();
    let full =
        store.session_at([9; 32], Style::Unicode, Duration::from_secs(60), |_| false, &mut draw, later);
    assert_eq!(full.unwrap_err(), StoreError::Tag);
    store.forget(&[1; 32]);
    assert!(store.is_empty());
}

#[test]
fn a_vault_that_broke_is_not_used_again() {
    let store = VaultStore::default();
    let session = || store.session([1; 32], Style::Unicode, Duration::from_secs(60), |_| false).unwrap();
    let vault = session();
    vault.lock().unwrap().token("PERSON", "Ann", true);
    let broken = std::sync::Arc::clone(&vault);
    std::thread::spawn(move || {
        let _guard = broken.lock().unwrap();
        panic!("on purpose");
    })
    .join()
    .unwrap_err();
    assert!(session().lock().unwrap().is_empty());
}

#[test]
fn the_oldest_session_goes_first() {
    let (store, now) = (VaultStore::default(), Instant::now());
    for i in 0..1030u32 {
        let mut session = [0; 32];
        session[..4].copy_from_slice(&i.to_le_bytes());
        let at = now + Duration::from_millis(u64::from(i));
        let drawn = store.session_at(
            session,
            Style::Unicode,
            Duration::from_secs(60),
            |_| false,
            || format!("{i}"),
            at,
        );
        drawn.unwrap();
    }
    assert_eq!(store.len(), 1024);
}
