use proptest::prelude::*;

use super::*;
use crate::cache::chain::chain;

fn index_of(root: Digest, tokens: &[u32]) -> IndexPart {
    let chain = chain(root, tokens);
    IndexPart { tail: tokens[chain.len() * PAGE..].to_vec(), chain }
}

/// A text of `len` tokens that is `family`'s until `parts_at`.
fn text(family: u32, parts_at: usize, own: u32, len: usize) -> Vec<u32> {
    (0..len)
        .map(|i| if i < parts_at { family * 1000 + i as u32 % 97 } else { own * 7 + i as u32 % 89 })
        .collect()
}

fn put(index: &mut Index, tokens: &[u32], state: usize) -> EntryId {
    let part = index_of(index.root(), tokens);
    let id = match index.exact(&part) {
        Some(id) => id,
        None => index.add(CheckpointKind::TurnClosure, part),
    };
    let state = Snapshot { position: tokens.len(), format: "t".into(), data: vec![1; state] };
    index.put(id, EntryData { state, tail_kv: vec![2; tokens.len() % PAGE] });
    for (_, digest) in index.missing_pages(id) {
        index.put_page(digest, Arc::new(vec![3; PAGE]));
    }
    id
}

#[test]
fn the_deepest_prefix_is_found() {
    let mut index = Index::new(Digest::root("t"));
    let whole = text(1, 5000, 0, 1000);
    let ids: Vec<_> =
        [40, 256, 300, 301, 512, 999].iter().map(|&n| (put(&mut index, &whole[..n], 10), n)).collect();
    index.check();
    for (id, n) in &ids {
        // Followed by anything.
        let mut prompt = whole[..*n].to_vec();
        prompt.extend([9999, 9999]);
        let found = index.find(&prompt);
        assert_eq!(found.best, Some((*id, *n)));
        assert!(found.common >= *n && !found.evicted);
    }
    // Exactly a checkpoint's tokens: the last one is to be computed, so it is the one before.
    assert_eq!(index.find(&whole[..300]).best.map(|b| b.1), Some(256));
    assert_eq!(index.find(&whole[..40]).best, None);
    assert_eq!(index.find(&whole[..299]).best.map(|b| b.1), Some(256));
    assert_eq!(index.find(&whole[..999]).best.map(|b| b.1), Some(512));
    assert_eq!(index.find(&[]).best, None);
    let found = index.find(&text(1, 35, 3, 600));
    assert_eq!((found.best, found.common), (None, 35));
    // Pages are held once.
    let alone: usize = ids.iter().map(|(id, _)| index.get(*id).unwrap().own_bytes()).sum();
    assert_eq!(index.ram_bytes(), alone + 3 * (PAGE + OVERHEAD));
}

#[test]
fn what_was_evicted_is_remembered() {
    let mut index = Index::new(Digest::root("t"));
    let whole = text(1, 5000, 0, 1000);
    let (short, long) = (put(&mut index, &whole[..300], 10), put(&mut index, &whole[..900], 10));
    index.drop_data(long);
    index.tidy(long);
    let found = index.find(&whole);
    assert_eq!((found.best, found.evicted), (Some((short, 300)), true));
    index.check();
    index.drop_data(short);
    index.tidy(short);
    assert!(index.is_empty() && index.ram_bytes() == 0);
    index.check();
}

#[test]
fn worth_is_tokens_uses_and_age_over_bytes() {
    let mut index = Index::new(Digest::root("t"));
    let whole = text(1, 5000, 0, 1000);
    let near = put(&mut index, &whole[..600], 1000);
    let far = put(&mut index, &whole[..610], 1000);
    let other = put(&mut index, &text(2, 5000, 0, 600), 1000);
    // Ten tokens after another one, it saves little.
    assert_eq!(index.by_worth(Tier::Ram)[0], far);
    for _ in 0..3 {
        index.touch(other);
    }
    let order = index.by_worth(Tier::Ram);
    assert_eq!((order[0], order[2]), (far, other));
    // Nothing is on disk.
    assert!(index.by_worth(Tier::Disk).is_empty());
    index.set_disk(near, OnDisk::Yes(500));
    assert_eq!(index.by_worth(Tier::Disk), [near]);
}

proptest! {
    /// Whatever happens, the sums are right, and what is found is a prefix and is all there.
    #[test]
    fn sums_stay_right(steps in prop::collection::vec((0u8..6, 0u32..3, 0usize..700, 0u32..4, 30usize..700), 1..60)) {
        let mut index = Index::new(Digest::root("t"));
        let mut known: Vec<(EntryId, Vec<u32>)> = Vec::new();
        for (what, family, parts_at, own, len) in steps {
            let tokens = text(family, parts_at, own, len);
            match what {
                0..=2 => {
                    let id = put(&mut index, &tokens, 100);
                    known.retain(|k| k.0 != id);
                    known.push((id, tokens));
                }
                3 => {
                    if let Some(&id) = index.by_worth(Tier::Ram).first() {
                        index.drop_data(id);
                        index.tidy(id);
                    }
                }
                4 => {
                    if let Some(&id) = index.by_worth(Tier::Ram).last() {
                        index.set_disk(id, OnDisk::Pending(50));
                        for digest in index.get(id).unwrap().index.chain.clone() {
                            if !index.page_on_disk(digest) {
                                index.set_page_disk(digest, 300);
                            }
                        }
                        index.set_disk(id, OnDisk::Yes(40));
                    }
                }
                _ => {
                    if let Some(&id) = index.by_worth(Tier::Disk).first() {
                        index.set_disk(id, OnDisk::No);
                        index.tidy(id);
                    }
                }
            }
            index.check();
            for (id, tokens) in &known {
                let mut prompt = tokens.clone();
                prompt.push(123_456);
                let found = index.find(&prompt);
                if index.get(*id).is_some() {
                    prop_assert_eq!(found.best, Some((*id, tokens.len())));
                }
                if index.get(*id).is_some_and(|e| e.data.is_some()) {
                    prop_assert!(index.parts(*id).is_some());
                }
            }
        }
        for id in index.ids() {
            index.set_disk(id, OnDisk::No);
            index.drop_data(id);
            index.tidy(id);
        }
        index.check();
        prop_assert!(index.is_empty());
        prop_assert_eq!((index.ram_bytes(), index.disk_bytes()), (0, 0));
    }
}
