#!/usr/bin/env python3
"""`kill -9` at random moments while checkpoints are written: the server starts again, serves, and answers right.

Prompts of several lengths, some with a beginning in common, are sent from several threads to a server with a cache
directory, and the server is killed between 0 and 400 ms after it listened. Every answer that arrives, and every prompt
once more after the next start, is compared with the answer of a server without a cache.

    python3 bench/serving/kill9.py --out bench/results/serving-kill9.json
"""

import random
import tempfile
import threading
import time
from pathlib import Path

from common import WORDS, Server, arguments, report, text_of

SYSTEM = {"role": "system", "content": "You are a dictionary. " + "Answer shortly. " * 40}


def prompts():
    out = []
    for i, word in enumerate(WORDS):
        text = " ".join(WORDS[(i + j) % len(WORDS)] for j in range(20 * (i % 7)))
        out.append([SYSTEM, {"role": "user", "content": f"{text} define {word}".strip()}])
    return out


def main():
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    asked = prompts()
    with Server(args.lily, "--cache-ram", 0) as server:
        right = [text_of(server.chat(m, max_tokens=24)) for m in asked]
    wrong, compared, hits, parts = 0, 0, 0, 0
    lock = threading.Lock()
    files = []
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        cache = Path(directory) / "cache"
        # So little disk that files are removed all the time too.
        options = ("--cache-dir", cache, "--cache-disk", 64)

        def check(server, i):
            nonlocal wrong, compared, hits
            body = server.chat(asked[i], max_tokens=24)
            with lock:
                compared += 1
                wrong += text_of(body) != right[i]
                hits += body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

        def client(server, seed):
            rng = random.Random(seed)
            try:
                while True:
                    check(server, rng.randrange(len(asked)))
            except Exception:
                pass  # killed

        for kill in range(args.kills):
            server = Server(args.lily, *options, log=log)
            # What is there is right, if it is used.
            check(server, rng.randrange(len(asked)))
            threads = [threading.Thread(target=client, args=(server, rng.random())) for _ in range(3)]
            for thread in threads:
                thread.start()
            time.sleep(rng.uniform(0, 0.4))
            server.kill()
            for thread in threads:
                thread.join()
            names = [p.name for p in cache.iterdir()]
            parts += any(n.endswith(".part") for n in names)
            files.append(len(names))
        with Server(args.lily, *options, log=log) as server:
            for i in range(len(asked)):
                check(server, i)
        text = log.read_text(errors="replace")
        size = sum(p.stat().st_size for p in cache.iterdir())
    damaged = text.count("a file is removed") + text.count("is not used")
    print(f"{args.kills} kills, {compared} answers compared, {hits} from the cache, unfinished files {parts} times, files {files[-1]}")
    report(
        args,
        {"kills": args.kills, "answers": compared, "from_cache": hits, "kills_that_left_unfinished_files": parts, "files": files, "damaged_files_met": damaged, "directory_bytes": size},
        [
            ("wrong answers", wrong, wrong == 0),
            ("every start after a kill served", args.kills, True),
            ("some answers came from files of killed servers", hits, hits > args.kills // 2),
            ("some kills hit an unfinished write", parts, parts > 0),
            ("damaged files", damaged, damaged == 0),
            ("the directory is within 64 MiB", size, size <= 64 << 20),
        ],
    )


if __name__ == "__main__":
    main()
