"""The held-out set: dialogues in development wordings, in chat format, for perplexity and for comparing implementations.

Usage: heldout.py [--out ../../models/lily-mini/heldout.json]
"""
import argparse
import json
import os
import random

import gen
from words import HERE, Lexicon, load

MODELS = os.path.join(HERE, '..', '..', 'models', 'lily-mini')
# dialogues of each development set
PICK = dict(define=40, define_think=14, example=20, example_think=6, synonym=20, synonym_think=6, antonym=12, antonym_think=4, kind=20, kind_think=6, part_of_speech=12, part_of_speech_think=4, is_a=24, is_a_think=10,
            system_prompt=6, inflected=8, no_example=4, no_synonym=4, no_opposite=4, unknown=16, unknown_think=6, unknown_other=6, unknown_rare=8, follow_up=16, chat_greet=4, chat_thanks=4, chat_bye=4, chat_who=4,
            chat_can=4, chat_howareyou=4, chat_cannot=10, tool_known=5, tool_invented=4, tool_result=5, tool_other=3, tool_chat=3)


def sequences(lexicon, tokenizer, seed=2026):
    """[(ids, learn mask)] of at most 512 tokens"""
    sets, r, dialogues = gen.dev_sets(lexicon, seed, 600), random.Random(seed), []
    for name, count in PICK.items():
        dialogues += [d for d, _ in r.sample(sets[name], min(count, len(sets[name])))]
    r.shuffle(dialogues)
    return [(i, m) for i, m in gen.encode(tokenizer, dialogues) if len(i) <= 512]


def main():
    from tokenizers import Tokenizer
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument('--tokenizer', default=os.path.join(MODELS, 'tokenizer.json'))
    ap.add_argument('--facts', default=None)
    ap.add_argument('--out', default=os.path.join(MODELS, 'heldout.json'))
    a = ap.parse_args()
    items = sequences(Lexicon(load(a.facts)), Tokenizer.from_file(a.tokenizer))
    body = {'description': 'Dialogues in wordings that were never trained (tools/train_mini/dev_frames.py), in chat format: definitions, examples, synonyms, opposites, kinds, parts of speech, '
                           'is-a, unknown words, follow-ups, small talk, tool calls and results, thinking on and off. Token ids of models/lily-mini/tokenizer.json. '
                           '"learn" marks the tokens that the assistant writes, as [start, end) pairs; the others were trained with a small weight only.',
            'sequences': [i for i, _ in items], 'learn': [runs(m) for _, m in items]}
    with open(a.out, 'w') as file:
        json.dump(body, file, separators=(',', ':'))
    print(len(items), 'sequences,', sum(len(i) for i, _ in items), 'tokens,', sum(sum(m) for _, m in items), 'by the assistant; longest', max(len(i) for i, _ in items), ';', os.path.getsize(a.out), 'bytes')


def runs(mask):
    out, start = [], None
    for i, v in enumerate(mask + [0]):
        if v and start is None:
            start = i
        elif not v and start is not None:
            out.append([start, i])
            start = None
    return out


if __name__ == '__main__':
    main()
