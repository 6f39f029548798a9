//! The Metal host on a machine that is no Mac: everything but the objc2 calls, over the software GPU.

mod driver;

use std::sync::{Arc, Mutex};

use driver::{Log, SoftDriver};
use lily_gpu::{
    Chosen, Device, Draw, GpuModel, GpuOptions, LogitsWanted,
    device::{
        DeviceBuffer, Region, Ticket,
        metal::MetalDevice,
        soft::{self, SoftDevice, SoftOptions},
    },
    plan::{BufferKind, Plan, PlanBuilder, Scalar},
};
use lily_model::{LayerType, ModelConfig, Storage, synthetic::synthetic_weights};
use lily_msl::soft::SoftLibrary;

/// The kernels, or nothing where there is no C++ compiler.
fn library() -> Option<Arc<SoftLibrary>> {
    match soft::library(false) {
        Ok(library) => Some(library),
        Err(e) if e.to_string().contains("no C++ compiler") => {
            println!("skipped: no C++ compiler");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn device(seed: u64) -> Option<(MetalDevice<SoftDriver>, Arc<Mutex<Log>>)> {
    let (driver, log) = SoftDriver::new(library()?, seed);
    Some((MetalDevice::new(driver).unwrap(), log))
}

fn small() -> ModelConfig {
    ModelConfig {
        hidden_size: 128,
        num_hidden_layers: 2,
        layer_types: vec![LayerType::LinearAttention, LayerType::FullAttention],
        vocab_size: 500,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        linear_num_key_heads: 1,
        linear_num_value_heads: 2,
        num_experts: 8,
        num_experts_per_tok: 2,
        moe_intermediate_size: 64,
        shared_expert_intermediate_size: 64,
        ..ModelConfig::qwen3_6_35b_a3b(2)
    }
}

/// Prefill, a batch, greedy steps with ids on the device: bit for bit what the soft device computes, though steps run late
/// and shuffled here.
#[test]
fn a_model_runs_as_on_the_soft_device() {
    let Some((mut metal, log)) = device(3) else { return };
    a_model(metal, &log, 13);
    // Every level a command buffer of its own: two steps of several under way, in order.
    (metal, _) = device(4).unwrap();
    metal.set_most_groups(0);
    let log = metal.driver().log();
    a_model(metal, &log, 150);
}

fn a_model(metal: MetalDevice<SoftDriver>, log: &Mutex<Log>, least: u64) {
    let weights = Arc::new(synthetic_weights(&small(), 5));
    let soft = SoftDevice::with_library(library().unwrap(), SoftOptions { checked: false, seed: 0 });
    let run = |device: Box<dyn Device>| {
        let mut m = GpuModel::new(weights.clone(), device, GpuOptions::default()).unwrap();
        let mut all = Vec::new();
        let (a, b) = (m.new_sequence(100).unwrap(), m.new_sequence(40).unwrap());
        let mut out = Vec::new();
        m.prefill(a, &[1, 77, 300, 4, 4], LogitsWanted::All, &mut out).unwrap();
        all.append(&mut out);
        m.prefill(b, &[9], LogitsWanted::Last, &mut out).unwrap();
        all.append(&mut out);
        m.decode(&[(b, 12), (a, 499)], &mut out).unwrap();
        all.append(&mut out);
        let mut ids = Vec::new();
        let mut each = |step: Chosen<'_>| {
            ids.push(step.ids.to_vec());
            true
        };
        m.decode_run(&[(a, 3), (b, 8)], &[Some(Draw::GREEDY); 2], 9, 490, &mut each).unwrap();
        m.decode(&[(a, ids[8][0])], &mut out).unwrap();
        all.append(&mut out);
        (all.iter().map(|x| x.to_bits()).collect::<Vec<u32>>(), ids)
    };
    let (want, got) = (run(Box::new(soft)), run(Box::new(metal)));
    assert_eq!(want.1, got.1);
    assert!(want.1.iter().flatten().any(|&id| id != want.1[0][0]), "every id is the same: {:?}", want.1);
    assert_eq!(want.0, got.0);
    let log = log.lock().unwrap();
    // A chunk of either sequence, a step of both, nine greedy steps, one step more.
    assert!(log.started >= least && log.done == log.started, "{} of {} steps", log.done, log.started);
    if least == 13 {
        assert_eq!(log.started, 13);
        // GDN layer: 6 levels or fewer, attention layer 7, and those around them.
        assert!((10..=18).contains(&log.barriers) && log.dispatches > log.barriers, "{log:?}");
    } else {
        assert_eq!(log.barriers, 0, "one level a command buffer");
    }
}

/// A Mac with tensor operations asks for the kernels that need them, and computes what the soft device does with them.
#[test]
fn a_model_runs_on_tensor_operations() {
    if library().is_none() {
        return;
    }
    let kernels = soft::library_with(false, true).unwrap();
    let (mut driver, log) = SoftDriver::new(kernels.clone(), 5);
    driver.facts.tensor_ops = true;
    let metal = MetalDevice::new(driver).unwrap();
    let soft = SoftDevice::with_library(kernels, SoftOptions { checked: false, seed: 0 });
    let weights = Arc::new(synthetic_weights(&small(), 5));
    let tokens: Vec<u32> = (0..45).map(|i| i * 41 % 500).collect();
    let run = |device: Box<dyn Device>| {
        assert!(device.facts().tensor_ops);
        let mut m = GpuModel::new(weights.clone(), device, GpuOptions::default()).unwrap();
        let (s, mut out) = (m.new_sequence(50).unwrap(), Vec::new());
        m.prefill(s, &tokens, LogitsWanted::All, &mut out).unwrap();
        out.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
    };
    assert_eq!(run(Box::new(metal)), run(Box::new(soft)));
    assert_eq!(log.lock().unwrap().started, 1);
    // Kernels that the compiler left out are missed at the start.
    let (mut driver, _) = SoftDriver::new(library().unwrap(), 5);
    driver.facts.tensor_ops = true;
    let error = MetalDevice::new(driver).unwrap_err().to_string();
    assert!(error.contains("_tensor"), "{error}");
}

/// One of a step's command buffers fails: so does the step, and the others are waited for all the same.
#[test]
fn a_part_of_a_step_that_fails_fails_the_step() {
    let Some((mut d, log)) = device(10) else { return };
    d.set_most_groups(0);
    let source = region(&mut d, VALUES as u64 * 4);
    let [best, ids, out] = rest(&mut d);
    let plan = d.prepare(Arc::new(argmax(BufferKind::State)), &[source, best, ids, out]).unwrap();
    log.lock().unwrap().fail = vec![3];
    let t: Vec<Ticket> = (0..2).map(|_| d.submit(plan, &[]).unwrap()).collect();
    d.wait(t[0]).unwrap();
    let error = d.wait(t[1]).unwrap_err().to_string();
    assert!(error.contains("step 3 was made to fail"), "{error}");
    let log = log.lock().unwrap();
    assert_eq!((log.started, log.done), (4, 4));
}

const VALUES: usize = 3000;

/// The largest of VALUES floats, in blocks of 512: two levels.
fn argmax(kind: BufferKind) -> Plan {
    let mut b = PlanBuilder::new();
    let blocks = VALUES.div_ceil(512);
    let values = b.buffer("values", VALUES * 4, kind);
    let best = b.buffer("best", blocks * 4, BufferKind::Scratch);
    let ids = b.buffer("ids", blocks * 4, BufferKind::Scratch);
    let out = b.buffer("out", 4, BufferKind::TokenSlots);
    let shape: Vec<(&'static str, Scalar)> =
        [("vocab", VALUES), ("valid", VALUES), ("block", 512), ("blocks", blocks)]
            .map(|(name, n)| (name, Scalar::U32(n as u32)))
            .to_vec();
    b.op("blocks", "argmax_blocks")
        .read_all("logits", "float", values)
        .write("best_logits", "float", best, blocks * 4)
        .write("best_ids", "uint", ids, blocks * 4)
        .inline("shape", "ArgmaxShape", shape.clone())
        .run([blocks, 1, 1], 256);
    b.op("final", "argmax_final")
        .read_all("best_logits", "float", best)
        .read_all("best_ids", "uint", ids)
        .write("ids", "uint", out, 4)
        .inline("shape", "ArgmaxShape", shape)
        .run([1, 1, 1], 256);
    b.finish("argmax")
}

fn values(largest: usize) -> Vec<u8> {
    let floats: Vec<f32> =
        (0..VALUES).map(|i| if i == largest { 9.0 } else { (i * 7919 % 1000) as f32 / 1000.0 }).collect();
    bytemuck::cast_slice(&floats).to_vec()
}

fn region(device: &mut dyn Device, bytes: u64) -> Option<Region> {
    let buffer = device.allocate("test", bytes).unwrap();
    Some(Region { buffer, offset: 0, len: bytes })
}

/// Regions of [`argmax`] besides its values.
fn rest(device: &mut dyn Device) -> [Option<Region>; 3] {
    [region(device, 64), region(device, 64), region(device, 4)]
}

fn result(device: &mut dyn Device, out: Option<Region>) -> u32 {
    let mut bytes = [0; 4];
    device.read(out.unwrap().buffer, 0, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

#[test]
fn inputs_of_steps_under_way_do_not_mix() {
    let Some((mut d, log)) = device(1) else { return };
    let [best, ids, out] = rest(&mut d);
    let plan = d.prepare(Arc::new(argmax(BufferKind::Input)), &[None, best, ids, out]).unwrap();
    let mut tickets: Vec<Ticket> = Vec::new();
    for step in 0..7usize {
        tickets.push(d.submit(plan, &values(100 * step + 1)).unwrap());
        // The step before has only now been waited for, with the inputs of this one in place.
        if step > 0 {
            d.wait(tickets[step - 1]).unwrap();
            assert_eq!(log.lock().unwrap().done, step as u64);
            assert_eq!(result(&mut d, out), 100 * (step as u32 - 1) + 1);
        }
    }
    let short = d.submit(plan, &values(0)[4..]).unwrap_err().to_string();
    assert!(short.contains("11996 bytes") && short.contains("12000"), "{short}");
    // A third submission waits for the first.
    for _ in 0..3 {
        d.submit(plan, &values(5)).unwrap();
    }
    let log = log.lock().unwrap();
    assert_eq!(log.started - log.done, 2);
}

#[test]
fn the_host_waits_before_it_changes_what_a_step_uses() {
    let Some((mut d, log)) = device(2) else { return };
    let source = region(&mut d, VALUES as u64 * 4);
    let [best, ids, out] = rest(&mut d);
    let plan = d.prepare(Arc::new(argmax(BufferKind::State)), &[source, best, ids, out]).unwrap();
    let source = source.unwrap();
    let started = |d: &mut MetalDevice<SoftDriver>, largest| {
        d.write(source.buffer, 0, &values(largest)).unwrap();
        d.submit(plan, &[]).unwrap();
        let log = log.lock().unwrap();
        assert_eq!(log.done + 1, log.started);
    };
    started(&mut d, 17);
    d.write(source.buffer, 0, &values(18)).unwrap();
    assert_eq!(result(&mut d, out), 17);
    started(&mut d, 19);
    d.zero(source).unwrap();
    assert_eq!(result(&mut d, out), 19);
    started(&mut d, 20);
    let other = region(&mut d, source.len).unwrap();
    d.copy(other, source).unwrap();
    assert_eq!(result(&mut d, out), 20);
    started(&mut d, 21);
    d.release(source.buffer);
    assert_eq!(result(&mut d, out), 21);
    let gone = d.submit(plan, &[]).unwrap_err().to_string();
    assert!(gone.contains("released"), "{gone}");
    // Memory that no step uses is not waited for.
    let again = d.prepare(Arc::new(argmax(BufferKind::State)), &[Some(other), best, ids, out]).unwrap();
    d.submit(again, &[]).unwrap();
    let unrelated = region(&mut d, 64).unwrap();
    d.write(unrelated.buffer, 0, &[1; 64]).unwrap();
    d.release(unrelated.buffer);
    let under_way = |log: &Log| log.started - log.done;
    assert_eq!(under_way(&log.lock().unwrap()), 1);
    // A device that goes away waits for its steps.
    drop(d);
    let log = log.lock().unwrap();
    assert_eq!(log.done, log.started);
}

#[test]
fn a_failed_step_fails_those_started_after_it() {
    let Some((mut d, log)) = device(4) else { return };
    let source = region(&mut d, VALUES as u64 * 4);
    let [best, ids, out] = rest(&mut d);
    let plan = d.prepare(Arc::new(argmax(BufferKind::State)), &[source, best, ids, out]).unwrap();
    log.lock().unwrap().fail = vec![2];
    let t: Vec<Ticket> = (0..3).map(|_| d.submit(plan, &[]).unwrap()).collect();
    d.wait(t[0]).unwrap();
    for ticket in [t[1], t[2], t[1]] {
        let error = d.wait(ticket).unwrap_err().to_string();
        assert!(error.contains("made to fail"), "{error}");
    }
    d.wait(t[0]).unwrap();
    // What is started after the failure was seen is on its own.
    let next = d.submit(plan, &[]).unwrap();
    d.wait(next).unwrap();
    assert!(d.wait(Ticket(next.0 + 1)).unwrap_err().to_string().contains("never given out"));
}

fn pages(bytes: &[u8]) -> Arc<Storage> {
    let mut map = memmap2::MmapMut::map_anon(bytes.len()).unwrap();
    map.copy_from_slice(bytes);
    Arc::new(Storage::Anonymous(map.make_read_only().unwrap()))
}

#[test]
fn mapped_files_are_used_in_place_through_windows() {
    let Some(library) = library() else { return };
    let (mut driver, log) = SoftDriver::new(library, 6);
    driver.facts.largest_buffer = 64 << 10;
    let mut d = MetalDevice::new(driver).unwrap();
    // Eleven tensors of 12,000 bytes one after the other: 132,000 bytes, over two buffers' worth.
    let file: Vec<u8> = (0..11).flat_map(|i| values(200 * i + 7)).collect();
    let storage = pages(&file);
    let imported = d.import("weights", &storage).unwrap().expect("starts at a page");
    let wrapped = log.lock().unwrap().wrapped.clone();
    assert!(wrapped.len() > 2 && wrapped.iter().all(|w| w.1 <= 64 << 10), "{wrapped:?}");
    assert_eq!(wrapped[0].0, storage.bytes().as_ptr() as u64);
    assert_eq!(d.allocated(), 0);
    let [best, ids, out] = rest(&mut d);
    for i in 0..11u64 {
        let tensor = Region { buffer: imported, offset: i * 12_000, len: 12_000 };
        let plan = d.prepare(Arc::new(argmax(BufferKind::Weight)), &[Some(tensor), best, ids, out]).unwrap();
        let ticket = d.submit(plan, &[]).unwrap();
        d.wait(ticket).unwrap();
        assert_eq!(result(&mut d, out), 200 * i as u32 + 7);
        d.discard(plan);
    }
    let mut bytes = [0; 4];
    d.read(imported, 12_000 + 207 * 4, &mut bytes).unwrap();
    assert_eq!(f32::from_le_bytes(bytes), 9.0);
    for error in [
        d.write(imported, 0, &[0]).unwrap_err(),
        d.zero(Region { buffer: imported, offset: 0, len: 4 }).unwrap_err(),
        d.read(imported, file.len() as u64 - 3, &mut bytes).unwrap_err(),
        d.allocate("too large", (64 << 10) + 1).unwrap_err(),
        // A plan that would write it.
        d.prepare(
            Arc::new(argmax(BufferKind::Weight)),
            &[best, Some(Region { buffer: imported, offset: 0, len: 64 }), ids, out],
        )
        .unwrap_err(),
    ] {
        assert!(!error.to_string().is_empty());
        println!("{error}");
    }
    d.release(imported);
    assert_eq!(log.lock().unwrap().resident.len(), 3);
    assert_eq!(Arc::strong_count(&storage), 1);

    // Memory that shares its pages with others is not wrapped.
    let owned = Arc::new(Storage::Owned(vec![0u64; 2049]));
    assert_eq!(d.import("weights", &owned).unwrap(), None);
    static BYTES: [u8; 5000] = [0; 5000];
    assert_eq!(d.import("weights", &Arc::new(Storage::Static(&BYTES))).unwrap(), None);
}

#[test]
fn every_buffer_is_resident_while_it_lives() {
    let Some((mut d, log)) = device(7) else { return };
    let buffers: Vec<DeviceBuffer> = (0..70).map(|_| d.allocate("test", 100).unwrap()).collect();
    let sets = |log: &Arc<Mutex<Log>>| {
        let log = log.lock().unwrap();
        let mut sets: Vec<usize> = log.resident.values().copied().collect();
        sets.sort_unstable();
        (0..4).map(|s| sets.iter().filter(|&&x| x == s).count()).collect::<Vec<_>>()
    };
    assert_eq!(sets(&log), vec![32, 32, 6, 0]);
    assert_eq!(d.allocated(), 7000);
    buffers[..40].iter().for_each(|&b| d.release(b));
    buffers[..40].iter().for_each(|&b| d.release(b)); // unknown by now
    assert_eq!(sets(&log), vec![0, 24, 6, 0]);
    (0..10).for_each(|_| assert!(d.allocate("test", 1).is_ok()));
    assert_eq!(sets(&log), vec![10, 24, 6, 0]);
    assert!(d.read(buffers[0], 0, &mut [0]).is_err());
    assert!(d.read(buffers[50], 100, &mut [0]).is_err() && d.read(buffers[50], u64::MAX, &mut [0]).is_err());
    let mut zeros = [1; 100];
    d.read(buffers[50], 0, &mut zeros).unwrap();
    assert_eq!(zeros, [0; 100]);
}

#[test]
fn what_a_device_cannot_run_is_an_error_at_the_start() {
    let Some(library) = library() else { return };
    let (mut driver, _) = SoftDriver::new(library, 8);
    driver.most_threads = 200;
    let mut d = MetalDevice::new(driver).unwrap();
    let source = region(&mut d, VALUES as u64 * 4);
    let [best, ids, out] = rest(&mut d);
    let plan = Arc::new(argmax(BufferKind::State));
    let error = d.prepare(plan.clone(), &[source, best, ids, out]).unwrap_err().to_string();
    assert!(error.contains("argmax_blocks") && error.contains("256") && error.contains("200"), "{error}");
    for (regions, part) in [
        (vec![source, best, ids], "no memory for buffer out"),
        (vec![None, best, ids, out], "no memory for buffer values"),
        (vec![best, best, ids, out], "64 bytes, not 12000"),
    ] {
        let error = d.prepare(plan.clone(), &regions).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    // An argument in the wrong place does not fit the manifest.
    let mut wrong = argmax(BufferKind::State);
    wrong.ops[0].args.swap(1, 2);
    let error = d.prepare(Arc::new(wrong), &[source, best, ids, out]).unwrap_err().to_string();
    assert!(error.contains("best_ids") && error.contains("best_logits"), "{error}");
    drop(d);
    // Ops and levels that do not belong together.
    let Some((mut d, _)) = device(9) else { return };
    let source = region(&mut d, VALUES as u64 * 4);
    let [best, ids, out] = rest(&mut d);
    for (levels, part) in [
        (vec![vec![0]], "op 1 is in no level"),
        (vec![vec![0], vec![1], vec![0]], "op 0 is in no or two levels"),
        (vec![vec![0], vec![1, 2]], "op 2 is in no or two levels"),
    ] {
        let mut plan = argmax(BufferKind::State);
        plan.levels = levels;
        let error = d.prepare(Arc::new(plan), &[source, best, ids, out]).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
