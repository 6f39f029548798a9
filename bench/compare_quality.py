#!/usr/bin/env python3
"""Quality of Lily, llama.cpp and MLX-LM on one checkpoint, against Lily's f32 reference, position by position.

    compare_quality.py models/lily-mini --lily target/release/lily --llama-bin DIR --mlx-python PY \
        --work DIR --out bench/results/quality-lily-mini

Every engine computes the logits of the same token sequences (`heldout.json` beside the model, or `--tokens`), teacher
forced, each sequence from an empty context. Printed per engine: mean, 99th percentile and largest KL(reference ||
engine) in nats, agreement of the arg-max, perplexity of the next token and its change against the reference.

llama.cpp runs these files, all made from the same dequantised weights:
- `q4_1`: the checkpoint's own 4-bit codes, scales and biases (a group of 64 is two Q4_1 blocks): the very same weights;
- `f32`: the dequantised weights, nothing lost; `bf16`, `q8_0`, `q4_0`: rounded to those types;
- `Q4_K_M`: by `llama-quantize` from the F32 file.
MLX-LM runs the unchanged checkpoint: `shipped` (bf16 activations) and `f32` (every parameter upcast).

Needs `numpy` and `gguf` from PyPI; builds no engine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from peers.drivers import run_program  # noqa: E402
from peers.lily_run import LilyBinary, held_out, take  # noqa: E402
from peers.llama_api import read_sequences  # noqa: E402

HERE = Path(__file__).resolve().parent
GGUF_TYPES = ("q4_1", "f32", "bf16", "q8_0", "q4_0", "Q4_K_M")


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """F64 log-probabilities, row by row."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def score(reference: np.ndarray, logits: np.ndarray, sequences: list[list[int]], piece: int = 256) -> dict:
    """KL, agreement and perplexity over all positions; `[positions, vocab]` F32 each."""
    if reference.shape != logits.shape:
        raise SystemExit(f"logits have shape {logits.shape}, the reference {reference.shape}")
    if not np.isfinite(logits).all():
        raise SystemExit("logits hold values that are not finite")
    kl, own, ref = np.empty(len(logits)), np.empty(len(logits)), np.empty(len(logits))
    targets = np.concatenate([[*ids[1:], -1] for ids in sequences])  # the last position has no next token
    for at in range(0, len(logits), piece):
        span = slice(at, at + piece)
        p, q = log_softmax(reference[span]), log_softmax(logits[span])
        kl[span] = (np.exp(p) * (p - q)).sum(axis=1)
        rows, next_token = np.arange(len(p)), np.maximum(targets[span], 0)
        ref[span], own[span] = -p[rows, next_token], -q[rows, next_token]
    scored = targets >= 0
    perplexity, reference_perplexity = np.exp(own[scored].mean()), np.exp(ref[scored].mean())
    return {
        "positions": len(logits),
        "kl_mean": float(kl.mean()),
        "kl_p99": float(np.percentile(kl, 99)),
        "kl_max": float(kl.max()),
        "top1": float((reference.argmax(axis=1) == logits.argmax(axis=1)).mean()),
        "max_logit_difference": float(np.abs(reference - logits).max()),
        "perplexity": float(perplexity),
        "perplexity_change": float(perplexity / reference_perplexity - 1),
    }


class Peers:
    """Makes the logits of each engine, `[positions, vocab]` F32."""

    def __init__(self, args: argparse.Namespace, sequences: list[list[int]]):
        self.args, self.sequences = args, sequences
        self.tokens, self.out = args.work / "tokens.json", args.work / "logits.npy"
        self.tokens.write_text(json.dumps({"sequences": sequences}))
        self.lily = LilyBinary(args.lily, args.model, args.threads)

    def lily_logits(self, device: str) -> np.ndarray:
        return np.concatenate([self.lily.logits(ids, device)["logits"] for ids in self.sequences])

    def mlx(self, dtype: str) -> np.ndarray:
        command = [str(self.args.mlx_python), str(HERE / "peers" / "mlx_run.py"), "logits", str(self.args.model)]
        return self._run([*command, "--dtype", dtype])

    def llama(self, kind: str) -> np.ndarray:
        command = [sys.executable, str(HERE / "peers" / "llama_api.py"), str(self.args.llama_bin), "logits"]
        command += [str(self.gguf(kind)), "--threads", str(self.args.threads)]
        return self._run([*command, "--kv", "f32" if kind == "f32" else "f16"])

    def _run(self, command: list[str]) -> np.ndarray:
        self.out.unlink(missing_ok=True)
        run_program([*command, "--tokens", str(self.tokens), "--out", str(self.out)], self.args.threads)
        return np.load(self.out)

    def gguf(self, kind: str) -> Path:
        """Converts anew on every run: the checkpoint may have changed since the last one."""
        path = self.args.work / f"{self.args.model.resolve().name}-{kind}.gguf"
        if kind == "Q4_K_M":
            command = [str(self.args.llama_bin / "llama-quantize"), str(self.gguf("f32")), str(path), kind]
            subprocess.run([*command, str(self.args.threads)], check=True, capture_output=True)
        else:
            tool = [sys.executable, str(HERE / "peers" / "gguf_model.py"), "convert"]
            run_program([*tool, str(self.args.model), str(path), "--type", kind], self.args.threads)
        return path


def markdown(report: dict) -> str:
    lines = [
        f"# Quality on {report['model']}",
        "",
        f"{report['positions']} positions in {report['sequences']} sequences ({report['tokens']}); reference: Lily's "
        f"f32 reference, perplexity {report['reference_perplexity']:.5f}.",
        "",
        "| engine | mean KL | p99 KL | max KL | top-1 | perplexity change | max logit difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, s in report["engines"].items():
        lines.append(
            f"| {name} | {s['kl_mean']:.2e} | {s['kl_p99']:.2e} | {s['kl_max']:.2e} | {100 * s['top1']:.3f} % | "
            f"{100 * s['perplexity_change']:+.4f} % | {s['max_logit_difference']:.2e} |"
        )
    lines += ["", *[f"- {line}" for line in report["verdicts"]], "", f"Command: `{report['command']}`", ""]
    return "\n".join(lines)


def verdicts(engines: dict[str, dict], device: str) -> tuple[list[str], bool]:
    """The bars of the CPU backend, and Lily against the peers that run quantised or 16-bit arithmetic.

    f32 arithmetic on f32 weights (`llama.cpp f32`, `mlx-lm f32`) is shown and not a bar: it is another reference.
    """
    lily, lines, good = engines.get(f"lily {device}"), [], True
    if lily is None:
        return lines, good
    bars = [
        ("mean KL <= 1e-4", lily["kl_mean"] <= 1e-4),
        ("top-1 >= 99.5 %", lily["top1"] >= 0.995),
        ("perplexity within 0.02 %", abs(lily["perplexity_change"]) <= 2e-4),
    ]
    for name, other in engines.items():
        if not name.startswith("lily") and not name.endswith(" f32"):
            bars.append((f"mean KL not above {name} ({other['kl_mean']:.2e})", lily["kl_mean"] <= other["kl_mean"]))
    for name, held in bars:
        lines.append(f"lily {device}: {name}: {'holds' if held else 'FAILS'}")
        good &= held
    return lines, good


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="MLX-format checkpoint directory")
    parser.add_argument("--lily", type=Path, required=True, help="the lily binary")
    parser.add_argument("--device", default="cpu", help="Lily's device to judge")
    parser.add_argument("--llama-bin", type=Path, help="bin directory of a llama.cpp build with shared libraries")
    parser.add_argument("--mlx-python", type=Path, help="Python of an environment with mlx and mlx-lm")
    parser.add_argument("--tokens", type=Path, help='`{"sequences": [[ids], ...]}`; left out: MODEL/heldout.json')
    parser.add_argument("--positions", type=int, default=8192, help="at least this many positions")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--work", type=Path, required=True, help="where GGUF files and logits are kept")
    parser.add_argument("--out", type=Path, required=True, help="result files without their ending")
    parser.add_argument("--gguf-types", default=",".join(GGUF_TYPES))
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    everything = read_sequences(args.tokens) if args.tokens else held_out(args.model)
    if everything is None:
        raise SystemExit(f"{args.model}/heldout.json is absent: give --tokens FILE")
    sequences = take(everything, args.positions)
    positions = sum(map(len, sequences))
    if positions < min(args.positions, 2048):
        raise SystemExit(f"the sequences have {positions} positions together, {min(args.positions, 2048)} are needed")
    peers = Peers(args, sequences)
    reference = peers.lily_logits("reference")
    plan: dict[str, Callable[[], np.ndarray]] = {f"lily {args.device}": lambda: peers.lily_logits(args.device)}
    if args.llama_bin:
        for kind in args.gguf_types.split(","):
            plan[f"llama.cpp {kind}"] = lambda kind=kind: peers.llama(kind)
    if args.mlx_python:
        for dtype in ("shipped", "f32"):
            plan[f"mlx-lm {dtype}"] = lambda dtype=dtype: peers.mlx(dtype)
    engines = {}
    for name, make in plan.items():
        engines[name] = score(reference, make(), sequences)
        print(f"{name}: mean KL {engines[name]['kl_mean']:.2e}, top-1 {100 * engines[name]['top1']:.3f} %", flush=True)
    lines, good = verdicts(engines, args.device)
    report = {
        "model": args.model.resolve().name,
        "tokens": (args.tokens or args.model / "heldout.json").name,
        "positions": positions,
        "sequences": len(sequences),
        "reference_perplexity": score(reference, reference, sequences)["perplexity"],
        "engines": engines,
        "verdicts": lines,
        "command": " ".join(["bench/compare_quality.py", *(Path(w).name if os.sep in w else w for w in sys.argv[1:])]),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{args.out}.json").write_text(json.dumps(report, indent=1) + "\n")
    Path(f"{args.out}.md").write_text(markdown(report))
    print("\n" + markdown(report))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
