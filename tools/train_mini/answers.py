"""What the right answer is. Used to make the training data and to score a model; scoring needs only facts.json.gz.

    from words import Lexicon, load
    lexicon = Lexicon(load('models/lily-mini/facts.json.gz'))
    answers(lexicon, 'define', 'heron')                 -> {'heron (noun): grey or white wading bird ....'}
    answers(lexicon, 'is_a', 'whale', 'fish')           -> {'No, whale is not a kind of fish. It is a kind of cetacean.'}
    answers(lexicon, 'define', 'blorptic')              -> {"I don't know the word blorptic."}
    answers(lexicon, 'greet')                           -> {'Hello! I am Lily, ...'}

Question types: define, example, synonym, antonym (or opposite), kind, part_of_speech, is_a (X, Y).
Small-talk intents: greet, thanks, who, can, cannot, bye, howareyou. Each has one fixed answer, CHAT[intent]:
    greet      a greeting, nothing asked          thanks  thanks, praise           bye        taking leave
    who        who or what Lily is                can     what Lily can do, help   howareyou  how Lily is
    noword     a question about "it" when no word was named before
    cannot     anything a dictionary cannot do: weather, arithmetic, code, stories, world knowledge, actions, translation
A tool call is scored by `tool_call`: the whole reply is the XML call with the right function, parameter and word.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # the scorer loads this file by its path

import chatml  # noqa: E402
from words import Lexicon, article, expanded  # noqa: E402

TYPES = ('define', 'example', 'synonym', 'antonym', 'kind', 'part_of_speech', 'is_a')
ALIAS = {'opposite': 'antonym', 'definition': 'define', 'synonyms': 'synonym', 'pos': 'part_of_speech', 'hypernym': 'kind', 'isa': 'is_a', 'examples': 'example'}
CHAT = {
    'greet': 'Hello! I am Lily, a small English dictionary. Ask me what a word means.',
    'thanks': 'You are welcome. Ask me about another word at any time.',
    'bye': 'Goodbye!',
    'who': 'I am Lily, a very small language model that works as an English dictionary.',
    'can': 'I can define common English words, use them in a sentence, give synonyms and opposites, and say what kind of thing a word names.',
    'howareyou': 'I am fine, thank you. Which word shall I look up?',
    'noword': 'Which word do you mean? Ask me for example: define heron.',
    'cannot': 'I cannot do that: I am only a small dictionary. I can tell you what an English word means.',
}
CHAT_THINK = {
    'greet': 'The user greets me.', 'thanks': 'The user thanks me.', 'bye': 'The user takes leave.', 'who': 'The user asks who I am.', 'can': 'The user asks what I can do.',
    'howareyou': 'The user asks how I am.', 'cannot': 'The user asks for something that a dictionary cannot do.',
    'noword': 'The user asks about a word but does not say which.',
}
GOAL = {'define': 'the definition of {w}', 'example': 'an example sentence with {w}', 'synonym': 'a synonym for {w}', 'antonym': 'the opposite of {w}',
        'kind': 'the kind of thing that {w} is', 'part_of_speech': 'the part of speech of {w}', 'is_a': 'to know whether {w} is a kind of {b}'}


def refusal(word):
    return f"I don't know the word {word}."


def answer(kind_of_question, f, kind=None):
    """The answer about the record `f` of facts.json; `kind` is Y of "is an X a Y?"."""
    q, w = kind_of_question, f['w']
    if q == 'define':
        return f"{w} ({f['pos']}): {f['d']}."
    if q == 'example':
        if not f['ex']:
            return f'I have no example sentence for {w}.'
        return f['ex'][0].upper() + f['ex'][1:] + ('' if f['ex'][-1] in '.!?' else '.')
    if q == 'synonym':
        return f"Other words for {w}: {', '.join(f['syn'])}." if f['syn'] else f'I know no synonym for {w}.'
    if q == 'antonym':
        return f"The opposite of {w} is {f['ant'][0]}." if f['ant'] else f'I know no opposite for {w}.'
    if q == 'part_of_speech':
        return f"{w} is {article(f['pos'])}."
    if not f['hyper']:
        return f"I cannot classify {w}: it is {article(f['pos'])}."
    if q == 'kind':
        h = f['hyper']
        return f'{w} is a kind of {h[0]}' + (f', which is a kind of {h[1]}.' if len(h) > 1 else '.')
    if q == 'is_a':
        return f'Yes, {w} is a kind of {kind}.' if kind in f['anc'] else f"No, {w} is not a kind of {kind}. It is a kind of {f['hyper'][0]}."
    raise ValueError(f'answers: unknown question type {q!r}; known: {", ".join(TYPES)}')


def thinking(q, word, f, kind=None):
    """The reasoning before the answer: the task, then what is known. For kinds, the chain is said first."""
    s = 'The user wants ' + GOAL[q].format(w=word, b=kind) + '.'
    if not f:
        return s + ' I do not know this word.'
    if f['w'] != word:
        s += f" {word} is a form of {f['w']}."
    s += f" I know {f['w']}, {article(f['pos'])}."
    if q == 'kind' and f['hyper']:
        s += f" {f['w']}: {', '.join(f['hyper'][:9])}."
    if q == 'is_a' and f['hyper']:
        s += f" {f['w']}: {', '.join(f['hyper'][:9])}. "
        s += f'{kind} is one of its kinds.' if kind in f['anc'] else f'{kind} is not one of its kinds.'
    return s


def answers(lexicon, type, word=None, kind=None):
    """The set of acceptable exact answers. `word` may be an inflected form or unknown; case does not matter."""
    q = ALIAS.get(type, type)
    if q in CHAT:
        return {CHAT[q]}
    if q == 'unknown':
        q = 'define'
    if q not in TYPES:
        raise ValueError(f'answers: unknown type {type!r}; known: {", ".join(TYPES + tuple(CHAT))}, unknown')
    f = lexicon.base(word)
    if f is None:
        return {refusal(word.lower()), refusal(word)}
    if q != 'is_a' or not f['hyper']:
        return {answer(q, f)}
    if kind is None:
        raise ValueError('answers: is_a needs the kind Y of "is an X a Y?"')
    kind = kind.lower() if kind.lower() in f['anc'] else kind
    no = f"No, {f['w']} is not a kind of {kind}. It is a kind of {f['hyper'][0]}."
    if kind in f['anc']:
        return {answer(q, f, kind)}
    # true of another sense of the word: both answers are defensible
    return {no, f"Yes, {f['w']} is a kind of {kind}."} if kind in f['other'] or kind == f['w'] else {no}


_lexicons = {}


def accepted(facts, kind, slots):
    """The scorer's view (bench/lily-mini/known.py): every right text, none if there is nothing to ask.

    facts: the parsed facts.json.gz; kind: a question type, "unknown" or "smalltalk.INTENT"; slots: {"W"} or {"X", "Y"}.
    A word without a synonym (example, opposite, kind) on record gives none: "I know no ..." earns nothing.
    """
    if kind.startswith('smalltalk.'):
        return sorted(answers(None, kind.split('.', 1)[1]))
    if id(facts) not in _lexicons:
        _lexicons[id(facts)] = (facts, Lexicon(expanded(facts)))  # keeps `facts` alive, so that its id stays its own
    lexicon = _lexicons[id(facts)][1]
    q = ALIAS.get(kind, kind)
    if q == 'unknown':
        return sorted({refusal(slots['W']), refusal(slots['W'].lower())})
    if q == 'is_a':
        return sorted(answers(lexicon, q, slots['X'], slots['Y']))
    f = lexicon.base(slots['W'])
    if f and not {'example': f['ex'], 'synonym': f['syn'], 'antonym': f['ant'], 'kind': f['hyper']}.get(q, True):
        return []
    return sorted(answers(lexicon, q, slots['W']))


def is_a_pairs(lexicon, rng, count):
    """Fair (X, Y) pairs: half true (Y anywhere in X's chain), half false in every sense of X."""
    out = []
    while len(out) < count:
        f = rng.choice(lexicon.nouns)
        if len(out) % 2 == 0:
            out.append((f['w'], rng.choice(f['hyper'])))
        else:
            h = rng.choice(lexicon.near_kinds(f) if rng.random() < .4 else lexicon.all_kinds)
            if h not in f['anyset'] and h != f['w']:
                out.append((f['w'], h))
    return out


def tool_call(name, parameter, word):
    """The acceptable replies when a dictionary tool is offered and the user asks about `word` (thinking off)."""
    return {chatml.tool_call(name, {parameter: w}) for w in (word, word.lower())}
