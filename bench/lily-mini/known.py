"""What lily-mini is supposed to know, and which answers count as right.

This is the only place that touches the trainer's files:

* `models/lily-mini/facts.json.gz`, written by the trainer: a JSON object with
  `words`, an object from headword to an entry. An entry has `pos` ("noun",
  "verb", "adjective", "adverb", or their first letters; adjective satellites "s"
  count as adjectives) and, for nouns, `kinds`: the chain of more and more general
  kinds ("wading bird", "aquatic bird", "bird", ...), which is-a questions are
  drawn from. Whatever else an entry holds is the business of `answers.py`.
* `tools/train_mini/answers.py`, which turns facts into the exact texts that the
  model is taught. One function is used:

      accepted(facts, kind, slots) -> sequence of str

  `facts` is the parsed JSON object. `kind` is a question type of
  `phrasings/frames.json` (`define` ... `is_a`), `unknown`, or `smalltalk.NAME`.
  `slots` has `W`, or `X` and `Y` for `is_a`, or nothing for small talk; for
  `unknown` it also has `type`, the question that was asked about the invented
  word. The result is every text that is right; an empty one says that the question
  has no answer for this word (no antonym on record), and it is then not asked.
"""

import gzip
import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

POS_NAMES = {
    "n": "noun",
    "v": "verb",
    "a": "adjective",
    "s": "adjective",
    "adj": "adjective",
    "r": "adverb",
    "adv": "adverb",
}


class DataError(Exception):
    """A data file is absent or is not what this module expects; says what to do."""


@dataclass(frozen=True)
class Known:
    """The dictionary as the scorer sees it."""

    #: Headword -> part of speech ("noun", "verb", "adjective", "adverb").
    pos: dict[str, str]
    #: Noun -> its kinds, nearest first. Words without a chain are absent.
    kinds: dict[str, list[str]]
    #: (kind, slots) -> the texts that count as right, maybe none.
    accepted: Callable[[str, dict[str, str]], list[str]]


def load(facts_path: Path, answers_path: Path) -> Known:
    """Reads both files. Raises DataError with the path, what is wrong and what to do."""
    for path in (facts_path, answers_path):
        if not path.is_file():
            raise DataError(f"{path}: no such file; tools/train_mini/ writes it, or name another")
    try:
        with gzip.open(facts_path, "rt", encoding="utf-8") as file:
            facts = json.load(file)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{facts_path}: not gzipped JSON ({error}); export it again") from error
    words = facts.get("words") if isinstance(facts, dict) else None
    if not isinstance(words, dict) or not words:
        raise DataError(f"{facts_path}: expected an object with a non-empty object `words`")

    pos, kinds = {}, {}
    for word, entry in words.items():
        name = entry.get("pos") if isinstance(entry, dict) else None
        name = POS_NAMES.get(name, name)
        if name not in POS_NAMES.values():
            raise DataError(f"{facts_path}: `{word}` has pos {name!r}, not a known part of speech")
        pos[word] = name
        if entry.get("kinds"):
            kinds[word] = list(entry["kinds"])

    spec = importlib.util.spec_from_file_location("lily_mini_answers", answers_path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "accepted", None)):
        raise DataError(f"{answers_path}: no function `accepted(facts, kind, slots)`")
    return Known(pos, kinds, lambda kind, slots: list(module.accepted(facts, kind, slots)))
