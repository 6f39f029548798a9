//! A step as encoder calls: one barrier between two levels, and no call that would bind what is bound already. A long step
//! is several command buffers.

use std::ops::Range;

use super::Encoder;
use crate::plan::{BoundArg, BoundOp};

/// Indices that buffers and bytes may have in Metal.
const INDICES: usize = 31;

/// Memory of a step, numbered in [`Step::buffers`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    /// A buffer of the step, from a byte on.
    Buffer {
        /// Which one.
        buffer: usize,
        /// First byte.
        offset: u64,
    },
    /// The inputs of the submission, from a byte on.
    Input {
        /// First byte.
        offset: u64,
    },
    /// Inline bytes.
    Bytes(Vec<u8>),
}

/// One dispatch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dispatch {
    /// Which of the step's pipelines.
    pub pipeline: usize,
    /// Arguments by index.
    pub args: Vec<(u32, Argument)>,
    /// Threadgroup memory by index.
    pub threadgroup: Vec<(u32, u32)>,
    /// Threadgroups.
    pub grid: [u32; 3],
    /// Threads of a threadgroup.
    pub group: [u32; 3],
}

/// A buffer of the device: one that was allocated, or a window over imported memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The device's number for the memory.
    pub memory: u64,
    /// Which window.
    pub window: usize,
}

/// A plan on a device.
#[derive(Debug, Clone)]
pub struct Step<P> {
    /// Label, for tools and messages.
    pub name: String,
    /// Kernels.
    pub pipelines: Vec<P>,
    /// Memory, each place once.
    pub buffers: Vec<Place>,
    /// What runs together, level by level.
    pub levels: Vec<Vec<Dispatch>>,
}

/// What is bound at an index.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound<'a> {
    Nothing,
    Buffer { buffer: usize, offset: u64 },
    Input { offset: u64 },
    Bytes(&'a [u8]),
}

/// Threadgroups of one command buffer, unless a level has more. The system stops a command buffer that keeps the GPU for
/// seconds. A decode step of the 35B model has some 70,000; a chunk of 2,048 tokens, 12 TFLOP of arithmetic, 2.4 million.
pub const MOST_GROUPS: u64 = 1 << 18;

/// The levels of each command buffer of a step: as many as have `most` threadgroups together, and at least one.
pub fn parts<P>(step: &Step<P>, most: u64) -> Vec<Range<usize>> {
    let groups = |d: &Dispatch| d.grid.iter().map(|&n| u64::from(n)).product::<u64>();
    let mut out: Vec<Range<usize>> = Vec::new();
    let mut sum = 0u64;
    for (i, level) in step.levels.iter().enumerate() {
        let own = level.iter().map(groups).fold(0, u64::saturating_add);
        match out.last_mut() {
            Some(part) if own == 0 || sum.saturating_add(own) <= most => {
                part.end = i + 1;
                sum += own;
            }
            _ => {
                out.push(i..i + 1);
                sum = own;
            }
        }
    }
    out
}

/// Encodes some levels of a step. `buffers` are those of [`Step::buffers`]; the inputs lie in a buffer from a byte on.
pub fn encode<E: Encoder>(
    encoder: &mut E,
    step: &Step<E::Pipeline>,
    levels: Range<usize>,
    buffers: &[&E::Buffer],
    input: Option<(&E::Buffer, u64)>,
) {
    let mut pipeline = None;
    let mut bound = [Bound::Nothing; INDICES];
    let mut threadgroup = [0u32; INDICES];
    let mut first = true;
    for level in step.levels[levels].iter().filter(|l| !l.is_empty()) {
        if !first {
            encoder.barrier();
        }
        first = false;
        for d in level {
            if pipeline.replace(d.pipeline) != Some(d.pipeline) {
                encoder.pipeline(&step.pipelines[d.pipeline]);
            }
            for (index, arg) in &d.args {
                let now = match arg {
                    Argument::Buffer { buffer, offset } => Bound::Buffer { buffer: *buffer, offset: *offset },
                    Argument::Input { offset } => Bound::Input { offset: *offset },
                    Argument::Bytes(bytes) => Bound::Bytes(bytes),
                };
                // Indices are below 31: the kernels' lint says so, and [`problem`] checks it.
                let Some(before) = bound.get_mut(*index as usize) else { continue };
                match (*before, now) {
                    (a, b) if a == b => continue,
                    (Bound::Buffer { buffer: a, .. }, Bound::Buffer { buffer: b, offset }) if a == b => {
                        encoder.offset(*index, offset);
                    }
                    (_, Bound::Buffer { buffer, offset }) => {
                        encoder.buffer(*index, buffers[buffer], offset);
                    }
                    (Bound::Input { .. }, Bound::Input { offset }) => {
                        encoder.offset(*index, input.map_or(0, |i| i.1) + offset);
                    }
                    (_, Bound::Input { offset }) => {
                        if let Some((b, start)) = input {
                            encoder.buffer(*index, b, start + offset);
                        }
                    }
                    (_, Bound::Bytes(bytes)) => encoder.bytes(*index, bytes),
                    (_, Bound::Nothing) => {}
                }
                *before = now;
            }
            for &(index, bytes) in &d.threadgroup {
                // Metal takes multiples of 16.
                let bytes = bytes.next_multiple_of(16);
                let Some(before) = threadgroup.get_mut(index as usize) else { continue };
                if std::mem::replace(before, bytes) != bytes {
                    encoder.threadgroup(index, bytes);
                }
            }
            encoder.dispatch(d.grid, d.group);
        }
    }
}

/// Why an op cannot be encoded: its indices. `None` when it can.
pub fn problem(op: &BoundOp) -> Option<String> {
    for arg in &op.args {
        let (index, bytes) = match arg {
            BoundArg::Buffer { index, .. } => (*index, 0),
            BoundArg::Bytes { index, bytes } => (*index, bytes.len()),
        };
        if index as usize >= INDICES {
            return Some(format!("argument index {index}; Metal has {INDICES} of them"));
        }
        if bytes > MOST_INLINE {
            return Some(format!("{bytes} inline bytes at index {index}; Metal takes at most {MOST_INLINE}"));
        }
    }
    None
}

/// Most bytes that a dispatch may carry inline.
const MOST_INLINE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    enum Call {
        Pipeline(&'static str),
        Buffer(u32, &'static str, u64),
        Offset(u32, u64),
        Bytes(u32, Vec<u8>),
        Threadgroup(u32, u32),
        Dispatch([u32; 3], [u32; 3]),
        Barrier,
    }

    #[derive(Default)]
    struct Recorder(Vec<Call>);

    impl Encoder for Recorder {
        type Buffer = &'static str;
        type Pipeline = &'static str;
        fn pipeline(&mut self, p: &&'static str) {
            self.0.push(Call::Pipeline(p));
        }
        fn buffer(&mut self, index: u32, b: &&'static str, offset: u64) {
            self.0.push(Call::Buffer(index, b, offset));
        }
        fn offset(&mut self, index: u32, offset: u64) {
            self.0.push(Call::Offset(index, offset));
        }
        fn bytes(&mut self, index: u32, bytes: &[u8]) {
            self.0.push(Call::Bytes(index, bytes.to_vec()));
        }
        fn threadgroup(&mut self, index: u32, bytes: u32) {
            self.0.push(Call::Threadgroup(index, bytes));
        }
        fn dispatch(&mut self, grid: [u32; 3], group: [u32; 3]) {
            self.0.push(Call::Dispatch(grid, group));
        }
        fn barrier(&mut self) {
            self.0.push(Call::Barrier);
        }
    }

    fn dispatch(pipeline: usize, args: &[(u32, Argument)], threadgroup: &[(u32, u32)]) -> Dispatch {
        Dispatch {
            pipeline,
            args: args.to_vec(),
            threadgroup: threadgroup.to_vec(),
            grid: [pipeline as u32 + 1, 2, 3],
            group: [32, 1, 1],
        }
    }

    fn step(levels: Vec<Vec<Dispatch>>) -> Step<&'static str> {
        let place = |memory| Place { memory, window: 0 };
        Step { name: "s".into(), pipelines: vec!["p", "q"], buffers: vec![place(1), place(2)], levels }
    }

    fn calls(step: &Step<&'static str>) -> Vec<Call> {
        let mut r = Recorder::default();
        encode(&mut r, step, 0..step.levels.len(), &[&"a", &"b"], Some((&"in", 100)));
        r.0
    }

    fn a(offset: u64) -> Argument {
        Argument::Buffer { buffer: 0, offset }
    }
    fn b(offset: u64) -> Argument {
        Argument::Buffer { buffer: 1, offset }
    }
    fn input(offset: u64) -> Argument {
        Argument::Input { offset }
    }
    fn bytes(byte: u8) -> Argument {
        Argument::Bytes(vec![byte; 4])
    }

    #[test]
    fn what_is_bound_already_is_not_bound_again() {
        let s = step(vec![
            vec![dispatch(0, &[(0, a(0)), (1, input(4)), (2, bytes(1))], &[(0, 20)])],
            vec![],
            vec![
                dispatch(0, &[(0, a(0)), (1, input(4)), (2, bytes(1))], &[(0, 30)]),
                dispatch(1, &[(0, a(64)), (1, input(8)), (2, bytes(2))], &[(0, 33)]),
            ],
            vec![dispatch(1, &[(0, b(64)), (1, a(64)), (2, input(0))], &[(0, 33), (1, 16)])],
        ]);
        use Call::*;
        assert_eq!(
            calls(&s),
            vec![
                Pipeline("p"),
                Buffer(0, "a", 0),
                Buffer(1, "in", 104),
                Bytes(2, vec![1; 4]),
                Threadgroup(0, 32), // 20 bytes rounded up
                Dispatch([1, 2, 3], [32, 1, 1]),
                Barrier,
                Dispatch([1, 2, 3], [32, 1, 1]), // 30 bytes are 32 too
                Pipeline("q"),
                Offset(0, 64),
                Offset(1, 108),
                Bytes(2, vec![2; 4]),
                Threadgroup(0, 48),
                Dispatch([2, 2, 3], [32, 1, 1]),
                Barrier,
                Buffer(0, "b", 64),
                Buffer(1, "a", 64),
                Buffer(2, "in", 100),
                Threadgroup(1, 16),
                Dispatch([2, 2, 3], [32, 1, 1]),
            ]
        );
    }

    /// Whatever is left out: at every dispatch the encoder has exactly the arguments of the dispatch, and there is one
    /// barrier between two levels.
    #[test]
    fn random_steps_arrive_whole() {
        let mut seed = 11u64;
        let mut next = move |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..200 {
            let levels: Vec<Vec<Dispatch>> = (0..next(6))
                .map(|_| {
                    (0..next(4))
                        .map(|_| {
                            let args: Vec<(u32, Argument)> = (0..next(5) as u32)
                                .map(|i| {
                                    let arg = match next(4) {
                                        0 => a(next(3) * 16),
                                        1 => b(next(3) * 16),
                                        2 => input(next(3) * 4),
                                        _ => bytes(next(3) as u8),
                                    };
                                    (i, arg)
                                })
                                .collect();
                            let threadgroup: Vec<(u32, u32)> =
                                (0..next(3) as u32).map(|i| (i, 1 + next(3) as u32 * 16)).collect();
                            dispatch(next(2) as usize, &args, &threadgroup)
                        })
                        .collect()
                })
                .collect();
            let s = step(levels);
            let mut state: Vec<Option<Call>> = vec![None; INDICES];
            let (mut groups, mut pipeline, mut seen, mut barriers) = ([0u32; INDICES], "", Vec::new(), 0);
            for call in calls(&s) {
                match call {
                    Call::Pipeline(p) => pipeline = p,
                    Call::Buffer(i, ..) | Call::Bytes(i, _) => state[i as usize] = Some(call),
                    Call::Offset(i, at) => match &mut state[i as usize] {
                        Some(Call::Buffer(_, _, offset)) => *offset = at,
                        other => panic!("an offset for {other:?}"),
                    },
                    Call::Threadgroup(i, n) => groups[i as usize] = n,
                    Call::Dispatch(..) => seen.push((barriers, pipeline, state.clone(), groups)),
                    Call::Barrier => barriers += 1,
                }
            }
            let full: Vec<&Vec<Dispatch>> = s.levels.iter().filter(|l| !l.is_empty()).collect();
            assert_eq!(barriers, full.len().saturating_sub(1));
            let wanted: Vec<(usize, &Dispatch)> =
                full.iter().enumerate().flat_map(|(l, ds)| ds.iter().map(move |d| (l, d))).collect();
            assert_eq!(seen.len(), wanted.len());
            for ((level, d), (barriers, pipeline, state, groups)) in wanted.iter().zip(&seen) {
                assert_eq!((level, s.pipelines[d.pipeline]), (barriers, *pipeline));
                for (i, arg) in &d.args {
                    let want = match arg {
                        Argument::Buffer { buffer, offset } => Call::Buffer(*i, ["a", "b"][*buffer], *offset),
                        Argument::Input { offset } => Call::Buffer(*i, "in", 100 + offset),
                        Argument::Bytes(bytes) => Call::Bytes(*i, bytes.clone()),
                    };
                    assert_eq!(state[*i as usize].as_ref(), Some(&want));
                }
                for &(i, n) in &d.threadgroup {
                    assert_eq!(groups[i as usize], n.next_multiple_of(16));
                }
            }
        }
    }

    #[test]
    fn long_steps_are_several_command_buffers() {
        // Levels of 6, 12, 0, 6, 600 and 6 threadgroups.
        let d = || dispatch(0, &[(0, a(0))], &[]);
        let mut large = d();
        large.grid = [100, 2, 3];
        let s = step(vec![vec![d()], vec![d(), d()], vec![], vec![d()], vec![large], vec![d()]]);
        assert_eq!(parts(&s, 1 << 18), vec![0..6]);
        assert_eq!(parts(&s, 24), vec![0..4, 4..5, 5..6]);
        assert_eq!(parts(&s, 23), vec![0..3, 3..4, 4..5, 5..6]);
        assert_eq!(parts(&s, 0), vec![0..1, 1..3, 3..4, 4..5, 5..6]);
        assert_eq!(parts(&step(vec![]), 5), Vec::<Range<usize>>::new());
        // A part begins with nothing bound and ends with no barrier.
        let mut r = Recorder::default();
        encode(&mut r, &s, 1..4, &[&"a", &"b"], None);
        let [first @ .., last] = &r.0[..] else { panic!() };
        assert!(matches!(first[..2], [Call::Pipeline("p"), Call::Buffer(0, "a", 0)]), "{:?}", r.0);
        assert!(matches!(last, Call::Dispatch(..)));
        assert_eq!(r.0.iter().filter(|c| **c == Call::Barrier).count(), 1);
    }

    #[test]
    fn what_metal_cannot_take_is_named() {
        let op = |args| BoundOp { op: 0, kernel: "k".into(), args, threadgroup: Vec::new() };
        let inline = |index, n| BoundArg::Bytes { index, bytes: vec![0; n] };
        assert_eq!(problem(&op(vec![inline(30, 4096)])), None);
        assert!(problem(&op(vec![inline(31, 4)])).is_some_and(|p| p.contains("31")));
        assert!(problem(&op(vec![inline(0, 4097)])).is_some_and(|p| p.contains("4097")));
    }
}
