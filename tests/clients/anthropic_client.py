#!/usr/bin/env python3
"""Talks to the server with the `anthropic` package: messages, streaming, thinking, tools, count_tokens, errors.

    pip install -r tests/clients/requirements.txt
    python tests/clients/anthropic_client.py --lily target/release/lily
"""

import sys

import anthropic
from common import ANSWER, LOOKUP_DESCRIPTION, LOOKUP_SCHEMA, MODEL, QUESTION, Failures, main

ASK = [{"role": "user", "content": QUESTION}]
TOOL = {"name": "lookup_word", "description": LOOKUP_DESCRIPTION, "input_schema": LOOKUP_SCHEMA}


def text_of(message) -> str:
    return "".join(b.text for b in message.content if b.type == "text")


def run(url: str, failures: Failures):
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120)
    # Newer versions of the package have no argument for the temperature.
    base = {"model": MODEL, "max_tokens": 400, "extra_body": {"temperature": 0}}
    print(f"anthropic {anthropic.__version__}, {url}")

    message = client.messages.create(messages=ASK, **base)
    whole = text_of(message)
    failures.check(ANSWER in whole and message.stop_reason == "end_turn", f"message: {message}")
    count = client.messages.count_tokens(model=MODEL, messages=ASK).input_tokens
    usage = message.usage
    failures.check(count == usage.input_tokens + usage.cache_read_input_tokens, f"count_tokens {count}, usage {usage}")

    kinds = []
    with client.messages.stream(messages=ASK, **base) as stream:
        for event in stream:
            kinds.append(event.type)
        final = stream.get_final_message()
    failures.check(text_of(final) == whole, f"streamed {text_of(final)!r}, whole {whole!r}")
    failures.check(kinds[0] == "message_start" and kinds[-1] == "message_stop", f"events: {kinds}")
    failures.check(final.usage.output_tokens == usage.output_tokens, f"usage: {final.usage}")

    thinking = {"type": "enabled", "budget_tokens": 200}
    with client.messages.stream(messages=ASK, thinking=thinking, **{**base, "extra_body": {"temperature": 1}}) as stream:
        final = stream.get_final_message()
    failures.check([b.type for b in final.content][:1] == ["thinking"], f"thinking: {final.content}")
    short = client.messages.create(messages=ASK, thinking={"type": "enabled", "budget_tokens": 3}, **base)
    failures.check([b.type for b in short.content] == ["thinking", "text"], f"a budget of 3: {short.content}")
    failures.check(len(short.content[0].thinking.split()) <= 4, f"a budget of 3: {short.content[0].thinking!r}")

    # A tool, whole and streamed, and the conversation after it.
    for streamed in (False, True):
        messages = list(ASK)
        if streamed:
            with client.messages.stream(messages=messages, tools=[TOOL], **base) as stream:
                answer = stream.get_final_message()
        else:
            answer = client.messages.create(messages=messages, tools=[TOOL], **base)
        calls = [b for b in answer.content if b.type == "tool_use"]
        failures.check(answer.stop_reason == "tool_use" and calls, f"tools: {answer}")
        failures.check([c.input for c in calls] == [{"word": "heron"}], f"calls: {calls}")
        if not calls:
            continue
        result = {"type": "tool_result", "tool_use_id": calls[0].id, "content": "heron: a wading bird."}
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        answer = client.messages.create(messages=messages, tools=[TOOL], **base)
        failures.check(ANSWER in text_of(answer), f"after the tool: {answer}")
        failures.check(answer.usage.cache_read_input_tokens > 0, f"cached: {answer.usage}")

    for choice in ({"type": "any"}, {"type": "tool", "name": "lookup_word"}):
        answer = client.messages.create(messages=ASK, tools=[TOOL], tool_choice=choice, **base)
        failures.check(answer.content[-1].type == "tool_use", f"{choice}: {answer.content}")
    answer = client.messages.create(messages=ASK, tools=[TOOL], tool_choice={"type": "none"}, **base)
    failures.check(ANSWER in text_of(answer), f"tool_choice none: {answer.content}")

    answer = client.messages.create(messages=ASK, stop_sequences=[" bird"], **base)
    failures.check(answer.stop_reason == "stop_sequence" and answer.stop_sequence == " bird", f"stop: {answer}")
    answer = client.messages.create(messages=ASK, **{**base, "max_tokens": 3})
    failures.check(answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 3, f"max_tokens: {answer}")

    # The line that Claude Code puts first, different every time, does not spoil the cache.
    system = "Be brief. " * 40
    for nonce in ("a1", "b2"):
        blocks = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{nonce}; cch={nonce};"},
            {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}},
        ]
        answer = client.messages.create(messages=ASK, system=blocks, **base)
    failures.check(answer.usage.cache_read_input_tokens > answer.usage.input_tokens, f"nonce: {answer.usage}")

    def refused(kind, word, **fields):
        try:
            client.messages.create(**{**base, "messages": ASK, **fields})
            failures.check(False, f"{fields} was accepted")
        except kind as error:
            failures.check(word in str(error), f"{fields}: {error}")

    refused(anthropic.BadRequestError, "temperature", extra_body={"temperature": 1.5})
    refused(anthropic.BadRequestError, "mcp_servers", extra_body={"mcp_servers": [{"url": "x"}]})
    refused(anthropic.BadRequestError, "tools[0].type", tools=[{"type": "web_search_20250305", "name": "web_search"}])
    refused(anthropic.BadRequestError, "messages[0].content[0].type",
            messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
    refused(anthropic.NotFoundError, "claude", model="claude-3")


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
