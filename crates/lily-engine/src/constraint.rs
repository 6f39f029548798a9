//! Restricting which tokens may come next: the engine's side of grammars, JSON schemas and thinking budgets.
//!
//! The engine knows nothing of grammars. Before it samples it asks a [`Constraint`] for a [`TokenMask`], and after it
//! has sampled it says which token was chosen. An implementation that needs time for a mask starts on it in
//! [`Constraint::accept`], on a thread of its own: the model's forward pass for that token runs meanwhile, and
//! [`Constraint::mask`] only waits for what is left.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// A set of token ids, one bit an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    vocab: usize,
}

impl TokenMask {
    /// The empty set over ids `0..vocab`.
    pub fn none(vocab: usize) -> Self {
        Self { words: vec![0; vocab.div_ceil(32)], vocab }
    }

    /// All ids `0..vocab`.
    pub fn all(vocab: usize) -> Self {
        let mut mask = Self { words: vec![u32::MAX; vocab.div_ceil(32)], vocab };
        mask.clear_tail();
        mask
    }

    /// From words of 32 ids each, the lowest id in the lowest bit. Ids from `vocab` on are left out, missing words
    /// are empty.
    pub fn from_words(words: &[u32], vocab: usize) -> Self {
        let mut mask = Self::none(vocab);
        let n = mask.words.len().min(words.len());
        mask.words[..n].copy_from_slice(&words[..n]);
        mask.clear_tail();
        mask
    }

    /// Ids that exist: `0..vocab`.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Whether `id` is in the set.
    pub fn contains(&self, id: u32) -> bool {
        (id as usize) < self.vocab && self.words[id as usize / 32] >> (id % 32) & 1 == 1
    }

    /// Adds an id; ids from `vocab` on are ignored.
    pub fn insert(&mut self, id: u32) {
        if (id as usize) < self.vocab {
            self.words[id as usize / 32] |= 1 << (id % 32);
        }
    }

    /// Takes an id out.
    pub fn remove(&mut self, id: u32) {
        if (id as usize) < self.vocab {
            self.words[id as usize / 32] &= !(1 << (id % 32));
        }
    }

    /// The ids in both sets.
    pub fn and(&self, other: &Self) -> Self {
        let words = self.words.iter().zip(&other.words).map(|(a, b)| a & b);
        let mut both = Self { words: words.collect(), vocab: self.vocab.min(other.vocab) };
        both.words.resize(both.vocab.div_ceil(32), 0);
        both
    }

    /// How many ids are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether no id is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }

    /// Sets the logits of ids outside the set to the lowest finite value. Logits beyond `vocab` count as outside.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        for (word, block) in self.words.iter().copied().chain(std::iter::repeat(0)).zip(logits.chunks_mut(32))
        {
            match word {
                u32::MAX => {}
                0 => block.fill(f32::MIN),
                word => {
                    for (bit, logit) in block.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::MIN;
                        }
                    }
                }
            }
        }
    }

    fn clear_tail(&mut self) {
        if let (Some(last), used @ 1..) = (self.words.last_mut(), self.vocab % 32) {
            *last &= (1 << used) - 1;
        }
    }
}

/// Why a constraint cannot go on: a grammar too large to follow, a token it does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);

/// Which tokens may come next, given those that came.
pub trait Constraint: Send {
    /// The tokens that may come next, stop tokens among them; `None`: all. Called once before each token is sampled,
    /// on the engine thread.
    fn mask(&mut self) -> Result<Option<&TokenMask>, ConstraintError>;

    /// Notes the token that was chosen. Called on the engine thread before the forward pass for that token, so it must
    /// return at once: work for the next mask belongs on another thread.
    fn accept(&mut self, id: u32) -> Result<(), ConstraintError>;
}

/// A constraint that belongs to one request. Clones share it.
#[derive(Clone)]
pub struct ConstraintHandle(Arc<Mutex<dyn Constraint>>);

impl ConstraintHandle {
    /// A handle to `constraint`, which must be fresh: nothing was generated under it.
    pub fn new(constraint: impl Constraint + 'static) -> Self {
        Self(Arc::new(Mutex::new(constraint)))
    }

    /// Uses the constraint.
    pub fn with<T>(&self, use_it: impl FnOnce(&mut dyn Constraint) -> T) -> T {
        use_it(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for ConstraintHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConstraintHandle")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_ids() {
        for vocab in [1, 31, 32, 33, 100] {
            let mut mask = TokenMask::all(vocab);
            assert_eq!(mask.len(), vocab);
            let last = vocab as u32 - 1;
            assert!(mask.contains(last) && !mask.contains(last + 1));
            mask.remove(last);
            assert!(!mask.contains(last));
            mask.insert(last + 1);
            assert_eq!(mask.len(), vocab - 1, "an id that does not exist");
        }
        let both = TokenMask::from_words(&[0b110], 40).and(&TokenMask::from_words(&[0b011, 1], 40));
        assert_eq!(both, TokenMask::from_words(&[0b010], 40));
        assert!(TokenMask::none(40).is_empty());
        assert_eq!(TokenMask::from_words(&[u32::MAX; 9], 40).len(), 40);
        assert_eq!(TokenMask::from_words(&[0b101], 40).len(), 2);
    }

    #[test]
    fn logits_outside_the_set_are_lowest() {
        let mut mask = TokenMask::none(40);
        mask.insert(3);
        mask.insert(39);
        let mut logits = vec![1.0f32; 70];
        mask.apply(&mut logits);
        let kept: Vec<usize> = (0..70).filter(|&i| logits[i] == 1.0).collect();
        assert_eq!(kept, [3, 39]);
        assert!(logits.iter().all(|l| l.is_finite()));
    }
}
