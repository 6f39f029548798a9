#!/usr/bin/env python3
"""A tool conversation of ten turns: what each request computes, before and after a restart of the server.

Every turn is a question, a call of the dictionary tool, its result, and an answer. `reusable` is the longest beginning
that a request has in common with anything the server saw before (prompts and answers, as token ids of what
`lily render` makes of them); at least 95 % of it must come from the cache.

    python3 bench/serving/conversation.py --out bench/results/serving-conversation.json
"""

import json
import subprocess
import tempfile

from common import WORDS, Server, arguments, report

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a word up in the dictionary.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "description": "The word."}},
                "required": ["word"],
            },
        },
    }
]
#: <|im_end|> of lily-mini.
END = 8168
SYSTEM = "You are a helpful dictionary. " + "Answer in one short sentence. " * 12


def rendered(lily, messages):
    """Text and ids of the prompt, by the program's own renderer."""
    body = {"messages": messages, "tools": TOOLS, "add_generation_prompt": True, "enable_thinking": False}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(body, file)
        file.flush()
        command = [lily, "render", "lily-mini", "--request", file.name]
        out = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return out["text"], out["ids"]


class Seen:
    """Every text the server has seen."""

    def __init__(self):
        self.texts = []
        self.by_client = 0

    def common(self, ids):
        best = 0
        for text in self.texts:
            n = next((i for i, (a, b) in enumerate(zip(text, ids)) if a != b), min(len(text), len(ids)))
            best = max(best, n)
        return best


def ask(args, server, messages, seen, rows, what):
    prefix, ids = rendered(args.lily, messages)
    body = server.chat(messages, tools=TOOLS, max_tokens=60)
    usage = body["usage"]
    prompt, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    assert prompt == len(ids), f"the server counts {prompt} tokens, the renderer {len(ids)}"
    # The last token is always computed: its logits are wanted.
    reusable = min(seen.common(ids), prompt - 1)
    message = body["choices"][0]["message"]
    answer = {k: v for k, v in message.items() if k in ("role", "content", "tool_calls") and v}
    answer.setdefault("content", "")
    # What it wrote follows the prompt; an answer that ends a turn has seen all but the end token.
    whole, whole_ids = rendered(args.lily, [*messages, answer])
    if whole.startswith(prefix):
        end = next((i for i in range(len(ids), len(whole_ids)) if whole_ids[i] == END), len(whole_ids))
        seen.texts.append(whole_ids[:end])
    else:
        seen.texts.append(ids)
    rows.append({"request": what, "prompt": prompt, "cached": cached, "new": prompt - cached, "reusable": reusable})
    print(f"{what:28} prompt {prompt:5}  cached {cached:5}  new {prompt - cached:4}  reusable {reusable:5}")
    return answer


def turn(args, server, messages, word, seen, rows, number):
    messages.append({"role": "user", "content": f"define {word}"})
    answer = ask(args, server, messages, seen, rows, f"turn {number}, question")
    if not answer.get("tool_calls"):
        # lily-mini soon answers from the conversation instead. The tool is called all the same, by the client.
        call = {"name": "look_up", "arguments": json.dumps({"word": word})}
        answer = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}],
        }
        seen.by_client += 1
    messages.append(answer)
    for call in answer["tool_calls"]:
        result = f"{word}: a word of {len(word)} letters, found on page {7 * number} of the dictionary"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    messages.append(ask(args, server, messages, seen, rows, f"turn {number}, tool result"))


def main():
    args = arguments(__doc__).parse_args()
    rows, seen = [], Seen()
    with tempfile.TemporaryDirectory() as cache:
        options = ("--cache-dir", cache)
        messages = [{"role": "system", "content": SYSTEM}]
        with Server(args.lily, *options) as server:
            for i in range(10):
                turn(args, server, messages, WORDS[i], seen, rows, i + 1)
            # The tenth question again: nothing is new.
            again = ask(args, server, messages[:-1], seen, rows, "the last one again")
            status = server.stop()
        restarted = []
        with Server(args.lily, *options) as server:
            after = ask(args, server, messages[:-1], seen, restarted, "after a restart, the last")
            # The conversation goes on.
            turn(args, server, messages, WORDS[11], seen, restarted, 11)
            # Another one with the same system message and tools.
            fork = [{"role": "system", "content": SYSTEM}]
            turn(args, server, fork, WORDS[12], seen, restarted, 1)
            server.stop()
    share = lambda rs: sum(r["cached"] for r in rs) / max(1, sum(r["reusable"] for r in rs))
    tools = sum(r["request"].endswith("tool result") for r in rows)
    results = {"requests": rows, "after_restart": restarted, "tool_results": tools, "calls_by_the_client": seen.by_client}
    worst = min(r["cached"] / r["reusable"] for r in rows + restarted if r["reusable"] > 64)
    report(
        args,
        results,
        [
            ("turns with a tool result", tools, tools == 10),
            ("reusable tokens from the cache >= 95 %", f"{share(rows):.1%}", share(rows) >= 0.95),
            ("after a restart >= 95 %", f"{share(restarted):.1%}", share(restarted) >= 0.95),
            ("worst single request", f"{worst:.1%}", worst >= 0.90),
            ("the server ends with 0 when asked to", status, status == 0),
            ("the same answer before and after the restart", again["content"], again["content"] == after["content"]),
        ],
    )


if __name__ == "__main__":
    main()
