#!/usr/bin/env python3
"""Drives MLX-LM on the CPU with token ids; run with the Python of an environment that has `mlx[cpu]` and `mlx-lm`.

    mlx_run.py logits MODEL_DIR --tokens IDS.json --out OUT.npy [--dtype f32|shipped]
    mlx_run.py bench  MODEL_DIR --contexts 256 --prefill 512 --decode-tokens 8

The model is loaded by MLX-LM's own loader from an unchanged checkpoint. `--dtype f32` then upcasts every stored
parameter (scales and biases too), so that all arithmetic is f32; `shipped` leaves bf16.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from peers.llama_api import bench_prompt, read_sequences  # noqa: E402


def open_model(directory: Path, dtype: str):
    mx.set_default_device(mx.cpu)
    model, _ = load_model(directory)
    if dtype == "f32":
        model.set_dtype(mx.float32)
        left = [k for k, v in tree_flatten(model.parameters()) if v.dtype in (mx.bfloat16, mx.float16)]
        if left:
            raise SystemExit(f"{directory}: {len(left)} parameters stayed in 16 bits, such as {left[0]}")
    return model


def sequence_logits(model, ids: list[int]) -> np.ndarray:
    """F32 `[len(ids), vocab]` of one sequence from an empty context."""
    logits = model(mx.array([ids]), cache=make_prompt_cache(model))[0].astype(mx.float32)
    mx.eval(logits)
    return np.array(logits)


def run_logits(args: argparse.Namespace) -> None:
    model = open_model(args.model, args.dtype)
    np.save(args.out, np.concatenate([sequence_logits(model, ids) for ids in read_sequences(args.tokens)]))


def bench_prefill(model, vocab: int, tokens: int) -> float:
    """Prompt tokens a second, in chunks of 2,048 as `mlx_lm.generate` does."""
    cache, ids = make_prompt_cache(model), bench_prompt(tokens, vocab)
    begin = time.perf_counter()
    for at in range(0, tokens, 2048):
        logits = model(mx.array([ids[at : at + 2048]]), cache=cache)[:, -1]
        mx.eval(logits, [c.state for c in cache])
    return tokens / (time.perf_counter() - begin)


def bench_decode(model, vocab: int, context: int, steps: int) -> float:
    """Greedy steps a second after `context` tokens."""
    cache, ids = make_prompt_cache(model), bench_prompt(context, vocab)
    for at in range(0, context, 2048):
        logits = model(mx.array([ids[at : at + 2048]]), cache=cache)[:, -1]
        mx.eval(logits, [c.state for c in cache])
    token = mx.argmax(logits, axis=-1)
    mx.eval(token)
    begin = time.perf_counter()
    for _ in range(steps):
        token = mx.argmax(model(token[:, None], cache=cache)[:, -1], axis=-1)
        mx.eval(token)
    return steps / (time.perf_counter() - begin)


def run_bench(args: argparse.Namespace) -> None:
    model = open_model(args.model, "shipped")
    vocab = json.loads((args.model / "config.json").read_text())["text_config"]["vocab_size"]
    results = []
    bench_decode(model, vocab, 16, 1)  # warm-up
    for tokens in args.prefill:
        results.append({"kind": "prefill", "tokens": tokens, "tok_s": bench_prefill(model, vocab, tokens)})
    for context in args.contexts:
        rate = bench_decode(model, vocab, context, args.decode_tokens)
        results.append({"kind": "decode", "context": context, "tok_s": rate})
    print(json.dumps({"results": results}))


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("logits")
    sub.add_argument("model", type=Path)
    sub.add_argument("--tokens", type=Path, required=True)
    sub.add_argument("--out", type=Path, required=True)
    sub.add_argument("--dtype", choices=["f32", "shipped"], default="f32")
    sub.set_defaults(run=run_logits)
    sub = commands.add_parser("bench")
    sub.add_argument("model", type=Path)
    sub.add_argument("--contexts", type=numbers, default=[256])
    sub.add_argument("--prefill", type=numbers, default=[512])
    sub.add_argument("--decode-tokens", type=int, default=8)
    sub.set_defaults(run=run_bench)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
