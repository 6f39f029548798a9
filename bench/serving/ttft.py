#!/usr/bin/env python3
"""Time to the first token of a prompt of 8,192 tokens: cold, repeated, and repeated after a restart.

    python3 bench/serving/ttft.py --out bench/results/serving-ttft.json
"""

import statistics
import tempfile

from common import WORDS, Server, arguments, report


def prompt(seed, words=8000):
    text = " ".join(WORDS[(i * 7 + i // 31 + seed) % len(WORDS)] for i in range(words))
    return [{"role": "user", "content": f"{seed}: {text}"}]


def first(server, messages):
    """Milliseconds to the first token, and the usage."""
    ms = usage = None
    for seconds, event in server.stream(messages, max_tokens=2, stream_options={"include_usage": True}):
        delta = event["choices"][0]["delta"] if event["choices"] else {}
        if ms is None and (delta.get("content") or delta.get("reasoning_content")):
            ms = seconds * 1e3
        usage = event.get("usage") or usage
    return ms, usage


def main():
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    cold, warm, disk, lengths = [], [], [], []
    with tempfile.TemporaryDirectory() as cache:
        with Server(args.lily, "--cache-dir", cache) as server:
            first(server, prompt(99, 500))
            # As many words as make 8,192 tokens or a little more.
            words = 8000
            _, usage = first(server, prompt(98, words))
            words = int(words * 8192 / usage["prompt_tokens"]) + 1
            for i in range(args.repeats):
                ms, usage = first(server, prompt(i, words))
                cold.append(ms)
                assert usage["prompt_tokens_details"]["cached_tokens"] < 64, usage
                lengths.append(usage["prompt_tokens"])
                ms, usage = first(server, prompt(i, words))
                warm.append(ms)
            server.stop()
        with Server(args.lily, "--cache-dir", cache) as server:
            first(server, prompt(97, 500))
            for i in range(args.repeats):
                ms, usage = first(server, prompt(i, words))
                disk.append(ms)
                assert usage["prompt_tokens_details"]["cached_tokens"] > 8000, usage
            server.stop()
    c, w, d = map(statistics.median, (cold, warm, disk))
    print(f"{lengths[0]} tokens: cold {c:.1f} ms, repeated {w:.1f} ms, after a restart {d:.1f} ms")
    report(
        args,
        {"prompt_tokens": lengths, "cold_ms": cold, "repeated_ms": warm, "after_restart_ms": disk},
        [
            ("at least 8,192 tokens", min(lengths), min(lengths) >= 8192),
            ("repeated <= 5 % of cold", f"{w / c:.1%}", w <= 0.05 * c),
            ("repeated after a restart <= 25 % of cold", f"{d / c:.1%}", d <= 0.25 * c),
        ],
    )


if __name__ == "__main__":
    main()
