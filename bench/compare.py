#!/usr/bin/env python3
"""Runs Lily, llama.cpp and MLX-LM in turn (A B C A B C ...) on the same shapes and prints the ratios with their spread.

    compare.py --lily target/release/lily --llama-bin DIR --shape qwen3.6-35b-a3b:20 --work DIR --out bench/results/NAME
    compare.py --lily target/release/lily --llama-bin DIR --model models/lily-mini --work DIR --out bench/results/NAME

It builds no engine: `--llama-bin` is the `bin` directory of a llama.cpp build (llama-bench, libllama.so),
`--mlx-python` the Python of an environment with MLX-LM (left out: not compared). Random models of the shape, or
conversions of the model, are written to `--work` once and reused. Every measurement is a fresh process, one engine at
a time, with the same number of threads; the first alternation can be dropped as warm-up with `--warmup`.

What other programs took of the processor during the runs is measured and written down: on a busy machine the figures
mean nothing, and the table says so.

Writes OUT.csv (every sample), OUT.json (everything, with the machine and the commands) and OUT.md (the table).
Needs `numpy` and `gguf` from PyPI.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from peers.drivers import Case, Lily, LlamaCpp, MlxLm, Work, cache_suspicions, run_program  # noqa: E402

HERE = Path(__file__).resolve().parent
QUIET_PERCENT = 3  # of the machine's processor time may go to other programs
Samples = dict[str, dict[Case, list[float]]]  # engine -> case -> tok/s of each alternation


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)


def make_gguf(args: argparse.Namespace) -> Path:
    """The GGUF file to compare with: given, already in the work directory, or written now."""
    if args.gguf:
        return args.gguf
    stem = args.model.resolve().name if args.model else args.shape.replace(":", "-")
    path = args.work / f"{stem}-{args.gguf_type}.gguf"
    if not path.exists():
        tool, partial = [sys.executable, str(HERE / "peers" / "gguf_model.py")], path.with_suffix(".partial")
        if args.model:
            run_program([*tool, "convert", str(args.model), str(partial), "--type", args.gguf_type], args.threads)
        elif args.gguf_type == "q4_0":
            run_program([*tool, "synthetic", args.shape, str(partial)], args.threads)
        else:
            raise SystemExit(f"--gguf-type {args.gguf_type}: random models are written in q4_0; give --gguf FILE")
        partial.rename(path)
    return path


def make_mlx(args: argparse.Namespace) -> Path:
    if args.model:
        return args.model
    path = args.work / f"{args.shape.replace(':', '-')}-mlx"
    if not (path / "config.json").exists():  # written last
        run_program([sys.executable, str(HERE / "peers" / "mlx_model.py"), args.shape, str(path)], args.threads)
    return path


def engines(args: argparse.Namespace) -> list:
    """Lily first; the others are what it is divided by."""
    target = [str(args.model)] if args.model else ["--synthetic", args.shape]
    found: list = [Lily(args.lily, target, args.device, args.work)] if args.lily else []
    if args.llama_bin:
        found.append(LlamaCpp(args.llama_bin, make_gguf(args), args.work))
    if args.mlx_python:
        found.append(MlxLm(args.mlx_python, make_mlx(args), args.mlx_decode_tokens, args.mlx_longest_prompt))
    if not found:
        raise SystemExit("nothing to run: give --lily, --llama-bin or --mlx-python")
    return found


class Others:
    """Processor time that went to other programs while an engine ran: figures of a busy machine mean nothing."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.busy, self.own = busy_seconds(), own_seconds()

    def share(self) -> float | None:
        """Share of the machine's processor time, 0 to 1; None where the system does not tell."""
        busy = busy_seconds()
        if busy is None or self.busy is None:
            return None
        foreign = busy - self.busy - (own_seconds() - self.own)
        return max(0.0, foreign / ((time.monotonic() - self.begin) * (os.cpu_count() or 1)))


def busy_seconds() -> float | None:
    """Time all processors together spent on programs and the kernel since boot (Linux)."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, stat.read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Processor time of this process and the engines it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def alternate(args: argparse.Namespace, runners: list, work: Work) -> tuple[Samples, list[float]]:
    samples: Samples = {e.name: {} for e in runners}
    others = []
    for turn in range(-args.warmup, args.alternations):
        for engine in runners:
            watch = Others()
            rates = engine.measure(work)
            share, seconds = watch.share(), time.monotonic() - watch.begin
            shown = ", ".join(f"{kind} {n}: {rate:.2f}" for (kind, n), rate in rates.items())
            busy = "" if share is None else f", other programs {100 * share:.1f} %"
            print(f"[{turn + 1}] {engine.name}: {shown} ({seconds:.0f} s{busy})", flush=True)
            if turn >= 0:
                others += [] if share is None else [share]
                for case, rate in rates.items():
                    samples[engine.name].setdefault(case, []).append(rate)
    return samples, others


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summarise(samples: Samples, work: Work) -> list[dict]:
    """Per case and engine: the rates, and Lily's ratio of each alternation (its run over the run next to it)."""
    rows = []
    for kind, size in work.cases():
        for engine, cases in samples.items():
            rates = cases.get((kind, size))
            if not rates:
                continue
            row = {"kind": kind, "tokens": size, "engine": engine, "tok_s": spread(rates), "samples": rates}
            ours = samples.get("lily", {}).get((kind, size))
            if engine != "lily" and ours:
                row["lily_ratio"] = spread([a / b for a, b in zip(ours, rates, strict=True)])
            rows.append(row)
    return rows


def floors(runners: list, work: Work) -> dict:
    """What Lily measured of the machine beside each of its runs."""
    reports = next((e.reports for e in runners if isinstance(e, Lily)), [])
    if not reports:
        return {}
    found = {"read_gbps": spread([r["floor"]["read_gbps"] for r in reports])}
    for context in work.contexts:
        shares = [row["share_of_floor"] for r in reports for row in r["results"]
                  if row["kind"] == "decode" and row["context"] == context and row.get("share_of_floor") is not None]
        if shares:
            found[f"decode_{context}_share_of_floor"] = spread(shares)
    for tokens in work.prefill:
        rates = [row["gflops"] for r in reports for row in r["results"]
                 if row["kind"] == "prefill" and row["tokens"] == tokens]
        if rates:
            found[f"prefill_{tokens}_gflops"] = spread(rates)
    return found


def machine() -> dict:
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.split(":", 1)[1].strip() for line in info.open() if line.startswith("model name")), cpu)
    load = os.getloadavg() if hasattr(os, "getloadavg") else ()
    return {"cpu": cpu, "cores": os.cpu_count(), "system": platform.platform(), "load_at_start": load}


def figure(s: dict[str, float], digits: int = 2) -> str:
    return f"{s['median']:.{digits}f} ({s['min']:.{digits}f} to {s['max']:.{digits}f})"


def markdown(report: dict) -> str:
    lines = [
        f"# {report['subject']}",
        "",
        f"{report['machine']['cpu']}, {report['machine']['cores']} cores; {report['threads']} threads; "
        f"{report['alternations']} alternations; median (min to max). {report['peers']}",
        "",
        "| case | engine | tok/s | Lily's ratio |",
        "|---|---|---|---|",
    ]
    for row in report["rows"]:
        ratio = figure(row["lily_ratio"]) if "lily_ratio" in row else ""
        lines.append(f"| {row['kind']} {row['tokens']} | {row['engine']} | {figure(row['tok_s'])} | {ratio} |")
    if report["floor"]:
        lines += ["", "Measured by Lily in the same runs:", ""]
        lines += [f"- {name}: {figure(value, 3)}" for name, value in report["floor"].items()]
    if report["others"]:
        share = {k: 100 * v for k, v in report["others"].items()}
        quiet = "" if share["max"] <= QUIET_PERCENT else " **The machine was not quiet: do not use these figures.**"
        lines += ["", f"Other programs took {figure(share, 1)} % of the processor time.{quiet}"]
    lines += ["", "No sign of a prompt cache." if not report["cache"] else "**Prompt cache suspected**: see the JSON."]
    return "\n".join([*lines, "", f"Command: `{report['command']}`", ""])


def write_report(out: Path, report: dict) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(report))
    with out.with_suffix(".csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["kind", "tokens", "engine", "alternation", "tok_s"])
        for row in report["rows"]:
            for i, rate in enumerate(row["samples"], 1):
                table.writerow([row["kind"], row["tokens"], row["engine"], i, f"{rate:.4f}"])


def command_line() -> str:
    """The command with every path cut to its last part: results are read on other machines."""
    words = [Path(w).name if os.sep in w and not w.startswith("bench") else w for w in sys.argv[1:]]
    return " ".join(["bench/compare.py", *words])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lily", type=Path, help="the lily binary")
    parser.add_argument("--device", default="cpu", help="Lily's device")
    parser.add_argument("--llama-bin", type=Path, help="bin directory of a llama.cpp build")
    parser.add_argument("--mlx-python", type=Path, help="Python of an environment with mlx and mlx-lm")
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument("--shape", help="random model: NAME[:LAYERS]")
    subject.add_argument("--model", type=Path, help="MLX-format checkpoint directory")
    parser.add_argument("--gguf", type=Path, help="use this GGUF file")
    parser.add_argument("--gguf-type", default="q4_0", choices=["q4_0", "q4_1", "q8_0", "bf16", "f16"])
    parser.add_argument("--work", type=Path, required=True, help="where models and saved contexts are kept")
    parser.add_argument("--out", type=Path, required=True, help="result files without their ending")
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=0, help="alternations that are run and not counted")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prefill", type=numbers, default=(512, 4096))
    parser.add_argument("--contexts", type=numbers, default=(256, 32768))
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--mlx-decode-tokens", type=int, default=8)
    parser.add_argument("--mlx-longest-prompt", type=int, default=512, help="longer cases are left out for MLX-LM")
    args = parser.parse_args()
    args.out = args.out.with_name(args.out.name + ".x")  # with_suffix then replaces only this
    args.work.mkdir(parents=True, exist_ok=True)
    return args


def main() -> None:
    args = arguments()
    start = machine()
    work = Work(args.prefill, args.contexts, args.decode_tokens, args.threads)
    runners = engines(args)
    samples, others = alternate(args, runners, work)
    reports = {e.name: getattr(e, "reports", []) for e in runners}
    suspicions = [s for name, cases in samples.items() for s in cache_suspicions(name, cases, reports[name])]
    llama = next((e for e in runners if isinstance(e, LlamaCpp)), None)
    report = {
        "subject": args.shape or args.model.resolve().name,
        "machine": start,
        "threads": args.threads,
        "alternations": args.alternations,
        "command": command_line(),
        "peers": f"llama.cpp: {llama.label}, file {llama.model.name}." if llama else "",
        "rows": summarise(samples, work),
        "floor": floors(runners, work),
        "memory": [r.get("memory") for r in reports.get("lily", [])][-1:],
        "others": spread(others) if others else None,
        "cache": suspicions,
    }
    write_report(args.out, report)
    print("\n" + markdown(report))
    for line in suspicions:
        print("prompt cache suspected:", line, file=sys.stderr)
    sys.exit(1 if suspicions else 0)


if __name__ == "__main__":
    main()
