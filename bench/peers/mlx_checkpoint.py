"""Reads an MLX affine-quantised checkpoint into numpy, one tensor at a time, without MLX.

A quantised matrix is three tensors: `weight` U32 `[.., out, in * bits / 32]` with the lowest element in the lowest
bits, `scales` and `biases` BF16 `[.., out, in / group]`; an element is `scale * code + bias`.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PREFIX = "language_model."


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """BF16 is the upper half of F32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: np.ndarray) -> np.ndarray:
    """Rounds finite F32 values to the nearest BF16, ties to even; returns the 16 bits."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@dataclass
class Quantised:
    """One quantised matrix, or a stack of them (experts), with the codes unpacked to a byte each."""

    codes: np.ndarray  # uint8 [.., out, in]
    scales: np.ndarray  # float32 [.., out, in / group]
    biases: np.ndarray  # float32 [.., out, in / group]
    group: int
    bits: int

    def dequantise(self) -> np.ndarray:
        """F32 `[.., out, in]`, product and sum rounded one after the other as MLX does in f32."""
        scales = np.repeat(self.scales, self.group, axis=-1)
        biases = np.repeat(self.biases, self.group, axis=-1)
        return scales * self.codes.astype(np.float32) + biases

    def rows(self, order: np.ndarray) -> Quantised:
        return Quantised(self.codes[order], self.scales[order], self.biases[order], self.group, self.bits)

    def column_blocks(self, order: np.ndarray, width: int) -> Quantised:
        """Permutes the input dimension by blocks of `width` columns (a multiple of the group)."""
        if width % self.group:
            raise ValueError(f"a block of {width} columns cuts a quantisation group of {self.group}")

        def permute(array: np.ndarray, block: int) -> np.ndarray:
            split = array.reshape(*array.shape[:-1], array.shape[-1] // block, block)
            return np.ascontiguousarray(split[..., order, :]).reshape(array.shape)

        per = width // self.group
        return Quantised(
            permute(self.codes, width), permute(self.scales, per), permute(self.biases, per), self.group, self.bits
        )


class Checkpoint:
    """The tensors of a checkpoint directory, memory mapped; single file or sharded with an index."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.config = json.loads((directory / "config.json").read_text())
        self._where: dict[str, tuple[Path, str, list[int], int, int]] = {}
        index = directory / "model.safetensors.index.json"
        if index.exists():
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        else:
            names = ["model.safetensors"]
        for name in names:
            self._read_header(directory / name)

    def _read_header(self, path: Path) -> None:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        for tensor, entry in header.items():
            if tensor != "__metadata__":
                begin, end = entry["data_offsets"]
                self._where[tensor] = (path, entry["dtype"], entry["shape"], 8 + length + begin, 8 + length + end)

    def __contains__(self, name: str) -> bool:
        return PREFIX + name in self._where

    def raw(self, name: str) -> tuple[np.ndarray, str]:
        """The stored array and its dtype; BF16 comes as uint16."""
        full = PREFIX + name
        if full not in self._where:
            raise SystemExit(f"{self.directory}: tensor {full} is missing")
        path, dtype, shape, begin, end = self._where[full]
        kind = {"U32": np.uint32, "BF16": np.uint16, "F32": np.float32, "F16": np.float16}.get(dtype)
        if kind is None:
            raise SystemExit(f"{path}: tensor {full} has dtype {dtype}, expected U32, BF16, F16 or F32")
        count = (end - begin) // np.dtype(kind).itemsize
        return np.memmap(path, kind, "r", begin, (count,)).reshape(shape), dtype

    def floats(self, name: str) -> np.ndarray:
        """An unquantised tensor as F32."""
        array, dtype = self.raw(name)
        return bf16_to_f32(array) if dtype == "BF16" else np.asarray(array, dtype=np.float32)

    def quantised(self, module: str) -> Quantised:
        """A quantised module by its name without `.weight`; bit width from the config's per-module overrides."""
        settings = self.config["quantization"]
        own = settings.get(PREFIX + module, settings)
        bits, group = own["bits"], own["group_size"]
        packed, dtype = self.raw(module + ".weight")
        if dtype != "U32":
            raise SystemExit(f"{self.directory}: {module}.weight is {dtype}, expected packed U32")
        scales, biases = self.floats(module + ".scales"), self.floats(module + ".biases")
        if packed.shape[-1] * 32 // bits != scales.shape[-1] * group:
            raise SystemExit(
                f"{self.directory}: {module}.weight has width {packed.shape[-1]}, but {bits} bits and "
                f"{scales.shape[-1]} groups of {group} need {scales.shape[-1] * group * bits // 32}"
            )
        data = np.ascontiguousarray(packed).view(np.uint8)
        if bits == 8:
            codes = data
        elif bits == 4:
            codes = np.empty((*data.shape[:-1], data.shape[-1] * 2), np.uint8)
            codes[..., 0::2] = data & 15
            codes[..., 1::2] = data >> 4
        else:
            raise SystemExit(f"{self.directory}: {module} has {bits} bits, expected 4 or 8")
        return Quantised(codes, scales, biases, group, bits)
