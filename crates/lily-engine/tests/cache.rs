//! The prefix cache on a backend that checks what is restored into it: limits in bytes, files, damage.

mod common;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use common::Scripted;
use lily_engine::{
    Backend, CacheOptions, CheckpointKind, DiskError, Logits,
    cache::{Found, PrefixCache},
};

const VOCAB: usize = 64;

fn backend(state_bytes: usize) -> Scripted {
    let mut backend = Scripted::new(VOCAB);
    backend.state_bytes = state_bytes;
    backend
}

fn options(ram: usize, dir: Option<&Path>, disk: u64) -> CacheOptions {
    CacheOptions { ram, dir: dir.map(Into::into), disk }
}

/// Takes a checkpoint after `tokens`.
fn save(cache: &mut PrefixCache, backend: &mut dyn Backend, tokens: &[u32], kind: CheckpointKind) -> bool {
    let id = backend.new_sequence(1 << 20).unwrap();
    backend.prefill(id, tokens, Logits::None, &mut Vec::new()).unwrap();
    let saved = cache.save(backend, id, tokens, kind);
    backend.free_sequence(id);
    saved
}

/// Finds and restores; the position. The scripted backend refuses a state whose pages are not its own.
fn hit(cache: &mut PrefixCache, backend: &mut dyn Backend, tokens: &[u32]) -> Option<usize> {
    let until = Instant::now() + Duration::from_secs(60);
    let found = loop {
        match cache.find(tokens) {
            Found::Ready(id) => break id,
            Found::Nothing(_) => return None,
            Found::Loading => {
                cache.poll();
                assert!(Instant::now() < until, "a file is never read");
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    };
    let id = backend.new_sequence(1 << 20).unwrap();
    let (position, _) = cache.restore(backend, id, found).expect("what is found is right");
    assert_eq!(backend.position(id).unwrap(), position);
    let snapshot = backend.snapshot(id).unwrap().data;
    let seen: Vec<u32> = snapshot.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    assert_eq!(seen, tokens[..position]);
    backend.free_sequence(id);
    Some(position)
}

fn dir_bytes(dir: &Path) -> u64 {
    fs::read_dir(dir).unwrap().filter_map(|e| Some(e.ok()?.metadata().ok()?.len())).sum()
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A prompt of a tree: prompts with the same digits before a place begin alike until there.
fn prompt(i: u64) -> Vec<u32> {
    let part = |seed: u64, n: u64| {
        (0..n).map(move |j| {
            let x = (seed << 32 | j).wrapping_add(7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((x ^ x >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as u32 % 64
        })
    };
    part(1, 100)
        .chain(part(1000 + i / 100, 300))
        .chain(part(2000 + i / 10, 250))
        .chain(part(3000 + i, 60 + i % 200))
        .collect()
}

#[test]
fn limits_hold_under_a_thousand_prompts() {
    const RAM: usize = 3 << 20;
    const DISK: u64 = 5 << 20;
    let dir = tempfile::tempdir().unwrap();
    let mut b = backend(20_000);
    let mut cache = PrefixCache::open(&options(RAM, Some(dir.path()), DISK), &b, || {}).unwrap();
    let mut hits = 0;
    for i in 0..1000u64 {
        let prompt = prompt(i * 37 % 1000);
        hits += u64::from(hit(&mut cache, &mut b, &prompt).is_some());
        save(&mut cache, &mut b, &prompt[..100], CheckpointKind::SystemEnd);
        save(&mut cache, &mut b, &prompt[..prompt.len() - 8], CheckpointKind::BeforeOpener);
        save(&mut cache, &mut b, &prompt, CheckpointKind::EndOfResponse);
        // As fast as files are written: what waits for long is not written at all.
        let written = cache.figures().disk_writes;
        let until = Instant::now() + Duration::from_millis(10);
        while cache.figures().disk_writes < written + 2 && Instant::now() < until {
            cache.poll();
            std::thread::sleep(Duration::from_micros(100));
        }
        let figures = cache.figures();
        assert!(figures.ram_bytes <= RAM as u64, "{i}: {figures:?}");
        assert!(figures.disk_bytes <= DISK, "{i}: {figures:?}");
        if i % 20 == 0 {
            assert!(dir_bytes(dir.path()) <= DISK, "{i}");
        }
    }
    // What all prompts share is never worth least.
    let mut other = prompt(5)[..100].to_vec();
    other.push(63);
    assert_eq!(hit(&mut cache, &mut b, &other), Some(100));
    let figures = cache.figures();
    println!(
        "{hits} hits; {figures:?}; {} bytes in {} files",
        dir_bytes(dir.path()),
        files(dir.path()).len()
    );
    assert!(hits > 900 && figures.ram_evictions > 1000 && figures.disk_evictions > 20);
    cache.close();
    assert!(dir_bytes(dir.path()) <= DISK);
    // All of it is whole.
    let cache = PrefixCache::open(&options(RAM, Some(dir.path()), DISK), &b, || {}).unwrap();
    let again = cache.figures();
    assert!(again.disk_checkpoints > 20 && again.disk_bytes <= DISK, "{again:?}");
}

#[test]
fn a_restart_finds_what_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    let with = options(1 << 24, Some(dir.path()), 1 << 24);
    let mut b = backend(1000);
    let prompts: Vec<Vec<u32>> = (0..30).map(|i| prompt(i * 9)).collect();
    let mut cache = PrefixCache::open(&with, &b, || {}).unwrap();
    for p in &prompts {
        assert!(save(&mut cache, &mut b, &p[..p.len() - 8], CheckpointKind::BeforeOpener));
    }
    cache.close();
    let mut other = backend(1000);
    let mut cache = PrefixCache::open(&with, &other, || {}).unwrap();
    assert_eq!((cache.figures().disk_checkpoints, cache.figures().ram_checkpoints), (30, 0));
    for p in &prompts {
        assert_eq!(hit(&mut cache, &mut other, p), Some(p.len() - 8));
    }
    drop(cache);

    // A smaller limit is kept from the start on; a memory too small for a state finds nothing and says so.
    let small = options(1 << 24, Some(dir.path()), 200_000);
    let cache = PrefixCache::open(&small, &other, || {}).unwrap();
    assert!(cache.figures().disk_bytes <= 200_000 && cache.figures().disk_checkpoints > 0);
    drop(cache);
    assert!(dir_bytes(dir.path()) <= 200_000);
    let tiny = options(5_000, Some(dir.path()), 200_000);
    let mut cache = PrefixCache::open(&tiny, &other, || {}).unwrap();
    for p in &prompts {
        assert_eq!(hit(&mut cache, &mut other, p), None);
    }
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let with = options(1 << 24, Some(dir.path()), 1 << 24);
    let mut b = backend(1000);
    let p = prompt(3);
    let mut cache = PrefixCache::open(&with, &b, || {}).unwrap();
    save(&mut cache, &mut b, &p[..600], CheckpointKind::BeforeOpener);
    cache.close();
    let ours = files(dir.path());
    // Another model: its files are not used, and ours stay for us.
    let mut another = backend(1000);
    another.identity = "scripted-pages/1 another".into();
    let mut cache = PrefixCache::open(&with, &another, || {}).unwrap();
    assert_eq!(hit(&mut cache, &mut another, &p), None);
    save(&mut cache, &mut another, &p[..600], CheckpointKind::BeforeOpener);
    cache.close();
    assert_eq!(files(dir.path()).len(), 2 * ours.len() - 1, "the lock is shared");
    // Files that are nobody's, a directory with our kind of name, an unfinished file.
    for name in ["notes.txt", "checkpoint-.lily", &format!("checkpoint-{}.lily.bak", "0".repeat(32))] {
        fs::write(dir.path().join(name), "precious").unwrap();
    }
    fs::create_dir(dir.path().join(format!("page-{}.lily", "1".repeat(32)))).unwrap();
    let part = dir.path().join(format!("page-{}.lily.part", "2".repeat(32)));
    fs::write(&part, "half").unwrap();
    // With our kind of name and no content of ours.
    let foreign = dir.path().join(format!("checkpoint-{}.lily", "3".repeat(32)));
    fs::write(&foreign, "something else").unwrap();
    let mut cache = PrefixCache::open(&with, &b, || {}).unwrap();
    assert_eq!(hit(&mut cache, &mut b, &p), Some(600));
    assert!(dir.path().join("notes.txt").exists() && foreign.exists() && !part.exists());

    // One process at a time.
    let busy = PrefixCache::open(&with, &b, || {}).err().unwrap();
    assert!(matches!(busy, DiskError::Busy(_)), "{busy}");
    assert!(busy.to_string().contains("--cache-dir"));
    drop(cache);
    PrefixCache::open(&with, &b, || {}).unwrap();
    let at_a_file = options(1 << 20, Some(&dir.path().join("notes.txt")), 1);
    let error = PrefixCache::open(&at_a_file, &b, || {}).err().unwrap().to_string();
    assert!(error.contains("notes.txt"), "{error}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        for name in &ours {
            let mode = fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{name} can be read by others");
        }
    }
}

/// Files cut short, changed, removed or exchanged: what is found is right or nothing is found.
#[test]
fn damaged_files_are_never_used() {
    let template = tempfile::tempdir().unwrap();
    let mut b = backend(1000);
    let prompts: Vec<Vec<u32>> = (0..6).map(|i| prompt(i * 50)).collect();
    let mut cache = PrefixCache::open(&options(1 << 24, Some(template.path()), 1 << 24), &b, || {}).unwrap();
    for p in &prompts {
        save(&mut cache, &mut b, &p[..100], CheckpointKind::SystemEnd);
        save(&mut cache, &mut b, &p[..p.len() - 8], CheckpointKind::BeforeOpener);
    }
    cache.close();
    let names: Vec<String> = files(template.path()).into_iter().filter(|n| n != "lock").collect();
    let mut used = 0;
    for round in 0..120u64 {
        let dir = tempfile::tempdir().unwrap();
        for name in &names {
            fs::copy(template.path().join(name), dir.path().join(name)).unwrap();
        }
        let pick = |salt: u64, below: usize| {
            ((round * 31 + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % below
        };
        let damage = |path: &Path, salt: u64| {
            let mut bytes = fs::read(path).unwrap();
            let at = pick(salt, bytes.len());
            match round % 5 {
                0 => bytes.truncate(at),
                1 => bytes[at] ^= 1 << pick(salt + 1, 8),
                2 => return fs::remove_file(path).unwrap(),
                3 => bytes = fs::read(template.path().join(&names[pick(salt + 2, names.len())])).unwrap(),
                _ => bytes[at..].fill(0),
            }
            fs::write(path, bytes).unwrap();
        };
        let victim = dir.path().join(&names[pick(1, names.len())]);
        let late = round % 2 == 1;
        if !late {
            damage(&victim, 2);
        }
        let with = options(1 << 24, Some(dir.path()), 1 << 24);
        let mut cache = PrefixCache::open(&with, &b, || {}).unwrap();
        if late {
            // After the start looked at the beginnings.
            damage(&victim, 2);
        }
        for p in &prompts {
            let position = hit(&mut cache, &mut b, p);
            assert!([None, Some(100), Some(p.len() - 8)].contains(&position), "{position:?}");
            used += usize::from(position == Some(p.len() - 8));
        }
        // And it goes on: what was lost is kept again.
        for p in &prompts {
            save(&mut cache, &mut b, &p[..p.len() - 8], CheckpointKind::BeforeOpener);
            assert_eq!(hit(&mut cache, &mut b, p), Some(p.len() - 8));
        }
        cache.close();
        let mut cache = PrefixCache::open(&with, &b, || {}).unwrap();
        for p in &prompts {
            assert_eq!(hit(&mut cache, &mut b, p), Some(p.len() - 8), "round {round}");
        }
    }
    println!("{used} of {} whole checkpoints used beside damaged ones", 120 * prompts.len());
    assert!(used > 300 && used < 120 * prompts.len());
}

/// A directory that cannot be written any more costs the files, not the answers.
#[test]
fn a_full_disk_is_survived() {
    let dir = tempfile::tempdir().unwrap();
    let sub = dir.path().join("cache");
    let mut b = backend(1000);
    let mut cache = PrefixCache::open(&options(1 << 24, Some(&sub), 1 << 24), &b, || {}).unwrap();
    // Nothing can be made in a directory that is gone.
    fs::remove_dir_all(&sub).unwrap();
    for i in 0..10 {
        let p = prompt(i * 100);
        assert!(save(&mut cache, &mut b, &p, CheckpointKind::EndOfResponse));
        let until = Instant::now() + Duration::from_secs(20);
        while cache.figures().disk_errors <= i.min(2) && Instant::now() < until {
            cache.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
        let longer = [&p[..], &[1]].concat();
        assert_eq!(hit(&mut cache, &mut b, &longer), Some(p.len()));
    }
    let figures = cache.figures();
    assert_eq!((figures.disk_errors, figures.disk_checkpoints), (3, 0), "no more are tried after three");
    assert!(figures.disk_skipped >= 7);
    cache.close();
}
