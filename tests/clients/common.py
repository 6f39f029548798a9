"""What the client scripts share: a server of their own, a list of what was wrong, questions with known answers."""

import argparse
import contextlib
import re
import signal
import subprocess
import sys

MODEL = "lily-mini"
QUESTION = "define heron"
#: In WordNet's definition.
ANSWER = "bird"
LOOKUP_SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "description": "the word to look up"}},
    "required": ["word"],
}
LOOKUP_DESCRIPTION = "Look up the meaning of a word in the dictionary."


class Failures:
    """Collects what was wrong."""

    def __init__(self):
        self.list: list[str] = []
        self.checks = 0

    def check(self, ok: bool, what: str):
        self.checks += 1
        if not ok:
            self.list.append(what)
            print(f"  WRONG: {what}")

    def finish(self) -> int:
        print(f"{self.checks} checks, " + ("all right" if not self.list else f"{len(self.list)} WRONG"))
        return 1 if self.list else 0


@contextlib.contextmanager
def server(lily: str, *flags: str):
    """A server on a free port; yields its address."""
    process = subprocess.Popen([lily, "serve", "--port", "0", *flags], stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if found := re.match(r"listening on (http://\S+)", line):
                yield found[1]
                break
        else:
            sys.exit("the server did not start")
    finally:
        process.send_signal(signal.SIGINT)
        print(f"the server ended with {process.wait(timeout=20)}")


def main(doc: str, run, *flags: str) -> int:
    """Runs `run(url, failures)` against `--url`, or a server of its own started with `flags`."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--lily", default="target/release/lily", help="the binary")
    parser.add_argument("--url", help="a server that runs already, instead of starting one")
    args = parser.parse_args()
    failures = Failures()
    with contextlib.nullcontext(args.url) if args.url else server(args.lily, *flags) as url:
        run(url, failures)
    return failures.finish()
