#!/usr/bin/env python3
"""Talks to the server through LangChain, with both of its chat models.

    pip install -r tests/clients/requirements.txt
    python tests/clients/langchain_client.py --lily target/release/lily
"""

import sys

from common import ANSWER, LOOKUP_DESCRIPTION, MODEL, QUESTION, Failures, main
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool(description=LOOKUP_DESCRIPTION)
def lookup_word(word: str) -> str:
    """Looks a word up."""
    return f"{word}: a wading bird."


class Entry(BaseModel):
    """A structured answer."""

    word: str
    known: bool


def text_of(message) -> str:
    content = message.content
    return content if isinstance(content, str) else "".join(b.get("text", "") for b in content)


def session(name: str, model, failures: Failures):
    answer = model.invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)])
    failures.check(ANSWER in text_of(answer), f"{name}: {answer}")
    failures.check(answer.usage_metadata["total_tokens"] > 0, f"{name}: {answer.usage_metadata}")
    pieces = [text_of(chunk) for chunk in model.stream(QUESTION)]
    failures.check(ANSWER in "".join(pieces) and len(pieces) > 5, f"{name} streamed: {pieces}")
    both = model.batch([QUESTION, QUESTION])
    failures.check([text_of(a) for a in both] == ["".join(pieces)] * 2, f"{name} batch: {both}")

    messages = [HumanMessage(QUESTION)]
    with_tool = model.bind_tools([lookup_word])
    for streamed in (False, True):
        if streamed:
            answer = None
            for chunk in with_tool.stream(messages[:1]):
                answer = chunk if answer is None else answer + chunk
        else:
            answer = with_tool.invoke(messages[:1])
        calls = answer.tool_calls
        failures.check([(c["name"], c["args"]) for c in calls] == [("lookup_word", {"word": "heron"})], f"{name}: {calls}")
        if calls:
            result = ToolMessage(lookup_word.invoke(calls[0]["args"]), tool_call_id=calls[0]["id"])
            after = with_tool.invoke([*messages, answer, result])
            failures.check(ANSWER in text_of(after), f"{name} after the tool: {after}")
    forced = model.bind_tools([lookup_word], tool_choice="lookup_word").invoke("hello")
    failures.check(forced.tool_calls and forced.tool_calls[0]["name"] == "lookup_word", f"{name} forced: {forced}")


def run(url: str, failures: Failures):
    openai = ChatOpenAI(base_url=url + "/v1", api_key="none", model=MODEL, temperature=0, max_retries=0)
    session("ChatOpenAI", openai, failures)
    for method in ("json_schema", "function_calling"):
        entry = openai.with_structured_output(Entry, method=method).invoke(QUESTION)
        failures.check(isinstance(entry, Entry), f"{method}: {entry}")
    responses = ChatOpenAI(
        base_url=url + "/v1", api_key="none", model=MODEL, temperature=0, max_retries=0, use_responses_api=True
    )
    session("ChatOpenAI by responses", responses, failures)
    anthropic = ChatAnthropic(base_url=url, api_key="none", model=MODEL, temperature=0, max_tokens=400, max_retries=0)
    session("ChatAnthropic", anthropic, failures)


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
