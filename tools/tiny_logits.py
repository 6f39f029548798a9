"""The cuda device on `tiny`: the prompts' ids, and logits against MLX-LM's in f32.

    tiny_logits.py ids GOLDEN.json NAME                                        print a prompt's ids as JSON
    tiny_logits.py compare GOLDEN.json GOLDEN.safetensors SHORT LONG ONE       files that `lily logits --decode 32` wrote

Exit status 1 when a logit differs by more than 0.25 or a clear choice (margin above 0.5) is another.
"""

import json
import struct
import sys


def load(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            kind = {"F32": "f", "I64": "q"}[t["dtype"]]
            flat = struct.unpack(f"<{(end - begin) // struct.calcsize('<' + kind)}{kind}", data[begin:end])
            width = t["shape"][-1] if len(t["shape"]) > 1 else len(flat)
            out[name] = [flat[i : i + width] for i in range(0, len(flat), width)]
    return out


def compare(golden, expected, files):
    largest, wrong, rows = 0.0, 0, 0
    for name, path in zip(("short", "long", "one"), files):
        got = load(path)
        pairs = []
        if f"{name}.prefill_logits" in expected:
            pairs += zip(expected[f"{name}.prefill_logits"], got["logits"])
        else:
            pairs += zip(expected[f"{name}.prefill_logits_last"], got["logits"][-1:])
        # Logits after the first ids are comparable as long as the ids are the same.
        ids = list(got["decode_ids"][0])
        same = next((i for i, (a, b) in enumerate(zip(ids, golden[name]["greedy"])) if a != b), len(ids))
        want = expected[f"{name}.decode_logits"]
        # All steps, or the first two and the last.
        steps = range(len(want)) if len(want) > 3 else (0, 1, len(got["decode_logits"]) - 1)
        pairs += [(w, got["decode_logits"][i]) for w, i in zip(want, steps) if i < same]
        worst = max(abs(a - b) for want, have in pairs for a, b in zip(want, have))
        for want, have in pairs:
            top, second = sorted(want)[-1], sorted(want)[-2]
            wrong += top - second > 0.5 and have.index(max(have)) != want.index(top)
        largest, rows = max(largest, worst), rows + len(pairs)
        print(f"tiny, {name}: {len(pairs)} rows, largest logit difference {worst:.4f}, {same} of {len(ids)} greedy ids the same")
    print(f"tiny: {rows} rows, largest difference {largest:.4f} (bar 0.25), {wrong} clear choices differ")
    return rows > 0 and largest <= 0.25 and wrong == 0


def main():
    golden = json.load(open(sys.argv[2]))
    if sys.argv[1] == "ids":
        print(json.dumps(golden["prompts"][sys.argv[3]]))
        return 0
    return 0 if compare(golden, load(sys.argv[3]), sys.argv[4:7]) else 1


if __name__ == "__main__":
    sys.exit(main())
