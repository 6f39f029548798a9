#!/usr/bin/env python3
"""A prompt of 32K tokens arrives while an answer streams: the longest pause between two of its tokens.

    python3 bench/serving/long_prompt.py --out bench/results/serving-long-prompt.json
"""

import threading
import time

from batch import endless
from common import WORDS, Server, arguments, report


def main():
    args = arguments(__doc__).parse_args()
    text = " ".join(WORDS[(i * 5 + i // 17) % len(WORDS)] for i in range(31_000))
    bias = endless(args.lily)
    gaps, before, done = [], [], threading.Event()
    with Server(args.lily, "--context", 65536) as server:
        running = threading.Event()

        def stream():
            last = None
            for seconds, _ in server.stream(
                [{"role": "user", "content": "define heron"}], max_tokens=50_000, logit_bias=bias
            ):
                if last is not None:
                    (gaps if running.is_set() else before).append(seconds - last)
                last = seconds
                if done.is_set():
                    return

        thread = threading.Thread(target=stream)
        thread.start()
        time.sleep(1)
        running.set()
        began = time.perf_counter()
        body = server.chat([{"role": "user", "content": text}], max_tokens=1)
        took = time.perf_counter() - began
        done.set()
        thread.join()
    tokens = body["usage"]["prompt_tokens"]
    worst, usual = max(gaps), sorted(gaps)[len(gaps) // 2]
    print(f"{tokens} tokens in {took:.1f} s; {len(gaps)} events meanwhile, longest pause {worst * 1e3:.0f} ms, median {usual * 1e3:.1f} ms")
    report(
        args,
        {"prompt_tokens": tokens, "prompt_s": took, "events": len(gaps), "longest_pause_ms": worst * 1e3, "median_pause_ms": usual * 1e3, "longest_pause_before_ms": max(before) * 1e3},
        [
            ("at least 32,000 tokens", tokens, tokens >= 32_000),
            ("longest pause <= 250 ms", f"{worst * 1e3:.0f} ms", worst <= 0.25),
            ("the answer went on", len(gaps), len(gaps) > 20),
        ],
    )


if __name__ == "__main__":
    main()
