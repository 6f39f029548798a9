//! Gated DeltaNet over chunks on the checked soft device against the recurrence in f64, token by token, in two
//! schedules: two chunks of one sequence, neither a multiple of 32, and a decode step behind them. Scratch is NaN.

mod common;

use std::sync::OnceLock;

use bytemuck::cast_slice;
use common::device::*;
use common::gdn::gdn_reference;
use common::*;
use half::bf16;
use lily_msl::soft::{Arg, SoftLibrary};

const D: usize = 128;

fn library() -> Option<&'static SoftLibrary> {
    static LIB: OnceLock<Option<SoftLibrary>> = OnceLock::new();
    LIB.get_or_init(|| kernel_file("gdn_prefill.metal")).as_ref()
}

/// A layer's weights and sizes.
struct Layer {
    key_heads: usize,
    value_heads: usize,
    conv: Vec<bf16>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    gain: Vec<bf16>,
}

impl Layer {
    fn random(r: &mut Random, key_heads: usize, value_heads: usize) -> Layer {
        let channels = (2 * key_heads + value_heads) * D;
        Layer {
            key_heads,
            value_heads,
            conv: bfloats(r, channels * 4, 0.5, 0.1),
            // From heads that keep almost everything to heads that forget within a token or two.
            a_log: (0..value_heads).map(|h| -3.0 + 5.0 * h as f32 / value_heads as f32).collect(),
            dt_bias: (0..value_heads).map(|_| 3.0 * r.unit() - 1.0).collect(),
            gain: bfloats(r, D, 0.5, 1.0),
        }
    }

    fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * D
    }

    /// Projections of a token, and what makes them a multiple of 4.
    fn stride(&self) -> usize {
        (self.channels() + self.value_heads * (D + 2)).next_multiple_of(4)
    }

    fn shape(&self) -> [u32; 4] {
        [self.key_heads as u32, self.value_heads as u32, self.stride() as u32, EPS.to_bits()]
    }

    /// All dispatches of a chunk; the mixed output, `[tokens, value_heads * D]`.
    #[allow(clippy::too_many_arguments)]
    fn prefill(
        &self,
        lib: &SoftLibrary,
        projected: &[f32],
        position: usize,
        slot: usize,
        ring: &mut [f32],
        state: &mut [f32],
        seed: u32,
    ) -> Vec<f32> {
        let tokens = projected.len() / self.stride();
        let padded = tokens.next_multiple_of(32);
        let steps = padded as u32 / 32;
        let (heads, shape) = (self.value_heads as u32, self.shape());
        let chunk = chunk(position, tokens, slot);
        let mut u = vec![f32::NAN; padded * self.channels()];
        let a = vec![
            ("projected", read(projected)),
            ("conv_weight", read(&self.conv)),
            ("ring", read(ring)),
            ("u", write(&mut u)),
            ("chunk", read(&chunk)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        let grid = [(2 * self.key_heads + self.value_heads) as u32, steps + 1, 1];
        run(lib, "gdn_convolve", grid, 128, seed, a);
        let mut factors = vec![f32::NAN; steps as usize * self.value_heads * (2 * 1024 + 2 * 256)];
        let b = vec![
            ("projected", read(projected)),
            ("u", read(&u)),
            ("a_log", read(&self.a_log)),
            ("dt_bias", read(&self.dt_bias)),
            ("ring", write(ring)),
            ("factors", write(&mut factors)),
            ("chunk", read(&chunk)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        let o = run(lib, "gdn_factors", [steps + 1, heads, 1], 128, seed, b);
        assert_eq!(o.touched[4].bytes_written(), (tokens.min(4) * self.channels() * 4) as u64);
        let mut out = vec![f32::NAN; padded * self.value_heads * D];
        let c = vec![
            ("u", read(&u)),
            ("factors", read(&factors)),
            ("state", write(state)),
            ("o", write(&mut out)),
            ("chunk", read(&chunk)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        let o = run(lib, "gdn_scan", [2, heads, 1], 128, seed, c);
        // The state of this sequence is read once and written once.
        let bytes = (self.value_heads * D * D * 4) as u64;
        assert_eq!((o.touched[2].bytes_read(), o.touched[2].bytes_written()), (bytes, bytes));
        let mut y = vec![bf16::NAN; tokens * self.value_heads * D];
        let d = vec![
            ("projected", read(projected)),
            ("o", read(&out)),
            ("gain", read(&self.gain)),
            ("y", write(&mut y)),
            ("chunk", read(&chunk)),
            ("shape", Arg::Bytes(cast_slice(&shape))),
        ];
        run(lib, "gdn_gate", [heads, tokens.div_ceil(4) as u32 + 1, 1], 128, seed, d);
        narrow(&y)
    }

    /// The same by the recurrence.
    fn reference(&self, inputs: &mut Vec<Vec<f32>>, projected: &[f32], state: &mut [f64]) -> Vec<f64> {
        let mut out = Vec::new();
        for row in projected.chunks(self.stride()) {
            inputs.push(row.to_vec());
            out.extend(gdn_reference(
                inputs,
                state,
                self.key_heads,
                self.value_heads,
                &self.conv,
                &self.a_log,
                &self.dt_bias,
                &self.gain,
            ));
        }
        out
    }
}

#[test]
fn chunks_continue_each_other() {
    let Some(lib) = library() else { return };
    // (key heads, value heads, tokens of the chunks): tiny and lily-mini, 35B. Chunks shorter than the convolution,
    // of exactly one step, and of more.
    let cases: [(usize, usize, &[usize]); 4] =
        [(2, 4, &[70, 33]), (2, 4, &[32, 2, 1, 3, 40]), (1, 1, &[1, 64]), (16, 32, &[33])];
    for (key_heads, value_heads, chunks) in cases {
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
                let y = layer.prefill(lib, &projected, position, slot, &mut ring, &mut state, seed);
                let what = format!("{key_heads}/{value_heads} heads, {tokens} tokens behind {position}");
                close(&what, &y, &want, 2.0 / 512.0);
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

#[test]
fn outputs_before_rounding_are_those_of_the_recurrence() {
    // As above, but the scan's own f32 outputs, over more steps and with every decay from none to all: nothing is lost
    // in the closed form.
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
        let y = layer.prefill(lib, &projected, 0, 0, &mut ring, &mut state, seed);
        close("outputs", &y, &want, 2.0 / 512.0);
        close("state", &state, &want_state, 1e-5);
    }
}

#[test]
fn the_state_stays_exact_over_many_tokens() {
    let Some(lib) = library() else { return };
    let mut r = Random(21);
    let mut layer = Layer::random(&mut r, 1, 1);
    // A head that forgets a few thousandths a token.
    (layer.a_log, layer.dt_bias) = (vec![-4.0], vec![-1.0]);
    let (mut ring, mut state) = (vec![0f32; 4 * layer.channels()], vec![0f32; D * D]);
    let (mut want_state, mut inputs) = (vec![0f64; D * D], Vec::new());
    let mut position = 0;
    for tokens in [1000, 536] {
        let projected = floats(&mut r, tokens * layer.stride());
        layer.reference(&mut inputs, &projected, &mut want_state);
        layer.prefill(lib, &projected, position, 0, &mut ring, &mut state, 3);
        position += tokens;
    }
    close("state", &state, &want_state, 1e-5);
}
