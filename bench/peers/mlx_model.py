#!/usr/bin/env python3
"""Writes a random checkpoint in the MLX affine 4-bit layout, of known shapes, for MLX-LM (and `lily bench MODEL`).

    mlx_model.py qwen3.6-35b-a3b:4 OUT_DIR

Needs `numpy`. The file is written front to back and never held in memory. There is no tokenizer: drivers pass ids.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from peers.mlx_checkpoint import PREFIX, f32_to_bf16  # noqa: E402
from peers.shapes import Shape, named_shape  # noqa: E402

GROUP = 64
WIDTH = {"U32": 4, "BF16": 2, "F32": 4}


@dataclass(frozen=True)
class Entry:
    """One stored tensor. `role` says how its random values are made."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str
    fan_in: int = 0

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * WIDTH[self.dtype]


def quantised(name: str, shape: tuple[int, ...], bits: int = 4) -> Iterator[Entry]:
    *rows, fan_in = shape
    yield Entry(name + ".weight", "U32", (*rows, fan_in * bits // 32), "codes", fan_in)
    yield Entry(name + ".scales", "BF16", (*rows, fan_in // GROUP), f"scales{bits}", fan_in)
    yield Entry(name + ".biases", "BF16", (*rows, fan_in // GROUP), f"biases{bits}", fan_in)


def entries(s: Shape) -> Iterator[Entry]:
    """Every tensor of the checkpoint, in the order that they are stored."""
    yield from quantised("model.embed_tokens", (s.vocab, s.hidden))
    for i in range(s.layers):
        layer = f"model.layers.{i}."
        yield Entry(layer + "input_layernorm.weight", "BF16", (s.hidden,), "ones")
        yield Entry(layer + "post_attention_layernorm.weight", "BF16", (s.hidden,), "ones")
        if s.is_attention(i):
            attn, query, kv = layer + "self_attn.", s.heads * s.head_dim, s.kv_heads * s.head_dim
            yield from quantised(attn + "q_proj", (2 * query, s.hidden))
            yield from quantised(attn + "k_proj", (kv, s.hidden))
            yield from quantised(attn + "v_proj", (kv, s.hidden))
            yield from quantised(attn + "o_proj", (s.hidden, query))
            yield Entry(attn + "q_norm.weight", "BF16", (s.head_dim,), "ones")
            yield Entry(attn + "k_norm.weight", "BF16", (s.head_dim,), "ones")
        else:
            gdn, heads = layer + "linear_attn.", s.gdn_value_heads
            yield from quantised(gdn + "in_proj_qkv", (s.conv_channels, s.hidden))
            yield from quantised(gdn + "in_proj_z", (s.gdn_value_width, s.hidden))
            yield from quantised(gdn + "in_proj_b", (heads, s.hidden))
            yield from quantised(gdn + "in_proj_a", (heads, s.hidden))
            yield from quantised(gdn + "out_proj", (s.hidden, s.gdn_value_width))
            yield Entry(gdn + "conv1d.weight", "BF16", (s.conv_channels, s.conv_width, 1), "conv")
            yield Entry(gdn + "dt_bias", "BF16", (heads,), "dt_bias")
            yield Entry(gdn + "A_log", "BF16", (heads,), "a_log")
            yield Entry(gdn + "norm.weight", "BF16", (s.gdn_head_dim,), "ones")
        mlp = layer + "mlp."
        yield from quantised(mlp + "gate", (s.experts, s.hidden), bits=8)
        yield from quantised(mlp + "shared_expert_gate", (1, s.hidden), bits=8)
        yield from quantised(mlp + "switch_mlp.gate_proj", (s.experts, s.expert_width, s.hidden))
        yield from quantised(mlp + "switch_mlp.up_proj", (s.experts, s.expert_width, s.hidden))
        yield from quantised(mlp + "switch_mlp.down_proj", (s.experts, s.hidden, s.expert_width))
        yield from quantised(mlp + "shared_expert.gate_proj", (s.shared_width, s.hidden))
        yield from quantised(mlp + "shared_expert.up_proj", (s.shared_width, s.hidden))
        yield from quantised(mlp + "shared_expert.down_proj", (s.hidden, s.shared_width))
    yield Entry("model.norm.weight", "BF16", (s.hidden,), "ones")
    yield from quantised("lm_head", (s.vocab, s.hidden))


def pieces(rng: np.random.Generator, e: Entry, limit: int = 1 << 26) -> Iterator[bytes]:
    """The tensor's bytes. Codes are uniform; scale and bias make weights of variance 1 / fan_in and mean near 0."""
    if e.role == "codes":
        left = e.nbytes
        while left:
            count = min(left, limit)
            yield rng.bytes(count)
            left -= count
        return
    if e.role.startswith(("scales", "biases")):
        levels = 2 ** int(e.role[6:]) - 1
        scale = 1 / (np.sqrt(e.fan_in) * (levels + 1) / np.sqrt(12))
        value = scale if e.role.startswith("scales") else -scale * levels / 2
        values = np.full(e.shape, value, np.float32)
    elif e.role == "ones":
        values = np.ones(e.shape, np.float32)
    elif e.role == "conv":
        values = (rng.standard_normal(e.shape) * 0.5).astype(np.float32)
    elif e.role == "dt_bias":  # inverse softplus of a step between 1e-3 and 1e-1
        step = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), e.shape))
        values = (step + np.log(-np.expm1(-step))).astype(np.float32)
    else:  # a_log
        values = np.log(rng.uniform(1, 16, e.shape)).astype(np.float32)
    yield f32_to_bf16(values).tobytes()


def config(s: Shape) -> dict:
    quantization: dict = {"group_size": GROUP, "bits": 4, "mode": "affine"}
    for i in range(s.layers):
        for gate in ("gate", "shared_expert_gate"):
            quantization[f"{PREFIX}model.layers.{i}.mlp.{gate}"] = {"group_size": GROUP, "bits": 8}
    text = {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": s.hidden,
        "num_hidden_layers": s.layers,
        "vocab_size": s.vocab,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "attention_bias": False,
        "attn_output_gate": True,
        "hidden_act": "silu",
        "rms_norm_eps": s.rms_norm_eps,
        "max_position_embeddings": s.max_context,
        "full_attention_interval": s.full_attention_interval,
        "layer_types": ["full_attention" if s.is_attention(i) else "linear_attention" for i in range(s.layers)],
        "linear_conv_kernel_dim": s.conv_width,
        "linear_key_head_dim": s.gdn_head_dim,
        "linear_value_head_dim": s.gdn_head_dim,
        "linear_num_key_heads": s.gdn_key_heads,
        "linear_num_value_heads": s.gdn_value_heads,
        "num_experts": s.experts,
        "num_experts_per_tok": s.experts_per_token,
        "moe_intermediate_size": s.expert_width,
        "shared_expert_intermediate_size": s.shared_width,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": list(s.mrope_section),
            "partial_rotary_factor": s.rotary_dim / s.head_dim,
            "rope_theta": s.rope_theta,
            "rope_type": "default",
        },
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "eos_token_id": [s.vocab - 1],
        "tie_word_embeddings": False,
        "text_config": text,
        "quantization": quantization,
        "quantization_config": quantization,
    }


def write_model(s: Shape, out: Path, seed: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    plan = list(entries(s))
    size = sum(e.nbytes for e in plan)
    free = shutil.disk_usage(out).free
    if size + (1 << 30) > free:
        raise SystemExit(f"{out}: needs {size / 1e9:.1f} GB and 1 GB to spare, the disk has {free / 1e9:.1f} GB free")
    header: dict = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for e in plan:
        end = offset + e.nbytes
        header[PREFIX + e.name] = {"dtype": e.dtype, "shape": list(e.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(seed)
    with (out / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for e in plan:
            for piece in pieces(rng, e):
                file.write(piece)
    (out / "config.json").write_text(json.dumps(config(s), indent=1))
    print(f"{out}: {size / 1e9:.3f} GB, {len(plan)} tensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", help="NAME[:LAYERS], such as qwen3.6-35b-a3b:4")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    write_model(named_shape(args.shape), args.out, args.seed)


if __name__ == "__main__":
    main()
