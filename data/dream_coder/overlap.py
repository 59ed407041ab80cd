"""Find test problems in training data, by the words that two texts share.

A text's words are its runs of `\\w`, in lower case, so that neither white space nor punctuation
counts. Two texts overlap if they have the same N words in a row. A text of fewer than N words, but
at least SHORT, overlaps with every text that has all of its words in a row. Boilerplate is no
evidence: words in a row count only if DISTINCT different ones among them are not numbers.

N = 13 is as in arXiv 2005.14165. Measured: every HumanEval prompt and every MBPP text finds
itself, and so do 140 of 164 and 471 of 500 of their solutions. MBPP's tasks resemble each other (62
of its 464 training tasks overlap with HumanEval or with MBPP's test set, 114 at N = 10). Word
problems do not: none of 1,259 rows in TinyGSM's form overlaps, and none of GSM8K's 7,473.
"""

import re
import unicodedata

N, SHORT, DISTINCT = 13, 6, 6


def words(text):
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def grams(text, n):
    """All runs of n words of the text, as tuples."""
    found = words(text)
    return (tuple(found[at : at + n]) for at in range(len(found) - n + 1))


def is_distinctive(gram):
    """Whether the words are specific, unlike those of any program or list of numbers."""
    return len({word for word in gram if not word.isdigit()}) >= DISTINCT


class Index:
    """The distinctive runs of words in some texts, by their length."""

    def __init__(self, texts):
        self.grams = {}
        for text in texts:
            n = min(N, len(words(text)))
            if n >= SHORT:
                self.grams.setdefault(n, set()).update(filter(is_distinctive, grams(text, n)))

    def overlaps(self, text):
        """Whether the text overlaps with one of the index's."""
        return any(not known.isdisjoint(grams(text, n)) for n, known in self.grams.items())
