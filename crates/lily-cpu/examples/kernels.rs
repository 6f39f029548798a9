//! Speed of the kernels on the shapes of Qwen3.6-35B-A3B, against this machine's read bandwidth.
//!
//! `cargo run --release -p lily-cpu --example kernels [threads]`

use std::time::{Duration, Instant};

use lily_cpu::{
    Isa,
    acts::{Acts, Need, Order},
    kernels::{BLOCK, Kernels, RowsRef, Unpacked},
    pool::Pool,
};
use lily_model::{QuantMatrix, Storage, TensorData};

const NIBBLE: Need = Need { nibble: true, byte: false };

/// Runs `f(sample)` over and over for `ms` milliseconds; returns the time that a tenth of the runs stay below. On a
/// machine with other work that is close to an undisturbed run, when runs are shorter than a time slice.
fn tenth(ms: u64, mut f: impl FnMut(usize)) -> f64 {
    let end = Instant::now() + Duration::from_millis(ms);
    let mut times = Vec::new();
    while times.len() < 3 || Instant::now() < end {
        let start = Instant::now();
        f(times.len());
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

/// Bytes a second of a plain sum on all threads, over 16 MiB at a time.
fn read_bandwidth(pool: &mut Pool, data: &[u64]) -> f64 {
    let mut states = vec![0u64; pool.threads()];
    let part = 1 << 21;
    let time = tenth(600, |i| {
        let data = &data[i % (data.len() / part) * part..][..part];
        let mut pieces: Vec<&[u64]> = data.chunks(1 << 14).collect();
        pool.run_items(
            &mut states,
            &mut pieces,
            |_| {},
            |sum, _, piece| {
                let mut acc = [0u64; 8];
                for line in piece.chunks_exact(8) {
                    for (a, x) in acc.iter_mut().zip(line) {
                        *a = a.wrapping_add(*x);
                    }
                }
                *sum = sum.wrapping_add(acc.iter().fold(0, |a, b| a ^ b));
            },
        )
        .unwrap();
    });
    std::hint::black_box(states);
    part as f64 * 8.0 / time
}

/// Matrices of random bits on one piece of memory that is much larger than any cache.
fn matrix(storage: &std::sync::Arc<Storage>, at: usize, rows: usize, cols: usize) -> QuantMatrix {
    let weight = TensorData::new(storage, at, rows * cols / 8).unwrap();
    let groups = rows * cols / 64;
    let scale = vec![0x3c00u16; groups];
    QuantMatrix {
        experts: 1,
        rows,
        cols,
        bits: 4,
        group_size: 64,
        weight,
        scales: TensorData::from_slice(&scale),
        biases: TensorData::from_slice(&scale),
    }
}

fn acts(k: &Kernels, n: usize, cols: usize) -> Acts {
    let mut acts = Acts::new(n, cols, NIBBLE).unwrap();
    acts.reset(n, cols);
    for mut tile in acts.tiles_mut() {
        for t in 0..tile.tokens {
            let x: Vec<f32> = (0..cols).map(|i| ((i * 37 + t * 11) % 101) as f32 / 50.0 - 1.0).collect();
            tile.quantize(k, t, &x);
        }
    }
    acts
}

fn main() {
    let threads = std::env::args().nth(1).map_or(0, |a| a.parse().expect("a number of threads"));
    let threads = if threads == 0 { std::thread::available_parallelism().unwrap().get() } else { threads };
    let mut pool = Pool::new(threads).unwrap();
    let words: Vec<u64> = (0..1u64 << 27).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    println!("{threads} threads; available: {:?}", Isa::available());

    let mut states = vec![(); threads];
    let mut items = vec![(); threads];
    let time = tenth(300, |_| {
        for _ in 0..100 {
            pool.run_items(&mut states, &mut items, |_| {}, |_, _, _| {}).unwrap();
        }
    });
    println!("empty dispatch: {:.2} us", time / 100.0 * 1e6);
    println!("read bandwidth: {:.1} GB/s", read_bandwidth(&mut pool, &words) / 1e9);
    let storage = std::sync::Arc::new(Storage::Owned(words));

    let only = std::env::args().nth(2);
    for isa in Isa::available().into_iter().filter(|i| only.as_ref().is_none_or(|o| o == i.name())) {
        let k = Kernels::of(isa);
        println!("\n{}: GEMV, 16 MiB at a time", isa.name());
        for cols in [2048, 4096, 512] {
            let rows = (16 << 20) / (cols / 2);
            let many: Vec<QuantMatrix> = (0..64).map(|i| matrix(&storage, i << 24, rows, cols)).collect();
            let x = acts(k, 1, cols);
            let mut y = vec![0.0f32; rows];
            let chunk = ((64 << 10) / (cols * 9 / 16)).next_multiple_of(16);
            let time = tenth(600, |i| {
                let dense = many[i % many.len()].dense();
                pool.run_segments(
                    &mut states,
                    &mut [&mut y[..]],
                    chunk,
                    |_| {},
                    |_, _, row, out| {
                        k.gemv(&RowsRef::new(&dense, row, out.len()), &x.tile(0, Order::Nibble), out);
                    },
                )
                .unwrap();
            });
            println!("  {cols} columns: {:.1} GB/s", many[0].byte_len() as f64 / time / 1e9);
        }
        println!("  read bandwidth: {:.1} GB/s", {
            let data: Vec<u64> = bytemuck::cast_slice(&storage.bytes()[..1 << 28]).to_vec();
            read_bandwidth(&mut pool, &data) / 1e9
        });
        // Everything in the caches: what the arithmetic alone can do.
        for cols in [64, 128, 256, 512, 2048] {
            let rows = (1 << 19) / cols;
            let m = matrix(&storage, 0, rows, cols);
            let (x, mut y, dense) = (acts(k, 1, cols), vec![0.0f32; rows], m.dense());
            let time = tenth(200, |_| {
                for _ in 0..5 {
                    k.gemv(&RowsRef::new(&dense, 0, rows), &x.tile(0, Order::Nibble), &mut y);
                }
            });
            let bytes = m.byte_len() as f64 * 5.0;
            println!("  {cols} columns from cache, one thread: {:.1} GB/s", bytes / time / 1e9);
        }

        for cols in [2048, 512] {
            println!("{}: GEMM of {cols} columns, one thread", isa.name());
            for tokens in [1, 2, 4, 8, 12, 16, 96] {
                let m = matrix(&storage, 0, BLOCK, cols);
                let x = acts(k, tokens, cols);
                let mut unpacked = Unpacked::new(cols).unwrap();
                let mut out = vec![0.0; 12 * BLOCK];
                let dense = m.dense();
                let rows = RowsRef::new(&dense, 0, BLOCK);
                let rows_groups = cols / 64;
                // As the model does it: 8 groups of 32 rows at a time.
                let unpack = tenth(100, |_| {
                    for g in (0..rows_groups).step_by(8) {
                        k.unpack(&rows.columns(g, 8), &mut unpacked);
                    }
                });
                let tiles = tenth(200, |_| {
                    for g in (0..rows_groups).step_by(8) {
                        for i in 0..x.tiles().count {
                            k.tile(&unpacked, &x.tile(i, Order::Nibble), g, None, &mut out);
                        }
                    }
                });
                let flop = 2.0 * (tokens * BLOCK * cols) as f64 / 1e9;
                println!(
                    "  {tokens} tokens: {:.0} GFLOP/s, with unpacking ({:.1} us) {:.0}",
                    flop / tiles,
                    unpack * 1e6,
                    flop / (tiles + unpack)
                );
            }
        }
    }
}
