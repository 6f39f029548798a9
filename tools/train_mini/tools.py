"""Dialogues in which functions are offered.

Function AND parameter names are random words, so that the model must copy them from the schema instead of remembering
one; with ten fixed parameter names it wrote a memorised one (14 % of whole calls right), with random names 94-98 %.
"""
import json

import phrases
from answers import CHAT, CHAT_THINK, answer, refusal, thinking
from chatml import tool_call, tool_schema
from phrases import Pool

VERBS = ['lookup', 'look_up', 'get', 'find', 'search', 'query', 'fetch', 'read', 'check', 'ask', 'load', 'retrieve', 'show', 'define', 'explain', 'resolve', 'describe', 'open', 'request', 'consult']
OBJECTS = ['word', 'definition', 'dictionary', 'meaning', 'term', 'lexicon', 'entry', 'vocabulary', 'gloss', 'wordnet', 'headword', 'words', 'thesaurus', 'glossary', 'sense', 'dict', 'definitions', 'english']
PARAMETERS = ['word', 'term', 'query', 'text', 'entry', 'name', 'headword', 'w', 'q', 'input', 'key', 'item', 'value', 'token', 'phrase', 'string', 'search', 'target']
# Names kept for the development set.
DEV_NAMES = ['dictionary_lookup', 'lookup_meaning', 'fetch_definition', 'define_word', 'search_lexicon', 'word_info', 'dict', 'LookupWord']
DEV_PARAMETERS = ['lemma', 'word', 'term', 'expression', 'vocable']
# What such a tool says about itself: as wide as the questions are. With 19 fixed sentences the model called tools of those
# descriptions only.
DESCRIPTIONS = Pool([
    '[Look up|Looks up|Look|Finds|Find|Search for|Searches for|Search|Get|Gets|Fetch|Fetches|Retrieve|Retrieves|Query|Queries|Check|Return|Returns|Give|Gives|Provides|Provide|Show|Shows|Read|Reads|Explain|Explains|Define|Defines|Describe|Describes|Tells you|Obtain|Resolve|Consult|Display|Load|Print|Report|Ask for] '
    '[a word|an English word|any word|the word|one word|words|a term|the meaning of a word|the definition of a word|the meaning of an English word|what a word means|the sense of a word|the dictionary entry of a word|a dictionary entry|the entry for a word|a definition|definitions|word meanings|word definitions|the gloss of a term|information about a word|details of a word|vocabulary|a headword|an entry|the meaning|the definition of a term|the explanation of a word|the meaning of any word you give it]'
    '[| in the dictionary| in a dictionary| from the dictionary| in a large dictionary| from our lexicon| in WordNet| from an online dictionary| in English| in the glossary| from the server| in the local database| by name| for the user| and returns its definition| or an error if there is none| with examples| quickly| using the dictionary API| in a glossary of terms| on the dictionary server| from a lexical database| in the offline dictionary| and its part of speech][|.|.|.]',
    '[English|Large|Simple|Online|Offline|Local|Fast|Free|Our|The|A|An English|A small|A big|Custom|Standard|Open] [dictionary|lexicon|word database|glossary|vocabulary service|dictionary service|dictionary API|lexical database|word lookup|dictionary lookup|definition service|wordbook|reference dictionary|word list with meanings|dictionary search|dictionary tool][| lookup| search| access| endpoint| of English| for English words| with 200,000 entries| of technical terms][|.|.]',
    '[Dictionary|Lexicon|Definition|Word|Meaning|Vocabulary|Glossary|Wordnet|Term] [lookup|search|query|finder|service|tool|access|API|retrieval|explorer|server|database][|.| for English words.| (English).| by word| for any term]',
    '[Use this|Call this|Use this tool|Call this tool|Use this function|Use it|Call it|Use me|Invoke this] [to find out|to learn|to check|to look up|to get|to see|when you need|when you need to know|whenever the user asks about|if the user wants|if the user asks for|to answer questions about] [what a word means|the meaning of a word|a definition|the definition of a word|word meanings|a word|the meaning of words|what something means|vocabulary][|.|.]',
    '[Given|For] [a word|an English word|a term|one word|a headword], [returns|return|gives|give|gets|get|finds|find|prints|tells] [its meaning|its definition|the definition|what it means|the dictionary entry|its gloss|the entry|its senses][|.|.]',
    '[What does a word mean?|What is the meaning of a word?|Meaning of a word.|Definition of a word|definition of an English word|word -> definition|word meaning|Ask about a word.|Ask the dictionary.|dictionary|lexicon|define|lookup|Word lookup service|Meanings of words|Words and their meanings.|Explains words.|Knows all words.|The dictionary.]',
    '[Access to|Interface to|Wrapper around|Client for|Connects to|Talks to] [a|the|an online|our|a big|the company] [dictionary|lexicon|glossary|dictionary server|word database|vocabulary database][|.|.]',
    'Returns [a JSON object with the definition|the definition as text|a list of definitions|the best definition|the first sense|a short definition|all senses] of [a word|the given word|the word|an English word|a term][|.]'])
# Kept for the development set.
DEV_DESCRIPTIONS = ['Look up a word.', 'Search our glossary of terms', 'English word lookup, returns a short gloss.', 'Gets you the sense of any headword', 'Tool for finding out about vocabulary.', 'Queries the dictionary backend for one lemma.',
                    'Find what an expression means', 'dictionary (en)', 'A service that explains single words to learners', 'Meaning finder.']
PARAMETER_TEXTS = Pool(['', '', '', '[The|A|One|An English|The English|A single|Any|The exact|Which|Your] [word|term|headword|entry|lemma|vocabulary item][| to look up| to define| to search for| to explain| to find| to query| in question| of interest| you want| the user asked about|, lower case|, in lower case| without quotes| in English][|.]',
                        '[word|Word|term|the word|headword|search key|key|query|text|input word|lookup key|string|what to look up|what to search|the thing to look up|name of the entry|word in lower case|word or phrase]'])
OTHERS = [('get_weather', 'Get the weather for a city.', 'city'), ('calculate', 'Evaluate an arithmetic expression.', 'expression'), ('send_email', 'Send an email message.', 'body'), ('read_file', 'Read a file from disk.', 'path'),
          ('run_command', 'Run a shell command.', 'command'), ('get_time', 'Get the current time in a place.', 'place'), ('translate', 'Translate a text.', 'sentence'), ('play_music', 'Play a song.', 'title'), ('search_web', 'Search the web.', 'question'),
          ('create_event', 'Add an event to the calendar.', 'date'), ('get_stock_price', 'Current price of a share.', 'symbol'), ('set_timer', 'Start a timer.', 'minutes'), ('take_photo', 'Take a picture with the camera.', 'camera'), ('open_door', 'Open a door.', 'door')]
PARAMETER_NOTES = ['The value', 'Text', 'What to use', 'input', 'Required', 'e.g. Paris', 'A short text']
# Other tools of two parameters.
WIDE = [('book_flight', 'Books a flight.', {'origin': 'From', 'destination': 'To'}), ('write_file', 'Writes text to a file.', {'path': 'Where', 'content': 'The text'}), ('convert_currency', 'Converts an amount of money.', {'amount': 'How much', 'currency': 'Code'}),
        ('add_task', 'Adds a task to a list.', {'title': 'What', 'due': 'YYYY-MM-DD'}), ('send_message', 'Sends a chat message.', {'to': 'Receiver', 'text': 'Message'}), ('find_route', 'Finds the way between two places.', {'start': '', 'end': ''})]
# Fields of other tools: verbs, things, what it says ({v}, {t}: the verb and the thing), parameters. With 20 fixed tools beside
# the dictionary the model knew those as "not the dictionary" and called unseen ones of other names.
FIELDS = [('turn switch toggle dim set start stop control', 'light lamp heater fan door oven blinds alarm radio lights thermostat camera', 'room device level state zone on'),
          ('read write delete copy move list open save append rename', 'file folder directory document log note image table sheet row', 'path name content target lines source'),
          ('send write forward draft post reply read', 'email message mail letter text chat sms notification tweet post', 'to body subject recipient channel text cc'),
          ('get fetch check show read current', 'weather time date temperature forecast news traffic rate price balance score status version location', 'city place zone symbol date units team account country'),
          ('add create cancel move schedule list update remove book reserve', 'event meeting task appointment reminder todo alarm flight hotel table ticket room seat', 'title date when guests due event time from to people'),
          ('run execute start stop restart deploy build test', 'command script job server container query test program process pipeline code', 'command args target timeout image code host'),
          ('play pause skip stop queue find', 'music song video playlist podcast album movie station', 'title artist volume song track year'),
          ('calculate convert compute solve count add', 'expression sum currency units distance tax average equation numbers', 'expression amount from to numbers value currency'),
          ('search find browse query list get', 'web internet pages flights products shops recipes jobs users routes restaurants images orders customers issues', 'query origin destination question filter page near max_price'),
          ('buy order pay transfer refund sell', 'item product pizza bill money stock groceries invoice share coffee', 'item amount account quantity address card'),
          ('translate summarize rewrite classify detect speak', 'text sentence language document paragraph page article', 'text target sentence language style')]


def styled(r, *parts):
    """A name of several words: snake, camel, kebab, Pascal or dotted."""
    parts = [p for p in parts if p]
    x = r.random()
    if x < .5:
        return '_'.join(parts)
    if x < .8:
        return parts[0] + ''.join(p.capitalize() for p in parts[1:])
    return '-'.join(parts) if x < .88 else ''.join(p.capitalize() for p in parts) if x < .95 else '.'.join(reversed(parts))


def field_tool(r):
    """An unrelated tool: (name, description, {parameter: description})."""
    verbs, things, parameters = (s.split() for s in r.choice(FIELDS))
    v, t = r.choice(verbs), r.choice(things)
    name = styled(r, v, r.choice(('', '', '', 'my', 'new', 'the', 'home', 'on', 'to')), t)
    third = v + ('es' if v.endswith(('ch', 'sh', 's', 'x')) else 's')
    text = r.choice((v, third, third)).capitalize() + r.choice((' a ', ' the ', ' ', ' one ', ' your ')) + t + r.choice(('', '.', '.', ' for the user.', ' by name.', ' of a person', ' in a city.', ' now.', ' on the server', ' on or off.', ' and returns the result.', ' (beta)'))
    return name, text, {p: r.choice(PARAMETER_NOTES + ['', '', f'The {p}', f'{p.capitalize()} of the {t}', f'Which {p}']) for p in r.sample(parameters, r.choice((1, 1, 2, 2, 3)))}


EXTRAS = [('language', {'type': 'string', 'enum': ['en', 'de', 'fr']}), ('limit', {'type': 'integer', 'description': 'Maximum number of results'}), ('verbose', {'type': 'boolean'}), ('max_senses', {'type': 'integer'}),
          ('format', {'type': 'string', 'description': 'json or text'}), ('source', {'type': 'string'}), ('with_examples', {'type': 'boolean', 'description': 'Include example sentences'})]
THESAURUS_TEXTS = Pool(['[Find|Finds|Get|Gets|Look up|Returns|List|Lists|Search|Give|Fetch|Suggests] [synonyms|other words|words with the same meaning|similar words|alternatives|words that mean the same|equivalents|synonyms and near synonyms] [of|for] [a word|a term|any word|an English word|the given word][|.| in the thesaurus| from the thesaurus.]', '[Thesaurus|Synonym] [lookup|search|finder|service|tool|query][|.]'])
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
    return n, p, _schema(r, n, r.choice(DEV_DESCRIPTIONS) if dev else texts.draw(r), p, PARAMETER_TEXTS.draw(r))


def other_tools(r, count):
    tools = [tool_schema(n, t, {p: {'type': 'string', 'description': r.choice(PARAMETER_NOTES)} if r.random() < .3 else {'type': 'string'}}, [p]) for n, t, p in r.sample(OTHERS, count)]
    if r.random() < .2:
        tools[0] = _plain_schema(*r.choice(WIDE))
    for i in range(count):
        if r.random() < .65:
            tools[i] = _plain_schema(*field_tool(r))
    return tools


def _plain_schema(name, text, parameters):
    return tool_schema(name, text, {p: {'type': 'string', 'description': d} if d else {'type': 'string'} for p, d in parameters.items()}, list(parameters))


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


def call_turns(r, lexicon, ask, dev=False, word=None, result=None, question=None, think=None):
    """A question, the call, and (result=True) the answer from the tool's result. Returns (turns, tools)."""
    n, p, t = dictionary_tool(r, lexicon, dev)
    tools = [t]
    if r.random() < .5:
        tools += other_tools(r, r.choice((1, 1, 2, 2)))
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
    think = r.random() < .6 if think is None else think
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
