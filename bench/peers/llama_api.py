#!/usr/bin/env python3
"""Drives llama.cpp's shared library (`libllama.so`, C API of build 11434) for what its programs do not give:
logits of every position at full precision, and decode at a depth that was computed once and saved.

    llama_api.py LIBDIR logits MODEL.gguf --tokens IDS.json --out OUT.npy
    llama_api.py LIBDIR greedy MODEL.gguf --tokens IDS.json --count 64
    llama_api.py LIBDIR depth  MODEL.gguf --depth 32768 --state FILE --count 64

IDS.json is a list of ids, or `{"sequences": [[ids], ...]}`. Each sequence starts from an empty context.
`depth` fills the context once and saves it, so that later runs (the next alternation) start decoding within seconds.

The parameter structures below are those of the header of build 11434. Before use they are checked against the
defaults that the library itself returns: another layout is an error, never a silent misreading.
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import sys
import time
from pathlib import Path

import numpy as np


class ModelParams(c.Structure):
    _fields_ = [
        ("devices", c.c_void_p),
        ("tensor_buft_overrides", c.c_void_p),
        ("n_gpu_layers", c.c_int32),
        ("split_mode", c.c_int32),
        ("load_mode", c.c_int32),
        ("lazy_mode", c.c_int32),
        ("main_gpu", c.c_int32),
        ("tensor_split", c.c_void_p),
        ("progress_callback", c.c_void_p),
        ("progress_callback_user_data", c.c_void_p),
        ("kv_overrides", c.c_void_p),
        ("vocab_only", c.c_bool),
        ("check_tensors", c.c_bool),
        ("use_extra_bufts", c.c_bool),
        ("no_host", c.c_bool),
        ("no_alloc", c.c_bool),
        ("load_mtp", c.c_bool),
    ]


class ContextParams(c.Structure):
    _fields_ = [
        ("n_ctx", c.c_uint32),
        ("n_batch", c.c_uint32),
        ("n_ubatch", c.c_uint32),
        ("n_seq_max", c.c_uint32),
        ("n_rs_seq", c.c_uint32),
        ("n_outputs_max", c.c_uint32),
        ("n_outputs_max_per_seq", c.c_uint32),
        ("n_threads", c.c_int32),
        ("n_threads_batch", c.c_int32),
        ("ctx_type", c.c_int32),
        ("rope_scaling_type", c.c_int32),
        ("pooling_type", c.c_int32),
        ("attention_type", c.c_int32),
        ("flash_attn_type", c.c_int32),
        ("rope_freq_base", c.c_float),
        ("rope_freq_scale", c.c_float),
        ("yarn_ext_factor", c.c_float),
        ("yarn_attn_factor", c.c_float),
        ("yarn_beta_fast", c.c_float),
        ("yarn_beta_slow", c.c_float),
        ("yarn_orig_ctx", c.c_uint32),
        ("defrag_thold", c.c_float),
        ("cb_eval", c.c_void_p),
        ("cb_eval_user_data", c.c_void_p),
        ("type_k", c.c_int32),
        ("type_v", c.c_int32),
        ("abort_callback", c.c_void_p),
        ("abort_callback_data", c.c_void_p),
        ("embeddings", c.c_bool),
        ("offload_kqv", c.c_bool),
        ("no_perf", c.c_bool),
        ("op_offload", c.c_bool),
        ("swa_full", c.c_bool),
        ("kv_unified", c.c_bool),
        ("samplers", c.c_void_p),
        ("n_samplers", c.c_size_t),
        ("ctx_other", c.c_void_p),
    ]


class Batch(c.Structure):
    _fields_ = [
        ("n_tokens", c.c_int32),
        ("token", c.POINTER(c.c_int32)),
        ("embd", c.POINTER(c.c_float)),
        ("pos", c.POINTER(c.c_int32)),
        ("n_seq_id", c.POINTER(c.c_int32)),
        ("seq_id", c.POINTER(c.POINTER(c.c_int32))),
        ("logits", c.POINTER(c.c_int8)),
    ]


GGML_TYPE_F32, GGML_TYPE_F16 = 0, 1
LOG_CALLBACK = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
_SILENT = LOG_CALLBACK(lambda level, text, data: sys.stderr.write(text.decode(errors="replace")) if level == 4 else 0)


def load_library(directory: Path) -> c.CDLL:
    path = directory / "libllama.so"
    if not path.exists():
        raise SystemExit(f"{path}: not found; give the `bin` directory of a llama.cpp build with shared libraries")
    for name in ("libggml-base.so", "libggml-cpu.so", "libggml.so"):
        c.CDLL(str(directory / name), mode=c.RTLD_GLOBAL)
    lib = c.CDLL(str(path), mode=c.RTLD_GLOBAL)
    p, i32, size = c.c_void_p, c.c_int32, c.c_size_t
    tokens = c.POINTER(i32)
    for name, result, arguments in (
        ("llama_model_default_params", ModelParams, []),
        ("llama_context_default_params", ContextParams, []),
        ("llama_model_load_from_file", p, [c.c_char_p, ModelParams]),
        ("llama_init_from_model", p, [p, ContextParams]),
        ("llama_model_get_vocab", p, [p]),
        ("llama_vocab_n_tokens", i32, [p]),
        ("llama_get_memory", p, [p]),
        ("llama_memory_clear", None, [p, c.c_bool]),
        ("llama_decode", i32, [p, Batch]),
        ("llama_synchronize", None, [p]),
        ("llama_get_logits", c.POINTER(c.c_float), [p]),
        ("llama_state_seq_save_file", size, [p, c.c_char_p, i32, tokens, size]),
        ("llama_state_seq_load_file", size, [p, c.c_char_p, i32, tokens, size, c.POINTER(size)]),
        ("llama_log_set", None, [LOG_CALLBACK, p]),
        ("llama_free", None, [p]),
        ("llama_model_free", None, [p]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.llama_log_set(_SILENT, None)
    check_layout(lib)
    return lib


def check_layout(lib: c.CDLL) -> None:
    """The defaults are spread over both structures: if each is where we expect it, so are the fields."""
    m, x = lib.llama_model_default_params(), lib.llama_context_default_params()
    found = {
        "n_gpu_layers": (m.n_gpu_layers, -1),
        "split_mode": (m.split_mode, 1),
        "load_mode": (m.load_mode, -1),
        "lazy_mode": (m.lazy_mode, 1),
        "main_gpu": (m.main_gpu, 0),
        "vocab_only": (m.vocab_only, False),
        "use_extra_bufts": (m.use_extra_bufts, True),
        "no_alloc": (m.no_alloc, False),
        "n_ctx": (x.n_ctx, 512),
        "n_batch": (x.n_batch, 2048),
        "n_ubatch": (x.n_ubatch, 512),
        "n_seq_max": (x.n_seq_max, 1),
        "n_outputs_max_per_seq": (x.n_outputs_max_per_seq, 1),
        "flash_attn_type": (x.flash_attn_type, -1),
        "yarn_beta_slow": (x.yarn_beta_slow, -1.0),
        "defrag_thold": (x.defrag_thold, -1.0),
        "type_k": (x.type_k, GGML_TYPE_F16),
        "type_v": (x.type_v, GGML_TYPE_F16),
        "offload_kqv": (x.offload_kqv, True),
        "kv_unified": (x.kv_unified, False),
        "ctx_other": (x.ctx_other, None),
    }
    wrong = {k: f"found {a}, expected {b}" for k, (a, b) in found.items() if a != b}
    if wrong:
        raise SystemExit(f"libllama.so has other parameter structures than build 11434: {wrong}")


class Llama:
    """One model and one context with one sequence."""

    def __init__(self, directory: Path, model: Path, context: int, threads: int, kv_type: int = GGML_TYPE_F16,
                 all_logits: bool = False, repack: bool = True):
        self.lib = load_library(directory)
        params = self.lib.llama_model_default_params()
        params.use_extra_bufts = repack
        self.model = self.lib.llama_model_load_from_file(str(model).encode(), params)
        if not self.model:
            raise SystemExit(f"{model}: llama.cpp could not load it")
        self.vocab = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model))
        x = self.lib.llama_context_default_params()
        x.n_ctx, x.n_threads, x.n_threads_batch, x.type_k, x.type_v = context, threads, threads, kv_type, kv_type
        if all_logits:
            x.n_batch, x.n_outputs_max_per_seq = context, 0
        self.n_batch = x.n_batch
        self.context = self.lib.llama_init_from_model(self.model, x)
        if not self.context:
            raise SystemExit(f"{model}: llama.cpp could not make a context of {context} tokens")

    def clear(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def decode(self, ids: list[int], every: bool = False) -> None:
        """Appends ids (in pieces of n_batch); asks for the logits of every position or of the last."""
        for begin in range(0, len(ids), self.n_batch):
            part = ids[begin : begin + self.n_batch]
            token = (c.c_int32 * len(part))(*part)
            logits = (c.c_int8 * len(part))(*([1] * len(part))) if every else None
            status = self.lib.llama_decode(self.context, Batch(n_tokens=len(part), token=token, logits=logits))
            if status:
                raise SystemExit(f"llama_decode returned {status} for {len(part)} tokens at {begin}")
        self.lib.llama_synchronize(self.context)

    def logits(self, rows: int) -> np.ndarray:
        """F32 `[rows, vocab]` of the last `decode`."""
        flat = self.lib.llama_get_logits(self.context)
        return np.ctypeslib.as_array(flat, shape=(rows, self.vocab)).copy()

    def close(self) -> None:
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)


def read_sequences(path: Path) -> list[list[int]]:
    data = json.loads(path.read_text())
    return data["sequences"] if isinstance(data, dict) else [data]


def bench_prompt(count: int, vocab: int) -> list[int]:
    """The prompt of Lily's speed contract."""
    return [((i * 2654435761) % (1 << 32)) % vocab for i in range(count)]


def run_logits(args: argparse.Namespace) -> None:
    sequences = read_sequences(args.tokens)
    longest = max(map(len, sequences))
    kv = GGML_TYPE_F32 if args.kv == "f32" else GGML_TYPE_F16
    model = Llama(args.libdir, args.model, longest, args.threads, kv, all_logits=True, repack=not args.no_repack)
    out = []
    for ids in sequences:
        model.clear()
        model.decode(ids, every=True)
        out.append(model.logits(len(ids)))
    np.save(args.out, np.concatenate(out))
    model.close()


def run_greedy(args: argparse.Namespace) -> None:
    sequences = read_sequences(args.tokens)
    model = Llama(args.libdir, args.model, max(map(len, sequences)) + args.count, args.threads)
    answers = []
    for ids in sequences:
        model.clear()
        answer, step = [], ids
        while len(answer) < args.count:
            model.decode(step)
            step = [int(model.logits(1)[0].argmax())]
            answer += step
            if step[0] in args.stop:
                break
        answers.append(answer)
    print(json.dumps({"ids": answers}))
    model.close()


def run_depth(args: argparse.Namespace) -> None:
    """Decode rate after `depth` tokens of context, over `count` steps of one token each, as llama-bench times it."""
    model = Llama(args.libdir, args.model, args.depth + args.count + 8, args.threads)
    prompt = bench_prompt(args.depth, model.vocab)
    prefill = None
    if not args.state.exists():
        begin = time.perf_counter()
        model.decode(prompt)
        prefill = args.depth / (time.perf_counter() - begin)
        held = (c.c_int32 * args.depth)(*prompt)
        partial = args.state.with_suffix(".partial")
        if not model.lib.llama_state_seq_save_file(model.context, str(partial).encode(), 0, held, args.depth):
            raise SystemExit(f"{partial}: llama.cpp could not save its state")
        partial.rename(args.state)
        model.clear()
    held, got = (c.c_int32 * args.depth)(), c.c_size_t()
    read = model.lib.llama_state_seq_load_file(
        model.context, str(args.state).encode(), 0, held, args.depth, c.byref(got)
    )
    if not read or list(held) != prompt:
        raise SystemExit(f"{args.state}: holds another prompt; delete it")
    model.decode([1])  # warm-up: page in what the first step touches
    begin = time.perf_counter()
    for step in range(args.count):
        model.decode([(step * 7919) % model.vocab])
    rate = args.count / (time.perf_counter() - begin)
    print(json.dumps({"depth": args.depth, "decode_tok_s": rate, "prefill_tok_s": prefill}))
    model.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libdir", type=Path, help="directory that holds libllama.so")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in (("logits", run_logits), ("greedy", run_greedy), ("depth", run_depth)):
        sub = commands.add_parser(name)
        sub.add_argument("model", type=Path)
        sub.add_argument("--threads", type=int, default=2)
        sub.set_defaults(run=run)
        if name == "depth":
            sub.add_argument("--depth", type=int, required=True)
            sub.add_argument("--state", type=Path, required=True)
        else:
            sub.add_argument("--tokens", type=Path, required=True)
        if name == "logits":
            sub.add_argument("--out", type=Path, required=True)
            sub.add_argument("--kv", choices=["f16", "f32"], default="f16")
            sub.add_argument("--no-repack", action="store_true", help="plain kernels instead of the repacked ones")
        else:
            sub.add_argument("--count", type=int, default=64)
            sub.add_argument("--stop", type=int, nargs="*", default=[], help="ids that end an answer")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
