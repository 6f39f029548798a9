"""Checks that chatml.py and models/lily-mini/chat_template.jinja give the same text.

Usage: check_template.py [TEMPLATE]. Renders random generated dialogues, and prompts with thinking on and off, both ways.
"""
import json
import os
import random
import re
import sys

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

import chatml
import gen
import tools as tools_
from words import HERE, Lexicon, load


def environment():
    """As transformers sets it up for chat templates."""
    def fail(message):
        raise jinja2.exceptions.TemplateError(message)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=['jinja2.ext.loopcontrols'])
    env.filters['tojson'] = lambda x, **_: json.dumps(x, ensure_ascii=False)
    env.globals['raise_exception'] = fail
    return env


def messages(turns, system):
    """Turns as the messages of an API; a tool call becomes `tool_calls`."""
    out = [{'role': 'system', 'content': system}] if system else []
    for t in turns:
        if t[0] != 'assistant':
            out.append({'role': t[0], 'content': t[1]})
            continue
        m = {'role': 'assistant', 'content': t[1]}
        if t[2]:
            m['reasoning_content'] = t[2]
        call = re.fullmatch(r'<tool_call>\n<function=(.+?)>\n<parameter=(.+?)>\n(.*)\n</parameter>\n</function>\n</tool_call>', t[1], re.S)
        if call:
            m.update(content='', tool_calls=[{'type': 'function', 'function': {'name': call[1], 'arguments': {call[2]: call[3]}}}])
        out.append(m)
    return out


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, '..', '..', 'models', 'lily-mini', 'chat_template.jinja')
    template = environment().from_string(open(path, encoding='utf8').read())
    lexicon, r, count = Lexicon(load()), random.Random(17), 0
    cases = []
    for _ in range(300):
        turns, tools = tools_.dialogue(r, lexicon)
        cases.append((turns, gen.system_prompt(r, .5), tools))
        f, g = r.choice(lexicon.facts), r.choice(lexicon.facts)
        cases.append((gen.follow_dialogue(['define', 'synonym'], f, r, lexicon), gen.system_prompt(r, .5), None))
        cases.append((gen.again_dialogue('define', f, g, r, lexicon), gen.system_prompt(r, .5), None))
    for turns, system, tools in cases:
        mine = ''.join(s for s, _ in chatml.render(turns, system, tools)) + '\n'
        theirs = template.render(messages=messages(turns, system), tools=tools, add_generation_prompt=False)
        if mine != theirs:
            raise SystemExit(f'check_template: history differs\ntrainer:  {mine!r}\ntemplate: {theirs!r}')
        text = [(t[0], t[1]) for t in turns if t[0] == 'user'][:1]
        for thinking in (False, True):
            mine = chatml.prompt(text, thinking, tools, system)
            theirs = template.render(messages=messages([(a, b, None) for a, b in text], system), tools=tools, add_generation_prompt=True, enable_thinking=thinking)
            if mine != theirs:
                raise SystemExit(f'check_template: prompt differs\ntrainer:  {mine!r}\ntemplate: {theirs!r}')
        count += 3
    print(f'{count} renderings equal')


if __name__ == '__main__':
    main()
