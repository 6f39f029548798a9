#!/usr/bin/env python3
"""Talks to the server with the `openai` package, as users' programs do.

    pip install -r tests/clients/requirements.txt
    python tests/clients/openai_client.py --lily target/release/lily

Starts `lily serve` on a free port with the embedded lily-mini (or talks to `--url`), then checks, each with right
answers: 30 requests in sequence (plain and streamed in turn), 8 in parallel, streaming token by token, thinking,
tools (chosen, forced, streamed), structured outputs through pydantic, the responses API, completions,
log-probabilities, stop strings, errors, `curl -N`, and the time until the engine is free after a client was
killed in the middle of a stream. Prints what it measured; exits 1 when anything is wrong.
"""

import argparse
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import openai
import pydantic

MODEL = "lily-mini"

#: Words and what their definitions (WordNet 3.1) must hold.
WORDS = {
    "heron": "wading bird",
    "river": "stream of water",
    "piano": "keyboard instrument",
    "winter": "coldest season",
    "bicycle": "two wheels",
    "island": "surrounded by water",
    "astronomy": "branch of physics",
    "triangle": "three-sided",
    "oxygen": "nonmetallic",
    "nephew": "son of your brother or sister",
    "spoon": "cutlery",
    "carpenter": "woodworker",
    "volcano": "earth's crust",
    "library": "books",
    "elephant": "pachyderm",
}

#: The tool of the tool test.
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup_word",
        "description": "Look up the meaning of a word in the dictionary.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "the word to look up"}},
            "required": ["word"],
        },
    },
}


class Failures:
    """Collects what was wrong."""

    def __init__(self):
        self.list: list[str] = []

    def check(self, ok: bool, what: str):
        if not ok:
            self.list.append(what)
            print(f"  WRONG: {what}")


def ask(word: str) -> list[dict]:
    return [{"role": "user", "content": f"define {word}"}]


def plain(client: openai.OpenAI, word: str) -> str:
    answer = client.chat.completions.create(model=MODEL, messages=ask(word), temperature=0)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.choices[0].finish_reason == "stop", answer
    return answer.choices[0].message.content


def streamed(client: openai.OpenAI, word: str) -> str:
    text, usage, reason = "", None, None
    stream = client.chat.completions.create(
        model=MODEL, messages=ask(word), temperature=0, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    assert usage and usage.completion_tokens > 0 and reason == "stop", (usage, reason)
    return text


def sequence(client: openai.OpenAI, failures: Failures):
    times = []
    for i in range(30):
        word = list(WORDS)[i % len(WORDS)]
        started = time.perf_counter()
        text = (plain if i % 2 == 0 else streamed)(client, word)
        times.append(time.perf_counter() - started)
        failures.check(WORDS[word] in text, f"{word}: {text!r} does not say {WORDS[word]!r}")
        if i < 3:
            print(f"  {text}")
    times.sort()
    print(f"30 in sequence: median {times[15] * 1e3:.0f} ms, slowest {times[-1] * 1e3:.0f} ms")


def parallel(client: openai.OpenAI, failures: Failures):
    words = list(WORDS)[:8]
    started = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(plain if i % 2 else streamed, client, w) for i, w in enumerate(words)]
        for word, call in zip(words, calls):
            text = call.result()
            failures.check(WORDS[word] in text, f"parallel, {word}: {text!r}")
    print(f"8 in parallel: {(time.perf_counter() - started) * 1e3:.0f} ms together")


def first_chunk(client: openai.OpenAI, failures: Failures):
    started = time.perf_counter()
    arrivals = []
    for chunk in client.chat.completions.create(model=MODEL, messages=ask("heron"), stream=True):
        arrivals.append((time.perf_counter() - started) * 1e3)
    failures.check(len(arrivals) > 10, f"only {len(arrivals)} chunks")
    print(f"streaming: {len(arrivals)} chunks, first after {arrivals[0]:.1f} ms, last after {arrivals[-1]:.1f} ms")


def features(client: openai.OpenAI, failures: Failures):
    answer = client.chat.completions.create(
        model=MODEL, messages=ask("heron"), extra_body={"chat_template_kwargs": {"enable_thinking": True}}
    )
    message = answer.choices[0].message
    failures.check(bool(message.reasoning_content) and "bird" in message.content, f"thinking: {message}")

    answer = client.chat.completions.create(model=MODEL, messages=ask("heron"), logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    data = b"".join(bytes(t.bytes) for t in tokens).decode()
    failures.check(data == answer.choices[0].message.content, f"logprobs: {data!r}")
    failures.check(all(len(t.top_logprobs) == 2 for t in tokens), "top_logprobs")

    answer = client.chat.completions.create(model=MODEL, messages=ask("heron"), stop=[" bird"])
    text = answer.choices[0].message.content
    failures.check("bird" not in text and len(text) > 5, f"stop: {text!r}")

    messages = ask("heron")
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[LOOKUP])
    choice = answer.choices[0]
    failures.check(choice.finish_reason == "tool_calls", f"tools: {choice}")
    if choice.message.tool_calls:
        call = choice.message.tool_calls[0]
        failures.check(
            call.function.name == "lookup_word" and json.loads(call.function.arguments) == {"word": "heron"},
            f"call: {call}",
        )
        # The SDK's own message goes back as it is.
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "heron: a wading bird."}]
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[LOOKUP])
        failures.check("bird" in (answer.choices[0].message.content or ""), f"after the tool: {answer}")

    models = [m.id for m in client.models.list()]
    failures.check(models == [MODEL] and client.models.retrieve(MODEL).id == MODEL, f"models: {models}")
    print("thinking, logprobs, stop, tools, models: checked")


def errors(client: openai.OpenAI, failures: Failures):
    def refused(kind, param, **fields):
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": ask("heron"), **fields})
            failures.check(False, f"{fields} was accepted")
        except kind as error:
            failures.check(error.param == param, f"{fields}: {error}")

    refused(openai.BadRequestError, "temperature", temperature=9)
    refused(openai.BadRequestError, "n", n=99)
    refused(openai.BadRequestError, "response_format.type", response_format={"type": "xml"})
    refused(openai.BadRequestError, "web_search_options", web_search_options={})
    refused(openai.BadRequestError, "frobnicate", extra_body={"frobnicate": 1})
    refused(openai.BadRequestError, "messages", max_tokens=10**7)
    refused(openai.NotFoundError, "model", model="gpt-4o")
    print("errors: the package raises its own types, with the parameter's name")


class Entry(pydantic.BaseModel):
    """What structured answers are parsed into."""

    word: str = pydantic.Field(max_length=20)
    part_of_speech: Literal["noun", "verb", "adjective", "adverb"]
    known: bool
    senses: list[Annotated[str, pydantic.Field(max_length=30)]] = pydantic.Field(max_length=3)


def structured(client: openai.OpenAI, failures: Failures):
    for thinking in (False, True):
        extra = {"enable_thinking": thinking}
        answer = client.chat.completions.parse(
            model=MODEL, messages=ask("heron"), response_format=Entry, temperature=1, extra_body=extra, max_tokens=3000
        )
        entry = answer.choices[0].message.parsed
        failures.check(isinstance(entry, Entry), f"parsed: {answer.choices[0]}")
        thought = getattr(answer.choices[0].message, "reasoning_content", None)
        failures.check(bool(thought) == thinking, f"thinking {thinking}: {thought!r}")
        parsed = client.responses.parse(
            model=MODEL, input="define heron", text_format=Entry, temperature=1, extra_body=extra, max_output_tokens=3000
        )
        failures.check(isinstance(parsed.output_parsed, Entry), f"responses.parse: {parsed.output}")
    with client.chat.completions.stream(model=MODEL, messages=ask("heron"), response_format=Entry, max_tokens=3000) as stream:
        for _ in stream:
            pass
        failures.check(isinstance(stream.get_final_completion().choices[0].message.parsed, Entry), "streamed parse")
    answer = client.chat.completions.create(
        model=MODEL, messages=ask("heron"), extra_body={"guided_choice": ["bird", "fish"]}, temperature=1
    )
    failures.check(answer.choices[0].message.content in ("bird", "fish"), f"choice: {answer.choices[0].message.content}")
    print("structured outputs via pydantic: chat, streamed chat, responses, with and without thinking")


def forced_tools(client: openai.OpenAI, failures: Failures):
    other = {"type": "function", "function": {"name": "other_tool", "strict": True, "parameters": {
        "type": "object", "properties": {"n": {"type": "integer"}, "unit": {"enum": ["a", "b"]}},
        "required": ["n", "unit"], "additionalProperties": False}}}
    for choice, names in [("required", ("lookup_word", "other_tool")),
                          ({"type": "function", "function": {"name": "other_tool"}}, ("other_tool",))]:
        for parallel in (True, False):
            answer = client.chat.completions.create(
                model=MODEL, messages=ask("heron"), tools=[LOOKUP, other], tool_choice=choice, temperature=1.5,
                parallel_tool_calls=parallel, max_tokens=3000,
            ).choices[0]
            calls = answer.message.tool_calls or []
            failures.check(answer.finish_reason == "tool_calls" and calls, f"{choice}: {answer}")
            failures.check(parallel or len(calls) == 1, f"one call: {calls}")
            for call in calls:
                arguments = json.loads(call.function.arguments)
                failures.check(call.function.name in names, f"{choice}: {call}")
                if call.function.name == "other_tool":
                    good = isinstance(arguments["n"], int) and arguments["unit"] in ("a", "b")
                    failures.check(good, f"arguments: {call}")
    answer = client.chat.completions.create(model=MODEL, messages=ask("heron"), tools=[LOOKUP], tool_choice="none")
    failures.check(not answer.choices[0].message.tool_calls, f"none: {answer.choices[0]}")
    print("tool_choice required, named and none; strict arguments")


def conversation(client: openai.OpenAI, failures: Failures):
    """Streamed tool calls, and that a tool conversation reuses what was computed."""
    shares = []
    for word in ("heron", "river", "piano"):
        messages = ask(word)
        arguments, name, call_id, usage = "", None, None, None
        stream = client.chat.completions.create(
            model=MODEL, messages=messages, tools=[LOOKUP], stream=True, stream_options={"include_usage": True},
            extra_body={"enable_thinking": False}, temperature=0,
        )
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                for call in choice.delta.tool_calls or []:
                    name, call_id = call.function.name or name, call.id or call_id
                    arguments += call.function.arguments or ""
        failures.check(name == "lookup_word" and json.loads(arguments or "null") == {"word": word}, f"{name}({arguments})")
        details = usage.prompt_tokens_details
        shares.append((usage.prompt_tokens, details.cached_tokens))
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": call_id, "content": f"{word}: a word."},
        ]
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, tools=[LOOKUP], temperature=0, extra_body={"enable_thinking": False}
        )
        usage = answer.usage
        shares.append((usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens))
    print("tool conversation, (prompt, cached) tokens a request: " + ", ".join(f"{p}/{c}" for p, c in shares))
    # The request after a call begins with all that was computed for the call.
    failures.check(all(cached > 0 for _, cached in shares[1::2]), f"cached after calls: {shares}")


def responses_api(client: openai.OpenAI, failures: Failures):
    answer = client.responses.create(model=MODEL, input="define heron", temperature=0)
    failures.check("bird" in answer.output_text and answer.status == "completed", f"responses: {answer}")
    whole, text, kinds = answer.output_text, "", []
    with client.responses.stream(model=MODEL, input="define heron", temperature=0) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
        final = stream.get_final_response()
    failures.check(text == whole == final.output_text, f"streamed {text!r}, whole {whole!r}")
    failures.check(kinds[0] == "response.created" and kinds[-1] == "response.completed", f"events: {kinds}")
    answer = client.responses.create(model=MODEL, input="define heron", reasoning={"effort": "low"})
    failures.check([i.type for i in answer.output] == ["reasoning", "message"], f"reasoning: {answer.output}")
    tool = {"type": "function", "name": "lookup_word", "description": LOOKUP["function"]["description"],
            "parameters": LOOKUP["function"]["parameters"], "strict": False}
    history = [{"role": "user", "content": "define heron"}]
    answer = client.responses.create(model=MODEL, input=history, tools=[tool], temperature=0)
    call = next((i for i in answer.output if i.type == "function_call"), None)
    failures.check(call and json.loads(call.arguments) == {"word": "heron"}, f"responses call: {answer.output}")
    if call:
        history += [*[i.model_dump(exclude_none=True) for i in answer.output],
                    {"type": "function_call_output", "call_id": call.call_id, "output": "heron: a wading bird."}]
        answer = client.responses.create(model=MODEL, input=history, tools=[tool], temperature=0)
        failures.check("bird" in answer.output_text, f"after the call: {answer.output}")
        failures.check(answer.usage.input_tokens_details.cached_tokens > 0, f"cached: {answer.usage}")
    try:
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
        failures.check(False, "previous_response_id was accepted")
    except openai.BadRequestError as error:
        failures.check(error.param == "previous_response_id", f"{error}")
    print("responses: whole, streamed, reasoning, tools")


def more(client: openai.OpenAI, failures: Failures):
    answer = client.chat.completions.create(model=MODEL, messages=ask("heron"), n=3, temperature=1, seed=5)
    failures.check([c.index for c in answer.choices] == [0, 1, 2], f"n: {answer.choices}")
    answer = client.completions.create(model=MODEL, prompt="heron", max_tokens=5, logprobs=2, temperature=0)
    choice = answer.choices[0]
    # The model may end before the limit; the token that ends it is no text.
    n, cut = len(choice.logprobs.tokens), choice.finish_reason == "length"
    failures.check(n == 5 if cut else 0 < n < 5, f"{choice}")
    failures.check("".join(choice.logprobs.tokens) == choice.text, f"{choice}")
    failures.check(n == len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs), f"{choice}")
    text = "".join(c.choices[0].text for c in client.completions.create(
        model=MODEL, prompt="heron", max_tokens=5, temperature=0, stream=True) if c.choices)
    failures.check(text == choice.text, f"completions streamed: {text!r}, whole {choice.text!r}")
    print("n, completions with log-probabilities: checked")


def eos_bias(lily: str) -> dict[str, int]:
    """Bias that keeps the model from ending its turn."""
    text = "<|im_end|><|endoftext|>"
    ids = json.loads(subprocess.run([lily, "tokenize", MODEL], input=text, capture_output=True, text=True).stdout)
    return {str(i): -100 for i in ids}


def running(url: str) -> int:
    with urllib.request.urlopen(url + "/health") as answer:
        return json.load(answer)["running"]


def wait_until_free(url: str) -> float:
    """Milliseconds until no request runs."""
    started = time.perf_counter()
    while running(url):
        if time.perf_counter() - started > 10:
            return float("inf")
        time.sleep(0.001)
    return (time.perf_counter() - started) * 1e3


def curl(url: str, lily: str, failures: Failures):
    if not shutil.which("curl"):
        print("skipped: curl is not installed")
        return
    body = {"model": MODEL, "stream": True, "messages": ask("heron")}
    command = ["curl", "-sN", url + "/v1/chat/completions", "-H", "Content-Type: application/json", "-d"]
    started = time.perf_counter()
    process = subprocess.Popen([*command, json.dumps(body)], stdout=subprocess.PIPE, text=True)
    arrivals = []
    for line in process.stdout:
        if line.startswith("data: "):
            arrivals.append(((time.perf_counter() - started) * 1e3, line.strip()))
    process.wait()
    print("curl -N:")
    for at, line in [*arrivals[:4], *arrivals[-2:]]:
        delta = re.sub(r'.*"choices":\[\{"index":0,"delta":(\{[^}]*\}).*', r"\1", line)
        print(f"  {at:7.1f} ms  {delta[:100]}")
    failures.check(arrivals[-1][1] == "data: [DONE]", "curl: no [DONE]")
    failures.check(arrivals[-1][0] > arrivals[0][0], "curl: everything came at once")

    # Kill it in the middle of a long answer.
    body |= {"max_tokens": 20000, "logit_bias": eos_bias(lily)}
    times = []
    for _ in range(10):
        process = subprocess.Popen([*command, json.dumps(body)], stdout=subprocess.PIPE, text=True)
        for _ in range(10):
            process.stdout.readline()
        failures.check(running(url) == 1, "the stream runs")
        process.send_signal(signal.SIGKILL)
        times.append(wait_until_free(url))
        process.wait()
        process.stdout.close()
    times.sort()
    print(f"engine free after kill -9 of a client: median {times[5]:.1f} ms, slowest {times[-1]:.1f} ms")
    failures.check(times[-1] < 100, f"the engine was free only after {times[-1]:.1f} ms")


@contextlib.contextmanager
def server(lily: str):
    """A server of its own, on a free port."""
    process = subprocess.Popen([lily, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if found := re.match(r"listening on (http://\S+)", line):
                yield found[1]
                break
        else:
            sys.exit("the server did not start")
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=10)
        print(f"the server ended with {code}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lily", default="target/release/lily", help="the binary")
    parser.add_argument("--url", help="a server that runs already, instead of starting one")
    args = parser.parse_args()
    failures = Failures()
    with contextlib.nullcontext(args.url) if args.url else server(args.lily) as url:
        client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120)
        print(f"openai {openai.__version__}, {url}")
        sequence(client, failures)
        parallel(client, failures)
        first_chunk(client, failures)
        features(client, failures)
        errors(client, failures)
        structured(client, failures)
        forced_tools(client, failures)
        conversation(client, failures)
        responses_api(client, failures)
        more(client, failures)
        curl(url, args.lily, failures)
    print("all right" if not failures.list else f"{len(failures.list)} WRONG")
    return 1 if failures.list else 0


if __name__ == "__main__":
    sys.exit(main())
