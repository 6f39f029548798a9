#!/usr/bin/env python3
"""Proves a GGUF conversion: llama.cpp gives the same token ids for the same text and the same greedy answers as Lily.

    check_gguf.py MODEL_DIR MODEL.gguf --lily target/release/lily --llama-bin DIR

1. Texts (chat markup, digits, punctuation, spaces, accents, other scripts, emoji) through `llama-tokenize` and
   `lily tokenize` give equal ids.
2. Rendered questions, decoded greedily by both from the same ids, give equal answers.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from peers.lily_run import LilyBinary  # noqa: E402

HERE = Path(__file__).resolve().parent
TEXTS = [
    "<|im_start|>user\ndefine heron<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "The year 1987, 3.14159 and 1,000,000; it's what they'd said: don't!",
    "tabs\tand  double  spaces \n\n  new lines   \n\t\n end ",
    "café naïve Ångström; Привет, мир; 你好,世界; नमस्ते दुनिया; สวัสดี; مرحبا",
    "emoji 🙂👩‍👩‍👧 and symbols ≤≥≠ → ∑ €£¥ ©",
    "<tool_call>\n<function=look_up>\n<parameter=word>\natoll\n</parameter>\n</function>\n</tool_call>",
    "x" * 70 + " " * 30 + "END",
]
QUESTIONS = [
    *(f"define {w}" for w in "heron candle frugal bridge violin doctor justice whale".split()),
    *(f"a synonym for {w}" for w in "quick happy large".split()),
    "what kind of thing is a violin?",
    "use frugal in a sentence",
    "hello",
]


def same_tokens(lily: LilyBinary, tokenize: Path, gguf: Path) -> bool:
    good = True
    for text in TEXTS:
        command = [str(tokenize), "-m", str(gguf), "--stdin", "--ids", "--no-bos", "--log-disable"]
        done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
        theirs, ours = ast.literal_eval(done.stdout.decode().strip().splitlines()[-1]), lily.tokenize(text)
        if theirs != ours:
            good = False
            print(f"tokens differ for {text!r}:\n  llama.cpp {theirs}\n  lily      {ours}")
    print(f"tokens: {len(TEXTS)} texts {'equal' if good else 'DIFFER'}")
    return good


def same_answers(lily: LilyBinary, lib: Path, gguf: Path, model: Path, count: int) -> bool:
    stops = json.loads((model / "generation_config.json").read_text())["eos_token_id"]
    stops = stops if isinstance(stops, list) else [stops]
    prompts = [lily.render([{"role": "user", "content": q}])["ids"] for q in QUESTIONS]
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "prompts.json"
        tokens.write_text(json.dumps({"sequences": prompts}))
        command = [sys.executable, str(HERE / "llama_api.py"), str(lib), "greedy", str(gguf), "--tokens", str(tokens)]
        command += ["--count", str(count), "--stop", *map(str, stops)]
        answers = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)["ids"]
    equal = 0
    for question, prompt, theirs in zip(QUESTIONS, prompts, answers, strict=True):
        ours = [int(i) for i in lily.logits(prompt, "reference", decode=count)["decode_ids"]][: len(theirs)]
        equal += ours == theirs
        if ours != theirs:
            print(f"{question!r}:\n  llama.cpp {lily.text(theirs)!r}\n  lily      {lily.text(ours)!r}")
    print(f"answers: {equal} of {len(QUESTIONS)} equal, such as {lily.text(answers[0])!r}")
    return equal == len(QUESTIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--lily", type=Path, required=True)
    parser.add_argument("--llama-bin", type=Path, required=True)
    parser.add_argument("--count", type=int, default=48)
    args = parser.parse_args()
    lily = LilyBinary(args.lily, args.model)
    good = same_tokens(lily, args.llama_bin / "llama-tokenize", args.gguf)
    good &= same_answers(lily, args.llama_bin, args.gguf, args.model, args.count)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
