#!/usr/bin/env python3
"""One turn each of the coding agents Claude Code and Codex CLI against the server, with lily-mini.

    npm install --prefix /tmp/agents @anthropic-ai/claude-code @openai/codex
    python tests/clients/agents.py --lily target/release/lily --bin /tmp/agents/node_modules/.bin

lily-mini is a dictionary and no agent; what is checked is that the agents' requests (tens of thousands of tokens of
instructions and tools) are taken and that their clients read the answers. An agent that is not installed is skipped,
and says so.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from common import MODEL, QUESTION, Failures, server


def turn(name: str, command: list[str], env: dict, failures: Failures, cwd: str) -> str:
    started = time.perf_counter()
    base = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "TMPDIR")}
    done = subprocess.run(command, env=base | {"HOME": cwd} | env, cwd=cwd, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=540)
    print(f"{name}: exit {done.returncode} after {time.perf_counter() - started:.1f} s, {done.stdout.strip()[-300:]!r}")
    failures.check(done.returncode == 0, f"{name}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    return done.stdout


def answered(url: str, path: str) -> int:
    """How many requests to the path got a 200."""
    with urllib.request.urlopen(url + "/metrics") as metrics:
        for line in metrics.read().decode().splitlines():
            if line.startswith(f'lily_requests_total{{path="{path}",status="200"}}'):
                return int(line.split()[-1])
    return 0


def claude(binary: Path, url: str, failures: Failures):
    with tempfile.TemporaryDirectory() as home:
        env = {
            "ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_SMALL_FAST_MODEL": MODEL, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "300",
        }
        command = [str(binary), "-p", QUESTION, "--output-format", "json", "--max-turns", "3", "--model", MODEL]
        out = turn("Claude Code", command, env, failures, home)
        try:
            result = json.loads(out)
            failures.check(not result["is_error"] and isinstance(result["result"], str), f"Claude Code: {result}")
        except (ValueError, KeyError, TypeError):
            failures.check(False, f"Claude Code printed {out[-500:]!r}")
        failures.check(answered(url, "/v1/messages") > 0, "Claude Code asked /v1/messages")


def codex(binary: Path, url: str, failures: Failures):
    with tempfile.TemporaryDirectory() as home:
        settings = {
            "model_provider": "lily", "model_providers.lily.name": "lily", "model_providers.lily.base_url": f"{url}/v1",
            "model_providers.lily.wire_api": "responses", "web_search": "disabled", "model_context_window": 200000,
        }
        flags = [part for key, value in settings.items() for part in ("-c", f"{key}={json.dumps(value)}")]
        command = [str(binary), "exec", "--skip-git-repo-check", "--sandbox", "read-only", "-m", MODEL, *flags, QUESTION]
        out = turn("Codex CLI", command, {"CODEX_HOME": home}, failures, home)
        failures.check(bool(out.strip()), "Codex CLI printed an answer")
        failures.check(answered(url, "/v1/responses") > 0, "Codex CLI asked /v1/responses")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lily", default="target/release/lily")
    parser.add_argument("--bin", type=Path, required=True, help="where the agents' commands are")
    args = parser.parse_args()
    failures = Failures()
    with server(args.lily, "--context", "200000", "--log", "info") as url:
        for name, run in (("claude", claude), ("codex", codex)):
            if (args.bin / name).exists():
                run(args.bin / name, url, failures)
            else:
                print(f"skipped: {args.bin / name} is not installed")
    return failures.finish()


if __name__ == "__main__":
    sys.exit(main())
