"""Fills the frames of `phrasings/frames.json` with words: the questions to ask.

Everything is drawn from one seeded generator, so the same seed, frames and facts
give the same questions, whichever server is asked.
"""

import random
import re
from dataclasses import dataclass, field

from known import DataError, Known

#: Types whose answer is a fact about one known word (or pair of words).
DICTIONARY_TYPES = (
    "define",
    "example",
    "synonym",
    "opposite",
    "kind",
    "part_of_speech",
    "is_a",
    "followup",
)
SMALLTALK = ("greet", "thanks", "who", "can", "cannot", "bye", "howareyou")

#: Words tried per frame before giving up: most words have no antonym.
DRAWS = 4000


@dataclass
class Turn:
    """One user message and the texts that are right answers to it."""

    user: str
    accepted: list[str]


@dataclass
class Question:
    """One conversation to score. `tools` and `call` are set for type `tool` only."""

    type: str
    frame: str
    style: str
    turns: list[Turn]
    tools: list[dict] = field(default_factory=list)
    #: (function, parameter, word) of the one right call.
    call: tuple[str, str, str] | None = None


def fill(text: str, slots: dict[str, str], case: str | None = None) -> str:
    """Puts the words into a frame; `a` becomes `an` before a written vowel.

    >>> fill("Is a {X} a kind of {Y}?", {"X": "owl", "Y": "bird"})
    'Is an owl a kind of bird?'
    """

    def put(match: re.Match) -> str:
        article, quote, word = match[1] or "", match[2], slots[match[3]]
        if article and word[:1].lower() in "aeiou":
            article = article[0] + "n "
        if case == "upper":
            word = word.upper()
        elif case == "title":
            word = word[:1].upper() + word[1:]
        return article + quote + word

    return re.sub(r"(\b[aA] )?([\"']?)\{(W2|W|X|Y)\}", put, text)


# Syllables of invented words: pronounceable, and not in the shape of real suffixes.
ONSETS = "b bl br d dr f fl g gl gr k kl kr l m n p pl pr r s sk sl sn st t tr v w z".split()
VOWELS = "a e i o u oo ai ee".split()
CODAS = "b d ff g k l m n p rb rk rt sh sp t v x zz".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def invent(rng: random.Random, known: dict[str, str]) -> str:
    """A made-up word that is not one edit, nor an ending, away from a known one."""
    while True:
        word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.choice((1, 2, 2))))
        word += rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)
        stems = {word, *(word.removesuffix(end) for end in ("s", "es", "ed", "d", "er", "ing", "ly"))}
        if not 6 <= len(word) <= 11 or any(stem in known for stem in stems):
            continue
        halves = [(word[:i], word[i:]) for i in range(len(word) + 1)]
        near = {a + b[1:] for a, b in halves if b}
        near |= {a + b[1] + b[0] + b[2:] for a, b in halves if len(b) > 1}
        near |= {a + c + b[1:] for a, b in halves if b for c in LETTERS}
        near |= {a + c + b for a, b in halves for c in LETTERS}
        if not any(other in known for other in near):
            return word


# The dictionary tool under many names, and other tools that an agent may carry.
TOOL_VERBS = "lookup look_up find get search fetch query check consult show".split()
TOOL_NOUNS = "word definition dictionary term entry meaning lexicon glossary vocabulary".split()
TOOL_SINGLE = "dictionary define lookup glossary wordbook lexicon definitions".split()
PARAMETERS = "word term query text q entry headword lemma name key input item vocab expression".split()
TOOL_TEXTS = (
    "Look up a word in the dictionary.",
    "Returns the definition of an English word.",
    "Find what a word means.",
    "Dictionary lookup for one English word.",
    "Get the dictionary entry of a term.",
    "Searches the dictionary and gives back the meaning.",
)
PARAMETER_TEXTS = ("The word to look up.", "Word to define", "the English word", "Which word", "")
OTHER_TOOLS = (
    ("get_weather", "Current weather of a city.", {"city": "Name of the city"}),
    ("send_email", "Sends an email.", {"to": "Address", "body": "Text of the email"}),
    ("calculate", "Works out an arithmetic expression.", {"expression": "For example 2 * 3"}),
    ("read_file", "Reads a text file.", {"path": "Path of the file"}),
    ("set_timer", "Starts a kitchen timer.", {"minutes": "How long"}),
    ("play_music", "Plays a song.", {"title": "Title of the song", "artist": "Who sings it"}),
    ("currentTime", "Tells the time in a time zone.", {"zone": "Time zone"}),
    ("add_to_calendar", "Adds an event.", {"event": "What", "date": "When, YYYY-MM-DD"}),
    ("search_flights", "Finds flights.", {"origin": "From", "destination": "To"}),
    ("turnOnLight", "Switches a lamp on.", {"room": "Which room"}),
)


def tool_schema(name: str, text: str, parameters: dict[str, str]) -> dict:
    """A tool in the OpenAI form; all parameters are required strings."""
    properties = {
        key: {"type": "string", **({"description": value} if value else {})}
        for key, value in parameters.items()
    }
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}


def offer_tools(rng: random.Random) -> tuple[list[dict], str, str]:
    """One dictionary tool among one to three; also its function and parameter name."""
    verb, noun = rng.choice(TOOL_VERBS), rng.choice(TOOL_NOUNS)
    name = rng.choice((f"{verb}_{noun}", f"{verb}_{noun}", f"{noun}_{verb}", rng.choice(TOOL_SINGLE)))
    if rng.random() < 0.25:
        name = re.sub(r"_(\w)", lambda match: match[1].upper(), name)
    parameter = rng.choice(PARAMETERS)
    tools = [tool_schema(name, rng.choice(TOOL_TEXTS), {parameter: rng.choice(PARAMETER_TEXTS)})]
    tools += [tool_schema(*other) for other in rng.sample(OTHER_TOOLS, rng.randrange(3))]
    rng.shuffle(tools)
    return tools, name, parameter


class Maker:
    """Draws words for frames."""

    def __init__(self, known: Known, seed: int):
        self.known = known
        self.rng = random.Random(seed)
        self.words = sorted(known.pos)
        self.chained = sorted(known.kinds)
        self.all_kinds = sorted({kind for chain in known.kinds.values() for kind in chain})

    def words_for(self, frame: dict) -> dict[str, str]:
        """Random words that suit the frame's parts of speech, not yet checked for facts."""
        text = " ".join(frame.get("turns") or [frame["text"]])
        slots = {}
        for slot in ("W", "W2"):
            if f"{{{slot}}}" in text:
                slots[slot] = self.rng.choice(self.words)
                allowed = frame.get("pos")
                if allowed and self.known.pos[slots[slot]] not in allowed:
                    return {}
        if "{X}" in text:
            if not self.chained:
                raise DataError("the facts have no `kinds`, so no is-a question can be made")
            slots["X"] = self.rng.choice(self.chained)
            chain = self.known.kinds[slots["X"]]
            # Half of the questions are true. A false one names a kind of other things.
            true = self.rng.random() < 0.5
            slots["Y"] = self.rng.choice(chain if true else self.all_kinds)
            if slots["Y"] == slots["X"] or (not true and slots["Y"] in chain):
                return {}
        return slots if len(set(slots.values())) == len(slots) else {}

    def turns(self, type_: str, frame: dict, slots: dict[str, str]) -> list[Turn] | None:
        """The frame as user turns with right answers; None if some turn has no answer."""
        texts = frame.get("turns") or [frame["text"]]
        types = frame.get("types") or [type_]
        turns = []
        for text, kind in zip(texts, types, strict=True):
            # The word of a turn is the last one named so far: "{W2}" replaces "{W}".
            if "{W2}" in text:
                word = slots["W2"]
            elif turns and "W2" in slots and "{W2}" in " ".join(texts[: len(turns)]):
                word = slots["W2"]
            else:
                word = slots.get("W", slots.get("X"))
            about = {"X": slots["X"], "Y": slots["Y"]} if kind == "is_a" else {"W": word}
            if kind in SMALLTALK:
                kind, about = f"smalltalk.{kind}", {}
            accepted = self.known.accepted(kind, about)
            if not accepted:
                return None
            turns.append(Turn(fill(text, slots, frame.get("case")), accepted))
        return turns

    def make(self, type_: str, frame: dict) -> Question:
        """One question from a frame. Raises DataError if no word suits it."""
        question = Question(type_, frame["id"], frame["style"], [])
        if type_.startswith("smalltalk."):
            question.turns = [Turn(frame["text"], self.known.accepted(type_, {}))]
            if question.turns[0].accepted:
                return question
        elif type_ == "unknown":
            word = invent(self.rng, self.known.pos)
            accepted = self.known.accepted("unknown", {"W": word, "type": frame["type"]})
            question.turns = [Turn(fill(frame["text"], {"W": word}), accepted)]
            if accepted:
                return question
        else:
            for _ in range(DRAWS):
                slots = self.words_for(frame)
                turns = slots and self.turns("define" if type_ == "tool" else type_, frame, slots)
                if not turns:
                    continue
                question.turns = turns
                if type_ == "tool":
                    question.tools, name, parameter = offer_tools(self.rng)
                    question.call = (name, parameter, slots["W"])
                    turns[0].accepted = []
                return question
        raise DataError(f"frame {frame['id']} ({type_}): no word has an accepted answer")


def by_type(frames: dict) -> dict[str, list[dict]]:
    """`frames.json` with small talk flattened to `smalltalk.NAME`."""
    flat = {key: value for key, value in frames.items() if key != "smalltalk"}
    flat |= {f"smalltalk.{key}": value for key, value in frames["smalltalk"].items()}
    return flat


def make_questions(
    known: Known, frames: dict, count: int, seed: int, types: set[str] | None = None
) -> list[Question]:
    """`count` questions, spread evenly over the frames in a random order.

    `types` narrows it to some question types; `smalltalk` names all small talk.
    """
    flat = by_type(frames)
    wrong = (types or set()) - set(flat) - {"smalltalk"}
    if wrong:
        raise DataError(f"--types: no question type {sorted(wrong)}; there are {', '.join(flat)}")
    pool = [
        (type_, frame)
        for type_, group in flat.items()
        if types is None or type_ in types or type_.split(".")[0] in types
        for frame in group
    ]
    maker = Maker(known, seed)
    questions: list[Question] = []
    while len(questions) < count:
        maker.rng.shuffle(pool)
        questions += [maker.make(*item) for item in pool[: count - len(questions)]]
    return questions
