"""One class per engine: runs its own benchmark program once and returns `{case: tokens a second}`.

A case is `("prefill", tokens)` or `("decode", context)`. Every call starts fresh processes, so nothing is cached
between calls: the caller checks that with `cache_suspicions`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
Case = tuple[str, int]
LONG_CONTEXT = 4096  # from here on contexts are filled once and restored from a file


@dataclass(frozen=True)
class Work:
    """What is measured."""

    prefill: tuple[int, ...]
    contexts: tuple[int, ...]
    decode_tokens: int
    threads: int

    def cases(self) -> list[Case]:
        return [("prefill", n) for n in self.prefill] + [("decode", n) for n in self.contexts]


def run_program(command: list[str], threads: int, timeout: float = 7200) -> str:
    """Standard output of a program; its own words when it fails."""
    limits = {k: str(threads) for k in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **limits})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def joined(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


@dataclass
class Lily:
    """`lily bench`; `target` is `["--synthetic", SHAPE]` or `[MODEL_DIR]`."""

    binary: Path
    target: list[str]
    device: str = "cpu"
    state_dir: Path | None = None
    name: str = "lily"
    reports: list[dict] = field(default_factory=list)

    def measure(self, work: Work) -> dict[Case, float]:
        long = tuple(n for n in work.contexts if n >= LONG_CONTEXT) if self.state_dir else ()
        short = tuple(n for n in work.contexts if n not in long)
        found: dict[Case, float] = {}
        if work.prefill or short:
            found |= self._bench(replace(work, contexts=short), [])
        if long:
            found |= self._bench(replace(work, contexts=long, prefill=()), ["--saved", str(self.state_dir)])
        return found

    def _bench(self, work: Work, arguments: list[str]) -> dict[Case, float]:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "bench.json"
            command = [str(self.binary), "bench", "--device", self.device, *self.target]
            command += ["--decode-tokens", str(work.decode_tokens), "--repeats", "1"]
            command += ["--threads", str(work.threads), "--json", str(out)]
            # Without a context only prefill is measured: its first prompt stands for one.
            command += ["--contexts", joined(work.contexts or work.prefill[:1])]
            command += ["--prefill", joined(work.prefill)] if work.prefill else []
            command += arguments
            run_program(command, work.threads)
            report = json.loads(out.read_text())
        self.reports.append(report)
        return {case_of(row): row["tok_s"] for row in report["results"] if case_of(row) in work.cases()}


def case_of(row: dict) -> Case:
    return ("prefill", row["tokens"]) if row["kind"] == "prefill" else ("decode", row["context"])


@dataclass
class LlamaCpp:
    """`llama-bench`; above `LONG_CONTEXT` the C API with a saved context, so that it is filled only once."""

    bin_dir: Path
    model: Path
    state_dir: Path
    name: str = "llama.cpp"
    build: str = ""
    label: str = ""

    def measure(self, work: Work) -> dict[Case, float]:
        found: dict[Case, float] = {}
        if work.prefill:
            for row in self._bench(work, ["-p", joined(work.prefill), "-n", "0"]):
                found["prefill", row["n_prompt"]] = row["avg_ts"]
        short = tuple(n for n in work.contexts if n < LONG_CONTEXT)
        if short:
            for row in self._bench(work, ["-p", "0", "-n", str(work.decode_tokens), "-d", joined(short)]):
                found["decode", row["n_depth"]] = row["avg_ts"]
        for context in work.contexts:
            if context >= LONG_CONTEXT:
                found["decode", context] = self._deep(work, context)
        return found

    def _bench(self, work: Work, arguments: list[str]) -> list[dict]:
        command = [str(self.bin_dir / "llama-bench"), "-m", str(self.model), "-t", str(work.threads)]
        rows = json.loads(run_program([*command, "-r", "1", "-o", "json", *arguments], work.threads))
        self.build = f"{rows[0].get('build_commit', '')} ({rows[0].get('build_number', '')})"
        self.label = rows[0].get("model_type", "")
        return rows

    def _deep(self, work: Work, context: int) -> float:
        state = self.state_dir / f"{self.model.stem}-{context}.state"
        command = [sys.executable, str(HERE / "llama_api.py"), str(self.bin_dir), "depth", str(self.model)]
        command += ["--threads", str(work.threads), "--depth", str(context), "--state", str(state)]
        command += ["--count", str(work.decode_tokens)]
        return json.loads(run_program(command, work.threads))["decode_tok_s"]


@dataclass
class MlxLm:
    """MLX-LM on the CPU; far slower, so it may measure fewer cases and steps."""

    python: Path
    model: Path
    decode_tokens: int
    longest_prompt: int
    name: str = "mlx-lm"

    def measure(self, work: Work) -> dict[Case, float]:
        prefill = tuple(n for n in work.prefill if n <= self.longest_prompt)
        contexts = tuple(n for n in work.contexts if n <= self.longest_prompt)
        command = [str(self.python), str(HERE / "mlx_run.py"), "bench", str(self.model)]
        command += ["--prefill", joined(prefill), "--contexts", joined(contexts)]
        command += ["--decode-tokens", str(self.decode_tokens)]
        rows = json.loads(run_program(command, work.threads).splitlines()[-1])["results"]
        return {case_of(row): row["tok_s"] for row in rows}


def cache_suspicions(engine: str, samples: dict[Case, list[float]], reports: list[dict]) -> list[str]:
    """Signs that a prompt cache was at work: a flag that says so, or a prompt that cost (almost) nothing.

    A prompt served from a cache is tens of times faster than the same prompt computed, and a long prompt that
    shares a cached beginning is faster per token than a short one; noise of a shared machine is not.
    """
    found = []
    for report in reports:
        for key in ("prefix_cache", "prompt_cache", "cache"):
            if report.get(key) not in (None, False, "off", 0):
                found.append(f"{engine}: its report says {key} = {report[key]!r}")
    for case, rates in samples.items():
        if case[0] == "prefill" and len(rates) > 1 and max(rates) > 4 * min(rates):
            found.append(f"{engine}: prompt of {case[1]} tokens ran at {min(rates):.1f} to {max(rates):.1f} tok/s")
    prefill = [(size, rates) for (kind, size), rates in samples.items() if kind == "prefill"]
    prompts = sorted((size, statistics.median(rates)) for size, rates in prefill)
    for (short, slow), (long, fast) in zip(prompts, prompts[1:], strict=False):
        if fast > 4 * slow:
            found.append(f"{engine}: {long} tokens at {fast:.1f} tok/s, {short} tokens at {slow:.1f}")
    return found
