//! Tools for measurements of layer 1, over standard input and output.
//!
//! * `gate_tool spans`: a JSON string with a text a line in, a JSON array of `[start, end, category, subtype]` a line
//!   out (characters);
//! * `gate_tool schemes`: the names of the national schemes;
//! * `gate_tool check`: `scheme number` a line in, `1` or `0` a line out;
//! * `gate_tool noise FILE...`: spans in files that should have none of a kind, by kind and per 100 KB;
//! * `gate_tool speed FILE...`: time for pieces of 4 kB (about 1,000 tokens) and for whole files.

use std::{
    collections::BTreeMap,
    error::Error,
    io::{self, BufRead, Write},
    time::Instant,
};

use lily_gate::{Detector, DetectorConfig, schemes};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_default();
    let files: Vec<String> = arguments.collect();
    match mode.as_str() {
        "spans" => spans(),
        "schemes" => {
            schemes::ids().for_each(|id| println!("{id}"));
            Ok(())
        }
        "check" => check(),
        "noise" => noise(&files),
        "speed" => speed(&files),
        other => Err(format!("unknown mode {other:?}: spans, schemes, check, noise or speed").into()),
    }
}

fn detector() -> Result<Detector, Box<dyn Error>> {
    Ok(Detector::new(DetectorConfig::default())?)
}

fn spans() -> Result<(), Box<dyn Error>> {
    let detector = detector()?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let text: String = serde_json::from_str(&line?)?;
        let spans = detector.detect(&text);
        let rows: Vec<_> = lily_gate::eval::in_characters(&text, &spans)
            .into_iter()
            .zip(&spans)
            .map(|(found, span)| (found.start, found.end, found.label, span.subtype.clone()))
            .collect();
        serde_json::to_writer(&mut out, &rows)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

fn check() -> Result<(), Box<dyn Error>> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (scheme, number) = line.split_once(' ').ok_or("expected `scheme number`")?;
        let holds = schemes::holds(scheme, number).ok_or_else(|| format!("no scheme {scheme:?}"))?;
        writeln!(out, "{}", u8::from(holds))?;
    }
    Ok(())
}

fn noise(files: &[String]) -> Result<(), Box<dyn Error>> {
    let detector = detector()?;
    let mut bytes = 0usize;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let started = Instant::now();
    for file in files {
        let Ok(text) = std::fs::read_to_string(file) else { continue };
        bytes += text.len();
        for span in detector.detect(&text) {
            *counts.entry(span.category.to_string()).or_default() += 1;
            let line = text[..span.range.start].matches('\n').count() + 1;
            let value = text[span.range.clone()].replace('\n', "\\n");
            println!("{}\t{}\t{file}:{line}\t{value}", span.category, span.subtype.as_deref().unwrap_or(""));
        }
    }
    let hundreds = bytes as f64 / 100_000.0;
    eprintln!("{bytes} bytes, {:.2} s", started.elapsed().as_secs_f64());
    for (category, count) in counts {
        eprintln!("{category}: {count}, {:.3} per 100 KB", count as f64 / hundreds);
    }
    Ok(())
}

fn speed(files: &[String]) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let detector = detector()?;
    println!("start: {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
    let mut pieces = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file)?;
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let mut cut = rest.len().min(4096);
            while !rest.is_char_boundary(cut) {
                cut -= 1;
            }
            let (piece, after) = rest.split_at(cut);
            let started = Instant::now();
            std::hint::black_box(detector.detect(piece));
            pieces.push(started.elapsed().as_secs_f64() * 1e3);
            rest = after;
        }
        let started = Instant::now();
        std::hint::black_box(detector.detect(&text));
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "{file}: {} bytes in {:.1} ms, {:.1} MB/s",
            text.len(),
            seconds * 1e3,
            text.len() as f64 / 1e6 / seconds
        );
    }
    pieces.sort_by(f64::total_cmp);
    if let Some(last) = pieces.len().checked_sub(1) {
        let at = |share: f64| pieces[(last as f64 * share) as usize];
        println!(
            "4 kB pieces: {} p50 {:.3} ms p95 {:.3} ms max {:.3} ms",
            pieces.len(),
            at(0.5),
            at(0.95),
            at(1.0)
        );
    }
    Ok(())
}
