#!/usr/bin/env python3
"""200 clients at once, 5,000 requests, a tenth of which hang up at random: no wrong answer, flat memory, quick /health.

    python3 bench/serving/load.py --out bench/results/serving-load.json
"""

import asyncio
import json
import random
import time

from batch import mixed
from common import Server, arguments, report, text_of


class Client:
    """Requests over a connection of its own each, by hand: a connection must be dropped at any moment."""

    def __init__(self, host):
        self.host, self.port = host.rsplit(":", 1)

    async def request(self, method, path, body=None, hang_up=None):
        reader, writer = await asyncio.open_connection(self.host, int(self.port))
        try:
            data = b"" if body is None else json.dumps(body).encode()
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            )
            writer.write(head.encode() + data)
            await writer.drain()
            if hang_up is not None:
                try:
                    await asyncio.wait_for(reader.read(), hang_up)
                except asyncio.TimeoutError:
                    pass
                return None, None
            answer = await reader.read()
            head, _, rest = answer.partition(b"\r\n\r\n")
            if b"chunked" in head.lower():
                rest = unchunk(rest)
            return int(head.split(b" ", 2)[1]), rest
        finally:
            writer.close()


def unchunk(data):
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        n = int(size, 16)
        out, data = out + data[:n], data[n + 2 :]
        if n == 0:
            break
    return out


def content(stream):
    """The content of a stream of events, and how it ended."""
    text, finish = "", None
    for line in stream.decode().splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                return event, None
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
    return text, finish


async def drive(args, server, right):
    client = Client(server.host)
    rng = random.Random(args.seed)
    counts = {"answers": 0, "streams": 0, "hung_up": 0, "refused": 0, "wrong": 0, "errors": 0}
    order = [rng.randrange(len(right)) for _ in range(args.requests)]
    todo = iter(enumerate(order))
    health, rss, stop = [], [], asyncio.Event()
    done = 0

    async def worker():
        nonlocal done
        for number, i in todo:
            messages, fields, want = right[i]
            body = {"model": "lily-mini", "messages": messages, "temperature": 0} | fields
            leave = rng.random() < 0.1
            body["stream"] = rng.random() < 0.5
            for attempt in range(100):
                try:
                    status, data = await client.request(
                        "POST", "/v1/chat/completions", body, rng.uniform(0, 2) if leave else None
                    )
                except OSError:
                    counts["errors"] += 1
                    break
                if leave:
                    counts["hung_up"] += 1
                    break
                if status == 429:
                    counts["refused"] += 1
                    await asyncio.sleep(rng.uniform(0.05, 0.5))
                    continue
                if status != 200:
                    counts["errors"] += 1
                    print(status, data[:200])
                elif body["stream"]:
                    counts["streams"] += 1
                    message = json.loads(want)
                    counts["wrong"] += content(data)[0] != (message.get("content") or "")
                else:
                    counts["answers"] += 1
                    counts["wrong"] += text_of(json.loads(data)) != want
                break
            done += 1

    async def watch():
        while not stop.is_set():
            began = time.perf_counter()
            try:
                status, _ = await client.request("GET", "/health")
                assert status == 200
            except OSError:
                counts["errors"] += 1
            health.append(time.perf_counter() - began)
            rss.append((done, server.rss()))
            await asyncio.sleep(0.05)

    watcher = asyncio.create_task(watch())
    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(args.clients)))
    seconds = time.perf_counter() - began
    stop.set()
    await watcher
    return counts, health, rss, seconds


def main():
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with Server(args.lily, "--cache-ram", 0) as server:
        right = []
        for i in range(100):
            messages, fields = mixed(i)
            right.append((messages, fields, text_of(server.chat(messages, **fields))))
    with Server(args.lily, "--cache-ram", 256, "--queue", 150) as server:
        counts, health, rss, seconds = asyncio.run(drive(args, server, right))
        time.sleep(0.5)
        load = server.get("/health")[1]
        status = server.stop()
    health.sort()
    p99 = health[int(len(health) * 0.99)]
    # Warm after a fifth: the cache is full by then.
    warm = [bytes for done, bytes in rss if done >= args.requests // 5]
    middle = sorted(warm[: len(warm) // 4])[len(warm) // 8]
    last = sorted(warm[-len(warm) // 4 :])[len(warm) // 8]
    growth = last / middle - 1
    print(counts, f"{seconds:.1f} s; /health median {health[len(health) // 2] * 1e3:.1f} ms, 99 % {p99 * 1e3:.1f} ms")
    report(
        args,
        {"counts": counts, "seconds": seconds, "health_ms": {"median": health[len(health) // 2] * 1e3, "p99": p99 * 1e3, "max": health[-1] * 1e3, "samples": len(health)}, "rss": rss[:: max(1, len(rss) // 60)], "load_after": load},
        [
            ("wrong answers", counts["wrong"], counts["wrong"] == 0),
            ("errors", counts["errors"], counts["errors"] == 0),
            ("memory after a fifth and at the end, change", f"{growth:+.1%}", abs(growth) <= 0.05),
            ("/health, 99 % of them", f"{p99 * 1e3:.1f} ms", p99 < 0.05),
            ("nothing waits or runs afterwards", f"{load['waiting']}, {load['running']}", load["waiting"] == load["running"] == 0),
            ("the server ends with 0 when asked to", status, status == 0),
        ],
    )


if __name__ == "__main__":
    main()
