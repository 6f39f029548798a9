//! Putting stand-ins in place of values, everywhere, and checking that this can be undone.

use std::{
    collections::{HashMap, HashSet},
    sync::LazyLock,
};

use aho_corasick::AhoCorasick;
use regex::Regex;
use zeroize::Zeroizing;

use crate::{
    Category, Field, FieldRole, Span,
    policy::Action,
    restore::RestoreMap,
    vault::{Found, LOOK_ALIKE, Live, Needle, Sweeper, Vault, kind_of},
};

/// A span with what is done with it.
#[derive(Debug, Clone)]
pub(super) struct Marked {
    pub span: Span,
    pub action: Action,
    /// The stand-in that left for it.
    pub token: Option<String>,
}

/// The masked texts.
pub(super) struct Masked {
    pub fields: Vec<Field>,
    pub restore: RestoreMap,
    /// Mentions that only the sweep found.
    pub swept: usize,
    /// Fingerprints of everything found, masked or not.
    pub seen: HashSet<[u8; 32]>,
}

/// A stretch that is replaced.
#[derive(Debug, Clone)]
struct Piece {
    start: usize,
    end: usize,
    what: Found,
    swept: bool,
}

/// Anything that a reader could take for a stand-in.
static LOOK_ALIKES: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"⟦[^⟦⟧\n]{1,64}⟧|\[\[[A-Za-z]+_\d[^\[\]\n]{0,40}\]\]").ok());

/// Replaces what is marked, and every further mention of it, in all fields.
///
/// # Errors
/// In words, when stand-ins cannot be made so that they are certain to be undone; never with a value.
pub(super) fn mask(
    vault: &mut Vault,
    fields: &[Field],
    marked: &mut [Vec<Marked>],
) -> Result<Masked, String> {
    let look_alikes = LOOK_ALIKES.as_ref().ok_or("the pattern of stand-ins does not compile")?;
    let own =
        Regex::new(&format!(r"(?i)[A-Za-z]+_\d+(?:\.\w{{1,8}})?[·•‧・⋅∙_.\-]{}", regex::escape(vault.tag())))
            .map_err(|_| "the pattern of this session's stand-ins does not compile")?;
    let invented = AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .build(vault.invented_words())
        .map_err(|e| format!("the session's invented names make no search: {e}"))?;
    let seen = fingerprints(vault, fields, marked);
    let sweeper = Sweeper::new(assign(vault, fields, marked))?;

    let mut out = Vec::with_capacity(fields.len());
    let mut live: HashMap<String, Live> = HashMap::new();
    let mut expected = Vec::with_capacity(fields.len());
    let mut swept = 0;
    for (field, marked) in fields.iter().zip(marked.iter_mut()) {
        let mut pieces: Vec<Piece> = Vec::new();
        // Names and ids go through as they are; layer 1 has refused those that hold a value.
        if field.role != FieldRole::Identifier {
            pieces.extend(marked.iter().filter(|m| m.action != Action::Allow).map(|m| Piece {
                start: m.span.range.start,
                end: m.span.range.end,
                what: Found::Value { kind: kind_of(m.span.category), reversible: m.action != Action::Strip },
                swept: false,
            }));
            let hits = sweeper.hits(&field.text).into_iter();
            pieces.extend(hits.map(|h| Piece { start: h.start, end: h.end, what: h.what, swept: true }));
            pieces.extend(invented.find_iter(&field.text).map(|found| Piece {
                start: found.start(),
                end: found.end(),
                what: Found::Value { kind: LOOK_ALIKE, reversible: true },
                swept: false,
            }));
            for found in look_alikes.find_iter(&field.text).chain(own.find_iter(&field.text)) {
                if !vault.is_stripped_token(found.as_str()) {
                    let what = Found::Value { kind: LOOK_ALIKE, reversible: true };
                    pieces.push(Piece { start: found.start(), end: found.end(), what, swept: false });
                }
            }
        }
        let pieces = union(pieces);
        let (mut text, mut undone) = (String::with_capacity(field.text.len()), Zeroizing::new(String::new()));
        let mut at = 0;
        for piece in &pieces {
            let value = field
                .text
                .get(piece.start..piece.end)
                .ok_or("a stretch to mask is no stretch of its text")?;
            let token = match piece.what {
                Found::Value { kind, reversible } => vault.token(kind, value, reversible),
                Found::NamePart { entry, first } => {
                    vault.part(entry, first).ok_or("a part of a name was forgotten while it was masked")?
                }
            };
            let between = field.text.get(at..piece.start).ok_or("two stretches to mask overlap")?;
            text.push_str(between);
            undone.push_str(between);
            let after = field.text.get(piece.end..).and_then(|rest| rest.chars().next());
            let written = vault.write(&token, text.chars().next_back(), after);
            text.push_str(&written);
            undone.push_str(token.value.as_deref().unwrap_or(&written));
            for m in marked
                .iter_mut()
                .filter(|m| piece.start <= m.span.range.start && m.span.range.end <= piece.end)
            {
                if m.action != Action::Allow {
                    m.token = Some(written.clone());
                }
            }
            swept += usize::from(piece.swept);
            live.extend(vault.parts_of(&token).into_iter().map(|part| (part.name.clone(), part)));
            live.insert(token.name.clone(), token);
            at = piece.end;
        }
        let rest = field.text.get(at..).ok_or("a stretch to mask ends outside its text")?;
        text.push_str(rest);
        undone.push_str(rest);
        expected.push(undone);
        out.push(Field { text, ..field.clone() });
    }
    // A stripped value may have been masked reversibly in an earlier request of the session.
    let restore = RestoreMap::new(vault.tag(), live.into_values(), vault.fingerprint_key());
    for ((field, before), expected) in out.iter().zip(fields).zip(&expected) {
        let path = &field.path;
        if field.role == FieldRole::Identifier || field.text == before.text {
            continue;
        }
        if *restore.restore_text(&field.text) != **expected {
            return Err(format!("{path}: stand-ins could not be undone"));
        }
        let tokens: Vec<(usize, usize)> = own.find_iter(&field.text).map(|m| (m.start(), m.end())).collect();
        let outside =
            |h: &crate::vault::Hit| !tokens.iter().any(|(start, end)| h.start < *end && *start < h.end);
        if sweeper.hits(&field.text).iter().any(outside) {
            return Err(format!("{path}: a value was left after masking"));
        }
    }
    Ok(Masked { fields: out, restore, swept, seen })
}

/// Fingerprints of all found values: what the request held may come back in the answer.
fn fingerprints(vault: &Vault, fields: &[Field], marked: &[Vec<Marked>]) -> HashSet<[u8; 32]> {
    let values = fields
        .iter()
        .zip(marked)
        .flat_map(|(f, m)| m.iter().filter_map(|m| f.text.get(m.span.range.clone())));
    values.map(|value| vault.fingerprint(value)).collect()
}

/// Gives every marked value its stand-in, in the order of the text, and answers what has to be looked for: these, and
/// what the session knows from before. A value that is stripped anywhere is stripped everywhere.
fn assign(vault: &mut Vault, fields: &[Field], marked: &mut [Vec<Marked>]) -> Vec<Needle> {
    let mut stripped = HashSet::new();
    for (field, marked) in fields.iter().zip(marked.iter()) {
        for m in marked.iter().filter(|m| m.action == Action::Strip) {
            if let Some(value) = field.text.get(m.span.range.clone()) {
                stripped.insert(vault.fingerprint(value));
            }
        }
    }
    let mut needles = Vec::new();
    for (field, marked) in fields.iter().zip(marked.iter_mut()) {
        for m in marked.iter_mut().filter(|m| m.action != Action::Allow) {
            let Some(value) = field.text.get(m.span.range.clone()) else { continue };
            if stripped.contains(&vault.fingerprint(value)) || vault.known(value) == Some(false) {
                m.action = Action::Strip;
            }
            let reversible = m.action != Action::Strip;
            let kind = kind_of(m.span.category);
            vault.token(kind, value, reversible);
            if !reversible {
                // The vault keeps none of these, so that the request itself is where they are known from.
                needles.push(Needle::value(value, kind, false));
            }
        }
    }
    needles.extend(vault.needles());
    needles
}

/// Overlapping pieces become one, of the worst of their kinds; reversible only if all are.
fn union(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.sort_by_key(|p| (p.start, std::cmp::Reverse(p.end), p.swept));
    let mut out: Vec<Piece> = Vec::new();
    for piece in pieces {
        match out.last_mut().filter(|last| piece.start < last.end) {
            None => out.push(piece),
            Some(last) => {
                let whole = last.start <= piece.start && piece.end <= last.end;
                last.end = last.end.max(piece.end);
                last.what = worse(last.what, piece.what, whole);
                last.swept &= piece.swept;
            }
        }
    }
    out
}

/// What two overlapping stretches are together. `inside`: the second lies in the first.
fn worse(a: Found, b: Found, inside: bool) -> Found {
    let parts = |f: Found| match f {
        Found::Value { kind, reversible } => (kind, reversible),
        Found::NamePart { .. } => (kind_of(Category::Person), true),
    };
    let ((kind_a, back_a), (kind_b, back_b)) = (parts(a), parts(b));
    if inside && back_b && severity(kind_b) <= severity(kind_a) {
        return a;
    }
    let kind = if severity(kind_b) > severity(kind_a) { kind_b } else { kind_a };
    Found::Value { kind, reversible: back_a && back_b }
}

fn severity(kind: &str) -> u8 {
    Category::ALL.into_iter().filter(|c| kind_of(*c) == kind).map(Category::severity).max().unwrap_or(0)
}
