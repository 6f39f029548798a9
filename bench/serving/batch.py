#!/usr/bin/env python3
"""Batched decode over HTTP: 200 mixed requests one at a time and eight at a time give the same answers; eight streams
together against one.

    python3 bench/serving/batch.py --out bench/results/serving-batch.json
"""

import concurrent.futures
import json
import socket
import subprocess
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


def request_bytes(host, body):
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data


class Stream:
    """One stream's events, counted and not parsed: the machine's cores are the server's."""

    def __init__(self, server, word, tokens, bias):
        host, port = server.host.rsplit(":", 1)
        body = {
            "model": "lily-mini", "messages": [{"role": "user", "content": f"define {word}"}], "temperature": 0,
            "stream": True, "max_tokens": tokens, "logit_bias": bias,
        }
        self.socket = socket.create_connection((host, int(port)))
        self.socket.sendall(request_bytes(server.host, body))
        self.socket.setblocking(False)
        self.events, self.tail, self.done = 0, b"", False

    def poll(self):
        """Takes what has arrived."""
        while not self.done:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                return
            self.done = not data
            # An event's begin may lie across two reads.
            data = self.tail + data
            self.events += data.count(EVENT)
            self.tail = data[-(len(EVENT) - 1) :]
        self.socket.close()


EVENT = b"\ndata: {"
SIZES = (1, 2, 4, 8)


def streams(server, n, tokens, bias):
    """Tokens a second of `n` streams together, from when each has begun until the first one ends."""
    all_of_them = [Stream(server, WORDS[i], tokens, bias) for i in range(n)]

    def poll_until(condition):
        while True:
            for stream in all_of_them:
                stream.poll()
            now = time.perf_counter()
            if condition(all_of_them):
                return now, sum(s.events for s in all_of_them)
            time.sleep(0.002)

    # The first event has no text, and one is at the end.
    begin, before = poll_until(lambda streams: all(s.events > 1 for s in streams))
    end, after = poll_until(lambda streams: any(s.events > tokens or s.done for s in streams))
    poll_until(lambda streams: all(s.done for s in streams))
    if any(s.events < tokens for s in all_of_them):
        raise AssertionError(f"streams of {[s.events for s in all_of_them]} events; expected {tokens} tokens each")
    return (after - before) / (end - begin)


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
        speeds = {n: [] for n in SIZES}
        # In turn, so that what else the machine does falls on all of them.
        for _ in range(5):
            for n in SIZES:
                speeds[n].append(streams(server, n, 800, bias))
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
            ("eight streams over one, over HTTP", f"{best[8] / best[1]:.2f}", best[8] >= 2.5 * best[1]),
        ],
    )


if __name__ == "__main__":
    main()
