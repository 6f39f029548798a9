"""Development wordings: never trained, used to judge a run and to make the held-out set.

They were written before the grammar in `frames/`, but by the same people, so they are a development set and not a
test set: the generator rejects any question that equals one of these (see `phrases.banned`).
Slots: {w} the word, {a} the word with its article, {b} the kind with its article, {h} the kind.
"""

DEV = {
    'define': [
        'what exactly does {w} mean?', 'give the meaning of the word {w}', 'I would like to know what {w} means', 'could you tell me the definition of {w}?', 'define this word: {w}',
        'what is the definition of {w}?', 'tell me the meaning of the english word {w} please', 'what would you say {a} is?', 'yo what does {w} mean', 'hey lily, whats {w}',
        'i keep seeing {w} everywhere, what on earth does it mean?', 'so {w} is what exactly?', 'how does the dictionary explain {w}?', 'spell out for me what {w} means',
        'my son asked me what {w} means and I had no answer', 'may I ask what {w} means?', 'Break down the meaning of "{w}" for me.', 'ELI5: {w}', 'There is a word in my novel, {w}, and I am lost.',
        'pls explain me word {w}', "I stumbled on '{w}' in the newspaper this morning. Care to explain?", 'Got a definition for {w}?', '{w} -- what is that supposed to be', 'Enlighten me: {w}?',
        "what's the dictionary entry for {w}", 'I am studying vocabulary and {w} is on my list. Help me with its meaning.', 'If somebody says {w}, what do they mean?', '7 letters or not, what does {w} signify?',
        "In a nutshell, what's {a}?", 'Could you shed some light on the term {w}?', 'People say {w} all the time and I just nod. What is it?', 'WHAT DOES {w} MEAN', 'how should I understand {w} here?',
        'Teach me the word {w}.', 'Gimme the def of {w}', 'My professor wrote {w} on the board; what does that word denote?',
    ],
    'example': [
        'make a sentence with {w}', 'can you give me an example sentence with the word {w}?', 'how would you use {w} in a sentence?', 'show me an example sentence for {w}', 'let me see {w} in a real sentence',
        'any sentence with {w} in it?', 'I struggle to use {w}, show me how', 'a phrase where {w} occurs', 'Demonstrate the usage of "{w}".', 'What would a sentence containing {w} look like?',
        'I know what {w} means but not how to use it. Example?', 'sample sentence {w}', 'Put the word {w} into context for me', 'could you work {w} into a sentence', 'how do native speakers use {w}?',
        "I'd love to see {w} used properly.", 'For my flashcards I need one sentence featuring {w}.', 'pls one example with word {w}', 'Use in sentence: {w}', 'Where might I use {w}? Show me.',
        'illustrate {w} with an example', 'quote me a line that has {w} in it',
    ],
    'synonym': [
        'what is a word similar to {w}?', 'can you think of another word for {w}?', 'tell me a synonym of {w}', 'give me other words that mean {w}', "what's a good synonym for {w}?",
        'is there some other word I could use for {w}?', 'I used {w} too often in my essay, what else could I write?', 'something that means the same thing as {w}', 'Thesaurus entry for {w}?',
        'I keep repeating "{w}" in this letter; suggest a replacement.', 'a different way of saying {w}', 'which word could stand in for {w}?', 'synonym pls: {w}', "Words equivalent to {w}, if there are any",
        'Swap {w} for something else.', 'what are some alternatives to {w}', "My crossword clue is '{w}' and it wants a synonym.", 'How else might one say {w}?', '{w}, but another word',
        'Find a word with the same meaning as {w}.', 'any words close in meaning to {w}?',
    ],
    'antonym': [
        'which word means the opposite of {w}?', 'tell me an antonym of {w}', 'what would be the opposite of {w}?', "What's the reverse of {w}?", 'not {w} but the contrary: which word?', 'antonym for "{w}"?',
        'I need a word that means the exact opposite of {w}', 'if it is not {w} then it is what?', 'opposite word: {w}', 'Tell me the word that is contrary to {w}.', 'what word is the antithesis of {w}',
        'my homework says: write the opposite of {w}', 'Can you flip the meaning of {w}?', 'counterpart with opposite meaning for {w}?',
    ],
    'kind': [
        'what kind of a thing is {a}?', 'tell me what type of thing {w} is', 'what broader category does {a} belong to?', '{w} is which kind of thing?', 'under what heading would you file {a}?',
        'what general category is {a}?', 'In what category would you put {a}?', 'what sort of thing do you call {a}?', "Name the class that {w} falls into.", 'hypernym for {w}?', '{a} is a type of what?',
        'How would you categorize {a}?', 'What group of things does {a} belong to?', 'I want to sort my words; where does {w} go?', 'parent category of {w}', 'is {a} an animal, a plant, a thing or what?',
        'what family of things is {a} in', 'classify this for me: {w}', "what's the broader word for {a}?",
    ],
    'part_of_speech': [
        'which word class does {w} belong to?', 'tell me what part of speech {w} is', 'what is the part of speech of {w}?', 'Is "{w}" a noun or an adjective?', '{w}: noun, verb or what?',
        'grammatically speaking, what is {w}?', 'what part of speech would you give {w}', 'is {w} used as a verb or a noun', 'POS tag for {w}', 'My grammar teacher wants the word class of {w}.',
        'does {w} count as an adverb?', 'Parts of speech quiz: {w}', 'what type of word is {w}?', 'name the lexical category of {w}',
    ],
    'is_a': [
        'would {a} count as {b}?', 'is it true that {a} is {b}?', 'is {a} some kind of {h}?', 'Is {a} {b}, yes or no?', 'does {a} qualify as {b}?', "So {a} isn't {b}, is it?", 'would it be right to call {a} {b}?',
        'is every {w} {b}?', 'Are {p} a kind of {h}?', 'can {a} be considered {b}', 'my friend says {a} is {b}. is that so?', "{a}: is it {b}?", 'Is {w} a member of the {h} family?', 'do you count {a} as {b}?',
        'I think {a} is {b}. Am I right?', 'pls tell me is {w} {h}?',
    ],
}

DEV_FOLLOW = {
    'define': ['so what does it mean?', 'and its meaning?', 'what is that word about?'], 'example': ['show it in a sentence', 'now use that word in a sentence, please'],
    'synonym': ['is there another word for it?', 'what else can I call it?'], 'antonym': ['what would its opposite be?'], 'kind': ['and what type of thing is it?'],
    'part_of_speech': ['which part of speech is it?', 'is it a verb or a noun?'],
}

DEV_CHAT = {
    'greet': ['well hello', 'hi, dictionary', 'hey, good morning', 'Hello! Nice to meet you.', 'hiya lily', 'good afternoon to you', 'hey, anyone there?'],
    'thanks': ['thanks so much', 'wonderful, thank you', 'that was really helpful, cheers', 'I appreciate your help', 'thx a bunch', "great answer, you're very useful"],
    'bye': ['goodbye now', 'see you soon', "I've got to go, bye", 'have a nice evening', 'ok that is everything for today', 'catch you later'],
    'who': ['who is this?', 'tell me who you are', 'do you have a name?', 'What should I call you?', 'are you chatgpt?', 'is there a real person behind this?', 'what kind of AI are you?'],
    'can': ['what are you able to do?', 'what could I ask?', 'What sort of things do you help with?', 'list your features', 'how should I use this?', 'what are you good at?'],
    'howareyou': ['how are you today?', 'are you doing well?', "how's your day going?", 'hope you are well', 'you alright?', 'how have you been'],
    'cannot': ['write a story about a dragon', 'what is 12 + 30?', 'what is the capital of Spain?', 'translate good night into Italian', 'what will the weather be tomorrow?', 'write a program that sorts a list',
               'Should I bring an umbrella today?', 'who won the world cup in 1998', 'convert 5 miles to km', 'Can you order me a pizza?', 'debug this javascript for me', 'tell me the latest news', "what's the square of 14",
               'who painted the Mona Lisa?', 'remind me to call mum at six', 'plan a trip to Japan for me'],
}
