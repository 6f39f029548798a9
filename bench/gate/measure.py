"""All figures of the Privacy Gate's layer 1, written to bench/results/gate-*.json.

    python bench/gate/measure.py --tool target/release/examples/gate_tool --lily target/release/lily --seed 4711 \\
        --secret-rules RULES.toml --sources DIRECTORY... --only synthetic addresses secrets noise speed audit

`--secret-rules` is a gitleaks configuration and `--sources` are folders of ordinary code and logs; neither is part of this repository.
Without them those parts are left out.
"""

import argparse
import collections
import importlib.util
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
ENDINGS = {".rs", ".py", ".js", ".ts", ".c", ".h", ".go", ".java", ".md", ".toml", ".json", ".yml", ".yaml", ".sh", ".log", ".txt", ".html", ".css"}


def save(name, value):
    path = RESULTS / f"gate-{name}.json"
    path.write_text(json.dumps(value, indent=1) + "\n")
    print("wrote", path)


def drawn(script, *arguments):
    file = pathlib.Path(tempfile.mkdtemp()) / "set.jsonl"
    with file.open("w") as out:
        subprocess.run([sys.executable, "-W", "ignore", str(HERE / script), *arguments], stdout=out, stderr=subprocess.DEVNULL, check=True)
    return file


def spans(tool, texts):
    """For each text its spans as (start, end, category, kind)."""
    lines = "".join(json.dumps(t) + "\n" for t in texts)
    answer = subprocess.run([tool, "spans"], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(answer) == len(texts), "one line for each text"
    return [json.loads(line) for line in answer]


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def twins(tool, documents):
    """Share of card and IBAN twins that are masked: wholly, and at least half."""
    counts = collections.Counter()
    for document, found in zip(documents, spans(tool, [d["text"] for d in documents])):
        marked = {i for start, end, *_ in found for i in range(start, end)}
        for span in document["spans"]:
            if span["label"].startswith("TWIN_"):
                places = range(span["start"], span["end"])
                share = sum(i in marked for i in places) / len(places)
                counts[span["label"], "all"] += 1
                counts[span["label"], "whole"] += share == 1
                counts[span["label"], "half"] += share >= 0.5
    return {f"{label} {kind}": n for (label, kind), n in sorted(counts.items())}


def by_locale(tool, documents):
    """For each locale its addresses: how many, how many covered wholly, and at least half. Blanks need not be covered."""
    counts = collections.defaultdict(lambda: [0, 0, 0])
    for document, found in zip(documents, spans(tool, [d["text"] for d in documents])):
        marked = {i for start, end, *_ in found for i in range(start, end)}
        for span in document["spans"]:
            if span["label"] == "STREET_ADDRESS":
                places = [i for i in range(span["start"], span["end"]) if not document["text"][i].isspace()]
                share = sum(i in marked for i in places) / len(places)
                counts[document["locale"]] = [a + b for a, b in zip(counts[document["locale"]], (1, share == 1, share >= 0.5))]
    return dict(sorted(counts.items()))


SETS = {
    "known": ["generate.py", "--documents", "4000", "--locales", "known"],
    "held-out": ["generate.py", "--documents", "4000", "--locales", "held-out"],
    "unseen": ["generate.py", "--documents", "2000", "--locales", "unseen"],
    "other-scripts": ["generate.py", "--documents", "2000", "--locales", "other-scripts"],
    "independent": ["independent.py", "--documents", "4000"],
    "world": ["world.py", "--set", "held-out", "--documents", "200"],
    "world-mimesis": ["world.py", "--source", "mimesis", "--documents", "200"],
    "clean": ["generate.py", "--negatives", "2000"],
    "world-clean": ["world.py", "--negatives", "200"],
}


def synthetic(arguments):
    for name, (script, *options) in SETS.items():
        if arguments.sets and name not in arguments.sets:
            continue
        file = drawn(script, "--seed", str(arguments.seed), *options)
        out = file.with_suffix(".json")
        print(f"\n=== {name}", flush=True)
        subprocess.run([arguments.lily, "gate", "eval", str(file), "--json", str(out), "--misses", str(arguments.misses)], check=True)
        report = {"set": name, "seed": arguments.seed, **json.loads(out.read_text())}
        if not name.endswith("clean"):
            documents = read(file)
            report["twins"] = twins(arguments.tool, documents)
            report["addresses_by_locale"] = by_locale(arguments.tool, documents)
            print(report["twins"], report["addresses_by_locale"], sep="\n")
        save(f"synthetic-{name}", report)


def addresses(arguments):
    """Street addresses alone, by locale: needs no `lily`. `precision` is the share of characters called an address that are private."""
    for name, (script, *options) in SETS.items():
        if name.endswith("clean") or arguments.sets and name not in arguments.sets:
            continue
        documents = read(drawn(script, "--seed", str(arguments.seed), *options))
        marked = wrong = 0
        for document, found in zip(documents, spans(arguments.tool, [d["text"] for d in documents])):
            gold = {i for span in document["spans"] for i in range(span["start"], span["end"])}
            places = {i for start, end, category, _ in found if category == "address" for i in range(start, end)}
            marked, wrong = marked + len(places), wrong + len([i for i in places - gold if not document["text"][i].isspace()])
        rows = by_locale(arguments.tool, documents)
        total = [sum(column) for column in zip(*rows.values())]
        print(name, f"{total[1] / total[0]:.3f}", f"precision {1 - wrong / marked:.4f}", rows)
        save(f"addresses-{name}", {"seed": arguments.seed, "columns": ["all", "whole", "half"], "precision": 1 - wrong / marked, "total": total, "locales": rows})


def secrets(arguments):
    lists = {"secrets": arguments.secret_rules}
    if importlib.util.find_spec("detect_secrets"):
        lists["secrets-second-list"] = "detect-secrets"
    for name, rules in lists.items():
        if rules:
            secrets_of(arguments, name, rules)


def secrets_of(arguments, name, rules):
    documents = read(drawn("secrets.py", rules, "--seed", str(arguments.seed), "--each", "10"))
    total, right, missed = collections.Counter(), collections.Counter(), {}
    for document, found in zip(documents, spans(arguments.tool, [d["text"] for d in documents])):
        gold = document["spans"][0]
        marked = {i for start, end, category, _ in found if category == "secret" for i in range(start, end)}
        whole = all(i in marked for i in range(gold["start"], gold["end"]))
        total[document["kind"]] += 1
        right[document["kind"]] += whole
        if not whole:
            missed.setdefault(document["kind"], document["text"][:160])
    recall = right.total() / total.total()
    print(f"secrets: {right.total()} of {total.total()} ({recall:.4f}), {len(total)} kinds, all of {sum(right[k] == total[k] for k in total)}")
    for kind, text in sorted(missed.items()):
        print(f"  {kind}: {right[kind]} of {total[kind]}, such as {text!r}")
    # The drawn strings look like secrets, so they are not kept.
    kinds = {kind: [right[kind], total[kind]] for kind in sorted(total)}
    save(name, {"seed": arguments.seed, "recall": recall, "kinds": kinds})


def noise(arguments):
    if not arguments.sources:
        return
    report = {}
    for source in arguments.sources:
        files = [p for p in pathlib.Path(source).rglob("*") if p.suffix in ENDINGS and p.is_file() and p.stat().st_size > 200]
        random.Random(arguments.seed).shuffle(files)
        taken, size = [], 0
        for file in files:
            if size > arguments.megabytes * 1e6:
                break
            size += file.stat().st_size
            taken.append(str(file))
        run = subprocess.run([arguments.tool, "noise", *taken], capture_output=True, text=True, check=True)
        size = int(re.match(r"(\d+) bytes", run.stderr).group(1))
        counts = collections.Counter(line.split("\t")[0] for line in run.stdout.splitlines())
        name = pathlib.Path(source).name
        report[name] = {"bytes": size, "files": len(taken), "per_100_kb": {k: round(n / size * 1e5, 4) for k, n in sorted(counts.items())}}
        print(name, report[name])
        for line in run.stdout.splitlines():
            if line.startswith("secret\t"):
                print("  ", line[:200])
    save("noise", report)


def speed(arguments):
    documents = read(drawn("generate.py", "--seed", str(arguments.seed), "--documents", "3000"))
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "documents-13-languages").write_text("\n".join(d["text"] for d in documents))
    english = "\n".join(d["text"] for d in documents if d["lang"] == "en")
    (folder / "documents-english").write_text((english * (1 + 1_000_000 // len(english)))[:1_000_000])
    code = b"".join(p.read_bytes() for p in sorted((HERE.parents[1] / "crates").rglob("*.rs")))[:1_000_000]
    (folder / "rust-sources").write_text(code.decode(errors="ignore"))
    files = sorted(map(str, folder.iterdir()))
    runs = [subprocess.run(["taskset", "-c", "0", arguments.tool, "speed", *files], capture_output=True, text=True, check=True).stdout for _ in range(3)]
    print(runs[-1])
    pieces = [list(map(float, re.search(r"p50 ([\d.]+) ms p95 ([\d.]+) ms max ([\d.]+)", run).groups())) for run in runs]
    files = {m[1].split("/")[-1]: {"bytes": int(m[2]), "ms": float(m[3])} for m in re.finditer(r"(\S+): (\d+) bytes in ([\d.]+) ms", runs[-1])}
    median = sorted(pieces)[1]
    save("speed", {"runs": 3, "piece_bytes": 4096, "p50_ms": median[0], "p95_ms": median[1], "max_ms": median[2], "files": files})


def audit(arguments):
    folder = tempfile.mkdtemp()
    command = [sys.executable, str(HERE / "audit_schemes.py"), str(pathlib.Path(arguments.tool).resolve()), "4000"]
    subprocess.run(command, cwd=folder, check=True)
    save("audit", json.loads((pathlib.Path(folder) / "audit.json").read_text()))


def main():
    parts = {"synthetic": synthetic, "addresses": addresses, "secrets": secrets, "noise": noise, "speed": speed, "audit": audit}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="target/release/examples/gate_tool")
    parser.add_argument("--lily", default="target/release/lily")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--secret-rules")
    parser.add_argument("--sources", nargs="*", default=[])
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--sets", nargs="*", help="of the synthetic ones; default all")
    parser.add_argument("--misses", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=sorted(parts), default=[p for p in parts if p != "addresses"])
    arguments = parser.parse_args()
    for part in arguments.only:
        parts[part](arguments)


if __name__ == "__main__":
    main()
