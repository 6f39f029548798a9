"""Sizes of a model of the `qwen3_5_moe` architecture, from a checkpoint's config or by name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """All sizes that the tensors of one model depend on. Counts unless the comment says otherwise."""

    hidden: int
    layers: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int
    gdn_key_heads: int
    gdn_value_heads: int
    gdn_head_dim: int  # width of a key head and of a value head: the same number in this architecture
    conv_width: int
    full_attention_interval: int  # layer i has full attention where (i + 1) % interval == 0
    rotary_dim: int  # leading part of a head that is rotated
    rope_theta: float
    rms_norm_eps: float
    max_context: int
    mrope_section: tuple[int, ...] = field(default=(11, 11, 10))

    @property
    def gdn_key_width(self) -> int:
        return self.gdn_key_heads * self.gdn_head_dim

    @property
    def gdn_value_width(self) -> int:
        return self.gdn_value_heads * self.gdn_head_dim

    @property
    def conv_channels(self) -> int:
        return 2 * self.gdn_key_width + self.gdn_value_width

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_interval == 0


QWEN36_35B_A3B = Shape(
    hidden=2048,
    layers=40,
    vocab=248_320,
    heads=16,
    kv_heads=2,
    head_dim=256,
    experts=256,
    experts_per_token=8,
    expert_width=512,
    shared_width=512,
    gdn_key_heads=16,
    gdn_value_heads=32,
    gdn_head_dim=128,
    conv_width=4,
    full_attention_interval=4,
    rotary_dim=64,
    rope_theta=1e7,
    rms_norm_eps=1e-6,
    max_context=262_144,
)

NAMED = {"qwen3.6-35b-a3b": QWEN36_35B_A3B}


def named_shape(spec: str) -> Shape:
    """`NAME` or `NAME:LAYERS`, the form that `lily bench --synthetic` takes."""
    name, _, layers = spec.partition(":")
    if name not in NAMED:
        raise SystemExit(f"synthetic shape: found '{name}', expected one of {', '.join(sorted(NAMED))}")
    shape = NAMED[name]
    if not layers:
        return shape
    if not layers.isdigit() or not 1 <= int(layers) <= shape.layers:
        raise SystemExit(f"synthetic shape: found {layers!r} layers, expected a number from 1 to {shape.layers}")
    return replace(shape, layers=int(layers))


def config_shape(model_dir: Path) -> Shape:
    """Reads the sizes from `config.json` of a checkpoint directory."""
    path = model_dir / "config.json"
    config = json.loads(path.read_text())
    if config.get("model_type") != "qwen3_5_moe":
        raise SystemExit(f"{path}: model_type is {config.get('model_type')!r}, expected 'qwen3_5_moe'")
    text = config["text_config"]
    rope = text["rope_parameters"]
    if text["linear_key_head_dim"] != text["linear_value_head_dim"]:
        raise SystemExit(f"{path}: key and value heads of the linear attention must have one width")
    shape = Shape(
        hidden=text["hidden_size"],
        layers=text["num_hidden_layers"],
        vocab=text["vocab_size"],
        heads=text["num_attention_heads"],
        kv_heads=text["num_key_value_heads"],
        head_dim=text["head_dim"],
        experts=text["num_experts"],
        experts_per_token=text["num_experts_per_tok"],
        expert_width=text["moe_intermediate_size"],
        shared_width=text["shared_expert_intermediate_size"],
        gdn_key_heads=text["linear_num_key_heads"],
        gdn_value_heads=text["linear_num_value_heads"],
        gdn_head_dim=text["linear_key_head_dim"],
        conv_width=text["linear_conv_kernel_dim"],
        full_attention_interval=text["full_attention_interval"],
        rotary_dim=int(text["head_dim"] * rope["partial_rotary_factor"]),
        rope_theta=float(rope["rope_theta"]),
        rms_norm_eps=text["rms_norm_eps"],
        max_context=text["max_position_embeddings"],
        mrope_section=tuple(rope.get("mrope_section", (11, 11, 10))),
    )
    types = text.get("layer_types")
    if types and [t == "full_attention" for t in types] != [shape.is_attention(i) for i in range(shape.layers)]:
        raise SystemExit(f"{path}: layer_types does not follow full_attention_interval")
    return shape
