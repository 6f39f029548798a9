"""Starting a server, asking it, and writing down what was measured. Standard library only."""

import argparse
import http.client
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WORDS = (
    "heron lute atoll frugal quick whale river castle lantern meadow copper violin harbor pepper saddle thunder "
    "basket marble orchard pilot ribbon shadow timber velvet walnut anchor beacon candle desert engine forest garden"
).split()


class Server:
    """A `lily serve` of its own, ended with the `with` block."""

    def __init__(self, lily, *args, env=None, log=None):
        self.command = [str(lily), "serve", "--port", "0", *map(str, args)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LILY_")}
        environment.update(env or {})
        self.log = open(log, "ab") if log else None
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=self.log or None, env=environment, text=True
        )
        for line in self.process.stdout:
            if line.startswith("listening on http://"):
                self.host = line.strip().removeprefix("listening on http://")
                return
        raise SystemExit(f"{shlex.join(self.command)} ended before it listened")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Asks it to end and waits; the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        status = self.process.wait(120)
        self.process.stdout.close()
        return status

    def kill(self):
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def rss(self):
        """Resident bytes that are its own: not mapped files."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(l.split()[1]) << 10 for l in text.splitlines() if l.startswith("RssAnon:"))

    def connect(self, timeout=300):
        host, port = self.host.rsplit(":", 1)
        return http.client.HTTPConnection(host, int(port), timeout=timeout)

    def get(self, path):
        connection = self.connect()
        connection.request("GET", path)
        response = connection.getresponse()
        body = json.load(response)
        connection.close()
        return response.status, body

    def chat(self, messages, connection=None, **fields):
        """A completion that must work. Greedy unless told otherwise."""
        status, body = self.try_chat(messages, connection, **fields)
        if status != 200:
            raise AssertionError(f"HTTP {status}: {body}")
        return body

    def try_chat(self, messages, connection=None, **fields):
        own = connection or self.connect()
        body = {"model": "lily-mini", "messages": messages, "temperature": 0} | fields
        own.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = own.getresponse()
        answer = json.load(response)
        if connection is None:
            own.close()
        return response.status, answer

    def stream(self, messages, **fields):
        """Yields (seconds since the request, event) for every event with data."""
        connection = self.connect()
        body = {"model": "lily-mini", "messages": messages, "temperature": 0, "stream": True} | fields
        started = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise AssertionError(f"HTTP {response.status}: {response.read()}")
        try:
            for line in response:
                if line.startswith(b"data: "):
                    data = line[6:].strip()
                    if data == b"[DONE]":
                        return
                    yield time.perf_counter() - started, json.loads(data)
        finally:
            connection.close()


def text_of(completion):
    """The message of a completion, as comparable text."""
    return json.dumps(completion["choices"][0]["message"], sort_keys=True)


def arguments(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lily", default=ROOT / "target/release/lily", help="the binary")
    parser.add_argument("--out", help="write the results here, as JSON")
    return parser


def machine():
    cpu = next(
        (l.split(":", 1)[1].strip() for l in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in l),
        platform.processor(),
    )
    return {"cpu": cpu, "cores": os.cpu_count(), "load_average_before": LOAD}


LOAD = os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def report(args, results, bars):
    """Prints the bars, writes the file, and exits with 1 when a bar is missed."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    named = [{"bar": name, "found": found, "met": bool(met)} for name, found, met in bars]
    for bar in named:
        print(f"{'met   ' if bar['met'] else 'MISSED'} {bar['bar']}: {bar['found']}")
    if args.out:
        whole = {
            "command": f"python3 bench/serving/{Path(sys.argv[0]).name}",
            "commit": commit,
            "machine": machine(),
            "bars": named,
            "results": results,
        }
        Path(args.out).write_text(json.dumps(whole, indent=1) + "\n")
    sys.exit(0 if all(bar["met"] for bar in named) else 1)
