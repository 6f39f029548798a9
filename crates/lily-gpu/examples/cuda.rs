//! The cuda device by itself: compiling its kernels, comparing them with the software GPU, and measuring a decode step of
//! Qwen3.6-35B-A3B's real shapes with weights made on the GPU.
//!
//! ```text
//! cargo run --release -p lily-gpu --example cuda -- compile ARCH       # into the kernel cache; needs NVRTC, no GPU
//! cargo run --release -p lily-gpu --example cuda -- golden FILE        # every op on the software GPU; needs no GPU
//! cargo run --release -p lily-gpu --example cuda -- check FILE         # every op against that; batches against single tokens; prefill-check
//! cargo run --release -p lily-gpu --example cuda -- check-batches      # the latter alone
//! cargo run --release -p lily-gpu --example cuda -- steps              # a few steps, for a memory checker
//! cargo run --release -p lily-gpu --example cuda -- compare [CONTEXT,...]   # 4 layers against the CPU backend
//! cargo run --release -p lily-gpu --example cuda -- prefill [LAYERS [PROMPT,... [OUT.json]]]   # whole prompts
//! cargo run --release -p lily-gpu --example cuda -- prefill-check      # accuracy of a chunk, layer by layer
//! cargo run --release -p lily-gpu --example cuda -- bench [LAYERS [CONTEXT,... [OUT.json [PART,...]]]]
//! ```

#[cfg(not(target_os = "macos"))]
#[path = "cuda/ablation.rs"]
mod ablation;
#[cfg(not(target_os = "macos"))]
#[path = "cuda/bench.rs"]
mod bench;
#[cfg(not(target_os = "macos"))]
#[path = "cuda/compare.rs"]
mod compare;
#[cfg(not(target_os = "macos"))]
#[path = "cuda/ops.rs"]
mod ops;
#[cfg(not(target_os = "macos"))]
#[path = "cuda/prefill.rs"]
mod prefill;

#[cfg(not(target_os = "macos"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let numbers = |list: &str| list.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>();
    match words.as_slice() {
        ["compile", arch] => {
            for (name, bytes) in lily_gpu::device::cuda::compile_for(arch.parse()?)? {
                println!("{name} for sm_{arch}: {bytes} bytes of machine code");
            }
            Ok(())
        }
        ["golden", file] => ops::golden(file.as_ref()),
        ["check", file] => {
            ops::check(file.as_ref())?;
            ops::check_batches()?;
            prefill::check()
        }
        ["check-batches"] => ops::check_batches(),
        ["steps"] => bench::steps(),
        ["compare", rest @ ..] => compare::run(&numbers(rest.first().copied().unwrap_or("1,300,5000"))?),
        ["prefill-check"] => prefill::check(),
        ["prefill", rest @ ..] => {
            let layers = rest.first().map_or(Ok(40), |l| l.parse())?;
            let prompts = rest.get(1).copied().unwrap_or("512,2048,8192,32768,131072");
            prefill::run(layers, &numbers(prompts)?, rest.get(2).map(|p| p.as_ref()))
        }
        ["bench", rest @ ..] => {
            let layers = rest.first().map_or(Ok(40), |l| l.parse())?;
            let contexts = rest.get(1).copied().unwrap_or("256,4096,32768,131072");
            let out = rest.get(2).filter(|p| **p != "-").map(|p| p.as_ref());
            let parts: Vec<&str> = rest.get(3).map_or(bench::PARTS.to_vec(), |list| list.split(',').collect());
            bench::run(layers, &numbers(contexts)?, out, &parts)
        }
        _ => Err("usage: cuda compile ARCH | golden FILE | check FILE | check-batches | steps | compare [CONTEXT,...] | prefill [LAYERS [PROMPT,... [OUT.json]]] | prefill-check | bench [LAYERS [CONTEXT,... [OUT.json [PART,...]]]]".into()),
    }
}

#[cfg(target_os = "macos")]
fn main() {
    eprintln!("there is no CUDA on macOS");
}
