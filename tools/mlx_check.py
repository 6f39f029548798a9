#!/usr/bin/env python3
"""Checks that MLX-LM loads a checkpoint unchanged and computes what Lily's f32 reference computes.

    PYTHON tools/mlx_check.py models/lily-mini --lily target/release/lily

PYTHON is that of an environment with `mlx[cpu]` and `mlx-lm`. It is not needed to build, run or test Lily.

1. MLX-LM's own loader opens the directory (strict: nothing missing, nothing left over).
2. Every stored bf16 parameter, scales and biases too, is upcast to f32, and so all arithmetic is f32; the logits of
   >= 256 positions of held-out chat text must then be within 1e-3 of `lily logits --device reference`.
3. `mlx_lm.generate` answers some questions with the checkpoint as shipped, through the model's chat template; Lily's
   greedy ids for the same prompt must be the same.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
from peers.lily_run import LilyBinary, held_out, take  # noqa: E402
from peers.mlx_run import open_model, sequence_logits  # noqa: E402

QUESTIONS = [
    "define heron",
    "a synonym for quick",
    "what kind of thing is a violin?",
    "use frugal in a sentence",
    "hello",
]


def compare_logits(lily: LilyBinary, model: Path, sequences: list[list[int]], bar: float) -> bool:
    """Largest difference over all positions; says where, and whether the arg-max agrees."""
    peer = open_model(model, "f32")
    worst, where, same, positions = 0.0, (0, 0), 0, 0
    for number, ids in enumerate(sequences):
        theirs, ours = sequence_logits(peer, ids), lily.logits(ids, "reference")["logits"]
        difference = np.abs(theirs - ours).max(axis=1)
        if difference.max() > worst:
            worst, where = float(difference.max()), (number, int(difference.argmax()))
        same += int((theirs.argmax(axis=1) == ours.argmax(axis=1)).sum())
        positions += len(ids)
    good = worst <= bar
    print(
        f"logits: {positions} positions in {len(sequences)} sequences, largest difference {worst:.2e} "
        f"(sequence {where[0]}, position {where[1]}; bar {bar:.0e}: {'ok' if good else 'FAILED'}), "
        f"same arg-max at {same}"
    )
    return good


def compare_answers(lily: LilyBinary, model: Path, count: int) -> bool:
    """Greedy answers of MLX-LM with the checkpoint as shipped (bf16), against Lily's greedy ids (f32 reference)."""
    mx.set_default_device(mx.cpu)
    peer, tokenizer = mlx_lm.load(str(model))
    good = True
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, enable_thinking=False)
        rendered = lily.render(messages)["ids"]
        if list(prompt) != rendered:
            print(f"{question!r}: the chat template gives MLX-LM {len(prompt)} ids and Lily {len(rendered)} other ids")
            good = False
            continue
        theirs = mlx_lm.generate(peer, tokenizer, prompt=prompt, max_tokens=count)
        ids = [int(i) for i in lily.logits(rendered, "reference", decode=count)["decode_ids"]]
        end = next((at for at, i in enumerate(ids) if i in tokenizer.eos_token_ids), len(ids))
        ours = tokenizer.decode(ids[:end])
        good &= theirs == ours
        print(f"{question!r}: {theirs!r}" + ("" if theirs == ours else f"  DIFFERS, Lily: {ours!r}"))
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--lily", type=Path, required=True, help="the lily binary")
    parser.add_argument("--positions", type=int, default=256)
    parser.add_argument("--bar", type=float, default=1e-3)
    parser.add_argument("--answer-tokens", type=int, default=48)
    args = parser.parse_args()
    lily = LilyBinary(args.lily, args.model)
    sequences = held_out(args.model)
    if sequences is None:
        print(f"{args.model}/heldout.json is absent: using rendered questions")
        words = "heron candle whale bridge river doctor engine garden justice mountain".split()
        asked = [f"define {w}" for w in words] + [f"what is a {w}?" for w in words]
        sequences = [lily.render([{"role": "user", "content": q}])["ids"] for q in asked]
    print(f"mlx {mx.__version__}, mlx-lm {mlx_lm.__version__}")
    good = compare_logits(lily, args.model, take(sequences, args.positions), args.bar)
    good &= compare_answers(lily, args.model, args.answer_tokens)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
