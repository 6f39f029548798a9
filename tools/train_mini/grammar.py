"""A small notation for families of sentences.

    [a|b|c]   one of the alternatives, each possibly empty or nested
    <name>    one entry of a named list
    {w}       a slot, filled by the caller

`compile_all` turns strings into trees once; `expand` walks a tree with a random generator. `size` counts the distinct
strings that a tree can give (slots count as one).
"""


def _parse(text, at, rules, closing):
    parts, alternatives, literal = [], [], ''

    def flush():
        nonlocal literal
        if literal:
            parts.append(literal)
            literal = ''
    while at < len(text):
        c = text[at]
        if c == '[':
            flush()
            node, at = _parse(text, at + 1, rules, ']')
            parts.append(node)
        elif c == '<':
            flush()
            end = text.index('>', at)
            name = text[at + 1:end]
            if name not in rules:
                raise ValueError(f'grammar: no list <{name}> for {text!r}')
            parts.append(rules[name])
            at = end + 1
        elif closing and c in '|]':
            flush()
            alternatives.append(tuple(parts))
            parts = []
            at += 1
            if c == ']':
                return alternatives, at
        else:
            literal += c
            at += 1
    if closing:
        raise ValueError(f'grammar: unclosed [ in {text!r}')
    flush()
    return tuple(parts), at


def compile_one(text, rules):
    return _parse(text, 0, rules, '')[0]


def compile_all(texts, rules):
    return [compile_one(t, rules) for t in texts]


def rules_from(table):
    """{name: [strings]} -> compiled lists; an entry may use lists defined before it."""
    rules = {}
    for name, texts in table.items():
        rules[name] = compile_all(texts, rules)
    return rules


def expand(tree, r):
    out = []
    for part in tree:
        out.append(part if isinstance(part, str) else expand(part[int(r.random() * len(part))], r))
    return ''.join(out)


def size(tree):
    n = 1
    for part in tree:
        if not isinstance(part, str):
            n *= sum(size(p) for p in part)
    return n
