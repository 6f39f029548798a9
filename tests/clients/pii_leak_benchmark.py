#!/usr/bin/env python3
"""Runs the black-box suite pii-leak-benchmark (PyPI, >= 0.6, with its `validate` extra) against `cloud` mode.

    python3 -m venv VENV && VENV/bin/pip install 'pii-leak-benchmark[validate]>=0.6'
    VENV/bin/python tests/clients/pii_leak_benchmark.py --lily target/release/lily --seeds 12 --json OUT.json

Three parts, each with the suite's own capture server as the provider:
* its self-check (streamed), which must say CLEAN for all six data types;
* the same values in a request that is not streamed, with the suite's own search for leaks in what was captured;
* its response-split profile, every split, with the partial-emission pass: fidelity 1, leak 0, delta of fragments 0.

The policy is the strict one but for what the suite demands: values come back (`mask` instead of `strip`), answers are
scanned for everything, and a top-level field that nobody knows is masked and forwarded. The suite's values are ones that
nobody can have (social security numbers of areas that are not given out, keys with EXAMPLE in them), which the recognisers
know and pass over as documentation; the policy's own patterns take them for real.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile

# This file has the suite's own name, and its folder comes first in the search for it.
sys.path = [p for p in sys.path if pathlib.Path(p or ".").resolve() != pathlib.Path(__file__).resolve().parent]

import httpx
from pii_leak_benchmark import http_profile, selfcheck, v2_emitter

POLICY = """
layer2 = "off"
response_redact = "all"
unknown_fields = "mask"
[categories]
card = "mask"
national_id = "mask"
secret = "mask"
[[patterns]]
name = "ssn_not_given_out"
regex = '\\b9\\d\\d-\\d\\d-\\d{4}\\b'
category = "national_id"
[[patterns]]
name = "documentation_key"
regex = '\\b(?:AKIA[0-9A-Z]{16}|ghp_[A-Za-z0-9_]{36}|xox[abprs]-[A-Za-z0-9-]{10,})\\b'
category = "secret"
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Lily:
    """`lily serve` with one model in the cloud: the capture server on `port`."""

    def __init__(self, binary, directory, port):
        cloud, policy = directory / "cloud.toml", directory / "policy.toml"
        cloud.write_text(f'[upstreams.x]\nurl = "http://127.0.0.1:{port}/v1"\nmodel = "test"\nretries = 0\n')
        policy.write_text(POLICY)
        self.audit = directory / "audit"
        command = [binary, "serve", "--port", "0", "--cloud", cloud, "--gate-policy", policy, "--audit-dir", self.audit]
        command += ["--cloud-allow-loopback"]
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.url = line.split()[-1]
                break
        else:
            sys.exit("lily serve ended before it listened")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def streamed(lily, port, out):
    report = out / "selfcheck.json"
    status = selfcheck.main([
        "--target-base-url", lily.url + "/v1", "--target-model", "cloud/x", "--capture-port", str(port),
        "--json-out", str(report),
    ])
    types = sorted(json.loads(report.read_text())["fixture"]["formats"])
    return {"clean": status == 0, "types": types}


def whole(lily, port, runs=20):
    """Requests that are not streamed: every value masked on the wire, all restored in the answer."""
    leaked, restored = set(), 0
    for _ in range(runs):
        fixture = http_profile.make_fixture(include_credentials=True)
        prompt = http_profile._build_prompt(http_profile._make_nonce(), fixture)
        with http_profile.capture_session(capture_port=port) as session:
            body = {"model": "cloud/x", "messages": [{"role": "user", "content": prompt}]}
            answer = httpx.post(lily.url + "/v1/chat/completions", json=body, timeout=30, trust_env=False)
            answer.raise_for_status()
            records = [r for r in session.state.snapshot() if not r.get("probe")]
        assert len(records) == 1 and records[0]["parsed"], records
        found, _, _ = http_profile._leaked_entities(records, fixture)
        leaked.update(found)
        restored += answer.json()["choices"][0]["message"]["content"] == prompt
    return {"runs": runs, "leaked": sorted(leaked), "restored": restored, "clean": not leaked and restored == runs}


def split_profile(lily, port, out, seeds, quick):
    rows = []
    for _ in range(seeds):
        seed = secrets.token_hex(8)
        directory = out / seed
        arguments = [
            "--validate", "--out", str(directory), "--only", "lily", "--gateway-url", lily.url + "/v1/chat/completions",
            "--upstream-port", str(port), "--model", "cloud/x", "--seed", seed, "--json-out", str(directory / "summary.json"),
            "--partial-emission",
        ]
        status = v2_emitter.main(arguments + ([] if quick else ["--exhaustive-splits"]))
        row = json.loads((directory / "summary.json").read_text())["rows"][0]
        partial = json.loads((directory / "lily.partial-emission.json").read_text())
        row["partial_emission_rate"] = partial["metrics"]["partial_emission_rate"]["overall"]
        row["partial_inconclusive"] = partial["metrics"]["cases_inconclusive"]
        row["partitions_tried"] = partial["metrics"]["partitions_tried"]
        row["good"] = (
            status == 0
            and row["outcome"] == "pass"
            and row["fidelity_rate"] == 1.0
            and not any([row["leak_single_chunk"], row["leak_adversarial"], row["delta_frag"]])
            and not any([row["inconclusive"], row["request_path_leak"], row["partial_emission_rate"]])
            and row["partial_inconclusive"] == 0
            and row["echo_observable"] == row["cases_attempted"]
        )
        rows.append(row)
    return {"seeds": seeds, "exhaustive": not quick, "rows": rows, "clean": all(r["good"] for r in rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lily", default="target/release/lily")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one split a value instead of all")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    os.environ.pop("V2_GATEWAY_TOKEN", None)
    with tempfile.TemporaryDirectory() as name:
        out, port = pathlib.Path(name), free_port()
        with Lily(args.lily, out, port) as lily:
            result = {
                "suite": importlib.metadata.version("pii-leak-benchmark"),
                "selfcheck_streamed": streamed(lily, port, out),
                "selfcheck_whole": whole(lily, port),
                "split_profile": split_profile(lily, port, out, args.seeds, args.quick),
            }
        check = subprocess.run([args.lily, "audit", "verify", "--audit-dir", str(lily.audit)], capture_output=True, text=True)
        result["audit_log"] = {"clean": check.returncode == 0}
    for part, value in result.items():
        if isinstance(value, dict):
            print(f"{part}: {'CLEAN' if value['clean'] else 'NOT CLEAN'}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if all(v["clean"] for v in result.values() if isinstance(v, dict)) else 1)


if __name__ == "__main__":
    main()
