//! The rings of stages in shared memory that bulk copies fill while warps read them (project.cu, batch_moe.cu), as a model of
//! which every order of steps is tried: nothing may be read while it is written, nor written while it is read, in any order.
//!
//! What is modelled is the protocol, written down below from the kernels' text: each warp's waits, arrivals, copies and
//! reads. A copy is done any time after its start.

use std::collections::HashSet;

/// A step of a warp.
#[derive(Debug, Clone, Copy)]
enum Op {
    /// `sync_some`: waits until so many warps have come to the block's barrier.
    Sync(usize, u8),
    /// `barrier_arrive`: hands a stage back, by a barrier in shared memory that so many warps come to.
    HandBack(usize, u8),
    /// `barrier_wait` for that barrier, by parity.
    AwaitBack(usize, u8),
    /// `barrier_expect` and `bulk_load`: starts the copy with this number into a stage.
    Fill(usize, u8),
    /// `mark_filling`, and waiting for it.
    Mark(usize, u8),
    AwaitMark(usize, u8),
    /// `barrier_wait` for a stage's copy engine barrier, by parity.
    AwaitParity(usize, u8),
    /// Reads a stage, which must hold what the copy with this number brought; until `Done`.
    Read(usize, u8),
    Done(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// Next step of each warp, and whether it has come to the barrier at which it waits, in which round of it.
    at: Vec<(u8, Option<u8>)>,
    /// Of the block's barriers: warps that have come, round.
    barriers: Vec<(u8, u8)>,
    /// Of the stages: copies done, as the copy engine's barrier counts them; number of the copy under way, of the one that
    /// was done last, of the one marked; warps that read; how often all of its warps have handed it back, and how many have
    /// since.
    stages: Vec<Stage>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Stage {
    phases: u8,
    coming: Option<u8>,
    holds: Option<u8>,
    mark: Option<u8>,
    readers: u8,
    returns: u8,
    returning: u8,
}

/// Tries all orders; how many states there are, or what goes wrong in one of them.
fn explore(warps: &[Vec<Op>], stages: usize) -> Result<usize, String> {
    let start = State {
        at: vec![(0, None); warps.len()],
        barriers: vec![(0, 0); 16],
        stages: vec![Stage::default(); stages],
    };
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some(state) = open.pop() {
        let mut moves = Vec::new();
        for (i, stage) in state.stages.iter().enumerate() {
            if let Some(number) = stage.coming {
                let mut next = state.clone();
                next.stages[i] =
                    Stage { phases: stage.phases + 1, coming: None, holds: Some(number), ..stage.clone() };
                moves.push(next);
            }
        }
        for w in 0..warps.len() {
            moves.extend(step(&state, w, warps)?);
        }
        if moves.is_empty() && (0..warps.len()).any(|w| (state.at[w].0 as usize) < warps[w].len()) {
            return Err(format!("all wait: {state:?}"));
        }
        open.extend(moves.into_iter().filter(|m| seen.insert(m.clone())));
    }
    Ok(seen.len())
}

/// The state after a warp's next step; `None` where it waits or has ended.
fn step(state: &State, warp: usize, warps: &[Vec<Op>]) -> Result<Option<State>, String> {
    let (pc, came) = state.at[warp];
    let Some(&op) = warps[warp].get(pc as usize) else { return Ok(None) };
    let mut next = state.clone();
    next.at[warp] = (pc + 1, None);
    match op {
        Op::Sync(id, n) => match came {
            // Its round is over.
            Some(round) if state.barriers[id].1 != round => {}
            Some(_) => return Ok(None),
            None => {
                let round = state.barriers[id].1;
                come(&mut next, id, n);
                if next.barriers[id].1 == round {
                    next.at[warp] = (pc, Some(round));
                }
            }
        },
        Op::HandBack(s, n) => {
            let stage = &mut next.stages[s];
            stage.returning += 1;
            if stage.returning == n {
                (stage.returns, stage.returning) = (stage.returns + 1, 0);
            }
        }
        Op::AwaitBack(s, parity) if state.stages[s].returns % 2 == parity => return Ok(None),
        Op::AwaitBack(..) => {}
        Op::Fill(s, number) => {
            let stage = &mut next.stages[s];
            if stage.readers > 0 || stage.coming.is_some() {
                return Err(format!("copy {number} starts into stage {s}, which is in use: {state:?}"));
            }
            (stage.coming, stage.holds) = (Some(number), None);
        }
        Op::Mark(s, number) => next.stages[s].mark = Some(number),
        Op::AwaitMark(s, number) if state.stages[s].mark != Some(number) => return Ok(None),
        Op::AwaitMark(..) => {}
        // Passes while the phase under way has the other parity.
        Op::AwaitParity(s, parity) if state.stages[s].phases % 2 == parity => return Ok(None),
        Op::AwaitParity(..) => {}
        Op::Read(s, number) => {
            if state.stages[s].holds != Some(number) {
                return Err(format!("warp {warp} reads stage {s} for copy {number}: {state:?}"));
            }
            next.stages[s].readers += 1;
        }
        Op::Done(s) => next.stages[s].readers -= 1,
    }
    Ok(Some(next))
}

fn come(state: &mut State, id: usize, n: u8) {
    let b = &mut state.barriers[id];
    b.0 += 1;
    if b.0 == n {
        *b = (0, b.1.wrapping_add(1));
    }
}

/// project.cu: `readers` warps in `sets`, of which each reads its share of a round's `stages`; one more warp fills the
/// stages again.
fn project_ring((readers, sets): (u8, u8), stages: usize, tiles: u8, handover: bool) -> Vec<Vec<Op>> {
    let of_a_set = readers / sets;
    let rounds = tiles.div_ceil(stages as u8);
    let of_round = |r: u8| (0..stages).filter(move |&k| r * stages as u8 + (k as u8) < tiles);
    let number = |r: u8, k: usize| r * stages as u8 + k as u8;
    let mut warps: Vec<Vec<Op>> = (0..readers)
        .map(|w| {
            let mut ops = Vec::new();
            // The first round's copies are started by the readers, one each.
            for k in (0..stages).filter(|k| k % readers as usize == w as usize && (*k as u8) < tiles) {
                ops.push(Op::Fill(k, k as u8));
            }
            for r in 0..rounds {
                for k in of_round(r).filter(|k| k % sets as usize == (w % sets) as usize) {
                    ops.extend([Op::AwaitParity(k, r % 2), Op::Read(k, number(r, k)), Op::Done(k)]);
                    if number(r + 1, k) < tiles {
                        ops.push(Op::HandBack(k, of_a_set));
                    }
                }
                // The sums meet.
                ops.push(Op::Sync(1, readers));
            }
            ops
        })
        .collect();
    let mut filler = Vec::new();
    for r in 1..rounds {
        for k in of_round(r) {
            if handover {
                filler.push(Op::AwaitBack(k, (r - 1) % 2));
            }
            filler.push(Op::Fill(k, number(r, k)));
        }
    }
    warps.push(filler);
    warps
}

/// batch_moe.cu: sets of two warps take turns with the units; a set's first warp starts the copy that comes after the one
/// that both have read.
fn turns_ring(sets: usize, stages: usize, units: usize, marks: bool) -> Vec<Vec<Op>> {
    let fill = |u: usize| [Op::Fill(u % stages, u as u8), Op::Mark(u % stages, u as u8)];
    let mut warps = Vec::new();
    for set in 0..sets {
        for side in 0..2 {
            let mut ops = Vec::new();
            // The first copies, by a warp each; the warps meet before any of them reads.
            let warp = 2 * set + side;
            (0..stages.min(units)).filter(|k| k % (2 * sets) == warp).for_each(|k| ops.extend(fill(k)));
            ops.push(Op::Sync(0, 2 * sets as u8));
            for u in (set..units).step_by(sets) {
                let stage = u % stages;
                if marks {
                    ops.push(Op::AwaitMark(stage, u as u8));
                }
                ops.push(Op::AwaitParity(stage, (u / stages % 2) as u8));
                ops.extend([Op::Read(stage, u as u8), Op::Done(stage), Op::Sync(1 + set, 2)]);
                if side == 0 && u + stages < units {
                    ops.extend(fill(u + stages));
                }
            }
            warps.push(ops);
        }
    }
    warps
}

#[test]
fn a_refilled_stage_is_read_by_nobody() {
    for (readers, stages, tiles) in
        [((1, 1), 1, 4), ((2, 1), 2, 6), ((2, 2), 3, 8), ((3, 1), 2, 4), ((4, 2), 2, 5)]
    {
        let states = explore(&project_ring(readers, stages, tiles, true), stages);
        assert!(states.as_ref().is_ok_and(|&n| n > 20), "{readers:?} {stages} {tiles}: {states:?}");
    }
    // The model sees what is wrong: nobody waits until a stage is handed back.
    let wrong = explore(&project_ring((2, 1), 2, 6, false), 2);
    assert!(wrong.is_err_and(|e| e.contains("in use")));
}

#[test]
fn sets_that_take_turns_with_stages() {
    for (sets, stages, units) in [(1, 2, 5), (2, 3, 7), (2, 2, 5)] {
        let states = explore(&turns_ring(sets, stages, units, true), stages);
        assert!(states.as_ref().is_ok_and(|&n| n > 20), "{sets} {stages} {units}: {states:?}");
    }
    // With a stage for each set parity says enough; when sets change stages it does not.
    assert!(explore(&turns_ring(2, 2, 5, false), 2).is_ok());
    let wrong = explore(&turns_ring(2, 3, 7, false), 3);
    assert!(wrong.is_err_and(|e| e.contains("reads stage")));
}
