"""Test problems in training data: found by the words that they share, and taken out.

A text's words are `\\w+`, without case, so that neither blank space nor punctuation counts. Two
texts overlap where N words in a row are the same; a shorter text, of at least SHORT words, where
all of its words are in the other, in a row. What any program or list of numbers could have in it
says nothing: words in a row count only if DISTINCT of them are different and no numbers.

N = 13 as in arXiv 2005.14165. Seen: every HumanEval prompt and MBPP text finds itself, so do 140 of
164 and 471 of 500 solutions; MBPP's tasks are much alike (62 of its 464 training tasks overlap with
HumanEval or MBPP's test, 114 at N = 10), word problems are not (none of 1,259 rows of TinyGSM's
form, none of 7,473 of GSM8K).
"""

import re
import unicodedata

N, SHORT, DISTINCT = 13, 6, 6


def words(text):
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def grams(text, n):
    """Every n words in a row."""
    found = words(text)
    return (tuple(found[at : at + n]) for at in range(len(found) - n + 1))


def tells(gram):
    return len({word for word in gram if not word.isdigit()}) >= DISTINCT


class Index:
    """The words in a row of some texts, by how many they are."""

    def __init__(self, texts):
        self.grams = {}
        for text in texts:
            n = min(N, len(words(text)))
            if n >= SHORT:
                self.grams.setdefault(n, set()).update(filter(tells, grams(text, n)))

    def overlaps(self, text):
        """Whether the text shares words in a row with one of the index's."""
        return any(not known.isdisjoint(grams(text, n)) for n, known in self.grams.items())
