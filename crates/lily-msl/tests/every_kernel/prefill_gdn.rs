//! Gated DeltaNet over chunks on the checked soft device against the recurrence in f64, token by token, in two
//! schedules: two chunks of one sequence, neither a multiple of 32, and a decode step behind them. Scratch is NaN.

use std::sync::OnceLock;

use lily_msl::soft::SoftLibrary;

use crate::common::coverage::{Sizes, Sizes::*, at};
use crate::common::device::*;
use crate::common::gdn::Layer;
use crate::common::*;

const D: usize = 128;

fn library() -> Option<&'static SoftLibrary> {
    static LIB: OnceLock<Option<SoftLibrary>> = OnceLock::new();
    LIB.get_or_init(|| kernel_file("gdn_prefill.metal")).as_ref()
}

pub fn chunks_continue_each_other() {
    let Some(lib) = library() else { return };
    // (key heads, value heads, tokens of the chunks): chunks shorter than the convolution, of exactly one step, and of
    // more.
    let cases: [(&[Sizes], usize, usize, &[usize]); 4] = [
        (&[Tiny, Mini, Ragged], 2, 4, &[70, 33]),
        (&[Tiny, Mini], 2, 4, &[32, 2, 1, 3, 40]),
        (&[Ragged], 1, 1, &[1, 64]),
        (&[Large, Ragged], 16, 32, &[33]),
    ];
    for (sizes, key_heads, value_heads, chunks) in cases {
        at(sizes);
        let mut r = Random(value_heads as u64 + chunks[0] as u64);
        let layer = Layer::random(&mut r, key_heads, value_heads);
        let (channels, size) = (layer.channels(), value_heads * D * D);
        let slot = 1;
        let mut want_state = vec![0f64; size];
        let mut inputs = Vec::new();
        let (mut ring, mut state) = (vec![0f32; 3 * 4 * channels], vec![0f32; 3 * size]);
        let mut position = 0;
        for &tokens in chunks {
            let projected = floats(&mut r, tokens * layer.stride());
            let want = layer.reference(&mut inputs, &projected, &mut want_state);
            let (ring0, state0) = (ring.clone(), state.clone());
            for seed in SEEDS {
                (ring, state) = (ring0.clone(), state0.clone());
                let (y, exact) = layer.prefill(lib, &projected, position, slot, &mut ring, &mut state, seed);
                let what = format!("{key_heads}/{value_heads} heads, {tokens} tokens behind {position}");
                close(&what, &y, &want, 2.0 / 4096.0);
                close(&format!("{what}: before rounding"), &exact, &want, 2e-5);
                close(&format!("{what}: state"), &state[slot * size..][..size], &want_state, 1e-5);
                assert!(state[..slot * size].iter().chain(&state[(slot + 1) * size..]).all(|&s| s == 0.0));
            }
            position += tokens;
            for back in 1..=position.min(4) {
                let place = (slot * 4 + (position - back) % 4) * channels;
                assert_eq!(ring[place..place + channels], inputs[position - back][..channels]);
            }
        }
    }
}

pub fn every_decay_from_none_to_all() {
    // As above, over more steps: nothing is lost in the closed form.
    let Some(lib) = library() else { return };
    let mut r = Random(9);
    let layer = Layer::random(&mut r, 1, 2);
    let tokens = 150;
    let mut projected = floats(&mut r, tokens * layer.stride());
    for (t, row) in projected.chunks_mut(layer.stride()).enumerate() {
        // Gates b and a, at the row's end: from closed to open, from keeping to forgetting.
        let gates = layer.channels() + 2 * D;
        row[gates..].iter_mut().enumerate().for_each(|(i, g)| *g *= 1.0 + 20.0 * ((t + i) % 5) as f32);
    }
    let mut want_state = vec![0f64; 2 * D * D];
    let want = layer.reference(&mut Vec::new(), &projected, &mut want_state);
    for seed in SEEDS {
        let (mut ring, mut state) = (vec![0f32; 4 * layer.channels()], vec![0f32; 2 * D * D]);
        let (y, exact) = layer.prefill(lib, &projected, 0, 0, &mut ring, &mut state, seed);
        close("outputs", &y, &want, 2.0 / 512.0);
        close("outputs before rounding", &exact, &want, 2e-5);
        close("state", &state, &want_state, 1e-5);
    }
}
