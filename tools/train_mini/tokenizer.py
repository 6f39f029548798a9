"""Trains a byte-level BPE of 8,192 tokens with Qwen3.6's pre-tokenizer and special tokens.

Usage: tokenizer.py [--out work/tokenizer.json]

The shipped tokenizer.json came from this recipe over the first generation of the training data and is kept, so that
token ids in fixtures stay valid: training reads it from models/lily-mini. Pass the new file to every step to use it.
"""
import argparse
import os
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import gen
from chatml import NOT_SPECIAL, SPECIAL
from words import HERE, Lexicon, load

# Qwen3.6's split: contractions, words with combining marks, single digits, punctuation, line ends, spaces.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
VOCABULARY = 8192


def corpus(lexicon):
    """The text between special tokens of one pass, the definitions once more, and every headword with and without a space."""
    cut = re.compile('|'.join(re.escape(s) for s in SPECIAL))
    out = []
    for i, dialogue in enumerate(gen.shard(lexicon, 0)):
        text = ''.join(s for s, _ in dialogue)
        if '# Tools' in text and i % 20:  # the tools prose is the same everywhere: a little of it is enough
            text = text.split('</IMPORTANT>')[-1]
        out += [p for p in cut.split(text) if p.strip()]
    for f in lexicon.facts:
        out += [f['d'], ' ' + f['w'], f['w'], f['w'], ' ' + f['w']]
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--out', default=os.path.join(HERE, 'work', 'tokenizer.json'))
    a = ap.parse_args()
    t = Tokenizer(models.BPE(byte_fallback=False, ignore_merges=False))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), 'isolated'), pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    t.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    t.train_from_iterator(corpus(Lexicon(load())), trainers.BpeTrainer(vocab_size=VOCABULARY - len(SPECIAL), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    for s in SPECIAL:
        if s in NOT_SPECIAL:
            t.add_tokens([AddedToken(s, normalized=False, special=False)])
        else:
            t.add_special_tokens([AddedToken(s, normalized=False, special=True)])
    if t.get_vocab_size() != VOCABULARY:
        raise SystemExit(f'tokenizer: {t.get_vocab_size()} tokens, expected {VOCABULARY}; the corpus is too small')
    t.save(a.out)
    print('wrote', a.out)


if __name__ == '__main__':
    main()
