"""Questions in endless wordings: the lists of `frames/` put together at random, then roughened as people type.

Order of work: a core question (question, command, noun phrase, indirect question, keywords, context + "it", long form);
openers and sentences around it; dropped, added or misspelt small words; contractions and chat spelling; case; punctuation.
The word itself travels as a control character, so that nothing of this can damage it.
"""
import bisect
import itertools
import re

import dev_frames
import grammar
from frames import antonym, common, define, example, is_a, kind, part_of_speech, smalltalk, synonym
from words import ABSTRACT, article
from wordlists import inflections

W, H, P, HP = '\x01', '\x02', '\x03', '\x04'  # word, kind, plural of the word, plural of the kind
RULES = grammar.rules_from({'ask': smalltalk.ASK, **{k: v for k, v in common.COMMON.items() if k not in ('ctx', 'ctx0', 'after', 'know')},
                            **{k: common.COMMON[k] for k in ('know', 'after', 'ctx', 'ctx0')}})


class Pool:
    """Trees drawn in proportion to a power of their size, so that a rich pattern is seen more than a fixed sentence."""

    def __init__(self, texts, power=.28):
        self.trees = grammar.compile_all(texts, RULES)
        self.total = sum(grammar.size(t) for t in self.trees)
        self.cumulative = list(itertools.accumulate(min(grammar.size(t), 4000) ** power for t in self.trees))

    def draw(self, r):
        return grammar.expand(self.trees[bisect.bisect(self.cumulative, r.random() * self.cumulative[-1])], r)


MODULES = {'define': define, 'example': example, 'synonym': synonym, 'antonym': antonym, 'kind': kind, 'part_of_speech': part_of_speech, 'is_a': is_a}
POOLS = {q: {k: Pool(getattr(m, k)) for k in 'QVNIKTM' if hasattr(m, k)} for q, m in MODULES.items()}
CHAT = {intent: Pool(texts) for intent, texts in smalltalk.INTENTS.items()}
ONE = {name: Pool(common.COMMON[name], .1) for name in ('open', 'give', 'want', 'know', 'tail', 'after', 'hey', 'ctx', 'ctx0', 'fill')}
LABEL = ['the word', 'the word', 'the word', 'the term', 'the English word', 'this word:', 'the following word:', 'the expression', 'the word', 'the name', 'this term:', 'word', 'the vocabulary item', 'this:', 'the headword',
         'the entry', 'the vocabulary word', 'the noun', 'the lexical item', 'our word', 'that word', 'this word', 'the concept', 'the word called', 'my word', 'the dictionary word', 'the phrase', 'the thing called', 'the item']
DROP = set('the a an of for me please to is do does you can could i in it that this would what with tell give are'.split())
CONTRACT = [('what is', "what's"), ('What is', "What's"), ('I am', "I'm"), ('I would', "I'd"), ('I have', "I've"), ('do not', "don't"), ('cannot', "can't"), ('does not', "doesn't"), ('it is', "it's"), ('that is', "that's"),
            ('is not', "isn't"), ('there is', "there's"), ('how is', "how's"), ('who is', "who's"), ('you are', "you're"), ('I will', "I'll"), ('where is', "where's"), ('let us', "let's"), ('could not', "couldn't")]
CHATTY = {'you': ['u', 'ya', 'yu'], 'are': ['r'], 'please': ['pls', 'plz', 'plss'], 'what': ['wat', 'wut', 'wht'], "what's": ['whats', 'wats'], 'your': ['ur'], 'and': ['&', 'n'], 'for': ['4'], 'to': ['2'], 'thanks': ['thx', 'tnx'], 'thank': ['thnk'],
          'because': ['cuz', 'bc'], 'the': ['da', 'teh', 'th'], 'this': ['dis'], 'know': ['kno'], 'does': ['dose', 'dos'], 'mean': ['meen', 'mena'], 'meaning': ['meanin', 'meening'], 'something': ['smth', 'sth'], 'want': ['wanna'], 'give': ['gimme', 'giv'], 'word': ['wrd', 'werd'],
          'sentence': ['sentense', 'sentance'], 'synonym': ['synonim', 'synonyme', 'synomym', 'sinonym'], 'synonyms': ['synonims', 'synomyms'], 'opposite': ['oposite', 'opposit', 'oppisite'], 'antonym': ['antonim', 'antonyme'], 'definition': ['defintion', 'definiton', 'def'],
          'category': ['catagory', 'categorie'], 'example': ['exemple', 'exampel', 'ex'], 'is': ['iz', 'si'], 'I': ['i'], "I'm": ['im'], "don't": ['dont'], "can't": ['cant'], 'adjective': ['adj', 'adjectif'], 'really': ['rly'], 'right': ['rite'], 'kind': ['kinda', 'kynd'], 'explain': ['explane', 'explian']}
QUESTION_WORDS = set("what which how is can could would do does are may will has whats what's who where when am should was were isn't any got".split())


def normalise(text):
    """A question reduced to what matters for the comparison with the development wordings."""
    s = re.sub(r"[^\w@#%$ ]", ' ', text.lower().replace(W, '@').replace(H, '#').replace(P, '$').replace(HP, '%'))
    return ' '.join(t for t in s.split() if t not in ('a', 'an', 'please', 'the'))


def _banned():
    out = set()
    for frames in dev_frames.DEV.values():
        for f in frames:
            out.add(normalise(f.replace('{w}', W).replace('{a}', W).replace('{b}', H).replace('{h}', H).replace('{p}', P)))
    for frames in list(dev_frames.DEV_FOLLOW.values()) + list(dev_frames.DEV_CHAT.values()):
        out.update(normalise(f) for f in frames)
    return out


BANNED = _banned()


def _slot(r, name, is_noun, word):
    """The word with what people put around it."""
    y = r.random()
    q = f'"{W}"' if y < .13 else f"'{W}'" if y < .17 else f'*{W}*' if y < .18 else f'`{W}`' if y < .185 else f'“{W}”' if y < .195 else W
    if name == 'w':
        return q
    if name == 'a':
        if is_noun and r.random() < .8:
            art = article(word) if r.random() < .96 else r.choice(('a ', 'an ', 'the ')) + word
            return art[:-len(word)] + (q if r.random() < .3 else W)
        return q if r.random() < .7 else f'{r.choice(LABEL)} {q}'
    x = r.random()
    return q if x < .6 else f'{r.choice(LABEL)} {q}' if x < .92 else (article(word)[:-len(word)] + q if is_noun else q)


def _fill(text, r, lexicon, is_noun, word):
    if '{' not in text:
        return text
    out = []
    for part in re.split(r'(\{\w+\})', text):
        if part in ('{w}', '{s}', '{a}'):
            out.append(_slot(r, part[1], is_noun, word))
        elif part == '{p}':
            out.append(P)
        elif part == '{h}':
            out.append(H)
        elif part == '{hp}':
            out.append(HP)
        elif part == '{b}':
            out.append('{b}')
        elif part in ('{x}', '{y}'):
            out.append(r.choice(lexicon.facts)['w'])
        else:
            out.append(part)
    return ''.join(out)


def _strip_article(n):
    head, _, rest = n.partition(' ')
    return rest if head in ('a', 'an', 'the', 'some', 'one', 'any') and rest else n


def _core(q, r):
    """A question of type `q` with its slots still open."""
    p = POOLS[q]
    if q == 'is_a':
        return p['Q' if r.random() < .5 else 'M'].draw(r) + (ONE['tail'].draw(r) if r.random() < .15 else '')
    x, tail = r.random(), ONE['tail'].draw(r) if r.random() < .6 else ''
    if x < .17:
        return p['Q'].draw(r) + tail
    if x < .31:
        return ONE['open'].draw(r) + p['V'].draw(r) + tail
    if x < .41:
        return (ONE['open'].draw(r) if r.random() < .5 else '') + f"{ONE['give'].draw(r)} {p['N'].draw(r)}{tail}"
    if x < .48:
        return f"{ONE['want'].draw(r)} {p['N'].draw(r)}{tail}"
    if x < .52:
        return f"{r.choice(['what is', 'what is', 'what would be', 'what are', 'which is', 'what was', 'what might be', 'how about', 'what about', 'where is'])} {p['N'].draw(r)}{tail}"
    if x < .65:
        return f"{ONE['know'].draw(r)} {p['I'].draw(r)}{tail}"
    if x < .69:
        return _strip_article(p['N'].draw(r)) + tail
    if x < .78:
        return p['K'].draw(r)
    if x < .90:
        return _context(q, r)
    return p['M'].draw(r)


def _context(q, r):
    """A sentence with the word, and a question about "it"."""
    c, t = ONE['ctx'].draw(r), POOLS[q]['T'].draw(r)
    if r.random() < .12:
        return t + r.choice(['? ', '. ', '? ', '?\n']) + c + r.choice(['.', '', '.'])
    if c.endswith('?'):
        return f'{c} {t}'
    join = r.choice(['. ', '. ', '. ', ', ', ', ', '; ', ' - ', '! ', '\n', ': ', ' and ', '... ', ' ', ' so ', ' but ', '? ', ' -- '])
    if join in ('. ', '! ', '\n', '... ', '? ') and r.random() < .6:
        t = t[0].upper() + t[1:]
    return c + join + t


def _roughen(s, r):
    """Drops, adds and misspells small words: the intent must not hang on the whole string."""
    out = []
    for x in s.split(' '):
        if W not in x and H not in x and P not in x and HP not in x:
            if x.lower() in DROP and r.random() < .10:
                continue
            y = r.random()
            if len(x) > 3 and y < .03:
                i = r.randrange(len(x) - 1)
                x = x[:i] + x[i + 1] + x[i] + x[i + 2:] if y < .01 else x[:i] + x[i + 1:] if y < .02 else x[:i] + x[i] + x[i:]
        out.append(x)
        if r.random() < .03:
            out.append(ONE['fill'].draw(r))
    return ' '.join(out)


def _chatty(s, r):
    out = []
    for x in s.split(' '):
        c = CHATTY.get(x) or CHATTY.get(x.lower())
        out.append(r.choice(c) if c and r.random() < .5 else x)
    return ' '.join(out)


def _style(s, r, question=True):
    """Contractions, chat spelling, case and punctuation."""
    if r.random() < .3:
        for a, b in CONTRACT:
            if a in s and r.random() < .7:
                s = s.replace(a, b)
    if r.random() < .12:
        s = _chatty(s, r)
    if "'" in s and r.random() < .2:
        s = s.replace("'", '’') if r.random() < .4 else re.sub(r"(?<=\w)'(?=\w)", '', s)
    s = s.strip()
    if not s:
        return s
    x = r.random()
    if x < .45:
        s = s[0].upper() + s[1:]
    elif x < .60:
        s = s.lower()
    x = r.random()
    if s[-1].isalnum() or s[-1] in '"\'”’`*)' + W + H + P + HP:
        first = re.split(r'[\s,]', s, maxsplit=1)[0].lower()
        if question and first in QUESTION_WORDS:
            s += '?' if x < .6 else r.choice(['', '', '', '??', ' ?', '.', '?!', '...'])
        else:
            s += '' if x < .5 else '.' if x < .72 else '?' if x < .9 else r.choice(['!', '...', ' ?', '??', '?!', ' .', ' :)'])
    elif x < .3:
        s = s.rstrip('?.')
    return s


def question(q, word, r, lexicon, kind=None, pos='noun'):
    """A training question of type `q` about `word` (any string), never one of the development wordings."""
    is_noun = pos == 'noun'
    while True:
        s = _fill(_core(q, r), r, lexicon, is_noun, word)
        if normalise(s.replace('{b}', H)) in BANNED:
            continue
        y = r.random()
        if y < .11:
            s = ONE['hey'].draw(r) + s
        elif y < .20:
            s = _fill(ONE['ctx0'].draw(r), r, lexicon, False, word) + r.choice([' ', ' ', ' ', '\n']) + (s[0].upper() + s[1:] if r.random() < .5 else s)
        if r.random() < .30:
            s = _roughen(s, r)
        s = _style(s, r)
        if r.random() < .07:
            after = ONE['after'].draw(r)
            s += ('' if s.endswith(('?', '.', '!')) else r.choice(['.', ',', '', '?'])) + ' ' + after
        text = s.replace('{b}', H)
        if (W not in s and P not in s) or normalise(text) in BANNED:
            continue
        if kind is not None and H not in text and HP not in text:
            continue
        return _put(s, r, word, kind, is_noun)


def _put(s, r, word, kind, is_noun):
    x = r.random()
    w = word
    if x < .05 or (s.startswith(W) and x < .4):
        w = word.capitalize()
    elif x < .08 or (s.rstrip('?.! ') == W and x < .65):
        w = word.upper()
    plural = inflections(word, 'noun')[0] if is_noun else word
    if kind is not None:
        s = s.replace('{b}', article(kind) if r.random() < .95 else kind).replace(HP, inflections(kind, 'noun')[0]).replace(H, kind)
    s = s.replace(P, plural).replace(W, w)
    if r.random() < .035:
        s = s.upper()
    return s


def follow(q, r):
    """A later question about the same word, which it calls "it"."""
    while True:
        s = POOLS[q]['T'].draw(r)
        if normalise(s) in BANNED:
            continue
        x = r.random()
        if x < .2:
            s = r.choice(['and ', 'and ', 'ok, ', 'now ', 'so ', 'great, ', 'thanks, ', 'nice. ', 'ok. ', 'good, ', 'also, ', 'please: ', 'then ', 'cool, ', 'I see. ', 'alright, ']) + s
        if r.random() < .2:
            s = _roughen(s, r)
        s = _style(s + (ONE['tail'].draw(r) if r.random() < .15 else ''), r)
        if s and normalise(s) not in BANNED:
            return s


AGAIN = ['and {w}?', 'what about {w}?', 'how about {w}?', 'and what about {w}?', 'now {w}', 'the same for {w}', 'same for {w}, please', 'and for {w}?', 'and the word {w}?', 'next: {w}', 'also {w}', 'and {w}, please', 'now do {w}', 'then {w}',
         'do the same for {w}', 'same question for {w}', 'same with {w}', 'and now {w}?', 'ok, and {w}?', 'what of {w}?', 'can you do {w} too?', '{w} too, please', 'likewise for {w}', 'the next word is {w}', 'another one: {w}', 'and "{w}"?', 'same again for {w}', 'repeat with {w}']


def again(r, word):
    """The same question about another word."""
    s = r.choice(AGAIN).replace('{w}', word)
    if r.random() < .4:
        s = s[0].upper() + s[1:]
    return s.rstrip('?.') if r.random() < .3 else s


def chat(intent, r, lexicon):
    """A small-talk sentence of an intent."""
    while True:
        if intent == 'noword':
            s = follow(r.choice(('define', 'define', 'example', 'synonym', 'antonym', 'kind', 'part_of_speech')), r)
            if ' ' in s:  # a single word would be a question about itself
                return s
            continue
        s = _fill(CHAT[intent].draw(r), r, lexicon, True, 'thing').replace(P, inflections(r.choice(lexicon.nouns)['w'], 'noun')[0])
        if normalise(s) in BANNED:
            continue
        x = r.random()
        if x < .10 and intent not in ('greet', 'bye'):
            s = ONE['hey'].draw(r) + s
        elif x < .14 and intent == 'cannot':
            s = s + ONE['tail'].draw(r)
        if r.random() < .15:
            s = _roughen(s, r)
        s = _style(s, r)
        if r.random() < .03:
            s = s.upper()
        if s and normalise(s) not in BANNED:
            return s


def dev_question(q, frame, word, r, kind=None, pos='noun'):
    """A development wording with its slots filled."""
    a = article(word) if pos == 'noun' and r.random() < .85 else word
    plural = inflections(word, 'noun')[0] if pos == 'noun' else word
    s = frame.replace('{w}', word).replace('{a}', a).replace('{p}', plural)
    if kind is not None:
        s = s.replace('{b}', article(kind)).replace('{h}', kind)
    return s.upper() if frame.isupper() else s
