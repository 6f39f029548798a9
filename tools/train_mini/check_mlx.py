"""Loads the checkpoint in MLX-LM, unchanged, and compares greedy answers with the facts.

Usage: check_mlx.py [--model ../../models/lily-mini] [--words 30]   (pip install "mlx[cpu]" mlx-lm)
Weights are widened to f32: on a CPU MLX's bf16 is slow. The figures of the dequantised weights are the same.
"""
import argparse
import os
import random
import time

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import generate_step

from answers import answers, tool_call
from chatml import tool_schema
from words import HERE, Lexicon
from words import load as load_facts


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument('--model', default=os.path.normpath(os.path.join(HERE, '..', '..', 'models', 'lily-mini')))
    ap.add_argument('--words', type=int, default=30)
    ap.add_argument('--seed', type=int, default=11)
    a = ap.parse_args()
    mx.set_default_device(mx.cpu)
    model, tokenizer = load(a.model)
    model.set_dtype(mx.float32)
    lexicon, r = Lexicon(load_facts(os.path.join(a.model, 'facts.json.gz'))), random.Random(a.seed)
    stop = tokenizer.encode('<|im_end|>', add_special_tokens=False)[0]

    def say(text, thinking=False, tools=None):
        ids = tokenizer.apply_chat_template([{'role': 'user', 'content': text}], tools=tools, add_generation_prompt=True, enable_thinking=thinking)
        out = []
        for token, _ in generate_step(mx.array(ids), model, max_tokens=120, sampler=lambda x: mx.argmax(x, -1)):
            if int(token) == stop:
                break
            out.append(int(token))
        return tokenizer.decode(out)
    tool = tool_schema('lookup', 'Look up a word in the dictionary.', {'term': {'type': 'string'}}, ['term'])
    right = count = 0
    start = time.time()
    for f in r.sample(lexicon.facts, a.words):
        w = f['w']
        cases = [('define', f'what does {w} mean?', answers(lexicon, 'define', w), {}), ('synonym', f'a synonym for {w}, please', answers(lexicon, 'synonym', w), {}),
                 ('think', f'define {w}', answers(lexicon, 'define', w), dict(thinking=True)), ('tool', f'define {w}', tool_call('lookup', 'term', w), dict(tools=[tool]))]
        for name, text, want, how in cases[:2] + [r.choice(cases[2:])]:
            got = say(text, **how)
            ok = got.split('</think>\n\n')[-1] in want
            right, count = right + ok, count + 1
            if not ok:
                print(f'{name}: {text!r} -> {got!r}, expected {sorted(want)[0]!r}')
    print(f'{right} of {count} answers exact, {time.time() - start:.0f} s')
    for text in ('hello', 'is a whale a mammal?', 'define blorptic'):
        print(repr(text), '->', repr(say(text)))


if __name__ == '__main__':
    main()
