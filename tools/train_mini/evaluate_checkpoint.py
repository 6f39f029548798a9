"""Development scores of a checkpoint file on the CPU (slow: some 1,000 tokens a second).

Usage: evaluate_checkpoint.py [--model FILE] [--facts FILE] [--n 120] [--sets define,tool_known] [--show 3]
"""
import argparse
import os

import torch
from tokenizers import Tokenizer

import evaluate
import export
import gen
import model
from words import HERE, Lexicon, load

MODELS = os.path.normpath(os.path.join(HERE, '..', '..', 'models', 'lily-mini'))


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument('--model', default=os.path.join(MODELS, 'model.safetensors'))
    ap.add_argument('--facts', default=None)
    ap.add_argument('--n', type=int, default=120, help='size of the largest set')
    ap.add_argument('--sets', default='', help='only these, separated by commas')
    ap.add_argument('--show', type=int, default=0, help='wrong dialogues to print a set')
    a = ap.parse_args()
    lexicon, tokenizer = Lexicon(load(a.facts)), Tokenizer.from_file(os.path.join(MODELS, 'tokenizer.json'))
    net = model.Net(model.Config(dtype=torch.float32), 'cpu', compile=False, P=export.load(a.model))
    for p in (net.flat4, net.flat8, *net.leaf.values()):
        p.requires_grad_(False)
    wanted = [s for s in a.sets.split(',') if s]
    for name, items in gen.dev_sets(lexicon, 7, a.n).items():
        if wanted and name not in wanted:
            continue
        with torch.no_grad():
            wrong, nll, _ = evaluate.measure(net, evaluate.Packed(gen.encode(tokenizer, [d for d, _ in items]), 4), 0)
        print(f'{name:22} {100 * (wrong == 0).float().mean().item():6.1f} % of {len(items):4}   nll {nll["answers"]:.4f}', flush=True)
        for d, _ in [it for it, w in zip(items, wrong.tolist()) if w][:a.show]:
            print('    ', repr(''.join(s for s, _ in d)[-220:]))


if __name__ == '__main__':
    main()
