//! Levels: an op stands one level behind the last op that it must wait for. It must wait for an earlier op when one of
//! them writes a byte that the other touches.

use std::collections::HashMap;

use super::{Access, BufferId, Op};

/// Earlier accesses of one buffer.
#[derive(Default)]
struct History {
    reads: Vec<(Access, usize)>,
    writes: Vec<(Access, usize)>,
}

fn latest(list: &[(Access, usize)], a: &Access) -> Option<usize> {
    list.iter().filter(|(b, _)| a.overlaps(b)).map(|b| b.1).max()
}

/// The levels of ops that are right one after the other: for each level the indices of its ops, in order.
pub(super) fn levels(ops: &[Op]) -> Vec<Vec<usize>> {
    let mut history: HashMap<BufferId, History> = HashMap::new();
    let mut out: Vec<Vec<usize>> = Vec::new();
    for (i, op) in ops.iter().enumerate() {
        let mut after: Option<usize> = None;
        for a in &op.reads {
            after = after.max(history.get(&a.buffer).and_then(|h| latest(&h.writes, a)));
        }
        for a in &op.writes {
            let h = history.get(&a.buffer);
            after = after.max(h.and_then(|h| latest(&h.writes, a))).max(h.and_then(|h| latest(&h.reads, a)));
        }
        let level = after.map_or(0, |l| l + 1);
        if level == out.len() {
            out.push(Vec::new());
        }
        out[level].push(i);
        for a in &op.reads {
            history.entry(a.buffer).or_default().reads.push((*a, level));
        }
        for a in &op.writes {
            let h = history.entry(a.buffer).or_default();
            // What the write covers is ordered through it from now on.
            let covered = |b: &Access| a.start <= b.start && b.end <= a.end;
            h.reads.retain(|(b, _)| !covered(b));
            h.writes.retain(|(b, _)| !covered(b));
            h.writes.push((*a, level));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(reads: &[(usize, u64, u64)], writes: &[(usize, u64, u64)]) -> Op {
        let access = |list: &[(usize, u64, u64)]| {
            list.iter()
                .map(|&(b, start, end)| Access { buffer: BufferId(b), start, end, bytes: end - start })
                .collect()
        };
        Op {
            kernel: "k".into(),
            label: "op".into(),
            args: Vec::new(),
            threadgroup: Vec::new(),
            grid: [1, 1, 1],
            group: [32, 1, 1],
            reads: access(reads),
            writes: access(writes),
        }
    }

    #[test]
    fn reads_share_a_level_and_writes_do_not() {
        let ops = [
            op(&[], &[(0, 0, 100)]),
            op(&[(0, 0, 50)], &[(1, 0, 50)]),
            op(&[(0, 50, 100)], &[(1, 50, 100)]), // beside the one before: other bytes
            op(&[(1, 40, 60)], &[(2, 0, 10)]),    // waits for both
            op(&[], &[(0, 0, 10)]),               // waits for the reader of those bytes only
            op(&[(3, 0, 1)], &[]),                // waits for nothing
        ];
        assert_eq!(levels(&ops), vec![vec![0, 5], vec![1, 2], vec![3, 4]]);
    }

    #[test]
    fn a_chain_has_as_many_levels_as_ops() {
        let ops: Vec<Op> = (0..5).map(|_| op(&[(0, 0, 4)], &[(0, 0, 4)])).collect();
        assert_eq!(levels(&ops).len(), 5);
    }

    /// No two ops of a level conflict, and no op stands before one it must wait for.
    #[test]
    fn random_plans_keep_their_order() {
        let mut seed = 3u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..100 {
            let mut some = |most: u64| -> Vec<(usize, u64, u64)> {
                (0..next(most))
                    .map(|_| {
                        let start = next(20);
                        (next(3) as usize, start, start + 1 + next(8))
                    })
                    .collect()
            };
            let ops: Vec<Op> = (0..30).map(|_| op(&some(4), &some(3))).collect();
            let mut level_of = vec![usize::MAX; ops.len()];
            for (l, level) in levels(&ops).iter().enumerate() {
                level.iter().for_each(|&i| level_of[i] = l);
            }
            for j in 0..ops.len() {
                for i in 0..j {
                    let hits = |a: &[Access], b: &[Access]| a.iter().any(|x| b.iter().any(|y| x.overlaps(y)));
                    let (a, b) = (&ops[i], &ops[j]);
                    if hits(&a.writes, &b.writes) || hits(&a.writes, &b.reads) || hits(&a.reads, &b.writes) {
                        assert!(level_of[i] < level_of[j]);
                    }
                }
            }
        }
    }
}
