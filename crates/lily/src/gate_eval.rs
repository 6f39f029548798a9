//! `lily gate eval`: how well the Privacy Gate finds what is known to be private.

use std::{fs, path::PathBuf, time::Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use lily_gate::{
    Detector, DetectorConfig,
    eval::{Document, Found, Miss, Scores, category, in_characters, ratio},
};
use serde_json::json;

use crate::output::print;

/// Score layer 1 of the Privacy Gate, or another detector, on texts with known private spans.
///
/// Sets are JSON arrays of presidio's format (`full_text`, `spans` with `entity_type`, `start_position`,
/// `end_position`) or a JSON object a line (`text`, `spans` with `start`, `end`, `label`). Offsets count characters.
#[derive(Debug, Args)]
pub struct GateEvalArgs {
    /// Sets to score on, taken together.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Score these spans instead of the gate's: a JSON array of `{start, end, label}` a line, one for each document.
    #[arg(long, value_name = "FILE")]
    predictions: Option<PathBuf>,

    /// Write the scores to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Show at most so many missed and wrong spans of each label.
    #[arg(long, value_name = "N", default_value_t = 0, env = "LILY_GATE_EVAL_MISSES")]
    misses: usize,
}

/// Runs the command.
pub fn run(args: &GateEvalArgs) -> Result<()> {
    let mut documents = Vec::new();
    for file in &args.files {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        documents.extend(read(&text).with_context(|| format!("{}", file.display()))?);
    }
    let mut times = Vec::new();
    let found = match &args.predictions {
        Some(file) => predictions(file, documents.len())?,
        None => {
            let detector = Detector::new(DetectorConfig::default())?;
            let detect = |document: &Document| {
                let started = Instant::now();
                let spans = detector.detect(&document.text);
                times.push(started.elapsed().as_secs_f64());
                in_characters(&document.text, &spans)
            };
            documents.iter().map(detect).collect()
        }
    };
    let mut scores = Scores::default();
    let mut misses = Vec::new();
    for (index, (document, found)) in documents.iter().zip(&found).enumerate() {
        scores.add(index, document, found, &mut misses);
    }
    print(&report(&scores, &times))?;
    if args.misses > 0 {
        print(&listing(&misses, args.misses))?;
    }
    if let Some(file) = &args.json {
        let value = json!({
            "precision": scores.precision(),
            "span_precision": scores.span_precision(),
            "recall": scores.recall(),
            "seconds": times.iter().sum::<f64>(),
            "scores": scores,
        });
        let text = serde_json::to_string_pretty(&value)? + "\n";
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Documents of either format.
fn read(text: &str) -> Result<Vec<Document>> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text)
            .context("expected a JSON array of documents with `full_text` and `spans`");
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| {
            serde_json::from_str(line)
                .with_context(|| format!("line {}: expected a JSON object with `text` and `spans`", i + 1))
        })
        .collect()
}

fn predictions(file: &PathBuf, documents: usize) -> Result<Vec<Vec<Found>>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let found: Vec<Vec<Found>> = text
        .lines()
        .enumerate()
        .map(|(i, line)| {
            serde_json::from_str(line)
                .with_context(|| format!("{} line {}: expected an array of spans", file.display(), i + 1))
        })
        .collect::<Result<_>>()?;
    if found.len() != documents {
        bail!("{}: {} lines for {documents} documents; one for each is needed", file.display(), found.len());
    }
    Ok(found)
}

fn report(scores: &Scores, times: &[f64]) -> String {
    let mut out = format!(
        "{} documents, {} characters, {} of them private\n\
         precision {:.4} of characters, {:.4} of spans\n\
         recall    {:.4} of characters; {} of {} documents leak something\n",
        scores.documents,
        scores.characters,
        scores.gold,
        scores.precision(),
        scores.span_precision(),
        scores.recall(),
        scores.leaking,
        scores.documents - scores.clean_documents,
    );
    if scores.clean_documents > 0 {
        out += &format!(
            "{} of {} documents without anything private flagged\n",
            scores.clean_flagged, scores.clean_documents
        );
    }
    out += "\nlabel                     spans  covered  touched    typed\n";
    let mut rows: Vec<_> = scores.rows.iter().map(|(label, row)| (label.as_str(), *row)).collect();
    // Kinds that the set does not have are named, so that nobody takes silence for success.
    for kind in ["card", "iban", "national_id", "secret", "email", "phone", "ip", "address", "person"] {
        if !rows.iter().any(|(label, _)| category(label) == Some(kind)) {
            rows.push((kind, lily_gate::eval::Row::default()));
        }
    }
    for (label, row) in rows {
        if row.support == 0 {
            out += &format!("{label:24} {:6}        -        -        -\n", 0);
            continue;
        }
        let share = |part| ratio(part, row.support);
        let typed = if category(label).is_some() {
            format!("{:8.3}", share(row.typed))
        } else {
            "       -".to_owned()
        };
        out += &format!(
            "{label:24} {:6} {:8.3} {:8.3} {typed}\n",
            row.support,
            share(row.covered),
            share(row.touched)
        );
    }
    out += "\nfound                     spans    wrong\n";
    for (label, count) in &scores.reported {
        out += &format!("{label:24} {count:6} {:8}\n", scores.wrong.get(label).copied().unwrap_or(0));
    }
    if !times.is_empty() {
        let total: f64 = times.iter().sum();
        out += &format!(
            "\n{:.1} ms for all, {:.2} MB of characters a second\n",
            total * 1e3,
            scores.characters as f64 / 1e6 / total
        );
    }
    out
}

fn listing(misses: &[Miss], limit: usize) -> String {
    let mut shown = std::collections::BTreeMap::<(&str, &str), usize>::new();
    let mut out = String::from("\n");
    for miss in misses {
        let count = shown.entry((miss.kind, miss.label.as_str())).or_default();
        *count += 1;
        if *count <= limit {
            out += &format!("{} {} in document {}: {:?}\n", miss.kind, miss.label, miss.document, miss.text);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_and_reports() {
        let lines = "{\"text\": \"mail ann@x.org\", \"spans\": [{\"start\": 5, \"end\": 14, \"label\": \"EMAIL_ADDRESS\"}]}\n\n";
        let documents = read(lines).unwrap();
        let array = r#"[{"full_text": "mail ann@x.org", "spans": [{"start_position": 5, "end_position": 14, "entity_type": "EMAIL_ADDRESS"}]}]"#;
        assert_eq!(documents, read(array).unwrap());
        let mut scores = Scores::default();
        scores.add(
            0,
            &documents[0],
            &[Found { start: 5, end: 14, label: "email".to_owned() }],
            &mut Vec::new(),
        );
        let report = report(&scores, &[]);
        assert!(report.contains("EMAIL_ADDRESS"), "{report}");
        assert!(
            report.contains("address                       0"),
            "kinds without support are named: {report}"
        );
        assert!(format!("{:#}", read("{}").unwrap_err()).contains("line 1"));
    }
}
