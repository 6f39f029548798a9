#!/usr/bin/env python3
"""Random JSON schemas against random sampling: every answer must be valid.

    pip install -r tests/clients/requirements.txt
    python tests/clients/structured_output.py --lily target/release/lily [--count 300] [--suite jsonschema-4.26.0.tar.gz]

Half of the schemas come from the JSON-Schema-Test-Suite, as the source distribution of the PyPI package `jsonschema`
carries it (`pip download --no-deps --no-binary :all: jsonschema`); those with keywords that constrained decoding does
not support must be refused by name, and are counted. The rest come from the generator below. Each is asked with
temperature 1.5, thinking off and on in turn, and the answer is checked with `jsonschema`. An answer that a token limit
cut is reported apart: it is not valid, and the finish reason says so.
"""

import argparse
import collections
import json
import random
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
from common import MODEL, QUESTION, Failures, server


def generated(rng: random.Random, depth: int = 0) -> dict:
    """A random schema of the keywords that agents and structured outputs use."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
    if depth < 3:
        kinds += ["object"] * 4 + ["array"] * 2 + ["anyOf"]
    kind = "object" if depth == 0 and rng.random() < 0.7 else rng.choice(kinds)
    if kind == "object":
        names = rng.sample(["name", "id", "tags", "a b", "größe", "items", "x-y", "value", "\"q\"", "n1"], rng.randint(0, 5))
        schema = {"type": "object", "properties": {n: generated(rng, depth + 1) for n in names}}
        schema["required"] = [n for n in names if rng.random() < 0.7]
        extra = rng.choice([None, False, False, {"type": "integer"}])
        if extra is not None:
            schema["additionalProperties"] = extra
        return schema
    if kind == "array":
        schema = {"type": "array", "items": generated(rng, depth + 1)}
        low = rng.randint(0, 2)
        schema |= rng.choice([{"minItems": low}, {"maxItems": low + 3}, {"minItems": low, "maxItems": low + 2}])
        if rng.random() < 0.2:
            schema = {"type": "array", "prefixItems": [generated(rng, depth + 1) for _ in range(2)], "items": False, "minItems": 2}
        return schema
    if kind == "string":
        return {"type": "string"} | rng.choice([
            {}, {"maxLength": 8}, {"minLength": 2, "maxLength": 12}, {"pattern": "^[A-Z]{2}[0-9]{3}$"},
            {"format": "date"}, {"format": "uuid"}, {"format": "date-time"}, {"format": "ipv4"}, {"pattern": "^(a|bc)+d?$"},
        ])
    if kind in ("integer", "number"):
        low = rng.randint(-50, 50)
        bounds = [{}, {"minimum": low}, {"minimum": low, "maximum": low + 40}, {"exclusiveMinimum": low}, {"maximum": low}]
        if kind == "integer":
            bounds.append({"multipleOf": rng.choice([2, 5])})
        return {"type": kind} | rng.choice(bounds)
    if kind == "enum":
        return {"enum": rng.sample(["red", "grün", 1, 2.5, True, None, "a \"b\"", ["x", 1], {"k": "v"}], rng.randint(1, 4))}
    if kind == "const":
        return {"const": rng.choice(["fixed", 7, False, [1, 2]])}
    if kind == "anyOf":
        return {"anyOf": [generated(rng, depth + 1) for _ in range(rng.randint(2, 3))]}
    return {"type": kind}


def suite(path: str) -> list[dict]:
    """The schemas of the test suite's 2020-12 part that need no other documents."""
    schemas = []
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            parts = member.name.split("/")
            if "draft2020-12" in parts and parts[-2] == "draft2020-12" and member.name.endswith(".json"):
                groups = json.load(archive.extractfile(member))
                for group in groups if isinstance(groups, list) else []:
                    schema = group["schema"]
                    text = json.dumps(schema)
                    if isinstance(schema, dict) and "http://localhost" not in text and '"$id"' not in text:
                        schemas.append({k: v for k, v in schema.items() if k != "$schema"})
    return schemas


def ask(client: openai.OpenAI, schema: dict, number: int):
    """(outcome, detail)."""
    thinking = number % 2 == 1
    format = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    try:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], response_format=format, temperature=1.5,
            top_p=1, seed=number, max_tokens=800, extra_body={"enable_thinking": thinking, "top_k": 0},
        )
    except openai.BadRequestError as error:
        named = error.param == "response_format.json_schema.schema"
        return ("refused" if named else "wrong refusal"), str(error)
    choice = answer.choices[0]
    if choice.finish_reason == "length":
        return "cut", choice.message.content
    thought = getattr(choice.message, "reasoning_content", None)
    if bool(thought) != thinking:
        return "wrong thinking", repr(thought)
    try:
        value = json.loads(choice.message.content)
        jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())
    except (ValueError, jsonschema.ValidationError) as error:
        return "invalid", f"{str(error).splitlines()[0]}: {choice.message.content!r} for {json.dumps(schema)}"
    return "valid", choice.message.content


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lily", default="target/release/lily")
    parser.add_argument("--count", type=int, default=300, help="answers that must be valid")
    parser.add_argument("--suite", help="jsonschema's source distribution")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng, failures = random.Random(args.seed), Failures()
    counts, started = collections.defaultdict(collections.Counter), time.time()

    with server(args.lily) as url:
        client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=600)

        def run(source: str, schemas: list[dict], wanted: int):
            with ThreadPoolExecutor(4) as pool:
                outcomes = pool.map(lambda job: ask(client, job[1], job[0]), enumerate(schemas))
                for outcome, detail in outcomes:
                    counts[source][outcome] += 1
                    bad = outcome not in ("valid", "refused") or (outcome == "refused" and source == "generated")
                    failures.check(not bad, f"{source}: {outcome}: {detail[:600]}")
                    if counts[source]["valid"] >= wanted:
                        break
                pool.shutdown(cancel_futures=True)

        if args.suite:
            schemas = suite(args.suite)
            rng.shuffle(schemas)
            run("suite", schemas, args.count // 2)
        left = args.count - counts["suite"]["valid"]
        run("generated", [generated(rng) for _ in range(left)], left)
    for source, outcomes in counts.items():
        print(source, dict(outcomes))
    valid = sum(c["valid"] for c in counts.values())
    print(f"{valid} valid answers in {time.time() - started:.0f} s")
    return failures.finish()


if __name__ == "__main__":
    sys.exit(main())
