//! Prints how fast the reference model is on one thread: `cargo run --release -p lily-model --example
//! reference_speed -- DIR [TOKENS]`.

use std::{error::Error, path::Path, sync::Arc, time::Instant};

use lily_model::{Checkpoint, reference::ReferenceModel};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: reference_speed DIR [TOKENS]")?;
    let count: usize = args.next().map_or(Ok(256), |n| n.parse())?;
    let start = Instant::now();
    let weights = Arc::new(Checkpoint::open(Path::new(&dir))?.weights()?);
    println!("load: {:.3} s", start.elapsed().as_secs_f64());
    let model = ReferenceModel::new(weights);
    let vocab = model.weights().config.vocab_size as u32;
    let tokens: Vec<u32> = (0..count as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
    for name in ["first pass, dequantising", "prefill, all logits"] {
        let start = Instant::now();
        model.forward(&mut model.new_state(), &tokens, None);
        println!("{name}: {:.1} tok/s", count as f64 / start.elapsed().as_secs_f64());
    }
    let mut state = model.new_state();
    let start = Instant::now();
    for token in &tokens {
        model.forward_last(&mut state, &[*token]);
    }
    println!("token by token: {:.1} tok/s", count as f64 / start.elapsed().as_secs_f64());
    Ok(())
}
