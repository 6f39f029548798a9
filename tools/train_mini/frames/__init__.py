"""The wordings of questions, one module a question type. See `phrases.py` for how the parts are put together.

Every module defines the same lists, in the notation of `grammar.py`:
    Q   complete questions                      "what does {s} mean"
    V   imperative verb phrases                 "define {s}"
    N   noun phrases that can be asked for      "the meaning of {s}"
    I   indirect questions                      "what {s} means"
    K   keywords, as typed into a search box    "{w} meaning"
    T   questions about "it" after a sentence that brought the word up
    M   longer or unusual forms, complete as they stand
Slots: {w} the word, {s} the word with a possible label and quotes, {a} the word with its article if it is a noun,
{x} some other word of the lexicon, {b} / {h} a kind with and without its article (is_a only).
"""
