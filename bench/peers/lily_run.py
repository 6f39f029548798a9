"""Runs the `lily` binary's commands for other tools: logits, greedy ids, rendered prompts, token ids."""

from __future__ import annotations

import json
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np

DTYPES = {"F32": np.float32, "I64": np.int64}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The F32 and I64 tensors of a small safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    found = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + n for n in entry["data_offsets"])
            found[name] = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return found


class LilyBinary:
    """One `lily` binary and one checkpoint directory."""

    def __init__(self, binary: Path, model: Path, threads: int = 0):
        self.binary, self.model, self.threads = binary, model, threads
        self.folder = tempfile.TemporaryDirectory()

    def _run(self, *words: str, stdin: str | None = None) -> str:
        done = subprocess.run([str(self.binary), *words], capture_output=True, text=True, input=stdin)
        if done.returncode:
            raise SystemExit(f"{self.binary} {' '.join(words)}\nended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def _file(self, name: str, value: object) -> Path:
        path = Path(self.folder.name) / name
        path.write_text(json.dumps(value))
        return path

    def logits(self, ids: list[int], device: str, decode: int = 0) -> dict[str, np.ndarray]:
        """`logits` F32 `[n, vocab]`; with `decode` also `decode_ids` I64 and `decode_logits`."""
        tokens, out = self._file("ids.json", ids), Path(self.folder.name) / "logits.safetensors"
        words = ["logits", str(self.model), "--tokens", str(tokens), "--device", device, "--out", str(out)]
        words += ["--threads", str(self.threads)] if self.threads else []
        words += ["--decode", str(decode)] if decode else []
        self._run(*words)
        return read_safetensors(out)

    def render(self, messages: list[dict], thinking: bool = False) -> dict:
        """`{"text": ..., "ids": [...]}` of a chat with the generation prompt."""
        request = {"messages": messages, "add_generation_prompt": True, "enable_thinking": thinking}
        return json.loads(self._run("render", str(self.model), "--request", str(self._file("request.json", request))))

    def tokenize(self, text: str) -> list[int]:
        return json.loads(self._run("tokenize", str(self.model), stdin=text))

    def text(self, ids: list[int]) -> str:
        return self._run("tokenize", str(self.model), "--decode", stdin=json.dumps(ids))


def held_out(model: Path) -> list[list[int]] | None:
    """The token sequences of `heldout.json` beside the model, if it has one."""
    path = model / "heldout.json"
    return json.loads(path.read_text())["sequences"] if path.exists() else None


def take(sequences: list[list[int]], positions: int) -> list[list[int]]:
    """The first sequences that have at least `positions` ids together (all of them if they have fewer)."""
    taken: list[list[int]] = []
    for ids in sequences:
        if sum(map(len, taken)) >= positions:
            break
        taken.append(ids)
    return taken
