"""Dialogues in which functions are offered.

Function AND parameter names are random words, so that the model must copy them from the schema instead of remembering
one; with ten fixed parameter names it wrote a memorised one (14 % of whole calls right), with random names 94-98 %.
"""
import json

import phrases
from answers import CHAT, CHAT_THINK, answer, refusal, thinking
from chatml import tool_call, tool_schema

VERBS = ['lookup', 'look_up', 'get', 'find', 'search', 'query', 'fetch', 'read', 'check', 'ask', 'load', 'retrieve', 'show', 'define', 'explain', 'resolve', 'describe', 'open', 'request', 'consult']
OBJECTS = ['word', 'definition', 'dictionary', 'meaning', 'term', 'lexicon', 'entry', 'vocabulary', 'gloss', 'wordnet', 'headword', 'words', 'thesaurus', 'glossary', 'sense', 'dict', 'definitions', 'english']
PARAMETERS = ['word', 'term', 'query', 'text', 'entry', 'name', 'headword', 'w', 'q', 'input', 'key', 'item', 'value', 'token', 'phrase', 'string', 'search', 'target']
# Names kept for the development set.
DEV_NAMES = ['dictionary_lookup', 'lookup_meaning', 'fetch_definition', 'define_word', 'search_lexicon', 'word_info', 'dict', 'LookupWord']
DEV_PARAMETERS = ['lemma', 'word', 'term', 'expression', 'vocable']
DESCRIPTIONS = ['Look up a word in the dictionary.', 'Get the definition of a word.', 'Search the dictionary for a word.', 'Returns the meaning of an English word.', 'Find a word in a large dictionary', 'Dictionary lookup', 'Look up the meaning of a term.',
                'Query the lexicon', 'Look up any English word and return its dictionary entry.', 'Returns the dictionary entry for a word, or an error if it does not exist.', 'Use this tool to find out what a word means.', 'English dictionary.', 'Gives the definition.',
                'Get information about a word from the dictionary server', 'Definition of an English word', 'Fetches the entry of a headword from a dictionary with 200,000 words.', 'Call this whenever the user asks about a word.', 'Word lookup service', 'Retrieve a word\'s meaning']
PARAMETER_TEXTS = ['The word to look up', 'the word', 'Word', 'The term to search for', 'A single English word', '', '', 'The word to define', 'word in lower case', 'Headword', 'The English word', 'search key']
OTHERS = [('get_weather', 'Get the weather for a city.', 'city'), ('calculate', 'Evaluate an arithmetic expression.', 'expression'), ('send_email', 'Send an email message.', 'body'), ('read_file', 'Read a file from disk.', 'path'),
          ('run_command', 'Run a shell command.', 'command'), ('get_time', 'Get the current time in a place.', 'place'), ('translate', 'Translate a text.', 'sentence'), ('play_music', 'Play a song.', 'title'), ('search_web', 'Search the web.', 'question'),
          ('create_event', 'Add an event to the calendar.', 'date'), ('get_stock_price', 'Current price of a share.', 'symbol'), ('set_timer', 'Start a timer.', 'minutes'), ('take_photo', 'Take a picture with the camera.', 'camera'), ('open_door', 'Open a door.', 'door')]
PARAMETER_NOTES = ['The value', 'Text', 'What to use', 'input', 'Required', 'e.g. Paris', 'A short text']
# Other tools of two parameters.
WIDE = [('book_flight', 'Books a flight.', {'origin': 'From', 'destination': 'To'}), ('write_file', 'Writes text to a file.', {'path': 'Where', 'content': 'The text'}), ('convert_currency', 'Converts an amount of money.', {'amount': 'How much', 'currency': 'Code'}),
        ('add_task', 'Adds a task to a list.', {'title': 'What', 'due': 'YYYY-MM-DD'}), ('send_message', 'Sends a chat message.', {'to': 'Receiver', 'text': 'Message'}), ('find_route', 'Finds the way between two places.', {'start': '', 'end': ''})]
EXTRAS = [('language', {'type': 'string', 'enum': ['en', 'de', 'fr']}), ('limit', {'type': 'integer', 'description': 'Maximum number of results'}), ('verbose', {'type': 'boolean'}), ('max_senses', {'type': 'integer'}),
          ('format', {'type': 'string', 'description': 'json or text'}), ('source', {'type': 'string'}), ('with_examples', {'type': 'boolean', 'description': 'Include example sentences'})]
THESAURUS_TEXTS = ['Find synonyms of a word.', 'Returns words with the same meaning.', 'Thesaurus lookup', 'Get synonyms for a term.', 'Look up other words for a word in the thesaurus']
DIRECT = ['use {n} for {w}', 'call {n} with {w}', 'use the tool to look up {w}', 'use your tool: {w}', 'use the {n} tool on {w}', 'please use {n} to find {w}', 'look up {w} with {n}', 'look up {w} with the tool', 'check {w} with your dictionary tool', 'search for {w}', 'search {w}',
          'find {w}', 'query {w}', 'look {w} up with the function', 'run {n} on {w}', 'try the tool for {w}', 'ask the dictionary about {w}', 'can you look up {w} using the tool?', 'use the function to define {w}', 'consult the tool about {w}', 'please look up {w} in the dictionary for me',
          'I want you to look up {w} with the tool', 'call the function for {w}', 'get me {w} from the dictionary', 'fetch {w}', 'get the entry {w}', 'what does the tool say about {w}?', 'lookup {w}', 'do a lookup of {w}', 'do a dictionary search for {w}', 'invoke {n} for the word {w}']
NOT_FOUND = ['not found', 'no entry', 'error: word not found', '{"error": "not found"}', 'null', '', '[]', '{}', 'No results.', 'None', 'Error 404', '{"results": []}', 'no such word', '{"found": false}', 'Nothing found']


def function_name(r, lexicon):
    if r.random() < .45:
        v, o = r.choice(VERBS), r.choice(OBJECTS)
        return r.choice([f'{v}_{o}', o, v, f'{o}_{v}', f'{v}{o.capitalize()}', f'{v}-{o}', f"{r.choice(['my', 'simple', 'big', 'en', 'fast', 'local', 'mcp', 'x', 'v2', 'offline', 'api', 'web'])}_{v}_{o}", f'{v}_{o}', f'{o}.{v}', f'{v.capitalize()}{o.capitalize()}'])
    a, b = r.choice(lexicon.facts)['w'], r.choice(lexicon.facts)['w']
    return r.choice([f'{r.choice(VERBS)}_{a}', f'{a}_{r.choice(OBJECTS)}', f'{a}_{b}', a, f'{r.choice(VERBS)}{a.capitalize()}', f'{r.choice(OBJECTS)}-{a}', f'{a}{b.capitalize()}'])


def parameter_name(r, lexicon):
    if r.random() < .3:
        return r.choice(PARAMETERS)
    a = r.choice(lexicon.facts)['w']
    return r.choice([a, a, a, f'{r.choice(PARAMETERS)}_{a}', f'{a}_{r.choice(PARAMETERS)}', lexicon.invent(r)])


def _schema(r, name, text, parameter, parameter_text):
    p = {'type': 'string'}
    if parameter_text:
        p['description'] = parameter_text
    parameters = {parameter: p}
    if r.random() < .18:
        extra = r.choice(EXTRAS)
        if extra[0] != parameter:
            parameters[extra[0]] = extra[1]
            if r.random() < .3:
                parameters = dict(reversed(parameters.items()))
    return tool_schema(name, text, parameters, [parameter])


def dictionary_tool(r, lexicon, dev, texts=DESCRIPTIONS):
    """(function, parameter, schema); the development names are kept out of training."""
    if dev:
        n, p = r.choice(DEV_NAMES), r.choice(DEV_PARAMETERS)
    else:
        while True:
            n, p = function_name(r, lexicon), parameter_name(r, lexicon)
            if n not in DEV_NAMES and p not in ('lemma', 'expression', 'vocable'):
                break
    return n, p, _schema(r, n, r.choice(texts), p, r.choice(PARAMETER_TEXTS))


def other_tools(r, count):
    tools = [tool_schema(n, t, {p: {'type': 'string', 'description': r.choice(PARAMETER_NOTES)} if r.random() < .3 else {'type': 'string'}}, [p]) for n, t, p in r.sample(OTHERS, count)]
    if r.random() < .3:
        n, t, ps = r.choice(WIDE)
        tools[0] = tool_schema(n, t, {p: {'type': 'string', 'description': d} if d else {'type': 'string'} for p, d in ps.items()}, list(ps))
    return tools


def some_word(r, lexicon):
    """A word to ask a tool about: known, rare or invented."""
    x = r.random()
    return r.choice(lexicon.facts)['w'] if x < .45 else r.choice(lexicon.rare) if x < .62 else lexicon.invent(r)


def _result(r, lexicon, word):
    """(what the tool says, what the assistant then says)"""
    y = r.random()
    if y < .2:
        return r.choice(NOT_FOUND), f'I could not find the word {word}.'
    d = r.choice(lexicon.facts)['d']
    if r.random() < .15:
        d = ' '.join(r.choice(lexicon.facts)['w'] for _ in range(r.randint(3, 9)))
    said = f'{word}: {d}.'
    forms = [d, d, d + '.', json.dumps({'word': word, 'definition': d}), json.dumps({'definition': d}), json.dumps({r.choice(['entry', 'term', 'headword', 'query']): word, r.choice(['meaning', 'gloss', 'text', 'result', 'sense']): d}),
             f'{word}: {d}', f'{word} - {d}', json.dumps([d]), json.dumps({'results': [{'word': word, 'definition': d}]}), f'Definition: {d}', f'1. {d}', json.dumps({'ok': True, 'definition': d})]
    return r.choice(forms), said


def call_turns(r, lexicon, ask, dev=False, word=None, result=None, question=None):
    """A question, the call, and (result=True) the answer from the tool's result. Returns (turns, tools)."""
    n, p, t = dictionary_tool(r, lexicon, dev)
    tools = [t]
    if r.random() < .3:
        tools += other_tools(r, r.choice((1, 1, 2)))
        r.shuffle(tools)
    w = word or some_word(r, lexicon)
    q = 'define'
    if question:
        text = question(w)
    elif not dev and r.random() < .2:
        text = r.choice(DIRECT).replace('{n}', n).replace('{w}', w)
        text = text[0].upper() + text[1:] if r.random() < .4 else text
    else:
        q = 'define' if dev or r.random() < .88 else r.choice(('example', 'synonym', 'kind', 'antonym', 'part_of_speech'))
        text = ask(q, w)
    think = r.random() < .4
    turns = [('user', text), ('assistant', tool_call(n, {p: w}), f'The user wants the definition of {w}. I will call {n}.' if think else None)]
    if r.random() < .5 if result is None else result:
        got, said = _result(r, lexicon, w)
        turns += [('tool', got), ('assistant', said, 'The tool has answered.' if think else None)]
    return turns, tools


def two_tools_turns(r, lexicon, ask):
    """A dictionary and a thesaurus: the description decides."""
    n1, p1, t1 = dictionary_tool(r, lexicon, False)
    n2, p2, t2 = dictionary_tool(r, lexicon, False, THESAURUS_TEXTS)
    w, synonym = some_word(r, lexicon), r.random() < .5
    n, p = (n2, p2) if synonym else (n1, p1)
    goal = 'a synonym for' if synonym else 'the definition of'
    tools = [t1, t2]
    r.shuffle(tools)
    return [('user', ask('synonym' if synonym else 'define', w)), ('assistant', tool_call(n, {p: w}), f'The user wants {goal} {w}. I will call {n}.' if r.random() < .4 else None)], tools


def memory_turns(r, lexicon, ask, q='define', f=None, word=None):
    """Only unrelated tools are offered: the answer comes from memory."""
    tools = other_tools(r, r.choice((1, 1, 2)))
    think = r.random() < .4
    f = f or (r.choice(lexicon.facts) if word is None else None)
    w = f['w'] if f else word
    return [('user', ask(q, w)), ('assistant', answer(q, f) if f else refusal(w), thinking(q, w, f) if think else None)], tools


def chat_turns(r, lexicon, say, intent, dev=False):
    """A dictionary tool is offered, but the user only talks."""
    _, _, t = dictionary_tool(r, lexicon, dev)
    return [('user', say(intent)), ('assistant', CHAT[intent], CHAT_THINK[intent] if r.random() < .4 else None)], [t]


def asker(r, lexicon):
    """ask(q, word) with the training grammar."""
    def ask(q, w):
        f = lexicon.by.get(w)
        return phrases.question(q, w, r, lexicon, None, f['pos'] if f else 'noun')
    return ask


def dialogue(r, lexicon):
    """One training dialogue with tools -> (turns, tools)."""
    ask, say = asker(r, lexicon), lambda intent: phrases.chat(intent, r, lexicon)
    x = r.random()
    if x < .60:
        turns, tools = call_turns(r, lexicon, ask)
        if len(turns) == 4 and r.random() < .12:
            intent = r.choice(('thanks', 'bye', 'can', 'who', 'thanks'))
            # an assistant turn of the past shows no thinking
            turns += [('user', say(intent)), ('assistant', CHAT[intent], CHAT_THINK[intent] if r.random() < .4 else None)]
        return turns, tools
    if x < .70:
        return two_tools_turns(r, lexicon, ask)
    if x < .84:
        if r.random() < .25:
            return memory_turns(r, lexicon, ask, word=lexicon.invent(r))
        f = r.choice(lexicon.facts)
        return memory_turns(r, lexicon, ask, r.choice(('define', 'define', 'define', 'example', 'synonym', 'kind', 'part_of_speech')), f)
    return chat_turns(r, lexicon, say, r.choice(('greet', 'greet', 'thanks', 'bye', 'who', 'can', 'howareyou', 'cannot', 'cannot', 'noword')))
