"""The lexicon in memory: look-ups, inflected forms, and invented words."""
import gzip
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))
# Kinds too abstract to be asked about often; they stay true, they are only drawn rarely.
ABSTRACT = {'entity', 'physical entity', 'abstraction', 'abstract entity', 'whole', 'unit', 'object', 'physical object', 'psychological feature', 'causal agent',
            'cause', 'causal agency', 'thing', 'matter', 'attribute', 'relation'}


def article(word):
    """'heron' -> 'a heron'"""
    return ('an ' if word[0] in 'aeiou' else 'a ') + word


def load(path=None):
    """Reads facts.json or the compact facts.json.gz."""
    path = path or os.path.join(HERE, 'work', 'facts.json')
    opener = gzip.open if path.endswith('.gz') else open
    with opener(path, 'rt', encoding='utf8') as file:
        data = json.load(file)
    return expanded(data) if 'words' in data else data


def expanded(data):
    """The compact form (facts.json.gz) as the full one."""
    names, facts = data['names'], []
    for w, e in data['words'].items():
        f = {k: v for k, v in e.items() if k != 'kinds'}
        f.update(w=w, hyper=e.get('kinds') or e.get('hyper') or [], anc=[names[i] for i in e['anc']], other=[names[i] for i in e['other']])
        facts.append(f)
    return {**{k: v for k, v in data.items() if k not in ('names', 'words')}, 'facts': facts}


class Lexicon:
    """facts plus the tables that the data generator draws from."""

    def __init__(self, data, limit=0):
        self.facts = [dict(f) for f in (data['facts'][:limit] if limit else data['facts'])]
        self.by = {f['w']: f for f in self.facts}
        self.forms = {k: v for k, v in data['forms'].items() if v in self.by}
        self.rare_test, self.rare = data['rare'][:2000], data['rare'][2000:]
        self.invented_test = data.get('invented', [])
        self.lemmas = set(data.get('wn', ()))
        self.form_list = sorted(self.forms)
        self.of = {}
        for form in self.form_list:
            self.of.setdefault(self.forms[form], []).append(form)
        self.nouns = [f for f in self.facts if f['pos'] == 'noun' and f['hyper']]
        count = {}
        for f in self.nouns:
            f['up'] = [a for a in f['anc'] if a.islower() and a.count(' ') <= 2]
            f['ancset'], f['anyset'] = set(f['anc']), set(f['anc']) | set(f['other'])
            for h in f['up']:
                count[h] = count.get(h, 0) + 1
        self.kinds = sorted(h for h, c in count.items() if c >= 3 and h not in ABSTRACT)
        self.kindset = set(self.kinds)
        for f in self.nouns:
            f['main'] = f['hyper']
        # "is a violin an animal?": kinds drawn by how many words they hold, and every name that any chain has
        self._frequent = [h for f in self.nouns for h in f['hyper']]
        self.all_kinds = sorted(set(self._frequent))
        # kinds by the top of their users' chains: "is a whale a fish?" is a harder no than "is a whale a theorem?"
        near = {}
        for f in self.nouns:
            near.setdefault(self._top(f), set()).update(h for h in f['up'] if h in self.kindset)
        self.near = {k: sorted(v) for k, v in near.items()}
        follow = {}
        for w in sorted(self.lemmas)[::3]:
            if 4 <= len(w) <= 11:
                s = '^^' + w + '$'
                for i in range(len(s) - 2):
                    follow.setdefault(s[i:i + 2], []).append(s[i + 2])
        self._follow = follow

    @staticmethod
    def _top(f):
        h = f['hyper']
        return h[max(0, len(h) - 5)]

    def common_kind(self, r):
        return r.choice(self._frequent)

    def near_kinds(self, f):
        near = self.near.get(self._top(f), ())
        return near if len(near) >= 8 else self.kinds

    def base(self, word):
        """The record of a headword or of an inflected form of one, or None."""
        word = word.lower()
        return self.by.get(word) or self.by.get(self.forms.get(word, ''))

    def looks_inflected(self, s):
        by = self.by
        for e in ('s', 'es', 'ed', 'd', 'ing', 'er', 'r', 'ly', 'y', 'n', 'est', 'ness', 'less', 'able'):
            if s.endswith(e):
                stem = s[:-len(e)]
                if stem in by or stem + 'e' in by or (len(stem) > 2 and stem[-1] == stem[-2] and stem[:-1] in by):
                    return True
        return s in self.forms or (s[-3:] in ('ies', 'ied') and s[:-3] + 'y' in by)

    def invent(self, r):
        """A pronounceable word that English (as far as WordNet goes) does not have: letter trigrams, or 1-2 edits of a known word."""
        while True:
            if r.random() < .64:
                c, s = '^^', ''
                while len(s) < 13:
                    n = r.choice(self._follow[c])
                    if n == '$':
                        break
                    s += n
                    c = c[1] + n
            else:
                s = r.choice(self.facts)['w']
                for _ in range(r.choice((1, 2, 2))):
                    i, letter, m = r.randrange(len(s)), r.choice('abcdefghijklmnoprstuvwyz'), r.random()
                    s = s[:i] + letter + s[i + 1:] if m < .5 else s[:i] + letter + s[i:] if m < .8 else s[:i] + s[i + 1:]
            if 4 <= len(s) <= 12 and s.isalpha() and s not in self.lemmas and s not in self.by and not self.looks_inflected(s):
                return s
