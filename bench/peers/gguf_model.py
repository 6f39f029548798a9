#!/usr/bin/env python3
"""Writes GGUF files for llama.cpp: a real MLX-format checkpoint converted, or a random model of given shapes.

    gguf_model.py convert MODEL_DIR OUT.gguf --type f32|f16|bf16|q8_0|q4_0|q4_1
    gguf_model.py synthetic qwen3.6-35b-a3b:20 OUT.gguf

Needs `numpy` and `gguf` (PyPI). Other types (Q4_K_M and so on) come from `llama-quantize` on the F32 file.

How llama.cpp's `qwen35moe` differs from the MLX layout:
- value heads of the Gated DeltaNet are tiled, not grouped: MLX stores the heads that share key head 0 first, then
  those of key head 1; llama.cpp wants value head j to use key head `j mod key_heads`. Rows of the V part of in_proj_qkv
  and conv1d, of in_proj_z, in_proj_a, in_proj_b, A_log and dt_bias move, and the columns of out_proj;
- `ssm_a` is `-exp(A_log)`; conv1d is `[channels, width]`; `dt_bias` becomes `ssm_dt.bias`;
- norm weights multiply directly in both, so they are copied;
- each head's query rows are followed by its gate rows in both, so q_proj is copied.

`q4_1` keeps the checkpoint's own 4-bit codes: a group of 64 becomes two Q4_1 blocks of 32 with the same scale and
bias, so that llama.cpp multiplies the very weights that Lily and MLX-LM do (the F16 rounding of scales is reported).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType, GGUFWriter, TokenType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import quantize

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from peers.mlx_checkpoint import Checkpoint, Quantised  # noqa: E402
from peers.shapes import Shape, config_shape, named_shape  # noqa: E402

ARCH = "qwen35moe"
TYPES = {
    "f32": Type.F32,
    "f16": Type.F16,
    "bf16": Type.BF16,
    "q8_0": Type.Q8_0,
    "q4_0": Type.Q4_0,
    "q4_1": Type.Q4_1,
    "q6_k": Type.Q6_K,
}
# general.file_type: what the loader prints as the model's type; it decides nothing.
FILE_TYPES = {Type.F32: 0, Type.F16: 1, Type.Q4_0: 2, Type.Q4_1: 3, Type.Q8_0: 7, Type.BF16: 32}


@dataclass(frozen=True)
class Tensor:
    """One tensor of the GGUF file. `shape` is in numpy order (outermost first); GGUF stores it reversed."""

    name: str
    shape: tuple[int, ...]
    matrix: bool  # may be quantised; everything else is F32 (norms, convolution, router, gates)
    source: str  # module or parameter of the MLX checkpoint
    transform: str = ""  # how value heads move; see `convert_tensor`


def tensors(s: Shape) -> Iterator[Tensor]:
    """Every tensor that llama.cpp expects for `qwen35moe`, with the MLX module it comes from."""
    yield Tensor("token_embd.weight", (s.vocab, s.hidden), True, "model.embed_tokens")
    yield Tensor("output_norm.weight", (s.hidden,), False, "model.norm.weight")
    yield Tensor("output.weight", (s.vocab, s.hidden), True, "lm_head")
    for i in range(s.layers):
        blk, layer = f"blk.{i}.", f"model.layers.{i}."
        yield Tensor(blk + "attn_norm.weight", (s.hidden,), False, layer + "input_layernorm.weight")
        yield Tensor(blk + "post_attention_norm.weight", (s.hidden,), False, layer + "post_attention_layernorm.weight")
        if s.is_attention(i):
            attn = layer + "self_attn."
            query, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
            yield Tensor(blk + "attn_q.weight", (2 * query, s.hidden), True, attn + "q_proj")
            yield Tensor(blk + "attn_k.weight", (kv, s.hidden), True, attn + "k_proj")
            yield Tensor(blk + "attn_v.weight", (kv, s.hidden), True, attn + "v_proj")
            yield Tensor(blk + "attn_output.weight", (s.hidden, query), True, attn + "o_proj")
            yield Tensor(blk + "attn_q_norm.weight", (s.head_dim,), False, attn + "q_norm.weight")
            yield Tensor(blk + "attn_k_norm.weight", (s.head_dim,), False, attn + "k_norm.weight")
        else:
            gdn = layer + "linear_attn."
            value, heads = s.gdn_value_width, s.gdn_value_heads
            yield Tensor(blk + "attn_qkv.weight", (s.conv_channels, s.hidden), True, gdn + "in_proj_qkv", "qkv_rows")
            yield Tensor(blk + "attn_gate.weight", (value, s.hidden), True, gdn + "in_proj_z", "value_rows")
            yield Tensor(blk + "ssm_alpha.weight", (heads, s.hidden), True, gdn + "in_proj_a", "head_rows")
            yield Tensor(blk + "ssm_beta.weight", (heads, s.hidden), True, gdn + "in_proj_b", "head_rows")
            yield Tensor(blk + "ssm_out.weight", (s.hidden, value), True, gdn + "out_proj", "value_columns")
            conv = (s.conv_channels, s.conv_width)
            yield Tensor(blk + "ssm_conv1d.weight", conv, False, gdn + "conv1d.weight", "conv")
            yield Tensor(blk + "ssm_a", (heads,), False, gdn + "A_log", "decay")
            yield Tensor(blk + "ssm_dt.bias", (heads,), False, gdn + "dt_bias", "head_rows")
            yield Tensor(blk + "ssm_norm.weight", (s.gdn_head_dim,), False, gdn + "norm.weight")
        mlp = layer + "mlp."
        up, down = (s.expert_width, s.hidden), (s.hidden, s.expert_width)
        yield Tensor(blk + "ffn_gate_inp.weight", (s.experts, s.hidden), False, mlp + "gate")
        yield Tensor(blk + "ffn_gate_exps.weight", (s.experts, *up), True, mlp + "switch_mlp.gate_proj")
        yield Tensor(blk + "ffn_up_exps.weight", (s.experts, *up), True, mlp + "switch_mlp.up_proj")
        yield Tensor(blk + "ffn_down_exps.weight", (s.experts, *down), True, mlp + "switch_mlp.down_proj")
        up, down = (s.shared_width, s.hidden), (s.hidden, s.shared_width)
        yield Tensor(blk + "ffn_gate_inp_shexp.weight", (s.hidden,), False, mlp + "shared_expert_gate")
        yield Tensor(blk + "ffn_gate_shexp.weight", up, True, mlp + "shared_expert.gate_proj")
        yield Tensor(blk + "ffn_up_shexp.weight", up, True, mlp + "shared_expert.up_proj")
        yield Tensor(blk + "ffn_down_shexp.weight", down, True, mlp + "shared_expert.down_proj")


def tiled_heads(s: Shape) -> np.ndarray:
    """`order[j]` = the MLX value head that llama.cpp's value head j is."""
    per_key = s.gdn_value_heads // s.gdn_key_heads
    return np.arange(s.gdn_value_heads).reshape(s.gdn_key_heads, per_key).T.reshape(-1)


def head_rows(heads: np.ndarray, width: int) -> np.ndarray:
    return (heads[:, None] * width + np.arange(width)[None, :]).reshape(-1)


def convert_tensor(ck: Checkpoint, s: Shape, t: Tensor) -> Quantised | np.ndarray:
    """The tensor's values in llama.cpp's order: `Quantised` where the checkpoint quantises it, else F32."""
    heads, width = tiled_heads(s), s.gdn_head_dim
    packed = t.source + ".scales" in ck
    value = ck.quantised(t.source) if packed else ck.floats(t.source if t.source in ck else t.source + ".weight")
    pick = value.rows if isinstance(value, Quantised) else value.__getitem__
    if t.transform in ("qkv_rows", "conv"):
        keys = np.arange(2 * s.gdn_key_width)
        value = pick(np.concatenate([keys, 2 * s.gdn_key_width + head_rows(heads, width)]))
        if t.transform == "conv":  # [channels, width, 1] or [channels, 1, width]
            value = value.reshape(t.shape)
    elif t.transform == "value_rows":
        value = pick(head_rows(heads, width))
    elif t.transform in ("head_rows", "decay"):
        value = pick(heads)
        if t.transform == "decay":
            value = -np.exp(value)
    elif t.transform == "value_columns":
        if isinstance(value, Quantised):
            value = value.column_blocks(heads, width)
        else:
            value = value[:, head_rows(heads, width)]
    found = value.codes.shape if isinstance(value, Quantised) else value.shape
    if found != t.shape and not (len(t.shape) == 1 and found == (1, *t.shape)):
        raise SystemExit(f"{ck.directory}: {t.source} has shape {found}, {t.name} needs {t.shape}")
    return value


class Encoder:
    """Turns values into the bytes of a GGUF type; counts what `q4_1` could not keep exactly."""

    def __init__(self, kind: Type):
        self.kind = kind
        self.inexact = 0
        self.groups = 0

    def __call__(self, t: Tensor, value: Quantised | np.ndarray) -> np.ndarray:
        kind = tensor_type(t, self.kind)
        if kind == Type.Q4_1 and isinstance(value, Quantised) and value.bits == 4:
            return self._q4_1(value)
        floats = value.dequantise() if isinstance(value, Quantised) else value
        floats = np.ascontiguousarray(floats, dtype=np.float32).reshape(t.shape)
        return floats if kind == Type.F32 else quantize(floats, kind)

    def _q4_1(self, value: Quantised) -> np.ndarray:
        """Block of 32: F16 scale, F16 minimum, 16 bytes with element j low and element j + 16 high in byte j."""
        scale, bias = value.scales.astype(np.float16), value.biases.astype(np.float16)
        self.groups += scale.size
        self.inexact += int(np.count_nonzero((scale != value.scales) | (bias != value.biases)))
        blocks = value.codes.reshape(*value.codes.shape[:-1], -1, 2, 16)
        out = np.empty((*blocks.shape[:-2], 20), np.uint8)
        per = value.group // 32
        out[..., 0:2] = np.repeat(scale, per, axis=-1)[..., None].view(np.uint8)
        out[..., 2:4] = np.repeat(bias, per, axis=-1)[..., None].view(np.uint8)
        out[..., 4:] = blocks[..., 0, :] | (blocks[..., 1, :] << 4)
        return out.reshape(*value.codes.shape[:-1], -1)


def tensor_type(t: Tensor, kind: Type) -> Type:
    """Matrices take `kind` where their rows are whole blocks of it; everything else is F32."""
    if not t.matrix or t.shape[-1] % GGML_QUANT_SIZES[kind][0]:
        return Type.F32
    return kind


def tensor_bytes(t: Tensor, kind: Type) -> int:
    block, size = GGML_QUANT_SIZES[tensor_type(t, kind)]
    return int(np.prod(t.shape)) // block * size


def write_sizes(w: GGUFWriter, s: Shape, kind: Type, name: str) -> None:
    """The metadata keys that llama.cpp reads for this architecture."""

    def number(key: str, value: int) -> None:
        w.add_key_value(f"{ARCH}.{key}", value, GGUFValueType.UINT32)

    def real(key: str, value: float) -> None:
        w.add_key_value(f"{ARCH}.{key}", value, GGUFValueType.FLOAT32)

    w.add_key_value("general.name", name, GGUFValueType.STRING)
    w.add_key_value("general.file_type", FILE_TYPES.get(kind, 1), GGUFValueType.UINT32)
    w.add_key_value("general.quantization_version", 2, GGUFValueType.UINT32)
    number("block_count", s.layers)
    number("context_length", s.max_context)
    number("embedding_length", s.hidden)
    number("vocab_size", s.vocab)
    number("attention.head_count", s.heads)
    number("attention.head_count_kv", s.kv_heads)
    number("attention.key_length", s.head_dim)
    number("attention.value_length", s.head_dim)
    real("attention.layer_norm_rms_epsilon", s.rms_norm_eps)
    number("rope.dimension_count", s.rotary_dim)
    real("rope.freq_base", s.rope_theta)
    w.add_array(f"{ARCH}.rope.dimension_sections", [*s.mrope_section, 0])
    number("expert_count", s.experts)
    number("expert_used_count", s.experts_per_token)
    number("expert_feed_forward_length", s.expert_width)
    number("expert_shared_feed_forward_length", s.shared_width)
    number("ssm.conv_kernel", s.conv_width)
    number("ssm.inner_size", s.gdn_value_width)
    number("ssm.state_size", s.gdn_head_dim)
    number("ssm.time_step_rank", s.gdn_value_heads)
    number("ssm.group_count", s.gdn_key_heads)
    number("full_attention_interval", s.full_attention_interval)


def write_tokenizer(w: GGUFWriter, directory: Path, s: Shape) -> None:
    """Byte-level BPE with the `qwen35` pre-tokenizer, from `tokenizer.json`; ids without a token become unused."""
    data = json.loads((directory / "tokenizer.json").read_text())
    names = {i: token for token, i in data["model"]["vocab"].items()}
    kinds = dict.fromkeys(names, TokenType.NORMAL)
    for added in data["added_tokens"]:
        names[added["id"]] = added["content"]
        kinds[added["id"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    if max(names) >= s.vocab:
        raise SystemExit(f"{directory}/tokenizer.json: token id {max(names)} is outside the vocabulary of {s.vocab}")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    w.add_token_list([names.get(i, f"<unused {i}>") for i in range(s.vocab)])
    w.add_token_types([kinds.get(i, TokenType.UNUSED) for i in range(s.vocab)])
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    w.add_token_merges(merges)
    generation = json.loads((directory / "generation_config.json").read_text())
    stops = generation["eos_token_id"]
    w.add_eos_token_id(stops if isinstance(stops, int) else stops[0])
    if isinstance(stops, list) and len(stops) > 1:
        w.add_eot_token_id(stops[1])
    if generation.get("pad_token_id") is not None:
        w.add_pad_token_id(generation["pad_token_id"])
    w.add_add_bos_token(False)
    template = directory / "chat_template.jinja"
    if template.exists():
        w.add_chat_template(template.read_text())


def check_space(out: Path, size: int) -> None:
    free = shutil.disk_usage(out.parent).free
    if size + (1 << 30) > free:
        raise SystemExit(f"{out}: needs {size / 1e9:.1f} GB and 1 GB to spare, the disk has {free / 1e9:.1f} GB free")


def write_file(
    out: Path, s: Shape, kind: Type, head: Type, name: str, values: Callable[[Tensor, Type], np.ndarray | Iterator],
    tokenizer: Path | None,
) -> None:
    """Writes header, metadata and tensors in one pass; `values` gives an array, or pieces of it in order."""
    plan = [(t, head if t.name == "output.weight" else kind) for t in tensors(s)]
    check_space(out, sum(tensor_bytes(t, k) for t, k in plan))
    w = GGUFWriter(out, ARCH)
    write_sizes(w, s, kind, name)
    if tokenizer is None:
        w.add_tokenizer_model("none")
    else:
        write_tokenizer(w, tokenizer, s)
    for t, k in plan:
        final = tensor_type(t, k)
        w.add_tensor_info(t.name, t.shape, np.dtype(np.float32), tensor_bytes(t, k), raw_dtype=final)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    file = w.fout[0]
    w.write_padding(file, file.tell())
    for t, k in plan:
        pieces = values(t, k)
        written = 0
        for piece in [pieces] if isinstance(pieces, np.ndarray) else pieces:
            piece.tofile(file)
            written += piece.nbytes
        if written != tensor_bytes(t, k):
            raise SystemExit(f"{t.name}: made {written} bytes, {tensor_bytes(t, k)} expected")
        w.write_padding(file, written)
    w.close()
    print(f"{out}: {out.stat().st_size / 1e9:.3f} GB, {len(plan)} tensors")


def convert(args: argparse.Namespace) -> None:
    kind = TYPES[args.type]
    ck, s, encoder = Checkpoint(args.model), config_shape(args.model), Encoder(kind)
    values = lambda t, _: encoder(t, convert_tensor(ck, s, t))  # noqa: E731
    write_file(args.out, s, kind, kind, args.model.name, values, args.model)
    if kind == Type.Q4_1:
        print(f"scale or bias rounded by F16 in {encoder.inexact} of {encoder.groups} groups")


def random_values(rng: np.random.Generator, t: Tensor, kind: Type) -> np.ndarray | Iterator[np.ndarray]:
    """Random tensors with sane magnitudes: matrices keep the variance of their input, norms are 1."""
    final = tensor_type(t, kind)
    if t.name.endswith("norm.weight"):
        return np.ones(t.shape, np.float32)
    if t.name.endswith("ssm_a"):
        return -rng.uniform(1, 16, t.shape).astype(np.float32)
    if t.name.endswith("ssm_dt.bias"):  # inverse softplus of a step between 1e-3 and 1e-1
        step = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), t.shape))
        return (step + np.log(-np.expm1(-step))).astype(np.float32)
    if final == Type.F32:
        return (rng.standard_normal(t.shape) / np.sqrt(t.shape[-1])).astype(np.float32)
    if final != Type.Q4_0:
        return random_pieces(rng, t, final)
    return random_q4_0(rng, t)


def random_q4_0(rng: np.random.Generator, t: Tensor, piece: int = 1 << 21) -> Iterator[np.ndarray]:
    """Q4_0 blocks of 18 bytes with random codes. Codes 0..15 minus 8 have standard deviation 4.61."""
    scale = np.float16(1 / (4.61 * np.sqrt(t.shape[-1])))
    left = int(np.prod(t.shape)) // 32
    while left:
        count = min(left, piece)
        blocks = np.frombuffer(rng.bytes(count * 18), np.uint8).reshape(count, 18).copy()
        blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
        yield blocks
        left -= count


def random_pieces(rng: np.random.Generator, t: Tensor, kind: Type, rows: int = 4096) -> Iterator[np.ndarray]:
    """Normal values, quantised by the `gguf` package a few rows at a time (slow: for small tensors)."""
    total, width = int(np.prod(t.shape[:-1])), t.shape[-1]
    for begin in range(0, total, rows):
        count = min(rows, total - begin)
        yield quantize((rng.standard_normal((count, width)) / np.sqrt(width)).astype(np.float32), kind)


def synthetic(args: argparse.Namespace) -> None:
    s = named_shape(args.shape)
    rng = np.random.default_rng(args.seed)
    values = lambda t, k: random_values(rng, t, k)  # noqa: E731
    write_file(args.out, s, Type.Q4_0, TYPES[args.head_type], f"random-{args.shape}", values, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("convert", help="convert an MLX-format checkpoint directory")
    sub.add_argument("model", type=Path)
    sub.add_argument("out", type=Path)
    sub.add_argument("--type", choices=["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"], default="f32")
    sub.set_defaults(run=convert)
    sub = commands.add_parser("synthetic", help="write a random model of known shapes in Q4_0")
    sub.add_argument("shape", help="NAME[:LAYERS], such as qwen3.6-35b-a3b:20")
    sub.add_argument("out", type=Path)
    sub.add_argument("--head-type", choices=["q4_0", "q8_0", "f16"], default="q4_0", help="type of output.weight")
    sub.add_argument("--seed", type=int, default=1)
    sub.set_defaults(run=synthetic)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
