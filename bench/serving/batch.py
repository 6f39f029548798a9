#!/usr/bin/env python3
"""Batched decode over HTTP: 200 mixed requests one at a time and eight at a time give the same answers; eight streams
together against one.

    python3 bench/serving/batch.py --out bench/results/serving-batch.json
"""

import concurrent.futures
import json
import subprocess
import threading
import time

from common import WORDS, Server, arguments, report, text_of


def mixed(i):
    """Messages and fields of request `i`."""
    word = WORDS[i % len(WORDS)]
    kinds = [
        f"define {word}",
        f"what is a {word}?",
        f"use {word} in a sentence",
        f"a synonym for {word}",
        f"{'tell me about ' * (i % 40)}{word}",
    ]
    messages = [{"role": "user", "content": kinds[i // len(WORDS) % len(kinds)]}]
    if i % 3 == 0:
        messages.insert(0, {"role": "system", "content": "You are a dictionary. " * (1 + i % 30)})
    return messages, {"max_tokens": 8 + i * 7 % 90, "enable_thinking": i % 5 == 0}


def endless(lily):
    out = subprocess.run([lily, "tokenize", "lily-mini"], input="<|im_end|><|endoftext|>", capture_output=True, text=True, check=True)
    return {str(i): -100 for i in json.loads(out.stdout)}


def streams(server, n, tokens, bias):
    """Tokens a second of `n` streams together, after each has begun."""
    started = threading.Barrier(n + 1)
    counts = [0] * n

    def run(i):
        first = True
        for _, event in server.stream(
            [{"role": "user", "content": f"define {WORDS[i]}"}], max_tokens=tokens, logit_bias=bias
        ):
            if first and event["choices"] and event["choices"][0]["delta"].get("content"):
                first = False
                started.wait()
            counts[i] += 1

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    started.wait()
    before = sum(counts)
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    return (sum(counts) - before) / seconds


def main():
    parser = arguments(__doc__)
    parser.add_argument("--requests", type=int, default=200)
    args = parser.parse_args()
    requests = [mixed(i) for i in range(args.requests)]
    bias = endless(args.lily)
    with Server(args.lily, "--cache-ram", 0, "--queue", 256) as server:
        begin = time.perf_counter()
        single = [text_of(server.chat(m, **f)) for m, f in requests]
        one_at_a_time = time.perf_counter() - begin
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            begin = time.perf_counter()
            batched = list(pool.map(lambda r: text_of(server.chat(r[0], **r[1])), requests))
            together = time.perf_counter() - begin
        different = [i for i in range(args.requests) if single[i] != batched[i]]
        for i in different[:5]:
            print(f"request {i}: {single[i]!r} alone, {batched[i]!r} in a batch")
        speeds = {n: [streams(server, n, 800, bias) for _ in range(3)] for n in (1, 8)}
    with Server(args.lily, "--queue", 256) as server:
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            cached = list(pool.map(lambda r: text_of(server.chat(r[0], **r[1])), requests * 2))
        different_cached = [i for i in range(2 * args.requests) if cached[i] != single[i % args.requests]]
    best = {n: max(v) for n, v in speeds.items()}
    print(f"{one_at_a_time:.2f} s one at a time, {together:.2f} s together; events a second: {speeds}")
    report(
        args,
        {"one_at_a_time_s": one_at_a_time, "together_s": together, "events_per_second": speeds},
        [
            ("different answers of 200, batched", len(different), not different),
            ("different answers of 400, batched and cached", len(different_cached), not different_cached),
            ("eight streams over one, over HTTP", f"{best[8] / best[1]:.2f}", best[8] >= 1.0 * best[1]),
        ],
    )


if __name__ == "__main__":
    main()
