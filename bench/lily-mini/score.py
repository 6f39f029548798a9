#!/usr/bin/env python3
"""Asks a running `lily serve` about words in independently written wordings.

    lily serve &
    python3 bench/lily-mini/score.py --url http://127.0.0.1:8080 --out scores.json

Python >= 3.10, standard library only. Every frame of `phrasings/frames.json` is used
evenly; words are drawn with a seed; temperature is 0; each question is asked with
thinking off and on. An answer is right if it is, apart from outer white space, one
of the exact texts that the word's facts allow (see `known.py`). Prints a table,
writes JSON with every wrong answer, and with `--check` exits 1 below a bar.
"""

import argparse
import concurrent.futures
import hashlib
import http.client
import json
import math
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from functools import partial
from pathlib import Path

from known import DataError, load
from questions import DICTIONARY_TYPES, Question, make_questions

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

#: Bars of the design, as shares. "all types" is the mean over the dictionary types,
#: each counting the same, so that the many `define` frames do not hide the rest.
BARS = {"define": 0.90, "all types": 0.85, "unknown": 0.90, "tool": 0.95}

TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.S)
FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)</function>", re.S)
PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>", re.S)


class Server:
    """The chat endpoint of an OpenAI-compatible server."""

    def __init__(self, url: str, key: str | None, timeout: float, max_tokens: int):
        url = url.rstrip("/")
        self.base = url if url.endswith("/v1") else url + "/v1"
        self.key, self.timeout, self.max_tokens = key, timeout, max_tokens

    def request(self, path: str, body: dict | None = None) -> dict:
        """One JSON request. Raises OSError (with the server's words for an HTTP error)."""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read(500).decode("utf-8", "replace")
            raise OSError(f"HTTP {error.code} from {self.base}{path}: {text}") from error
        except (ValueError, http.client.HTTPException) as error:
            raise OSError(f"{self.base}{path}: the answer is broken ({error!r})") from error

    def model(self) -> str:
        """The id of the first model served."""
        try:
            return self.request("/models")["data"][0]["id"]
        except (KeyError, IndexError, TypeError) as error:
            raise OSError(f"{self.base}/models lists no model") from error

    def chat(self, model: str, messages: list[dict], tools: list[dict], thinking: bool) -> dict:
        """The first choice of one completion."""
        body = {
            "model": model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self.max_tokens,
            "chat_template_kwargs": {"enable_thinking": thinking},
        }
        if tools:
            body["tools"] = tools
        answer = self.request("/chat/completions", body)
        try:
            choice = answer["choices"][0]
            return {"finish_reason": choice["finish_reason"], **choice["message"]}
        except (KeyError, IndexError, TypeError) as error:
            raise OSError(f"answer without choices[0].message: {json.dumps(answer)[:300]}") from error


def calls_of(message: dict) -> list[tuple[str, dict]]:
    """The tool calls of a message: parsed ones, else those written in its text.

    Arguments that are not a JSON object come back as an empty one: they are wrong.
    """
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except (TypeError, ValueError):
            arguments = {}
        calls.append((function.get("name"), arguments if isinstance(arguments, dict) else {}))
    if calls:
        return calls
    for block in TOOL_CALL.findall(message.get("content") or ""):
        for name, body in FUNCTION.findall(block):
            arguments = {key.strip(): value.strip() for key, value in PARAMETER.findall(body)}
            calls.append((name.strip(), arguments))
    return calls


def ask(server: Server, model: str, question: Question, thinking: bool) -> dict:
    """Holds one conversation. The result says whether all of it was right, and why not."""
    result = {"type": question.type, "frame": question.frame, "style": question.style, "right": False}
    result |= {"thought": False, "error": None, "turns": []}
    messages: list[dict] = []
    right = True
    for turn in question.turns:
        messages.append({"role": "user", "content": turn.user})
        try:
            message = server.chat(model, messages, question.tools, thinking)
        except OSError as error:
            result["error"] = str(error)
            result["turns"].append({"user": turn.user, "right": False})
            return result
        text = message.get("content") or ""
        record = {"user": turn.user, "answer": text, "finish_reason": message["finish_reason"]}
        result["thought"] |= bool((message.get("reasoning_content") or "").strip())
        if question.call:
            name, parameter, word = question.call
            calls = calls_of(message)
            ok = calls == [(name, {parameter: word})]
            record |= {"calls": calls, "expected_call": [name, {parameter: word}]}
        else:
            ok = text.strip() in {accepted.strip() for accepted in turn.accepted}
            record["accepted"] = turn.accepted[:4]
        result["turns"].append(record | {"right": ok})
        right &= ok
        messages.append({"role": "assistant", "content": text})
    return result | {"right": right}


def wilson(right: int, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson's score interval)."""
    if not count:
        return 0.0, 1.0
    z, share = 1.96, right / count
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def tally(results: list[dict], key: str) -> dict[str, dict]:
    """Counts per value of `key`, in the order of first appearance."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for result in results:
        counts[result[key]][0] += result["right"]
        counts[result[key]][1] += 1
    return {
        name: {"right": right, "asked": asked, "share": right / asked, "interval": wilson(right, asked)}
        for name, (right, asked) in counts.items()
    }


def summarise(results: list[dict]) -> dict:
    """Scores of one thinking mode: per type, style and frame, and against the bars."""
    types = tally(results, "type")
    dictionary = [types[name] for name in DICTIONARY_TYPES if name in types]
    shares = {name: row["share"] for name, row in types.items()}
    if dictionary:
        shares["all types"] = sum(row["share"] for row in dictionary) / len(dictionary)
    turns = [turn for result in results for turn in result["turns"]]
    return {
        "asked": len(results),
        "types": types,
        "styles": tally(results, "style"),
        "frames": tally(results, "frame"),
        "dictionary_mean_of_types": shares.get("all types"),
        "dictionary_pooled": (
            sum(row["right"] for row in dictionary) / sum(row["asked"] for row in dictionary)
            if dictionary
            else None
        ),
        "bars": {
            name: {"bar": bar, "share": shares[name], "met": shares[name] >= bar}
            for name, bar in BARS.items()
            if name in shares
        },
        "with_reasoning": sum(result["thought"] for result in results),
        "errors": sum(result["error"] is not None for result in results),
        "cut_by_length": sum(turn.get("finish_reason") == "length" for turn in turns),
        "wrong": [result for result in results if not result["right"]],
    }


def print_summary(name: str, summary: dict, show: int) -> None:
    """The table that people read."""
    print(f"\n== {name}: {summary['asked']} questions ==")
    print(f"{'type':<24}{'right':>7}{'asked':>7}{'share':>9}   95 % interval")
    for title, rows in (("", summary["types"]), ("style ", summary["styles"])):
        for row_name, row in sorted(rows.items()) if title else rows.items():
            low, high = (100 * value for value in row["interval"])
            share = 100 * row["share"]
            counts = f"{row['right']:>7}{row['asked']:>7}"
            print(f"{title + row_name:<24}{counts}{share:>8.1f}%   {low:.1f}-{high:.1f}")
    if summary["dictionary_pooled"] is not None:
        mean, pooled = 100 * summary["dictionary_mean_of_types"], 100 * summary["dictionary_pooled"]
        print(f"all dictionary types: mean of types {mean:.1f} %, pooled {pooled:.1f} %")
    print(
        f"with reasoning: {summary['with_reasoning']}, cut by length: {summary['cut_by_length']}, "
        f"request errors: {summary['errors']}"
    )
    for bar, row in summary["bars"].items():
        verdict = "met" if row["met"] else "MISSED"
        print(f"bar {bar}: {100 * row['share']:.1f} % (needs {100 * row['bar']:.0f} %) {verdict}")
    for result in summary["wrong"][:show]:
        print(f"-- {result['frame']}")
        if result["error"]:
            print(f"   error: {result['error']}")
        for turn in result["turns"]:
            print(f"   {'ok   ' if turn['right'] else 'WRONG'} {turn['user']!r} -> {turn.get('answer')!r}")
            if not turn["right"] and "calls" in turn:
                print(f"         called {turn['calls']}, expected {turn['expected_call']}")
            elif not turn["right"] and turn.get("accepted"):
                print(f"         accepted: {turn['accepted'][0]!r}")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {value}, expected at least 1")
    return value


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8080", help="server, with or without /v1 (%(default)s)")
    add("--model", help="model id (default: the first that the server lists)")
    add("--api-key", default=os.environ.get("LILY_API_KEY"), help="default: $LILY_API_KEY")
    add("-n", "--questions", type=positive, default=2000, help="per thinking mode (%(default)s)")
    add("--thinking", choices=("off", "on", "both"), default="both", help="(%(default)s)")
    add("--types", help="comma-separated question types (default: all)")
    add("--seed", type=int, default=1, help="(%(default)s)")
    add("--parallel", type=positive, default=2, help="conversations at a time (%(default)s)")
    add("--max-tokens", type=positive, default=300, help="per answer (%(default)s)")
    add("--timeout", type=float, default=120.0, help="seconds per request (%(default)s)")
    add("--frames", type=Path, default=HERE / "phrasings/frames.json")
    add("--facts", type=Path, default=ROOT / "models/lily-mini/facts.json.gz")
    add("--answers", type=Path, default=ROOT / "tools/train_mini/answers.py")
    add("--out", type=Path, help="write everything here as JSON")
    add("--show", type=int, default=5, help="wrong answers to print per mode (%(default)s)")
    add("--check", action="store_true", help="exit 1 when a bar is missed or a request fails")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Everything; returns the exit status. Raises DataError or OSError."""
    frames = json.loads(args.frames.read_text(encoding="utf-8"))
    known = load(args.facts, args.answers)
    types = None if args.types is None else set(args.types.split(","))
    questions = make_questions(known, frames, args.questions, args.seed, types)
    server = Server(args.url, args.api_key, args.timeout, args.max_tokens)
    model = args.model or server.model()
    print(f"{len(known.pos)} words, {len(questions)} questions, model {model} at {server.base}")

    report = {
        "model": model,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seed": args.seed,
        "questions_per_mode": len(questions),
        "sha256": {p.name: digest(p) for p in (args.frames, args.facts, args.answers)},
        "modes": {},
    }
    for name in ("off", "on") if args.thinking == "both" else (args.thinking,):
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(args.parallel) as pool:
            results = list(pool.map(partial(ask, server, model, thinking=name == "on"), questions))
        summary = summarise(results) | {"seconds": round(time.monotonic() - began, 1)}
        report["modes"][f"thinking {name}"] = summary
        print_summary(f"thinking {name}, {summary['seconds']} s", summary, args.show)
    if args.out:
        args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"\nwrote {args.out}")
    modes = report["modes"].values()
    failed = any(mode["errors"] or not all(b["met"] for b in mode["bars"].values()) for mode in modes)
    return 1 if args.check and failed else 0


def main() -> int:
    args = arguments(None)
    try:
        return run(args)
    except (DataError, OSError, ValueError) as error:
        print(f"score.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
