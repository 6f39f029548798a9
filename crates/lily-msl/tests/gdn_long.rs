//! The GDN state after 32,768 tokens, 28,672 of them in chunks and 4,096 in decode steps, against the recurrence in f64.
//! The library is not checked, so that this takes seconds; `every_kernel` has the same kernels watched.

mod common;

use common::{device::*, gdn::Layer, *};
use lily_msl::soft::SoftLibrary;

const D: usize = 128;
const CHUNK: usize = 2048;
const CHUNKS: usize = 14;
const STEPS: usize = 4096;

#[test]
fn the_state_stays_exact_over_32k_tokens() {
    let Some(compiler) = compiler() else { return };
    let text = "#include \"gdn_prefill.metal\"\n#include \"gdn_decode.metal\"\n";
    let lib = SoftLibrary::build(&unit("both.metal", text, &KERNELS), &compiler, false)
        .unwrap_or_else(|e| panic!("{e}"));
    let mut r = Random(21);
    let mut layer = Layer::random(&mut r, 1, 3);
    // Heads that forget a few thousandths, a few hundredths and most of their state a token.
    (layer.a_log, layer.dt_bias) = (vec![-4.0, -1.0, 1.5], vec![-1.0, -1.0, 0.0]);
    let size = layer.value_heads * D * D;
    let (mut ring, mut state) = (vec![0f32; 4 * layer.channels()], vec![0f32; size]);
    let (mut want_state, mut inputs) = (vec![0f64; size], Vec::new());
    let mut position = 0;
    let mut worst = 0f64;
    let compare = |what: &str, state: &[f32], want: &[f64]| -> f64 {
        let mut worst = 0f64;
        for (head, (s, w)) in state.chunks(D * D).zip(want.chunks(D * D)).enumerate() {
            close(&format!("{what}, head {head}"), s, w, 2e-5);
            let scale = (w.iter().map(|w| w * w).sum::<f64>() / w.len() as f64).sqrt();
            worst = s.iter().zip(w).fold(worst, |m, (&s, w)| m.max((s as f64 - w).abs() / scale));
        }
        worst
    };
    for chunk in 0..CHUNKS {
        let projected = floats(&mut r, CHUNK * layer.stride());
        let want = layer.reference(&mut inputs, &projected, &mut want_state);
        inputs.drain(..inputs.len() - 3);
        let (_, y) = layer.prefill(&lib, &projected, position, 0, &mut ring, &mut state, 0);
        position += CHUNK;
        close(&format!("outputs of chunk {chunk}"), &y, &want, 5e-5);
        worst = worst.max(compare(&format!("state at {position}"), &state, &want_state));
    }
    println!("{position} tokens in chunks: the state is off by {worst:.1e} of its size at most");
    for step in 0..STEPS {
        let projected = floats(&mut r, layer.stride());
        let want = layer.reference(&mut inputs, &projected, &mut want_state);
        inputs.remove(0);
        let y = layer.step(&lib, &projected, position, &mut ring, &mut state, 0);
        position += 1;
        if step % 64 == 0 || step + 1 == STEPS {
            close(&format!("output at {position}"), &y, &want, 5e-5);
        }
    }
    let worst = compare(&format!("state at {position}"), &state, &want_state);
    println!("{position} tokens, the last {STEPS} by steps: off by {worst:.1e}");
    assert_eq!(position, 32_768);
}
