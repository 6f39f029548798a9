"""Tests of the scorer against a server that knows the right answers.

python3 -m unittest discover -s bench/lily-mini
"""

import contextlib
import difflib
import gzip
import io
import json
import random
import re
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import known
import questions
import score

FRAMES = json.loads((score.HERE / "phrasings/frames.json").read_text(encoding="utf-8"))
MINIMUM = {
    "define": 90,
    "example": 30,
    "synonym": 30,
    "opposite": 25,
    "kind": 30,
    "part_of_speech": 25,
    "is_a": 25,
    "followup": 15,
    "unknown": 25,
    "tool": 30,
} | {f"smalltalk.{name}": 10 for name in questions.SMALLTALK}

ENTRIES = {
    "heron": {"pos": "n", "kinds": ["wading bird", "bird", "animal"]},
    "owl": {"pos": "n", "kinds": ["bird of prey", "bird", "animal"]},
    "lute": {"pos": "n", "kinds": ["instrument", "device"]},
    "arrive": {"pos": "v"},
    "frugal": {"pos": "s"},
    "ample": {"pos": "a"},
    "slowly": {"pos": "r"},
}
ANSWERS = """
def accepted(facts, kind, slots):
    if kind.startswith("smalltalk."):
        return [kind + " to you."]
    if kind == "unknown":
        return ["I do not know " + slots["W"] + "."]
    if kind == "is_a":
        return ["Yes." if slots["Y"] in facts["words"][slots["X"]]["kinds"] else "No."]
    if kind == "opposite" and slots["W"] == "lute":
        return []
    return [kind + " of " + slots["W"], "also " + kind + " of " + slots["W"]]
"""


def write_data(folder: Path) -> tuple[Path, Path]:
    facts, answers = folder / "facts.json.gz", folder / "answers.py"
    facts.write_bytes(gzip.compress(json.dumps({"words": ENTRIES}).encode()))
    answers.write_text(ANSWERS)
    return facts, answers


class Oracle(ThreadingHTTPServer):
    """Answers each conversation rightly, except where `spoil` says otherwise."""

    def __init__(self, asked, raw_tools=False, spoil=()):
        self.right, self.raw_tools, self.bodies = {}, raw_tools, []
        for question in asked:
            for index, turn in enumerate(question.turns):
                # A later turn is known by all the user texts up to it.
                key = tuple(t.user for t in question.turns[: index + 1]) + (json.dumps(question.tools),)
                answer = question.call or (turn.accepted[-1] + "\n")
                self.right[key] = "nonsense" if question.type in spoil else answer
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply({"data": [{"id": "lily-mini"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        key = tuple(m["content"] for m in body["messages"] if m["role"] == "user")
        answer = self.server.right[key + (json.dumps(body.get("tools", [])),)]
        message = {"role": "assistant", "content": answer}
        if isinstance(answer, tuple):
            name, parameter, word = answer
            if self.server.raw_tools:
                message["content"] = (
                    f"<tool_call>\n<function={name}>\n<parameter={parameter}>\n{word}\n"
                    "</parameter>\n</function>\n</tool_call>"
                )
            else:
                call = {"name": name, "arguments": json.dumps({parameter: word})}
                message |= {"content": None, "tool_calls": [{"id": "1", "function": call}]}
        if body["chat_template_kwargs"]["enable_thinking"]:
            message["reasoning_content"] = "Let me see."
        self.reply({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


class Frames(unittest.TestCase):
    def test_counts_ids_and_fields(self):
        flat = questions.by_type(FRAMES)
        self.assertEqual(set(flat), set(MINIMUM))
        ids = [frame["id"] for group in flat.values() for frame in group]
        self.assertEqual(len(ids), len(set(ids)))
        for type_, group in flat.items():
            self.assertGreaterEqual(len(group), MINIMUM[type_], type_)
            for frame in group:
                texts = frame.get("turns") or [frame["text"]]
                slots = set(re.findall(r"\{(\w+)\}", " ".join(texts)))
                self.assertLessEqual(slots, {"W", "W2", "X", "Y"}, frame["id"])
                wanted = {"X", "Y"} if type_ == "is_a" else set() if "smalltalk" in type_ else {"W"}
                if type_ == "followup" and "X" in slots:
                    wanted = {"X", "Y"}
                self.assertLessEqual(wanted, slots, frame["id"])
                self.assertIn(frame["style"], ("plain", "indirect", "odd"))
                self.assertLessEqual(set(frame.get("pos", [])), set(known.POS_NAMES.values()))
                self.assertEqual(len(texts), len(frame.get("types", texts)), frame["id"])
                known_types = set(questions.DICTIONARY_TYPES) | set(questions.SMALLTALK)
                self.assertLessEqual(set(frame.get("types", [])), known_types, frame["id"])

    def test_mix_of_styles(self):
        styles = [f["style"] for group in questions.by_type(FRAMES).values() for f in group]
        for style, share in (("plain", 0.6), ("indirect", 0.3), ("odd", 0.1)):
            self.assertAlmostEqual(styles.count(style) / len(styles), share, delta=0.05)

    def test_no_wording_twice_within_a_type(self):
        for type_, group in questions.by_type(FRAMES).items():
            seen = {}
            for frame in group:
                text = " / ".join(frame.get("turns") or [frame["text"]])
                plain = re.sub(r"[^\w{} /]", "", text).lower()
                for other, id_ in seen.items():
                    close = difflib.SequenceMatcher(None, plain, other).ratio()
                    self.assertLess(close, 0.96, f"{type_}: {frame['id']} and {id_}")
                seen[plain] = frame["id"]


class Scoring(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.facts, self.answers = write_data(self.folder)
        self.known = known.load(self.facts, self.answers)

    def score(self, server, *more):
        """Runs the program; gives its exit status, report and printed text."""
        out = self.folder / "out.json"
        names = ["--url", server.url, "--facts", str(self.facts), "--answers", str(self.answers)]
        args = score.arguments([*names, "--out", str(out), "--check", *more])
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        with contextlib.redirect_stdout(io.StringIO()) as text:
            status = score.run(args)
        return status, json.loads(out.read_text()), text.getvalue()

    def test_right_answers_score_full_marks_in_both_modes_and_tool_forms(self):
        asked = questions.make_questions(self.known, FRAMES, 600, 1)
        ids = {frame["id"] for group in questions.by_type(FRAMES).values() for frame in group}
        for raw in (False, True):
            server = Oracle(asked, raw_tools=raw)
            status, report, text = self.score(server, "-n", "600", "--parallel", "4")
            self.assertEqual(status, 0, text)
            for name, mode in report["modes"].items():
                self.assertEqual(mode["asked"], 600)
                self.assertEqual(mode["wrong"], [])
                self.assertEqual(mode["with_reasoning"], 600 if name == "thinking on" else 0)
                self.assertEqual(set(mode["frames"]), ids)
            self.assertTrue(all(body["temperature"] == 0 for body in server.bodies))

    def test_wrong_answers_are_counted_listed_and_fail_the_check(self):
        asked = questions.make_questions(self.known, FRAMES, 500, 3)
        server = Oracle(asked, spoil=("tool", "kind"))
        status, report, text = self.score(server, "-n", "500", "--seed", "3", "--thinking", "off")
        mode = report["modes"]["thinking off"]
        self.assertEqual(status, 1)
        self.assertEqual(mode["types"]["kind"]["right"], 0)
        self.assertEqual(mode["types"]["define"]["share"], 1)
        self.assertAlmostEqual(mode["dictionary_mean_of_types"], 7 / 8)
        self.assertFalse(mode["bars"]["tool"]["met"])
        self.assertEqual({wrong["type"] for wrong in mode["wrong"]}, {"tool", "kind"})
        self.assertIn("bar tool: 0.0 % (needs 95 %) MISSED", text)

    def test_request_errors_are_wrong_answers_with_their_text(self):
        asked = questions.make_questions(self.known, FRAMES, 20, 1, {"define"})
        server = Oracle(asked)
        server.right.clear()  # Each request now breaks the connection.
        with contextlib.redirect_stderr(io.StringIO()):
            status, report, _ = self.score(server, "-n", "20", "--types", "define", "--thinking", "on")
        self.assertEqual(status, 1)
        self.assertEqual(report["modes"]["thinking on"]["errors"], 20)

    def test_same_seed_same_questions(self):
        first, again, other = (questions.make_questions(self.known, FRAMES, 300, s) for s in (5, 5, 6))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_facts_of_words_are_respected(self):
        asked = questions.make_questions(self.known, FRAMES, 1500, 2)
        frames = {f["id"]: f for group in questions.by_type(FRAMES).values() for f in group}
        truths = set()
        for question in asked:
            pos = frames[question.frame].get("pos")
            if question.type == "define" and pos:
                word = question.turns[0].accepted[0].removeprefix("define of ")
                self.assertIn(self.known.pos[word], pos)
            if question.type == "opposite":
                self.assertNotIn("lute", question.turns[0].accepted[0])
            if question.type == "is_a":
                truths.add(question.turns[0].accepted[0])
            if question.frame == "f020":
                self.assertIn(question.turns[2].accepted[0].split()[-1], question.turns[2].user)
        self.assertEqual(truths, {"Yes.", "No."})

    def test_bad_data_says_what_to_do(self):
        with self.assertRaisesRegex(known.DataError, "none.gz: no such file"):
            known.load(self.folder / "none.gz", self.answers)
        bad = self.folder / "bad.json.gz"
        for content, complaint in (
            (b"plain", "not gzipped JSON"),
            (gzip.compress(b"[]"), "object `words`"),
            (gzip.compress(b'{"words": {"x": {"pos": "q"}}}'), "pos 'q'"),
        ):
            bad.write_bytes(content)
            with self.assertRaisesRegex(known.DataError, complaint):
                known.load(bad, self.answers)
        with self.assertRaisesRegex(known.DataError, "no question type"):
            questions.make_questions(self.known, FRAMES, 5, 1, {"defin"})


class Parts(unittest.TestCase):
    def test_fill(self):
        fill = questions.fill
        self.assertEqual(fill("A {W} is what?", {"W": "owl"}), "An owl is what?")
        self.assertEqual(fill('is a "{X}" a "{Y}"?', {"X": "owl", "Y": "bird"}), 'is an "owl" a "bird"?')
        self.assertEqual(fill("{W}: what?", {"W": "ice cream"}, "title"), "Ice cream: what?")
        self.assertEqual(fill("and {W2}?", {"W": "a", "W2": "b"}), "and b?")
        self.assertEqual(fill("extra {W}", {"W": "owl"}), "extra owl")

    def test_invented_words_are_far_from_known_ones(self):
        rng = random.Random(1)
        words = [questions.invent(rng, {}) for _ in range(200)]
        self.assertGreater(len(set(words)), 190)
        near = {words[0][1:]: "noun", words[1] + "x": "noun", words[2][:-1] + "q": "noun"}
        again = random.Random(1)
        fresh = {questions.invent(again, near) for _ in range(197)}
        self.assertFalse(fresh & set(words[:3]))

    def test_tool_calls_in_the_text(self):
        values = "<parameter=p>x y</parameter><parameter=q>z</parameter>"
        call = f"Sure. <tool_call><function=a>{values}</function></tool_call>"
        self.assertEqual(score.calls_of({"content": call}), [("a", {"p": "x y", "q": "z"})])
        self.assertEqual(score.calls_of({"content": None}), [])
        broken = {"tool_calls": [{"function": {"name": "f", "arguments": "["}}]}
        self.assertEqual(score.calls_of(broken), [("f", {})])

    def test_interval(self):
        low, high = score.wilson(90, 100)
        self.assertAlmostEqual(low, 0.826, places=3)
        self.assertAlmostEqual(high, 0.945, places=3)


if __name__ == "__main__":
    unittest.main()
