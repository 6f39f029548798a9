//! The members of a vector that select components.

use std::fmt::Write;

/// `LILY_SWIZZLES2` to `4`: every selection of two and three components; of four, those that name each component
/// once or one of them four times. All 256 would cost every compilation a second for names nobody writes.
pub(super) fn text() -> String {
    const NAMES: [char; 4] = ['x', 'y', 'z', 'w'];
    let mut out = String::new();
    for n in 2..=4usize {
        let _ = write!(out, "#define LILY_SWIZZLES{n}");
        for k in 2..=4u32 {
            for code in 0..n.pow(k) {
                let at: Vec<usize> = (0..k).map(|i| code / n.pow(i) % n).collect();
                let mut different = at.clone();
                different.sort_unstable();
                different.dedup();
                if k == 4 && !matches!(different.len(), 1 | 4) {
                    continue;
                }
                let name: String = at.iter().map(|&i| NAMES[i]).collect();
                let index = |i: usize| at.get(i).copied().unwrap_or(0);
                let _ = write!(
                    out,
                    " swizzle<T, {k}, {}, {}, {}, {}, {n}> {name};",
                    index(0),
                    index(1),
                    index(2),
                    index(3)
                );
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_and_indices() {
        let t = super::text();
        assert!(t.contains(" swizzle<T, 2, 3, 0, 0, 0, 4> wx;"));
        assert!(t.contains(" swizzle<T, 4, 3, 2, 1, 0, 4> wzyx;"));
        assert!(t.contains(" swizzle<T, 4, 1, 1, 1, 1, 2> yyyy;"));
        assert!(!t.contains("xxyz;"));
        assert_eq!(t.lines().count(), 3);
    }
}
